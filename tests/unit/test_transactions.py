"""Transactions at a broker on a simulated machine: halves, ends, questions, and what survives."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from saturnmq.broker.transactions.endings import EndingKind
from saturnmq.broker.transactions.halves import asked_again
from saturnmq.protocol import fastjson
from saturnmq.protocol.remoting import Command
from saturnmq.store.derived.reput import NEW_QUEUES
from saturnmq.store.message_store import MessageStore, PendingMessage
from transactions_rig import (
    BUSY,
    COMMIT,
    ENDED,
    ENDINGS,
    EXPIRED,
    FAILED,
    GROUP,
    HALVES,
    QUICK,
    ROLLBACK,
    UNKNOWN,
    Asked,
    answer_to,
    bodies,
    end,
    greet,
    half,
    pending,
    started,
    stored,
)
from world_rig import World, run


def test_a_half_is_stored_as_rocketmq_stores_it_and_not_in_its_topic() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        which = await half(client, b"paid", KEYS="k", TAGS="t")
        [message] = await stored(world, broker, HALVES)
        assert (message.body, message.sys_flag, message.prepared_offset) == (b"paid", 0, 0)
        properties = message.properties
        assert properties["REAL_TOPIC"] == "T"
        assert properties["REAL_QID"] == "0"
        assert properties["__transactionId__"] == properties["UNIQ_KEY"] == "U1"
        assert (properties["TRAN_MSG"], properties["KEYS"], properties["TAGS"]) == (
            "true",
            "k",
            "t",
        )
        assert which["commitLogOffset"] == str(message.physical_offset)
        assert await bodies(world, broker) == []
        assert pending(broker) == 1
        await broker.close()

    run(body)


def test_a_commit_stores_the_message_behind_its_ending() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        which = await half(client, b"paid", KEYS="k")
        assert (await end(client, which, COMMIT)).code == 0
        [message] = await stored(world, broker)
        assert (message.body, message.keys, message.sys_flag) == (b"paid", ["k"], COMMIT)
        assert message.prepared_offset == int(which["commitLogOffset"])
        assert message.properties["UNIQ_KEY"] == "U1"
        [ending] = await stored(world, broker, ENDINGS)
        assert (ending.body, ending.tag) == (b"0,", "d")
        assert ending.physical_offset + ending.frame_size == message.physical_offset
        assert pending(broker) == 0
        assert (await client.pull(0)).code == 0
        await broker.close()

    run(body)


def test_a_rollback_stores_no_message() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        kept = await half(client, b"kept", "U1")
        gone = await half(client, b"gone", "U2")
        assert (await end(client, gone, ROLLBACK)).code == 0
        assert await bodies(world, broker) == []
        assert pending(broker) == 1
        assert (await end(client, kept, COMMIT)).code == 0
        assert await bodies(world, broker) == [b"kept"]
        assert pending(broker) == 0
        assert [m.body for m in await stored(world, broker, ENDINGS)] == [b"1,", b"0,"]
        await broker.close()

    run(body)


def test_a_one_way_end_counts_and_unknown_decides_nothing() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        which = await half(client)
        assert (await end(client, which, UNKNOWN)).code == 0
        assert pending(broker) == 1
        texts = {name: str(v) for name, v in {**which, "commitOrRollback": COMMIT}.items()}
        client.endpoint.oneway(Command.request(37, texts))
        await world.until(lambda: pending(broker) == 0)
        assert await bodies(world, broker) == [b"x"]
        await broker.close()

    run(body)


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_an_end_twice_changes_nothing_and_another_end_is_refused(first: int) -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        which = await half(client)
        assert (await end(client, which, first)).code == 0
        assert (await end(client, which, first)).code == 0
        other = await end(client, which, ROLLBACK if first == COMMIT else COMMIT)
        assert other.code == ENDED
        said = "it was committed" if first == COMMIT else "it was rolled back"
        assert said in (other.remark or "")
        assert len(await bodies(world, broker)) == (first == COMMIT)
        assert broker.messaging.ends.refused == 1
        await broker.close()
        broker, client = await started(world)
        again = await end(client, which, first)
        assert again.code == 0, again.remark
        assert len(await bodies(world, broker)) == (first == COMMIT)
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("wrong", "code", "text"),
    [
        ({"producerGroup": "thieves"}, FAILED, "the producer group wrong"),
        ({"tranStateTableOffset": 1}, FAILED, "find prepared transaction message failed"),
        ({"tranStateTableOffset": 99}, FAILED, "find prepared transaction message failed"),
        ({"commitLogOffset": 1}, FAILED, "find prepared transaction message failed"),
        ({"commitLogOffset": 1 << 60}, FAILED, "find prepared transaction message failed"),
        ({"transactionId": "V"}, FAILED, "is not transaction V"),
        ({"commitOrRollback": 4}, 29, "commitOrRollback is 4"),
        ({"commitOrRollback": -1}, 29, "commitOrRollback"),
        ({"tranStateTableOffset": -1}, 29, "tranStateTableOffset"),
        ({"commitLogOffset": "x"}, 29, "commitLogOffset"),
        ({"producerGroup": ""}, 29, "producerGroup"),
    ],
)
def test_an_end_that_names_no_open_transaction_is_refused(
    wrong: dict[str, Any], code: int, text: str
) -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        which = await half(client)
        await half(client, unique="U2")
        reply = await client.ask(37, {**which, "commitOrRollback": COMMIT, **wrong})
        assert reply.code == code, reply.remark
        assert text in (reply.remark or "")
        assert pending(broker) == 2
        assert await bodies(world, broker) == []
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("properties", "topic", "text"),
    [
        ({}, "T", "PGROUP"),
        ({"PGROUP": GROUP, "DELAY": "3"}, "T", "cannot wait as well"),
        ({"PGROUP": GROUP}, "%RETRY%G", "cannot write to %RETRY%G"),
        ({"PGROUP": GROUP, "long": "x" * 32_400}, "T", "shorten them"),
    ],
)
def test_a_half_that_could_never_end_is_refused(
    properties: dict[str, str], topic: str, text: str
) -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        reply = await client.send(b"x", topic, TRAN_MSG="true", **properties)
        assert reply.code == 13, reply.remark
        assert text in (reply.remark or "")
        assert pending(broker) == 0
        await broker.close()

    run(body)


def test_transactions_can_be_switched_off() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world, reject_transactions=True)
        reply = await client.send(b"x", TRAN_MSG="true", PGROUP=GROUP)
        assert reply.code == 16
        assert "rejectTransactionMessage" in (reply.remark or "")
        await broker.close()

    run(body)


def test_a_half_forgets_what_a_received_message_knew_of_its_own_transaction() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        first = await half(client, b"first", "U1")
        old = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "15"}
        second = await half(client, b"second", "U2", **old)
        assert (await end(client, second, COMMIT)).code == 0
        assert await bodies(world, broker) == [b"second"]
        assert pending(broker) == 1
        assert (await end(client, first, ROLLBACK)).code == 0
        await broker.close()

    run(body)


def test_an_open_transaction_is_asked_about_until_it_is_decided() -> None:
    async def body(world: World) -> None:
        asked = Asked()
        broker, client = await started(world, asked, **QUICK)
        await greet(client)
        which = await half(client, b"paid", KEYS="k")
        await world.until(lambda: len(asked.ids) == 3, every=0.1)
        assert set(asked.ids) == {"U1"}
        question, message = asked.commands[-1], asked.message()
        assert (message.topic, message.queue_id, message.body) == ("T", 0, b"paid")
        assert message.properties["PGROUP"] == GROUP
        assert message.keys == ["k"]
        assert question.ext["bname"] == broker.config.broker_name
        assert question.ext["offsetMsgId"].endswith(f"{int(question.ext['commitLogOffset']):016X}")
        copies = await stored(world, broker, HALVES)
        assert [m.properties.get("TRANSACTION_CHECK_TIMES") for m in copies] == [
            None,
            "1",
            "2",
            "3",
        ]
        assert all(m.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0" for m in copies[1:])
        assert pending(broker) == 1
        reply = await end(client, answer_to(question), COMMIT, fromTransactionCheck="true")
        assert reply.code == 0, reply.remark
        assert await bodies(world, broker) == [b"paid"]
        assert pending(broker) == 0
        await asyncio.sleep(5)
        assert len(asked.ids) == 3
        # The late word of the producer itself is about the same transaction.
        assert (await end(client, which, COMMIT)).code == 0
        assert (await end(client, which, ROLLBACK)).code == ENDED
        assert await bodies(world, broker) == [b"paid"]
        await broker.close()

    run(body)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_each_place_where_the_half_was_names_the_transaction(place: int) -> None:
    async def body(world: World) -> None:
        asked = Asked()
        broker, client = await started(world, asked, **QUICK)
        await greet(client)
        which = await half(client)
        await world.until(lambda: len(asked.ids) == 2, every=0.1)
        names = [which, *map(answer_to, asked.commands)]
        assert (await end(client, names[place], COMMIT)).code == 0
        assert await bodies(world, broker) == [b"x"]
        for other in names:
            assert (await end(client, other, COMMIT)).code == 0
            assert (await end(client, other, ROLLBACK)).code == ENDED
        assert await bodies(world, broker) == [b"x"]
        assert pending(broker) == 0
        await broker.close()

    run(body)


def test_a_transaction_nobody_decides_expires_and_its_message_is_kept() -> None:
    async def body(world: World) -> None:
        asked = Asked()
        broker, client = await started(world, asked, transaction_check_max=2, **QUICK)
        await greet(client)
        which = await half(client, b"lost")
        await world.until(lambda: broker.messaging.check_backs.expired, every=0.1)
        assert pending(broker) == 0
        assert len(asked.ids) == 2
        [message] = await stored(world, broker, EXPIRED)
        assert message.body == b"lost"
        assert message.properties["REAL_TOPIC"] == "T"
        refused = await end(client, which, COMMIT)
        assert refused.code == ENDED
        assert "expired" in (refused.remark or "")
        assert await bodies(world, broker) == []
        await asyncio.sleep(5)
        assert len(await stored(world, broker, EXPIRED)) == 1
        await broker.close()

    run(body)


def test_a_question_goes_to_producers_of_the_group_that_live_in_turn() -> None:
    async def body(world: World) -> None:
        heard = [Asked(), Asked(), Asked(), Asked()]
        broker, first = await started(world, heard[0], **QUICK)
        second = await world.connect(broker.address, heard[1])
        other = await world.connect(broker.address, heard[2])
        dead = await world.connect(broker.address, heard[3])
        for client in (first, second, dead):
            await greet(client)
        await greet(other, "others")
        dead.endpoint.close("gone")
        await half(first)
        await world.until(lambda: sum(len(each.ids) for each in heard) == 4, every=0.1)
        assert [len(each.ids) for each in heard] == [2, 2, 0, 0]
        await broker.close()

    run(body)


def test_without_a_producer_the_questions_are_counted_as_asked() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world, transaction_check_max=3, **QUICK)
        await half(client)
        await world.until(lambda: broker.messaging.check_backs.expired, every=0.1)
        assert broker.messaging.check_backs.unanswerable == 3
        assert len(await stored(world, broker, EXPIRED)) == 1
        await broker.close()

    run(body)


def test_a_message_may_ask_for_more_time() -> None:
    async def body(world: World) -> None:
        asked = Asked()
        broker, client = await started(world, asked, **QUICK)
        await greet(client)
        began = world.loop.time()
        await half(client, unique="slow", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
        await half(client, unique="usual")
        await world.until(lambda: "slow" in asked.ids, every=0.1)
        assert world.loop.time() - began >= 10
        assert asked.ids.index("usual") == 0
        slow = asked.message(asked.ids.index("slow"))
        assert slow.properties["TRANSACTION_CHECK_TIMES"] == "1"
        assert pending(broker) == 2
        await broker.close()

    run(body)


def test_clocks_that_step_ask_nobody_early() -> None:
    async def body(world: World) -> None:
        asked = Asked()
        changes = {"transaction_timeout_ms": 5000, "transaction_check_ms": 1000}
        broker, client = await started(world, asked, **changes)
        await greet(client)
        began = world.loop.time()
        await half(client)
        world.nodes[0].jump_wall_clock(3_600_000)
        await asyncio.sleep(1)
        world.nodes[0].jump_wall_clock(-7_200_000)
        await world.until(lambda: asked.ids, every=0.1)
        assert 5 <= world.loop.time() - began <= 7
        await broker.close()

    run(body)


def test_an_end_waits_until_the_queue_has_its_half() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        for queue in range(3 * NEW_QUEUES):  # a step of reput makes so many files
            broker.store.put(PendingMessage("wide", queue, b"x"))
        which = await half(client, b"paid")
        early = await end(client, which, COMMIT)
        assert early.code == BUSY
        assert "not yet the half" in (early.remark or "")
        marks = broker.store.watermarks
        await world.until(lambda: marks.dispatched == marks.appended)
        assert (await end(client, which, COMMIT)).code == 0
        assert await bodies(world, broker) == [b"paid"]
        await broker.close()

    run(body)


def test_an_end_waits_until_the_queue_has_its_half_that_moved() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        which = await half(client, b"paid")
        marks, half_log = broker.store.watermarks, broker.messaging.half_log
        await world.until(lambda: marks.dispatched == marks.appended)
        first = half_log.at(0)
        assert first is not None
        for queue in range(3 * NEW_QUEUES):
            broker.store.put(PendingMessage("wide", queue, b"x"))
        half_log.end(first, EndingKind.MOVED, asked_again(first, bytes(8), is_check=True))
        early = await end(client, which, COMMIT)
        assert early.code == BUSY
        assert "not yet half 1" in (early.remark or "")
        await world.until(lambda: marks.dispatched == marks.appended)
        assert (await end(client, which, COMMIT)).code == 0
        assert await bodies(world, broker) == [b"paid"]
        await broker.close()

    run(body)


@pytest.mark.parametrize("crash", [False, True])
def test_open_and_ended_transactions_survive_a_restart(crash: bool) -> None:
    async def body(world: World) -> None:
        asked = Asked()
        slow = QUICK | {"transaction_check_ms": 2000}
        broker, client = await started(world, asked, flush_disk_type="SYNC_FLUSH", **slow)
        await greet(client)
        kept = [await half(client, b"%d" % n, f"U{n}") for n in range(6)]
        assert (await end(client, kept[1], COMMIT)).code == 0
        assert (await end(client, kept[2], ROLLBACK)).code == 0
        await world.until(lambda: len(asked.ids) == 4, every=0.1)
        assert (await end(client, kept[3], COMMIT)).code == 0  # by its first place
        assert (await end(client, answer_to(asked.commands[2]), ROLLBACK)).code == 0
        before = pending(broker)
        assert before == 2
        if crash:
            world.nodes[0].power_off()
            world.disk.power_off()
            world.disk.power_on()
        else:
            await broker.close()
        asked = Asked()
        broker, client = await started(world, asked, flush_disk_type="SYNC_FLUSH", **slow)
        await greet(client)
        assert pending(broker) == before
        for number, first in ((1, COMMIT), (2, ROLLBACK), (3, COMMIT), (4, ROLLBACK)):
            again = await end(client, kept[number], first)
            assert again.code == 0, (number, again.remark)
            other = await end(client, kept[number], COMMIT + ROLLBACK - first)
            assert other.code == ENDED, number
        assert await bodies(world, broker) == [b"1", b"3"]
        await world.until(lambda: len(asked.ids) == 2, every=0.1)
        assert sorted(asked.ids) == ["U0", "U5"]
        assert asked.message().properties["TRANSACTION_CHECK_TIMES"] == "2"
        assert (await end(client, kept[0], COMMIT)).code == 0
        assert (await end(client, answer_to(asked.commands[1]), ROLLBACK)).code == 0
        assert await bodies(world, broker) == [b"1", b"3", b"0"]
        assert pending(broker) == 0
        await broker.close()

    run(body)


@pytest.mark.parametrize("kind", ["commit", "move", "expire"])
def test_an_ending_whose_message_a_crash_took_has_ended_nothing(kind: str) -> None:
    """At every byte between the two, and nothing is doubled or lost after that."""

    async def body(world: World) -> None:
        asked = Asked()
        most = 1 if kind == "expire" else 15
        broker, client = await started(world, asked, transaction_check_max=most, **QUICK)
        await greet(client)
        which = await half(client, b"once")
        if kind == "commit":
            assert (await end(client, which, COMMIT)).code == 0
        elif kind == "move":
            await world.until(lambda: asked.ids, every=0.1)
        else:
            await world.until(lambda: broker.messaging.check_backs.expired, every=0.1)
        endings = await stored(world, broker, ENDINGS)
        cut = endings[-1].physical_offset + endings[-1].frame_size
        assert cut < broker.store.watermarks.appended
        store_config = broker.store.config
        await broker.close()
        store = MessageStore.open(store_config, world.disk, world.node("tool"))
        store.truncate(cut)
        store.close()

        asked = Asked()
        broker, client = await started(world, asked, **QUICK)
        await greet(client)
        assert pending(broker) == 1
        assert await bodies(world, broker) == await bodies(world, broker, EXPIRED) == []
        await client.send(b"other")  # at the place of what was cut off
        await world.until(lambda: asked.ids, every=0.1)
        assert (await end(client, which, COMMIT)).code == 0
        assert await bodies(world, broker) == [b"other", b"once"]
        await broker.close()
        broker, client = await started(world, **QUICK)
        assert pending(broker) == 0
        assert (await end(client, which, COMMIT)).code == 0
        assert await bodies(world, broker) == [b"other", b"once"]
        await broker.close()

    run(body)


def test_endings_of_rocketmq_count_and_its_offsets_say_where_to_begin() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        kept = [await half(client, b"%d" % n, f"U{n}") for n in range(4)]
        host = broker.context.store_host
        broker.store.put(PendingMessage(ENDINGS, 0, b"0,2,", b"TAGS\x01d\x02", store_host=host))
        broker.store.put(PendingMessage(ENDINGS, 0, b"odd", b"TAGS\x01d\x02", store_host=host))
        broker.store.put(PendingMessage(ENDINGS, 0, b"3,", b"TAGS\x01e\x02", store_host=host))
        broker.context.offsets.commit("CID_RMQ_SYS_TRANS", HALVES, 0, 1)
        await broker.close()
        broker, client = await started(world)
        assert pending(broker) == 2
        assert (await end(client, kept[2], COMMIT)).code == ENDED
        assert (await end(client, kept[0], COMMIT)).code == ENDED
        for which in (kept[1], kept[3]):
            assert (await end(client, which, COMMIT)).code == 0
        assert await bodies(world, broker) == [b"1", b"3"]
        await broker.close()

    run(body)


def test_the_offsets_of_rocketmqs_group_follow_what_is_on_the_disk() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        kept = [await half(client, unique=f"U{n}") for n in range(3)]
        for which in (kept[0], kept[2]):
            assert (await end(client, which, COMMIT)).code == 0
        offsets = broker.context.offsets

        def known() -> tuple[int | None, int | None]:
            group = "CID_RMQ_SYS_TRANS"
            return offsets.query(group, HALVES, 0), offsets.query(group, ENDINGS, 0)

        await world.until(lambda: known() == (1, 1), every=0.1)
        assert (await end(client, kept[1], ROLLBACK)).code == 0
        await world.until(lambda: known() == (3, 3), every=0.1)
        await broker.close()

    run(body)


def test_a_commit_for_a_topic_that_was_deleted_meanwhile_is_a_rollback() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        await client.send(b"first")
        which = await half(client)
        assert (await client.ask(215, {"topic": "T"})).code == 0
        reply = await end(client, which, COMMIT)
        assert reply.code == 17
        assert "rolled back" in (reply.remark or "")
        assert pending(broker) == 0
        assert (await end(client, which, COMMIT)).code == ENDED
        await broker.close()

    run(body)


def test_the_runtime_information_counts_them() -> None:
    async def body(world: World) -> None:
        asked = Asked()
        broker, client = await started(world, asked, **QUICK)
        await greet(client)
        first, second = await half(client, unique="U1"), await half(client, unique="U2")
        await half(client, unique="U3")
        await end(client, first, COMMIT)
        await end(client, second, ROLLBACK)
        await world.until(lambda: asked.ids, every=0.1)
        table = fastjson.loads(bytes((await client.ask(28)).body))["table"]
        assert table["transactionsPending"] == "1"
        assert table["transactionsCommitted"] == table["transactionsRolledBack"] == "1"
        assert table["transactionChecks"] == "1"
        await broker.close()

    run(body)

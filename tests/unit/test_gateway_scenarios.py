"""Scenarios of the official clients' own tests, where no other test shows them
(docs/internals/grpc-traps.md lists all)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_rig import Caller, Code, create_topic, served, two
from saturnmq.gateway import v2
from saturnmq.protocol.codes import RequestCode
from world_rig import World, run

T = v2.Resource(name="T")
Type = v2.MessageType


def in_order(caller: Caller, number: int, group: str = "g", topic: str = "T") -> Any:
    return caller.message(b"%d" % number, topic, message_type=Type.FIFO, message_group=group)


def codes_of(answer: Any) -> list[int]:
    return [entry.status.code for entry in answer.entries]


# several messages in one request, which Rust's client sends


def test_ten_messages_of_a_request_have_ten_entries_and_keep_their_order() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "F", "FIFO")
        sent = [in_order(caller, number, topic="F") for number in range(10)]
        answer = await caller.send(*sent)
        assert answer.status.code == Code.OK
        assert [entry.message_id for entry in answer.entries] == [
            each.system_properties.message_id for each in sent
        ]
        assert [entry.offset for entry in answer.entries] == list(range(10))
        assert (await caller.receive("F")).bodies == [each.body for each in sent]

    run(body)


def test_messages_of_several_topics_in_a_request_are_refused_and_none_is_stored() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "OTHER", "NORMAL")
        mixed = [caller.message(b"x", topic) for topic in ("T", "T", "OTHER")]
        answer = await caller.send(*mixed)
        assert (answer.status.code, list(answer.entries)) == (Code.MESSAGE_CORRUPTED, [])
        wrong = await caller.send(caller.message(b"x"), caller.message(b""))
        assert wrong.status.code == Code.MESSAGE_BODY_EMPTY
        assert (await caller.receive()).code == Code.MESSAGE_NOT_FOUND

    run(body)


def test_a_request_of_which_one_broker_takes_its_part_is_told_message_by_message() -> None:
    async def body(world: World) -> None:
        ((_, here), (gone, _)) = await two(world, "FIFO")
        groups = [f"g{number}" for number in range(12)]
        answer = await here.send(*(in_order(here, n, group) for n, group in enumerate(groups)))
        assert answer.status.code == Code.OK
        await gone.close()
        again = await here.send(*(in_order(here, n, group) for n, group in enumerate(groups)))
        assert again.status.code == Code.MULTIPLE_RESULTS  # the route still names both
        assert [entry.message_id for entry in again.entries] == [
            f"01{number:032X}" for number in range(13, 25)
        ]
        codes = codes_of(again)
        assert set(codes) == {Code.OK, Code.PROXY_TIMEOUT}
        stored = [b"%d" % n for n, code in enumerate(codes) if code == Code.OK]
        got = (await here.receive(broker="broker-0")).messages
        ids = {entry.message_id for entry in again.entries}
        second = [each.body for each in got if each.system_properties.message_id in ids]
        assert sorted(second) == sorted(stored)

    run(body)


# recalls


async def delayed(world: World, caller: Caller, seconds: int, topic: str = "D") -> str:
    """The handle of a message that is due in so many seconds."""
    due_ms = world.nodes[0].now_ms() + seconds * 1000
    sent = caller.message(b"x", topic, message_type=Type.DELAY, delivery_timestamp=due_ms)
    (entry,) = (await caller.send(sent)).entries
    assert entry.recall_handle
    return str(entry.recall_handle)


async def recall(caller: Caller, handle: str, topic: str = "D") -> Any:
    return await caller.ask("RecallMessage", topic=v2.Resource(name=topic), recall_handle=handle)


def test_a_recall_behind_the_delivery_is_an_error_and_so_is_a_second_one() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "D", "DELAY")
        handle = await delayed(world, caller, 5)
        (message,) = (await caller.receive("D", poll_ms=10_000)).messages
        assert (await caller.ack(message, topic="D")).status.code == Code.OK
        late = await recall(caller, handle)
        assert (late.status.code, late.message_id) == (Code.BAD_REQUEST, "")
        assert "delivered already" in late.status.message
        handle = await delayed(world, caller, 60)
        assert (await recall(caller, handle)).status.code == Code.OK
        assert (await recall(caller, handle)).status.code == Code.BAD_REQUEST
        await asyncio.sleep(70)
        assert (await caller.receive("D")).code == Code.MESSAGE_NOT_FOUND

    run(body)


def test_a_recall_of_another_topic_changes_nothing() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        for topic in ("D", "E"):
            await create_topic(world, broker, topic, "DELAY")
        handle = await delayed(world, caller, 10)
        for topic, code in (
            ("E", Code.BAD_REQUEST),
            ("T", Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            ("MISSING", Code.TOPIC_NOT_FOUND),
        ):
            assert (await recall(caller, handle, topic)).status.code == code
        assert (await caller.receive("D", poll_ms=15_000)).bodies == [b"x"]

    run(body)


# transactions


def test_a_transaction_that_nobody_ends_is_given_up_after_the_last_question() -> None:
    async def body(world: World) -> None:
        changes: dict[str, Any] = {"transaction_check_ms": 1000, "transaction_timeout_ms": 500}
        broker, caller = await served(world, transaction_check_max=3, **changes)
        await create_topic(world, broker, "X", "TRANSACTION")
        settings = v2.Settings(client_type=v2.ClientType.PRODUCER)
        settings.publishing.topics.add(name="X")
        stream = caller.open_telemetry()
        caller.says.put_nowait(v2.TelemetryCommand(settings=settings))
        await world.until(lambda: len(caller.told) == 2)
        half = caller.message(b"t", "X", message_type=Type.TRANSACTION)
        (entry,) = (await caller.send(half)).entries
        await asyncio.sleep(30)
        asked = [each for each in caller.told if each.WhichOneof("command") != "settings"]
        assert len(asked) == 3
        questions = [each.recover_orphaned_transaction_command for each in asked]
        ids = {each.message.system_properties.message_id for each in questions}
        assert ids == {entry.message_id}
        late = await caller.ask(
            "EndTransaction",
            topic=v2.Resource(name="X"),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=v2.TransactionResolution.COMMIT,
        )
        assert late.status.code == Code.PRECONDITION_FAILED
        assert (await caller.receive("X")).code == Code.MESSAGE_NOT_FOUND
        assert broker.store.max_offset("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 1
        caller.says.put_nowait(None)
        await stream

    run(body)


# consumers


@pytest.mark.parametrize("auto_renew", [False, True])
def test_two_consumers_share_the_messages_and_none_comes_to_both(auto_renew: bool) -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        one, other = (Caller(world, caller.gateway, name) for name in ("one", "other"))
        found: dict[str, list[bytes]] = {"one": [], "other": []}

        async def consume(each: Caller) -> None:
            while sum(map(len, found.values())) < 200:
                got = await each.receive(most=4, poll_ms=2000, auto_renew=auto_renew)
                found[each.client_id] += got.bodies
                if got.messages:
                    assert (await each.ack(*got.messages)).status.code == Code.OK
                await asyncio.sleep(0.01)

        tasks = [asyncio.ensure_future(consume(each)) for each in (one, other)]
        bodies = [b"%d" % number for number in range(200)]
        for each in bodies:
            assert (await caller.send(caller.message(each))).status.code == Code.OK
        await asyncio.gather(*tasks)
        assert sorted(found["one"] + found["other"]) == sorted(bodies)
        assert all(len(each) > 20 for each in found.values())

    run(body)


def test_a_new_group_begins_at_the_end_of_a_queue_that_has_lost_its_first_messages() -> None:
    async def body(world: World) -> None:
        options = {"commitlog_segment_bytes": 64 << 10, "file_reserved_hours": 0}
        broker, caller = await served(world, store_options=options)
        for number in range(8):
            await caller.send(caller.message(b"%d" % number + bytes(40_000)))
        got = await caller.receive(group="EARLY", most=32)  # all are there: it gets the first ones
        assert len(got.messages) == 8
        remote = await world.connect(broker.address)
        reply = await remote.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        assert reply.code == 0, reply.remark
        store = broker.store
        await world.until(lambda: all(store.min_offset("T", number) for number in range(4)), 60)
        assert (await caller.receive(group="LATE")).code == Code.MESSAGE_NOT_FOUND
        for number in range(16):
            await caller.send(caller.message(b"new %d" % number))
        bodies: list[bytes] = []
        while got := (await caller.receive(group="LATE")).bodies:
            bodies += got
        assert sorted(bodies) == sorted(b"new %d" % number for number in range(16))

    run(body)


# throttling


def test_a_send_that_is_throttled_is_taken_later() -> None:
    async def body(world: World) -> None:
        changes: dict[str, Any] = {"flush_disk_type": "SYNC_FLUSH", "max_pending_acks": 1}
        broker, caller = await served(world, **changes)
        machine = world.nodes[0]
        machine.blocking_latency_s = (0.5, 0.5)
        sends = [asyncio.ensure_future(caller.send(caller.message(b"%d" % n))) for n in range(4)]
        codes = [(await each).status.code for each in sends]
        assert sorted(set(codes)) == [Code.OK, Code.TOO_MANY_REQUESTS]
        machine.blocking_latency_s = (0.0, 0.0)
        await world.until(lambda: not broker.ground.context.ledger.full)
        assert (await caller.send(caller.message(b"later"))).status.code == Code.OK

    run(body)


def test_a_receive_that_is_throttled_is_served_later() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world, max_held_pops=2)
        waiting = [Caller(world, caller.gateway, f"client-{n}") for n in range(3)]
        receives = [asyncio.ensure_future(each.receive(poll_ms=5000)) for each in waiting[:2]]
        await asyncio.sleep(0.1)
        assert (await waiting[2].receive(poll_ms=5000)).code == Code.TOO_MANY_REQUESTS
        assert [(await each).code for each in receives] == [Code.MESSAGE_NOT_FOUND] * 2
        late = asyncio.ensure_future(waiting[2].receive(poll_ms=5000))
        await asyncio.sleep(0.1)
        await caller.send(caller.message(b"a"))
        assert (await late).bodies == [b"a"]

    run(body)

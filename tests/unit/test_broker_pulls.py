"""Pulls from a broker on a simulated machine: how much, held how long, and what they are told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.broker.handlers import arrival_notes
from saturnmq.broker.tables.pull_offsets import PullOffsets
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import SystemBusy
from world_rig import Remote, World, new_disk, run

PULL = {"consumerGroup": "G", "topic": "T", "queueId": 0, "subscription": "*", "subVersion": 0}
HELD = {"sysFlag": 6, "suspendTimeoutMillis": 15_000}


def count(reply: Command) -> int:
    return len(decode_frames(bytes(reply.body), True))


async def filled(
    world: World, messages: int, size: int = 1, **changes: Any
) -> tuple[Broker, Remote]:
    broker = await world.broker(**changes)
    client = await world.connect(broker.address)
    for _ in range(messages):
        await client.send(bytes(size))
    await world.until(lambda: broker.store.max_offset("T", 0) == messages)
    return broker, client


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"maxMsgNums": ""}, 32),
        ({"maxMsgNums": 0}, 1),
        ({"maxMsgNums": -7}, 1),
        ({"maxMsgNums": 33}, 33),
        ({"maxMsgNums": 40_000}, 50),
        ({"maxMsgNums": 40_000, "maxMsgBytes": ""}, 50),
        ({"maxMsgNums": 40_000, "maxMsgBytes": 11_000}, 2),
        ({"maxMsgNums": 40_000, "maxMsgBytes": -1}, 1),
    ],
)
def test_a_pull_gets_as_many_as_it_asks_for_within_limits_and_one_at_least(
    asked: dict[str, Any], got: int
) -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 50, 5000)
        reply = await client.pull(0, **asked)
        assert (reply.code, count(reply), reply.ext["nextBeginOffset"]) == (0, got, str(got))
        await broker.close()

    run(body)


def test_an_answer_has_8_mib_at_most() -> None:
    async def body(world: World) -> None:
        options = {"commitlog_segment_bytes": 16 << 20}
        broker, client = await filled(world, 9, 1 << 20, store_options=options)
        for asked in ({}, {"maxMsgBytes": 15 << 20}):
            reply = await client.pull(0, maxMsgNums=1000, **asked)
            assert (count(reply), len(reply.body) <= 8 << 20) == (7, True)
        await broker.close()

    run(body)


def test_an_answer_over_several_segments_of_the_log_is_in_order() -> None:
    async def body(world: World) -> None:
        options = {"commitlog_segment_bytes": 32 << 10}
        broker, client = await filled(world, 20, 5000, store_options=options)
        found: list[int] = []
        while len(found) < 20:
            reply = await client.pull(len(found))
            messages = decode_frames(bytes(reply.body), True)
            found += [message.queue_offset for message in messages]
        assert found == list(range(20))
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ({"sysFlag": 4, "suspendTimeoutMillis": 5000}, 0.0),
        ({"sysFlag": 6, "suspendTimeoutMillis": 5000}, 5.0),
        ({"sysFlag": 6, "suspendTimeoutMillis": 61_000}, 60.0),
        ({"sysFlag": 6, "suspendTimeoutMillis": 0}, 0.0),
        ({"sysFlag": 6, "suspendTimeoutMillis": -5}, 0.0),
        ({"sysFlag": 6, "suspendTimeoutMillis": ""}, 0.0),
    ],
)
def test_a_pull_is_held_as_long_as_it_asks_and_a_minute_at_most(
    asked: dict[str, Any], seconds: float
) -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        began = world.loop.time()
        reply = await client.ask(11, {**PULL, "queueOffset": 1, **asked}, seconds=100.0)
        assert (reply.code, reply.remark) == (19, "OFFSET_OVERFLOW_ONE")
        assert reply.ext["nextBeginOffset"] == "1"
        assert seconds <= world.loop.time() - began < seconds + 0.2
        await broker.close()

    run(body)


def test_so_many_pulls_are_held_and_no_more() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1, max_held_pulls=2)
        held = [asyncio.create_task(client.pull(1, **HELD)) for _ in range(2)]
        await asyncio.sleep(1)
        refused = await client.pull(1, **HELD)
        assert (refused.code, "2 pulls are held" in str(refused.remark)) == (2, True)
        assert (await client.pull(0, **HELD)).code == 0, "this one finds something"
        await client.send(b"x")
        assert [(await each).code for each in held] == [0, 0]
        held = [asyncio.create_task(client.pull(2, **HELD)) for _ in range(2)]
        await asyncio.sleep(1)
        assert not any(each.done() for each in held), "there is room again"
        await broker.close()

    run(body)


def test_pulls_of_a_connection_that_is_gone_are_forgotten_and_the_others_stay() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1, max_held_pulls=3)
        leaving = await world.connect(broker.address)
        gone = [asyncio.create_task(leaving.pull(1, **HELD)) for _ in range(2)]
        await asyncio.sleep(1)
        stays = asyncio.create_task(client.pull(1, **HELD))
        await asyncio.sleep(1)
        leaving.endpoint.close()
        await asyncio.gather(*gone, return_exceptions=True)
        await world.until(lambda: len(broker.messaging.pulls.held) == 1, seconds=1)
        assert not stays.done()
        await client.send(b"x")
        assert (await stays).code == 0
        assert len(broker.messaging.pulls.held) == 0
        await broker.close()

    run(body)


def test_whoever_holds_the_most_pulls_makes_room_for_others() -> None:
    async def body(world: World) -> None:
        broker, greedy = await filled(world, 1, max_held_pulls=10)
        many = [asyncio.create_task(greedy.pull(1, **HELD)) for _ in range(10)]
        await world.until(lambda: len(broker.messaging.pulls.held) == 10)
        assert (await greedy.pull(1, **HELD)).code == 2
        modest = await world.connect(broker.address)
        few = [asyncio.create_task(modest.pull(1, **HELD)) for _ in range(5)]
        await asyncio.sleep(1)
        assert not any(each.done() for each in few)
        ended = [(await each).code for each in many if each.done()]
        assert ended == [19] * 5, "as if their time was over"
        assert (await modest.pull(1, **HELD)).code == 2, "both have their part"
        assert len(broker.messaging.pulls.held) == 10
        await broker.close()

    run(body)


def test_held_pulls_are_counted_in_the_memory_of_their_connection() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        budget = broker.context.connections.budget
        before = budget.used
        long = {**HELD, "subscription": "t" * 5000}
        held = [asyncio.create_task(client.pull(1, **long)) for _ in range(10)]
        await world.until(lambda: len(broker.messaging.pulls.held) == 10)
        assert 50_000 < budget.used - before < 100_000
        (its,) = {
            each.endpoint.budget for each in broker.messaging.pulls.held.take_queue(("T", 0)) or ()
        }
        its.hold(its.limit - its.used - 5000)
        refused = await client.pull(1, **long)
        assert (refused.code, "of one connection" in str(refused.remark)) == (2, True)
        other = await world.connect(broker.address)
        waits = asyncio.create_task(other.pull(1, **long))
        await asyncio.sleep(1)
        assert not waits.done()
        client.endpoint.close()
        await asyncio.gather(*held, return_exceptions=True)
        await world.until(lambda: len(broker.messaging.pulls.held) == 1, seconds=1)
        assert its.used == 0
        await broker.close()

    run(body)


def test_a_pull_that_a_message_is_not_for_is_held_on_for_the_next() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        held = {tag: asyncio.create_task(client.pull(1, **HELD, subscription=tag)) for tag in "ab"}
        await world.until(lambda: len(broker.messaging.pulls.held) == 2)
        for tag, answer in held.items():
            began = world.loop.time()
            await client.send(b"x", TAGS=tag)
            assert (await answer).code == 0
            assert world.loop.time() - began < 0.1
        await broker.close()

    run(body)


def test_a_pull_whose_time_is_over_goes_and_the_others_of_its_queue_stay() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        stays = asyncio.create_task(client.pull(1, **HELD))
        assert (await client.pull(1, **{**HELD, "suspendTimeoutMillis": 1000})).code == 19
        assert [len(waiting) for waiting in broker.messaging.pulls.held.by_queue.values()] == [1]
        began = world.loop.time()
        await client.send(b"x")
        assert (await stays).code == 0
        assert world.loop.time() - began < 0.1
        assert broker.messaging.pulls.held.by_queue == {}
        assert (await client.pull(2, **HELD)).code == 19
        assert broker.messaging.pulls.held.by_queue == {}, "nothing is kept of it"
        await asyncio.sleep(20)
        assert len(broker.messaging.pulls.held) == 0, "each is over once"
        await broker.close()

    run(body)


def test_a_pull_that_comes_while_a_message_is_not_safe_yet_is_answered_when_it_is() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1, flush_disk_type="SYNC_FLUSH")
        world.nodes[0].blocking_latency_s = (1.0, 1.0)  # on each side of a flush
        sent = asyncio.create_task(client.send(b"x"))
        await world.until(lambda: broker.store.max_offset("T", 0) == 2)
        await asyncio.sleep(0.1)
        held = asyncio.create_task(client.pull(1, **HELD))
        await world.until(lambda: len(broker.messaging.pulls.held) == 1)
        assert not sent.done()
        await sent
        began = world.loop.time()
        assert (await held).code == 0
        assert world.loop.time() - began < 0.5
        await broker.close()

    run(body)


def test_pulls_are_answered_one_queue_after_the_other_however_many_messages_wait_to_be_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrival_notes, "NOTES_MAX", 2)

    async def body(world: World) -> None:
        broker, client = await filled(world, 1, flush_disk_type="SYNC_FLUSH")
        world.nodes[0].blocking_latency_s = (1.0, 1.0)  # on each side of a flush
        sent, held = [], []
        for queue in range(4):
            end = int(queue == 0)
            sent.append(asyncio.create_task(client.send(b"x", queue=queue)))
            await asyncio.sleep(0.1)
            assert broker.store.max_offset("T", queue) == end + 1
            held.append(asyncio.create_task(client.pull(end, queue=queue, **HELD)))
        await sent[0]
        assert not sent[1].done(), "it is in the next flush"
        for one, answer in zip(sent, held, strict=True):
            await one
            began = world.loop.time()
            assert (await answer).code == 0
            assert world.loop.time() - began < 0.5
        await broker.close()

    run(body)


def test_a_pull_behind_those_of_a_connection_that_is_gone_is_answered() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        leaving = await world.connect(broker.address)
        gone = asyncio.create_task(leaving.pull(1, **HELD))
        await world.until(lambda: len(broker.messaging.pulls.held) == 1)
        stays = asyncio.create_task(client.pull(1, **HELD))
        await world.until(lambda: len(broker.messaging.pulls.held) == 2)
        leaving.endpoint.close()
        await asyncio.gather(gone, return_exceptions=True)
        await asyncio.sleep(0.1)
        began = world.loop.time()
        await client.send(b"x")
        assert (await stays).code == 0
        assert world.loop.time() - began < 0.1
        assert len(broker.messaging.pulls.held) == 0
        await broker.close()

    run(body)


def test_all_that_wait_for_a_topic_hear_of_its_deletion() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        held = [asyncio.create_task(client.pull(1, **HELD)) for _ in range(3)]
        await world.until(lambda: len(broker.messaging.pulls.held) == 3)
        began = world.loop.time()
        assert (await client.ask(215, {"topic": "T"})).code == 0
        assert [(await each).code for each in held] == [17] * 3
        assert world.loop.time() - began < 1.0
        await broker.close()

    run(body)


def test_a_reset_of_one_group_leaves_the_pulls_of_others_held() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        data = {
            "groupName": "G",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [],
        }
        beat = {"clientID": "c", "consumerDataSet": [data], "producerDataSet": []}
        assert (await client.ask(34, {}, json.dumps(beat).encode())).code == 0
        moved, stays = (
            asyncio.create_task(client.pull(1, **HELD, consumerGroup=group)) for group in "GH"
        )
        await world.until(lambda: len(broker.messaging.pulls.held) == 2)
        reset = {"topic": "T", "group": "G", "timestamp": -1, "queueId": 0, "offset": 0}
        assert (await client.ask(222, reset)).code == 0
        answer = await moved
        assert (answer.code, answer.ext["nextBeginOffset"]) == (21, "0")
        began = world.loop.time()
        await client.send(b"x")
        assert (await stays).code == 0
        assert world.loop.time() - began < 0.1
        await broker.close()

    run(body)


def test_pulls_that_were_answered_delay_the_end_of_no_other() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        brief = {**HELD, "suspendTimeoutMillis": 5000}
        held = [asyncio.create_task(client.pull(1, **brief)) for _ in range(50)]
        await world.until(lambda: len(broker.messaging.pulls.held) == 50)
        await client.send(b"x")
        assert {(await each).code for each in held} == {0}
        began = world.loop.time()
        assert (await client.pull(2, **brief)).code == 19
        assert world.loop.time() - began < 5.2
        await broker.close()

    run(body)


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (1, 21)])
def test_only_the_beginning_of_an_empty_queue_is_a_place_to_wait(offset: int, code: int) -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        reply = await client.pull(offset, queue=1)
        assert (reply.code, reply.ext["nextBeginOffset"]) == (code, "0")
        await broker.close()

    run(body)


def test_a_pull_commits_only_if_it_says_so() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 3)
        for flags, kept in ((4, None), (5, 2)):
            assert (await client.pull(0, sysFlag=flags, commitOffset=2)).code == 0
            assert await client.committed() == kept
        assert (await client.pull(0, sysFlag=5, commitOffset="", consumerGroup="H")).code == 0
        assert await client.committed("H") == 0
        await broker.close()

    run(body)


@pytest.mark.parametrize(("serves", "code"), [(True, 0), (False, 2)])
def test_a_slave_serves_pulls_unless_it_is_told_not_to(serves: bool, code: int) -> None:
    async def body(world: World) -> None:
        broker, _ = await filled(world, 1)
        await broker.close()
        broker = await world.broker(role="SLAVE", broker_id=1, slave_read=serves)
        client = await world.connect(broker.address)
        reply = await client.pull(0)
        assert (reply.code, "slaveReadEnable" in str(reply.remark)) == (code, not serves)
        await broker.close()

    run(body)


@pytest.mark.parametrize(("slave_read", "suggested"), [(True, "1"), (False, "0")])
def test_who_reads_from_the_disk_is_sent_to_a_slave_if_slaves_are_read(
    slave_read: bool, suggested: str
) -> None:
    async def body(world: World) -> None:
        world.disk = new_disk(memory_bytes=20_000)
        broker, client = await filled(world, 40, 1000, slave_read=slave_read)
        assert (await client.pull(0, maxMsgNums=1)).ext["suggestWhichBrokerId"] == suggested
        assert (await client.pull(39, maxMsgNums=1)).ext["suggestWhichBrokerId"] == "0"
        await broker.close()

    run(body)


async def places(client: Remote) -> tuple[int, int]:
    """The consumer offset and the pull offset of group G in queue 0."""
    asked = {"consumerGroup": "G", "topic": "T"}
    reply = await client.ask(RequestCode.GET_CONSUME_STATS, asked)
    table = fastjson.loads(reply.body)["offsetTable"]
    (entry,) = [entry for (_, _, queue_id), entry in table.items() if queue_id == 0]
    return entry["consumerOffset"], entry["pullOffset"]


def test_the_progress_of_a_group_tells_what_its_consumers_have_and_did_not_commit() -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 5)
        assert await places(client) == (0, 0)
        await client.pull(3, sysFlag=5, commitOffset=1)
        assert await places(client) == (1, 3)
        await client.pull(3, sysFlag=5, commitOffset=4)
        assert await places(client) == (4, 4)
        reset = {"topic": "T", "group": "G", "timestamp": -1, "queueId": 0, "offset": 0}
        assert (await client.ask(222, reset)).code == 0
        await client.pull(0)
        assert await places(client) == (0, 0)
        await broker.close()

    run(body)


def test_pull_offsets_are_bounded_and_lie_in_the_queue() -> None:
    offsets = PullOffsets(most=2)
    for queue_id in range(3):
        offsets.note("G", "T", queue_id, 10)
    offsets.note("G", "T", 2, 11)
    offsets.validate()
    assert [offsets.query("G", "T", each, 1, 99) for each in range(3)] == [1, 10, 11]
    assert offsets.query("G", "T", 2, 1, 7) == 7
    assert offsets.query("G", "T", 2, 20, 99) == 20


def test_a_held_pull_whose_queue_cannot_be_read_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        broker, client = await filled(world, 1)
        others = [await world.connect(broker.address) for _ in range(3)]
        held = [asyncio.ensure_future(other.pull(1, **HELD)) for other in others]
        await world.until(lambda: len(broker.messaging.pulls.held) == 3)
        read, refusals = broker.store.get_message, ["no descriptor is left"]

        def get_message(*place: Any, **how: Any) -> Any:
            if refusals:
                raise SystemBusy(refusals.pop())
            return read(*place, **how)

        monkeypatch.setattr(broker.store, "get_message", get_message)
        broker.messaging.pulls.wake_all()
        refused = await held[0]
        assert (refused.code, refused.remark) == (2, "no descriptor is left")
        sent = world.loop.time()
        await client.send(b"next")
        assert [(reply.code, count(reply)) for reply in await asyncio.gather(*held[1:])] == [
            (0, 1),
            (0, 1),
        ]
        assert world.loop.time() < sent + 1, "they waited for their time-out"
        broker.validate()
        await broker.close()

    run(body)

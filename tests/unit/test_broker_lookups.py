"""Questions about offsets and single messages, to a broker on a simulated machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from world_rig import Remote, World, run

QUEUE = {"topic": "T", "queueId": 1}
RESET = {"topic": "T", "group": "G", "timestamp": -1, "isForce": "true"}


async def filled(world: World, **changes: Any) -> tuple[Broker, Remote, list[int]]:
    """Three messages in queue 1 of T, ten seconds apart; when each was stored, in ms."""
    broker = await world.broker(**changes)
    client = await world.connect(broker.address)
    times = []
    for number in range(3):
        reply = await client.send(b"%d" % number, queue=1, KEYS="k", UNIQ_KEY=f"U{number}")
        assert reply.code in (0, 11), reply.remark
        offset = int(reply.ext["msgId"][16:], 16)
        [message] = decode_frames(broker.store.message_at(offset) or b"", True)
        times.append(message.store_timestamp)
        await asyncio.sleep(10)
    return broker, client, times


def bodies(reply: Command) -> list[bytes]:
    return [message.body for message in decode_frames(bytes(reply.body), True)]


def test_a_queue_tells_its_ends_and_what_lies_at_a_time() -> None:
    async def body(world: World) -> None:
        broker, client, times = await filled(world)
        empty = {"topic": "T", "queueId": 0}
        for code, field, there, nowhere in (
            (30, "offset", 3, 0),
            (31, "offset", 0, 0),
            (32, "timestamp", times[0], -1),
        ):
            for place, wanted in ((QUEUE, there), (empty, nowhere)):
                reply = await client.ask(code, place)
                assert (reply.code, reply.ext) == (0, {field: str(wanted)})

        async def at(timestamp: int, **more: str) -> int:
            reply = await client.ask(29, {**QUEUE, "timestamp": timestamp, **more})
            assert reply.code == 0
            return int(reply.ext["offset"])

        between = times[1] + 5000
        for boundary in ({}, {"boundaryType": ""}, {"boundaryType": "lower"}):
            assert [await at(t, **boundary) for t in (0, times[1], between)] == [0, 1, 2]
        for boundary in ({"boundaryType": "UPPER"}, {"boundaryType": "upper"}):
            assert [await at(t, **boundary) for t in (0, times[1], between)] == [0, 1, 1]
        await broker.close()

    run(body)


def test_what_no_consumer_may_see_is_not_found_and_is_not_before_the_end_of_its_queue() -> None:
    """A synchronous master without its slave confirms nothing."""

    async def body(world: World) -> None:
        broker, client, _ = await filled(world, role="SYNC_MASTER", alone=True)
        assert broker.store.max_offset("T", 1) == 3
        assert (await client.ask(30, QUEUE)).ext == {"offset": "0"}
        in_log = await client.ask(30, {**QUEUE, "committed": "false"})
        assert in_log.ext == {"offset": "3"}
        seen = await client.ask(33, {"offset": 0})
        assert (seen.code, seen.remark) == (1, "can not find message by the offset, 0")
        assert (await client.ask(12, {"topic": "T", "key": "k"})).code == 22
        await broker.close()

    run(body)


def test_a_message_is_found_where_it_begins_and_nowhere_else() -> None:
    async def body(world: World) -> None:
        broker, client, _ = await filled(world)
        end = broker.store.watermarks.appended
        got = await client.pull(0, queue=1)
        [*_, message] = decode_frames(bytes(got.body), True)
        last = message.physical_offset
        found = await client.ask(33, {"offset": last})
        assert (found.code, bodies(found)) == (0, [b"2"])
        for nowhere in (last - 1, last + 1, end, end + 1, -1):
            assert (await client.ask(33, {"offset": nowhere})).code == 1
        await broker.close()

    run(body)


def test_messages_of_a_key_are_found_within_times_and_the_answer_says_how_far_it_looked() -> None:
    async def body(world: World) -> None:
        broker, client, times = await filled(world)
        key = {"topic": "T", "key": "k"}
        found = await client.ask(12, key)
        assert (found.code, bodies(found)) == (0, [b"0", b"1", b"2"])
        [*_, last] = decode_frames(bytes(found.body), True)
        until = {
            "indexLastUpdateTimestamp": str(times[2]),
            "indexLastUpdatePhyoffset": str(last.physical_offset),
        }
        assert found.ext == until
        assert bodies(await client.ask(12, {**key, "maxNum": 2})) == [b"1", b"2"]
        between = times[0] + 5000
        assert bodies(await client.ask(12, {**key, "beginTimestamp": between})) == [b"1", b"2"]
        assert bodies(await client.ask(12, {**key, "endTimestamp": between})) == [b"0"]
        unique = {"topic": "T", "key": "U1", "maxNum": 0, "_UNIQUE_KEY_QUERY": "true"}
        assert bodies(await client.ask(12, unique)) == [b"1"]
        none = await client.ask(12, {**key, "key": "other"})
        assert (none.code, bytes(none.body), none.ext) == (22, b"", until)
        assert none.remark == "can not find message, maybe time range not correct"
        await broker.close()

    run(body)


def test_the_offset_of_a_group_is_told_with_the_term_that_it_is_of() -> None:
    async def body(world: World) -> None:
        broker, client, _ = await filled(world)
        place = {"consumerGroup": "G", **QUEUE}
        for zero in ({}, {"setZeroIfNotFound": "true"}, {"setZeroIfNotFound": ""}):
            assert (await client.ask(14, {**place, **zero})).ext["offset"] == "0"
        for zero in ("false", "FALSE"):
            none = await client.ask(14, {**place, "setZeroIfNotFound": zero})
            assert none.code == 22
            assert "group G has no offset for queue 1 of T" in str(none.remark)
        assert (await client.commit(2, queue=1)).code == 0
        for zero in ("true", "false"):
            found = await client.ask(14, {**place, "setZeroIfNotFound": zero})
            term = str(broker.context.role.log_epoch)
            epochs = {"saturnTerm": term, "saturnEpochs": f"{term}-0"}
            assert found.ext == {"offset": "2", "saturnMoves": "0", **epochs}
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("group", "topic", "code"), [("G", "T", 0), ("new", "T", 26), ("G", "none", 17)]
)
def test_an_offset_is_kept_of_a_group_and_a_topic_that_exist(
    group: str, topic: str, code: int
) -> None:
    async def body(world: World) -> None:
        broker, client, _ = await filled(world, auto_create_groups=False)
        assert (await client.ask(200, {}, b'{"groupName":"G"}')).code == 0
        assert (await client.commit(1, group, topic, 1)).code == code
        assert await client.committed(group, topic, 1) == (None if code else 1)
        await broker.close()

    run(body)


def test_offsets_are_kept_of_queues_that_there_are_and_of_no_others() -> None:
    async def body(world: World) -> None:
        broker, client, _ = await filled(world)
        many = {"topic": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        assert (await client.ask(17, many)).code == 0
        assert (await client.send(b"in the last queue", queue=3)).code == 0
        assert (await client.commit(0, queue=3)).code == 0
        for queue in (-1, 4, 1_000_000, 1 << 62):
            for reply in (
                await client.commit(0, queue=queue),
                await client.pull(0, queue=queue, sysFlag=5),
                *([await client.ask(222, {**RESET, "queueId": queue})] if queue > 0 else []),
            ):
                assert reply.code != 0
                assert f"{queue}" in (reply.remark or "")
        reply = await client.commit(0, queue=4)
        assert "queue id 4 of topic T is out of range; it has 4 queues" in (reply.remark or "")
        fewer = {**many, "readQueueNums": 2, "writeQueueNums": 2}
        assert (await client.ask(17, fewer)).code == 0
        assert (await client.commit(1, queue=3)).code == 0, "what it held is there still"
        assert (await client.commit(0, queue=2)).code != 0, "taken away, and never held any"
        assert broker.context.offsets.snapshot()["offsetTable"] == {"T@G": {"3": 1}}
        await broker.close()

    run(body)

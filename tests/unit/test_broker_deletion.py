"""Deleted topics, removed queues and deleted groups: they stay away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, pull, run, send, started, until
from saturnmq.broker.broker import Broker
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.native import NativeRuntime
from world_rig import World, saved_json
from world_rig import run as run_world


async def create(endpoint: Endpoint, topic: str, queues: int = 4) -> None:
    ext = {"topic": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    assert (await ask(endpoint, 17, ext)).code == 0


async def delete(endpoint: Endpoint, topic: str) -> None:
    assert (await ask(endpoint, 215, {"topic": topic})).code == 0


async def commit(endpoint: Endpoint, offset: int, topic: str = "orders", group: str = "G") -> int:
    ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    return (await ask(endpoint, 15, ext)).code


async def stored_offset(endpoint: Endpoint, topic: str = "orders") -> int | None:
    ext = {"consumerGroup": "G", "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}
    reply = await ask(endpoint, 14, ext)
    return None if reply.code == 22 else int(reply.ext["offset"])


async def bodies(endpoint: Endpoint, offset: int, **more: object) -> list[bytes]:
    reply = await pull(endpoint, offset, **more)
    return [m.body for m in decode_frames(reply.body, True)] if reply.code == 0 else []


async def again(runtime: NativeRuntime, broker: Broker, *, clean: bool) -> tuple[Broker, Endpoint]:
    """Stop and start it; without `clean` nothing is flushed, saved or closed in order."""
    await broker.close(clean=clean)
    fresh = await started(runtime, broker.config)
    return fresh, await connected(runtime, fresh)


def queue_directories(root: Path) -> set[str]:
    return {path.name for path in (root / "consumequeue").iterdir()}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_deleted_topic_does_not_come_back_at_a_start(
    tmp_path: Path, clean: bool, rebuilt: bool
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        for number in range(5):
            await send(endpoint, b"old-%d" % number)
        assert await commit(endpoint, 3) == 0
        await delete(endpoint, "orders")
        assert "orders" not in queue_directories(tmp_path)
        if rebuilt:
            (tmp_path / "checkpoint").unlink()
        broker, endpoint = await again(runtime, broker, clean=clean)
        assert broker.context.topics.get("orders") is None
        assert (await pull(endpoint, 0)).code == 17
        assert await commit(endpoint, 5) == 17
        assert await stored_offset(endpoint) is None
        await broker.close()

    run(body)


@pytest.mark.parametrize("restart", [None, True, False])
def test_a_topic_that_is_made_again_begins_empty_behind_the_old_one(
    tmp_path: Path, restart: bool | None
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        for number in range(5):
            await send(endpoint, b"old-%d" % number)
        await commit(endpoint, 5)
        await delete(endpoint, "orders")
        await create(endpoint, "orders", 2)
        assert await bodies(endpoint, 0) == []
        assert (await send(endpoint, b"new")).ext["queueOffset"] == "5"
        if restart is not None:
            broker, endpoint = await again(runtime, broker, clean=restart)
        moved = await pull(endpoint, 2)
        assert (moved.code, moved.ext["nextBeginOffset"]) == (21, "5"), "a reader from before"
        assert await bodies(endpoint, 5) == [b"new"]
        topic = broker.context.topics.get("orders")
        assert topic is not None
        assert topic.queues == 2
        assert await stored_offset(endpoint) is None
        first = await ask(endpoint, 14, {"consumerGroup": "H", "topic": "orders", "queueId": 0})
        assert first.ext["offset"] == "5", "of a queue that is younger than the group"
        found = await ask(endpoint, 12, {"topic": "orders", "key": "k1", "maxNum": 10})
        assert [m.body for m in decode_frames(found.body, True)] == [b"new"]
        by_time = await ask(endpoint, 29, {"topic": "orders", "queueId": 0, "timestamp": 0})
        assert by_time.ext["offset"] == "5"
        bounds = await ask(endpoint, 390022, {"topic": "orders"})
        assert json.loads(bounds.body)["0"] == [5, 6]
        await broker.close()

    run(body)


def test_a_topic_that_grows_just_before_a_crash_is_restored_though_it_was_deleted_before(
    tmp_path: Path,
) -> None:
    """What the log says behind the deletion counts."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"old")
        await delete(endpoint, "orders")
        saved = (tmp_path / "config/topics.json").read_bytes()
        await send(endpoint, b"new", e=3)  # made anew by being sent to
        await broker.close(clean=False)
        (tmp_path / "config/topics.json").write_bytes(saved)  # the crash forgot
        broker = await started(runtime, broker.config)
        endpoint = await connected(runtime, broker)
        assert await bodies(endpoint, 0, queueId=3) == [b"new"]
        assert await bodies(endpoint, 1) == []
        await broker.close()

    run(body)


@pytest.mark.parametrize("clean", [True, False])
def test_queues_that_were_taken_away_do_not_come_back_at_a_start(
    tmp_path: Path, clean: bool
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await create(endpoint, "orders", 8)
        for queue_id in range(8):
            await send(endpoint, b"in %d" % queue_id, e=queue_id)
        await create(endpoint, "orders", 4)
        broker, endpoint = await again(runtime, broker, clean=clean)
        topic = broker.context.topics.get("orders")
        assert topic is not None
        assert (topic.read_queues, topic.write_queues) == (4, 4)
        await create(endpoint, "orders", 8)
        assert await bodies(endpoint, 0, queueId=7) == [b"in 7"], "RocketMQ shows them again, too"
        assert (await send(endpoint, b"more", e=7)).ext["queueOffset"] == "1"
        await broker.close()

    run(body)


def test_a_topic_table_of_rocketmq_is_believed(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await create(endpoint, "orders", 8)
        for queue_id in range(8):
            await send(endpoint, b"x", e=queue_id)
        await broker.close()
        path = tmp_path / "config/topics.json"
        document = json.loads(path.read_bytes())
        del document["asOfTable"], document["deletedTable"]
        document["topicConfigTable"]["orders"] |= {"readQueueNums": 4, "writeQueueNums": 4}
        path.write_text(json.dumps(document))
        broker = await started(runtime, broker.config)
        topic = broker.context.topics.get("orders")
        assert topic is not None
        assert topic.queues == 4
        await broker.close()

    run(body)


def test_a_delayed_message_goes_with_its_topic(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await create(endpoint, "orders")
        await send(endpoint, b"old", i="DELAY\x011\x02")
        await delete(endpoint, "orders")
        await create(endpoint, "orders")
        await send(endpoint, b"new", i="DELAY\x011\x02")
        await until(lambda: broker.store.max_offset("orders", 0) == 1)
        assert await bodies(endpoint, 0) == [b"new"]
        await delete(endpoint, "orders")
        await send(endpoint, b"never", topic="other", i="DELAY\x011\x02")
        await delete(endpoint, "other")
        await send(endpoint, b"last", topic="third", i="DELAY\x011\x02")
        await until(lambda: broker.store.max_offset("third", 0) == 1)
        assert broker.context.topics.get("other") is None
        assert broker.store.max_offset("other", 0) == 0
        await broker.close()

    run(body)


def test_a_delayed_message_makes_its_topic_known_again_if_nobody_deleted_it(
    tmp_path: Path,
) -> None:
    """As on a slave that was promoted before it had copied the table."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        saved = (
            (tmp_path / "config/topics.json").read_bytes()
            if (tmp_path / "config/topics.json").exists()
            else b""
        )
        await send(endpoint, b"late", e=2, i="DELAY\x011\x02")
        await broker.close(clean=False)
        path = tmp_path / "config/topics.json"
        path.write_bytes(saved) if saved else path.unlink(missing_ok=True)
        broker = await started(runtime, broker.config)
        endpoint = await connected(runtime, broker)
        await until(lambda: broker.store.max_offset("orders", 2) == 1)
        assert broker.context.topics.readable("orders").queues == 3
        assert await bodies(endpoint, 0, queueId=2) == [b"late"]
        await broker.close()

    run(body)


def test_a_held_pull_is_answered_when_its_topic_is_deleted(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"old")
        held = asyncio.create_task(pull(endpoint, 1, sysFlag=6, suspendTimeoutMillis=30_000))
        await until(lambda: len(broker.messaging.pulls.held) == 1)
        await delete(endpoint, "orders")
        assert (await held).code == 17
        await broker.close()

    run(body)


def test_a_group_goes_with_its_retries_dead_letters_and_offsets(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        sent = await send(endpoint, b"again")
        await commit(endpoint, 1)
        offset = int(sent.ext["msgId"][-16:], 16)
        for level in (1, -1):
            ext = {"group": "G", "offset": offset, "delayLevel": level, "maxReconsumeTimes": 3}
            assert (await ask(endpoint, 36, ext)).code == 0
        await until(lambda: broker.store.max_offset("%RETRY%G", 0) == 1)
        assert broker.store.max_offset("%DLQ%G", 0) == 1
        ext = {"groupName": "G", "cleanOffset": "true"}
        assert (await ask(endpoint, 207, ext)).code == 0
        broker, endpoint = await again(runtime, broker, clean=False)
        names = {topic.name for topic in broker.context.topics}
        assert not names & {"%RETRY%G", "%DLQ%G"}
        assert queue_directories(tmp_path) == {"orders", "SCHEDULE_TOPIC_XXXX"}
        assert broker.context.groups.get("G") is None
        assert await stored_offset(endpoint) is None
        await broker.close()

    run(body)


def test_a_log_that_lost_its_end_hides_nothing_that_is_written_there_later(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"old")
        kept = broker.store.watermarks.appended
        await send(endpoint, b"lost", topic="other")
        await delete(endpoint, "orders")
        await broker.close()
        log = next((tmp_path / "commitlog").glob("0*"))
        data = bytearray(log.read_bytes())
        data[kept:] = bytes(len(data) - kept)
        log.write_bytes(data)
        (tmp_path / "checkpoint").unlink()
        for path in (tmp_path / "consumequeue" / "other" / "0").iterdir():
            path.unlink()
        broker = await started(runtime, broker.config)
        endpoint = await connected(runtime, broker)
        assert broker.store.watermarks.appended == kept
        await send(endpoint, b"new")
        broker, endpoint = await again(runtime, broker, clean=False)
        assert await bodies(endpoint, 1) == [b"new"]
        await broker.close()

    run(body)


def test_queues_of_topics_in_no_table_are_cleaned_on_request(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        endpoint = await connected(runtime, broker)
        await send(endpoint, b"x")
        await send(endpoint, b"x", topic="unused")
        await broker.close()
        broker = await started(runtime, broker.config)
        endpoint = await connected(runtime, broker)
        assert (await ask(endpoint, 316)).code == 0
        assert queue_directories(tmp_path) == {"orders", "unused"}
        await broker.close()

    run(body)


def test_a_deletion_forgets_those_whose_messages_the_log_has_no_more() -> None:
    """A broker may run for a year, and have topics for a day."""

    async def body(world: World) -> None:
        options = {"commitlog_segment_bytes": 64 << 10, "file_reserved_hours": 0}
        broker = await world.broker(store_options=options)
        remote = await world.connect(broker.address)

        async def have_for_a_day(topic: str) -> None:
            assert (await remote.send(b"x", topic)).code == 0
            ext = {"topic": topic}
            assert (await remote.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext)).code == 0

        await have_for_a_day("first")
        for _ in range(4):
            assert (await remote.send(bytes(40_000))).code == 0
        assert (await remote.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        await world.until(lambda: broker.store.watermarks.start > 0, 60)
        await have_for_a_day("second")
        assert broker.context.topics.deleted.keys() == {"second"}
        assert broker.store.tombstones.keys() == {"second"}
        assert saved_json(world.disk, "topics.json")["deletedTable"].keys() == {"second"}

    run_world(body)

"""Delayed delivery on a simulated machine: the table on the disk, levels that change, odd messages.

How long a delay lasts under steps of clocks and promotions: tests/sim/test_clocks.py.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.protocol.kernels import decode_frames
from saturnmq.store.message_store import PendingMessage
from world_rig import NOW, Remote, World, run, saved_json

WAITS = "SCHEDULE_TOPIC_XXXX"


def service(broker: Broker) -> DelayService:
    return broker.messaging.delays


async def started(world: World, levels: str = "", **changes: Any) -> tuple[Broker, Remote]:
    options = {"delay_levels": levels} if levels else {}
    broker = await world.broker(store_options=options, **changes)
    return broker, await world.connect(broker.address)


async def wait(client: Remote, level: int, body: bytes = b"x") -> None:
    reply = await client.send(body, DELAY=str(level))
    assert reply.code == 0, reply.remark


async def comes(world: World, broker: Broker, number: int, at: float) -> None:
    """The message `number` of T comes at that time of the loop, or soon after."""
    await asyncio.sleep(at - 0.01 - world.loop.time())
    assert broker.store.max_offset("T", 0) == number, "early"
    await asyncio.sleep(0.3)
    assert broker.store.max_offset("T", 0) == number + 1, "late, or twice"


def bodies(broker: Broker) -> list[bytes]:
    result = broker.store.get_message("T", 0, 0, 100, 1 << 20)
    return [message.body for message in decode_frames(result.data, True)]


def test_the_file_says_how_far_each_level_is_and_since_when_messages_wait() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        times = []
        for level in (5, 5, 3, 1):
            times.append(NOW + world.loop.time() * 1000)
            await wait(client, level)
            await asyncio.sleep(2.0)
        await asyncio.sleep(1.5)
        document = saved_json(world.disk, "delayOffset.json")
        assert document["offsetTable"] == {"1": 1}
        waiting = document["waitingTable"]
        ends = {level: [end for end, _ in entries] for level, entries in waiting.items()}
        assert ends == {"3": [1], "5": [1, 2]}
        stamps = [*(ms for _, ms in waiting["5"]), *(ms for _, ms in waiting["3"])]
        assert all(0 <= ms - sent < 20 for ms, sent in zip(stamps, times, strict=False))
        await asyncio.sleep(60)
        document = saved_json(world.disk, "delayOffset.json")
        assert document["offsetTable"] == {"1": 1, "3": 1, "5": 2}
        assert document["waitingTable"] == {}
        assert document.keys() == {"dataVersion", "offsetTable", "waitingTable"}
        await broker.close()

    run(body)


def test_what_was_delivered_into_a_part_of_the_log_that_is_gone_is_delivered_again() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        await wait(client, 1, b"delayed")
        segment = broker.store.config.commitlog_segment_bytes
        while broker.store.watermarks.appended < segment:
            await client.send(bytes(segment // 4), queue=1)
        await asyncio.sleep(3.0)
        assert bodies(broker) == [b"delayed"]
        await broker.close()
        assert saved_json(world.disk, "delayOffset.json")["offsetTable"] == {"1": 1}
        for name in [e.name for e in world.disk.list("/store/commitlog") if e.name.isdigit()][1:]:
            world.disk.unlink(f"/store/commitlog/{name}")
        broker, client = await started(world, alone=True)
        await asyncio.sleep(3.0)
        assert bodies(broker) == [b"delayed"]
        await broker.close()

    run(body)


def test_the_file_is_written_anew_when_the_wall_clock_steps() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        await wait(client, 5)
        await asyncio.sleep(5)
        assert not service(broker).dirty
        for step_ms, dirty in (
            (900, False),
            (-1800, False),
            (900, False),
            (-1100, True),
            (1100, True),
        ):
            world.nodes[0].jump_wall_clock(step_ms)
            assert service(broker).dirty == dirty
            await asyncio.sleep(5)
            assert not service(broker).dirty
        await broker.close()

    run(body)


def test_a_file_that_knows_of_messages_that_are_gone_is_written_before_others_come() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        await wait(client, 5)
        await asyncio.sleep(5)
        gone = [[1, NOW], [2, NOW]]
        for entries, dirty in (
            ([], False),
            ([[1, None]], False),
            ([[1, NOW]], False),
            (gone, True),
        ):
            document = service(broker).snapshot()
            service(broker).load(document | {"waitingTable": {"5": entries}})
            assert service(broker).dirty == dirty
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("before", "after", "level", "seconds"),
    [
        ("10s 40s", "10s 20s", 2, 20.0),
        ("10s 20s", "10s 40s", 2, 40.0),
        ("10s 20s 30s", "10s 20s", 3, 20.0),  # there is no third any more
    ],
)
def test_how_long_a_level_waits_says_who_delivers(
    before: str, after: str, level: int, seconds: float
) -> None:
    async def body(world: World) -> None:
        broker, client = await started(world, before)
        await wait(client, level)
        sent = world.loop.time()
        await asyncio.sleep(3)
        await broker.close()
        broker, client = await started(world, after)
        await comes(world, broker, 0, sent + seconds)
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("host", "port", "known"),
    [("10.7.0.1", 10911, True), ("10.7.0.1", 10921, True), ("10.7.0.2", 10911, False)],
)
def test_without_the_file_messages_wait_since_they_were_stored_if_this_machine_says_when(
    host: str, port: int, known: bool
) -> None:
    async def body(world: World) -> None:
        broker = await world.broker(advertised_host="10.7.0.1")
        client = await world.connect(f"{broker.config.host}:10911")
        await wait(client, 3)
        since = world.loop.time()
        await asyncio.sleep(6)
        await broker.close()
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            if world.disk.exists(f"/store/config/{name}"):
                world.disk.unlink(f"/store/config/{name}")
        if not known:
            since = world.loop.time()
        broker = await world.broker(advertised_host=host, port=port)
        await comes(world, broker, 0, since + 10)
        await broker.close()

    run(body)


@pytest.mark.parametrize("known", [0, 1])
def test_without_the_file_or_with_an_old_one_no_message_comes_again_and_what_was_found_is_told(
    caplog: pytest.LogCaptureFixture, known: int
) -> None:
    """As at a master that got the table from a slave which had not heard of the last deliveries."""

    async def body(world: World) -> None:
        broker, client = await started(world)
        sent = [b"delivered", b"this, too", b"and this"]
        for each in sent:
            await wait(client, 1, each)
        await wait(client, 3, b"waits")
        await asyncio.sleep(6)
        await broker.close()
        document = saved_json(world.disk, "delayOffset.json")
        assert document["offsetTable"] == {"1": 3}
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            if world.disk.exists(f"/store/config/{name}"):
                world.disk.unlink(f"/store/config/{name}")
        if known:
            document["offsetTable"] = {"1": known}
            world.disk.write_file("/store/config/delayOffset.json", json.dumps(document).encode())
        broker, _ = await started(world)
        await asyncio.sleep(12)
        assert bodies(broker) == [*sent, b"waits"]
        [warning] = [text for text in caplog.messages if "delayOffset.json" in text]
        assert "delay level 1 goes on at 3" in warning
        assert f"the copies of the messages from {known} on" in warning
        await broker.close()

    run(body)


def test_the_first_message_of_a_level_that_only_its_master_has_does_not_come_early() -> None:
    async def body(world: World) -> None:
        broker, _ = await started(world, "10s 20s")
        await asyncio.sleep(30)
        names = b"DELAY\x013\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        broker.store.put(PendingMessage(WAITS, 2, b"copied", names))
        broker.ground.advancer.wake()
        await comes(world, broker, 0, world.loop.time() + 20)
        await broker.close()

    run(body)


def test_a_level_beyond_the_highest_is_the_highest() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world, "2s 5s")
        await asyncio.sleep(5)
        began = world.loop.time()
        await wait(client, 99)
        await wait(client, 1)
        await comes(world, broker, 0, began + 2)
        await comes(world, broker, 1, began + 5)
        await broker.close()

    run(body)


@pytest.mark.parametrize("level", ["0", "-1", "-3"])
def test_a_level_that_is_none_leaves_a_message_its_own_time(level: str) -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        began = world.loop.time()
        reply = await client.send(b"x", DELAY=level, TIMER_DELAY_SEC="5")
        assert reply.code == 0, reply.remark
        await comes(world, broker, 0, began + 5)
        await broker.close()

    run(body)


def test_the_progress_of_a_file_is_kept_with_its_generation_and_of_rocketmqs_without() -> None:
    async def body(world: World) -> None:
        broker, _ = await started(world)
        for tables in (
            {"offsetTable": {"3": 5}},
            {"offsetTable": {"3": 5, "4": 6}, "generationTable": {"4": 2}},
        ):
            service(broker).load(tables)
            document = service(broker).snapshot()
            assert {name: document.get(name) for name in tables} == tables
            assert ("generationTable" in document) == ("generationTable" in tables)
        await broker.close()

    run(body)


def test_what_comes_due_at_once_comes_at_once() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        await asyncio.gather(*(wait(client, 1) for _ in range(150)))
        await asyncio.sleep(1.5)
        assert broker.store.max_offset("T", 0) == 150
        await broker.close()

    run(body)


def test_what_cannot_be_delivered_now_is_delivered_when_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        await wait(client, 1)
        total = world.disk.total_bytes
        world.disk.total_bytes = int((total - world.disk.free_space("/store")[1]) / 0.95)
        broker.store.watch_space()
        await asyncio.sleep(5.5)
        assert broker.store.max_offset("T", 0) == 0
        told = [text for text in caplog.messages if "delay level 1 waits" in text]
        assert 4 <= len(told) <= 6, "each second"
        world.disk.total_bytes = total
        broker.store.watch_space()
        await asyncio.sleep(1.1)
        assert broker.store.max_offset("T", 0) == 1
        await broker.close()

    run(body)


def test_a_message_that_says_not_where_it_goes_holds_no_other_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        assert (await client.send(b"makes a topic")).code == 0
        for names in (b"DELAY\x011\x02", b"DELAY\x011\x02REAL_TOPIC\x01T\x02"):
            broker.store.put(PendingMessage(WAITS, 0, b"of queue 0", names, flag=7))
        await wait(client, 1, b"last")
        await asyncio.sleep(1.5)
        assert bodies(broker) == [b"makes a topic", b"of queue 0", b"last"]
        assert "names no real topic" in caplog.text
        await broker.close()

    run(body)


def test_a_delivered_message_is_what_was_sent_and_says_where_it_waited() -> None:
    async def body(world: World) -> None:
        broker, client = await started(world)
        fields = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 2, "f": 1 << 5, "g": 7, "h": 5}
        names = "UNIQ_KEY\x01U\x02TAGS\x01A\x02DELAY\x011\x02"
        reply = await client.ask(310, {**fields, "i": names, "j": 3}, b"body")
        assert reply.code == 0, reply.remark
        await world.until(lambda: broker.store.max_offset("T", 2) == 1)
        [came] = decode_frames(broker.store.get_message("T", 2, 0, 1).data, True)
        [waited] = decode_frames(broker.store.get_message(WAITS, 0, 0, 1).data, True)
        assert (came.body, came.flag, came.born_timestamp, came.reconsume_times) == (
            *(b"body", 5, 7, 3),
        )
        assert (came.sys_flag, came.raw_born_host) == (waited.sys_flag, waited.raw_born_host)
        assert came.store_timestamp - waited.store_timestamp >= 1000
        one, other = dict(came.properties), dict(waited.properties)
        assert one.pop("__CRC32#") != other.pop("__CRC32#", "")
        assert one == other
        await broker.close()

    run(body)

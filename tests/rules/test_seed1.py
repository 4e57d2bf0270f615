"""Rows 1.01 to 1.46: message storage. See `rows.tsv` for what each row says."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import time
from itertools import pairwise
from pathlib import Path

import pytest
from rig import (
    GOLDEN,
    GOLDEN_OFFSET,
    HOUR,
    NOW,
    SEGMENT,
    SMALL,
    Clock,
    World,
    aged,
    at_hour,
    bodies,
    build_frame,
    clean,
    dispatch,
    entries_of,
    files_of,
    fill,
    flush,
    found_by_key,
    frames,
    indexes_of,
    java_hash,
    log_bytes,
    log_frames,
    message,
    new_disk,
    open_store,
    raw_frame,
    run,
    segment_names,
)
from saturnmq.broker.config import BrokerConfig
from saturnmq.client.faults import FaultStrategy
from saturnmq.client.producer import Producer
from saturnmq.protocol.errors import MessageIllegal, ServiceNotAvailable, StoreDamaged
from saturnmq.protocol.ids import decode_message_id, encode_host, offset_message_id
from saturnmq.protocol.message import Message
from saturnmq.store.cleaner import MANUAL_PASSES
from saturnmq.store.config import StoreConfig
from saturnmq.store.disk import NativeDisk
from saturnmq.store.indexfile import insert_items, insert_items_reference
from saturnmq.store.message_store import GetStatus, MessageStore, PendingMessage
from saturnmq.store.queues import Queues
from saturnmq.store.segments import Segment, SegmentSeries

INCOMING = struct.Struct(">iqq")  # hash, offset, store time


def test_row_1_01_a_log_file_is_named_by_its_start_in_20_digits() -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store, 3)
    names = list(files_of(disk, "/store/commitlog"))
    assert names == ["00000000000000000000", "00000000000000008192", "00000000000000016384"]
    later = new_disk()
    store = open_store(later)
    start = 1_073_741_824
    store.append_raw(start, build_frame(b"x", queue_offset=0, physical=start))
    assert list(files_of(later, "/store/commitlog")) == ["00000000001073741824"]


def test_row_1_02_what_a_store_directory_holds() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await client.send(b"x", KEYS="k")
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        found = {entry.name: entry for entry in world.disk.list("/store")}
        assert set(found) == {
            *("abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "lock"),
        }
        assert found["checkpoint"].size == 4096
        assert world.disk.read_file("/store/lock") == b"lock"
        await broker.close()
        names = {entry.name for entry in world.disk.list("/store")}
        assert names == set(found) - {"abort"}

    run(body)


@pytest.mark.parametrize("content", [b"", b"4711", b"\0\xff"])
def test_row_1_03_abort_means_an_unclean_stop_whatever_it_contains(content: bytes) -> None:
    disk = new_disk()
    store = open_store(disk)
    assert disk.exists("/store/abort")
    store.put(message(b"one"))
    store.close()
    assert not disk.exists("/store/abort")
    store = open_store(disk)
    assert store.recovery.clean
    store.close()
    disk.write_file("/store/abort", content)
    store = open_store(disk)
    assert not store.recovery.clean
    assert bodies(store) == [b"one"]


def test_row_1_04_a_segment_not_written_for_the_reserved_time_expires(tmp_path: Path) -> None:
    clock = Clock(at_hour(4))
    store = open_store(NativeDisk(), clock, root=str(tmp_path), file_reserved_hours=48)
    fill(store, 5)

    def age(number: int, milliseconds: int) -> None:
        moment = (clock.now - milliseconds) / 1000
        os.utime(tmp_path / "commitlog" / segment_names(number, 1)[0], (moment, moment))

    for number in range(5):
        age(number, 48 * HOUR + 1000)
    age(2, 48 * HOUR - 1000)  # written a little later than the others
    assert clean(store) == segment_names(0, 2), "nobody consumed them; the third stops the pass"
    age(2, 48 * HOUR + 1000)
    assert clean(store) == segment_names(2, 2), "the one being written stays, however old"
    assert clean(store) == []
    store.close()


def test_row_1_05_reserved_time_is_72_hours_and_read_from_the_file() -> None:
    assert StoreConfig().file_reserved_hours == 72
    text = """
    brokerClusterName = DefaultCluster
    brokerName = broker-a
    brokerId = 0
    deleteWhen = 04
    fileReservedTime = 48
    brokerRole = ASYNC_MASTER
    flushDiskType = ASYNC_FLUSH
    """
    config = BrokerConfig.load(text)
    store = config.store_config()
    assert (store.file_reserved_hours, store.delete_when) == (48, "04")
    assert (config.role, config.flush_disk_type) == ("ASYNC_MASTER", "ASYNC_FLUSH")
    clock = Clock(at_hour(4))
    opened = open_store(new_disk(now_ms=clock.now_ms), clock)
    fill(opened, 2)
    clock.now += 72 * HOUR - 1
    assert clean(opened) == [], "one millisecond before 72 hours"
    clock.now += 1
    assert clean(opened) == segment_names(0, 1)


def test_row_1_07_deletion_when_it_is_time_or_space_is_short_or_by_hand() -> None:
    for hour, percent, by_hand, deletes in (
        (12, 10.0, False, False),
        (4, 10.0, False, True),
        (12, 76.0, False, True),
        (12, 10.0, True, True),
    ):
        found = aged(3, hour)
        found.use_disk_to(percent)
        if by_hand:
            found.store.clean_on_request()
        assert clean(found.store) == (segment_names(0, 2) if deletes else [])


def test_row_1_06_cleaning_every_10_seconds_the_first_after_60() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(
            store_options={
                "commitlog_segment_bytes": SEGMENT,
                "file_reserved_hours": 0,
                "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
                "delete_batch_max": 1,
            }
        )
        assert StoreConfig().clean_interval_ms == 10_000
        client = await world.connect(broker.address)
        for _ in range(45):
            assert (await client.send(bytes(900))).code == 0
        times: list[float] = []

        def step(operation: str, path: str) -> None:
            if operation == "rename" and "commitlog" in path:
                times.append(world.loop.time())

        began = world.loop.time()
        world.disk.step = step
        await world.until(lambda: len(times) == 4, 200)
        world.disk.step = None
        assert 59 < times[0] - began < 63
        assert all(9.9 < b - a < 11.2 for a, b in pairwise(times))
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("forcibly", "percent", "expected"), [(True, 87.0, 1), (False, 87.0, 0), (True, 80.0, 0)]
)
def test_row_1_08_age_is_ignored_only_if_allowed_and_short_of_space(
    forcibly: bool, percent: float, expected: int
) -> None:
    found = aged(6, 12, hours_old=0, clean_forcibly=forcibly)
    found.use_disk_to(percent)
    assert clean(found.store)[:expected] == segment_names(0, expected)
    assert bool(found.store.watermarks.start) == bool(expected)


@pytest.mark.parametrize(
    ("hour", "minute", "deletes"), [(3, 59, False), (4, 0, True), (4, 59, True), (5, 0, False)]
)
def test_row_1_09_delete_when_is_04_the_whole_hour(hour: int, minute: int, deletes: bool) -> None:
    assert StoreConfig().delete_when == "04"
    found = aged(3, 12)
    found.clock.now = at_hour(hour, minute) + 96 * HOUR
    assert bool(clean(found.store)) == deletes
    found = aged(3, 12, delete_when="02; 23")
    found.clock.now = at_hour(23, 30) + 96 * HOUR
    assert clean(found.store)


def test_row_1_10_beyond_85_percent_deletes_at_once() -> None:
    assert StoreConfig().disk_clean_forcibly_ratio == 85
    for percent, at_once, refuses in ((84.9, 0, False), (85.1, 1, False), (90.1, 1, True)):
        found = aged(8, 12, hours_old=0)
        found.use_disk_to(percent)
        store = found.store
        assert store.is_short_of_space == bool(at_once)
        if refuses:
            with pytest.raises(ServiceNotAvailable, match="90 %"):
                store.put(message())
        else:
            store.put(message())
        assert clean(store)[:1] == segment_names(0, at_once)


def test_row_1_11_deleting_by_hand_lasts_twenty_runs() -> None:
    assert MANUAL_PASSES == 20
    store = aged(24, 12, delete_batch_max=1).store
    assert clean(store) == []
    store.clean_on_request()
    assert [clean(store) for _ in range(20)] == [segment_names(n, 1) for n in range(20)]
    assert clean(store) == []


def test_row_1_12_short_of_space_with_nothing_to_delete_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = aged(1, 12)
    found.use_disk_to(88.0)
    with caplog.at_level(logging.WARNING):
        assert clean(found.store) == []
    assert "no segment may be deleted" in caplog.text
    found.store.put(message())


def test_row_1_13_properties_above_32767_bytes_are_refused() -> None:
    store = open_store(commitlog_segment_bytes=1 << 17)
    longest = b"k\x01" + b"v" * (32_767 - 3) + b"\x02"
    put = store.put(PendingMessage("T", 0, b"", longest))
    assert put.sizes[0] == 91 + 1 + 32_767
    with pytest.raises(MessageIllegal, match="32767") as refused:
        store.put(PendingMessage("T", 0, b"", longest[:-1] + b"v\x02"))
    assert refused.value.code == 13
    assert store.watermarks.appended == put.end_offset


def test_row_1_14_a_frame_above_max_message_size_is_refused() -> None:
    assert StoreConfig().max_message_bytes == 4_194_304
    store = open_store(max_message_bytes=1000)
    put = store.put(message(bytes(1000 - 92)))
    assert put.sizes[0] == 1000
    for body in (1001 - 92, 1000, 1001):  # the last is what newer code refuses as well
        with pytest.raises(MessageIllegal, match="1000") as refused:
            store.put(message(bytes(body)))
        assert refused.value.code == 13
    assert store.watermarks.appended == put.end_offset


def test_row_1_15_a_frame_has_17_fields() -> None:
    disk = new_disk()
    clock = Clock(0x01A1FBC3BE8F)
    store = open_store(disk, clock, commitlog_segment_bytes=1 << 20)
    # The golden frame's fields, in a log that begins where its log had it.
    store.append_raw(GOLDEN_OFFSET, GOLDEN)
    assert store.message_at(GOLDEN_OFFSET) == GOLDEN
    host = bytes([127, 0, 0, 1]) + (20911).to_bytes(4, "big")
    put = store.put(
        PendingMessage(
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            0,
            b"0,1,",
            b"WAIT\x01true\x02TAGS\x01d\x02",
            born_timestamp=0x01A1FBC3BE8D,
            born_host=host,
            store_host=host,
        )
    )
    ours = bytearray(store.message_at(put.physical_offset) or b"")
    assert ours[28:36] == put.physical_offset.to_bytes(8, "big")
    ours[28:36] = GOLDEN_OFFSET.to_bytes(8, "big")
    # Java's map writes properties in another order than we got them, or the same: here the same.
    assert bytes(ours) == GOLDEN
    read = raw_frame(GOLDEN)
    assert (read.size, read.magic, read.queue, read.flag, read.queue_offset) == (
        *(139, -626843481, 0, 0, 0),
    )
    assert (read.physical, read.sys_flag, read.reconsumed, read.prepared) == (
        *(GOLDEN_OFFSET, 0, 0, 0),
    )


def test_row_1_16_a_stored_frame_holds_its_real_offsets() -> None:
    disk = new_disk()
    store = open_store(disk)
    for _ in range(3):
        store.put(message(b"before", queue=1))
    put = store.put(message(b"x", queue=1))
    data = log_bytes(disk)
    at = put.physical_offset
    assert put.queue_offset == 3
    assert data[at + 20 : at + 28] == (3).to_bytes(8, "big")
    assert data[at + 28 : at + 36] == at.to_bytes(8, "big")


def test_row_1_17_magic_codes() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(bytes(8000)))
    second = store.put(message(bytes(200)))
    data = log_bytes(disk)
    assert data[4:8] == bytes.fromhex("daa320a7") == struct.pack(">i", -626843481)
    blank = 8000 + 92
    left = SEGMENT - blank
    assert data[blank : blank + 8] == struct.pack(">ii", left, -875286124)
    assert data[blank + 4 : blank + 8] == bytes.fromhex("cbd43194")
    assert second.physical_offset == SEGMENT
    # 8 bytes stay: a frame that would leave fewer goes to the next segment.
    for spare, lies_at in ((8, 0), (7, SEGMENT)):
        fresh = open_store(new_disk())
        fresh.put(message(bytes(4000)))
        put = fresh.put(message(bytes(SEGMENT - spare - (4000 + 92) - 92)))
        assert put.physical_offset == (4000 + 92 if lies_at == 0 else SEGMENT)


def test_row_1_18_lengths_of_topic_and_properties() -> None:
    disk = new_disk()
    store = open_store(disk)
    short, long = "t" * 127, "%RETRY%" + "g" * 200
    store.put(message(b"", short, tag="A"))
    store.put(message(b"", long, tag="A"))
    data = log_bytes(disk)
    properties = b"TAGS\x01A\x02"
    tail = b"\x7f" + short.encode() + struct.pack(">h", len(properties)) + properties
    size = 88 + len(tail)
    assert data[88:size] == tail
    second = data[size:]
    assert second[4:8] == bytes.fromhex("daa320ab")
    tail = struct.pack(">h", 207) + long.encode() + struct.pack(">h", 7) + properties
    assert second[88 : 88 + len(tail)] == tail
    assert [frame.topic for frame in log_frames(disk)] == [short, long]


def test_row_1_19_one_run_deletes_ten_files_at_most() -> None:
    assert StoreConfig().delete_batch_max == 10
    store = aged(16, 4).store
    assert clean(store) == segment_names(0, 10)
    assert clean(store) == segment_names(10, 5)
    assert clean(store) == []


def test_row_1_20_files_are_loaded_in_order_in_full_length(tmp_path: Path) -> None:
    root = str(tmp_path)
    store = open_store(NativeDisk(), root=root)
    fill(store, 4)
    end, sent = store.watermarks.appended, bodies(store)
    store.close()
    disk = NativeDisk()
    series = SegmentSeries(disk, f"{root}/commitlog", SEGMENT)
    series.load()
    assert [(s.start, s.end, len(s.view)) for s in series.segments] == [
        (n * SEGMENT, (n + 1) * SEGMENT, SEGMENT) for n in range(4)
    ]
    assert series.end == 4 * SEGMENT
    series.close()
    store = open_store(disk, root=root)
    maps = Path("/proc/self/maps").read_text()
    assert all(maps.count(f"{root}/commitlog/{name}") == 1 for name in segment_names(0, 4))
    assert (store.watermarks.appended, bodies(store)) == (end, sent)
    store.close()


def test_row_1_21_a_file_of_a_wrong_length_is_left_out_and_the_start_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store, 3)
    sent = bodies(store)
    store.close()
    newest = segment_names(3, 1)[0]
    disk.write_file(f"/store/commitlog/{newest}", b"short")
    store = open_store(disk)
    assert newest in caplog.text
    assert bodies(store) == sent
    assert list(files_of(disk, "/store/commitlog")) == segment_names(0, 3), "RocketMQ opens it"
    assert files_of(disk, "/store/commitlog/set-aside") == {newest: b"short"}
    fill(store, 4)
    store.close()
    disk.write_file(f"/store/commitlog/{segment_names(4, 1)[0]}", b"")
    store = open_store(disk)
    assert list(files_of(disk, "/store/commitlog")) == segment_names(0, 4), "empty: deleted"
    store.close()
    disk.write_file(f"/store/commitlog/{segment_names(1, 1)[0]}", b"short")
    with pytest.raises(StoreDamaged, match=segment_names(1, 1)[0]):
        open_store(disk)


async def producer_of(world: World, nameserver: str) -> Producer:
    return await Producer("P", [nameserver], runtime=world.node("producer")).start()


def test_row_1_22_a_new_topic_has_4_queues_and_100_messages_are_spread_evenly() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        await asyncio.sleep(2)  # virtual: the broker has registered
        producer = await producer_of(world, nameserver)
        for number in range(100):
            assert (await producer.send(Message("Fresh", b"%d" % number))).ok
        await world.until(
            lambda: broker.store.watermarks.dispatched == broker.store.watermarks.appended
        )
        topic = broker.context.topics.get("Fresh")
        assert topic is not None
        assert (topic.read_queues, topic.write_queues) == (4, 4)
        assert [broker.store.max_offset("Fresh", queue) for queue in range(4)] == [25] * 4
        template = broker.context.topics.get("TBW102")
        assert template is not None
        assert template.write_queues == 8
        await producer.close()
        await broker.close()

    run(body)


def test_row_1_23_a_producer_takes_the_queues_in_turn() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        await asyncio.sleep(2)
        producer = await producer_of(world, nameserver)
        queues = []
        for number in range(11):
            result = await producer.send(Message("Fresh", b"%d" % number))
            queues.append(result.queue.queue_id)
        assert queues == [(queues[0] + number) % 4 for number in range(11)]
        await producer.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("latency", "seconds"), [(100, 0), (549, 0), (551, 3), (999, 3), (1001, 60), (9000, 60)]
)
def test_row_1_24_a_slow_send_takes_its_broker_out(latency: float, seconds: float) -> None:
    faults = FaultStrategy()
    faults.succeeded("a", latency, now=100.0)
    assert faults.available("a", 100.0 + seconds)
    assert not seconds or not faults.available("a", 100.0 + seconds - 0.001)
    assert faults.available("b", 100.0)


def test_row_1_25_queue_files_have_6_000_000_bytes_and_such_names() -> None:
    disk = new_disk()
    queues = Queues(disk, "/queues", StoreConfig().consumequeue_segment_bytes)
    entry = struct.pack(">qiq", 0, 100, 0)
    queue = queues.get_or_create("T", 0)
    queue.append(0, 300_000, entry * 300_000)
    queue.append(300_000, 300_001, entry * 300_001)
    sizes = {name: len(data) for name, data in files_of(disk, "/queues/T/0").items()}
    assert sizes == {
        "00000000000000000000": 6_000_000,
        "00000000000006000000": 6_000_000,
        "00000000000012000000": 6_000_000,
    }


def test_row_1_26_reading_a_queue_file_ends_at_size_0() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(9):
        store.put(message(b"%d" % number))
    store.close()
    path = f"/store/consumequeue/T/0/{0:020d}"
    data = disk.read_file(path)
    assert not any(data[9 * 20 :])
    disk.write_file(path, data[: 5 * 20] + bytes(len(data) - 5 * 20))
    queues = Queues(disk, "/store/consumequeue", 400)
    queues.load()
    queue = queues.table["T", 0]
    queue.recover(1 << 40)
    assert queue.max_offset == 5
    queues.close()


def sample_of_the_article(disk) -> None:
    """Messages of 201 bytes with TagA, sent round robin from queue 3 on."""
    store = open_store(disk)
    for number in range(12):
        body = bytes(201 - 91 - len("TopicTest") - len("TAGS|TagA|"))
        put = store.put(message(body, "TopicTest", (number + 3) % 4, tag="TagA"))
        assert put.sizes == (201,)
    dispatch(store)


def test_row_1_27_the_articles_sample_of_a_queue() -> None:
    disk = new_disk()
    sample_of_the_article(disk)
    assert entries_of(disk, "TopicTest", 0) == [
        (201, 201, 2598919),
        (1005, 201, 2598919),
        (1809, 201, 2598919),
    ]


def test_row_1_28_the_articles_sample_of_first_offsets() -> None:
    disk = new_disk()
    sample_of_the_article(disk)
    firsts = [entries_of(disk, "TopicTest", queue)[0][0] for queue in range(4)]
    assert firsts == [201, 402, 603, 0]


def test_row_1_29_a_segment_is_found_by_its_place() -> None:
    disk = new_disk()
    disk.make_dirs("/log")
    for start in (3, 4, 5):
        disk.create_segment(f"/log/{start * 100:020d}", 100)
    series = SegmentSeries(disk, "/log", 100)
    series.load()
    places = {offset: series.find(offset) for offset in (0, 299, 300, 399, 400, 599, 600)}
    found = {offset: segment and segment.start for offset, segment in places.items()}
    assert found == {0: None, 299: None, 300: 300, 399: 300, 400: 400, 599: 500, 600: None}
    assert series.start == 300, "where one begins who asks for the first"


class Gibibyte:
    """A file that is only its size."""

    path, size, view = "", 1 << 30, memoryview(b"")


def test_row_1_30_an_offset_of_the_second_file() -> None:
    series = SegmentSeries(new_disk(), "/log", 1 << 30)
    for number in range(3):
        series.add(Segment(number << 30, Gibibyte()))  # type: ignore[arg-type]
    segment = series.find(1073742827)
    assert segment is not None
    assert (segment.start, 1073742827 - segment.start) == (1073741824, 1003)


def test_row_1_31_a_read_is_valid_up_to_the_read_position_and_ends_there() -> None:
    store = open_store()
    put = store.put(message(b"abc"))
    end = put.end_offset
    lengths = {}
    for offset in (-1, 0, end - 1, end, end + 1, SEGMENT):
        view = store.read_log(offset, SEGMENT)
        lengths[offset] = None if view is None else len(view)
    assert lengths == {-1: None, 0: end, end - 1: 1, end: None, end + 1: None, SEGMENT: None}
    store.put(message(bytes(8090)))
    view = store.read_log(end - 1, 1 << 20)
    assert view is not None
    assert len(view) == SEGMENT - (end - 1), "not beyond its segment"


@pytest.mark.parametrize(
    ("ip", "port", "offset", "text"),
    [
        ("127.0.0.1", 20911, 828, "7F000001000051AF000000000000033C"),
        ("10.1.2.255", 10911, 0, "0A0102FF00002A9F0000000000000000"),
        (
            "fe80::1",
            10911,
            1 << 40,
            "FE800000000000000000000000000001" + "00002A9F" + "0000010000000000",
        ),
    ],
)
def test_row_1_32_a_message_id_is_address_port_and_offset(
    ip: str, port: int, offset: int, text: str
) -> None:
    host = encode_host(ip, port)
    assert offset_message_id(host[:-4], port, offset) == text
    assert decode_message_id(text) == (ip, port, offset)
    assert len(text) == (32 if "." in ip else 56)


def test_row_1_33_a_put_returns_before_its_entry_which_follows_soon() -> None:
    store = open_store()
    store.put(message())
    assert store.max_offset("T", 0) == 0
    dispatch(store)
    assert store.max_offset("T", 0) == 1

    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await client.send(b"x")
        sent = world.loop.time()
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        assert world.loop.time() - sent < 0.010
        await broker.close()

    run(body)


def test_row_1_34_an_index_file_is_named_by_its_creation() -> None:
    disk, clock = new_disk(), Clock(NOW + 7)
    store = open_store(disk, clock)
    store.put(message(keys="k"))
    dispatch(store)
    [index] = indexes_of(disk)
    local = time.strftime("%Y%m%d%H%M%S", time.localtime(NOW // 1000))
    assert index.name == f"{local}007"
    assert len(index.name) == 17
    default = StoreConfig()
    size = 40 + 4 * default.index_slots + 20 * default.index_items
    assert size == 420_000_040
    small = len(next(iter(files_of(disk, "/store/index").values())))
    assert small == 40 + 4 * SMALL.index_slots + 20 * SMALL.index_items


def test_row_1_35_five_million_slots_and_twenty_million_items() -> None:
    config = StoreConfig()
    assert (config.index_slots, config.index_items) == (5_000_000, 20_000_000)
    text = BrokerConfig.load("maxHashSlotNum=7\nmaxIndexNum=30").store_config()
    assert (text.index_slots, text.index_items) == (7, 30)


def test_row_1_36_the_header_counts_occupied_slots_and_items_plus_one() -> None:
    disk = new_disk()
    store = open_store(disk, index_slots=4, index_items=100)
    slots = set()
    for number in range(9):
        store.put(message(keys=f"k{number}"))
        dispatch(store)
        slots.add(abs(java_hash(f"T#k{number}")) % 4)
        assert indexes_of(disk, 4)[0].header[4:] == (len(slots), number + 2)
    assert len(slots) == 4


def test_row_1_37_places_of_slots_and_items() -> None:
    disk = new_disk()
    store = open_store(disk)
    puts = [store.put(message(keys=f"k{number}")) for number in range(5)]
    dispatch(store)
    [data] = files_of(disk, "/store/index").values()
    for number, put in enumerate(puts):
        key_hash = abs(java_hash(f"T#k{number}"))
        slot = struct.unpack_from(">i", data, 40 + 4 * (key_hash % 50))[0]
        assert slot >= number + 1
        item = struct.unpack_from(">iq", data, 40 + 50 * 4 + 20 * (number + 1))
        assert item == (key_hash, put.physical_offset)


def test_row_1_38_message_key_and_unique_key_are_indexed_separately() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one", keys="order", unique="C0A80001"))
    dispatch(store)
    assert indexes_of(disk)[0].header[5] == 3
    assert found_by_key(store, "order") == found_by_key(store, "C0A80001") == [b"one"]


def test_row_1_39_a_lookup_returns_32_by_default_and_64_at_most() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number in range(70):
            await client.send(b"%d" % number, KEYS="k", UNIQ_KEY="U")
        await world.until(lambda: broker.store.max_offset("T", 0) == 70)
        query = {"topic": "T", "beginTimestamp": 0, "endTimestamp": 1 << 60}

        async def found(**more: object) -> list[bytes]:
            got = await client.ask(12, {**query, **more})
            return [frame.body for frame in frames(bytes(got.body))]

        newest = [b"%d" % number for number in range(70)]
        assert await found(key="k") == newest[-32:]
        assert await found(key="k", maxNum=5) == newest[-5:]
        assert await found(key="k", maxNum=1000) == newest[-64:]
        unique = {"key": "U", "maxNum": 5, "_UNIQUE_KEY_QUERY": "true"}
        assert await found(**unique) == newest[-32:]
        await broker.close()

    run(body)


def inserted(
    insert, view: bytearray, header: list[int], *items: tuple[int, int, int], slots=5, limit=9
) -> int:
    data = b"".join(INCOMING.pack(*item) for item in items)
    return insert(memoryview(view), slots, limit, header, memoryview(data))


def items_in(view: bytearray, count: int, slots: int = 5) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack(">iqii", view[40 + 4 * slots :]))[:count]


both_inserts = pytest.mark.parametrize("insert", [insert_items, insert_items_reference])


@both_inserts
def test_row_1_40_seconds_are_clamped(insert) -> None:
    view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
    begin = 1000
    assert inserted(insert, view, header, (1, 0, begin)) == 1  # begin was 0: no difference
    times = (begin - 500, begin + 1999, begin + 1000 * (1 << 33))
    assert inserted(insert, view, header, *((1, n, t) for n, t in enumerate(times, 1))) == 3
    assert [item[2] for item in items_in(view, 5)[1:]] == [0, 0, 1, (1 << 31) - 1]


@both_inserts
@pytest.mark.parametrize("stale", [-1, 3, 1 << 30])
def test_row_1_41_a_slot_value_out_of_range_counts_as_empty(insert, stale: int) -> None:
    view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
    struct.pack_into(">i", view, 40 + 4 * 2, stale)
    assert inserted(insert, view, header, (7, 0, 1000), (7, 10, 1000)) == 2
    assert [item[3] for item in items_in(view, 3)[1:]] == [0, 1]
    assert header[4] == 1


@both_inserts
def test_row_1_42_the_first_item_sets_the_begin_and_only_empty_slots_count(insert) -> None:
    view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
    inserted(insert, view, header, (3, 111, 5000))
    assert header == [5000, 5000, 111, 111, 1, 2]
    inserted(insert, view, header, (8, 222, 6000), (4, 333, 7000))  # 8 shares the slot of 3
    assert header == [5000, 7000, 111, 333, 2, 4]


def test_row_1_43_a_full_file_takes_no_more_and_the_next_one_does() -> None:
    for insert in (insert_items, insert_items_reference):
        view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
        assert inserted(insert, view, header, *((n, n, 1000) for n in range(20))) == 8
        assert header[5] == 9
        assert inserted(insert, view, header, (1, 99, 1000)) == 0
    disk = new_disk()
    store = open_store(disk, index_items=9)
    for number in range(10):
        store.put(message(b"%d" % number, keys=f"k{number}"))
    dispatch(store)
    assert [index.header[5] for index in indexes_of(disk)] == [9, 3]
    assert found_by_key(store, "k8") == [b"8"]


@pytest.mark.parametrize("asked", [15, 20, 30])
def test_row_1_44_an_empty_pull_is_held_and_answered_at_once_on_arrival(asked: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        sender = await world.connect(broker.address)
        await sender.send(b"first")
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        began = world.loop.time()
        held = {"sysFlag": 6, "suspendTimeoutMillis": asked * 1000}
        idle = await client.pull(1, **held)
        assert (idle.code, idle.ext["nextBeginOffset"]) == (19, "1")
        assert asked <= world.loop.time() - began < asked + 5.5
        waiting = asyncio.ensure_future(client.pull(1, **held))
        await asyncio.sleep(asked / 2)
        assert not waiting.done()
        await sender.send(b"second")
        sent = world.loop.time()
        got = await waiting
        assert world.loop.time() - sent < 0.050
        assert [frame.body for frame in frames(bytes(got.body))] == [b"second"]
        await broker.close()

    run(body)


@pytest.mark.parametrize("seed", range(5))
def test_row_1_45_what_a_sync_flush_acknowledged_survives_a_loss_of_power(seed: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker(flush_disk_type="SYNC_FLUSH")
        client = await world.connect(broker.address)
        acknowledged: list[bytes] = []

        async def send(number: int) -> None:
            body = b"%d" % number
            if (await client.send(body, queue=number % 2)).code == 0:
                acknowledged.append(body)

        sends = [asyncio.ensure_future(send(number)) for number in range(200)]
        await world.until(lambda: len(acknowledged) > 20 + 30 * seed)
        [machine] = [node for node in world.nodes if node.name.startswith("broker")]
        machine.power_off()
        world.disk.power_off()
        for waiting in sends:
            waiting.cancel()
        known = set(acknowledged)
        world.disk.power_on()
        store = MessageStore.open(broker.config.store_config(), world.disk, Clock())
        found = set(bodies(store, "T", 0)) | set(bodies(store, "T", 1))
        assert known <= found
        assert len(known) > 20

    run(body, seed)


def test_row_1_46_a_query_goes_from_the_index_to_the_offset_to_the_body() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(20):
        store.put(message(b"body %d" % number, keys=f"k{number}"))
    dispatch(store)
    [index] = indexes_of(disk)
    key_hash = abs(java_hash("T#k13"))
    number = index.slots[key_hash % 50]
    while index.items[number][0] != key_hash:
        number = index.items[number][3]
    at = index.items[number][1]
    data = store.message_at(at)
    assert data is not None
    assert raw_frame(data).body == b"body 13"
    assert store.query_by_key("T", "k13", 64, 0, 1 << 60) == [data]
    assert store.message_at(at + 1) is None
    result = store.get_message("T", 0, 13, 1)
    assert (result.status, result.data) == (GetStatus.FOUND, data)
    flush(store)

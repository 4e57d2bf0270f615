"""Rows 1.01 to 1.21: message storage, the CommitLog and its cleaning. See `rows.tsv`."""

from __future__ import annotations

import logging
import os
import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from rig import (
    GOLDEN,
    GOLDEN_OFFSET,
    HOUR,
    SEGMENT,
    Clock,
    aged,
    at_hour,
    bodies,
    build_frame,
    clean,
    entries_of,
    files_of,
    fill,
    found_by_key,
    log_bytes,
    log_frames,
    message,
    open_store,
    raw_frame,
    segment_names,
    settle,
)
from saturnmq.broker.config import BrokerConfig
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.runtime.errors import MessageIllegal, ServiceNotAvailable, StoreDamaged
from saturnmq.store.config import StoreConfig
from saturnmq.store.disk import NativeDisk
from saturnmq.store.log.cleaner import MANUAL_PASSES
from saturnmq.store.log.segments import SegmentSeries
from saturnmq.store.message_store import PendingMessage
from world_rig import World, new_disk, run


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
            *("abort", "checkpoint", "commitlog", "config", "consumequeue", "epochFileCheckpoint"),
            *("index", "lock", "timer"),
            *("epochFileCheckpoint.bak", "epochFileCheckpoint.tmp"),  # room for the next epoch
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
        found = aged(8, 12, hours_old=0, clean_forcibly=True)
        found.use_disk_to(percent)
        store = found.store
        assert store.space.short == bool(at_once)
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


def test_row_1_14_a_message_above_max_message_size_is_refused() -> None:
    assert StoreConfig().max_message_bytes == 4_194_304
    store = open_store(max_message_bytes=1000, commitlog_segment_bytes=1 << 17)
    put = store.put(message(bytes(1000)))
    assert put.sizes[0] == 1000 + 92  # longer than the seed allows: the code's rule
    with pytest.raises(MessageIllegal, match="1000") as refused:
        store.put(message(bytes(1001)))
    assert refused.value.code == 13
    assert store.watermarks.appended == put.end_offset
    # No frame is 64 KiB above it: topic and properties end long before.
    longest = b"k\x01" + b"v" * (32_767 - 3) + b"\x02"
    put = store.put(PendingMessage("%RETRY%".ljust(255, "t"), 0, bytes(1000), longest))
    assert put.sizes[0] < 1000 + (64 << 10)


def test_row_1_15_a_frame_has_17_fields() -> None:
    disk = new_disk()
    clock = Clock(0x01A1FBC3BE8F)
    store = open_store(disk, clock, commitlog_segment_bytes=1 << 20)
    # The golden frame's fields, in a log that begins where its log had it.
    before = GOLDEN_OFFSET % (1 << 20)
    store.append_raw(GOLDEN_OFFSET - before, bytes(before) + GOLDEN)
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


def give_length(disk: SimDisk, path: str, length: int) -> None:
    """Cut the file, or make it longer by zeros."""
    data = disk.read_file(path)
    disk.unlink(path)
    disk.write_file(path, data[:length].ljust(length, b"\0"))


@pytest.mark.parametrize("length", [1, SEGMENT - 4096, SEGMENT + 4096])
@pytest.mark.parametrize("crash", [False, True])
def test_row_1_21_its_messages_are_gone_and_the_others_stay(
    crash: bool, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store, 3)
    sent = bodies(store)
    if crash:
        disk = disk.kill_image(random.Random(1))
    else:
        store.close()
    kept = [frame.body for frame in log_frames(disk) if frame.physical < 2 * SEGMENT]
    assert 0 < len(kept) < len(sent)
    newest = f"/store/commitlog/{segment_names(2, 1)[0]}"
    give_length(disk, newest, length)
    store = open_store(disk)
    [told] = [one for one in caplog.records if newest in one.getMessage()]
    assert told.levelno >= logging.WARNING
    assert f"{length} bytes long instead of {SEGMENT}" in told.getMessage()
    assert bodies(store) == kept == sent[: len(kept)]
    assert len(entries_of(disk)) == store.max_offset("T", 0) == len(kept)
    assert found_by_key(store, f"k{len(kept)}") == []
    assert [first for first, _ in store.missing] == [2 * SEGMENT]
    store.settle()  # the start went on, sends go on when somebody says so
    put = store.put(message(b"new", keys="new"))
    assert (put.physical_offset, put.queue_offset) == (2 * SEGMENT, len(kept))
    settle(store)
    assert bodies(store) == [*kept, b"new"]
    assert found_by_key(store, "new") == [b"new"]


@pytest.mark.parametrize("length", [0, 20, 10_000])
@pytest.mark.parametrize("directory", ["consumequeue/T/1", "index"])
@pytest.mark.parametrize("crash", [False, True])
def test_row_1_21_a_file_that_can_be_built_again_is(
    crash: bool, directory: str, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(90):
        store.put(message(b"%d" % number, queue=number % 2, keys=f"k{number}"))
    settle(store)
    sent = [bodies(store, queue=queue) for queue in (0, 1)]
    if crash:
        disk = disk.kill_image(random.Random(1))
    else:
        store.close()
    before = {name: len(data) for name, data in files_of(disk, f"/store/{directory}").items()}
    path = f"/store/{directory}/{min(before)}"
    give_length(disk, path, length)
    store = open_store(disk)
    assert any(path in one.getMessage() for one in caplog.records if one.levelno > logging.INFO)
    assert [bodies(store, queue=queue) for queue in (0, 1)] == sent
    assert [found_by_key(store, f"k{number}") for number in range(90)] == [
        [b"%d" % number] for number in range(90)
    ]
    after = files_of(disk, f"/store/{directory}").values()
    assert [len(data) for data in after] == list(before.values())

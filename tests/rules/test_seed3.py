"""Rows 3.01 to 3.21: questions and answers, storage and cleaning. See `rows.tsv`."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import pytest
from rig import (
    HOUR,
    SEGMENT,
    aged,
    at_hour,
    bodies,
    clean,
    dispatch,
    entries_of,
    files_of,
    fill,
    flush,
    found_by_key,
    frames,
    indexes_of,
    log_bytes,
    log_frames,
    message,
    open_store,
    raw_frame,
    segment_names,
    settle,
)
from saturnmq.broker.config import BrokerConfig
from saturnmq.runtime.errors import SystemBusy
from saturnmq.store.config import StoreConfig
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import GetStatus
from world_rig import World, new_disk, run


def test_row_3_01_a_send_is_acknowledged_before_any_flush() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        assert BrokerConfig().flush_disk_type == "ASYNC_FLUSH"
        client = await world.connect(broker.address)
        await client.send(b"first")
        await world.until(lambda: broker.store.watermarks.flushed > 0)
        flushes: list[float] = []

        def step(operation: str, path: str) -> None:
            if operation == "flush" and "commitlog" in path:
                flushes.append(world.loop.time())

        world.disk.step = step
        assert (await client.send(b"second")).code == 0
        assert flushes == []
        assert broker.store.watermarks.flushed < broker.store.watermarks.appended
        await world.until(lambda: flushes, 1)
        world.disk.step = None
        await broker.close()

    run(body)


def test_row_3_02_neighbouring_messages_are_one_stretch() -> None:
    store = open_store(consumequeue_segment_bytes=6000)
    for number in range(40):
        store.put(message(b"%d" % number))
    dispatch(store)
    result = store.get_message("T", 0, 0, 32)
    assert (result.count, len(result.pieces)) == (32, 1)
    assert [f.body for f in frames(bytes(result.pieces[0]))] == [b"%d" % n for n in range(32)]
    store.put(message(b"of another queue", queue=1))
    store.put(message(b"last"))
    dispatch(store)
    result = store.get_message("T", 0, 32, 32)
    assert (result.count, len(result.pieces)) == (9, 2)


def test_row_3_03_queue_entries_do_not_wait_for_flushing() -> None:
    disk = new_disk()
    store = open_store(disk, sync_zeros=True)
    flushed: list[str] = []
    disk.step = lambda operation, path: flushed.append(path) if operation == "flush" else None
    store.put(message(b"x"))
    dispatch(store)
    assert len(entries_of(disk)) == 1
    assert store.watermarks.flushed == 0
    assert not [path for path in flushed if "commitlog" in path]


def test_row_3_03_nor_do_they_where_an_acknowledgement_waits_for_it() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(flush_disk_type="SYNC_FLUSH")
        world.nodes[-1].blocking_latency_s = (1.0, 1.0)  # on each side of a flush
        client = await world.connect(broker.address)
        sent = asyncio.create_task(client.send(b"x"))
        await world.until(lambda: broker.store.watermarks.appended)
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        answer = await client.ask(30, {"topic": "T", "queueId": 0})
        assert answer.ext["offset"] == "0", "consumers are not told of it yet"
        assert len(entries_of(world.disk)) == 1
        assert broker.store.watermarks.flushed == 0
        assert not sent.done()
        assert (await sent).code == 0
        assert broker.store.watermarks.flushed == broker.store.watermarks.appended
        await broker.close()

    run(body)


@pytest.mark.parametrize("seed", range(20))
def test_row_3_04_what_was_not_flushed_is_lost_in_log_and_queue_together(seed: int) -> None:
    disk, rng = new_disk(seed), random.Random(seed)
    store = open_store(disk)
    kept = 0
    for number in range(50):
        store.put(message(b"%d" % number + bytes(rng.randrange(400)), keys=f"k{number}"))
        if rng.random() < 0.5:
            dispatch(store)
        if rng.random() < 0.1:
            flush(store)
            kept = number + 1
        if rng.random() < 0.2:
            store.flush_derived()  # the queues may be on the disk before the log
            store.checkpoint()
    disk.power_off()
    disk.power_on()
    store = open_store(disk)
    stored = log_frames(disk)
    assert len(stored) >= kept
    assert entries_of(disk) == [(f.physical, f.size, 0) for f in stored]
    assert store.max_offset("T", 0) == len(stored)
    for number in range(50):
        assert len(found_by_key(store, f"k{number}")) == (number < len(stored))


@pytest.mark.parametrize("crash", [False, True])
def test_row_3_05_queues_are_rebuilt_the_same(crash: bool) -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(200):
        store.put(message(bytes(100), "TU"[number % 2], number % 3, tag="A", keys=f"k{number}"))
    settle(store)
    directories = [f"/store/consumequeue/{t}/{q}" for t in "TU" for q in range(3)]
    before = {name: files_of(disk, name) for name in directories}
    if crash:
        disk.kill()
        disk.power_on()
    else:
        store.close()
    disk.remove_tree("/store/consumequeue")
    store = open_store(disk)
    assert store.recovery.clean != crash
    assert {name: files_of(disk, name) for name in directories} == before
    assert all(files for files in before.values())


@pytest.mark.parametrize("crash", [False, True])
def test_row_3_06_entries_beyond_the_log_are_cut_at_the_start(crash: bool) -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(5):
        last = store.put(message(b"%d" % number))
    store.close()
    if crash:
        disk.write_file("/store/abort", b"")
    path = f"/store/consumequeue/T/0/{0:020d}"
    data = bytearray(disk.read_file(path))
    for number, offset in ((5, last.end_offset), (6, last.end_offset + 5000)):
        data[20 * number : 20 * number + 12] = offset.to_bytes(8, "big") + (93).to_bytes(4, "big")
    disk.write_file(path, bytes(data))
    store = open_store(disk)
    assert store.max_offset("T", 0) == 5
    assert len(entries_of(disk)) == 5
    assert store.put(message(b"5")).queue_offset == 5
    dispatch(store)
    assert bodies(store) == [b"%d" % number for number in range(6)]


def test_row_3_07_ten_million_messages_of_1_kb() -> None:
    times, queues = 1000, 4  # a thousandth of the messages, in files of about that size
    disk = new_disk()
    store = open_store(
        disk,
        commitlog_segment_bytes=1 << 20,
        consumequeue_segment_bytes=5000,
        crc_property=StoreConfig().crc_property,
    )
    for number in range(10_000_000 // times):
        store.put(message(bytes(1000), queue=number // 100 % queues))
    settle(store)
    assert len(log_frames(disk, segment=1 << 20)) * times == 10_000_000
    assert sum(len(entries_of(disk, queue=n)) for n in range(queues)) * times == 10_000_000
    sizes = {path: len(disk.content(path)) for path in disk.paths()}
    log = sum(size for path, size in sizes.items() if path.startswith("/store/commitlog/"))
    queue = sum(size for path, size in sizes.items() if path.startswith("/store/consumequeue/"))
    assert 10e9 < log * times < 12e9
    assert queue * times == 200_000_000
    assert sum(sizes.values()) - log - queue < 10_000, "nothing else grows with them"


def test_row_3_08_log_queue_and_index_are_mapped(tmp_path: Path) -> None:
    root = str(tmp_path)
    store = open_store(NativeDisk(), root=root)
    store.put(message(keys="k"))
    store.close()
    store = open_store(NativeDisk(), root=root)
    assert store.entries("T", 0, 0, 1), "a queue is mapped when it is used"
    maps = Path("/proc/self/maps").read_text()
    for directory in ("commitlog", "consumequeue/T/0", "index"):
        [file] = (tmp_path / directory).iterdir()
        assert str(file) in maps
    store.close()
    assert root not in Path("/proc/self/maps").read_text()


def test_row_3_09_log_files_exist_in_full_size_before_they_are_needed() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(bytes(SEGMENT // 2)))
    assert list(files_of(disk, "/store/commitlog")) == segment_names(0, 1)
    store.prepare_ahead()
    found = files_of(disk, "/store/commitlog")
    assert list(found) == segment_names(0, 3), "the next and the one after it"
    assert {len(data) for data in found.values()} == {SEGMENT}
    made: list[str] = []
    disk.step = lambda operation, path: made.append(path) if operation == "create_segment" else None
    fill(store, 3)
    disk.step = None
    assert not [path for path in made if "commitlog" in path]
    store.close()
    assert list(files_of(disk, "/store/commitlog")) == segment_names(0, 3)


def test_row_3_10_a_transient_pool_commits_and_flushes_in_its_own_time() -> None:
    config = StoreConfig()
    assert (config.transient_pool, config.transient_pool_size) == (False, 5)
    assert config.commit_interval_ms == 200
    assert BrokerConfig().flush_interval_ms <= 500
    text = "transientStorePoolEnable=true\ntransientStorePoolSize=3\ncommitIntervalCommitLog=50"
    told = BrokerConfig.load(f"{text}\nflushIntervalCommitLog=400")
    store_told = told.store_config()
    assert (store_told.transient_pool, store_told.transient_pool_size) == (True, 3)
    assert (store_told.commit_interval_ms, told.flush_interval_ms) == (50, 400)

    async def body(world: World) -> None:
        options = {"transient_pool": True}
        broker = await world.broker(store_options=options, flush_interval_ms=500)
        client = await world.connect(broker.address)
        await client.send(b"warm up")
        store = broker.store
        await world.until(lambda: store.watermarks.flushed == store.watermarks.appended)
        sent = world.loop.time()
        reply = await client.send(b"in memory")
        offset = int(reply.ext["msgId"][16:], 16)
        assert not any(log_bytes(world.disk)[offset : offset + 100]), "acknowledged from memory"
        assert store.message_at(offset) is None, "readers see what is committed"
        await world.until(lambda: store.message_at(offset) is not None)
        committed = world.loop.time() - sent
        assert committed < 0.25
        await world.until(lambda: store.watermarks.flushed > offset)
        assert world.loop.time() - sent < 0.55
        assert raw_frame(store.message_at(offset) or b"").body == b"in memory"
        await broker.close()

    run(body)


@pytest.mark.parametrize("fail_fast", [False, True])
def test_row_3_10_an_exhausted_pool_writes_to_the_file_or_refuses(fail_fast: bool) -> None:
    store = open_store(transient_pool=True, transient_pool_size=2, transient_fail_fast=fail_fast)
    puts = [store.put(message(bytes(5000))) for _ in range(2)]  # each in a segment of its own
    if fail_fast:
        with pytest.raises(SystemBusy, match="transientStorePoolSize"):
            store.put(message(bytes(5000)))
    else:
        puts.append(store.put(message(bytes(5000))))
    flush(store)
    puts.append(store.put(message(bytes(5000))))
    flush(store)
    dispatch(store)
    assert [put.queue_offset for put in puts] == list(range(store.max_offset("T", 0)))
    assert len(bodies(store)) == len(puts)


def test_row_3_11_consumption_deletes_nothing() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(store_options={"commitlog_segment_bytes": SEGMENT})
        client = await world.connect(broker.address)
        for _ in range(40):
            await client.send(bytes(900))
        await world.until(lambda: broker.store.max_offset("T", 0) == 40)
        names = set(files_of(world.disk, "/store/commitlog"))
        await client.commit(40)
        await asyncio.sleep(200)
        assert await client.committed() == 40
        assert names <= set(files_of(world.disk, "/store/commitlog"))
        assert (await client.pull(0)).code == 0
        await broker.close()

    run(body)


def test_row_3_12_an_expired_file_waits_for_4_am_unless_space_is_short() -> None:
    for short in (False, True):

        async def body(world: World, short: bool = short) -> None:
            options = {"commitlog_segment_bytes": SEGMENT}
            broker = await world.broker(store_options=options)
            client = await world.connect(broker.address)
            for _ in range(40):
                await client.send(bytes(900))
            await broker.close()
            oldest = segment_names(0, 1)[0]
            until_4 = at_hour(4) + 96 * HOUR - world.nodes[0].now_ms()
            broker = await world.broker(store_options=options, ahead_ms=until_4 - 120_000)  # 3:58
            if short:
                used = world.disk.total_bytes - world.disk.free_space("/store")[1]
                world.disk.total_bytes = int(used / 0.87)
            await asyncio.sleep(119)
            assert (oldest in files_of(world.disk, "/store/commitlog")) != short
            await asyncio.sleep(13)
            assert oldest not in files_of(world.disk, "/store/commitlog")
            await broker.close()

        run(body)


@pytest.mark.parametrize(
    ("percent", "refuses", "short", "deletes_expired"),
    [
        (74.9, False, False, False),
        (75.1, False, False, True),
        (85.1, False, True, True),
        (90.1, True, True, True),
    ],
)
def test_row_3_13_three_ratios(
    percent: float,
    refuses: bool,
    short: bool,
    deletes_expired: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = StoreConfig()
    ratios = (config.disk_warning_ratio, config.disk_clean_forcibly_ratio)
    assert (*ratios, config.disk_max_used_ratio) == (90, 85, 75)
    found = aged(4, 12)
    with caplog.at_level(logging.WARNING):
        found.use_disk_to(percent)
    assert ("no more sends" in caplog.text) == refuses
    assert bool(found.store.refuses) == refuses
    assert found.store.space.short == short
    assert bool(clean(found.store)) == deletes_expired


def test_row_3_14_forced_cleaning_takes_the_oldest_consumed_or_not() -> None:
    found = aged(8, 12, hours_old=0, clean_forcibly=True)
    assert clean(found.store) == []
    found.use_disk_to(87.0)
    taken = clean(found.store)
    assert taken
    assert taken == segment_names(0, len(taken))
    assert found.store.min_offset("T", 0) > 0


def test_row_3_15_a_start_finishes_deletions_that_were_begun() -> None:
    found = aged(4, 4)
    assert clean(found.store) == segment_names(0, 3)
    left = files_of(found.disk, "/store/commitlog/deleted")
    assert list(left) == [f"{name}.delete" for name in segment_names(0, 3)]
    found.store.close()
    # RocketMQ refuses files that are no segments beside the segments, and ignores directories.
    assert list(files_of(found.disk, "/store/commitlog")) == segment_names(3, 1)
    store = open_store(found.disk, found.clock)
    assert files_of(found.disk, "/store/commitlog/deleted") == {}
    assert store.watermarks.start == 3 * SEGMENT


def test_row_3_16_renamed_to_delete_and_unlinked_60_seconds_later() -> None:
    found = aged(4, 4)
    store, disk = found.store, found.disk
    reader = store.read_log(0, 100)
    assert reader is not None
    before = bytes(reader)
    assert clean(store) == segment_names(0, 3)
    names = [f"{name}.delete" for name in segment_names(0, 3)]
    for later in (0, 59_999):
        found.clock.now = at_hour(4) + 72 * HOUR + later
        clean(store)
        assert list(files_of(disk, "/store/commitlog/deleted")) == names
    assert store.read_log(0, 100) is None
    assert bytes(reader) == before, "who reads already may finish"
    found.clock.now += 1
    store.checkpoint()  # the newest waits for the checkpoint that tells of it
    clean(store)
    assert files_of(disk, "/store/commitlog/deleted") == {}


def test_row_3_17_a_queue_is_trimmed_by_its_first_offset_and_bytes_stay() -> None:
    found = aged(3, 4)  # 18 entries: within one file
    store, disk = found.store, found.disk
    before = files_of(disk, "/store/consumequeue/T/0")
    assert len(before) == 1
    assert clean(store) == segment_names(0, 2)
    assert files_of(disk, "/store/consumequeue/T/0") == before
    low = store.min_offset("T", 0)
    offsets = [entry[0] for entry in entries_of(disk)]
    assert offsets[low - 1] < 2 * SEGMENT <= offsets[low]
    assert bodies(store) == [f.body for f in frames(log_bytes(disk), 2 * SEGMENT)]


def test_row_3_18_queue_files_wholly_below_the_cut_are_deleted() -> None:
    default = StoreConfig().consumequeue_segment_bytes
    assert default == 300_000 * 20
    assert round(default / (1 << 20), 2) == 5.72
    found = aged(12, 4, delete_batch_max=4)
    offsets = [entry[0] for entry in entries_of(found.disk)]
    assert clean(found.store) == segment_names(0, 4)
    cut = next(n for n, offset in enumerate(offsets) if offset >= 4 * SEGMENT)
    assert cut % 20, "the cut is inside a file, which stays"
    files = list(files_of(found.disk, "/store/consumequeue/T/0"))
    assert files[0] == f"{cut // 20 * 400:020d}"
    assert len(files) == -(-len(offsets) // 20) - cut // 20


def test_row_3_19_the_newest_queue_file_stays_and_is_appended_to() -> None:
    found = aged(2, 4)
    store, disk = found.store, found.disk
    for number in range(45):  # all of this queue is in the first segments
        store.put(message(b"%d" % number, "U"))
    dispatch(store)
    fill(store, 6)
    found.clock.now = at_hour(4) + 240 * HOUR
    assert len(clean(store)) > 2
    name = f"{800:020d}"
    [(kept, data)] = files_of(disk, "/store/consumequeue/U/0").items()
    assert (kept, len(data)) == (name, 400)
    assert (store.min_offset("U", 0), store.max_offset("U", 0)) == (45, 45)
    assert store.put(message(b"next", "U")).queue_offset == 45
    dispatch(store)
    assert list(files_of(disk, "/store/consumequeue/U/0")) == [name]
    assert bodies(store, "U") == [b"next"]


def test_row_3_20_an_entry_whose_message_is_gone() -> None:
    found = aged(3, 4)
    store = found.store
    assert store.get_message("T", 0, 0, 32).status is GetStatus.FOUND
    ticket = store.begin_clean()  # already before the files are touched
    assert ticket is not None
    low = store.min_offset("T", 0)
    for offset in (0, low - 1):
        result = store.get_message("T", 0, offset, 32)
        assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    ticket.run()
    assert store.get_message("T", 0, low - 1, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert store.get_message("T", 0, low, 32).status is GetStatus.FOUND


def test_row_3_21_an_index_file_goes_when_its_end_is_below_the_log() -> None:
    found = aged(12, 4, delete_batch_max=1, index_items=12)
    store, disk = found.store, found.disk
    ends = {index.name: index.header[3] for index in indexes_of(disk)}
    assert len(ends) > 3
    while clean(store):
        start = store.watermarks.start
        kept = {index.name for index in indexes_of(disk)}
        assert kept == {name for name, end in ends.items() if end >= start}
    # The last one stays although all of its messages are gone.
    for _ in range(30):
        store.put(message(bytes(900)))
    settle(store)
    found.clock.now += 96 * HOUR
    while clean(store):
        pass
    assert [index.name for index in indexes_of(disk)] == [max(ends)]
    assert ends[max(ends)] < store.watermarks.start

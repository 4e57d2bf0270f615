"""Rows 2.01 to 2.28: ConsumeQueue and its building; IndexFile is in `test_seed2_index.py`. See
`rows.tsv` for what each row says."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from rig import (
    SEGMENT,
    bodies,
    build_frame,
    dispatch,
    entries_of,
    files_of,
    frames,
    indexes_of,
    java_hash,
    log_frames,
    message,
    open_store,
)
from saturnmq.broker.config import BrokerConfig
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.batch import encode_batch
from saturnmq.runtime.errors import ServiceNotAvailable
from saturnmq.store.config import StoreConfig
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import GetStatus
from world_rig import World, new_disk, run

NONE, PREPARED, COMMIT, ROLLBACK = 0x0, 0x4, 0x8, 0xC


def test_row_2_01_where_queue_files_lie() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(topic="Orders", queue=3))
    dispatch(store)
    assert [e.name for e in disk.list("/store/consumequeue")] == ["Orders"]
    assert [e.name for e in disk.list("/store/consumequeue/Orders")] == ["3"]
    assert list(files_of(disk, "/store/consumequeue/Orders/3")) == [f"{0:020d}"]


def test_row_2_02_300_000_entries_per_file_and_the_name_of_the_second() -> None:
    per_file = StoreConfig().consumequeue_segment_bytes // 20
    assert per_file == 300_000
    disk = new_disk()
    store = open_store(disk, consumequeue_segment_bytes=6_000_000)
    physical = SEGMENT
    store.append_raw(physical, build_frame(b"x", queue_offset=per_file, physical=physical))
    dispatch(store)
    assert list(files_of(disk, "/store/consumequeue/T/0")) == ["00000000000006000000"]


def test_row_2_03_a_queue_file_is_named_by_the_byte_offset_of_its_first_entry() -> None:
    disk = new_disk()
    store = open_store(disk)
    puts = [store.put(message()) for _ in range(45)]
    dispatch(store)
    found = files_of(disk, "/store/consumequeue/T/0")
    assert list(found) == [f"{n:020d}" for n in (0, 400, 800)]
    for name, data in found.items():
        first = puts[int(name) // 20]
        assert struct.unpack_from(">q", data) == (first.physical_offset,)


def test_row_2_04_reput_goes_frame_by_frame_and_checks_no_crc() -> None:
    disk = new_disk()
    store = open_store(disk)
    good = build_frame(b"good", queue_offset=0, physical=0)
    bad = bytearray(build_frame(b"bad", queue_offset=1, physical=len(good)))
    bad[8] ^= 1  # its CRC
    store.append_raw(0, good)
    store.append_raw(len(good), bad)
    dispatch(store)
    assert entries_of(disk) == [(0, len(good), 0), (len(good), len(bad), 0)]
    assert store.watermarks.dispatched == len(good) + len(bad)

    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number in range(20):
            await client.send(b"%d" % number)
            sent = world.loop.time()
            await world.until(lambda n=number: broker.store.max_offset("T", 0) == n + 1)
            assert world.loop.time() - sent < 0.005
        await broker.close()

    run(body)


def test_row_2_05_plain_and_commit_frames_get_entries() -> None:
    disk = new_disk()
    store = open_store(disk)
    kinds = (NONE, PREPARED, COMMIT, ROLLBACK, NONE)
    puts = [store.put(message(keys="k", sys_flag=kind)) for kind in kinds]
    dispatch(store)
    queued = [puts[n] for n in (0, 2, 4)]
    assert [entry[0] for entry in entries_of(disk)] == [put.physical_offset for put in queued]
    assert [put.queue_offset for put in puts] == [0, 0, 1, 0, 2]
    assert [f.queue_offset for f in log_frames(disk)] == [0, 0, 1, 0, 2]
    indexed = [item[1] for item in indexes_of(disk)[0].items[1:]]
    assert indexed == [puts[n].physical_offset for n in (0, 1, 2, 4)], "all but the rollback"


def test_row_2_06_an_entry_is_offset_size_and_tags_code_at_its_place() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(7):
        store.put(message(b"x" * number, queue=number % 2, tag=f"t{number}"))
    dispatch(store)
    for frame in log_frames(disk):
        entry = entries_of(disk, queue=frame.queue)[frame.queue_offset]
        assert entry == (frame.physical, frame.size, java_hash(frame.properties["TAGS"]))


def test_row_2_07_an_empty_queue() -> None:
    store = open_store()
    for offset in (0, 5):
        result = store.get_message("T", 0, offset, 32)
        assert (result.status, result.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)

    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await client.send(b"x", queue=1)
        for offset, code in ((0, 19), (5, 21)):
            got = await client.pull(offset, queue=0)
            assert (got.code, got.ext["nextBeginOffset"]) == (code, "0")
        await broker.close()

    run(body)


def test_row_2_08_next_is_behind_the_last_entry_looked_at() -> None:
    store = open_store()
    for number in range(9):
        store.put(message(b"%d" % number, tag="AAABBBBBB"[number]))
    dispatch(store)
    for offset in range(9):
        result = store.get_message("T", 0, offset, 1)
        assert (result.status, result.next_begin_offset) == (GetStatus.FOUND, offset + 1)
    only_a = store.get_message("T", 0, 0, 32, 1 << 20, frozenset([65]))
    assert (only_a.count, only_a.next_begin_offset) == (3, 9)
    full = store.get_message("T", 0, 0, 3, 1 << 20, frozenset([65]))
    assert (full.count, full.next_begin_offset) == (3, 3), "a full reply looks at no more"


def test_row_2_09_100_million_messages_are_2_gb_of_queue() -> None:
    disk = new_disk()
    store = open_store(disk, consumequeue_segment_bytes=20_000)
    for _ in range(1000):
        store.put(message(b""))
    dispatch(store)
    assert store.max_offset("T", 0) == 1000
    [data] = files_of(disk, "/store/consumequeue/T/0").values()
    assert len(data) == 20_000, "exactly full"
    assert len(data) * 100_000 == 2_000_000_000


def test_row_2_22_queues_are_built_without_an_index() -> None:
    config = BrokerConfig.load("messageIndexEnable=false").store_config()
    assert not config.index_enable
    disk = new_disk()
    store = open_store(disk, index_enable=False)
    for number in range(30):
        store.put(message(b"%d" % number, keys="k"))
    dispatch(store)
    assert bodies(store) == [b"%d" % number for number in range(30)]
    assert len(entries_of(disk)) == 30


def resident_bytes(directory: Path) -> int:
    """How much of the files of a directory this process has mapped in and touched."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            here = str(directory) in line
        elif here and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


class WatchedDisk(SimDisk):
    """Remembers what was zeroed before a writer came there."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.zeroed: dict[str, list[tuple[int, int]]] = {}

    def create_segment(self, path: str, size: int, *, durable: bool = True) -> Any:
        segment = super().create_segment(path, size, durable=durable)
        zero = segment.zero

        def watched(start: int, end: int) -> None:
            self.zeroed.setdefault(path, []).append((start, end))
            zero(start, end)

        segment.zero = watched
        return segment


def test_row_2_23_warming_touches_every_page(tmp_path: Path) -> None:
    assert BrokerConfig.load("warmMapedFileEnable=true").store_config().warm_files
    for warm in (False, True):
        root = tmp_path / str(warm)
        sizes = {"commitlog_segment_bytes": 1 << 20, "consumequeue_segment_bytes": 409_600}
        store = open_store(NativeDisk(), root=str(root), warm_files=warm, **sizes)
        store.put(message())
        dispatch(store)
        touched = resident_bytes(root / "consumequeue/T/0")
        assert (touched == 409_600) if warm else (touched < 100_000)
        store.close()
    # A CommitLog segment is written from end to end before the writer comes, warm_files or not.
    disk = WatchedDisk()
    store = open_store(disk, commitlog_segment_bytes=SEGMENT, zero_ahead_bytes=SEGMENT)
    store.put(message(bytes(SEGMENT // 2)))
    store.prepare_ahead()
    covered = 0
    for start, stop in disk.zeroed[f"/store/commitlog/{SEGMENT:020d}"]:
        assert start == covered
        covered = stop
    assert covered == SEGMENT


def test_row_2_24_32_entries_are_read_at_once() -> None:
    store = open_store()
    for number in range(50):
        store.put(message(b"%d" % number, tag="A"))
    dispatch(store)
    result = store.get_message("T", 0, 0, 1000)
    assert (result.count, result.next_begin_offset) == (20, 20), "as far as the queue's file"
    store = open_store(consumequeue_segment_bytes=6_000)
    for number in range(50):
        store.put(message(b"%d" % number, tag="A"))
    dispatch(store)
    assert StoreConfig().in_memory_count == 32
    result = store.get_message("T", 0, 0, 1000)
    assert (result.count, result.next_begin_offset) == (32, 32)


def test_row_2_26_what_is_still_to_be_built_is_a_figure() -> None:
    store = open_store()
    ends = [store.put(message()).end_offset for _ in range(3)]
    marks = store.watermarks
    assert marks.appended - marks.dispatched == ends[-1]
    dispatch(store)
    assert marks.appended - marks.dispatched == 0

    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await client.send(b"x")
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        answer = await client.ask(28)
        assert json.loads(bytes(answer.body))["table"]["dispatchBehindBytes"] == "0"
        built = broker.store.watermarks.appended
        world.disk.plan("create_segment", errno.ENOSPC, "*/consumequeue/T/1/*", times=1_000_000)
        await client.send(b"not built", queue=1)
        behind = broker.store.watermarks.appended - built
        assert behind > 91
        answer = await client.ask(28)
        assert json.loads(bytes(answer.body))["table"]["dispatchBehindBytes"] == str(behind)
        await broker.close(clean=False)

    run(body)


def test_row_2_28_without_room_for_a_queue_consumption_and_sends_stop_until_there_is() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"built"))
    dispatch(store)
    store.put(message(b"not built", queue=1))
    store.put(message(b"behind it"))
    disk.plan("create_segment", errno.ENOSPC, "*/consumequeue/*", times=3)
    for _ in range(3):
        assert store.reput() == []
        assert store.get_message("T", 1, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
        with pytest.raises(ServiceNotAvailable, match="queue"):
            store.put(message(b"refused"))
        assert bodies(store) == [b"built"]
    dispatch(store)
    assert bodies(store, queue=1) == [b"not built"]
    assert bodies(store) == [b"built", b"behind it"]
    assert store.put(message(b"again")).queue_offset == 2


@pytest.mark.parametrize("asked", [False, True])
def test_row_2_28_a_broker_goes_on_by_itself_when_there_is_room(asked: bool) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await client.send(b"built")
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        plan = world.disk.plan("create_segment", errno.ENOSPC, "*/consumequeue/T/1/*", times=None)
        await client.send(b"not built", queue=1)
        await world.until(lambda: plan.hits)
        end = broker.store.watermarks.appended
        entry = encode_batch([(b"refused", b"", 0)])
        fields = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        for answer in (
            await client.send(b"refused"),
            await client.ask(320, {**fields, "i": "", "m": "true"}, bytes(entry)),
            await client.ask(36, {"group": "G", "offset": 0, "delayLevel": 0}),
        ):
            assert answer.code == 14
            assert "no room for the queue" in answer.remark
        assert broker.store.watermarks.appended == end
        assert (await client.pull(0, queue=1)).code == 19
        waiting = {"sysFlag": 6, "suspendTimeoutMillis": 60_000}
        held = asyncio.create_task(client.pull(0, queue=1, **waiting))
        await asyncio.sleep(10)
        assert not held.done()
        world.disk.plans.remove(plan)
        if asked:  # by which it is noticed first
            await client.ask(28)
        async with asyncio.timeout(5):
            answer = await held
        assert [frame.body for frame in frames(bytes(answer.body))] == [b"not built"]
        assert (await client.send(b"again")).code == 0
        await broker.close()

    run(body)

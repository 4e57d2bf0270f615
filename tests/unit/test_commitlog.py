"""The CommitLog itself: zeroes and segments ahead of the writer, what is staged, where it ends."""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise
from pathlib import Path

import pytest
from frame_rig import plain_frame
from saturnmq.drills.sim.disk import SimDisk, SimSegment
from saturnmq.runtime.errors import StoreDamaged, SystemBusy
from saturnmq.store.disk import Advice, NativeDisk
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.transient_pool import TransientStorePool
from store_rig import CONFIG, SEGMENT, message, new_disk, open_store

AHEAD = 2048
LOG = "/log"


class Cut(Exception):
    """The process died here."""


def new_log(disk: SimDisk | None = None, **options) -> CommitLog:
    log = CommitLog(disk or new_disk(), LOG, SEGMENT, **{"ahead": AHEAD, **options})
    log.load(clean=True)
    return log


def with_pool(size: int = 2, *, fail_fast: bool = True) -> tuple[CommitLog, TransientStorePool]:
    disk = new_disk()
    pool = TransientStorePool(disk, size, SEGMENT, fail_fast=fail_fast)
    return new_log(disk, pool=pool), pool


def append(log: CommitLog, size: int, fill: bytes = b"x") -> int:
    segment, pos = log.room(size)
    staged = log.staging(size)
    staged[:] = fill * size
    return log.append(segment, pos, staged)


def append_to(log: CommitLog, end: int) -> None:
    append(log, end - log.end)


def read(log: CommitLog, start: int, end: int) -> bytes:
    data = bytearray()
    while start + len(data) < end:
        piece = log.read(start + len(data), end - start - len(data))
        assert piece
        data += piece
    return bytes(data)


def names(log: CommitLog) -> list[int]:
    return [int(e.name) for e in log.series.disk.list(LOG) if not e.is_dir]


Ranges = list[tuple[str, int, int]]


@pytest.fixture
def zeroed(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    """Number of the segment, start and end of what was zeroed since the list was cleared."""
    return recorded("zero", monkeypatch)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    return recorded("flush", monkeypatch)


def recorded(method: str, monkeypatch: pytest.MonkeyPatch) -> Ranges:
    ranges: Ranges = []
    original = getattr(SimSegment, method)

    def record(segment: SimSegment, start: int, end: int) -> None:
        ranges.append((segment.path.rpartition("/")[2].lstrip("0") or "0", start, end))
        original(segment, start, end)

    monkeypatch.setattr(SimSegment, method, record)
    return ranges


def test_a_window_of_zeroes_goes_ahead_of_the_writer(zeroed: Ranges) -> None:
    log = new_log()
    log.prepare_ahead()
    assert (zeroed, names(log)) == ([], []), "nothing is written yet"
    first, second = "0", str(SEGMENT)
    for end, expected in [
        (100, [(first, 100 + AHEAD // 2, 100 + AHEAD)]),  # the writer was faster
        (100, []),
        (1000, [(first, 100 + AHEAD, 1000 + AHEAD)]),
        (1000 + AHEAD, [(first, 1000 + AHEAD + AHEAD // 2, 1000 + 2 * AHEAD)]),
        (5000, [(first, 1000 + 2 * AHEAD, 5000 + AHEAD)]),
        (SEGMENT - AHEAD, [(first, 5000 + AHEAD, SEGMENT)]),
        (SEGMENT - AHEAD + 1, [(second, 0, AHEAD)]),
        (SEGMENT - 8, []),
    ]:
        if end > log.end:
            append_to(log, end)
        zeroed.clear()
        log.prepare_ahead()
        assert zeroed == expected, end
    append(log, 700)
    zeroed.clear()
    log.prepare_ahead()
    assert zeroed == [(second, AHEAD, 700 + AHEAD)]


def test_zeroes_come_in_steps_without_a_hole(zeroed: Ranges, flushed: Ranges) -> None:
    size, ahead = 4 << 20, 2 << 20
    log = CommitLog(new_disk(), LOG, size, ahead=ahead)
    append(log, 100)
    log.prepare_ahead()
    assert len(zeroed) > 1
    assert zeroed[0][1] == 100 + ahead // 2
    assert zeroed[-1][2] == 100 + ahead
    assert flushed == [], "not unless it is wanted"
    assert all(a[2] == b[1] for a, b in pairwise(zeroed))


@pytest.mark.parametrize("seed", range(5))
def test_zeroes_never_cover_what_is_written(seed: int) -> None:
    rng = random.Random(seed)
    log, written = new_log(), bytearray()
    while log.end < 4 * SEGMENT:
        start = log.end
        size = rng.choice([30, 200, 1500, 5000])
        end = append(log, size, bytes([rng.randint(1, 255)]))
        written += read(log, start, end)
        if rng.random() < 0.5:
            log.prepare_ahead()
            assert read(log, 0, end) == written


@pytest.mark.parametrize("sync", [False, True])
def test_zeroes_are_synced_if_they_are_to_be(sync: bool, zeroed: Ranges, flushed: Ranges) -> None:
    log = new_log(sync_zeros=sync)
    append(log, 100)
    log.prepare_ahead()
    assert zeroed != []
    assert flushed == (zeroed if sync else [])


def test_a_failed_sync_of_zeroes_ends_all_writing() -> None:
    disk = new_disk()
    store = open_store(disk, config=dataclasses.replace(CONFIG, sync_zeros=True))
    store.put(message(b"x"))
    disk.plan("flush", pattern="*commitlog*")
    store.prepare_ahead()
    assert "a sync failed: " in (store.failed or "")
    assert store.begin_flush() is None


@pytest.mark.parametrize(
    ("end", "ahead_of_it"),
    [(1, 1), (SEGMENT // 2 - 1, 1), (SEGMENT // 2, 2), (SEGMENT // 2 + 1, 2), (SEGMENT - 8, 2)],
)
def test_from_the_middle_of_a_segment_on_there_are_two_more(end: int, ahead_of_it: int) -> None:
    log = new_log()
    append_to(log, end)
    for _ in range(2):
        log.prepare_ahead()
        assert names(log) == [SEGMENT * n for n in range(1 + ahead_of_it)]
    append(log, 5000)
    assert log.series.end == (2 if end + 5008 > SEGMENT else 1) * SEGMENT
    log.close()
    assert names(log) == [segment.start for segment in log.series.segments]


def test_the_segments_of_a_group_are_not_made_twice(zeroed: Ranges) -> None:
    """While it is written the log's end lies far behind them."""
    log = new_log()
    append(log, SEGMENT // 2)
    log.reserve(SEGMENT + 100)
    assert names(log) == [0, SEGMENT]
    log.write_ahead(SEGMENT, b"g" * 100)
    log.prepare_ahead()
    assert names(log) == [0, SEGMENT, 2 * SEGMENT]
    assert {name for name, _, _ in zeroed} == {"0"}
    log.extend(SEGMENT + 100)
    assert read(log, SEGMENT, SEGMENT + 100) == b"g" * 100
    log.reserve(SEGMENT + 100)
    log.reserve(3 * SEGMENT + 1)
    assert names(log) == [SEGMENT * n for n in range(4)]


def test_a_closed_log_is_not_prepared(zeroed: Ranges) -> None:
    log = new_log()
    append(log, 100)
    log.close()
    log.prepare_ahead()
    assert (zeroed, names(log)) == ([], [0])


@pytest.mark.parametrize("end", ["close", "truncate"])
def test_spare_segments_go_newest_first(end: str) -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, SEGMENT - 100)
    log.prepare_ahead()
    assert names(log) == [0, SEGMENT, 2 * SEGMENT]
    gone: list[str] = []
    disk.step = lambda operation, path: gone.append(path) if operation == "unlink" else None
    log.close() if end == "close" else log.truncate(50)
    assert gone == [f"{LOG}/{start:020d}" for start in (2 * SEGMENT, SEGMENT)]
    assert names(log) == [0]


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (0, [0]),
        (1, [0]),
        (SEGMENT - 1, [0]),
        (SEGMENT, [0, SEGMENT]),  # it goes on there
        (SEGMENT + 1, [0, SEGMENT]),
        (2 * SEGMENT, [0, SEGMENT, 2 * SEGMENT]),
    ],
)
def test_a_cut_leaves_zeroes_behind_it(end: int, left: list[int]) -> None:
    log = new_log()
    for _ in range(5):
        append(log, 5000)
    before = read(log, 0, log.end)
    log.truncate(end)
    assert (log.end, names(log)) == (end, left)
    assert read(log, 0, end) == before[:end]
    for segment in log.series.segments:
        assert not any(segment.view[max(end - segment.start, 0) :])
    log.append_raw(end, b"y")
    assert read(log, 0, end + 1) == before[:end] + b"y"


def test_the_head_of_the_log_is_staged_anew_after_a_cut() -> None:
    log = new_log()
    log.append_raw(0, b"a" * 300)
    append(log, 200, b"b")
    assert log.newest(299) is None
    data, base = log.newest(300) or (b"", -1)
    assert (bytes(data), base) == (b"b" * 200, 300)
    for cut in (lambda: log.truncate(0), log.clear):
        cut()
        assert log.newest(0) is None
        append(log, 100, b"c")
        data, base = log.newest(0) or (b"", -1)
        assert (bytes(data), base) == (b"c" * 100, 0)


@pytest.mark.parametrize("more", [0, 1, 8, 16])
def test_behind_a_frame_there_is_room_for_a_blank(more: int) -> None:
    log = new_log()
    append(log, 5000)
    size = SEGMENT - 5000 - 8 + more
    end = append(log, size, b"y")
    if not more:
        assert (end, names(log)) == (SEGMENT - 8, [0])
    else:
        assert (end, names(log)) == (SEGMENT + size, [0, SEGMENT])
        assert read(log, 5000, 5008) == (SEGMENT - 5000).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"
        assert read(log, SEGMENT, end) == b"y" * size


def test_what_is_staged_is_what_was_appended_last_without_a_break() -> None:
    log = new_log()
    append(log, 100, b"a")
    append(log, 50, b"b")
    data, base = log.newest(149) or (b"", -1)
    assert (bytes(data), base) == (b"a" * 100 + b"b" * 50, 0)
    assert log.newest(150) is None
    log.append_raw(150, b"raw")
    assert log.newest(149) is None
    append(log, 40, b"c")
    append(log, 10, b"C")
    data, base = log.newest(153) or (b"", -1)
    assert (bytes(data), base) == (b"c" * 40 + b"C" * 10, 153)
    log.write_ahead(203, b"group")
    log.extend(208)
    assert log.newest(203) is None
    append(log, 7000, b"d")
    append(log, 2000, b"e")
    data, base = log.newest(SEGMENT) or (b"", -1)
    assert (bytes(data), base) == (b"e" * 2000, SEGMENT)
    assert log.newest(SEGMENT - 1) is None


def test_the_staging_buffer_grows_to_the_longest_batch() -> None:
    size = 2 << 20
    log = CommitLog(new_disk(), LOG, size, ahead=AHEAD)
    places = [append(log, 300 << 10, b"a"), append(log, 300 << 10, b"b")]
    assert log.newest(places[0] - 1) is None, "both do not fit"
    data, base = log.newest(places[0]) or (b"", -1)
    assert (len(data), base) == (300 << 10, places[0])
    append(log, 1 << 20, b"c")
    data, base = log.newest(places[1]) or (b"", -1)
    assert (bytes(data), base) == (b"c" * (1 << 20), places[1])
    assert read(log, 0, log.end) == b"a" * (300 << 10) + b"b" * (300 << 10) + b"c" * (1 << 20)


def test_the_master_s_bytes_go_where_they_belong() -> None:
    log = new_log()
    for offset, size, why in [(100, 1, "begins with a segment"), (SEGMENT - 1, 1, "multiple of")]:
        with pytest.raises(StoreDamaged, match=why):
            log.append_raw(offset, bytes(size))
    log.append_raw(SEGMENT, b"a" * 100)
    assert (log.start, log.end) == (SEGMENT, SEGMENT + 100)
    for offset in (SEGMENT, SEGMENT + 99, SEGMENT + 101):
        with pytest.raises(StoreDamaged, match=f"{offset} offered, this log ends at {log.end}"):
            log.append_raw(offset, b"b")
    with pytest.raises(StoreDamaged, match="would cross the segment's end"):
        log.append_raw(log.end, bytes(SEGMENT - 99))
    log.append_raw(log.end, b"b" * (SEGMENT - 100))
    assert read(log, SEGMENT, 2 * SEGMENT) == b"a" * 100 + b"b" * (SEGMENT - 100)
    assert names(log) == [SEGMENT]
    log.append_raw(2 * SEGMENT, b"c")
    assert names(log) == [SEGMENT, 2 * SEGMENT]


def test_a_read_ends_with_its_segment_and_with_the_log() -> None:
    log = new_log()
    assert log.read(0, 10) is None
    append(log, 5000, b"a")
    append(log, 5000, b"b")
    assert log.end == SEGMENT + 5000
    assert bytes(log.read(10, 20) or b"") == b"a" * 20
    assert len(log.read(SEGMENT - 5, 100) or b"") == 5
    assert len(log.read(SEGMENT, 1 << 30) or b"") == 5000
    assert bytes(log.read(log.end - 1, 10) or b"") == b"b"
    assert log.read(log.end, 10) is None
    buffer = memoryview(bytearray(100))
    assert log.read_into(SEGMENT - 5, buffer) == 5
    assert log.read_into(SEGMENT + 4990, buffer) == 100
    assert bytes(buffer[:10]) == b"b" * 10
    assert log.read_into(2 * SEGMENT, buffer) == 0


def frame(offset: int = 0, size: int = 0, **fields) -> bytes:
    known = {"physical_offset": offset, "queue_offset": 5, "queue_id": 3}
    return plain_frame(size, **known, **fields)


def test_a_frame_is_told_by_its_place_its_size_and_its_queue() -> None:
    log = new_log()
    first = frame(SEGMENT, 300)
    second = bytearray(frame(SEGMENT + 300, SEGMENT - 300))
    second[200] ^= 1  # of its body: the header says what is asked
    log.append_raw(SEGMENT, first + second)
    known = {"offset": SEGMENT, "size": 300, "topic": "T", "queue_id": 3, "queue_offset": 5}
    assert log.is_frame(**known)
    for field, value in [
        ("offset", SEGMENT + 1),
        ("offset", SEGMENT + 300),
        ("size", 299),
        ("size", 301),
        ("size", SEGMENT + 1),
        ("topic", "U"),
        ("queue_id", 2),
        ("queue_offset", 4),
    ]:
        assert not log.is_frame(**{**known, field: value}), (field, value)
    last = {**known, "offset": SEGMENT + 300, "size": SEGMENT - 300}
    assert log.is_frame(**last), "it ends with its segment"
    assert log.is_frame(**{**known, "offset": SEGMENT - 1}), "nobody knows any more"
    assert not log.is_frame(**{**known, "offset": 2 * SEGMENT})


@pytest.mark.parametrize("sys_flag", [0, 0x01, 0x0F, 0x20, 0x10, 0x11, 0x3F])
@pytest.mark.parametrize("stamp", [1_700_000_000_123, -5])
def test_the_store_time_lies_behind_a_host_of_either_length(sys_flag: int, stamp: int) -> None:
    log = new_log()
    data = frame(
        sys_flag=sys_flag,
        born_timestamp=77,
        store_timestamp=stamp,
        born_host=bytes(20 if sys_flag & 0x10 else 8),
        store_host=bytes(20 if sys_flag & 0x20 else 8),
    )
    log.append_raw(0, data)
    assert log.store_time_at(0) == stamp
    assert log.store_time_at(log.end) is None
    log.append_raw(log.end, data[:79])
    assert log.store_time_at(len(data)) is None, "it is not there yet"


def test_every_segment_is_used_as_the_options_say() -> None:
    disk = new_disk()
    log = new_log(disk)
    append(log, 5000)
    advised: list[str] = []
    disk.step = lambda operation, path: advised.append(path) if operation == "advise" else None
    log = new_log(disk, advice=(Advice.RANDOM, Advice.LOCK))
    log.truncate(5000)
    append(log, 5000)
    paths = [segment.file.path for segment in log.series.segments]
    assert advised == [path for path in paths for _ in range(2)]
    assert len(paths) == 2


@pytest.mark.parametrize("clean", [False, True])
def test_after_a_crash_names_that_are_gone_are_so_for_good(clean: bool) -> None:
    disk = new_disk()
    log = new_log(disk)
    for _ in range(2):
        append(log, 5000)

    def die(operation: str, path: str) -> None:
        if operation == "sync_dir":
            raise Cut

    disk.step = die
    with pytest.raises(Cut):
        disk.unlink(f"{LOG}/{SEGMENT:020d}")
    disk.step = None
    again = CommitLog(disk, LOG, SEGMENT, ahead=AHEAD)
    again.load(clean=clean)
    assert (len(disk.durable_paths(LOG)) == 1) is not clean


def test_a_crash_before_the_first_message_left_no_directory(tmp_path: Path) -> None:
    log = CommitLog(NativeDisk(), str(tmp_path / "commitlog"), SEGMENT, ahead=AHEAD)
    log.load(clean=False)
    assert log.series.segments == []


def committed(log: CommitLog, pool: TransientStorePool) -> int:
    ticket = log.commit_ticket()
    ticket.run()
    log.committed_to(ticket.target)
    return pool.free


def content(log: CommitLog, start: int, end: int) -> bytes:
    """Of the files, whatever a buffer has."""
    files = b"".join(bytes(segment.view) for segment in log.series.segments)
    return files[start:end]


def test_a_buffer_is_written_by_commits_and_goes_back_when_all_of_it_is() -> None:
    log, pool = with_pool()
    append(log, 3000, b"a")
    assert (log.committed, log.read(0, 10), content(log, 0, 3000)) == (0, None, bytes(3000))
    assert committed(log, pool) == 1
    assert (log.committed, content(log, 0, 3001)) == (3000, b"a" * 3000 + b"\0")
    append(log, 2000, b"b")
    append(log, 4000, b"c")  # it rolls
    assert pool.free == 0
    assert log.commit_ticket().target == SEGMENT + 4000
    assert [(start, len(data)) for _, start, data in log.commit_ticket().commits] == [
        (3000, SEGMENT - 3000),
        (0, 4000),
    ]
    assert committed(log, pool) == 1, "the second is not full"
    assert content(log, 3000, 5000) == b"b" * 2000
    assert content(log, SEGMENT, log.end) == b"c" * 4000
    assert log.commit_ticket().commits == [] or log.commit_ticket().commits[0][2].nbytes == 0
    log.committed_to(100)
    assert log.committed == SEGMENT + 4000
    log.append_raw(log.end, b"d" * (SEGMENT - 4000))
    assert committed(log, pool) == 2, "it is full now"
    assert content(log, SEGMENT + 4000, 2 * SEGMENT) == b"d" * (SEGMENT - 4000)


def test_a_flush_names_what_is_dirty_in_each_segment() -> None:
    log = new_log()
    for _ in range(3):
        append(log, 5000)
    for flushed, expected in [
        (0, [(0, SEGMENT), (0, SEGMENT), (0, 5000)]),
        (SEGMENT + 100, [(100, SEGMENT), (0, 5000)]),
        (log.end - 1, [(4999, 5000)]),
    ]:
        ticket = log.ticket(flushed, 77)
        assert [(start, end) for _, start, end in ticket.ranges] == expected
        assert (ticket.target, ticket.store_timestamp) == (log.end, 77)
    image = log.series.disk
    log.ticket(SEGMENT + 100, 0).run()
    assert image.platters(f"{LOG}/{2 * SEGMENT:020d}")[:5000] == b"x" * 5000


def test_a_group_needs_as_many_buffers_as_segments() -> None:
    log, pool = with_pool(3)
    append(log, 100)
    assert pool.free == 2
    log.reserve(3 * SEGMENT)
    assert names(log) == [0, SEGMENT, 2 * SEGMENT]
    with pytest.raises(SystemBusy, match="3 buffers of the transient store pool are needed, 2 are"):
        log.reserve(3 * SEGMENT + 1)
    log, _ = with_pool(2, fail_fast=False)
    log.reserve(4 * SEGMENT)
    assert len(names(log)) == 4


def test_a_full_pool_refuses_a_segment_only_if_it_is_to_fail_fast() -> None:
    for fail_fast in (True, False):
        log, pool = with_pool(2, fail_fast=fail_fast)
        append(log, 5000, b"a")
        append(log, 5000, b"b")
        assert pool.free == 0
        if fail_fast:
            with pytest.raises(SystemBusy, match=r"all 2 buffers .* wait to be written"):
                append(log, 5000, b"c")
            assert log.end == SEGMENT + 5000
        else:
            append(log, 5000, b"c")
            assert content(log, 2 * SEGMENT, log.end) == b"c" * 5000, "the file has it at once"
        assert committed(log, pool) >= 1
        append(log, 5000, b"d")
        committed(log, pool)
        assert content(log, log.end - 5000, log.end) == b"d" * 5000


def test_a_cut_gives_the_buffers_behind_it_back() -> None:
    log, pool = with_pool(3)
    for fill in (b"a", b"b", b"c"):
        append(log, 5000, fill)
    assert pool.free == 0
    committed(log, pool)
    assert pool.free == 2
    append(log, 5000, b"d")
    committed(log, pool)
    log.truncate(2 * SEGMENT + 1000)
    assert (pool.free, log.committed) == (3, 2 * SEGMENT + 1000)
    log.truncate(SEGMENT + 1000)
    assert (pool.free, log.committed) == (3, SEGMENT + 1000)
    append(log, 5000, b"e")
    append(log, 5000, b"f")
    committed(log, pool)
    assert content(log, SEGMENT + 1000, SEGMENT + 6000) == b"e" * 5000
    assert pool.free == 2
    log.truncate(2 * SEGMENT)
    assert pool.free == 3, "the segment that begins there stays, its buffer goes"

"""Logs as they lie there: every place of a segment, a gap and an end to the byte."""

from __future__ import annotations

import errno
import itertools
import random
import struct
from typing import Any

import pytest
from frame_rig import plain_frame
from saturnmq.drills.sim.disk import SimDisk, SimSegment
from saturnmq.protocol.frame import (
    BLANK_MAGIC,
    CRC_PREFIX,
    Damage,
    End,
    Frame,
    NeedMore,
)
from saturnmq.store.log.log_files import NOTHING, PAGE, UNREADABLE, Gap, LogReader, SegmentFiles
from store_rig import new_disk

MB = 1 << 20
LOG = "/log"


def frame(at: int, size: int = 100, *, crc_property: bool = False, topic: bytes = b"T") -> bytes:
    """A frame of `size` bytes for the place `at`."""
    return plain_frame(
        size, physical_offset=at, queue_offset=at, crc_property=crc_property, topic=topic
    )


def blank(size: int, claimed: int | None = None) -> bytes:
    return struct.pack(">iI", claimed or size, BLANK_MAGIC).ljust(size, b"\0")


def log_of(*segments: bytes, first: int = 0, size: int = 1000) -> SimDisk:
    disk = new_disk()
    disk.make_dirs(LOG)
    for number, data in enumerate(segments):
        disk.write_file(f"{LOG}/{first + number * size:020d}", data.ljust(size, b"\0"))
    return disk


def files_of(*segments: bytes, first: int = 0, size: int = 1000) -> SegmentFiles:
    return SegmentFiles(log_of(*segments, first=first, size=size), LOG)


def read(reader: LogReader, begin: int) -> tuple[list[tuple[int, int]], list[tuple[int, int, str]]]:
    """The stretches [start, end) and the gaps of what is read from `begin` on."""
    stretches, gaps = [], []
    for part in reader.read(begin):
        if isinstance(part, Gap):
            gaps.append(tuple(part))
        else:
            stretches.append((part.start, part.start + len(part.frames)))
    return stretches, gaps


def break_sectors(disk: SimDisk, *pages: int) -> None:
    """From now on, a read of one of these pages of a file fails."""
    real = disk.open_readonly

    def open_readonly(path: str) -> SimSegment:
        file = real(path)
        whole = file.read_into

        def read_into(pos: int, buffer: memoryview) -> int:
            if any(pos < PAGE * (page + 1) and pos + len(buffer) > PAGE * page for page in pages):
                raise OSError(errno.EIO, "bad sector")
            return whole(pos, buffer)

        file.read_into = read_into
        return file

    disk.open_readonly = open_readonly


def break_once(disk: SimDisk) -> list[tuple[int, int]]:
    """The first read fails; place and size are noted."""
    real = disk.open_readonly
    failed: list[Any] = []

    def open_readonly(path: str) -> SimSegment:
        file = real(path)
        whole = file.read_into

        def read_into(pos: int, buffer: memoryview) -> int:
            if not failed:
                failed.append((pos, len(buffer)))
                raise OSError(errno.EIO, "try again")
            return whole(pos, buffer)

        file.read_into = read_into
        return file

    disk.open_readonly = open_readonly
    return failed


# segments


def test_what_fits_no_log_is_told_and_left_out() -> None:
    disk = new_disk()
    disk.make_dirs(f"{LOG}/deleted")
    sizes = {100: 100, 200: 100, 400: 100, 430: 100, 500: 60, 600: 100, 700: 0}
    for start, size in sizes.items():
        disk.write_file(f"{LOG}/{start:020d}", bytes(size))
    disk.write_file(f"{LOG}/notes", b"mine")
    files = SegmentFiles(disk, LOG)
    assert files.segment_bytes == 100
    assert [segment.start for segment in files.segments] == [100, 200, 400, 500, 600]
    assert (files.start, files.end) == (100, 700)
    assert sorted((odd.path[5:].lstrip("0"), odd.why, odd.harmless) for odd in files.odd) == [
        ("400", "no segment holds 300 to 400", False),
        ("430", "the segment before it reaches to 500", False),
        ("500", "it is 60 bytes long, a segment is 100", False),
        ("700", "it is 0 bytes long, a segment is 100", True),
        ("notes", "its name is no offset", False),
    ]


def test_an_empty_file_is_harmless_only_at_the_end() -> None:
    disk = log_of(b"", b"", b"")
    disk.write_file(f"{LOG}/{1000:020d}", b"")
    files = SegmentFiles(disk, LOG)
    assert [(odd.path[-4:], odd.harmless) for odd in files.odd] == [
        ("1000", False),
        ("2000", False),
    ]
    assert "no segment holds 1000 to 2000" in files.odd[1].why


def test_the_length_of_a_segment_is_the_step_of_most() -> None:
    disk = new_disk()
    disk.make_dirs(LOG)
    files = SegmentFiles(disk, LOG)
    assert (files.segment_bytes, files.start, files.end) == (0, 0, 0)
    assert (files.find(0), files.following(0), files.read(0, 9)) == (None, 0, b"")
    disk.write_file(f"{LOG}/{0:020d}", b"")
    assert SegmentFiles(disk, LOG).segment_bytes == 0
    disk.lose(f"{LOG}/{0:020d}")
    disk.write_file(f"{LOG}/{500:020d}", bytes(300))
    files = SegmentFiles(disk, LOG)
    assert (files.segment_bytes, files.start, files.end) == (300, 500, 800)
    assert SegmentFiles(disk, LOG, 400).end == 900
    for start in (1500, 1700, 1900):
        disk.write_file(f"{LOG}/{start:020d}", bytes(300))
    assert SegmentFiles(disk, LOG).segment_bytes == 200


def test_every_place_of_a_log_is_in_its_segment_or_in_none() -> None:
    disk = log_of(b"a" * 1000, b"", b"c" * 1000, first=500)
    disk.lose(f"{LOG}/{1500:020d}")
    files = SegmentFiles(disk, LOG)
    assert files.segment_bytes == 2000
    files = SegmentFiles(disk, LOG, 1000)
    starts = {0: None, 499: None, 500: 500, 1499: 500, 1500: None, 2499: None}
    starts |= {2500: 2500, 3499: 2500, 3500: None}
    for offset, start in starts.items():
        found = files.find(offset)
        assert (found and found.start) == start
        path = f"{LOG}/{start:020d}" if start else LOG
        assert files.place(offset) == (path, offset - (start or 0))
    following = [(0, 500), (499, 500), (500, 2500), (2499, 2500), (2500, 3500), (3500, 3500)]
    assert [(at, files.following(at)) for at, _ in following] == following
    assert files.read(1490, 20) == b"a" * 10
    assert files.read(1500, 20) == b""
    assert files.read(2500, 20) == b"c" * 20
    assert list(files.written(0)) == [(500, 1500), (2500, 3500)]
    assert list(files.written(1499)) == [(1499, 1500), (2500, 3500)]
    assert list(files.written(1500)) == [(2500, 3500)]
    files.keep_only(500)
    assert (files.start, files.end, files.find(2500), files.following(600)) == (
        500,
        1500,
        None,
        1500,
    )
    assert list(files.written(600)) == [(600, 1500)]


@pytest.mark.parametrize(
    ("offset", "size", "count"),
    [
        *[(0, 3 * PAGE, PAGE), (10, 3 * PAGE, PAGE - 10), (PAGE - 1, 2, 1), (PAGE, 1, 0)],
        *[(2 * PAGE - 1, 2, 0), (2 * PAGE, 9, 9), (2 * PAGE + 10, 9 * PAGE, 2 * PAGE - 10)],
        *[(2 * PAGE, 2 * PAGE + 1, 2 * PAGE), (4 * PAGE, 1, 0)],
    ],
)
def test_a_read_ends_before_a_bad_sector_and_goes_on_behind_it(
    offset: int, size: int, count: int
) -> None:
    data = random.Random(1).randbytes(6 * PAGE)
    disk = log_of(data, size=6 * PAGE)
    break_sectors(disk, 1, 4)
    assert SegmentFiles(disk, LOG).read(offset, size) == data[offset : offset + count]


def test_a_read_that_fails_only_once_gives_all_of_it() -> None:
    data = random.Random(1).randbytes(3 * PAGE)
    disk = log_of(data, size=3 * PAGE)
    failures = break_once(disk)
    assert SegmentFiles(disk, LOG).read(10, 3 * PAGE - 20) == data[10:-10]
    assert failures == [(10, 3 * PAGE - 20)]


def test_behind_a_bad_sector_a_file_may_be_shorter_than_its_segment() -> None:
    disk = new_disk()
    disk.make_dirs(LOG)
    disk.write_file(f"{LOG}/{0:020d}", bytes(PAGE) + b"x" * 10)
    break_sectors(disk, 3)
    assert SegmentFiles(disk, LOG, 4 * PAGE).read(5, 4 * PAGE) == bytes(PAGE - 5) + b"x" * 10


def test_one_file_is_open_at_a_time() -> None:
    disk = log_of(b"a" * 1000, b"b" * 1000)
    opened, closed = [], []
    real = disk.open_readonly

    def open_readonly(path: str) -> SimSegment:
        file = real(path)
        opened.append(path)
        file.close = lambda: closed.append(path)
        return file

    disk.open_readonly = open_readonly
    files = SegmentFiles(disk, LOG)
    files.read(0, 1), files.read(5, 1)
    assert (len(opened), len(closed)) == (1, 0)
    files.read(1000, 1)
    assert closed == opened[:1]
    files.close()
    files.close()
    assert closed == opened


# frames


def chained(first: int, *sizes: int) -> bytes:
    ends = itertools.accumulate(sizes, initial=first)
    return b"".join(frame(at, size) for at, size in zip(ends, sizes, strict=False))


def three_segments() -> list[bytes]:
    """100 to 900 is frames, a BLANK behind them; a segment to the byte; the end at 2300."""
    return [
        chained(0, 100, 200, 200, 400) + blank(100),
        chained(1000, 500, 500),
        chained(2000, 100, 200),
    ]


def test_a_sound_log_is_read_to_its_end() -> None:
    reader = LogReader(files_of(*three_segments()))
    assert read(reader, 0) == ([(0, 900), (1000, 2000), (2000, 2300)], [])
    assert (reader.end, reader.stopped_by, reader.leftover()) == (2300, NOTHING, None)
    assert read(reader, 500) == ([(500, 900), (1000, 2000), (2000, 2300)], [])


def test_a_full_log_ends_with_its_last_segment() -> None:
    reader = LogReader(files_of(*three_segments()[:2]))
    assert read(reader, 0) == ([(0, 900), (1000, 2000)], [])
    assert (reader.end, reader.stopped_by, reader.leftover()) == (2000, "", None)
    empty = LogReader(files_of(b"", b"", first=3000))
    assert (empty.end, read(empty, 3000)) == (3000, ([], []))
    assert (empty.end, empty.stopped_by) == (3000, NOTHING)


@pytest.mark.parametrize("limit", [0, 100, 500, 900, 1000, 1500, 2300, 2301, 5000])
def test_a_limit_is_an_end_like_that_of_the_files(limit: int) -> None:
    segments = three_segments()
    reader = LogReader(files_of(*segments), limit=limit)
    stretches, gaps = read(reader, 0)
    ends = [(0, min(limit, 900)), (1000, min(limit, 2000)), (2000, min(limit, 2300))]
    assert stretches == [(start, end) for start, end in ends if start < end]
    assert gaps == []
    assert reader.end == min(limit, 2300)


def damaged(segments: list[bytes], *places: int) -> list[bytes]:
    found = [bytearray(data.ljust(1000, b"\0")) for data in segments]
    for place in places:
        found[place // 1000][place % 1000] ^= 1
    return [bytes(data) for data in found]


@pytest.mark.parametrize(
    ("places", "stretches", "gap"),
    [
        ([90], [(100, 900), (1000, 2000), (2000, 2300)], (0, 100)),
        ([190], [(0, 100), (300, 900), (1000, 2000), (2000, 2300)], (100, 300)),
        ([190, 390], [(0, 100), (500, 900), (1000, 2000), (2000, 2300)], (100, 500)),
        ([590], [(0, 500), (1000, 2000), (2000, 2300)], (500, 1000)),  # the BLANK goes with it
        ([905], [(0, 900), (1000, 2000), (2000, 2300)], (900, 1000)),
        ([1501], [(0, 900), (1000, 1500), (2000, 2300)], (1500, 2000)),
        ([590, 1090, 1590], [(0, 500), (2000, 2300)], (500, 2000)),
    ],
)
def test_a_gap_reaches_to_the_next_frame(places, stretches, gap) -> None:
    segments = damaged(three_segments(), *places)
    reader = LogReader(files_of(*segments))
    found, gaps = read(reader, 0)
    assert (found, [gap[:2] for gap in gaps]) == (stretches, [gap])
    assert (reader.end, reader.stopped_by) == (2300, NOTHING)


@pytest.mark.parametrize("limit", [301, 303, 304, 307, 308, 320])
def test_a_limit_within_a_frame_ends_the_log_before_it(limit: int) -> None:
    """As a checkpoint with a wrong mark may say."""
    reader = LogReader(files_of(*three_segments()), limit=limit)
    stretches, gaps = read(reader, 100)
    assert stretches == [(100, 300)]
    assert [gap[:2] for gap in gaps] == [(300, limit)]


@pytest.mark.parametrize("limit", [500, 700, 999, 1000])
def test_a_gap_ends_at_the_limit(limit: int) -> None:
    """The next frame may lie behind it: frames of a log that ends at 500 are damaged, and behind
    it one was not written, and one was."""
    reader = LogReader(files_of(*damaged(three_segments(), 390, 590)), limit=limit)
    stretches, gaps = read(reader, 0)
    assert (stretches, [gap[:2] for gap in gaps]) == ([(0, 300)], [(300, limit)])
    assert reader.end == limit


def test_damage_that_no_frame_follows_is_the_end() -> None:
    reader = LogReader(files_of(*damaged(three_segments(), 2190)))
    assert read(reader, 0) == ([(0, 900), (1000, 2000), (2000, 2100)], [])
    assert reader.end == 2100
    assert "CRC" in reader.stopped_by
    assert reader.leftover() == 2103  # its length is below 256


@pytest.mark.parametrize("cut_from", [0, 99, 100, 101, 300, 3000])
def test_what_nobody_was_promised_ends_at_the_first_damage(cut_from: int) -> None:
    files = files_of(*damaged(three_segments(), 190))
    reader = LogReader(files, cut_from=cut_from)
    stretches, gaps = read(reader, 0)
    if cut_from <= 100:
        assert (stretches, gaps, reader.end) == ([(0, 100)], [], 100)
        assert "CRC" in reader.stopped_by
    else:
        assert (len(stretches), [gap[:2] for gap in gaps]) == (4, [(100, 300)])


@pytest.mark.parametrize("claimed", [8, 99, 101, 200])
def test_a_blank_fills_its_segment(claimed: int) -> None:
    first, _, third = three_segments()
    reader = LogReader(files_of(first, chained(1000, 400, 500) + blank(100, claimed), third))
    why = f"a BLANK of {claimed} bytes, 100 left"
    assert read(reader, 0) == ([(0, 900), (1000, 1900), (2000, 2300)], [(1900, 2000, why)])


def test_a_blank_without_frames_before_it() -> None:
    reader = LogReader(files_of(blank(1000), three_segments()[1]))
    assert read(reader, 0) == ([(0, 0), (1000, 2000)], [])


@pytest.mark.parametrize("size", [500, 501])
def test_a_frame_ends_with_its_segment_at_the_latest(size: int) -> None:
    whole = chained(0, 500, size)
    reader = LogReader(files_of(whole[:1000], chained(1000, 200)))
    stretches, gaps = read(reader, 0)
    if size == 500:
        assert (stretches, gaps) == ([(0, 1000), (1000, 1200)], [])
    else:
        why = f"a frame of {size} bytes ends behind its segment"
        assert (stretches, gaps) == ([(0, 500), (1000, 1200)], [(500, 1000, why)])


@pytest.mark.parametrize("size", [4 * MB - 100, 4 * MB, 4 * MB + 1, 5 * MB])
def test_a_frame_may_be_longer_than_what_is_read_at_once(size: int) -> None:
    data = chained(0, 100, size, 100)
    reader = LogReader(files_of(data, chained(6 * MB, 100), size=6 * MB))
    stretches, gaps = read(reader, 0)
    assert [start for start, _ in stretches[1:]] == [end for _, end in stretches[:-2]] + [6 * MB]
    assert (stretches[0][0], stretches[-1][1], reader.end) == (0, 6 * MB + 100, 6 * MB + 100)
    assert [gap[:2] for gap in gaps] == [(len(data), 6 * MB)]  # no BLANK behind the frames
    behind = LogReader(files_of(data[:-50], chained(6 * MB, 100), size=6 * MB))
    assert [gap[:2] for gap in read(behind, 0)[1]] == [(100 + size, 6 * MB)]


def test_a_frame_longer_than_what_is_read_at_once_may_fill_its_segment() -> None:
    reader = LogReader(files_of(chained(0, 6 * MB), chained(6 * MB, 100), size=6 * MB))
    assert read(reader, 0) == ([(0, 6 * MB), (6 * MB, 6 * MB + 100)], [])


def test_a_gap_may_be_a_single_byte() -> None:
    reader = LogReader(files_of(frame(0) + b"\0" + frame(101) + frame(201)))
    why = "magic 0x64daa320 is unknown"  # a byte too early
    assert read(reader, 0) == ([(0, 100), (101, 301)], [(100, 101, why)])


def test_a_whole_frame_that_no_queue_can_have_is_a_gap() -> None:
    reader = LogReader(files_of(frame(0) + frame(100, topic=b"\xff") + frame(200)))
    why = "topic is not UTF-8"
    assert read(reader, 0) == ([(0, 100), (200, 300)], [(100, 200, why)])


def test_a_missing_segment_is_a_gap() -> None:
    disk = log_of(*three_segments())
    disk.lose(f"{LOG}/{1000:020d}")
    reader = LogReader(SegmentFiles(disk, LOG, 1000))
    assert read(reader, 0) == ([(0, 900), (2000, 2300)], [(1000, 2000, UNREADABLE)])


def test_a_bad_sector_is_a_gap() -> None:
    size = 4 * PAGE
    data = chained(0, *[512] * 30) + blank(1024)
    disk = log_of(data, chained(size, 100), size=size)
    break_sectors(disk, 1)
    stretches, gaps = read(LogReader(SegmentFiles(disk, LOG)), 0)
    # the same page of the second segment is empty, but nobody can know that
    assert stretches == [(0, PAGE), (2 * PAGE, 15360), (size, size + 100)]
    assert gaps == [(PAGE, 2 * PAGE, UNREADABLE)]


# the search for the next frame


@pytest.mark.parametrize("before", range(-1, 9))
def test_a_frame_is_found_across_the_border_of_two_reads(before: int) -> None:
    at = MB + 500
    files = files_of(bytes(at) + frame(at), size=2 * MB)
    reader = LogReader(files)
    assert reader.next_frame(at + before - MB) == at  # `before` bytes of it end the first read


def test_a_search_begins_where_it_is_told_to() -> None:
    reader = LogReader(files_of(chained(0, 100, 300, 200)))
    found = [
        (offset, reader.next_frame(offset)) for offset in (*range(106), *range(390, 410), 1000)
    ]
    nexts = {offset: next((s for s in (0, 100, 400) if s >= offset), None) for offset, _ in found}
    assert dict(found) == nexts


def test_what_only_looks_like_a_frame_is_passed_over() -> None:
    sound, moved = frame(600), frame(301)
    torn = bytearray(frame(100))
    torn[95] ^= 1
    data = bytes(100) + bytes(torn) + bytes(100) + moved + bytes(200) + sound
    assert LogReader(files_of(data)).next_frame(1) == 600


def test_a_frame_of_a_long_topic_is_found_like_others() -> None:
    files = files_of(bytes(100) + frame(100, 400, topic=b"T" * 200) + frame(500))
    assert LogReader(files).next_frame(1) == 100


@pytest.mark.parametrize("page", [0, 1, 2])
@pytest.mark.parametrize("start", [0, 10, PAGE - 3, PAGE - 1])
def test_a_search_goes_on_behind_bad_sectors(page: int, start: int) -> None:
    at = (page + 1) * PAGE
    disk = log_of(bytes(at) + frame(at), size=8 * PAGE)
    break_sectors(disk, *range(page + 1))
    assert LogReader(SegmentFiles(disk, LOG)).next_frame(start) == at


def test_a_search_ends_with_the_files_whatever_the_disk_gives() -> None:
    disk = log_of(b"", size=4 * PAGE)
    break_sectors(disk, 0, 1, 2, 3)
    assert LogReader(SegmentFiles(disk, LOG)).next_frame(0) is None


# one frame


def test_what_begins_at_a_place_is_told() -> None:
    tight = chained(0, 400, 600)
    reader = LogReader(files_of(tight, chained(1000, 100), size=1000))
    outcome = reader.frame_at(400)
    assert isinstance(outcome, Frame)
    assert (outcome.size, outcome.physical_offset) == (600, 400)
    assert isinstance(reader.frame_at(1), Damage)
    assert reader.frame_at(1100) == End()
    assert reader.frame_at(2000) == End(), "no segment holds it"
    moved = LogReader(files_of(bytes(300) + frame(200)))
    assert moved.frame_at(300) == Damage("frame says offset 200, it lies at 300")
    assert moved.next_frame(1) is None


@pytest.mark.parametrize("size", [PAGE, PAGE + 1, 3 * PAGE - 100, 3 * PAGE - 99])
def test_a_long_frame_is_read_as_far_as_its_segment_goes(size: int) -> None:
    files = files_of(chained(0, 100, size)[: 3 * PAGE], b"", size=3 * PAGE)
    outcome = LogReader(files).frame_at(100)
    if 100 + size <= 3 * PAGE:
        assert isinstance(outcome, Frame)
        assert outcome.size == size
    else:
        assert outcome == NeedMore(size)


def test_a_frame_needs_the_checksum_of_its_crc_property() -> None:
    data = bytearray(frame(100, 200, crc_property=True))
    assert CRC_PREFIX in data
    data[40] ^= 1  # the store time, of which the body's checksum says nothing
    reader = LogReader(files_of(bytes(100) + data + frame(300)))
    assert reader.next_frame(1) == 300


# behind the end


@pytest.mark.parametrize("at", [2300, 2301, 2999])
def test_the_first_byte_behind_the_end_is_told(at: int) -> None:
    segments = three_segments()
    segments[2] = segments[2].ljust(at - 2000, b"\0") + b"\1"
    reader = LogReader(files_of(*segments))
    read(reader, 0)
    assert (reader.end, reader.leftover()) == (2300, at)


def test_the_first_byte_behind_the_end_may_lie_far_behind_it() -> None:
    for at in (MB + 99, MB + 100, 2 * MB - 1, 2 * MB + 5):
        data = frame(0).ljust(at, b"\0") + b"\1"
        disk = log_of(data[: 2 * MB], data[2 * MB :], size=2 * MB)
        reader = LogReader(SegmentFiles(disk, LOG))
        read(reader, 0)
        assert reader.leftover() == at

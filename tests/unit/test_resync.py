"""Behind damage: every place at which a log can be read again, to the byte."""

from __future__ import annotations

import struct

import pytest
from frame_rig import plain_frame
from saturnmq.protocol.frame import BLANK_MAGIC, MAGIC_V1
from saturnmq.store.log import resync
from saturnmq.store.log.resync import next_frame
from saturnmq.store.log.segments import SegmentSeries
from store_rig import new_disk

SEGMENT = 1000
FIRST = 3000  # a log whose first segments are deleted


def frame(at: int, size: int, topic: bytes = b"T") -> bytes:
    return plain_frame(size, physical_offset=at, topic=topic)


def blank(size: int) -> bytes:
    return struct.pack(">iI", size, BLANK_MAGIC).ljust(size, b"\0")


def series_of(*segments: bytes) -> SegmentSeries:
    disk = new_disk()
    disk.make_dirs("/log")
    for number, data in enumerate(segments):
        path = f"/log/{FIRST + number * SEGMENT:020d}"
        disk.write_file(path, data.ljust(SEGMENT, b"\0"))
    series = SegmentSeries(disk, "/log", SEGMENT)
    series.load()
    return series


@pytest.mark.parametrize("window", [9, 64, 100, 8 << 20])
def test_each_frame_and_blank_and_segment_is_found_from_wherever(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resync, "_WINDOW", window)
    long_topic = frame(3157, 343, b"T" * 200)
    first = frame(3000, 100) + bytes(57) + long_topic + frame(3500, 492) + blank(8)
    series = series_of(first, bytes(300) + frame(4300, 700), b"")
    places = [3000, 3157, 3500, 3992, 4000, 4300, 5000]
    for offset in [*range(3000, 3170), *range(3490, 3502), *range(3985, 4305), 4999, 5000, 5999]:
        expected = next((place for place in places if place > offset), None)
        assert next_frame(series, offset, 6000) == expected
    assert next_frame(series, 6000, 9000) is None
    assert next_frame(series, 2000, 9000) is None, "no segment holds it"


@pytest.mark.parametrize(
    ("limit", "found"), [(3156, None), (3157, None), (3158, 3157), (3500, 3157), (9000, 3157)]
)
def test_nothing_is_found_at_the_limit_or_behind_it(limit: int, found: int | None) -> None:
    series = series_of(bytes(157) + frame(3157, 343) + frame(3500, 100))
    assert next_frame(series, 3000, limit) == found


@pytest.mark.parametrize(("limit", "found"), [(4000, None), (4001, 4000)])
def test_a_segment_begins_before_the_limit(limit: int, found: int | None) -> None:
    assert next_frame(series_of(b"", b""), 3500, limit) == found


@pytest.mark.parametrize("size", [0, 7, 8, 150])
def test_a_file_that_became_shorter_holds_nothing_behind_its_end(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = series_of(bytes(200) + frame(3200, 300), b"")
    file = series.find(3000).file
    whole = file.read
    monkeypatch.setattr(file, "read", lambda pos, n: whole(pos, max(0, min(n, size - pos))))
    assert next_frame(series, 3000, 9000) == 4000


def test_what_only_looks_like_a_frame_or_a_blank_is_passed_over() -> None:
    magic = struct.pack(">I", MAGIC_V1)
    torn = bytearray(frame(3200, 100))
    torn[95] ^= 1
    pieces = {
        3010: struct.pack(">i", 7) + magic,  # no frame is so short
        3050: struct.pack(">i", 951) + magic,  # it would end behind the segment
        3100: frame(3101, 95),  # it lies elsewhere
        3200: bytes(torn),
        3310: blank(80),  # it ends before its segment
        3400: struct.pack(">iI", 601, BLANK_MAGIC),
        3500: frame(3500, 500),
    }
    segment = bytearray(SEGMENT)
    for place, data in pieces.items():
        segment[place - FIRST : place - FIRST + len(data)] = data
    assert next_frame(series_of(bytes(segment)), 3000, 9000) == 3500

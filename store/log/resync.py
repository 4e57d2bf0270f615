"""Resync: finds the place behind damage where the log can be read again (docs/guarantees.md I11).

Nothing between two frames says where the next one begins, so every place that holds a magic number
is tried: a frame counts when its physical offset is its place and its checksums hold, a BLANK when
it ends with its segment. Such a place inside the body of another message is not found: physical
offset and checksum would have to be forged to match it.
"""

from __future__ import annotations

from collections.abc import Iterator

from saturnmq.protocol.frame import (
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    SIZE,
    Blank,
    Frame,
    decode_frame,
    size_of,
)
from saturnmq.store.log.segments import Segment, SegmentSeries
from saturnmq.store.reading import OF_LOG, read

_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, BLANK_MAGIC))
_WINDOW = 8 << 20


def next_frame(series: SegmentSeries, offset: int, limit: int) -> int | None:
    """The start of the next valid frame, BLANK or segment: behind `offset`, before
    `limit`. StoreDamaged: the disk cannot be read."""
    offset += 1
    while offset < min(limit, series.end):
        segment = series.find(offset)
        if segment is None:
            return None
        if offset == segment.start:
            return offset
        for place in _magics(segment, offset):
            if place >= limit:
                return None
            if _valid(segment, place):
                assert place >= offset, f"{place} lies before {offset}"
                return place
        offset = segment.end
    return None


def _magics(segment: Segment, offset: int) -> Iterator[int]:
    """Places in the log whose second four bytes are a magic number, rising."""
    while offset < segment.end:
        size = min(_WINDOW, segment.end - offset)
        data = read(segment.file, offset - segment.start, size, OF_LOG)
        found = []
        for magic in _MAGICS:
            at = data.find(magic, MAGIC_AT)
            while at >= 0:
                found.append(offset + at - MAGIC_AT)
                at = data.find(magic, at + 1)
        yield from sorted(found)
        if offset + len(data) >= segment.end or len(data) <= BLANK_BYTES:
            return
        offset += len(data) - (BLANK_BYTES - 1)  # a magic number may lie across two windows


def _valid(segment: Segment, offset: int) -> bool:
    at = offset - segment.start
    assert 0 <= at < segment.end - segment.start, f"{offset} is no place in {segment.start}"
    size = size_of(read(segment.file, at, SIZE.size, OF_LOG).ljust(SIZE.size, b"\0"))
    if not BLANK_BYTES <= size <= segment.end - offset:
        return False
    outcome = decode_frame(read(segment.file, at, size, OF_LOG), 0, size, verify=True)
    if isinstance(outcome, Blank):
        return offset + outcome.size == segment.end
    return isinstance(outcome, Frame) and outcome.physical_offset == offset

"""Damage in the middle of a log, and its repair in place with bytes from another node.

A damaged range begins where a frame should begin and none is sound, and ends where the next sound
one begins. Sound is a frame whose fields fit, whose own offset is its place and whose body has its
checksum; RocketMQ's frames have none over the rest. Another node whose frames are sound there has
bytes that fit exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

from saturnmq.protocol.kernels import Scan, ScanStatus, scan_frames
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.log_files import Gap, LogReader, SegmentFiles


def damaged_ranges(commitlog: CommitLog, start: int, end: int, limit: int) -> list[tuple[int, int]]:
    """The damaged ranges that have a part in [start, end), of a log whose frames end at `limit`.
    They are whole, and so may begin before and end behind. Blocking, reads from the beginning of
    the segment that holds `start`.

    OSError: a file cannot be opened.
    """
    start, end = max(start, commitlog.start), min(end, limit)
    if start >= end:
        return []
    size = commitlog.segment_bytes
    files = SegmentFiles(commitlog.series.disk, commitlog.series.directory, size)
    reader = LogReader(files, limit=limit, index=False)
    found = []
    try:
        for piece in reader.read(start - start % size):
            if piece.start >= end:
                break
            if isinstance(piece, Gap) and piece.end > start:
                found.append((piece.start, piece.end))
        else:
            if reader.end < end:
                found.append((reader.end, limit))
    finally:
        files.close()
    for first, last in found:
        assert first < last <= limit, f"damage from {first} to {last} in a log to {limit}"
    return found


def check_repair(
    commitlog: CommitLog, offset: int, data: memoryview, limit: int, delays_ms: tuple[int, ...]
) -> list[Scan]:
    """Blocking: what these bytes hold, segment by segment, if they are whole, sound frames that fit
    a damaged range exactly. StoreDamaged: they are not."""
    end = offset + len(data)
    damaged = damaged_ranges(commitlog, offset, end, limit)
    if damaged != [(offset, end)]:
        told = ", ".join(f"{first} to {last}" for first, last in damaged) or "nothing"
        raise StoreDamaged(
            f"{offset} to {end} is no damaged range of this log, {told} is damaged there: ask for "
            "the bytes of such a range"
        )
    size = commitlog.segment_bytes
    return [_whole(at, part, size, delays_ms) for at, part in _parts(offset, data, size)]


def _parts(offset: int, data: memoryview, segment_bytes: int) -> Iterator[tuple[int, memoryview]]:
    """`data` by the segments that it lies in."""
    while data:
        room = segment_bytes - offset % segment_bytes
        yield offset, data[:room]
        offset, data = offset + room, data[room:]


def _whole(offset: int, data: memoryview, segment_bytes: int, delays_ms: tuple[int, ...]) -> Scan:
    assert 0 < len(data) <= segment_bytes - offset % segment_bytes, (offset, len(data))
    scan = scan_frames(data, 0, len(data), offset, verify_crc=True, index=False, delay_ms=delays_ms)
    end = offset + len(data)
    if scan.next_pos != len(data) or (scan.status == ScanStatus.BLANK and end % segment_bytes):
        raise StoreDamaged(
            f"the bytes offered for {offset} to {end} are no whole, sound frames: they end at "
            f"{offset + scan.next_pos} ({scan.why or scan.status})"
        )
    return scan

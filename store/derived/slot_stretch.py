"""The slots of a queue's files that a start reads: few calls of the disk, however it asks.

A start looks at the files of thousands of queues, most of them short. Used by `consumequeue.py`.
"""

from __future__ import annotations

from saturnmq.store.log.segments import Segment
from saturnmq.store.reading import OF_DERIVED, read

_STRETCH, _SHORT = 800, 32  # slots

Written = list[tuple[Segment, list[tuple[int, int]]]]
"""Of each segment the ranges that may hold something other than zeros."""


def end_of(written: Written, unit: int) -> int:
    """The number of the first slot behind all that may hold something."""
    for segment, ranges in reversed(written):
        if ranges:
            return -(-(segment.start + ranges[-1][1]) // unit)
    return written[0][0].start // unit if written else 0


class SlotStretch:
    """The slots before `end` that were read last: of a short queue, all of them at once."""

    def __init__(self, end: int, unit: int) -> None:
        self._unit = unit
        self._most = _STRETCH * unit
        self._end = end * unit
        self._start = self._size = 0
        self._data = b""  # behind it nothing but zeros

    def used_up_to(self, segment: Segment, high: int) -> int:
        """Before anything else is read: the number of the first slot that is empty, of a queue that
        is as short as that; `high`, of a longer one."""
        size = high * self._unit - segment.start
        if size > min(self._most, segment.file.size):
            return high
        self.read(segment, 0, size)
        self._data = self._data.rstrip(b"\0")
        # An entry has a size: so many zeros begin in the hash before an empty slot, or are it.
        hole = self._data.find(bytes(self._unit))
        end = segment.start + (len(self._data) if hole < 0 else hole)
        return -(-end // self._unit)

    @property
    def is_short(self) -> bool:
        """Whether the file may be kept for each of thousands of queues."""
        return len(self._data) <= _SHORT * self._unit

    def read(self, segment: Segment, at: int, size: int) -> bytes:
        """As `read` of the segment's file."""
        first = segment.start + at - self._start
        if not 0 <= first <= self._size - size:
            begin = at - at % self._most
            most = min(begin + self._most, self._end - segment.start, segment.file.size)
            stop = max(at + size, most)
            self._data = read(segment.file, begin, stop - begin, OF_DERIVED)
            self._start, self._size = segment.start + begin, stop - begin
            first = at - begin
        return self._data[first : first + size].ljust(size, b"\0")

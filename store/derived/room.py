"""Room: how far a file, which has its full length from the beginning, has its place on the disk.

RocketMQ wants files of full length, and most of thousands of queue files hold little. So room is
made in steps ahead of the writer, in a thread. The writer makes any room that is still missing when
it comes: it never writes to a sparse part, where a full disk is a SIGBUS.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from saturnmq.store.disk import Disk

STEP = 1 << 20  # a stream of small messages fills 64 KiB in some milliseconds
FIRST = 4 << 10  # as much again as the file has, up to a step: most queues of many hold little
_BLOCK = 4096


class MadeAhead(Protocol):
    """Something that is made before it is needed."""

    def make_next(self) -> None:
        """Blocking: make it."""


class Rooms:
    """The room of the files of one store, and whatever else is made ahead of its writers."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        # Room is made by one thread at a time. Where the file system cannot do it the C library
        # writes zeros over zeros, and a writer must not come between.
        self.mutex = disk.mutex()
        self.waiting: list[MadeAhead] = []  # for their next step

    def make_ahead(self) -> None:
        """Blocking, beside the writers: the next step of all that wait for it. OSError: there is no
        room now; the writer will see, or ask again."""
        while self.waiting:
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, with its topic
                self.waiting.pop().make_next()


class Room:
    """The room of one file; the part before `known` has its place on the disk."""

    __slots__ = ("_end", "_path", "_rooms", "_size", "_waits", "begin", "enough")

    def __init__(self, rooms: Rooms, path: str, size: int, known: int = 0) -> None:
        assert 0 <= known <= size, f"{known} of {size} bytes have their place"
        self._rooms = rooms
        self._path = path
        self._size = size
        self.begin, self._end = 0, known  # all between them has its place
        self._waits = False
        self.enough = self._low()  # up to here nothing need be claimed

    def claim(self, start: int, end: int) -> None:
        """Have room for [start, end), which is about to be written. OSError: there is none."""
        assert 0 <= start <= end <= self._size, f"{start} to {end} of {self._size} bytes"
        if end > self._end or start < self.begin:
            with self._rooms.mutex:
                if not self.begin <= start <= self._end:
                    self.begin = self._end = start
                self._make(end)
        if end > self.enough and not self._waits:
            self._waits = True
            self._rooms.waiting.append(self)

    def make_next(self) -> None:
        """Blocking, beside `claim`."""
        self._waits = False
        with self._rooms.mutex:
            self._make(self._end + 1)

    def _make(self, end: int) -> None:
        if self._end < end <= self._size:
            stop = end + min(max(end, FIRST), STEP)
            stop = min(stop + -stop % _BLOCK, self._size)
            self._rooms.disk.make_room(self._path, self._end, stop)
            assert end <= stop <= self._size, f"room up to {stop}, asked for {end}"
            self._end = stop
            self.enough = self._low()

    def _low(self) -> int:
        """The offset behind which the next step is due: half of the last one is used up."""
        if self._end == self._size:
            return self._size
        return max(self._end - STEP // 2, 2 * self._end // 3)

"""Room: how far a file, which has its full length from the beginning, has its place on the disk.

RocketMQ wants files of full length, and most of thousands of queue files hold little. So room is
made in steps ahead of the writer, in a thread. What is still missing when the writer comes is made
then: it never writes to a sparse part, where a full disk is a SIGBUS.
"""

from __future__ import annotations

import contextlib

from saturnmq.store.disk import Disk

STEP = 64 << 10
FIRST = 4 << 10  # as much again as the file has, up to a step: most queues of many hold little
_BLOCK = 4096


class Rooms:
    """Those of the files of one store."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.waiting: list[Room] = []  # for their next step

    def make_ahead(self) -> None:
        """Blocking, beside the writers: the next step of all that wait for it. OSError: there is no
        room now; the writer will see, or ask again."""
        while self.waiting:
            room = self.waiting.pop()
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, with its topic
                room.make_next()


class Room:
    """That of one file. What lies before `known` bytes has its place."""

    __slots__ = ("_ahead", "_begin", "_end", "_path", "_rooms", "_size", "_waits")

    def __init__(self, rooms: Rooms, path: str, size: int, known: int = 0) -> None:
        self._rooms = rooms
        self._path = path
        self._size = size
        self._begin, self._end = 0, known  # all between them has its place
        self._ahead = (0, 0)  # and all between these, which a thread sets
        self._waits = False

    def claim(self, start: int, end: int) -> None:
        """Have room for [start, end), which is about to be written. OSError: there is none."""
        if not self._begin <= start <= self._end:
            self._begin = self._end = start
        if end > self._end:
            begin, stop = self._ahead
            if begin <= self._end < stop:
                self._end = stop
        if end > self._end:
            stop = self._next(end)
            self._rooms.disk.make_room(self._path, self._end, stop)
            self._end = stop
        left = self._end - end
        if 2 * left < min(STEP, end) and self._end < self._size and not self._waits:
            self._waits = True
            self._rooms.waiting.append(self)

    def make_next(self) -> None:
        """Blocking, beside `claim`."""
        self._waits = False
        start = self._end
        stop = self._next(start)
        self._rooms.disk.make_room(self._path, start, stop)
        self._ahead = start, stop

    def _next(self, end: int) -> int:
        """How far room is made for a file that is to have it up to `end`."""
        stop = end + min(max(end, FIRST), STEP)
        return min(stop + -stop % _BLOCK, self._size)

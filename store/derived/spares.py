"""Spare files: files that have their length and their first room, and no name yet.

A thread makes them before they are needed (`Rooms.make_ahead`). The owner of the store gives one
its name when a queue gets its first message, or when a queue file or the index file is full. If no
spare is ready, or the file system knows none, the owner makes the file itself.

A file without a name is gone with its process: neither a crash nor RocketMQ ever sees one.
"""

from __future__ import annotations

from collections import deque

from saturnmq.store.derived.room import Rooms
from saturnmq.store.disk import Advice, MappedFile, SpareFile


class Spares:
    """At most `most` files of one length for one directory and the directories below it."""

    def __init__(
        self,
        rooms: Rooms,
        directory: str,
        size: int,
        room: int,
        most: int = 1,
        *,
        is_warm: bool = False,
        is_durable: bool = False,
    ) -> None:
        """`is_warm`: their pages are in memory, and all of their room is made. `is_durable`: of the
        directory, whose name is synced if it is new."""
        assert 0 < room <= size, f"room for {room} of {size} bytes"
        assert most > 0, f"{most} spare files"
        self._rooms = rooms
        self._directory = directory
        self.size = size
        self.room = size if is_warm else room
        self._most = most
        self._is_warm = is_warm
        self._is_durable = is_durable
        self._ready: deque[SpareFile] = deque()
        self._waits = False
        self._refused = False  # the disk made none; it is asked again after the next `take`

    def want(self) -> None:
        """Have the thread make those that are missing."""
        if len(self._ready) < self._most and not (self._waits or self._refused):
            self._waits = True
            self._rooms.waiting.append(self)

    def make_next(self) -> None:
        """Blocking, beside `take`. Where the disk refuses one the owner makes its file itself, and
        hears why."""
        self._waits = False
        try:
            self._rooms.disk.make_dirs(self._directory, durable=self._is_durable)
            while len(self._ready) < self._most:
                self._ready.append(self._make())
        except OSError:
            self._refused = True

    def _make(self) -> SpareFile:
        spare = self._rooms.disk.make_spare(self._directory, self.size, self.room)
        if self._is_warm:
            try:
                spare.advise(Advice.WARM)
            except OSError:
                spare.close()
                raise
        return spare

    def take(self, path: str) -> MappedFile | None:
        """A file of this name, which must be free. None: it must be made."""
        self._refused = False
        if not self._ready:
            return None
        spare = self._ready.popleft()
        try:
            return spare.give_name(path)
        except OSError:  # the directory may lie on another file system
            spare.close()
            return None

    def close(self) -> None:
        while self._ready:
            self._ready.popleft().close()

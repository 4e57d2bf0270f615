"""Runs: sorted entries of waiting messages, in files, read once from the front to the back.

A run never changes. Its messages leave it in its order, whatever the clocks do meanwhile, so the
progress of delivery in it is one number: the position of the first entry that still counts.

A run lies in one or more files `<number>.run` in `<root>/timer`, each of at most FILE_ENTRIES
entries, in blocks:

    BLOCK_ENTRIES entries of 16 bytes (fewer in the last block of a file), u32 CRC-32 of them

In memory a run has one block. A run that was just made from arrivals has all of its entries in
memory, which is one block, too.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

from saturnmq.broker.timer.entries import ENTRY_BYTES
from saturnmq.protocol.frame import crc32
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.disk import Disk

BLOCK_ENTRIES = 4096
FILE_ENTRIES = 64 * BLOCK_ENTRIES
_CRC = struct.Struct(">I")
_BLOCK_BYTES = BLOCK_ENTRIES * ENTRY_BYTES
assert FILE_ENTRIES % BLOCK_ENTRIES == 0, "a file holds whole blocks"


class RunPart(NamedTuple):
    """One file of a run."""

    name: str
    entries: int


class RunFolder:
    """The files of all runs of one broker. Blocking."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._next = 0

    def open(self) -> None:
        """Make the folder; new files get names that no file has."""
        self._disk.make_dirs(self._path)
        self._next = max((int(name[:-4]) + 1 for name in self.names()), default=0)

    def names(self) -> list[str]:
        return [
            entry.name
            for entry in self._disk.list(self._path)
            if entry.name.endswith(".run") and entry.name[:-4].isdigit()
        ]

    def write(self, entries: bytes) -> RunPart:
        """Make a file of these entries, durably."""
        count = len(entries) // ENTRY_BYTES
        assert 0 < count <= FILE_ENTRIES, f"{count} entries in a file"
        data = bytearray()
        for start in range(0, len(entries), _BLOCK_BYTES):
            block = entries[start : start + _BLOCK_BYTES]
            data += block
            data += _CRC.pack(crc32(block))
        part = RunPart(f"{self._next:012d}.run", count)
        self._next += 1
        self._disk.write_file(f"{self._path}/{part.name}", bytes(data))
        self._disk.sync_dir(self._path)
        return part

    def read(self, part: RunPart, block: int) -> bytes:
        """The entries of one block. StoreDamaged: they are not what was written."""
        count = min(part.entries - block * BLOCK_ENTRIES, BLOCK_ENTRIES)
        assert count > 0, f"block {block} of {part}"
        path = f"{self._path}/{part.name}"
        try:
            with closing(self._disk.open_readonly(path)) as file:
                size = count * ENTRY_BYTES
                data = file.read(block * (_BLOCK_BYTES + _CRC.size), size + _CRC.size)
        except OSError as error:
            raise StoreDamaged(f"{path} cannot be read: {error}") from error
        entries = data[:size]
        if len(data) != size + _CRC.size or _CRC.unpack(data[size:])[0] != crc32(entries):
            raise StoreDamaged(f"block {block} of {path} is not as it was written")
        return entries

    def keep(self, names: Iterable[str]) -> None:
        """Remove all other files."""
        kept = frozenset(names)
        for name in self.names():
            if name not in kept:
                self._disk.unlink(f"{self._path}/{name}")


class Run:
    """One run, and how far its messages have left it."""

    def __init__(
        self, parts: tuple[RunPart, ...], position: int = 0, *, block: bytes = b""
    ) -> None:
        """With `block` these are all entries, and there may be no file yet."""
        self.parts = parts
        self.count = len(block) // ENTRY_BYTES if block else sum(part.entries for part in parts)
        self.position = position
        self.last = b""  # the entry that left last, since a merge began
        self._block = block
        self._begins = 0  # the position of the block's first entry
        self.in_memory = bool(block)

    def __len__(self) -> int:
        """The entries that still count."""
        return self.count - self.position

    def validate(self) -> None:
        """AssertionError: no run is like this."""
        assert 0 <= self.position <= self.count, f"{self.position} of {self.count} have left"
        assert self.parts or self.in_memory, "a run without a file and without entries"

    @property
    def is_loaded(self) -> bool:
        """Whether `head` can tell."""
        at = (self.position - self._begins) * ENTRY_BYTES
        return self.position >= self.count or 0 <= at < len(self._block)

    @property
    def head(self) -> bytes | None:
        """The first entry that counts; None if none is left."""
        if self.position >= self.count:
            return None
        at = (self.position - self._begins) * ENTRY_BYTES
        assert 0 <= at < len(self._block), f"position {self.position} is not loaded"
        return self._block[at : at + ENTRY_BYTES]

    def take(self) -> bytes:
        """Let the first entry leave."""
        entry = self.head
        assert entry is not None, "an empty run"
        self.position += 1
        self.last = entry
        return entry

    def block_at(self, folder: RunFolder, position: int) -> tuple[bytes, int]:
        """Blocking: the block that holds this position, and the position of its first entry."""
        if self.in_memory:
            return self._block, 0
        begins = 0
        for part in self.parts:
            if position < begins + part.entries:
                block = (position - begins) // BLOCK_ENTRIES
                return folder.read(part, block), begins + block * BLOCK_ENTRIES
            begins += part.entries
        raise AssertionError(f"position {position} of {self.count}")

    def show(self, block: tuple[bytes, int]) -> None:
        """Have this block from now on."""
        if not self.in_memory:
            self._block, self._begins = block

    def pass_over(self, last: bytes) -> bool:
        """Let the entries up to `last` leave; False: the next block must be read first."""
        while self.is_loaded:
            head = self.head
            if head is None or head > last:
                return True
            self.take()
        return False

    def entries(self, folder: RunFolder) -> Iterator[bytes]:
        """Blocking: the entries that count at the time of the call."""
        position, count = self.position, self.count
        while position < count:
            block, begins = self.block_at(folder, position)
            at = (position - begins) * ENTRY_BYTES
            for start in range(at, len(block), ENTRY_BYTES):
                yield block[start : start + ENTRY_BYTES]
            position = begins + len(block) // ENTRY_BYTES

    def skip_to(self, folder: RunFolder, last: bytes) -> None:
        """Blocking: let all entries up to `last` leave."""
        while self.position < self.count:
            block, begins = self.block_at(folder, self.position)
            entries = [block[i : i + ENTRY_BYTES] for i in range(0, len(block), ENTRY_BYTES)]
            self.position = begins + bisect_right(entries, last)
            if self.position < begins + len(entries):
                break

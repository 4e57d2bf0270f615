"""The remains of a power cut: pages of 4 KiB, kept, dropped or torn at 512 B, and names.

An `Inode` has two images of equal length: reads and mappings show `current`, the platters hold
`durable`. Every page in which they differ when the power goes is, independently of the others,
kept, dropped, or torn at a sector's border (docs/guarantees.md 8.2). The length of a new or
overwritten file is a change like that of a name: until the file was synced, a crash may leave it
empty.

A failed flush marks its pages clean, as ext4 does (`lies`): later flushes skip them and succeed
although the platters never got the bytes, until the page is written again or forgotten (S1).

`Names` is the tree of files: a change counts at once for the running system, and is durable once
its directory was synced; before that, a crash keeps or drops each change in no order.
"""

from __future__ import annotations

import posixpath
import random
from dataclasses import dataclass, field

PAGE = 4096
SECTOR = 512


@dataclass(frozen=True, slots=True)
class PowerCutOdds:
    """The odds of unsynced changes at a power cut: that a page is kept, that it is torn, and that a
    change of a name or of a size survives.
    """

    kept: float = 0.4
    torn: float = 0.2
    names: float = 0.5


@dataclass(slots=True)
class Fates:
    """The number of pages, and of changes of names, by their fate."""

    kept: int = 0
    dropped: int = 0
    torn: int = 0
    names_dropped: int = 0

    def add(self, other: Fates) -> None:
        for name in Fates.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Inode:
    """One file. `sized`: its length is durable. `room`: the pages that have their place on the
    disk; None: all."""

    current: bytearray
    durable: bytearray
    mtime_ms: int
    sized: bool = True
    lies: dict[int, bytes] = field(default_factory=dict)
    room: set[int] | None = None

    def copy(self) -> Inode:
        return Inode(
            bytearray(self.current),
            bytearray(self.durable),
            self.mtime_ms,
            self.sized,
            dict(self.lies),
            None if self.room is None else set(self.room),
        )

    def missing_room(self, start: int, end: int) -> set[int]:
        """The pages of [start, end) that have no place on the disk."""
        if self.room is None:
            return set()
        return set(range(start // PAGE, (end + PAGE - 1) // PAGE)) - self.room

    def _check_room(self, start: int, end: int) -> None:
        """A store into a sparse part: on a full disk the kernel would end the process."""
        if missing := self.missing_room(start, end):
            raise AssertionError(f"SIGBUS: pages {sorted(missing)} are written without room")

    @property
    def used_bytes(self) -> int:
        return len(self.current) if self.room is None else PAGE * len(self.room)

    def written(self, pos: int) -> list[tuple[int, int]]:
        """The ranges from `pos` on that have a place on the disk."""
        if self.room is None:
            return [(pos, len(self.current))]
        found: list[tuple[int, int]] = []
        for page in sorted(self.room):
            start, end = max(page * PAGE, pos), min((page + 1) * PAGE, len(self.current))
            if start < end:
                joined = bool(found) and found[-1][1] == start
                found.append((found.pop()[0] if joined else start, end))
        return found

    def put(self, pos: int, data: bytes | bytearray | memoryview) -> None:
        """A write by system call: it makes its pages dirty, also those a failed flush left clean.
        Stores to the mapping cannot be seen here: a page stored to anew with the same bytes stays
        a lie, as it does on an extent that was never written (S3).
        """
        end = pos + len(data)
        self._check_room(pos, end)
        self.current[pos:end] = data
        if self.lies:
            for page in range(pos // PAGE, (end + PAGE - 1) // PAGE):
                self.lies.pop(page, None)

    def overwrite(self, data: bytes) -> None:
        """Like O_TRUNC and a write: the old content is gone, the new one there after a flush."""
        self.current[:] = data
        self.durable[:] = bytes(len(data))
        self.sized = False
        self.lies.clear()

    def dirty_pages(self, start: int = 0, end: int | None = None) -> list[int]:
        """Page numbers whose images differ, within the byte range."""
        stop = len(self.current) if end is None else min(end, len(self.current))
        first, last = start // PAGE, (stop + PAGE - 1) // PAGE
        low, high = first * PAGE, last * PAGE
        # Bytearrays compare with memcmp; memoryviews compare item by item, fifty times slower.
        current, durable = self.current, self.durable
        if current[low:high] == durable[low:high]:
            return []
        return [
            page
            for page in range(first, last)
            if current[page * PAGE : (page + 1) * PAGE] != durable[page * PAGE : (page + 1) * PAGE]
        ]

    def lie(self, start: int, end: int) -> None:
        """A flush of [start, end) failed: its pages are clean now."""
        for page in self.dirty_pages(start, end):
            self.lies[page] = bytes(self.current[page * PAGE : (page + 1) * PAGE])

    def flush(self, start: int, end: int) -> None:
        """Make the pages of [start, end) durable, except those that a failed flush left clean."""
        self.sized = True
        for page in self.dirty_pages(start, end):
            self._check_room(page * PAGE, (page + 1) * PAGE)  # stored through the mapping
            self.write_back(page)

    def write_back(self, page: int) -> None:
        """Write one page to the platters, unless it counts as clean."""
        begin, end = page * PAGE, (page + 1) * PAGE
        content = bytes(self.current[begin:end])
        if self.lies.get(page) != content:
            self.lies.pop(page, None)
            self.durable[begin : begin + len(content)] = content

    def forget(self, start: int, end: int) -> None:
        """Drop clean pages of [start, end) from the cache: a lie ends, the platters are read."""
        for page, lie in list(self.lies.items()):
            begin = page * PAGE
            stop = begin + len(lie)
            if start < stop and begin < end and self.current[begin:stop] == lie:
                self.current[begin:stop] = self.durable[begin:stop]
                del self.lies[page]

    def after_power_loss(self, rng: random.Random, outcome: PowerCutOdds, fates: Fates) -> Inode:
        """The file that the next incarnation finds."""
        if not self.sized and rng.random() >= outcome.names:
            fates.names_dropped += 1
            return Inode(bytearray(), bytearray(), self.mtime_ms)
        content = bytearray(self.durable)
        if self.current != self.durable:
            for page in self.dirty_pages():
                self._settle(page, content, rng, outcome, fates)
        room = None if self.room is None else _pages_in_use(content)  # the rest may be lost
        return Inode(content, bytearray(content), self.mtime_ms, room=room)

    def _settle(
        self, page: int, content: bytearray, rng: random.Random, outcome: PowerCutOdds, fates: Fates
    ) -> None:
        begin, end = page * PAGE, min((page + 1) * PAGE, len(content))
        fate = rng.random()
        if self.lies and self.lies.get(page) == bytes(self.current[begin:end]):
            fate = 1.0
        if fate < outcome.kept:
            fates.kept += 1
            content[begin:end] = self.current[begin:end]
        elif fate < outcome.kept + outcome.torn:
            fates.torn += 1
            border = begin + SECTOR * rng.randint(1, PAGE // SECTOR - 1)
            if rng.random() < 0.5:
                end = min(border, end)
            else:
                begin = min(border, end)
            content[begin:end] = self.current[begin:end]
        else:
            fates.dropped += 1


def _pages_in_use(content: bytearray) -> set[int]:
    zeros = bytes(PAGE)
    return {
        at // PAGE
        for at in range(0, len(content), PAGE)
        if content[at : at + PAGE] != zeros[: len(content) - at]
    }


@dataclass(slots=True)
class _Change:
    """A change that is not durable yet: remove `source` if it still names `inode`, then set
    `target`.
    """

    source: str | None
    target: str | None
    inode: Inode

    def apply(self, names: dict[str, Inode]) -> None:
        if self.source is not None and names.get(self.source) is self.inode:
            del names[self.source]
        if self.target is not None:
            names[self.target] = self.inode


class Names:
    """The names of files, for the running system (`current`) and on the platters."""

    def __init__(self) -> None:
        self.current: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._changes: dict[str, list[_Change]] = {}

    def add(self, path: str, inode: Inode) -> None:
        self.current[path] = inode
        self._changed(_Change(None, path, inode))

    def move(self, old: str, new: str) -> None:
        inode = self.current.pop(old)
        self.current[new] = inode
        self._changed(_Change(old, new, inode))

    def remove(self, path: str) -> None:
        self._changed(_Change(path, None, self.current.pop(path)))

    def _changed(self, change: _Change) -> None:
        directory = posixpath.dirname(change.target or change.source or "")
        self._changes.setdefault(directory, []).append(change)

    def sync(self, directory: str) -> None:
        for change in self._changes.pop(directory, []):
            change.apply(self._durable)

    def durable_paths(self, directory: str) -> list[str]:
        return sorted(p for p in self._durable if posixpath.dirname(p) == directory)

    def durable(self, path: str) -> bytes:
        return bytes(self._durable[path].durable)

    def after_power_loss(self, rng: random.Random, outcome: PowerCutOdds, fates: Fates) -> Names:
        """The tree that the next incarnation finds."""
        kept = dict(self._durable)
        for directory in sorted(self._changes):
            for change in self._changes[directory]:
                if rng.random() < outcome.names:
                    change.apply(kept)
                else:
                    fates.names_dropped += 1
        found: dict[int, Inode] = {}  # a file may have two names
        left = Names()
        for path in sorted(kept):
            inode = kept[path]
            if id(inode) not in found:
                found[id(inode)] = inode.after_power_loss(rng, outcome, fates)
            left.current[path] = left._durable[path] = found[id(inode)]
        return left

    def copy(self) -> Names:
        """A copy of the tree, with its files and its changes that are not durable."""
        copies: dict[int, Inode] = {}

        def copied(inode: Inode) -> Inode:
            if id(inode) not in copies:
                copies[id(inode)] = inode.copy()
            return copies[id(inode)]

        other = Names()
        other.current = {path: copied(inode) for path, inode in self.current.items()}
        other._durable = {path: copied(inode) for path, inode in self._durable.items()}
        other._changes = {
            directory: [_Change(c.source, c.target, copied(c.inode)) for c in changes]
            for directory, changes in self._changes.items()
        }
        return other

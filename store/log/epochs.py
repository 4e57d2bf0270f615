"""epochFileCheckpoint: which master wrote which part of the log.

A term of a master is an epoch; its entry says at which offset that master began to write. Within
one epoch there is one writer, so two logs that both have an epoch with the same start are equal up
to where the shorter one ends in it (docs/guarantees.md I7), whatever their lengths are.

The file is text, as RocketMQ's auto-switch HA writes it (docs/internals/format.md 9): line 1 the
number of entries, line 2 the CRC of the lines behind it (0: not checked), then one line
`epoch-startOffset` each, both rising. Damaged, it falls back to `.bak`; with both bad a start is
refused. Master and slave write it before they write a byte of that epoch.

Ours: a last line of 32 hex digits, the identity of the group that the log belongs to. Line 1 does
not count it, the CRC covers it, and RocketMQ passes over it, as it holds no `-`; a file that
RocketMQ wrote has none.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.epochs import EPOCH_MAX
from saturnmq.protocol.kernels import crc32
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.disk import Disk
from saturnmq.store.reading import is_bad_sector

FILE = "epochFileCheckpoint"
IDENTITY = re.compile("[0-9a-f]{32}")


class Epoch(NamedTuple):
    """A master's term, and the physical offset it began to write at."""

    number: int
    start: int


class Epochs:
    """The entries of one log, oldest first, and the identity of its group, "" while unknown."""

    def __init__(self, disk: Disk, root: str, entries: Iterable[Epoch] = ()) -> None:
        self._disk = disk
        self._path = posixpath.join(root, FILE)
        self.entries = list(entries)
        self.identity = ""

    @classmethod
    def load(cls, disk: Disk, root: str, log_end: int) -> Epochs:
        """The file's entries for a log that ends at `log_end`: a power loss may have taken the
        part that the newest entries are about.
        """
        found = cls(disk, root)
        problems = []
        for path in (found._path, found._path + ".bak"):
            if disk.exists(path):
                try:
                    parsed = _parse(disk.read_file(path))
                except OSError as error:
                    if not is_bad_sector(error):
                        raise
                    problems.append(f"{path} ({error})")
                    continue
                if parsed is not None:
                    entries, found.identity = parsed
                    found.entries = [epoch for epoch in entries if epoch.start <= log_end]
                    return found
                problems.append(path)
        if problems:
            raise StoreDamaged(
                f"{' and '.join(problems)}: damaged, so nobody knows which master wrote which "
                "part of this log; restore the file, or delete it on every node of the group"
            )
        return found

    @property
    def last(self) -> int:
        """The newest epoch, 0 if there is none."""
        return self.entries[-1].number if self.entries else 0

    def validate(self) -> None:
        """AssertionError: these entries or this identity are not those of one log."""
        check_rising(self.entries)
        for number, start in self.entries:
            assert 0 <= number <= EPOCH_MAX, f"epoch {number}, the limit is {EPOCH_MAX}"
            assert start >= 0, f"epoch {number} begins at {start}"
        assert not self.identity or IDENTITY.fullmatch(self.identity), repr(self.identity)

    def end_of(self, number: int) -> int | None:
        """The start of the first epoch behind this one; None if there is none yet."""
        return min((epoch.start for epoch in self.entries if epoch.number > number), default=None)

    def to_json(self) -> list[list[int]]:
        """As HELLO, JOIN and REPLICA_STATE carry it."""
        return [list(epoch) for epoch in self.entries]

    def open(self, number: int, start: int, identity: str = "") -> None:
        """A new term begins at `start`, in a log that belongs to the group of this identity;
        durable when this returns. Blocking."""
        assert number > self.last, f"epoch {number} is opened after {self.last}"
        assert self.identity in ("", identity or self.identity), "it belongs to another group"
        assert start >= 0, f"epoch {number} begins at {start}"
        self._save([*self.entries, Epoch(number, start)], identity)

    def cut(self, newest: int) -> None:
        """Forget the epochs behind `newest`: their bytes are cut off. Blocking."""
        self.replace([epoch for epoch in self.entries if epoch.number <= newest])

    def replace(self, entries: Sequence[Epoch]) -> None:
        """A slave without a table of its own takes its master's. Blocking."""
        if list(entries) != self.entries:
            self._save(list(entries))

    def adopt(self, identity: str) -> None:
        """The log belongs to the group of this identity; durable when this returns. Blocking.

        StoreDamaged: it belongs to another one.
        """
        if IDENTITY.fullmatch(identity) is None:
            raise ValueError(f"{identity!r} is no identity of a group: that has 32 hex digits")
        if self.identity not in ("", identity):
            raise StoreDamaged(
                f"{self._path}: this log belongs to the group {self.identity}, not to {identity}; "
                "let the node join its own group, or start it with an empty directory"
            )
        if self.identity != identity:
            self._save(self.entries, identity)

    def common(
        self, end: int, others: Sequence[Epoch], others_end: int
    ) -> tuple[Epoch, int] | None:
        return common(self.entries, end, others, others_end)

    def _save(self, entries: list[Epoch], identity: str = "") -> None:
        """They count once they are written."""
        identity = identity or self.identity
        assert identity == "" or IDENTITY.fullmatch(identity), f"{identity!r} is no identity"
        check_rising(entries)
        lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in entries)
        if identity:
            lines += identity + "\n"
        data = lines.encode()
        head = f"{len(entries)}\n{crc32(data)}\n".encode()
        self._disk.replace_file(self._path, head + data, keep_room=True)
        self.entries, self.identity = entries, identity


def check_rising(entries: Iterable[Epoch]) -> None:
    """AssertionError: these are no entries of one log, oldest first."""
    for before, after in pairwise(entries):
        assert before.number < after.number, f"epoch {after.number} behind {before.number}"
        assert before.start <= after.start, f"{after} begins before {before}"


def common(
    entries: Sequence[Epoch], end: int, others: Sequence[Epoch], others_end: int
) -> tuple[Epoch, int] | None:
    """The newest epoch that both logs have with the same start, and the offset up to which both
    logs hold it; None if they share none.
    """
    theirs = set(others)
    for mine in reversed(entries):
        if mine in theirs:
            return mine, min(_end_of(entries, mine, end), _end_of(others, mine, others_end))
    return None


def _end_of(entries: Sequence[Epoch], epoch: Epoch, log_end: int) -> int:
    starts = [other.start for other in entries if other.number > epoch.number]
    return min([*starts, log_end])


def _parse(data: bytes) -> tuple[list[Epoch], str] | None:
    """The entries and the identity, or None if this is not a whole file of rising entries."""
    try:
        count, crc, *lines = data.decode("ascii").splitlines()
        whole = "".join(line + "\n" for line in lines).encode()
        identity = lines.pop() if lines and IDENTITY.fullmatch(lines[-1]) else ""
        entries = [Epoch(*map(int, line.split("-"))) for line in lines if line]
        if len(entries) != int(count) or int(crc) not in (0, crc32(whole)):
            return None
    except (TypeError, ValueError):
        return None
    rising = all(a.number < b.number and a.start <= b.start for a, b in pairwise(entries))
    known = all(0 <= each.number <= EPOCH_MAX and 0 <= each.start <= INT64_MAX for each in entries)
    return (entries, identity) if rising and known else None

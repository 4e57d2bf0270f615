"""The findings of a check of a store, and how far it trusts the files.

An entry or item is taken as certain only below `Trust.below`: behind it the next start builds the
derived files again, and what is wrong there is a note. A running broker adds while we look: what
points at or behind `Trust.log_end` is its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from saturnmq.store.derived.tombstones import Tombstone
from saturnmq.store.log.log_files import SegmentFiles

CERTAIN = 1 << 63  # `Trust.below` of a store that was stopped in order: behind every offset


@dataclass(slots=True)
class Finding:
    """`count` things of one kind; place and log offset are those of the first."""

    what: str
    path: str
    position: int
    offset: int | None
    count: int


@dataclass(slots=True)
class Findings:
    """Damage, and notes: what a reader should know but a start repairs or another broker does."""

    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    _known: dict[tuple[bool, str, str], Finding] = field(default_factory=dict)

    def add(
        self,
        what: str,
        path: str,
        position: int,
        offset: int | None = None,
        *,
        note: bool = False,
        count: int = 1,
        together: bool = True,
    ) -> None:
        """Damage of one kind in one file is counted together, notes of one kind everywhere."""
        key = note, what, "" if note else path
        known = self._known.get(key) if together else None
        if known is not None:
            known.count += count
            return
        finding = Finding(what, path, position, offset, count)
        self._known[key] = finding
        (self.notes if note else self.damage).append(finding)

    def add_odd(self, what: str, files: SegmentFiles) -> None:
        """Files of a directory that are no segments of it."""
        for odd in files.odd:
            self.add(f"{what}: {odd.why}", odd.path, 0, note=odd.harmless, together=False)


@dataclass(slots=True)
class Trust:
    """The state that a check may expect of derived files; see the module's text."""

    log_start: int
    log_end: int  # until the log was read: as far as it may reach
    below: int
    running: bool
    foreign: bool  # the last to stop it was not us: RocketMQ loses keys and entries in a crash
    gaps: list[tuple[int, int]] = field(default_factory=list)  # of the log
    tombstones: Mapping[str, Tombstone] = field(default_factory=dict)

    def start_of(self, topic: str) -> int:
        """Frames of the topic before this place in the log are deleted."""
        tombstone = self.tombstones.get(topic)
        return max(self.log_start, 0 if tombstone is None else tombstone.end)

    def in_gap(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.gaps)

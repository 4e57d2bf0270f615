"""How far somebody has come in each of many queues, so that copies on several nodes can be merged.

A mark is (generation, offset). Within a generation an offset only rises; an operator's reset begins
a new one. The greater mark wins, wherever it comes from, so merging is commutative, associative and
idempotent, and a node that was away cannot undo a reset. An odd generation is one that a consumer
has yet to hear of (`ConsumerOffsets.reset`).

An offset also ends its meaning when the log loses the messages before it: what is written there
later must not be skipped. So whoever may have lost a part of the log, or held marks of one that
did, lowers its marks to the ends of its own queues (`clamp`) before they count for anybody: a
master when its term begins, a slave when it joins one, before the master merges its table.

When a node stops being master it knows marks that nobody else does, of messages that are about to
be cut off its log. So it is `stale` until it has a copy of its new master's table, which then
replaces its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from saturnmq.broker.tables.table_persistence import Document, LazyRows, Row, Saveable
from saturnmq.protocol import checked
from saturnmq.protocol.route import QUEUES_MAX

K = TypeVar("K", bound=Hashable)


class Mark(NamedTuple):
    """Where one queue goes on."""

    generation: int
    offset: int


NOTHING = Mark(0, -1)


def marks_by_number(
    offsets: Mapping[str, Any], generations: Mapping[str, Any], *, least: int = 0
) -> Iterator[tuple[int, Mark]]:
    """Of a queue or a level, from `least` on, its mark. MalformedFrame: something cannot be."""
    for number, offset in offsets.items():
        yield mark_by_number(number, offset, generations, least=least)


def mark_by_number(
    number: Any, offset: Any, generations: Mapping[str, Any], *, least: int = 0
) -> tuple[int, Mark]:
    """Of one queue or level. MalformedFrame: it cannot be."""
    return (
        checked.as_integer(number, "its number", least, QUEUES_MAX),
        Mark(
            checked.integer(generations, number, 0),
            checked.as_integer(offset, "its offset", least=-1),
        ),
    )


class Progress(Generic[K]):
    """The marks of one table; every method that changes one says so."""

    def __init__(self) -> None:
        self.marks: dict[K, Mark] = {}
        self.stale = False

    def offset(self, key: K) -> int | None:
        found = self.marks.get(key)
        return None if found is None else found.offset

    def __iter__(self) -> Iterator[tuple[K, Mark]]:
        return iter(self.marks.items())

    def advance(self, key: K, offset: int) -> bool:
        """False if it would not rise."""
        mark = self.marks.get(key, NOTHING)
        if offset <= mark.offset:
            return False
        self.marks[key] = Mark(mark.generation, offset)
        return True

    def merge(self, others: Mapping[K, Mark]) -> bool:
        """Take what is greater; all of it when this table is stale."""
        if self.stale:
            self.marks, self.stale = dict(others), False
            return True
        changed = False
        for key, mark in others.items():
            if mark > self.marks.get(key, NOTHING):
                self.marks[key] = mark
                changed = True
        return changed

    def clamp(self, end_of: Callable[[K], int]) -> list[tuple[K, int, int]]:
        """No mark lies behind the end of its queue; what was lowered: (key, from, to)."""
        lowered = []
        for key, mark in self.marks.items():
            end = end_of(key)
            if mark.offset > end:
                self.marks[key] = Mark(mark.generation, end)
                lowered.append((key, mark.offset, end))
        return lowered


class ProgressTable(Saveable, Generic[K]):
    """A file of marks: `offsetTable` as RocketMQ has it, the rest in keys that it passes over."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.progress: Progress[K] = Progress()
        self._now_ms = now_ms

    @abstractmethod
    def marks_of(self, document: Mapping[str, Any]) -> dict[K, Mark]:
        """The marks in a document, ours or RocketMQ's."""

    @abstractmethod
    def rows_of(self, marks: Mapping[K, Mark], *, generations: bool) -> Iterator[Row | None]:
        """Those of offsetTable, or of generationTable, without the zeros."""

    def document(self) -> Document:
        marks = self.progress.marks.copy()
        document: Document = {
            "dataVersion": {
                "counter": self.changes,
                "stateVersion": 0,
                "timestamp": self._now_ms(),
            },
            "offsetTable": LazyRows(self.rows_of(marks, generations=False)),
            "generationTable": LazyRows(
                self.rows_of(marks, generations=True), leave_out_empty=True
            ),
        }
        if self.progress.stale:
            document["stale"] = True
        return document

    def load(self, document: Mapping[str, Any]) -> None:
        """The file at the start."""
        self.progress.merge(self.marks_of(document))
        self.progress.stale = document.get("stale") is True

    def merge(self, document: Mapping[str, Any]) -> None:
        """Take over what another node knows better: a slave its master's table, a master that of a
        slave which has just joined."""
        self.take(document, self.marks_of(document))

    def take(self, document: Mapping[str, Any], marks: Mapping[K, Mark]) -> None:
        """The same, of marks that were read in the document."""
        if document.get("stale") is not True and self.progress.merge(marks):
            self.mark_dirty()

    def clamp(self, end_of: Callable[[K], int]) -> list[tuple[K, int, int]]:
        """See `Progress.clamp`."""
        lowered = self.progress.clamp(end_of)
        if lowered:
            self.mark_dirty()
        return lowered

    def trust(self) -> None:
        """This is the master's table now."""
        if self.progress.stale:
            self.progress.stale = False
            self.mark_dirty()

    def distrust(self) -> None:
        """The next copy of a master's table replaces this one."""
        if not self.progress.stale:
            self.progress.stale = True
            self.mark_dirty()

"""Progress in each of many queues, such that copies on several nodes can be merged.

A mark is (generation, offset). Within a generation an offset only rises; an operator's reset begins
a new one. The greater mark wins, wherever it comes from, so merging is commutative, associative and
idempotent, and a node that was away cannot undo a reset. In an odd generation the consumer has not
followed the reset yet (`ConsumerOffsets.reset`).

An offset also loses its meaning when the log loses the messages before it: later messages at that
place must not be skipped. So a node that may have lost a part of the log, or that has marks from
such a node, lowers its marks to the ends of its own queues (`clamp`) before any node uses them: a
master when its term begins, a slave when it joins a master, before the master merges its table.

When a node stops being master, only it knows some marks, of messages that are about to be cut off
its log. So it is `stale` until it has a copy of its new master's table, which then replaces its
own.
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
    """The place at which one queue goes on."""

    generation: int
    offset: int

    def validate(self) -> None:
        """AssertionError: no table has such a mark."""
        assert self.generation >= 0, f"generation {self.generation} of offset {self.offset}"
        assert self.offset >= NOTHING.offset, f"offset {self.offset}"


NOTHING = Mark(0, -1)


def marks_by_number(
    offsets: Mapping[str, Any], generations: Mapping[str, Any], *, least: int = 0
) -> Iterator[tuple[int, Mark]]:
    """The marks of queues or levels, from `least` on. MalformedFrame: a value is impossible."""
    for number, offset in offsets.items():
        yield mark_by_number(number, offset, generations, least=least)


def mark_by_number(
    number: Any, offset: Any, generations: Mapping[str, Any], *, least: int = 0
) -> tuple[int, Mark]:
    """The mark of one queue or level. MalformedFrame: a value is impossible."""
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
        """Raise a mark; False if it would not rise."""
        mark = self.marks.get(key, NOTHING)
        if offset <= mark.offset:
            return False
        self.marks[key] = Mark(mark.generation, offset)
        return True

    def merge(self, others: Mapping[K, Mark]) -> bool:
        """Take the greater marks; all of them when this table is stale."""
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
        """Lower marks behind the end of their queue to it; return them: (key, from, to)."""
        lowered = []
        for key, mark in self.marks.items():
            end = end_of(key)
            assert end >= 0, f"the queue of {key} ends at {end}"
            if mark.offset > end:
                self.marks[key] = Mark(mark.generation, end)
                lowered.append((key, mark.offset, end))
        return lowered


class ProgressTable(Saveable, Generic[K]):
    """A file of marks: `offsetTable` as in RocketMQ, the rest in keys that RocketMQ ignores."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.progress: Progress[K] = Progress()
        self._now_ms = now_ms

    @abstractmethod
    def marks_of(self, document: Mapping[str, Any]) -> dict[K, Mark]:
        """The marks in a document, ours or RocketMQ's."""

    @abstractmethod
    def rows_of(self, marks: Mapping[K, Mark], *, generations: bool) -> Iterator[Row | None]:
        """The rows of offsetTable, or of generationTable, without the zeros."""

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

    def validate(self) -> None:
        """AssertionError: a mark cannot be."""
        for _, mark in self.progress:
            mark.validate()

    def load(self, document: Mapping[str, Any]) -> None:
        """Read the file at the start."""
        self.progress.merge(self.marks_of(document))
        self.progress.stale = document.get("stale") is True

    def merge(self, document: Mapping[str, Any]) -> None:
        """Take over the greater marks of another node: a slave those of its master, a master those
        of a slave that has just joined."""
        self.take(document, self.marks_of(document))

    def take(self, document: Mapping[str, Any], marks: Mapping[K, Mark]) -> None:
        """The same, with the marks that were read from the document."""
        if document.get("stale") is not True and self.progress.merge(marks):
            self.mark_dirty()

    def clamp(self, end_of: Callable[[K], int]) -> list[tuple[K, int, int]]:
        """See `Progress.clamp`."""
        lowered = self.progress.clamp(end_of)
        if lowered:
            self.mark_dirty()
        return lowered

    def trust(self) -> None:
        """Count as the master's table from now on."""
        if self.progress.stale:
            self.progress.stale = False
            self.mark_dirty()

    def distrust(self) -> None:
        """Let the next copy of a master's table replace this one."""
        if not self.progress.stale:
            self.progress.stale = True
            self.mark_dirty()

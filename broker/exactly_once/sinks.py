"""The published partitions of sinks: the table that makes a repeated task harmless.

A sink writes in epochs, each of some partitions; each partition is one atomic batch in the log
(`store/log/atomic_batches.py`). The markers carry everything that the table has, as JSON:

    {"kind":"group","sink":S,"epoch":E,"partition":P,"attempt":A,"rows":N,"bytes":B}
    {"kind":"finished","sink":S,"epoch":E}         this epoch and all before are over
    {"kind":"brokers","sink":S,"brokers":[...]}    where its partitions go

So a slave has the same table as its master, and a truncation removes the same partitions from the
log and from the table (`cut`). A partition of a finished epoch needs no row of its own; the rows of
unfinished epochs stay. `config/sinks.json` saves reading all markers at each start, and keeps the
facts of markers whose log has expired. It never counts on messages that the log has lost: it says
how far it goes, and is on the disk before the log grows again behind a cut. A sink that wrote
nothing for `EXPIRY_MS` is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from saturnmq.broker.tables.table_persistence import Document, Saveable
from saturnmq.protocol import checked
from saturnmq.runtime.errors import MalformedFrame
from saturnmq.store.message_store import Arrival, Marker, MessageStore

log = logging.getLogger(__name__)

KINDS = ("group", "finished", "brokers")
EXPIRY_MS = 30 * 86_400_000


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """A partition in the log: [start, end) is its atomic batch, `attempt` the one that published
    it."""

    rows: int
    bytes: int
    start: int
    end: int
    attempt: str = ""

    def validate(self) -> None:
        """AssertionError: nothing of this kind can be in a log."""
        assert self.start < self.end, f"a partition from {self.start} to {self.end}"
        assert self.rows >= 0, f"a partition of {self.rows} rows"
        assert self.bytes >= 0, f"a partition of {self.bytes} bytes"

    @classmethod
    def from_json(cls, row: object) -> PublishedPartition:
        if not isinstance(row, list) or len(row) != 5:
            raise MalformedFrame("a partition is not four numbers and an attempt")
        *numbers, attempt = row
        rows, size, start, end = (checked.as_integer(n, "of a partition") for n in numbers)
        return cls(rows, size, start, end, checked.as_text(attempt, "an attempt"))


@dataclass(slots=True)
class Sink:
    """One sink; `first` and `newest` are the places of its markers in the log."""

    first: int
    newest: int
    touched_ms: int = 0
    finished: int = -1  # the last finished epoch
    finished_end: int = 0  # the end of the marker that says so
    brokers: tuple[str, ...] = ()
    brokers_at: int = -1  # the place of the marker that says so
    brokers_end: int = 0
    epochs: dict[int, dict[int, PublishedPartition]] = field(default_factory=dict)

    def validate(self) -> None:
        """AssertionError: markers in the order of a log do not make this."""
        assert 0 <= self.first <= self.newest, f"markers from {self.first} to {self.newest}"
        assert self.finished >= -1, f"epoch {self.finished} is finished"
        assert self.finished_end >= 0, f"its marker ends at {self.finished_end}"
        assert self.brokers_at < self.brokers_end or not self.brokers, self.brokers_at
        for epoch, rows in self.epochs.items():
            assert epoch > self.finished, f"rows of {epoch}, {self.finished} is finished"
            for partition, published in rows.items():
                assert partition >= 0, f"the partition {partition} of epoch {epoch}"
                assert self.first <= published.start <= self.newest, (published, self.first)
                published.validate()

    def ends_with(self, epoch: int) -> int:
        """The last finished epoch, if a sink reports `epoch` as finished. This broker may have no
        rows of the next epoch. A later epoch without rows here proves nothing: to believe it would
        make duplicates of rows of earlier epochs that were never sent."""
        newest = max(self.finished, *self.epochs, -1)
        return epoch if epoch <= newest + 1 else newest

    def take(self, marker: Marker, fact: Mapping[str, Any]) -> None:
        """Learn the fact of a marker; learning it twice changes nothing."""
        assert marker.start < marker.end, f"a marker from {marker.start} to {marker.end}"
        self.first = min(self.first, marker.start)
        self.newest = max(self.newest, marker.start)
        self.touched_ms = max(self.touched_ms, marker.store_timestamp)
        kind, epoch = fact["kind"], fact["epoch"]
        if kind == "group" and epoch > self.finished:
            published = PublishedPartition(
                fact["rows"], fact["bytes"], marker.start, marker.end, fact["attempt"]
            )
            self.epochs.setdefault(epoch, {}).setdefault(fact["partition"], published)
        elif kind == "finished" and epoch > self.finished:
            self.finished, self.finished_end = epoch, marker.end
            self.epochs = {e: rows for e, rows in self.epochs.items() if e > epoch}
        elif kind == "brokers" and marker.start > self.brokers_at:
            self.brokers = tuple(fact["brokers"])
            self.brokers_at, self.brokers_end = marker.start, marker.end

    def to_json(self) -> dict[str, Any]:
        """The sink's row, as in the file and in the answer to SINK_STATE."""
        return {
            "first": self.first,
            "newest": self.newest,
            "touched": self.touched_ms,
            "finished": self.finished,
            "finishedEnd": self.finished_end,
            "brokers": list(self.brokers),
            "brokersAt": self.brokers_at,
            "brokersEnd": self.brokers_end,
            "epochs": {
                str(epoch): {str(p): list(astuple(row)) for p, row in rows.items()}
                for epoch, rows in sorted(self.epochs.items())
            },
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Sink:
        """Read a row. MalformedFrame: a value in it is impossible."""
        return cls(
            first=checked.integer(document, "first"),
            newest=checked.integer(document, "newest"),
            touched_ms=checked.integer(document, "touched"),
            finished=checked.integer(document, "finished", least=-1),
            finished_end=checked.integer(document, "finishedEnd"),
            brokers=tuple(checked.texts(document, "brokers")),
            brokers_at=checked.integer(document, "brokersAt", least=-1),
            brokers_end=checked.integer(document, "brokersEnd"),
            epochs={
                checked.as_integer(epoch, "an epoch"): {
                    checked.as_integer(p, "a partition"): PublishedPartition.from_json(row)
                    for p, row in checked.as_table(rows, "an epoch").items()
                }
                for epoch, rows in checked.table(document, "epochs").items()
            },
        )


class SinkTable(Saveable):
    """All sinks of one log. The broker's loop calls it."""

    def __init__(self, store: MessageStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._sinks: dict[str, Sink] = {}
        self._next = 0  # the queue offset of the first marker that was not taken
        self._end = 0  # the end of the newest marker that was taken

    def get(self, name: str) -> Sink | None:
        return self._sinks.get(name)

    def validate(self) -> None:
        """AssertionError: it counts on what the log has lost, or contradicts itself."""
        assert self._end >= 0, f"its newest marker ends at {self._end}"
        assert self._next >= 0, f"the marker {self._next} is the next"
        for name, sink in self._sinks.items():
            sink.validate()
            assert sink.newest < self._end, f"{name} has one at {sink.newest} of {self._end}"

    # learning

    def arrived(self, _: Arrival) -> None:
        """Take new markers."""
        self.catch_up()

    def catch_up(self) -> None:
        """Take every marker that is dispatched."""
        first, end = self._store.markers
        for offset in range(max(self._next, first), end):
            marker = self._store.marker(offset)
            if marker is not None:
                self.take(marker)
        assert first <= end, f"markers from {first} to {end}"
        self._next = max(self._next, end)

    def read_again(self) -> None:
        """Read all markers again: damage was mended, so there may be markers where none were."""
        self._next = 0
        self.catch_up()

    def take(self, marker: Marker) -> None:
        """Take a marker; that of a batch as soon as all of the batch is in the log."""
        fact = _fact(marker)
        if fact is None:
            return
        name = str(fact["sink"])
        sink = self._sinks.get(name)
        if sink is None:
            sink = self._sinks[name] = Sink(marker.start, marker.start)
        sink.take(marker, fact)
        self._end = max(self._end, marker.end)
        self.mark_dirty()

    def cut(self) -> bool:
        """Forget the facts of markers that a truncation removed, and read the remaining markers of
        the same sinks again. Return whether any fact was to be forgotten."""
        first, markers_end = self._store.markers
        end = self._store.watermarks.dispatched  # a batch that was cut is not dispatched
        self._next = min(self._next, markers_end)
        if self._end <= end:
            return False
        lost = {name: sink for name, sink in self._sinks.items() if sink.newest >= end}
        for name, sink in lost.items():
            del self._sinks[name]
            if 0 <= sink.brokers_at < end:
                kept = Sink(sink.first, sink.first, sink.touched_ms, brokers=sink.brokers)
                kept.brokers_at, kept.brokers_end = sink.brokers_at, sink.brokers_end
                self._sinks[name] = kept
        self._end = min(self._end, end)
        assert all(sink.newest < end for sink in self._sinks.values()), f"markers behind {end}"
        self._read_back(lost, first, end)
        self.mark_dirty()
        return True

    def _read_back(self, lost: Mapping[str, Sink], first: int, end: int) -> None:
        """Read markers backwards, until the newest finished epoch and the brokers of each of these
        sinks are known."""
        found: list[Marker] = []
        wanted = {name for name, sink in lost.items() if sink.first < end}
        without = {name for name in wanted if name not in self._sinks}
        since = min((lost[name].first for name in wanted), default=end)
        offset = self._next
        while (wanted or without) and offset > first:
            offset -= 1
            marker = self._store.marker(offset)
            fact = None if marker is None else _fact(marker)
            if marker is None or fact is None:
                continue
            if marker.start < since:
                break
            name = fact["sink"]
            if name in wanted or name in without:
                found.append(marker)
            if fact["kind"] == "finished":
                wanted.discard(name)
            elif fact["kind"] == "brokers":
                without.discard(name)
        for marker in reversed(found):
            self.take(marker)

    # the file

    def document(self) -> Document:
        old = self._now_ms() - EXPIRY_MS
        self._sinks = {name: sink for name, sink in self._sinks.items() if sink.touched_ms > old}
        return {
            "end": self._end,
            "next": self._next,
            "sinks": {name: sink.to_json() for name, sink in sorted(self._sinks.items())},
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """Read the file's table, and the markers beyond it. If the log has lost markers that the
        file counts on, the table is dirty and must be written before the log grows."""
        self._sinks = {
            str(name): Sink.from_json(checked.as_table(sink, "a sink"))
            for name, sink in checked.table(document, "sinks").items()
        }
        self._next = checked.integer(document, "next", 0)
        self._end = checked.integer(document, "end", 0)
        self.cut()
        self.catch_up()


def _fact(marker: Marker) -> Mapping[str, Any] | None:
    """The fact of a marker, each value within its bounds; None: an unknown kind."""
    try:
        fact = checked.document(marker.document)
        if fact.get("kind") not in KINDS:
            return None
        return {
            "sink": checked.text(fact, "sink"),
            "kind": checked.text(fact, "kind"),
            "epoch": checked.integer(fact, "epoch", -1, least=-1),
            "partition": checked.integer(fact, "partition", 0),
            "rows": checked.integer(fact, "rows", 0),
            "bytes": checked.integer(fact, "bytes", 0),
            "attempt": checked.text(fact, "attempt", ""),
            "brokers": checked.texts(fact, "brokers"),
        }
    except MalformedFrame as error:
        log.error("the marker at %d cannot be read: %s", marker.start, error)
        return None

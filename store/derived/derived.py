"""Derived: all that is built from the CommitLog - the ConsumeQueues and, if wanted, the IndexFiles.

Reput adds to it what the log got, queues first, then the index; recovery cuts it back and lets the
same reput build it again. Nothing in it is worth more than the log: what is damaged is deleted.

In a store that is in use the index gets the items of a step late, because a consumer that waits for
a message needs no index: their insertion touches random pages. Whoever searches it does not notice,
and no checkpoint says that the index has them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import NamedTuple

from saturnmq.protocol.kernels import Run, Scan
from saturnmq.store.delay_levels import DEFAULT_DELAYS_MS
from saturnmq.store.derived.batchconsumequeue import (
    BatchConsumeQueue,
    TimeAt,
    place_of,
    singles,
)
from saturnmq.store.derived.consumequeue import ENTRY, OFFSET_MAX, ConsumeQueue
from saturnmq.store.derived.indexfile import Index, IndexMark
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.derived.tombstones import without_deleted

log = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """New messages of one queue; `entries` are 20 bytes for each of their frames."""

    topic: str
    queue_id: int
    max_offset: int
    entries: bytes
    messages: int


class Derived:
    """Queues and index of one store, and how long a message of each delay level waits."""

    def __init__(
        self,
        queues: QueueTable,
        index: Index | None,
        delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS,
        time_at: TimeAt = lambda _: None,
    ) -> None:
        """`time_at` reads the log, for queues of batches."""
        self._time_at = time_at
        self.queues = queues
        self.index = index
        self.delays_ms = delays_ms
        self.unindexed_from: int | None = None  # the index lacks items of the log from here on

    def validate(self, log_end: int) -> None:
        """AssertionError: a derived file leads the log, which ends at `log_end`, or is broken."""
        self.queues.validate(log_end)
        if self.index is not None:
            self.index.validate(log_end)

    def load(self, *, clean: bool) -> None:
        self.queues.load(clean=clean)
        if self.index is not None:
            self.index.load(clean=clean)

    def append(self, scan: Scan, arrivals: list[Arrival], begin: int | None = None) -> None:
        """Add what a scan of the log found. `arrivals` gets the new entries of each queue, also of
        those that were done when the disk had no room for a file of the next one (OSError). With
        `begin`, the log's offset at which the scan began, the index gets its items with
        `settle_index`, or before those of the next scan."""
        for queue, (topic, queue_id, first, _, entries) in self._runs(scan):
            before = queue.max_offset
            fresh = queue.append(first, entries)
            end = queue.max_offset
            self.queues.raise_next(topic, queue_id, end)
            if fresh:
                new = end - max(first, before)
                arrivals.append(Arrival(topic, queue_id, end, fresh, new))
        if self.index is None:
            return
        if begin is None:
            self.index.append(scan.index_items)
        else:
            self.index.later(scan.index_items)
        self.unindexed_from = begin

    def settle_index(self) -> None:
        """Give the index the items that it lacks. OSError: the disk has no room for them, and it
        lacks them on."""
        if self.index is not None and self.unindexed_from is not None:
            self.index.settle()
            self.unindexed_from = None

    def restore(self, scan: Scan) -> int:
        """Blocking: give the messages of a repaired range their places in the queues, durably; how
        many have none. The index does not get them: its items lie in the order of the log."""
        left = 0
        for queue, (topic, queue_id, first, count, entries) in self._runs(scan):
            left += count - queue.restore(first, entries)
            assert left >= 0, f"{-left} messages too many have a place"
            self.queues.raise_next(topic, queue_id, queue.max_offset)
        return left

    def _runs(self, scan: Scan) -> Iterator[tuple[ConsumeQueue, Run]]:
        """The runs of a scan that count, each with its queue."""
        plain = not (scan.batches or self.queues.tombstones)
        for run, kind in zip(scan.runs, repeat(ConsumeQueue)) if plain else self._in_order(scan):
            if why := self._wrong_with(kind, run):
                log.error("messages of topic %r are not dispatched: %s", run[0], why)
                continue
            queue = self.queues.of_kind(kind, run[0], run[1], self._time_at)
            if kind is ConsumeQueue and isinstance(queue, BatchConsumeQueue):
                for single in singles(run, self._time_at):
                    yield queue, single
            else:
                yield queue, run

    def _in_order(self, scan: Scan) -> list[tuple[Run, type[ConsumeQueue]]]:
        """The runs of messages that are not deleted, of entries and of units: in log order, because
        one queue may get both."""
        runs = without_deleted(scan.runs, self.queues.tombstones)
        found: list[tuple[Run, type[ConsumeQueue]]] = [(run, ConsumeQueue) for run in runs]
        if scan.batches:
            since = self.queues.since
            batches = (run for run in scan.batches if place_of(run) >= since(run[0]))
            found += [(run, BatchConsumeQueue) for run in batches]
            found.sort(key=lambda each: place_of(each[0]))
        return found

    def _wrong_with(self, kind: type[ConsumeQueue], run: Run) -> str:
        """Why frames cannot be what they say they are: whoever wrote the log, or what damaged it,
        must not make files elsewhere, or without end."""
        topic, queue_id, first, count, entries = run
        if "/" in topic or "\0" in topic or topic.startswith("."):  # a file name from the network
            return "no name of a topic"
        if queue_id < 0 or not 0 <= first <= OFFSET_MAX - count:
            return f"no queue has the number {queue_id}, or an offset {first}"
        if count == 0:
            return "an inner batch does not say how many they are, or where they begin"
        queue = self.queues.table.get((topic, queue_id))
        if queue is None or first <= queue.max_offset or not queue.series.segments:
            return ""
        last, size, _ = ENTRY.unpack_from(entries, len(entries) - kind.unit)
        if queue.may_end_at(first + count, last + size):
            return ""
        return (
            f"queue {queue_id} ends at {queue.max_offset}, and between its last message and "
            f"{last + size} in the log there is no room for all before {first + count}"
        )

    def flush(self) -> IndexMark | None:
        """Blocking, may run beside `append`: what was added before is durable then."""
        self.queues.flush()
        return None if self.index is None else self.index.flush()

    def truncate(self, end: int, store_time_at: Callable[[int], int | None]) -> None:
        """Forget everything about the log from `end` on."""
        for queue in self.queues:
            queue.truncate(end)
        self.queues.reset_next()
        if self.index is not None:
            self.index.truncate(end, store_time_at)

    def drop_before(self, log_start: int) -> Iterator[str]:
        """Take out what is only about the log before `log_start`: the files to delete."""
        for queue in self.queues:
            yield from queue.drop_before(log_start)
        if self.index is not None:
            yield from self.index.drop_before(log_start)

    def remove_deleted(self) -> None:
        """Delete the queues of deleted topics."""
        for _ in self.queues.remove_deleted():
            pass

    def destroy(self, log_start: int = 0) -> None:
        """Delete it, to be built again; see `QueueTable.destroy`."""
        self.queues.destroy(log_start)
        if self.index is not None:
            self.index.destroy()

    def close(self) -> None:
        self.queues.close()
        if self.index is not None:
            self.index.close()

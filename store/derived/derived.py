"""Derived: all that is built from the CommitLog - the ConsumeQueues and, if wanted, the IndexFiles.

Reput adds to it what the log got, queues first, then the index; recovery cuts it back and lets the
same reput build it again. Nothing in it is worth more than the log: what is damaged is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from saturnmq.protocol.kernels import Run, Scan
from saturnmq.store.delay_levels import DEFAULT_DELAYS_MS
from saturnmq.store.derived.consumequeue import ENTRY, OFFSET_MAX, UNIT
from saturnmq.store.derived.indexfile import Index, IndexMark
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.derived.tombstones import without_deleted

log = logging.getLogger(__name__)


class Arrival(NamedTuple):
    """New entries of one queue; `entries` are 20 bytes each."""

    topic: str
    queue_id: int
    max_offset: int
    entries: bytes

    @property
    def messages(self) -> int:
        return len(self.entries) // UNIT


class Derived:
    """Queues and index of one store, and how long a message of each delay level waits."""

    def __init__(
        self,
        queues: QueueTable,
        index: Index | None,
        delays_ms: tuple[int, ...] = DEFAULT_DELAYS_MS,
    ) -> None:
        self.queues = queues
        self.index = index
        self.delays_ms = delays_ms

    def validate(self, log_end: int) -> None:
        """AssertionError: a derived file leads the log, which ends at `log_end`, or is broken."""
        self.queues.validate(log_end)
        if self.index is not None:
            self.index.validate(log_end)

    def load(self, *, clean: bool) -> None:
        self.queues.load(clean=clean)
        if self.index is not None:
            self.index.load(clean=clean)

    def append(self, scan: Scan, arrivals: list[Arrival]) -> None:
        """Add what a scan of the log found. `arrivals` gets the new entries of each queue, also of
        those that were done when the disk had no room for a file of the next one (OSError)."""
        for topic, queue_id, first, _, entries in self._runs(scan):
            queue = self.queues.get_or_create(topic, queue_id)
            fresh = queue.append(first, entries)
            self.queues.raise_next(topic, queue_id, queue.max_offset)
            if fresh:
                arrivals.append(Arrival(topic, queue_id, queue.max_offset, fresh))
        if self.index is not None:
            self.index.append(scan.index_items)

    def restore(self, scan: Scan) -> int:
        """Blocking: give the messages of a repaired range their places in the queues, durably; how
        many have none. The index does not get them: its items lie in the order of the log."""
        left = 0
        for topic, queue_id, first, count, entries in self._runs(scan):
            queue = self.queues.get_or_create(topic, queue_id)
            left += count - queue.restore(first, entries)
            assert left >= 0, f"{-left} messages too many have a place"
            self.queues.raise_next(topic, queue_id, queue.max_offset)
        return left

    def _runs(self, scan: Scan) -> Iterator[Run]:
        for run in without_deleted(scan.runs, self.queues.tombstones):
            if why := self._wrong_with(run):
                log.error("messages of topic %r are not dispatched: %s", run[0], why)
            else:
                yield run

    def _wrong_with(self, run: Run) -> str:
        """Why frames cannot be what they say they are: whoever wrote the log, or what damaged it,
        must not make files elsewhere, or without end."""
        topic, queue_id, first, count, entries = run
        if "/" in topic or "\0" in topic or topic.startswith("."):  # a file name from the network
            return "no name of a topic"
        if queue_id < 0 or not 0 <= first <= OFFSET_MAX - count:
            return f"no queue has the number {queue_id}, or an offset {first}"
        queue = self.queues.table.get((topic, queue_id))
        if queue is None or first <= queue.max_offset or not queue.series.segments:
            return ""
        last, size, _ = ENTRY.unpack_from(entries, len(entries) - UNIT)
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

    def drop_before(self, log_start: int) -> list[str]:
        """Take out what is only about the log before `log_start`: the files to delete."""
        gone = [path for queue in self.queues for path in queue.drop_before(log_start)]
        if self.index is not None:
            gone += self.index.drop_before(log_start)
        return gone

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

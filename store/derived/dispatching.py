"""Dispatch in a store that is in use: a bounded step of reput at a time, and why there is none now.

The index gets the messages of a step later than the queues: with `settle_index`, which callers use
when all who wait for the messages have got them, with the next step, or when nothing is left to
dispatch. A consumer that waits needs no index, whose items touch random pages.

When the disk has no room for a queue or index file, `no_room` says so, and sends are refused until
a later call creates the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from saturnmq.protocol.kernels import ScanStatus
from saturnmq.runtime.errors import ServiceNotAvailable
from saturnmq.store.derived.derived import Arrival, Derived
from saturnmq.store.derived.reput import Reput
from saturnmq.store.disk import remedy
from saturnmq.store.log.atomic_batches import Groups
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.resync import next_frame
from saturnmq.store.offsets import PhysicalOffset
from saturnmq.store.watermarks import Watermarks

log = logging.getLogger(__name__)


class Dispatching:
    """Moves `dispatched` of the watermarks."""

    def __init__(
        self,
        commitlog: CommitLog,
        derived: Derived,
        reput: Reput,
        groups: Groups,
        marks: Watermarks,
        on_damage: Callable[[int, int], None],
    ) -> None:
        """`on_damage` gets each range of the log that holds no frames and is passed over: a slave
        may receive bytes that its master's disk had lost."""
        self._log = commitlog
        self._derived = derived
        self._reput = reput
        self._groups = groups
        self._marks = marks
        self._on_damage = on_damage
        self.last_store_timestamp = 0  # of the messages that were dispatched
        self.no_room = ""  # why the files built from the log cannot grow

    def step(self) -> list[Arrival]:
        """Dispatch one bounded step; an empty list means that nothing is left to dispatch now.
        ServiceNotAvailable: the log is damaged, and no frame comes behind."""
        arrivals = self._step()
        if not arrivals:
            self.settle_index()
        return arrivals

    def _step(self) -> list[Arrival]:
        marks, committed = self._marks, self._log.committed
        while marks.dispatched < committed:
            if self._groups.is_unfinished(marks.dispatched, committed):
                return []
            try:
                step = self._reput.step(marks.dispatched, committed, index_later=True)
            except OSError as error:
                self._found_no_room(error)
                return []
            self.no_room = ""
            for group in step.groups:
                self._groups.add(group, step.next_offset)
            if step.next_offset == marks.dispatched:
                if step.status != ScanStatus.DAMAGE:
                    return []  # a slave has half a frame, or half an atomic batch
                self._skip_damage(step.why)
                continue
            marks.dispatched = step.next_offset
            if step.messages:
                self.last_store_timestamp = step.last_store_timestamp
            if step.arrivals:
                return step.arrivals
        return []

    def _skip_damage(self, why: str) -> None:
        offset = self._marks.dispatched
        after = next_frame(self._log.series, offset, self._log.committed)
        if after is None:
            raise ServiceNotAvailable(f"the CommitLog is damaged from {offset} on: {why}")
        log.error("the CommitLog is damaged from %d to %d: %s", offset, after, why)
        self._on_damage(offset, after)
        self._marks.dispatched = PhysicalOffset(after)

    def settle_index(self) -> None:
        """Give the index what it lacks of the steps before."""
        if self._derived.unindexed_from is None:
            return
        try:
            self._derived.settle_index()
        except OSError as error:
            self._found_no_room(error)
        else:
            self.no_room = ""

    def _found_no_room(self, error: OSError) -> None:
        self.no_room = f"no room for the queue and index files: {error}; {remedy(error)}"

"""The turn: the work of one event-loop turn after the log grew or became safer.

In this order: `confirmed` rises as far as the ack mode allows, waiting sends are answered, flush
and slaves are woken, reput builds queue entries for the new frames, held pulls that may see them
are answered, and the index gets their keys. However many sends one turn of the loop handles, this
runs once.

Only dispatch has its own timing. When large batches come in it does not wait for the end of the
turn, because frames are read best while they are in the processor's cache. When single messages
come in and no pull is held, no client would see their entries at once. Then dispatch waits for
DISPATCH_S (RocketMQ's reput service looks once per millisecond), so that a lone sender does not
wait for it, or until the next request that could tell the difference (`catch_up`).

    confirmed = min(appended, flushed if SYNC_FLUSH, replicated if SYNC_MASTER,
                    the position that all electable nodes have, if this master holds no lease)

`confirmed` never lies inside an atomic batch (`store/log/atomic_batches.py`): consumers see all of
it or nothing. With ASYNC_FLUSH it stands still while the disk is too far behind
(`FlushService.keeps_up`), and while this node does not know whether it still is the master. On a
slave it is the position that the master sends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from saturnmq.broker.context import Context
from saturnmq.broker.replication.role import State
from saturnmq.runtime.door import Handle
from saturnmq.runtime.errors import SaturnError
from saturnmq.store.message_store import Arrival

log = logging.getLogger(__name__)

DISPATCH_BYTES = 128 << 10  # with so much undispatched log, dispatch does not wait for the turn

DISPATCH_S = 0.001


class WatermarkAdvancer:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._store = context.store
        self._scheduled = False
        self._due: Handle | None = None
        self.stopped = False
        self.damaged = ""  # why dispatch stands still
        self.on_append: list[Callable[[], None]] = []
        self.on_arrivals: list[Callable[[int, Sequence[Arrival]], None]] = []
        self.on_topic: dict[str, list[Callable[[Arrival], None]]] = {}
        self.on_visible: list[Callable[[], None]] = []
        self.is_awaited: Callable[[], bool] = lambda: True  # a client waits for new entries

    def wake(self) -> None:
        """Schedule a turn: the log grew, was flushed or was replicated."""
        if self.stopped:
            return
        self._schedule()
        marks = self._store.watermarks
        if marks.appended - marks.dispatched >= DISPATCH_BYTES and not self.damaged:
            self._dispatch()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._c.runtime.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self.stopped:
            return
        c = self._c
        marks = c.store.watermarks
        confirm(c)
        if c.ledger.release(marks.confirmed):
            c.stay_awake()
        for tell in self.on_append:
            tell()
        if marks.dispatched < marks.appended:
            if self.is_awaited() or marks.appended - marks.dispatched >= DISPATCH_BYTES:
                self._catch_up()
            elif self._due is None:
                self._due = c.runtime.call_later(DISPATCH_S, self._when_due)
        self._look()

    def _when_due(self) -> None:
        self._due = None
        self._catch_up()
        self._look()

    def _look(self) -> None:
        """Let all look who wait for messages, which may have become visible; then the index gets
        them."""
        for look in self.on_visible:
            look()
        self._store.settle_index()

    def catch_up(self) -> None:
        """Dispatch at once: a request may ask for appended messages, or the disk may have room
        again. Held pulls hear of it in a turn; no turn is due for messages that found no room
        before."""
        marks = self._store.watermarks
        before = marks.dispatched
        if before == marks.appended:
            self._store.settle_index()
            return
        self._catch_up()
        if marks.dispatched > before and self._due is None:
            self._schedule()

    def _catch_up(self) -> None:
        """Dispatch the appended frames: all of them, except a backlog, which takes several
        turns."""
        marks = self._store.watermarks
        before = marks.dispatched
        if before == marks.appended or self.stopped:
            return
        self._dispatch()
        if before < marks.dispatched < marks.appended:
            self._schedule()  # one bounded step per turn, so that requests keep being served

    def _dispatch(self) -> None:
        """Run one bounded step of reput."""
        store = self._store
        try:
            arrivals = store.reput()
        except SaturnError as error:
            if not self.damaged:
                self.damaged = str(error)
                log.critical("messages from here on cannot be consumed: %s", error)
            return
        self.tell(arrivals)

    def tell(self, arrivals: Sequence[Arrival]) -> None:
        """Tell all listeners of new queue entries, those of a topic of its entries."""
        if arrivals:
            dispatched = self._store.watermarks.dispatched
            for hear in self.on_arrivals:
                hear(dispatched, arrivals)
            for arrival in arrivals:
                for hear_topic in self.on_topic.get(arrival.topic, ()):
                    hear_topic(arrival)


def confirm(c: Context) -> None:
    """Raise `confirmed` as far as the ack mode allows; on a slave, to its master's position."""
    marks, state = c.store.watermarks, c.role.state
    position: int = marks.appended
    if state is State.SLAVE:
        if c.master_confirmed is not None:
            position = min(position, c.master_confirmed)
    elif state is State.UNSURE:
        return
    elif state is State.RECOVERING and c.role.required > 1:
        return  # it has not heard yet how far its slaves are
    else:
        if c.config.sync_flush or not c.flush_keeps_up():
            position = min(position, marks.flushed)
        if c.role.required > 1:
            position = min(position, marks.replicated)
        if witnesses := c.witnesses():
            position = min(position, c.had_by(witnesses))
        if state is State.RECOVERING:  # damage is mended first, if a slave has it whole
            position = min([position, *(start for start, _ in c.store.recovery.gaps)])
    aligned = c.store.align_to_batch(position)
    assert aligned <= position, f"{position} is aligned to {aligned}"
    marks.confirmed = aligned

"""The turn: what happens once per event-loop turn after the log grew or became safer.

In this order: `confirmed` rises to what the ack mode allows, waiting sends are answered, reput
builds queue entries for the new frames, held pulls that may see them are answered, flush and slaves
are told. However many sends one turn of the loop handles, this runs once.

    confirmed = min(appended, flushed if SYNC_FLUSH, replicated if SYNC_MASTER)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from saturnmq.broker.context import Context
from saturnmq.protocol.errors import SaturnError
from saturnmq.store.message_store import Arrival

log = logging.getLogger(__name__)


class Turn:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._scheduled = False
        self.stopped = False
        self.damaged = ""  # why dispatch stands still
        self.on_append: list[Callable[[], None]] = []
        self.on_arrivals: list[Callable[[int, Iterable[Arrival]], None]] = []
        self.on_visible: list[Callable[[], None]] = []

    def wake(self) -> None:
        """The log grew, was flushed or was replicated."""
        if not self._scheduled and not self.stopped:
            self._scheduled = True
            self._c.runtime.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        if self.stopped:
            return
        c = self._c
        marks = c.store.watermarks
        confirm(c)
        c.ledger.release(marks.confirmed)
        for tell in self.on_append:
            tell()
        if marks.dispatched < marks.appended:
            before = marks.dispatched
            try:
                arrivals = c.store.reput()
            except SaturnError as error:
                if not self.damaged:
                    self.damaged = str(error)
                    log.critical("messages from here on cannot be consumed: %s", error)
                arrivals = []
            if arrivals:
                for hear in self.on_arrivals:
                    hear(marks.dispatched, arrivals)
            if before < marks.dispatched < marks.appended:
                self.wake()  # one bounded step per turn, so that requests keep being served
        for look in self.on_visible:
            look()


def confirm(c: Context) -> None:
    """Raise `confirmed` to what the ack mode allows."""
    marks = c.store.watermarks
    position = marks.appended
    if not c.config.is_slave:
        if c.config.sync_flush:
            position = min(position, marks.flushed)
        if c.config.replicas_required > 1:
            position = min(position, marks.replicated)
    marks.confirmed = position

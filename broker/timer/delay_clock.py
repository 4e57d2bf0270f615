"""The clock by which delays are counted: the steady clock, continued from process to process.

It shows milliseconds, began as wall time, and no step of a wall clock moves it. A start continues
it from `config/delayClock.json`, `{"delayClock":ms,"wallClock":ms}`: the time in between is that of
the wall clock, and a negative time counts as zero. The file is written within a second when the two
clocks have moved apart, as they do when a wall clock is stepped and when a slave takes over the
clock of another master. A start sets the clock back by what may not have been written: it may be
late by that, and is never early.

A slave takes over the clock of its master, which answers with it when the slave asks for the delay
offsets (ext `saturnDelayClock`). The time on the way makes it a little later at the slave, never
earlier. So after a promotion no delay is shorter than it should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saturnmq.broker.tables.table_persistence import Document, Saveable
from saturnmq.protocol import checked
from saturnmq.runtime.door import Runtime

APART_MS = 2
ROUNDED_MS = 1  # by which the wall clock of the file may lie too far back


class DelayClock(Saveable):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lead = float(runtime.now_ms()) - self._steady_ms  # over the steady clock
        self._saved_apart: float | None = None
        self._is_known = False  # by its file, or by a master
        self._is_copied = False  # from the present master
        self._has_passed = False  # a moment that a message tells

    def _apart(self) -> float:
        """This clock's lead over the wall clock."""
        return self._steady_ms + self._lead - self._runtime.now_ms()

    @property
    def _steady_ms(self) -> float:
        return self._runtime.monotonic() * 1000

    def now_ms(self) -> int:
        return int(self._steady_ms + self._lead)

    def left_master(self) -> None:
        """Take the clock of the next master as it is."""
        self._is_copied = False

    def heard(self, master_ms: int) -> None:
        """Take over the clock of the master, which showed this when it answered: of several answers
        the one that was the least on its way."""
        lead = master_ms - self._steady_ms
        if not self._is_copied or lead > self._lead:
            self._lead = lead
        self._is_copied = self._is_known = True

    def passed(self, at_least_ms: int) -> None:
        """Note that a message came at this moment of the clock; it counts on a node whose clock
        nothing else tells."""
        if not self._is_known and (not self._has_passed or at_least_ms > self.now_ms()):
            self._lead = at_least_ms - self._steady_ms
            self._has_passed = True

    def begin_term(self) -> None:
        """Be the clock of the group."""
        self._is_known = True

    # the file

    @property
    def dirty(self) -> bool:
        apart = self._saved_apart
        return super().dirty or apart is None or abs(self._apart() - apart) > APART_MS

    def clean(self) -> None:
        super().clean()
        self._saved_apart = self._apart()

    def document(self) -> Document:
        return {"delayClock": self.now_ms(), "wallClock": self._runtime.now_ms()}

    def load(self, document: Mapping[str, Any]) -> None:
        if not document:
            return
        passed = self._runtime.now_ms() - checked.integer(document, "wallClock")
        shows = checked.integer(document, "delayClock") + max(0, passed) - APART_MS - ROUNDED_MS
        self._lead = shows - self._steady_ms
        self._is_known = True

"""The times for which the event loop of a process stands still: code on it that does not give way
makes all connections wait.

A timer is due every `EVERY_S`; its delay is a stop. The processor time of the stop is the part in
which this thread computed; in the rest it waited for a disk, or other processes had the processors.
Only that part says something about the program alone: on a machine that others keep busy a loop
that does next to nothing is late by seconds. So test clusters and drills judge by the time that a
turn of the loop computed, however long it waited. (Up to `EVERY_S` of computing before the timer
was due is counted with it.)
"""

from __future__ import annotations

import logging
import re

from .door import Runtime

log = logging.getLogger(__name__)

EVERY_S = 0.02
LONG_S = 0.1  # a stop that is logged
TELL_S = 10.0  # between two lines of the log, unless the loop computed for that long
_TOLD = re.compile(r"the event loop stood still for \d+ ms, (\d+) of them processor time")


class LoopWatch:
    """The watch over one process. The longest stop since the start, in seconds, and the longest
    part of one that was processor time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.longest_s = 0.0
        self.longest_busy_s = 0.0
        self.last_request = 0  # code of the last handled request, for the log
        self._unlogged = 0  # long stops since the last line of the log
        self._logged_at = -TELL_S

    def status(self) -> dict[str, str]:
        """The figures that a node reports about it."""
        return {
            "longestStopMs": str(round(1000 * self.longest_s)),
            "longestBusyStopMs": str(round(1000 * self.longest_busy_s)),
        }

    async def run(self) -> None:
        """Watch until cancelled."""
        runtime = self._runtime
        while True:
            began, used = runtime.monotonic(), runtime.processor_time()
            await runtime.sleep(EVERY_S)
            now = runtime.monotonic()
            self._note(now, now - began - EVERY_S, runtime.processor_time() - used)

    def _note(self, now: float, late: float, used: float) -> None:
        busy = min(late, used)
        self.longest_busy_s = max(self.longest_busy_s, busy)
        self.longest_s = max(self.longest_s, late)
        if late < LONG_S:
            return
        self._unlogged += 1
        if busy >= LONG_S or now - self._logged_at >= TELL_S:
            log.warning(
                "the event loop stood still for %d ms, %d of them processor time; the last request "
                "was one of code %d; %d such stops since the last line",
                round(late * 1000),
                round(busy * 1000),
                self.last_request,
                self._unlogged,
            )
            self._logged_at, self._unlogged = now, 0


def long_stops_in(text: str) -> list[int]:
    """The stops in a log that took `LONG_S` of processor time or more, in milliseconds."""
    found = [int(match[1]) for match in _TOLD.finditer(text)]
    return [busy for busy in found if busy >= LONG_S * 1000]

"""How long the event loop of a process stands still: whatever runs on it without giving way makes
all connections wait.

A timer is due every `EVERY_S`; how late it runs is a stop. Its processor time is the part in which
this thread computed; in the rest it waited for a disk, or other processes had the processors. Only
the former says something of the program alone: on a machine that others keep busy a loop that does
next to nothing is late by seconds. So that is what test clusters and drills judge by: a turn of the
loop computed for so long, however long it waited to. (Of what it computed before the timer was due
up to `EVERY_S` are counted with it.)
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
    """Of one process. The longest stop since the start, in seconds, and the longest part of one
    that was processor time."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.longest_s = 0.0
        self.longest_busy_s = 0.0
        self.last_request = 0  # the code of the one that was handled last, for the log
        self._unsaid = 0  # long stops since the last line
        self._said_at = -TELL_S

    def status(self) -> dict[str, str]:
        """The figures that a node tells of it."""
        return {
            "longestStopMs": str(round(1000 * self.longest_s)),
            "longestBusyStopMs": str(round(1000 * self.longest_busy_s)),
        }

    async def run(self) -> None:
        """Until cancelled."""
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
        self._unsaid += 1
        if busy >= LONG_S or now - self._said_at >= TELL_S:
            log.warning(
                "the event loop stood still for %d ms, %d of them processor time; the last request "
                "was one of code %d; %d such stops since this was told last",
                round(late * 1000),
                round(busy * 1000),
                self.last_request,
                self._unsaid,
            )
            self._said_at, self._unsaid = now, 0


def long_stops_in(text: str) -> list[int]:
    """Of a log: the stops that took `LONG_S` of processor time or more, in milliseconds."""
    found = [int(match[1]) for match in _TOLD.finditer(text)]
    return [busy for busy in found if busy >= LONG_S * 1000]

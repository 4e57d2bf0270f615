"""The wall clock by which old data is deleted.

A clock that is set a month ahead makes everything old at once: all segments but the last would go,
as they do in RocketMQ, and the table of published partitions would be forgotten. So a step ahead
counts only after BELIEVE_S, in which an operator can set the clock right; until then time goes on
from where it was. A step back counts at once: it keeps more. The time at the start of the process
is believed.
"""

from __future__ import annotations

import logging

from saturnmq.runtime.door import Runtime

log = logging.getLogger(__name__)

STEP_MS = 60_000
BELIEVE_S = 86_400.0


class RetentionClock:
    """Ask it often: a step is the time that the wall clock gained on the steady one between two
    calls."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lead = runtime.now_ms() - runtime.monotonic() * 1000  # the part that is believed
        self._doubted_since: float | None = None

    def now_ms(self) -> int:
        now_ms, steady = self._runtime.now_ms(), self._runtime.monotonic()
        lead = now_ms - steady * 1000
        if lead <= self._lead + STEP_MS:
            self._doubted_since = None
        elif self._doubted_since is None:
            self._doubted_since = steady
            log.warning(
                "the wall clock went %d s ahead at once: for %d hours nothing is deleted that is "
                "old by the new time only; restart the broker if the new time is right and the "
                "space is needed now",
                (lead - self._lead) // 1000,
                BELIEVE_S // 3600,
            )
        if self._doubted_since is not None and steady - self._doubted_since < BELIEVE_S:
            return int(self._lead + steady * 1000)
        self._lead, self._doubted_since = lead, None
        return now_ms

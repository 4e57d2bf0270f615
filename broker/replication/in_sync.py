"""How far one slave lags, in bytes and in time, and whether it counts as in sync. Pure.

The lag in time is the age of the oldest bytes that the slave has not reported, known within one of
its reports: a mark is set at the end of the log at some moment, and when a report passes it, the
mark's age was the lag. RocketMQ's limits decide: haMaxGapNotInSync in bytes,
haMaxTimeSlaveNotCatchup in time.
"""

from __future__ import annotations

from dataclasses import dataclass

BACK_S = 1.0  # a slave that has left comes back when it is less behind than this


@dataclass(slots=True)
class SlaveLag:
    """One slave's distance from the end of the log."""

    reported: int = -1
    in_sync: bool = False
    _mark: int = -1
    _mark_at: float = 0.0
    _last: float = 0.0

    def begin(self, offset: int, now: float) -> None:
        """Note that the slave joins at this offset."""
        assert offset >= 0, f"a slave joins at {offset}"
        self._mark, self._mark_at, self._last = offset, now, 0.0

    def grew(self, end: int, now: float) -> None:
        """Note the new end of the log."""
        if self.reported >= self._mark < end:
            self._mark, self._mark_at = end, now

    def report(self, offset: int, end: int, now: float) -> None:
        """Note that the slave has the log up to `offset`; the log ends at `end`."""
        if offset >= self._mark:
            self._last = 0.0 if offset >= end else now - self._mark_at
            self._mark, self._mark_at = end, now
        self.reported = offset

    def validate(self, end: int, now: float) -> None:
        """AssertionError: the mark is not of this log, or of the future."""
        assert self.reported >= -1, f"the slave has reported {self.reported}"
        assert self._mark >= -1, f"the mark is at {self._mark}"
        assert self._mark_at <= now, f"the mark is of {self._mark_at}, it is {now}"
        assert self._last >= 0, f"it lagged {self._last} s"
        assert not self.in_sync or self.reported >= 0, "it is in sync, and has reported nothing"

    def seconds(self, end: int, now: float) -> float:
        if self.reported >= end:
            return 0.0
        waiting = now - self._mark_at if self.reported < self._mark else 0.0
        return max(waiting, self._last)

    def size(self, end: int) -> int:
        return end - max(self.reported, 0)

    def judge(self, end: int, now: float, max_gap: int, max_s: float) -> bool:
        """Look again whether it is in sync; True if it has just left."""
        gap, behind = self.size(end), self.seconds(end, now)
        if not self.in_sync:
            self.in_sync = self.reported >= 0 and gap < max_gap and behind < min(BACK_S, max_s)
            return False
        self.in_sync = gap < max_gap and behind <= max_s
        return not self.in_sync

"""The six positions in the log that everything else is decided by.

    start <= flushed, dispatched <= appended        start <= appended
    replicated, confirmed <= appended

`confirmed` is what the ack mode allows consumers to see. The store writes start, appended, flushed
and dispatched; the broker's replication writes replicated and confirmed, which are 0 while nobody
has reported anything. They only rise; `reset` is for recovery and truncation. A log that is cut as
a whole ends at 0, wherever it began.

Every change asserts the order: a watermark that leads what it follows would acknowledge, show or
delete what is not there.
"""

from __future__ import annotations

from saturnmq.store.offsets import PhysicalOffset

NOWHERE = PhysicalOffset(0)


class Watermarks:
    """Physical offsets; each setter ignores a step back, so that late reports do no harm."""

    __slots__ = ("_appended", "_confirmed", "_dispatched", "_flushed", "_replicated", "_start")

    def __init__(self) -> None:
        self._start = self._appended = self._flushed = NOWHERE
        self._replicated = self._confirmed = self._dispatched = NOWHERE

    def reset(
        self,
        start: PhysicalOffset,
        end: PhysicalOffset,
        *,
        flushed: PhysicalOffset,
        dispatched: PhysicalOffset,
    ) -> None:
        """The log goes from `start` to `end` (after recovery or a truncation); nothing counts as
        confirmed of what has to be dispatched again."""
        self._start, self._appended = start, end
        self._flushed, self._dispatched = min(flushed, end), min(dispatched, end)
        self._confirmed = min(self._confirmed, self._dispatched)
        self._replicated = min(self._replicated, end)
        self.validate()

    def validate(self) -> None:
        """AssertionError: two of them are not in order."""
        start, end = self._start, self._appended
        assert start >= 0, f"the log begins at {start}"
        assert start <= end or end == 0, f"the log begins at {start} and ends at {end}"
        assert self._flushed <= end, f"{self._flushed} is flushed of a log that ends at {end}"
        assert self._dispatched <= end, f"{self._dispatched} is dispatched, the log ends at {end}"
        assert self._replicated <= end, f"{self._replicated} is replicated, the log ends at {end}"
        assert self._confirmed <= end, f"{self._confirmed} is confirmed, the log ends at {end}"
        if end:
            assert start <= self._flushed, f"{self._flushed} is flushed, the log begins at {start}"
            assert start <= self._dispatched, f"dispatched {self._dispatched}, begins at {start}"

    @property
    def start(self) -> PhysicalOffset:
        return self._start

    @start.setter
    def start(self, value: PhysicalOffset) -> None:
        safe = min(self._flushed, self._dispatched)
        assert value <= safe, f"deleted up to {value}, flushed and dispatched up to {safe}"
        self._start = max(self._start, value)

    @property
    def appended(self) -> PhysicalOffset:
        return self._appended

    @appended.setter
    def appended(self, value: PhysicalOffset) -> None:
        self._appended = max(self._appended, value)

    @property
    def flushed(self) -> PhysicalOffset:
        return self._flushed

    @flushed.setter
    def flushed(self, value: PhysicalOffset) -> None:
        assert value <= self._appended, f"flushed {value}, appended {self._appended}"
        self._flushed = max(self._flushed, value)

    @property
    def replicated(self) -> PhysicalOffset:
        return self._replicated

    @replicated.setter
    def replicated(self, value: PhysicalOffset) -> None:
        assert value <= self._appended, f"replicated {value}, appended {self._appended}"
        self._replicated = max(self._replicated, value)

    @property
    def confirmed(self) -> PhysicalOffset:
        return self._confirmed

    @confirmed.setter
    def confirmed(self, value: PhysicalOffset) -> None:
        assert value <= self._appended, f"confirmed {value}, appended {self._appended}"
        self._confirmed = max(self._confirmed, value)

    @property
    def dispatched(self) -> PhysicalOffset:
        return self._dispatched

    @dispatched.setter
    def dispatched(self, value: PhysicalOffset) -> None:
        assert value <= self._appended, f"dispatched {value}, appended {self._appended}"
        self._dispatched = max(self._dispatched, value)

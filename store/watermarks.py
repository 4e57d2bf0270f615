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
    """Physical offsets; each ignores a step back, so that late reports do no harm. Every request
    reads several of them: reading one is a plain slot, only writing is checked."""

    __slots__ = ("appended", "confirmed", "dispatched", "flushed", "replicated", "start")

    start: PhysicalOffset
    appended: PhysicalOffset
    flushed: PhysicalOffset
    replicated: PhysicalOffset
    confirmed: PhysicalOffset
    dispatched: PhysicalOffset

    def __init__(self) -> None:
        for name in self.__slots__:
            super().__setattr__(name, NOWHERE)

    def __setattr__(self, name: str, value: PhysicalOffset) -> None:
        if name == "start":
            safe = min(self.flushed, self.dispatched)
            assert value <= safe, f"deleted up to {value}, flushed and dispatched up to {safe}"
        elif name != "appended":
            assert value <= self.appended, f"{name} {value}, appended {self.appended}"
        if value > getattr(self, name):
            super().__setattr__(name, value)

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
        for name, value in (
            ("start", start),
            ("appended", end),
            ("flushed", min(flushed, end)),
            ("dispatched", min(dispatched, end)),
            ("confirmed", min(self.confirmed, dispatched, end)),
            ("replicated", min(self.replicated, end)),
        ):
            super().__setattr__(name, value)
        self.validate()

    def validate(self) -> None:
        """AssertionError: two of them are not in order."""
        start, end = self.start, self.appended
        assert start >= 0, f"the log begins at {start}"
        assert start <= end or end == 0, f"the log begins at {start} and ends at {end}"
        assert self.flushed <= end, f"{self.flushed} is flushed of a log that ends at {end}"
        assert self.dispatched <= end, f"{self.dispatched} is dispatched, the log ends at {end}"
        assert self.replicated <= end, f"{self.replicated} is replicated, the log ends at {end}"
        assert self.confirmed <= end, f"{self.confirmed} is confirmed, the log ends at {end}"
        if end:
            assert start <= self.flushed, f"{self.flushed} is flushed, the log begins at {start}"
            assert start <= self.dispatched, f"dispatched {self.dispatched}, begins at {start}"

"""Memory that peers make a process hold: its limits, and the refusal beyond them.

Pure accounting. Code that is about to keep something for a peer takes its size from a budget first
(`take`, which refuses, or `try_take`), and gives it back when it is kept no more. Memory that
exists already is counted without a check (`hold`): then the budget is over its limit, and the next
`take` is refused. A budget may be a part of another one: the budget of a connection belongs to that
of its process. So one peer gets no more than its part, and all of them together no more than the
whole.

A budget that is short first calls `relieve`, which may close the connections that have held memory
for too long.
"""

from __future__ import annotations

from collections.abc import Callable

from saturnmq.runtime.errors import SystemBusy


class Budget:
    """A number of bytes: `used` of `limit`; `most` is the most used at once; `refused` counts
    refusals, on the whole only."""

    __slots__ = ("limit", "most", "name", "refused", "relieve", "used", "whole")

    def __init__(self, limit: int, name: str, whole: Budget | None = None) -> None:
        """`name`: the name of the limit, for error texts."""
        self.limit = limit
        self.name = name
        self.whole = whole
        self.used = self.most = self.refused = 0
        self.relieve: Callable[[], None] = _no_relief

    def take(self, size: int, what: str) -> None:
        """Count `size` bytes for `what`; SystemBusy if fewer are left."""
        if not self.try_take(size):
            raise self.refusal(size, what)

    def try_take(self, size: int) -> bool:
        """Count `size` bytes, if they are left."""
        if self._short(size) is not None:
            return False
        self.hold(size)
        return True

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes are left."""
        return self._short(size) is None

    def refusal(self, size: int, what: str) -> SystemBusy:
        """The error that refuses `size` bytes."""
        short = self._short(size) or self
        (self.whole or self).refused += 1
        return SystemBusy(
            f"[OVERLOAD]{what} needs {size} bytes; of {short.limit} ({short.name}) {short.used} "
            "are in use: try again later, send less at once, or raise the limit"
        )

    def _short(self, size: int) -> Budget | None:
        """The budget that has less than `size` left."""
        budget: Budget | None = self
        while budget is not None:
            if budget.used + size > budget.limit:
                budget.relieve()
                if budget.used + size > budget.limit:
                    return budget
            budget = budget.whole
        return None

    def overdrawn(self) -> SystemBusy | None:
        """The error that refuses new work that may need memory, if the whole is over its limit."""
        short = (self.whole or self)._short(0)
        return None if short is None else self.refusal(0, "a request")

    def has_spare(self, size: int) -> bool:
        """Whether half of the whole stays free with `size` more: for memory that only saves
        time."""
        whole = self if self.whole is None else self.whole
        return whole.used + size <= whole.limit // 2

    def hold(self, size: int) -> None:
        """Count memory that exists already; a negative `size` is memory that is released."""
        budget: Budget | None = self
        while budget is not None:
            used = budget.used = budget.used + size
            budget.most = max(budget.most, used)
            budget = budget.whole

    def give_back(self, size: int) -> None:
        self.hold(-size)

    def close(self) -> None:
        """Release everything."""
        self.give_back(self.used)


def _no_relief() -> None:
    """The default of `relieve`: no connection can be closed."""

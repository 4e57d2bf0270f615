"""The calls of one connection that wait for a turn of the loop, in their order.

Each call is a task, whose work comes in the turn behind the one in which it begins. So few begin in
a turn, of all connections together; the others wait, and the connections take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from saturnmq.runtime.turns import Turns


class Beginnings:
    def __init__(self, turns: Turns | None) -> None:
        """Without `turns` all begin at once."""
        self._turns = turns
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, begin: Callable[[], None]) -> None:
        """Have a call begin, now or when it is its turn."""
        if self._turns is None or (not self._waiting and self._turns.take()):
            begin()
            return
        self._waiting.append(begin)
        if len(self._waiting) == 1:
            self._turns.wait(self._next)

    def _next(self) -> bool:
        self._waiting.popleft()()
        if self._waiting and self._turns is not None:
            self._turns.wait(self._next)
        return True

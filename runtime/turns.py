"""Which of the requests that lie in the buffers of a server's connections are handled in one turn
of its event loop.

The first request of a read is handled at once. Those behind it, of all connections together, have
TURN_S of a turn; then the connections wait in line, and whatever else has come in is served before
them. So a client that asks one thing at a time waits for no flood, on however many connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .door import Runtime

T = TypeVar("T")

TURN_S = 0.001


class Turns:
    """Of one server."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._line: deque[Callable[[], None]] = deque()
        self._until = 0.0  # this turn lasts; 0: it has not begun

    def is_over(self) -> bool:
        """Whether what else was read has to wait for another turn."""
        now = self._runtime.monotonic()
        if not self._until:
            self._until = now + TURN_S
            self._runtime.call_soon(self._next)
        return now >= self._until

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn, after those that wait already."""
        self.is_over()  # this one has begun, so there is a next one
        self._line.append(go_on)

    def _next(self) -> None:
        self._until = 0.0
        for _ in range(len(self._line)):
            self._line.popleft()()
            if self.is_over():
                return


class OncePerTurn(Generic[T]):
    """What `make` makes, which has no arguments: for all who ask in one turn of the loop it is made
    once. So a flood of one question costs little more than reading it."""

    def __init__(self, runtime: Runtime, make: Callable[[], T]) -> None:
        self._runtime = runtime
        self._make = make
        self._made: list[T] = []

    def __call__(self) -> T:
        if not self._made:
            self._made.append(self._make())
            self._runtime.call_soon(self._made.clear)
        return self._made[0]

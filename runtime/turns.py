"""The choice of the requests in the buffers of a server's connections that are handled in one turn
of its event loop.

The first request of a read is handled at once. Those behind it, of all connections together, have
TURN_S of a turn. Then the connections wait in line, and all other input is served before them. So a
client with one request at a time waits for no flood, on however many connections.

The steps of TLS handshakes share this time (`when_free`): one of them costs as much as many
requests. So do the calls of gRPC, each of which is a task: its work comes in the turn behind
the one in which it is let go, so a number of them is let go in one (`take`, `free`): more if
such a turn was short, fewer if it was long.

A turn has further reads, too: libuv reads a socket up to 32 times in one, as long as each read
fills the buffer that it is given. After such a read the connection has to wait if its turn is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .door import Runtime

T = TypeVar("T")

TURN_S = 0.001
TASKS_S = 0.004  # for those that are let go in one turn
TASKS_LEAST, TASKS_MOST = 2, 64  # that are let go in a turn: of those in line; of those that come


class Turns:
    """The turns of one server."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # They return whether they let a task go.
        self._line: deque[Callable[[], bool | None]] = deque()
        self._let_go = 0  # of those that came in this turn
        self._share = TASKS_LEAST
        self._let_go_at = 0.0  # those in line, in the processor's time of the loop; 0: none
        self._until = 0.0  # end of this turn; 0: it has not begun

    def is_over(self) -> bool:
        """Whether further requests have to wait for another turn."""
        now = self._runtime.monotonic()
        if not self._until:
            self._until = now + TURN_S
            self._runtime.call_soon(self._next)
        return now >= self._until

    def take(self) -> bool:
        """Whether the caller may let one task go now, which works in the next turn."""
        if self.is_over() or self._let_go >= self._share:
            return False
        self._let_go += 1
        return True

    def wait(self, go_on: Callable[[], bool | None]) -> None:
        """Call `go_on` in a later turn, after those in line."""
        self.is_over()  # this one has begun, so there is a next one
        self._line.append(go_on)

    async def free(self) -> None:
        """Wait until the caller's task may work for about a millisecond."""
        if not self.is_over():
            return
        turn = self._runtime.create_future()

        def let_go() -> bool:
            if turn.done():  # it was cancelled
                return False
            turn.set_result(None)
            return True

        self.wait(let_go)
        await turn

    def when_free(self, step: Callable[[], None]) -> bool:
        """Call `step` now, or in a later turn if this one is over; whether it was called now."""
        if self.is_over():
            self.wait(step)
            return False
        step()
        return True

    def _next(self) -> None:
        if self._let_go_at:
            self._adapt()
        self._until, self._let_go = 0.0, 0
        let_go, before = 0, -1
        try:
            while before < let_go:  # the calls of one connection are in line one after the other
                before = let_go
                for _ in range(len(self._line)):
                    let_go += bool(self._line.popleft()())
                    if let_go >= self._share or self.is_over():
                        return
        finally:
            is_measured = let_go and self._line
            self._let_go_at = self._runtime.processor_time() if is_measured else 0.0
            if self._line:  # those behind a step that failed have a turn, too
                self.is_over()

    def _adapt(self) -> None:
        """Choose how many tasks are let go now, by the processor time that those of the turn before
        took: what other programs took meanwhile is nothing that fewer tasks would spare."""
        took_s = self._runtime.processor_time() - self._let_go_at
        if took_s > TASKS_S:
            self._share = max(self._share // 2, TASKS_LEAST)
        elif took_s < TASKS_S / 2 and self._line:
            self._share = min(self._share * 2, TASKS_MOST)


class OncePerTurn(Generic[T]):
    """The result of `make`, which has no arguments, made once for all requests in one turn of the
    loop. So a flood of the same request costs little more than reading it."""

    def __init__(self, runtime: Runtime, make: Callable[[], T]) -> None:
        self._runtime = runtime
        self._make = make
        self._made: list[T] = []

    def __call__(self) -> T:
        if not self._made:
            self._made.append(self._make())
            self._runtime.call_soon(self._made.clear)
        return self._made[0]

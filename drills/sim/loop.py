"""SimLoop: an asyncio event loop whose time is virtual and whose chance is seeded.

It is asyncio's own loop (`BaseEventLoop`) with the selector replaced by one that never waits:
when no callback is ready it moves the clock to the next timer. Futures, tasks, events and
`asyncio.timeout` therefore behave as they do in production, in one thread, and a minute of
cluster time costs what its callbacks cost.

The seed may reorder exactly those callbacks whose order asyncio leaves open. `call_soon` stays
first in, first out, as asyncio promises. Timers due at the same instant have no promised order, and
each timer fires up to `TIMER_SLACK_S` late.

Every callback belongs to a process: to the one in whose context (`PROCESS`) it was planned. A
frozen process (`freeze`, as SIGSTOP does) runs none of them; they wait, in the order they came due,
for `thaw`.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from typing import Any, TypeVar, TypeVarTuple

from saturnmq.drills.sim.trace import Trace

TIMER_SLACK_S = 1e-6
Args = TypeVarTuple("Args")
Result = TypeVar("Result")
PROCESS: ContextVar[object] = ContextVar("process", default=None)


class SimStuck(RuntimeError):
    """Nothing is ready and no timer is set: on a real machine this would hang for ever."""


class TooLong(RuntimeError):
    """The run passed its limit of virtual time or of steps: a livelock or a too small limit."""


class _VirtualSelector:
    """Stands where the loop would wait for sockets: waiting is moving the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.advance(timeout)
        return []


class _Handle(asyncio.Handle):
    """A callback that waits while its process is frozen."""

    __slots__ = ()
    _loop: SimLoop
    _context: Context

    def _run(self) -> None:
        if not self._loop.frozen or not self._loop.hold_back(self, self._context):
            super()._run()


class _TimerHandle(_Handle, asyncio.TimerHandle):
    """A handle that runs at a time of its own."""

    __slots__ = ()
    _scheduled: bool  # asyncio's own, which its type stubs leave out


class SimLoop(asyncio.BaseEventLoop):
    """Give it a seed; run it like any loop."""

    # asyncio's own, which its type stubs leave out
    _scheduled: list[asyncio.TimerHandle]
    _ready: deque[asyncio.Handle]

    def __init__(
        self, rng: random.Random, trace: Trace | None = None, limit_s: float = 24 * 3600.0
    ) -> None:
        super().__init__()
        self._now = 0.0
        self._rng = rng
        self._limit_s = limit_s
        self._turns_at_now = 0
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self.trace = trace if trace is not None else Trace()
        self.trace.now = self.time
        self.failures: list[str] = []
        self.ignored_failures: tuple[type[BaseException], ...] = ()
        self.frozen: dict[object, list[asyncio.Handle]] = {}
        self.set_exception_handler(self._record_failure)

    def time(self) -> float:
        return self._now

    def advance(self, timeout: float | None) -> None:
        """Moves the clock by the time the loop would have slept."""
        if timeout is None:
            raise SimStuck("no callback is ready and no timer is set: every task waits for another")
        if timeout > 0:
            self._now += timeout
            self._turns_at_now = 0
            if self._now > self._limit_s:
                raise TooLong(
                    f"virtual time passed {self._limit_s} s; raise limit_s or look for a livelock"
                )
            return
        self._turns_at_now += 1
        if self._turns_at_now > 1_000_000:
            raise TooLong(
                f"a million turns at virtual time {self._now:.6f} s: something never waits"
            )

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        # A little seeded lateness decides between equals. (`SimRuntime` makes timers early.)
        late = self._rng.random() * TIMER_SLACK_S
        timer = _TimerHandle(when + late, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def _call_soon(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    # frozen processes

    def freeze(self, process: object) -> None:
        """Run no callback of `process` from now on."""
        self.frozen.setdefault(process, [])

    def thaw(self, process: object) -> None:
        """Run the callbacks that came due meanwhile, in that order."""
        for handle in self.frozen.pop(process, ()):
            if not handle.cancelled():
                self._ready.append(handle)

    def hold_back(self, handle: asyncio.Handle, context: Context) -> bool:
        """Keep a callback that is due for later, if its process is frozen."""
        held = self.frozen.get(context.get(PROCESS))
        if held is None:
            return False
        held.append(handle)
        return True

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Args], Result], *args: *Args
    ) -> asyncio.Future[Result]:
        raise RuntimeError("no threads in the simulator: go through runtime.run_blocking")

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _record_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # "Never retrieved" comes when an object dies, which a garbage collection decides: no
        # part of the trace. A lost task is reported by its SimRuntime.
        error = context.get("exception")
        message = str(context.get("message"))
        if "never retrieved" in message or isinstance(error, self.ignored_failures):
            return
        self.failures.append(f"{message}: {error!r}")

"""Work that takes long beside an event loop that must not stand still.

In steps (`Steps`): work of more than a few milliseconds is done in steps of about one, and waits
for `next` between two. One turn of the loop has room for one step. All such work of a process takes
turns. However much of it there is, a turn gets longer by one step only, and all other input is
served between two.

In a thread (`Aside`): work that cannot be divided. Then the loop waits for the interpreter as long
as a thread may keep it (`sys.setswitchinterval`), so only one thread works at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

from .door import Runtime

T = TypeVar("T")


def at_once(work: Generator[None, None, T]) -> T:
    """Do all steps of the work now; returns its result."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        result: T = done.value
        return result


class Aside:
    """One thing at a time in a thread, or a few that wait for a disk."""

    def __init__(self, runtime: Runtime, at_once: int = 1) -> None:
        self._runtime = runtime
        self._working = asyncio.Semaphore(at_once)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        async with self._working:
            return await self._runtime.run_blocking(function, *args)


class Steps:
    """The steps of one process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False  # the step of this turn
        self._resting = False

    def take(self) -> bool:
        """Whether the caller may do a step at once. If not, the caller has to wait for `next`."""
        if self._taken or self._resting:
            return False
        self._begin()
        return True

    async def next(self) -> None:
        """Wait until it is the caller's turn to do one step."""
        turn = self._runtime.create_future()
        self._waiting.append(turn)
        if not self._taken:
            self._begin()
        await turn

    def start(self, work: Generator[None, None, None], name: str) -> asyncio.Task[None] | None:
        """Do one step at once, which is usually all; return the task that does the others."""
        try:
            next(work)
        except StopIteration:
            return None
        return self._runtime.spawn(self.run(work), name=name)

    async def run(self, work: Generator[None, None, T]) -> T:
        """Do the work, which yields between two steps; returns its result."""
        return cast(T, await self.run_while(work, lambda: True))

    async def run_while(
        self, work: Generator[None, None, T], is_wanted: Callable[[], bool]
    ) -> T | None:
        """The same as `run`; None if the work is no longer wanted before it is done."""
        try:
            while True:
                await self.next()
                if not is_wanted():
                    return None
                next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            work.close()

    @property
    def is_resting(self) -> bool:
        """Whether the data of such work is being changed."""
        return self._resting

    def pause(self) -> None:
        """No step is done until `resume`, because the data of the work is being changed."""
        self._resting = True

    def resume(self) -> None:
        self._resting = False
        if self._waiting and not self._taken:
            self._begin()

    def _begin(self) -> None:
        self._taken = True
        self._runtime.call_soon(self._go_on)

    def _go_on(self) -> None:
        """End the turn. The caller that has waited longest gets the next step."""
        while self._waiting and not self._resting:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise it was cancelled
                turn.set_result(None)
                self._runtime.call_soon(self._go_on)
                return
        self._taken = False

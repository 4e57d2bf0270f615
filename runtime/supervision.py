"""Tasks of clients and brokers: none ends silently, and a failure ends none of the others.

Every task of a client starts here, and every task of a broker whose failure casts no doubt on its
data. A permanent task starts again, after a pause, when it fails. A task with an end is not
repeated, and its error goes to the code that waits for it. Both failures are reported: to the
application (ClientCore.report_error), or to the operator of a broker (`broker/failures.py`).

A failure is an end with any exception, also with SystemExit and KeyboardInterrupt, which would end
the loop with all other tasks, and with a CancelledError that nobody asked for, which comes from
something that was awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

from .door import Runtime
from .errors import SaturnError, TaskFailed

PAUSE_S = 1.0  # doubles from failure to failure
PAUSE_MAX_S = 30.0

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, object]]


class Supervisor:
    """Starts tasks and learns how they end. Loop thread only."""

    def __init__(self, runtime: Runtime, report: Callable[[SaturnError], None]) -> None:
        self._runtime = runtime
        self._report = report
        self._unfinished: set[asyncio.Task[Any]] = set()

    def keep(self, work: Work, *, name: str) -> asyncio.Task[None]:
        """Run `work`, and again when it fails, until it returns or is cancelled."""
        return self._runtime.spawn(self._keep(work, name), name=name)

    def once(
        self, work: Work, *, name: str, failed: Callable[[SaturnError], object] | None = None
    ) -> asyncio.Task[None]:
        """Run `work`; if it fails, `failed` gets the error for those who wait for the outcome."""
        return self._runtime.spawn(self._once(work, name, failed), name=name)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that must not stop half-way: a caller that is cancelled meanwhile waits for its
        end."""
        task = self._runtime.spawn(_outcome(work), name="unfinished")
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise
        return outcome()

    async def finished(self) -> None:
        """Wait for the end of all work that must not stop half-way."""
        if self._unfinished:
            await asyncio.wait(self._unfinished)

    async def _keep(self, work: Work, name: str) -> None:
        pause = PAUSE_S
        while True:
            began = self._runtime.monotonic()
            error = await _failure(work)
            if error is None:
                return
            if self._runtime.monotonic() - began > PAUSE_MAX_S:
                pause = PAUSE_S
            self.failed(f"task {name!r} failed, again in {pause:g} s", error)
            await self._runtime.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    async def _once(
        self, work: Work, name: str, failed: Callable[[SaturnError], object] | None
    ) -> None:
        error = await _failure(work)
        if error is not None:
            reported = self.failed(f"task {name!r} failed", error)
            if failed is not None:
                failed(reported)

    def failed(self, what: str, error: BaseException) -> TaskFailed:
        """Report a failure that nothing foresaw, and return the error for those who wait."""
        reported = TaskFailed(f"{what}: {error!r}")
        reported.__cause__ = error
        self._report(reported)
        return reported


async def _failure(work: Work) -> BaseException | None:
    """The exception that ended `work`, if any."""
    try:
        await work()
    except GeneratorExit:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return error
    except BaseException as error:
        return error
    return None


async def _outcome(work: Coroutine[Any, Any, T]) -> Callable[[], T]:
    """A function that returns the result, or raises the error."""
    try:
        value = await work
    except Exception as failure:
        error = failure

        def fail() -> NoReturn:
            raise error

        return fail
    return lambda: value

"""Threads for blocking calls of one owner.

A call through them costs a third of one through the executor. Each thread sleeps on a lock of its
own. With one queue for all, a thread that takes a job wakes the next one, which finds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class _Job(NamedTuple):
    future: asyncio.Future[Any]
    function: Callable[..., Any]
    args: tuple[Any, ...]


class _Worker:
    """A thread of `NativeWorkers`, and what it sleeps on."""

    __slots__ = ("job", "woken")

    def __init__(self, job: _Job) -> None:
        self.job: _Job | None = job  # None: end
        self.woken = Lock()
        self.woken.acquire()

    def give(self, job: _Job | None) -> None:
        """Wake the thread, which sleeps or is about to."""
        self.job = job
        self.woken.release()


class NativeWorkers:
    """Started as they are needed; the last one to become idle is the first to work."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int, name: str) -> None:
        self._loop = loop
        self._most = threads
        self._name = name
        self._started = 0
        self._idle: list[_Worker] = []
        self._backlog: deque[_Job] = deque()
        self._closed = False

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """The call begins at once if a thread is free. All that goes wrong is in the future."""
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(future, function, args)
        if self._idle:
            self._idle.pop().give(job)
        elif self._started == self._most:
            self._backlog.append(job)
        else:
            self._start(job)
        return future

    def _start(self, job: _Job) -> None:
        name = f"{self._name}-{self._started + 1}"
        # A daemon: a listener that hangs must not keep the interpreter from ending.
        thread = Thread(target=self._work, args=(_Worker(job),), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            if not self._started:
                job.future.set_exception(error)
                return
            log.warning("%s: %d threads have to do: %s", self._name, self._started, error)
            self._backlog.append(job)
            return
        self._started += 1

    def _work(self, worker: _Worker) -> None:
        while (job := worker.job) is not None:
            future, function, args = job
            result = error = None
            try:
                result = function(*args)
            except BaseException as problem:
                error = problem
            worker.job = None
            with contextlib.suppress(IndexError):
                worker.job = self._backlog.popleft()
            is_idle = worker.job is None
            try:
                self._loop.call_soon_threadsafe(
                    self._settle, worker if is_idle else None, future, result, error
                )
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del job, future, function, args, result, error  # nothing is kept while waiting
            if is_idle:
                worker.woken.acquire()

    def _settle(
        self,
        idle: _Worker | None,
        future: asyncio.Future[Any],
        result: object,
        error: BaseException | None,
    ) -> None:
        if idle is not None:
            self._next(idle)
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _next(self, worker: _Worker) -> None:
        """A thread has nothing to do. A job may have come since it looked."""
        if self._backlog:
            worker.give(self._backlog.popleft())
        elif self._closed:
            worker.give(None)
        else:
            self._idle.append(worker)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().give(None)

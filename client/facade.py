"""A synchronous client over an asynchronous one.

A `Facade` is over an object that was made on the loop of a LoopThread: coroutine methods are waited
for, plain ones are called there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from saturnmq.client.consumer.listening import CALLING
from saturnmq.client.loop_thread import LoopThread
from saturnmq.runtime.native import NativeRuntime

T = TypeVar("T")


class FacadeTarget(Protocol):
    """The interface of the object behind a Facade."""

    def start(self) -> Coroutine[Any, Any, object]: ...
    def close(self) -> Coroutine[Any, Any, None]: ...
    def __aexit__(self, *_: Any, **__: Any) -> Coroutine[Any, Any, None]: ...


Async = TypeVar("Async", bound=FacadeTarget)


class Facade(Generic[Async]):
    """The common part of the classes of blocking_faces.py: their loop, their start and their
    end."""

    def __init__(self, make: Callable[[NativeRuntime], Async]) -> None:
        self._thread = LoopThread()
        self._ending = threading.Lock()
        self._closed = False
        try:
            self._target = self._thread.call(make, self._thread.runtime)
        except BaseException:
            self._thread.close()
            raise

    def start(self) -> Self:
        """Start; `with` calls it."""
        self._thread.run(self._target.start())
        return self

    def close(self) -> None:
        """End the client and its thread; `with` calls it. In the client's own listener it returns
        at once; the end waits for the listener."""
        self._end(self._target.close)

    def _end(self, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._thread.inherited:
            return
        self._thread.check_caller()
        caller = CALLING.get()
        if caller is not None and caller.runtime is self._thread.runtime:
            # In the client's own listener, for whose return the end waits: another thread ends it.
            apart = partial(Context().run, self._end, ending)
            threading.Thread(target=apart, name="saturnmq-close").start()
            return
        with self._ending:  # a second caller waits for the first
            if self._closed:
                return
            self._closed = True
            try:
                self._thread.run(ending())
            finally:
                self._thread.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(lambda: self._target.__aexit__(kind, error, trace))

    def _wait(
        self, answer: Coroutine[Any, Any, T], untaken: Callable[[T], object] | None = None
    ) -> T:
        return self._thread.run(answer, untaken=untaken)

    def _call(self, function: Callable[[], T]) -> T:
        return self._thread.call(function)

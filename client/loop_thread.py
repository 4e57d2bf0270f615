"""An event loop in a daemon thread, on which synchronous callers run coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from saturnmq.client.option_checks import check_timeout
from saturnmq.client.producer.batch import ProducerBatch
from saturnmq.runtime import forks
from saturnmq.runtime.errors import ClientClosed, RequestTimeout
from saturnmq.runtime.native import NativeRuntime, new_event_loop

T = TypeVar("T")


def shut_gate() -> threading.Lock:
    """The cheapest thing a thread can wait for."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class NotDone(RequestTimeout):
    """The loop has not done it in the time that its caller gave"""


class LoopThread:
    """One event loop in a daemon thread of its own."""

    def __init__(self, name: str = "saturnmq-client") -> None:
        self.loop = new_event_loop()
        self.runtime = NativeRuntime(self.loop)
        self.inherited = False  # it belongs to the process that forked this one
        self._closing = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        forks.register(self)

    def forked(self) -> None:
        """A child has the loop, but not the thread that runs it."""
        self.inherited = True

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        if pending:
            self.loop.run_until_complete(asyncio.wait(pending, timeout=5))
        self.loop.close()

    def check_caller(self) -> None:
        """RuntimeError: this thread runs the loop, which could not go on while it waits."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call on the client's own loop would never return: in listeners and "
                "callbacks of the loop use saturnmq.aio"
            )

    def run(
        self,
        coro: Coroutine[Any, Any, T],
        timeout: float | None = None,
        untaken: Callable[[T], object] | None = None,
    ) -> T:
        """Run a coroutine on the loop and wait for its result. If the wait is interrupted, the
        coroutine is cancelled; a result that it has by then goes to `untaken`, on the loop."""
        try:
            self.check_caller()
            if self.inherited:
                raise forks.refusal()
            if not self._thread.is_alive():
                raise ClientClosed("the client is closed")
        except Exception:
            coro.close()
            raise
        results: list[T] = []

        async def there() -> T:
            results.append(result := await coro)
            return result

        def give_back() -> None:  # after the cancellation: if there is none by now, none comes
            if results and untaken is not None:
                untaken(results.pop())

        future = asyncio.run_coroutine_threadsafe(there(), self.loop)
        try:
            return future.result(timeout)
        except CancelledError:
            if self._closing:
                raise ClientClosed("the client was closed meanwhile") from None
            raise
        except BaseException as error:
            late = not future.done()
            future.cancel()
            if late or results:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(give_back)
            if late and isinstance(error, TimeoutError):
                raise NotDone(f"not done in {timeout} s") from None
            raise

    def wait_for(self, batch: ProducerBatch, timeout: float | None) -> None:
        """Wait until `batch` is over; RequestTimeout if it takes longer than `timeout` seconds."""
        check_timeout(timeout)
        self.check_caller()
        over = shut_gate()
        if batch.lane.owner.watch(batch, over.release, waits=True) and not over.acquire(
            timeout=-1 if timeout is None else timeout
        ):
            why = batch.lane.owner.last_try(batch.lane.topic, batch)
            raise RequestTimeout(f"no acknowledgement in {timeout} s{why}; the send goes on")

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a plain function on the loop and wait for its result."""

        async def there() -> T:
            return function(*args, **kwargs)

        return self.run(there())

    def close(self) -> None:
        """Stop the loop; running tasks on it are cancelled. For an inherited loop it does
        nothing."""
        if self.inherited:
            return
        self._closing = True
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(10.0)
        self.runtime.close()

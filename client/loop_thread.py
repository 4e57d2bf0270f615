"""An event loop in a daemon thread, on which synchronous callers run coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from saturnmq.runtime import forks
from saturnmq.runtime.errors import ClientClosed, RequestTimeout
from saturnmq.runtime.native import NativeRuntime, new_event_loop

T = TypeVar("T")


class LoopThread:
    """One event loop in a daemon thread of its own."""

    def __init__(self, name: str = "saturnmq-client") -> None:
        self.loop = new_event_loop()
        self.runtime = NativeRuntime(self.loop)
        self.inherited = False  # it belongs to the process that forked this one
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

    def run(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result."""
        if threading.current_thread() is self._thread:
            coro.close()
            raise RuntimeError(
                "a blocking call on the client's own loop would never return: in listeners and "
                "callbacks of the loop use saturnmq.aio"
            )
        if self.inherited:
            coro.close()
            raise forks.refusal()
        if not self._thread.is_alive():
            coro.close()
            raise ClientClosed("the client is closed")
        future = asyncio.run_coroutine_threadsafe(coro, self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise RequestTimeout(f"not done in {timeout} s") from None

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
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join(10.0)
        self.runtime.close()

"""The gate of the store: many pieces of work side by side, or one alone.

Flushes, checkpoints, cleaning and saves go through `shared`. Cancelling their caller does not stop
them: a thread in the store cannot be cancelled, so closing waits until they end. `exclusive` waits
until none of them runs and lets none begin: a truncation removes the files that they work on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.runtime.door import Runtime


class StoreGate:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._open = asyncio.Event()
        self._open.set()
        self.is_open = True  # as the event says: each request asks
        self._idle = asyncio.Event()
        self._idle.set()
        self._working = 0
        self._kept: set[asyncio.Future[None]] = set()

    def shared(self, work: Awaitable[None]) -> Awaitable[None]:
        """Do this work when the gate is open."""
        return self._keep(self._among_others(work))

    def exclusive(
        self, work: Callable[[], Any], *, pause: Callable[[], None], resume: Callable[[], None]
    ) -> Awaitable[None]:
        """Run a blocking call while nothing else works on the store. `pause` is called just before
        it, `resume` just after it."""
        return self._keep(self._alone(work, pause, resume))

    async def ended(self) -> None:
        """Wait until all work that has begun is over."""
        await asyncio.gather(*self._kept, return_exceptions=True)

    async def _among_others(self, work: Awaitable[None]) -> None:
        while not self._open.is_set():  # another truncation may have begun meanwhile
            await self._open.wait()
        self._working += 1
        self._idle.clear()
        try:
            await work
        finally:
            self._working -= 1
            assert self._working >= 0, f"{-self._working} more have ended than begun"
            if not self._working:
                self._idle.set()

    async def _alone(
        self, work: Callable[[], Any], pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        self.is_open = False
        try:
            await self._idle.wait()
            self.validate()
            assert not self._working, f"{self._working} still work on the store"
            pause()
            await self._runtime.run_blocking(work)
            self.validate()
            assert not self._working, f"{self._working} have begun beside a truncation"
        finally:
            resume()
            self._open.set()
            self.is_open = True

    def validate(self) -> None:
        """AssertionError: it counts wrongly who works on the store."""
        assert self._working >= 0, f"{self._working} work on the store"
        assert self.is_open == self._open.is_set(), f"the gate is open: {self.is_open}"
        assert self._idle.is_set() == (self._working == 0), f"{self._working} work on the store"
        assert self._working <= len(self._kept), f"{self._working} of {len(self._kept)} are kept"

    def _keep(self, work: Awaitable[None]) -> Awaitable[None]:
        kept = asyncio.ensure_future(work)
        self._kept.add(kept)
        kept.add_done_callback(self._kept.discard)
        return asyncio.shield(kept)

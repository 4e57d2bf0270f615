"""The flush service: the only advancer of `flushed`.

One flush runs at a time, in a thread, over everything appended when it began: what is appended
meanwhile goes with the next one (group commit). With SYNC_FLUSH every append wakes it; with
ASYNC_FLUSH it runs every `flush_interval_ms`, whatever was appended, so that the loss window is
bounded by time and not by bytes. A failed flush is final: the store fences itself, every waiter
is told, nothing is retried (fault-model §4 rule 1).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from saturnmq.protocol.runtime import Runtime
from saturnmq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class FlushService:
    def __init__(
        self,
        store: MessageStore,
        runtime: Runtime,
        *,
        sync: bool,
        interval_s: float,
        on_flushed: Callable[[], None],
        on_failed: Callable[[OSError], None],
        guard: Callable[[Awaitable[None]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._sync = sync
        self._interval = interval_s
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._guard = guard  # lets a flush end though its caller is cancelled
        self._wanted = asyncio.Event()
        self.failed: OSError | None = None

    def wake(self) -> None:
        """Something was appended."""
        if self._sync:
            self._wanted.set()

    async def run(self) -> None:
        while self.failed is None:
            if self._sync:
                await self._wanted.wait()
                self._wanted.clear()
            else:
                await self._runtime.sleep(self._interval)
            await self._guard(self.flush_once())

    async def flush_once(self) -> None:
        """Flush everything appended so far; what is appended meanwhile too, if SYNC_FLUSH."""
        marks = self._store.watermarks
        target = marks.appended
        while self.failed is None and marks.flushed < target:
            ticket = self._store.begin_flush()
            if ticket is None:  # another caller's flush is under way
                await self._runtime.sleep(0.002)
                continue
            try:
                await self._runtime.run_blocking(ticket.run)
            except OSError as error:
                self.failed = error
                self._store.complete_flush(ticket, error)
                log.critical("flush failed, the broker takes no more writes: %s", error)
                self._on_failed(error)
                return
            self._store.complete_flush(ticket)
            self._on_flushed()
            if self._sync:
                target = marks.appended

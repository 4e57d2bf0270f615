"""The cleaning service: watches the space on the disk and deletes files behind their retention.

Every second it looks at the disk. Sends are refused while the disk is too full, and go on by
themselves when space returns (docs/guarantees.md S9). Reput, which may have lacked room for a queue
file, is tried again then. The store's cleaner runs every `cleanResourceInterval` (10 s, first after
60 s), and every second while the disk is short of space or after a request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SystemBusy
from saturnmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

WATCH_S = 1.0
FIRST_S = 60.0


class CleaningService:
    def __init__(
        self,
        store: MessageStore,
        runtime: Runtime,
        *,
        now_ms: Callable[[], int],
        retry_dispatch: Callable[[], None],
        guard: Callable[[Awaitable[None]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._now_ms = now_ms  # the clock that age is measured by
        self._retry_dispatch = retry_dispatch
        self._guard = guard
        self._requested = False

    def request(self) -> None:
        """RocketMQ's manual deletion: delete expired segments at any hour."""
        self._requested = True
        self._store.clean_on_request()

    async def run(self) -> None:
        store, runtime = self._store, self._runtime
        due = runtime.monotonic() + FIRST_S
        while True:
            await runtime.sleep(WATCH_S)
            store.watch_space()
            if store.refuses:
                self._retry_dispatch()
            now = runtime.monotonic()
            if now >= due or store.space.short or self._requested:
                due = now + store.config.clean_interval_ms / 1000
                self._requested = False
                await self._guard(self._clean())

    async def _clean(self) -> None:
        try:
            ticket = self._store.begin_clean(self._now_ms())
        except (SystemBusy, OSError) as error:
            log.error("cannot look for expired files, trying again: %s", error)
            return
        if ticket is None:
            return
        marks = self._store.watermarks
        assert marks.start <= marks.flushed, f"deleted up to {marks.start} of {marks.flushed}"
        try:
            await self._runtime.run_blocking(ticket.run)
        except OSError as error:
            log.error("cannot delete expired files, trying again: %s", error)

"""The flush service: the only advancer of `flushed`.

One flush runs at a time, in a thread, over everything appended when it began: what is appended
meanwhile goes with the next one (group commit). With SYNC_FLUSH every append wakes it; with
ASYNC_FLUSH one begins every `flush_interval_ms`, or when the one before ends, whatever was
appended: the loss window is bounded by time and not by bytes. Where the disk is too slow for that,
`keeps_up` says so, and nothing is acknowledged until the next flush ends: what an acknowledgement
promises must be on the disk within BOUND_S (docs/guarantees.md 2.2). A failed flush is final: the
store fences itself, every waiter is told, nothing is retried (docs/guarantees.md S1).

With a transient pool a commit writes what is in memory only, every `commit_interval_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from saturnmq.runtime.door import Runtime
from saturnmq.store.message_store import FlushTicket, MessageStore

BOUND_S = 0.4  # below the 500 ms that are promised: an acknowledgement takes its time to leave


class FlushService:
    def __init__(
        self,
        store: MessageStore,
        runtime: Runtime,
        *,
        sync: bool,
        interval_s: float,
        on_flushed: Callable[[], None],
        on_failed: Callable[[], None],
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
        self._dirty_since: float | None = None  # no later than the oldest append not yet flushed

    @property
    def stopped(self) -> bool:
        """The store takes no more writes, whatever failed: nothing is flushed any more."""
        return self._store.failed is not None

    def wake(self) -> None:
        """Something was appended."""
        if self._sync:
            self._wanted.set()

    def flush_at_once(self) -> None:
        """A master waits for what is flushed here: as if SYNC_FLUSH from now on."""
        self._sync = True
        self._wanted.set()

    def behind_ms(self) -> int:
        """How long the oldest append that is not flushed has been waiting."""
        marks = self._store.watermarks
        if marks.flushed >= marks.appended:
            self._dirty_since = None
            return 0
        now = self._runtime.monotonic()
        if self._dirty_since is None:
            self._dirty_since = now
        return round(1000 * (now - self._dirty_since))

    def keeps_up(self) -> bool:
        """Whether the disk is near enough to acknowledge what it does not have yet."""
        return self.behind_ms() <= 1000 * BOUND_S

    async def run(self) -> None:
        wait = self._interval
        while not self.stopped:
            if self._sync:
                await self._wanted.wait()
                self._wanted.clear()
            else:
                await self._runtime.sleep(wait)
            begun = self._runtime.monotonic()
            await self._guard(self.flush_once())
            wait = max(0.0, self._interval - (self._runtime.monotonic() - begun))

    async def run_commits(self, interval_s: float) -> None:
        """Write what the transient pool holds."""
        while not self.stopped:
            await self._runtime.sleep(interval_s)
            await self._guard(self._commit())

    async def _commit(self) -> None:
        ticket = self._store.begin_commit()
        if ticket is None:  # nothing to write, or a flush is under way, which writes it too
            return
        if await self._run(ticket):
            self._on_flushed()

    async def _run(self, ticket: FlushTicket) -> bool:
        """Let a thread do it; False: it failed, and the store takes no more."""
        error = None
        try:
            await self._runtime.run_blocking(ticket.run)
        except OSError as caught:
            error = caught
        self._store.complete_flush(ticket, error)
        if error is not None:
            self._on_failed()
        return error is None

    async def flush_once(self) -> None:
        """Flush everything appended so far; what is appended meanwhile too, if SYNC_FLUSH."""
        marks = self._store.watermarks
        target = marks.appended
        while not self.stopped and marks.flushed < target:
            ticket = self._store.begin_flush()
            if ticket is None:  # another caller's flush is under way
                await self._runtime.sleep(0.002)
                continue
            begun = self._runtime.monotonic()
            if not await self._run(ticket):
                return
            later = marks.appended > marks.flushed  # it was not part of this flush
            self._dirty_since = begun if later else None
            self._on_flushed()
            if self._sync:
                target = marks.appended

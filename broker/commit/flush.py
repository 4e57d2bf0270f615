"""The flush service: the only advancer of `flushed`.

One flush runs at a time, beside the loop, over everything that was appended when it began. Later
appends go with the next flush (group commit). With SYNC_FLUSH every append wakes it, and the kernel
syncs without a thread where it can: to wake a thread and to be woken by it takes as long as a fast
disk. With ASYNC_FLUSH a thread does it; a flush begins every `flush_interval_ms`, or when the one
before ends, however much was appended: the loss window is bounded by time and not by bytes. If the
disk is too slow for that, `keeps_up` is false, and nothing is acknowledged until the next flush
ends: an acknowledged message must be on the disk within BOUND_S (docs/guarantees.md 2.2). A failed
flush is final: the store fences itself, every waiting send gets an answer, nothing is retried
(docs/guarantees.md S1).

With a transient pool a commit writes the buffers in memory to the file every `commit_interval_ms`.
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
        self.on_flushed = [on_flushed]
        self._on_failed = on_failed
        self._guard = guard  # lets a flush end even if its caller is cancelled
        self._wanted = asyncio.Event()
        self._dirty_since: float | None = None  # no later than the oldest append not yet flushed

    @property
    def stopped(self) -> bool:
        """Whether the store takes no more writes, whatever failed: nothing is flushed any more."""
        return self._store.failed is not None

    def wake(self) -> None:
        """Note an append: with SYNC_FLUSH, flush."""
        if self._sync:
            self._wanted.set()

    def flush_at_once(self) -> None:
        """Flush as with SYNC_FLUSH from now on: the master waits for this slave's flushes."""
        self._sync = True
        self._wanted.set()

    def behind_ms(self) -> int:
        """The age of the oldest append that is not flushed."""
        return round(1000 * self._behind_s())

    def _behind_s(self) -> float:
        marks = self._store.watermarks
        if marks.flushed >= marks.appended:
            self._dirty_since = None
            return 0.0
        now = self._runtime.monotonic()
        if self._dirty_since is None:
            self._dirty_since = now
        assert now >= self._dirty_since, f"appended at {self._dirty_since}, it is {now}"
        return now - self._dirty_since

    def keeps_up(self) -> bool:
        """Whether the disk is close enough behind to acknowledge messages before it has them."""
        return self._behind_s() <= BOUND_S

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
        """Write the transient pool's buffers to the log."""
        while not self.stopped:
            await self._runtime.sleep(interval_s)
            await self._guard(self._commit())

    async def _commit(self) -> None:
        ticket = self._store.begin_commit()
        if ticket is None:  # nothing to write, or a flush is under way, which writes it too
            return
        if await self._run(ticket):
            self._tell_flushed()

    async def _sync_by_kernel(self, ticket: FlushTicket) -> bool:
        """Flush without a thread, if that is possible: a sender waits for it. False: it is not."""
        file = ticket.only_file if self._sync else None
        if file is None or file.descriptor < 0:
            return False
        syncing = self._runtime.datasync(file.descriptor)
        if syncing is None:
            return False
        try:
            await syncing
        except OSError as error:
            error.filename = file.path
            raise
        ticket.check_in_place()
        return True

    async def _run(self, ticket: FlushTicket) -> bool:
        """Flush; False: it failed, and the store takes no more writes."""
        error = None
        try:
            if not await self._sync_by_kernel(ticket):
                await self._runtime.run_blocking(ticket.run)
        except OSError as caught:
            error = caught
        self._store.complete_flush(ticket, error)
        if error is not None:
            self._on_failed()
        return error is None

    def _tell_flushed(self) -> None:
        for tell in self.on_flushed:
            tell()

    async def flush_once(self) -> None:
        """Flush everything appended so far; with SYNC_FLUSH, also the appends that come
        meanwhile."""
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
            assert ticket.target <= marks.appended, (ticket.target, marks.appended)
            is_done = marks.flushed >= ticket.target or self.stopped
            assert is_done, f"{marks.flushed} is flushed after a flush up to {ticket.target}"
            later = marks.appended > marks.flushed  # it was not part of this flush
            self._dirty_since = begun if later else None
            self._tell_flushed()
            if self._sync:
                target = marks.appended

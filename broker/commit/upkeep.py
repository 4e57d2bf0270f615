"""Upkeep of the store, in three services.

Two keep the store ahead of its writer. One zeroes and maps segments of the log before they are
needed. One makes room and new files for queues and index; it does not wait for the first, which may
take a second. The third prepares the next start. Every second it checks that the log's files are
still where they were, syncs the queue and index files, and then writes the checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from saturnmq.broker.commit.gate import StoreGate
from saturnmq.runtime.door import Runtime
from saturnmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

PREPARE_BYTES = 4 << 20  # appended since the log was last prepared ahead
CHECKPOINT_S = 1.0
AGAIN_S = 1.0


class Upkeep:
    def __init__(
        self, store: MessageStore, runtime: Runtime, gate: StoreGate, on_failed: Callable[[], None]
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._gate = gate
        self._on_failed = on_failed
        self._step = min(PREPARE_BYTES, store.config.commitlog_segment_bytes // 4)
        assert self._step > 0, f"the log is prepared ahead every {self._step} bytes"
        self._prepared_to = 0
        self._wanted = asyncio.Event()
        self._wants_room = asyncio.Event()
        self._writing = asyncio.Lock()  # one checkpoint at a time

    def appended(self) -> None:
        """Note an append: the writer has used a part of the prepared space."""
        store = self._store
        if store.watermarks.appended - self._prepared_to >= self._step:
            self._wanted.set()
        if store.wants_room:
            self._wants_room.set()

    async def run_ahead(self) -> None:
        """Zero and map the log ahead of the writer."""
        while True:
            self._prepared_to = self._store.watermarks.appended
            self._wanted.clear()
            await self._ahead(self._store.prepare_ahead, "prepare the log ahead of its writer")
            await self._wanted.wait()

    async def run_room(self) -> None:
        """Make room where queue and index files grow, and the next ones of them."""
        while True:
            self._wants_room.clear()
            await self._ahead(self._store.make_room_ahead, "make room ahead of the writer")
            await self._wants_room.wait()

    async def _ahead(self, work: Callable[[], None], what: str) -> None:
        try:
            await self._gate.shared(self._runtime.run_blocking(work))
        except OSError as error:
            log.error("cannot %s: %s", what, error)
            await self._runtime.sleep(AGAIN_S)

    async def run_checkpoints(self) -> None:
        """Sync queue and index files, then write the checkpoint, which is never ahead of the
        log."""
        while True:
            await self._runtime.sleep(CHECKPOINT_S)
            try:
                await self.checkpoint()
            except OSError as error:
                self._on_failed()
                if self._store.failed is not None:
                    return
                # The checkpoint before stays valid, and a full disk may have room again later.
                log.error("the checkpoint cannot be written: %s", error)

    async def checkpoint(self) -> None:
        """Make the present queues and index durable before this returns. OSError: they are not."""
        async with self._writing:
            await self._gate.shared(self._checkpoint())

    async def _checkpoint(self) -> None:
        await self._runtime.run_blocking(self._store.check_files)
        await self._runtime.run_blocking(self._store.flush_derived)
        await self._runtime.run_blocking(self._store.checkpoint)

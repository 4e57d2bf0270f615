"""What keeps the store ahead of its writer: segments zeroed and mapped before they are needed; and
what the next start begins from: queue and index files synced, then the checkpoint, every second,
after a look whether the log's files are still where they were.
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
        self._prepared_to = 0
        self._wanted = asyncio.Event()
        self._writing = asyncio.Lock()  # one checkpoint at a time

    def appended(self) -> None:
        """The writer has used up a part of what was prepared for it."""
        store = self._store
        if store.watermarks.appended - self._prepared_to >= self._step or store.wants_room:
            self._wanted.set()

    async def run_ahead(self) -> None:
        """Zero and map the log ahead of the writer, and make room where other files grow."""
        while True:
            self._prepared_to = self._store.watermarks.appended
            self._wanted.clear()
            try:
                await self._gate.shared(self._runtime.run_blocking(self._store.prepare_ahead))
            except OSError as error:
                log.error("cannot prepare the log ahead of its writer: %s", error)
                await self._runtime.sleep(AGAIN_S)
            await self._wanted.wait()

    async def run_checkpoints(self) -> None:
        """Queue and index files, then the checkpoint: never ahead of the log."""
        while True:
            await self._runtime.sleep(CHECKPOINT_S)
            try:
                await self.checkpoint()
            except OSError as error:
                self._on_failed()
                if self._store.failed is not None:
                    return
                # The one before stays valid, and a disk that is full is not so for ever.
                log.error("the checkpoint cannot be written: %s", error)

    async def checkpoint(self) -> None:
        """Durable when this returns: what the queues and the index have now. OSError: not so."""
        async with self._writing:
            await self._gate.shared(self._checkpoint())

    async def _checkpoint(self) -> None:
        await self._runtime.run_blocking(self._store.check_files)
        await self._runtime.run_blocking(self._store.flush_derived)
        await self._runtime.run_blocking(self._store.checkpoint)

"""Upkeep of the store, in three services.

Two keep the store ahead of its writer. One zeroes and maps segments of the log before they are
needed. One makes room and new files for queues and index; it does not wait for the first, which may
take a second. The third prepares the next start. Every second it checks that the log's files are
still where they were and writes the checkpoint. Before that it syncs the queue and index files, but
spends no more than a twentieth of the time on it: with thousands of queues these syncs take more of
processor and disk than the messages. RocketMQ syncs a queue file that has 8 KiB of new entries
every second, and the others every minute.
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
RESTS = 19  # times as long as the syncs of queues and index took, before the next ones
REST_MAX_S = 10.0
BEHIND_BYTES = 256 << 20  # of the log, which a start after a crash reads again: no longer rest then
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
        self._rests_until = 0.0
        self._synced_to = 0  # physical offset

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
        """Sync queue and index files if it is time, then write the checkpoint, which is never ahead
        of the log."""
        while True:
            await self._runtime.sleep(CHECKPOINT_S)
            try:
                await self._write(sync=self._is_time())
            except OSError as error:
                self._on_failed()
                if self._store.failed is not None:
                    return
                # The checkpoint before stays valid, and a full disk may have room again later.
                log.error("the checkpoint cannot be written: %s", error)

    async def checkpoint(self) -> None:
        """Make the present queues and index durable before this returns. OSError: they are not."""
        await self._write(sync=True)

    def _is_time(self) -> bool:
        store = self._store
        return (
            self._runtime.monotonic() >= self._rests_until
            or store.watermarks.appended - self._synced_to >= BEHIND_BYTES
            or store.unsynced_queue_files >= store.config.queue_files_mapped
        )

    async def _write(self, *, sync: bool) -> None:
        async with self._writing:
            await self._gate.shared(self._checkpoint(sync=sync))

    async def _checkpoint(self, *, sync: bool) -> None:
        await self._runtime.run_blocking(self._store.check_files)
        if sync:
            began, reached = self._runtime.monotonic(), self._store.watermarks.appended
            await self._runtime.run_blocking(self._store.flush_derived)
            ended = self._runtime.monotonic()
            self._rests_until = ended + min(RESTS * (ended - began), REST_MAX_S)
            self._synced_to = reached
        await self._runtime.run_blocking(self._store.checkpoint)

"""Deleting topics: what happens to their messages, files and offsets, and in which order.

1. The topic leaves the table, which gets a tombstone: from here on sends to it are refused with 17,
   or make it anew by auto-creation, as in RocketMQ.
2. The table is on disk. A crash before leaves the topic as it was, one behind leaves none.
3. The store neither reads nor builds what lies before the tombstone; offsets of groups are
   forgotten, and held pulls are answered.
4. A checkpoint, which does not count on the queue files any more; then they are deleted.

A slave begins with step 2 when it has copied the table, a master when a slave has joined that had
been master and knew of more deletions; a start does steps 3 and 4 again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from saturnmq.broker.context import Context
from saturnmq.broker.tables.table_persistence import Saveable

log = logging.getLogger(__name__)


class Deletion:
    def __init__(
        self,
        context: Context,
        *,
        save: Callable[[Saveable], Awaitable[None]],
        checkpoint: Callable[[], Awaitable[None]],
        wake_pulls: Callable[[], None],
    ) -> None:
        self._c = context
        self._save = save
        self._checkpoint = checkpoint
        self._wake_pulls = wake_pulls
        self._removing = asyncio.Lock()

    def delete(self, names: Iterable[str]) -> Awaitable[None]:
        """Delete these topics: at once for who sends and reads, durably when this is awaited.

        OSError: the table could not be saved; the topics are there again as they were."""
        c = self._c
        undo = [c.topics.delete(name, c.store.tombstone(name)) for name in names if self._is(name)]
        return self._finish(undo)

    def _is(self, name: str) -> bool:
        """Whether there is anything to delete."""
        return self._c.topics.get(name) is not None or self._c.store.has_queues(name)

    async def _finish(self, undo: list[Callable[[], None]]) -> None:
        try:
            await self._save(self._c.topics)
        except OSError:
            for put_back in reversed(undo):
                put_back()
            raise
        await self._bury()

    async def apply(self) -> None:
        """Do what the topic table says of deleted topics. OSError: it could not be saved."""
        await self._save(self._c.topics)
        await self._bury()

    async def _bury(self) -> None:
        """Steps 3 and 4."""
        c = self._c
        async with self._removing:
            c.store.bury(c.topics.deleted)
            await c.steps.run(c.offsets.forget_deleted())
            self._wake_pulls()
            try:
                await self._checkpoint()
                for _ in c.store.remove_deleted():
                    await c.runtime.sleep(0)  # others are served between two queues
            except OSError as error:
                log.error("files of deleted topics stay until the next start: %s", error)

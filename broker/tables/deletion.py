"""The deletion of topics with their messages, files and offsets, in this order:

1. The topic leaves the table, which gets a tombstone. From here on sends to it are refused with 17,
   or create it anew by auto-creation, as in RocketMQ.
2. The table is saved. A crash before this step leaves the topic as it was, a later one leaves none.
3. The store stops reading and building queues before the tombstone. Offsets of groups are
   forgotten, and held pulls are answered.
4. A checkpoint is written that does not count on the queue files any more; then these are deleted.

A deletion that cannot be saved is undone. So a topic that one deletion has taken out, and may still
put back, is left alone by others until that one is saved: each would put back what it found.

A slave begins with step 2 when it has copied the table. So does a master when a slave joins that
had been master and knew of more deletions. A start does steps 3 and 4 again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
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
        self._saving = asyncio.Lock()
        self._unsaved: Counter[str] = Counter()  # deletions of each topic that may yet be undone
        self._removing = asyncio.Lock()

    def delete(self, names: Iterable[str]) -> Awaitable[None]:
        """Delete these topics: at once for clients, durably when this is awaited.

        OSError: the table could not be saved; the topics are there again as they were."""
        self._c.topics.forget_deleted(self._c.store.watermarks.start)
        asked = list(names)
        undo = self._take_out(name for name in asked if not self._unsaved[name])
        waiting = [name for name in asked if self._unsaved[name]]
        self._unsaved.update(asked)
        return self._finish(asked, waiting, undo)

    def _take_out(self, names: Iterable[str]) -> list[Callable[[], None]]:
        c = self._c
        return [c.topics.delete(name, c.store.tombstone(name)) for name in names if self._is(name)]

    def _is(self, name: str) -> bool:
        """Whether there is anything to delete of a topic."""
        return self._c.topics.get(name) is not None or self._c.store.has_queues(name)

    async def _finish(
        self, asked: list[str], waiting: list[str], undo: list[Callable[[], None]]
    ) -> None:
        try:
            async with self._saving:
                undo += self._take_out(waiting)
                await self._save(self._c.topics)
        except OSError:
            for put_back in reversed(undo):
                put_back()
            raise
        finally:
            self._unsaved -= Counter(asked)
        await self._bury()

    async def apply(self) -> None:
        """Apply the deletions in the topic table. OSError: it could not be saved."""
        await self._save(self._c.topics)
        await self._bury()

    async def _bury(self) -> None:
        """Do steps 3 and 4."""
        c = self._c
        async with self._removing:
            c.store.bury(c.topics.deleted)
            await c.steps.run(c.offsets.forget_deleted())
            self._wake_pulls()
            try:
                await self._checkpoint()
                for _ in c.store.remove_deleted():
                    await c.runtime.sleep(0)  # the loop serves others between two queues
            except OSError as error:
                log.error("files of deleted topics stay until the next start: %s", error)

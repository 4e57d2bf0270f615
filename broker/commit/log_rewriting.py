"""Changes of the log that are no appends: it is truncated, repaired, or gets a part back.

Nothing else works on the store meanwhile (`broker/commit/gate.py`). Afterwards the tables that
describe the log are saved before the log grows again. If the disk has no room for them, the next
save of the role repeats that first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from saturnmq.broker.commit.advance import WatermarkAdvancer
from saturnmq.broker.commit.gate import StoreGate
from saturnmq.broker.context import Context
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.exactly_once.sinks import SinkTable
from saturnmq.broker.tables.table_persistence import TablePersistence
from saturnmq.broker.timer.service import TimerService
from saturnmq.broker.transactions.half_log import HalfLog
from saturnmq.store.message_store import Truncated


class LogRewriter:
    def __init__(
        self,
        context: Context,
        gate: StoreGate,
        advancer: WatermarkAdvancer,
        persistence: TablePersistence,
        *,
        delays: DelayService,
        timers: TimerService,
        sinks: SinkTable,
        half_log: HalfLog,
        wake_pulls: Callable[[], None],
        on_truncated: Callable[[], None],
    ) -> None:
        self._store = context.store
        self._topics = context.topics
        self._steps = context.steps
        self._epochs = context.epochs
        self._role = context.role
        self._gate = gate
        self._advancer = advancer
        self._persistence = persistence
        self._delays = delays
        self._timers = timers
        self._sinks = sinks
        self._half_log = half_log
        self._wake_pulls = wake_pulls
        self._on_truncated = on_truncated
        self._unsaved = False  # tables on the disk still describe the log before its change
        self._sinks_unsaved = False

    async def truncate(self, offset: int, reason: str) -> None:
        """End the log at this offset; the part behind it is in a side file then."""
        epoch = self._epochs.last
        try:
            await self._rewrite(partial(self._store.truncate, offset, reason=reason, epoch=epoch))
        finally:  # the log may be cut although the tables could not be saved
            self._on_truncated()

    async def truncate_torn(self) -> None:
        """Remove a last frame that never came whole."""
        await self._rewrite(self._store.truncate_torn)

    async def put_back(self, side: Truncated) -> None:
        """Append the part of this side file that continues the log."""
        await self._rewrite(partial(self._store.put_back, side))

    async def repair(self, repair: Callable[[], Any]) -> None:
        """Replace damaged frames by those of another node."""
        await self._rewrite(repair)
        self._sinks.read_again()

    async def save_role(self) -> None:
        """The role is on the disk when this returns."""
        if self._unsaved:  # there was no room, and the log must not grow before there is
            await self._save_tables()
        await self._persistence.save(self._role)

    async def keep_topics_within(self) -> None:
        """Durably: the log ends here, and frames that will be written behind its end are newer
        than everything in the topic table."""
        topics = self._topics
        if topics.within(self._store.watermarks.appended):
            self._store.bury(topics.deleted)
        # Saved in any case: there may have been no room for it the last time.
        await self._persistence.save(topics)

    async def _rewrite(self, work: Callable[[], Any]) -> None:
        try:
            await self._gate.exclusive(work, pause=self._pause, resume=self._resume)
            self._half_log.unload()
            self._advancer.tell(self._store.take_untold())
            self._unsaved = True
            await self._save_tables()
        finally:
            self._advancer.wake()
            self._wake_pulls()

    def _pause(self) -> None:
        """The advancer and long work rest: the frames that they would read may be about to go."""
        self._advancer.stopped = True
        self._steps.pause()

    def _resume(self) -> None:
        self._advancer.stopped = False
        self._steps.resume()

    async def _save_tables(self) -> None:
        """Save the tables that describe the changed log, before it grows again."""
        self._delays.cut()
        await self._timers.cut()
        await self._persistence.save(self._delays)
        self._sinks_unsaved = self._sinks.cut() or self._sinks_unsaved
        if self._sinks_unsaved:
            await self._persistence.save(self._sinks)
            self._sinks_unsaved = False
        await self.keep_topics_within()
        self._unsaved = False

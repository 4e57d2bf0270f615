"""Work that only a master does, from the moment that it becomes one until it is deposed."""

from __future__ import annotations

import asyncio

from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.exactly_once.staging import StagingService
from saturnmq.broker.replication.table_sync import TableSync
from saturnmq.runtime.supervision import Supervisor


class MasterDuties:
    def __init__(
        self,
        supervisor: Supervisor,
        *,
        table_sync: TableSync,
        delays: DelayService,
        staging: StagingService,
    ) -> None:
        self._supervisor = supervisor
        self._table_sync = table_sync
        self._delays = delays
        self._staging = staging
        self._delivering: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that a broker cancels when it stops."""
        return [] if self._delivering is None else [self._delivering]

    def begin(self) -> None:
        self._table_sync.begin_term()
        if self._delivering is None or self._delivering.done():
            self._delivering = self._supervisor.keep(self._delays.run, name="delay")

    def end(self) -> None:
        self._table_sync.end_term()
        self._staging.drop_all()
        if self._delivering is not None:
            self._delivering.cancel()
            self._delivering = None

"""Work that only a master does, from the moment that it becomes one until it is deposed."""

from __future__ import annotations

import asyncio

from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.exactly_once.staging import StagingService
from saturnmq.broker.pop.service import PopService
from saturnmq.broker.replication.table_sync import TableSync
from saturnmq.broker.timer.service import TimerService
from saturnmq.broker.transactions.check_back import CheckBackService
from saturnmq.runtime.supervision import Supervisor


class MasterDuties:
    def __init__(
        self,
        supervisor: Supervisor,
        *,
        table_sync: TableSync,
        delays: DelayService,
        timers: TimerService,
        staging: StagingService,
        check_backs: CheckBackService,
        pops: PopService,
    ) -> None:
        self._supervisor = supervisor
        self._table_sync = table_sync
        self._delays = delays
        self._timers = timers
        self._staging = staging
        self._check_backs = check_backs
        self._pops = pops
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that a broker cancels when it stops."""
        return list(self._tasks)

    def begin(self) -> None:
        self._table_sync.begin_term()
        self._timers.lead()
        if all(task.done() for task in self._tasks):
            self._tasks = [
                self._supervisor.keep(self._delays.run, name="delay"),
                self._supervisor.keep(self._check_backs.run, name="check-back"),
                self._supervisor.keep(self._pops.run, name="pop"),
            ]

    def end(self) -> None:
        self._table_sync.end_term()
        self._timers.retire()
        self._staging.drop_all()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

"""The loop that looks for everything that is late: sends, held pulls, silent clients."""

from __future__ import annotations

from saturnmq.broker.commit.disk_failure import DiskFailure
from saturnmq.broker.commit.flush import FlushService
from saturnmq.broker.context import Context
from saturnmq.broker.exactly_once.staging import StagingService
from saturnmq.broker.handlers.membership import MembershipService
from saturnmq.broker.handlers.pop import PopRequests
from saturnmq.broker.handlers.pull import PullService
from saturnmq.broker.replication.executor import Executor

TICK_S = 0.1  # a deadline is noticed so much too late at most
SAMPLE_S = 1.0  # between two notes of the statistics
SCAN_S = 10.0  # between two looks at all clients and stages


class Deadlines:
    def __init__(
        self,
        context: Context,
        *,
        flush: FlushService,
        disk_failure: DiskFailure,
        executor: Executor,
        pulls: PullService,
        pops: PopRequests,
        members: MembershipService,
        staging: StagingService,
    ) -> None:
        self._c = context
        self._flush = flush
        self._disk_failure = disk_failure
        self._executor = executor
        self._pulls = pulls
        self._pops = pops
        self._members = members
        self._staging = staging

    async def run(self) -> None:
        c = self._c
        next_scan = next_sample = 0.0
        while True:
            await c.runtime.sleep(TICK_S)
            now = c.runtime.monotonic()
            c.role.tick(now)
            self._executor.note_floor()
            self._disk_failure.look()
            c.ledger.expire(now, self._stored())
            c.ledger.count()
            self._pulls.expire(now)
            self._pops.expire(now)
            c.connections.expire(now)
            if now >= next_sample:
                next_sample = now + SAMPLE_S
                c.tables.count()
                c.ledger.latency.turn(now)
                c.statistics.sample(now, c.runtime.now_ms(), c.topics, c.groups)
            if now >= next_scan:
                next_scan = now + SCAN_S
                self._members.expire(now)
                self._staging.expire(now)

    def _stored(self) -> int:
        """A late send below this position has its message stored here as its ack mode asks: it
        waits for a slave alone."""
        c = self._c
        marks = c.store.watermarks
        if c.waits_for_copies and not c.config.sync_flush and self._flush.keeps_up():
            return marks.appended
        return marks.flushed

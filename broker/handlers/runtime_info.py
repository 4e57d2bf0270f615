"""GET_BROKER_RUNTIME_INFO 28: the figures of a broker, under RocketMQ's names and ours.

Each service tells its own (`status`). A figure of RocketMQ's that this broker does not have is left
out: tools show a blank. So it is with `EndTransactionQueueSize` and
`EndTransactionThreadPoolQueueCapacity`: ends of transactions are served at once, and wait in no
queue of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from saturnmq.broker.context import Context, answer
from saturnmq.broker.replication.role import State
from saturnmq.protocol import fastjson, headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.turns import OncePerTurn

Status = Callable[[], Mapping[str, str]]


class RuntimeInformation:
    def __init__(
        self, context: Context, statuses: Sequence[Status], flush_behind_ms: Callable[[], int]
    ) -> None:
        """`statuses`: those of the services that have figures."""
        self._c = context
        self._statuses = (
            *statuses,
            context.ledger.latency.status,
            context.loop_watch.status,
            context.connections.status,
        )
        self._flush_behind_ms = flush_behind_ms
        self._started_ms = context.runtime.now_ms()
        self._began_at = context.store.watermarks.appended
        self._text = OncePerTurn(
            context.runtime, lambda: fastjson.dumps({"table": self._figures()})
        )

    def on_show(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        answer(endpoint, request, request.reply(0, body=self._text()))

    def _figures(self) -> Mapping[str, str]:
        c = self._c
        marks = c.store.watermarks
        now, truncated = c.runtime.now_ms(), c.store.truncated()
        found = {
            **{f"{of}ThreadPoolQueueHeadWaitTimeMills": "0" for of in ("send", "pull", "query")},
            "pageCacheLockTimeMills": "0",
            **self._traffic(),
            "brokerVersionDesc": "V5_4_0",
            "brokerVersion": "493",
            "brokerActive": "true",
            "brokerRole": c.role.name,
            "bootTimestamp": str(self._started_ms),
            "runtime": f"[ {(now - self._started_ms) // 1000} s ]",
            "sendThreadPoolQueueSize": str(len(c.ledger)),
            "sendThreadPoolQueueCapacity": str(c.ledger.limit),
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": str(c.config.max_held_pulls),
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": "0",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "commitLogMinOffset": str(marks.start),
            "commitLogMaxOffset": str(marks.appended),
            "commitLogFlushedOffset": str(marks.flushed),
            "commitLogReplicatedOffset": str(marks.replicated),
            "commitLogConfirmedOffset": str(marks.confirmed),
            "commitLogDispatchedOffset": str(marks.dispatched),
            "commitLogDiskRatio": f"{c.store.space.percent / 100}",
            "consumeQueueDiskRatio": f"{c.store.space.percent / 100}",
            "flushBehindMs": str(self._flush_behind_ms()),
            "differingGroups": str(len(c.clients.differing)),
            "unforeseenFailures": str(c.failures.count),
            "lastUnforeseenFailure": c.failures.last,
            "refusesWrites": c.store.failed or c.store.refuses or self._deposed(),
            "brokerEpoch": str(c.role.promised_epoch),
            "truncatedFiles": str(len(truncated)),
            "truncatedBytes": str(sum(side.size for side in truncated)),
            "damagedRanges": ";".join(f"{a}-{b}" for a, b in c.store.recovery.gaps),
            "dispatchBehindBytes": str(marks.appended - marks.dispatched),
            "remainHowManyDataToFlush": f"{marks.appended - marks.flushed} B",
            "startAcceptSendRequestTimeStamp": "0",
        }
        for status in self._statuses:
            found |= status()
        return found

    def _traffic(self) -> dict[str, str]:
        """The figures of RocketMQ's StoreStatsService and BrokerStats; sizes are those of the log,
        including the filling at the end of segments."""
        c = self._c
        counted, now = c.statistics, c.runtime.monotonic()
        day, totals = counted.day, counted.totals
        size = 0 if c.role.is_slave else c.store.watermarks.appended - self._began_at
        return {
            "putTps": counted.rates("put", now),
            "getTotalTps": counted.rates("asked", now),
            "getFoundTps": counted.rates("found", now),
            "getMissTps": counted.rates("missed", now),
            "getTransferredTps": counted.rates("transferred", now),
            "msgPutTotalYesterdayMorning": str(day.put_yesterday),
            "msgPutTotalTodayMorning": str(day.put_today),
            "msgPutTotalTodayNow": str(totals.put),
            "msgGetTotalYesterdayMorning": str(day.got_yesterday),
            "msgGetTotalTodayMorning": str(day.got_today),
            "msgGetTotalTodayNow": str(totals.transferred),
            "putMessageTimesTotal": str(totals.put),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": f"{size / max(totals.put, 1):.1f}",
        }

    def _deposed(self) -> str:
        """Why this node takes no writes although it was a master; empty for a slave."""
        role = self._c.role
        is_slave = role.state is State.SLAVE
        return "" if is_slave else role.refuses(self._c.runtime.monotonic())

    def _earliest_ms(self) -> int:
        """The store time of the oldest message of the log; -1 if there is none."""
        frame = self._c.store.message_at(self._c.store.watermarks.start)
        return -1 if frame is None else decode_frames(frame)[0].store_timestamp

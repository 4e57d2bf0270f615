"""The writer of pop's records (`records.py`), which keeps the stretch short that a start reads.

Each record names the oldest one that counts. A lease that stays open for long would hold that place
back, so its record is written again: two old ones at most for each new one, once the stretch has
more than `RECORDS_SPARE` records and `RECORDS_EACH` for each that counts; and after an hour in any
case, long before the log expires.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from saturnmq.broker.context import Context
from saturnmq.broker.pop import records
from saturnmq.broker.pop.leases import Leases, PopLane, PopLease
from saturnmq.protocol import properties as names
from saturnmq.protocol.properties import encode_properties
from saturnmq.store.message_store import AppendResult, PendingMessage

log = logging.getLogger(__name__)

RECORDS_SPARE = 50_000
RECORDS_EACH = 4
RECORDED_AGAIN = 2  # old records for each new one
RECORDED_AT_ONCE = 20  # in one turn of the loop
OLD_S = 3600.0


class PopRecorder:
    """Records of one term."""

    def __init__(self, context: Context, leases: Leases, on_append: Callable[[], None]) -> None:
        """`on_append` tells the advancer that the log grew."""
        self._c = context
        self._leases = leases
        self._on_append = on_append
        self._broker = context.config.broker_name
        self._topic = records.revive_topic(context.config.cluster_name)
        self._next: int = context.store.max_offset(self._topic, records.QUEUE)
        self._ends: deque[tuple[float, int]] = deque()  # past ends of the records, and their times

    @property
    def _low(self) -> int:
        """The record from which a start must read."""
        return self._leases.first_record(self._next)

    def lease(self, lease: PopLease, offsets: Sequence[int], cursor: int) -> AppendResult:
        """Record that a lease has these messages out, and the cursor of its lane then."""
        body = records.encode_lease(lease, offsets, cursor, self._broker, self._low)
        return self._append(records.CK, body)

    def cursor(self, lane: PopLane, reset: int) -> None:
        """Record the cursor of a lane."""
        body = records.encode_cursor(lane, self._broker, self._low, reset)
        put = self._append(records.CK, body)
        if reset != records.GONE:
            self._leases.recorded(lane, put.queue_offset)

    def done(self, lane: PopLane, offsets: Sequence[int], pop_ms: int) -> AppendResult:
        """Record that these messages are done."""
        start = offsets[0]
        body = records.encode_ack(lane.place, offsets, start, pop_ms, self._broker, self._low)
        return self._append(records.ACK if len(offsets) == 1 else records.BATCH_ACK, body)

    def keep_short(self) -> None:
        """Keep the stretch of records that a start must read short."""
        most = RECORDS_SPARE + RECORDS_EACH * len(self._leases.records)
        self._again(RECORDED_AGAIN, self._next - most)

    def note_end(self, now: float) -> None:
        """Note where the records end at this time."""
        self._ends.append((now, self._next))

    def keep_young(self, now: float) -> None:
        """Record leases again whose records are old."""
        while self._ends and self._ends[0][0] < now - OLD_S:
            old = self._ends[0][1]
            if self._leases.first_record(old) < old:
                self._again(RECORDED_AT_ONCE, old)
                return
            self._ends.popleft()

    def _again(self, most: int, before: int) -> None:
        """Write at most so many of the oldest records anew, of those before this place."""
        leases = self._leases
        for _ in range(most):
            oldest = next(iter(leases.records), None)
            if oldest is None or oldest.record >= before:
                return
            if isinstance(oldest, PopLane):
                self.cursor(oldest, records.KEEP)
            else:
                put = self.lease(oldest, oldest.open, oldest.lane.cursor)
                leases.recorded(oldest, put.queue_offset)

    def _append(self, tag: str, body: bytes) -> AppendResult:
        c = self._c
        put = c.store.put(
            PendingMessage(
                topic=self._topic,
                queue_id=records.QUEUE,
                body=body,
                properties=encode_properties({names.TAGS: tag}),
                born_timestamp=c.runtime.now_ms(),
                born_host=c.store_host,
                store_host=c.store_host,
            ),
            is_copy=True,
        )
        self._next = put.queue_offset + 1
        self._on_append()
        return put

"""Reput: from the CommitLog's frames to queue entries and index items, in log order.

One bounded step at a time, so that the event loop keeps answering. Recovery runs the same code with
checksums on. Dispatch goes up to the append position whatever the flush mode is; what consumers
may see is decided by the physical limit that the broker hands to get_message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from saturnmq.protocol.kernels import Scan, scan_frames
from saturnmq.store.commitlog import CommitLog
from saturnmq.store.consumequeue import ConsumeQueue
from saturnmq.store.indexfile import Index
from saturnmq.store.queues import Queues

STEP_BYTES = 4 << 20
DELAY_MS = tuple(
    1000 * seconds
    for seconds in (
        *(1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200),
    )
)


class Arrival(NamedTuple):
    """New entries of one queue; `entries` are 20 bytes each."""

    topic: str
    queue_id: int
    max_offset: int
    entries: bytes


@dataclass(slots=True)
class Step:
    """How far a step came; `status` as in `scan_frames`."""

    next_offset: int
    status: str
    why: str
    last_store_timestamp: int
    messages: int
    arrivals: list[Arrival]


class Reput:
    """Builds the derived files."""

    def __init__(self, log: CommitLog, queues: Queues, index: Index | None) -> None:
        self._log = log
        self._queues = queues
        self._index = index

    def step(
        self, offset: int, limit: int, *, verify_crc: bool = False, step_bytes: int = STEP_BYTES
    ) -> Step:
        """Dispatch frames from `offset` to `limit` or for about `step_bytes`, within a segment."""
        newest = self._log.newest(offset)
        if newest is not None:
            view, base = newest
        else:
            segment = self._log.series.find(offset)
            if segment is None or offset >= limit:
                return Step(offset, "end", "", 0, 0, [])
            view, base = segment.view, segment.start
        pos = offset - base
        final = min(limit - base, len(view))
        end = min(final, pos + step_bytes)
        scan = self._scan(view, pos, end, base, verify_crc)
        if end < final and scan.status == "more" and scan.next_pos == pos:
            scan = self._scan(view, pos, final, base, verify_crc)
        elif end < final and scan.status in ("more", "damage") and scan.messages:
            # the step cut a frame: the next step looks at it again, whole
            scan = scan._replace(status="more")
        arrivals = [self._queue_run(*run) for run in scan.runs]
        if scan.index_items and self._index is not None:
            self._index.append(scan.index_items)
        return Step(
            base + scan.next_pos,
            scan.status,
            scan.why,
            scan.last_store_ts,
            scan.messages,
            [arrival for arrival in arrivals if arrival.entries],
        )

    def _scan(self, view: memoryview, pos: int, end: int, base: int, verify_crc: bool) -> Scan:
        return scan_frames(view, pos, end, base, verify_crc, self._index is not None, DELAY_MS)

    def _queue_run(
        self, topic: str, queue_id: int, first: int, count: int, entries: bytes
    ) -> Arrival:
        queue: ConsumeQueue = self._queues.get_or_create(topic, queue_id)
        _, fresh = queue.append(first, count, entries)
        self._queues.raise_next(topic, queue_id, queue.max_offset)
        return Arrival(topic, queue_id, queue.max_offset, fresh)

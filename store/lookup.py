"""Reading: by queue offset, by time, by key (store-format.md sections 3, 4 and 8).

get_message follows RocketMQ's table of statuses and next offsets exactly. The tag filter looks at
the queue entry only. Frames are not copied: a result points at the stretches of the mapped log they
lie in, and a reply is written from there. It keeps the mapping alive until it is sent, also when
the segment is closed or deleted meanwhile. Consumers see nothing that ends behind `visible`, a
physical offset, and below it the log does not change; when a slave cuts off a wrong tail under a
reply, the reader's CRC check refuses the frames.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saturnmq.protocol.frame import Frame, decode_frame
from saturnmq.protocol.kernels import COMPILED
from saturnmq.store.commitlog import CommitLog
from saturnmq.store.consumequeue import ENTRY, FILLER, UNIT, ConsumeQueue
from saturnmq.store.indexfile import Index
from saturnmq.store.queues import Queues

FILTER_BYTES = 16_000
MEMORY_BYTES = 262_144
MEMORY_COUNT = 32
TOTAL_BYTES = 128 << 20
_SIZE = struct.Struct(">i")
_FILLER_SIZE = ENTRY.unpack(FILLER)[1]


class GetStatus(enum.Enum):
    """RocketMQ's names."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


@dataclass(slots=True)
class GetResult:
    """`pieces`, one behind the other, hold `count` whole frames."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    pieces: Sequence[memoryview] = ()
    count: int = 0
    suggest_slave: bool = False

    @property
    def data(self) -> bytes:
        """The frames, copied out of the log."""
        return b"".join(self.pieces)


def plan_reads_reference(
    entries: memoryview,
    max_count: int,
    max_bytes: int,
    codes: frozenset[int] | None,
    visible: int,
    start: int,
) -> tuple[int, int, int, int, list[tuple[int, int]]]:
    """(scanned, messages, removed, last offset, stretches of the log to copy)."""
    scanned = count = total = removed = 0
    run_start = run_end = -1
    runs: list[tuple[int, int]] = []
    last = start
    for physical, size, code in ENTRY.iter_unpack(entries):
        if size == _FILLER_SIZE and physical == 0:
            scanned += 1
            continue
        if physical + size > visible:
            break
        if codes is not None and code not in codes:
            scanned += 1
            last = physical
            continue
        if count and (count >= max_count or total + size > max_bytes):
            break
        scanned += 1
        last = physical
        if physical < start:
            removed += 1
            continue
        if physical != run_end:
            if run_start >= 0:
                runs.append((run_start, run_end))
            run_start = physical
        run_end = physical + size
        count += 1
        total += size
    if run_start >= 0:
        runs.append((run_start, run_end))
    return scanned, count, removed, last, runs


if not TYPE_CHECKING and COMPILED:
    try:
        from saturnmq.store.store_kernel import plan_reads
    except ImportError:  # only the other kernel could be compiled
        plan_reads = plan_reads_reference
else:
    plan_reads = plan_reads_reference


class Lookup:
    """Read-only questions to the store."""

    def __init__(
        self, log: CommitLog, queues: Queues, index: Index | None, memory_bytes: int
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._memory = memory_bytes

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        visible: int,
        override_limits: bool,
    ) -> GetResult:
        queue = self._queues.table.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            # RocketMQ makes the queue when it is asked for, so its answer is this one as well
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        scan = max(FILTER_BYTES // UNIT, max_count)
        entries = queue.entries(offset, scan)
        if not entries:
            per_file = queue.series.segment_bytes // UNIT
            following = offset + per_file - offset % per_file
            return GetResult(GetStatus.OFFSET_FOUND_NULL, following, low, high)
        if not override_limits:
            max_count = min(max_count, MEMORY_COUNT)
            max_bytes = min(max_bytes, MEMORY_BYTES)
        max_bytes = max(100, min(max_bytes, TOTAL_BYTES))
        return self._gather(queue, offset, entries, max_count, max_bytes, codes, visible)

    def _gather(
        self,
        queue: ConsumeQueue,
        offset: int,
        entries: memoryview,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        visible: int,
    ) -> GetResult:
        visible = min(visible, self._log.end)
        start = self._log.start
        scanned, count, removed, last, runs = plan_reads(
            entries, max_count, max_bytes, codes, visible, start
        )
        pieces = [piece for run in runs for piece in self._stretch(*run)]
        low, high = queue.min_offset, queue.max_offset
        if scanned == 0:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        status = GetStatus.FOUND
        if not count:
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        behind = self._log.end - last > self._memory
        return GetResult(status, offset + scanned, low, high, pieces, count, behind)

    def _stretch(self, start: int, end: int) -> Iterator[memoryview]:
        while start < end:
            view = self._log.read(start, end - start)
            if view is None:
                return
            yield view
            start += len(view)

    def message_at(self, physical: int) -> bytes | None:
        """The frame that begins at `physical`, or None."""
        view = self._log.read(physical, 1 << 30)
        if view is None or len(view) < 4:
            return None
        size = _SIZE.unpack_from(view)[0]
        if not 0 < size <= len(view):
            return None
        outcome = decode_frame(view, 0, size, True)
        if not isinstance(outcome, Frame) or outcome.physical_offset != physical:
            return None
        return bytes(view[:size])

    def store_time_at(self, physical: int) -> int | None:
        """The store time in the frame at `physical`."""
        view = self._log.read(physical, 96)
        if view is None or len(view) < 80:
            return None
        born_v6 = view[39] & 0x10
        at = 68 if born_v6 else 56
        return int.from_bytes(view[at : at + 8], "big", signed=True)

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queues.table.get((topic, queue_id))
        entry = None if queue is None else queue.entry(offset)
        return None if entry is None else self.store_time_at(entry[0])

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: str) -> int:
        """LOWER: first message stored at or after; UPPER: last stored at or before."""
        queue = self._queues.table.get((topic, queue_id))
        if queue is None or queue.max_offset == queue.min_offset:
            return 0 if queue is None else queue.min_offset
        low, high = queue.min_offset, queue.max_offset
        indexes = range(low, high)
        # an unreadable entry lies below the log's start: earlier than everything

        def time_of(index: int) -> int:
            entry = queue.entry(index)
            time = None if entry is None else self.store_time_at(entry[0])
            return -1 if time is None else time

        if boundary.upper() == "UPPER":
            after = bisect_left(indexes, timestamp + 1, key=time_of) + low
            if after > low:
                return after - 1
            return max(low, 0)
        return min(bisect_left(indexes, timestamp, key=time_of) + low, high)

    def query_by_key(self, topic: str, key: str, most: int, begin: int, end: int) -> list[bytes]:
        """Frames whose UNIQ_KEY or KEYS hold `key`; hash collisions are sorted out here."""
        if self._index is None:
            return []
        found = []
        for offset in self._index.query(topic, key, max(most * 2, most + 8), begin, end):
            data = self.message_at(offset)
            if data is None:
                continue
            frame = decode_frame(data, 0, None, False)
            if not isinstance(frame, Frame) or bytes(frame.topic).decode() != topic:
                continue
            names = frame.properties
            if names.get("UNIQ_KEY") == key or key in names.get("KEYS", "").split(" "):
                found.append(data)
        return found[:most]

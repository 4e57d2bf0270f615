"""Reading: by queue offset, by time, by key (docs/internals/format.md 3, 4 and 8).

get_message follows RocketMQ's table of statuses and next offsets exactly. The tag filter reads the
queue entry only; an SQL92 condition reads frames as well (sql_filter.py). Frames are not copied: a
result points at stretches of the mapped log, and a reply is written from there. The result keeps
the mapping alive until the reply is sent, even if the segment is closed or deleted meanwhile.

Consumers see no message that ends behind the physical offset `visible`, and the log below it does
not change. If a slave cuts off a wrong tail during a reply, the reader's CRC check refuses the
frames.

The newest part of the log, a share of the machine's memory, is assumed to be in the page cache;
older parts are assumed to be on disk only. One call reads less of an older part, and the answer
advises the reader to ask a slave.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saturnmq.protocol.frame import Frame, decode_frame
from saturnmq.protocol.kernels import COMPILED
from saturnmq.protocol.sql92 import Sql
from saturnmq.runtime.errors import InvalidParameter
from saturnmq.store.derived.batchconsumequeue import BatchConsumeQueue
from saturnmq.store.derived.consumequeue import ENTRY, FILLER, UNIT, ConsumeQueue
from saturnmq.store.derived.indexfile import Index
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.derived.sql_filter import PASSED, sift
from saturnmq.store.log.commitlog import CommitLog, Range
from saturnmq.store.offsets import StoreTime

# One step of a search for a key in microseconds: an index item, a frame, a byte of a frame.
STEP_WORK, ITEM_WORK, FRAME_WORK, WORK_BYTES = 1000, 1, 20, 1024
RECENT = 64 << 20  # bytes at the end of the log
LOOKED_AT = 16_384  # entries of a read by tag or condition that has not RocketMQ's limits
_NO_LIMITS = 1 << 31, 128 << 20  # messages and bytes: no request gets more
_FILLER_SIZE = ENTRY.unpack(FILLER)[1]


class GetStatus(enum.StrEnum):
    """The outcome of a read, with RocketMQ's names. A text, which tables look up without a call."""

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
    """The result of a read: `pieces`, one after the other, hold `count` whole frames."""

    status: GetStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    pieces: Sequence[memoryview] = ()
    count: int = 0
    suggest_slave: bool = False
    runs: Sequence[Range] = ()  # the places of the pieces in the log
    of_batches: bool = False  # the queue's frames may hold many messages: protocol/inner_batch.py

    @property
    def data(self) -> bytes:
        """The frames, copied out of the log."""
        return b"".join(self.pieces)

    @property
    def size(self) -> int:
        """The bytes of the frames."""
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The most that one call may return or look at; see the settings of the same meaning."""

    memory_bytes: int  # how far behind the log's end the page cache reaches
    in_memory_count: int
    in_memory_bytes: int
    on_disk_count: int
    on_disk_bytes: int
    filter_bytes: int
    query_count: int


def plan_reads_reference(
    entries: memoryview,
    max_count: int,
    max_bytes: int,
    in_memory: tuple[int, int],
    on_disk: tuple[int, int],
    cached: int,
    codes: frozenset[int] | None,
    visible: int,
    start: int,
) -> tuple[int, int, int, int, list[tuple[int, int]]]:
    """Return (scanned, messages, removed, last offset, stretches of the log to copy).

    `in_memory` and `on_disk` also bound (messages, bytes) of a reply: `in_memory` if the next frame
    lies at or behind `cached`, else `on_disk`. As in RocketMQ a full reply ends the scan before the
    filter looks.
    """
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
        if count:
            most, room = in_memory if physical >= cached else on_disk
            if count >= min(max_count, most) or total + size > min(max_bytes, room):
                break
        scanned += 1
        last = physical
        if physical < start:
            removed += 1
            continue
        if codes is not None and _low_half(code) not in codes:
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


def _low_half(code: int) -> int:
    """The i32 in an i64. The tags code of a delayed message is a time instead of a hash."""
    return ((code + 0x80000000) & 0xFFFFFFFF) - 0x80000000


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
        self, log: CommitLog, queues: QueueTable, index: Index | None, limits: ReadLimits
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._limits = limits
        self._in_memory = limits.in_memory_count, limits.in_memory_bytes
        self._on_disk = limits.on_disk_count, limits.on_disk_bytes

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        visible: int,
        *,
        override_limits: bool,
        correct: bool,
        end: int | None = None,
        sql: Sql | None = None,
    ) -> GetResult:
        queue = self._queues.table.get((topic, queue_id))
        high = 0 if queue is None else queue.max_offset
        if queue is None or not high:
            # RocketMQ creates the queue on such a request, so it gives this answer as well
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0 if correct else offset, 0, 0)
        low = queue.min_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low if correct else offset, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            following = high if correct else offset
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, following, low, high)
        is_long = override_limits and (codes is not None or sql is not None)
        most = max(max_count, LOOKED_AT if is_long else self._limits.filter_bytes // UNIT)
        if isinstance(queue, BatchConsumeQueue):
            if sql is not None or end is not None:
                raise InvalidParameter(
                    f"the messages of {topic} lie in batches: they are read neither with an SQL92 "
                    "condition, subscribe by tags, nor in ranges"
                )
            # A batch without a tag of its own may have messages of any: their reader looks.
            codes = codes and codes | {0}
            enough = max_count if override_limits else self._in_memory[0]
            entries = queue.entries(offset, max_count, enough)
        else:
            entries = queue.entries(offset, most)
        if end is not None:
            entries = entries[: (end - offset) * UNIT]
        if not entries:
            per_file = queue.series.segment_bytes // UNIT
            following = offset + per_file - offset % per_file if correct else offset
            return GetResult(GetStatus.OFFSET_FOUND_NULL, following, low, high)
        log = self._log
        end, start = log.end, log.start
        cached = end - self._limits.memory_bytes
        visible = min(visible, end)
        in_memory = _NO_LIMITS if override_limits else self._in_memory
        if sql is not None:
            count, room = min(max_count, in_memory[0]), min(max_bytes, in_memory[1])
            entries = sift(entries, sql, log.read, visible, cached, count, room)
            codes = PASSED
        scanned, count, removed, last, runs = plan_reads(
            entries,
            max_count,
            max_bytes,
            in_memory,
            _NO_LIMITS if override_limits else self._on_disk,
            cached,
            codes,
            visible,
            start,
        )
        if scanned == 0:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        status = GetStatus.FOUND
        if not count:
            status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
        # Frames that touch each other lie in one segment, because a BLANK follows the last frame of
        # each.
        views = [log.read(first, stop - first) for first, stop in runs]
        pieces = [view for view in views if view is not None]
        following = queue.offset_behind(offset, scanned)
        assert offset < following <= high, f"{scanned} of {offset} to {high} scanned"
        batches = isinstance(queue, BatchConsumeQueue)
        return GetResult(status, following, low, high, pieces, count, last < cached, runs, batches)

    def is_cached(self, result: GetResult) -> bool:
        """Whether the pieces of a result can be sent without waiting for the disk. Those that
        were written a moment ago can; for all others the kernel is asked."""
        runs = result.runs
        return not runs or self.is_recent(runs[0][0]) or self._log.is_cached(runs)

    def is_recent(self, offset: int) -> bool:
        """Whether the log from `offset` on was written a moment ago."""
        return offset >= self._log.end - RECENT

    @property
    def _cached_from(self) -> int:
        """The log from this offset on is assumed to be in memory."""
        return self._log.end - self._limits.memory_bytes

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the message at a queue offset is assumed to be in memory. Without a message the
        answer is yes, because nothing has to be read from the disk."""
        queue = self._queues.find(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        return entry is None or entry[0] >= self._cached_from

    def visible_end(self, topic: str, queue_id: int, visible: int) -> int:
        """The queue's end for readers that see no message that ends behind `visible`."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.visible_end(visible)

    def message_at(self, physical: int) -> bytes | None:
        """The frame that begins at `physical`, or None."""
        view = self._log.read(physical, 1 << 30)
        if view is None:
            return None
        frame = decode_frame(view)
        if not isinstance(frame, Frame) or frame.physical_offset != physical:
            return None
        return bytes(view[: frame.size])

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> StoreTime | None:
        queue = self._queues.find(topic, queue_id)
        entry = None if queue is None else queue.entry(offset)
        time = None if entry is None else self._log.store_time_at(entry[0])
        return None if time is None else StoreTime(time)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, boundary: str) -> int:
        """Find a queue offset by store time. LOWER: the first message stored at or after
        `timestamp`; UPPER: the last one stored at or before it.

        Outside of the queue's times the answer is its end, or its first message for UPPER.

        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        if boundary.upper() != "UPPER":
            return first_stored_from(queue, timestamp, self._log.store_time_at)
        found = first_stored_from(queue, timestamp + 1, self._log.store_time_at) - 1
        while found >= low and _time_of(queue, found, self._log.store_time_at) is None:
            found -= 1
        return min(max(found, low), high)

    def query_by_key(
        self, topic: str, key: str, most: int, begin: int, end: int, visible: int
    ) -> Generator[None, None, list[bytes]]:
        """Find the newest `most` frames whose UNIQ_KEY or KEYS hold `key`, and return them oldest
        first; yields after a bounded number of candidates.

        The index knows only hashes; this search drops frames whose key merely collides. Times are
        those of the index: whole seconds since the file's begin. Of a second that `end` lies in,
        frames stored after `end` come only where there is room beside all others: they hide none.
        """
        if self._index is None:
            return []
        most = min(most, self._limits.query_count)
        found: dict[int, bytes] = {}
        later: dict[int, bytes] = {}
        work = 0
        for offset in self._index.candidates(topic, key, begin, end):
            if len(found) >= most:
                break
            work += ITEM_WORK
            if offset is not None and offset not in found:
                # A truncation or a deletion between two steps may have removed the frame.
                data = self._message_of(offset, topic)
                work += FRAME_WORK
                if data is not None and offset + len(data) <= visible:
                    work += len(data) // WORK_BYTES
                    stored = _stored_with(data, topic, key)
                    if stored is not None and stored <= end:
                        found[offset] = data
                    elif stored is not None and len(later) < most:
                        later[offset] = data
            if work >= STEP_WORK:
                work = 0
                yield
        for offset in list(later)[: most - len(found)]:
            found[offset] = later[offset]
        return [found[offset] for offset in sorted(found)]

    def _message_of(self, offset: int, topic: str) -> bytes | None:
        is_over = offset < max(self._log.start, self._queues.since(topic))
        return None if is_over else self.message_at(offset)

    def indexed_until(self) -> tuple[int, int]:
        """Store time and offset of the last message in the index."""
        files = [] if self._index is None else self._index.searched()
        if not files:
            return 0, 0
        newest = files[-1]
        return newest.end_time, newest.end_offset


TimeAt = Callable[[int], int | None]
"""The store time of the frame at a physical offset, None if it is gone."""


def first_stored_from(queue: ConsumeQueue, timestamp: int, time_at: TimeAt) -> int:
    """The first message stored at or after `timestamp`, or the queue's end."""
    low, high = queue.min_offset, queue.max_offset
    answer = high
    while low < high:
        middle = probe = (low + high) // 2
        time = _time_of(queue, probe, time_at)
        while time is None and probe + 1 < high:  # a slot without a message has no time
            probe += 1
            time = _time_of(queue, probe, time_at)
        if time is None:
            high = middle
        elif time < timestamp:
            low = probe + 1
        else:
            high, answer = middle, probe
    return answer


def _time_of(queue: ConsumeQueue, index: int, time_at: TimeAt) -> int | None:
    """Store time of an entry; -1, earlier than any time, if its frame is gone."""
    entry = queue.entry(index)
    if entry is None or entry[1] == _FILLER_SIZE:
        return None
    time = time_at(entry[0])
    return -1 if time is None else time


def _stored_with(data: bytes, topic: str, key: str) -> int | None:
    """The store time of a message of this topic with this key; None: it is another one."""
    frame = decode_frame(data, 0, None, verify=False)
    if not isinstance(frame, Frame) or frame.topic != topic.encode():
        return None
    names = frame.properties
    has_key = names.get("UNIQ_KEY") == key or key in names.get("KEYS", "").split(" ")
    return frame.store_timestamp if has_key else None

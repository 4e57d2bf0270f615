"""Atomic batches, or groups: the log holds all their messages or none; so do consumers see them.

A marker comes first, an ordinary message of GROUPS_TOPIC (queue 0, hidden as system topics are),
and right behind it what belongs to the group. The body of a marker:

    0   i64  span: bytes from the marker's first one to the group's end; 0: no group follows 8
    JSON what the broker wrote the group for (broker/exactly_once/sinks.py); the store does not read
    it

Each part of a group is what a batch is: whole in one segment, and a BLANK before it when it does
not fit the rest of one. So the end is known before the first byte is written, and a group may span
segments.

The rule for every position that says how far the log counts (its end after a recovery or a
promotion, `confirmed`, what a checkpoint says): it never lies inside a group. On a master that is
so by itself: `appended` moves once, when all of the group is written. A group that a crash cut
short has its end behind the end of the log and is cut off at its marker. A slave gets a group piece
by piece: reput waits at the marker until all of it is there, so that nothing of it is in a queue,
and a checkpoint does not pass it. For the rest there is `align_to_batch`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from saturnmq.protocol.frame import BLANK_BYTES, Frame, decode_frame
from saturnmq.protocol.kernels import Run
from saturnmq.protocol.topics import GROUPS_TOPIC
from saturnmq.store.derived.consumequeue import ENTRY, ConsumeQueue
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.log.commitlog import CommitLog

QUEUE = GROUPS_TOPIC, 0
TOPIC_BYTES = GROUPS_TOPIC.encode()
_SPAN = struct.Struct(">q")
assert _SPAN.size == 8, "the span at the beginning of a marker's body"


class AtomicBatch(NamedTuple):
    """[start, end) of the log, the marker included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Marker:
    """A message of GROUPS_TOPIC. `end` is that of its group, or its own if there is none."""

    queue_offset: int
    start: int
    end: int
    store_timestamp: int
    document: bytes


@dataclass(frozen=True, slots=True)
class AtomicBatchPart:
    """A checked batch of a group: `size` bytes of frames when it is stored. `read` gives its
    MessageBatch entries; an OSError says that they are gone."""

    topic: str
    queue_id: int
    count: int
    size: int
    read: Callable[[], bytes | bytearray | memoryview]
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0


def marker_body(span: int, document: bytes) -> bytes:
    assert span >= 0, f"a batch of {span} bytes"
    return _SPAN.pack(span) + document


def read_marker(frame: Frame) -> Marker:
    """The marker in a frame of GROUPS_TOPIC."""
    own = frame.physical_offset + frame.size
    span = _SPAN.unpack_from(frame.body)[0] if len(frame.body) >= _SPAN.size else 0
    return Marker(
        frame.queue_offset,
        frame.physical_offset,
        max(frame.physical_offset + span, own),
        frame.store_timestamp,
        frame.body[_SPAN.size :],
    )


def lay_out(end: int, sizes: Iterable[int], segment_bytes: int) -> tuple[list[int], int]:
    """Lay out a group of pieces of these sizes in a log that ends at `end`, by the rule of `room`
    for batches: the places of the pieces, and the group's end."""
    places = []
    for size in sizes:
        assert 0 < size <= segment_bytes - BLANK_BYTES, f"{size} bytes in a segment"
        left = segment_bytes - end % segment_bytes
        if size + BLANK_BYTES > left:
            end += left
        places.append(end)
        end += size
    return places, end


def groups_in(
    runs: Iterable[Run], frame_at: Callable[[int, int], bytes | memoryview]
) -> Iterator[AtomicBatch]:
    """The groups whose markers are among these runs of a scan; `frame_at(offset, size)` gives the
    bytes of a frame."""
    for topic, _, _, _, entries in runs:
        if topic == GROUPS_TOPIC:
            for start, size, _ in ENTRY.iter_unpack(entries):
                frame = decode_frame(frame_at(start, size), 0, size, verify=False)
                if isinstance(frame, Frame):
                    marker = read_marker(frame)
                    if marker.end > start + size:
                        yield AtomicBatch(start, marker.end)


class Groups:
    """The groups of one log: those that are dispatched are found through the queue of markers,
    the others are remembered."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        self._log = log
        self._queues = queues
        self._ahead: list[AtomicBatch] = []  # their markers were not dispatched yet
        self._end = 0  # no group ends behind it

    def recovered(self, end: int) -> None:
        """Note that the log ends at `end` and that no group is unfinished."""
        self._ahead.clear()
        self._end = end if self._queue is not None else 0

    def add(self, group: AtomicBatch, dispatched: int) -> None:
        """Add a group; the queue of markers has those that begin before `dispatched`."""
        assert group.start < group.end, f"a batch from {group.start} to {group.end}"
        self._ahead = [each for each in self._ahead if each.start >= dispatched]
        if group.start >= dispatched and group not in self._ahead:
            self._ahead.append(group)
        self._end = max(self._end, group.end)

    def cut(self, end: int) -> None:
        """The log is cut at `end`."""
        self._ahead = [group for group in self._ahead if group.start < end]

    def validate(self) -> None:
        """AssertionError: two batches overlap, or one ends behind all of them."""
        for group in self._ahead:
            assert 0 <= group.start < group.end, f"a batch from {group.start} to {group.end}"
            assert group.end <= self._end, f"a batch to {group.end}, none ends behind {self._end}"
        for before, after in pairwise(sorted(self._ahead)):
            assert before.end <= after.start, f"batches {before} and {after} overlap"

    def is_unfinished(self, offset: int, end: int) -> bool:
        """Whether a group begins at `offset` and reaches past `end`, the end of the log."""
        ahead = self._ahead
        return bool(ahead) and any(each.start == offset and each.end > end for each in ahead)

    def align_to_batch(self, offset: int) -> int:
        """`offset`, or the start of the group that it lies in."""
        if offset >= self._end:
            return offset
        for group in self._ahead:
            if group.start < offset < group.end:
                return group.start
        queue = self._queue
        if queue is None:
            return offset
        last = queue.first_at_or_after(offset, queue.min_offset, queue.max_offset) - 1
        marker = self.marker(last)
        return marker.start if marker is not None and marker.end > offset else offset

    def marker(self, queue_offset: int) -> Marker | None:
        """The marker at this place of its queue; None if there is none (any more)."""
        queue = self._queue
        entry = queue.entry(queue_offset) if queue is not None else None
        if entry is None:
            return None
        start, size, _ = entry
        data = self._log.read(start, size)
        frame = None if data is None else decode_frame(data, 0, len(data), verify=False)
        if not isinstance(frame, Frame) or frame.topic != TOPIC_BYTES:
            return None
        return read_marker(frame)

    @property
    def range(self) -> tuple[int, int]:
        """The places [first, end) of the queue of markers."""
        queue = self._queue
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self._queues.find(*QUEUE)

"""ConsumeQueue: the index of one topic's queue (docs/internals/format.md 3).

    0   i64  CommitLog offset of the frame
    8   i32  frame size
    12  i64  tags code

Entry n lies at byte 20 * n. Written by reput only, read by pulls. RocketMQ's rule kept: an entry
whose place is already taken is skipped, so that dispatching twice is harmless; slots before the
first entry of a queue that does not begin at 0 are filled with (0, 2147483647, 0). Differs: a gap
in the middle is filled the same way instead of shifting what follows.

When its topic was deleted (`tombstones.py`), entries of frames before `since` do not count: the
least offset lies behind them, and a queue without any others goes on at `first`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from saturnmq.protocol.frame import FRAME_BYTES_MIN
from saturnmq.protocol.kernels import COMPILED
from saturnmq.store.derived.queue_files import QueueFiles
from saturnmq.store.derived.slot_stretch import SlotStretch, Written, end_of
from saturnmq.store.disk import Advice, Disk
from saturnmq.store.log.segments import Segment, SegmentSeries, zero_tail
from saturnmq.store.reading import OF_DERIVED, read

ENTRY = struct.Struct(">qiq")
UNIT = ENTRY.size
assert UNIT == 20, "i64, i32 and i64"
_FILLER_SIZE = 0x7FFFFFFF
UNEXPLAINED_MAX = 100  # numbers missing in a queue
OFFSET_MAX = (1 << 63) // UNIT - 1  # its byte position must fit 64 bits
FILLER = ENTRY.pack(0, _FILLER_SIZE, 0)
_FILLERS = FILLER * 512


def entries_before_reference(entries: bytes, limit: int) -> list[int]:
    """The numbers of those entries that could name a frame before `limit`."""
    return [
        number
        for number, (offset, size, _) in enumerate(ENTRY.iter_unpack(entries))
        if 0 < size < _FILLER_SIZE and 0 <= offset < limit
    ]


if not TYPE_CHECKING and COMPILED:
    try:
        from saturnmq.store.store_kernel import entries_before
    except ImportError:  # only the other kernel could be compiled
        entries_before = entries_before_reference
else:
    entries_before = entries_before_reference


def last_physical(entries: bytes) -> int:
    """The start of the frame of the last of these entries."""
    offset: int = ENTRY.unpack_from(entries, len(entries) - UNIT)[0]
    return offset


FrameCheck = Callable[[int, int, str, int, int], bool]
"""Whether a frame of this size, topic, queue and queue offset lies at a physical offset (first)."""


class ConsumeQueue:
    """Entries [min_offset, max_offset) of one queue.

    Its files are slots of `unit` bytes, each of which begins like an entry; those of [`_low`,
    `_high`) count. Here a slot's number is a queue offset; `batchconsumequeue.py` has other slots.
    """

    unit = UNIT
    frame_messages = 1  # the most messages that one slot may stand for

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        topic: str,
        queue_id: int,
        advice: tuple[Advice, ...] = (),
        files: QueueFiles | None = None,
    ) -> None:
        self.topic = topic
        self._advice = advice
        self.queue_id = queue_id
        files = QueueFiles(disk) if files is None else files
        self.series = SegmentSeries(disk, directory, segment_bytes, files)
        self._low = self._high = 0
        self.since = 0
        self.first = 0
        self.is_starting = False  # its files are read, because a bad sector must not be a SIGBUS
        self._stretch: SlotStretch | None = None  # of a start

    @property
    def min_offset(self) -> int:
        """The offset of the first message."""
        return self._low

    @property
    def max_offset(self) -> int:
        """The offset behind the last message."""
        return self._high

    def offset_at(self, slot: int) -> int:
        """The queue offset of the (first) message of a slot, `max_offset` at the end."""
        return slot

    def _claimed(self, slot: int, data: bytes | memoryview) -> int:
        """The queue offset that the frame of a slot with this content must have."""
        return slot

    def _heads(self, slots: bytes | memoryview) -> bytes | memoryview:
        """The entries that these slots begin with."""
        return slots

    def set_ends(self, low: int, high: int) -> None:
        """Let the slots [low, high) of its files count."""
        self._low, self._high = low, high

    def validate(self, log_end: int) -> None:
        """AssertionError: its ends and its files do not fit together, or it leads the log, which
        ends at `log_end`. Looks at the last entry only."""
        low, high, series = self._low, self._high, self.series
        assert 0 <= low <= high <= OFFSET_MAX, f"{self.topic}/{self.queue_id}: {low} to {high}"
        series.validate()
        assert series.segment_bytes % self.unit == 0, f"{series.segment_bytes} bytes cut an entry"
        if not series.segments:
            assert low == high, f"{self.topic}/{self.queue_id}: {low} to {high} without a file"
            return
        end = high * self.unit
        assert series.start <= end <= series.end, (series.start, end, series.end)
        assert self.max_physical <= log_end, (
            f"{self.topic}/{self.queue_id} has entries up to {self.max_physical}, the log ends at "
            f"{log_end}"
        )

    @property
    def is_empty(self) -> bool:
        """Whether it has no files, or none of their entries counts."""
        if not self.since or not self.series.segments:
            return not self.series.segments
        low = self.series.start // self.unit
        return self.first_at_or_after(self.since, low, self._high) == self._high

    def may_end_at(self, end: int, physical: int) -> bool:
        """Whether the queue may end at `end` with a message that ends at this place of the log, and
        so have lost some before that: whether there is room for all from the last that it has. A
        few may be missing for unknown reasons."""
        last = self.entry(self.max_offset - 1)
        since = 0 if last is None else max(last[0], 0)  # a spoiled entry may say anything
        room = max(physical - since, 0) // FRAME_BYTES_MIN
        most = max(room, UNEXPLAINED_MAX) * self.frame_messages
        return 1 + end - self.max_offset <= most

    def append(self, first: int, entries: bytes) -> bytes:
        """Put a run at its place; the new entries: what is there already stays."""
        assert 0 <= first <= OFFSET_MAX, f"an entry at {first}, the limit is {OFFSET_MAX}"
        assert len(entries) % UNIT == 0, f"{len(entries)} bytes are no entries of {UNIT}"
        self._stretch = None
        if not self.series.segments or first > self._high:
            self._fill_to(first)
        entries = entries[(self._high - first) * UNIT :]
        self._write(self._high, entries)
        return entries

    def _write(self, slot: int, slots: bytes) -> list[Segment]:
        """Write these from `slot` on, the last of the queue; the files that they are in."""
        pos, touched = slot * self.unit, []
        while slots:
            segment = self._segment(pos)
            part = slots[: segment.end - pos]
            segment.file.write(pos - segment.start, part)
            slots = slots[len(part) :]
            pos += len(part)
            touched.append(segment)
        self._high = pos // self.unit
        return touched

    def restore(self, first: int, entries: bytes) -> int:
        """Blocking: put these entries where a gap left their places empty, durably; how many are in
        their places now."""
        assert first >= 0, f"an entry at {first}"
        assert len(entries) % UNIT == 0, f"{len(entries)} bytes are no entries of {UNIT}"
        self._stretch = None
        count = len(entries) // UNIT
        placed = 0
        touched = set()
        for number in range(first, min(self._high, first + count)):
            segment = self.series.find(number * UNIT)
            if segment is None:
                continue
            at = number * UNIT - segment.start
            entry = entries[(number - first) * UNIT :][:UNIT]
            if segment.view[at : at + UNIT] == FILLER:
                segment.file.write(at, entry)
                touched.add(segment)
                self._low = min(self._low, number)
            placed += segment.view[at : at + UNIT] == entry
        for segment in touched:
            segment.file.flush(0, self.series.segment_bytes)
        behind = self.append(first, entries)  # if no entry of the queue follows the gap
        placed += len(behind) // UNIT
        assert placed <= count, f"{placed} of {count} entries are in their places"
        return placed

    def _segment(self, pos: int) -> Segment:
        """The segment that holds the byte at `pos`, or begins there if it is new."""
        segment = self.series.find(pos)
        if segment is None:
            segment = self.series.create(pos)
            self.series.add(segment)
            for advice in self._advice:
                segment.file.advise(advice)
        return segment

    def _fill_to(self, first: int) -> None:
        pos = self._high * UNIT
        if not self.series.segments:
            pos = first * UNIT - first * UNIT % self.series.segment_bytes
            self._low = first
        assert pos <= first * UNIT, f"fillers from {pos} to {first * UNIT}"
        while pos < first * UNIT:
            segment = self._segment(pos)
            stop = min(segment.end, first * UNIT)
            count = (stop - pos) // UNIT
            segment.file.write(pos - segment.start, FILLER * count)
            pos = stop
        self._high = first

    def entries(self, first: int, count: int) -> memoryview:
        """At most `count` entries from `first`, within one segment; use it before the next call."""
        segment = self.series.find(first * UNIT)
        if segment is None or first >= self._high:
            return memoryview(b"")
        at = first * UNIT - segment.start
        stop = min(at + count * UNIT, self._high * UNIT - segment.start)
        return segment.view[at : min(stop, self.series.segment_bytes)]

    def entry(self, index: int) -> tuple[int, int, int] | None:
        """(offset, size, tags code)."""
        if not self._low <= index < self._high:
            return None
        segment = self.series.find(index * UNIT)
        return None if segment is None else self._unpack(segment, index)

    def _unpack(self, segment: Segment, index: int) -> tuple[int, int, int]:
        at = index * self.unit - segment.start
        offset, size, code = ENTRY.unpack(self._slots(segment, at, UNIT))
        return offset, size, code

    def _slots(self, segment: Segment, at: int, size: int) -> bytes | memoryview:
        if self._stretch is not None:
            return self._stretch.read(segment, at, size)
        if self.is_starting:
            return read(segment.file, at, size, OF_DERIVED)
        return segment.view[at : at + size]

    def offset_behind(self, first: int, slots: int) -> int:
        """The offset of the message behind so many slots, the first of which has `first`."""
        return first + slots

    def offset_from(self, physical: int) -> int:
        """The offset of the first message whose frame begins at or behind `physical`."""
        return self.offset_at(self.first_at_or_after(physical, self._low, self._high))

    def visible_end(self, visible: int) -> int:
        """The end for readers that see no message that ends behind `visible` in the log."""
        if self.max_physical <= visible:
            return self.max_offset
        end = self.first_at_or_after(visible, self._low, self._high)
        assert self._low <= end <= self._high, f"{end} of {self._low} to {self._high} is visible"
        segment = self.series.find((end - 1) * self.unit)
        if segment is not None and end > self._low:
            offset, size, _ = self._unpack(segment, end - 1)
            end -= offset + size > visible
        return self.offset_at(end)

    def first_at_or_after(self, physical: int, low: int, high: int) -> int:
        """First slot in [low, high) whose offset is >= `physical` (or that is no entry)."""
        while low < high:
            middle = (low + high) // 2
            entry = self._next_entry(middle, high)  # slots without one say nothing of the order
            segment = self.series.find(entry * self.unit)
            if entry == high or segment is None:
                high = middle
                continue
            offset, size, _ = self._unpack(segment, entry)
            if size > 0 and offset < physical:
                low = entry + 1
            else:
                high = middle
        return low

    def _next_entry(self, index: int, high: int) -> int:
        """First index in [index, high) that is not a filler; `high` if all are."""
        while index < high and (segment := self.series.find(index * self.unit)) is not None:
            at = index * self.unit - segment.start
            count = min(
                high - index, (self.series.segment_bytes - at) // self.unit, len(_FILLERS) // UNIT
            )
            slots = self._slots(segment, at, count * self.unit)
            if slots == _FILLERS[: count * self.unit]:
                index += count
                continue
            for _, size, _ in ENTRY.iter_unpack(self._heads(slots)):
                if size != _FILLER_SIZE:
                    return index
                index += 1
        return index

    @property
    def last_physical(self) -> int:
        """The start of the last entry's frame, -1 if there is none."""
        segment = self.series.find((self._high - 1) * self.unit)
        if segment is None or self._low == self._high:
            return -1
        return self._unpack(segment, self._high - 1)[0]

    @property
    def max_physical(self) -> int:
        """End of the last entry's frame, -1 if none."""
        segment = self.series.find((self._high - 1) * self.unit)
        if segment is None:
            return -1
        offset, size, _ = self._unpack(segment, self._high - 1)
        return -1 if size == _FILLER_SIZE else offset + size

    def recover(self, limit: int, is_frame: FrameCheck, *, nothing_behind: bool = False) -> bool:
        """After load: the end is the first slot that is empty or points at or behind `limit`.
        Nothing of it is synced: `flush` does that, after a crash for all files.

        Behind it a crash may have left anything, also the torn half of an entry that points before
        `limit` now: the last entry that is kept must name a frame of this queue. False: what lies
        behind the end shows that entries before it were lost, because one of them names a frame of
        this queue, or because `nothing_behind` it can be.
        """
        # Before anything is read: what the kernel reads ahead of a reader counts as written.
        written = [(segment, segment.file.written(0)) for segment in self.series.segments]
        low, high = self.series.start // self.unit, end_of(written, self.unit)
        self._stretch = SlotStretch(high, self.unit)
        if high > low:
            high = self._stretch.used_up_to(self.series.segments[0], high)
        end = self.first_at_or_after(limit, low, high)
        while end > low and not self._is_sound(end - 1, limit, is_frame):
            end -= 1
        whole, is_clear = True, True
        for first, data in self._slots_behind(end, written):
            is_clear = False
            whole &= not nothing_behind
            whole = whole and not self._names_frame(first, data, limit, is_frame)
        if not (is_clear and self._stretch.is_short):
            self._stretch = None
        self._cut(end, is_clear=is_clear)
        return whole

    def started(self) -> None:
        """Note that the start could read all that it needs."""
        self.is_starting = False
        self._stretch = None

    def _slots_behind(self, index: int, written: Written) -> Iterator[tuple[int, bytes]]:
        """Stretches of slots from `index` on that are not all empty, each with its first number."""
        for segment, ranges in written:
            first = max(index * self.unit - segment.start, 0)
            for start, end in ranges:
                aligned = max(start - start % self.unit, first)
                if aligned >= end:
                    continue
                # a hole of the file may begin within the zeros that end an entry
                data = bytes(self._slots(segment, aligned, end + -end % self.unit - aligned))
                if data != bytes(len(data)):
                    yield (segment.start + aligned) // self.unit, data

    def _names_frame(self, first: int, data: bytes, limit: int, is_frame: FrameCheck) -> bool:
        """Whether one of these slots, the first of which is `first`, holds an entry of ours."""
        unit = self.unit
        for number in entries_before(bytes(self._heads(data)), limit):
            slot = data[unit * number :][:unit]
            offset, size, _ = ENTRY.unpack_from(slot)
            claimed = self._claimed(first + number, slot)
            if is_frame(offset, size, self.topic, self.queue_id, claimed):
                return True
        return False

    def _is_sound(self, index: int, limit: int, is_frame: FrameCheck) -> bool:
        segment = self.series.find(index * self.unit)
        assert segment is not None, f"the entry {index} lies between the ends of the queue"
        slot = self._slots(segment, index * self.unit - segment.start, self.unit)
        offset, size, _ = ENTRY.unpack_from(slot)
        return (
            0 < size < _FILLER_SIZE
            and self._end_before(index) <= offset < limit
            and is_frame(offset, size, self.topic, self.queue_id, self._claimed(index, slot))
        )

    def _end_before(self, index: int) -> int:
        """The end of the frame before: entries rise, and none follows an empty slot."""
        segment = self.series.find((index - 1) * self.unit)
        if segment is None:
            return 0
        offset, size, _ = self._unpack(segment, index - 1)
        if size <= 0:
            return 1 << 63
        return 0 if size == _FILLER_SIZE else offset + size

    def _cut(self, end: int, *, is_clear: bool = False) -> None:
        """Forget the slots behind `end`, which are zeros already if `is_clear`."""
        assert end >= 0, f"a queue was to be cut at {end}"
        if not is_clear:
            self._stretch = None
        pos = end * self.unit
        segment = self.series.find(pos)
        empty = pos == self.series.start
        self.series.drop_from(pos if empty or segment is None else pos + 1)
        if segment is not None and not empty and not is_clear:
            zero_tail(segment, pos - segment.start, OF_DERIVED)
        if not self.series.segments:
            self._begin()
            return
        self._high = end
        self._low = min(max(self._low, self.series.start // self.unit), self._high)

    def _begin(self) -> None:
        """Begin a queue without files at the place of its next entry."""
        self._high = self._low = self.first

    def bury(self, since: int, first: int) -> None:
        """Its topic was deleted: see the module's text."""
        assert since >= 0, f"deleted up to {since}"
        assert 0 <= first <= OFFSET_MAX, f"goes on at {first}, the limit is {OFFSET_MAX}"
        self.since, self.first = since, first
        if self.series.segments:
            self.correct_min(0)
        else:
            self._begin()

    def let_go(self) -> str:
        """Close the files; the directory, which is to be deleted."""
        while self.series.segments:
            self.series.take_oldest()
        self._begin()
        return self.series.directory

    def truncate(self, physical: int) -> None:
        """Blocking: forget entries whose frames end behind `physical`, durably."""
        low = self.series.start // self.unit
        if self.max_physical > physical:
            self._cut(self.first_at_or_after(physical, low, self._high))
            self.flush()

    def forget_from(self, physical: int) -> None:
        """Blocking: forget entries whose frames begin at or behind `physical`, durably, also before
        `recover`."""
        low, high = self.series.start // self.unit, self.series.end // self.unit
        self._cut(self.first_at_or_after(physical, low, high))
        self.flush()

    def correct_min(self, log_start: int) -> None:
        """Raise min to the first entry that points at or behind the log's start, and counts."""
        low = max(self._low, self.series.start // self.unit)
        low = self.first_at_or_after(max(log_start, self.since), low, self._high)
        self._low = max(self._low, self._next_entry(low, self._high))

    def drop_before(self, log_start: int) -> list[str]:
        """Raise min past what the log no longer has and take out segments, never the last, all of
        whose entries point there: what is to be deleted."""
        self.correct_min(log_start)
        gone = []
        while (
            len(self.series.segments) > 1 and self.series.segments[0].end <= self._low * self.unit
        ):
            gone.append(self.series.take_oldest())
        return gone

    def flush(self) -> None:
        """Blocking, may run beside `append`: what was put before is durable then, but for the
        names of new files."""
        for segment in self.series.segments[:]:
            segment.file.flush(0, self.series.segment_bytes)

    def destroy(self) -> None:
        self.series.destroy()
        self._begin()

    def close(self) -> None:
        self.series.close()

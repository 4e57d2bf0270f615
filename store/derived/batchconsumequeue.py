"""BatchConsumeQueue: the index of a queue whose frames are batches (docs/internals/format.md 3.5).

    0   i64  CommitLog offset of the frame    28  i64  queue offset of the first message
    8   i32  frame size                       36  i16  messages
    12  i64  tags code                        38  i32  -1 (compacted offset)
    20  i64  store time                       42  i32  0

A unit stands for all messages of its frame. Units lie one behind the other from the first byte of
the first file on, whatever their offsets are, so there are no fillers. Written by reput only, read
by pulls; the files are those of `consumequeue.py`, with other slots. A unit whose first offset is
taken is skipped, so that dispatching twice is harmless.

A frame that is no inner batch has a unit of one message here (`singles`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from saturnmq.protocol.frame_reference import BATCH_UNIT, INNER_NUM_MAX, Run
from saturnmq.store.derived.consumequeue import (
    ENTRY,
    FILLER,
    OFFSET_MAX,
    UNIT,
    ConsumeQueue,
    FrameCheck,
)

_BASE_AT, _COUNT_AT, _COUNT_END = 28, 36, 38
_TAIL = b"\xff" * 4 + bytes(4)


def base_of(unit: bytes | memoryview) -> int:
    """The queue offset of a unit's first message."""
    return int.from_bytes(unit[_BASE_AT:_COUNT_AT], "big", signed=True)


def end_of(unit: bytes | memoryview) -> int:
    """The queue offset behind a unit's last message."""
    return base_of(unit) + int.from_bytes(unit[_COUNT_AT:_COUNT_END], "big", signed=True)


TimeAt = Callable[[int], int | None]
"""The store time of the frame at a physical offset, None if it is gone."""


def place_of(run: Run) -> int:
    """The physical offset of the first frame of a run, of entries or of a unit."""
    place: int = ENTRY.unpack_from(run[4])[0]
    return place


def singles(run: Run, time_at: TimeAt) -> Iterator[Run]:
    """A run of entries as runs of units, one for each message."""
    topic, queue_id, first, _, entries = run
    for number, entry in enumerate(ENTRY.iter_unpack(entries), first):
        if ENTRY.pack(*entry) != FILLER:
            unit = BATCH_UNIT.pack(*entry, time_at(entry[0]) or 0, number, 1, -1, 0)
            yield topic, queue_id, number, 1, unit


class BatchConsumeQueue(ConsumeQueue):
    """The messages [min_offset, max_offset) of one queue; see the module's text."""

    unit = BATCH_UNIT.size
    frame_messages = INNER_NUM_MAX

    @property
    def min_offset(self) -> int:
        return self.offset_at(self._low)

    @property
    def max_offset(self) -> int:
        last = self._slot(self._high - 1)
        return self.first if last is None else end_of(last)

    def offset_at(self, slot: int) -> int:
        unit = self._slot(slot) if slot < self._high else None
        return self.max_offset if unit is None else base_of(unit)

    def _claimed(self, slot: int, data: bytes | memoryview) -> int:
        return base_of(data)

    def _heads(self, slots: bytes | memoryview) -> bytes:
        size = self.unit
        return b"".join(slots[at : at + UNIT] for at in range(0, len(slots), size))

    def _slot(self, slot: int) -> bytes | memoryview | None:
        segment = self.series.find(slot * self.unit)
        if segment is None:
            return None
        return self._slots(segment, slot * self.unit - segment.start, self.unit)

    def _is_sound(self, index: int, limit: int, is_frame: FrameCheck) -> bool:
        unit = self._slot(index)
        is_whole = unit is not None and end_of(unit) > base_of(unit) and unit[_COUNT_END:] == _TAIL
        return is_whole and super()._is_sound(index, limit, is_frame)

    def _begin(self) -> None:
        self._low = self._high = 0

    def append(self, first: int, entries: bytes) -> bytes:
        """Put one unit behind the last one, if its place, `first`, is not taken; its entry then."""
        assert 0 <= first <= OFFSET_MAX, f"a batch at {first}, the limit is {OFFSET_MAX}"
        assert len(entries) == self.unit, f"{len(entries)} bytes are no unit"
        if first < self.max_offset:
            return b""
        self._stretch = None
        self._write(self._high, entries)
        return entries[:UNIT]

    def restore(self, first: int, entries: bytes) -> int:
        """Blocking: put a unit where it belongs, also between others, durably; how many messages
        are in their places now. A crash on the way leaves units that the next start cuts off."""
        slot = self._slot_of(first)
        units = b"".join(bytes(self._slot(each) or b"") for each in range(slot, self._high))
        if units[: self.unit] == entries:
            return end_of(entries) - first
        before = self._slot(slot - 1) if slot else None
        is_free = before is None or end_of(before) <= first
        if not is_free or (units and base_of(units) < end_of(entries)):
            return 0
        self._stretch = None
        for segment in self._write(slot, entries + units):
            segment.file.flush(0, self.series.segment_bytes)
        self._low = min(self._low, slot)
        return end_of(entries) - first

    def _slot_of(self, offset: int) -> int:
        """The slot of the message at `offset`; of the next one that there is, if that is none."""
        low, high = self.series.start // self.unit, self._high
        while low < high:
            middle = (low + high) // 2
            unit = self._slot(middle)
            if unit is not None and end_of(unit) <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def entries(self, first: int, count: int, enough: int | None = None) -> memoryview:
        """The entries of the frames from that of the message `first` on, within one file, that have
        at most `count` messages together, and of none behind `enough` messages; always one, if
        there is any. These are RocketMQ's two limits of a read."""
        slot = self._slot_of(first)
        segment = self.series.find(slot * self.unit)
        if segment is None:
            return memoryview(b"")
        found, total = bytearray(), 0
        for each in range(slot, min(self._high, segment.end // self.unit)):
            unit = self._slots(segment, each * self.unit - segment.start, self.unit)
            size = end_of(unit) - base_of(unit)
            if found and (total + size > count or total >= (count if enough is None else enough)):
                break
            found += unit[:UNIT]
            total += size
        return memoryview(bytes(found))

    def entry(self, index: int) -> tuple[int, int, int] | None:
        """(offset, size, tags code) of the frame with the message at `index`."""
        unit = self._slot(self._slot_of(index)) if index < self.max_offset else None
        if unit is None or not max(base_of(unit), self.min_offset) <= index:
            return None
        offset, size, code = ENTRY.unpack(unit[:UNIT])
        return offset, size, code

    def offset_behind(self, first: int, slots: int) -> int:
        return self.offset_at(self._slot_of(first) + slots)

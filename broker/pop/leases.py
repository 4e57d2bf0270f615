"""The messages that are out: popped by a group, and not acknowledged yet.

A **lane** is one queue as one group reads it. Its cursor is the offset of the first message that
was never popped. Every message before the cursor was acknowledged, or is open: leased to a
consumer until its time is over, or ready to be given out again. A **lease** is what one pop took
from one lane, all for one time; a message that is given out again gets another lease.

Popping, acknowledging and expiring each cost the same however many messages are open: leases are
found by offset in the lane, by time in slots of `GRAIN_S`, and in the order of their records in
the log (`records.py`) for the position from which a start must read.

Pure: no I/O. Times of the steady clock come as arguments; `pop_ms` is only a name.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence, Set
from math import ceil
from typing import NamedTuple

from saturnmq.broker.tables.progress import Mark
from saturnmq.runtime.errors import NoMessage

GRAIN_S = 0.1  # leases that end within one grain end together
FINE_GRAINS = 1000  # a longer lease may end later by one part in so many
ATTEMPT_MAX = 1024  # messages that a consumer that lost an answer may have again at once


class LanePlace(NamedTuple):
    """A group's reading of one queue."""

    group: str
    topic: str
    queue_id: int


class PopLease:
    """Messages of one lane that were popped together."""

    __slots__ = (
        "attempt_id",
        "attempts",
        "due",
        "expired",
        "invisible_ms",
        "lane",
        "left",
        "offsets",
        "ordered",
        "pop_ms",
        "record",
        "unseen",
    )

    def __init__(
        self,
        lane: PopLane,
        offsets: Sequence[int],
        pop_ms: int,
        invisible_ms: int,
        *,
        attempts: int = 0,
        attempt_id: str = "",
        ordered: bool = False,
        unseen: bool = False,
    ) -> None:
        """`attempts`: how often these messages were popped before. `unseen`: no consumer has had
        them under this lease, so it is no attempt."""
        self.lane = lane
        self.offsets = offsets
        self.left = len(offsets)  # of them, those that are still open under this lease
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.attempts = attempts
        self.attempt_id = attempt_id
        self.ordered = ordered
        self.unseen = unseen
        self.due = 0  # in grains of the steady clock
        self.expired = False
        self.record = -1  # the newest record of it in the log

    @property
    def attempts_now(self) -> int:
        """How often these messages were popped so far."""
        return self.attempts + (self.expired and not self.unseen)

    @property
    def open(self) -> list[int]:
        """The offsets that are open under it."""
        table = self.lane.open
        return [offset for offset in self.offsets if table.get(offset) is self]


class PopLane:
    """A group's reading of one queue."""

    __slots__ = (
        "_order",
        "cursor",
        "idle_since",
        "open",
        "out",
        "place",
        "ready",
        "record",
        "told",
    )

    def __init__(self, place: LanePlace, cursor: int) -> None:
        self.place = place
        self.cursor = cursor
        self.open: dict[int, PopLease] = {}  # by offset
        self.out = 0  # of the open messages, those whose time is not over
        self._order: deque[int] = deque()  # open offsets in their order, and closed ones
        self.ready: list[int] = []  # a heap of offsets to give out again, and closed ones
        self.record = -1  # the newest record that has its cursor
        self.told: Mark | None = None  # the group's mark as this lane last knew it
        self.idle_since = 0.0

    @property
    def low(self) -> int:
        """The first offset that is not acknowledged."""
        order = self._order
        while order and order[0] not in self.open:
            order.popleft()
        return order[0] if order else self.cursor

    def sort(self) -> None:
        """Put the open offsets in order, after records of any order were taken."""
        self._order = deque(sorted(self.open))

    def append(self, offsets: Sequence[int]) -> None:
        self._order.extend(offsets)

    def validate(self) -> None:
        """AssertionError: it contradicts itself."""
        assert self.cursor >= 0, f"{self.place} goes on at {self.cursor}"
        out = sum(not lease.expired for lease in self.open.values())
        assert out == self.out, f"{out} of {self.place} are out, {self.out} are counted"
        order = set(self._order)
        for offset, lease in self.open.items():
            assert 0 <= offset < self.cursor, f"{offset} of {self.place} was never popped"
            assert lease.lane is self, f"{offset} of {self.place} is leased elsewhere"
            assert offset in order, f"{offset} of {self.place} has no place in the order"
            assert not lease.expired or offset in self.ready, f"{offset} of {self.place} is lost"


class Leases:
    """All lanes of a broker."""

    def __init__(self) -> None:
        self.lanes: dict[LanePlace, PopLane] = {}
        self.count = 0  # open messages
        self.by_group: dict[str, int] = {}  # of them, those of each group that has some
        self._slots: dict[int, dict[PopLease, None]] = {}  # by the grain in which they end
        self._times: list[int] = []  # a heap; times without leases are skipped
        self._queued: set[int] = set()  # the same
        # Leases and lanes by the place of their newest record, the oldest first.
        self.records: OrderedDict[PopLease | PopLane, None] = OrderedDict()

    def validate(self) -> None:
        """AssertionError: a lease is in one table and not in another."""
        for lane in self.lanes.values():
            lane.validate()
        opened = sum(len(lane.open) for lane in self.lanes.values())
        assert opened == self.count, f"{opened} messages are open, {self.count} are counted"
        groups: dict[str, int] = {}
        for lane in self.lanes.values():
            if lane.open:
                groups[lane.place.group] = groups.get(lane.place.group, 0) + len(lane.open)
        assert groups == self.by_group, f"{groups} are open, {self.by_group} are counted"
        leases = {lease for lane in self.lanes.values() for lease in lane.open.values()}
        for lease in leases:
            assert lease.left == len(lease.open), f"{lease.left} of {lease.open} are left"
            assert lease in self.records, f"{lease.offsets} of {lease.lane.place} has no record"
            slot = self._slots.get(lease.due, {})
            assert lease.expired or lease in slot, (
                f"{lease.offsets} of {lease.lane.place} never ends"
            )
        records = [each.record for each in self.records]
        assert records == sorted(records), "the records are in no order"

    # changes

    def lane(self, place: LanePlace, cursor: int) -> PopLane:
        """The lane of this place; a new one begins at `cursor`."""
        found = self.lanes.get(place)
        if found is None:
            found = self.lanes[place] = PopLane(place, cursor)
        return found

    def take(self, lease: PopLease, now: float, record: int) -> None:
        """Count these messages as out from now on; their last lease, if any, ends."""
        assert lease.left, f"a lease of nothing of {lease.lane.place}"
        lane, fresh = lease.lane, []
        for offset in lease.offsets:
            old = lane.open.get(offset)
            if old is None:
                fresh.append(offset)
            else:
                self._leave(old)
            lane.open[offset] = lease
        lane.out += len(lease.offsets)
        lane.append(fresh)
        self._count(lane, len(fresh))
        lane.cursor = max(lane.cursor, lease.offsets[-1] + 1)
        due = lease.due = _due(now, lease.invisible_ms / 1000)
        self._slots.setdefault(due, {})[lease] = None
        if due not in self._queued:
            self._queued.add(due)
            heapq.heappush(self._times, due)
        self.recorded(lease, record)

    def recorded(self, subject: PopLease | PopLane, record: int) -> None:
        """Note the newest record of a lease or a lane."""
        assert record >= subject.record, f"record {record} comes after {subject.record}"
        subject.record = record
        self.records[subject] = None
        self.records.move_to_end(subject)

    def close(self, lane: PopLane, offset: int) -> PopLease:
        """Count a message as acknowledged."""
        lease = lane.open.pop(offset)
        self._count(lane, -1)
        self._leave(lease)
        return lease

    def _count(self, lane: PopLane, more: int) -> None:
        """So many messages more of this lane are open."""
        self.count += more
        group = lane.place.group
        own = self.by_group.get(group, 0) + more
        if own:
            self.by_group[group] = own
        else:
            self.by_group.pop(group, None)

    def _leave(self, lease: PopLease) -> None:
        """One message less is open under this lease."""
        lease.left -= 1
        lease.lane.out -= not lease.expired
        assert lease.left >= 0, f"{lease.offsets} of {lease.lane.place}: {lease.left} are left"
        if not lease.left:
            self.records.pop(lease, None)
            slot = self._slots.get(lease.due)
            if slot is not None:
                slot.pop(lease, None)
                if not slot:
                    del self._slots[lease.due]

    def reset(self, lane: PopLane, cursor: int, keep_from: int | None = None) -> None:
        """Let a lane go on at `cursor`, and forget its open messages; those from `keep_from` to
        `cursor` stay."""
        kept = range(cursor if keep_from is None else keep_from, cursor)
        for offset in [at for at in lane.open if at not in kept]:
            self.close(lane, offset)
        lane.cursor = cursor
        lane.ready = [at for at in lane.ready if at in lane.open]
        heapq.heapify(lane.ready)
        lane.sort()
        assert lane.out <= len(lane.open), f"{lane.out} of {len(lane.open)} are out"

    def forget(self, lane: PopLane) -> None:
        """Forget a lane with all that is open in it."""
        self.reset(lane, lane.cursor)
        assert not lane.open, f"{len(lane.open)} of {lane.place} are still open"
        self.records.pop(lane, None)
        del self.lanes[lane.place]

    def expire(self, now: float, most: int) -> Iterator[PopLease]:
        """End at most so many leases whose time is over; their messages are ready to be given out
        again."""
        ended = 0
        while self._times and self._times[0] * GRAIN_S <= now and ended < most:
            due = self._times[0]
            slot = self._slots.get(due, {})
            while slot and ended < most:
                lease, _ = slot.popitem()
                assert lease.left > 0, f"nothing of {lease.offsets} is left, and it is in a slot"
                lease.expired = True
                lease.lane.out -= lease.left
                for offset in lease.open:
                    heapq.heappush(lease.lane.ready, offset)
                ended += 1
                yield lease
            if not slot:
                self._slots.pop(due, None)
                self._queued.discard(heapq.heappop(self._times))

    # answers

    def held(self, place: LanePlace, offset: int, pop_ms: int, invisible_ms: int) -> PopLease:
        """The lease under which a message is out. NoMessage: it is not out, or not with these
        times, or they are over."""
        lane = self.lanes.get(place)
        lease = None if lane is None else lane.open.get(offset)
        what = f"message {offset} of queue {place.queue_id} of {place.topic}"
        if lease is None:
            raise NoMessage(
                f"{what} is not out for group {place.group}: it was acknowledged, or never popped"
            )
        if (lease.pop_ms, lease.invisible_ms) != (pop_ms, invisible_ms):
            raise NoMessage(
                f"the handle of {what} is not the latest of group {place.group}: the message was "
                "popped again, or its invisible time was changed"
            )
        if lease.expired:
            raise NoMessage(
                f"the handle of {what} has expired: its invisible time of {invisible_ms} ms is "
                "over, and the message is given out again"
            )
        return lease

    def take_ready(self, lane: PopLane, most: int) -> list[int]:
        """The first offsets of a lane to give out again. Give them back with `put_back`."""
        taken: list[int] = []
        while lane.ready and len(taken) < most:
            offset = heapq.heappop(lane.ready)
            lease = lane.open.get(offset)
            if lease is not None and lease.expired and offset not in taken[-1:]:
                taken.append(offset)
        return taken

    def put_back(self, lane: PopLane, offsets: Sequence[int]) -> None:
        """Keep those of `take_ready` that were not given out after all."""
        for offset in offsets:
            lease = lane.open.get(offset)
            if lease is not None and lease.expired:
                heapq.heappush(lane.ready, offset)

    def is_ready(self, lane: PopLane) -> bool:
        """Whether a lane has messages to give out again."""
        return len(lane.open) > lane.out

    def come_first(self, lane: PopLane, given: Set[int] | None) -> bool:
        """Whether open messages of a lane belong before new ones: those that are ready, and for an
        ordered reader, whose answer has the offsets `given`, those of an answer that it lost."""
        return self.is_ready(lane) or (given is not None and not lane.open.keys() <= given)

    def is_blocked(self, lane: PopLane, attempt_id: str) -> bool:
        """Whether an ordered reader must wait for messages that are out, unless the consumer that
        has them asks again because it lost the answer."""
        if not lane.out:
            return False
        if not attempt_id or len(lane.open) > ATTEMPT_MAX:
            return True
        return any(
            not lease.expired and lease.attempt_id != attempt_id for lease in lane.open.values()
        )

    def first_record(self, end: int) -> int:
        """The record from which a start must read; `end` if none."""
        first = next(iter(self.records), None)
        return end if first is None else first.record


def _due(now: float, seconds: float) -> int:
    """The grain in which a lease ends, never before its time. Long leases share their ends, so
    there are few of these."""
    due = ceil((now + seconds) / GRAIN_S)
    step = max(1, int(seconds / GRAIN_S) // FINE_GRAINS)
    return -(-due // step) * step

"""Pop: the service that gives out messages for a time and takes their acknowledgements.

It has no wire format: `broker/handlers/pop.py` puts it on Remoting. Only a master serves; its table
of leases (`leases.py`) is rebuilt from the records in the log (`records.py`) when a term begins.
Nothing of it is in a file, so a crash, a truncation and a promotion need no rules of their own.

The two rules of pop, and why they hold:

- *No message is lost.* A message is given out when its lease is recorded, and counts as consumed
  when its acknowledgement is recorded. Between the two it stays in its own queue. When its time is
  over, it is given out again from there, with one attempt more: nothing is copied, so nothing can
  be lost or doubled on the way. (RocketMQ writes a copy to `%RETRY%<group>_<topic>`. Messages in
  such topics are given out here, too: a RocketMQ broker may have written them.) The group's
  committed offset never passes an open message.
- *No message is given out twice within its invisible time.* The time is counted by the steady
  clock, so steps of wall clocks do nothing. The answer to a pop leaves when the record of the lease
  is as safe as the ack mode demands. A new term knows the leases and counts their whole time anew:
  it cannot know how much is over, since clocks may have been set meanwhile.

RocketMQ 5.4 has two ways. One writes check points and acks to the revive topic through the timer,
and matches them when the time is over; the other (PopConsumerService) has one RocksDB record per
message by time, on one node only. The records here are those of the first; the table in memory has
the order of the second. An ack costs one record and one look into a dictionary.

After `attempts` more than the group's retryMaxTimes a message of an unordered pop goes to
%DLQ%<group>. An ordered pop repeats for ever, as in RocketMQ: there its consumer decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from saturnmq.broker.commit.copies import CopyWriter
from saturnmq.broker.context import REJECTED, Context
from saturnmq.broker.pop import records
from saturnmq.broker.pop.burying import Burying
from saturnmq.broker.pop.leases import GRAIN_S, LanePlace, Leases, PopLane, PopLease
from saturnmq.broker.pop.orders import PopOrder, Popped, PoppedRun, offsets_of
from saturnmq.broker.pop.rebuilding import replay
from saturnmq.broker.pop.recorder import PopRecorder
from saturnmq.broker.pop.shares import PopShares
from saturnmq.broker.pop.unwrapping import is_there, unwrap
from saturnmq.broker.tables.lost_offsets import beginning_of
from saturnmq.broker.tables.offsets import GroupOffset
from saturnmq.broker.tables.progress import Mark
from saturnmq.protocol.pop_handle import PopHandle, topic_of_kind
from saturnmq.runtime.errors import NoMessage, SaturnError, SystemBusy
from saturnmq.store.message_store import AppendResult, GetResult

log = logging.getLogger(__name__)

BYTES_MAX = 4 << 20  # of one answer
INVISIBLE_MAX_MS = 3 * 86_400_000
EXPIRED_AT_ONCE = 2000  # leases in one turn of the loop
SCAN_S = 10.0
IDLE_S = 600.0  # a lane without open messages is forgotten: the group's offset is its cursor
LOST = frozenset({"OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_BADLY", "OFFSET_FOUND_NULL"})


class PopService:
    def __init__(self, context: Context, copies: CopyWriter, on_append: Callable[[], None]) -> None:
        """`on_append` tells the advancer that the log grew."""
        self._c = context
        self._store = context.store
        self._offsets = context.offsets
        self._burying = Burying(context, copies)
        self._on_append = on_append
        self._broker = context.config.broker_name
        self._topic = records.revive_topic(context.config.cluster_name)
        self.leases = Leases()
        self._shares = PopShares(self.leases, lambda: context.config)
        self._serves = False
        self._term = object()  # that of the latest `run`
        self._deleted: set[str] = set()  # groups, while the records were being read
        self._turn = 0  # which queue is looked at first
        self._stirred = asyncio.Event()
        self._scan_at = 0.0
        self._recorder = PopRecorder(context, self.leases, on_append)
        # A consumer of this group and topic may find messages now that it did not find before.
        self.on_ready: Callable[[str, str], None] = lambda group, topic: None
        self.on_end: Callable[[], None] = lambda: None

    def validate(self) -> None:
        """AssertionError: its table contradicts itself."""
        self.leases.validate()

    # a term

    async def run(self) -> None:
        """Serve, as long as this node is master."""
        c, term = self._c, object()
        self._term = term
        try:
            self.leases = await replay(c, self._topic)
            self._recorder = PopRecorder(c, self.leases, self._on_append)
            self._shares = PopShares(self.leases, lambda: c.config)
            self._scan_at = c.runtime.monotonic()
            self._serves = True
            while self._deleted:
                self.forget_group(self._deleted.pop())
            for group, topic in {(at.group, at.topic): None for at in self.leases.lanes}:
                self.on_ready(group, topic)
            while True:
                if not self.leases.lanes:
                    self._stirred.clear()
                    await self._stirred.wait()
                self._step(c.runtime.monotonic())
                await c.runtime.sleep(GRAIN_S)
        finally:
            if self._term is term:
                self._serves = False
                self.leases = Leases()
                self._shares = PopShares(self.leases, lambda: c.config)
                self.on_end()

    def check_serves(self) -> None:
        """SystemBusy: the table of leases is not known yet."""
        if not self._serves:
            raise SystemBusy(f"{REJECTED}this master still reads which messages are out")

    @property
    def serves(self) -> bool:
        """Whether pops are served, and records can be appended at this moment: no atomic batch is
        being appended, and the log is not being rewritten."""
        return self._serves and not self._store.in_group and not self._c.steps.is_resting

    def status(self) -> dict[str, str]:
        """Its figures in the broker's runtime information."""
        return self._shares.status()

    def _step(self, now: float) -> None:
        """End leases, forget lanes that are idle or gone, and record leases again whose records are
        old."""
        over = [lease.lane for lease in self.leases.expire(now, EXPIRED_AT_ONCE)]
        lanes = (*over, *self._shares.released(now))
        for group, topic in dict.fromkeys((lane.place.group, lane.place.topic) for lane in lanes):
            self.on_ready(group, topic)
        if now >= self._scan_at:
            self._scan_at = now + SCAN_S
            self._recorder.note_end(now)
            self._forget_idle(now)
        if self.serves:
            try:
                self._recorder.keep_young(now)
            except SaturnError as error:
                log.warning("leases of popped messages cannot be recorded again: %s", error)

    def _forget_idle(self, now: float) -> None:
        for lane in list(self.leases.lanes.values()):
            if self._is_gone(lane):
                self.leases.forget(lane)
            elif lane.open or not lane.idle_since:
                lane.idle_since = now
            elif now - lane.idle_since >= IDLE_S:
                self.leases.forget(lane)

    def _is_gone(self, lane: PopLane) -> bool:
        """Whether the queue was deleted with its topic, which may have been made again; or nobody
        can pop from it, as its topic has fewer queues now, and nothing of it is out."""
        name, topics = lane.place.topic, self._c.topics
        topic = topics.get(name)
        if topic is None:
            return name in topics.deleted  # a promoted slave may not have the topic yet
        if lane.told is not None and self._mark(lane.place) is None:
            return True
        return not lane.out and lane.place.queue_id >= topic.read_queues

    # giving out

    def queues(self, order: PopOrder) -> Iterator[tuple[str, int]]:
        """The queues in which an order may find messages, in the order to look at them."""
        topics = self._c.topics
        if not order.ordered:
            for kind in (1, 2):
                retry = topics.get(topic_of_kind(order.topic, order.group, kind))
                if retry is not None:
                    yield from ((retry.name, queue_id) for queue_id in range(retry.read_queues))
        topic = topics.readable(order.topic)
        if order.queue_id >= 0:
            topics.readable(order.topic, order.queue_id)
            yield order.topic, order.queue_id
            return
        self._turn += 1
        count = topic.read_queues
        yield from ((order.topic, (self._turn + number) % count) for number in range(count))

    def begin(self) -> Popped:
        """A new answer, without messages."""
        return Popped(self._c.runtime.now_ms())

    def look(self, order: PopOrder, popped: Popped, topic: str, queue_id: int) -> None:
        """Give out messages of one queue, as many as the answer has room for."""
        assert self.serves, f"{order} came while nothing can be appended"
        lane = self._lane(LanePlace(order.group, topic, queue_id), from_end=order.from_end)
        leases = self.leases
        if order.ordered and leases.is_blocked(lane, order.attempt_id):
            return  # `rest` does not count it: its consumer would ask again and again
        if popped.count < order.most:
            self._give_again(order, popped, lane)
        behind = self._store.visible_end(topic, queue_id, self._c.visible)
        given = popped.offsets(topic, queue_id) if order.ordered else None
        others_first = leases.come_first(lane, given)
        if popped.count < order.most and lane.cursor < behind and not others_first:
            if self._shares.room(lane):
                self._give_new(order, popped, lane)
            else:
                self._shares.hold_back(lane, self._c.runtime.monotonic())
        popped.rest += max(0, behind - lane.cursor)

    def has_messages(self, order: PopOrder, topic: str, queue_id: int) -> bool:
        """Whether `look` would look at messages in this queue."""
        lane = self._lane(LanePlace(order.group, topic, queue_id), from_end=order.from_end)
        if order.ordered and self.leases.is_blocked(lane, order.attempt_id):
            return False
        behind = self._store.visible_end(topic, queue_id, self._c.visible)
        return lane.cursor < behind or self.leases.is_ready(lane)

    def peek(self, order: PopOrder, topic: str, queue_id: int) -> GetResult:
        """The messages that come next, which stay where they are."""
        lane = self._lane(LanePlace(order.group, topic, queue_id), from_end=order.from_end)
        return self._read(order, lane, lane.cursor, order.most, BYTES_MAX)

    def _lane(self, place: LanePlace, *, from_end: bool) -> PopLane:
        """The lane of this place, after a look at the group's offset: others change that, too."""
        offsets, leases = self._offsets, self.leases
        offsets.take_reset(*place)
        mark, lane = self._mark(place), leases.lanes.get(place)
        if lane is not None and lane.told == mark is not None:
            return lane
        if lane is not None and mark is None:  # the topic was deleted
            leases.forget(lane)
            lane = None
        if lane is None:
            self._stirred.set()
            begin = mark.offset if mark is not None else self._first(place, from_end=from_end)
            lane = leases.lane(place, begin)
            if mark is None:
                # The file of offsets is not written at once: a start that finds no offset would
                # begin at the end, and skip messages that came meanwhile.
                try:
                    self._recorder.cursor(lane, records.RESET)
                    offsets.commit(*place, begin)
                except SaturnError:
                    leases.forget(lane)
                    raise
                mark = self._mark(place)
        elif mark is not None:
            if lane.told is None or lane.told.generation != mark.generation:
                leases.reset(lane, mark.offset)
            else:  # another node knew of acknowledgements that this one has not
                leases.reset(lane, max(lane.cursor, mark.offset), keep_from=mark.offset)
            lane.told = mark
            self._recorder.cursor(lane, records.RESET if not lane.open else records.KEEP)
        lane.told = mark
        return lane

    def _first(self, place: LanePlace, *, from_end: bool) -> int:
        """The offset at which a group begins that never read a queue. From its end, unless it still
        has its first messages: RocketMQ's rule."""
        store, (topic, queue_id) = self._store, (place.topic, place.queue_id)
        if not from_end:
            return store.min_offset(topic, queue_id)
        begin = beginning_of(store, topic, queue_id)
        return store.visible_end(topic, queue_id, self._c.visible) if begin is None else begin

    def _read(self, order: PopOrder, lane: PopLane, offset: int, most: int, room: int) -> GetResult:
        result = self._store.get_message(
            lane.place.topic,
            lane.place.queue_id,
            offset,
            most,
            max(1, room),
            order.codes,
            self._c.visible,
            correct=not self._c.role.lacks,
            sql=order.sql,
        )
        return unwrap(result, offset, most, order.codes, room)

    def _at(self, place: LanePlace, offset: int) -> GetResult:
        """The message at one offset, if it is there."""
        result = self._store.get_message(
            place.topic, place.queue_id, offset, 1, BYTES_MAX, None, self._c.visible
        )
        return unwrap(result, offset, 1, None, BYTES_MAX)

    def _give_new(self, order: PopOrder, popped: Popped, lane: PopLane) -> None:
        """Give out messages from the cursor on."""
        most = min(order.most - popped.count, self._shares.room(lane))
        room = BYTES_MAX - popped.bytes
        if room <= 0:
            return
        result = self._read(order, lane, lane.cursor, most, room)
        if result.status in LOST and result.next_begin_offset != lane.cursor:
            log.info("%s goes on at %d, %s", lane.place, result.next_begin_offset, result.status)
            self.leases.reset(lane, result.next_begin_offset, keep_from=result.min_offset)
            self._recorder.cursor(lane, records.KEEP)
            result = self._read(order, lane, lane.cursor, most, room)
        offsets = offsets_of(result, lane.cursor)
        if popped.count and result.size > room:
            return  # the store gives one message at least
        if offsets:
            lease = PopLease(
                lane,
                offsets,
                popped.pop_ms,
                order.invisible_ms,
                attempt_id=order.attempt_id,
                ordered=order.ordered,
            )
            self._give(popped, lease, result.next_begin_offset, [result])
            self._c.pull_offsets.note(*lane.place, lane.cursor)
        elif result.status == "NO_MATCHED_MESSAGE":
            lane.cursor = max(lane.cursor, result.next_begin_offset)
            self._commit(lane)

    def _give_again(self, order: PopOrder, popped: Popped, lane: PopLane) -> None:
        """Give out messages whose time is over, in the order of their offsets. An ordered reader
        that lost its answer gets at once what it has."""
        most, ready = order.most - popped.count, []
        if order.ordered and lane.out:  # by the same attempt: else the lane would be blocked
            offsets = sorted(lane.open)[:most]
        else:
            offsets = ready = self.leases.take_ready(lane, most)
        try:
            self._give_these_again(order, popped, lane, offsets)
        finally:
            self.leases.put_back(lane, ready)

    def _give_these_again(
        self, order: PopOrder, popped: Popped, lane: PopLane, offsets: Sequence[int]
    ) -> None:
        again: dict[int, list[tuple[int, GetResult]]] = {}
        size = popped.bytes
        for offset in offsets:
            lease = lane.open[offset]
            if not popped.runs:
                popped.pop_ms = max(popped.pop_ms, lease.pop_ms + 1)
            if popped.pop_ms <= lease.pop_ms:
                break  # another answer gives it out, with a handle of its own
            result = self._at(lane.place, offset)
            if not is_there(result, offset):
                if result.status == "OFFSET_OVERFLOW_ONE":
                    break  # it is not visible yet, a moment after a fail-over
                log.warning("message %d of %s is gone from the log", offset, lane.place)
                self._close(lane, [offset])
                continue
            attempts = lease.attempts_now
            ends = attempts and not order.ordered
            if ends and self._burying.took(lane.place, result.data, attempts):
                self._close(lane, [offset])
                continue
            size += result.size
            if size > BYTES_MAX and size > result.size:
                break  # it comes first in another answer
            again.setdefault(attempts, []).append((offset, result))
        for attempts, found in sorted(again.items()):
            lease = PopLease(
                lane,
                [offset for offset, _ in found],
                popped.pop_ms,
                order.invisible_ms,
                attempts=attempts,
                attempt_id=order.attempt_id,
                ordered=order.ordered,
            )
            self._give(popped, lease, lane.cursor, [result for _, result in found])

    def _give(
        self, popped: Popped, lease: PopLease, cursor: int, results: Sequence[GetResult]
    ) -> None:
        """Record a lease and the cursor behind it, and count its messages as given out. If the
        record cannot be written, nothing has changed."""
        put = self._recorder.lease(lease, lease.offsets, cursor)
        lease.lane.cursor = max(lease.lane.cursor, cursor)
        self._take(lease, put)
        popped.runs.append(
            PoppedRun(
                lease.lane.place.topic,
                lease.lane.place.queue_id,
                lease.offsets,
                lease.attempts,
                results,
            )
        )
        popped.count += len(lease.offsets)
        popped.bytes += sum(result.size for result in results)
        popped.end = put.end_offset
        place = lease.lane.place
        self._c.statistics.pulled(place.group, place.topic, len(lease.offsets))

    # taking back

    def acknowledge(
        self, group: str, topic: str, handles: Sequence[PopHandle]
    ) -> tuple[int, list[SaturnError | None]]:
        """Count messages of one topic as consumed, in one record for each queue and pop. The first
        value is the position in the log that the answer waits for; 0 if no handle is valid. The
        errors say which are not, and why."""
        assert self.serves, f"acknowledgements of {group} came while nothing can be appended"
        errors: list[SaturnError | None] = []
        found: dict[tuple[PopLane, int], list[int]] = {}
        for handle in handles:
            try:
                lease = self._held(group, topic, handle)
                offsets = found.setdefault((lease.lane, lease.pop_ms), [])
                if handle.offset not in offsets:
                    offsets.append(handle.offset)
                errors.append(None)
            except SaturnError as error:
                errors.append(error)
        end = 0
        for (lane, pop_ms), offsets in found.items():
            end = self._close(lane, sorted(offsets), pop_ms).end_offset
        return end, errors

    def change(
        self, group: str, topic: str, handle: PopHandle, invisible_ms: int, *, unseen: bool
    ) -> tuple[PopLease, int]:
        """Let the invisible time of a message begin now, with another length. Its handle ends; that
        of the new lease counts, and the answer waits for the position in the log beside it."""
        assert self.serves, f"a change of {handle} came while nothing can be appended"
        old = self._held(group, topic, handle)
        pop_ms = max(self._c.runtime.now_ms(), old.pop_ms + 1)
        lease = PopLease(
            old.lane,
            [handle.offset],
            pop_ms,
            invisible_ms,
            attempts=old.attempts,
            ordered=old.ordered,
            unseen=unseen,
        )
        put = self._recorder.lease(lease, lease.offsets, old.lane.cursor)
        self._take(lease, put)
        return lease, put.end_offset

    def bury(self, group: str, topic: str, handle: PopHandle) -> int:
        """Move a message that is out to the dead letters of its group; its handle ends. The answer
        waits for this position in the log. NoMessage: it is not out, or is gone from the log."""
        assert self.serves, f"a dead letter {handle} came while nothing can be appended"
        lease = self._held(group, topic, handle)
        lane, offset = lease.lane, handle.offset
        result = self._at(lane.place, offset)
        if not is_there(result, offset):
            raise NoMessage(f"message {offset} of {lane.place} is gone from the log")
        self._burying.store(lane.place, result.data, lease.attempts + 1)
        return self._close(lane, [offset]).end_offset

    def _take(self, lease: PopLease, put: AppendResult) -> None:
        self.leases.take(lease, self._c.runtime.monotonic(), put.queue_offset)
        self.leases.recorded(lease.lane, put.queue_offset)
        self._recorder.keep_short()

    def _held(self, group: str, topic: str, handle: PopHandle) -> PopLease:
        """The lease of a handle. NoMessage: it has none, so no number in it is used."""
        if handle.broker != self._broker:
            raise NoMessage(
                f"the handle is of broker {handle.broker}, this is {self._broker}: send it there"
            )
        place = LanePlace(group, topic, handle.queue_id)
        return self.leases.held(place, handle.offset, handle.pop_ms, handle.invisible_ms)

    def _close(self, lane: PopLane, offsets: Sequence[int], pop_ms: int = 0) -> AppendResult:
        """Record that these messages of a lane are done."""
        place = lane.place
        put = self._recorder.done(lane, offsets, pop_ms)
        ordered = False
        for offset in offsets:
            ordered = self.leases.close(lane, offset).ordered
        self._commit(lane)
        self._recorder.keep_short()
        if ordered and not lane.out:
            self.on_ready(place.group, place.topic)
        return put

    def _commit(self, lane: PopLane) -> None:
        """Raise the group's offset to the first message that is not consumed."""
        low = lane.low
        if lane.told is None or low > lane.told.offset:
            place = lane.place
            self._offsets.commit(*place, low)
            lane.told = self._mark(place)

    def _mark(self, place: LanePlace) -> Mark | None:
        at = GroupOffset(place.topic, place.group, place.queue_id)
        return self._offsets.progress.marks.get(at)

    # groups and topics

    def forget_group(self, group: str) -> None:
        """Forget a group that was deleted."""
        if not self._serves:
            self._deleted.add(group)
            return
        for lane in [lane for at, lane in self.leases.lanes.items() if at.group == group]:
            self._recorder.cursor(lane, records.GONE)
            self.leases.forget(lane)

"""Delayed delivery: moves messages out of SCHEDULE_TOPIC_XXXX when their time has come.

`config/delayOffset.json`: `{"dataVersion":DV,"offsetTable":{"<level>":<next queue offset>}}`, saved
with the other tables, copied by slaves (code 45). We add a `"generationTable"` and `"stale"` to it
(`broker/tables/progress.py`). In this process the next offset of a level moves when the delivered
copy is appended; in the file and in copies of the table it moves once that copy is flushed. A slave
takes it when its own log reaches as far as the master's did. So a crash or a fail-over repeats the
latest deliveries, and never loses a message. Only confirmed messages are delivered, and none whose
topic was deleted meanwhile.

The broker that delivers counts a delay by its steady clock, from the moment when the waiting
message came to it: sent to it, or copied from its master (`waits.py`). So neither a step of a wall
clock nor a promotion to a node with another clock shortens or lengthens a delay. For messages that
came before this process, it takes the times that the process before it left in the file, or that
its master sends in the copy. We add a `"waitingTable"` to both. It has entries such as
[[12,1700000000000]] for each level: the queue offset at which some messages end, and the wall time
by which they had come, or null if only their store time is known. Of two times of one clock only
the difference counts: in a file between then and now, in a copy between then and its `timestamp`. A
difference below zero counts as none. A store time of another machine's clock counts only at the
first start in a directory of RocketMQ's.

`messageDelayLevel` of the broker that delivers says how long a level waits. After a change at a
restart the new delay counts for waiting messages too, and messages of a level that is gone wait as
long as the highest level that is left. (RocketMQ keeps the old time unless it lies further ahead
than the new delay: then it delivers at once. It never delivers messages of a level that is gone.)
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from saturnmq.broker.commit.copies import CopyWriter
from saturnmq.broker.commit.sound_reads import SoundReads
from saturnmq.broker.context import Context
from saturnmq.broker.delay.delivered import first_undelivered
from saturnmq.broker.delay.waits import Entry, Waits
from saturnmq.broker.tables.progress import Mark, ProgressTable, marks_by_number
from saturnmq.broker.tables.table_persistence import Document, Row
from saturnmq.protocol import checked
from saturnmq.protocol import properties as names
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.topics import SCHEDULE_TOPIC
from saturnmq.runtime.errors import MalformedFrame, SaturnError
from saturnmq.store.message_store import Arrival

log = logging.getLogger(__name__)

TICK_S = 0.1
AFTER_ERROR_S = 1.0
BATCH = 32
STEP_MS = 1000  # of a wall clock, after which the file is written anew


class DelayService(ProgressTable[int]):
    """`progress`: the next queue offset of each level, as far as the copies are flushed."""

    def __init__(self, context: Context, copies: CopyWriter) -> None:
        super().__init__(context.runtime.now_ms)
        self._c = context
        self._runtime = context.runtime
        self._store = context.store
        self._copies = copies
        self._sound = SoundReads(context)
        self._next: dict[int, int] = {}  # the same for all copies, flushed or not
        self._delivered: deque[tuple[int, int, int]] = deque()  # end of its copy, level, next
        self._start_ms, self._start = context.runtime.now_ms(), context.runtime.monotonic()
        self._delays_ms = context.store.config.delays_ms
        self._waits: dict[int, Waits] = {}  # of each level
        queues = (queue for topic, queue in context.store.queues() if topic == SCHEDULE_TOPIC)
        for queue_id in {*range(len(self._delays_ms)), *queues}:
            self._waits_of(queue_id + 1, context.store.max_offset(SCHEDULE_TOPIC, queue_id))
        self._trusts_all_stamps = False
        self._saved_lead = self._lead()
        self._due: dict[int, float] = {}  # level -> not before this time, when known
        self._arrived = asyncio.Event()
        self._arrived.set()

    def _waits_of(self, level: int, end: int = 0) -> Waits:
        """The waits of a level. A store that was written with more levels, or copied from a master
        with more, has messages above the highest level: they wait as long as the highest, so
        nothing waits for ever. `end`: the end of the level's queue when the process began."""
        found = self._waits.get(level)
        assert level > 0, f"the delay level {level}"
        if found is None:
            delay_ms = self._delays_ms[min(level, len(self._delays_ms)) - 1]
            found = self._waits[level] = Waits(delay_ms / 1000, self._start, end)
        return found

    def validate(self) -> None:
        """AssertionError: a level goes on where it cannot, or waits in no order."""
        super().validate()
        for level, waits in self._waits.items():
            assert level > 0, f"the delay level {level}"
            waits.validate()
        for level, offset in self._next.items():
            assert level > 0, f"the delay level {level}"
            assert offset >= -1, f"level {level} goes on at {offset}"
        for end, level, _ in self._delivered:
            assert level in self._next, f"what level {level} delivered ends at {end}"

    # the table

    @property
    def dirty(self) -> bool:
        stepped = abs(self._lead() - self._saved_lead) > STEP_MS
        return super().dirty or bool(self._delivered) or stepped

    def clean(self) -> None:
        super().clean()
        self._saved_lead = self._lead()

    def _lead(self) -> float:
        """The lead of the wall clock over the steady one."""
        return self._runtime.now_ms() - self._runtime.monotonic() * 1000

    def document(self) -> Document:
        self.settle()
        document = super().document()
        now, now_ms = self._runtime.monotonic(), document["dataVersion"]["timestamp"]
        table = {
            str(level): [
                [end, None if since is None else now_ms - math.floor((now - since) * 1000)]
                for end, since in waits.waiting(self._next.get(level, 0))
            ]
            for level, waits in self._waits.items()
        }
        document["waitingTable"] = {level: entries for level, entries in table.items() if entries}
        return document

    def load(self, document: Mapping[str, Any]) -> None:
        """Read the file at the start. If the log has lost messages that the file counts as waiting,
        the table is dirty and must be written before other messages take their offsets."""
        super().load(document)
        # RocketMQ writes down store times only, and a slave has no other.
        self._trusts_all_stamps = bool(document) and "waitingTable" not in document
        self._learn(document, self._start_ms, self._start)

    def take_over_waits(self, document: Mapping[str, Any], at: float) -> None:
        """Take over the times since which messages wait: this node has just joined the master that
        had this table at `at` on the steady clock."""
        if "waitingTable" in document:
            then_ms = checked.integer(checked.table(document, "dataVersion"), "timestamp")
            self._learn(document, then_ms, at)

    def _learn(self, document: Mapping[str, Any], then_ms: int, then: float) -> None:
        """Adopt a document's waits; `then_ms` and `then` are the wall clock and the steady clock at
        the time that the document's times are compared with."""
        for level in (table := checked.table(document, "waitingTable")):
            waits = self._waits_of(checked.as_integer(level, "a level", 1, QUEUES_MAX))
            known = [_waiting(entry, then_ms, then) for entry in checked.items(table, level)]
            if known and known[-1][0] > waits.end:
                self.mark_dirty()
            waits.adopt(known)

    def cut(self) -> None:
        """Forget the waits of messages that a truncation removed."""
        for level, waits in self._waits.items():
            if waits.cut(self._store.max_offset(SCHEDULE_TOPIC, level - 1)):
                self.mark_dirty()

    def forget(self) -> None:
        """Forget the progress: the log has lost delivered messages. The copies in the log, or
        another node, show how far delivery came."""
        self.progress.marks.clear()
        self.mark_dirty()

    def settle(self) -> None:
        """Advance the saved progress over deliveries whose copies are flushed."""
        flushed = self._store.watermarks.flushed
        while self._delivered and self._delivered[0][0] <= flushed:
            _, level, offset = self._delivered.popleft()
            if self.progress.advance(level, offset):
                self.mark_dirty()

    def merge(self, document: Mapping[str, Any]) -> None:
        super().merge(document)
        for level, mark in self.progress:
            self._next[level] = max(mark.offset, self._next.get(level, 0))

    def marks_of(self, document: Mapping[str, Any]) -> dict[int, Mark]:
        offsets = checked.table(document, "offsetTable")
        return dict(marks_by_number(offsets, checked.table(document, "generationTable"), least=1))

    def rows_of(self, marks: Mapping[int, Mark], *, generations: bool) -> Iterator[Row | None]:
        for level, mark in sorted(marks.items()):
            number = mark.generation if generations else mark.offset
            if number or not generations:
                yield str(level), number

    def begin(self) -> None:
        """Begin delivery at the table's offsets, or behind them where the log has the copies of
        later deliveries: the table is another node's, which had not heard of them, or is lost."""
        self._delivered.clear()
        self._due.clear()
        known = {level: mark.offset for level, mark in self.progress}
        self._next = {
            level: self._found_delivered(level, known.get(level, 0))
            for level in self._waits.keys() | known.keys()
        }
        self._arrived.set()

    def _found_delivered(self, level: int, known: int) -> int:
        """The offset at which a level goes on by the copies in the log, from `known` on."""
        store = self._store
        start = max(known, store.min_offset(SCHEDULE_TOPIC, level - 1))
        offset = first_undelivered(store, level, start)
        if offset > start:
            log.warning(
                "delay level %d goes on at %d: the log has the copies of the messages from %d on, "
                "which config/delayOffset.json does not count as delivered",
                level,
                offset,
                start,
            )
        return offset

    def status(self) -> dict[str, str]:
        """RocketMQ's figures of the levels that were ever used, in the broker's runtime
        information: the next offset to deliver, and the end of the queue."""
        found = {}
        for level in sorted(self._waits):
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end:
                found[f"scheduleMessageOffset_{level}"] = f"{self._next.get(level, 0)},{end}"
        return found

    # delivery

    def arrived(self, arrival: Arrival) -> None:
        """Note new messages of the schedule topic, which wait from now on."""
        now = self._runtime.monotonic()
        if self._waits_of(arrival.queue_id + 1).came(arrival.max_offset, now):
            self.mark_dirty()
        self._arrived.set()

    async def run(self) -> None:
        self.begin()
        while True:
            await self._arrived.wait()
            pause, failed = math.inf, False
            for level in sorted(self._waits):
                try:
                    pause = min(pause, self._deliver_level(level))
                except SaturnError as error:
                    log.warning("delay level %d waits: %s", level, error)
                    failed = True
            if failed:
                await self._runtime.sleep(AFTER_ERROR_S)
            elif pause < math.inf:
                await self._runtime.sleep(pause)
            else:
                self._arrived.clear()

    def _deliver_level(self, level: int) -> float:
        """Deliver a batch of due messages; return the seconds until the next look."""
        c = self._c
        if c.store.in_group:
            return TICK_S  # a batch is being appended, nothing else can be
        queue = level - 1
        low, high = (f(SCHEDULE_TOPIC, queue) for f in (c.store.min_offset, c.store.max_offset))
        assert low <= high, f"level {level} has {low} to {high}"
        offset = min(max(self._next.get(level, 0), low), high)
        if offset >= high:
            return math.inf
        now = c.runtime.monotonic()
        if now < self._due.get(level, now):
            return TICK_S
        waits = self._waits_of(level)
        waits.came(high, now)  # reput reports no messages that a truncation dispatched
        result = c.store.get_message(
            SCHEDULE_TOPIC,
            queue,
            offset,
            BATCH,
            1 << 20,
            visible=c.visible,
            override_limits=True,
        )
        if result.status != "FOUND":
            if result.next_begin_offset > offset:
                self._advance(level, result.next_begin_offset, 0)
            return TICK_S
        messages, behind = self._sound.messages(SCHEDULE_TOPIC, queue, offset, result)
        for message in messages:
            due = waits.due(message.queue_offset, self._stored(message))
            if now < due:
                self._due[level] = due
                return TICK_S
            end = self._deliver(message)
            self._advance(level, message.queue_offset + 1, end)
        if self._next.get(level, 0) < behind:  # the last ones are lost
            self._advance(level, behind, 0)
        self._due.pop(level, None)
        return 0.0

    def _stored(self, message: ReceivedMessage) -> float:
        """The store time by the steady clock; inf if another machine, whose clock may be far
        behind, stamped the message."""
        here = message.raw_store_host[:-4] == self._c.store_host[:-4]  # but for the port
        if here or self._trusts_all_stamps:
            return self._start + (message.store_timestamp - self._start_ms) / 1000
        return math.inf

    def _advance(self, level: int, offset: int, end: int) -> None:
        """Move a level to `offset`; `end` is the end of the delivered copy in the log."""
        assert offset > self._next.get(level, -1), f"level {level} goes back to {offset}"
        assert end >= 0, f"a copy of level {level} ends at {end}"
        self._next[level] = offset
        self._delivered.append((end, level, offset))

    def _deliver(self, message: ReceivedMessage) -> int:
        """Store a copy under the real topic; return where it ends in the log."""
        properties = dict(message.properties)
        properties.pop(names.CRC32, None)
        topic = properties.get(names.REAL_TOPIC)
        if not topic:
            log.error("delayed message at %d names no real topic", message.physical_offset)
            return 0
        if self._store.is_deleted(topic, message.physical_offset):
            log.info(
                "delayed message at %d is dropped: its topic %s was deleted",
                message.physical_offset,
                topic,
            )
            return 0
        queue_id = int(properties.get(names.REAL_QID, "0"))
        # A topic that was not deleted is missing if the master died before its table was copied.
        self._c.topics.ensure(topic, queue_id + 1, is_owed=True)
        put = self._copies.store(
            topic,
            queue_id,
            message,
            properties,
            reconsume_times=message.reconsume_times,
            rescheduled=True,
        )
        return put.end_offset


def _waiting(entry: object, then_ms: int, then: float) -> Entry:
    """An entry in the table of a process whose wall clock showed `then_ms` at `then` on this
    process's steady clock."""
    if not isinstance(entry, list) or len(entry) != 2:
        raise MalformedFrame("an entry of waitingTable is not an offset and a time")
    end, came_ms = entry
    since = None
    if came_ms is not None:
        waited_ms = then_ms - checked.as_integer(came_ms, "a time in waitingTable", -INT64_MAX)
        since = then - max(0, waited_ms) / 1000
    return checked.as_integer(end, "an offset in waitingTable"), since

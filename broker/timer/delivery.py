"""Delivery of due messages: their copies and their settlement, as one atomic batch.

A copy has REAL_TOPIC, REAL_QID and TIMER_OUT_MS, as RocketMQ's has, and TIMER_ENQUEUE_MS and
TIMER_DEQUEUE_MS, unless the properties have no room for these two. A message that is not due for
longer than the log keeps it is written into the log anew instead, with one more in
TIMER_ROLL_TIMES, as RocketMQ does, unless there is no room for this.

Only a master delivers. Messages whose topic was deleted meanwhile, and those that the log has lost,
are settled without a copy.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from saturnmq.broker.commit.sound_reads import SoundReads
from saturnmq.broker.context import Context, cached
from saturnmq.broker.timer.delay_clock import DelayClock
from saturnmq.broker.timer.due import DELAYS, PRECISION_MS, found_in, limited
from saturnmq.broker.timer.entries import ROLL
from saturnmq.broker.timer.pending import PendingMessages
from saturnmq.broker.timer.settlements import Settlement, append_settlement
from saturnmq.broker.timer.shelf import Waiting
from saturnmq.protocol import properties as names
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.frame import (
    BLANK_BYTES,
    TRANSACTION_MASK,
    own_properties,
    stored_properties_size,
)
from saturnmq.protocol.kernels import message_size
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.properties import (
    PAIR_END,
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
    find_in_text,
    without_in_text,
)
from saturnmq.protocol.topics import TIMER_TOPIC
from saturnmq.store.message_store import AtomicBatchPart

log = logging.getLogger(__name__)

BATCH = 128
BATCH_BYTES = 1 << 20
_DECISION = f"{names.SATURN_TIMER}\x01"


@dataclass(frozen=True, slots=True)
class _Found:
    """A due message, with its frame if the log has it."""

    waiting: Waiting
    message: ReceivedMessage | None


class TimerDelivery:
    def __init__(
        self,
        context: Context,
        sound: SoundReads,
        clock: DelayClock,
        window_ms: int,
        on_append: Callable[[], None],
        may_append: Callable[[], bool],
    ) -> None:
        """`may_append` says whether this node is the master and its log takes messages now."""
        self._c = context
        self._store = context.store
        self._sound = sound
        self._clock = clock
        self._window_ms = window_ms
        self._on_append = on_append
        self._may_append = may_append
        self.delivered = 0  # since the start
        self._minute = 0
        self._late = self._late_before = 0  # ms at most, in this minute and in the one before
        self.holds: Counter[int] = Counter()  # messages that recalls look for

    def now_of(self, shelf: str) -> int:
        """The time by the clock of this shelf."""
        return self._clock.now_ms() if shelf == DELAYS else self._c.runtime.now_ms()

    def latest_ms(self) -> int:
        """The milliseconds by which the latest delivery of this minute and of the one before
        was late."""
        self._note_late(0)
        return max(self._late, self._late_before)

    def _note_late(self, late_ms: int) -> None:
        minute = int(self._c.runtime.monotonic() // 60)
        if minute != self._minute:
            self._late_before = self._late if minute == self._minute + 1 else 0
            self._minute, self._late = minute, 0
        self._late = max(self._late, late_ms)

    async def deliver(self, pending: PendingMessages, shelf: str) -> int:
        """Deliver a batch of due messages; return how many left the shelf. SaturnError: they could
        not be delivered, and wait on."""
        waiting = pending.take_due(shelf, self.now_of(shelf), BATCH)
        left = [each for each in waiting if each[1] not in self.holds]
        pending.put_back(shelf, (each for each in waiting if each[1] in self.holds))
        taken = len(left)
        try:
            while left:
                found = await self._read(left)
                if not self._may_append() or any(each[1] in self.holds for each in left):
                    break
                self._append(pending, shelf, found)
                del left[: len(found)]
        finally:
            pending.put_back(shelf, left)
        return taken - len(left)

    async def _read(self, waiting: list[Waiting]) -> list[_Found]:
        """Read the first of these messages, as many as fit one batch."""
        found: list[_Found] = []
        size = 0
        while len(found) < len(waiting) and size < BATCH_BYTES:
            first = waiting[len(found)][1]
            count = 1  # messages of one moment often lie one behind the other
            for entry in waiting[len(found) + 1 :]:
                if entry[1] != first + count:
                    break
                count += 1
            messages = await self._messages(first, count, BATCH_BYTES - size)
            for offset in range(first, max(messages, default=first) + 1):
                message = messages.get(offset)
                if message is None:
                    log.error("the timed message %d is lost: the log has it no more", offset)
                else:
                    size += message.stored_body_size
                found.append(_Found(waiting[len(found)], message))
        return found

    async def _messages(self, first: int, count: int, limit: int) -> dict[int, ReceivedMessage]:
        """The messages of these offsets that the log has, by offset: the first ones, up to `limit`
        bytes."""
        c = self._c
        result = c.store.get_message(TIMER_TOPIC, 0, first, count, limit, override_limits=True)
        if result.status != "FOUND":
            return {}
        if (reading := cached(c, result)) is not None:
            await reading
        found, _ = self._sound.messages(TIMER_TOPIC, 0, first, result)
        return {m.queue_offset: m for m in found if first <= m.queue_offset < first + count}

    def _append(self, pending: PendingMessages, shelf: str, found: list[_Found]) -> None:
        """Append copies and settlement, in one turn of the loop."""
        c = self._c
        parts: list[AtomicBatchPart] = []
        topics: Counter[str] = Counter()
        now, copies = self.now_of(shelf), 0
        for each in found:
            message = each.message
            if message is None:
                continue
            text = str(own_properties(message.raw_properties), "utf-8", "replace")
            topic = find_in_text(text, "REAL_TOPIC\x01")
            topics[topic] += 1
            if pending.before and shelf == DELAYS and self._came(pending, each.waiting[1], text):
                continue
            is_roll = each.waiting[2] == ROLL
            part = self._rolled(shelf, message) if is_roll else self._copy(message, topic, text)
            if part is None:
                continue
            parts.append(part)
            if not is_roll:
                copies += 1
                self._note_late(now - each.waiting[0])
        settlement = Settlement({shelf: [each.waiting[:2] for each in found]}, topics)
        put = append_settlement(c.store, settlement, parts, c.store_host)
        pending.own.add(put.queue_offset)
        pending.count(settlement)
        self.delivered += len(parts)
        c.statistics.delivered_timed(copies)
        self._on_append()

    def _came(self, pending: PendingMessages, offset: int, text: str) -> bool:
        """Whether a RocketMQ broker has delivered a delayed message; it goes by the wall clock."""
        out = find_in_text(text, f"{names.TIMER_OUT_MS}\x01")
        if not out.isdigit():
            return False
        return pending.came_from_rocketmq(int(out) + PRECISION_MS, offset)

    def _copy(self, message: ReceivedMessage, topic: str, text: str) -> AtomicBatchPart | None:
        """The copy of a due message, with these properties, under its real topic; None if that was
        deleted."""
        if text and text[-1] != PAIR_END:
            text += PAIR_END
        if not topic:
            log.error("the timed message at %d names no real topic", message.physical_offset)
            return None
        if self._store.is_deleted(topic, message.physical_offset):
            log.info(
                "the timed message at %d is dropped: its topic %s was deleted",
                message.physical_offset,
                topic,
            )
            return None
        text = without_in_text(text, _DECISION)
        more = (
            f"{names.TIMER_ENQUEUE_MS}\x01{message.store_timestamp}\x02"
            f"{names.TIMER_DEQUEUE_MS}\x01{self._c.runtime.now_ms()}\x02"
        )
        number = find_in_text(text, "REAL_QID\x01")
        queue_id = int(number) if number.isdigit() and len(number) < 6 else 0
        # A topic that was not deleted is missing if the master died before its table was copied.
        self._c.topics.ensure(topic, queue_id + 1, is_owed=True)
        return self._part(message, topic, queue_id, text, more)

    def _rolled(self, shelf: str, message: ReceivedMessage) -> AtomicBatchPart | None:
        """The same message, to be written into the log anew."""
        properties = decode_properties(own_properties(message.raw_properties))
        due = found_in(properties, message.store_timestamp, self._window_ms)
        again = limited(shelf, due.due, self.now_of(shelf), self._window_ms)
        times = properties.get(names.TIMER_ROLL_TIMES, "0")
        rolled = int(times) + 1 if times.isdigit() and len(times) < 6 else 1
        properties.pop(names.TIMER_ROLL_TIMES, None)
        more = {names.TIMER_ROLL_TIMES: str(rolled)}
        # Without the decision, as RocketMQ writes it, the copy is looked at again in time as well.
        decided = properties if names.SATURN_TIMER in properties else more
        decided[names.SATURN_TIMER] = again.encode()
        own, added = (encode_properties(each).decode() for each in (properties, more))
        return self._part(message, TIMER_TOPIC, 0, own, added)

    def _part(
        self, message: ReceivedMessage, topic: str, queue_id: int, properties: str, more: str
    ) -> AtomicBatchPart | None:
        """A message with these properties, and with `more` if it fits. None: it fits in no way, and
        is dropped, for it would keep all others from their delivery."""
        config, body, born_host = self._store.config, message.raw_body, message.raw_born_host
        hosts = len(born_host), len(self._c.store_host)
        for written in (properties + more, properties):
            encoded = written.encode()
            stored = stored_properties_size(encoded, config.crc_property)
            size = message_size(len(body), len(topic.encode()), stored, *hosts)
            fits = size + BLANK_BYTES <= config.commitlog_segment_bytes
            if fits and stored <= PROPERTIES_BYTES_MAX:
                break
        else:
            log.error("the timed message at %d is lost: no copy fits", message.physical_offset)
            return None
        item = bytearray()
        encode_batch_item(item, body, encoded, message.flag)
        return AtomicBatchPart(
            topic,
            queue_id,
            1,
            size,
            lambda: item,
            message.sys_flag & ~TRANSACTION_MASK,
            message.born_timestamp,
            born_host,
            message.reconsume_times,
        )

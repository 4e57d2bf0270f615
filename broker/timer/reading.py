"""Reading the log for waiting messages: the queue of rmq_sys_wheel_timer, then the markers.

Only what is confirmed is read, so no ordinary truncation takes any of it back. All of the queue is
read before the markers, because a marker settles messages that stand before it in the log.
"""

from __future__ import annotations

import logging

from saturnmq.broker.commit.sound_reads import SoundReads
from saturnmq.broker.context import Context, cached
from saturnmq.broker.timer.delay_clock import DelayClock
from saturnmq.broker.timer.due import DELAYS, asked_for, found_in
from saturnmq.broker.timer.pending import PendingMessages
from saturnmq.broker.timer.settlements import Settlement, settlement_in
from saturnmq.protocol import properties as names
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.topics import TIMER_TOPIC
from saturnmq.runtime.errors import MalformedFrame, MessageIllegal

log = logging.getLogger(__name__)

STEP = 64  # messages or markers in one step
STEP_BYTES = 1 << 20
EVER = 1 << 60
ALIKE_MAX = 32


class TimerReader:
    def __init__(
        self, context: Context, sound: SoundReads, clock: DelayClock, window_ms: int
    ) -> None:
        self._c = context
        self._store = context.store
        self._sound = sound
        self._clock = clock
        self._window_ms = window_ms

    async def step(self, pending: PendingMessages) -> bool:
        """Read some; False: there is no more to read now."""
        c = self._c
        end = c.store.visible_end(TIMER_TOPIC, 0, c.visible)
        before = pending.next_offset
        if before < end:
            await self._read_queue(pending)
            return pending.next_offset > before
        first, markers_end = c.store.markers
        visible = c.visible
        offset = pending.next_marker = max(pending.next_marker, first)  # older ones were deleted
        for number in range(offset, min(offset + STEP, markers_end)):
            marker = c.store.marker(number)
            if marker is not None and marker.end > visible:
                return False
            if number in pending.own:
                pending.own.discard(number)
            elif marker is not None:
                try:
                    settlement = settlement_in(marker)
                except MalformedFrame as error:
                    log.error("the marker at %d cannot be read: %s", marker.start, error)
                else:
                    if settlement is not None:
                        pending.settle(settlement)
            pending.next_marker = number + 1
        return pending.next_marker < markers_end

    def is_level(self, pending: PendingMessages) -> bool:
        """Whether all that is confirmed was read."""
        c = self._c
        if pending.next_offset < c.store.visible_end(TIMER_TOPIC, 0, c.visible):
            return False
        first, end = c.store.markers
        offset = max(pending.next_marker, first)
        if offset >= end:
            return True
        marker = c.store.marker(offset)
        return marker is not None and marker.end > c.visible

    async def _read_queue(self, pending: PendingMessages) -> None:
        c, offset = self._c, pending.next_offset
        result = c.store.get_message(
            TIMER_TOPIC, 0, offset, STEP, STEP_BYTES, visible=c.visible, override_limits=True
        )
        following = result.next_begin_offset
        if result.status != "FOUND":
            pending.next_offset = max(following, offset)
            return
        if (reading := cached(c, result)) is not None:
            await reading
        found, following = self._sound.messages(TIMER_TOPIC, 0, offset, result)
        for message in found:
            if message.queue_offset >= offset:
                self._take(pending, message)
        pending.unreadable += following - offset - len(found)
        pending.next_offset = following

    def _take(self, pending: PendingMessages, message: ReceivedMessage) -> None:
        properties = message.properties
        topic = properties.get(names.REAL_TOPIC, "")
        if names.SATURN_TIMER not in properties and (
            names.TIMER_DEL_UNIQKEY in properties or names.TIMER_ROLL_TIMES in properties
        ):
            self._settle_alike(pending, message, topic)
        if names.TIMER_DEL_UNIQKEY in properties:
            return
        due = found_in(properties, message.store_timestamp, self._window_ms)
        pending.came(message.queue_offset, due, topic)
        if due.shelf == DELAYS:
            self._note_clock(due.due, properties)

    def _note_clock(self, due_ms: int, properties: dict[str, str]) -> None:
        try:
            asked = asked_for(properties, 0, 0, EVER)
        except MessageIllegal:
            return
        if asked is not None:
            self._clock.passed(due_ms - asked[2])

    def _settle_alike(self, pending: PendingMessages, message: ReceivedMessage, topic: str) -> None:
        """Settle earlier copies of a message that RocketMQ recalled or wrote anew."""
        key = message.properties.get(names.UNIQ_KEY, "")
        places: dict[str, list[tuple[int, int]]] = {}
        count = 0
        for frame in self._store.query_by_key(TIMER_TOPIC, key, ALIKE_MAX, 0, EVER) if key else ():
            other = decode_frames(frame, False)[0]
            earlier = other.queue_offset < message.queue_offset
            if earlier and names.TIMER_DEL_UNIQKEY not in other.properties:
                due = found_in(other.properties, other.store_timestamp, self._window_ms)
                places.setdefault(due.shelf, []).append((due.moment, other.queue_offset))
                count += 1
        pending.settle(Settlement(places, {topic: count} if count else {}))

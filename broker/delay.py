"""Delayed delivery: moves messages out of SCHEDULE_TOPIC_XXXX when their time has come.

`config/delayOffset.json`: `{"dataVersion":DV,"offsetTable":{"<level>":<next queue offset>}}`, saved
with the other tables, copied by slaves (code 45); ours in it is a `"generationTable"` and `"stale"`
(`progress.py`). The next offset of a level moves after the delivered copy was appended, and outside
of this process, in file and copies, once that is flushed; a slave takes it when its own log reaches
as far as the master's did. So a crash or a fail-over repeats what was delivered shortly before, and
never loses it. Only what is confirmed is delivered.

Delivery time = store time of the waiting frame + the level's delay, by the broker's clock; a time
further ahead than the delay (the clock jumped back) counts as now.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.delay_levels import DELAYS_MS
from saturnmq.broker.progress import Mark, ProgressTable
from saturnmq.broker.send import SendService
from saturnmq.protocol import properties as names
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.topics import SCHEDULE_TOPIC
from saturnmq.store.message_store import Arrival

log = logging.getLogger(__name__)

TICK_S = 0.1
AFTER_ERROR_S = 1.0
BATCH = 32


class DelayService(ProgressTable[int]):
    """`progress`: the next queue offset of each level, as far as the copies are flushed."""

    def __init__(self, context: Context, sends: SendService) -> None:
        super().__init__(context.runtime.now_ms)
        self._c = context
        self._sends = sends
        self._next: dict[int, int] = {}  # the same of all copies
        self._delivered: deque[tuple[int, int, int]] = deque()  # end of its copy, level, next
        self._due: dict[int, int] = {}  # level -> not before this time (ms), when known
        self._arrived = asyncio.Event()
        self._arrived.set()

    # the table

    @property
    def dirty(self) -> bool:
        return super().dirty or bool(self._delivered)

    def snapshot(self) -> dict[str, Any]:
        self.settle()
        return super().snapshot()

    def settle(self) -> None:
        """What is flushed may be told."""
        flushed = self._c.store.watermarks.flushed
        while self._delivered and self._delivered[0][0] <= flushed:
            _, level, offset = self._delivered.popleft()
            if self.progress.advance(level, offset):
                self.mark_dirty()

    def merge(self, document: Mapping[str, Any]) -> None:
        super().merge(document)
        for level, mark in self.progress:
            self._next[level] = max(mark.offset, self._next.get(level, 0))

    def marks_of(self, document: Mapping[str, Any]) -> dict[int, Mark]:
        generations = document.get("generationTable") or {}
        return {
            int(level): Mark(int(generations.get(level, 0)), int(offset))
            for level, offset in (document.get("offsetTable") or {}).items()
        }

    def tables_of(self, marks: list[tuple[int, Mark]]) -> tuple[dict[str, Any], dict[str, Any]]:
        offsets = {str(level): mark.offset for level, mark in marks}
        return offsets, {str(level): mark.generation for level, mark in marks if mark.generation}

    def begin(self) -> None:
        """Deliver from where the table says."""
        self._delivered.clear()
        self._due.clear()
        self._next = {level: mark.offset for level, mark in self.progress}
        self._arrived.set()

    # delivery

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        """Reput saw new messages; those of the schedule topic wake the loop."""
        if not self._arrived.is_set() and any(a.topic == SCHEDULE_TOPIC for a in arrivals):
            self._arrived.set()

    async def run(self) -> None:
        self.begin()
        while True:
            await self._arrived.wait()
            pending = False
            pause = TICK_S
            for level in range(1, len(DELAYS_MS) + 1):
                try:
                    pending |= self._deliver_level(level)
                except SaturnError as error:
                    log.warning("delay level %d waits: %s", level, error)
                    pending, pause = True, AFTER_ERROR_S
            if not pending:
                self._arrived.clear()
                continue
            await self._c.runtime.sleep(pause)

    def _deliver_level(self, level: int) -> bool:
        """Deliver what is due; True if something is still waiting at this level."""
        c = self._c
        if c.store.in_group:
            return True  # for a moment nothing can be appended
        queue = level - 1
        high = c.store.max_offset(SCHEDULE_TOPIC, queue)
        if high == 0:
            return False
        low = c.store.min_offset(SCHEDULE_TOPIC, queue)
        offset = min(max(self._next.get(level, 0), low), high)
        if offset >= high:
            return False
        now = c.runtime.now_ms()
        delay = DELAYS_MS[queue]
        due = self._due.get(level, 0)
        if now < due <= now + delay:
            return True
        result = c.store.get_message(
            SCHEDULE_TOPIC, queue, offset, BATCH, 1 << 20, None, c.visible, True
        )
        if result.status.name != "FOUND":
            if result.next_begin_offset > offset and result.status.name != "OFFSET_OVERFLOW_BADLY":
                self._advance(level, result.next_begin_offset, 0)
            return True
        for message in decode_frames(result.data, False):
            due = message.store_timestamp + delay
            if now < due <= now + delay:
                self._due[level] = due
                return True
            end = self._deliver(message)
            self._advance(level, message.queue_offset + 1, end)
        self._due.pop(level, None)
        return True

    def _advance(self, level: int, offset: int, end: int) -> None:
        """`end`: of the delivered copy in the log."""
        self._next[level] = offset
        self._delivered.append((end, level, offset))

    def _deliver(self, message: ReceivedMessage) -> int:
        """Where the copy for the real topic ends in the log."""
        properties = dict(message.properties)
        properties.pop(names.CRC32, None)
        topic = properties.get(names.REAL_TOPIC)
        if not topic:
            log.error("delayed message at %d names no real topic", message.physical_offset)
            return 0
        put = self._sends.store_message(
            topic,
            int(properties.get(names.REAL_QID, "0")),
            message.raw_body,
            properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.raw_born_host,
            reconsume_times=message.reconsume_times,
            rescheduled=True,
        )
        return put.end_offset

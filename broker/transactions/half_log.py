"""The open halves of this broker's log, and their ends: read from the log, and written into it.

A master reads them when its term begins (`load`), and again after its log was cut or repaired.
Nothing about transactions is kept anywhere else, so a restart, a promotion and a truncation leave
what the log says (`endings.py`). Until they are read no transaction ends here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable

from saturnmq.broker.commit.sound_reads import SoundReads
from saturnmq.broker.context import Context, cached
from saturnmq.broker.delay.waits import Waits
from saturnmq.broker.transactions import endings, halves
from saturnmq.broker.transactions.endings import Ending, EndingKind, counts, read_ending
from saturnmq.broker.transactions.half_table import HalfTable
from saturnmq.broker.transactions.halves import Half, read_half
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import MalformedFrame, SystemBusy
from saturnmq.store.derived.consumequeue import ENTRY
from saturnmq.store.message_store import AppendResult, Arrival, PendingMessage

log = logging.getLogger(__name__)

BATCH = 32
BATCH_BYTES = 256 << 10
STANDING_S = 0.1
DAMAGED_S = 1.0  # between two looks at a message that is being mended
REMEMBERED = 1000  # endings that are read only to answer producers that end a transaction again


class HalfLog:
    def __init__(
        self, context: Context, on_append: Callable[[], None], dispatch: Callable[[], None]
    ) -> None:
        """`on_append` tells the advancer that the log grew; `dispatch` is a bounded step of
        reput."""
        self._c = context
        self._store = context.store
        self.sound = SoundReads(context)
        self._on_append = on_append
        self._dispatch = dispatch
        self._table: HalfTable | None = None
        self._waits = self._new_waits()
        self._ended_at = 0  # where the newest ending of this term ends in the log
        self._told: tuple[int, int, int] | None = None  # the same, and what the group may commit

    def validate(self) -> None:
        """AssertionError: its table contradicts itself."""
        if self._table is not None:
            self._table.validate()

    @property
    def table(self) -> HalfTable:
        """SystemBusy: it was not read from the log yet."""
        if self._table is None:
            raise SystemBusy(
                "the open transactions are being read from the log; try again, or wait to be asked"
            )
        return self._table

    @property
    def is_loaded(self) -> bool:
        return self._table is not None

    @property
    def pending(self) -> int:
        """The number of open halves; 0 while nobody knows."""
        table = self._table
        return 0 if table is None else table.pending(self._store.max_offset(*halves.QUEUE))

    # the start of a term

    def unload(self) -> None:
        """Forget the table: the log was changed, or another node leads."""
        self._table = None
        self._told = None

    def _new_waits(self) -> Waits:
        c = self._c
        timeout_s = c.config.transaction_timeout_ms / 1000
        return Waits(timeout_s, c.runtime.monotonic(), c.store.max_offset(*halves.QUEUE))

    async def load(self) -> None:
        """Read the open halves. Steps of it are done between other work."""
        c, store = self._c, self._store
        self.unload()
        goal = store.watermarks.appended
        while store.watermarks.dispatched < goal:
            before = store.watermarks.dispatched
            self._dispatch()
            # It stands still while the disk has no room, or before damage.
            stands = store.watermarks.dispatched == before
            await c.runtime.sleep(STANDING_S if stands else 0.0)
        self._waits = self._new_waits()
        position, base = await self._begin()
        table = HalfTable(position, base)
        end = store.max_offset(*endings.QUEUE)
        async for message in self._messages(endings.QUEUE, base - REMEMBERED, end):
            self._take(table, read_ending(message), message)
        now = c.runtime.monotonic()
        end = store.max_offset(*halves.QUEUE)
        async for message in self._messages(halves.QUEUE, table.position, end):
            half = read_half(message)
            if half.root != half.offset and table.is_open(half.offset):
                table.move(half.root, half.offset, now)
        self._table = table
        log.info("%d transactions are open, the oldest half is at %d", self.pending, table.position)

    async def _begin(self) -> tuple[int, int]:
        """The first half that may be open, and the first ending that may be of one behind it."""
        store, offsets = self._store, self._c.offsets
        last = store.max_offset(*endings.QUEUE)
        newest = [read_ending(m) async for m in self._messages(endings.QUEUE, last - 1, last)]
        if newest and newest[0].kind is not None:
            position, base = newest[0].position, newest[0].base
        else:  # RocketMQ wrote it, or there is none
            position = offsets.query(endings.GROUP, *halves.QUEUE) or 0
            base = offsets.query(endings.GROUP, *endings.QUEUE) or 0
        return self._within(halves.QUEUE, position), self._within(endings.QUEUE, base)

    def _within(self, queue: tuple[str, int], offset: int) -> int:
        return min(max(offset, self._store.min_offset(*queue)), self._store.max_offset(*queue))

    def _take(self, table: HalfTable, ending: Ending, message: ReceivedMessage) -> None:
        end = message.physical_offset + message.frame_size
        if counts(ending, self._store.read_log(end, endings.HEAD_BYTES), end):
            for half in ending.halves:
                root = half if ending.root < 0 else ending.root
                table.end(half, root, ending.kind, ending.offset)
        else:
            log.info("ending %d, of the half at %d, was cut short", ending.offset, ending.physical)

    async def _messages(
        self, queue: tuple[str, int], first: int, end: int
    ) -> AsyncIterator[ReceivedMessage]:
        """The messages that can be read, in the order of their queue. Damaged ones are waited for,
        while another node may have them whole: an ending that is passed over ends nothing."""
        c = self._c
        offset = max(first, self._store.min_offset(*queue))
        while offset < end:
            await c.steps.next()
            result = self._store.get_message(
                *queue, offset, BATCH, BATCH_BYTES, override_limits=True, end=end
            )
            if (reading := cached(c, result)) is not None:
                await reading
            try:
                found, behind = self.sound.messages(*queue, offset, result)
            except SystemBusy as error:
                log.warning("the open transactions are not known yet: %s", error)
                await c.runtime.sleep(DAMAGED_S)
                continue
            offset = max(offset + 1, behind)
            for message in found:
                yield message

    # one half

    def find(self, offset: int, physical: int) -> Half | None:
        """The half at this place of its queue, if it is at this place of the log as well.
        SystemBusy: it is so new that its queue does not have it yet."""
        marks = self._store.watermarks
        if marks.dispatched <= physical < marks.appended:
            self._dispatch()
            if marks.dispatched <= physical:
                raise self._not_yet(f"the half at {physical}")
        half = self.at(offset)
        return half if half is not None and half.physical == physical else None

    def find_moved(self, offset: int) -> Half | None:
        """The half at the place of its queue to which it moved. SystemBusy: as `find`."""
        if offset >= self._store.max_offset(*halves.QUEUE):
            self._dispatch()
            if offset >= self._store.max_offset(*halves.QUEUE):
                raise self._not_yet(f"half {offset}")
        return self.at(offset)

    def _not_yet(self, what: str) -> SystemBusy:
        return SystemBusy(
            f"the queues have all messages before {self._store.watermarks.dispatched}, and not yet "
            f"{what}; try again, or wait to be asked"
        )

    def at(self, offset: int) -> Half | None:
        """The half at this place of its queue."""
        entry = self._store.entries(*halves.QUEUE, offset, 1) if offset >= 0 else b""
        if len(entry) < ENTRY.size:
            return None
        physical, size, _ = ENTRY.unpack_from(entry)
        frame = self._store.read_log(physical, size)
        try:
            return None if frame is None else read_half(decode_frames(bytes(frame), True)[0])
        except MalformedFrame:
            return None

    def since(self, half: Half) -> float:
        """When the first half of the transaction came, by the steady clock of this node; the
        beginning of its term for those that came before."""
        known = self.table.since(half.root)
        if known is not None:
            return known
        self._waits.came(half.offset + 1, self._c.runtime.monotonic())
        timeout_s = self._c.config.transaction_timeout_ms / 1000
        return self._waits.due(half.offset, math.inf) - timeout_s

    def arrived(self, arrival: Arrival) -> None:
        """Note when halves come."""
        self._waits.came(arrival.max_offset, self._c.runtime.monotonic())

    def end(
        self, half: Half, kind: EndingKind, follower: PendingMessage | None = None
    ) -> tuple[int, AppendResult | None]:
        """End a half, and store `follower` with that. Return where that ends in the log, and the
        place of the follower."""
        c, table = self._c, self.table
        assert table.is_open(half.offset), f"the half {half.offset} is over"
        ending = endings.write_ending(
            kind,
            half.offset,
            half.physical,
            half.root,
            position=table.position,
            base=table.base,
            now_ms=c.runtime.now_ms(),
            host=c.store_host,
        )
        puts = self._store.put_adjacent([ending] if follower is None else [ending, follower])
        table.end(half.offset, half.root, kind, puts[0].queue_offset)
        if kind is EndingKind.MOVED:
            table.move(half.root, puts[1].queue_offset, self.since(half))
        self._ended_at = puts[-1].end_offset
        self._on_append()
        return puts[-1].end_offset, puts[1] if follower is not None else None

    def commit_offsets(self) -> None:
        """Let the offsets of RocketMQ's group follow, as far as the endings are on the disk. Its
        broker goes on from there if it opens this directory; mqadmin shows them."""
        table, offsets = self._table, self._c.offsets
        if table is None:
            return
        if self._told is not None and self._told[0] <= self._store.watermarks.flushed:
            _, position, base = self._told
            offsets.commit(endings.GROUP, *halves.QUEUE, position)
            offsets.commit(endings.GROUP, *endings.QUEUE, base)
            self._told = None
        if self._told is None and self._ended_at:
            self._told = self._ended_at, table.position, table.base

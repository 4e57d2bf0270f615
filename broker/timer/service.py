"""Timed messages: reads what waits, delivers what is due, and saves how far it is.

Every node of a group reads the log, so a slave knows what waits when it is promoted. A master
delivers once it has read all that the log had when its term began: a settlement at the end of the
log must not be missed.

One task does all of it, in bounded steps. Files are written and read in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable, Iterator
from typing import Any

from saturnmq.broker.commit.gate import StoreGate
from saturnmq.broker.commit.sound_reads import SoundReads
from saturnmq.broker.context import Context
from saturnmq.broker.timer.delay_clock import DelayClock
from saturnmq.broker.timer.delivery import TimerDelivery
from saturnmq.broker.timer.due import SHELVES
from saturnmq.broker.timer.pending import PendingMessages
from saturnmq.broker.timer.reading import TimerReader
from saturnmq.broker.timer.saving import SavedPending, SavePlan
from saturnmq.broker.timer.settlements import Settlement
from saturnmq.protocol.topics import GROUPS_TOPIC, TIMER_TOPIC
from saturnmq.runtime.errors import SaturnError, StoreDamaged
from saturnmq.store.disk import Disk
from saturnmq.store.message_store import Arrival

log = logging.getLogger(__name__)

TICK_S = 0.02
LOOK_S = 0.5
GATHER_S = 0.01  # messages of a flood are read together
AFTER_ERROR_S = 1.0
SAVE_S = 30.0
WINDOW_MS = 2 * 86_400_000  # RocketMQ's timerRollWindowSlot
WINDOW_MIN_MS = 60_000
UNWRITTEN_MAX = 16  # runs that are in memory only
CHECK_POINT = struct.Struct(">7q")
TOPICS = frozenset({TIMER_TOPIC, GROUPS_TOPIC})


class TimerService:
    def __init__(
        self, context: Context, disk: Disk, gate: StoreGate, on_append: Callable[[], None]
    ) -> None:
        self._c = context
        self._runtime = context.runtime
        self._gate = gate
        self.clock = DelayClock(context.runtime)
        # The log keeps a message for the whole window, and as long again as half of it.
        reserved_ms = context.store.config.file_reserved_hours * 3_600_000
        self.window_ms = max(min(WINDOW_MS, reserved_ms * 2 // 3), WINDOW_MIN_MS)
        self.pending = PendingMessages()
        self._saved = SavedPending(context, disk)
        sound = SoundReads(context)  # what one of the two has found damaged, the other one knows
        self._reader = TimerReader(context, sound, self.clock, self.window_ms)
        self._delivery = TimerDelivery(
            context, sound, self.clock, self.window_ms, on_append, self._may_append
        )
        self._arrived = asyncio.Event()
        self._arrived.set()
        self._is_behind = True  # something was dispatched that was not read
        self._leads_from: int | None = None  # the end of the log that must be read before
        self._is_ready = False  # all of that was read
        self._life = 0  # counts the times that the state was made anew
        self._by_rocketmq: tuple[int, int] | None = None
        self._saved_at = context.runtime.monotonic()
        self._saved_state = (0, 0, 0)
        self._upkeep: asyncio.Task[None] | None = None

    def validate(self) -> None:
        """AssertionError: what waits cannot be."""
        self.pending.validate()
        marks = self._c.store.watermarks
        assert (self._leads_from or 0) <= marks.appended, (self._leads_from, marks.appended)

    @property
    def delivered(self) -> int:
        """Messages that this node has delivered since its start."""
        return self._delivery.delivered

    # events

    def load(self) -> None:
        """Blocking: begin with the saved copy."""
        self.pending = self._saved.load()
        self._by_rocketmq = self._saved.delivered_by_rocketmq()
        self._saved_state = self._state()

    def arrived(self, _: Arrival) -> None:
        """Note that the log has more to read."""
        self._is_behind = True
        self._arrived.set()

    def visible_rose(self) -> None:
        """Note that more may be confirmed."""
        if self._is_behind:
            self._arrived.set()

    def lead(self) -> None:
        """Deliver from now on: this node is the master."""
        self.clock.begin_term()
        self._leads_from, self._is_ready = self._c.store.watermarks.appended, False
        self._is_behind = True
        self._arrived.set()

    def retire(self) -> None:
        """Deliver no more."""
        self._leads_from, self._is_ready = None, False
        self.clock.left_master()

    async def cut(self) -> None:
        """The log was changed: go back to the saved copy, if it fits the log still, or to the
        beginning."""
        self._life += 1
        self._go_on_with(await self._saved.reload())

    def _go_on_with(self, pending: PendingMessages) -> None:
        """Have another state, which follows from what is confirmed. A master may have settled more,
        and delivers when that is confirmed, too."""
        self._life += 1  # nothing of the state before is saved any more
        self.pending = pending
        if self._leads_from is not None:
            self._leads_from = self._c.store.watermarks.appended
        self._is_ready, self._is_behind = False, True
        self._saved_state = self._state()
        self._arrived.set()

    # the task

    async def run(self) -> None:
        while True:
            self._arrived.clear()
            try:
                pause = await self._turn()
            except StoreDamaged as error:
                log.error("timed messages are read from the log anew: %s", error)
                self._go_on_with(PendingMessages())
                pause = TICK_S
            except (SaturnError, OSError) as error:
                log.warning("timed messages wait: %s", error)
                await self._runtime.sleep(AFTER_ERROR_S)
                continue
            if pause == 0:
                await self._runtime.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._arrived.wait()
                    await self._runtime.sleep(GATHER_S)

    async def _turn(self) -> float | None:
        """One bounded piece of work; return the seconds until the next, None: something has to
        happen first."""
        if not self._gate.is_open:
            return TICK_S
        pending = self.pending
        self._keep_up(pending)
        if self._is_behind and self._has_room(pending):
            if await self._reader.step(pending):
                if pending is self.pending:
                    self._freeze(pending)
                return 0
            self._is_behind = not self._is_level_with_log(pending)
        if not self._gate.is_open or pending is not self.pending:
            return 0
        return await self._clear(pending)

    def _is_level_with_log(self, pending: PendingMessages) -> bool:
        """Whether all that is dispatched was read, confirmed or not."""
        _, markers = self._c.store.markers
        queue = self._c.store.max_offset(TIMER_TOPIC, 0)
        return pending.next_offset >= queue and pending.next_marker >= markers

    async def _clear(self, pending: PendingMessages) -> float | None:
        """Let due or settled messages leave."""
        for shelf in pending.shelves.values():
            for run in shelf.unloaded:
                position = run.position
                block = await self._runtime.run_blocking(run.block_at, self._saved.folder, position)
                if run.position == position:
                    run.show(block)
        if pending is not self.pending:
            return 0
        if not self._leads():
            if self._reader.is_level(pending):
                more = [shelf.drop_settled(256) for shelf in pending.shelves.values()]
                if any(more):
                    return 0
            # A term that has begun is opened by what no arrival tells of: the log is confirmed, the
            # gate opens, a batch ends.
            is_opening = self._leads_from is not None
            return TICK_S if self._is_behind or is_opening else self._until_saved()
        delivered = 0
        for name in SHELVES:
            delivered += await self._delivery.deliver(pending, name)
        if delivered or pending is not self.pending:
            return 0
        return self._until_next(pending)

    def _until_next(self, pending: PendingMessages) -> float | None:
        if not len(pending):
            return self._until_saved()
        pause = LOOK_S  # a wall clock may step
        for name, shelf in pending.shelves.items():
            if (moment := shelf.next_moment()) is not None:
                pause = min(pause, (moment - self._delivery.now_of(name)) / 1000)
        return max(pause, TICK_S)

    def _until_saved(self) -> float | None:
        return SAVE_S if self._state() != self._saved_state else None

    def _leads(self) -> bool:
        """Whether this node delivers."""
        if self._leads_from is None:
            return False
        if not self._is_ready:
            is_level = self._c.visible >= self._leads_from and self._reader.is_level(self.pending)
            self._is_ready = is_level and self._tells_of_rocketmq()
        return self._is_ready

    def _tells_of_rocketmq(self) -> bool:
        """Write into the log how far a RocketMQ broker had delivered, unless the log says so
        already; False: not now."""
        known = self._by_rocketmq
        if known is None or known in self.pending.before:
            return True
        if self._c.store.in_group or not self._gate.is_open:
            return False
        settlement = Settlement(before=known)
        put = self._c.store.put_marker(settlement.encode(), store_host=self._c.store_host)
        self.settle_at_once(settlement, put.queue_offset)
        return True

    def _may_append(self) -> bool:
        return self._is_ready and self._gate.is_open and not self._c.store.in_group

    # saving

    def _freeze(self, pending: PendingMessages) -> None:
        for shelf in pending.shelves.values():
            if shelf.is_full:
                shelf.freeze()

    def _has_room(self, pending: PendingMessages) -> bool:
        return self._unwritten(pending) < UNWRITTEN_MAX

    @staticmethod
    def _unwritten(pending: PendingMessages) -> int:
        return sum(not run.parts for shelf in pending.shelves.values() for run in shelf.runs)

    def _state(self) -> tuple[int, int, int]:
        return self.pending.next_offset, self.pending.next_marker, self.delivered

    def _keep_up(self, pending: PendingMessages) -> None:
        """Have the state written when it is time; no message is on its way out now."""
        if self._upkeep is not None and not self._upkeep.done():
            return
        now = self._runtime.monotonic()
        is_due = now - self._saved_at >= SAVE_S and self._state() != self._saved_state
        if is_due or self._unwritten(pending):
            self._saved_at, self._saved_state = now, self._state()
            work = self._save(pending, self._saved.plan(pending))
            self._upkeep = self._runtime.spawn(work, name="timer-upkeep")

    async def _save(self, pending: PendingMessages, plan: SavePlan) -> None:
        life = self._life

        def still() -> bool:
            return self._life == life

        try:
            await self._saved.save(plan, pending, still)
            for shelf in pending.shelves.values():
                while still() and await self._saved.merge(shelf, still):
                    pass
        except (OSError, SaturnError) as error:
            log.error("the timed messages cannot be saved: %s", error)

    async def close(self) -> None:
        """Save the state, so that the next start reads little."""
        if self._upkeep is not None:
            await asyncio.gather(self._upkeep, return_exceptions=True)
        if self._state() != self._saved_state:
            await self._save(self.pending, self._saved.plan(self.pending))

    # for RocketMQ's slaves and tools

    def check_point(self) -> bytes:
        """The seven i64 of RocketMQ's file `timercheck`: the second up to which messages were
        delivered, 0, the queue offset up to which they were read, twice, and a version."""
        now = self._runtime.now_ms()
        moments = [shelf.next_moment() for shelf in self.pending.shelves.values()]
        least = min([now, *(moment for moment in moments if moment is not None)])
        read = self.pending.next_offset
        return CHECK_POINT.pack(max(least // 1000 * 1000 - 1000, 0), 0, read, read, 0, now, read)

    def metrics(self) -> dict[str, Any]:
        """The messages of each topic that wait, as in RocketMQ's file `timermetrics`."""
        now = self._runtime.now_ms()
        version = {"counter": self.pending.next_offset, "stateVersion": 0, "timestamp": now}
        counts = sorted(self.pending.topics.items())
        return {
            "dataVersion": version,
            "timingCount": {topic: {"count": n, "timeStamp": now} for topic, n in counts},
        }

    def status(self) -> dict[str, str]:
        """Its figures in the broker's runtime information: RocketMQ's, and ours. A slave delivers
        nothing, so nothing is late there."""
        c, pending = self._c, self.pending
        waiting, now = str(sum(pending.topics.values())), self._runtime.monotonic()
        queue = c.store.max_offset(TIMER_TOPIC, 0)
        found = {
            "timedWaiting": waiting,
            "timerCongestNum": waiting,
            "timerOffsetBehind": str(max(queue - pending.next_offset, 0)),
            "timerEnqueueTps": f"{c.statistics.topic_rate(TIMER_TOPIC, now):.2f}",
            "timerDequeueTps": f"{c.statistics.rate('timed', now):.2f}",
        }
        if self._is_ready:
            found["timerReadBehind"] = str(self._behind_ms() // 1000)
            found["timedLatestMs"] = str(self._delivery.latest_ms())
        return found

    def _behind_ms(self) -> int:
        """For how long the first message has been due that was not delivered yet."""
        behind = [
            self._delivery.now_of(name) - moment
            for name, shelf in self.pending.shelves.items()
            if (moment := shelf.next_moment()) is not None
        ]
        return max([0, *behind])

    # recalls

    @contextlib.contextmanager
    def held(self, offset: int) -> Iterator[None]:
        """Deliver this message later: somebody asks whether it waits."""
        holds = self._delivery.holds
        holds[offset] += 1
        try:
            yield
        finally:
            holds[offset] -= 1
            if not holds[offset]:
                del holds[offset]

    def has_read(self, offset: int) -> bool:
        """Whether this node delivers, and knows this message of the queue."""
        return self._is_ready and offset < self.pending.next_offset

    def settle_at_once(self, what: Settlement, marker: int) -> None:
        """Take a settlement that this node has just written."""
        self.pending.settle(what)
        self.pending.own.add(marker)

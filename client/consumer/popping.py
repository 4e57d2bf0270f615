"""Pop in a push consumer: its group was told to pop a topic (docs/pop.md).

    rebalance gives a queue, or any queue of a broker:  pop -> listener runs -> acknowledge
                                                              failed: wait, by a change of its time

The broker keeps the group's place, so nothing is committed here, and a queue that rebalance takes
away is simply popped no more. Messages that wait for the listener are out for `pop_invisible_s`
from their arrival, or a moment less. When that is over another member may have them, so the
listener is not called for them any more. RocketMQ's push consumer does the same, with the same
numbers. As there, one that is ordered or broadcasts always pulls.

A message that waited in vain has used up an attempt. So no more are popped ahead than a listener of
the measured pace consumes in half of their time. (RocketMQ's pops up to 96 whatever its pace, so
a slow listener may have dead letters that it never saw.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.consuming import Concurrent
from saturnmq.client.consumer.holdings import CLOSE_WAIT_S
from saturnmq.client.consumer.listening import Caller
from saturnmq.client.consumer.pop_calls import PopCalls
from saturnmq.client.consumer.pop_start import PopStart
from saturnmq.client.consumer.process_queue import MessageRun
from saturnmq.client.consumer.results import DEAD_LETTER, Retry
from saturnmq.client.consumer.send_back import SendBack
from saturnmq.client.core import ClientCore
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import Namespace
from saturnmq.protocol.popped import handle_of
from saturnmq.protocol.retry_policy import DEFAULT_POLICY
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.errors import ListenerStuck, SaturnError

log = logging.getLogger(__name__)

INVISIBLE_S = 60.0
BATCH = 32  # of one pop
OPEN_MOST = 96  # messages of one queue that were popped and are not consumed
AHEAD = 0.5  # of the invisible time, for messages that wait
HOLD_S = 15.0
ERROR_PAUSE_S = 1.0
EMPTY_PAUSE_S = 0.5  # after an answer without messages that came at once


class PopQueue(AssignedQueue):
    """A queue that a member pops, or with the id -1 any queue of a topic at a broker. The batches
    of its state stand in no order."""

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(queue)
        # By pop time, the oldest first: when its messages are out no longer.
        self._over: OrderedDict[int, float] = OrderedDict()

    def put(self, messages: Sequence[ReceivedMessage], now: float, invisible_s: float) -> None:
        """Take in the messages of one pop, which are out for so long from now on (monotonic)."""
        while self._over and next(iter(self._over.values())) <= now:
            self._over.popitem(last=False)
        for (pop_ms, _, _), found in groupby(messages, key=_origin):  # one queue in each batch
            batch = list(found)
            self._over[pop_ms] = now + invisible_s
            self.state.put(batch, 0, sum(message.stored_body_size for message in batch))

    def left_s(self, chunk: MessageRun, now: float) -> float:
        """The seconds for which the messages of a run are still out."""
        return self._over.get(handle_of(chunk.messages[0]).pop_ms, now) - now


def _origin(message: ReceivedMessage) -> tuple[int, int, int]:
    handle = handle_of(message)
    return handle.pop_ms, handle.kind, handle.queue_id


class PopConsumption(Concurrent):
    """Runs of popped messages: each is acknowledged, or comes again."""

    BOUND = "pop_invisible_s"

    def __init__(
        self,
        core: ClientCore,
        group: str,
        caller: Caller,
        send_back: SendBack,
        calls: PopCalls,
        namespace: Namespace,
        max_reconsume: int,
        invisible_s: float,
    ) -> None:
        super().__init__(core, group, caller, send_back, broadcasting=False, timeout_s=invisible_s)
        self._calls = calls
        self._namespace = namespace
        self._max_reconsume = max_reconsume
        self.invisible_s = invisible_s

    def open_most(self, queues: int) -> int:
        """The messages that each of so many queues may have popped and not consumed."""
        pace, threads = self._caller.pace, self._caller.threads
        in_time = threads if pace <= 0.0 else int(threads * AHEAD * self.invisible_s / pace)
        return min(max(in_time // max(queues, 1), 1), OPEN_MOST)

    def look_after(self) -> None:
        """Look for listeners that hang; a listener gets no more of messages that others may have
        now."""
        super().look_after()
        now = self._runtime.monotonic()
        for chunk, held in self._runs.items():
            assert isinstance(held, PopQueue)
            if held.left_s(chunk, now) <= 0:
                chunk.ended = True

    def _start(self, held: AssignedQueue, chunk: MessageRun) -> None:
        assert isinstance(held, PopQueue)
        if held.left_s(chunk, self._runtime.monotonic()) > 0:
            super()._start(held, chunk)
            return
        log.info("%d messages of %s waited here for too long", len(chunk.messages), held.queue)
        held.state.finish(chunk)
        held.space.set()

    def _is_done(self, chunk: MessageRun) -> bool:
        return False  # there is always something to acknowledge or to put off

    async def _settle(self, held: AssignedQueue, chunk: MessageRun) -> None:
        """Acknowledge the consumed messages and put the failed ones off. Those that were not
        reached come again when their time is over."""
        held.state.last_consume = self._runtime.monotonic()
        failed = {id(message) for message in chunk.failed}
        done = [each for each in chunk.messages[: chunk.handled] if id(each) not in failed]
        dead = await self._put_off(chunk.failed, chunk.retries or {})
        await self._acknowledge(held.queue, [*done, *dead])
        held.state.finish(chunk)

    async def _acknowledge(self, queue: MessageQueue, done: Sequence[ReceivedMessage]) -> None:
        if not done:
            return
        handles = [(self._namespace.wrap(each.topic), handle_of(each)) for each in done]
        try:
            await self._calls.ack(queue.broker_name, handles)
        except SaturnError as error:
            log.warning(
                "group %s: consumed messages of %s may come again: %s", self._group, queue, error
            )

    async def _put_off(
        self, failed: Sequence[ReceivedMessage], retries: Mapping[int, Retry]
    ) -> list[ReceivedMessage]:
        """Let failed messages come again after their wait; return those that are dead letters
        now."""

        async def put_off(message: ReceivedMessage) -> bool:
            own = retries.get(message.queue_offset)
            level = 0 if own is None else own.delay_level
            async with self._back_slots:
                if level == DEAD_LETTER or 0 <= self._max_reconsume <= message.reconsume_times:
                    return await self._send_back(message, DEAD_LETTER)
                try:
                    await self._calls.change(message, _wait_ms(level, message.reconsume_times))
                except SaturnError as error:
                    log.warning("%s comes again when its time is over: %s", message, error)
                return False

        dead = await asyncio.gather(*(put_off(message) for message in failed))
        return [message for message, is_dead in zip(failed, dead, strict=True) if is_dead]

    def _overdue(self, held: AssignedQueue, chunk: MessageRun) -> None:
        self._report_stuck(held, chunk, "other members get its messages")


def _wait_ms(level: int, attempts: int) -> int:
    """The wait of a delay level; with 0 that of a message that was delivered so often before."""
    waits = DEFAULT_POLICY.waits_ms
    return waits[min(level, len(waits)) - 1] if level else DEFAULT_POLICY.wait_ms(attempts)


class PoppedQueues:
    """The queues that one consumer pops. Loop thread only."""

    def __init__(
        self,
        calls: PopCalls,
        consumption: PopConsumption,
        subscriptions: Mapping[str, Subscription],
        start: PopStart,
    ) -> None:
        self._core = calls.core
        self._calls = calls
        self.consumption = consumption
        self._subscriptions = subscriptions
        self._start = start
        self.held: dict[MessageQueue, PopQueue] = {}

    def topics(self) -> list[str]:
        """The topics that are popped now."""
        return [queue.topic for queue in self.held]

    def pop(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Pop exactly these of a topic from now on."""
        for queue in [each for each in self.held if each.topic == topic and each not in queues]:
            self._stop(self.held.pop(queue))
        for queue in queues:
            if queue not in self.held:
                log.info("popping %s", queue)
                held = self.held[queue] = PopQueue(queue)
                held.pulling = self._core.tasks.keep(partial(self._run, held), name=f"pop {queue}")

    @staticmethod
    def _stop(held: PopQueue) -> None:
        held.stop_pulling()
        held.drop()

    def suspend(self) -> None:
        """Call the listener no more until `resume`, and pop no more: what waited for long enough
        would have used up an attempt in vain."""
        self.consumption.suspend()

    def resume(self) -> None:
        """Pop again, and call the listener again."""
        self.consumption.resume()
        for held in self.held.values():
            held.space.set()

    def stop(self) -> None:
        """Pop no more. Messages that wait for the listener come again when their time is over."""
        for held in self.held.values():
            self._stop(held)
        self.held.clear()

    async def end(self) -> None:
        """Wait for the runs under way, and their acknowledgements."""
        if not await self.consumption.end(CLOSE_WAIT_S):
            self._core.report_error(
                ListenerStuck(
                    f"the listener still runs {CLOSE_WAIT_S:g} s after close() was called; its "
                    "popped messages come again. Give what it waits for a time-out"
                )
            )

    async def _run(self, held: PopQueue) -> None:
        clock, queue = self._core.runtime.monotonic, held.queue
        while not held.state.dropped:
            subscription = self._subscriptions.get(queue.topic)
            room = self.consumption.open_most(len(self.held)) - held.state.messages
            if subscription is None or room <= 0 or self.consumption.suspended:
                await held.wait_for_space()
                continue
            asked = clock()
            try:
                await self._start.place(queue)
                found = await self._calls.pop(
                    queue,
                    subscription,
                    min(BATCH, room),
                    int(self.consumption.invisible_s * 1000),
                    HOLD_S,
                    from_end=self._start.at_end(queue),
                )
            except SaturnError as error:
                log.info("pop of %s failed, again in %g s: %s", queue, ERROR_PAUSE_S, error)
                self._core.refresh_soon(queue.topic)
                await self._core.runtime.sleep(ERROR_PAUSE_S)
                continue
            held.state.last_pull = clock()
            if found and not held.state.dropped:
                held.put(found, clock(), self.consumption.invisible_s)
                self.consumption.arrived(held)
            elif clock() - asked < EMPTY_PAUSE_S:
                await self._core.runtime.sleep(EMPTY_PAUSE_S)

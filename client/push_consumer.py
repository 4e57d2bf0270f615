"""The async PushConsumer: pulls ahead, hands messages to a listener, commits what is finished.

    rebalance -> pull task per queue -> ProcessQueue -> listener runs -> offsets -> commit (5 s)
                 (next pull before the batch is consumed)     failed: back to the broker (36)

What the modules beside it decide: which queues (rebalance.py, membership.py), from which replica
(pulling.py), how many messages per listener run (listening.py), what may be committed
(process_queue.py), who holds a queue's lock (queue_locks.py). RocketMQ's rules for all of it are in
remoting.md 4: `%RETRY%<group>` is always subscribed, a missing offset is settled by `consume_from`,
broadcasting keeps offsets in a local file.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from saturnmq.client import rebalance as strategies
from saturnmq.client.consumer_facts import core_for, heartbeat_entry, running_info
from saturnmq.client.core import ClientCore
from saturnmq.client.held_queue import HeldQueue
from saturnmq.client.listening import Caller, Listener, OneListener
from saturnmq.client.membership import Membership, start_offset
from saturnmq.client.offset_store import (
    COMMIT_INTERVAL_S,
    FileDoor,
    LocalOffsets,
    OffsetStore,
    RemoteOffsets,
)
from saturnmq.client.process_queue import Chunk, Limits, ProcessQueue
from saturnmq.client.pulling import Puller
from saturnmq.client.queue_locks import QueueLocks
from saturnmq.client.results import ConsumeResult
from saturnmq.client.send_back import DLQ_LEVEL, SendBack
from saturnmq.protocol import kernels, topics
from saturnmq.protocol.errors import ClientClosed, ConfigError, SaturnError
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.runtime import Handle, Runtime
from saturnmq.protocol.subscription import Subscription

log = logging.getLogger(__name__)

ERROR_PAUSE_S = 1.0
LOCAL_RETRY_S = 5.0
SUSPEND_S = 1.0
CLOSE_WAIT_S = 10.0
SEND_BACKS_AT_ONCE = 64
STALL_S = 0.1
# Bounds over all queues of a consumer. What is pulled ahead only has to cover the time of a pull;
# more of it leaves the processor's caches before the listener sees it.
TOTAL_BYTES = 512 << 20
TOTAL_MESSAGES = 8192


class PushConsumer:
    """A member of a consumer group that is handed messages. Loop thread only."""

    def __init__(
        self,
        group: str,
        nameservers: str | Sequence[str] = (),
        *,
        listener: Listener | None = None,
        listener_one: OneListener | None = None,
        ordered: bool = False,
        orderly: bool = False,  # RocketMQ's word for `ordered`
        broadcasting: bool = False,
        from_beginning: bool = False,
        consume_from: str | int = "last",
        consume_message_batch_max_size: int = 32,
        consume_threads: int = 20,
        max_reconsume: int = -1,
        rebalance: str = "AVG",
        rebalance_interval_s: float = 20.0,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        max_cached_messages: int = Limits().messages,
        max_cached_bytes: int = Limits().bytes,
        verify_crc: bool = True,
        client_id: str | None = None,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
        files: FileDoor | None = None,
        offsets_path: str | None = None,
    ) -> None:
        topics.check_group(group)
        if isinstance(consume_from, str) and consume_from not in ("first", "last"):
            raise ConfigError(
                f"consume_from {consume_from!r}: give 'first', 'last' or a time in milliseconds"
            )
        ordered = ordered or orderly
        if ordered and broadcasting:
            raise ConfigError("an ordered consumer cannot broadcast: choose one of the two")
        self.core, self._owns_core = core_for(core, runtime, nameservers, client_id)
        self.runtime = self.core.runtime
        self.group = group
        self.ordered = ordered
        self.broadcasting = broadcasting
        self.consume_from: str | int = "first" if from_beginning else consume_from
        self.max_reconsume = max_reconsume
        self.subscriptions: dict[str, Subscription] = {}
        self._caller = Caller(self.runtime, consume_message_batch_max_size, consume_threads)
        if listener is not None or listener_one is not None:
            self._caller.set(listener, listener_one)
        self._limits = Limits(max_cached_messages, max_cached_bytes)
        self._puller = Puller(self.core, group, self.subscriptions, verify_crc=verify_crc)
        self._send_back = SendBack(self.core, group, max_reconsume)
        self._files, self._offsets_path = files, offsets_path
        self.offsets: OffsetStore = RemoteOffsets(self.core, group)
        self._locks = QueueLocks(self.core, group)
        self._membership = Membership(
            self.core, group, strategies.strategy(rebalance), rebalance_interval_s, self
        )
        self._commit_interval = commit_interval_s
        self._held: dict[MessageQueue, HeldQueue] = {}
        self._running = 0
        self._ended_runs = 0
        self._stall_timer: Handle | None = None
        self._round: deque[HeldQueue] = deque()
        self._idle = asyncio.Event()
        self._back_slots = asyncio.Semaphore(SEND_BACKS_AT_ONCE)
        self._tasks: list[asyncio.Task[Any]] = []
        self._started = self._closing = False
        self.consumed = 0
        self.failed = 0

    # -- life ---------------------------------------------------------------------------------
    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        listener: Listener | None = None,
        *,
        listener_one: OneListener | None = None,
    ) -> None:
        """Adds a topic (or changes its expression: `*` or tags joined by `||`).

        The listener is the consumer's, for all its topics; give it here or to the constructor.
        """
        topics.check_topic(topic)
        if listener is not None or listener_one is not None:
            self._caller.set(listener, listener_one)
        version = self.runtime.now_ms()
        self.subscriptions[topic] = Subscription.parse(topic, expression, version)
        if self._started:
            self._spawn(self._announce(), "announce")

    def unsubscribe(self, topic: str) -> None:
        """Drops a topic; its queues go to the other members at the next rebalance."""
        self.subscriptions.pop(topic, None)
        self._membership.trigger()

    async def start(self) -> None:
        """Joins the group and begins to consume."""
        if self._closing:
            raise ClientClosed("the consumer is closed; make a new one")
        if self._started:
            return
        if not self.subscriptions:
            raise ConfigError("the consumer has no topic: call subscribe() before start()")
        if not self._caller.ready:
            raise ConfigError("the consumer has no listener: give listener= or listener_one=")
        self._started = True
        if self._owns_core:
            await self.core.start()
        if self.broadcasting:
            self.offsets = self._local_offsets()
        else:
            retry = topics.retry_topic(self.group)
            self.subscriptions[retry] = Subscription.parse(retry, "*", self.runtime.now_ms())
        self.core.register_consumer(self.group, self)
        await self._announce()
        self._spawn(self._membership.run(), "rebalance")
        self._spawn(self._commit_loop(), "commit")
        if self.ordered:
            self._spawn(self._locks.run(self._held), "locks")

    async def close(self) -> None:
        """Lets running listeners end, commits, gives queues and locks back, leaves the group."""
        if self._closing:
            return
        self._closing = True
        for task in self._tasks:
            task.cancel()
        for held in self._held.values():
            held.stop_pulling()
            held.drop()
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                while self._running:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("group %s: a listener still runs, its messages come again", self.group)
        if self._started:
            self._note_offsets()
            await self.offsets.commit(confirm=True)
            if self.ordered:
                await self._locks.release(list(self._held))
            await self.core.unregister_consumer(self.group)
        self._caller.close()
        if self._owns_core:
            await self.core.close()

    async def __aenter__(self) -> PushConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _spawn(self, coro: Any, what: str) -> None:
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(self.runtime.spawn(coro, name=f"{what} {self.group}"))

    async def _announce(self) -> None:
        for topic in list(self.subscriptions):
            try:
                await self.core.route(topic)
            except SaturnError as error:
                log.debug("no route of %s yet: %s", topic, error)
        await self.core.heartbeat_now()
        self._membership.trigger()

    def _local_offsets(self) -> OffsetStore:
        if self._files is None:
            from saturnmq.client.local_files import LocalFiles

            self._files = LocalFiles()
        path = self._offsets_path or f"~/.saturnmq/offsets/{self.group}/offsets.json"
        return LocalOffsets(self.core, self._files, path)

    # -- queues come and go (called by Membership) ----------------------------------------------
    def held_queues(self) -> list[MessageQueue]:
        """The queues this member works on now."""
        return list(self._held)

    async def take_queues(self, queues: Sequence[MessageQueue]) -> bool:
        """Starts on `queues`; False if some locks could not be had yet."""
        wanted = [queue for queue in queues if queue not in self._held]
        granted = set(await self._locks.acquire(wanted)) if self.ordered and wanted else set(wanted)
        for queue in wanted:
            if queue not in granted or self._closing or queue in self._held:
                continue
            held = self._held[queue] = HeldQueue(queue)
            if self.ordered:
                held.state.lock(self.runtime.monotonic())
                held.tasks.append(
                    self.runtime.spawn(self._consume_in_order(held), name=f"consume {queue}")
                )
            held.tasks.append(self.runtime.spawn(self._pull_loop(held), name=f"pull {queue}"))
        return len(granted) == len(wanted)

    async def give_up_queues(self, queues: Sequence[MessageQueue]) -> None:
        """Stops on `queues`: commit first, so that the next owner starts where this one ended."""
        given = [self._held.pop(queue) for queue in queues if queue in self._held]
        for held in given:
            held.stop_pulling()
            held.drop()
        if self.ordered:  # a run under way ends before somebody else gets the queue
            for held in given:
                await held.quiet(CLOSE_WAIT_S)
        for held in given:
            self._note_offset(held)
        gone = [held.queue for held in given]
        await self.offsets.commit(gone, confirm=self.ordered)
        if self.ordered:
            await self._locks.release(gone)
        for queue in gone:
            if queue not in self._held:
                self.offsets.forget(queue)

    # -- pulling --------------------------------------------------------------------------------
    async def _pull_loop(self, held: HeldQueue) -> None:
        state = held.state
        while not state.dropped and not self._closing:
            if self.ordered and not state.locked(self.runtime.monotonic()):
                await held.wait_for_space()
                continue
            if state.full(self._queue_limits()):
                await held.wait_for_space()
                continue
            generation = state.generation
            try:
                if state.next_offset < 0:
                    offset = await start_offset(
                        self.core, self.offsets, held.queue, self.consume_from
                    )
                    if generation == state.generation:
                        state.reset(offset)
                    continue
                known = self.offsets.known(held.queue)
                commit = -1 if self.broadcasting or known is None else known
                pulled = await self._puller.pull(
                    held.queue, state.next_offset, commit_offset=commit
                )
            except SaturnError as error:
                log.info("pull of %s failed, again in %g s: %s", held.queue, ERROR_PAUSE_S, error)
                await self.runtime.sleep(ERROR_PAUSE_S)
                continue
            if state.dropped or generation != state.generation:
                continue
            state.last_pull = self.runtime.monotonic()
            if pulled.moved:
                log.warning(
                    "offset %d of %s was reset or is outside the queue, continuing at %d",
                    state.next_offset,
                    held.queue,
                    pulled.next_offset,
                )
                self._move(held, pulled.next_offset)
                continue
            state.put(pulled.messages, pulled.next_offset, pulled.size)
            if pulled.messages:
                held.data.set()
                self._dispatch(held)
            elif pulled.stalled:
                await self.runtime.sleep(ERROR_PAUSE_S)

    def _queue_limits(self) -> Limits:
        queues = max(1, len(self._held))
        return Limits(
            min(self._limits.messages, max(TOTAL_MESSAGES // queues, 1024)),
            min(self._limits.bytes, max(TOTAL_BYTES // queues, 1 << 20)),
        )

    # -- concurrent consumption -----------------------------------------------------------------
    def _dispatch(self, held: HeldQueue | None = None) -> None:
        """Starts listener runs while there is work and room; queues take turns."""
        if self.ordered:
            return
        if held is not None and not held.queued:
            held.queued = True
            self._round.append(held)
        while self._round and self._running < self._caller.parallel and not self._closing:
            turn = self._round.popleft()
            chunk = None if turn.state.dropped else turn.state.take(self._caller.run_length)
            if chunk is None:
                turn.queued = False
                continue
            self._round.append(turn)
            self._running += 1
            self.runtime.spawn(self._consume(turn, chunk), name="listener run")
        if self._round and self._running < self._caller.threads and self._stall_timer is None:
            ended = self._ended_runs
            self._stall_timer = self.runtime.call_later(STALL_S, self._look_for_stall, ended)

    def _look_for_stall(self, ended_then: int) -> None:
        """A fast listener gets few threads; when it blocks all the same, the others must help."""
        self._stall_timer = None
        if self._running and self._ended_runs == ended_then:
            self._caller.stalled()
        self._dispatch()

    async def _consume(self, held: HeldQueue, chunk: Chunk) -> None:
        state = held.state
        try:
            messages: Any = chunk.messages
            handled, failed = await self._caller.run(messages, state)
        finally:
            self._running -= 1
            self._ended_runs += 1
            if not self._running:
                self._idle.set()
        self._count(held, handled, len(failed))
        rest = list(messages[handled:])
        if handled < len(messages) or failed:
            state.keep(chunk, [*failed, *rest])
        if failed and not self.broadcasting:
            self._running += 1  # close() waits for these too
            try:
                failed = await self._hand_back(failed)
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()
        elif failed:
            log.error("group %s broadcasts: %d failed messages dropped", self.group, len(failed))
            failed = []
        remaining = [*failed, *rest]
        if not remaining:
            state.finish(chunk)
        else:  # neither consumed nor handed back: once more from here, the offset waits for them
            state.keep(chunk, remaining)
            if not self._closing and not state.dropped:
                self.runtime.call_later(LOCAL_RETRY_S, self._again, held, chunk)
        held.space.set()
        self._dispatch(held)

    def _again(self, held: HeldQueue, chunk: Chunk) -> None:
        if held.state.holds(chunk) and not self._closing:
            self._running += 1
            self.runtime.spawn(self._consume(held, chunk), name="listener run")

    async def _hand_back(self, failed: list[ReceivedMessage]) -> list[ReceivedMessage]:
        async def back(message: ReceivedMessage) -> bool:
            async with self._back_slots:
                return await self._send_back(message)

        taken = await asyncio.gather(*(back(message) for message in failed))
        return [message for message, ok in zip(failed, taken, strict=True) if not ok]

    # -- ordered consumption --------------------------------------------------------------------
    async def _consume_in_order(self, held: HeldQueue) -> None:
        state = held.state
        clock = self.runtime.monotonic
        while not state.dropped and not self._closing:
            if not state.waiting or not state.locked(clock()):
                held.data.clear()
                await held.wait_for_data()
                continue
            chunk = state.take(self._caller.run_length)
            while chunk is not None and state.holds(chunk) and not self._closing:
                if not state.locked(clock()):
                    held.data.clear()
                    await held.wait_for_data()
                    continue
                if await self._run_in_order(held, chunk):
                    chunk = None
                else:
                    await self.runtime.sleep(SUSPEND_S)

    async def _run_in_order(self, held: HeldQueue, chunk: Chunk) -> bool:
        """One attempt at `chunk`; True once all of it is done. A failed slice stays first in
        line.
        """
        state, clock = held.state, self.runtime.monotonic
        messages: Any = chunk.messages
        held.begin()
        self._running += 1
        try:
            handled, failed = await self._caller.run(
                messages,
                state,
                lambda: state.locked(clock()),
                stop_at_failure=True,
            )
            self._count(held, handled, len(failed))
            if handled:
                chunk.attempts = 0
            rest = list(messages[handled:])
            if failed:
                chunk.attempts += 1
                if 0 <= self.max_reconsume < chunk.attempts and all(
                    [await self._send_back(message, DLQ_LEVEL) for message in failed]
                ):
                    rest, chunk.attempts, failed = rest[len(failed) :], 0, []
            if state.holds(chunk) or state.dropped:
                state.keep(chunk, rest)
            held.space.set()
            return not rest
        finally:
            held.end()
            self._running -= 1
            if not self._running:
                self._idle.set()

    def _count(self, held: HeldQueue, handled: int, failed: int) -> None:
        held.state.last_consume = self.runtime.monotonic()
        self.consumed += handled
        self.failed += failed

    # -- offsets --------------------------------------------------------------------------------
    async def _commit_loop(self) -> None:
        while not self._closing:
            await self.runtime.sleep(self._commit_interval)
            self._note_offsets()
            await self.offsets.commit()

    def _note_offset(self, held: HeldQueue) -> None:
        offset = held.state.commit_offset()
        if offset >= 0:
            self.offsets.update(held.queue, offset)

    def _note_offsets(self) -> None:
        for held in self._held.values():
            self._note_offset(held)

    # -- what ClientCore asks -------------------------------------------------------------------
    def heartbeat_data(self) -> dict[str, Any]:
        """This group's entry of a heartbeat."""
        subscriptions = self.subscriptions.values()
        return heartbeat_entry(
            self.group, subscriptions, self.consume_from, push=True, broadcasting=self.broadcasting
        )

    def on_ids_changed(self) -> None:
        """The group's members changed."""
        self._membership.trigger()

    def on_route_changed(self, topic: str) -> None:
        """A route changed: a new broker must hear of us before it can serve us."""
        if topic in self.subscriptions and self._started and not self._closing:
            self._spawn(self._announce(), "announce")

    def on_reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue at `offsets`, forwards or backwards (220, and 21 in a pull)."""
        for queue, offset in offsets.items():
            held = self._held.get(queue)
            if held is not None and queue.topic == topic:
                self._move(held, offset)
                held.stop_pulling()  # it may be waiting for messages at the old offset
                held.tasks[-1] = self.runtime.spawn(self._pull_loop(held), name=f"pull {queue}")

    def _move(self, held: HeldQueue, offset: int) -> None:
        held.state.reset(offset)
        self.offsets.reset(held.queue, offset)

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Committed offsets of `topic` (221)."""
        self._note_offsets()
        known = {queue: self.offsets.known(queue) for queue in self._held if queue.topic == topic}
        return {queue: offset for queue, offset in known.items() if offset is not None}

    def running_info(self) -> dict[str, Any]:
        """ConsumerRunningInfo (307)."""
        subscriptions = self.subscriptions.values()
        return running_info(
            subscriptions, self._held, self.offsets, push=True, orderly=self.ordered
        )

    async def consume_directly(self, ext: dict[str, str], frame: bytes) -> dict[str, Any]:
        """Hand one message to the listener now (309)."""
        began = self.runtime.monotonic()
        messages = kernels.decode_frames(frame, False, ext.get("brokerName") or "")
        _, failed = await self._caller.run(messages, ProcessQueue())
        return {
            "order": self.ordered,
            "autoCommit": True,
            "consumeResult": "CR_LATER" if failed else "CR_SUCCESS",
            "spentTimeMills": int((self.runtime.monotonic() - began) * 1000),
        }


__all__ = ["ConsumeResult", "PushConsumer"]

"""The async PullConsumer: the caller polls for messages and says when they are done with. Loop
thread only; the synchronous one is written from it (tools/blocking_faces.py).

There are two ways to get queues: after subscribe() the group shares them, as with a push consumer;
assign() takes exactly the given queues, independent of any group. One pull task per queue keeps a
bounded number of messages ready. Only messages that are done with are ever committed: every few
seconds, at the end, and when a queue goes to another member.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from saturnmq.client.consumer import starting
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.consumer_data import heartbeat_entry, member_info
from saturnmq.client.consumer.consumer_tasks import ConsumerTasks
from saturnmq.client.consumer.consumption_traces import ConsumptionTraces
from saturnmq.client.consumer.life import Life
from saturnmq.client.consumer.membership import Membership
from saturnmq.client.consumer.offset_store import COMMIT_INTERVAL_S, OffsetStore, RemoteOffsets
from saturnmq.client.consumer.own_offsets import OwnOffsets, OwnOffsetStore
from saturnmq.client.consumer.poll_round import PollRound
from saturnmq.client.consumer.polled_offsets import PolledOffsets
from saturnmq.client.consumer.process_queue import FlowLimits
from saturnmq.client.consumer.pulling import Puller
from saturnmq.client.consumer.subscriptions import Subscriptions, TopicOrPattern
from saturnmq.client.core import DEFAULT_NAMESERVER, ClientCore, ErrorListener, shared_or_new
from saturnmq.client.option_checks import check_timeout, checked
from saturnmq.client.terms import note_term
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace
from saturnmq.protocol import topics
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import namespace_of
from saturnmq.protocol.subscription import Expression
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import ClientClosed, ConfigError, InvalidParameter, SaturnError

log = logging.getLogger(__name__)

ERROR_PAUSE_S = 1.0


class PullConsumer:
    """A member of a group, or a reader of given queues, that polls.

        consumer = PullConsumer("readers", "127.0.0.1:9876")
        consumer.subscribe("orders")    # shares the queues with the other members
        consumer.assign(queues)         # or: reads exactly these

    Messages are pulled ahead; poll() gives those of one queue, in their order.

    With auto_commit a poll() says that the messages of the polls before it are done with, and so
    does close(), or the end of a `with` block that raised nothing. When the block raises, the
    messages of its last poll are not committed: they come again. Without auto_commit only commit()
    commits.
    """

    broadcasting = False

    group: str
    """The consumer group."""
    auto_commit: bool
    """Whether each poll() commits the messages of the polls before it."""
    consume_from: str | int
    """The start of a group without an offset: "first", "last" or a time in ms."""

    @checked
    def __init__(
        self,
        group: str,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        from_beginning: bool = False,
        consume_from: str | int = "last",
        auto_commit: bool = True,
        rebalance: str = "AVG",
        rebalance_interval_s: float = 20.0,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        hold_s: float | None = None,
        max_cached_messages: int = 16_384,
        max_cached_bytes: int = 32 << 20,
        verify_crc: bool = True,
        offset_store: OwnOffsetStore | None = None,
        namespace: str = "",
        trace: Trace = False,
        tls: Tls = None,
        credentials: Credentials | None = None,
        client_id: str | None = None,
        on_error: ErrorListener | None = None,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """ConfigError names settings that are wrong or exclude each other.

        nameservers: "HOST:PORT[,...]" or a sequence of them
        from_beginning: short for consume_from="first"
        consume_from: the start of a group without an offset: "first", "last" or a time in ms
        auto_commit: each poll() commits the messages of the polls before it
        rebalance: how members share queues: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH or STICKY
        rebalance_interval_s: seconds between two requests for the members
        commit_interval_s: seconds between two commits
        hold_s: seconds that a broker may hold a pull that finds nothing, 0.1 to 60; 15 by default,
            longer with over 1,500 queues; RocketMQ's brokers look every 5 s whether they are over
        max_cached_messages, max_cached_bytes: what is pulled ahead of poll(), for each queue
        verify_crc: check every message's CRC-32 of its body
        offset_store: has `load(queue)` and `save(offsets)`, and keeps the offsets, not the brokers
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
        trace: True writes traces of each message to RMQ_SYS_TRACE_TOPIC; or the topic for traces
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        client_id: the name of this client among the members of its group; unique by default
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        """
        self.group = group
        self._namespace = namespace_of(namespace)
        group = self._group = topics.check_group(self._namespace.wrap(group))
        self.core, self._owns_core = shared_or_new(
            core, runtime, nameservers, client_id, tls, credentials, on_error
        )
        self.runtime = self.core.runtime
        self.consume_from = starting.start_place(consume_from, from_beginning=from_beginning)
        self.auto_commit = auto_commit
        self._subscribed = Subscriptions(self.core, group, self._namespace, rebalance_interval_s)
        self.subscriptions = self._subscribed.by_topic
        self.baseline = self._subscribed.baseline
        self.offsets: OffsetStore = (
            RemoteOffsets(self.core, group)
            if offset_store is None
            else OwnOffsets(self.core, group, offset_store, self._namespace)
        )
        self._puller = Puller(
            self.core,
            group,
            self.subscriptions,
            verify_crc=verify_crc,
            hold_s=hold_s,
            namespace=self._namespace,
        )
        self._limits = FlowLimits(max_cached_messages, max_cached_bytes)
        self._membership = Membership(self.core, group, rebalance, rebalance_interval_s, self)
        self._commit_interval = commit_interval_s
        self._traces = ConsumptionTraces(self.core, self.group, trace) if trace else None
        self._held: dict[MessageQueue, AssignedQueue] = {}
        self._polled = PolledOffsets(self.offsets)
        self.round = PollRound(self._polled, self._traces, auto_commit=auto_commit)
        self._arrived = asyncio.Event()
        self._polling = False  # the application is waiting in poll()
        self._assigned: bool | None = None  # None: neither subscribed nor assigned yet
        self._shares = False  # it takes part in the group's rebalance
        self._tasks = ConsumerTasks(self.core.tasks, group)
        self._life = Life(self.core.runtime)

    # -- life ---------------------------------------------------------------------------------
    def subscribe(self, topic: TopicOrPattern, expression: Expression = "*") -> None:
        """Shares the topic's queues with the group's other members. `expression`: `*`, tags joined
        by `||`, or a condition over properties, `Sql("price > 3")`. `re.compile("orders-.*")` is a
        pattern: all topics with such a name, as they come and go."""
        self._settle_mode(assigned=False)
        self._subscribed.add(topic, expression)
        self.round.keep_to(self.subscriptions)
        if self._life.started:
            self._tasks.once(self._announce, "announce")

    def unsubscribe(self, topic: TopicOrPattern) -> None:
        """Leaves a topic or a pattern: polls give no more messages of it, and its queues go to the
        other members. Messages of the last poll that are not committed come to them again."""
        self._settle_mode(assigned=False)
        self._subscribed.remove(topic)
        self.round.keep_to(self.subscriptions)
        self._membership.trigger()

    def assign(self, queues: Iterable[MessageQueue], expression: Expression = "*") -> None:
        """Reads exactly `queues`, even if others read them, too; replaces an earlier assign()."""
        self._settle_mode(assigned=True)
        wanted = list(dict.fromkeys(map(self._namespace.wrap_queue, queues)))
        for queue in wanted:
            self._subscribed.add(queue.topic, expression)
        for queue in [queue for queue in self._held if queue not in wanted]:
            self._drop(queue)
        for queue in [queue for queue in wanted if queue not in self._held]:
            self._hold(queue)

    def _settle_mode(self, *, assigned: bool) -> None:
        """The first call decides how this consumer gets its queues."""
        if self._assigned not in (None, assigned):
            raise ConfigError("a pull consumer either subscribes to topics or is assigned queues")
        self._assigned = assigned

    async def start(self) -> None:
        """Connects, joins the group (subscribe) and begins to read ahead."""
        await self._life.start(self._start)

    async def _start(self) -> None:
        if self._owns_core:
            await self.core.start()
        if self._traces is not None:
            self._traces.begin()
        try:
            await self._subscribed.find()
        except SaturnError:
            await self.close()
            raise
        self.core.register_consumer(self._group, self)
        await self.core.heartbeat_now()
        self._share()
        for held in self._held.values():
            self._begin(held)
        self._tasks.keep(self._commit_loop, "commit")

    async def _announce(self) -> None:
        await self._subscribed.announce()
        self.round.keep_to(self.subscriptions)  # patterns have their topics now
        self._arrived.set()
        self._share()

    def _share(self) -> None:
        """Take the present share of the queues soon, and from now on."""
        self._membership.trigger()
        if self._assigned is False and not self._shares:
            self._shares = True
            self._tasks.keep(self._membership.run, "rebalance")
            self._tasks.keep(partial(self._subscribed.follow, self._announce), "patterns")

    async def close(self) -> None:
        """Commits (with auto_commit, everything polled) and leaves the group."""
        await self._life.close(partial(self._end, done=True))

    async def _end(self, *, done: bool) -> None:
        """`done`: the application is done with the messages of the last poll."""
        self._tasks.cancel()
        if self._life.started:
            self.round.recall()
            await self._polled.finish(self.core.report_error, done=self.auto_commit and done)
            for queue in list(self._held):
                self._drop(queue)
        await self.core.unregister_consumer(self._group)
        self._arrived.set()
        if self._traces is not None:
            await self._traces.close()
        if self._owns_core:
            await self.core.close()

    async def __aenter__(self) -> PullConsumer:
        await self.start()
        return self

    async def __aexit__(self, raised: type[BaseException] | None, *_: object) -> None:
        await self._life.close(partial(self._end, done=raised is None))

    # -- reading ------------------------------------------------------------------------------
    async def poll(self, timeout_s: float = 5.0, max_messages: int = 1024) -> list[ReceivedMessage]:
        """Up to `max_messages` of one queue, waiting up to `timeout_s`; empty if none came."""
        if messages := self.round.give(max_messages):
            return messages
        if not self._life.runs:
            raise ClientClosed("the consumer is not running: call start() first")
        if max_messages < 1:
            raise InvalidParameter(f"max_messages {max_messages} must be at least 1")
        check_timeout(timeout_s, "timeout_s")
        self.round.settle()
        if self.auto_commit:
            self._polled.note_all()
        if messages := self.round.take(max_messages):
            return messages
        self._polling = True
        try:
            async with asyncio.timeout(timeout_s):
                while not self._life.closing:
                    self._arrived.clear()
                    await self._arrived.wait()
                    if messages := self.round.take(max_messages):
                        return messages
        except TimeoutError:
            pass
        finally:
            self._polling = False
        return self.round.take(max_messages)

    def _put_back(self, messages: list[ReceivedMessage]) -> None:
        """The result of a poll that nobody got: it comes again."""
        if messages and messages[0].queue in self.assignment():
            self.seek(messages[0].queue, messages[0].queue_offset)

    async def _read_ahead(self, held: AssignedQueue) -> None:
        """Runs until it is cancelled: code that moves the queue elsewhere, or drops it, ends this
        task."""
        state = held.state
        while not state.dropped and not self._life.closing:
            if state.full(self._limits):
                await held.wait_for_space()
                continue
            try:
                await self.core.route(held.queue.topic)  # of a queue assigned after start()
                if state.next_offset < 0:
                    offset = await starting.start_offset(
                        self.core, self.offsets, held.queue, self.consume_from, self.baseline
                    )
                    state.reset(offset)
                    self._polled.setdefault(held.queue, offset)
                    continue
                pulled = await self._puller.pull(held.queue, state.next_offset)
            except SaturnError as error:
                log.info("pull of %s failed, again in %g s: %s", held.queue, ERROR_PAUSE_S, error)
                await self.runtime.sleep(ERROR_PAUSE_S)
                continue
            note_term(self.core.terms, self._group, held.queue, pulled.term)
            if pulled.moved:
                self.round.recall()
                pulled.log_move(held.queue, state.next_offset)
                offset = pulled.next_offset
                offset = offset if pulled.by_order else state.moved_to(offset)
                state.reset(offset)
                self._polled[held.queue] = offset
                self._polled.move(held.queue, offset)
                continue
            was_idle = state.idle
            state.last_pull = self.runtime.monotonic()
            state.put(pulled.messages, pulled.next_offset, pulled.size)
            if pulled.messages:  # while it is closed, too: they were not polled
                self.round.arrived(held)
                self._arrived.set()
            else:
                if was_idle:
                    self._polled[held.queue] = pulled.next_offset
                    if self._polling and self.auto_commit:  # earlier messages are done with
                        self._polled.note(held.queue, pulled.next_offset)
                if pulled.stalled:
                    await self.runtime.sleep(ERROR_PAUSE_S)

    # -- offsets ------------------------------------------------------------------------------
    async def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Commits the offsets polled so far, or `offsets` (next to read), and waits for that. One
        below the committed offset changes nothing: seek() goes back. InvalidParameter: one lies
        outside its queue. Others: not confirmed or saved; the next commit tries again."""
        self.round.settle()
        for topic in {queue.topic for queue in self._held}:
            await self.core.route(topic)  # of a queue assigned a moment ago
        given = {self._require(queue).queue: offset for queue, offset in (offsets or {}).items()}
        await starting.check_inside(self.core, given)
        await self._polled.commit(self._polled if offsets is None else given)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """The next poll of `queue` starts at `offset`. The committed offset follows, backwards too,
        at the next commit() or, with auto_commit, at the next poll()."""
        if not 0 <= offset < 1 << 63:
            raise InvalidParameter(f"offset {offset} of {queue} is not from 0 to 2^63 - 1")
        held = self._require(queue)
        self._go_to(held, offset)
        self._polled.seek(held.queue)

    async def seek_to(self, queue: MessageQueue, place: str | int) -> int:
        """As seek(), to "first" or "last", the ends of the queue, or to the first message stored at
        a time in ms or later; returns the offset."""
        inner = self._require(queue).queue
        await self.core.route(inner.topic)
        offset = await starting.offset_of(self.core, inner, place)
        self.seek(inner, offset)
        return offset

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """poll() gives no messages of these queues until resume(), or until they come anew."""
        self.round.pause({self._require(queue).queue for queue in queues})

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """poll() gives messages of these queues again."""
        self.round.resume(set(map(self._namespace.wrap_queue, queues)))
        self._arrived.set()

    def paused(self) -> list[MessageQueue]:
        """The queues that are paused."""
        return sorted(map(self._namespace.plain_queue, self.round.paused))

    def _go_to(self, held: AssignedQueue, offset: int) -> None:
        self.round.recall()
        held.state.reset(offset)
        self._polled[held.queue] = offset
        held.stop_pulling()  # it may wait for messages at the old offset
        if self._life.started:
            self._begin(held)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset of `queue` on the broker; None if there is none."""
        queue = self._namespace.wrap_queue(queue)
        await self.core.route(queue.topic)
        return await self.offsets.load(queue, stored_only=True)

    async def lag(self, queue: MessageQueue | None = None) -> int:
        """Messages between what was polled and the end of the queue (or of all my queues)."""
        queues = list(self._held) if queue is None else [self._namespace.wrap_queue(queue)]
        self.round.settle()
        return await starting.lag_of(self.core, self.offsets, queues, self._polled)

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(map(self._namespace.plain_queue, self._held))

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message that poll() gives of `queue`."""
        self.round.settle()
        return self._polled.get(self._namespace.wrap_queue(queue))

    def _require(self, queue: MessageQueue) -> AssignedQueue:
        held = self._held.get(self._namespace.wrap_queue(queue))
        if held is None:
            raise InvalidParameter(f"{queue} is not assigned to this consumer: {self.assignment()}")
        return held

    async def _commit_loop(self) -> None:
        while not self._life.closing:
            await self.runtime.sleep(self._commit_interval)
            self.round.settle()
            await self.offsets.commit()

    # -- queues come and go -------------------------------------------------------------------
    def _hold(self, queue: MessageQueue) -> None:
        held = self._held[queue] = AssignedQueue(queue)
        self.round.add(held)
        if self._life.started:
            self._begin(held)

    def _begin(self, held: AssignedQueue) -> None:
        name = f"pull {held.queue}"
        held.pulling = self.core.tasks.keep(partial(self._read_ahead, held), name=name)

    def _drop(self, queue: MessageQueue) -> None:
        held = self._held.pop(queue)
        self.round.remove(held)
        held.drop()
        held.stop_pulling()
        self._polled.forget(queue)

    def held_queues(self) -> list[MessageQueue]:
        """The queues as rebalance sees them."""
        return list(self._held)

    async def take_queues(self, queues: Sequence[MessageQueue]) -> bool:
        """Rebalance gave `queues`."""
        for queue in queues:
            if queue not in self._held and not self._life.closing:
                self._hold(queue)
        return True

    async def give_up_queues(self, queues: Sequence[MessageQueue]) -> None:
        """Rebalance took `queues` away: the messages of the last poll are not done with, and the
        next owner gets them again."""
        for queue in queues:
            self._drop(queue)
        await self.offsets.commit(queues)
        for queue in queues:
            self.offsets.forget(queue)

    # -- what ClientCore asks -----------------------------------------------------------------
    def heartbeat_data(self) -> dict[str, Any]:
        """This group's entry of a heartbeat."""
        subscriptions = self.subscriptions.values()
        return heartbeat_entry(self._group, subscriptions, self.consume_from, push=False)

    def on_ids_changed(self) -> None:
        """The group's members changed."""
        self._membership.trigger()

    def on_route_changed(self, topic: str) -> None:
        """A route changed: share the queues anew, and leave brokers that have another role."""
        if topic not in self.subscriptions or not self._life.runs:
            return
        self.baseline.answered(topic, self.core.subscribe_queues(topic))
        self._membership.trigger()
        for queue, held in self._held.items():
            if self._puller.misplaced(queue):
                held.stop_pulling()
                self._begin(held)
        self.round.settle()
        self._tasks.once(self.offsets.commit, "commit")

    def on_reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue at `offsets` (220)."""
        for queue, offset in offsets.items():
            held = self._held.get(queue)
            if held is not None and queue.topic == topic:
                self._go_to(held, offset)
                self._polled.move(queue, offset)

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets of `topic` (221)."""
        self.round.settle()
        return {queue: at for queue, at in self._polled.items() if queue.topic == topic}

    def running_info(self) -> dict[str, Any]:
        """ConsumerRunningInfo (307)."""
        self.round.settle()
        queues = {queue: at.info(self.offsets, self.runtime) for queue, at in self._held.items()}
        return member_info(self.core, "CONSUME_ACTIVELY", self.subscriptions.values(), queues)

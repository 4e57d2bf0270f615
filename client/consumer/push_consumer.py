"""The async PushConsumer: pulls ahead, hands messages to a listener, commits what is finished. Loop
thread only; the synchronous one is written from it (tools/blocking_faces.py).

    rebalance -> pull task per queue -> ProcessQueue -> listener runs -> offsets -> commit (5 s)
                 (next pull before the batch is consumed)     failed: back to the broker (36)

The modules beside it decide the rest: which queues (rebalance.py, membership.py), from which
replica (pulling.py), when the listener is called (consuming.py) and with how much (listening.py),
which offsets may be committed (process_queue.py), and how queues come and go (holdings.py).
RocketMQ's rules for all of it are in docs/internals/protocol.md 6: `%RETRY%<group>` is always
subscribed, a missing offset is settled by `consume_from`, broadcasting keeps offsets in a local
file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.consumer_data import heartbeat_entry, member_info
from saturnmq.client.consumer.consumer_tasks import ConsumerTasks
from saturnmq.client.consumer.consuming import SUSPEND_S, Concurrent, Consumption, InOrder
from saturnmq.client.consumer.consumption_traces import ConsumptionTraces
from saturnmq.client.consumer.holdings import Holdings
from saturnmq.client.consumer.life import Life
from saturnmq.client.consumer.listening import Caller, Listener, OneListener
from saturnmq.client.consumer.membership import Membership
from saturnmq.client.consumer.offset_store import (
    COMMIT_INTERVAL_S,
    INSTANCE,
    FileDoor,
    LocalOffsets,
    OffsetStore,
    RemoteOffsets,
    offsets_of_instance,
)
from saturnmq.client.consumer.pop_calls import PopCalls
from saturnmq.client.consumer.pop_start import PopStart
from saturnmq.client.consumer.popping import INVISIBLE_S, PopConsumption, PoppedQueues
from saturnmq.client.consumer.process_queue import FlowLimits, MessageRun
from saturnmq.client.consumer.pulling import Puller
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.client.consumer.send_back import SendBack
from saturnmq.client.consumer.starting import start_offset, start_place
from saturnmq.client.consumer.subscriptions import Subscriptions, TopicOrPattern
from saturnmq.client.core import DEFAULT_NAMESERVER, ClientCore, ErrorListener, shared_or_new
from saturnmq.client.option_checks import checked
from saturnmq.client.terms import note_term
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace
from saturnmq.protocol import kernels, topics
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.namespaces import namespace_of
from saturnmq.protocol.subscription import Expression
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import ConfigError, SaturnError, SubscriptionParseFailed

log = logging.getLogger(__name__)

ERROR_PAUSE_S = 1.0
CONSUME_TIMEOUT_S = 900.0
# Bounds over all queues of a consumer. Messages pulled ahead only have to cover the time of a pull;
# more of them leave the processor's caches before the listener sees them.
TOTAL_BYTES = 512 << 20
TOTAL_MESSAGES = 8192


class PushConsumer:
    """A member of a consumer group that gets messages through a listener.

        consumer = PushConsumer("readers", "127.0.0.1:9876", listener=work)
        consumer.subscribe("orders", "new || changed")

    A message is consumed when the listener has returned None or ConsumeResult.SUCCESS for it; until
    then it is not committed, and another member gets it if this one fails.
    """

    group: str
    """The consumer group."""
    ordered: bool
    """Whether each queue is consumed in its order, by one listener at a time."""
    broadcasting: bool
    """Whether each member consumes all messages."""
    consume_from: str | int
    """The start of a group without an offset: "first", "last" or a time in ms."""

    @checked
    def __init__(
        self,
        group: str,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        listener: Listener | None = None,
        listener_one: OneListener | None = None,
        ordered: bool = False,
        orderly: bool = False,
        broadcasting: bool = False,
        from_beginning: bool = False,
        consume_from: str | int = "last",
        consume_message_batch_max_size: int = 32,
        consume_threads: int = 20,
        max_reconsume: int = -1,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        suspend_s: float = SUSPEND_S,
        pop_invisible_s: float = INVISIBLE_S,
        rebalance: str = "AVG",
        rebalance_interval_s: float = 20.0,
        commit_interval_s: float = COMMIT_INTERVAL_S,
        hold_s: float | None = None,
        max_cached_messages: int = FlowLimits().messages,
        max_cached_bytes: int = FlowLimits().bytes,
        verify_crc: bool = True,
        trace: Trace = False,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        client_id: str | None = None,
        on_error: ErrorListener | None = None,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
        files: FileDoor | None = None,
        instance_name: str = INSTANCE,
        offsets_path: str | None = None,
    ) -> None:
        """ConfigError names settings that are wrong or exclude each other.

        nameservers: "HOST:PORT[,...]" or a sequence of them
        listener: called with a list of messages of one queue; may be `async`
        listener_one: called with each message instead
        ordered: consume each queue in its order; `orderly` is RocketMQ's word for it
        broadcasting: every member consumes all messages; its offsets are kept in a local file
        from_beginning: short for consume_from="first"
        consume_from: the start of a group without an offset: "first", "last" or a time in ms
        consume_message_batch_max_size: most messages in one call of `listener`
        consume_threads: threads for a listener that is not `async`
        max_reconsume: deliveries after which a failing message goes to the dead-letter topic; -1 is
            16, and no limit for an ordered consumer
        consume_timeout_s: a message whose listener takes longer is delivered again, elsewhere; an
            ordered queue stands still instead, for all members. Both are reported to `on_error`
        suspend_s: seconds after which an ordered consumer tries a failed message again, 0.01 to 30
        pop_invisible_s: the seconds that a listener has for messages of a topic that the group was
            told to pop (docs/pop.md), 5 to 300; then other members get them
        rebalance: how members share queues: AVG, AVG_BY_CIRCLE, CONSISTENT_HASH or STICKY
        rebalance_interval_s: seconds between two requests for the members
        commit_interval_s: seconds between two commits of what is consumed
        hold_s: seconds that a broker may hold a pull that finds nothing, 0.1 to 60; 15 by default,
            longer with over 1,500 queues; RocketMQ's brokers look every 5 s whether they are over
        max_cached_messages, max_cached_bytes: what is pulled ahead of the listener, for each queue
        verify_crc: check every message's CRC-32 of its body
        trace: True writes traces of each message to RMQ_SYS_TRACE_TOPIC; or the topic for traces
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        client_id: the name of this client among the members of its group; unique by default
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        instance_name: tells broadcasting consumers of one user apart: each finds its offsets by it
        offsets_path: the file of a broadcasting consumer's offsets, by default
            ~/.saturnmq/offsets/<instance_name>/<group>/offsets.json
        """
        self.group = group
        self._namespace = namespace_of(namespace)
        group = self._group = topics.check_group(self._namespace.wrap(group))
        topics.check_instance(instance_name)
        self.ordered = ordered = ordered or orderly
        consume_from = start_place(consume_from, from_beginning=from_beginning)
        if ordered and broadcasting:
            raise ConfigError("an ordered consumer cannot broadcast: choose one of the two")
        self.core, self._owns_core = shared_or_new(
            core, runtime, nameservers, client_id, tls, credentials, on_error
        )
        self.runtime = self.core.runtime
        self.broadcasting = broadcasting
        self.consume_from = consume_from
        self._subscribed = Subscriptions(self.core, group, self._namespace, rebalance_interval_s)
        self.subscriptions = self._subscribed.by_topic
        self.baseline = self._subscribed.baseline
        self._traces = ConsumptionTraces(self.core, self.group, trace) if trace else None
        self._caller = Caller(
            self.runtime,
            consume_message_batch_max_size,
            consume_threads,
            self.core.report_error,
            None if self._traces is None else self._traces.around,
        )
        if listener is not None or listener_one is not None:
            self._caller.set(listener, listener_one)
        self._limits = FlowLimits(max_cached_messages, max_cached_bytes)
        self._verify_crc = verify_crc
        self._puller = Puller(
            self.core,
            group,
            self.subscriptions,
            verify_crc=verify_crc,
            hold_s=hold_s,
            namespace=self._namespace,
        )
        send_back = SendBack(self.core, group, max_reconsume, self._namespace)
        work = self.core, group, self._caller, send_back
        self._consumption: Consumption = (
            InOrder(
                *work, max_reconsume=max_reconsume, suspend_s=suspend_s, timeout_s=consume_timeout_s
            )
            if ordered
            else Concurrent(*work, broadcasting=broadcasting, timeout_s=consume_timeout_s)
        )
        self._file: LocalOffsets | None = None
        if broadcasting:
            self._file = offsets_of_instance(self.core, group, files, instance_name, offsets_path)
        self.offsets: OffsetStore = self._file or RemoteOffsets(self.core, group)
        self._holdings = Holdings(
            self.core, group, self.offsets, self._consumption, self._pull, ordered=ordered
        )
        self._held = self._holdings.held
        calls = PopCalls(self.core, group, self._namespace, ordered=False, verify_crc=verify_crc)
        self._popping = PoppedQueues(
            calls,
            PopConsumption(*work, calls, self._namespace, max_reconsume, pop_invisible_s),
            self.subscriptions,
            PopStart(self.core, group, self.consume_from, self.baseline),
        )
        popper = None if ordered or broadcasting else self._popping
        self._membership = Membership(
            self.core, group, rebalance, rebalance_interval_s, self, popper
        )
        self._commit_interval = commit_interval_s
        self._tasks = ConsumerTasks(self.core.tasks, group)
        self._life = Life(self.runtime, self._caller)

    # -- life ---------------------------------------------------------------------------------
    def subscribe(
        self,
        topic: TopicOrPattern,
        expression: Expression = "*",
        listener: Listener | None = None,
        *,
        listener_one: OneListener | None = None,
    ) -> None:
        """Adds a topic (or changes its expression: `*`, tags joined by `||`, or a condition over
        properties that the brokers look at, `Sql("price > 3")`). `re.compile("orders-.*")` is a
        pattern: all topics with such a name, as they come and go.

        The listener is the consumer's, for all its topics; give it here or to the constructor.
        """
        if listener is not None or listener_one is not None:
            self._caller.set(listener, listener_one)
        self._subscribed.add(topic, expression)
        if self._life.started:
            self._tasks.once(self._announce_again, "announce")

    def unsubscribe(self, topic: TopicOrPattern) -> None:
        """Drops a topic or a pattern; its queues go to the other members at the next rebalance."""
        self._subscribed.remove(topic)
        self._membership.trigger()

    async def start(self) -> None:
        """Joins the group and begins to consume. Cancelled, it begins anew with the next call."""
        await self._life.start(self._start)

    async def _start(self) -> None:
        if self._subscribed.empty:
            raise ConfigError("the consumer has no topic: call subscribe() before start()")
        if not self._caller.ready:
            raise ConfigError("the consumer has no listener: give listener= or listener_one=")
        if self._file is not None:
            await self._file.open()
        if self._owns_core:
            await self.core.start()
        if self._traces is not None:
            self._traces.begin()
        if self._file is None:
            self._subscribed.add(topics.retry_topic(self._group), "*")
        try:
            await self._subscribed.find()
        except SubscriptionParseFailed:
            await self.close()
            raise
        self.core.register_consumer(self._group, self)
        await self._announce()
        self._tasks.keep(self._membership.run, "rebalance")
        self._tasks.keep(self._commit_loop, "commit")
        self._tasks.keep(partial(self._subscribed.follow, self._announce_again), "patterns")
        self._holdings.start()

    def suspend(self) -> None:
        """Calls the listener no more, until resume(). Calls that run go on to their end; queues,
        locks and the messages that are pulled already stay here and wait. Of topics that the group
        was told to pop no more messages are popped, and those that wait here go to other members
        when their time is over."""
        self._consumption.suspend()
        self._popping.suspend()

    def resume(self) -> None:
        """Calls the listener again."""
        self._consumption.resume()
        self._popping.resume()

    async def close(self) -> None:
        """Lets running listeners end, commits, gives queues and locks back, leaves the group.

        A listener that does not return within ten seconds is reported (`on_error`), as is a commit
        that fails, and the messages come again. The lock of its ordered queue is not given back:
        the next owner gets the queue when the lock expires at the broker, 60 s later, even if the
        listener has not returned. A caller that is cancelled leaves all this to go on; close()
        again waits for it.
        """
        await self._life.close(self._close)

    async def _close(self) -> None:
        self._tasks.cancel()
        self._popping.stop()
        await self._holdings.close()
        await self._popping.end()
        if self._file is not None:
            await self._file.close()
        await self.core.unregister_consumer(self._group)
        self._caller.close()
        if self._traces is not None:
            await self._traces.close()
        if self._owns_core:
            await self.core.close()

    async def __aenter__(self) -> PushConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _pull(self, held: AssignedQueue) -> asyncio.Task[None]:
        return self.core.tasks.keep(partial(self._pull_loop, held), name=f"pull {held.queue}")

    async def _announce(self) -> None:
        await self.core.heartbeat_now()
        self._membership.trigger()

    async def _announce_again(self) -> None:
        await self._subscribed.announce()
        self._membership.trigger()

    # -- queues come and go (called by Membership) ----------------------------------------------
    def held_queues(self) -> list[MessageQueue]:
        """The queues this member works on now."""
        return list(self._held)

    async def take_queues(self, queues: Sequence[MessageQueue]) -> bool:
        """Starts on `queues`; False if some cannot be had yet."""
        return await self._holdings.take(queues)

    async def give_up_queues(self, queues: Sequence[MessageQueue]) -> None:
        """Stops on `queues`."""
        await self._holdings.give_up(queues)

    # -- pulling --------------------------------------------------------------------------------
    async def _pull_loop(self, held: AssignedQueue) -> None:
        state = held.state
        while not state.dropped and not self._life.closing:
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
                        self.core, self.offsets, held.queue, self.consume_from, self.baseline
                    )
                    if generation == state.generation:
                        state.reset(offset)
                        if self.offsets.known(held.queue) is not None:
                            # Another consumer came further: our older offset must not be committed
                            # again.
                            self.offsets.update(held.queue, offset)
                    continue
                if state.last_consume:
                    self._holdings.note_finished((held.queue,))  # a pull commits, too
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
            note_term(self.core.terms, self._group, held.queue, pulled.term)
            state.last_pull = self.runtime.monotonic()
            if pulled.moved:
                pulled.log_move(held.queue, state.next_offset)
                offset = pulled.next_offset
                self._move(held, offset if pulled.by_order else state.moved_to(offset))
                continue
            state.put(pulled.messages, pulled.next_offset, pulled.size)
            if pulled.messages:
                self._consumption.arrived(held)
                if pulled.at_end and self._caller.is_quick(len(pulled.messages)):
                    await held.let_listener_go_first(self.runtime)
            elif pulled.stalled:
                await self.runtime.sleep(ERROR_PAUSE_S)

    def _queue_limits(self) -> FlowLimits:
        queues = max(1, len(self._held))
        return FlowLimits(
            min(self._limits.messages, max(TOTAL_MESSAGES // queues, 1024)),
            min(self._limits.bytes, max(TOTAL_BYTES // queues, 1 << 20)),
        )

    # -- offsets --------------------------------------------------------------------------------
    async def _commit_loop(self) -> None:
        while not self._life.closing:
            await self.runtime.sleep(self._commit_interval)
            self._consumption.look_after()
            self._popping.consumption.look_after()
            await self._holdings.commit()

    # -- what ClientCore asks -------------------------------------------------------------------
    def heartbeat_data(self) -> dict[str, Any]:
        """This group's entry of a heartbeat."""
        subscriptions = self.subscriptions.values()
        return heartbeat_entry(
            self._group, subscriptions, self.consume_from, push=True, broadcasting=self.broadcasting
        )

    def on_ids_changed(self) -> None:
        """The group's members changed."""
        self._membership.trigger()

    def on_route_changed(self, topic: str) -> None:
        """A route changed: a new broker must get our heartbeat before it can serve us, and pulls
        that wait for a broker whose role has changed go to its successor."""
        if topic not in self.subscriptions or not self._life.runs:
            return
        self.baseline.answered(topic, self.core.subscribe_queues(topic))
        self._tasks.once(self._announce_again, "announce")
        for queue, held in self._held.items():
            if self._puller.misplaced(queue):
                self._restart(held)
        self._holdings.locks.renew_soon()
        self._tasks.once(self._holdings.commit, "commit")

    def on_reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue at `offsets`, forwards or backwards (220, and 21 in a pull)."""
        for queue, offset in offsets.items():
            held = self._held.get(queue)
            if held is not None and queue.topic == topic:
                self._move(held, offset)
                self._restart(held)

    def _restart(self, held: AssignedQueue) -> None:
        """Pull anew: the pull under way may wait at the wrong offset or the wrong broker."""
        held.stop_pulling()
        held.pulling = self._pull(held)

    def _move(self, held: AssignedQueue, offset: int) -> None:
        held.state.reset(offset)
        self.offsets.reset(held.queue, offset)

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Committed offsets of `topic` (221)."""
        self._holdings.note_finished()
        known = {queue: self.offsets.known(queue) for queue in self._held if queue.topic == topic}
        return {queue: offset for queue, offset in known.items() if offset is not None}

    def running_info(self) -> dict[str, Any]:
        """ConsumerRunningInfo (307)."""
        queues = {queue: at.info(self.offsets, self.runtime) for queue, at in self._held.items()}
        subscriptions = self.subscriptions.values()
        popped = {queue: at.pop_info(self.runtime) for queue, at in self._popping.held.items()}
        kind = "CONSUME_PASSIVELY"
        return member_info(
            self.core, kind, subscriptions, queues, popped=popped, ordered=self.ordered
        )

    async def consume_directly(self, ext: dict[str, str], frame: bytes) -> dict[str, Any]:
        """Hand one message to the listener now (309)."""
        began = self.runtime.monotonic()
        broker_name = ext.get("brokerName") or ""
        messages = kernels.decode_frames(frame, self._verify_crc, broker_name)
        for message in messages:
            message.topic = self._namespace.plain(message.topic)
        chunk = MessageRun(messages, 0, len(frame))
        await self._caller.run(chunk)
        return {
            "order": self.ordered,
            "autoCommit": True,
            "consumeResult": "CR_LATER" if chunk.failed else "CR_SUCCESS",
            "spentTimeMills": int((self.runtime.monotonic() - began) * 1000),
        }


__all__ = ["ConsumeResult", "PushConsumer"]

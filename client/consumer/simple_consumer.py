"""The async SimpleConsumer: the caller receives messages for a time, and acknowledges each. Loop
thread only; the synchronous one is written from it (tools/blocking_faces.py).

The brokers keep the group's place (pop consumption, docs/pop.md): there is no rebalance, and
members share all queues. receive() asks the brokers of the subscribed topics in turn. If none has
messages, one broker holds the request until messages come; of several brokers each tells when it
has some (NOTIFICATION), and the first that does is asked again, so nothing is taken that nobody
waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from saturnmq.client.consumer.consumer_data import heartbeat_entry, member_info
from saturnmq.client.consumer.consumer_tasks import ConsumerTasks
from saturnmq.client.consumer.consumption_traces import ReceiptTraces
from saturnmq.client.consumer.life import Life
from saturnmq.client.consumer.pop_calls import ANY, PopCalls
from saturnmq.client.consumer.pop_start import PopStart
from saturnmq.client.consumer.send_back import SendBack
from saturnmq.client.consumer.starting import find_queues, start_place
from saturnmq.client.consumer.subscriptions import Subscriptions, TopicOrPattern
from saturnmq.client.core import DEFAULT_NAMESERVER, ClientCore, ErrorListener, shared_or_new
from saturnmq.client.option_checks import TIMEOUT, OptionBounds, check_timeout, checked
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace
from saturnmq.protocol import topics
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import namespace_of
from saturnmq.protocol.pop_headers import INVISIBLE_MAX_MS
from saturnmq.protocol.popped import handle_of
from saturnmq.protocol.subscription import Expression
from saturnmq.protocol.trace import ContextCode
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    ClientClosed,
    ConfigError,
    InvalidParameter,
    RouteNotFound,
    SaturnError,
    SubscriptionParseFailed,
    TopicNotExist,
)

log = logging.getLogger(__name__)

BATCH_MAX = 32  # of one pop
HOLD_S = 20.0  # a broker holds one request no longer
AGAIN_S = 0.5  # after all brokers failed
PATTERNS_S = 20.0  # between two looks for the topics of patterns, as between two rebalances
INVISIBLE = OptionBounds(0, INVISIBLE_MAX_MS // 1000)


class Source(NamedTuple):
    """A topic at a broker."""

    topic: str
    broker: str


class SimpleConsumer:
    """A member of a group that receives messages for a time, and acknowledges each.

        consumer = SimpleConsumer("workers", "127.0.0.1:9876")
        consumer.subscribe("orders")
        for message in consumer.receive(invisible_s=60):
            work(message)
            consumer.ack(message)

    While a message is invisible, no other member gets it. A message that is not acknowledged in its
    time comes again, to any member, with one more in `reconsume_times`; after the last attempt it
    is a dead letter of the group.
    """

    group: str
    """The consumer group."""
    ordered: bool
    """Whether a queue waits until its messages before are acknowledged."""
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
        ordered: bool = False,
        verify_crc: bool = True,
        trace: Trace = False,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        client_id: str | None = None,
        on_error: ErrorListener | None = None,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """nameservers: "HOST:PORT[,...]" or a sequence of them
        from_beginning: short for consume_from="first"
        consume_from: the start of a group without an offset: "first", "last" or a time in ms. With
            "last" a queue that still has its very first message is read from there in any case
        ordered: of each queue messages are out once at a time; the next ones come when all are
            acknowledged, or their time is over
        verify_crc: check every message's CRC-32 of its body
        trace: True writes traces of each message to RMQ_SYS_TRACE_TOPIC; or the topic for traces
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
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
        self.ordered = ordered
        self.consume_from = start_place(consume_from, from_beginning=from_beginning)
        self._calls = PopCalls(
            self.core, group, self._namespace, ordered=ordered, verify_crc=verify_crc
        )
        self._subscribed = Subscriptions(self.core, group, self._namespace, PATTERNS_S)
        baseline = self._subscribed.baseline
        self._pop_start = PopStart(self.core, group, self.consume_from, baseline)
        self._traces = ReceiptTraces(self.core, self.group, trace) if trace else None
        self._send_back = SendBack(self.core, group, -1, self._namespace)
        self._tasks = ConsumerTasks(self.core.tasks, group)
        self._turn = 0
        self._life = Life(self.core.runtime)

    # -- life ---------------------------------------------------------------------------------
    def subscribe(self, topic: TopicOrPattern, expression: Expression = "*") -> None:
        """Receive messages of this topic, from the next receive() on. `expression`: `*`, tags
        joined by `||`, or a condition over properties, `Sql("price > 3")`.
        `re.compile("orders-.*")` is a pattern: all topics with such a name, as they come and go."""
        self._subscribed.add(topic, expression)
        if self._life.started:
            self._tasks.once(self._subscribed.announce, "announce")

    def unsubscribe(self, topic: TopicOrPattern) -> None:
        """Receive no more messages of this topic, or of this pattern. Those that were received can
        still be acknowledged."""
        self._subscribed.remove(topic)

    async def start(self) -> None:
        """Connects and joins the group."""
        await self._life.start(self._start)

    async def _start(self) -> None:
        if self._owns_core:
            await self.core.start()
        if self._traces is not None:
            self._traces.begin()
        try:
            await self._subscribed.find()
        except SubscriptionParseFailed:
            await self.close()
            raise
        self.core.register_consumer(self._group, self)
        await self.core.heartbeat_now()
        follow = partial(self._subscribed.follow, self._subscribed.announce)
        self._tasks.keep(follow, "patterns")

    async def close(self) -> None:
        """Leaves the group. Messages that are not acknowledged come to other members when their
        time is over."""
        await self._life.close(self._close)

    async def _close(self) -> None:
        self._tasks.cancel()
        await self.core.unregister_consumer(self._group)
        if self._traces is not None:
            await self._traces.close()
        if self._owns_core:
            await self.core.close()

    async def __aenter__(self) -> SimpleConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- receiving ----------------------------------------------------------------------------
    async def receive(
        self, max_messages: int = 16, invisible_s: float = 30.0, wait_s: float = 15.0
    ) -> list[ReceivedMessage]:
        """Up to `max_messages` (32 at most), invisible to other members for `invisible_s` seconds;
        waits up to `wait_s` for the first; empty if none came. An error of the brokers is raised
        if none of them could be asked."""
        self._check_runs()
        if not 1 <= max_messages <= BATCH_MAX:
            raise InvalidParameter(f"max_messages {max_messages} must be from 1 to {BATCH_MAX}")
        check_timeout(wait_s, "wait_s", allowed=TIMEOUT)
        invisible_ms = _milliseconds(invisible_s)
        until = self.runtime.monotonic() + wait_s
        while True:
            sources = await self._sources()
            found = await self._first(sources, max_messages, invisible_ms)
            left = until - self.runtime.monotonic()
            if found or left <= 0 or self._life.closing:
                return found
            if not sources:  # no topic matches the patterns now
                await self.runtime.sleep(min(left, AGAIN_S))
            elif len(sources) == 1:
                hold = min(left, HOLD_S)
                try:
                    found = await self._pop(sources[0], max_messages, invisible_ms, hold)
                except SaturnError as error:
                    log.info("pop of %s failed, asking again: %s", sources[0], error)
                    await self.runtime.sleep(min(left, AGAIN_S))
                if found:
                    return found
            else:
                await self._any(sources, min(left, HOLD_S))

    def _check_runs(self) -> None:
        if not self._life.runs:
            raise ClientClosed("the consumer is not running: call start() first")

    async def _sources(self) -> list[Source]:
        """The topics at their brokers, each time beginning with another."""
        if self._subscribed.empty:
            raise ConfigError("a simple consumer subscribes to a topic before it receives")
        found: dict[Source, None] = {}
        named = []
        for topic in list(self._subscribed.by_topic):
            by_pattern = self._subscribed.is_by_pattern(topic)
            named += [] if by_pattern else [topic]
            try:
                queues = await find_queues(self.core, topic, self._subscribed.baseline)
            except (TopicNotExist, RouteNotFound):
                if not by_pattern:
                    raise
                continue  # it was deleted a moment ago, or its brokers are away
            for queue in queues:
                found[Source(topic, queue.broker_name)] = None
        if not found and named:
            raise RouteNotFound(f"no broker has a queue to read of {', '.join(named)}")
        if not found:
            return []
        sources = list(found)
        self._turn = (self._turn + 1) % len(sources)
        return sources[self._turn :] + sources[: self._turn]

    async def _first(
        self, sources: Sequence[Source], most: int, invisible_ms: int
    ) -> list[ReceivedMessage]:
        """The messages of the first source that has some now."""
        failed: list[SaturnError] = []
        for source in sources:
            try:
                found = await self._pop(source, most, invisible_ms, 0)
            except SaturnError as error:
                log.info("pop of %s failed: %s", source, error)
                self.core.refresh_soon(source.topic)
                failed.append(error)
                continue
            if found:
                return found
        if failed and len(failed) == len(sources):
            raise failed[0]
        return []

    async def _pop(
        self, source: Source, most: int, invisible_ms: int, hold_s: float
    ) -> list[ReceivedMessage]:
        subscription = self._subscribed.by_topic.get(source.topic)
        if subscription is None:  # unsubscribed meanwhile
            return []
        queues = MessageQueue(*source, ANY)
        await self._pop_start.place(queues)
        found = await self._calls.pop(
            queues,
            subscription,
            most,
            invisible_ms,
            hold_s,
            from_end=self._pop_start.at_end(queues),
        )
        if self._traces is not None:
            self._traces.received(found)
        return found

    async def _any(self, sources: Sequence[Source], hold_s: float) -> None:
        """Wait until a source has messages, at most so long."""
        spawn = self.runtime.spawn
        asking = [spawn(self._notified(source, hold_s), name="notified") for source in sources]
        try:
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _notified(self, source: Source, hold_s: float) -> None:
        try:
            has_messages = await self._calls.has_messages(MessageQueue(*source, ANY), hold_s)
        except SaturnError as error:
            log.info("%s does not tell when it has messages: %s", source, error)
            await self.runtime.sleep(hold_s)
            return
        if not has_messages:
            await self.runtime.sleep(AGAIN_S)  # the others may hold on a little longer

    # -- acknowledging ------------------------------------------------------------------------
    async def ack(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Say that messages are done with. NoMessage: one of them is not, because its time is over,
        or it was acknowledged before; the others are."""
        await self._finish(_listed(messages), ContextCode.SUCCESS)

    async def _finish(self, messages: Sequence[ReceivedMessage], outcome: ContextCode) -> None:
        """Acknowledge messages, whose traces say how they ended."""
        self._check_runs()
        by_broker: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            by_broker.setdefault(handle_of(message).broker, []).append(message)
        failed: list[SaturnError] = []
        for broker, theirs in by_broker.items():
            handles = [(self._namespace.wrap(each.topic), handle_of(each)) for each in theirs]
            try:
                await self._calls.ack(broker, handles)
            except SaturnError as error:
                failed.append(error)
            else:
                if self._traces is not None:
                    self._traces.finished(theirs, outcome)
        if failed:
            raise failed[0]

    async def dead_letter(self, messages: ReceivedMessage | Iterable[ReceivedMessage]) -> None:
        """Give messages up: each becomes a dead letter of the group now, whatever attempts it has
        left, and its queue goes on, also when it is `ordered`. NoMessage: the time of one is over,
        or it was acknowledged; it is a dead letter all the same, and may come again."""
        self._check_runs()
        messages = _listed(messages)
        for message in messages:  # before anything is done: each must have been received
            await self._calls.master_of(
                self._namespace.wrap(message.topic), handle_of(message).broker
            )
        for message in messages:
            await self._send_back.dead_letter(message)
        await self._finish(messages, ContextCode.FAILED)

    async def change_invisible_duration(self, message: ReceivedMessage, invisible_s: float) -> None:
        """Let the invisible time of a message begin anew, with this length: longer to go on working
        on it, or shorter to give it back. NoMessage: its time is over, or it was acknowledged."""
        self._check_runs()
        await self._calls.change(message, _milliseconds(invisible_s))

    # -- what brokers ask ---------------------------------------------------------------------
    def heartbeat_data(self) -> dict[str, Any]:
        """Its entry in a heartbeat."""
        subscriptions = self._subscribed.by_topic.values()
        entry = heartbeat_entry(self._group, subscriptions, self.consume_from, push=False)
        return {**entry, "consumeType": "CONSUME_POP"}

    def on_ids_changed(self) -> None:
        """Members need not know of each other."""

    def running_info(self) -> dict[str, Any]:
        """Its ConsumerRunningInfo."""
        subscriptions = self._subscribed.by_topic.values()
        return member_info(self.core, "CONSUME_POP", subscriptions, ordered=self.ordered)


def _listed(messages: ReceivedMessage | Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
    return [messages] if isinstance(messages, ReceivedMessage) else list(messages)


def _milliseconds(seconds: float) -> int:
    """InvalidParameter: no broker takes such an invisible time."""
    check_timeout(seconds, "invisible_s", allowed=INVISIBLE)
    return int(seconds * 1000)

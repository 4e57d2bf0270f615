"""The engine under both faces of the producer: it turns messages into batches and gives them to the
sender. `ProducerEngine.enqueue` may run on any thread.

Every message gets a UNIQ_KEY and WAIT=true as the Java client gives it. Bodies from
`compress_above` bytes on are compressed with zlib level 5 and, like delayed messages, requests and
those for %RETRY% topics, travel alone: brokers refuse them in a batch, or add something to singles
only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saturnmq.client.core import ClientCore
from saturnmq.client.kernels import handles_of, pack
from saturnmq.client.producer import at_exit
from saturnmq.client.producer.accumulator import Accumulator, Gate, ThreadLock, no_room
from saturnmq.client.producer.batch import (
    BATCH_COUNT_MAX,
    ITEM_OVERHEAD,
    ProducerBatch,
    SendHandle,
    SendResult,
)
from saturnmq.client.producer.given_properties import encode_given, identity
from saturnmq.client.producer.lanes import Lane, Pin
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.placing import Round, Selector, is_placed, queue_of
from saturnmq.client.producer.requesting import Requests, send_reply
from saturnmq.client.producer.sending import Sender
from saturnmq.client.producer.timed import recall
from saturnmq.client.producer.waiting_for_routes import until_routed
from saturnmq.protocol import compression
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.message_reference import plain_body
from saturnmq.protocol.namespaces import NO_NAMESPACE, Namespace
from saturnmq.protocol.properties import (
    INSTANCE_ID,
    SHARDING_KEY,
    TRAVELS_ALONE,
)
from saturnmq.protocol.topics import RETRY_PREFIX, check_group, check_topic
from saturnmq.runtime import forks
from saturnmq.runtime.errors import (
    ClientClosed,
    ClientForked,
    InvalidParameter,
    MessageIllegal,
    RouteNotFound,
)

Body = bytes | bytearray | memoryview


def _refuse(message: Message) -> None:
    """Takes no message: each must be wrapped first."""


@dataclass(frozen=True, slots=True)
class Callers:
    """How the callers of a producer and its loop meet: in one thread, or in several."""

    lock: ThreadLock
    call_on_loop: Callable[[Callable[[], None]], object]
    wait: Callable[[ProducerBatch, float | None], object]
    """How `SendHandle.result` waits."""
    gate: Callable[[], Gate] | None = None
    """The accumulator's, where a sender can be ahead of the loop."""


class ProducerEngine:
    """A producer without the way in which its callers wait. `enqueue` may run on any thread."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: ProducerOptions,
        callers: Callers,
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        self.core = core
        self.group = check_group(namespace.wrap(group))
        # None spares the ordinary producer a call for each message.
        self.namespace = namespace if namespace.name else None
        self.options = options
        call_on_loop = self.call_on_loop = callers.call_on_loop
        runtime = core.runtime
        compress_above = None if options.compression else options.compress_above
        self._alone_from = options.batch_bytes if compress_above is None else compress_above
        ids = UniqueIds(runtime, core.local_ip, core.pid, salt=runtime.random.getrandbits(32))
        self.accumulator = Accumulator(
            callers.lock,
            runtime.now_ms,
            ids,
            lambda: call_on_loop(self._pump),
            callers.wait,
            self.wait,
            batch_bytes=options.batch_bytes,
            buffer_bytes=options.buffer_bytes,
            alone_from=min(self._alone_from, options.max_message_bytes + 1),
            first_queue=lambda: runtime.random.randrange(1 << 16),
            gate=callers.gate,
        )
        self.offer: Callable[[Message], SendHandle | None] = self.accumulator.offer
        if self.namespace is not None:
            self.offer = _refuse
            self.accumulator.renamed = namespace.plain_queue
        core.on_route_change(lambda topic: self.accumulator.routeless.pop(topic, None))
        self.sender = Sender(core, self.accumulator, self.group, options)
        self.requests = Requests(core)
        self.closed = False
        self._why_closed = ClientClosed("the producer is closed")
        forks.register(self)
        self._topics: set[str] = set()

    def _pump(self) -> None:
        self.sender.pump()

    def forked(self) -> None:
        """A forked child sends nothing with it."""
        self.closed = True
        self._why_closed = forks.refusal()
        self.accumulator.forked()

    def check_open(self) -> None:
        """Raise ClientClosed or ClientForked if the producer takes no messages."""
        if self.closed:
            raise self._why_closed

    def check_forked(self) -> None:
        """Raise ClientForked in a child of the process that started the producer."""
        if isinstance(self._why_closed, ClientForked):
            raise self._why_closed

    # -- any thread ----------------------------------------------------------------------------

    def enqueue(self, message: Message, pinned: Pin | None) -> SendHandle | None:
        """Accept one message; None when the buffer is full."""
        if self.namespace is not None:
            message = self._wrapped(message, self.namespace)
        self._check(message)
        lane = self.accumulator.lane(message.topic, pinned)
        if self._alone(message.topic, message.properties) or not self._small(message.body):
            batch = self.single(lane, message)
            return batch.handle(0) if self.accumulator.append_batch(lane, batch) else None
        extra, given = encode_given(message.properties)
        if given:
            extra = identity(given) + extra
        return self.accumulator.append(lane, message.body, extra, message.flag, given)

    def only(self, message: Message, lane: Lane) -> ProducerBatch:
        """A batch of one message, not put into its lane."""
        self._check(message)
        if self._alone(message.topic, message.properties) or not self._small(message.body):
            return self.single(lane, message)
        return self._whole(lane, [message])

    def enqueue_batch(
        self, messages: Sequence[Message], pinned: Pin | None
    ) -> ProducerBatch | None:
        """Accept messages of one topic as one batch; None when the buffer is full."""
        batch = self.batch_of(messages, pinned)
        return batch if self.accumulator.append_batch(batch.lane, batch, pace=True) else None

    def enqueue_all(
        self, messages: Sequence[Message], pinned: Pin | None
    ) -> list[SendHandle] | None:
        """Accept messages of one topic, to be stored together, perhaps with others; None when the
        buffer is full."""
        if pinned is None and self.namespace is None:
            offered = self.accumulator.offer_all(messages)
            if offered is not None:
                return offered
        batch = self.batch_of(messages, pinned)
        handles = handles_of(batch)
        lane, append = batch.lane, self.accumulator.append_batch
        return handles if append(lane, batch, pace=True, shared=True) else None

    def batch_of(self, messages: Sequence[Message], pinned: Pin | None) -> ProducerBatch:
        """Messages of one topic as one batch, not put into its lane."""
        if not messages:
            raise InvalidParameter("send_batch of no messages: give at least one")
        if self.namespace is not None:
            messages = [self._wrapped(message, self.namespace) for message in messages]
        topic = messages[0].topic
        if topic in self._topics and not topic.startswith(RETRY_PREFIX):
            self.check_open()
            batch = self.accumulator.batch(self.accumulator.lane(topic, pinned), b"")
            if pack(batch, messages, topic, self.options.max_message_bytes):
                return batch
        for message in messages:
            self._check(message)
            if message.topic != topic:
                raise InvalidParameter(
                    f"send_batch of topics {topic!r} and {message.topic!r}: a batch has one topic"
                )
            if self._alone(topic, message.properties):
                raise MessageIllegal(
                    "delayed, transactional and %RETRY% messages cannot be in a batch: use send"
                )
        return self._whole(self.accumulator.lane(topic, pinned), messages)

    def needs_route(
        self,
        message: Message,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: Selector | None,
    ) -> bool:
        """Whether `pin_for` cannot answer before the topic's queues are known."""
        is_bound = is_placed(message, queue, sharding_key, selector)
        return is_bound and not self.round(message.topic).queues

    def pin_for(
        self,
        message: Message,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: Selector | None,
    ) -> Pin | None:
        """The pin that binds a message to a queue: by `queue`, by the selector's choice, by its
        key, or none. RouteNotFound while the topic's route is not known."""
        if queue is not None:
            return self.pin(queue)
        key = sharding_key or message.properties.get(SHARDING_KEY)
        if selector is None and key is None:
            return None
        number, queues = self.round(message.topic)
        if not queues:
            known = "has no queue to write to now" if number else "has no route that is known yet"
            raise RouteNotFound(f"topic {message.topic!r} {known}")
        if selector is not None:
            offered = queues if self.namespace is None else self.queues(message.topic)
            selected = self._bound_to("the selector returned", selector(offered, message))
            return Pin(selected, number if selected in queues else 0)
        assert key is not None
        return Pin(queue_of(key, queues), number)

    def pin(self, queue: MessageQueue | None, number: int = 0) -> Pin | None:
        """The pin of a queue that the caller names; `number`: of the round that it was chosen
        from."""
        return None if queue is None else Pin(self._bound_to("queue is", queue), number)

    def _bound_to(self, what: str, queue: MessageQueue) -> MessageQueue:
        """The queue for the brokers. InvalidParameter: it is none, so nothing could ever leave for
        it."""
        if not isinstance(queue, MessageQueue):
            raise InvalidParameter(
                f"{what} {queue!r:.60}: give a MessageQueue, as queues() of the producer lists them"
            )
        return queue if self.namespace is None else self.namespace.wrap_queue(queue)

    def round(self, topic: str) -> Round:
        """The queues that keys are hashed over now; none before `route(topic)`."""
        return self.sender.key_queues.round(self._wrap(topic))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Those queues, as the application names them."""
        queues = self.round(topic).queues
        if self.namespace is None:
            return list(queues)
        return [self.namespace.plain_queue(queue) for queue in queues]

    def _wrap(self, topic: str) -> str:
        """The topic for the brokers."""
        return topic if self.namespace is None else self.namespace.wrap(topic)

    @staticmethod
    def _wrapped(message: Message, namespace: Namespace) -> Message:
        """The message for the brokers; INSTANCE_ID is what RocketMQ's producer adds."""
        properties = {**message.properties, INSTANCE_ID: namespace.name}
        topic = namespace.wrap(message.topic)
        return Message(topic, message.body, properties=properties, flag=message.flag)

    def _check(self, message: Message) -> None:
        if message.topic not in self._topics:
            check_topic(message.topic)
            self._topics.add(message.topic)
        if not 0 < len(message.body) <= self.options.max_message_bytes:
            raise self._bad_body(len(message.body))
        self.check_open()

    def _small(self, body: Any) -> bool:
        return len(body) < self._alone_from

    def _bad_body(self, size: int) -> MessageIllegal:
        if not size:
            return MessageIllegal(
                "the body is empty: RocketMQ refuses that; send at least one byte"
            )
        return MessageIllegal(
            f"body of {size} B exceeds the limit of {self.options.max_message_bytes} B: split it, "
            "or raise max_message_bytes of the producer and maxMessageSize of the broker"
        )

    @staticmethod
    def _alone(topic: str, properties: dict[str, str]) -> bool:
        return topic.startswith(RETRY_PREFIX) or not TRAVELS_ALONE.isdisjoint(properties)

    def enqueue_encoded(
        self,
        topic: str,
        pinned: Pin | None,
        body: bytes,
        count: int,
        *,
        born_ms: int | None = None,
        sys_flag: int = 0,
    ) -> ProducerBatch | None:
        """Accept `count` messages that are encoded as a batch (protocol/batch.py), including
        UNIQ_KEY; None when the buffer is full."""
        self.check_open()
        lane = self.accumulator.lane(self._wrap(topic), pinned)
        batch = self.accumulator.batch(lane, body)
        batch.bytes = len(body)
        batch.count = count
        batch.sys_flag = sys_flag
        if born_ms is not None:
            batch.born_ms = born_ms
        return batch if self.accumulator.append_batch(lane, batch) else None

    def single(self, lane: Lane, message: Message) -> ProducerBatch:
        """A message that travels alone, by SEND_MESSAGE_V2."""
        extra, given = encode_given(message.properties)
        body: Any = message.body
        sys_flag = 0
        above = self.options.compress_above
        if above is not None and len(body) >= above:
            packed = compression.compress(body, compression.ZLIB, 5)
            if len(packed) < len(body):
                body = packed
                sys_flag = compression.sys_flag_of(compression.ZLIB)
        batch = self.accumulator.batch(lane, bytes(body), single=True)
        batch.count = 1
        if given:
            batch.given_ids[0] = given
        batch.properties = (identity(batch.message_id(0)) + extra).decode()
        batch.flag = message.flag
        batch.sys_flag = sys_flag
        return batch

    def _whole(self, lane: Lane, messages: Sequence[Message]) -> ProducerBatch:
        if len(messages) > BATCH_COUNT_MAX:
            raise MessageIllegal(
                f"batch of {len(messages)} messages exceeds the limit of {BATCH_COUNT_MAX}: send "
                "fewer at once, or use send_async, which batches by itself"
            )
        extras = [encode_given(message.properties) for message in messages]
        size = 0
        for message, (extra, _) in zip(messages, extras, strict=True):
            size += ITEM_OVERHEAD + len(message.body) + len(extra)
        if size > self.options.max_message_bytes:
            raise MessageIllegal(
                f"batch of {size} B exceeds the limit of {self.options.max_message_bytes} B:"
                " send fewer at once, or use send_async, which batches by itself"
            )
        batch = self.accumulator.batch(lane, bytearray(size))
        for message, (extra, given) in zip(messages, extras, strict=True):
            if given:
                index = batch.put(message.body, identity(given) + extra, message.flag, False)
                batch.given_ids[index] = given
            else:
                index = batch.put(message.body, extra, message.flag, True)
            if index < 0:
                raise no_room(message.body)
        return batch

    # -- the loop thread -----------------------------------------------------------------------

    async def start(self) -> None:
        self.core.register_producer(self.group, self)

    def on_reply(self, ext: Mapping[str, str], body: bytes) -> None:
        """Take the reply to a request (326)."""
        self.requests.on_reply(ext, body)

    async def prepare_request(self, topic: str) -> None:
        """Before a request: the brokers of the topic have to know this client."""
        self.check_open()
        await self.until_routed(topic)
        topic = self._wrap(topic)
        if not self.requests.is_known_at(topic):
            await self.requests.greet(topic)

    async def reply(
        self, request: ReceivedMessage, body: Body, properties: Mapping[str, str] | None
    ) -> None:
        """Reply to a request; see `send_reply`."""
        self.check_open()
        body = plain_body(body)
        if not body or len(body) > self.options.max_message_bytes:
            raise self._bad_body(len(body))
        await send_reply(self.core, self.group, request, body, properties)

    async def recall(self, sent: SendResult | str) -> str:
        """Recall a timed message; see `Producer.recall`."""
        return await recall(self.core, sent)

    def transaction_ended(
        self,
        message: Message | ReceivedMessage,
        transaction_id: str,
        state: int,
        address: str,
        *,
        asked: bool,
    ) -> None:
        """The broker at `address` was told the end of a transaction: nothing to do here."""

    async def until_routed(self, topic: str, patience_s: float | None = None) -> float:
        """Wait for the route of `topic`, so that `pin_for` can answer, for so many seconds, and
        return what is left of them; None: as long as a pinned batch would be tried. TopicNotExist:
        there is no such topic."""
        topic = check_topic(self._wrap(topic))
        left_s = self.options.delivery_timeout if patience_s is None else patience_s
        routes = self.core.routes
        if routes.route(topic) is None:
            left_s = await until_routed(self.sender, topic, left_s, lambda: routes.route(topic))
        else:  # as for all messages but the first one
            await self.core.route(topic, create=True)
        self.sender.key_queues.learn(topic)
        return left_s

    async def route(self, topic: str, *, create: bool = True) -> None:
        """Fetch the route of `topic`, so that `pin_for` can answer; without `create` the topic has
        to exist."""
        topic = check_topic(self._wrap(topic))
        await self.core.route(topic, create=create)
        self.sender.key_queues.learn(topic)

    def oneway(self, message: Message, pinned: Pin | None) -> None:
        """Send without an acknowledgement; dropped if no broker can be reached now."""
        if not message.body or len(message.body) > self.options.max_message_bytes:
            raise self._bad_body(len(message.body))
        if self.namespace is not None:
            message = self._wrapped(message, self.namespace)
        queues = self.core.publish_queues(message.topic)
        if pinned is None:
            if not queues:
                raise RouteNotFound(f"topic {message.topic!r} has no writable queue now")
            now = self.core.runtime.monotonic()
            faults = self.sender.faults
            sound = [queue for queue in queues if faults.available(queue.broker_name, now)]
            pinned = Pin(self.core.runtime.random.choice(sound or queues))
        queue = pinned.queue
        address = self.core.master_address(queue.broker_name)
        batch = self.single(self.accumulator.lane(message.topic, pinned), message)
        self.core.oneway(address, self.sender.command(batch, queue))

    async def wait(self, batch: ProducerBatch) -> None:
        """Wait until `batch` is over, however it ends."""
        future = self.core.runtime.create_future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        if self.accumulator.watch(batch, done, waits=True):
            await future

    async def flush(self) -> None:
        """Wait until everything accepted so far is acknowledged or has failed."""
        self.check_forked()
        for batch in list(self.accumulator.active):
            await self.wait(batch)

    async def close(self, timeout: float | None = None) -> None:
        """Take nothing more, flush (at most `timeout` seconds), fail what is left, and report it
        unless the caller did not want to wait."""
        if self.closed:
            return
        self.closed = True
        self.accumulator.refuse_offers()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.flush()
        self.sender.close()
        self.requests.close()
        why = (
            f"the producer was closed, and had no acknowledgement within {timeout:g} s"
            if timeout
            else "the producer was closed"
        )
        lost = at_exit.loss(self.group, self.accumulator.active, why)
        self.accumulator.close(ClientClosed(why))
        if lost is not None and timeout:
            told = f"{lost.messages} messages of producer {lost.group} may be lost: {lost.reason}"
            self.core.report_error(ClientClosed(told))
        await self.core.unregister_producer(self.group)

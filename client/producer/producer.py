"""The asynchronous producer.

    async with Producer("senders", "127.0.0.1:9876") as producer:
        result = await producer.send(Message("flights", b"..."))
        handle = await producer.send_async(message)   # waits only for room in the buffer
        result = await handle

Batching is automatic with linger 0 (accumulator.py); placement and retries are sending.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar

from saturnmq.client.core import DEFAULT_NAMESERVER, ClientCore, ErrorListener, new_core
from saturnmq.client.kernels import results_of
from saturnmq.client.option_checks import TIMEOUT, check_timeout, checked
from saturnmq.client.producer import at_exit
from saturnmq.client.producer.batch import (
    ProducerBatch,
    SendHandle,
    SendResult,
)
from saturnmq.client.producer.engine import Body, Callers, ProducerEngine
from saturnmq.client.producer.faults import LatencyTable
from saturnmq.client.producer.lanes import Pin
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.placing import Selector, is_placed
from saturnmq.client.producer.requesting import fail_with
from saturnmq.client.producer.traced_engine import TracedEngine
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace, topic_of
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import namespace_of
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    ClientClosed,
    RequestTimeout,
)

DEFAULT_GROUP = "saturnmq-producer"
REQUEST_S = 3.0  # as in RocketMQ
NO_REPLY = "no reply in {} s{}; a consumer may still get the request"

T = TypeVar("T")


class Producer:
    """Sends messages; used on one event loop.

        async with Producer("senders", "127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"..."))

    Batching is automatic: what queues while the last batch is under way goes in the next.
    """

    group: str
    """The producer group."""
    options: ProducerOptions
    """The options of the producer."""

    @checked
    def __init__(
        self,
        group: str = DEFAULT_GROUP,
        nameservers: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        send_timeout: float = ProducerOptions.send_timeout,
        retries: int = ProducerOptions.retries,
        delivery_timeout: float = ProducerOptions.delivery_timeout,
        absence_timeout: float = ProducerOptions.absence_timeout,
        retry_unless_stored: bool = ProducerOptions.retry_unless_stored,
        until_delivered: bool = ProducerOptions.until_delivered,
        batch_bytes: int = ProducerOptions.batch_bytes,
        buffer_bytes: int = ProducerOptions.buffer_bytes,
        in_flight: int = ProducerOptions.in_flight,
        linger: float = ProducerOptions.linger,
        max_message_bytes: int = ProducerOptions.max_message_bytes,
        compress_above: int | None = ProducerOptions.compress_above,
        compression: str | None = ProducerOptions.compression,
        latency_table: LatencyTable = ProducerOptions.latency_table,
        trace: Trace = False,
        namespace: str = "",
        tls: Tls = None,
        credentials: Credentials | None = None,
        on_error: ErrorListener | None = None,
        core: ClientCore | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """ConfigError names a value that makes no sense.

        nameservers: "HOST:PORT[,...]" or a sequence of them
        send_timeout: seconds of one attempt, and of trying while no master takes the message
        retries: extra attempts of a message without a queue or key; 0 is one attempt only
        delivery_timeout: seconds of all attempts of a message with a queue or key
        absence_timeout: seconds that keys keep the queues of a broker that is away
        retry_unless_stored: a message that is stored short of the ack asked for is tried again
        until_delivered: every message has `delivery_timeout`, even if that may store it twice
        batch_bytes: largest size of a batch
        buffer_bytes: bytes that may wait to be acknowledged; a send waits for room in it
        in_flight: batches under way to one broker, for each topic and queue
        linger: seconds that a batch may fill while messages come fast; 0 is never
        max_message_bytes: largest size of a body; the broker has a limit too, maxMessageSize
        compress_above: bodies from so many bytes on are compressed; None is never
        compression: "zstd" compresses each batch as a whole: for topics with queue.type=BatchCQ
            only; compress_above counts for bodies that travel alone
        latency_table: rows of (latency in ms, seconds without sends) for a slow broker
        trace: True writes a trace of each message to RMQ_SYS_TRACE_TOPIC; or the topic for traces
        namespace: topics and groups are NAMESPACE%NAME for the brokers, as with RocketMQ's clients
        tls: True, or the context, encrypts; None is as SATURNMQ_CLIENT_TLS says
        credentials: the user; None is as SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY say
        on_error: called with each error that no call of the application can raise; it runs on the
            client's loop and must return at once
        """
        self.options = ProducerOptions(
            send_timeout=send_timeout,
            retries=retries,
            delivery_timeout=delivery_timeout,
            absence_timeout=absence_timeout,
            retry_unless_stored=retry_unless_stored,
            until_delivered=until_delivered,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            in_flight=in_flight,
            linger=linger,
            max_message_bytes=max_message_bytes,
            compress_above=compress_above,
            compression=compression,
            latency_table=latency_table,
        )
        self.core = core or new_core(nameservers, runtime, tls=tls, credentials=credentials)
        if on_error is not None:
            self.core.on_error(on_error)
        self._own_core = core is None
        self.group = group
        self._trace = topic_of(trace) if trace else ""
        self._namespace = namespace_of(namespace)
        self._engine: ProducerEngine | None = None
        self._offer: Callable[[Message], SendHandle | None] = _not_started
        self._ending = asyncio.Lock()
        self._room: list[asyncio.Future[None]] = []

    async def start(self) -> Self:
        """Connect; called by `async with`."""
        if self._engine is not None:
            return self
        if self._own_core:
            await self.core.start()
        make = partial(TracedEngine, trace_topic=self._trace) if self._trace else ProducerEngine
        callers = Callers(contextlib.nullcontext(), self.core.runtime.call_soon, _not_here)
        engine = make(self.core, self.group, self.options, callers, self._namespace)
        engine.accumulator.on_space = self._on_space
        await engine.start()
        self._engine = engine
        self._offer = engine.offer
        at_exit.remember(self._settle)
        return self

    @property
    def engine(self) -> ProducerEngine:
        """The part that batches and sends; ClientClosed before `start`."""
        if self._engine is None:
            raise ClientClosed("the producer is not started: use 'async with' or await start()")
        return self._engine

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send and wait for the acknowledgement."""
        check_timeout(timeout)
        engine = self.engine
        if timeout is not None and engine.needs_route(message, queue, sharding_key, selector):
            timeout = await engine.until_routed(message.topic, timeout)
        handle = await self.send_async(
            message, queue=queue, sharding_key=sharding_key, selector=selector
        )
        if timeout is None:
            return await handle
        async with _within(
            timeout, partial(engine.accumulator.last_try, handle.batch.lane.topic, handle.batch)
        ):
            return await handle

    async def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: Selector | None = None,
    ) -> SendHandle:
        """Accept the message; waits only while the buffer is full and, with a key or a selector,
        until a broker has the topic's queues. Await the handle for the ack."""
        if queue is None and sharding_key is None and selector is None:
            offered = self._offer(message)
            if offered is not None:
                return offered
        engine = self.engine
        if is_placed(message, queue, sharding_key, selector):
            await engine.until_routed(message.topic)
        pinned = engine.pin_for(message, queue, sharding_key, selector)
        while True:
            handle = engine.enqueue(message, pinned)
            if handle is not None:
                if engine.accumulator.is_ahead(handle.batch.lane):
                    await self.core.runtime.sleep(0)  # the loop's turn to send
                return handle
            await self._wait_for_room()

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue in one request; all are stored or none."""
        check_timeout(timeout)
        engine = self.engine
        batch = await self._accepted(engine.enqueue_batch, messages, queue)
        async with _within(timeout, partial(engine.accumulator.last_try, batch.lane.topic, batch)):
            await batch.handle(0)
        return results_of(batch)

    async def send_batch_async(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> list[SendHandle]:
        """Accept messages as `send_batch` does; waits only while the buffer is full. Several such
        batches may travel in one request."""
        engine = self.engine
        handles = await self._accepted(engine.enqueue_all, messages, queue)
        if engine.accumulator.is_ahead(handles[0].batch.lane):
            await self.core.runtime.sleep(0)  # the loop's turn to send
        return handles

    async def _accepted(
        self,
        enqueue: Callable[[Sequence[Message], Pin | None], T | None],
        messages: Sequence[Message],
        queue: MessageQueue | None,
    ) -> T:
        pinned = self.engine.pin(queue)
        while (accepted := enqueue(messages, pinned)) is None:
            await self._wait_for_room()
        return accepted

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Send without waiting, except for the topic's first route."""
        engine = self.engine
        await engine.route(message.topic)
        engine.oneway(message, engine.pin_for(message, queue, sharding_key, None))

    async def request(
        self,
        message: Message,
        *,
        timeout: float = REQUEST_S,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: Selector | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for the reply that a consumer gives by `reply`. RequestTimeout:
        none came in `timeout` seconds; a consumer may have got the request all the same."""
        check_timeout(timeout, allowed=TIMEOUT)
        engine = self.engine
        reply: asyncio.Future[ReceivedMessage] = engine.core.runtime.create_future()
        topic = self._namespace.wrap(message.topic)
        async with _within(timeout, partial(engine.accumulator.last_try, topic), NO_REPLY):
            await engine.prepare_request(message.topic)
            with engine.requests.asking(message, timeout, reply) as question:
                sent = await self.send_async(
                    question, queue=queue, sharding_key=sharding_key, selector=selector
                )
                fail_with(reply, sent)
                return await reply

    async def reply(
        self,
        request: ReceivedMessage,
        body: Body,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Reply to a message that its producer sent by `request`; returns when that producer has
        taken the reply. MessageIllegal: the message waits for no reply. SystemError_: the
        requester is gone."""
        await self.engine.reply(request, body, properties)

    async def recall(self, sent: SendResult | str) -> str:
        """End the wait of a timed message, by the result of its send or its `recall_handle`; return
        its id. After that it is never delivered. IllegalOperation: it was delivered or recalled
        already, or the handle is none."""
        return await self.engine.recall(sent)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that sharding keys are hashed over now: its write queues
        (client/producer/placing.py). TopicNotExist if there is no such topic."""
        await self.engine.route(topic, create=False)
        return self.engine.queues(topic)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged or has failed."""
        check_timeout(timeout)
        async with _within(timeout):
            await self.engine.flush()

    async def close(self, timeout: float | None = 30.0) -> None:
        """Flush, then close the producer."""
        check_timeout(timeout)
        async with self._ending:  # a second caller would close the connections of the first
            if self._engine is not None:
                await self._engine.close(timeout)
            at_exit.forget(self._settle)
            self._on_space()
            if self._own_core:
                await self.core.close()

    def _settle(self, seconds: float) -> at_exit.UnsentMessages | None:
        batches = list(self.engine.accumulator.active)
        return at_exit.loss(
            self.group, batches, "its event loop ended before they were acknowledged"
        )

    async def _wait_for_room(self) -> None:
        future: asyncio.Future[None] = self.core.runtime.create_future()
        self._room.append(future)
        await future

    def _on_space(self) -> None:
        waiting, self._room = self._room, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


@contextlib.asynccontextmanager
async def _within(
    timeout: float | None,
    last_try: Callable[[], str] = str,
    what: str = "no acknowledgement in {} s{}; the send goes on",
) -> AsyncIterator[None]:
    """Raise RequestTimeout when the block takes longer; the send itself goes on. `last_try`: text
    about the end of its last try, if that is known."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise RequestTimeout(what.format(timeout, last_try())) from None


def _not_started(message: Message) -> None:
    """Placeholder until the producer is started: takes no message."""


def _not_here(batch: ProducerBatch, timeout: float | None) -> None:
    raise RequestTimeout("the send is not over: await the handle")


__all__ = ["Producer"]

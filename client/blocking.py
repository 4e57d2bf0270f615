"""Synchronous faces: the same names as the asynchronous classes, used from any thread.

A LoopThread (loop_thread.py) runs one event loop in a daemon thread. Consumers and admin are
written out in blocking_faces.py, by a tool. The producer is here, because a message must not cost a
trip to the loop: senders append to the accumulator themselves and wake the loop only if no wake-up
is pending.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar

from saturnmq.client.core import DEFAULT_NAMESERVER, ErrorListener, nameservers_of, new_core
from saturnmq.client.kernels import results_of
from saturnmq.client.loop_thread import LoopThread, NotDone, shut_gate
from saturnmq.client.option_checks import TIMEOUT, check_timeout, checked
from saturnmq.client.producer import at_exit
from saturnmq.client.producer import producer as async_producer
from saturnmq.client.producer.batch import ProducerBatch, SendHandle, SendResult
from saturnmq.client.producer.direct_send import DirectSend
from saturnmq.client.producer.engine import Body, Callers, ProducerEngine
from saturnmq.client.producer.faults import LatencyTable
from saturnmq.client.producer.lanes import Pin
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.placing import Selector
from saturnmq.client.producer.posting import Posting
from saturnmq.client.producer.requesting import fail_with
from saturnmq.client.producer.traced_engine import TracedEngine
from saturnmq.client.tls import Tls
from saturnmq.client.tracing import Trace, topic_of
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import namespace_of
from saturnmq.runtime.errors import ClientClosed, RequestTimeout

T = TypeVar("T")


def _not_started(message: Message) -> None:
    """Placeholder until the producer is started: takes no message."""


class Producer:
    """Sends messages; any thread may call.

        with Producer("senders", "127.0.0.1:9876") as producer:
            result = producer.send(Message("orders", b"..."))

    Batching is automatic: what queues while the last batch is under way goes in the next.
    """

    group: str
    """The producer group."""
    options: ProducerOptions
    """The options of the producer."""

    @checked
    def __init__(
        self,
        group: str = async_producer.DEFAULT_GROUP,
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
        self.group = group
        self._on_error = on_error
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
        self._new_core = partial(
            new_core, nameservers_of(nameservers), tls=tls, credentials=credentials
        )
        self._trace = topic_of(trace) if trace else ""
        self._namespace = namespace_of(namespace)
        self._thread: LoopThread | None = None
        self._engine: ProducerEngine | None = None
        self._offer: Callable[[Message], SendHandle | None] = _not_started
        self._express: DirectSend | None = None
        self._posting: Posting | None = None
        self._room = threading.Condition()
        self._closed = False
        self._ending = threading.Lock()

    def start(self) -> Self:
        """Connect; called by `with`."""
        if self._engine is None:
            thread = LoopThread()
            try:
                self._engine = thread.run(self._make(thread))
            except BaseException:
                thread.close()
                raise
            self._thread = thread
            at_exit.remember(self._settle)
        return self

    async def _make(self, thread: LoopThread) -> ProducerEngine:
        core = self._new_core(runtime=thread.runtime)
        if self._on_error is not None:
            core.on_error(self._on_error)
        await core.start()
        make = partial(TracedEngine, trace_topic=self._trace) if self._trace else ProducerEngine
        callers = Callers(
            lock=threading.Lock(),
            call_on_loop=thread.loop.call_soon_threadsafe,
            wait=thread.wait_for,
            gate=shut_gate,
        )
        engine = make(core, self.group, self.options, callers, self._namespace)
        engine.accumulator.on_space = self._on_space
        self._offer = engine.offer
        if not self._trace and not self._namespace.name:
            self._express = DirectSend(engine)
            if core.tls is None:  # else nothing is read or written without waiting
                self._posting = Posting(engine, thread.loop)
        await engine.start()
        return engine

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def engine(self) -> ProducerEngine:
        """The part that batches and sends; ClientClosed before `start`."""
        if self._engine is None:
            raise ClientClosed("the producer is not started: use 'with' or call start()")
        self._engine.check_forked()
        return self._engine

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send and wait for the acknowledgement."""
        self._check_call(timeout)
        if timeout is not None and self.engine.needs_route(message, queue, sharding_key, selector):
            timeout = self._run(self.engine.until_routed(message.topic, timeout))
        express = self._express
        if express is not None and (timeout is None or timeout >= self.options.send_timeout):
            sent = express.send(message, self._pin(message, queue, sharding_key, selector))
            if sent is not None:
                return sent if isinstance(sent, SendResult) else sent.handle(0).result(timeout)
        handle = self.send_async(message, queue=queue, sharding_key=sharding_key, selector=selector)
        return handle.result(timeout)

    def send_async(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: Selector | None = None,
    ) -> SendHandle:
        """Accept the message and return at once; blocks only while the buffer is full and, with a
        key or a selector, until a broker has the topic's queues."""
        if queue is None and sharding_key is None and selector is None:
            handle = self._offer(message)
            if handle is not None:
                return handle
        engine, pinned = self.engine, self._pin(message, queue, sharding_key, selector)
        posted = None if self._posting is None else self._posting.post(message, pinned)
        return posted or self._when_room(lambda: engine.enqueue(message, pinned))

    def _pin(
        self,
        message: Message,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: Selector | None,
    ) -> Pin | None:
        if self.engine.needs_route(message, queue, sharding_key, selector):
            self._run(self.engine.until_routed(message.topic))
        return self.engine.pin_for(message, queue, sharding_key, selector)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue in one request; all are stored or none."""
        self._check_call(timeout)
        engine, express = self.engine, self._express
        batch: ProducerBatch | None = None
        if express is not None and (timeout is None or timeout >= self.options.send_timeout):
            batch = express.send_batch(messages, engine.pin(queue))
        if batch is None:
            pinned = engine.pin(queue)
            batch = self._when_room(lambda: engine.enqueue_batch(messages, pinned))
        batch.handle(0).result(timeout)
        return results_of(batch)

    def send_batch_async(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> list[SendHandle]:
        """Accept messages as `send_batch` does and return at once; blocks only while the buffer is
        full. Several such batches may travel in one request."""
        engine = self.engine
        pinned = engine.pin(queue)
        return self._when_room(lambda: engine.enqueue_all(messages, pinned))

    def send_encoded(
        self,
        topic: str,
        body: bytes,
        count: int,
        *,
        queue: MessageQueue | None = None,
        keyed: bool = False,
        born_ms: int | None = None,
        sys_flag: int = 0,
    ) -> ProducerBatch:
        """Accept `count` messages that the caller encoded as the body of one SEND_BATCH_MESSAGE,
        each with its UNIQ_KEY; blocks only while the buffer is full. On the returned batch, `wait`
        waits until it is over; `error` and `status` say how it ended. `keyed`: `queue` was chosen
        among `queues` by a key, so another one will do when it is gone."""
        engine = self.engine
        number = engine.round(topic).number if keyed else 0
        pinned = engine.pin(queue, number)
        return self._when_room(
            lambda: engine.enqueue_encoded(
                topic, pinned, body, count, born_ms=born_ms, sys_flag=sys_flag
            )
        )

    def request(
        self,
        message: Message,
        *,
        timeout: float = async_producer.REQUEST_S,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: Selector | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for the reply that a consumer gives by `reply`. RequestTimeout:
        none came in `timeout` seconds; a consumer may have got the request all the same."""
        check_timeout(timeout, allowed=TIMEOUT)
        engine = self.engine
        clock = engine.core.runtime.monotonic
        ends = clock() + timeout
        reply: Future[ReceivedMessage] = Future()
        sent: SendHandle | None = None
        try:
            if not engine.requests.is_known_at(message.topic):
                self._run(engine.prepare_request(message.topic), timeout)
            with engine.requests.asking(message, timeout, reply) as question:
                sent = self.send_async(
                    question, queue=queue, sharding_key=sharding_key, selector=selector
                )
                fail_with(reply, sent)
                return reply.result(max(ends - clock(), 0.0))
        except (TimeoutError, NotDone):
            topic = self._namespace.wrap(message.topic)
            why = engine.accumulator.last_try(topic, None if sent is None else sent.batch)
            raise RequestTimeout(async_producer.NO_REPLY.format(timeout, why)) from None

    def recall(self, sent: SendResult | str) -> str:
        """End the wait of a timed message, by the result of its send or its `recall_handle`; return
        its id. After that it is never delivered. IllegalOperation: it was delivered or recalled
        already, or the handle is none."""
        return self._run(self.engine.recall(sent))

    def reply(
        self,
        request: ReceivedMessage,
        body: Body,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Reply to a message that its producer sent by `request`; returns when that producer has
        taken the reply. MessageIllegal: the message waits for no reply. SystemError_: the
        requester is gone."""
        self._run(self.engine.reply(request, body, properties))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that sharding keys are hashed over now: its write queues
        (client/producer/placing.py). TopicNotExist if there is no such topic."""
        self._run(self.engine.route(topic, create=False))
        return self.engine.queues(topic)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
    ) -> None:
        """Send without an acknowledgement."""
        engine = self.engine
        if engine.core.routes.route(message.topic) is None:
            self._run(engine.route(message.topic))
        pinned = engine.pin_for(message, queue, sharding_key, None)
        assert self._thread is not None
        self._thread.call(engine.oneway, message, pinned)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged or has failed."""
        check_timeout(timeout)
        self._run(self.engine.flush(), timeout)

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush, then close the producer. In a child of the process that started it this does
        nothing."""
        check_timeout(timeout)
        thread, engine = self._thread, self._engine
        if thread is None or engine is None or thread.inherited:
            return
        thread.check_caller()
        if not self._ending.acquire(timeout=-1 if timeout is None else timeout):
            return  # another thread closes it, and takes longer
        try:
            if not self._closed:
                self._closed = True
                self._close(thread, engine, timeout)
        finally:
            self._ending.release()

    def _close(self, thread: LoopThread, engine: ProducerEngine, timeout: float | None) -> None:
        at_exit.forget(self._settle)
        try:
            if self._express is not None:
                self._express.close()
            if self._posting is not None:
                self._posting.refuse()
            thread.run(self._end(engine, timeout))
            if self._posting is not None:
                thread.call(self._posting.close)
            self._on_space()
            thread.run(engine.core.close())
        finally:
            thread.close()

    async def _end(self, engine: ProducerEngine, timeout: float | None) -> None:
        await engine.close(timeout)

    def _settle(self, seconds: float) -> at_exit.UnsentMessages | None:
        """Called at the end of the program; see at_exit.py."""
        batches = list(self.engine.accumulator.active)
        with contextlib.suppress(RequestTimeout):
            self.flush(seconds)
        lost = at_exit.loss(self.group, batches, f"no acknowledgement in {seconds:.1f} s")
        self.close(0.0)
        return lost

    def _check_call(self, timeout: float | None = None) -> None:
        if timeout is not None:
            check_timeout(timeout)
        if self._thread is not None:
            self._thread.check_caller()

    def _run(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        assert self._thread is not None
        return self._thread.run(coro, timeout)

    def _when_room(self, accept: Callable[[], T | None]) -> T:
        # Not under the lock, which the loop takes: a sender far ahead pauses in here.
        accepted = accept()
        while accepted is None:
            self._check_call()
            with self._room:
                accepted = accept()
                if accepted is None:
                    # The time-out covers space that came between the refusal and this wait.
                    self._room.wait(0.05)
        return accepted

    def _on_space(self) -> None:
        with contextlib.suppress(RuntimeError), self._room:
            self._room.notify_all()

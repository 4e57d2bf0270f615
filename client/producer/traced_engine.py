"""A producer's engine that traces: a record of each stored message, end of a transaction and
recall, as RocketMQ's client writes them (protocol/trace.py).

It stands in place of the ordinary engine, which so has no work for traces. As in RocketMQ, one-way
and failed sends leave no record; batches that come encoded leave none either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from saturnmq.client.core import ClientCore
from saturnmq.client.kernels import handles_of
from saturnmq.client.producer.batch import ProducerBatch, SendHandle, SendResult
from saturnmq.client.producer.engine import Callers, ProducerEngine
from saturnmq.client.producer.lanes import Pin
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.timed import recall_handle
from saturnmq.client.tracing import END_S, SEND_S, Tracer
from saturnmq.protocol import properties as names
from saturnmq.protocol.frame import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from saturnmq.protocol.message import Message, ReceivedMessage
from saturnmq.protocol.namespaces import NO_NAMESPACE, Namespace
from saturnmq.protocol.recall_handle import decode_handle
from saturnmq.protocol.trace import TracedType, TraceKind, TraceRecord

_DELAYING = frozenset(names.DELAYING)
_STATES = {TRANSACTION_COMMIT: "COMMIT_MESSAGE", TRANSACTION_ROLLBACK: "ROLLBACK_MESSAGE"}


class TracedEngine(ProducerEngine):
    """A ProducerEngine whose messages leave traces in `trace_topic`."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: ProducerOptions,
        callers: Callers,
        namespace: Namespace = NO_NAMESPACE,
        *,
        trace_topic: str,
    ) -> None:
        super().__init__(core, group, options, callers, namespace)
        self.tracer = Tracer(core, group, "PUB", trace_topic)
        offer = self.offer

        def traced_offer(message: Message) -> SendHandle | None:
            return self._watched(message, offer(message))

        self.offer = traced_offer

    # -- any thread ----------------------------------------------------------------------------

    def enqueue(self, message: Message, pinned: Pin | None) -> SendHandle | None:
        """As the ordinary engine does; the message is traced when it is stored."""
        return self._watched(message, super().enqueue(message, pinned))

    def enqueue_batch(
        self, messages: Sequence[Message], pinned: Pin | None
    ) -> ProducerBatch | None:
        """As the ordinary engine does; each message is traced when the batch is stored."""
        batch = super().enqueue_batch(messages, pinned)
        if batch is not None:
            self._watch_all(messages, handles_of(batch))
        return batch

    def enqueue_all(
        self, messages: Sequence[Message], pinned: Pin | None
    ) -> list[SendHandle] | None:
        """As the ordinary engine does; each message is traced when it is stored."""
        handles = super().enqueue_all(messages, pinned)
        if handles is not None:
            self._watch_all(messages, handles)
        return handles

    def _watch_all(self, messages: Sequence[Message], handles: Sequence[SendHandle]) -> None:
        for message, handle in zip(messages, handles, strict=True):
            self._watched(message, handle)

    def _watched(self, message: Message, handle: SendHandle | None) -> SendHandle | None:
        if handle is not None and message.topic != self.tracer.topic:
            done = partial(self._stored, _traits(message), self.tracer.now_ms())
            handle.add_done_callback(done)
        return handle

    def _stored(self, traits: dict[str, Any], began_ms: int, handle: SendHandle) -> None:
        if handle.exception() is not None:
            return
        result = handle.result()
        record = TraceRecord(
            TraceKind.PUB,
            result.message_id,
            group=self.tracer.group,
            timestamp_ms=began_ms,
            cost_ms=max(self.tracer.now_ms() - began_ms, 0),
            store_host=self.core.broker_address(result.queue.broker_name) or "",
            offset_message_id=result.offset_message_id,
            success=result.ok,
            **traits,
        )
        self.tracer.add(record)

    # -- the loop thread -----------------------------------------------------------------------

    async def start(self) -> None:
        """Start as the ordinary engine does."""
        await super().start()
        self.tracer.begin()

    def transaction_ended(
        self,
        message: Message | ReceivedMessage,
        transaction_id: str,
        state: int,
        address: str,
        *,
        asked: bool,
    ) -> None:
        """Trace that the broker at `address` was told the end of a transaction."""
        traits = _traits(message) | {"message_type": TracedType.COMMIT}
        del traits["body_length"]
        record = TraceRecord(
            TraceKind.END_TRANSACTION,
            transaction_id,
            group=self.tracer.group,
            timestamp_ms=self.tracer.now_ms(),
            store_host=address,
            transaction_id=transaction_id,
            transaction_state=_STATES.get(state, "UNKNOW"),  # RocketMQ's spelling
            from_check=asked,
            **traits,
        )
        self.tracer.add(record)

    async def recall(self, sent: SendResult | str) -> str:
        """As the ordinary engine does; traced whether it succeeds or not."""
        handle = decode_handle(sent if isinstance(sent, str) else recall_handle(sent))
        namespace = self.namespace or NO_NAMESPACE
        success = False
        try:
            recalled = await super().recall(sent)
            success = True
            return recalled
        finally:
            record = TraceRecord(
                TraceKind.RECALL,
                handle.message_id,
                group=self.tracer.group,
                timestamp_ms=self.tracer.now_ms(),
                topic=namespace.plain(handle.topic),
                success=success,
            )
            self.tracer.add(record)

    async def close(self, timeout: float | None = None) -> None:
        """Close as the ordinary engine does, then send the traces that wait."""
        if not self.closed:
            await super().close(timeout)
            await self.tracer.close(SEND_S if timeout is None else max(timeout, END_S))


def _traits(message: Message | ReceivedMessage) -> dict[str, Any]:
    """The fields of a record that the message itself has."""
    properties = message.properties
    kind = TracedType.NORMAL
    if names.TRAN_MSG in properties:
        kind = TracedType.HALF
    elif not _DELAYING.isdisjoint(properties):
        kind = TracedType.DELAY
    return {
        "topic": message.topic,
        "tags": properties.get(names.TAGS, ""),
        "keys": properties.get(names.KEYS, ""),
        "body_length": len(message.body),
        "message_type": kind,
    }

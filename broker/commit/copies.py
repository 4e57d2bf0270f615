"""Messages that the broker itself stores: retry copies, dead letters, and delayed messages whose
time has come."""

from __future__ import annotations

from collections.abc import Callable

from saturnmq.broker.commit.inner_batches import is_batched
from saturnmq.broker.context import Context
from saturnmq.broker.delay.levels import schedule
from saturnmq.protocol import properties as names
from saturnmq.protocol.frame import TRANSACTION_MASK, WRAPPED
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.properties import encode_properties
from saturnmq.store.message_store import AppendResult, PendingMessage


def returned_properties(message: ReceivedMessage) -> dict[str, str]:
    """The properties of a copy for the group that has not consumed the message."""
    properties = dict(message.properties)
    for name in (names.CRC32, names.INNER_NUM, names.INNER_BASE):
        properties.pop(name, None)
    properties.setdefault(names.RETRY_TOPIC, message.topic)
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_message_id)
    return properties


class CopyWriter:
    def __init__(self, context: Context, on_append: Callable[[], None]) -> None:
        """`on_append` tells the advancer that the log grew."""
        self._c = context
        self._on_append = on_append
        self._levels = len(context.store.config.delays_ms)

    def store(
        self,
        topic: str,
        queue_id: int,
        message: ReceivedMessage,
        properties: dict[str, str],
        *,
        reconsume_times: int,
        rescheduled: bool = False,
    ) -> AppendResult:
        """Store a copy of a message, with these properties. With DELAY among them it waits first,
        unless it has waited (`rescheduled`)."""
        encoded = encode_properties(properties)
        if names.DELAY in properties and not rescheduled:
            topic, queue_id, encoded = schedule(topic, queue_id, encoded, self._levels)
        target = self._c.topics.get(topic)
        put = self._c.store.put(
            PendingMessage(
                topic=topic,
                queue_id=queue_id,
                body=message.raw_body,
                properties=encoded,
                flag=message.flag,
                sys_flag=message.sys_flag & ~(TRANSACTION_MASK | WRAPPED),
                born_timestamp=message.born_timestamp,
                born_host=message.raw_born_host,
                store_host=self._c.store_host,
                reconsume_times=reconsume_times,
            ),
            is_copy=True,
            inner=int(target is not None and is_batched(target)),
        )
        self._on_append()
        return put

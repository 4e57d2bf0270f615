"""Messages that the broker itself stores: retry copies, dead letters, and delayed messages whose
time has come."""

from __future__ import annotations

import logging
from collections.abc import Callable

from saturnmq.broker.commit.inner_batches import is_batched
from saturnmq.broker.context import Context
from saturnmq.broker.delay.levels import schedule
from saturnmq.protocol import properties as names
from saturnmq.protocol.frame import TRANSACTION_MASK, WRAPPED, stored_properties_size
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.properties import PROPERTIES_BYTES_MAX, encode_properties
from saturnmq.store.message_store import AppendResult, PendingMessage

log = logging.getLogger(__name__)

SPARED = (names.ORIGIN_MESSAGE_ID, names.RETRY_TOPIC, names.WAIT, names.DELAY)
"""The properties that a copy has more than its message, in the order in which it can do without."""


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
        unless it has waited (`rescheduled`).

        If there is no room for all properties, those of `SPARED` are left out, for a message that
        cannot be copied would stay in the way of others. Without DELAY the copy does not wait."""
        placed = self._placed(topic, queue_id, properties, rescheduled=rescheduled)
        for name in SPARED:
            if self._fits(placed[2]):
                break
            if name in properties:
                log.warning("the copy of %s has no room for %s", message.offset_message_id, name)
                del properties[name]
                placed = self._placed(topic, queue_id, properties, rescheduled=rescheduled)
        topic, queue_id, encoded = placed
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

    def _placed(
        self, topic: str, queue_id: int, properties: dict[str, str], *, rescheduled: bool
    ) -> tuple[str, int, bytes]:
        """The topic and the queue that take the copy, and its properties there."""
        encoded = encode_properties(properties)
        if names.DELAY in properties and not rescheduled:
            return schedule(topic, queue_id, encoded, self._levels)
        return topic, queue_id, encoded

    def _fits(self, encoded: bytes) -> bool:
        size = stored_properties_size(encoded, self._c.store.config.crc_property)
        return size <= PROPERTIES_BYTES_MAX

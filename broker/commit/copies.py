"""Messages that the broker itself stores: retry copies, dead letters, and delayed messages whose
time has come."""

from __future__ import annotations

from collections.abc import Callable

from saturnmq.broker.context import Context
from saturnmq.broker.delay.levels import schedule
from saturnmq.protocol import properties as names
from saturnmq.protocol.frame import TRANSACTION_MASK
from saturnmq.protocol.properties import encode_properties
from saturnmq.store.message_store import AppendResult, PendingMessage


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
        body: bytes | memoryview,
        properties: dict[str, str],
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        rescheduled: bool = False,
    ) -> AppendResult:
        """Store a message. With DELAY in its properties it waits first, unless it has waited
        (`rescheduled`)."""
        encoded = encode_properties(properties)
        if names.DELAY in properties and not rescheduled:
            topic, queue_id, encoded = schedule(topic, queue_id, encoded, self._levels)
        put = self._c.store.put(
            PendingMessage(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=encoded,
                flag=flag,
                sys_flag=sys_flag & ~TRANSACTION_MASK,
                born_timestamp=born_timestamp,
                born_host=born_host,
                store_host=self._c.store_host,
                reconsume_times=reconsume_times,
            ),
            is_copy=True,
        )
        self._on_append()
        return put

"""The acknowledgement of messages that were appended, by the rules of the ack mode.

The reply leaves at once if its ack mode is met already, else it waits in the ledger
(`broker/commit/ack_ledger.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from saturnmq.broker.context import Context
from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command


class Acknowledgement:
    def __init__(self, context: Context, on_append: Callable[[], None]) -> None:
        """`on_append` tells the advancer that the log grew."""
        self._c = context
        self._on_append = on_append

    def answer_at(self, endpoint: Endpoint, reply: Command, end: int, *, wait: bool = True) -> None:
        """Answer when the log up to `end` is as safe as the ack mode demands. With `wait` false the
        sender asks for less: stored is enough."""
        c = self._c
        self._on_append()
        waits = wait and (c.config.sync_flush or c.waits_for_copies)
        if c.store.watermarks.confirmed >= end or (not waits and c.flush_keeps_up()):
            c.ledger.latency.counts[0] += 1
            if not endpoint.closed:
                endpoint.send(reply)
            return
        if waits and not c.enough_replicas():
            reply.code = ResponseCode.SLAVE_NOT_AVAILABLE
            reply.remark = (
                f"stored, but fewer than {c.role.required} copies are in sync (inSyncReplicas)"
            )
            if not endpoint.closed:
                endpoint.send(reply)
            return
        if not len(c.ledger):
            c.push()  # it is alone: the slaves need not wait for the end of the turn
        c.ledger.add(end, self._timeout_s(), endpoint, reply)

    def _timeout_s(self) -> float:
        """The time that a send may wait for its ack mode."""
        config = self._c.config
        timeout_ms = config.slave_timeout_ms
        if not self._c.waits_for_copies:
            timeout_ms = config.sync_flush_timeout_ms
        elif config.sync_flush:
            timeout_ms = max(timeout_ms, config.sync_flush_timeout_ms)
        return timeout_ms / 1000

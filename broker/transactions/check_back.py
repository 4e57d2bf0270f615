"""Questions to producers that left a transaction open: CHECK_TRANSACTION_STATE 39.

Every transactionCheckInterval the master goes through the halves that were there when it began,
oldest first, and asks about each that has been open for transactionTimeOut, or for as long as its
message says. Before the question the half is stored again with the number of questions; so the
number survives every restart, and the oldest half is never old. After transactionCheckMax questions
the half goes to TRANS_CHECK_MAX_TIME_TOPIC.

The steady clock of the broker that asks counts the waits, from the moment when the half came to it;
after a restart or a promotion from that. So a wrong clock asks nobody early. A question goes to one
connection of the producer group, each time to the next one: any member of a group must know how its
transactions ended. A question that no connection could get counts as asked, as in RocketMQ.
"""

from __future__ import annotations

import logging

from saturnmq.broker.access import needs
from saturnmq.broker.context import Context
from saturnmq.broker.transactions.endings import EndingKind
from saturnmq.broker.transactions.half_log import BATCH, BATCH_BYTES, HalfLog
from saturnmq.broker.transactions.halves import QUEUE, Half, asked_again, expired, read_half
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import message_size, write_message
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from saturnmq.runtime.errors import MessageIllegal, SaturnError
from saturnmq.store.message_store import AppendResult

log = logging.getLogger(__name__)

TICK_S = 1.0  # how often the offsets of RocketMQ's group may follow
BUSY_S = 0.01


class CheckBackService:
    def __init__(self, context: Context, half_log: HalfLog) -> None:
        self._c = context
        self._half_log = half_log
        self._sound = half_log.sound
        self._asked: dict[str, int] = {}  # how often a group was asked: whose turn it is
        self.checks = self.expired = self.unanswerable = 0  # since this process began

    async def run(self) -> None:
        """The work of a master."""
        runtime, interval_s = self._c.runtime, self._c.config.transaction_check_ms / 1000
        due = 0.0
        self._half_log.unload()
        try:
            while True:
                if not self._half_log.is_loaded:
                    await self._half_log.load()
                    due = runtime.monotonic() + interval_s
                now = runtime.monotonic()
                if now < due:
                    await runtime.sleep(min(TICK_S, due - now))
                else:
                    due = now + interval_s
                    await self._ask_all()
                self._half_log.commit_offsets()
        finally:
            self._half_log.unload()

    async def _ask_all(self) -> None:
        """Ask about every half that has waited long enough."""
        try:
            await self._go_through()
        except SaturnError as error:
            log.warning("open transactions are asked about later: %s", error)

    async def _go_through(self) -> None:
        c, store = self._c, self._c.store
        table = self._half_log.table
        if lost := table.begin_at(store.min_offset(*QUEUE)):
            log.error(
                "%d open transactions are lost: their segments were deleted before they were "
                "asked about",
                lost,
            )
        end = store.visible_end(*QUEUE, c.visible)
        offset = table.position
        while offset < end:
            await c.steps.next()
            if not self._half_log.is_loaded or self._half_log.table is not table:
                return  # the log was changed
            if store.in_group:
                await c.runtime.sleep(BUSY_S)  # a batch is being appended, nothing else can be
                continue
            offset = max(offset, table.position)
            result = store.get_message(
                *QUEUE, offset, BATCH, BATCH_BYTES, override_limits=True, end=end
            )
            messages, behind = self._sound.messages(*QUEUE, offset, result)
            for message in messages:
                if table.is_open(message.queue_offset) and not self._look_at(read_half(message)):
                    return
            offset = max(offset + 1, behind)

    def _look_at(self, half: Half) -> bool:
        """Ask about a half, if it is time; False if it and all behind it came too lately."""
        c, half_log = self._c, self._half_log
        own_s = half.immunity_s
        wait_s = own_s or c.config.transaction_timeout_ms / 1000
        is_due = c.runtime.monotonic() - half_log.since(half) >= wait_s
        if not is_due and not own_s:
            return half.root != half.offset  # a copy lies behind halves that came later
        try:
            self._store_again(half, is_check=is_due)
        except MessageIllegal as error:
            log.error("the half at %d cannot be stored again: %s", half.offset, error)
        return True

    def _store_again(self, half: Half, *, is_check: bool) -> None:
        c = self._c
        is_whole = half.group and half.topic
        if is_check and (half.checks >= c.config.transaction_check_max or not is_whole):
            self._expire(half)
            return
        copy = asked_again(half, c.store_host, is_check=is_check)
        _, put = self._half_log.end(half, EndingKind.MOVED, copy)
        if is_check:
            assert put is not None, f"the half {half.offset} moved, and nobody knows where"
            self._ask(half, copy.properties, put)

    def _expire(self, half: Half) -> None:
        c = self._c
        log.warning(
            "transaction %s of group %s is open after %d questions: its message for topic %s goes "
            "to %s",
            half.unique,
            half.group,
            half.checks,
            half.topic,
            CHECK_MAX_TIME_TOPIC,
        )
        c.topics.ensure(CHECK_MAX_TIME_TOPIC, 1)
        self._half_log.end(half, EndingKind.EXPIRED, expired(half, c.store_host))
        self.expired += 1

    def _ask(self, half: Half, properties: bytes, put: AppendResult) -> None:
        """Ask a producer of the half's group; the half is at `put` now, with these properties."""
        self.checks += 1
        asked = self._next_of(half.group, half.topic)
        if asked is None:
            self.unanswerable += 1
            log.info("no producer of group %s is connected: nobody can be asked", half.group)
            return
        host = self._c.store_host.hex().upper()
        ext = {
            "topic": HALF_TOPIC,
            "bname": self._c.config.broker_name,
            "tranStateTableOffset": str(put.queue_offset),
            "commitLogOffset": str(put.physical_offset),
            "msgId": half.unique,
            "transactionId": half.unique,
            "offsetMsgId": f"{host}{put.physical_offset:016X}",
        }
        frame = _frame(half, properties, put)
        asked.oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, ext, frame))

    def _next_of(self, group: str, topic: str) -> Endpoint | None:
        """A producer of the group, which gets the message: so it must be one that may send it."""
        guard, need = self._c.guard, needs.topic(topic, needs.PUB)
        members = [
            each
            for each in self._c.clients.producers.get(group, ())
            if not each.closed and (guard is None or guard.may(each, need))
        ]
        if not members:
            self._asked.pop(group, None)
            return None
        turn = self._asked.get(group, -1) + 1
        self._asked[group] = turn
        return members[turn % len(members)]

    def status(self) -> dict[str, str]:
        """Its figures in the broker's runtime information."""
        return {
            "transactionsPending": str(self._half_log.pending),
            "transactionChecks": str(self.checks),
            "transactionChecksUnanswerable": str(self.unanswerable),
            "transactionsExpired": str(self.expired),
        }


def _frame(half: Half, properties: bytes, put: AppendResult) -> bytes:
    """The half at `put` as its producer sent it, with the real topic and queue."""
    message, topic = half.message, half.topic.encode()
    born_host, store_host = message.raw_born_host, message.raw_store_host
    size = message_size(
        message.stored_body_size, len(topic), len(properties), len(born_host), len(store_host)
    )
    out = bytearray(size)
    write_message(
        out,
        0,
        put.physical_offset,
        put.queue_offset,
        half.queue_id,
        message.flag,
        message.sys_flag,
        message.born_timestamp,
        born_host,
        put.store_timestamp,
        store_host,
        message.reconsume_times,
        0,
        message.raw_body,
        topic,
        properties,
    )
    return bytes(out)

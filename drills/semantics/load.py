"""The clients of the drill `semantics`: for each kind of message its senders and its consumers.

All are on one event loop and write down what they asked for and got (`checker.py` has the kinds of
events). A sender has one message under way. It goes on with the next number whatever the outcome,
until its kind has so many acknowledged messages as it is to have.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from saturnmq import (
    ConsumeResult,
    Message,
    SaturnError,
    TransactionState,
    aio,
    deliver_after,
    deliver_at,
)
from saturnmq.drills.failover.clients import (
    Notes,
    create_topic,
    end_tasks,
    join,
    topic_of,
    value_of,
)
from saturnmq.drills.failover.history import History
from saturnmq.drills.failover.waits_checker import DELAYS_S, MOST_RETRIES, number_of
from saturnmq.drills.semantics import kinds
from saturnmq.drills.sim.history import make_body
from saturnmq.protocol.topics import dlq_topic
from saturnmq.runtime.errors import TransactionEnded, TransactionFailed

QUEUES = 4  # of each topic, on each broker
MEMBERS = 2  # of each group
SENDERS = {
    kinds.RETRY: 8, kinds.LEVELS: 8, kinds.TIMED: 8, kinds.DEALS: 12, kinds.POP: 8, kinds.FIFO: 24,
}  # fmt: skip
DEALERS = 2
PADDING = 50
PATIENCE_S = 8.0  # of a sender with an order to keep
HALF_S = 2.0  # of a half message, and of telling its end
RECEIVE, WAIT_S = 32, 1.0
PAUSE_S = 0.1
STATES = {
    kinds.COMMIT: TransactionState.COMMIT,
    kinds.ROLLBACK: TransactionState.ROLLBACK,
    kinds.ASK: TransactionState.UNKNOWN,
}


class SemanticsLoad:
    """Started and ended by the drill; `history` is what it is for."""

    def __init__(
        self, nameservers: Sequence[str], history: History, seed: int, messages: int, rate: int
    ) -> None:
        """So many messages are to be acknowledged in all; not more than `rate` a second are
        sent."""
        self.history = history
        self.admin: Any = aio.Admin(nameservers=list(nameservers))
        self.acked: Counter[str] = Counter()  # by kind
        self._nameservers = list(nameservers)
        self._chance = random.Random(f"{seed}/semantics")
        self._wanted = {kind: messages * share // 100 for kind, share in kinds.SHARES.items()}
        self._rates = {kind: rate * share / 100 for kind, share in kinds.SHARES.items()}
        self._numbers: Counter[str] = Counter()
        self._clients: list[Any] = []
        self._dealers: list[Any] = []
        self._senders: list[asyncio.Task[None]] = []
        self._receivers: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._notes = Notes(history)
        self._halves: dict[str, bool] = {}  # value -> whether it was stored; absent: on its way

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.admin.start()
        for kind in kinds.SHARES:
            await create_topic(self.admin, kind, QUEUES)
        await self.admin.create_group(kinds.RETRY, max_retries=MOST_RETRIES)
        for _ in range(MEMBERS):
            await self._member(kinds.RETRY, self._try)
            for kind in (kinds.LEVELS, kinds.TIMED, kinds.DEALS):
                await self._member(kind, self._take)
            await self._member(kinds.FIFO, self._take, ordered=True)
            await self._receiver()
        await self._member("undertakers", self._bury, dlq_topic(kinds.RETRY))
        usual = await self._started(
            aio.Producer("semantics", self._nameservers, delivery_timeout=PATIENCE_S)
        )
        once = await self._started(aio.Producer("semantics-once", self._nameservers, retries=0))
        for _ in range(DEALERS):
            dealer = aio.TransactionProducer(
                "dealers", self._nameservers, check=self._check, send_timeout=HALF_S
            )
            self._dealers.append(await self._started(dealer))
        for kind, count in SENDERS.items():
            producer = once if kind == kinds.TIMED else usual
            for index in range(count):
                self._senders.append(asyncio.create_task(self._send_all(kind, index, producer)))

    async def _started(self, client: Any) -> Any:
        await client.start()
        self._clients.append(client)
        return client

    async def sent(self) -> None:
        """Return when every kind has its messages."""
        await asyncio.gather(*self._senders)

    @property
    def is_sending(self) -> bool:
        return not all(sender.done() for sender in self._senders)

    def outstanding(self) -> int:
        """Acknowledged messages of which something must come yet."""
        return len(self._notes.missing)

    async def open_transactions(self, addresses: Sequence[str]) -> dict[str, tuple[int, int]]:
        """By master: its open transactions and those that it has given up; -1 if it does not
        say."""
        found: dict[str, tuple[int, int]] = {}
        for address in addresses:
            try:
                async with asyncio.timeout(HALF_S):
                    status = await self.admin.broker_status(address)
                told = int(status["transactionsPending"]), int(status["transactionsExpired"])
            except (SaturnError, TimeoutError):
                told = -1, 0
            found[address] = told
        return found

    async def close(self) -> list[str]:
        """End everything. Returns what had ended a sender or a receiver before (`end_tasks`)."""
        self._stop.set()
        broken = await end_tasks((*self._senders, *self._receivers))
        for client in reversed(self._clients):
            with contextlib.suppress(SaturnError):
                await client.close()
        await self.admin.close()
        return broken

    # -- sending -----------------------------------------------------------------------------------

    async def _send_all(self, kind: str, index: int, producer: Any) -> None:
        chance = random.Random(self._chance.getrandbits(32))
        pause, lane = SENDERS[kind] / self._rates[kind], kind
        if kind == kinds.FIFO:
            lane = f"{kind}.{index}"
        send: Callable[[Any, str], Awaitable[None]] = {
            kinds.DEALS: self._deal, kinds.TIMED: self._send_timed,
        }.get(kind, self._send_usual)  # fmt: skip
        due = self.history.now() + pause * chance.random()
        while self.acked[kind] < self._wanted[kind] and not self._stop.is_set():
            await asyncio.sleep(due - self.history.now())
            # What a fault held up is made up for slowly: a burst would only be its echo.
            due = max(due, self.history.now() - pause) + pause * chance.uniform(0.5, 1.5)
            value = f"{lane}-{self._numbers[lane]}"
            self._numbers[lane] += 1
            await send(producer, value)

    def _message(self, kind: str, value: str) -> Message:
        level = 0
        if kind == kinds.LEVELS:
            level = 1 + number_of(value) % len(DELAYS_S)
        return Message(kind, make_body(value, PADDING), keys=value, delay_level=level)

    async def _send_usual(self, producer: Any, value: str) -> None:
        kind, where = topic_of(value), {}
        if kind == kinds.FIFO:
            where = {"sharding_key": kinds.lane_of(value)}
        await self._send(producer, value, self._message(kind, value), where)

    async def _send_timed(self, producer: Any, value: str) -> None:
        message, seconds = self._message(kinds.TIMED, value), kinds.time_s(value)
        if kinds.by_moment(value):
            deliver_at(message, time.time() + seconds)
        else:
            deliver_after(message, seconds)
        result = await self._send(producer, value, message, {})
        if result is None or not kinds.is_recalled(value):
            return
        self._notes.missing.discard(value)
        with contextlib.suppress(SaturnError):  # it comes, or it does not
            await producer.recall(result)
            self.history.add("recalled", kinds.TIMED, value)

    async def _send(
        self, producer: Any, value: str, message: Message, where: dict[str, Any]
    ) -> Any | None:
        """The answer, if it acknowledges the message."""
        self._notes.sending(value)
        try:
            result = await producer.send(message, **where)
        except SaturnError as error:
            self._notes.failed(value, error)
            return None
        return result if self._answered(value, result) else None

    def _answered(self, value: str, result: Any) -> bool:
        kind = topic_of(value)
        comes = kind != kinds.DEALS or kinds.answer(value) == kinds.COMMIT
        is_acked = self._notes.answered(value, result, comes=comes)
        self.acked[kind] += is_acked
        return is_acked

    # -- transactions ------------------------------------------------------------------------------

    async def _deal(self, _: Any, value: str) -> None:
        dealer = self._chance.choice(self._dealers)
        self._notes.sending(value)
        try:
            transaction = await dealer.transaction(self._message(kinds.DEALS, value)).begin()
        except SaturnError as error:
            self._halves[value] = False
            self._notes.failed(value, error)
            return
        self._halves[value] = True
        acked = self._answered(value, transaction.result)
        state = kinds.fate(value)
        if state != kinds.ASK:
            self.history.add("end", kinds.DEALS, value, note=state)
        try:
            await transaction.end(STATES[state])
        except (TransactionFailed, TransactionEnded) as error:
            if acked:
                self.history.add("no half", kinds.DEALS, value, note=str(error))
        except SaturnError:
            pass  # its broker asks

    async def _check(self, message: Any) -> TransactionState:
        """A broker asks. A half whose answer was lost had no local transaction."""
        value = value_of(message)
        stored = self._halves.get(value)
        if stored is None:
            return TransactionState.UNKNOWN
        state = kinds.answer(value) if stored else kinds.ROLLBACK
        self.history.add("end", kinds.DEALS, value, note=state)
        return STATES[state]

    # -- consuming ---------------------------------------------------------------------------------

    async def _member(
        self, group: str, listener: Callable[[Any], Any], topic: str = "", **options: Any
    ) -> None:
        options["consume_from"] = "first"
        member = await join(group, topic or group, self._nameservers, listener, **options)
        self._clients.append(member)

    def _take(self, message: Any) -> None:
        note = str(message.reconsume_times)
        if message.topic == kinds.TIMED:
            moment = message.properties.get("TIMER_DELIVER_MS")
            note = f"{time.time() * 1000 - int(moment):.1f}" if moment else ""
        self._notes.settle(self._notes.got("deliver", message, note))

    def _bury(self, message: Any) -> None:
        self._notes.settle(self._notes.got("dead", message, str(message.reconsume_times)))

    def _try(self, message: Any) -> ConsumeResult:
        value = value_of(message)
        if message.reconsume_times < kinds.refusals(value):
            self._notes.got("failed", message, str(message.reconsume_times))
            return ConsumeResult.RECONSUME_LATER
        self._take(message)
        return ConsumeResult.SUCCESS

    # -- pop ---------------------------------------------------------------------------------------

    async def _receiver(self) -> None:
        consumer = aio.SimpleConsumer(kinds.POP, self._nameservers, from_beginning=True)
        consumer.subscribe(kinds.POP)
        await self._started(consumer)
        self._receivers.append(asyncio.create_task(self._receive(consumer)))

    async def _receive(self, consumer: Any) -> None:
        while True:
            asked = f"{self.history.now():.4f}"
            try:
                messages = await consumer.receive(
                    RECEIVE, invisible_s=kinds.INVISIBLE_S, wait_s=WAIT_S
                )
            except SaturnError:
                await asyncio.sleep(PAUSE_S)
                continue
            done = []
            for message in messages:
                value = self._notes.got("deliver", message, asked)
                if message.reconsume_times or not kinds.is_left_out(value):
                    self._notes.got("acks", message)
                    done.append(message)
            await self._acknowledge(consumer, done)

    async def _acknowledge(self, consumer: Any, messages: list[Any]) -> None:
        """All in one request; if that is refused or unanswered, each in its own. A message whose
        own request fails may come again, or was acknowledged by the first: nothing waits for it."""
        if not messages:
            return
        try:
            await consumer.ack(messages)
        except SaturnError:
            if len(messages) > 1:
                for message in messages:
                    await self._acknowledge(consumer, [message])
            else:
                self._notes.settle(value_of(messages[0]))
            return
        for message in messages:
            self._notes.settle(self._notes.got("acked", message))

"""An operator at work, and applications that need one, beside the load of a drill.

Each chore has a topic of its own, with a small load and one group; values are `topic-number`.

| topic | its chore |
|---|---|
| `remade` | deleted and made again; its sender waits meanwhile; in the end it is read whole |
| `reset` | its group is set to the end, and to the beginning |
| `grown` | made after its group, which has the default start; grows while members come and go |
| `delayed` | messages with delays of 1 to 10 s |
| `failing` | its listener refuses some messages once, others always: these end as dead letters |

The loaded topic gets fewer queues, by the procedure: fewer to write to, drained, fewer to read
from. Then it gets some again. A step that fails because of a fault is tried again, as an operator
would.
The history has kinds of its own (`chores_checker.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from saturnmq import ConsumeResult, Message, MessageQueue, SaturnError, aio
from saturnmq.drills.failover.chores_checker import (
    DELAYED,
    FAILING,
    GROWN,
    REMADE,
    RESET,
    fate,
)
from saturnmq.drills.failover.clients import Notes, end_tasks, join, value_of
from saturnmq.drills.failover.drill import together
from saturnmq.drills.failover.history import History
from saturnmq.drills.failover.waits_checker import (
    DELAYS_S,
    HELD_S,
    MOST_RETRIES,
    RETRY_S,
    number_of,
)
from saturnmq.drills.failover.workload import GROUPS, QUEUES, TOPIC
from saturnmq.drills.sim.history import make_body
from saturnmq.protocol.topics import dlq_topic

RATE = 20  # sends a second to each topic
PADDING = 50
PATIENCE_S = 60.0  # of the operator, with one step
AGAIN_S = 0.5  # between two attempts
LIVES = 3  # of the topic that is remade
SIZES = (2, 4, 8)  # queues of the topic that grows, on each broker, one after the other
MOST_MEMBERS = 3
DRAINED = QUEUES // 2  # queues of the loaded topic
ENDS = (QUEUES - 1, QUEUES + 2)  # how many it has afterwards: fewer or more than at first
READ_S = 2.0  # a read that finds nothing for so long has reached the end
Step = Callable[[], Awaitable[Any]]


class ChoreFailed(SaturnError):
    """A step of the operator did not succeed in all his patience"""


class Chores:
    """Started, run beside the faults, and finished when these have ended."""

    def __init__(self, nameservers: Sequence[str], admin: Any, history: History, seed: int) -> None:
        self.history = history
        self._nameservers = list(nameservers)
        self._admin = admin
        self._chance = random.Random(f"{seed}/chores")
        self._producer: Any = aio.Producer("drill-chores", self._nameservers)
        self._consumers: list[Any] = []
        self._senders: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._notes = Notes(history)
        self._topic_is_there = asyncio.Event()  # the one that is remade

    # -- life --------------------------------------------------------------------------------------

    async def start(self) -> None:
        for topic in (REMADE, RESET, DELAYED, FAILING):
            await self._admin.create_topic(topic, queues=2)
        await self._admin.create_group(FAILING, max_retries=MOST_RETRIES)
        for topic in (REMADE, RESET, DELAYED, GROWN):
            await self._member(topic, self._take)
        await self._member(FAILING, self._try)
        await self._member("undertakers", self._bury, dlq_topic(FAILING), consume_from="first")
        await self._admin.create_topic(GROWN, queues=1)
        await self._producer.start()
        self._topic_is_there.set()
        for topic in (REMADE, RESET, DELAYED, FAILING, GROWN):
            self._senders.append(asyncio.create_task(self._send_all(topic)))

    async def work(self) -> None:
        """All chores at once; returns when each is done."""
        await together(self._remake(), self._reset(), self._grow(), self._resize())

    async def finish(self) -> None:
        """After the faults: no new messages; returns when nothing is missing, or it is too late."""
        calm = self.history.add("calm").at
        self._stop.set()
        await asyncio.gather(*self._senders)
        latest = calm + (MOST_RETRIES + 1) * (RETRY_S + HELD_S)
        while self._notes.missing and self.history.now() < latest:
            await asyncio.sleep(0.05)
        await self._read_whole(REMADE)

    async def close(self) -> list[str]:
        """End everything. Returns what had ended a sender before (`end_tasks`)."""
        self._stop.set()
        broken = await end_tasks(self._senders)
        for client in (*self._consumers, self._producer):
            with contextlib.suppress(SaturnError):
                await client.close()
        return broken

    # -- the operator ------------------------------------------------------------------------------

    async def _remake(self) -> None:
        for _ in range(1, LIVES):
            await self._pause(5.0)
            self._topic_is_there.clear()
            await asyncio.sleep(0.1)  # the send under way may be answered, or fail
            self.history.add("delete", REMADE)
            await self._until_done(lambda: self._admin.delete_topic(REMADE))
            await self._until_done(lambda: self._admin.create_topic(REMADE, queues=2))
            self.history.add("made", REMADE)
            self._topic_is_there.set()

    async def _reset(self) -> None:
        for where, timestamp in (("end", -1), ("beginning", 0)):
            await self._pause(6.0)
            self.history.add("reset", RESET, note=where)
            await self._until_done(partial(self._admin.reset_offsets, RESET, RESET, timestamp))
            self.history.add("was reset", RESET, note=where)

    async def _grow(self) -> None:
        joined: list[Any] = []
        for size in SIZES:
            await self._pause(2.0)
            if len(joined) < MOST_MEMBERS - 1:
                joined.append(await self._member(GROWN, self._take))
            elif joined:
                await joined.pop().close()
            await self._pause(1.5)
            await self._until_done(partial(self._admin.create_topic, GROWN, queues=size))

    async def _resize(self) -> None:
        alter = self._admin.alter_topic
        await self._pause(3.0)
        await self._until_done(lambda: alter(TOPIC, write_queues=DRAINED))
        await self._until_done(self._check_drained)
        await self._until_done(lambda: alter(TOPIC, read_queues=DRAINED))
        await self._pause(3.0)
        size = self._chance.choice(ENDS)
        await self._until_done(lambda: alter(TOPIC, write_queues=size, read_queues=size))

    async def _check_drained(self) -> None:
        # The readers of the load commit nothing: they hold up nobody.
        undrained = await self._admin.undrained(TOPIC, DRAINED)
        left = [row for row in undrained if row.group in GROUPS]
        if left:
            raise ChoreFailed(f"{TOPIC} is not drained: {left[0]}")

    async def _until_done(self, step: Step) -> None:
        end = self.history.now() + PATIENCE_S
        while True:
            try:
                await step()
                return
            except SaturnError as error:
                if self.history.now() > end:
                    raise ChoreFailed(f"tried for {PATIENCE_S:g} s: {error}") from error
            await asyncio.sleep(AGAIN_S)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._chance.uniform(0.75, 1.25))

    # -- sending -----------------------------------------------------------------------------------

    async def _send_all(self, topic: str) -> None:
        chance = random.Random(self._chance.getrandbits(32))
        number = 0
        while not self._stop.is_set():
            await asyncio.sleep(chance.uniform(0.5, 1.5) / RATE)
            if topic == REMADE and not self._topic_is_there.is_set():
                continue
            await self._send(topic, f"{topic}-{number}")
            number += 1

    async def _send(self, topic: str, value: str) -> None:
        level = 0
        if topic == DELAYED:
            level = 1 + number_of(value) % len(DELAYS_S)
        message = Message(topic, make_body(value, PADDING), keys=value, delay_level=level)
        self._notes.sending(value)
        try:
            result = await self._producer.send(message)
        except SaturnError as error:
            self._notes.failed(value, error)
            return
        self._notes.answered(value, result)

    # -- reading -----------------------------------------------------------------------------------

    async def _member(
        self, group: str, listener: Callable[[Any], Any], topic: str = "", **options: Any
    ) -> Any:
        consumer = await join(group, topic or group, self._nameservers, listener, **options)
        self._consumers.append(consumer)
        return consumer

    def _take(self, message: Any) -> None:
        self._notes.settle(self._note("deliver", message))

    def _bury(self, message: Any) -> None:
        self._notes.settle(self._note("dead", message))

    def _try(self, message: Any) -> ConsumeResult:
        value = value_of(message)
        if message.reconsume_times < fate(value):
            self._note("failed", message)
            return ConsumeResult.RECONSUME_LATER
        self._take(message)
        return ConsumeResult.SUCCESS

    def _note(self, kind: str, message: Any) -> str:
        return self._notes.got(kind, message, str(message.reconsume_times))

    async def _read_whole(self, topic: str) -> None:
        """Everything that can be had of the topic, from offset 0 of each queue."""
        rows = await self._admin.describe_topic(topic)
        queues: list[MessageQueue] = [row.queue for row in rows]
        reader = aio.PullConsumer(
            "drill-auditors", self._nameservers, consume_from="first", auto_commit=False
        )
        reader.assign(queues)
        async with reader:
            for queue in queues:
                reader.seek(queue, 0)
            while messages := await reader.poll(READ_S):
                for message in messages:
                    self._note("held", message)

"""Timed messages (I14): delays of any length, moments of wall time, and recalls.

As delayed messages (`delaying.py`), and more strictly: no log has a message twice that was sent
once, and what was recalled never comes. A moment is judged by the wall clock of the broker that
delivers, which wrote down when it did.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from functools import partial

from saturnmq.client.producer.timed import deliver_after, deliver_at
from saturnmq.drills.sim.history import Delivery
from saturnmq.drills.sim.scenes.delaying import Delaying
from saturnmq.drills.sim.scenes.scene import SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol import properties as names
from saturnmq.protocol.message import Message, ReceivedMessage
from saturnmq.protocol.topics import TIMER_TOPIC
from saturnmq.runtime.errors import IllegalOperation, SaturnError

DELAYS_S = (0.3, 1.0, 1.0, 2.5, 5.0, 9.0, 20.0, 7200.0)
LONG_S = 7200.0
ON_ITS_WAY_S = 6  # to a consumer, at most
APART_S = 4.5  # the wall clocks of two machines, at most
TRIES = 20


class Timing(Delaying):
    topic, group = "timed", "punctual"
    waits_in = TIMER_TOPIC
    lane = "time"  # its retries lie where delayed messages wait, which have other names

    async def start(self) -> None:
        self._delays: dict[str, float] = {}
        self._moments: set[str] = set()
        self._untimely: list[str] = []
        self._recalled: dict[str, float] = {}  # when the answer came
        self._unclear: set[str] = set()  # recalls without an answer
        await super().start()

    async def _send(self, lane: str, count: int) -> None:
        for counter in range(count):
            key, seconds = f"{lane}/{counter}", self.rng.choice(DELAYS_S)
            timed = partial(deliver_after, seconds=seconds)
            if self.rng.random() < 0.4 and "clocks" not in self.plan.scenes and seconds != LONG_S:
                self._moments.add(key)
                timed = partial(self._at, seconds)
            self._delays[key] = seconds
            value = await self.send(lane, counter, timed=timed)
            if self.rng.random() < 0.25:
                self.spawn(self._recall(value, self.rng.uniform(0, seconds)))
            await self.pause(count)

    def _at(self, seconds: float, message: Message) -> Message:
        return deliver_at(message, self.sender.runtime.now_ms() / 1000 + seconds)

    async def _recall(self, value: str, pause_s: float) -> None:
        handle = self.sender.handles[value]
        await asyncio.sleep(min(pause_s, 10.0))
        for _ in range(TRIES):
            try:
                await self.sender.runtime.run(self.sender.producer.recall(handle))
            except IllegalOperation as error:
                self.cluster.trace.note("recall.refused", f"{value} {error}")
                return
            except SaturnError as error:
                self.cluster.trace.note("recall.failed", f"{value} {error!r}")
                if error.outcome != "rejected":
                    self._unclear.add(value)
                await asyncio.sleep(0.5)
                continue
            self._recalled[value] = self.now
            self.fault("recalled", value)
            return

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        value, properties = self.note(message), message.properties
        # One whose moment was over when it came was never taken out of the timer.
        if names.TIMER_DELIVER_MS in properties and names.TIMER_DEQUEUE_MS in properties:
            moment, at = (
                int(properties[name]) for name in (names.TIMER_DELIVER_MS, names.TIMER_DEQUEUE_MS)
            )
            if at < moment:
                self._untimely.append(f"{value} by {moment - at} ms")
        return None

    def _key(self, value: str) -> str:
        return value.rpartition(".")[0]

    def delay_s(self, value: str) -> float:
        return self._delays[self._key(value)]

    def slack_s(self, value: str) -> float:
        if self._key(value) not in self._moments:
            return super().slack_s(value)
        return math.inf if self._stepped() else APART_S

    def held_s(self, value: str) -> float:
        is_moment = self._key(value) in self._moments
        return math.inf if is_moment and self._stepped() else super().held_s(value)

    def always_waits(self, value: str) -> bool:
        return self._key(value) not in self._moments  # one may be over where a clock is ahead

    def _stepped(self) -> bool:
        """Whether the wall clock of a broker was ever stepped: then nobody knows of moments."""
        return any(node.past.steps for node in self.cluster.brokers)

    def comes(self, value: str) -> bool:
        if self.delay_s(value) == LONG_S or (self._key(value) in self._moments and self._stepped()):
            return False
        return value not in self._recalled and value not in self._unclear

    def verdict(self) -> list[str]:
        found = told("I14 before its moment", self._untimely)
        found += told("I14 recalled, and delivered", self._came_all_the_same())
        found += told("I14 in the log more often than it was sent", self._repeated())
        return found + super().verdict()

    def _came_all_the_same(self) -> list[str]:
        """Recalled messages that were delivered. One that its producer had to send twice waits
        twice, and a recall ends one of these waits. A copy may have been on its way to the consumer
        for some seconds when its broker lost it: then the message waits again."""
        seen, sent = self.history.first_seen[self.group], Counter(self.waiting())

        def may_go(delivery: Delivery, at: float) -> bool:
            moments = (at, *(delivery.at - before for before in range(ON_ITS_WAY_S)))
            allowance, group = self.cluster.allowance, delivery.place.group
            return any(allowance.may_go(group, moment, None) for moment in moments)

        return [
            f"{value}, recalled at {at:.3f}, at {seen[value].at:.3f}"
            for value, at in self._recalled.items()
            if value in seen and sent[value] == 1 and not may_go(seen[value], at)
        ]

    def _repeated(self) -> list[str]:
        """Messages of which one log has more copies than were sent. A moment may be over at the
        broker whose clock is ahead; then the message never waited."""
        waited = Counter(self.waiting())
        copies = Counter(self.stored().values())
        return [
            f"{value}: {count} copies, sent {waited[value]} times"
            for value, count in copies.items()
            if value in self.history.begun and self.always_waits(value) and count > waited[value]
        ]

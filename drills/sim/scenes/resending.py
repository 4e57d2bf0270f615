"""An operator lets a group have its dead letters again: each comes as it was told, as a first
delivery of the topic that it was sent to. In the encore it comes exactly so often.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import ClassVar

from saturnmq.drills.sim.history import read_body
from saturnmq.drills.sim.scenes.retrying import NEVER, Retrying
from saturnmq.drills.sim.scenes.scene import SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol import properties as names
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import SaturnError

MANY = 1000  # more letters than a run has
EVERY_S = 6.0


@dataclass
class Resend:
    """One order for the letters of one message, and how many copies it was told."""

    value: str
    asked: float
    is_last: bool  # of a cluster without faults
    copies: int = 0  # as it was told
    answered: float = 0.0  # 0: not at all, and it may have been done or not


class Resending(Retrying):
    topic, group = "given-up", "reviving"
    retries: ClassVar[tuple[int, ...]] = (0, 0, 1)

    async def start(self) -> None:
        self._resends: list[Resend] = []
        self._again: dict[str, list[float]] = {}  # when copies of letters came
        self._elsewhere: list[str] = []
        await super().start()
        self.spawn(self._operate())

    def fails(self, value: str) -> int:
        luck = random.Random(f"{self.cluster.seed}/{self.topic}/{value}")
        return luck.choice((0, NEVER, NEVER))

    async def _operate(self) -> None:
        while not self.calm():
            await asyncio.sleep(self.rng.uniform(0.0, EVERY_S))
            if not self.calm():
                await self._resend()

    async def encore(self) -> None:
        await self.shared()
        await self._resend(is_last=True)
        await super().encore()

    async def _resend(self, *, is_last: bool = False) -> None:
        """Order some letters again, or all at last."""
        operator, letters = self.cluster.operator, list[ReceivedMessage]()

        async def find() -> None:
            letters[:] = await operator.admin.dead_letters(self.group, limit=MANY)

        await self.order(find)
        values = {each.message_id: read_body(bytes(each.body)) or "?" for each in letters}
        for message_id, value in values.items():
            if not is_last and self.rng.random() < 0.5:
                continue
            resend = Resend(value, self.now, is_last)
            self._resends.append(resend)
            self.fault("dead letter resent", value)
            order = operator.admin.resend_dead_letters(self.group, [message_id])
            try:
                resend.copies = await operator.runtime.run(order)
                resend.answered = self.now
            except SaturnError as error:
                self.cluster.trace.note("resend.failed", f"{value} {error!r}")

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        if message.reconsume_times or names.RETRY_TOPIC not in message.properties:
            return await super().listen(member, message)
        value = read_body(bytes(message.body)) or "?"
        self.cluster.trace.note("deliver", f"{self.group} again {value}")
        self._again.setdefault(value, []).append(self.now)
        if message.topic != self.topic:
            self._elsewhere.append(f"{value} of {message.topic}")
        return None

    def _came(self, resend: Resend) -> int:
        return sum(at >= resend.asked for at in self._again.get(resend.value, ()))

    def _is_open(self, last: Resend) -> bool:
        """Whether copies of earlier orders may still come: one that was not answered may have been
        stored, and is seen when enough nodes have it."""
        before = [each for each in self._resends if each.value == last.value]
        before = [each for each in before if each.asked < last.asked]
        came = sum(at < last.asked for at in self._again.get(last.value, ()))
        promised = sum(each.copies for each in before)
        return came < promised or not all(each.answered for each in before)

    def _missing(self) -> list[str]:
        return [
            f"{each.value} of {each.asked:.3f}: {self._came(each)} of {each.copies}"
            for each in self._resends
            if self._came(each) < each.copies and not self.was_lost_after(each.answered)
        ]

    def waits_for(self) -> str:
        if waits := super().waits_for():
            return waits
        missing = self._missing()
        return f"{len(missing)} resent letters, {missing[0]}" if missing else ""

    def verdict(self) -> list[str]:
        more = [
            f"{each.value} of {each.asked:.3f}: {self._came(each)} of {each.copies}"
            for each in self._resends
            if each.is_last and each.answered and not self._is_open(each)
            if self._came(each) > each.copies
        ]
        found = told("I1 resent, and never delivered", self._missing())
        found += told("I1 resent, and delivered more often without a fault", more)
        found += told("I2 resent, and delivered as of another topic", self._elsewhere)
        return found + super().verdict()

"""A topic loses queues by RocketMQ's procedure (write fewer, drain, read fewer) and gets them
again, under senders with sharding keys and without, and under its group.

No send fails because its queue is gone. When the operator learns that a queue is drained, the group
has got all of its messages. The messages of a key lie in the order of their sends, also those that
were under way. Removed queues stay away until they are added again, whatever restarts. Then they go
on where they ended, and the group reads the messages that came too late to be drained.
"""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from saturnmq.client.admin.topic_settings import Undrained
from saturnmq.drills.sim.nodes import SimBroker
from saturnmq.drills.sim.scenes.scene import Scene, SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import InvalidParameter

QUEUES = 4
KEYS = 2
BURSTS = 3
BURST = 3  # messages of one key that are under way at once
SLOW = 0.2  # the chance that a listener takes up to `SLOW_S`
SLOW_S = 3.0
UNDRAINED = 0.3  # the chance that the operator does not wait
LOOK_S = 0.2


class Counts(NamedTuple):
    """The numbers of the topic's queues, on each broker."""

    write: int
    read: int


ALL = Counts(QUEUES, QUEUES)


class DrainedQueues(NamedTuple):
    """A time at which the operator learned that the queues from `fewer` on are drained; `missing`
    are the messages that the group had not got."""

    at: float
    fewer: int
    missing: list[str]


class Back(NamedTuple):
    """A master had more queues than it was given at `since`."""

    node: SimBroker
    counts: Counts
    given: Counts
    since: float
    at: float


class Shrinking(Scene):
    topic, group = "shrinking", "drainers"
    patience_s = 60.0

    async def start(self) -> None:
        self.drained: list[DrainedQueues] = []
        self.back: list[Back] = []
        self._rounds = 0
        self._calm_at = math.inf
        await self.sender.start()
        await self.create(QUEUES)
        await self.join()
        self.spawn(self._change())
        self.spawn(self.come_and_go())

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True}

    # the operator

    async def _change(self) -> None:
        while not self.calm():
            fewer = self.rng.randint(1, QUEUES - 1)
            await self._take_away(fewer)
            await self._watch(Counts(fewer, fewer), self.rng.uniform(1.0, self.plan.safety_s / 3))
            await self._alter(ALL)
            await asyncio.sleep(self.rng.uniform(0.0, self.plan.safety_s / 4))

    async def _take_away(self, fewer: int) -> None:
        if self.rng.random() >= UNDRAINED:
            await self._alter(Counts(write=fewer, read=QUEUES))
            while not await self._is_drained(fewer):
                await asyncio.sleep(0.5)
        await self._alter(Counts(write=fewer, read=fewer))

    async def _alter(self, counts: Counts) -> None:
        """Change the queues on every node, under sends; no promise covers the change before
        that."""
        self.fault("queues changed", f"{counts}")
        self.spawn(self._send_all())
        alter = self.cluster.operator.admin.alter_topic
        await self.order_everywhere(
            lambda: alter(self.topic, write_queues=counts.write, read_queues=counts.read),
            lambda node: self._counts(node) == counts,
        )

    def _counts(self, node: SimBroker) -> Counts | None:
        topic = node.serving.context.topics.get(self.topic) if node.serving else None
        return None if topic is None else Counts(topic.write_queues, topic.read_queues)

    async def _is_drained(self, fewer: int) -> bool:
        asked = self.now
        left: list[Undrained] = []

        async def ask() -> None:
            left[:] = await self.cluster.operator.admin.undrained(self.topic, fewer)

        await self.order(ask)
        if not left:
            seen = self.history.first_seen[self.group]
            missing = [
                value
                for value, ack in self.history.acked.items()
                if ack.place.queue >= fewer and ack.at < asked and value not in seen
            ]
            self.drained.append(DrainedQueues(asked, fewer, missing))
        return not left

    async def _watch(self, given: Counts, seconds: float) -> None:
        since = self.now
        while self.now < since + seconds:
            for node in self.cluster.brokers:
                counts = self._counts(node)
                if node.leads and counts is not None and counts != given:
                    self.back.append(Back(node, counts, given, since, self.now))
            await asyncio.sleep(LOOK_S)

    # the senders

    async def _send_all(self) -> None:
        self._rounds += 1
        await asyncio.gather(
            self._send_loose(f"loose{self._rounds}"),
            *(self._send_bursts(f"key{key}", self._rounds) for key in range(KEYS)),
        )

    async def _send_loose(self, lane: str) -> None:
        for counter in range(BURSTS):
            await self.send(lane, counter)

    async def _send_bursts(self, key: str, number: int) -> None:
        for burst in range(number * BURSTS, (number + 1) * BURSTS):
            counters = range(burst * BURST, (burst + 1) * BURST)
            await asyncio.gather(*(self.send(key, each, sharding_key=key) for each in counters))

    async def encore(self) -> None:
        self._calm_at = self.cluster.since()
        await self._take_away(1)
        await self._send_all()
        await self._alter(ALL)

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        self.note(message)
        if self.rng.random() < SLOW:
            await member.runtime.sleep(self.rng.uniform(0.0, SLOW_S))
        return None

    # the verdict

    def verdict(self) -> list[str]:
        history, allowance = self.history, self.cluster.allowance
        gone = f"{InvalidParameter.__name__}("
        refused = [
            f"{value} at {history.begun[value]:.3f}: {why}"
            for value, why in history.rejected.items()
            if why.startswith(gone)
        ]
        failed = [
            f"{value} at {history.begun[value]:.3f}: {why}"
            for value, why in (history.rejected | history.unknown).items()
            if history.begun[value] >= self._calm_at
        ]
        left = [
            f"{value} at {history.acked[value].place}, from queue {fewer} on drained at {at:.3f}"
            for at, fewer, missing in self.drained
            for value in missing
            if not self._may_go(value)
        ]
        back = [
            f"{each.node.name} has {each.counts} at {each.at:.3f}, given {each.given} by "
            f"{each.since:.3f}"
            for each in self.back
            if not allowance.may_go(each.node.group, each.since, None)
        ]
        found = told("I12 a send failed because its queue is gone", refused)
        found += told("I12 a send failed without a fault", failed)
        found += told("I1 drained, and not delivered", left)
        found += told("I4 taken away, and there again", back)
        return found + super().verdict()

    def _may_go(self, value: str) -> bool:
        ack = self.history.acked[value]
        return self.cluster.allowance.may_go(ack.place.group, ack.at, ack.by)

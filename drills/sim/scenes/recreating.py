"""A topic that is deleted and made again, under a live group, which pops in some seeds: it begins
empty, what it had before is on no node any more, and what is sent to the new one is as safe as
anything else. The group gets all of it, also if it begins at the ends of queues: it is older.

The places of a topic are never used twice: (queue, offset) names one message through all its lives.

A send that got no answer and was repeated at another broker may arrive when the network is whole
again, in a later life: its message lies at a place that the earlier life never had. Nothing is
owed for it.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING

from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.drills.sim.history import Place, SimHistory
from saturnmq.drills.sim.nodes import SimBroker
from saturnmq.drills.sim.scenes.scene import Scene, SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 6
LIVES_MAX = 3
INVISIBLE_S = 3.0
WAIT_S = 2.0
FORGOTTEN = 0.1  # of the messages that a member pops: it has them again


class Popper(SceneConsumer):
    """A member of a group that pops."""

    consumer: SimpleConsumer  # type: ignore[assignment]  # it holds no queues

    async def start(self) -> None:
        core = self.core()
        self.consumer = SimpleConsumer(self._scene.group, core=core, **self._options)
        self.consumer.subscribe(self._scene.topic)
        await self.runtime.run(self._begin(core))
        self._task = self._scene.watched(self.runtime.run(self._work()))

    async def _work(self) -> None:
        scene = self._scene
        while True:
            try:
                for message in await self.consumer.receive(4, INVISIBLE_S, WAIT_S):
                    await self._listen(message)
                    if scene.calm() or scene.rng.random() > FORGOTTEN:
                        await self.consumer.ack(message)
            except SaturnError as error:
                scene.cluster.trace.note("pop.failed", f"{self.name} {error!r}")
                await self.runtime.sleep(0.3)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await super().close()


class Recreating(Scene):
    topic, group = "reborn", "mourners"

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        if random.Random(f"{cluster.seed}/scene/{self.topic}/kind").random() < 0.5:
            self.member_type, self.moves_retries = Popper, False

    async def start(self) -> None:
        self.lives: list[SimHistory] = []
        self.deleted_at: list[float] = []
        self.deleted: set[tuple[Place, str | None]] = set()  # what the former lives had, and where
        self._from_beginning = self.rng.random() < 0.5
        await self.sender.start()
        await self._begin()
        await self.join()
        self.spawn(self._live())
        self.spawn(self.come_and_go(most=2, every_s=8.0))

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": self._from_beginning}

    async def _begin(self) -> None:
        """A new life of the topic."""
        await self.create(self.rng.randint(1, 3))
        self.history = SimHistory()
        self.history.reader(self.group)
        self.lives.append(self.history)

    async def _live(self) -> None:
        while not self.calm() and len(self.lives) < LIVES_MAX:
            await self._send(MESSAGES)
            if self.calm():
                return
            await self._end()
            await self._begin()
        await self._send(MESSAGES)

    async def _send(self, count: int) -> None:
        life = len(self.lives)
        for counter in range(count):
            await self.send(f"life{life}", counter)
            await self.pause(LIVES_MAX * count)

    async def _end(self) -> None:
        """Delete the topic on every node; from here on its messages are owed to no consumer."""

        def gone(node: SimBroker) -> bool:
            return node.serving is not None and node.serving.context.topics.get(self.topic) is None

        self.fault("topic deleted")
        for node in self.cluster.brokers:
            self.deleted.update(self.stored_at(node))
        self.deleted.update((ack.place, value) for value, ack in self.history.acked.items())
        delete = self.cluster.operator.admin.delete_topic
        await self.order_everywhere(lambda: delete(self.topic), gone)
        self.deleted_at.append(self.now)

    async def encore(self) -> None:
        await self._end()
        await self._begin()
        self.spawn(self._send(MESSAGES))

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        current, value = self.history, self._value(message)
        for life in self.lives:
            if value in life.invoked:
                self.history = life
        self.note(message)
        self.history = current
        return None

    def owed(self) -> dict[Place, str]:
        former = self.lives[:-1]
        return {
            place: value
            for place, value in super().owed().items()
            if not any(value in life.invoked for life in former)
        }

    @staticmethod
    def _value(message: ReceivedMessage) -> str:
        return bytes(message.body).partition(b"|")[0].decode()

    def verdict(self) -> list[str]:
        back, late, reused = [], [], []
        names: dict[Place, tuple[str, float]] = {}
        allowance = self.cluster.allowance
        ends = [*self.deleted_at, math.inf]
        for number, (life, deleted) in enumerate(zip(self.lives, ends, strict=False)):
            for value, ack in life.acked.items():
                other, at = names.setdefault(ack.place, (value, ack.at))
                if other != value and not allowance.may_go(ack.place.group, at, None):
                    reused.append(f"{ack.place} was {other} and is {value}")
            if number == len(self.lives) - 1:
                break
            for node in self.cluster.brokers:
                if allowance.may_go(node.group, deleted, None):
                    continue  # a promotion may have undone the deletion
                back += [
                    f"{value} at {place} of {node.name}, deleted at {deleted:.3f}"
                    for place, value in self.stored_at(node)
                    if value in life.invoked and (place, value) in self.deleted
                ]
            late += [
                f"{delivery.value} at {delivery.at:.3f}, deleted at {deleted:.3f}"
                for delivery in life.deliveries[self.group]
                if delivery.at > max(deleted, self.deleted_at[-1])
                and (delivery.place, delivery.value) in self.deleted
            ]
        found = told("I1 deleted, and there again", back)
        found += told("I1 deleted, and delivered", late)
        found += told("I4 a place of a deleted message was used again", reused)
        return found + super().verdict()

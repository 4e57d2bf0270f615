"""Members of a group that polls: they commit by themselves or by `auto_commit`, go back, leave out
queues for a while, leave and die. The group is done with every message, and its offset passes none
with which no member is done (I6).

A delivery counts here when its member is done with the message, not when it is polled.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.drills.sim.load import COMMIT_S
from saturnmq.drills.sim.scenes.scene import Scene, SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 12
ENCORE = 6
POLL_S = 1.0
BATCH = 4
WORK_S = 0.5  # at most, for each message
BACK = 5  # messages, at most, by which a member goes back
LOOK_S = 0.3


class Sought(NamedTuple):
    """The place at which the next poll of a queue begins, while its member has it."""

    held: AssignedQueue
    offset: int


class Poller(SceneConsumer):
    """A consumer that polls, and goes on when its listener is done with each message."""

    consumer: PullConsumer

    async def start(self) -> None:
        core = self.core()
        self.consumer = PullConsumer(
            self._scene.group,
            core=core,
            rebalance_interval_s=5.0,
            commit_interval_s=COMMIT_S,
            **self._options,
        )
        self.consumer.subscribe(self._scene.topic)
        await self.runtime.run(self._begin(core))
        self._leaving = False
        self._task = self._scene.watched(self.runtime.run(self._work()))

    async def _work(self) -> None:
        while not self._leaving:
            messages = await self.consumer.poll(POLL_S, BATCH)
            if messages:
                self.check(messages)
            for message in messages:
                await self._listen(message)
            await self.between_polls()

    def check(self, messages: list[ReceivedMessage]) -> None:
        """Look at the messages of a poll."""

    async def between_polls(self) -> None:
        """Do what comes to its mind."""

    async def close(self) -> None:
        """Leave in order, when the listener is done with the last poll."""
        self._leaving = True
        await self._task
        await super().close()


class Rover(Poller):
    """One that goes back in queues, and leaves some out for a while."""

    _scene: Polling

    async def start(self) -> None:
        self._sought: dict[MessageQueue, Sought] = {}
        self._paused: dict[MessageQueue, AssignedQueue] = {}  # as long as it has them
        await super().start()

    async def between_polls(self) -> None:
        scene, consumer = self._scene, self.consumer
        luck = scene.rng.random()
        try:
            if not consumer.auto_commit and (luck < 0.5 or scene.calm()):
                await consumer.commit()
            if scene.calm():
                self._resume(consumer.paused())
            else:
                await self._roam(luck)
        except SaturnError as error:
            scene.cluster.trace.note("poll.failed", f"{self.name} {error!r}")

    async def _roam(self, luck: float) -> None:
        """Go back in a queue, or leave it out, or take it in again."""
        consumer, queues = self.consumer, self.consumer.assignment()
        if luck > 0.3 or not queues:
            return
        queue = self._scene.rng.choice(queues)
        if luck < 0.1:
            position = consumer.position(queue)
            if position:
                offset = max(0, position - self._scene.rng.randint(1, BACK))
                consumer.seek(queue, offset)
                self._seeks(queue, offset)
        elif luck < 0.13:
            self._seeks(queue, await consumer.seek_to(queue, "first"))
        elif luck < 0.2:
            consumer.pause([queue])
            self._paused[queue] = consumer._held[queue]
        else:
            self._resume([queue])

    def _resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in list(queues):
            self._paused.pop(queue, None)
            self.consumer.resume([queue])

    def _seeks(self, queue: MessageQueue, offset: int) -> None:
        self._scene.fault("went back", f"{self.name} {queue} {offset}")
        self._sought[queue] = Sought(self.consumer._held[queue], offset)

    def check(self, messages: list[ReceivedMessage]) -> None:
        """Look at the queue of a poll, and at the place in it."""
        first, scene = messages[0], self._scene
        queue = MessageQueue(first.topic, first.broker_name or "", first.queue_id)
        text = f"{self.name} {queue} at {first.queue_offset}, {scene.now:.3f}"
        held = self.consumer._held.get(queue)
        if held is self._paused.get(queue, self):
            scene.left_out.append(text)
        sought = self._sought.pop(queue, None)
        if sought is None or held is not sought.held or scene.may_move(queue.broker_name):
            return
        if first.queue_offset != sought.offset:
            scene.elsewhere.append(f"{text}, sought {sought.offset}")


class Polling(Scene):
    topic, group = "polled", "polling"

    member_type = Rover

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        self._auto_commit = random.Random(f"{cluster.seed}/scene/{self.topic}/kind").random() < 0.5
        self.left_out: list[str] = []  # polls of queues that were paused
        self.elsewhere: list[str] = []  # polls that began elsewhere than they were told to
        self._passed: list[str] = []

    async def start(self) -> None:
        await self.sender.start()
        await self.create(self.plan.queues)
        for _ in range(2):
            await self.join()
        for lane in range(2):
            self.spawn(self.send_lane(f"poll{lane}", MESSAGES))
        self.spawn(self.come_and_go(every_s=5.0))
        self._looking = self.watched(self._look())

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True, "auto_commit": self._auto_commit}

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        await member.runtime.sleep(self.rng.uniform(0.0, WORK_S * (not self.calm())))
        self.note(message)
        return None

    async def encore(self) -> None:
        self.spawn(self.send_lane("late", ENCORE))

    async def _look(self) -> None:
        """Compare the group's offsets with the messages that it is done with."""
        while True:
            await asyncio.sleep(LOOK_S)
            done = self.history.first_seen[self.group]
            for group in self.cluster.groups:
                node = self.cluster.master_of(group)
                if node.serving is None or not node.leads:
                    continue
                offsets = node.serving.context.offsets
                for place, value in self.stored_at(node):
                    offset = offsets.query(self.group, self.topic, place.queue) or 0
                    if place.offset < offset and value not in done and not self.may_move(group):
                        text = f"{value} at {place}, {node.name} has {offset} at {self.now:.3f}"
                        self._passed.append(text)

    def may_move(self, group: str) -> bool:
        """Whether the log may have lost what was read of it until now."""
        return self.cluster.allowance.may_go(group, self.now, None)

    def verdict(self) -> list[str]:
        found = told(
            "I6 a committed offset passed a message that nobody is done with", self._passed
        )
        found += told("I6 polled elsewhere than at the place that was sought", self.elsewhere)
        return found + told("I6 polled, and paused", self.left_out) + super().verdict()

    async def close(self) -> None:
        self._looking.cancel()
        await super().close()

"""An operator moves the offsets of a group whose members are at work: to the beginning, to the end,
to a place in one queue, to those of another group.

Once the order is answered and every node knows it, the members follow: each message from the new
offset on comes after the order, also again, and none before it is owed any more. No commit and no
fail-over takes the order back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from saturnmq.broker.tables.offsets import GroupOffset
from saturnmq.broker.tables.progress import NOTHING
from saturnmq.drills.sim.history import Place, SimHistory
from saturnmq.drills.sim.nodes import SimBroker
from saturnmq.drills.sim.scenes.polling import Poller
from saturnmq.drills.sim.scenes.scene import Scene, SceneConsumer
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import MessageQueue

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 15
ENCORE = 4
OTHERS = "bystanders"  # a group without members
TIMES = (0, 0, -1)  # in ms, as `reset_offsets` takes them: the beginning, the end
LOOK_S = 0.3

Goals = dict[MessageQueue, int]
Way = Callable[[], Coroutine[Any, Any, Goals]]


class Move(NamedTuple):
    """An offset that an operator set; every node knows it since `known`."""

    offset: int
    asked: float
    known: float


class Resetting(Scene):
    topic, group = "moved", "followers"
    patience_s = 75.0  # a dead member of an ordered group holds its locks for a minute

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        kind = random.Random(f"{cluster.seed}/scene/{self.topic}/kind")
        self._kind = kind.choice(("concurrent", "ordered", "polling"))
        self._moves: dict[tuple[str, int], Move] = {}  # the last one of each queue
        # Queues that an order moved, or did not, before it failed at another broker.
        self._unsure: set[tuple[str, int]] = set()
        self._undone: list[str] = []

    @property
    def member_type(self) -> type[SceneConsumer]:  # type: ignore[override]  # drawn, here
        return Poller if self._kind == "polling" else SceneConsumer

    def member_options(self) -> dict[str, object]:
        options: dict[str, object] = {"from_beginning": True}
        return options | ({"ordered": True} if self._kind == "ordered" else {})

    async def start(self) -> None:
        await self.sender.start()
        await self.create(self.plan.queues)
        for _ in range(2):
            await self.join()
        for lane in range(2):
            self.spawn(self.send_lane(f"move{lane}", MESSAGES))
        self.spawn(self._operate())
        self.spawn(self.come_and_go(every_s=8.0))

    async def encore(self) -> None:
        await self._move(self._draw())
        self.spawn(self.send_lane("last", ENCORE))

    # the operator

    async def _operate(self) -> None:
        admin = self.cluster.operator.admin
        await self.order_everywhere(
            lambda: admin.create_group(OTHERS),
            lambda node: bool(node.serving and node.serving.context.groups.get(OTHERS)),
        )
        while not self.calm():
            await self._watch(self.rng.uniform(0.0, self.plan.safety_s / 4))
            if not self.calm():
                await self._move(self._draw())

    def _draw(self) -> Way:
        """One way to move offsets."""
        admin, topic, time = self.cluster.operator.admin, self.topic, self.rng.choice(TIMES)
        group, number = self.rng.choice(self.cluster.groups), self.rng.randrange(self.plan.queues)

        async def to_a_place() -> Goals:
            stored = self.stored_at(self.cluster.master_of(group))
            count = sum(place.queue == number for place, _ in stored)
            queue, offset = MessageQueue(topic, group, number), self.rng.randint(0, count)
            return await admin.reset_offsets(self.group, topic, queue=queue, offset=offset)

        async def to_the_others() -> Goals:
            # A crash may forget a group that a full disk did not take (I6).
            await admin.create_group(OTHERS)
            await admin.reset_offsets(OTHERS, topic, time)
            return await admin.clone_offsets(OTHERS, self.group, topic)

        to_a_time = partial(admin.reset_offsets, self.group, topic, time)
        return self.rng.choice((to_a_time, to_a_place, to_the_others))

    async def _move(self, way: Way) -> None:
        """Give an order until it is answered and every node of its queues knows it."""
        asked, goals, before = self.now, Goals(), Goals()

        async def order() -> None:
            nonlocal asked, goals, before
            asked, before = self.now, Goals()
            for node in self.cluster.brokers:
                for queue, generation in self._generations(node).items():
                    before[queue] = max(generation, before.get(queue, 0))
            unsure = set(self._unsure)
            self._unsure.update(product(self.cluster.groups, range(self.plan.queues)))
            goals = await way()
            self._unsure = unsure  # it moved those of its goals, and no other

        def knows(node: SimBroker) -> bool:
            if node.serving is None:
                return False
            now = self._generations(node)
            return all(now[queue] > before.get(queue, 0) for queue in now.keys() & goals.keys())

        await self.order_everywhere(order, knows)
        self.fault("offsets moved", ", ".join(map(str, goals.values())))
        for queue, offset in goals.items():
            self._moves[queue.broker_name, queue.queue_id] = Move(offset, asked, self.now)
            self._unsure.discard((queue.broker_name, queue.queue_id))

    def _generations(self, node: SimBroker) -> dict[MessageQueue, int]:
        """How often the group's offsets were moved, as a node knows it."""
        if node.serving is None:
            return {}
        marks = node.serving.context.offsets.progress.marks
        found = {}
        for number in range(self.plan.queues):
            mark = marks.get(GroupOffset(self.topic, self.group, number), NOTHING)
            found[MessageQueue(self.topic, node.group, number)] = mark.generation
        return found

    async def _watch(self, seconds: float) -> None:
        """See to it that no offset falls behind the last order."""
        until = self.now + seconds
        while self.now < until:
            await asyncio.sleep(LOOK_S)
            for (group, queue), move in self._moves.items():
                node = self.cluster.master_of(group)
                if node.serving is None or not node.leads or (group, queue) in self._unsure:
                    continue
                offset = node.serving.context.offsets.query(self.group, self.topic, queue) or 0
                if offset < move.offset and not self._may_go(group, move):
                    text = f"{node.name} has {offset} of queue {queue} at {self.now:.3f}"
                    self._undone.append(f"{text}, moved to {move.offset} at {move.known:.3f}")

    def _may_go(self, group: str, move: Move) -> bool:
        return self.cluster.allowance.may_go(group, move.known, None)

    # the end

    def owed(self) -> dict[Place, str]:
        seen = self.history.first_seen[self.group]
        return {
            place: value
            for place, value in self.stored().items()
            if value in seen or (place.offset >= self._last(place).offset and self._is_sure(place))
        }

    def judged(self) -> SimHistory:
        passed = self.stored().keys() - self.owed().keys()
        acked = {v: ack for v, ack in self.history.acked.items() if ack.place not in passed}
        return replace(self.history, acked=acked)

    def _last(self, place: Place) -> Move:
        return self._moves.get((place.group, place.queue), Move(0, 0.0, 0.0))

    def _is_sure(self, place: Place) -> bool:
        return (place.group, place.queue) not in self._unsure

    def _not_again(self) -> list[str]:
        """The messages that have not come since their queue was moved to them, or before them."""
        newest: dict[tuple[Place, str | None], float] = {}
        for delivery in self.history.deliveries[self.group]:
            newest[delivery.place, delivery.value] = delivery.at
        return [
            f"{value} at {place}, moved to {move.offset} at {move.asked:.3f}"
            for place, value in self.stored().items()
            for move in (self._last(place),)
            if self._is_sure(place)
            and place.offset >= move.offset
            and newest.get((place, value), -1.0) < move.asked
            and not self._may_go(place.group, move)
        ]

    def waits_for(self) -> str:
        if missing := super().waits_for():
            return missing
        missing_again = self._not_again()
        return f"{len(missing_again)} messages, {missing_again[0]}" if missing_again else ""

    def verdict(self) -> list[str]:
        found = told("I6 not delivered since the offset was moved", self._not_again())
        found += told("I6 an offset behind the place that it was moved to", self._undone)
        return found + super().verdict()

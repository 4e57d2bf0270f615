"""An operator gives a group offsets and deletes the group, again and again; it has no members.

From the answer to a deletion on, the offsets are gone from the master that gave it, whichever node
comes back with those that it had before, until the operator gives the group new ones (I6).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from saturnmq.broker.tables.offsets import GroupOffset
from saturnmq.drills.sim.history import SimHistory
from saturnmq.drills.sim.nodes import SimBroker
from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.drills.sim.verdict import told
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 6
ROUNDS = 12
LOOK_S = 0.3
ABSENT = 0.7  # the chance that a deletion waits for a node that is away
AWAY_S = 10.0
AWHILE_S = 5.0  # in which nodes copy tables, after the faults


class Deleted(NamedTuple):
    """A node that answered a deletion as the master of this epoch."""

    node: SimBroker
    epoch: int
    at: float


class Forgetting(Scene):
    topic, group = "forgotten", "nobody"

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        self.history = SimHistory()  # nobody reads
        self._deleted: list[Deleted] = []
        self._back: list[str] = []

    async def start(self) -> None:
        await self.sender.start()
        await self.create(self.plan.queues)
        self.spawn(self.send_lane("forget", MESSAGES))
        self.spawn(self._operate())

    async def encore(self) -> None:
        self.spawn(self._round(AWHILE_S))

    async def _operate(self) -> None:
        for _ in range(ROUNDS):
            if self.calm():
                return
            pause_s = self.plan.safety_s / ROUNDS
            await self._round(self.rng.uniform(0.0, 3 * pause_s))

    async def _round(self, seconds: float) -> None:
        """Give the group offsets, delete it, and look for them for so many seconds."""
        if not await self._give_offsets():
            return  # the order may arrive later
        await asyncio.sleep(self.rng.uniform(0.0, 2 * self.plan.tables_s))
        if self.rng.random() < ABSENT:
            await self._somebody_away(self.rng.uniform(0.0, AWAY_S))
        await self._delete()
        await self._watch(seconds)
        self._deleted.clear()

    async def _give_offsets(self) -> bool:
        """Whether the first attempt is answered."""
        admin = self.cluster.operator.admin

        async def give() -> None:
            await admin.create_group(self.group)
            await admin.reset_offsets(self.group, self.topic, 0)

        try:
            await self.cluster.operator.runtime.run(give())
        except SaturnError as error:
            self.cluster.trace.note("order.failed", repr(error))
            return False
        return True

    async def _somebody_away(self, seconds: float) -> None:
        """Wait until a node is away, which has the offsets on its disk; for so long at most."""
        until = self.now + seconds
        while self.now < until and all(node.serving for node in self.cluster.brokers):
            await asyncio.sleep(LOOK_S)

    async def _delete(self) -> None:
        epochs: dict[SimBroker, int] = {}

        async def delete() -> None:
            epochs.update({node: _epoch(node) for node in self.cluster.brokers if node.leads})
            await self.cluster.operator.admin.delete_group(self.group)

        await self.order(delete)
        self.fault("group deleted")
        self._deleted += [
            Deleted(node, epoch, self.now)
            for node, epoch in epochs.items()
            if self._still_leads(node, epoch) and not self._has_offsets(node)
        ]

    async def _watch(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            await asyncio.sleep(LOOK_S)
            for node, epoch, at in self._deleted:
                lacks = self.cluster.allowance.lacks(node.name, at)
                if self._still_leads(node, epoch) and self._has_offsets(node) and not lacks:
                    self._back.append(f"{node.name} at {self.now:.3f}, deleted at {at:.3f}")

    @staticmethod
    def _still_leads(node: SimBroker, epoch: int) -> bool:
        return node.leads and _epoch(node) == epoch

    def _has_offsets(self, node: SimBroker) -> bool:
        assert node.serving is not None
        marks = node.serving.context.offsets.progress.marks
        queues = range(self.plan.queues)
        return any(GroupOffset(self.topic, self.group, queue) in marks for queue in queues)

    def waits_for(self) -> str:
        return "" if all(lane.done() for lane in self.lanes) else "orders"

    def verdict(self) -> list[str]:
        found = told("I6 deleted with its group, and there again", self._back)
        return found + super().verdict()


def _epoch(node: SimBroker) -> int:
    assert node.serving is not None
    return node.serving.context.role.promised_epoch

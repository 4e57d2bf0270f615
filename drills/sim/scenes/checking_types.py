"""A topic that takes messages of one type, at brokers that check types: what is of another type is
refused, and neither stored nor delivered, whatever restarts.

The topics of all other scenes have types, too, while this one is played.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message_types import DELAY, FIFO, NORMAL
from saturnmq.protocol.topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 12
ENCORE = 4
# By type, how a message of it is sent.
WAYS: dict[str, dict[str, Any]] = {
    NORMAL: {},
    FIFO: {"sharding_key": "one"},
    DELAY: {"delay_level": 1},
}
MISFIT = "misfit"


class CheckingTypes(Scene):
    topic, group = "typed", "typists"

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        self.message_type = self.rng.choice((NORMAL, FIFO))

    async def start(self) -> None:
        await self.sender.start()
        await self.create(self.plan.queues)
        await self.join()
        self.spawn(self._send("fit", MESSAGES))
        self.spawn(self._send_misfits(MISFIT, MESSAGES))
        self.spawn(self.come_and_go(most=2, every_s=8.0))

    def member_options(self) -> dict[str, object]:
        return {"from_beginning": True}

    async def _send(self, lane: str, count: int) -> None:
        for counter in range(count):
            await self.send(lane, counter, **WAYS[self.message_type])
            await self.pause(count)

    async def _send_misfits(self, lane: str, count: int) -> None:
        others = [way for name, way in WAYS.items() if name != self.message_type]
        for counter in range(count):
            value, way = f"{lane}/{counter}.0", self.rng.choice(others)
            attempt = self.sender.attempt(self.history, lane, value, self.topic, **way)
            await self.sender.runtime.run(attempt)
            await self.pause(count)

    async def encore(self) -> None:
        self.spawn(self._send("last", ENCORE))
        self.spawn(self._send_misfits(f"{MISFIT}.last", ENCORE))

    def verdict(self) -> list[str]:
        history = self.history
        waiting = self.stored(SCHEDULE_TOPIC).values()
        there = {*self.stored().values(), *waiting, *history.first_seen[self.group]}
        taken = [
            f"{value} at {history.begun[value]:.3f}"
            for value in history.invoked
            if value.startswith(MISFIT) and (value in there or value in history.acked)
        ]
        return told("I3 of another type than its topic, and taken", taken) + super().verdict()

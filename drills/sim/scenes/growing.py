"""A group with the default start subscribes to a topic that is not there yet; the topic appears and
grows, and members come and go. The group misses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio

from saturnmq.drills.sim.scenes.scene import Scene

MESSAGES = 12
ENCORE = 6
QUEUES_MAX = 8


class Growing(Scene):
    topic, group = "growing", "latecomers"

    async def start(self) -> None:
        await self.sender.start()
        self._queues = 0
        for _ in range(self.rng.randint(1, 2)):
            await self.join()
        self.spawn(self._grow())
        for lane in range(2):
            self.spawn(self._send(f"early{lane}", MESSAGES))
        self.spawn(self.come_and_go())

    async def _grow(self) -> None:
        if self.rng.random() < 0.3:
            self._queues = self.plan.queues  # the first send creates it
            await asyncio.sleep(self.rng.uniform(0.0, self.plan.safety_s / 2))
        while not self.calm() and self._queues < QUEUES_MAX:
            await self._more()
            await asyncio.sleep(self.rng.uniform(0.0, self.plan.safety_s / 3))

    async def _more(self) -> None:
        self._queues = min(QUEUES_MAX, max(1, self._queues * 2))
        await self.create(self._queues)

    async def _send(self, lane: str, count: int) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        await self.send_lane(lane, count)

    async def encore(self) -> None:
        await self._more()
        self.spawn(self._send("late", ENCORE))
        await self.join()

"""A producer has something for many queues at once, so that its small batches travel together
(client/producer/carriers.py), in any order and wherever they lead. Each is answered for by itself.
"""

from __future__ import annotations

import asyncio

from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.protocol.message import MessageQueue

QUEUES = 5
BURSTS = 8


class Spreading(Scene):
    topic, group = "spreading", "gatherers"

    async def start(self) -> None:
        await self.sender.start()
        await self.join()
        self.spawn(self._send(BURSTS))

    async def _send(self, bursts: int) -> None:
        await self.create(QUEUES)
        for counter in range(bursts):
            await self._burst(counter)
            await self.pause(bursts)

    async def _burst(self, counter: int) -> None:
        """Send to all queues, to any queue, and by a key."""
        places = [
            MessageQueue(self.topic, group, queue)
            for group in self.cluster.groups
            for queue in range(QUEUES)
        ]
        sends = [
            self.send(f"{place.broker_name}.{place.queue_id}", counter, queue=place)
            for place in places
        ]
        sends += [self.send(f"any{number}", counter) for number in range(2)]
        sends += [self.send(f"key{key}", counter, sharding_key=key) for key in "xyz"]
        self.rng.shuffle(sends)
        await asyncio.gather(*sends)

    async def encore(self) -> None:
        await self._burst(BURSTS)

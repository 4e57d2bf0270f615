"""Members of a group that pops: they acknowledge, one by one or many in one request, ask for more
time, give messages back, forget them, and die. The rules of pop (docs/pop.md): each message is
acknowledged or comes again, none is given out twice within its invisible time, attempts are
counted.

The group of some seeds is ordered. A queue of it is then given to one member at a time, and a
message that fails holds up those behind it.
"""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.drills.sim.history import Place
from saturnmq.drills.sim.load import ClientMachine
from saturnmq.drills.sim.scenes.pop_record import WAIT_S, PopDelivery, PopRecord
from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import NoMessage, SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 12
ENCORE = 6
TIMES_S = (3.0, 6.0, 12.0)
BATCH = 4
ORDERED = 0.5


class Taken(NamedTuple):
    """A message that a member works on."""

    message: ReceivedMessage
    delivery: PopDelivery


class PopMember(ClientMachine):
    """A consumer that pops, on a machine of its own."""

    def __init__(self, scene: Popping, number: int) -> None:
        name = f"{scene.group}-{number}"
        super().__init__(scene.cluster, name, scene.address(number))
        self._scene = scene
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        core = self.core()
        self.consumer = SimpleConsumer(
            self._scene.group, core=core, from_beginning=True, ordered=self._scene.ordered
        )
        self.consumer.subscribe(self._scene.topic)
        await self.runtime.run(self._begin())
        self._task = self._scene.watched(self.runtime.run(self._work()))

    async def _begin(self) -> None:
        await self.consumer.core.start()
        await self.consumer.start()

    async def _work(self) -> None:
        scene = self._scene
        while True:
            time_s = scene.rng.choice(TIMES_S)
            try:
                taken = await self._receive(time_s)
            except SaturnError as error:
                scene.cluster.trace.note("pop.failed", f"{self.name} {error!r}")
                await self.runtime.sleep(0.3)
                continue
            done = [each for each in taken if await self._handle(each)]
            if done and scene.acks_together:
                await self._acknowledge(done)

    async def _receive(self, time_s: float) -> list[Taken]:
        scene = self._scene
        asked, pop = scene.now, next(scene.pops)
        taken = []
        for message in await self.consumer.receive(BATCH, invisible_s=time_s, wait_s=WAIT_S):
            place = Place(message.broker_name or "?", message.queue_id, message.queue_offset)
            value, until, times = scene.note(message), asked + time_s, message.reconsume_times
            delivery = PopDelivery(place, value, pop, scene.now, until, times, self.name)
            scene.record.add(delivery)
            taken.append(Taken(message, delivery))
        return taken

    async def _handle(self, taken: Taken) -> bool:
        """Do what comes to its mind; when the faults are over it only acknowledges. True: the
        message is done with."""
        scene, (message, delivery) = self._scene, taken
        luck = 1.0 if scene.calm() or message.reconsume_times > 2 else scene.rng.random()
        if luck < 0.15:
            return False  # forgotten
        if luck < 0.35:
            asked, time_s = scene.now, scene.rng.choice((0.5, *TIMES_S))
            before = delivery.until  # its member may die before the answer
            delivery.until = min(before, asked + time_s)
            try:
                await self.consumer.change_invisible_duration(message, time_s)
                delivery.until = asked + time_s
            except SaturnError as error:
                if isinstance(error, NoMessage):
                    delivery.until = before
                return False
            if luck < 0.25:
                return False  # given back
        if luck < 0.5:
            await self.runtime.sleep(scene.rng.uniform(0.0, TIMES_S[0]))
        if not scene.acks_together:
            await self._acknowledge([taken])
        return True

    async def _acknowledge(self, done: list[Taken]) -> None:
        scene, record = self._scene, self._scene.record
        keys = [each.delivery.key for each in done]
        asked = scene.now
        for each in done:
            each.delivery.ack_asked = asked
            record.ask(each.delivery.key, asked)
        try:
            await self.consumer.ack([each.message for each in done])
        except SaturnError as error:
            scene.cluster.trace.note("ack.failed", f"{self.name} {error!r}")
            if isinstance(error, NoMessage) and len(done) == 1:  # of several any may be done
                record.refuse(keys[0], asked)
            return
        for each in done:
            each.delivery.acked = scene.now
        record.acked.update(keys)

    async def die(self) -> None:
        """`kill -9`."""
        self.runtime.power_off()
        await self.runtime.settle()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.runtime.run(self.consumer.close())
        await self.runtime.run(self.consumer.core.close())


class Popping(Scene):
    topic, group = "popped", "popping"
    moves_retries = False
    patience_s = 60.0

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        self.popping: list[PopMember] = []
        self.record = PopRecord(lambda group, at: cluster.allowance.may_go(group, at, None))
        self.pops = count()
        kind = random.Random(f"{cluster.seed}/scene/{self.topic}/kind")
        self.ordered = kind.random() < ORDERED
        self.acks_together = kind.random() < 0.5

    async def start(self) -> None:
        await self.sender.start()
        await self.create(self.plan.queues)
        for _ in range(2):
            await self.add()
        for lane in range(2):
            self.spawn(self.send_lane(f"pop{lane}", MESSAGES))
        self.spawn(self._come_and_go())

    async def add(self) -> PopMember:
        self._machines += 1
        member = PopMember(self, self._machines)
        self.popping.append(member)
        await member.start()
        return member

    def client_names(self) -> list[str]:
        return [self.sender.name, *(member.name for member in self.popping)]

    async def _come_and_go(self) -> None:
        while not self.calm():
            await asyncio.sleep(min(self.rng.expovariate(1 / 6.0), 10.0))
            if self.calm():
                return
            if len(self.popping) < 3 and self.rng.random() < 0.5:
                self.fault("member joined")
                await self.add()
            elif len(self.popping) > 1:
                member = self.popping.pop(self.rng.randrange(len(self.popping)))
                if self.rng.random() < 0.5:
                    self.fault("member left", member.name)
                    await member.close()
                else:
                    self.fault("member killed", member.name)
                    await member.die()

    async def encore(self) -> None:
        self.spawn(self.send_lane("strict", ENCORE))

    async def close(self) -> None:
        for member in self.popping:
            await member.close()
        await super().close()

    def waits_for(self) -> str:
        if not all(lane.done() for lane in self.lanes):
            return "sends"
        done = self.record.acked | self.record.ack_asked.keys()
        keys = (f"{place} {value}" for place, value in self.stored().items())
        open_ = [key for key in keys if key not in done]
        return f"{len(open_)} messages, the first {open_[0]}" if open_ else ""

    def verdict(self) -> list[str]:
        found = self.record.verdict()
        if self.ordered:
            found += self.record.order_verdict(self.stored())
        return found + super().verdict()

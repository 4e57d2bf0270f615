"""Members of a group that pops: they acknowledge, ask for more time, give messages back, forget
them, and die. The two rules of pop (docs/pop.md): each message is acknowledged or comes again, and
none is given out twice within its invisible time.

Time is the virtual time of the world; the wall clocks of nodes need not agree with it. A time
begins when its broker records it, which is not before the member asked. So the next delivery of a
message may come no sooner than the time after that question; a request whose answer was lost may
have changed it or not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.drills.sim.history import Place
from saturnmq.drills.sim.load import ClientMachine
from saturnmq.drills.sim.scenes.scene import Scene
from saturnmq.drills.sim.verdict import told
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import NoMessage, SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

MESSAGES = 12
ENCORE = 6
TIMES_S = (3.0, 6.0, 12.0)
WAIT_S = 1.0  # of one receive: the less, the closer is the verdict
BATCH = 4
EARLY_S = 0.002  # brokers count milliseconds


@dataclass
class PopDelivery:
    """One delivery of a message, and what its member did with it."""

    at: float
    until: float  # nobody else may have it before
    group: str  # of brokers
    number: int  # of attempts before
    member: str
    acked: float | None = None  # when the answer came


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
        self._task = asyncio.create_task(self.runtime.run(self._work()))

    async def _begin(self) -> None:
        await self.consumer.core.start()
        await self.consumer.start()

    async def _work(self) -> None:
        scene = self._scene
        while True:
            time_s = scene.rng.choice(TIMES_S)
            try:
                messages = await self._receive(time_s)
            except SaturnError as error:
                scene.cluster.trace.note("pop.failed", f"{self.name} {error!r}")
                await self.runtime.sleep(0.3)
                continue
            for message in messages:
                await self._handle(message)

    async def _receive(self, time_s: float) -> list[ReceivedMessage]:
        scene = self._scene
        asked = scene.now
        messages = await self.consumer.receive(BATCH, invisible_s=time_s, wait_s=WAIT_S)
        for message in messages:
            value = scene.note(message)
            times = message.reconsume_times
            group = message.broker_name or ""
            delivery = PopDelivery(scene.now, asked + time_s, group, times, self.name)
            scene.deliveries.setdefault(scene.key(message, value), []).append(delivery)
        return messages

    async def _handle(self, message: ReceivedMessage) -> None:
        """Do what comes to its mind; when the faults are over it only acknowledges."""
        scene = self._scene
        delivery = scene.latest(message, self.name)
        luck = 1.0 if scene.calm() or message.reconsume_times > 2 else scene.rng.random()
        if luck < 0.15:
            return  # forgotten
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
                return
            if luck < 0.25:
                return  # given back
        if luck < 0.5:
            await self.runtime.sleep(scene.rng.uniform(0.0, TIMES_S[0]))
        key = scene.key(message)
        asked_before = key in scene.perhaps_acked
        scene.perhaps_acked.add(key)
        try:
            await self.consumer.ack(message)
        except SaturnError as error:
            scene.cluster.trace.note("ack.failed", f"{self.name} {error!r}")
            if isinstance(error, NoMessage) and not asked_before:
                scene.perhaps_acked.discard(key)
            return
        delivery.acked = scene.now
        scene.acked.setdefault(key, delivery)

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
    patience_s = 60.0

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, number)
        self.popping: list[PopMember] = []
        self.deliveries: dict[str, list[PopDelivery]] = {}
        self.acked: dict[str, PopDelivery] = {}
        self.perhaps_acked: set[str] = set()  # asked for; the answer may be lost
        self._values: dict[Place, str] = {}

    async def start(self) -> None:
        await self.sender.start()
        await self.create(self.plan.queues)
        for _ in range(2):
            await self.add()
        for lane in range(2):
            self.spawn(self._send(f"pop{lane}", MESSAGES))
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

    async def _send(self, lane: str, count: int) -> None:
        for counter in range(count):
            await self.send(lane, counter)
            await self.pause(count)

    async def encore(self) -> None:
        self.spawn(self._send("strict", ENCORE))

    async def close(self) -> None:
        for member in self.popping:
            await member.close()
        await super().close()

    def key(self, message: ReceivedMessage, value: str = "") -> str:
        """A message by its place in the log: a value may be stored more than once."""
        place = Place(message.broker_name or "?", message.queue_id, message.queue_offset)
        return f"{place} {value or self._values[place]}"

    def note(self, message: ReceivedMessage) -> str:
        value = super().note(message)
        place = Place(message.broker_name or "?", message.queue_id, message.queue_offset)
        self._values[place] = value
        return value

    def latest(self, message: ReceivedMessage, member: str) -> PopDelivery:
        """The delivery to this member that it works on."""
        found = self.deliveries[self.key(message)]
        return next(each for each in reversed(found) if each.member == member)

    def waits_for(self) -> str:
        if not all(lane.done() for lane in self.lanes):
            return "sends"
        done = self.acked.keys() | self.perhaps_acked
        keys = (f"{place} {value}" for place, value in self.stored().items())
        open_ = [key for key in keys if key not in done]
        return f"{len(open_)} messages, the first {open_[0]}" if open_ else ""

    def verdict(self) -> list[str]:
        twice, after = [], []
        for key, deliveries in self.deliveries.items():
            for number, one in enumerate(deliveries):
                for two in deliveries[number + 1 :]:
                    text = f"{key} to {one.member} at {one.at:.3f}"
                    text += f" and to {two.member} at {two.at:.3f}"
                    if two.at < one.until - EARLY_S and not self._excused(one, one.at):
                        twice.append(f"{text}, its time was not over before {one.until:.3f}")
                    done = one.acked
                    if done is None or two.at <= done + WAIT_S:
                        continue
                    if not self._excused(one, done):
                        after.append(f"{text}, acknowledged at {done:.3f}")
        found = told("pop: given out twice within its invisible time", twice)
        found += told("pop: given out after its acknowledgement", after)
        return found + super().verdict()

    def _excused(self, one: PopDelivery, since: float) -> bool:
        """Whether the record of what a broker promised at this time may be gone from its log."""
        return self.cluster.allowance.may_go(one.group, since, None)

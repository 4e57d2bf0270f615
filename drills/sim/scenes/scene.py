"""A scene: a topic with its own senders, members and history, beside a cluster's first topic, about
one thing that operators, clocks or applications do.

It meets the faults of its cluster. When they are over it has an encore, in which nothing is
excused, and then a verdict of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.core import ClientCore
from saturnmq.drills.sim import aftermath
from saturnmq.drills.sim.history import Place, SimHistory
from saturnmq.drills.sim.load import COMMIT_S, ClientMachine, SimSender
from saturnmq.drills.sim.nodes import SimBroker
from saturnmq.drills.sim.runtime import PoweredOff
from saturnmq.drills.sim.verdict import Evidence, Verdict
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.message_types import MESSAGE_TYPE, MIXED, NORMAL
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

STORM = 50  # attempts at one message
KNOWN_S = 3.0  # a change that is not on every node after so long is ordered again


class Mortal(Protocol):
    """A machine that is started and killed."""

    name: str

    async def start(self) -> None: ...

    async def die(self) -> None: ...


Worker = TypeVar("Worker", bound=Mortal)


class SceneConsumer(ClientMachine):
    """A consumer on a machine of its own."""

    consumer: PushConsumer | PullConsumer

    def __init__(
        self,
        scene: Scene,
        number: int,
        listener: Callable[[SceneConsumer, ReceivedMessage], Coroutine[Any, Any, object]],
        **options: Any,
    ) -> None:
        super().__init__(scene.cluster, f"{scene.group}-{number}", scene.address(number))
        self._scene, self._listener, self._options = scene, listener, options
        self.dead = False

    async def start(self) -> None:
        core = self.core()
        self.consumer = PushConsumer(
            self._scene.group,
            core=core,
            listener_one=self._listen,  # type: ignore[arg-type]  # it may say anything
            rebalance_interval_s=5.0,
            commit_interval_s=COMMIT_S,
            **self._options,
        )
        self.consumer.subscribe(self._scene.topic, "*")
        await self.runtime.run(self._begin(core))

    async def _begin(self, core: ClientCore) -> None:
        await core.start()
        await self.consumer.start()

    async def _listen(self, message: ReceivedMessage) -> object:
        return await self._listener(self, message)

    async def die(self) -> None:
        """`kill -9`."""
        self.dead = True
        self.runtime.power_off()
        await self.runtime.settle()

    async def close(self) -> None:
        await self.runtime.run(self.consumer.close())
        await self.runtime.run(self.consumer.core.close())


class Scene:
    """The base of all scenes. `number` gives its machines their network."""

    topic: ClassVar[str]
    group: ClassVar[str]
    ordered: bool = False  # its group
    moves_retries: bool = True  # to the retry topic; else they keep their places
    patience_s: ClassVar[float] = 30.0  # after its encore everything is delivered so soon
    member_type: type[SceneConsumer] = SceneConsumer
    message_type: str = MIXED  # of its topic, where brokers check that

    def __init__(self, cluster: SimCluster, number: int) -> None:
        self.cluster, self.plan = cluster, cluster.plan
        self.rng = random.Random(f"{cluster.seed}/scene/{self.topic}")
        self._number, self._machines = number, 0
        self._hired = itertools.count()
        self.sender = SimSender(cluster, f"{self.topic}-sender", self.address(0))
        self.members: list[SceneConsumer] = []
        self.history = SimHistory()
        self.history.reader(self.group)
        self.lanes: list[asyncio.Task[None]] = []

    # defined by each scene

    async def start(self) -> None:
        """Begin; what goes on from here on is in `lanes`."""
        raise NotImplementedError

    async def encore(self) -> None:
        """Play once more, on a cluster without faults."""
        raise NotImplementedError

    async def listen(self, member: SceneConsumer, message: ReceivedMessage) -> object:
        """Take one message at one member."""
        self.note(message)
        return None

    def member_options(self) -> dict[str, Any]:
        """The keyword arguments of its consumers."""
        return {}

    def waits_for(self) -> str:
        """The events that are still to come; empty if none are."""
        if not all(lane.done() for lane in self.lanes):
            return "sends"
        seen = self.history.first_seen[self.group]
        missing = [value for value in self.owed().values() if value not in seen]
        return f"{len(missing)} messages, the first {missing[0]}" if missing else ""

    def verdict(self) -> list[str]:
        """All violations."""
        cluster = self.cluster
        evidence = Evidence(
            self.judged(),
            self.owed(),
            cluster.is_saved,
            cluster.allowance,
            {self.group: self.ordered},
        )
        return Verdict(evidence).run()

    def owed(self) -> dict[Place, str]:
        """The stored messages that its group has to get."""
        return self.stored()

    def judged(self) -> SimHistory:
        """The part of its history that the common verdict is about."""
        return self.history

    # shared by all scenes

    @property
    def now(self) -> float:
        return self.cluster.loop.time()

    def calm(self) -> bool:
        """Whether the faults are over."""
        return self.cluster.calm

    def address(self, number: int) -> str:
        return f"10.1.{self._number}.{number + 1}"

    def client_names(self) -> list[str]:
        return [self.sender.name, *(member.name for member in self.members)]

    def fault(self, kind: str, text: str = "") -> None:
        """Counts something that an operator, a clock or an application did."""
        self.cluster.faults.note(kind, f"{self.topic} {text}")

    def note(self, message: ReceivedMessage) -> str:
        """The value of a delivery, which is in the history now."""
        place = Place(message.broker_name, message.queue_id, message.queue_offset)
        body, times = bytes(message.body), message.reconsume_times
        self.cluster.trace.note("deliver", f"{self.group} {place} {times}", body)
        again = times > 0 and self.moves_retries
        found = self.history.deliver(self.group, self.now, place, body, again=again)
        return found.value or "?"

    async def join(self) -> SceneConsumer:
        """Add one more member."""
        self._machines += 1
        member = self.member_type(self, self._machines, self.listen, **self.member_options())
        self.members.append(member)
        await member.start()
        return member

    async def shared(self) -> None:
        """Wait until no two members read the same queue, as after a fault that hid one of them from
        the other."""
        while True:
            held = [queue for member in self.members for queue in member.consumer.held_queues()]
            if len(held) == len({*held}):
                return
            await asyncio.sleep(0.1)

    async def come_and_go(self, most: int = 3, every_s: float = 4.0) -> None:
        """Members join, leave and die until the faults are over; one at least stays."""
        while not self.calm():
            pause_s = self.rng.expovariate(1 / every_s)
            await asyncio.sleep(min(pause_s, self.patience_s / 2))  # it is waited for in the end
            if self.calm():
                return
            if len(self.members) == 1 or (len(self.members) < most and self.rng.random() < 0.5):
                self.fault("member joined")
                await self.join()
                continue
            member = self.members.pop(self.rng.randrange(len(self.members)))
            if self.rng.random() < 0.5:
                self.fault("member left", member.name)
                await member.close()
            else:
                self.fault("member killed", member.name)
                await member.die()

    async def hire(self, workers: list[Worker], make: Callable[[Self, int], Worker]) -> None:
        """Start another worker, on a machine of its own."""
        worker = make(self, next(self._hired))
        await worker.start()
        workers.append(worker)

    async def replace(self, workers: list[Worker], make: Callable[[Self, int], Worker]) -> None:
        """Workers die, and others take their place, until the faults are over."""
        while not self.calm():
            await asyncio.sleep(min(self.rng.expovariate(1 / 8.0), self.patience_s / 2))
            if self.calm():
                return
            worker = workers.pop(self.rng.randrange(len(workers)))
            self.fault("producer killed", worker.name)
            await worker.die()
            await self.hire(workers, make)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.lanes.append(self.watched(work))

    def watched(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin work whose failure is one of the run."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PoweredOff):
            self.cluster.problems.append(f"a part of the scene {self.topic} failed: {error!r}")

    async def send(
        self,
        lane: str,
        counter: int,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        timed: Callable[[Message], Message] | None = None,
    ) -> str:
        """Sends until it is acknowledged, and gives the value that was."""
        attempt = 0
        while True:
            value = f"{lane}/{counter}.{attempt}"
            sent = self.sender.attempt(
                self.history,
                lane,
                value,
                self.topic,
                queue=queue,
                sharding_key=sharding_key,
                delay_level=delay_level,
                timed=timed,
            )
            if await self.sender.runtime.run(sent):
                return value
            attempt += 1
            # Attempts that are stored and not confirmed add to the log: with small transfers slaves
            # would never catch up with senders that go on like this.
            await asyncio.sleep(0.2 if attempt < STORM else 2.0)

    async def send_lane(self, lane: str, count: int) -> None:
        """So many messages, one after the other."""
        for counter in range(count):
            await self.send(lane, counter)
            await self.pause(count)

    async def pause(self, messages: int) -> None:
        """Pause between two of so many messages of a lane."""
        if not self.calm():
            await asyncio.sleep(self.rng.uniform(0.0, 2 * self.plan.safety_s / messages))

    async def order(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do an operator's work, again and again until it succeeds."""
        while True:
            try:
                await self.cluster.operator.runtime.run(work())
                return
            except SaturnError as error:
                self.cluster.trace.note("order.failed", repr(error))
                await asyncio.sleep(0.5)

    async def order_everywhere(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        is_so: Callable[[SimBroker], bool],
    ) -> None:
        """Repeat an order until it holds on every node: a group may have been away when it was
        given."""
        while True:
            await self.order(work)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KNOWN_S):
                    while not all(map(is_so, self.cluster.brokers)):
                        await asyncio.sleep(0.1)
                    return

    async def create(self, queues: int) -> None:
        """Create the topic with so many queues on every node: no promise covers a topic before
        that."""

        wanted = self.message_type if self.plan.checks_types else None

        def knows(node: SimBroker) -> bool:
            topic = node.serving.context.topics.get(self.topic) if node.serving else None
            if topic is None or topic.write_queues != queues:
                return False
            return wanted is None or topic.attributes.get(MESSAGE_TYPE, NORMAL) == wanted

        self.fault("queues changed", str(queues))
        create = partial(self.cluster.operator.admin.create_topic, self.topic, message_type=wanted)
        await self.order_everywhere(lambda: create(queues=queues), knows)

    def stored_at(self, node: SimBroker, topic: str = "") -> Iterator[tuple[Place, str | None]]:
        """The topic's messages on a node; none once it is being stopped, as its store closes."""
        if node.serving is not None and not node.serving.closed:
            yield from aftermath.stored(node.serving.store, node.group, topic=topic or self.topic)

    def stored(self, topic: str = "") -> dict[Place, str]:
        """The topic's messages on the masters."""
        return {
            place: value or "?"
            for group in self.cluster.groups
            for place, value in self.stored_at(self.cluster.master_of(group), topic)
        }

    async def close(self) -> None:
        for lane in self.lanes:
            lane.cancel()
        for member in self.members:
            await member.close()
        await self.sender.runtime.run(self.sender.close())

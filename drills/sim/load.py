"""The clients of a simulated cluster: senders, consumers, and a bookkeeper of offsets.

A bound lane sends to one queue of one broker group, the loose lane wherever its producer likes;
both repeat a message, under a new value, until it is acknowledged. Two consumer groups read all of
it, one of them in order if the plan says so. The bookkeeper commits rising offsets for a group that
reads nothing: what it was told is kept, and was seen on every node, must never be less again (I6).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.client.core import ClientCore
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.timed import recall_handle
from saturnmq.drills.sim.history import LATER, Ack, Place, SimHistory, make_body
from saturnmq.drills.sim.plan import MESSAGE_BYTES_MAX, TOPIC
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import Message, MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import Signing
from saturnmq.runtime.errors import SaturnError, TaskFailed

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster
    from saturnmq.drills.sim.nodes import SimNameServer
    from saturnmq.drills.sim.runtime import SimRuntime

READERS = ("readers", "keepers")  # the second is ordered if the plan says so
DELAY_LEVEL = 1  # of the delayed lane: one second
BOOKKEEPER = "bookkeeper"
COMMIT_S = 1.0


class ClientMachine:
    """A machine with clients on it."""

    def __init__(self, cluster: SimCluster, name: str, ip: str, incarnation: int = 0) -> None:
        self.cluster = cluster
        self.name, self.ip = name, ip
        self.nameservers: Sequence[SimNameServer] = cluster.nameservers
        self.signing = Signing(cluster.plan.secret)
        self.runtime: SimRuntime = cluster.world.runtime(name, ip, incarnation)

    def core(self) -> ClientCore:
        plan = self.cluster.plan
        core = ClientCore(
            self.runtime,
            [node.address for node in self.nameservers],
            route_interval=plan.route_s,
            heartbeat_interval=5.0,
            signing=self.signing,
        )
        core.on_error(self._on_error)
        return core

    def _on_error(self, error: SaturnError) -> None:
        """Count a failed task as a death, although it begins again: else a bug would stay
        hidden."""
        if isinstance(error, TaskFailed) and not self.runtime.off:
            self.runtime.deaths.append(str(error))


class SimSender(ClientMachine):
    """A machine with one producer."""

    async def start(self) -> None:
        core = self.core()
        await self.runtime.run(core.start())
        self.handles: dict[str, str] = {}  # of timed messages, by their values
        self.producer = Producer(
            "senders",
            core=core,
            send_timeout=2.0,
            delivery_timeout=4.0,
            batch_bytes=MESSAGE_BYTES_MAX,
        )
        await self.runtime.run(self._begin())

    async def _begin(self) -> None:
        await self.producer.start()

    async def attempt(
        self,
        history: SimHistory,
        lane: str,
        value: str,
        topic: str = TOPIC,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        timed: Callable[[Message], Message] | None = None,
    ) -> bool:
        """Sends `value` once; True if it was acknowledged. `history` gets what became of it.
        `timed` gives the message a time of its own."""
        trace = self.cluster.trace
        history.invoke(value, lane, self.runtime.loop.time())
        body = make_body(value, self.cluster.plan.padding)
        message = Message(
            topic, body, keys=value, delay_level=delay_level, sharding_key=sharding_key
        )
        if timed is not None:
            message = timed(message)
        try:
            result = await self.producer.send(message, queue=queue)
        except SaturnError as error:
            trace.note("send.failed", f"{value} {error!r}")
            known = history.rejected if error.outcome == "rejected" else history.unknown
            known[value] = repr(error)
            return False
        place = Place(result.queue.broker_name, result.queue.queue_id, result.queue_offset)
        if delay_level or timed is not None:
            place = place._replace(queue=LATER)
        trace.note("send", f"{value} {place} {result.status.name}")
        if not result.ok:
            history.unknown[value] = result.status.name
            return False
        if timed is not None:
            self.handles[value] = recall_handle(result)
        by = self.cluster.name_of(result.offset_message_id)
        history.ack(value, Ack(place, self.runtime.loop.time(), by))
        return True

    async def close(self) -> None:
        await self.producer.close()
        await self.producer.core.close()


class Senders(SimSender):
    """The lanes to the cluster's first topic."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster, "producer", "10.0.1.1")
        self.lanes: list[asyncio.Task[None]] = []
        self._rng = random.Random(f"{cluster.seed}/senders")

    async def start(self) -> None:
        await super().start()
        plan = self.cluster.plan
        for group in self.cluster.groups:
            for queue in range(plan.queues):
                target = MessageQueue(TOPIC, group, queue)
                self._spawn(f"{group}.{queue}", target, plan.lane_messages)
        self._spawn("loose", None, plan.loose_messages)
        self._spawn("later", None, plan.delayed_messages)

    def _spawn(self, lane: str, queue: MessageQueue | None, count: int) -> None:
        work = self._send(lane, queue, count)
        self.lanes.append(self.runtime.spawn(work, name=f"lane-{lane}"))

    async def _send(self, lane: str, queue: MessageQueue | None, count: int) -> None:
        plan, rng, history = self.cluster.plan, self._rng, self.cluster.history
        level = DELAY_LEVEL if lane == "later" else 0
        for counter in range(count):
            attempt = 0
            while not await self.attempt(
                history, lane, f"{lane}/{counter}.{attempt}", queue=queue, delay_level=level
            ):
                attempt += 1
                await self.runtime.sleep(0.2)
            pace = 0.0 if self.cluster.calm else plan.pace_s
            await self.runtime.sleep(rng.uniform(0.0, 2 * pace))


class GroupReader(ClientMachine):
    """One member of a consumer group."""

    def __init__(self, cluster: SimCluster, group: str, number: int, incarnation: int = 0) -> None:
        kind = READERS.index(group)
        super().__init__(cluster, f"{group}-{number}", f"10.0.{2 + kind}.{number + 1}", incarnation)
        self.group, self.number, self.incarnation = group, number, incarnation
        self._rng = random.Random(f"{cluster.seed}/{self.name}/{incarnation}")
        self.up = True
        self.is_invalid = False

    async def start(self) -> None:
        plan = self.cluster.plan
        core = self.core()
        self.consumer = PushConsumer(
            self.group,
            core=core,
            listener=self._listen,
            ordered=plan.ordered and self.group == READERS[1],
            from_beginning=True,
            rebalance_interval_s=5.0,
            commit_interval_s=COMMIT_S,
        )
        self.consumer.subscribe(TOPIC, "*")
        await self.runtime.run(self._begin(core))

    async def _begin(self, core: ClientCore) -> None:
        await core.start()
        await self.consumer.start()

    async def _listen(self, messages: Sequence[ReceivedMessage]) -> ConsumeResult:
        cluster, history = self.cluster, self.cluster.history
        deliveries = []
        for message in messages:
            place = Place(message.broker_name, message.queue_id, message.queue_offset)
            body, again = bytes(message.body), message.reconsume_times > 0
            cluster.trace.note("deliver", f"{self.group} {place} {again}", body)
            now = self.runtime.loop.time()
            deliveries.append(history.deliver(self.group, now, place, body, again=again))
        # Once only: the second delay is half a minute.
        fresh = not any(message.reconsume_times for message in messages)
        if self.group != READERS[0] or self._rng.random() >= cluster.plan.sent_back * fresh:
            return ConsumeResult.SUCCESS
        for delivery in deliveries:
            history.send_back(self.group, delivery)
        return ConsumeResult.RETRY

    def validate(self) -> None:
        """Note it as a problem, once, if the queues that it holds contradict themselves."""
        try:
            if self.up and not self.is_invalid:
                self.consumer._holdings.validate()
        except AssertionError as error:
            self.is_invalid = True
            self.cluster.problems.append(f"{self.name} is not valid: {error}")

    async def die(self) -> GroupReader:
        """`kill -9`; gives the one to start in its place."""
        self.up = False
        self.runtime.power_off()
        await self.runtime.settle()
        return GroupReader(self.cluster, self.group, self.number, self.incarnation + 1)

    async def close(self) -> None:
        await self.consumer.close()
        await self.consumer.core.close()


class Bookkeeper(ClientMachine):
    """Commits one more every now and then, for queue 0 of every broker group."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster, "bookkeeper", "10.0.4.1")
        self.asked: dict[str, int] = dict.fromkeys(cluster.groups, 0)
        self.acked: dict[str, int] = dict.fromkeys(cluster.groups, 0)
        self.certain: dict[str, int] = dict.fromkeys(cluster.groups, 0)
        self._seen: dict[str, list[tuple[float, int]]] = {g: [] for g in cluster.groups}

    async def start(self) -> None:
        self._core = self.core()
        await self.runtime.run(self._begin())
        self.runtime.spawn(self._commit(), name="commit")
        self.runtime.spawn(self._look(), name="look")

    async def _begin(self) -> None:
        await self._core.start()
        await self._core.route(TOPIC)

    async def _commit(self) -> None:
        while not self.cluster.calm:
            await self.runtime.sleep(0.7)
            for group in self.cluster.groups:
                address = self._core.broker_address(group)
                if address is not None:
                    await self._commit_at(group, address)

    async def _commit_at(self, group: str, address: str) -> None:
        # No further than the queue goes: a restarted broker would rightly lower it.
        end = self.cluster.history.ends.get((group, 0), 0)
        offset = min(self.acked[group] + 1, end)
        self.asked[group] = max(self.asked[group], offset)
        ext = {
            "consumerGroup": BOOKKEEPER,
            "topic": TOPIC,
            "queueId": "0",
            "commitOffset": str(offset),
        }
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        try:
            await self._core.invoke(address, request, 1.0)
        except SaturnError:
            return
        self.acked[group] = offset

    async def _look(self) -> None:
        """Count an offset as certain that every node of a group has had for the time of three
        saves."""
        settled = 3 * self.cluster.plan.offsets_s
        while True:
            await self.runtime.sleep(0.25)
            now = self.runtime.loop.time()
            for group in self.cluster.groups:
                seen = self._seen[group]
                known = self.known(group)
                if known is None:
                    seen.clear()
                    continue
                seen.append((now, known))
                while seen and now - seen[0][0] >= settled:
                    _, offset = seen.pop(0)
                    self.certain[group] = max(self.certain[group], offset)

    def known(self, group: str) -> int | None:
        """The offset that all nodes of the group have; None while one is down."""
        least = None
        for node in self.cluster.nodes_of(group):
            broker = node.serving
            if broker is None or node.paused:
                return None
            offset = broker.context.offsets.query(BOOKKEEPER, TOPIC, 0) or 0
            least = offset if least is None else min(least, offset)
        return least

    async def close(self) -> None:
        await self._core.close()

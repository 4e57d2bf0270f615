"""A broker pair in memory under push and pull consumers, on the simulator's virtual clock."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from frame_rig import plain_frame
from saturnmq.broker.tables.locks import QueueLockTable
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.core import ClientCore
from saturnmq.client.routes import RouteCache
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicRoute
from saturnmq.runtime.errors import ConnectionLost, SaturnError, error_for
from saturnmq.runtime.supervision import Supervisor

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
MASTER, SLAVE = "127.0.0.1:10911", "127.0.0.1:10921"


class World:
    """One broker `a` (master and slave with the same log) and what clients did to it."""

    def __init__(self, queues: int = 2, topic: str = "T", group: str = "G") -> None:
        self.loop = SimLoop(random.Random(7))
        self.runtime = SimRuntime(self.loop, SimNetwork(self.loop, 7), 7, "client")
        self.topic, self.group = topic, group
        self.frames: dict[MessageQueue, list[bytes]] = {}
        self.offsets: dict[MessageQueue, int] = {}
        self.commits: list[tuple[MessageQueue, int]] = []
        self.committed_at: list[str] = []
        self.committed_when: list[float] = []
        self.down: set[str] = set()
        self.masterless = False  # the route that a nameserver gives
        self.promoted = False  # the slave is the master and the old master a slave
        self.hung: set[str] = set()
        self.stuck = False  # pulls are answered at once, with nothing
        self.pulls: list[dict[str, str]] = []
        self.pulled_from: list[str] = []
        self.backs: list[dict[str, str]] = []
        self.refuse_backs = 0
        self.members = ["me"]
        self.members_asked: list[float] = []  # when
        self.locks_granted = True
        self.locks = QueueLockTable()
        self.term = ""  # of a broker of ours, which says of which epoch its log is
        self.unlocked: list[MessageQueue] = []
        self.suggest = 0
        self.first_kept = 0
        self.order: int | None = None  # where an operator has the next pull go on
        self.slave_lacks = 0
        self.more = asyncio.Condition()
        self.damaged: dict[str, set[int]] = {}  # queue offsets whose frames a replica has damaged
        self.routes = RouteCache()
        self.listed = [topic]
        self.physical = 0
        for number in range(queues):
            self.frames[MessageQueue(topic, "a", number)] = []

    def send(self, queue_id: int, body: bytes, tag: str | None = None, **properties: str) -> None:
        queue = MessageQueue(self.topic, "a", queue_id)
        if tag:
            properties["TAGS"] = tag
        log = self.frames[queue]
        frame = plain_frame(
            physical_offset=self.physical,
            queue_offset=len(log),
            queue_id=queue_id,
            born_host=HOST,
            store_host=HOST,
            body=body,
            topic=self.topic.encode(),
            properties=bytes(encode_properties(properties)),
        )
        self.physical += len(frame)
        log.append(frame)

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(600):
                await body()

        try:
            self.loop.run_until_complete(main())
            assert self.loop.failures == []
            assert self.runtime.deaths == []
        finally:
            self.loop.close()

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < deadline, "the condition did not come true in time"
            await asyncio.sleep(0.01)


class WorldCore:
    """What consumers use of ClientCore."""

    def __init__(
        self, world: World, client_id: str = "me", runtime: SimRuntime | None = None
    ) -> None:
        self.world = world
        self.client_id = client_id
        self.runtime = runtime or world.runtime
        self.started_ms = self.runtime.now_ms()
        self.nameservers = ["nameserver:9876"]
        self.routes = world.routes
        self.handlers: dict[str, Any] = {}
        self.terms: dict[Any, dict[str, str]] = {}
        self._subscriptions = 0
        self.unreachable = False  # no nameserver answers
        self.error_listeners: list[Callable[[SaturnError], None]] = []
        self.at_request: Callable[[Command], None] = lambda _: None  # before a broker has it
        self.tasks = Supervisor(self.runtime, lambda error: world.runtime.deaths.append(str(error)))

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def heartbeat_now(self) -> None: ...

    def on_error(self, listener: Callable[[SaturnError], None]) -> None:
        self.error_listeners.append(listener)

    def report_error(self, error: SaturnError) -> None:
        for listener in self.error_listeners:
            listener(error)

    def report_nameservers(self) -> None:
        self.report_error(ConnectionLost("no nameserver answers"))

    def subscription_version(self) -> int:
        self._subscriptions += 1
        return self._subscriptions

    def register_consumer(self, group: str, handler: Any) -> None:
        self.handlers[group] = handler

    async def unregister_consumer(self, group: str) -> None:
        self.handlers.pop(group, None)

    async def route(self, topic: str, *, refresh: bool = False, create: bool = False) -> TopicRoute:
        if self.unreachable:
            raise ConnectionLost("no nameserver answers")
        if topic not in self.world.listed:
            raise error_for(17, f"no topic {topic}")
        known = self.routes.route(topic)
        if known is not None and not refresh:
            return known
        count = sum(1 for queue in self.world.frames if queue.topic == topic)
        route = TopicRoute.from_json(
            {
                "brokerDatas": [
                    {
                        "brokerName": "a",
                        "cluster": "C",
                        "brokerAddrs": {"1": SLAVE}
                        if self.world.masterless
                        else {"0": SLAVE, "1": MASTER}
                        if self.world.promoted
                        else {"0": MASTER, "1": SLAVE},
                    }
                ],
                "queueDatas": [
                    {
                        "brokerName": "a",
                        "readQueueNums": count,
                        "writeQueueNums": count,
                        "perm": 6,
                        "topicSysFlag": 0,
                    }
                ],
            }
        )
        if self.routes.update(topic, route):
            for handler in list(self.handlers.values()):
                handler.on_route_changed(topic)
        return route

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        return self.routes.subscribe_queues(topic)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        return self.routes.publish_queues(topic)

    master_address = ClientCore.master_address

    def broker_address(self, name: str, *, master: bool = True) -> str | None:
        return self.routes.address(name, master=master)

    def refresh_soon(self, topic: str) -> None:
        self.runtime.spawn(self.route(topic, refresh=True), name="refresh")

    def connected(self, address: str) -> object | None:
        return None if address in self.world.down else (self, address)

    async def connect(self, address: str) -> None: ...

    def oneway(self, address: str, cmd: Command) -> None:
        if cmd.code == 15:
            self._commit(address, cmd.ext)

    def _commit(self, address: str, ext: dict[str, str]) -> None:
        queue = MessageQueue(ext["topic"], "a", int(ext["queueId"]))
        offset = int(ext["commitOffset"])
        self.world.commits.append((queue, offset))
        self.world.committed_at.append(address)
        self.world.committed_when.append(self.runtime.monotonic())
        self.world.offsets[queue] = offset

    async def invoke(
        self,
        address: str,
        cmd: Command,
        timeout_s: float | None = None,
        ok: Collection[int] = frozenset({0}),
    ) -> Command:
        self.at_request(cmd)
        await self.runtime.sleep(0.001)
        if address in self.world.down:
            raise ConnectionLost(f"{address} is down")
        if address in self.world.hung:
            await self.runtime.sleep(timeout_s or 3.0)
            raise ConnectionLost(f"{address} hangs")
        reply = await self._answer(address, cmd)
        if reply.code not in ok:
            raise error_for(reply.code, reply.remark)
        return reply

    async def _answer(self, address: str, cmd: Command) -> Command:
        world, ext = self.world, cmd.ext
        if cmd.code == 11:
            return await self._pull(address, cmd)
        if cmd.code == 38:
            world.members_asked.append(self.runtime.monotonic())
            return cmd.reply(body=json.dumps({"consumerIdList": world.members}).encode())
        if cmd.code == 36:
            if world.refuse_backs > 0:
                world.refuse_backs -= 1
                return cmd.reply(1, "refused")
            world.backs.append(ext)
            return cmd.reply()
        if cmd.code in (41, 42):
            body = json.loads(bytes(cmd.body))
            owner = body["consumerGroup"], body["clientId"]
            asked = {
                MessageQueue(mq["topic"], mq["brokerName"], mq["queueId"]): mq
                for mq in body["mqSet"]
            }
            if cmd.code == 42:
                world.unlocked += asked
                world.locks.unlock(*owner, asked)
                return cmd.reply()
            granted = []
            if world.locks_granted:
                granted = world.locks.lock(*owner, asked, self.world.loop.time())
            answer = {"lockOKMQSet": [asked[queue] for queue in granted]}
            return cmd.reply(body=json.dumps(answer).encode())
        queue = MessageQueue(ext.get("topic", ""), "a", int(ext.get("queueId", "0")))
        if cmd.code == 14:
            if queue not in world.offsets:
                return cmd.reply(22, "no offset")
            term = {"saturnTerm": world.term} if world.term else {}
            return cmd.reply(ext={"offset": str(world.offsets[queue]), **term})
        if cmd.code == 15:
            self._commit(address, ext)
            return cmd.reply()
        if cmd.code == 30:
            return cmd.reply(ext={"offset": str(len(world.frames[queue]))})
        if cmd.code == 31:
            return cmd.reply(ext={"offset": str(world.first_kept)})
        if cmd.code == 29:
            return cmd.reply(ext={"offset": "1"})
        return cmd.reply(3, f"code {cmd.code}")

    async def _pull(self, address: str, cmd: Command) -> Command:
        world, ext = self.world, cmd.ext
        world.pulls.append(ext)
        world.pulled_from.append(address)
        queue = MessageQueue(ext["topic"], "a", int(ext["queueId"]))
        if int(ext["sysFlag"]) & 1:
            world.offsets[queue] = max(world.offsets.get(queue, 0), int(ext["commitOffset"]))
        log, offset = world.frames.get(queue, []), int(ext["queueOffset"])
        if address == SLAVE and world.slave_lacks:
            log = log[: -world.slave_lacks]
        until = world.loop.time() + int(ext["suspendTimeoutMillis"]) / 1000
        while offset == len(log) and world.loop.time() < until and address not in world.down:
            await self.runtime.sleep(0.05)
            if world.order is not None:
                break
        while address in world.hung:
            await self.runtime.sleep(0.05)
        if address in world.down:
            raise ConnectionLost(f"{address} went down")
        stop = min(offset + int(ext["maxMsgNums"]), len(log))
        bad = world.damaged.get(address, set())
        taken = [
            log[n][:88] + b"?" + log[n][89:] if n in bad else log[n] for n in range(offset, stop)
        ]
        code, following = (0, offset + len(taken)) if taken else (19, offset)
        if offset > len(log):
            code, following, taken = 21, len(log), []
        if offset < world.first_kept:
            code, following, taken = 21, world.first_kept, []
        if world.stuck:
            code, following, taken = 20, offset, []
        if code == 21 and address == SLAVE:  # without offsetCheckInSlave, its default
            code, following = 20, offset
        remark = None
        if world.order is not None:
            code, following, taken, remark = 21, world.order, [], "OFFSET_RESET"
            world.order = None
        header = {
            "suggestWhichBrokerId": str(world.suggest),
            "nextBeginOffset": str(following),
            "minOffset": str(world.first_kept),
            "maxOffset": str(len(log)),
            **({"saturnTerm": world.term} if world.term else {}),
        }
        return cmd.reply(code, remark, ext=header, body=b"".join(taken))


Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


def consumer(world: World, core: Any = None, **options: Any) -> PushConsumer:
    core = core or WorldCore(world)
    made = PushConsumer("G", core=core, **{"from_beginning": True, **options})
    made.subscribe("T", "*")
    return made


def puller(world: World, **options: Any) -> PullConsumer:
    core: Any = WorldCore(world)
    return PullConsumer("G", core=core, **{"from_beginning": True, **options})

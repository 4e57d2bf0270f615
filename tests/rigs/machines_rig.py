"""Machines with brokers on one virtual time line: disk, wall clock and address of each outlive its
processes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command

PORT = 10911
SEGMENT = 1 << 20


class World:
    """Machines on one virtual time line."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, 1)
        self.clients = 0
        self.runtimes: list[SimRuntime] = []

    async def nameserver(self, ip: str = "10.0.0.9") -> None:
        node = SimRuntime(self.loop, self.network, 1, "nameserver", ip)
        self.runtimes.append(node)
        await NameServer(node, ip, 9876).start()

    def machine(self, name: str, ip: str, ahead_ms: int = 0, **settings: Any) -> Machine:
        return Machine(self, name, ip, ahead_ms, settings)


class Machine:
    """A broker's machine: its disk and its wall clock outlive the broker's processes."""

    def __init__(
        self, world: World, name: str, ip: str, ahead_ms: int, settings: dict[str, Any]
    ) -> None:
        self.world, self.name, self.ip = world, name, ip
        self._ahead_ms = ahead_ms
        self._store_options = settings.pop("store_options", {})
        self._settings = settings
        self._starts = 0
        self.new_disk()

    def new_disk(self) -> None:
        """An empty one."""
        self.disk = SimDisk(random.Random(1), None, self._now_ms)

    def _now_ms(self) -> int:
        return self.runtime.now_ms()

    async def boot(self) -> Broker:
        self._starts += 1
        self.disk.power_on()
        seed = f"1/{self._starts}"
        loop, network = self.world.loop, self.world.network
        self.runtime = SimRuntime(
            loop, network, seed, self.name, self.ip, wall_offset_ms=self._ahead_ms
        )
        self.world.runtimes.append(self.runtime)
        config = BrokerConfig(
            host=self.ip,
            port=PORT,
            ha_port=PORT + 1,
            root="/store",
            default_topic_queues=1,
            max_idle_s=10**9,  # who asks now and then only does not say that it lives
            store_options={
                "commitlog_segment_bytes": SEGMENT,
                "consumequeue_segment_bytes": 20 * 1000,
                "index_slots": 100,
                "index_items": 400,
                "zero_ahead_bytes": 8 << 10,
                **self._store_options,
            },
            **self._settings,
        )
        self.broker = Broker(config, self.runtime, self.disk)
        await self.runtime.run(self.broker.start())
        self._remote: Endpoint | None = None
        return self.broker

    async def kill(self) -> None:
        self.runtime.power_off(reset_peers_after=0.0)
        self.disk.kill()
        await self.runtime.settle()

    async def lose_power(self) -> None:
        self.runtime.power_off(reset_peers_after=0.0)
        self.disk.power_off()
        await self.runtime.settle()

    async def stop(self) -> None:
        await self.runtime.run(self.broker.close())
        await self.kill()

    async def restart(self, *, clean: bool) -> None:
        await (self.stop() if clean else self.kill())
        await self.boot()

    def step(self, by_ms: int) -> None:
        """The wall clock jumps; the steady one does not."""
        self._ahead_ms += by_ms
        self.runtime.jump_wall_clock(by_ms)

    async def ask(self, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
        if self._remote is None:
            self.world.clients += 1
            number = self.world.clients
            client = SimRuntime(
                self.world.loop, self.world.network, 1, f"client-{number}", f"10.0.1.{number}"
            )
            self._remote = Endpoint(client, lambda e, c: None)
            await client.connect(self.ip, PORT, self._remote)
        texts = {name: str(value) for name, value in ext.items()}
        return await self._remote.request(Command.request(code, texts, body), 60.0)

    async def put(
        self, body: bytes, level: int = 0, topic: str = "T", **properties: object
    ) -> Command:
        """The answer to a send."""
        names: dict[str, object] = {"UNIQ_KEY": body[:20].decode(), **properties}
        if level:
            names["DELAY"] = level
        ext = {"a": "P", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0}
        text = "".join(f"{name}\x01{value}\x02" for name, value in names.items())
        return await self.ask(RequestCode.SEND_MESSAGE_V2, {**ext, "i": text}, body)

    async def send(self, body: bytes, level: int = 0, topic: str = "T") -> None:
        reply = await self.put(body, level, topic)
        assert reply.code == 0, reply.remark

    async def read(self, offset: int = 0, topic: str = "T") -> list[ReceivedMessage]:
        ext = {"consumerGroup": "G", "topic": topic, "queueId": 0, "queueOffset": offset}
        ext |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0}
        reply = await self.ask(
            RequestCode.PULL_MESSAGE, {**ext, "subscription": "*", "subVersion": 0}
        )
        return [] if reply.code else decode_frames(bytes(reply.body), True)

    def count(self, topic: str = "T", queue: int = 0) -> int:
        return self.broker.store.max_offset(topic, queue)

    async def bodies(self, topic: str = "T") -> list[bytes]:
        return [bytes(message.body) for message in await self.read(topic=topic)]


async def group(world: World, ahead_ms: int) -> tuple[Machine, Machine]:
    """A master, and a slave whose clock differs so much."""
    master = world.machine("a", "10.0.0.2", role="ASYNC_MASTER")
    slave = world.machine("b", "10.0.0.3", ahead_ms, role="SLAVE", broker_id=1, slave_sync_ms=100)
    await master.boot()
    return master, slave


async def follow(slave: Machine, master: Machine) -> None:
    slave.broker.replication.slave.master_is(master.broker.address, master.broker.ha_address)
    async with asyncio.timeout(60):
        marks = slave.broker.store.watermarks
        while marks.dispatched < master.broker.store.watermarks.appended:
            await asyncio.sleep(0.01)
        await asyncio.sleep(2.0)  # tables are copied each 0.1 s


async def promote(slave: Machine, term: int = 2) -> None:
    reply = await slave.ask(RequestCode.PROMOTE, {"epoch": term * TERM, "force": "true"})
    assert reply.code == 0, reply.remark


def run(body: Callable[[World], Awaitable[None]], limit_s: float = 100 * 3600.0) -> None:
    """Run a test on a loop of virtual time, which passes at most `limit_s`."""

    async def main() -> None:
        try:
            await body(world)
        finally:
            for runtime in world.runtimes:
                if not runtime.off:
                    runtime.power_off()
                    await runtime.settle()

    loop = SimLoop(random.Random(1), limit_s=limit_s)
    asyncio.set_event_loop(loop)
    world = World(loop)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()

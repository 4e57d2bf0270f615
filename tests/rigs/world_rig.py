"""A broker with clients on simulated machines, in virtual time: real code of both, no sockets."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
from saturnmq.protocol.remoting import Command
from saturnmq.store.disk import Disk

NOW = 1_700_000_000_000  # when a world begins


def new_disk(seed: int = 1, **options: Any) -> SimDisk:
    return SimDisk(random.Random(seed), **options)


class World:
    """Machines on one simulated network; `run` makes one per test."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.network = SimNetwork(loop, seed)
        self.nodes: list[SimRuntime] = []
        self.disk = new_disk(seed, now_ms=lambda: NOW + int(loop.time() * 1000))

    def node(self, name: str) -> SimRuntime:
        node = SimRuntime(self.loop, self.network, self.seed, name, f"10.0.0.{len(self.nodes) + 2}")
        self.nodes.append(node)
        return node

    async def nameserver(self) -> str:
        node = self.node("nameserver")
        await NameServer(node, node.ip, 9876).start()
        return f"{node.ip}:9876"

    async def broker(
        self, disk: SimDisk | None = None, *, ahead_ms: int = 0, alone: bool = False, **changes: Any
    ) -> Broker:
        """A broker; its machine's wall clock is ahead of the others'. With `alone` an operator lets
        it lead without its slaves' word."""
        node = self.node(f"broker-{len(self.nodes)}")
        node.jump_wall_clock(ahead_ms)
        options = {
            "commitlog_segment_bytes": 1 << 20,
            "consumequeue_segment_bytes": 20 * 1000,
            "index_slots": 100,
            "index_items": 400,
            "zero_ahead_bytes": 8 << 10,
            **changes.pop("store_options", {}),
        }
        config = BrokerConfig(
            root="/store",
            host=node.ip,
            port=changes.pop("port", 10911),
            max_idle_s=changes.pop("max_idle_s", 10**9),  # `Remote` does not say that it lives
            ha_port=10912,
            register_ms=1000,
            default_topic_queues=8,
            store_options=options,
            **changes,
        )
        broker = Broker(config, node, disk or self.disk)
        await broker.start()
        if alone:
            operator = await self.connect(broker.address)
            forced = {"epoch": TERM, "force": "true", "insist": "true"}
            reply = await operator.ask(RequestCode.PROMOTE, forced)
            assert reply.code == 0, reply.remark
            broker.ground.master._slaves_by = 0.0  # it waits for none that dial
        return broker

    async def connect(
        self, address: str, heard: Callable[[Endpoint, Command], None] = lambda e, c: None
    ) -> Remote:
        node = self.node(f"client-{len(self.nodes)}")
        endpoint = Endpoint(node, heard)
        host, _, port = address.rpartition(":")
        await node.connect(host, int(port), endpoint)
        return Remote(endpoint)

    async def until(
        self, check: Callable[[], Any], seconds: float = 60.0, every: float = 0.001
    ) -> None:
        async with asyncio.timeout(seconds):
            while not check():
                await asyncio.sleep(every)


@dataclass
class Remote:
    """One connection to a broker; plain Remoting commands."""

    endpoint: Endpoint

    async def ask(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", seconds: float = 60.0
    ) -> Command:
        texts = {name: str(value) for name, value in (ext or {}).items()}
        return await self.endpoint.request(Command.request(code, texts, body), seconds)

    async def send(self, body: bytes, topic: str = "T", queue: int = 0, **names: str) -> Command:
        properties = "".join(f"{k}\x01{v}\x02" for k, v in names.items())
        ext = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue, "f": 0, "g": 1, "h": 0}
        return await self.ask(310, {**ext, "i": properties}, body)

    async def pull(self, offset: int, topic: str = "T", queue: int = 0, **more: Any) -> Command:
        ext = {
            "consumerGroup": "G",
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
        }
        return await self.ask(11, {**ext, **more})

    async def commit(
        self, offset: int, group: str = "G", topic: str = "T", queue: int = 0, **more: Any
    ) -> Command:
        ext = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
        return await self.ask(15, {**ext, **more})

    async def committed(self, group: str = "G", topic: str = "T", queue: int = 0) -> int | None:
        """The offset that the broker has of the group; None if it has none."""
        ext = {"consumerGroup": group, "topic": topic, "queueId": queue}
        answer = await self.ask(14, {**ext, "setZeroIfNotFound": "false"})
        return int(answer.ext["offset"]) if answer.code == 0 else None


def run(body: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    """Run a test in virtual time; nothing may have died unheard."""
    loop = SimLoop(random.Random(seed))
    world = World(loop, seed)
    try:
        loop.run_until_complete(body(world))
        assert loop.failures == []
        assert [death for node in world.nodes for death in node.deaths] == []
    finally:
        loop.close()


def saved_json(disk: Disk, name: str) -> dict[str, Any]:
    """A table of `config/` as it is on the disk."""
    found = json.loads(disk.read_file(f"/store/config/{name}"))
    assert isinstance(found, dict)
    return found

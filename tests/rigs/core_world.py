"""Servers and clients in virtual time, for what all clients share: connections and heartbeats."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from client_fakes import cluster_info
from saturnmq.client.core import ClientCore
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimListener, SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute


class Server:
    """A nameserver or a broker, which notes what it is asked."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.runtime = SimRuntime(world.loop, world.network, 1, f"s{number}", f"10.0.0.{number}")
        self.address = f"10.0.0.{number}:9876"
        self.asked: list[tuple[float, Command]] = []
        self.does: Callable[[Endpoint, Command], None] | None = None
        self.lines: list[Endpoint] = []
        self.listener: SimListener | None = None

    async def open(self) -> None:
        def accept() -> Endpoint:
            self.lines.append(Endpoint(self.runtime, self.serve, server=True))
            return self.lines[-1]

        self.listener = await self.runtime.listen(self.runtime.ip, 9876, accept)

    def shut(self) -> None:
        assert self.listener is not None
        self.listener.close()
        for line in self.lines:
            line.abort()

    def serve(self, endpoint: Endpoint, command: Command) -> None:
        command.body = bytes(command.body)
        self.asked.append((self.world.now, command))
        if self.does is not None:
            self.does(endpoint, command)
        elif command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = self.world.topics.get(command.ext["topic"])
            if topic is None:
                endpoint.send(command.reply(17, "unknown"), command)
            else:
                endpoint.send(command.reply(body=fastjson.dumps(topic.to_json())), command)
        elif command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            routes = self.world.topics.values()
            body = cluster_info(each for route in routes for each in route.brokers)
            endpoint.send(command.reply(body=body), command)
        else:
            endpoint.send(command.reply(remark=self.address), command)

    def when(self, code: int) -> list[float]:
        """The times."""
        return sorted(at for at, command in self.asked if command.code == code)

    def connected(self) -> int:
        return sum(not line.closed for line in self.lines)


class Client(SimRuntime):
    """The machine of the client, which notes whom it calls."""

    dialled: list[str]

    async def connect(
        self, host: str, port: int, protocol: asyncio.BaseProtocol, **options: Any
    ) -> Any:
        self.dialled.append(f"{host}:{port}")
        return await super().connect(host, port, protocol, **options)


class World:
    """Servers 10.0.0.1 and so on, of which `open` ones listen, and clients of them."""

    def __init__(self) -> None:
        self.loop = SimLoop(random.Random(1))
        self.network = SimNetwork(self.loop, 1, (0.001, 0.001), 0.0)
        self.runtime = Client(self.loop, self.network, 1, "client", "10.0.0.99")
        self.runtime.dialled = []
        self.servers = {number: Server(self, number) for number in range(1, 6)}
        self.topics: dict[str, TopicRoute] = {}
        self.begun = self.loop.time()

    @property
    def now(self) -> float:
        return round(self.loop.time() - self.begun, 2)

    def core(self, *nameservers: int, **options: Any) -> ClientCore:
        addresses = [self.servers[number].address for number in nameservers or (1,)]
        return ClientCore(self.runtime, addresses, **options)

    def route(self, topic: str = "T", **brokers: dict[int, int]) -> None:
        """From now on `topic` is on these brokers: server numbers by broker ids."""
        self.topics[topic] = TopicRoute(
            [QueueData(name, 1, 1, 6) for name in brokers],
            [
                BrokerData("C", name, {i: self.servers[n].address for i, n in ids.items()})
                for name, ids in brokers.items()
            ],
        )

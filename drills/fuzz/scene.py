"""Brokers and nameservers in virtual time, as long as one turn or one round lasts."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.drills.sim.trace import Trace
from saturnmq.nameserver.server import NameServer

ROOT = "/store"
SMALL: dict[str, Any] = {
    "commitlog_segment_bytes": 64 << 10,
    "consumequeue_segment_bytes": 20 * 100,
    "index_slots": 20,
    "index_items": 80,
    "zero_ahead_bytes": 4096,
}
T = TypeVar("T")


class Untraced(Trace):
    """A trace that notes nothing: no run is compared with this one."""

    def note(self, kind: str, text: str = "", data: bytes | memoryview = b"") -> None:
        pass


class FuzzScene:
    """Machines on one simulated network. `run` as often as need be, then `close`."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.loop = SimLoop(random.Random(seed), Untraced())
        self._network = SimNetwork(self.loop, seed)
        self.nodes: list[SimRuntime] = []

    def node(self, name: str) -> SimRuntime:
        ip = f"10.0.0.{len(self.nodes) + 2}"
        node = SimRuntime(self.loop, self._network, self._seed, name, ip)
        self.nodes.append(node)
        return node

    async def nameserver(self) -> str:
        node = self.node("nameserver")
        await NameServer(node, node.ip, 9876).start()
        return f"{node.ip}:9876"

    async def broker(self, disk: SimDisk, *nameservers: str, **changes: Any) -> Broker:
        """Raises what keeps it from starting."""
        node = self.node(f"broker-{len(self.nodes)}")
        config = BrokerConfig(
            root=ROOT,
            host=node.ip,
            port=10911,
            ha_port=10912,
            register_ms=1000,
            nameservers=nameservers,
            store_options=SMALL,
            **changes,
        )
        broker = Broker(config, node, disk)
        await node.run(broker.start())
        return broker

    def run(self, body: Callable[[], Awaitable[T]]) -> T:
        """Violation: a task has died, or a callback failed."""
        result = self.loop.run_until_complete(body())
        self.look()
        return result

    def look(self) -> None:
        """Violation: something has failed unheard."""
        deaths = [death for node in self.nodes for death in node.deaths]
        if failures := [*map(str, self.loop.failures), *deaths]:
            raise Violation(f"failed unheard: {failures[0]}")

    def close(self) -> None:
        for node in self.nodes:
            node.power_off()
        self.loop.close()


def files_of(disk: SimDisk) -> dict[str, bytes]:
    """All files, by path."""
    return {path: disk.content(path) for path in disk.paths()}


def disk_of(files: dict[str, bytes], seed: int) -> SimDisk:
    """A disk with these files."""
    disk = SimDisk(random.Random(seed))
    for path, data in files.items():
        disk.make_dirs(path.rpartition("/")[0])
        disk.write_file(path, data)
    return disk

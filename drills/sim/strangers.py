"""Brokers that are where they do not belong (F17): of another cluster, twice, not yet known, or
with the configuration of another node.

Another cluster with the same names (`foreign_slave`, `foreign_master`) lives for a moment on
machines and with a nameserver of its own: it has messages, consumers that are far, and promotions
behind it. Then one of its nodes is started by mistake with the nameservers of this cluster, and
stopped again. Nothing of it may be seen here, and nothing may be gone. Where nodes share a secret
it has another one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from saturnmq.broker.config import BrokerConfig
from saturnmq.client.admin.admin import Admin
from saturnmq.drills.sim.history import SimHistory
from saturnmq.drills.sim.load import BOOKKEEPER, READERS, SimSender
from saturnmq.drills.sim.nodes import SimBroker, SimNameServer, Span
from saturnmq.drills.sim.plan import BROKER_PORT, TOPIC
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import Signing
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster
    from saturnmq.drills.sim.faults import Faults

LANE = "foreign"
NAMESERVERS = 100  # of other clusters: their numbers
PATIENCE_S = 20.0  # to set up what a fault is about; it is left out if that takes longer
JOINED_S = 5.0
NEW_SLAVES = 2  # per run


class Strangers:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._cluster = faults.cluster
        self._rng = faults.rng
        self._number = self._new = 0
        self.kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "foreign_slave": self._foreign_slave,
            "foreign_master": self._foreign_master,
            "cloned_node": self._cloned_node,
            "new_slave": self._new_slave,
            "master_in_file": self._master_in_file,
        }

    async def _foreign_slave(self) -> None:
        await self._start_by_mistake("foreign slave")

    async def _foreign_master(self) -> None:
        await self._start_by_mistake("foreign master")

    async def _start_by_mistake(self, kind: str) -> None:
        self._number += 1
        group = self._rng.choice(self._cluster.groups)
        foreign = SimForeignCluster(self._cluster, self._number, group)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await foreign.live(self._rng.randint(5, 40), self._rng.choice((0, 1, 2, 2)))
                node = await foreign.end(masters=kind == "foreign master")
        except (TimeoutError, SaturnError) as error:
            self._cluster.trace.note("fault.left-out", f"{kind}: {error!r}")
            await foreign.abandon()
            return
        # Nameservers that know of nothing believe who comes first: only a master that waits for
        # copies, and has no slave here, takes nothing from clients then.
        forget = self._rng.random() < 0.3
        dials = self._rng.random() < 0.5
        if self._cluster.plan.copies > 1:
            if forget:
                await self._faults.restart(self._cluster.nameservers, 0.0)
            nodes = self._cluster.nodes_of(group)
            if not self._misleads(kind) or all(map(self._cluster.is_whole, nodes)):
                foreign.moves_here(dials)
                await self._stay(kind, node)
            else:
                self._cluster.trace.note("fault.left-out", f"{kind}: a disk may be empty")
        else:
            async with self._faults.restarting:
                if all(each.knows(group) for each in self._cluster.nameservers):
                    foreign.moves_here(dials)
                    await self._stay(kind, node)
                else:
                    self._cluster.trace.note("fault.left-out", f"{kind}: a nameserver is new")
        await foreign.abandon()

    def _misleads(self, kind: str) -> bool:
        """Whether a node here that has forgotten its group may follow this stranger, and be the
        copy that it waits for. An etcd remembers; nameservers may forget as well."""
        cluster = self._cluster
        return kind == "foreign master" and cluster.plan.copies > 1 and cluster.etcd is None

    async def _stay(self, kind: str, node: SimBroker) -> None:
        self._faults.note(kind, node.name)
        self._faults.misled[node.group] += self._misleads(kind)
        await node.boot()
        await self._faults.last(self._rng.choice((1.0, 5.0, 15.0)))
        await _stop(node)
        self._faults.misled[node.group] -= self._misleads(kind)

    async def _cloned_node(self) -> None:
        """A slave is started from a copy of another one's disk, and has its id."""
        slaves = [node for node in self._cluster.brokers if node.follows and not node.busy]
        if not slaves:
            return
        original = self._rng.choice(slaves)
        self._number += 1
        clone = SimBroker(
            self._cluster.world,
            original.group,
            original.number,
            lambda node: self._cluster.config_of(node, self._cluster.nameservers),
            name=f"clone{self._number}",
            ip=f"10.4.{self._number}.1",
        )
        clone.may_refuse = True
        self._cluster.strangers.append(clone)
        clone.disk.restore(original.disk.crash_image(self._rng))
        self._faults.note("node cloned", original.name)
        await clone.boot()
        await self._faults.last(self._rng.choice((1.0, 5.0, 15.0)))
        await _stop(clone)

    async def _new_slave(self) -> None:
        """Add a slave that alone follows the master, which loses its power soon after the slave
        counts."""
        master = self._faults.victim(masters_only=True)
        if master is None or self._new >= NEW_SLAVES or not self._faults.may_age(master):
            return
        self._new += 1
        group = self._cluster.nodes_of(master.group)
        number = max(node.number for node in group) + 1
        node = SimBroker(
            self._cluster.world,
            master.group,
            number,
            lambda node: self._cluster.config_of(node, self._cluster.nameservers),
        )
        master.busy = node.busy = True
        others = [other.name for other in group if other is not master]
        span = Span(self._cluster.loop.time())
        for other in group:
            other.past.isolated.append(span)
        self._cut([master.name], others)
        self._cluster.brokers.append(node)
        self._faults.note("new slave", node.name)
        if self._rng.random() < 0.5:  # its writes take time
            master.past.idle.append(span)
            master.runtime.blocking_latency_s = (0.005, self._rng.choice((0.05, 0.3)))
        node.age()
        await node.boot()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOINED_S):
                while master.up and master.log_end > node.log_end:
                    await asyncio.sleep(0.01)
        await self._faults.last(self._rng.choice((0.01, 0.1, 1.0)) * self._rng.random())
        self._faults.note("power lost", master.name)
        master.lose_power()
        self._mend([master.name], others)
        span.end = self._cluster.loop.time()
        node.busy = False
        await self._faults.bring_back(master)

    async def _master_in_file(self) -> None:
        """A slave is stopped and started with the configuration of a master, as if that moved the
        role; after a while the operator puts its own one back."""
        node = self._faults.victim(slaves_only=True)
        if node is None:
            return
        node.busy = node.may_refuse = True
        await node.stop()
        await node.settle()
        self._faults.note("slave configured as master", node.name)
        node.id_in_file = 0
        if await node.boot():
            await self._faults.last(self._rng.choice((1.0, 5.0, 15.0)))
            await node.stop()
        node.id_in_file, node.may_refuse = node.number, False
        await self._faults.bring_back(node)

    def _cut(self, a: list[str], b: list[str]) -> None:
        self._cluster.world.network.partition(a, b)
        self._cluster.world.network.partition(b, a)

    def _mend(self, a: list[str], b: list[str]) -> None:
        self._cluster.world.network.mend(a, b)
        self._cluster.world.network.mend(b, a)


class SimForeignCluster:
    """A master and a slave of a group that has the same name here."""

    def __init__(self, cluster: SimCluster, number: int, group: str) -> None:
        self._cluster, self._group, self._number = cluster, group, number
        self._secret = cluster.plan.secret and f"{cluster.plan.secret}, of others"
        self._nameservers = [SimNameServer(cluster.world, NAMESERVERS + number)]
        self._nameservers[0].signing = Signing(self._secret)
        self._dialled = ""  # the HA address that its nodes are told
        self._home = self._nameservers  # the nameservers that they are told
        self._nodes = [
            SimBroker(
                cluster.world,
                group,
                each,
                self._config,
                name=f"foreign{number}-{each}",
                ip=f"10.2.{number}.{each + 1}",
            )
            for each in range(2)
        ]
        for node in self._nodes:
            node.may_refuse = True
        cluster.strangers += self._nodes
        self._client = SimSender(cluster, f"foreign{number}-client", f"10.3.{number}.1")
        self._client.nameservers = self._nameservers
        self._client.signing = Signing(self._secret)

    def _config(self, node: SimBroker) -> BrokerConfig:
        config = self._cluster.config_of(node, self._home, self._dialled)
        return replace(config, replication_secret=self._secret)

    async def live(self, messages: int, promotions: int) -> None:
        """Its life before."""
        for nameserver in self._nameservers:
            await nameserver.boot()
        for node in self._nodes:
            await node.boot()
        await self._client.start()
        admin = Admin(core=self._client.producer.core, timeout=2.0)
        await self._until_done(
            lambda: admin.create_topic(TOPIC, queues=self._cluster.plan.queues), SaturnError
        )
        history = SimHistory()
        for counter in range(messages):
            value = f"{LANE}{self._number}/{counter}"
            await self._run(self._client.attempt(history, LANE, value))
        await self._until_equal()
        for promotion in range(promotions):
            target = self._nodes[(promotion + 1) % 2]
            await self._run(admin.promote(self._group, target.address))
            await self._until_equal()
        await self._commit_offsets(history)
        plan = self._cluster.plan
        await asyncio.sleep(2 * plan.tables_s + 2 * plan.offsets_s)

    async def _commit_offsets(self, history: SimHistory) -> None:
        """Commit offsets for this cluster's groups at the foreign master: as if all sent messages
        were consumed."""
        master = next(node for node in self._nodes if node.leads)
        for queue in range(self._cluster.plan.queues):
            end = history.ends.get((self._group, queue), 0)
            for group in (BOOKKEEPER, *READERS):
                ext = {
                    "consumerGroup": group,
                    "topic": TOPIC,
                    "queueId": str(queue),
                    "commitOffset": str(end),
                }
                request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
                core = self._client.producer.core
                await self._run(core.invoke(master.address, request, 1.0))

    async def _until_equal(self) -> None:
        while (
            not any(node.leads for node in self._nodes)
            or len({node.log_end for node in self._nodes}) > 1
        ):
            await asyncio.sleep(0.05)

    async def _until_done(
        self, work: Callable[[], Coroutine[Any, Any, None]], error: type[Exception]
    ) -> None:
        while True:
            try:
                return await self._run(work())
            except error:
                await asyncio.sleep(0.2)

    async def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        await self._client.runtime.run(work)

    async def end(self, *, masters: bool) -> SimBroker:
        """All of it is stopped; the node that is to be started in the wrong place."""
        node = next(node for node in self._nodes if node.leads is masters)
        for each in self._nodes:
            await each.stop()
            await each.settle()
        await self._leave()
        return node

    async def _leave(self) -> None:
        self._client.runtime.power_off()
        await self._client.runtime.settle()
        for nameserver in self._nameservers:
            await nameserver.kill()

    def moves_here(self, dials: bool) -> None:
        """Configure the node for this cluster; `dials`: with its master's HA address, too."""
        self._home = self._cluster.nameservers
        if dials:
            ip = self._cluster.master_of(self._group).ip
            self._dialled = f"{ip}:{BROKER_PORT + 1}"

    async def abandon(self) -> None:
        for node in self._nodes:
            await _stop(node)
        if not self._client.runtime.off:
            await self._leave()


async def _stop(node: SimBroker) -> None:
    node.kill()
    await node.settle()

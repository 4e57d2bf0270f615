"""The faults of a simulated cluster's etcd: away, out of reach, slow, wrong credentials,
compacted, restored from an older backup.

A restored etcd names masters, and who is in sync, of before. Nodes that it had told more refuse it
and say so; sometimes an operator then does what they say. A node that was told nothing since the
backup cannot know. Where sends wait for copies the other members stop it from a promotion that
loses something. Where they do not, a master that is cut off relies on what it wrote last of who may
be elected (`docs/election.md`): so there a backup that says otherwise is restored as another
cluster, which every node refuses that ever asked the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from saturnmq.drills.sim.etcd import ETCD, EtcdStore
from saturnmq.drills.sim.plan import ROOT

if TYPE_CHECKING:
    from saturnmq.drills.sim.faults import Faults

LOOK_S = 0.5


class EtcdFaults:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._cluster = faults.cluster
        self._rng = faults.rng
        self.kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "etcd_away": self._away,
            "etcd_cut_off": self._cut_off,
            "etcd_slow": self._slow,
            "etcd_denied": self._denied,
            "etcd_compacted": self._compacted,
            "etcd_restored": self._restored,
        }

    @property
    def _etcd(self) -> EtcdStore:
        etcd = self._cluster.etcd
        assert etcd is not None, "plans without one do not draw this"
        return etcd

    def _names(self) -> list[str]:
        return [node.name for node in self._cluster.brokers]

    async def _away(self) -> None:
        self._faults.note("etcd away")
        self._etcd.go_away()
        await self._faults.last(self._rng.choice((0.3, 3.0, 10.0, 30.0)))
        self._etcd.come_back()

    async def _cut_off(self) -> None:
        """Cut etcd off from one broker or all, in one direction or both."""
        brokers = self._names()
        if self._rng.random() < 0.7:
            brokers = [self._rng.choice(brokers)]
        a, b = ([ETCD], brokers) if self._rng.random() < 0.5 else (brokers, [ETCD])
        await self._faults.cut("etcd cut off", a, b, both_ways=self._rng.random() < 0.5)

    async def _slow(self) -> None:
        self._faults.note("etcd slow")
        latency = self._rng.choice(((0.05, 0.3), (0.3, 0.7), (0.5, 2.0)))
        names, network = self._names(), self._faults.network
        for name in names:
            network.slow_down(name, ETCD, latency)
            network.slow_down(ETCD, name, latency)
        await self._faults.last(self._rng.uniform(1.0, 15.0))
        for name in names:
            network.slow_down(name, ETCD, None)
            network.slow_down(ETCD, name, None)

    async def _denied(self) -> None:
        """The password of one broker or all is not what it was."""
        brokers = self._names()
        if self._rng.random() < 0.6:
            brokers = [self._rng.choice(brokers)]
        self._faults.note("etcd denies", ", ".join(brokers))
        self._etcd.denied |= {*brokers}
        await self._faults.last(self._rng.choice((0.5, 3.0, 10.0, 30.0)))
        self._etcd.denied -= {*brokers}

    async def _compacted(self) -> None:
        """While a broker, or none, is cut off, whose watch comes back too late."""
        brokers = self._names()
        if self._rng.random() < 0.7:
            brokers = [self._rng.choice(brokers)]
        await self._faults.cut("etcd cut off", [ETCD], brokers)
        self._faults.note("etcd compacted")
        self._etcd.compact()

    async def _restored(self) -> None:
        etcd = self._etcd
        backup, in_sync = etcd.back_up(), etcd.in_sync()
        await self._faults.last(self._rng.uniform(0.0, self._cluster.plan.safety_s / 2))
        if self._faults.over:
            return
        etcd.go_away()
        await self._faults.last(self._rng.choice((0.3, 3.0, 10.0)))
        older = etcd.in_sync() != in_sync and self._cluster.plan.copies == 1
        renamed = self._rng.random() < 0.3 or older
        self._faults.note("etcd restored", "as another cluster" if renamed else "")
        etcd.restore(backup, renamed=renamed)
        etcd.come_back()
        await self._faults.last(self._rng.choice((1.0, 10.0, 30.0)))
        if self._rng.random() < 0.5:
            for group in self._cluster.groups:
                await self._accept(group)

    async def _accept(self, group: str) -> None:
        """An operator does what nodes say that were told more."""
        nodes = self._cluster.nodes_of(group)
        while not all(node.up and not node.busy for node in nodes):
            if self._faults.over:
                return
            await asyncio.sleep(LOOK_S)
        self._faults.note("restored etcd accepted", group)
        for node in nodes:
            node.busy = True
        for node in nodes:
            await node.stop()
        if self._rng.random() < 0.5:  # some operators forget that
            self._etcd.delete_record(group)
            self._cluster.operator.has_deleted_record(group)
        for node in nodes:
            memory = f"{ROOT}/config/election.json"
            node.disk.lose(*(path for path in node.disk.paths() if path.startswith(memory)))
        async with asyncio.TaskGroup() as booting:
            for node in nodes:
                booting.create_task(self._faults.bring_back(node))

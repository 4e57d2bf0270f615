"""A drill and its `DrillRun`, whose methods each do one thing to the cluster and record it.
At the end of a drill `DrillRun.mend` repairs the cluster.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from saturnmq.cli import local_etcd
from saturnmq.drills.failover.backend import BROKER, CLIENTS, ETCD, NAMESERVER, Backend, Feature
from saturnmq.drills.failover.checker import DrillVerdict
from saturnmq.drills.failover.history import History
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import SaturnError

MIX_MINUTES = 1.0
ELECTED_S = 30.0
LOOK_S = 0.05

Live = Callable[[Backend, Path, int, Callable[[str], None]], DrillVerdict]
"""`live(backend, directory, seed, say)` on a cluster that serves."""


class DrillRun:
    """The cluster of one drill, and what has been done to it."""

    def __init__(
        self,
        backend: Backend,
        history: History,
        admin: Any,
        seed: int,
        say: Callable[[str], None],
        *,
        minutes: float = MIX_MINUTES,
        leaders: dict[str, str] | None = None,
    ) -> None:
        """`leaders`: who leads each group, kept true by somebody else; None: nobody is elected."""
        self.backend = backend
        self.history = history
        self.admin = admin
        self.chance = random.Random(f"{seed}/faults")
        self.minutes = minutes
        self._say = say
        self._look_at_nodes()
        self.groups = sorted({node.group for node in backend.nodes if node.group})
        self.elects = leaders is not None
        configured = {n.group: n.name for n in backend.nodes if n.group and not n.broker_id}
        self._masters = configured if leaders is None else leaders
        self._paused: set[str] = set()
        self._slow: set[str] = set()
        self._full: set[str] = set()
        self._shifted: set[str] = set()
        self._cuts: set[str] = set()

    def within(self, group: str) -> DrillRun:
        """The same run, for faults that hit this group only."""
        narrowed = copy.copy(self)
        narrowed.groups = [group]
        narrowed.chance = random.Random(self.chance.getrandbits(32))
        return narrowed

    # -- who is who --------------------------------------------------------------------------------

    def group(self) -> str:
        """Draw one of the broker groups."""
        return self.chance.choice(self.groups)

    def master(self, group: str) -> str:
        """The node that is the group's master, as far as this drill knows."""
        return self._masters[group]

    def slaves(self, group: str) -> list[str]:
        """Its other nodes."""
        members = [node.name for node in self._nodes.values() if node.group == group]
        return [name for name in members if name != self._masters[group]]

    def slave(self, group: str) -> str:
        """Draw one of the group's slaves."""
        return self.chance.choice(self.slaves(group))

    def _look_at_nodes(self) -> None:
        self._nodes = {node.name: node for node in self.backend.nodes}

    @property
    def nameservers(self) -> list[str]:
        return [node.name for node in self._nodes.values() if node.kind == NAMESERVER]

    @property
    def brokers(self) -> list[str]:
        return [node.name for node in self._nodes.values() if node.kind == BROKER]

    @property
    def etcds(self) -> list[str]:
        return [node.name for node in self._nodes.values() if node.kind == ETCD]

    async def etcd_leader(self) -> str:
        async with asyncio.timeout(ELECTED_S):
            while True:
                for name in self.etcds:
                    place = split_address(self._nodes[name].address)
                    if await asyncio.to_thread(local_etcd.leads, *place):
                        return name
                await asyncio.sleep(LOOK_S)

    async def sleep(self, seconds: float, jitter: float = 0.25) -> None:
        """About so long."""
        await asyncio.sleep(seconds * self.chance.uniform(1 - jitter, 1 + jitter))

    # -- what can be done --------------------------------------------------------------------------

    async def kill(self, *names: str) -> None:
        await self._fault(f"kill -9 {', '.join(names)}", names, self.backend.kill)

    async def stop(self, name: str) -> None:
        await self._fault(f"stop {name}", [name], self.backend.stop)

    async def restart(self, *names: str) -> None:
        await self._heal(f"restart {', '.join(names)}", names, self.backend.restart)

    async def pause(self, name: str) -> None:
        self._paused.add(name)
        await self._fault(f"pause {name}", [name], self.backend.pause)

    async def resume(self, name: str) -> None:
        self._paused.discard(name)
        await self._heal(f"resume {name}", [name], self.backend.resume)

    async def slow(self, name: str, share: float) -> None:
        self._slow.add(name)
        text = f"{name} runs {share:.0%} of the time"
        await self._fault(text, [name], lambda name: self.backend.slow(name, share))

    async def quick(self, name: str) -> None:
        self._slow.discard(name)
        text = f"{name} runs all the time"
        await self._heal(text, [name], lambda name: self.backend.slow(name, 1.0))

    async def cut(self, a: str, *others: str, one_way: bool = False) -> None:
        """Part `a` from each of the others; one way: what `a` sends does not arrive."""
        self._cuts.add(a)
        there = ", ".join(others)
        text = f"nothing from {a} reaches {there}" if one_way else f"{a} is parted from {there}"
        node = a if a != CLIENTS else others[0]

        def act(_name: str) -> None:
            for other in others:
                self.backend.partition(a, other, one_way=one_way)

        await self._fault(text, [node], act)

    async def join(self) -> None:
        self._cuts.clear()
        await self._heal("partitions end", [""], lambda _name: self.backend.heal())

    async def fill_disk(self, name: str) -> None:
        self._full.add(name)
        await self._fault(f"the disk of {name} is full", [name], self.backend.fill_disk)

    async def free_disk(self, name: str) -> None:
        self._full.discard(name)
        await self._heal(f"the disk of {name} has room", [name], self.backend.free_disk)

    async def shift_clock(self, name: str, seconds: float) -> None:
        self._shifted.add(name)
        text = f"the clock of {name} jumps {seconds:+g} s"
        await self._fault(text, [name], lambda name: self.backend.shift_clock(name, seconds))

    async def right_clock(self, name: str) -> None:
        self._shifted.discard(name)
        text = f"the clock of {name} is right"
        await self._heal(text, [name], lambda name: self.backend.shift_clock(name, 0.0))

    async def wipe(self, name: str) -> None:
        await self._fault(f"the store of {name} is deleted", [name], self.backend.wipe)

    async def spoil(self, name: str, what: str, act: Callable[[Path], None]) -> None:
        """Do something to its disk, of which it knows nothing."""
        await self._fault(f"{name}: {what}", [name], lambda name: act(self.backend.store(name)))

    async def strange(self, what: str, act: Callable[[str], object]) -> None:
        """Do something that a correct cluster withstands without harm."""
        self._mark("fault", what, "")
        await asyncio.to_thread(act, "")
        self.history.add("struck", what)

    async def gone(self, what: str, act: Callable[[str], object]) -> None:
        await asyncio.to_thread(act, "")
        self._mark("heal", what, "")

    async def add_slave(self, group: str) -> str:
        name = await asyncio.to_thread(self.backend.add_slave, group)
        self._look_at_nodes()
        self._mark("heal", f"{name} is new", group)
        return name

    async def flushed(self, name: str) -> int:
        """The flushed position of a node's log, by its own report."""
        address = self._nodes[name].address
        members = await self.admin.replicas(self._nodes[name].group)
        flushed: int = next(member.flushed for member in members if member.address == address)
        return flushed

    async def is_replicated(self, within_s: float) -> bool:
        """Whether all members of all groups have one log by then."""
        deadline = self.history.now() + within_s
        while self.history.now() < deadline:
            try:
                members = await self.admin.replicas()
            except SaturnError:
                members = []
            masters = [member for member in members if member.is_master]
            following = [member for member in members if member.answers and member.in_sync]
            if (len(masters), len(masters) + len(following)) == (
                len(self.groups),
                len(self.brokers),
            ):
                return True
            await asyncio.sleep(0.5)
        return False

    async def promote(self, group: str, name: str, *, planned: bool = False) -> None:
        """Make a slave the master: a fault to look at if it is planned, else a remedy."""
        self._mark("fault" if planned else "heal", f"promote {name}", group)
        done = await self.admin.promote(group, self._nodes[name].address)
        self._masters[group] = name
        if planned:
            self.history.add("struck", f"promote {name}")
        self._mark("heal", f"{name} is master", group, note=f"epoch {done.epoch}")

    async def succeed(self, old: str, new: str = "") -> None:
        """Let another node lead the group of `old`: promote `new`, or, if masters are elected, wait
        for the elected one. The wait also ends when `old` is back first."""
        group = self._nodes[old].group
        if not self.elects:
            await self.promote(group, new)
            return
        deadline = self.history.now() + ELECTED_S
        while self._masters[group] == old and self._is_away(old):
            if self.history.now() > deadline:
                raise TimeoutError(f"{group} has elected nobody in {ELECTED_S:g} s without {old}")
            await asyncio.sleep(LOOK_S)
        self._mark("heal", f"{self._masters[group]} is master", group)

    def _is_away(self, name: str) -> bool:
        hurt = name in self._cuts or name in self._paused
        return hurt or not self.backend.alive(name)

    async def upgrade(self) -> None:
        what = "rolling upgrade"
        self._mark("fault", what, "")
        self.history.add("struck", what)
        await asyncio.to_thread(self.backend.upgrade, self._say)
        self._mark("heal", "every node was restarted", "")

    # -- the end -----------------------------------------------------------------------------------

    async def mend(self) -> None:
        """End every fault and start whatever does not run."""
        if self._cuts:
            await self.join()
        for name in sorted(self._paused):
            await self.resume(name)
        for name in sorted(self._slow):
            await self.quick(name)
        for name in sorted(self._full):
            await self.free_disk(name)
        for name in sorted(self._shifted):
            await self.right_clock(name)
        dead = [name for name in self._nodes if not self.backend.alive(name)]
        if dead:
            await self.restart(*dead)
        self._mark("calm", "", "")

    # -- writing it down ---------------------------------------------------------------------------

    async def _fault(self, what: str, names: Any, act: Callable[[str], None]) -> None:
        """Marked before it is done: what is felt of it comes later; and when it is."""
        groups = {self._nodes[name].group for name in names if name in self._nodes}
        self._mark("fault", what, groups.pop() if len(groups) == 1 else "")
        await asyncio.gather(*(asyncio.to_thread(act, name) for name in names))
        self.history.add("struck", what)

    async def _heal(self, what: str, names: Any, act: Callable[[str], None]) -> None:
        """Heal these nodes in this order, and mark the end of it."""
        for name in names:
            await asyncio.to_thread(act, name)
        self._mark("heal", what, "")

    def _mark(self, kind: str, what: str, group: str, note: str = "") -> None:
        event = self.history.add(kind, what, broker=group, note=note)
        self._say(f"{event.at:6.1f} s  {what or 'all faults have ended'}")


@dataclass(frozen=True)
class Drill:
    """One kind of drill."""

    name: str
    text: str
    act: Callable[[DrillRun], Awaitable[None]] | None
    features: tuple[Feature, ...] = ()
    optional: tuple[Feature, ...] = ()  # used if the machine can
    # A slave is promoted without its old master's help: where replication is asynchronous, what
    # only the old master had is lost to the readers.
    leaves_behind: bool = False
    rate: int = 0  # sends a second; 0: the usual
    padding: int = 0  # bytes of body; 0: the usual
    broker_options: Mapping[str, Any] = field(default_factory=dict)
    # An operator is at work meanwhile (`chores.py`); queues of the loaded topic come and go.
    chores: bool = False
    slaves: int = 1  # of each master
    steady: bool = False  # no send fails, of those who repeat what was refused
    # So long clients go on to commit with a master that is to be replaced, and nobody else hears.
    lone_s: float = 0.0
    # Only where an acknowledgement waits for a copy: else a lost disk may take what it had.
    needs_copies: bool = False
    # Instead of `act`: what loads and hurts the cluster in a way of its own, and judges it.
    live: Live | None = None

    @property
    def elects(self) -> bool:
        """Whether groups elect their masters, without an operator."""
        return "etcd" in self.features

    def with_elections(self) -> Drill:
        """The drill with elections and two slaves: sends go on with a copy when one of them
        leads."""
        return replace(self, features=(*self.features, "etcd"), slaves=2)


async def together(*acts: Awaitable[None]) -> None:
    """All at once, each to its end; then the first error is raised."""
    for outcome in await asyncio.gather(*acts, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome

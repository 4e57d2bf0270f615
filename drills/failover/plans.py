"""The drills: which faults are made when. What is drawn is drawn from the seed.

Each gets a `Run`, whose methods do one thing to the cluster and write it into the history. What a
drill leaves broken is mended at its end (`Run.mend`).
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saturnmq.drills.failover.backend import BROKER, CLIENTS, NAMESERVER, Backend, Feature
from saturnmq.drills.failover.checker import Verdict
from saturnmq.drills.failover.history import History

OUTAGE_S = 6.0
PAUSE_S = 30.0
MIX_MINUTES = 1.0
# A log that rolls while its disk is full, and of which nothing is deleted to make room.
SMALL_SEGMENTS = {"mappedFileSizeCommitLog": 1 << 20, "cleanFileForciblyEnable": False}


Live = Callable[[Backend, Path, int, Callable[[str], None]], Verdict]
"""`live(backend, directory, seed, say)` on a cluster that serves."""


class Run:
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
    ) -> None:
        self.backend = backend
        self.history = history
        self.admin = admin
        self.chance = random.Random(f"{seed}/faults")
        self.minutes = minutes
        self._say = say
        self._nodes = {node.name: node for node in backend.nodes}
        self.groups = sorted({node.group for node in backend.nodes if node.group})
        self._masters = {n.group: n.name for n in backend.nodes if n.group and not n.broker_id}
        self._paused: set[str] = set()
        self._slow: set[str] = set()
        self._full: set[str] = set()
        self._shifted: set[str] = set()
        self._cuts: set[str] = set()

    def within(self, group: str) -> Run:
        """The same cluster for somebody who hurts this group only."""
        narrowed = copy.copy(self)
        narrowed.groups = [group]
        narrowed.chance = random.Random(self.chance.getrandbits(32))
        return narrowed

    # -- who is who --------------------------------------------------------------------------------

    def group(self) -> str:
        """One of the broker groups."""
        return self.chance.choice(self.groups)

    def master(self, group: str) -> str:
        """The node that is the group's master, as far as this drill made it."""
        return self._masters[group]

    def slave(self, group: str) -> str:
        """One of its other nodes."""
        others = [n.name for n in self._nodes.values() if n.group == group]
        return self.chance.choice([name for name in others if name != self._masters[group]])

    @property
    def nameservers(self) -> list[str]:
        return [node.name for node in self._nodes.values() if node.kind == NAMESERVER]

    @property
    def brokers(self) -> list[str]:
        return [node.name for node in self._nodes.values() if node.kind == BROKER]

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

    async def promote(self, group: str, name: str, *, planned: bool = False) -> None:
        """Make a slave the master: a fault to look at if it is planned, else a remedy."""
        self._mark("fault" if planned else "heal", f"promote {name}", group)
        done = await self.admin.promote(group, self._nodes[name].address)
        self._masters[group] = name
        if planned:
            self.history.add("struck", f"promote {name}")
        self._mark("heal", f"{name} is master", group, note=f"epoch {done.epoch}")

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
        """In this order; marked when it is done."""
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
    act: Callable[[Run], Awaitable[None]] | None
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
    # Instead of `act`: what loads and hurts the cluster in a way of its own, and judges it.
    live: Live | None = None


async def together(*acts: Awaitable[None]) -> None:
    """All at once, each to its end; then the first error is raised."""
    for outcome in await asyncio.gather(*acts, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def kill_master(run: Run) -> None:
    victim = run.master(run.group())
    await run.kill(victim)
    await run.sleep(OUTAGE_S)
    await run.restart(victim)


async def fail_over(run: Run) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    lags = run.backend.why_not("partition") is None and run.chance.random() < 0.5
    if lags:  # what the slave does not have by now it can get when the old master is back only
        await run.cut(old, new)
        await run.sleep(2.0)
    await run.kill(old)
    if lags:
        await run.join()
    await run.sleep(2.0)
    await run.promote(group, new)
    await run.sleep(OUTAGE_S)
    await run.restart(old)
    await run.sleep(2.0)


async def kill_slave(run: Run) -> None:
    victim = run.slave(run.group())
    await run.kill(victim)
    await run.sleep(OUTAGE_S)
    await run.restart(victim)


async def kill_nameserver(run: Run) -> None:
    victim = run.chance.choice(run.nameservers)
    await run.kill(victim)
    await run.sleep(OUTAGE_S)
    await run.restart(victim)


async def kill_all_nameservers(run: Run) -> None:
    await run.kill(*run.nameservers)
    await run.sleep(OUTAGE_S)
    await run.restart(*run.nameservers)


async def pause_master(run: Run) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    await run.pause(old)
    await run.sleep(4.0)
    await run.promote(group, new)
    await run.sleep(PAUSE_S - 4.0, jitter=0.05)
    await run.resume(old)
    await run.sleep(3.0)


async def partition_slave(run: Run) -> None:
    group = run.group()
    await run.cut(run.master(group), run.slave(group))
    await run.sleep(OUTAGE_S)
    await run.join()


async def partition_clients(run: Run) -> None:
    await run.cut(run.master(run.group()), CLIENTS)
    await run.sleep(OUTAGE_S)
    await run.join()


async def partition_one_way(run: Run) -> None:
    group = run.group()
    master, slave = run.master(group), run.slave(group)
    ways = [(master, slave), (slave, master), (master, CLIENTS), (CLIENTS, master)]
    source, target = run.chance.choice(ways)
    await run.cut(source, target, one_way=True)
    await run.sleep(OUTAGE_S)
    await run.join()


async def isolate_master(run: Run) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    everybody = [n for n in (*run.brokers, *run.nameservers) if n != old]
    await run.cut(old, *everybody, CLIENTS)
    await run.sleep(3.0)
    await run.promote(group, new)
    await run.sleep(OUTAGE_S)
    await run.join()
    await run.sleep(3.0)


async def slow_slave(run: Run) -> None:
    victim = run.slave(run.group())
    await run.slow(victim, run.chance.choice((0.02, 0.1, 0.3)))
    await run.sleep(8.0)
    await run.quick(victim)


async def disk_full(run: Run) -> None:
    victim = run.chance.choice(run.brokers)
    await run.fill_disk(victim)
    await run.sleep(8.0)
    await run.free_disk(victim)


async def wipe_slave(run: Run) -> None:
    victim = run.slave(run.group())
    await run.kill(victim)
    await run.wipe(victim)
    await run.sleep(2.0)
    await run.restart(victim)
    await run.sleep(3.0)


async def rolling_restart(run: Run) -> None:
    for group in run.groups:
        for name in (run.slave(group), run.master(group)):
            await run.stop(name)
            await run.restart(name)
            await run.sleep(1.5)
    for name in run.nameservers:
        await run.stop(name)
        await run.restart(name)
        await run.sleep(1.0)


async def clock_jump(run: Run) -> None:
    victim = run.chance.choice(run.brokers + run.nameservers)
    seconds = run.chance.choice((-3600.0, -30.0, 30.0, 3600.0))
    await run.shift_clock(victim, seconds)
    await run.sleep(OUTAGE_S)
    await run.right_clock(victim)


async def administration(run: Run) -> None:
    """Twice: one node of a group dies while the operator works."""
    for pick in (run.master, run.chance.choice((run.master, run.slave))):
        await run.sleep(2.0)
        victim = pick(run.group())
        await run.kill(victim)
        await run.sleep(3.0)
        await run.restart(victim)
        await run.sleep(3.0)


async def clocks(run: Run) -> None:
    """The clocks of all brokers step, both ways and by little or much, one after the other."""
    steps = (-3600.0, -30.0, -0.02, 0.02, 30.0, 3600.0)
    for name in run.chance.sample(run.brokers, len(run.brokers)):
        for seconds in run.chance.sample(steps, 2):
            await run.shift_clock(name, seconds)
            await run.sleep(2.0)
        await run.right_clock(name)


async def power_cut(run: Run) -> None:
    await run.kill(*run.brokers, *run.nameservers)
    await run.sleep(1.0)
    await run.restart(*run.nameservers, *run.brokers)


async def promote(run: Run) -> None:
    group = run.group()
    old, new = run.master(group), run.slave(group)
    await run.promote(group, new, planned=True)
    await run.sleep(5.0)
    await run.promote(group, old, planned=True)
    await run.sleep(3.0)


def pipeline(backend: Backend, directory: Path, seed: int, say: Callable[[str], None]) -> Verdict:
    from saturnmq.drills.pipeline.life import live  # needs what the others do not: pyarrow

    return live(backend, directory, seed, say)


async def random_mix(run: Run) -> None:
    """Faults for `minutes`, drawn from the seed, with quiet between them: of the whole cluster, of
    one group, or of all groups at once, then maybe with a nameserver gone as well."""
    of_cluster = [kill_nameserver, kill_all_nameservers, power_cut]
    of_group = [kill_master, fail_over, promote, kill_slave, slow_slave, wipe_slave]
    if run.backend.why_not("partition") is None:
        of_group += [partition_slave, partition_clients, partition_one_way, isolate_master]
    end = run.history.now() + 60.0 * run.minutes
    while run.history.now() < end:
        kind = run.chance.choice(("cluster", "group", "groups", "groups"))
        if kind == "cluster":
            await run.chance.choice(of_cluster)(run)
        elif kind == "group":
            await run.chance.choice(of_group)(run)
        else:
            acts = [run.chance.choice(of_group)(run.within(group)) for group in run.groups]
            if run.chance.random() < 0.5:
                acts.append(kill_nameserver(run))
            await together(*acts)
        await run.sleep(4.0, jitter=0.5)


_ALL = (
    Drill("kill-master", "SIGKILL a master, start it again", kill_master),
    Drill("fail-over", "SIGKILL a master, promote its slave (which may lag), start the old one",
          fail_over, optional=("partition",), leaves_behind=True),
    Drill("promote", "hand the master's role to the slave under load, and back", promote),
    Drill("kill-slave", "SIGKILL a slave, start it again", kill_slave),
    Drill("kill-nameserver", "SIGKILL one nameserver", kill_nameserver),
    Drill("kill-all-nameservers", "SIGKILL all nameservers; they come back empty",
          kill_all_nameservers),
    Drill("pause-master", "SIGSTOP a master for 30 s, promote its slave meanwhile", pause_master,
          leaves_behind=True),
    Drill("partition-slave", "no packets between a master and its slave", partition_slave,
          ("partition",)),
    Drill("partition-clients", "no packets between a master and all clients", partition_clients,
          ("partition",)),
    Drill("partition-one-way", "packets pass one way only, to or from a master",
          partition_one_way, ("partition",)),
    Drill("isolate-master", "a master is cut off from everybody, its slave is promoted",
          isolate_master, ("partition",), leaves_behind=True),
    Drill("slow-slave", "a slave runs for 2 to 30 % of the time", slow_slave, ("slow",)),
    Drill("disk-full", "the disk of a master or slave is full", disk_full, ("full-disk",),
          padding=2000, broker_options=SMALL_SEGMENTS),
    Drill("wipe-slave", "SIGKILL a slave, delete its store, start it again", wipe_slave,
          ("wipe",)),
    Drill("rolling-restart", "stop and start every node in order", rolling_restart),
    Drill("clock-jump", "the wall clock of a node jumps by up to an hour, and back", clock_jump,
          ("clock",)),
    Drill("administration",
          "SIGKILL nodes while topics, queues, offsets and members change; delays, retries",
          administration, chores=True),
    Drill("clocks", "the wall clocks of all brokers step both ways under delays and retries",
          clocks, ("clock",), chores=True),
    Drill("power-cut", "SIGKILL everything at once, start everything", power_cut),
    Drill("random-mix", "one or several faults at a time, drawn from the seed", random_mix,
          ("wipe", "slow"), optional=("partition",), leaves_behind=True),
    Drill("pipeline", "SIGKILL driver, worker and broker while Spark archives, replays and streams",
          None, ("spark",), live=pipeline),
)  # fmt: skip

DRILLS = {drill.name: drill for drill in _ALL}

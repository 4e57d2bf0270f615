"""The faults of a simulated cluster, and the operator who acts on it.

Faults overlap; a broker's process has at most one of them at a time. Each ends by itself, at the
latest when the time for faults is over: then everything is healed and every machine runs.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saturnmq.client.admin.admin import Admin
from saturnmq.drills.sim.amnesia import Amnesia
from saturnmq.drills.sim.etcd_faults import EtcdFaults
from saturnmq.drills.sim.load import ClientMachine
from saturnmq.drills.sim.nodes import DISK_BYTES, SimBroker, SimNameServer, Span
from saturnmq.drills.sim.runtime import USUAL_LATENCY_S
from saturnmq.drills.sim.strangers import Strangers
from saturnmq.runtime.errors import SaturnError

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

SLOW_DISK_S = 0.5  # at most, per operation
NAMES_S = 15.0  # after which the operator names a master for a group whose record was deleted
STARTS = 20  # of a broker, until one succeeds; as long as its disk is full none does


class Faults:
    """The seeded schedule."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.network = cluster.world.network
        self.plan = cluster.plan
        self.rng = random.Random(f"{cluster.seed}/faults")
        self.made: Counter[str] = Counter()
        self._over = asyncio.Event()
        self.restarting = asyncio.Lock()
        self.misled: Counter[str] = Counter()  # groups whose new disks follow a foreign master
        self._kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "kill": self._kill,
            "power_loss": self._power_loss,
            "power_loss_inside": self._power_loss_inside,
            "pause": self._pause,
            "partition": self._partition,
            "one_way": self._one_way,
            "clients_cut_off": self._clients_cut_off,
            "slaves_cut_off": self._slaves_cut_off,
            "connections": self._connections,
            "slow_link": self._slow_link,
            "slow_disk": self._slow_disk,
            "full_disk": self._full_disk,
            "failing_disk": self._failing_disk,
            "wipe_slave": self._wipe_slave,
            "nameserver": self._nameserver,
            "clock_jump": self._clock_jump,
            "consumer": self._consumer,
            "promote": self._promote,
            **EtcdFaults(self).kinds,
            **Amnesia(self).kinds,
            **Strangers(self).kinds,
        }

    async def run(self) -> None:
        """Make faults for `safety_s`; return when everything is healed."""
        plan, rng = self.plan, self.rng
        drawn = {**plan.weights, **plan.rare}
        kinds = [name for name, weight in drawn.items() if weight]
        weights = [drawn[name] for name in kinds]
        running: list[asyncio.Task[None]] = []
        end = self.cluster.loop.time() + plan.safety_s
        while True:
            await asyncio.sleep(rng.expovariate(1 / plan.gap_s))
            if self.cluster.loop.time() >= end:
                break
            (kind,) = rng.choices(kinds, weights)
            running.append(asyncio.create_task(self._kinds[kind]()))
        self._over.set()
        for task in running:
            await task
        self.network.heal()
        for node in self.cluster.brokers:
            assert node.up, f"{node.name} was not started again"

    def note(self, kind: str, text: str = "") -> None:
        """Counts what goes wrong, and what is done to the cluster."""
        self.made[kind] += 1
        self.cluster.trace.note("fault", f"{kind} {text}")

    @property
    def over(self) -> bool:
        return self._over.is_set()

    async def last(self, seconds: float) -> None:
        """Wait, but no longer than faults go on."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass

    # processes and machines

    def victim(self, *, slaves_only: bool = False, masters_only: bool = False) -> SimBroker | None:
        """A broker that no other fault has in hand; mostly a master."""
        free = [node for node in self.cluster.brokers if node.up and not node.busy]
        masters = [node for node in free if node.leads]
        if slaves_only:
            free = [node for node in free if node.follows]
        elif masters_only or (masters and self.rng.random() < 0.6):
            free = masters
        return self.rng.choice(free) if free else None

    def may_age(self, node: SimBroker) -> bool:
        """Whether all others of its group have, since they lost anything, had all of its log: of
        everything one copy must stay. So it must of one that is promoted by force. And where a
        foreign master waits for a copy no node may have forgotten its group."""
        if self.misled[node.group] or self.cluster.operator.forces(node):
            return False
        nodes = self.cluster.nodes_of(node.group)
        return all(self.cluster.is_whole(other) for other in nodes if other is not node)

    def _others_have_logs(self, node: SimBroker) -> bool:
        """Whether no other node of its group is new: two of them would begin a group by themselves
        while the third one is away."""
        others = (other for other in self.cluster.nodes_of(node.group) if other is not node)
        return all(any(map(any, map(each.disk.content, each.segments()))) for each in others)

    async def _kill(self) -> None:
        if node := self.victim():
            self.note("process killed", node.name)
            node.busy = True
            node.kill()
            await self.bring_back(node)

    async def _power_loss(self) -> None:
        if node := self.victim():
            self.note("power lost", node.name)
            node.busy = True
            node.lose_power(self.rng.choice((0.0, 0.01, 1.0, 5.0)))
            await self.bring_back(node)

    async def _power_loss_inside(self) -> None:
        if node := self.victim():
            self.note("power lost inside an operation", node.name)
            node.busy = True
            node.lose_power_inside(self.rng.randint(1, 40))
            try:
                async with asyncio.timeout(1.0):
                    await node.off.wait()
            except TimeoutError:
                node.lose_power()
            await self.bring_back(node)

    async def bring_back(
        self, node: SimBroker, change: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """Boot a dead machine until its broker stays up; `change` comes before that."""
        rng, plan = self.rng, self.plan
        away = plan.safety_s if rng.random() < plan.away else rng.choice((0.0, 0.5, 3.0, 8.0))
        await node.settle()
        await self.last(rng.uniform(0.0, 2 * away))
        if change is not None:
            await change()
        for attempt in itertools.count(1):
            inside = plan.weights["power_loss_inside"] and attempt <= 3 and not self.over
            if inside and rng.random() < 0.3:
                self.note("power lost while recovering", node.name)
                node.lose_power_inside(rng.randint(1, 80))
            has_room = not node.is_short_of_room
            if await node.boot() or (has_room and attempt >= STARTS):
                break
            await node.settle()
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        node.disk.step = None
        node.busy = False

    def is_remembered(self, node: SimBroker) -> bool:
        """Whether a nameserver knows the masters of this node's group. Else a master whose sends
        wait for no copy may begin the group anew with a new disk (N5)."""
        return any(each.remembers(node.group) for each in self.cluster.nameservers)

    async def _wipe_slave(self) -> None:
        node = self.victim(slaves_only=True)
        if node and self.cluster.operator.forces(node):
            return
        if node and (self.may_age(node) if self.plan.rare else self._others_have_logs(node)):
            self.note("slave wiped", node.name)
            node.busy = node.ageing = True
            node.lose_power()

            async def wipe() -> None:
                if self.plan.copies > 1 or self.is_remembered(node):
                    await node.wipe()

            await self.bring_back(node, wipe)
            node.ageing = False

    async def _pause(self) -> None:
        if node := self.victim():
            self.note("process frozen", node.name)
            node.busy = True
            node.pause()
            await self.last(self.rng.choice((0.5, 1.5, 4.0, 15.0, 40.0)))
            if self.rng.random() < 0.2:
                node.kill()
                await self.bring_back(node)
            node.resume()
            node.busy = False

    async def _nameserver(self) -> None:
        nodes = [node for node in self.cluster.nameservers if node.runtime is not None]
        if len(nodes) > 1 and self.rng.random() < 0.6:
            nodes = [self.rng.choice(nodes)]
        await self.restart(nodes, self.rng.choice((0.1, 2.0, 10.0)))

    async def restart(self, nodes: Sequence[SimNameServer], away_s: float) -> None:
        async with self.restarting:  # one kills no node that another one starts
            for node in nodes:
                self.note("nameserver killed", node.name)
                await node.kill()
            await self.last(away_s)
            for node in nodes:
                await node.boot()

    async def _clock_jump(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        self.note("wall clock jumped", node.name)
        node.step_clock(self.rng.choice((-3_600_000, -5_000, 5_000, 3_600_000)))

    async def _consumer(self) -> None:
        readers = [reader for reader in self.cluster.readers if reader.up]
        if readers:
            reader = self.rng.choice(readers)
            self.note("consumer killed", reader.name)
            self.cluster.readers.remove(reader)
            heir = await reader.die()
            self.cluster.readers.append(heir)
            heir.up = False
            await self.last(self.rng.choice((0.1, 3.0)))
            await heir.start()
            heir.up = True

    # disks

    async def _slow_disk(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        self.note("slow disk", node.name)
        span = Span(node.now)
        node.past.idle.append(span)
        runtime = node.runtime
        runtime.blocking_latency_s = (0.005, self.rng.choice((0.05, SLOW_DISK_S)))
        await self.last(self.rng.uniform(1.0, 8.0))
        runtime.blocking_latency_s = USUAL_LATENCY_S
        span.end = node.now + 2 * SLOW_DISK_S

    async def _full_disk(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        self.note("disk full", node.name)
        disk = node.disk
        disk.total_bytes = disk.used_bytes + self.rng.choice((0, 10_000))
        await self.last(self.rng.uniform(1.0, 8.0))
        disk.total_bytes = DISK_BYTES

    async def _failing_disk(self) -> None:
        """Let one operation of a disk fail; an operator looks after a while and starts the broker
        again."""
        if node := self.victim():
            node.busy = True
            operation = self.rng.choice(("flush", "flush", "write"))
            plan = node.disk.plan(operation, errno.EIO, "*/commitlog/*")
            span = Span(node.now)
            node.past.losses.append(span)
            await self.last(self.rng.uniform(0.5, 5.0))
            if plan.hits:
                self.note(f"EIO on {operation}", node.name)
            node.kill()
            span.end = node.now
            node.disk.plans.clear()
            await self.bring_back(node)

    # the network

    async def cut(self, kind: str, a: list[str], b: list[str], both_ways: bool = True) -> None:
        self.note(kind, f"{a} {b}")
        span = Span(self.cluster.loop.time())
        for node in self.cluster.brokers:
            if node.name in (*a, *b):
                node.past.isolated.append(span)
        self.network.partition(a, b)
        if both_ways:
            self.network.partition(b, a)
        await self.last(self.rng.choice((0.3, 2.0, 5.0, 15.0, 30.0)))
        self.network.mend(a, b)
        if both_ways:
            self.network.mend(b, a)
        span.end = self.cluster.loop.time()

    def _others(self, *names: str) -> list[str]:
        return [name for name in self.cluster.names() if name not in names]

    async def _partition(self) -> None:
        """A broker and all others, or a cut through the middle."""
        node = self.rng.choice(self.cluster.brokers)
        side = [node.name]
        if self.rng.random() < 0.4:
            rest = self._others(node.name)
            side += self.rng.sample(rest, self.rng.randrange(len(rest)))
        await self.cut("partition", side, self._others(*side))

    async def _one_way(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        others = self._others(node.name)
        if self.rng.random() < 0.5:
            others = [self.rng.choice(others)]
        a, b = [node.name], others
        if self.rng.random() < 0.5:
            a, b = b, a
        await self.cut("one-way partition", a, b, both_ways=False)

    async def _clients_cut_off(self) -> None:
        node = self.rng.choice(self.cluster.brokers)
        clients = self.cluster.client_names()
        if self.rng.random() < 0.5:
            clients = [self.rng.choice(clients)]
        await self.cut("clients cut off", [node.name], clients)

    async def _slaves_cut_off(self) -> None:
        group = self.rng.choice(self.cluster.groups)
        nodes = self.cluster.nodes_of(group)
        node = self.rng.choice(nodes)
        rest = [other.name for other in nodes if other is not node]
        await self.cut("brokers of a group cut off", [node.name], rest)

    async def _connections(self) -> None:
        for _ in range(self.rng.randint(1, 5)):
            a, b = self.rng.sample(self.cluster.names(), 2)
            for transport in self.network.connections(a, b):
                self.note("connection killed")
                self.network.kill(transport)

    async def _slow_link(self) -> None:
        a = self.rng.choice(self.cluster.brokers).name
        b = self.rng.choice(self._others(a))
        self.note("slow link", f"{a} {b}")
        latency = self.rng.choice(((0.01, 0.05), (0.1, 0.3), (0.5, 1.0)))
        self.network.slow_down(a, b, latency)
        self.network.slow_down(b, a, latency)
        await self.last(self.rng.uniform(1.0, 10.0))
        self.network.slow_down(a, b, None)
        self.network.slow_down(b, a, None)

    # the operator's whim

    async def _promote(self) -> None:
        group = self.rng.choice(self.cluster.groups)
        await self.cluster.operator.promote(self.rng.choice(self.cluster.nodes_of(group)))


@dataclass
class PromotionOrder:
    """An order to make `node` the master of its group; nobody may know whether it was done before
    `ended`.
    """

    node: SimBroker
    forced: bool
    at: float
    ended: float


class Operator(ClientMachine):
    """Promote a node when a group has had no master for a while."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster, "operator", "10.0.5.1")
        self.promotions: list[PromotionOrder] = []
        self.done = 0
        self.refusals: Counter[str] = Counter()
        self._rng = random.Random(f"{cluster.seed}/operator")
        self._busy: dict[str, bool] = {}
        self._to_name: set[str] = set()  # groups whose record was deleted; none has led since

    async def start(self) -> None:
        self.admin = Admin(core=self.core(), timeout=2.0)
        await self.runtime.run(self.admin.core.start())
        for group in self.cluster.groups:
            self.runtime.spawn(self._watch(group), name=f"watch-{group}")

    async def _watch(self, group: str) -> None:
        since = self.runtime.monotonic()
        while True:
            await self.runtime.sleep(0.5)
            nodes = self.cluster.nodes_of(group)
            now = self.runtime.monotonic()
            if any(node.leads and not node.paused for node in nodes):
                since = now
                self._to_name.discard(group)
            elif now - since > self._patience_s(group):
                since = now
                living = [node for node in nodes if node.serving and not node.paused]
                if living:
                    await self.promote(self._candidate(living))

    def has_deleted_record(self, group: str) -> None:
        """Without its record in etcd a group elects nobody before it has had a master: if none
        comes back, the operator names one, as the nodes say."""
        self._to_name.add(group)

    def _patience_s(self, group: str) -> float:
        return NAMES_S if group in self._to_name else self.cluster.plan.patience_s

    def _candidate(self, living: list[SimBroker]) -> SimBroker:
        """Mostly the one with the longest log, which an operator sees in `admin replicas`."""
        if self._rng.random() < 0.2:
            return self._rng.choice(living)
        return max(living, key=lambda node: (node.log_end, node.name))

    def forces(self, node: SimBroker) -> bool:
        """Whether an order to promote this node by force is underway."""
        open_ = (each for each in self.promotions if each.ended == math.inf)
        return any(each.forced and each.node is node for each in open_)

    async def promote(self, node: SimBroker) -> None:
        """Give the cluster one order to promote; a refusal is an answer, too."""
        if self._busy.get(node.group):
            return
        self._busy[node.group] = True
        forced = not self.cluster.calm and self._rng.random() < self.cluster.plan.force
        forced = forced and node.group not in self._to_name  # no order of an election may lose
        # A log that is empty, or of a disk that lost what it had, is nobody's choice.
        forced = forced and node.log_end > 0 and self.cluster.is_whole(node)
        order = PromotionOrder(node, forced, self.runtime.monotonic(), float("inf"))
        self.promotions.append(order)
        trace = self.cluster.trace
        trace.note("promote", f"{node.name} force={forced}")
        work = self.admin.promote(node.group, node.address, force=forced)
        try:
            await self.runtime.run(work)
        except SaturnError as error:
            self.refusals[type(error).__name__] += 1
            trace.note("promote.failed", repr(error))
        else:
            self.done += 1
            trace.note("promoted", node.name)
        finally:
            order.ended = self.runtime.monotonic()
            self._busy[node.group] = False

    async def close(self) -> None:
        await self.admin.core.close()

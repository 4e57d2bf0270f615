"""The machines of a simulated cluster: they outlive their processes, which they start and end.

A broker's disk, wall clock and address outlive its processes, which are called incarnations. A
machine keeps the events of its life with their times: the verdict asks which copies of a message
may be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication.elector import Ballot
from saturnmq.broker.replication.role import State
from saturnmq.drills.sim.disk import PowerLoss, SimDisk
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.pages import Fates
from saturnmq.drills.sim.plan import BROKER_PORT, NAMESERVER_PORT, ROOT, SimPlan
from saturnmq.drills.sim.runtime import EARLY_S, SimRuntime
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.signing import Signing
from saturnmq.runtime.errors import SaturnError

DISK_BYTES = 1 << 30
STOP_S = 10.0


@dataclass
class Span:
    """A stretch of time; open until its end is known."""

    start: float
    end: float = math.inf


@dataclass
class World:
    """The parts that all machines of one run share."""

    seed: int
    loop: SimLoop
    network: SimNetwork
    plan: SimPlan
    runtimes: list[SimRuntime] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def runtime(self, name: str, ip: str, incarnation: int = 0) -> SimRuntime:
        offset = random.Random(f"{self.seed}/{name}/clock").randint(-2000, 2000)
        seed = f"{self.seed}/{incarnation}"
        runtime = SimRuntime(
            self.loop, self.network, seed, name, ip, wall_offset_ms=offset, early_s=EARLY_S
        )
        self.runtimes.append(runtime)
        return runtime


@dataclass
class Past:
    """The events of a broker's machine, in virtual seconds."""

    # Within these spans a part of what was not synced may have been lost.
    losses: list[Span] = field(default_factory=list)
    # When its disk lost what it had, whether it was flushed or not.
    aged_at: list[float] = field(default_factory=list)
    # Within these nothing was flushed: down, frozen, or a slow disk.
    idle: list[Span] = field(default_factory=list)
    # Within these its process was dead; they are among `idle`.
    down: list[Span] = field(default_factory=list)
    # When its wall clock stepped.
    steps: list[float] = field(default_factory=list)
    # Within these it could not hear of others: frozen, or behind a partition.
    isolated: list[Span] = field(default_factory=list)

    def lost_at(self) -> list[float]:
        """The times at which a part of its disk may have been lost."""
        return [*self.aged_at, *(loss.start for loss in self.losses)]


class SimNameServer:
    """A machine with a nameserver, which keeps nothing across its deaths."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name, self.ip = f"ns{number}", f"10.0.0.{number + 1}"
        self.address = f"{self.ip}:{NAMESERVER_PORT}"
        self.signing = Signing(world.plan.secret)
        self.runtime: SimRuntime | None = None
        self.died_at: list[float] = []
        self._server: NameServer | None = None
        self._incarnation = 0

    async def boot(self) -> None:
        if self.runtime is None:
            self._incarnation += 1
            self.runtime = self.world.runtime(self.name, self.ip, self._incarnation)
            server = NameServer(self.runtime, self.ip, NAMESERVER_PORT, signing=self.signing)
            await self.runtime.spawn(server.start(), name="start")
            self._server = server

    def knows(self, name: str) -> bool:
        """Whether it runs, and a broker of this name is registered there."""
        return self._server is not None and bool(self._server.routes.addresses(name))

    def remembers(self, group: str) -> bool:
        """Whether it runs, and a master of this group has registered since it began."""
        terms = {} if self._server is None else self._server.routes.terms
        return any(name == group for _, name in terms)

    async def kill(self) -> None:
        if self.runtime is not None:
            self.died_at.append(self.world.loop.time())
            self.runtime.power_off()
            await self.runtime.settle()
            self.runtime = self._server = None


class SimBroker:
    """A machine with a broker. `up` while its process runs, frozen or not."""

    def __init__(
        self,
        world: World,
        group: str,
        number: int,
        config: Callable[[SimBroker], BrokerConfig],
        *,
        name: str = "",
        ip: str = "",
        ballot: Callable[[SimBroker], Ballot | None] = lambda _: None,
    ) -> None:
        self.world = world
        self.group, self.number = group, number
        self.id_in_file = number  # 0: it is configured as a master
        self.name = name or f"{group}-{number}"
        self.ip = ip or f"10.0.{ord(group[-1])}.{number + 1}"
        self.address = f"{self.ip}:{BROKER_PORT}"
        self._config = config
        self._ballot = ballot
        self.runtime = world.runtime(self.name, self.ip)
        self.past = Past()
        self._disks = 0
        self.disk = self._new_disk()
        self.fates = Fates()  # of the pages of disks that were wiped
        self.broker: Broker | None = None
        self.off = asyncio.Event()
        self.off.set()
        self.busy = False  # a fault has it in hand
        self.ageing = False  # its disk loses what it had
        self.may_refuse = False  # not to start is right where it does not belong
        self.paused = False
        self._started = False  # the broker has all of its state
        self._down = Span(self.now)
        self._frozen = Span(self.now)
        self.incarnation = 0
        self.saved: list[bytes] = []  # side files of truncations that went with a wiped disk

    def _new_disk(self) -> SimDisk:
        rng = random.Random(f"{self.world.seed}/{self.name}/disk/{self._disks}")
        return SimDisk(rng, self.world.loop.trace, self._now_ms, DISK_BYTES)

    def _now_ms(self) -> int:
        return self.runtime.now_ms()

    @property
    def up(self) -> bool:
        return not self.off.is_set()

    @property
    def now(self) -> float:
        return self.world.loop.time()

    # the process

    async def boot(self) -> bool:
        """Start a broker on the disk as it is; False if it did not come to serve."""
        self.incarnation += 1
        self.off.clear()
        self.disk.power_on()
        wall = self.runtime.wall_offset_ms
        self.runtime = self.world.runtime(self.name, self.ip, self.incarnation)
        self.runtime.wall_offset_ms = wall
        config, ballot = self._config(self), self._ballot(self)
        broker = self.broker = Broker(config, self.runtime, self.disk, ballot)
        broker.failures.heard = self.runtime.died
        start = self.runtime.spawn(broker.start(), name="start")
        start.add_done_callback(lambda task: task.cancelled() or task.exception())
        failed = asyncio.ensure_future(self.off.wait())
        await asyncio.wait((start, failed), return_when=asyncio.FIRST_COMPLETED)
        failed.cancel()
        if self.off.is_set():
            return False
        error = start.exception()
        if error is None:
            self._down.end = self.now
            self._started = True
            return True
        self.runtime.deaths.clear()
        if not self.may_refuse and not self.disk.plans and not isinstance(error, OSError):
            self.world.problems.append(f"{self.name} does not start: {error!r}")
        self.kill()
        return False

    def kill(self) -> None:
        """`kill -9`: the page cache lives on, the next incarnation finds unflushed bytes."""
        if self.up:
            self._end(reset_peers_after=0.0)
            self.disk.kill()

    async def stop(self) -> None:
        """Stop in order, as SIGTERM does; after `STOP_S` the rest ends as by `kill`."""
        broker, runtime = self.broker, self.runtime
        if broker is not None and self.up and not self.paused:
            with contextlib.suppress(SaturnError, OSError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await runtime.run(broker.close())
        self.kill()

    def lose_power(self, silence_s: float = 0.0) -> None:
        """Now, between two instructions."""
        if self.up:
            self.past.losses.append(Span(self.now, self.now))
            self._end(reset_peers_after=silence_s)
            self.disk.power_off()

    def lose_power_inside(self, operations: int) -> None:
        """Lose power in the n-th disk operation from now, at its boundary."""
        left = operations

        def step(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                self.lose_power()
                raise PowerLoss(f"power lost before {operation} {path}")

        self.disk.step = step

    def _end(self, reset_peers_after: float) -> None:
        self.disk.step = None
        self.paused = self._started = False
        self._frozen.end = min(self._frozen.end, self.now)
        self._down = Span(self.now)
        self.past.idle.append(self._down)
        self.past.down.append(self._down)
        self.runtime.power_off(reset_peers_after=reset_peers_after)
        self.off.set()

    async def settle(self) -> None:
        """Wait until the tasks of a dead process have unwound."""
        await self.runtime.settle()

    def age(self) -> None:
        """Note that from now on its disk may lack anything that it had."""
        self.past.aged_at.append(self.now)

    async def wipe(self) -> None:
        """A new, empty disk in a dead machine."""
        self.age()
        self._disks += 1
        self.saved += self.side_files()
        self.fates.add(self.disk.fates)
        self.disk = self._new_disk()

    async def go_back_to(self, image: SimDisk) -> None:
        """Replace the disk of a dead machine by `image`."""
        self.age()
        self.saved += self.side_files()
        self.disk.restore(image)

    async def lose_commitlog(self) -> None:
        """The folder of a dead machine's log is empty, all else is there."""
        self.age()
        self.disk.lose(*self.segments())

    def pause(self) -> None:
        if self.up and not self.paused:
            self.paused = True
            self._frozen = Span(self.now)
            self.past.idle.append(self._frozen)
            self.past.isolated.append(self._frozen)
            self.runtime.pause()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self._frozen.end = self.now
            self.runtime.resume()

    def step_clock(self, by_ms: int) -> None:
        """Its wall clock is set; the steady one does not see it."""
        self.past.steps.append(self.now)
        self.runtime.jump_wall_clock(by_ms)

    # its visible state

    def validate(self) -> None:
        """Note it as a problem, once a start, if what the broker knows contradicts itself."""
        broker = self.serving
        if broker is None or broker.closed or not self._started:
            return
        try:
            broker.validate()
        except AssertionError as error:
            self._started = False
            self.world.problems.append(f"{self.name} at {self.now:.2f} is not valid: {error}")

    @property
    def serving(self) -> Broker | None:
        """The broker, once its tables are there."""
        broker = self.broker
        return broker if self.up and broker is not None and broker.address else None

    @property
    def leads(self) -> bool:
        """Whether it takes writes as its group's master."""
        broker = self.serving
        return broker is not None and broker.context.role.state is State.MASTER

    @property
    def follows(self) -> bool:
        """Whether it is a slave."""
        broker = self.serving
        return broker is not None and broker.context.role.state is State.SLAVE

    @property
    def is_short_of_room(self) -> bool:
        """Whether a fault keeps its disk small."""
        return self.disk.total_bytes < DISK_BYTES

    @property
    def log_end(self) -> int:
        broker = self.serving
        return broker.store.watermarks.appended if broker is not None else -1

    def segments(self) -> list[str]:
        """The files of its log, oldest first."""
        prefix = f"{ROOT}/commitlog/"
        return [
            path
            for path in self.disk.paths()
            if path.startswith(prefix) and path.removeprefix(prefix).isdigit()
        ]

    def side_files(self) -> list[bytes]:
        """The bytes that truncations saved on this disk."""
        prefix = f"{ROOT}/truncated/"
        return [
            bytes(self.disk.content(path))
            for path in self.disk.paths()
            if path.startswith(prefix) and path.endswith(".log")
        ]

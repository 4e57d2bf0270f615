"""SimRuntime: the `Runtime` door of one simulated machine.

Each node (a nameserver, a broker, a client) has its own: its name, its address, its wall clock
(offset from virtual time, so clocks may disagree), its own random numbers (drawn from the seed
and the name, so that adding a node does not change another's luck) and the tasks it started.
`power_off` is what a crash needs: from that instant nothing of the node runs or is heard; its
tasks are thrown away, and what their `finally` blocks try meets dead doors. `pause` and `resume`
are SIGSTOP and SIGCONT: nothing of it runs, its connections and its ports stay.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from saturnmq.drills.sim.loop import PROCESS, SimLoop
from saturnmq.drills.sim.network import SimListener, SimNetwork, SimTransport
from saturnmq.runtime.door import Buffer, Listener, Runtime, Transport

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000
"""Wall time at virtual second 0: a plausible date, so that code that rejects 1970 is not misled."""

USUAL_LATENCY_S = (0.00005, 0.002)
"""How long a blocking call takes to begin and its result to be heard of, each, in seconds."""


EARLY_S = 0.001
"""The timers of uvloop count whole milliseconds: one may find that not all of its time is over."""


class PoweredOff(ConnectionError):
    """The node has been switched off; only its own dying tasks ever see this."""


class SimAlarm:
    """Simulated time is as fine as any."""

    def __init__(self, runtime: SimRuntime, ring: Callable[[], None]) -> None:
        self._runtime = runtime
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        self._timer = self._runtime.in_time(seconds, self._ring)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class SimWorkers:
    """Threads that are not there: every call is one of `SimRuntime.run_blocking`."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Task[T]:
        return self._runtime.begin(self._runtime.run_blocking(function, *args))

    def close(self) -> None: ...


class SimRuntime:
    """The door to time, chance, tasks and network of the node `name`."""

    def __init__(
        self,
        loop: SimLoop,
        network: SimNetwork,
        seed: int | str,
        name: str,
        ip: str = "127.0.0.1",
        *,
        wall_offset_ms: int = 0,
        blocking_latency_s: tuple[float, float] = USUAL_LATENCY_S,
        early_s: float = 0.0,
    ) -> None:
        """Timers are up to `early_s` early; at least half of their time is over."""
        self.loop = loop
        self.network = network
        self.name = name
        self.ip = ip
        self.random = random.Random(f"{seed}/{name}")
        # Latencies draw from a stream of their own: code that asks for one number more must not
        # change the weather.
        self._weather = random.Random(f"{seed}/{name}/weather")
        self._early_s, self._timers = early_s, random.Random(f"{seed}/{name}/timers")
        self.wall_offset_ms = wall_offset_ms
        self.blocking_latency_s = blocking_latency_s
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self.off = False
        self.deaths: list[str] = []
        self._context = copy_context()
        self._context.run(PROCESS.set, self)
        network.join(name, self._context)

    def now_ms(self) -> int:
        return EPOCH_MS + self.wall_offset_ms + int(self.loop.time() * 1000)

    def monotonic(self) -> float:
        return self.loop.time()

    def processor_time(self) -> float:
        return 0.0  # no simulated work takes any

    def jump_wall_clock(self, by_ms: int) -> None:
        """A step of the wall clock, as an operator or NTP makes; the monotonic clock does not see
        it.
        """
        self.wall_offset_ms += by_ms

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        if self.off:
            coro.close()
            raise PoweredOff(f"{self.name} is off")
        task = self.loop.create_task(
            coro, name=f"{self.name}/{name or '?'}", context=self._context.copy()
        )
        self._tasks[task] = name or "?"
        task.add_done_callback(self._reap)
        return task

    async def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` in this process; return its result or raise its exception."""
        return await self.begin(coro)

    def begin(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `coro` in this process; its failure is that of whoever awaits the task."""
        task = self.loop.create_task(coro, context=self._context.copy())
        self._tasks[task] = "run"
        task.add_done_callback(self._tasks.pop)
        return task

    def _reap(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self.died(f"{task.get_name()}: {error!r}")

    def died(self, what: str) -> None:
        """Take an unforeseen failure of a task or a request. In production the process ends
        (docs/guarantees.md S10), or goes on and counts it; here it fails the run."""
        if not self.off:
            self.deaths.append(what)
            self.loop.trace.note("task.death", what.partition("(")[0])

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(self._counted(seconds))

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any
    ) -> asyncio.TimerHandle:
        return self.in_time(self._counted(delay), callback, *args)

    def in_time(
        self, delay: float, callback: Callable[..., Any], *args: Any
    ) -> asyncio.TimerHandle:
        """`call_later` with a timer that is never early."""
        return self.loop.call_later(delay, self._guarded, callback, args, context=self._context)

    def _counted(self, seconds: float) -> float:
        """The time after which a timer of `seconds` is over."""
        return seconds - min(self._early_s, seconds / 2) * self._timers.random()

    def alarm(self, ring: Callable[[], None]) -> SimAlarm:
        return SimAlarm(self, ring)

    def stay_awake(self, seconds: float) -> None:
        """Nothing: simulated time passes only while nothing is due."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        return self.loop.call_soon(self._guarded, callback, args, context=self._context)

    def _guarded(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not self.off:
            callback(*args)

    def create_future(self) -> asyncio.Future[Any]:
        return self.loop.create_future()

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Runs `function` inline between two virtual delays, as a thread of a pool would have taken
        them.

        The first delay lets others act before the call, the second before its result is known: a
        crash can fall in either, and a caller that trusts a result it has not seen yet is found
        out.
        """
        low, high = self.blocking_latency_s
        await asyncio.sleep(self._weather.uniform(low, high))
        if self.off:
            raise PoweredOff(f"{self.name} is off")
        try:
            return function(*args)
        finally:
            if not self.off:
                await asyncio.sleep(self._weather.uniform(low, high))

    def datasync(self, fd: int) -> None:
        """Simulated files have no descriptors."""

    def writer(
        self, transport: Transport, *, copies: bool = False
    ) -> Callable[[list[Buffer]], None]:
        return transport.writelines

    def workers(self, threads: int, *, name: str) -> SimWorkers:
        return SimWorkers(self)

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> SimListener:
        await asyncio.sleep(0)
        if self.off:
            raise PoweredOff(f"{self.name} is off")
        address = self.ip if host in {"", "0.0.0.0", "::"} else host
        return self.network.listen(self.name, address, port, factory)

    async def listen_locally(
        self, address: str, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener | None:
        return None  # its clients are on machines of their own

    def own_address(self) -> str:
        return self.ip

    async def connect(
        self,
        host: str,
        port: int,
        protocol: asyncio.BaseProtocol,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> SimTransport:
        assert tls is None, "the simulator's network has no TLS"
        if self.off:
            raise PoweredOff(f"{self.name} is off")
        return await self.network.connect(self.name, self.ip, host, port, protocol)

    def power_off(self, reset_peers_after: float | None = 0.0) -> None:
        """The node stops between two instructions: nothing it holds in memory is ever used
        again.
        """
        self.off = True
        self.loop.trace.note("node.off", self.name)
        self.network.drop_node(self.name, reset_peers_after)
        for task in list(self._tasks):
            task.cancel()
        self.loop.thaw(self)  # frozen tasks have to unwind, too

    def pause(self) -> None:
        """SIGSTOP: nothing of the process runs until `resume`; its peers see an open connection."""
        self.loop.trace.note("node.pause", self.name)
        self.loop.freeze(self)

    def resume(self) -> None:
        """SIGCONT: timers that came due and bytes that arrived are all there at once."""
        self.loop.trace.note("node.resume", self.name)
        self.loop.thaw(self)

    async def settle(self) -> None:
        """Waits until the tasks of a powered-off node have unwound."""
        for _ in range(100):
            if not self._tasks:
                return
            for task in list(self._tasks):
                task.cancel()
            await asyncio.sleep(0)
        names = sorted(self._tasks.values())
        raise RuntimeError(f"{self.name}: tasks that refuse to be cancelled: {names}")


_check: type[Runtime] = SimRuntime  # the type checker compares both here

"""A trace of an event loop: all that runs on it, for how long, and the pauses that are long.

`TracedRuntime` is the real runtime with a stopwatch around each callback, each step of a task and
each read of a connection. A run that takes `LONG_S` or more is kept with its time, the part of it
that was processor time, and the places in the code where a second thread saw it. (That thread sees
the loop only where the interpreter lets go of it, so a place may be the first one behind the code
that took long.) A timer that comes late although nothing ran before it shows that the process had
no processor. The collector of garbage is timed where it interrupts.

A trace is for measurements: `saturnmq broker --trace-loop`, `saturnmq bench trace`. It makes each
callback some microseconds longer.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from .door import Handle, Listener, Transport
from .native import NativeRuntime

T = TypeVar("T")

LONG_S = 0.001
LOOK_S = 0.0005  # between two looks of the second thread at what runs
TICK_S = 0.005
MOST = 100_000  # runs that are kept
DEPTH = 4  # functions of a place, the innermost last
LATE = "late: no processor"
GARBAGE = "search for garbage"


class LoopTrace:
    """The record of the loop of this thread."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._now, self._used = now, used
        self._thread = threading.get_ident()
        self.long: list[dict[str, Any]] = []
        self.totals: dict[str, list[float]] = {}  # runs, seconds, longest
        self.running_since = 0.0  # 0: nothing runs
        self.ended_at = now()
        self._places: Counter[str] = Counter()
        self._garbage_since = 0.0

    def run(self, what: str, function: Callable[..., T], *args: Any) -> T:
        """Call it, timed. A run inside another one is a part of that one."""
        if self.running_since:
            return function(*args)
        begun = self.running_since = self._now()
        used = self._used()
        try:
            return function(*args)
        finally:
            self.ended_at = end = self._now()
            self.running_since = 0.0
            self._note(what, begun, end - begun, self._used() - used)

    def _note(self, what: str, begun: float, took: float, used: float) -> None:
        total = self.totals.setdefault(what, [0, 0.0, 0.0])
        total[0] += 1
        total[1] += took
        total[2] = max(total[2], took)
        if took >= LONG_S and len(self.long) < MOST:
            places = [place for place, _ in self._places.most_common(3)]
            self.long.append(
                {"at": begun, "what": what, "took": took, "used": used, "places": places}
            )
        if self._places:
            self._places = Counter()

    def late(self, due: float) -> None:
        """A timer that was due then is called now."""
        quiet_since = max(due, self.ended_at)
        took = self._now() - quiet_since
        if took >= LONG_S:
            self._note(LATE, quiet_since, took, 0.0)

    def look(self) -> None:
        """Note the place of a long run; called in another thread."""
        since = self.running_since
        if since and self._now() - since >= LONG_S / 2:
            frame = sys._current_frames().get(self._thread)
            if frame is not None and self.running_since == since:
                self._places[_place(frame)] += 1

    def collects(self, phase: str, facts: dict[str, int]) -> None:
        """For `gc.callbacks`."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._garbage_since = self._now()
        else:
            what = f"{GARBAGE}, generation {facts['generation']}"
            took = self._now() - self._garbage_since
            self._note(what, self._garbage_since, took, took)

    def save(self, path: Path) -> None:
        """Write the trace as JSON."""
        path.write_text(json.dumps({"long": self.long, "totals": self.totals}))


def _place(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < DEPTH:
        code = frame.f_code
        module = Path(code.co_filename).stem
        if module != Path(__file__).stem:
            names.append(f"{module}.{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " > ".join(reversed(names))


class _Traced(Coroutine[Any, Any, T]):
    """A coroutine whose steps are timed."""

    def __init__(self, trace: LoopTrace, what: str, coro: Coroutine[Any, Any, T]) -> None:
        self._trace, self._what, self._coro = trace, what, coro

    def send(self, value: Any) -> Any:
        return self._trace.run(self._what, self._coro.send, value)

    def throw(self, *error: Any) -> Any:
        return self._trace.run(self._what, self._coro.throw, *error)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coro.__await__()


class TracedRuntime(NativeRuntime):
    """The real runtime, traced."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__(loop, on_fatal)
        self.trace = LoopTrace()
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="loop-trace", daemon=True).start()
        gc.callbacks.append(self.trace.collects)
        self._tick(self.monotonic())

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.trace.look()

    def _tick(self, due: float) -> None:
        self.trace.late(due)
        self.loop.call_later(TICK_S, self._tick, self.monotonic() + TICK_S)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        what = f"task {name or getattr(coro, '__qualname__', '')}"
        return super().spawn(_Traced(self.trace, what, coro), name=name)

    def _in_time(self, callback: Callable[..., Any], *args: Any) -> None:
        self.trace.run(_name(callback), super()._in_time, callback, *args)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Handle:
        return super().call_soon(self.trace.run, _name(callback), callback, *args)

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener:
        return await super().listen(host, port, lambda: self._with_timed_reads(factory()))

    async def connect(
        self,
        host: str,
        port: int,
        protocol: asyncio.BaseProtocol,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Transport:
        return await super().connect(host, port, self._with_timed_reads(protocol), tls=tls)

    def _with_timed_reads(self, protocol: Any) -> Any:
        for method in ("buffer_updated", "data_received"):
            if hasattr(protocol, method):
                hear = getattr(protocol, method)
                setattr(protocol, method, partial(self.trace.run, _name(hear), hear))
        return protocol

    def close(self) -> None:
        self._ended.set()
        gc.callbacks.remove(self.trace.collects)
        super().close()


def _name(callback: Callable[..., Any]) -> str:
    name = getattr(callback, "__qualname__", None)
    if name is None:
        return type(callback).__name__
    owner = getattr(callback, "__self__", None)
    return name if owner is None else f"{type(owner).__name__}.{name.rpartition('.')[2]}"

"""Objects that are expensive to open and used for a moment, again and again: connections, clients,
producers.

One thread at a time uses an object, which then waits for the next user of the same key. An object
that was not used for five minutes is closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from saturnmq.runtime import forks

IDLE_S = 300.0

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Pool(Generic[K, T]):
    """The idle objects, by key. Its methods may be called from any thread."""

    def __init__(
        self,
        open_: Callable[[K], T],
        close: Callable[[T], object],
        *,
        usable: Callable[[T], bool] = lambda _: True,
        idle_s: float = IDLE_S,
    ) -> None:
        """`usable` is called before an idle object is used again."""
        self._open = open_
        self._close = close
        self._usable = usable
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: dict[K, list[tuple[float, T]]] = {}  # with the time since when
        self._sweeper: threading.Timer | None = None
        forks.register(self)

    def forked(self) -> None:
        """A child uses no object of its parent, and destroys none."""
        self._inherited = self._idle
        self._lock, self._idle, self._sweeper = threading.Lock(), {}, None

    def take(self, key: K) -> T:
        """An object for the caller alone: `give_back` returns it, or the caller closes it after a
        failure. An error of opening is raised."""
        while True:
            with self._lock:
                waiting = self._idle.get(key)
                thing = waiting.pop()[1] if waiting else None
            if thing is None:
                return self._open(key)
            if self._usable(thing):
                return thing
            self._close(thing)

    def give_back(self, key: K, thing: T) -> None:
        """Nothing is under way on `thing`: the next user may have it."""
        with self._lock:
            self._idle.setdefault(key, []).append((time.monotonic(), thing))
            self._plan_sweep()

    @contextmanager
    def use(self, key: K) -> Iterator[T]:
        """Use an object that stays good for the next user, however the block ends."""
        thing = self.take(key)
        try:
            yield thing
        finally:
            self.give_back(key, thing)

    def close_idle(self, idle_s: float = 0.0) -> int:
        """Close the objects that were not used for `idle_s`; returns how many stay open."""
        last = time.monotonic() - idle_s
        with self._lock:
            every, self._idle = self._idle, {}
            for key, waiting in every.items():
                stay = [(since, thing) for since, thing in waiting if since > last]
                if stay:
                    self._idle[key] = stay
            left = sum(map(len, self._idle.values()))
        for waiting in every.values():
            for since, thing in waiting:
                if since <= last:
                    self._close(thing)
        return left

    def _plan_sweep(self) -> None:
        if self._sweeper is None:
            self._sweeper = threading.Timer(self._idle_s / 5, self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        self.close_idle(self._idle_s)
        with self._lock:
            self._sweeper = None
            if self._idle:
                self._plan_sweep()

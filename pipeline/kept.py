"""What a worker process keeps open from one task to the next: producers, clients.

A Python worker of Spark runs many tasks, and a stream's driver many epochs. The next one finds open
what the last one used; what nobody has used for five minutes is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

IDLE_S = 300.0

K = TypeVar("K")
T = TypeVar("T")


class Kept(Generic[K, T]):
    """What is dear to open: one per key and process, closed when it was idle for `idle_s`."""

    def __init__(
        self, open_: Callable[[K], T], close: Callable[[T], object], idle_s: float = IDLE_S
    ) -> None:
        self._make = open_
        self._close = close
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._things: dict[K, T] = {}
        self._users: dict[K, int] = {}
        self._timers: dict[K, threading.Timer] = {}

    @contextmanager
    def use(self, key: K) -> Iterator[T]:
        """The thing of `key`, opened if it is not open."""
        with self._lock:
            timer = self._timers.pop(key, None)
            if timer is not None:
                timer.cancel()
            if key not in self._things:
                self._things[key] = self._make(key)
            thing = self._things[key]
            self._users[key] = self._users.get(key, 0) + 1
        try:
            yield thing
        finally:
            with self._lock:
                self._users[key] -= 1
                if not self._users[key] and self._things.get(key) is thing:
                    timer = threading.Timer(self._idle_s, self._expire, (key, thing))
                    timer.daemon = True
                    self._timers[key] = timer
                    timer.start()

    def _expire(self, key: K, thing: T) -> None:
        with self._lock:
            if self._users.get(key) or self._things.get(key) is not thing:
                return
            del self._things[key]
            self._timers.pop(key, None)
        self._close(thing)

    def close(self) -> None:
        """Close all that nobody uses now."""
        with self._lock:
            idle = [key for key in self._things if not self._users.get(key)]
            things = [self._things.pop(key) for key in idle]
            for key in idle:
                self._timers.pop(key).cancel()
        for thing in things:
            self._close(thing)

"""Pulls, and pops, that wait for messages, by queue, by deadline and by connection.

The pulls of a queue, a deadline or a connection are found without looking at the others, so a
hundred thousand pulls of one client cost other clients nothing: they end with their connection, and
their memory counts in its budget. When maxHeldPulls are held, a connection that has less than its
fair part gets the place of a pull of the connection that has the most.

Pure: time comes as an argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Hashable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Generic, Protocol, TypeVar

from saturnmq.broker.tables.subscription_groups import SubscriptionGroup
from saturnmq.protocol import headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.sql92 import Sql

FORGOTTEN = 200  # requests of a connection that is gone, in one turn
GRAIN_S = 0.01  # deadlines within one grain count as one
PULL_BYTES = 1500  # of one, without its expression: 1,220 were measured


@dataclass(slots=True, eq=False)
class HeldPull:
    endpoint: Endpoint
    request: Command
    header: headers.PullHeader
    topic: str
    queue_id: int
    offset: int
    max_count: int
    max_bytes: int
    codes: frozenset[int] | None
    sql: Sql | None
    group: SubscriptionGroup
    progress: bool = False  # its filter has dropped messages while it is held
    done: bool = False
    due: int = 0  # in grains
    queue: tuple[str, int] = field(init=False)
    size: int = field(init=False)  # bytes of memory

    def __post_init__(self) -> None:
        self.queue = self.topic, self.queue_id
        self.size = PULL_BYTES + len(self.header.subscription or "")


class HeldRequest(Protocol):
    """A request that waits for messages of a queue, or of whatever is named in its place."""

    endpoint: Endpoint
    request: Command
    done: bool
    due: int  # in grains

    @property
    def queue(self) -> tuple[str, int | str]: ...

    @property
    def size(self) -> int: ...


R = TypeVar("R", bound=HeldRequest)
K = TypeVar("K", bound=Hashable)


class HeldPulls(Generic[R]):
    """The held requests of one kind of one broker."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.by_queue: dict[tuple[str, int | str], dict[R, None]] = {}
        self._by_endpoint: dict[Endpoint, dict[R, None]] = {}
        self._by_time: dict[int, dict[R, None]] = {}
        self._times: list[int] = []  # a heap; times without pulls are skipped
        self.count = 0  # as `len` says

    def __len__(self) -> int:
        return self.count

    def validate(self) -> None:
        """AssertionError: a pull is in one of the three tables and not in another."""
        by_endpoint = [pull for each in self._by_endpoint.values() for pull in each]
        by_time = {pull for each in self._by_time.values() for pull in each}
        assert len(by_endpoint) == self.count, f"{self.count} of {len(by_endpoint)} are counted"
        assert len(by_time) == self.count, f"{self.count} of {len(by_time)} end some time"
        for due, each in self._by_time.items():
            assert each, f"nobody waits until {due}"
            assert all(pull.due == due for pull in each), f"some do not wait until {due}"
        assert {*self._times} >= self._by_time.keys(), "a time is not in the heap"
        for queue, each in self.by_queue.items():
            assert each, f"nobody waits for {queue}"
            assert by_time >= each.keys(), f"who waits for {queue} never ends"
            assert not any(pull.done for pull in each), f"one that was answered waits for {queue}"

    def add(self, pull: R, deadline: float) -> None:
        """Hold a pull. SystemBusy: the budget of its connection has no room."""
        assert not pull.done, f"a pull of {pull.queue} was answered, and is to wait"
        pull.endpoint.budget.take(pull.size, "a pull that waits for messages")
        pull.request.ext = {}  # its header has all that is needed
        self.put_back(pull)
        self._by_endpoint.setdefault(pull.endpoint, {})[pull] = None
        self._due(pull, deadline)
        self.count += 1

    def put_back(self, pull: R) -> None:
        """Hold a pull of `take_queue` again."""
        assert not pull.done, f"a pull of {pull.queue} was answered, and waits on"
        self.by_queue.setdefault(pull.queue, {})[pull] = None

    def move_up(self, pull: R, deadline: float) -> None:
        """Move its deadline up, if it was later."""
        if ceil(deadline / GRAIN_S) < pull.due:
            _remove(self._by_time, pull.due, pull)
            self._due(pull, deadline)

    def _due(self, pull: R, deadline: float) -> None:
        due = pull.due = ceil(deadline / GRAIN_S)
        if due not in self._by_time:
            heapq.heappush(self._times, due)
        self._by_time.setdefault(due, {})[pull] = None

    def forget(self, pull: R) -> None:
        """Forget a pull that was answered, or whose connection is gone."""
        if pull.done:
            return
        pull.done = True
        self.count -= 1
        assert self.count >= 0, f"{self.count} pulls are held"
        _remove(self.by_queue, pull.queue, pull)
        _remove(self._by_endpoint, pull.endpoint, pull)
        _remove(self._by_time, pull.due, pull)
        if not pull.endpoint.closed:
            pull.endpoint.budget.give_back(pull.size)

    def dropped(self, endpoint: Endpoint, opaque: int) -> R | None:
        """Forget a request whose answer nobody waits for any more; None if it is not held."""
        found = next((held for held in self.of(endpoint) if held.request.opaque == opaque), None)
        if found is not None:
            self.forget(found)
        return found

    def forget_all(self, pulls: list[R]) -> Generator[None, None, None]:
        """Forget the pulls of a connection that is gone; yields between two turns of the loop."""
        for number, pull in enumerate(pulls, 1):
            self.forget(pull)
            if not number % FORGOTTEN:
                yield

    def take_queue(self, queue: tuple[str, int | str]) -> dict[R, None] | None:
        """Take the pulls that wait for a queue; each must be put back or forgotten."""
        return self.by_queue.pop(queue, None)

    def take_all(self) -> Iterator[R]:
        held, self.by_queue = self.by_queue, {}
        return (pull for waiting in held.values() for pull in waiting)

    def take_due(self, now: float) -> R | None:
        """Take and forget a pull whose time is over."""
        while self._times and self._times[0] * GRAIN_S <= now:
            waiting = self._by_time.get(self._times[0])
            if waiting is None:
                heapq.heappop(self._times)
                continue
            pull = next(iter(waiting))
            self.forget(pull)
            return pull
        return None

    def of(self, endpoint: Endpoint) -> list[R]:
        return list(self._by_endpoint.get(endpoint, ()))

    def to_give_way(self, endpoint: Endpoint) -> R | None:
        """The pull that must end so that this connection gets its place; None if the connection has
        its fair part."""
        mine = self._by_endpoint.get(endpoint, {})
        if len(mine) >= self.limit // (len(self._by_endpoint) + (not mine)):
            return None
        most = max(self._by_endpoint.values(), key=len)
        return next(iter(most)) if len(most) > len(mine) + 1 else None


def _remove(table: dict[K, dict[R, None]], key: K, pull: R) -> None:
    waiting = table.get(key)
    if waiting is not None:
        waiting.pop(pull, None)
        if not waiting:
            del table[key]

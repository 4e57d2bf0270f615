"""The etcd of a simulated cluster: one linearizable store with leases and watches, and the door to
it of each broker (`broker/etcd/door.py`).

The store stands for all members of an etcd cluster: a node that reaches it reaches a majority. It
is a node of the network with this name, so that links to it can be slow or cut, in one direction,
too: then a write may be done without an answer. While it is away it does not answer, and no lease
ends. When it is back each lease has its whole time again, as from a new leader of etcd. It can be
restored from a backup: then keys, leases and revisions are those of the backup, and the id of the
cluster is the old one or a new one. Numbers of leases are never given twice. A watch gets no
compacted changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from saturnmq.broker.etcd.door import (
    Compacted,
    Delete,
    EtcdDenied,
    EtcdUnavailable,
    Guard,
    KeyValue,
    Lease,
    LeaseLost,
    News,
    Put,
    Snapshot,
    TxnOutcome,
)
from saturnmq.broker.replication.group_record import read_record
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.runtime import SimRuntime

T = TypeVar("T")
ETCD = "etcd"
CLUSTER = 0xE7CD
ANSWER_S = 1.0  # an endpoint has to answer, as to GrpcEtcd
PROGRESS_S = 2.0  # between two signs of life of a watch
AGAIN_S = 0.2  # before a watch that was refused asks again


@dataclass
class _Lease:
    seconds: int
    ends: float


@dataclass(frozen=True)
class Backup:
    """A snapshot of all that there was at this revision."""

    revision: int
    items: dict[str, KeyValue]
    leases: dict[int, int]  # and their seconds


class EtcdStore:
    """All keys, at one revision after the other."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.is_away = False
        self.denied: set[str] = set()  # nodes whose credentials are wrong
        self.cluster = CLUSTER
        self.revision = 1
        self._compacted = 0  # watches that begin before this revision are refused
        self._items: dict[str, KeyValue] = {}
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        self.history: list[tuple[int, str, KeyValue | None]] = []  # each change, by its revision
        self.watchers: dict[asyncio.Event, None] = {}  # in order, so that runs repeat themselves

    def go_away(self) -> None:
        self.end_leases()
        self.is_away = True

    def come_back(self) -> None:
        self.is_away = False
        for number in self._leases:
            self.keep(number)

    def back_up(self) -> Backup:
        self.end_leases()
        leases = {number: lease.seconds for number, lease in self._leases.items()}
        return Backup(self.revision, dict(self._items), leases)

    def restore(self, backup: Backup, *, renamed: bool) -> None:
        """Restore a backup into an etcd that is away; `renamed`: as another cluster."""
        self.cluster += renamed
        self.revision, self._items = backup.revision, dict(backup.items)
        self._leases = {number: _Lease(seconds, 0.0) for number, seconds in backup.leases.items()}
        self._compacted = min(self._compacted, self.revision)
        self.history = [change for change in self.history if change[0] <= self.revision]

    def in_sync(self) -> dict[str, frozenset[str]]:
        """The electable nodes by the key of their group's record."""
        return {
            key: read_record(item.value).in_sync
            for key, item in self._items.items()
            if key.endswith("/record")
        }

    def delete_record(self, group: str) -> None:
        """Delete a group's record, as an operator does."""
        self._write([Delete(key) for key in self._items if key.endswith(f"/{group}/record")])

    def compact(self) -> None:
        """Older changes are not kept."""
        self._compacted = self.revision
        self.history = [change for change in self.history if change[0] >= self.revision]

    def end_leases(self) -> None:
        """End the leases whose time is over, with their keys."""
        if self.is_away:
            return
        now = self._loop.time()
        for number in [n for n, lease in self._leases.items() if lease.ends <= now]:
            self.revoke(number)

    def read(self, prefix: str) -> Snapshot:
        found = {key: item for key, item in self._items.items() if key.startswith(prefix)}
        return Snapshot(self.cluster, self.revision, found)

    def commit(self, guards: Sequence[Guard], writes: Sequence[Put | Delete]) -> TxnOutcome:
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self._leases:
                raise LeaseLost(f"lease {write.lease} is not known")
        changed = {key: item.changed for key, item in self._items.items()}
        if any(changed.get(guard.key, 0) != guard.changed for guard in guards):
            return TxnOutcome(False, self.cluster, self.revision)
        self._write(writes)
        return TxnOutcome(True, self.cluster, self.revision)

    def changes(self, prefix: str, revision: int) -> News:
        """The changes since a revision."""
        if revision < self._compacted:
            raise Compacted(f"changes are kept from revision {self._compacted} on")
        changes = tuple(
            (key, item)
            for at, key, item in self.history
            if at >= revision and key.startswith(prefix)
        )
        return News(self.cluster, max(self.revision, revision - 1), changes)

    def _write(self, writes: Sequence[Put | Delete]) -> None:
        writes = [w for w in writes if isinstance(w, Put) or w.key in self._items]
        if not writes:
            return
        self.revision += 1
        for write in writes:
            item = None
            if isinstance(write, Put):
                before = self._items.get(write.key)
                created = before.created if before is not None else self.revision
                item = KeyValue(write.value, created, self.revision, write.lease)
                self._items[write.key] = item
            else:
                del self._items[write.key]
            self.history.append((self.revision, write.key, item))
        for watcher in self.watchers:
            watcher.set()

    def grant(self, seconds: int) -> Lease:
        self._last_lease += 1
        self._leases[self._last_lease] = _Lease(seconds, 0.0)
        self.keep(self._last_lease)
        return Lease(self._last_lease, seconds)

    def keep(self, number: int) -> int:
        lease = self._leases.get(number)
        if lease is None:
            raise LeaseLost(f"lease {number} is not known")
        lease.ends = self._loop.time() + lease.seconds
        self._loop.call_at(lease.ends, self.end_leases)
        return lease.seconds

    def revoke(self, number: int) -> None:
        self._leases.pop(number, None)
        self._write([Delete(key) for key, item in self._items.items() if item.lease == number])


class SimEtcd:
    """The door to it of one broker's process."""

    def __init__(self, store: EtcdStore, runtime: SimRuntime) -> None:
        self._store = store
        self._runtime = runtime
        self._clusters: set[int] = set()
        self._told: dict[str, int] = {}  # by key: the newest change that was read

    async def _ask(self, act: Callable[[], T]) -> T:
        """The answer of the store. It may have done what it is not heard of."""
        asked_at = self._runtime.monotonic()
        await self._trip(self._runtime.name, ETCD, asked_at)
        self._store.end_leases()
        if self._runtime.name in self._store.denied:
            await self._trip(ETCD, self._runtime.name, asked_at)
            raise EtcdDenied("etcd: authentication failed; look at etcdUser and etcdPassword")
        answer = act()
        await self._trip(ETCD, self._runtime.name, asked_at)
        return answer

    async def _trip(self, source: str, target: str, asked_at: float) -> None:
        network, runtime = self._runtime.network, self._runtime
        left = asked_at + ANSWER_S - runtime.monotonic()
        took = network.latency(source, target)
        arrives = took <= left and not network.is_blocked(source, target)
        await runtime.sleep(took if arrives else max(left, 0.0))
        if not arrives or self._store.is_away:
            await runtime.sleep(max(asked_at + ANSWER_S - runtime.monotonic(), 0.0))
            raise EtcdUnavailable(f"etcd does not answer within {ANSWER_S:g} s")

    async def read(self, prefix: str) -> Snapshot:
        found = await self._ask(lambda: self._store.read(prefix))
        self._clusters.add(found.cluster)
        for key, item in found.items.items():
            self._told[key] = max(self._told.get(key, 0), item.changed)
        return found

    @property
    def was_told_more(self) -> bool:
        """Whether this process knows of a change of a key that etcd has forgotten since."""
        now = self._store.read("")
        return bool(self._clusters - {now.cluster}) or any(
            key in now.items and now.items[key].changed < told for key, told in self._told.items()
        )

    async def commit(self, guards: Sequence[Guard], writes: Sequence[Put | Delete]) -> TxnOutcome:
        return await self._ask(lambda: self._store.commit(guards, writes))

    async def grant(self, seconds: int) -> Lease:
        return await self._ask(lambda: self._store.grant(seconds))

    async def keep(self, lease: int) -> int:
        return await self._ask(lambda: self._store.keep(lease))

    async def revoke(self, lease: int) -> None:
        await self._ask(lambda: self._store.revoke(lease))

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[News]:
        store, wake = self._store, asyncio.Event()
        store.watchers[wake] = None
        try:
            while True:
                wake.clear()
                try:
                    news = await self._ask(partial(store.changes, prefix, revision))
                except EtcdUnavailable:
                    continue
                except EtcdDenied:
                    await self._runtime.sleep(AGAIN_S)
                    continue
                yield news
                revision = news.revision + 1
                timer = self._runtime.call_later(PROGRESS_S, wake.set)
                await wake.wait()
                timer.cancel()
        finally:
            store.watchers.pop(wake, None)

    async def close(self) -> None:
        """There is no connection."""

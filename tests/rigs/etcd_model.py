"""etcd as a value: linearizable, with leases, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence

from saturnmq.broker.etcd.door import (
    Delete,
    Guard,
    KeyValue,
    Lease,
    LeaseLost,
    Put,
    Snapshot,
    TxnOutcome,
)


class ModelEtcd:
    """Each call takes effect at `now`, the time by etcd's clock."""

    def __init__(self) -> None:
        self.cluster, self.revision = 7, 1
        self.items: dict[str, KeyValue] = {}
        self._leases: dict[int, tuple[float, int]] = {}  # when it ends, and how long it is
        self._given = 0
        self._old_leader_until = 0.0

    def new_leader(self, now: float, lasts: float) -> None:
        """All leases begin anew. For a while the old leader does not know of it, and renews."""
        self._expire(now)
        self._leases = {
            lease: (now + seconds, seconds) for lease, (_, seconds) in self._leases.items()
        }
        self._old_leader_until = now + lasts

    def read(self, prefix: str, now: float) -> Snapshot:
        self._expire(now)
        below = {key: item for key, item in self.items.items() if key.startswith(prefix)}
        return Snapshot(self.cluster, self.revision, below)

    def commit(
        self, guards: Sequence[Guard], writes: Sequence[Put | Delete], now: float
    ) -> TxnOutcome:
        self._expire(now)
        if any(isinstance(w, Put) and w.lease and w.lease not in self._leases for w in writes):
            raise LeaseLost("no such lease")
        absent = KeyValue(b"", 0, 0)
        if any(self.items.get(guard.key, absent).changed != guard.changed for guard in guards):
            return TxnOutcome(False, self.cluster, self.revision)
        self.revision += 1
        for write in writes:
            if isinstance(write, Put):
                created = self.items.get(write.key, absent).created or self.revision
                self.items[write.key] = KeyValue(write.value, created, self.revision, write.lease)
            else:
                self.items.pop(write.key, None)
        return TxnOutcome(True, self.cluster, self.revision)

    def grant(self, seconds: int, now: float) -> Lease:
        self._given += 1
        self._leases[self._given] = now + seconds, seconds
        return Lease(self._given, seconds)

    def keep(self, lease: int, now: float) -> int:
        self._expire(now)
        if lease not in self._leases:
            raise LeaseLost("it has expired")
        _, seconds = self._leases[lease]
        if now >= self._old_leader_until:
            self._leases[lease] = now + seconds, seconds
        return seconds

    def revoke(self, lease: int, now: float) -> None:
        self._expire(now)
        if lease in self._leases:
            self._leases[lease] = now, 0
            self._expire(now)

    def _expire(self, now: float) -> None:
        for lease in [lease for lease, (end, _) in self._leases.items() if end <= now]:
            del self._leases[lease]
            gone = [key for key, item in self.items.items() if item.lease == lease]
            self.revision += bool(gone)
            for key in gone:
                del self.items[key]

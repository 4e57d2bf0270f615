"""The door to etcd: the interface that elections need, in plain values.

Every answer carries the id of the etcd cluster and the revision at which it was true. Revisions
count the changes of all keys and never go back in one cluster: a revision that goes back means that
etcd was restored, or that another cluster answers.

| error | meaning | was a write done? |
|---|---|---|
| EtcdUnavailable | no endpoint answered in time, or etcd has no quorum | unknown |
| EtcdDenied | user, password, certificate or permission | no |
| EtcdRefused | etcd refused the request for any other reason | no |
| LeaseLost | etcd does not know this lease (any more) | no |
| Compacted | the changes since that revision are not kept: read again | - |
| EtcdMalformed | an answer beyond the bounds below | unknown |
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from saturnmq.runtime.errors import SaturnError

VALUE_BYTES_MAX = 64 << 10
KEYS_MAX = 1_000  # below one prefix
REVISION_MAX = (1 << 63) - 1
LEASE_S_MAX = 9_000_000_000  # etcd's own limit


class EtcdError(SaturnError):
    """A request to etcd failed"""


class EtcdUnavailable(EtcdError):
    """No endpoint of etcd answered in time"""

    retriable = True
    outcome = "unknown"


class EtcdDenied(EtcdError):
    """etcd does not take these credentials"""


class EtcdRefused(EtcdError):
    """etcd refuses the request"""


class LeaseLost(EtcdError):
    """etcd does not know the lease: it has expired, or was revoked"""


class Compacted(EtcdError):
    """etcd does not keep the changes since this revision any more"""


class EtcdMalformed(EtcdError):
    """etcd answered what it cannot mean"""

    outcome = "unknown"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value at one revision."""

    value: bytes
    created: int  # the revision at which it began to exist
    changed: int  # the revision of its last change
    lease: int = 0  # the key ends with this lease; 0: with none


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys below a prefix at one revision, which a majority of etcd agrees on."""

    cluster: int
    revision: int
    items: dict[str, KeyValue]


@dataclass(frozen=True, slots=True)
class News:
    """Changes below a prefix, in order; None: the key is gone. News without changes means that the
    watch has begun, or still lives."""

    cluster: int
    revision: int
    changes: tuple[tuple[str, KeyValue | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition of a commit: the key's last change is of this revision. 0: there is no key."""

    key: str
    changed: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


@dataclass(frozen=True, slots=True)
class TxnOutcome:
    """Whether the guards held, and the writes were done, all of them at `revision`."""

    done: bool
    cluster: int
    revision: int


@dataclass(frozen=True, slots=True)
class Lease:
    id: int
    seconds: int  # granted by etcd; may be more than were asked for


class Etcd(Protocol):
    """One etcd cluster. Each call ends within a bounded time, with an answer or an EtcdError."""

    async def read(self, prefix: str) -> Snapshot: ...

    async def commit(self, guards: Sequence[Guard], writes: Sequence[Put | Delete]) -> TxnOutcome:
        """Do all of the writes, if all of the guards hold. A commit is never sent twice."""
        ...

    async def grant(self, seconds: int) -> Lease: ...

    async def keep(self, lease: int) -> int:
        """Renew a lease; return the seconds that it has from etcd's answer on."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease, and the keys bound to it. One that is gone already is no error."""
        ...

    def watch(self, prefix: str, revision: int) -> AsyncIterator[News]:
        """Watch the changes from this revision on, through lost connections. While etcd can be
        reached, news comes at once, then at least every PROGRESS_S. Compacted: read again, and go
        on there."""
        ...

    async def close(self) -> None: ...

"""The requests of a drill to a cluster, whatever its nodes are: processes of this machine
(`processes.py`) or containers (`compose.py`).

Every method blocks until the thing is done and is called on a thread beside the event loop. A
backend says with `why_not` what it cannot do here; a drill that needs it is skipped with that
reason. `CLIENTS` stands for the producers and consumers of the drill, the other end of a partition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from saturnmq.runtime.errors import SaturnError

CLIENTS = "clients"
NAMESERVER, BROKER, ETCD = "nameserver", "broker", "etcd"
Feature = Literal[
    "partition",
    "wipe",
    "slow",
    "full-disk",
    "clock",
    "spark",
    "disk",
    "neighbour",
    "etcd",
    "upgrade",
]


ETCDS = 3


class DrillUnavailable(SaturnError):
    """This drill cannot run on this machine"""


@dataclass(frozen=True)
class DrillNode:
    """One node. Its name stays what it is; its role may move to another by a promotion."""

    name: str
    kind: str  # NAMESERVER | BROKER | ETCD
    address: str  # host:port, as the clients reach it
    group: str = ""  # broker name
    broker_id: int = 0  # as configured: 0 began as the master


@dataclass
class BackendNeeds:
    """The requirements of a drill on a backend; `features` are the kinds of faults that it will
    make, and "etcd": groups elect their masters, through an etcd of ETCDS members."""

    directory: Path
    masters: int = 2
    slaves: int = 1
    flush: str = "async"
    replication: str = "sync"
    features: Collection[Feature] = ()
    broker_options: Mapping[str, Any] = field(default_factory=dict)


class Neighbour(Protocol):
    """Another cluster with the names of this one."""

    async def live(self) -> None:
        """Its life before."""

    def start_by_mistake(self, nameservers: list[str], ha_address: str, *, master: bool) -> str:
        """Start one of its nodes with these nameservers, by mistake; a slave may also get the
        address to dial."""

    def close(self) -> None:
        """All of it ends."""


class Backend(Protocol):
    """A running cluster that can be hurt."""

    replication: str  # async or sync
    directory: Path

    @property
    def nodes(self) -> list[DrillNode]:
        """All nodes: nameservers, brokers, members of the etcd."""

    def why_not(self, feature: Feature) -> str | None:
        """Why a fault of this kind cannot be made here, or None."""

    def start(self) -> None:
        """Bring all nodes up; returns when they serve and know each other."""

    def close(self) -> None:
        """Heal, stop and remove everything that was started; never raises for what is gone."""

    def alive(self, name: str) -> bool:
        """Whether the node's process runs (a paused one does)."""

    def kill(self, name: str) -> None:
        """SIGKILL; the disk stays."""

    def stop(self, name: str) -> None:
        """An orderly stop."""

    def restart(self, name: str) -> None:
        """Start a node that was killed or stopped, on its disk and address; returns once it
        listens (a restarted master may still refuse writes)."""

    def pause(self, name: str) -> None:
        """SIGSTOP: connections stay, nothing moves."""

    def resume(self, name: str) -> None:
        """End a pause."""

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Silently drop what `a` and `b` (node names or CLIENTS) send each other; one way: only
        what `a` sends to `b`."""

    def heal(self) -> None:
        """End all partitions."""

    def upgrade(self, say: Callable[[str], None]) -> None:
        """Restart nameservers and brokers one at a time, as `cluster upgrade --rolling` does."""

    def wipe(self, name: str) -> None:
        """Delete the store of a stopped broker."""

    def store(self, name: str) -> Path:
        """The store of a broker, to be changed from outside."""

    def neighbour(self, chance: random.Random) -> Neighbour:
        """Another cluster beside this one, which serves."""

    def admit(self, neighbour: Neighbour, name: str, *, master: bool) -> None:
        """Let one of the neighbour's nodes serve with the nameservers of this cluster; a slave may
        dial the node of this name."""

    def add_slave(self, group: str) -> str:
        """The name of a new node, which serves."""

    def fill_disk(self, name: str) -> None:
        """Leave no room on the disk of a broker's store."""

    def free_disk(self, name: str) -> None:
        """Give the room back."""

    def slow(self, name: str, share: float) -> None:
        """Let a node run for only `share` of the time, in short turns; 1.0 ends it."""

    def shift_clock(self, name: str, seconds: float) -> None:
        """Set the wall clock of a node forward or back; its monotonic clock stays. 0 ends it."""

    def stores(self, to: Path) -> Mapping[str, Path]:
        """The store directory of each broker, which all must be stopped: as it lies there, or
        copied below `to`."""

    def log_tail(self, name: str) -> str:
        """The last lines that a node printed."""

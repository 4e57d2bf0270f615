"""The nodes of a drill as processes of this machine, started by the launcher.

The tools of a fault are set up only for the drills that have it: network namespaces for partitions
(`network.py`), a moved clock (`clock.py`), a small file system for a full disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from saturnmq import Admin
from saturnmq.cli import local_etcd
from saturnmq.cli.free_ports import free_block
from saturnmq.cli.launcher import (
    LOG_FILE,
    PORTS_PER_BROKER,
    LauncherError,
    LocalCluster,
    Settings,
)
from saturnmq.cli.launcher import Node as ClusterNode
from saturnmq.cli.rolling import Upgrade
from saturnmq.drills.failover import clock, disks, network
from saturnmq.drills.failover.backend import (
    BROKER,
    ETCD,
    ETCDS,
    NAMESERVER,
    BackendNeeds,
    DrillNode,
    DrillUnavailable,
    Feature,
    Neighbour,
)
from saturnmq.drills.failover.foreign import ForeignCluster
from saturnmq.drills.kernel.mounts import RigUnavailable, mounted
from saturnmq.drills.kernel.mounts import why_not as why_no_mounts
from saturnmq.pipeline.session import why_not as why_no_spark

NAMESERVERS = 2
SLICE_S = 0.1  # of a slowed node's time: it runs for a share of each
SMALL_DISK = "64m"
_KINDS = {"nameserver": NAMESERVER, "etcd": ETCD}
# Room that a full disk does not give: a file that fills the rest.
_FILLER = "filler"
# Files are allocated in full: RocketMQ's sizes would make every start write gigabytes.
SMALL_FILES = {
    "mappedFileSizeCommitLog": 8 << 20,
    "maxHashSlotNum": 5_000,
    "maxIndexNum": 20_000,
}


@dataclass
class Processes(BackendNeeds):
    """A `Backend`."""

    def __post_init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._cluster: LocalCluster | None = None
        self._network: network.Network | None = None
        self._clocks: clock.Clocks | None = None
        self._slowed: dict[str, _Slowed] = {}

    # -- what there is -----------------------------------------------------------------------------

    @property
    def cluster(self) -> LocalCluster:
        if self._cluster is None:
            raise LauncherError("the drill's cluster does not run: call start() first")
        return self._cluster

    @property
    def nodes(self) -> list[DrillNode]:
        return [
            DrillNode(
                node.name,
                _KINDS.get(node.kind, BROKER),
                node.address,
                node.broker_name or "",
                node.broker_id,
            )
            for node in self.cluster.nodes
        ]

    def why_not(self, feature: Feature) -> str | None:
        if feature == "partition":
            return None if self._network else network.why_not()
        if feature == "clock":
            return clock.why_not()
        if feature == "full-disk":
            return why_no_mounts(reflink=False, fuse=False)
        if feature == "spark":
            return why_no_spark()
        if feature == "etcd" and shutil.which(local_etcd.PROGRAM) is None:
            return "elections need an etcd in PATH (Debian: apt install etcd-server)"
        return None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        brokers = self._broker_names()
        names = [f"nameserver-{index}" for index in range(NAMESERVERS)] + brokers
        if elects := "etcd" in self.features:
            names += [f"etcd-{index}" for index in range(ETCDS)]
        settings = Settings(
            nameservers=NAMESERVERS,
            masters=self.masters,
            slaves=self.slaves,
            election=elects,
            etcds=ETCDS if elects else 1,
            flush=self.flush,
            replication=self.replication,
            broker_options={**SMALL_FILES, **self.broker_options},
        )
        try:
            if "partition" in self.features:
                self._network = self._undo.enter_context(network.network(names))
                settings.hosts = dict(self._network.hosts)
            if "clock" in self.features:
                self._clocks = clock.Clocks(self.directory / "clocks", names)
            for name in names:
                prefix = self._network.prefix(name) if self._network else []
                prefix += self._clocks.prefix(name) if self._clocks else []
                if prefix:
                    settings.prefixes[name] = prefix
            if "full-disk" in self.features:
                for name in brokers:
                    store = self.directory / name / "store"
                    self._undo.enter_context(
                        mounted("drill", store, f"size={SMALL_DISK}", kind="tmpfs")
                    )
            self._cluster = LocalCluster.up(self.directory, settings)
        except (RigUnavailable, BaseException) as problem:
            self._undo.close()
            if isinstance(problem, RigUnavailable):
                raise DrillUnavailable(str(problem)) from problem
            raise

    def _broker_names(self) -> list[str]:
        names = []
        for master in range(self.masters):
            names.append(f"master-{master}")
            for slave in range(1, self.slaves + 1):
                names.append(f"slave-{master}" + (f"-{slave}" if self.slaves > 1 else ""))
        return names

    def close(self) -> None:
        with contextlib.suppress(DrillUnavailable):
            self.heal()
        for name in list(self._slowed):
            self.slow(name, 1.0)
        if self._cluster is not None:
            for node in self._cluster.nodes:
                self._signal(node, signal.SIGCONT)
            self._cluster.down()
        self._undo.close()

    # -- processes ---------------------------------------------------------------------------------

    def alive(self, name: str) -> bool:
        return self.cluster.node(name).alive()

    def kill(self, name: str) -> None:
        self.cluster.kill(name)

    def stop(self, name: str) -> None:
        self.cluster.stop(name)

    def restart(self, name: str) -> None:
        self.cluster.start(name)

    def pause(self, name: str) -> None:
        self._signal(self.cluster.node(name), signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(self.cluster.node(name), signal.SIGCONT)

    def upgrade(self, say: Callable[[str], None]) -> None:
        with Admin(self.cluster.nameservers) as admin:
            Upgrade(self.cluster, admin, say).run()

    @staticmethod
    def _signal(node: ClusterNode, number: int) -> None:
        if node.pid is not None and node.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, number)

    def slow(self, name: str, share: float) -> None:
        before = self._slowed.pop(name, None)
        if before is not None:
            before.end()
        if share < 1.0:
            self._slowed[name] = _Slowed(self, name, share)

    # -- other nodes -------------------------------------------------------------------------------

    def neighbour(self, chance: random.Random) -> ForeignCluster:
        settings = Settings(
            slaves=1,
            flush=self.flush,
            replication=self.replication,
            broker_options={**SMALL_FILES, **self.broker_options},
        )
        made = ForeignCluster(self.directory / "neighbour", settings, chance)
        self._undo.callback(made.close)
        return made

    def admit(self, neighbour: Neighbour, name: str, *, master: bool) -> None:
        node = self.cluster.node(name)
        ha_address = f"{node.host}:{node.port + 1}"
        neighbour.start_by_mistake(self.cluster.nameservers, ha_address, master=master)

    def add_slave(self, group: str) -> str:
        members = [node for node in self.cluster.nodes if node.broker_name == group]
        number = 1 + max(node.broker_id for node in members)
        name = f"{members[-1].name}-{number}"
        port = free_block(members[0].host, PORTS_PER_BROKER) + 2
        node = ClusterNode(
            name,
            "slave",
            members[0].host,
            port,
            str(self.directory / name),
            broker_name=group,
            broker_id=number,
        )
        self.cluster.nodes.append(node)
        self.cluster.start(name)
        return name

    # -- network, disk, clock ----------------------------------------------------------------------

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        if self._network is None:
            raise DrillUnavailable("the drill did not ask for partitions")
        self._network.cut(a, b)
        if not one_way:
            self._network.cut(b, a)

    def heal(self) -> None:
        if self._network is not None:
            self._network.heal()

    def wipe(self, name: str) -> None:
        disks.empty(self.store(name))

    def store(self, name: str) -> Path:
        return Path(self.cluster.node(name).data) / "store"

    def fill_disk(self, name: str) -> None:
        block = bytes(1 << 20)
        filler = self.store(name) / _FILLER
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(block):  # until no space is left
                pass

    def free_disk(self, name: str) -> None:
        (self.store(name) / _FILLER).unlink(missing_ok=True)

    def shift_clock(self, name: str, seconds: float) -> None:
        if self._clocks is None:
            raise DrillUnavailable("the drill did not ask for clocks")
        self._clocks.shift(name, seconds)

    # -- afterwards --------------------------------------------------------------------------------

    def stores(self, to: Path) -> Mapping[str, Path]:
        del to  # they lie here
        return {node.name: self.store(node.name) for node in self.nodes if node.kind == BROKER}

    def log_tail(self, name: str) -> str:
        with contextlib.suppress(OSError):
            text = (Path(self.cluster.node(name).data) / LOG_FILE).read_text(errors="replace")
            return "\n".join(text.splitlines()[-20:])
        return ""


class _Slowed:
    """Stops and continues a node in turns, on a thread."""

    def __init__(self, processes: Processes, name: str, share: float) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._turns, args=(processes, name, share), name=f"slow {name}", daemon=True
        )
        self._thread.start()

    def _turns(self, processes: Processes, name: str, share: float) -> None:
        while not self._over.is_set():
            processes.pause(name)
            self._over.wait(SLICE_S * (1.0 - share))
            processes.resume(name)
            self._over.wait(SLICE_S * share)
        processes.resume(name)

    def end(self) -> None:
        self._over.set()
        self._thread.join()

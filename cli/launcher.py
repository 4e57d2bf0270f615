"""A whole cluster on this machine: every node a process of its own, all state below one data
directory.

Layout of the data directory:

| file | what it holds | written by |
|---|---|---|
| `cluster.json` | the nodes: name, kind, ports, pid and its start time | this module, atomically |
| `NODE/broker.toml` | the configuration of one broker | this module, at `up` |
| `NODE/ready.json` | addresses and pid, present once the node serves | the node itself |
| `NODE/log.txt` | what the node printed; `log.txt.1`, ... before that (`node_log.py`) | the node |
| `NODE/store/` | the store of a broker | the node |

Nodes are detached from the process that started them, so `cluster up` returns and `cluster kill`
works from another shell. A pid is only ever signalled together with the start time it was recorded
with: after a crash of the machine the number may belong to a stranger. Only the owner may read the
files made here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from saturnmq.cli import local_etcd, node_environment
from saturnmq.cli.cluster_files import locked, private, toml, write_private
from saturnmq.cli.free_ports import NoFreePortsError, free_block, is_free, keep
from saturnmq.cli.interrupts import interrupt_later
from saturnmq.cli.node_questions import ask, registered
from saturnmq.cli.successor import STOP_TIMEOUT_S, start_time
from saturnmq.protocol.codes import RequestCode
from saturnmq.runtime.door import join_address
from saturnmq.runtime.errors import SaturnError, nearest
from saturnmq.runtime.loop_watch import long_stops_in

STATE_FILE = "cluster.json"
READY_FILE = "ready.json"
LOG_FILE = "log.txt"
KV_CONFIG = "kvConfig.json"
CLUSTER_NAME = "SaturnCluster"
KINDS = ("etcd", "nameserver", "master", "slave")  # in the order of their start
START_TIMEOUT_S = 60.0
ENOUGH_BYTES = 1 << 30  # of a disk that others fill, too: a part in percent says little of it
# A broker takes four ports: the one Java slaves use (listen - 2), gRPC (listen - 1), listen and HA
# (listen + 1).
PORTS_PER_BROKER = 4


class LauncherError(Exception):
    """A cluster command that could not be done; the text says why and what to do."""


@dataclass
class Node:
    """One process. `port` is 0 for nothing but a node that has not been placed yet."""

    name: str
    kind: str  # of KINDS: as it was started, a promotion may change its role
    host: str
    port: int
    data: str
    pid: int | None = None
    # Start time in clock ticks since boot, from /proc, which makes the pid unambiguous; None, too,
    # if the process had ended before it could be read.
    started: int | None = None
    broker_name: str | None = None
    broker_id: int = 0
    grpc_port: int = 0

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    def registers_as(self) -> str:
        """The address that a broker which serves gives to nameservers."""
        try:
            return str(_ready(self)["address"])
        except FileNotFoundError:
            raise LauncherError(f"{self.name} does not serve yet") from None

    def alive(self) -> bool:
        started = None if self.pid is None else start_time(self.pid)
        return started is not None and started == self.started

    @property
    def ports(self) -> set[int]:
        return {self.port, self.port + (self.kind != "nameserver"), self.grpc_port or self.port}

    def describe(self) -> dict[str, Any]:
        alive, grpc = self.alive(), None
        with contextlib.suppress(OSError, ValueError):  # it does not serve yet
            grpc = _ready(self).get("grpc") if alive else None
        return {
            "name": self.name,
            "kind": self.kind,
            "address": self.address,
            "ha_address": join_address(self.host, self.port + 1) if self.broker_name else None,
            "grpc": grpc or None,
            "pid": self.pid if alive else None,
            "data": self.data,
            "alive": alive,
        }


@dataclass
class Settings:
    """The options of `cluster up`; kept in the state file, so that a restart is the same again."""

    nameservers: int = 1
    masters: int = 1
    slaves: int = 0  # per master
    host: str = "127.0.0.1"
    base_port: int = 0  # 0 = any free ports
    flush: str = "async"
    replication: str = "async"
    # Groups elect their masters: through these (HOST:PORT), or an etcd beside the nodes.
    election: bool = False
    etcd: list[str] = field(default_factory=list)
    etcds: int = 1  # members of an etcd of its own
    tls: str = "auto"  # for the ports of gRPC: `--tls` of every node
    broker_options: dict[str, Any] = field(default_factory=dict)
    # For nodes in places of their own (the drills' network namespaces), by node name: where each
    # listens, and what its command line begins with, which has to `exec` the rest.
    hosts: dict[str, str] = field(default_factory=dict)
    prefixes: dict[str, list[str]] = field(default_factory=dict)


class LocalCluster:
    """The nodes below one data directory. Every method that changes something rewrites the state
    file.
    """

    def __init__(self, data: Path, settings: Settings, nodes: list[Node]) -> None:
        self.data = data
        self.settings = settings
        self.nodes = nodes
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    # -- making and finding ---------------------------------------------------------------------

    @classmethod
    def up(
        cls,
        data: str | os.PathLike[str],
        settings: Settings | None = None,
        *,
        progress: Callable[[str], None] = lambda _text: None,
    ) -> LocalCluster:
        """Start every node and return when all serve and the masters take writes; what was started
        is stopped again if one fails. A master that still waits for what it lacks is told and left
        to wait: its slaves may be elsewhere.
        """
        settings = settings or Settings()
        _check(settings)
        root = Path(data).absolute()
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise LauncherError(
                f"cannot keep a cluster in {root}: {problem.strerror}; choose another --data DIR"
            ) from problem
        with locked(root):
            known = cls.load(root) if (root / STATE_FILE).exists() else None
            if known:
                cluster = cls(root, known.settings, known.nodes)
                running = [node.name for node in cluster.nodes if node.alive()]
                if running:
                    raise LauncherError(
                        f"a cluster already runs in {root} ({', '.join(running)}); "
                        f"`saturnmq cluster down` stops it, --data DIR chooses another directory"
                    )
                _same_shape(cluster.settings, settings, root)
                if settings.base_port or settings.host != cluster.settings.host:
                    cluster.nodes = _place(root, settings)
                cluster.settings = settings
            else:
                cluster = cls(root, settings, _place(root, settings))
            for node in cluster.nodes:
                if node.name not in settings.hosts:  # else its ports are not this host's
                    _check_ports(node)
                cluster._check_options(node)
            try:
                for kind in KINDS:
                    members = [node for node in cluster.nodes if node.kind == kind]
                    for node in members:
                        progress(f"starting {node.name}")
                        cluster._spawn(node)
                    for node in members:
                        cluster._await_ready(node)
                cluster._save()
                cluster.await_routes()
                cluster._await_decided(progress)
            except BaseException:
                cluster._stop_all()
                with contextlib.suppress(OSError):  # the disk may be full
                    if known:  # with the options that it ran with: these may be what failed
                        known._save()
                    else:  # nothing was kept there yet: the next one may choose afresh
                        (root / STATE_FILE).unlink(missing_ok=True)
                raise
        return cluster

    @classmethod
    def load(cls, data: str | os.PathLike[str]) -> LocalCluster:
        root = Path(data).absolute()
        try:
            state = json.loads((root / STATE_FILE).read_text())
            nodes = [Node(**node) for node in state["nodes"]]
            _find(nodes, root)
            return cls(root, Settings(**state["settings"]), nodes)
        except FileNotFoundError:
            raise LauncherError(
                f"no cluster in {root}: `saturnmq cluster up --data {root}` starts one"
            ) from None
        except (ValueError, KeyError, TypeError) as problem:
            raise LauncherError(f"{root / STATE_FILE} is damaged: {problem}") from problem

    # -- asking ---------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        names = [node.name for node in self.nodes]
        hint = nearest(name, names) or f"; the nodes are {', '.join(names)}"
        raise LauncherError(f"no node called {name!r}{hint}")

    @property
    def nameservers(self) -> list[str]:
        return [node.address for node in self.nodes if node.kind == "nameserver"]

    def describe(self) -> dict[str, Any]:
        return {
            "data": str(self.data),
            "nameservers": self.nameservers,
            "nodes": [node.describe() for node in self.nodes],
        }

    # -- changing -------------------------------------------------------------------------------

    def kill(self, name: str) -> Node:
        """SIGKILL: nothing is flushed, closed or said good-bye to."""
        node = self.node(name)
        if not node.alive():
            raise LauncherError(
                f"{name} is not running; `saturnmq cluster restart {name}` starts it"
            )
        self._signal(node, signal.SIGKILL)
        self._await_end(node, STOP_TIMEOUT_S)
        return node

    def stop(self, name: str) -> Node:
        """SIGTERM, and SIGKILL for what does not listen to it."""
        node = self.node(name)
        self._stop(node)
        return node

    def start(self, name: str) -> Node:
        """Start a node that does not run; returns when it serves, registered or not."""
        node = self.node(name)
        with self._alone():
            self._start(node)
        return node

    def restart(self, name: str) -> Node:
        """Start the node again on the same ports and data; one that runs is stopped in order by its
        successor."""
        node = self.node(name)
        with self._alone():
            if node.kind != "etcd" and node.alive():
                with interrupt_later():  # half-way there are two processes, and one is known
                    self._relieve(node)
            else:
                self._stop(node)
                self._start(node)
            # A nameserver comes back empty: until the brokers registered again it knows no route.
            self.await_routes()
        return node

    def down(self) -> None:
        with self._alone():
            self._stop_all()
            self._save()

    def await_routes(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running nameserver lists every running broker, whatever its role: that
        may be another one than it was started with."""
        deadline = time.monotonic() + timeout_s
        for node in self.nodes:
            if node.kind != "nameserver" or not node.alive():
                continue
            while True:
                try:
                    wanted = {n.registers_as() for n in self.nodes if n.broker_name and n.alive()}
                    seen = registered(node.host, node.port)
                    if wanted <= seen:
                        break
                    why = f"{node.name} knows {sorted(seen)} and not yet {sorted(wanted - seen)}"
                except (LauncherError, SaturnError, ValueError) as problem:
                    why = str(problem)
                if time.monotonic() > deadline:
                    raise LauncherError(f"after {timeout_s:.0f} s {why}")
                time.sleep(0.05)

    def _await_decided(self, progress: Callable[[str], None]) -> None:
        """Wait until no running broker waits for the word of another: only then it takes writes."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in self.nodes:
            told = False
            while node.broker_name and node.alive():
                state: dict[str, Any] = {}
                with contextlib.suppress(SaturnError, ValueError):
                    state = ask(node.host, node.port, RequestCode.REPLICA_STATE)
                if state.get("role") not in ("unsure", "recovering"):
                    break
                if time.monotonic() > deadline:
                    progress(f"{node.name} takes no writes yet: {state.get('refuses')}")
                    break
                if not told:
                    progress(f"waiting until {node.name} knows that its log is whole")
                    told = True
                time.sleep(0.05)

    # -- processes ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let this command alone work in the directory, with the processes that another one, for
        which it may have waited, left there."""
        with locked(self.data):
            kept = {node.name: node for node in self.load(self.data).nodes}
            for node in self.nodes:
                last = kept.get(node.name, node)
                node.pid, node.started = last.pid, last.started
            yield

    def _start(self, node: Node) -> None:
        self._spawn(node)
        self._await_ready(node)
        self._save()

    def _relieve(self, node: Node) -> None:
        """Start its successor, which ends it as soon as it could serve itself."""
        old = replace(node)
        try:
            self._spawn(node, relieves=old)
            self._await_ready(node)
        except LauncherError as problem:
            if not old.alive():
                raise
            node.pid, node.started = old.pid, old.started
            raise LauncherError(f"{node.name} runs as before: {problem}") from problem
        finally:
            self._save()
        self._await_end(old, 0)

    def _spawn(self, node: Node, relieves: Node | None = None) -> None:
        home = Path(node.data)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if relieves is None:
            (home / READY_FILE).unlink(missing_ok=True)
        if node.kind == "etcd":
            members = {each.name: (each.host, each.port) for each in self._etcds()}
            command = local_etcd.command(node.name, members, home / "store")
        else:
            # -P: a module of the same name in the directory of the caller takes no other's place.
            command = [sys.executable, "-P", "-m", "saturnmq.cli.main", *self._arguments(node)]
            if relieves is not None:
                command += ["--relieves", f"{relieves.pid}:{relieves.started}"]
        command = self.settings.prefixes.get(node.name, []) + command
        env = node_environment.without(self._broker_options(node)) if node.broker_name else None
        with open(home / LOG_FILE, "ab", opener=private) as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
                umask=0o077,
                env=env,
            )
        before = node.pid, node.started
        self._children[child.pid] = child
        node.pid, node.started = child.pid, start_time(child.pid)
        try:
            self._save()
        except BaseException:  # a full disk: no other command would know of the process
            child.kill()
            child.wait()
            node.pid, node.started = before
            raise

    def _arguments(self, node: Node) -> list[str]:
        home = Path(node.data)
        ready, log = str(home / READY_FILE), ["--log-file", str(home / LOG_FILE)]
        if node.kind == "nameserver":
            return [
                "nameserver",
                f"--host={node.host}",
                f"--port={node.port}",
                f"--grpc-port={node.grpc_port}",
                f"--tls={self.settings.tls}",
                f"--kv-config={home / KV_CONFIG}",
                f"--ready-file={ready}",
                *log,
            ]
        config = home / "broker.toml"
        write_private(config, toml(self._broker_options(node)))
        tls = [] if self.settings.tls == "auto" else [f"--tls={self.settings.tls}"]
        return ["broker", "--config", str(config), *tls, "--ready-file", ready, *log]

    def _broker_options(self, node: Node) -> dict[str, Any]:
        """RocketMQ's own key names: the file could be handed to its broker as it stands, but for
        the syntax."""
        from saturnmq.broker.config import field_of

        sync = self.settings.replication == "sync" and self.settings.slaves > 0
        role = "SLAVE" if node.broker_id else "SYNC_MASTER" if sync else "ASYNC_MASTER"
        options: dict[str, Any] = {
            "brokerClusterName": CLUSTER_NAME,
            "brokerName": node.broker_name,
            "brokerId": node.broker_id,
            "brokerRole": role,
            "flushDiskType": "SYNC_FLUSH" if self.settings.flush == "sync" else "ASYNC_FLUSH",
            "namesrvAddr": ";".join(self.nameservers),
            "bindAddress": node.host,
            "listenPort": node.port,
            "haListenPort": node.port + 1,
            "grpcServerPort": node.grpc_port,
            "storePathRootDir": str(Path(node.data) / "store"),
            "diskSpaceEnoughBytes": ENOUGH_BYTES,
            "cleanFileForciblyEnable": False,  # unexpired messages stay: a full disk refuses sends
        }
        if sync:
            options["inSyncReplicas"] = 2  # the master and one slave
        options["totalReplicas"] = 1 + self.settings.slaves
        if self.settings.election:
            own = [each.address for each in self._etcds()]
            options["etcdEndpoints"] = ";".join(self.settings.etcd or own)
        given = {field_of(key) for key in self.settings.broker_options}  # in any spelling
        kept = {key: value for key, value in options.items() if field_of(key) not in given}
        return kept | self.settings.broker_options

    def _check_options(self, node: Node) -> None:
        """Let a wrong option end here, by its name, rather than in the log of a broker."""
        from saturnmq.broker.config import BrokerConfig

        if node.broker_name and self.settings.broker_options:
            BrokerConfig.load(toml(self._broker_options(node)), path=f"{node.name}/broker.toml")

    def _await_ready(self, node: Node) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready(node):
            if not node.alive():
                raise LauncherError(f"{node.name} ended while starting:\n{_tail(node)}")
            if time.monotonic() > deadline:
                raise LauncherError(
                    f"{node.name} was not serving after {START_TIMEOUT_S:.0f} s:\n{_tail(node)}"
                )
            time.sleep(0.02)

    def _is_ready(self, node: Node) -> bool:
        if node.kind != "etcd":
            with contextlib.suppress(FileNotFoundError):
                return bool(_ready(node)["pid"] == node.pid)
            return False
        members = self._etcds()
        if 2 * sum(member.alive() for member in members) <= len(members):
            return node.alive()  # it serves no client before most of them run
        return local_etcd.is_healthy(node.host, node.port)

    def _etcds(self) -> list[Node]:
        return [node for node in self.nodes if node.kind == "etcd"]

    def _signal(self, node: Node, number: int) -> None:
        if node.pid is not None and node.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.pid, number)

    def _await_end(self, node: Node, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while node.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        child = self._children.pop(node.pid or 0, None)
        if child is not None:
            child.wait()
        return True

    def _stop(self, node: Node) -> None:
        self._signal(node, signal.SIGTERM)
        if not self._await_end(node, STOP_TIMEOUT_S):
            self._signal(node, signal.SIGKILL)
            self._await_end(node, STOP_TIMEOUT_S)

    def _stop_all(self) -> None:
        # No node loses the one it reports to while it says good-bye.
        for kind in reversed(KINDS):
            members = [node for node in self.nodes if node.kind == kind]
            for node in members:
                self._signal(node, signal.SIGTERM)
            for node in members:
                self._stop(node)

    def _save(self) -> None:
        state = {"settings": asdict(self.settings), "nodes": [asdict(each) for each in self.nodes]}
        target = self.data / STATE_FILE
        fresh = target.with_suffix(".tmp")
        write_private(fresh, json.dumps(state, indent=1))
        fresh.replace(target)
        with contextlib.suppress(OSError):  # then another command may take the port of a dead node
            keep({port for node in self.nodes for port in node.ports}, target)


# -- pieces -------------------------------------------------------------------------------------


def _check(settings: Settings) -> None:
    if settings.nameservers < 1 or settings.masters < 1 or settings.slaves < 0:
        raise LauncherError(
            f"a cluster needs at least 1 nameserver and 1 master, and 0 or more slaves; asked for "
            f"{settings.nameservers}, {settings.masters} and {settings.slaves}"
        )
    if not settings.host.strip() or not is_free(settings.host, 0):
        raise LauncherError(
            f"no node can listen on {settings.host!r}: --host is an address or name of this machine"
        )
    if settings.etcds < 1:
        raise LauncherError(
            f"an etcd has 1 member or more (3 survive the loss of one), not {settings.etcds}"
        )
    for name, value in (("flush", settings.flush), ("replication", settings.replication)):
        if value not in ("async", "sync"):
            raise LauncherError(f"--{name} is async or sync, not {value!r}")
    if settings.etcd and not settings.election:
        raise LauncherError("an etcd is named, but no master is to be elected: say --election, too")
    if settings.election and not settings.etcd and shutil.which(local_etcd.PROGRAM) is None:
        raise LauncherError(
            "--election starts an etcd, but PATH has none: install it (Debian: apt install "
            "etcd-server), or name yours with --etcd HOST:PORT"
        )
    if settings.replication == "sync" and not settings.slaves:
        raise LauncherError("sync replication needs slaves: --slaves 1, or --replication async")


def _same_shape(old: Settings, new: Settings, root: Path) -> None:
    shape = ("nameservers", "masters", "slaves", "etcds")
    own = [settings.election and not settings.etcd for settings in (old, new)]
    if own[0] != own[1]:
        raise LauncherError(
            f"{root} holds a cluster {'with' if own[0] else 'without'} an etcd of its own: ask for "
            "that one, or choose another directory with --data"
        )
    if any(getattr(old, name) != getattr(new, name) for name in shape):
        was = ", ".join(f"{getattr(old, name)} {name}" for name in shape)
        raise LauncherError(
            f"{root} holds a cluster of another shape ({was}); ask for that one, "
            f"or choose another directory with --data"
        )


def _place(root: Path, settings: Settings) -> list[Node]:
    """Names, directories and ports for all nodes."""
    width = 2 * settings.nameservers + settings.masters * (1 + settings.slaves) * PORTS_PER_BROKER
    etcds = settings.etcds if settings.election and not settings.etcd else 0
    width += local_etcd.PORTS * etcds
    try:
        port = settings.base_port or free_block(settings.host, width)
    except NoFreePortsError as error:
        raise LauncherError(f"{error}; pass --base-port") from error
    nodes = []
    for index in range(settings.nameservers):
        name = f"nameserver-{index}"
        host = settings.hosts.get(name, settings.host)
        nodes.append(Node(name, "nameserver", host, port, str(root / name)))
        port += 1
    for master in range(settings.masters):
        for broker_id in range(1 + settings.slaves):
            suffix = f"-{broker_id}" if settings.slaves > 1 else ""
            name = f"slave-{master}{suffix}" if broker_id else f"master-{master}"
            kind = "slave" if broker_id else "master"
            nodes.append(
                Node(
                    name,
                    kind,
                    settings.hosts.get(name, settings.host),
                    port + 2,
                    str(root / name),
                    broker_name=f"broker-{master}",
                    broker_id=broker_id,
                    grpc_port=port + 1,
                )
            )
            port += PORTS_PER_BROKER
    for index in range(etcds):
        name = f"etcd-{index}"
        host = settings.hosts.get(name, settings.host)
        nodes.append(Node(name, "etcd", host, port, str(root / name)))
        port += local_etcd.PORTS
    for node in nodes[: settings.nameservers]:
        node.grpc_port, port = port, port + 1
    if port > 65536:
        raise LauncherError(f"--base-port {settings.base_port} leaves no room for {width} ports")
    return nodes


def _find(nodes: list[Node], root: Path) -> None:
    """Have nodes use the directory that they are read from, if it was moved or copied."""
    for node in nodes:
        before, node.data = Path(node.data).parent, str(root / node.name)
        if before.resolve() != root.resolve() and (before / STATE_FILE).exists():
            node.pid = node.started = None  # a copy: the processes are of the original


def _check_ports(node: Node) -> None:
    for port in node.ports:
        if not is_free(node.host, port):
            raise LauncherError(
                f"port {port} of {node.name} is in use on {node.host}: stop what holds it, or "
                f"pass another --base-port"
            )


def _ready(node: Node) -> dict[str, Any]:
    """The state that the present or last server process wrote of itself."""
    return dict(json.loads((Path(node.data) / READY_FILE).read_text()))


def long_stops(data: Path) -> list[str]:
    """The nodes below `data` whose loops stood still for too long, as their logs tell."""
    return [
        f"{log.parent.name} for {busy} ms of processor time"
        for log in sorted(data.rglob(f"{LOG_FILE}*"))
        for busy in long_stops_in(log.read_text(errors="replace"))
    ]


def _tail(node: Node, count: int = 12) -> str:
    try:
        lines = (Path(node.data) / LOG_FILE).read_text(errors="replace").splitlines()
    except OSError:
        return "(it wrote no log)"
    return "\n".join(f"  {line}" for line in lines[-count:]) or "  (its log is empty)"


def default_data() -> Path:
    """The directory in which `saturnmq cluster` keeps its nodes without --data."""
    return Path(os.environ.get("SATURNMQ_DATA") or "saturnmq-data")

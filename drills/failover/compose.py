"""The nodes of a drill as containers: the cluster of `compose/docker-compose.yml` under a project
name, in a network and on volumes of its own, beside whatever else runs.

Needs a Docker engine and Compose (v2, or docker-compose 1.29), and clients that reach the
containers' addresses, as they do on Linux. Partitions work on any engine, with what is in the
image: who is not to reach a peer gets a permanent ARP entry for it with a hardware address that
nobody has. Packets then end on the bridge, silently, and connections stay half-open.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from saturnmq import Admin
from saturnmq.broker.config import BrokerConfig
from saturnmq.cli.health import check
from saturnmq.cli.launcher import LauncherError
from saturnmq.drills.failover.backend import (
    BROKER,
    CLIENTS,
    NAMESERVER,
    BackendNeeds,
    DrillNode,
    DrillUnavailable,
    Feature,
)
from saturnmq.drills.failover.processes import SMALL_FILES
from saturnmq.pipeline.session import why_not as why_no_spark
from saturnmq.store.message_store import StoreConfig

FILE = Path("compose", "docker-compose.yml")
IMAGE = "saturnmq"
START_S = 60.0
COMMAND_S = 600.0  # building the image is the longest
_SERVICE = "com.docker.compose.service"
_ORDER = ("nameserver", "master", "slave")
# The program of `_Switch`: reads "cut|heal PID TARGET...", goes into the network of that process
# (0: of this machine), sets or deletes ARP entries there (setns(2), arp(7)), says "ok" or why not.
_SWITCH = """
import contextlib, ctypes, fcntl, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
home = os.open("/proc/self/ns/net", os.O_RDONLY)
def serve(what, pid, *targets):
    with open(os.dup(home) if pid == "0" else f"/proc/{pid}/ns/net") as space:
        if libc.setns(space.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), "setns")
    for target in targets:
        peer = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(target))
        nobody = struct.pack("=H14s", 1, bytes.fromhex("02534e4f4e45"))
        entry = peer + nobody + struct.pack("=i16x16x", 0x02 | 0x04)  # complete, permanent
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            if what == "cut":
                fcntl.ioctl(sock, 0x8955, entry)
                continue
            with contextlib.suppress(OSError):  # it went with a restarted container
                fcntl.ioctl(sock, 0x8953, entry)
for line in sys.stdin:
    try:
        serve(*line.split())
        print("ok", flush=True)
    except OSError as problem:
        print(problem, flush=True)
"""


def compose_command() -> list[str] | None:
    """The command of Compose on this machine, v2 before 1.29; None if there is neither."""
    if shutil.which("docker") and _status("docker", "compose", "version") == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


def why_not(file: Path = FILE) -> str | None:
    """Why there can be no containers here, or None."""
    if not file.is_file():
        return f"there is no {file}: run it in a checkout"
    if shutil.which("docker") is None:
        return "containers need `docker` on the path"
    if _status("docker", "info"):
        return "no Docker engine answers `docker info`"
    if compose_command() is None:
        return "neither `docker compose` nor `docker-compose` is here"
    return None


@dataclass
class Compose(BackendNeeds):
    """A `Backend`."""

    file: Path = FILE

    def __post_init__(self) -> None:
        chance = random.Random(os.urandom(8))
        self._project = f"saturnmq-drill-{os.getpid()}-{chance.randrange(10_000)}"
        self._subnet = f"10.{chance.randrange(64, 250)}.{chance.randrange(1, 255)}"
        self._publish = f"127.{chance.randrange(64, 250)}.{chance.randrange(1, 255)}.1"
        self._nodes: list[DrillNode] = []
        self._ids: dict[str, str] = {}  # node -> container
        self._cuts: set[tuple[str, str]] = set()  # from, to
        self._switch: _Switch | None = None

    @property
    def nodes(self) -> list[DrillNode]:
        return self._nodes

    def why_not(self, feature: Feature) -> str | None:
        if feature == "full-disk":
            return "volumes of containers have no size of their own"
        if feature == "clock":
            return "containers share the clock of their machine"
        if feature in ("disk", "neighbour"):
            return "what lies on volumes, and which nodes there are, is left to the engine"
        if feature == "spark":
            return why_no_spark()
        if feature == "etcd":
            return "a group that elects its master has two slaves here, one in the compose file"
        if feature == "upgrade":
            return "containers are upgraded with their image"
        return None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        reason = why_not(self.file)
        if reason is None and (self.masters, self.slaves) != (2, 1):
            reason = f"{self.file} has 2 masters with 1 slave each"
        reason = reason or next(filter(None, map(self.why_not, self.features)), None)
        if reason is not None:
            raise DrillUnavailable(reason)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._options_file().write_text(json.dumps(self._options()))
        try:
            self._compose("up", "-d", "--build")
            self._find_nodes()
            if "partition" in self.features:
                self._switch = _Switch()
            for node in self._nodes:
                self._until_serving(node)
            self._until_known()
        except BaseException:
            self.close()
            raise

    def _options_file(self) -> Path:
        return self.directory / "compose-options.json"

    def _options(self) -> dict[str, Any]:
        """The settings of the brokers, as a second Compose file."""
        names = {
            each.metadata["key"]: each.name
            for each in (*fields(StoreConfig), *fields(BrokerConfig))
            if "key" in each.metadata
        }
        given = {**SMALL_FILES, **self.broker_options}
        environment = {
            f"SATURNMQ_{names.get(key, key).upper()}": str(value) for key, value in given.items()
        }
        brokers = [f"{kind}-{n}" for kind in ("master", "slave") for n in range(2)]
        return {"services": {name: {"environment": environment} for name in brokers}}

    def _compose(self, *arguments: str) -> None:
        files = ["-f", str(self.file), "-f", str(self._options_file())]
        project = [*(compose_command() or ["docker-compose"]), "-p", self._project, *files]
        role = "ASYNC_MASTER" if self.replication == "async" else "SYNC_MASTER"
        environment = {
            **os.environ,
            "SATURNMQ_NET": self._subnet,
            "SATURNMQ_PUBLISH": self._publish,
            "SATURNMQ_ADVERTISE": "",
            "SATURNMQ_ETCD_ENDPOINTS": "",
            "SATURNMQ_REPLICATION": role,
            "SATURNMQ_FLUSH": f"{self.flush.upper()}_FLUSH",
        }
        _run(*project, *arguments, environment=environment)

    def _find_nodes(self) -> None:
        label = f"label=com.docker.compose.project={self._project}"
        found = _run("docker", "ps", "--all", "--quiet", "--filter", label).split()
        nodes = []
        for facts in json.loads(_run("docker", "inspect", *found)):
            name = facts["Config"]["Labels"][_SERVICE]
            told = dict(each.split("=", 1) for each in facts["Config"]["Env"])
            (network,) = facts["NetworkSettings"]["Networks"].values()
            self._ids[name] = facts["Id"]
            nodes.append(
                DrillNode(
                    name,
                    NAMESERVER if name.startswith("nameserver") else BROKER,
                    f"{network['IPAddress']}:{told['SATURNMQ_PORT']}",
                    told.get("SATURNMQ_BROKER_NAME", ""),
                    int(told.get("SATURNMQ_BROKER_ID", 0)),
                )
            )
        self._nodes = sorted(nodes, key=lambda n: (_ORDER.index(n.name.split("-")[0]), n.name))

    def close(self) -> None:
        with contextlib.suppress(LauncherError):
            self.heal()
        if self._switch is not None:
            self._switch.close()
        for container in self._ids.values():
            _status("docker", "unpause", container)
        if self._options_file().exists():
            with contextlib.suppress(LauncherError):
                self._compose("down", "--volumes", "--timeout", "10")

    # -- processes ---------------------------------------------------------------------------------

    def alive(self, name: str) -> bool:
        state = _run("docker", "inspect", "--format", "{{.State.Running}}", self._ids[name])
        return state.strip() == "true"

    def kill(self, name: str) -> None:
        _run("docker", "kill", self._ids[name])

    def stop(self, name: str) -> None:
        _run("docker", "stop", "--time", "30", self._ids[name])

    def restart(self, name: str) -> None:
        _run("docker", "start", self._ids[name])
        self._apply("cut", {cut for cut in self._cuts if cut[0] == name})
        self._until_serving(self._node(name))

    def pause(self, name: str) -> None:
        _run("docker", "pause", self._ids[name])

    def resume(self, name: str) -> None:
        _run("docker", "unpause", self._ids[name])

    def slow(self, name: str, share: float) -> None:
        period = 100_000
        quota = int(period * share) if share < 1.0 else -1
        limit = [f"--cpu-period={period}", f"--cpu-quota={quota}"]
        _run("docker", "update", *limit, self._ids[name])

    def _node(self, name: str) -> DrillNode:
        return next(node for node in self._nodes if node.name == name)

    def _until_serving(self, node: DrillNode) -> None:
        """Asked from inside: it may be cut off from here."""
        deadline = time.monotonic() + START_S
        asked = ["docker", "exec", self._ids[node.name], "python", "-m", check.__module__]
        while _status(*asked, node.address):
            if not self.alive(node.name):
                raise LauncherError(f"{node.name} ended:\n{self.log_tail(node.name)}")
            if time.monotonic() > deadline:
                raise LauncherError(
                    f"{node.name} was not serving after {START_S:.0f} s:\n"
                    + self.log_tail(node.name)
                )
            time.sleep(0.1)

    def _until_known(self) -> None:
        """Every nameserver lists every broker."""
        wanted = {(node.group, node.broker_id) for node in self._nodes if node.kind == BROKER}
        deadline = time.monotonic() + START_S
        for server in (node for node in self._nodes if node.kind == NAMESERVER):
            with Admin(nameservers=[server.address]) as admin:
                while missing := wanted - {(n.broker_name, n.broker_id) for n in admin.cluster()}:
                    if time.monotonic() > deadline:
                        raise LauncherError(f"{server.name} does not know {sorted(missing)}")
                    time.sleep(0.1)

    # -- network, disk -----------------------------------------------------------------------------

    def partition(self, a: str, b: str, *, one_way: bool = False) -> None:
        cuts = {(a, b)} if one_way else {(a, b), (b, a)}
        self._cuts |= cuts
        self._apply("cut", cuts)

    def heal(self) -> None:
        self._apply("heal", self._cuts)
        self._cuts = set()

    def _apply(self, what: str, cuts: Collection[tuple[str, str]]) -> None:
        """Apply cuts to the running containers: a stopped one has no network to change."""
        for sender in sorted({sender for sender, _ in cuts}):
            if self._switch is None:
                raise DrillUnavailable("the drill did not ask for partitions")
            targets = [self._ip(target) for a, target in cuts if a == sender]
            process = 0 if sender == CLIENTS else self._process(sender)
            if process or sender == CLIENTS:
                self._switch.set(what, process, targets)

    def _process(self, name: str) -> int:
        return int(_run("docker", "inspect", "--format", "{{.State.Pid}}", self._ids[name]))

    def _ip(self, name: str) -> str:
        if name == CLIENTS:
            return f"{self._subnet}.1"  # this machine, as the containers see it
        return self._node(name).address.rpartition(":")[0]

    def wipe(self, name: str) -> None:
        place = ["--rm", "--user", "0", "--volumes-from", self._ids[name], "--entrypoint", "find"]
        _run("docker", "run", *place, IMAGE, "/data", "-mindepth", "1", "-delete")

    def fill_disk(self, name: str) -> None:
        raise DrillUnavailable(f"{name}: {self.why_not('full-disk')}")

    def free_disk(self, name: str) -> None:
        raise DrillUnavailable(f"{name}: {self.why_not('full-disk')}")

    def shift_clock(self, name: str, seconds: float) -> None:
        raise DrillUnavailable(f"{name}: {self.why_not('clock')}")

    # -- afterwards --------------------------------------------------------------------------------

    def stores(self, to: Path) -> Mapping[str, Path]:
        to.mkdir(parents=True, exist_ok=True)
        copies = {}
        for node in self._nodes:
            if node.kind == BROKER:
                copies[node.name] = to / node.name
                _run("docker", "cp", f"{self._ids[node.name]}:/data", str(to / node.name))
        return copies

    def log_tail(self, name: str) -> str:
        done = subprocess.run(
            ["docker", "logs", "--tail", "20", self._ids[name]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        return done.stdout.decode(errors="replace").strip()


class _Switch:
    """A container beside the cluster that may enter the networks of the others."""

    def __init__(self) -> None:
        rights = ["--pid", "host", "--network", "host", "--user", "0"]
        for capability in ("SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN"):  # enter, find, change
            rights += ["--cap-add", capability]
        command = ["docker", "run", "--rm", "--interactive", *rights, "--entrypoint", "python"]
        self._program = subprocess.Popen(
            [*command, IMAGE, "-c", _SWITCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def set(self, what: str, process: int, targets: Sequence[str]) -> None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then it says nothing either
            print(what, process, *targets, file=self._program.stdin, flush=True)
        answer = self._program.stdout.readline().strip()
        if answer != "ok":
            raise LauncherError(f"cannot {what} {', '.join(targets)}: {answer or 'it ended'}")

    def close(self) -> None:
        """End the helper by the end of its input."""
        self._program.communicate()


def _status(*command: str) -> int:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=COMMAND_S
    ).returncode


def _run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """The output of the command; LauncherError with its last words when it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=COMMAND_S,
        env=environment,
        start_new_session=True,  # a Ctrl-C of the drill must not tear it: `close` undoes all
    )
    if done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise LauncherError(f"{' '.join(command[:6])} failed: {' '.join(words[-3:])}")
    return done.stdout.decode(errors="replace")

"""A network of their own for the nodes of a drill: Linux namespaces, and partitions between them.

Each node gets a namespace with one interface; a bridge in one more namespace joins them and this
host, whose address is that of the clients. Partitions are rules on that bridge that drop packets
by source and destination, silently, as a broken switch does; connections stay half-open. Needs
root, `ip` (iproute2), `nsenter` (util-linux) and `nft` (nftables).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from saturnmq.drills.failover.backend import CLIENTS, DrillUnavailable
from saturnmq.drills.kernel.mounts import undisturbed

# Program, the Debian package that has it.
_PROGRAMS = (("ip", "iproute2"), ("nsenter", "util-linux"), ("nft", "nftables"))
_numbers = itertools.count()
_TABLE = "add table bridge drill"
_CHAIN = "add chain bridge drill cut { type filter hook forward priority 0; }"


def why_not() -> str | None:
    """Why there can be no namespaces here, or None."""
    if os.geteuid() != 0:
        return "partitions need network namespaces: run it as root"
    for program, package in _PROGRAMS:
        if shutil.which(program) is None:
            return f"partitions need {program}: install the package {package}"
    try:
        with network(["probe"]) as probe:
            probe.cut("probe", CLIENTS)
    except DrillUnavailable as problem:
        return f"partitions need network namespaces: {problem}"
    return None


class Network:
    """Namespaces by node name; made by `network`."""

    def __init__(self, tag: str, subnet: str, names: Sequence[str]) -> None:
        self._tag = tag
        self._hub = f"{tag}-hub"
        self._spaces = {name: f"{tag}-{index}" for index, name in enumerate(names)}
        self.hosts = {name: f"{subnet}.{index + 2}" for index, name in enumerate(names)}
        self._clients = f"{subnet}.1"
        self._made: list[str] = []

    def prefix(self, name: str) -> list[str]:
        """The prefix of a command line that makes it run in the node's namespace."""
        return ["nsenter", f"--net=/run/netns/{self._spaces[name]}", "--"]

    def make(self) -> None:
        for space in (self._hub, *self._spaces.values()):
            _run("ip", "netns", "add", space)
            self._made.append(space)
            _run("ip", "-n", space, "link", "set", "dev", "lo", "up")
        _run("ip", "-n", self._hub, "link", "add", "name", "hub", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "dev", "hub", "up")
        for name, space in self._spaces.items():
            _run("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", space,
                 "netns", self._hub)  # fmt: skip
            _run("ip", "-n", space, "addr", "add", f"{self.hosts[name]}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "dev", "eth0", "up")
            _run("ip", "-n", self._hub, "link", "set", "dev", space, "master", "hub", "up")
        _run("ip", "link", "add", self._tag, "type", "veth", "peer", "name", "host",
             "netns", self._hub)  # fmt: skip
        _run("ip", "addr", "add", f"{self._clients}/24", "dev", self._tag)
        _run("ip", "link", "set", "dev", self._tag, "up")
        _run("ip", "-n", self._hub, "link", "set", "dev", "host", "master", "hub", "up")
        self._nft(_TABLE)
        self._nft(_CHAIN)

    def remove(self) -> None:
        """Everything of ours, whatever of it there is."""
        for space in self._made:
            with contextlib.suppress(DrillUnavailable):
                _run("ip", "netns", "delete", space)
        if self._made:
            with contextlib.suppress(DrillUnavailable):  # goes with its peer in the hub, but later
                _run("ip", "link", "delete", self._tag)

    def cut(self, a: str, b: str) -> None:
        """Drop what `a` sends to `b`."""
        source, target = (self.hosts.get(name, self._clients) for name in (a, b))
        self._nft(f"add rule bridge drill cut ip saddr {source} ip daddr {target} drop")

    def heal(self) -> None:
        self._nft("flush chain bridge drill cut")

    def _nft(self, rule: str) -> None:
        _run("nsenter", f"--net=/run/netns/{self._hub}", "--", "nft", rule)


@contextlib.contextmanager
def network(names: Sequence[str]) -> Iterator[Network]:
    """A network of these nodes; gone afterwards."""
    # The tag keeps networks apart, of this process and of others; names of interfaces are short.
    chance = random.Random(os.urandom(8))
    tag = f"sq{os.getpid() % 100_000}x{next(_numbers) % 100}"
    # 198.18.0.0/15 is set apart for tests (RFC 2544): nobody's network is hidden by ours.
    made = Network(tag, f"198.{chance.choice((18, 19))}.{chance.randrange(256)}", names)
    try:
        with undisturbed():
            made.make()
        yield made
    finally:
        with undisturbed():
            made.remove()


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, start_new_session=True
    )
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        raise DrillUnavailable(f"{' '.join(command)} failed: {text}")

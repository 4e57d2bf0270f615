"""Free ports, for nodes that will listen on them soon and again after a restart.

Ports are chosen below the kernel's range for outgoing connections, because a client that keeps
dialling a dead port inside that range ends up connected to itself. A port that is free now is not
free for good: two commands that choose at the same moment would take the same one, and so would a
command that chooses while the node that has the port is down. The process that chose therefore
keeps a lock on byte N of one file for each port N until it ends. The kernel gives the locks up with
the process, however it ends.

A command that starts a cluster ends before its nodes, and a node that was killed is to find its
port free when it is started again. So the file also says, a line each, which ports the clusters of
this user have; a line counts as long as the cluster's own file is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import socket
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

ATTEMPTS = 200
_LINES = 1 << 16  # this byte of the file is no port: who has the lock on it may use the lines

_chosen: set[int] = set()  # by this process, whose own locks do not hinder it


class NoFreePortsError(Exception):
    """No block of ports was found; the text says how wide it had to be."""


def free_block(host: str, width: int) -> int:
    """The first of `width` neighbouring ports that are free and not chosen yet."""
    below = 32768
    with contextlib.suppress(OSError, ValueError):
        below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    low, high = (10240, below - width) if below > 12000 else (20000, 60000 - width)
    kept = _kept()
    for _attempt in range(ATTEMPTS if low < high else 0):
        first = random.randrange(low, high)
        ports = range(first, first + width)
        free = _chosen.isdisjoint(ports) and kept.isdisjoint(ports)
        if free and all(is_free(host, port) for port in ports) and _lock(first, width):
            _chosen.update(ports)
            return first
    raise NoFreePortsError(f"found no {width} neighbouring free ports on {host}")


def keep(ports: Collection[int], holder: Path) -> None:
    """Have `free_block` leave these ports out as long as the file `holder` is there. They take the
    place of those that were kept for it before. OSError: they are not kept."""
    with _lines() as lines:
        rest = [line for line in lines if _counts(line) and not line.endswith(f"\t{holder}")]
        rest.append(f"{' '.join(map(str, sorted(ports)))}\t{holder}")
        text = os.fsencode("".join(f"{line}\n" for line in rest))
        os.ftruncate(_file(), 0)
        os.pwrite(_file(), text, 0)


def _kept() -> set[int]:
    """The ports of clusters that are there, whether their nodes run or not."""
    with _lines() as lines:
        ports = [line.partition("\t")[0].split() for line in lines if _counts(line)]
    return {int(port) for each in ports for port in each}


def _counts(line: str) -> bool:
    holder = line.partition("\t")[2]  # empty: the line was not written whole
    return bool(holder) and Path(holder).exists()


@contextlib.contextmanager
def _lines() -> Iterator[list[str]]:
    fcntl.lockf(_file(), fcntl.LOCK_EX, 1, _LINES)
    try:
        size = os.fstat(_file()).st_size
        yield os.fsdecode(os.pread(_file(), size, 0)).splitlines()
    finally:
        fcntl.lockf(_file(), fcntl.LOCK_UN, 1, _LINES)


def is_free(host: str, port: int) -> bool:
    """Whether a process could listen on the port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, ValueError):  # ValueError: no host can have that name
            return False
    return True


def _lock(first: int, width: int) -> bool:
    try:
        fcntl.lockf(_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, width, first)
    except (BlockingIOError, PermissionError):
        return False
    return True


@functools.cache  # closing any descriptor of the file would give up all locks: it stays open
def _file() -> int:
    path = Path(tempfile.gettempdir()) / f"saturnmq-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

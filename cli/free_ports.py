"""Free ports, for nodes that will listen on them soon and again after a restart.

Ports are chosen below the kernel's range for outgoing connections, because a client that keeps
dialling a dead port inside that range ends up connected to itself. A port that is free now is not
free for good: two commands that choose at the same moment would take the same one, and so would a
command that chooses while the node that has the port is down. The process that chose therefore
keeps a lock on byte N of one file for each port N until it ends. The kernel gives the locks up with
the process, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import socket
import tempfile
from pathlib import Path

ATTEMPTS = 200

_chosen: set[int] = set()  # by this process, whose own locks do not hinder it


class NoFreePortsError(Exception):
    """No block of ports was found; the text says how wide it had to be."""


def free_block(host: str, width: int) -> int:
    """The first of `width` neighbouring ports that are free and not chosen yet."""
    below = 32768
    with contextlib.suppress(OSError, ValueError):
        below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    low, high = (10240, below - width) if below > 12000 else (20000, 60000 - width)
    for _attempt in range(ATTEMPTS if low < high else 0):
        first = random.randrange(low, high)
        ports = range(first, first + width)
        free = _chosen.isdisjoint(ports) and all(is_free(host, port) for port in ports)
        if free and _lock(first, width):
            _chosen.update(ports)
            return first
    raise NoFreePortsError(f"found no {width} neighbouring free ports on {host}")


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

"""The memory available to a process: the machine's, or the limit of its container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def memory_bytes(root: Path = ROOT) -> int:
    """The least of the physical memory and the limits of this process's control groups. A limit
    counts page cache as well as what the process itself holds."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_limits(root)])


def _limits(root: Path) -> Iterator[int]:
    """The limits of version 2 (`memory.max`) and 1 (`memory.limit_in_bytes`), of the group and all
    above it. In a container the group may be shown as the topmost one, whatever its name is."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # a system without control groups
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        here = base / path.lstrip("/")
        while here.is_relative_to(base):
            try:
                limit = (here / name).read_text().strip()
            except OSError:
                limit = ""
            if limit.isdigit():  # else "max"
                yield int(limit)
            here = here.parent

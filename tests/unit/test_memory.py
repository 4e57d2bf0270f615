"""How much memory a process can have: of the machine, or of its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from saturnmq.runtime.memory import memory_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/a/b", {"a/b/memory.max": 90 * MIB}, 90 * MIB),
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": 70 * MIB}, 70 * MIB),
        ("0::/a/b", {"a/b/memory.max": 50 * MIB, "a/memory.max": 70 * MIB}, 50 * MIB),
        ("0::/", {"memory.max": 60 * MIB}, 60 * MIB),
        ("0::/elsewhere", {"memory.max": 60 * MIB}, 60 * MIB),
        ("0::/", {"memory.max": "max"}, MACHINE),
        ("0::/", {"memory.max": 1 << 60}, MACHINE),
        ("0::/", {}, MACHINE),
        ("", {"memory.max": 60 * MIB}, MACHINE),
        ("4:memory:/a\n0::/", {"memory/a/memory.limit_in_bytes": 80 * MIB}, 80 * MIB),
        ("4:cpu,memory:/a", {"memory/memory.limit_in_bytes": 80 * MIB}, 80 * MIB),
        ("4:cpu:/a", {"memory/a/memory.limit_in_bytes": 80 * MIB}, MACHINE),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": 9223372036854771712}, MACHINE),
    ],
)
def test_the_least_limit_counts(
    tmp_path: Path, groups: str, files: dict[str, object], found: int
) -> None:
    for name, text in {"proc/self/cgroup": groups}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    for name, limit in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{limit}\n")
    assert memory_bytes(tmp_path) == found


def test_without_control_groups_it_is_the_machines(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path) == MACHINE

"""How a limit of this machine is measured beside what is reached of it.

Rounds measure both in turns, on a cluster of one broker; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.workloads import Work

Figures = dict[str, float]


def options(description: str | None) -> argparse.ArgumentParser:
    """The options of all such programs; the first line of the description is shown."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    return parser


def medians(
    rounds: int, size: int, count: int, measure: Callable[[Path, Work], Figures]
) -> Figures:
    """The medians of what `measure` finds, given a directory for files and the work: `count`
    messages of `size` bytes."""
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = LocalCluster.up(folder / "cluster", Settings())
        try:
            work = Work(cluster.nameservers, size, count)
            for _ in range(rounds):
                found.append(measure(folder, work))
        finally:
            cluster.down()
    return {key: statistics.median(each[key] for each in found) for key in found[0]}


def show(figures: Figures, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the figures for machines, or the lines for people."""
    print(json.dumps(figures, indent=1) if as_json else "\n".join(lines))

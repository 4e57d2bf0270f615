"""How the figures of inner loops are taken, compared with those of the references, and printed.

Each figure is the best of several runs in one process and one thread, on warm memory. Beside it
stands what the Python references reach, measured the same way in a child process with fewer
messages, and the ratio of the two. `--quick` is for tests: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from saturnmq.protocol import kernels
from saturnmq.store.disk import NativeDisk
from targets import BenchTarget

RUNS = 5
Measure = Callable[[str, float], dict[str, float]]
"""Figures by what was done, given a directory for files and a scale, 1 for all of the work. What is
measured in ", us" is better when smaller."""


def best(
    work: Callable[[], Any], runs: int = RUNS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of the quickest run: what disturbs only ever adds."""
    taken = []
    for _ in range(runs):
        begin = clock()
        work()
        taken.append(clock() - begin)
    return min(taken)


def main(
    script: str,
    document: str,
    measure: Measure,
    targets: Mapping[str, BenchTarget],
    checksum: Callable[[], int],
) -> None:
    """The command of a benchmark; `checksum` is of what its runs make, the same everywhere."""
    parser = argparse.ArgumentParser(description=document.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--quick", action="store_true", help="hardly any work: for tests")
    parser.add_argument("--directory", help="where to put files (default: the temporary directory)")
    parser.add_argument("--figures-only", type=float, metavar="SCALE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="kernels-", dir=options.directory)
    try:
        if options.figures_only is not None:
            print(json.dumps(measure(directory, options.figures_only)))
            return
        scale = 0.002 if options.quick else 1.0
        slow = _reference(script, directory, min(scale, 0.02))
        fast = measure(directory, scale)
    finally:
        shutil.rmtree(directory)
    rows = []
    for work, figure in fast.items():
        faster = slow[work] / figure if work.endswith(", us") else figure / slow[work]
        rows.append({"work": work, "figure": figure, "reference": slow[work], "ratio": faster})
    machine = {**_machine(), "checksum": f"{checksum():08x}"}
    if options.json:
        wanted = {work: target.value for work, target in targets.items()}
        print(json.dumps({"machine": machine, "rows": rows, "targets": wanted}))
    else:
        _print_table(machine, rows, targets)


def _reference(script: str, directory: str, scale: float) -> dict[str, float]:
    """The same in a process that uses the Python references."""
    command = [sys.executable, script, "--figures-only", str(scale), "--directory", directory]
    environment = {**os.environ, "SATURNMQ_KERNELS": "python"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model or platform.processor(),
        "processors": os.cpu_count(),
        "memory_gib": round(NativeDisk().memory_bytes() / (1 << 30), 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "kernels": kernels.COMPILED,
    }


def _print_table(
    machine: dict[str, Any], rows: list[dict[str, Any]], targets: Mapping[str, BenchTarget]
) -> None:
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"{'work':44} {'figure':>12} {'reference':>12} {'ratio':>7}  target")
    for row in rows:
        target = targets.get(row["work"])
        text = ""
        if target is not None:
            sign = "at most" if target.at_most else "at least"
            missed = ": missed" if target.missed(row["figure"]) else ": reached"
            text = f"{sign} {target.value:,g}{missed}"
        print(
            f"{row['work']:44} {row['figure']:12,.4g} {row['reference']:12,.4g} "
            f"{row['ratio']:7,.1f}  {text}"
        )

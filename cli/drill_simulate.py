"""`saturnmq drill simulate`: whole clusters on a simulated network, disk and clock.

Exit status 1 on a violation; each is printed with the command that shows it again. A run in which
no fault happened fails, too.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer
from saturnmq.cli.output import AsJson, emit, fail, progress_bar, table

SEEDS = 200
VIOLATIONS_MAX = 50  # a broken broker breaks every seed


def simulate(
    seeds: Annotated[str, typer.Option(metavar="N|A-B", help="Run so many seeds, or these.")] = str(
        SEEDS
    ),
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run this seed only, and show its last steps.")
    ] = None,
    mutant: Annotated[
        str | None, typer.Option(help="Put a known bug into the cluster; it must be found.")
    ] = None,
    election: Annotated[
        bool, typer.Option("--election", help="Masters are elected through an etcd.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulated clusters: kills, power losses, pauses, partitions, promotions; then the checks."""
    from saturnmq.drills import pool
    from saturnmq.drills.sim import run
    from saturnmq.drills.sim.mutants import MUTANTS
    from saturnmq.drills.sim.report import SimReport

    if mutant is not None and mutant not in MUTANTS:
        fail(f"no mutant {mutant!r}; there are {', '.join(MUTANTS)}")
    first, last = (seed, seed) if seed is not None else _range(seeds)
    begin = time.perf_counter()
    if seed is not None:
        report = run.simulate(seed, mutant, election=election)
    else:
        with progress_bar() as bar:
            task = bar.add_task("simulated clusters", total=last - first + 1)
            report = pool.run_jobs(
                run.seed_jobs(first, last, mutant, election=election),
                SimReport(),
                lambda sums: len(sums.violations) >= VIOLATIONS_MAX,
                lambda sums: bar.update(task, completed=sums.seeds),
            )
    seconds = time.perf_counter() - begin
    if as_json:
        emit({**report.to_json(), "seconds": round(seconds, 1), "processes": os.cpu_count()})
    else:
        for line in report.last_steps:
            print(line)
        _print(report, f"seeds {first}-{first + report.seeds - 1}", seconds)
    if not report.ok:
        if not report.violations:
            fail("nothing was tried: no message or no fault in this run")
        raise typer.Exit(1)


def _range(seeds: str) -> tuple[int, int]:
    first, dash, last = seeds.partition("-")
    if not dash:
        first, last = "1", first
    if not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
        fail(f"--seeds wants a number above 0, or A-B with A <= B, not {seeds!r}")
    return int(first), int(last)


def _print(report: Any, what: str, seconds: float) -> None:
    rows: list[tuple[str, Any]] = [
        ("seeds per second", report.seeds / max(seconds, 1e-9)),
        ("virtual hours", report.virtual_s / 3600),
        ("messages sent", report.sent),
        ("messages acknowledged", report.acked),
        ("answered neither way", report.unknown),
        ("refused", report.rejected),
        ("delivered", report.delivered),
        ("delivered again", report.duplicates),
        ("lost as the mode allows", report.lost),
        ("seconds to quiet, at most", report.quiet_s),
        *((f"fault: {name}", count) for name, count in sorted(report.faults.items())),
        *((f"reached: {name}", count) for name, count in sorted(report.states.items())),
        ("never happened", ", ".join(report.never) or "-"),
        ("violations", len(report.violations)),
    ]
    table(f"cluster simulator, {what}, {seconds:.1f} s", ["", ""], rows)
    for text in report.violations:
        print(text)

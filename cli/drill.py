"""`saturnmq drill crash`: the store's crash simulator; with --kernel, crashes of real processes.

Exit status 1 on a violation; each is printed with the command that shows it again. A run in which
nothing was tried fails, too.
"""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer
from saturnmq.cli.output import AsJson, emit, fail, progress_bar, table

app = typer.Typer(help="Look for what breaks.", no_args_is_help=True)

IMAGES = 10_000
KERNEL_IMAGES = 1_000


@app.callback()
def drill() -> None:
    """Look for what breaks."""


@app.command("crash")
def crash(
    images: Annotated[
        int | None, typer.Option(min=1, help=f"Crash images to make ({IMAGES:,} without seeds).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Run this seed only.")] = None,
    seeds: Annotated[str | None, typer.Option(metavar="A-B", help="Run these seeds.")] = None,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Every I/O boundary of one workload, every outcome."),
    ] = False,
    mutant: Annotated[
        str | None, typer.Option(help="Put a known bug into the store; it must be found.")
    ] = None,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Real processes on real block devices (root only).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Crash the store at every turn: power losses, kills, failing and full disks; then recover."""
    if kernel:
        if seeds is not None or exhaustive or mutant is not None:
            fail("--kernel takes --images and --seed only: the rest is of the simulator")
        _kernel(images, seed, as_json)
    else:
        _simulated(images, _range(seed, seeds), exhaustive, mutant, as_json)


def _range(seed: int | None, seeds: str | None) -> tuple[int, int | None]:
    """First and last seed; no last one: as many as the images need."""
    if seeds is None:
        return (1, None) if seed is None else (seed, seed)
    first, _, last = seeds.partition("-")
    if seed is not None or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        fail(f"--seeds wants A-B with A <= B and no --seed beside it, not {seeds!r}")
    return int(first), int(last)


def _simulated(
    images: int | None,
    seeds: tuple[int, int | None],
    exhaustive: bool,
    mutant: str | None,
    as_json: bool,
) -> None:
    from saturnmq.drills.crash import run
    from saturnmq.drills.mutants import MUTANTS

    if mutant is not None and mutant not in MUTANTS:
        fail(f"no mutant {mutant!r}; there are {', '.join(MUTANTS)}")
    first, last = seeds
    if images is None and last is None and not exhaustive:
        images = IMAGES
    jobs = run.seed_jobs(first, last, mutant)
    if exhaustive:
        jobs = run.exhaustive_jobs(first, mutant)
    begin = time.perf_counter()
    with progress_bar() as bar:
        task = bar.add_task("crash images", total=images)
        report = run.run_jobs(jobs, images, lambda sums: bar.update(task, completed=sums.images))
    seconds = time.perf_counter() - begin
    if as_json:
        emit({**report.to_json(), "seconds": round(seconds, 1), "processes": os.cpu_count()})
    else:
        what = f"seeds {first}-{first + report.seeds - 1}"
        if exhaustive:
            what = f"every boundary of workload {first}"
        _print(report, what, seconds)
    if not report.ok:
        if not report.violations:
            fail("nothing was tried: no image or no fault in this run")
        raise typer.Exit(1)


def _print(report: Any, what: str, seconds: float) -> None:
    rows: list[tuple[str, Any]] = [
        ("images", report.images),
        ("images per second", report.images / max(seconds, 1e-9)),
        ("recoveries", report.recoveries),
        ("I/O boundaries passed", report.boundaries),
        ("operations", report.operations.total()),
        ("messages sent", report.messages),
        ("messages acknowledged", report.acked),
        *((f"fault: {name}", count) for name, count in sorted(report.faults.items())),
        *((f"check: {name}", count) for name, count in sorted(report.checks.items())),
        ("violations", len(report.violations)),
    ]
    table(f"crash drill, {what}, {seconds:.1f} s", ["", ""], rows)
    for text in report.violations:
        print(text)


def _kernel(images: int | None, seed: int | None, as_json: bool) -> None:
    from saturnmq.drills.kernel import run_kernel_drill

    with progress_bar() as bar:
        task = bar.add_task("kernel drill", total=None)

        def progress(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        count = images or KERNEL_IMAGES
        report = run_kernel_drill(
            images=count, errors=max(1, count // 10), seed=seed or 0, progress=progress
        )
    if as_json:
        emit(report.to_json())
    else:
        rows = report.table()
        columns = list(rows[0]) if rows else []
        table(f"kernel drill, {report.machine}", columns, [list(r.values()) for r in rows])
        for text in report.violations:
            print(text)
    if report.violations:
        raise typer.Exit(1)

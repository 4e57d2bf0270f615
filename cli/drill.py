"""`saturnmq drill`: clusters of real processes under faults (`list`, `run`, `all`), and the store's
crash simulator (`crash`; with --kernel, crashes of real processes).

Exit status 1 on a violation; each is printed with the command that shows it again. A run in which
nothing was tried fails, too; a drill that this machine cannot run ends with status 77.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli.drill_fuzz import fuzz
from saturnmq.cli.drill_hostile import hostile
from saturnmq.cli.drill_simulate import simulate
from saturnmq.cli.output import AsJson, emit, fail, progress_bar, table, write_file

app = typer.Typer(help="Look for what breaks.", no_args_is_help=True)
app.command("fuzz")(fuzz)
app.command("simulate")(simulate)

IMAGES = 10_000
KERNEL_IMAGES = 1_000
SKIPPED = 77  # exit status, as automake's

Mode = Annotated[
    str,
    typer.Option(
        metavar="MODE[,...]",
        help="Ack modes: async, sync-flush, sync (replication), sync-sync (both), or each.",
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Run this seed only.")]
Seeds = Annotated[str | None, typer.Option(metavar="A-B", help="Run these seeds.")]
Minutes = Annotated[
    float, typer.Option(min=0.1, help="Length of random-mix, or of hostile-clients.")
]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with plots.")
]
Keep = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep histories, logs and stores of all drills there."),
]
Election = Annotated[
    bool,
    typer.Option(
        "--election", help="Two slaves a group, and an etcd of three: masters are elected."
    ),
]
Compose = Annotated[bool, typer.Option("--compose", help="On the containers of the compose file.")]


@app.callback()
def drill() -> None:
    """Look for what breaks."""


@app.command("list")
def list_drills(as_json: AsJson = False) -> None:
    """The drills, and which of them this machine cannot run."""
    from saturnmq.drills import hostile as clients
    from saturnmq.drills.failover.plans import DRILLS
    from saturnmq.drills.failover.processes import Processes

    machine = Processes(Path())
    rows = []
    for drill in DRILLS.values():
        reasons = [reason for f in drill.features if (reason := machine.why_not(f))]
        rows.append({"drill": drill.name, "what": drill.text, "skipped here": "; ".join(reasons)})
    rows.append({"drill": clients.NAME, "what": clients.TEXT, "skipped here": ""})
    if as_json:
        emit(rows)
    else:
        table("", list(rows[0]), [list(row.values()) for row in rows])


@app.command("run")
def run_one(
    name: Annotated[str, typer.Argument(help="A name that `drill list` shows.")],
    seed: Seed = None,
    seeds: Seeds = None,
    mode: Mode = "sync",
    minutes: Minutes = 1.0,
    report: Report = None,
    keep: Keep = None,
    election: Election = False,
    compose: Compose = False,
    as_json: AsJson = False,
) -> None:
    """Run one drill: a real cluster under load, its faults, and the verdict on its history.

    hostile-clients has neither seeds nor modes: --minutes is the time of all its attacks.
    """
    from saturnmq.drills import hostile as clients

    if name == clients.NAME:
        hostile(minutes, as_json)
        return
    _drills([name], seed, seeds, mode, minutes, report, keep, election, compose, as_json)


@app.command("all")
def run_all(
    seed: Seed = None,
    seeds: Seeds = None,
    mode: Mode = "sync",
    minutes: Minutes = 1.0,
    report: Report = None,
    keep: Keep = None,
    election: Election = False,
    compose: Compose = False,
    as_json: AsJson = False,
) -> None:
    """Run every drill, one after the other."""
    from saturnmq.drills.failover.plans import DRILLS

    _drills(list(DRILLS), seed, seeds, mode, minutes, report, keep, election, compose, as_json)


def _drills(
    names: list[str],
    seed: int | None,
    seeds: str | None,
    mode: str,
    minutes: float,
    page_file: Path | None,
    keep: Path | None,
    election: bool,
    compose: bool,
    as_json: bool,
) -> None:
    from saturnmq.drills.failover.compose import Compose as Containers
    from saturnmq.drills.failover.drill import MIX_MINUTES
    from saturnmq.drills.failover.html import page
    from saturnmq.drills.failover.plans import DRILLS
    from saturnmq.drills.failover.processes import Processes
    from saturnmq.drills.failover.report import DrillsReport
    from saturnmq.drills.failover.run import MODES, run_drill
    from saturnmq.runtime.errors import nearest

    modes = list(MODES) if mode == "each" else mode.split(",")
    words = [("drill", names[0], list(DRILLS)), *(("mode", each, list(MODES)) for each in modes)]
    for what, word, known in words:
        if word not in known:
            hint = nearest(word, known) or f"; there are {', '.join(known)}"
            raise typer.BadParameter(f"no {what} {word!r}{hint}")
    first, last = _range(seed, seeds)
    kind = Containers if compose else Processes
    options = ["--election"] if election else []
    options += ["--compose"] if compose else []
    options += [f"--minutes {minutes:g}"] if minutes != MIX_MINUTES else []
    whole = DrillsReport()

    def say(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    skipped: set[str] = set()
    for number in range(first, (last or first) + 1):
        for name, each in product(names, modes):
            if name in skipped:
                continue
            drill = DRILLS[name].with_elections() if election else DRILLS[name]
            done = run_drill(
                drill, MODES[each], number, kind=kind, minutes=minutes, keep=keep, say=say
            )
            done.options = " ".join(options)
            whole.drills.append(done)
            _tell(done)
            if done.skipped:
                skipped.add(name)
            if page_file is not None:  # after each: a long run can be watched
                write_file(page_file, page(whole))
    if as_json:
        emit(whole.to_json())
    elif whole.ran:
        rows = whole.summary()
        table("", list(rows[0]), [list(row.values()) for row in rows])
        for text in whole.violations:
            print(text)
    if whole.violations:
        raise typer.Exit(1)
    if not whole.ran:
        raise typer.Exit(SKIPPED)


def _tell(done: Any) -> None:
    """Print one line for a drill that ended, more if it failed; on standard error."""
    what = f"{done.name}, mode {done.mode}, seed {done.seed}"
    if done.skipped:
        print(f"{what}: skipped: {done.skipped}", file=sys.stderr)
        return
    counts = done.verdict.counts
    told = ["ok" if done.ok else "FAILED"]
    for name in ("acknowledged", "unknown", "refused", "lost in the window of the mode"):
        if counts[name] or name == "acknowledged":
            told.append(f"{counts[name]:,} {name}")
    print(f"{what}: {', '.join(told)}, {done.seconds:.0f} s", file=sys.stderr)
    for text in done.verdict.violations:
        print(f"  {text}", file=sys.stderr)
    if not done.ok:
        print(f"  again: {done.again}\n  history: {done.kept}/history.jsonl", file=sys.stderr)


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
    if seed is not None or not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
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

"""The crash drill: seeds, the exhaustive workload, and both on all processors.

A random seed is one life with what it drew, photographed now and then (`run_seed`). The exhaustive
mode is one fixed mix of 200 operations, photographed at every boundary with every outcome
(`run_exhaustive`); `parts` processes that live the same life share its boundaries out. Seed and
mutant decide everything: the line that `repro` gives shows a failure again.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from saturnmq.drills import pool
from saturnmq.drills.crash.images import OUTCOMES
from saturnmq.drills.crash.plan import EXHAUSTIVE_WEIGHTS, GROUPS, CrashPlan
from saturnmq.drills.crash.report import CrashReport
from saturnmq.drills.crash.workload import StoreWorkload

IMAGES_PER_SEED = 60
_BOUNDARIES_PER_OPERATION = 5  # about
_EXHAUSTIVE_PARTS = 40
MUTANTS_OF_GROUPS = ("half-a-group",)
Job = Callable[[], CrashReport]


def run_seed(seed: int, mutant: str | None = None, images: int = IMAGES_PER_SEED) -> CrashReport:
    """The life of `seed`, with about `images` crash images at chance boundaries."""
    rng = random.Random(f"crash {seed}")
    plan = CrashPlan.draw(rng)
    if mutant is not None and mutant not in MUTANTS_OF_GROUPS:
        plan.weights[GROUPS[0]] = 0  # they would only put off the others' turn
    share = images / (plan.operations * _BOUNDARIES_PER_OPERATION)

    def shutter(boundary: int) -> tuple[str, ...]:
        return (rng.choice(OUTCOMES),) if rng.random() < share else ()

    return _live(f"seed {seed}", plan, shutter, mutant, repro(seed, mutant=mutant))


def run_exhaustive(
    seed: int, part: int = 0, parts: int = 1, mutant: str | None = None, every: int = 1
) -> CrashReport:
    """Every `every`-th boundary of the fixed mix with every outcome; of these the share `part`."""

    def shutter(boundary: int) -> tuple[str, ...]:
        number, rest = divmod(boundary, every)
        return OUTCOMES if rest == 0 and number % parts == part else ()

    plan = CrashPlan(weights=EXHAUSTIVE_WEIGHTS)
    again = repro(seed, mutant=mutant, exhaustive=True)
    report = _live(f"exhaustive {seed}", plan, shutter, mutant, again)
    if part:  # the life is the same in all parts: it counts once
        report.seeds = report.boundaries = report.messages = report.acked = 0
        report.operations.clear()
    return report


def repro(seed: int, *, mutant: str | None = None, exhaustive: bool = False) -> str:
    """The command that runs one seed again."""
    parts = ["saturnmq drill crash", "--exhaustive" if exhaustive else "", f"--seed {seed}"]
    parts.append(f"--mutant {mutant}" if mutant else "")
    return " ".join(part for part in parts if part)


def _live(
    name: str,
    plan: CrashPlan,
    shutter: Callable[[int], tuple[str, ...]],
    mutant: str | None,
    again: str,
) -> CrashReport:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the store tells of every crash, thousands of times
    try:
        with _mutated(mutant):
            report = StoreWorkload(name, plan, shutter).run()
    finally:
        logging.disable(level)
    report.violations = [f"{text}\n  again: {again}" for text in report.violations]
    return report


def _mutated(name: str | None) -> AbstractContextManager[object]:
    if name is None:
        return contextlib.nullcontext()
    from saturnmq.drills.mutants import MUTANTS

    return MUTANTS[name].active()


def seed_jobs(
    first: int, last: int | None, mutant: str | None, images: int = IMAGES_PER_SEED
) -> Iterator[Job]:
    """Seeds from `first` to `last`, or without end."""
    seed = first
    while last is None or seed <= last:
        yield partial(run_seed, seed, mutant, images)
        seed += 1


def exhaustive_jobs(seed: int, mutant: str | None) -> Iterator[Job]:
    for part in range(_EXHAUSTIVE_PARTS):
        yield partial(run_exhaustive, seed, part, _EXHAUSTIVE_PARTS, mutant)


def run_jobs(
    jobs: Iterator[Job],
    images: int | None = None,
    progress: Callable[[CrashReport], None] = lambda report: None,
    processes: int | None = None,
) -> CrashReport:
    """Run jobs on all processors until there are `images` images (None: all jobs); a violation
    ends it. `progress` gets the sums so far.
    """
    return pool.run_jobs(
        jobs,
        CrashReport(),
        lambda total: bool(total.violations) or (images is not None and total.images >= images),
        progress,
        processes,
    )

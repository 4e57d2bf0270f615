"""The cluster simulator: seeds, one or many on all processors.

    python -m saturnmq.drills.sim.run [--scenes NAME,...] [--faults NAME,...] [--election]
                                      [--secret] SEED ...

repeats runs, with these scenes and faults instead of those that the seeds draw, with an etcd that
elects masters or without, with a secret that the nodes share or without, and prints their reports,
with the last steps of those that fail. A seed and a commit decide everything: the same report, the
same trace hash, on every machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from saturnmq.drills.sim.cluster import SimCluster
from saturnmq.drills.sim.disk import PowerLoss
from saturnmq.drills.sim.drawing import draw_plan, with_faults
from saturnmq.drills.sim.loop import SimLoop, SimStuck, TooLong
from saturnmq.drills.sim.plan import ETCD_FAULTS, ETCD_RARE, FAULTS, RARE
from saturnmq.drills.sim.report import SimReport
from saturnmq.drills.sim.runtime import PoweredOff
from saturnmq.drills.sim.trace import Trace

LIMIT_S = 1800.0
AGAIN_EVERY = 20  # so many seeds, one is run twice
LAST_STEPS = 60
SECRET = "what the nodes share"


def simulate(
    seed: int,
    mutant: str | None = None,
    scenes: Collection[str] | None = None,
    faults: Collection[str] | None = None,
    *,
    election: bool = False,
    secret: bool = False,
) -> SimReport:
    """Runs one seed to its end and checks it, with these scenes and faults instead of those that it
    draws; with `election` masters are elected through an etcd, and no operator promotes but where
    he deleted a group's record; with `secret` the nodes share one. Equal arguments give equal
    reports, trace hash included.
    """
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # nodes tell of every fault
    loop = SimLoop(random.Random(f"{seed}/loop"), Trace(), limit_s=LIMIT_S)
    loop.ignored_failures = (PowerLoss, PoweredOff)
    # A collection at a moment of its own choosing would close coroutines in the middle of a run.
    collecting = gc.isenabled()
    gc.disable()
    try:
        asyncio.set_event_loop(loop)
        with _mutated(mutant):
            return _simulate(seed, loop, mutant, scenes, faults, election=election, secret=secret)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
        logging.disable(level)
        if collecting:
            gc.enable()
            gc.collect()


def _simulate(
    seed: int,
    loop: SimLoop,
    mutant: str | None,
    scenes: Collection[str] | None,
    faults: Collection[str] | None,
    *,
    election: bool,
    secret: bool,
) -> SimReport:
    plan = replace(draw_plan(seed), **_bias(mutant), secret=SECRET if secret else "")
    if faults is not None:
        plan = with_faults(seed, plan, faults)
    if scenes is not None:
        plan = replace(plan, scenes=frozenset(scenes))
    if election:
        plan = plan.with_election(random.Random(f"{seed}/election"), faults)
    cluster = SimCluster(seed, loop, plan)
    try:
        loop.run_until_complete(cluster.run())
    except (Exception, SystemExit, SimStuck, TooLong, PowerLoss) as error:
        cluster.problems.append(f"the run did not end: {error!r}")
    report = cluster.report()
    if report.violations:
        report.last_steps = list(cluster.trace.lines)[-LAST_STEPS:]
    for runtime in cluster.world.runtimes:
        runtime.power_off()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    with contextlib.suppress(SimStuck, TooLong):
        loop.run_until_complete(asyncio.sleep(0))
    command = repro(seed, mutant, scenes, faults, election=election, secret=secret)
    again = f"seed {seed}, {plan.mode}; again: {command}"
    report.violations = [f"{text}\n  {again}" for text in report.violations]
    return report


def repro(
    seed: int,
    mutant: str | None = None,
    scenes: Collection[str] | None = None,
    faults: Collection[str] | None = None,
    *,
    election: bool = False,
    secret: bool = False,
) -> str:
    """The command that runs one seed again."""
    options = {"--scenes": scenes, "--faults": faults}
    given = [f"{key} {','.join(sorted(v))} " for key, v in options.items() if v is not None]
    elects = "--election " if election else ""
    given += ["--secret "] if secret else []
    if given:
        return f"python -m saturnmq.drills.sim.run {''.join(given)}{elects}{seed}"
    mutated = f" --mutant {mutant}" if mutant else ""
    return f"saturnmq drill simulate {elects}--seed {seed}{mutated}"


def _mutated(name: str | None) -> AbstractContextManager[object]:
    if name is None:
        return contextlib.nullcontext()
    from saturnmq.drills.sim.mutants import MUTANTS

    return MUTANTS[name].active()


def run_seed(seed: int, mutant: str | None = None, *, election: bool = False) -> SimReport:
    """Run one seed of many: some are run twice, and must do the same to the last step."""
    run = partial(simulate, seed, mutant, election=election)
    report = run()
    if seed % AGAIN_EVERY == 0 and run().trace_hash != report.trace_hash:
        again = repro(seed, mutant, election=election)
        report.violations.append(
            f"the same seed did something else the second time\n  again: {again}"
        )
    report.last_steps.clear()
    return report


def _bias(mutant: str | None) -> dict[str, Any]:
    if mutant is None:
        return {}
    from saturnmq.drills.sim.mutants import BIAS

    # Sinks and scenes only where it is about them.
    return {"sink_epochs": 0, "scenes": frozenset(), "rare": {}} | BIAS.get(mutant, {})


def seed_jobs(
    first: int, last: int, mutant: str | None, *, election: bool = False
) -> Iterator[Callable[[], SimReport]]:
    for seed in range(first, last + 1):
        yield partial(run_seed, seed, mutant, election=election)


def _fault_names(text: str) -> list[str]:
    names = text.split(",")
    known = FAULTS | RARE | ETCD_FAULTS | ETCD_RARE
    if unknown := set(names) - known.keys():
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(known)}")
    return names


def main(arguments: Sequence[str]) -> int:
    """Prints each seed's report, and the last steps of those that fail."""
    parser = argparse.ArgumentParser(prog="saturnmq.drills.sim.run")
    parser.add_argument("--scenes", type=lambda names: names.split(",") if names else [])
    parser.add_argument("--faults", type=_fault_names)
    parser.add_argument("--election", action="store_true")
    parser.add_argument("--secret", action="store_true")
    parser.add_argument("seeds", type=int, nargs="+")
    options = parser.parse_args(arguments)
    if not options.election and (needed := {*ETCD_FAULTS, *ETCD_RARE} & {*(options.faults or ())}):
        parser.error(f"{', '.join(sorted(needed))}: only with --election")
    failed = 0
    for seed in options.seeds:
        report = simulate(
            seed,
            scenes=options.scenes,
            faults=options.faults,
            election=options.election,
            secret=options.secret,
        )
        print(f"seed {seed}: {draw_plan(seed).mode}; {report.to_json()}")
        print(f"trace {report.trace_hash}")
        if not report.ok:
            failed += 1
            print("\n".join(report.last_steps), *report.violations, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

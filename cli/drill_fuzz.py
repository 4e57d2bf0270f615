"""`saturnmq drill fuzz`: what is well formed and wrong, against real processes and in this one.

Exit status 1 on a violation; each is printed with the command that shows it again.
"""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from saturnmq.cli.output import AsJson, emit, fail, progress_bar, table

PROCESSES = ("broker", "nameserver")
IN_PROCESS = {  # module of drills.fuzz, class
    "sql92": ("sql", "Conditions"),
    "files": ("files", "Files"),
    "store": ("store", "Store"),
    "ha": ("replication", "Replication"),
    "client": ("client", "ClientTarget"),
    "blocking": ("blocking", "Blocking"),
    "grpc": ("grpc_port", "GrpcPort"),
    "access": ("access", "AccessTarget"),
}
TARGETS = (*PROCESSES, *IN_PROCESS)


def fuzz(
    target: Annotated[
        str, typer.Argument(metavar="[TARGET]", help=f"{', '.join(TARGETS)}, or all.")
    ] = "all",
    minutes: Annotated[float, typer.Option(min=0.01, help="Time for each target.")] = 1.0,
    seed: Annotated[int | None, typer.Option(min=0, help="One round of this seed only.")] = None,
    first_seed: Annotated[int, typer.Option(min=0, help="Of the first round.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Requests, frames, files and conditions with values at, below and above their bounds."""
    if target not in (*TARGETS, "all"):
        fail(f"no target {target!r}; there are {', '.join(TARGETS)} and all")
    seeds = range(first_seed, 1 << 31) if seed is None else range(seed, seed + 1)
    targets = TARGETS if target == "all" else (target,)
    reports = [_fuzzed(each, minutes, seeds) for each in targets]
    if as_json:
        emit([report.to_json() for report in reports])
    else:
        for report in reports:
            _print(report)
    if any(report.violations for report in reports):
        raise typer.Exit(1)


def _fuzzed(target: str, minutes: float, seeds: range) -> Any:
    if target in IN_PROCESS:
        return _in_process(target, minutes, seeds)
    return _against_a_process(target, minutes, seeds)


def _in_process(target: str, minutes: float, seeds: range) -> Any:
    from saturnmq.drills.fuzz import inprocess

    module, name = IN_PROCESS[target]
    make = getattr(import_module(f"saturnmq.drills.fuzz.{module}"), name)
    end = time.monotonic() + 60 * minutes
    with progress_bar() as bar:
        task = bar.add_task(target, total=None)

        def go_on(report: inprocess.TargetReport) -> bool:
            bar.update(task, completed=report.executions)
            return time.monotonic() < end

        return inprocess.run(target, make, seeds, go_on)


def _against_a_process(target: str, minutes: float, seeds: range) -> Any:
    from saturnmq.cli.launcher import LocalCluster, Settings
    from saturnmq.drills.figures import memory_mb
    from saturnmq.drills.fuzz.run import Fuzzer
    from saturnmq.runtime import native
    from saturnmq.store.disk import NativeDisk
    from saturnmq.store.inspect.verify import check

    end = time.monotonic() + 60 * minutes
    with TemporaryDirectory(prefix="saturnmq-fuzz-") as root, progress_bar() as bar:
        task = bar.add_task(f"requests to a {target}", total=None)
        cluster = LocalCluster.up(root, Settings(nameservers=1, masters=1, slaves=0))
        try:
            kind = "master" if target == "broker" else "nameserver"
            node = next(node for node in cluster.nodes if node.kind == kind)

            def go_on(report: Any) -> bool:
                bar.update(task, completed=report.requests)
                if not node.alive():
                    report.violations.append("its process has ended")
                return time.monotonic() < end

            async def main(runtime: Any) -> Any:
                fuzzer = Fuzzer(runtime, node.address, target)
                await fuzzer.run(seeds, go_on)
                return fuzzer.report

            report = native.run(main)
            if node.alive() and node.pid is not None:
                report.memory_mb = memory_mb(node.pid)
        finally:
            cluster.down()
        store = Path(node.data) / "store"
        if target == "broker":
            damage = check(NativeDisk(), str(store)).damage
            report.violations += [f"store check: {each}" for each in damage[:10]]
    return report


def _print(report: Any) -> None:
    rows = [*report.rows(), ("violations", str(len(report.violations)))]
    table(report.target, ["", ""], rows)
    for violation in report.violations:
        print(violation)

"""`run_drill`: one drill from the first process to the verdict."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from saturnmq.broker.config import BrokerConfig
from saturnmq.cli.launcher import LauncherError, long_stops
from saturnmq.drills.failover import stores
from saturnmq.drills.failover.backend import NAMESERVER, Backend, DrillUnavailable
from saturnmq.drills.failover.checker import (
    COMMITS_AT_RISK_S,
    LIVENESS_S,
    Aftermath,
    DrillVerdict,
    ModePromise,
    check,
)
from saturnmq.drills.failover.chores import Chores
from saturnmq.drills.failover.chores_checker import check_chores
from saturnmq.drills.failover.drill import MIX_MINUTES, Drill, DrillRun, Live, together
from saturnmq.drills.failover.history import History
from saturnmq.drills.failover.leaders import Leaders
from saturnmq.drills.failover.measure import effects, latency_ms, timeline
from saturnmq.drills.failover.processes import Processes
from saturnmq.drills.failover.report import DrillReport
from saturnmq.drills.failover.workload import GROUPS, RATE, SAMPLE_S, TOPIC, Workload
from saturnmq.drills.silence_logs import quiet
from saturnmq.runtime import native
from saturnmq.runtime.errors import SaturnError

WARM_UP_S = 4.0
SETTLE_S = 3.0  # sends go on so long after the faults at least
DRAIN_S = 20.0  # beyond the liveness bound: what is late is told from what is lost
COMMIT_S = 2.0
# So long a master that is alone goes on at most: a lease, and the time in which a leader of etcd
# that was voted out may still renew it.
LONE_S = BrokerConfig.election_lease_s + 2.0
HISTORY_FILE, CHORES_FILE = "history.jsonl", "chores.jsonl"


@dataclass(frozen=True)
class Mode:
    """The condition that an acknowledgement waits for."""

    name: str
    flush: str
    replication: str


MODES = {
    mode.name: mode
    for mode in (
        Mode("async", "async", "async"),
        Mode("sync-flush", "sync", "async"),
        Mode("sync", "async", "sync"),
        Mode("sync-sync", "sync", "sync"),
    )
}


def cluster(kind: Callable[..., Any], directory: Path, drill: Drill, mode: Mode) -> Backend:
    """A backend of this kind (`Processes`, `Compose`) with what the drill needs, as far as it can
    be had."""
    wanted = {*drill.features, *drill.optional}
    backend = kind(
        directory,
        flush=mode.flush,
        replication=mode.replication,
        slaves=drill.slaves,
        features=wanted,
        broker_options=drill.broker_options,
    )
    backend.features = {feature for feature in wanted if backend.why_not(feature) is None}
    made: Backend = backend
    return made


def run_drill(
    drill: Drill,
    mode: Mode,
    seed: int,
    *,
    kind: Callable[..., Any] = Processes,
    minutes: float = MIX_MINUTES,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> DrillReport:
    """A cluster of this kind under load, the drill's faults, quiet, and the verdict.

    Everything is kept in a directory below `keep`, or, if something is wrong, in a temporary one.
    """
    report = DrillReport(drill.name, mode.name, seed)
    begin = time.monotonic()
    name = f"{drill.name}-{mode.name}-{seed}"
    directory = Path(tempfile.mkdtemp(prefix=f"saturnmq-drill-{name}-"))
    if keep is not None:
        directory.rmdir()
        directory = keep / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    try:
        backend = cluster(kind, directory, drill, mode)
        reasons = [backend.why_not(feature) for feature in drill.features]
        if drill.needs_copies and mode.replication == "async":
            reasons.append("what has one copy is lost with its disk")
        if drill.elects and drill.live is not None:
            reasons.append("it replaces masters itself")
        report.skipped = next((reason for reason in reasons if reason), "")
        if not report.skipped and drill.live is not None:
            report.verdict = _by_itself(drill.live, seed, backend, directory, say)
        elif not report.skipped:
            history, chores, aftermath = _live(drill, seed, backend, directory, minutes, say)
            history.write(directory / HISTORY_FILE)
            promise = ModePromise(
                may_lose=(drill.leaves_behind or drill.elects) and mode.replication == "async",
                may_lose_s=LONE_S if drill.elects else inf,
                one_master=drill.elects or mode.replication == "sync",
                steady=drill.steady,
                groups=GROUPS,
                queues_change=drill.chores,
                commits_at_risk_s=COMMITS_AT_RISK_S + drill.lone_s,
                sample_s=SAMPLE_S,
            )
            report.verdict = check(history, promise, aftermath)
            if drill.chores:
                chores.write(directory / CHORES_FILE)
                check_chores(chores, report.verdict)
            report.effects = effects(history)
            report.latency_ms = latency_ms(history)
            report.timeline = timeline(history)
        report.verdict.add("a node's loop stood still", long_stops(directory))
    except DrillUnavailable as problem:
        report.skipped = str(problem)
    except (LauncherError, SaturnError, OSError) as problem:  # a finding; the others go on
        report.verdict.violations.append(f"the drill broke: {type(problem).__name__}: {problem}")
    finally:
        report.seconds = time.monotonic() - begin
        if keep is None and report.ok:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            report.kept = directory
    return report


def _by_itself(
    live: Live,
    seed: int,
    backend: Backend,
    directory: Path,
    say: Callable[[str], None],
) -> DrillVerdict:
    """A drill with a load of its own."""
    backend.start()
    try:
        with quiet("saturnmq"):
            return live(backend, directory, seed, say)
    finally:
        backend.close()


def _live(
    drill: Drill,
    seed: int,
    backend: Backend,
    directory: Path,
    minutes: float,
    say: Callable[[str], None],
) -> tuple[History, History, Aftermath]:
    """The life of the cluster: the histories of the load and of the chores, and what it left."""
    begin = time.monotonic()
    history = History(lambda: time.monotonic() - begin)
    beside = History(history.now)
    broken: list[str] = []
    backend.start()
    try:
        say(f"{drill.name}: {len(backend.nodes)} nodes serve")
        begin = time.monotonic()

        async def load(runtime: Any) -> None:
            broken.extend(await _load(runtime, drill, seed, backend, history, beside, minutes, say))

        with quiet("saturnmq"):  # clients warn of every connection that breaks
            native.run(load)
        aftermath = stores.stop_and_look(backend, TOPIC)
    finally:
        backend.close()
    aftermath.problems = broken + aftermath.problems
    return history, beside, aftermath


async def _load(
    runtime: Any,
    drill: Drill,
    seed: int,
    backend: Backend,
    history: History,
    beside: History,
    minutes: float,
    say: Callable[[str], None],
) -> list[str]:
    """Clients and faults; what kept the drill from going its way."""
    nameservers = [node.address for node in backend.nodes if node.kind == NAMESERVER]
    groups = sorted({node.group for node in backend.nodes if node.group})
    workload = Workload(
        nameservers,
        groups,
        history,
        seed,
        rate=drill.rate or RATE,
        **({"padding": drill.padding} if drill.padding else {}),
    )
    chores = Chores(nameservers, workload.admin, beside, seed) if drill.chores else None
    leaders = Leaders(runtime, backend.nodes, history) if drill.elects else None
    watching = runtime.spawn(leaders.run(), name="leaders") if leaders else None
    broken: list[str] = []
    try:
        await workload.start()
        if chores:
            await chores.start()
        known = leaders.names if leaders else None
        run = DrillRun(backend, history, workload.admin, seed, say, minutes=minutes, leaders=known)
        if leaders:
            await leaders.until_ready()
        await run.sleep(WARM_UP_S)
        assert drill.act is not None, "drills that live by themselves do not come here"
        try:
            beside_faults = [chores.work()] if chores else []
            await together(drill.act(run), *beside_faults)
        except Exception as problem:  # a finding like others: it is told with seed and history
            broken.append(f"the drill could not go on: {type(problem).__name__}: {problem}")
        try:
            await run.mend()
        except Exception as problem:
            broken.append(f"the cluster could not be mended: {type(problem).__name__}: {problem}")
            history.add("calm")
        if chores:
            await chores.finish()
        await _calm_down(workload, groups, history)
        say(f"{history.now():6.1f} s  quiet")
    finally:
        if chores:
            broken += await chores.close()
        if watching:
            watching.cancel()
        broken += await workload.close()
    return broken


async def _calm_down(workload: Workload, groups: list[str], history: History) -> None:
    """Wait until every group has taken messages, everything is delivered and every slave has its
    master's log, or until it is too late."""
    calm = history.now()
    while history.now() < calm + LIVENESS_S + 1.0:
        taking = all(workload.acked_on.get(group, -1.0) > calm for group in groups)
        if taking and history.now() > calm + SETTLE_S:
            break
        await asyncio.sleep(0.05)
    await workload.stop_sending()
    # Messages that a promotion left behind never come: a time without any new message ends it, too.
    left, moved = workload.outstanding(), history.now()
    while left and history.now() < min(calm + LIVENESS_S + DRAIN_S, moved + LIVENESS_S):
        await asyncio.sleep(0.05)
        if workload.outstanding() != left:
            left, moved = workload.outstanding(), history.now()
    await asyncio.sleep(COMMIT_S)
    await workload.sample_commits()
    # A connection that got no answers for some seconds tries again that much later.
    while history.now() < calm + LIVENESS_S and not await workload.is_replicated():
        await asyncio.sleep(0.05)

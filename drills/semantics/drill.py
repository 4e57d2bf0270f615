"""The drill `semantics`: messages of every kind go through two groups while their masters are
killed by turns, one every ten seconds.

Where an acknowledgement waits for a copy, every other killed master is replaced by its slave and
comes back as a slave; the others, and all in the other modes, are only started again. A group is
not hurt before both of its nodes have one log: what only one node has may be lost with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from saturnmq.drills.failover import stores
from saturnmq.drills.failover.backend import NAMESERVER, Backend
from saturnmq.drills.failover.checker import LIVENESS_S, DrillVerdict
from saturnmq.drills.failover.drill import DrillRun
from saturnmq.drills.failover.history import History
from saturnmq.drills.failover.waits_checker import HELD_S, MOST_RETRIES, RETRY_S
from saturnmq.drills.semantics import kinds
from saturnmq.drills.semantics.checker import check_semantics
from saturnmq.drills.semantics.load import SemanticsLoad
from saturnmq.runtime import native
from saturnmq.runtime.errors import SaturnError

MESSAGES = 200_000
RATE = 1000  # sends a second, all kinds together
KILL_S = 10.0  # between two kills
OUTAGE_S = 1.5  # before the slave is promoted, or the master started again
FOLLOWS_S = 20.0  # until both nodes of a group have one log again
PROMOTE_S = 20.0
LOOK_S = 0.1
BROKER_OPTIONS = {
    "transactionTimeOut": round(1000 * kinds.TRANSACTION_S),
    "transactionCheckInterval": round(1000 * kinds.QUESTION_S),
}
HISTORY_FILE = "history.jsonl"
Say = Callable[[str], None]


def live(
    backend: Backend,
    directory: Path,
    seed: int,
    say: Say,
    *,
    messages: int = MESSAGES,
    kill_s: float = KILL_S,
) -> DrillVerdict:
    """The whole drill on a cluster that serves; the verdict."""
    begin = time.monotonic()
    history = History(lambda: time.monotonic() - begin)
    broken: list[str] = []

    async def load(_runtime: Any) -> None:
        broken.extend(await _load(backend, history, seed, messages, kill_s, say))

    native.run(load)
    aftermath = stores.stop_and_look(backend, kinds.DEALS)
    aftermath.problems = broken + aftermath.problems
    history.write(directory / HISTORY_FILE)
    return check_semantics(history, aftermath)


async def _load(
    backend: Backend, history: History, seed: int, messages: int, kill_s: float, say: Say
) -> list[str]:
    """Clients and kills; what kept the drill from going its way."""
    nameservers = [node.address for node in backend.nodes if node.kind == NAMESERVER]
    load = SemanticsLoad(nameservers, history, seed, messages, RATE)
    broken: list[str] = []
    try:
        await load.start()
        run = DrillRun(backend, history, load.admin, seed, say)
        killing = asyncio.create_task(_kill_masters(run, load, kill_s))
        await load.sent()
        say(f"{history.now():6.1f} s  all messages are sent")
        try:
            await killing
            await run.mend()
        except Exception as problem:  # a finding like others: it is told with seed and history
            broken.append(f"the drill could not go on: {type(problem).__name__}: {problem}")
            history.add("calm")
        await _settle(run, load)
        say(f"{history.now():6.1f} s  quiet")
    finally:
        broken += await load.close()
    return broken


async def _kill_masters(run: DrillRun, load: SemanticsLoad, kill_s: float) -> None:
    """Kill a master every so often, as long as messages are sent; return when the last one is
    back."""
    number, due = 0, run.history.now() + kill_s / 2
    while load.is_sending:
        if run.history.now() < due:
            await asyncio.sleep(LOOK_S)
            continue
        due += kill_s
        if not await run.is_replicated(FOLLOWS_S):
            raise TimeoutError(f"a slave does not follow {FOLLOWS_S:g} s after the last fault")
        group = run.groups[number % len(run.groups)]
        promotes = run.backend.replication == "sync" and number // len(run.groups) % 2 == 0
        await _strike(run, group, promotes=promotes)
        number += 1


async def _strike(run: DrillRun, group: str, *, promotes: bool) -> None:
    old = run.master(group)
    new = run.slave(group)
    await run.kill(old)
    await run.sleep(OUTAGE_S)
    if promotes:
        deadline = run.history.now() + PROMOTE_S
        while True:
            try:
                await run.promote(group, new)
                break
            except SaturnError:  # the slave may not have noticed yet that it is alone
                if run.history.now() > deadline:
                    raise
                await asyncio.sleep(LOOK_S)
    await run.restart(old)


async def _settle(run: DrillRun, load: SemanticsLoad) -> None:
    """Wait until nothing is outstanding and no transaction is open, or until it is too late."""
    history = run.history
    longest = max(*kinds.TIMES_S, (MOST_RETRIES + 1) * RETRY_S, 2 * kinds.INVISIBLE_S)
    latest = history.now() + longest + HELD_S + LIVENESS_S
    masters = [n.address for n in run.backend.nodes if n.name in map(run.master, run.groups)]
    while True:
        open_ = await load.open_transactions(masters)
        over = not load.outstanding() and not any(pending for pending, _ in open_.values())
        if over or history.now() > latest:
            break
        await asyncio.sleep(LOOK_S)
    for address, (pending, expired) in open_.items():
        history.add("open", address, offset=pending)
        history.add("expired", address, offset=expired)
    await run.is_replicated(LIVENESS_S)

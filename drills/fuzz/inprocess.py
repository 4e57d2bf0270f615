"""Targets that live in this process: so many turns of a seed are a round.

A target is made anew for each round, so a seed repeats what it found. In a turn it gives the code
under test one spoiled input or some, and names how each ended that was looked at: these are the
executions. It raises `Violation` for what should not be; any other exception is one, too, and so is
a turn that takes too much processor time, or memory.
"""

from __future__ import annotations

import logging
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

ROUND = 1_000  # turns
BUSY_S_MAX = 2.0  # of processor time in one turn
HANGS_S = 5.0  # a turn that takes longer is ended
GROWTH_MB_MAX = 512
SHOWN = 1_000  # characters of a violation


class Violation(Exception):
    """An error that the code under test should not have raised."""


class Hangs(Exception):
    """A turn that was ended here; where it was is told with it."""


class FuzzTarget(Protocol):
    """The target of a fuzz run."""

    def turn(self, rng: random.Random) -> list[str]:
        """Run one turn; the outcome of each input that the code under test has looked at."""

    def close(self) -> None:
        """The round is over; Violation: it has left something."""


@dataclass
class TargetReport:
    """The report of one target."""

    target: str
    executions: int = 0
    rounds: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    longest_busy_ms: int = 0
    memory_growth_mb: int = 0
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "outcomes": dict(sorted(self.outcomes.items()))}

    def rows(self) -> list[tuple[str, str]]:
        per_s = self.executions / self.seconds if self.seconds else 0.0
        return [
            ("executions", f"{self.executions:,}"),
            ("in a second", f"{per_s:,.0f}"),
            *((outcome, f"{count:,}") for outcome, count in self.outcomes.most_common()),
            ("longest turn, of processor time", f"{self.longest_busy_ms} ms"),
            ("memory grew by", f"{self.memory_growth_mb} MB"),
        ]


def run(
    name: str,
    make: Callable[[int], FuzzTarget],
    seeds: range,
    go_on: Callable[[TargetReport], bool],
) -> TargetReport:
    """A round of each seed while `go_on`, until there is a violation."""
    report = TargetReport(name)
    logging.disable(logging.CRITICAL)  # spoiled input is logged a thousand times a second
    try:
        _rounds(report, make, seeds, go_on)
    finally:
        logging.disable(logging.NOTSET)
    return report


def _rounds(
    report: TargetReport,
    make: Callable[[int], FuzzTarget],
    seeds: range,
    go_on: Callable[[TargetReport], bool],
) -> None:
    for seed in seeds:
        began, memory = time.monotonic(), _memory_mb()
        _round(report, make, seed)
        report.rounds += 1
        report.seconds += time.monotonic() - began
        grown = _memory_mb() - memory
        report.memory_growth_mb += grown
        if grown > GROWTH_MB_MAX:
            _violated(report, seed, f"memory grew by {grown} MB, {GROWTH_MB_MAX} are allowed")
        if report.violations or not go_on(report):
            return


def _round(report: TargetReport, make: Callable[[int], FuzzTarget], seed: int) -> None:
    target = make(seed)
    number = 0
    signal.signal(signal.SIGVTALRM, _hangs)
    try:
        for number in range(1, ROUND + 1):
            rng = random.Random((seed << 32) + number)
            signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
            began = time.thread_time()
            outcomes = target.turn(rng)
            busy_ms = int((time.thread_time() - began) * 1000)
            report.outcomes.update(outcomes)
            report.executions += len(outcomes)
            report.longest_busy_ms = max(report.longest_busy_ms, busy_ms)
            if busy_ms > BUSY_S_MAX * 1000:
                raise Violation(f"it took {busy_ms} ms of processor time")
        target.close()
    except Exception as error:
        _violated(report, seed, f"turn {number}: {_named(error)}")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _hangs(*_: object) -> None:
    raise Hangs(f"it does not end within {HANGS_S:g} s of processor time")


def _named(error: Exception) -> str:
    if isinstance(error, Violation):
        return str(error)
    trace, at = error.__traceback__, ""
    while trace is not None and trace.tb_frame.f_code is not _hangs.__code__:
        at = f" at {trace.tb_frame.f_code.co_filename.rsplit('/', 2)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{at}"


def _violated(report: TargetReport, seed: int, what: str) -> None:
    again = f"again: saturnmq drill fuzz {report.target} --seed {seed}"
    report.violations.append(f"{what[:SHOWN]}; {again}")


def _memory_mb() -> int:
    """The most that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

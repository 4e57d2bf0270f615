"""Jobs of a simulator on all processors, and the sum of their reports."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol, TypeVar

JOB_S = 300.0


class Sums(Protocol):
    """A report that others can be added to."""

    violations: list[str]

    def add(self, other: Any) -> None: ...


R = TypeVar("R", bound=Sums)


def run_jobs(
    jobs: Iterator[Callable[[], R]],
    total: R,
    enough: Callable[[R], bool],
    progress: Callable[[R], None] = lambda total: None,
    processes: int | None = None,
) -> R:
    """Adds up the reports of `jobs`, in their order, until the sum is `enough` or there are none
    left. `progress` gets the sums so far.
    """
    from multiprocess import TimeoutError as StillWaiting
    from multiprocess import get_context

    count = processes or os.cpu_count() or 1
    with get_context("fork").Pool(count, _end_at_once) as pool:
        waiting = [pool.apply_async(job) for job in islice(jobs, 2 * count)]
        while waiting:
            try:
                total.add(waiting.pop(0).get(JOB_S))
            except StillWaiting:  # a pool does not tell when one of its processes is killed
                total.violations.append(f"no result within {JOB_S} s: a process hangs or is gone")
                break
            progress(total)
            if not enough(total) and (job := next(jobs, None)) is not None:
                waiting.append(pool.apply_async(job))
        if not waiting:
            pool.close()
            pool.join()
    return total


def _end_at_once() -> None:
    """A process of the pool ends where SIGTERM finds it. The handler of the command line raises
    SystemExit: in the middle of a destructor that is lost, and the pool waits for ever."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

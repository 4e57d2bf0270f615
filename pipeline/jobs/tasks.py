"""Running a function once for each of many units of work, in Spark tasks.

Spark decides where and when, starts a failed task again (as often as its master says) and may run
two copies of a slow one; so `work` must be harmless when repeated. What it returns goes to the
driver and should be small.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from saturnmq.protocol.errors import SaturnError

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""`progress(done, total)`, in whatever the weights of the units are."""

_TOLD_EVERY_S = 0.25
_RAISED = re.compile(r"^(?:saturnmq\.[\w.]+|OSError|[A-Z]\w*Error): (.+)", re.M)


class JobFailed(SaturnError):
    """A task of a Spark job failed, and its retries"""


def run(
    spark: Any,
    work: Callable[[Unit], Result],
    units: Sequence[Unit],
    weights: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> list[Result]:
    """What `work` returned for each unit, in their order; one task each. Without Spark (None) they
    are done here, one after the other.

    JobFailed with the task's own error if one failed for good. `weights` (one a unit, 1 without)
    are what `progress` counts.
    """
    if spark is None:
        return _here(work, units, progress)
    if not units:
        return []
    heavy = list(weights) if weights is not None else [1] * len(units)
    context = spark.sparkContext
    done = context.accumulator(0)

    def one(pairs: Iterator[tuple[Unit, int]]) -> Iterator[Result]:
        for unit, weight in pairs:
            yield work(unit)
            done.add(weight)

    pairs = list(zip(units, heavy, strict=True))
    with told(done, sum(heavy), progress), plain_errors():
        found: list[Result] = context.parallelize(pairs, len(pairs)).mapPartitions(one).collect()
    return found


def _here(
    work: Callable[[Unit], Result], units: Sequence[Unit], progress: Progress | None
) -> list[Result]:
    found = []
    for number, unit in enumerate(units, 1):
        found.append(work(unit))
        if progress is not None:
            progress(number, len(units))
    return found


def attempt_name() -> str:
    """A name that no other attempt at a task has, on no machine."""
    return uuid.uuid4().hex


@contextlib.contextmanager
def told(done: Any, total: int, progress: Progress | None) -> Iterator[None]:
    """While a job runs, `progress` hears of what its accumulator says."""
    if progress is None:
        yield
        return
    over = threading.Event()

    def tell() -> None:
        while not over.wait(_TOLD_EVERY_S):
            progress(min(done.value, total), total)

    teller = threading.Thread(target=tell, name="progress of a job", daemon=True)
    teller.start()
    try:
        yield
        progress(total, total)
    finally:
        over.set()
        teller.join()


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """What a task or Spark raised becomes a JobFailed whose first line is the cause itself."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise JobFailed(cause(str(error))) from error


def cause(text: str) -> str:
    """The error that began it all, out of the tracebacks that Spark wraps around it."""
    raised = _RAISED.findall(text)
    return raised[0].strip() if raised else text.strip().splitlines()[0]

"""Running a function once for each of many units of work, in Spark tasks.

Spark decides where and when, starts a failed task again (as often as its master says) and may run
two copies of a slow one; so `work` must be harmless when repeated. The result goes to the driver
and should be small.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from saturnmq.runtime.errors import SaturnError

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Combined = TypeVar("Combined")
Progress = Callable[[int, int], None]
"""`progress(done, total)`, in whatever the weights of the units are."""

_Key = tuple[str, int]
_GROUP, _RESULT = "group", "result"
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
    """The results of `work` for each unit, in their order; one task each. Without Spark (None) they
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


def run_grouped(
    spark: Any,
    work: Callable[[Unit], tuple[Result, Iterable[tuple[int, bytes]]]],
    combine: Callable[[list[bytes]], Combined],
    groups: int,
    units: Sequence[Unit],
    weights: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> tuple[list[Result], list[Combined]]:
    """Run as `run` does, for work that also gives (group, bytes) pairs, groups being numbered from
    0 to `groups` - 1: all of a group go to one call of `combine`, through Spark's shuffle."""
    if spark is None:
        return _grouped_here(work, combine, units, progress)
    if not units:
        return [], []
    heavy = list(weights) if weights is not None else [1] * len(units)
    context = spark.sparkContext
    done = context.accumulator(0)

    def one(numbered: Iterator[tuple[int, Unit, int]]) -> Iterator[tuple[_Key, bytes]]:
        for number, unit, weight in numbered:
            result, pairs = work(unit)
            for group, data in pairs:
                yield (_GROUP, group), data
            yield (_RESULT, number), pickle.dumps(result)
            done.add(weight)

    def together(grouped: Iterator[tuple[_Key, Iterable[bytes]]]) -> Iterator[tuple[_Key, Any]]:
        for key, data in grouped:
            parts = list(data)
            yield key, combine(parts) if key[0] == _GROUP else pickle.loads(parts[0])

    numbered = [(n, *pair) for n, pair in enumerate(zip(units, heavy, strict=True))]
    rdd = context.parallelize(numbered, len(numbered)).mapPartitions(one)
    with told(done, sum(heavy), progress), plain_errors():
        found = rdd.groupByKey(groups, _number_of).mapPartitions(together).collect()
    results = {key[1]: value for key, value in found if key[0] == _RESULT}
    combined = [value for key, value in found if key[0] == _GROUP]
    return [results[number] for number in range(len(units))], combined


def _number_of(key: _Key) -> int:
    return key[1]


def _grouped_here(
    work: Callable[[Unit], tuple[Result, Iterable[tuple[int, bytes]]]],
    combine: Callable[[list[bytes]], Combined],
    units: Sequence[Unit],
    progress: Progress | None,
) -> tuple[list[Result], list[Combined]]:
    parts: defaultdict[int, list[bytes]] = defaultdict(list)
    results = []
    for result, pairs in _here(work, units, progress):
        results.append(result)
        for group, data in pairs:
            parts[group].append(data)
    return results, [combine(data) for data in parts.values()]


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
    """An error of a task or of Spark becomes a JobFailed whose first line is the cause itself."""
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


def first_line(error: Exception) -> str:
    """An error of Arrow in a line."""
    lines = str(error).splitlines()
    return lines[0] if lines else repr(error)

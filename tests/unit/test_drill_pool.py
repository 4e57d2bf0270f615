"""Jobs of a simulator in processes."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, field
from typing import Any

import pytest
from saturnmq.drills.pool import run_jobs


@dataclass
class Sum:
    numbers: list[int] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def add(self, other: Any) -> None:
        self.numbers += other.numbers
        self.violations += other.violations


def job(number: int) -> Any:
    return lambda: Sum([number], [] if number != 3 else ["three"])


@pytest.fixture
def terminated():
    """SIGTERM raises SystemExit, as on the command line."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    yield
    signal.signal(signal.SIGTERM, before)


def test_jobs_are_added_up_in_their_order_and_none_is_begun_after_enough() -> None:
    total = run_jobs(
        map(job, range(50)), Sum(), lambda so_far: bool(so_far.violations), processes=2
    )
    assert total.numbers == list(range(len(total.numbers)))
    assert 4 <= len(total.numbers) <= 8
    assert total.violations == ["three"]


def test_a_process_of_the_pool_ends_where_sigterm_finds_it(terminated: None) -> None:
    def handler() -> Sum:
        return Sum([int(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)])

    total = run_jobs(iter([handler] * 3), Sum(), lambda _: False, processes=2)
    assert total.numbers == [1, 1, 1]

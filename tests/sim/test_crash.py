"""The store on a disk that crashes at every turn: the images of `drills/crash`, a bounded share.

More than 2,400 images; `saturnmq drill crash --images 100000` is the same without the bounds.
"""

from __future__ import annotations

import pytest
from saturnmq.drills.crash.report import CrashReport
from saturnmq.drills.crash.run import repro, run_exhaustive, run_jobs, run_seed, seed_jobs

SHARES = 8
SEEDS = 40
# Seeds beyond those that have found something; they stay.
CORPUS = {
    163: "the torn half of a queue entry behind an empty slot counted as an entry",
    104: "an index of wrong length went oldest first, a crash left the newest file alone",
    142: "the thread ahead of the writer met the one error of a sync and told nobody",
    243: "a truncation left the checkpoint's mark on index items that were cut",
    357: "a new index file got the name of one that the checkpoint still named",
    688: "one bit of a BLANK's size made the log end behind its last segment",
    1183: "a damaged queue was deleted oldest first, a crash left one without its beginning",
}


@pytest.mark.parametrize("part", range(SHARES))
def test_no_boundary_of_the_workload_is_a_bad_one_to_crash_at(part: int) -> None:
    report = run_exhaustive(1, part, SHARES, every=5)
    assert report.violations == []
    assert report.ok
    assert report.images >= 150


@pytest.mark.parametrize("first", range(1, SEEDS, 5))
def test_no_seed_loses_or_invents_a_message(first: int) -> None:
    total = CrashReport()
    for seed in range(first, first + 5):
        total.add(run_seed(seed))
    assert total.violations == []
    assert total.ok
    assert total.images >= 150


@pytest.mark.parametrize("seed", CORPUS)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    assert run_seed(seed).violations == []


def test_the_workload_does_what_it_is_there_for() -> None:
    report = run_exhaustive(1, every=1000)
    missing = {"put", "put_batch", "put_half", "flush", "flush_beside", "derive", "truncate"}
    missing |= {"save_config", "clean", "reopen", "die", "lose_power"}
    assert missing <= report.operations.keys()
    assert report.operations.total() >= 200
    assert report.boundaries > 1000


def test_the_same_seed_is_the_same_run() -> None:
    assert run_seed(7).to_json() == run_seed(7).to_json()


def test_every_kind_of_fault_happens() -> None:
    report = run_jobs(seed_jobs(1, 50, None, images=1))
    kinds = {"process killed", "power lost", "crash while recovering", "ENOSPC", "pages torn"}
    kinds |= {"EIO: log not synced", "EIO: log not written", "EIO: derived files"}
    kinds |= {"pages kept", "pages dropped", "changes of names dropped"}
    assert kinds <= report.faults.keys()


def test_the_line_of_a_violation_runs_it_again() -> None:
    found = run_seed(2, "directory-not-synced").violations
    again = repro(2, mutant="directory-not-synced")
    assert again == "saturnmq drill crash --seed 2 --mutant directory-not-synced"
    assert found[0].endswith(again)

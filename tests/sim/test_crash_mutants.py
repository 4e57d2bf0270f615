"""Does the crash drill work? Every known bug of the table must be found within its budget."""

from __future__ import annotations

import pytest
from mutants_rig import assert_no_trace
from saturnmq.drills.crash.run import run_seed
from saturnmq.drills.mutants import MUTANTS, Mutant

SEEDS = 41  # test_crash.py shows that the store itself passes these
IMAGES = 3_000
# Seeds beyond those that find what one life in fifty shows; tried first.
RARE = {"deleted-built-again": (212, 216, 269, 272), "volatile-queue-cut": (63,)}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_drill_finds(mutant: Mutant) -> None:
    images = 0
    for seed in (*RARE.get(mutant.name, ()), *range(1, SEEDS)):
        report = run_seed(seed, mutant.name)
        images += report.images
        if report.violations:
            break
    else:
        pytest.fail(f"not found with {images} images: {mutant.failure}")
    assert images <= IMAGES


def test_a_mutant_leaves_no_trace() -> None:
    assert_no_trace(MUTANTS)

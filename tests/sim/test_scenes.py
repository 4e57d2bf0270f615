"""What operators, clocks and applications do to a simulated cluster: the seeds that found faults.

`python -m saturnmq.drills.sim.run --scenes NAME,... SEED` repeats one and shows its last steps.
"""

from __future__ import annotations

import pytest
from saturnmq.drills.sim.plan import ENABLED
from saturnmq.drills.sim.run import simulate
from saturnmq.drills.sim.scenes import SCENES

# Of scenes that must be clean: the seeds that found what was mended since.
FOUND = {
    "growing": (7, 8, 10, 11, 13, 27),
}


@pytest.mark.parametrize(
    ("scenes", "seed"),
    [(scenes, seed) for scenes, seeds in FOUND.items() for seed in seeds],
)
def test_a_seed_that_found_a_fault_finds_none_now(scenes: str, seed: int) -> None:
    report = simulate(seed, scenes=scenes.split("+"))
    assert not report.violations, "\n".join(report.violations)
    assert report.acked > 0


def test_every_scene_that_seeds_draw_from_exists() -> None:
    assert SCENES.keys() >= set(ENABLED)

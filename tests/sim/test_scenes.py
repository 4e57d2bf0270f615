"""What operators, clocks and applications do to a simulated cluster: the seeds that found faults.

`python -m saturnmq.drills.sim.run --scenes NAME,... SEED` repeats one and shows its last steps.
"""

from __future__ import annotations

import pytest
from saturnmq.drills.sim.plan import ENABLED
from saturnmq.drills.sim.run import simulate
from saturnmq.drills.sim.scenes import SCENES

# Scenes, and seeds that found with them what was mended since.
FOUND = {
    "growing": (7, 8, 10, 11, 13, 27),  # queues younger than a group, tables of a wiped master
    "clocks+delaying": (1, 3, 8, 11),  # delays by the wall clock
    "retrying": (1, 6),
    "recreating": (1, 6),  # deleted topics that came back
    "shrinking": (1, 2, 3),  # keys over queues that are gone, as mutants
    "taking-long": (1, 2),  # two owners of an ordered queue
    "spreading": (1, 5),  # small batches of many queues; a look at a store that was closed
    "transacting": (1, 3, 6),  # as mutants: endings whose message was cut off
    "timing": (1, 16, 55),  # what the settlements of timed messages leave over
    "clocks+timing": (5, 14),
    "misbehaving": (2, 3),  # nonsense that counted as success, SystemExit
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

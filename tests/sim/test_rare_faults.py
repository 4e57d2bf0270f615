"""Disks that lose what they had and nodes of elsewhere: they come about, and the seeds that found
faults with them.

`python -m saturnmq.drills.sim.run --faults NAME,... SEED` repeats one and shows its last steps.
"""

from __future__ import annotations

from collections import Counter

import pytest
from saturnmq.drills.sim.plan import RARE
from saturnmq.drills.sim.run import main, simulate

# By fault: seeds that found with it what was mended since.
FOUND: dict[str, tuple[int, ...]] = {
    "bit_rot": (15, 16, 45),
    "delete_segment": (1, 4, 5, 58),
    "restore_old_copy": (8, 13, 40, 49),
    "wipe_master": (9, 12, 17),
}
MADE = {
    "commitlog lost",
    "bit flipped",
    "foreign master",
    "foreign slave",
    "master wiped",
    "new slave",
    "node cloned",
    "older copy restored",
    "segment deleted",
    "slave configured as master",
}


@pytest.mark.parametrize(
    ("fault", "seed"), [(fault, seed) for fault, seeds in FOUND.items() for seed in seeds]
)
def test_a_seed_that_found_a_fault_finds_none_now(fault: str, seed: int) -> None:
    report = simulate(seed, faults=[fault])
    assert not report.violations, "\n".join(report.violations)
    assert report.acked > 0


def test_every_rare_fault_comes_about() -> None:
    made: Counter[str] = Counter()
    for seed in range(1, 10):
        made += simulate(seed, faults=RARE).faults
        if made.keys() >= MADE:
            return
    pytest.fail(f"never made: {MADE - made.keys()}")


@pytest.mark.parametrize("fault", ["foreign_master", "cloned_node"])
def test_nodes_that_share_a_secret_go_on_as_ever(fault: str) -> None:
    report = simulate(3, faults=[fault], secret=True)
    assert not report.violations, "\n".join(report.violations)
    assert report.acked > 0
    assert report.faults, "nothing happened"


def test_a_fault_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--faults", "wipe_mistress", "1"])
    assert "wipe_master" in capsys.readouterr().err

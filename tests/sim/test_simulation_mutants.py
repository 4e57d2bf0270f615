"""Does the cluster simulator work? Every known bug of its table must be found within its budget."""

from __future__ import annotations

import pytest
from mutants_rig import assert_no_trace
from saturnmq.drills.mutants import Mutant
from saturnmq.drills.sim.mutants import BIAS, MUTANTS
from saturnmq.drills.sim.plan import SimPlan
from saturnmq.drills.sim.run import simulate

SEEDS = 60  # test_simulation.py shows that the cluster itself passes these
# Where each was found at last: tried first, so that this takes seconds and not minutes.
FOUND_AT = {
    "offsets-unclamped": 13,
    "length-only-handshake": 8,
    "stale-offsets": 6,
    "ack-before-replica": 41,
    "slave-shows-everything": 12,
    "volatile-truncation": 74,
    "cut-unsaved": 8,
    "restart-without-tail": 23,
    "anyone-is-promoted": 7,
    "half-a-group": 2,
    "markers-forgotten": 4,
    "routes-without-epochs": 8,
    "deleted-groups-come-back": 267,
    "waits-forgotten": 10,
    "recreated-from-zero": 6,
    "lag-unseen": 3,
    "open-halves-forgotten": 3,
    "leftovers-to-the-old-queue": 5,
    "foreign-registered": 3,
    "leads-without-a-word": 6,
    "cut-below-the-floor": 2,
    "empty-tables": 4,
    "lease-trusted": 93,
    "lease-not-asked": 136,
    "record-overwritten": 40,
    "elected-out-of-sync": 11,
    "stranger-counts": 15,
    "old-backup-believed": 2,
    "empty-node-believes-nameservers": 121,
    "watch-ends-when-compacted": 4,
    "one-epoch-for-all-starts": 17,
    "lost-front-unseen": 3,
    "slave-reports-appended": 165,
    "strangers-marks": 90,
    "delay-clock-forgotten": 3,
    "pop-leases-forgotten": 6,
    "pop-acks-unwritten": 6,
    "pop-time-halved": 2,
    "pop-change-shortens": 2,
    "pop-order-unlocked": 2,
    "pop-order-goes-on": 2,
    "pop-begins-at-the-end": 2,
    "handed-over-as-done": 6,
    "pause-unheard": 2,
    "reset-unheard": 2,
    "reset-told-once": 20,
    "reset-undone-by-a-commit": 4,
    "fencing-ignored": 8,
    "group-seen-in-parts": 2,
    "handed-over-at-once": 2,
    "locks-for-everybody": 13,
    "seek-unheard": 2,
    "letter-without-copies": 32,
    "message-before-ending": 65,
    "nonsense-is-success": 2,
    "ending-counts-alone": 3,
    "pop-attempts-uncounted": 2,
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_the_simulator_finds(mutant: Mutant) -> None:
    first = FOUND_AT.get(mutant.name, 1)
    seeds = [first, *(seed for seed in range(1, SEEDS) if seed != first)]
    if not any(simulate(seed, mutant.name).violations for seed in seeds):
        pytest.fail(f"not found in {len(seeds)} clusters: {mutant.failure}")


def test_a_mutant_leaves_no_trace() -> None:
    assert_no_trace(MUTANTS)


def test_a_bias_is_of_a_mutant_and_of_a_plan() -> None:
    fields = SimPlan.__dataclass_fields__.keys()
    assert MUTANTS.keys() >= BIAS.keys()
    assert all(bias.keys() <= fields for bias in BIAS.values())

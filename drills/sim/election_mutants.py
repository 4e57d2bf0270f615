"""Known bugs of elections, kept to be found again in clusters that have an etcd (`etcd.py`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.electing import ElectionService
from saturnmq.broker.election import Commit, Election, Record
from saturnmq.broker.etcd.door import Put
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.plan import ETCD_FAULTS, FAULTS


def _nobody(original: Any) -> Any:
    return lambda self: frozenset()


def _by_mode(original: Any) -> Any:
    return property(lambda self: self.role.required > 1)


def _unguarded(original: Any) -> Any:
    def commit(self: Election, record: Record, *writes: Put) -> Commit:
        return replace(original(self, record, *writes), guards=())

    return commit


def _elected(**weights: int) -> dict[str, Any]:
    """A cluster with an etcd and these faults."""
    drawn = dict.fromkeys(FAULTS, 0) | ETCD_FAULTS | weights
    return {"lease_s": 3, "patience_s": math.inf, "weights": drawn, "slaves": 1, "groups": 1}


ELECTION_BIAS: dict[str, dict[str, Any]] = {
    "lease-trusted": _elected(partition=9, slaves_cut_off=6) | {"copies": 1},
    "lease-not-asked": _elected(partition=9, slaves_cut_off=6) | {"copies": 1, "sync_flush": False},
    "record-overwritten": _elected(kill=6, partition=6, pause=6),
}

_ALL: tuple[Mutant, ...] = (
    Mutant(
        "lease-trusted",
        "a master whose lease is over acknowledges without those who may be elected",
        "I1: parted from etcd and its slave, which was elected",
        (Patch(ElectionService, "witnesses", _nobody),),
    ),
    Mutant(
        "lease-not-asked",
        "an asynchronous master whose lease is over answers sends at once",
        "I1, I4: parted from etcd and its slave, which was elected",
        (Patch(Context, "waits_for_copies", _by_mode),),
    ),
    Mutant(
        "record-overwritten",
        "the record of a group is written without a look at who has changed it since",
        "I1, I12: two that were elected at once, an old master that was away",
        (Patch(Election, "_commit", _unguarded),),
    ),
)
ELECTION_MUTANTS = {mutant.name: mutant for mutant in _ALL}

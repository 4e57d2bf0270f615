"""Known bugs of elections, kept to be found again in clusters that have an etcd (`etcd.py`)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.etcd.door import KeyValue, Put, Snapshot
from saturnmq.broker.replication.election import Commit, Election
from saturnmq.broker.replication.elector import ElectionService
from saturnmq.broker.replication.group_record import GroupRecord, Memory
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.plan import ETCD_FAULTS, FAULTS


def _nobody(original: Any) -> Any:
    return lambda self: frozenset()


def _anybody(original: Any) -> Any:
    return lambda self, address: True


def _by_mode(original: Any) -> Any:
    return property(lambda self: self.role.required > 1)


def _unguarded(original: Any) -> Any:
    def commit(self: Election, record: GroupRecord, *writes: Put) -> Commit:
        planned: Commit = original(self, record, *writes)
        return replace(planned, guards=())

    return commit


def _unclean(original: Any) -> Any:
    return lambda self, *args, **options: original(self, *args, **options | {"unclean": True})


def _whatever_it_says(original: Any) -> Any:
    def check(self: Memory, snapshot: Snapshot, record: KeyValue | None) -> None:
        self.cluster, self.revision = snapshot.cluster, snapshot.revision

    return check


def _whoever(original: Any) -> Any:
    return lambda self, identity: ""


def _until_compacted(original: Any) -> Any:
    async def watch(self: ElectionService) -> None:
        watching = self._etcd.watch(self._prefix, self._election.memory.revision + 1)
        async for news in watching:
            if news.changes:
                self._election.changed()
                self._look.set()

    return watch


def _elected(**weights: int) -> dict[str, Any]:
    """A cluster with an etcd and these faults."""
    drawn = dict.fromkeys(FAULTS, 0) | ETCD_FAULTS | weights
    return {"lease_s": 3, "patience_s": math.inf, "weights": drawn, "slaves": 1, "groups": 1}


ELECTION_BIAS: dict[str, dict[str, Any]] = {
    "lease-trusted": _elected(partition=9, slaves_cut_off=6) | {"copies": 1},
    "lease-not-asked": _elected(partition=9, slaves_cut_off=6) | {"copies": 1, "sync_flush": False},
    "record-overwritten": _elected(kill=6, partition=6, pause=6),
    "elected-out-of-sync": _elected(kill=9, slaves_cut_off=9)
    | {"slaves": 2, "copies": 2, "gap_s": 1.0},
    "stranger-counts": _elected(slaves_cut_off=3)
    | {"copies": 2, "rare": {"new_slave": 9}, "gap_s": 2.0, "away": 1.0, "safety_s": 40.0},
    "old-backup-believed": _elected(etcd_restored=6, kill=3),
    "empty-node-believes-nameservers": _elected(pause=9, nameserver=9, wipe_slave=6)
    | {"nameservers": 1, "copies": 2, "rare": {"foreign_master": 9}, "gap_s": 2.0},
    "watch-ends-when-compacted": _elected(etcd_compacted=6, kill=3),
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
    Mutant(
        "elected-out-of-sync",
        "who is not in sync is elected, too, by force (electUncleanMaster, which is off)",
        "I1: a slave that lagged when the others were gone for a moment",
        (Patch(Election, "__init__", _unclean),),
    ),
    Mutant(
        "stranger-counts",
        "a new slave counts before the record names it",
        "I1: the other one, cut off meanwhile, is elected without what both had confirmed",
        (Patch(ElectionService, "counts", _anybody),),
    ),
    Mutant(
        "old-backup-believed",
        "what etcd says counts, though its revisions have gone back",
        "I16: it was restored from an older backup",
        (Patch(Memory, "check", _whatever_it_says),),
    ),
    Mutant(
        "empty-node-believes-nameservers",
        "a node without a log follows a group that etcd does not know",
        "I1, I16: its own group was frozen when the nameserver was restarted, so that it got the "
        "master of another group, whose only copy it became",
        (Patch(ElectionService, "refuses_group", _whoever),),
    ),
    Mutant(
        "watch-ends-when-compacted",
        "a watch does not begin again when etcd has compacted what it was not told",
        "a task dies: the node was parted from etcd",
        (Patch(ElectionService, "watch", _until_compacted),),
    ),
)
ELECTION_MUTANTS = {mutant.name: mutant for mutant in _ALL}

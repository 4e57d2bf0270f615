"""Known bugs of identity and floors, kept to be found again under the rare faults
(`amnesia.py`, `strangers.py`), as those of replication are (`mutants.py`).
"""

from __future__ import annotations

from typing import Any

from saturnmq.broker import registration
from saturnmq.broker.replication import (
    asking,
    events,
    executor,
    following,
    joining,
    kinship,
    machine,
    mending,
    recovering,
    tail_copy,
    words,
)
from saturnmq.broker.replication.executor import Executor
from saturnmq.broker.replication.machine import Machine
from saturnmq.broker.replication.role import Role
from saturnmq.broker.replication.slaves import Slaves
from saturnmq.broker.replication.table_sync import TableSync
from saturnmq.broker.replication.words import Words
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.plan import FAULTS
from saturnmq.nameserver.claims import Claims

WITH_IDENTITIES = (
    asking,
    following,
    joining,
    kinship,
    machine,
    mending,
    registration,
    tail_copy,
)


def _always_true(original: Any) -> Any:
    return lambda *args, **kwargs: True


def _always_false(original: Any) -> Any:
    return lambda *args, **kwargs: False


def found_equal(original: Any) -> Any:
    return lambda self, link, join, error: original(self, link, join, "")


def _no_reason(original: Any) -> Any:
    return lambda *args, **kwargs: ""


def _nothing(original: Any) -> Any:
    return lambda *args, **kwargs: None


def _nobody(original: Any) -> Any:
    return lambda *args, **kwargs: 0


def _at_once(original: Any) -> Any:
    async def adopt(self: TableSync, address: str) -> None:
        return

    return adopt


def _with(rare: str, **plan: Any) -> dict[str, Any]:
    """A cluster with this fault only, which must help itself."""
    weights = dict.fromkeys(FAULTS, 0)
    usual = {"copies": 2, "slaves": 1, "patience_s": float("inf"), "weights": weights, "force": 0.0}
    return usual | {"rare": {rare: 1}, "gap_s": 3.0} | plan


def _goes_on(original: Any) -> Any:
    def open_term(self: Machine) -> None:
        self.role.leads_since_start = self.role.leads_since_start or bool(self.log.epochs)
        self.recovering.words.known_epoch = 0
        original(self)

    return open_term


DISK_BIAS: dict[str, dict[str, Any]] = {
    "foreign-registered": _with("foreign_master"),
    "leads-without-a-word": _with("restore_old_copy"),
    "cut-below-the-floor": _with("restore_old_copy"),
    "empty-tables": _with("wipe_master"),
    "damage-followed": _with("bit_rot"),
    "identity-not-compared": _with("foreign_master"),
    "one-epoch-for-all-starts": _with("restore_old_copy") | {"copies": 1},
    "lost-front-unseen": _with("delete_segment"),
    "role-in-the-file": _with("master_in_file") | {"slaves": 2, "patience_s": 3.0},
}

_ALL: tuple[Mutant, ...] = (
    Mutant(
        "foreign-registered",
        "a nameserver takes a broker of whatever group for one of its name",
        "I12, I1: a master of another cluster with the same names",
        (Patch(Claims, "check", _nothing),),
    ),
    Mutant(
        "leads-without-a-word",
        "a master whose sends wait for copies takes writes before a slave told what it has",
        "I1, I12: an older copy of its disk was restored",
        (Patch(words, "words_needed", _nobody), Patch(Words, "furthest", _nothing)),
    ),
    Mutant(
        "cut-below-the-floor",
        "the same, and its slaves cut what was confirmed",
        "I1: an older copy of its disk was restored",
        (
            Patch(words, "words_needed", _nobody),
            Patch(Words, "furthest", _nothing),
            Patch(words, "may_cut", _no_reason),
            Patch(recovering, "may_cut", _no_reason),
            Patch(following, "may_cut", _no_reason),
        ),
    ),
    Mutant(
        "empty-tables",
        "a master that copied its log back keeps the tables of its empty disk",
        "I12, I6: the disk of a master was replaced",
        (Patch(TableSync, "adopt", _at_once), Patch(Executor, "_merge_back", _at_once)),
    ),
    Mutant(
        "strangers-marks",
        "a master that starts merges the tables of slaves that have not joined it yet",
        "I12: it goes on behind messages that only another log had delivered",
        (Patch(executor, "has_joined", _always_true),),
    ),
    Mutant(
        "damage-followed",
        "the checksums of two logs are not compared when one goes on with the other",
        "I7: a bit of one of them has flipped",
        (Patch(Slaves, "_compared", found_equal),),
    ),
    Mutant(
        "identity-not-compared",
        "nodes of another group count as of this one",
        "I12, I1: a master of another cluster with the same names",
        (
            *(Patch(module, "is_foreign", _always_false) for module in WITH_IDENTITIES),
            Patch(Claims, "check", _nothing),
        ),
    ),
    Mutant(
        "one-epoch-for-all-starts",
        "a master that starts again goes on in the epoch that its log ends with",
        "I7: an older copy of its disk was restored",
        (Patch(Machine, "open_term", _goes_on),),
    ),
    Mutant(
        "lost-front-unseen",
        "a log that has lost its beginning counts as whole, and goes on at its end",
        "I12: the first of its files is gone, and its slaves have it",
        (Patch(events.LogState, "lacks_front", _always_false),),
    ),
    Mutant(
        "role-in-the-file",
        "a slave that starts with the configuration of a master leads, on its slaves' words",
        "I1, I4: its master lives, and the other slaves go on acknowledging to it",
        (Patch(Role, "refuses_start", _no_reason), Patch(machine, "is_copied_from", _always_false)),
    ),
)
DISK_MUTANTS = {mutant.name: mutant for mutant in _ALL}

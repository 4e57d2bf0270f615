"""Known bugs of replication, kept to be found again by the cluster simulator
(docs/guarantees.md 8.3).

Like those of the store (`drills/mutants.py`) each replaces functions from outside while it is
active; no switch for it exists in the code. Some show only in clusters of one kind: `BIAS` says in
which, so that they are found within a budget.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from saturnmq.broker.commit import advance
from saturnmq.broker.exactly_once.sinks import SinkTable
from saturnmq.broker.replication import following, joining, recovering, words
from saturnmq.broker.replication.events import Promote
from saturnmq.broker.replication.ha_slave import HaSlave
from saturnmq.broker.replication.machine import Machine
from saturnmq.broker.replication.orders import Orders
from saturnmq.broker.replication.role import Role, State
from saturnmq.broker.replication.slaves import Slaves
from saturnmq.broker.replication.words import Words
from saturnmq.broker.tables.progress import Progress
from saturnmq.client.admin.promotion import Promoter
from saturnmq.drills.mutants import MUTANTS as STORE_MUTANTS
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.disk_mutants import DISK_BIAS, DISK_MUTANTS, found_equal
from saturnmq.drills.sim.election_mutants import ELECTION_BIAS, ELECTION_MUTANTS
from saturnmq.drills.sim.kind_mutants import KIND_BIAS, KIND_MUTANTS
from saturnmq.drills.sim.plan import FAULTS
from saturnmq.drills.sim.pop_mutants import POP_BIAS, POP_MUTANTS
from saturnmq.drills.sim.scene_mutants import SCENE_BIAS, SCENE_MUTANTS
from saturnmq.drills.sim.transaction_mutants import TRANSACTION_BIAS, TRANSACTION_MUTANTS
from saturnmq.nameserver.routes import RouteTable
from saturnmq.store.log.epochs import Epochs
from saturnmq.store.message_store import MessageStore


def _nothing(original: Any) -> Any:
    return lambda *args, **kwargs: None


def _common_length(original: Any) -> Any:
    def common(entries: Any, end: int, others: Any, others_end: int) -> Any:
        return (entries[-1], min(end, others_end)) if entries else None

    return common


def _replicated_at_once(original: Any) -> Any:
    def confirm(c: Any) -> None:
        marks = c.store.watermarks
        marks.replicated = marks.appended
        original(c)

    return confirm


def _no_objection(original: Any) -> Any:
    return lambda *args, **kwargs: ""


def _nobodys_word(original: Any) -> Any:
    return lambda *args, **kwargs: 0


def _all_visible(original: Any) -> Any:
    def confirm(c: Any) -> None:
        original(c)
        if c.role.state is State.SLAVE:
            c.store.watermarks.confirmed = c.store.watermarks.appended

    return confirm


def _appended_is_flushed(original: Any) -> Any:
    def report(self: HaSlave, **kwargs: Any) -> None:
        marks = self._c.store.watermarks
        flushed, marks.flushed = marks.flushed, marks.appended
        try:
            original(self, **kwargs)
        finally:
            marks.flushed = flushed

    return report


def _overwrite(original: Any) -> Any:
    def merge(self: Progress[Any], others: Any, *rest: Any) -> bool:
        self.marks = dict(others)
        return True

    return merge


def _never(original: Any) -> Any:
    return lambda *args, **kwargs: False


def _by_force(original: Any) -> Any:
    def promote(self: Orders, asked: Promote) -> None:
        original(self, replace(asked, end=0, force=True, insist=True))

    return promote


def _itself(original: Any) -> Any:
    return lambda self, offset: offset


def _from_an_empty_file(original: Any) -> Any:
    def load(self: SinkTable, document: Any) -> None:
        _, self._next = self._store.markers

    return load


_CUTS = {"promote": 9, "kill": 6, "slaves_cut_off": 9, "power_loss": 3, "partition": 3}
_LOSSY = {
    "copies": 1,
    "patience_s": 0.5,
    "gap_s": 1.0,
    "weights": dict.fromkeys(FAULTS, 0) | _CUTS,
}
_SINKS = _LOSSY | {"groups": 1, "slaves": 1, "padding": 1000, "sink_epochs": 6}
# Values that replace the drawn ones of a Plan while a mutant is active.
BIAS: dict[str, dict[str, Any]] = {
    "ack-before-replica": {
        "copies": 2,
        "patience_s": 0.5,
        "weights": dict.fromkeys(FAULTS, 0) | {"kill": 9, "slow_link": 9, "power_loss": 6},
    },
    "offsets-unclamped": _LOSSY,
    "volatile-truncation": _LOSSY,
    "restart-without-tail": {
        "copies": 2,
        "sync_flush": False,
        "weights": dict.fromkeys(FAULTS, 0) | {"power_loss": 9, "slaves_cut_off": 3},
    },
    "half-a-group": _SINKS | {"transfer_bytes": 100},
    "group-seen-in-parts": _SINKS | {"transfer_bytes": 100, "copies": 2},
    "markers-forgotten": {"sink_epochs": 6},
    "slave-reports-appended": {
        "groups": 1,
        "slaves": 2,
        "copies": 2,
        "sync_flush": True,
        "weights": dict.fromkeys(FAULTS, 0)
        | {"power_loss": 9, "power_loss_inside": 6, "promote": 6, "kill": 3},
    },
    "slave-shows-everything": {
        "groups": 1,
        "slaves": 2,
        "copies": 3,
        "patience_s": 0.5,
        "weights": dict.fromkeys(FAULTS, 0) | {"kill": 9, "slaves_cut_off": 9, "slow_link": 9},
    },
}

_ALL: tuple[Mutant, ...] = (
    Mutant(
        "length-only-handshake",
        "a slave's log counts as a prefix of its master's if it is not longer (#3388, #3015)",
        "I7: a deposed master comes back with a tail of its own",
        (
            *(Patch(module, "common", _common_length) for module in (joining, recovering, words)),
            Patch(Slaves, "_compared", found_equal),
        ),
    ),
    Mutant(
        "stale-offsets",
        "a table of consumer offsets that is copied overwrites newer ones (#1094, #7790)",
        "I6: a master that returns, a slave that is promoted",
        (Patch(Progress, "merge", _overwrite),),
    ),
    Mutant(
        "offsets-unclamped",
        "offsets behind the end of a cut log stay: new messages there are skipped (#8239)",
        "I6, I12: a promotion or a power loss that takes what was consumed",
        (Patch(Progress, "clamp", lambda original: lambda *args, **kwargs: []),),
    ),
    Mutant(
        "ack-before-replica",
        "a SYNC_MASTER answers before a slave has the message (inSyncReplicas=1, 5.x)",
        "I1: a promotion, or a power loss with asynchronous flush",
        (Patch(advance, "confirm", _replicated_at_once),),
    ),
    Mutant(
        "slave-reports-appended",
        "a slave's acknowledgement is its page cache, whatever the mode (RocketMQ's classic HA)",
        "I1: both nodes of a sync x sync group lose power",
        (Patch(HaSlave, "_report", _appended_is_flushed),),
    ),
    Mutant(
        "dirty-read",
        STORE_MUTANTS["dirty-read"].failure,
        "I4: what a consumer saw is cut by a promotion",
        STORE_MUTANTS["dirty-read"].patches,
    ),
    Mutant(
        "slave-shows-everything",
        "readers of a slave see what its master has not confirmed",
        "I4: what a consumer saw is cut by a promotion",
        (Patch(advance, "confirm", _all_visible),),
    ),
    Mutant(
        "volatile-truncation",
        "a rejoining slave cuts its log in memory only (#10666)",
        "I7, I8: it loses power before the new bytes cover the old ones",
        STORE_MUTANTS["volatile-truncation"].patches,
    ),
    Mutant(
        "cut-unsaved",
        "what a rejoining node has to give up is thrown away",
        "I1: cut off by a promotion, and in no side file",
        STORE_MUTANTS["cut-unsaved"].patches,
    ),
    Mutant(
        "fencing-ignored",
        "a master goes on although it hears of a newer one",
        "I1: it acknowledges what its new master cuts off",
        (Patch(Machine, "superseded", _nothing),),
    ),
    Mutant(
        "epoch-in-memory",
        "epochs and promises are not on the disk when they are acted on",
        "I7, I1: a restarted node has forgotten them",
        (Patch(Epochs, "_save", _nothing), Patch(Role, "document", lambda original: lambda s: {})),
    ),
    Mutant(
        "restart-without-tail",
        "a restarted SYNC_MASTER takes writes without what only its slaves have, and they follow",
        "I1: power loss of the master with asynchronous flush",
        (
            Patch(words, "words_needed", _nobodys_word),
            Patch(Words, "furthest", _nothing),
            Patch(words, "may_cut", _no_objection),
            Patch(recovering, "may_cut", _no_objection),
            Patch(following, "may_cut", _no_objection),
        ),
    ),
    Mutant(
        "anyone-is-promoted",
        "a slave is promoted without a look at what it lacks (unclean leader election)",
        "I1: a slave that lagged, or was empty",
        (Patch(Promoter, "_check", _nothing), Patch(Orders, "promote", _by_force)),
    ),
    Mutant(
        "half-a-group",
        "a slave dispatches a group before it has all of it, and a promotion keeps that",
        "G1: the master dies while a group is on its way",
        STORE_MUTANTS["half-a-group"].patches,
    ),
    Mutant(
        "group-seen-in-parts",
        "what is confirmed may end inside a group",
        "G1: consumers see a part of it while slaves report",
        (Patch(MessageStore, "align_to_batch", _itself),),
    ),
    Mutant(
        "markers-forgotten",
        "the table of what sinks have published is not built again at a start",
        "G2: a partition is published once more after a restart",
        (Patch(SinkTable, "load", _from_an_empty_file),),
    ),
    Mutant(
        "routes-without-epochs",
        "nameservers take whoever registers last for the master",
        "I1, I12: a deposed master that never hears of the new one",
        (Patch(RouteTable, "_is_deposed", _never),),
    ),
)
MUTANTS = {mutant.name: mutant for mutant in _ALL}
MUTANTS |= SCENE_MUTANTS | POP_MUTANTS | TRANSACTION_MUTANTS | KIND_MUTANTS
MUTANTS |= DISK_MUTANTS | ELECTION_MUTANTS
BIAS |= SCENE_BIAS | POP_BIAS | TRANSACTION_BIAS | KIND_BIAS | DISK_BIAS | ELECTION_BIAS

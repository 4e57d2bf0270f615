"""Known bugs of transactions, kept to be found again in their scene (`scenes/`), as those of
replication are (`mutants.py`).
"""

from __future__ import annotations

import math
from typing import Any

from saturnmq.broker.transactions import check_back, endings, half_log, halves
from saturnmq.broker.transactions.check_back import CheckBackService
from saturnmq.broker.transactions.endings import EndingKind
from saturnmq.broker.transactions.half_log import HalfLog
from saturnmq.broker.transactions.half_table import HalfTable
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.scene_mutants import NO_FAULTS, RESTARTS
from saturnmq.store.message_store import MessageStore


def _always(original: Any) -> Any:
    return lambda *args, **kwargs: True


def _message_first(original: Any) -> Any:
    def put_adjacent(self: MessageStore, messages: Any) -> Any:
        return original(self, messages[::-1])[::-1]

    return put_adjacent


def _behind_all(original: Any) -> Any:
    async def begin(self: HalfLog) -> tuple[int, int]:
        end = self._store.max_offset
        return end(*halves.QUEUE), end(*endings.QUEUE)

    return begin


def _expires_unseen(original: Any) -> Any:
    def expire(self: CheckBackService, half: Any) -> None:
        self._half_log.end(half, EndingKind.ROLLED_BACK)

    return expire


def _uncounted_questions(original: Any) -> Any:
    return lambda half, store_host, *, is_check: original(half, store_host, is_check=False)


def _long_ago(original: Any) -> Any:
    return lambda self, half: -math.inf


def _only_memory(original: Any) -> Any:
    async def load(self: HalfLog) -> None:
        self._table = HalfTable(0, 0)

    return load


# A power loss in the middle of a sync ends the log anywhere; what was acknowledged is on the disk.
_PIECES = {
    "sync_flush": True,
    "copies": 1,
    "slaves": 1,
    "gap_s": 2.0,
    "safety_s": 60.0,
    "away": 0.0,
    "patience_s": math.inf,
    "weights": NO_FAULTS | {"power_loss": 3, "power_loss_inside": 8, "slow_disk": 5},
}

_POWER_LOSSES = _PIECES | {
    "sync_flush": False,
    "flush_s": 0.2,
    "gap_s": 1.0,
    "safety_s": 40.0,
    "weights": NO_FAULTS | {"power_loss": 6, "power_loss_inside": 3},
}

# Name: (failure, found by, patches, scenes, what replaces drawn values of the Plan besides).
_TABLE: dict[str, tuple[str, str, tuple[Patch, ...], dict[str, Any]]] = {
    "ending-counts-alone": (
        "an ending counts although the message behind it was cut off",
        "I13 lost: a log ends between the two",
        (Patch(half_log, "counts", _always),),
        _PIECES,
    ),
    "message-before-ending": (
        "the message is stored before its ending, as RocketMQ stores it",
        "I13 committed twice: a log ends between the two",
        (Patch(MessageStore, "put_adjacent", _message_first), Patch(half_log, "counts", _always)),
        _POWER_LOSSES,
    ),
    "open-halves-forgotten": (
        "a new master knows of no transaction that was open before",
        "I13 lost",
        (Patch(HalfLog, "_begin", _behind_all),),
        {},
    ),
    "endings-forgotten": (
        "a new master takes all transactions for open ones",
        "I13 committed twice",
        (Patch(HalfLog, "load", _only_memory),),
        RESTARTS,
    ),
    "expired-dropped": (
        "a transaction that nobody decides is rolled back when it expires",
        "I13 lost: its message is nowhere",
        (Patch(CheckBackService, "_expire", _expires_unseen),),
        {},
    ),
    "questions-uncounted": (
        "a half that is stored again does not say how often its producer was asked",
        "I12: it never expires",
        (Patch(check_back, "asked_again", _uncounted_questions),),
        {},
    ),
    "asked-at-once": (
        "a producer is asked about a transaction that has just begun",
        "I13 asked early",
        (Patch(HalfLog, "since", _long_ago),),
        {},
    ),
}
TRANSACTION_MUTANTS = {
    name: Mutant(name, failure, found_by, patches)
    for name, (failure, found_by, patches, _) in _TABLE.items()
}
TRANSACTION_BIAS: dict[str, dict[str, Any]] = {
    name: {"scenes": frozenset({"transacting"}), **bias} for name, (*_, bias) in _TABLE.items()
}

"""Known bugs of pop, kept to be found again in its scene (`scenes/popping.py`)."""

from __future__ import annotations

from typing import Any

from saturnmq.broker.pop import leases, service
from saturnmq.broker.pop.leases import Leases, PopLane
from saturnmq.broker.pop.recorder import PopRecorder
from saturnmq.broker.pop.service import PopService
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.scene_mutants import RESTARTS
from saturnmq.store.message_store import AppendResult
from saturnmq.store.offsets import PhysicalOffset, QueueOffset, StoreTime


def _empty(original: Any) -> Any:
    async def replay(context: Any, topic: str) -> Leases:
        return Leases()

    return replay


def _unwritten(original: Any) -> Any:
    def done(self: PopRecorder, lane: Any, offsets: Any, pop_ms: int) -> AppendResult:
        end = PhysicalOffset(self._c.store.watermarks.appended)
        return AppendResult(end, end, QueueOffset(0), 1, StoreTime(0), (0,))

    return done


def _half(original: Any) -> Any:
    return lambda now, seconds: original(now, seconds / 2)


def _only_counted(original: Any) -> Any:
    def expire(self: Leases, now: float, most: int) -> Any:
        for lease in original(self, now, most):
            lease.lane.ready.clear()
            yield lease

    return expire


def _cursor(original: Any) -> Any:
    return property(lambda lane: lane.cursor)


def _cursor_first(original: Any) -> Any:
    def give(self: PopService, popped: Any, lease: Any, cursor: int, results: Any) -> None:
        lease.lane.cursor = max(lease.lane.cursor, cursor)
        original(self, popped, lease, cursor, results)

    return give


def _kept(original: Any) -> Any:
    def change(self: PopService, group: str, topic: str, handle: Any, invisible_ms: int) -> Any:
        return original(self, group, topic, handle, min(invisible_ms, 500))

    return change


_TABLE: dict[str, tuple[str, str, tuple[Patch, ...], dict[str, Any]]] = {
    "pop-leases-forgotten": (
        "a new term does not know what is out",
        "pop twice: open messages are given out at once",
        (Patch(service, "replay", _empty),),
        RESTARTS,
    ),
    "pop-acks-unwritten": (
        "acknowledgements are in memory only (#10736)",
        "pop after its acknowledgement: a restart gives the message out again",
        (Patch(PopRecorder, "done", _unwritten),),
        RESTARTS,
    ),
    "pop-time-halved": (
        "an invisible time ends too early",
        "pop twice",
        (Patch(leases, "_due", _half),),
        {},
    ),
    "pop-revive-lost": (
        "a message whose time is over is not given out again (#7914)",
        "I12: a member forgets a message",
        (Patch(Leases, "expire", _only_counted),),
        {},
    ),
    "pop-commits-the-cursor": (
        "the committed offset of a group passes messages that are out",
        "I12: after a restart they count as consumed",
        (Patch(PopLane, "low", _cursor),),
        RESTARTS,
    ),
    "pop-cursor-before-its-record": (
        "the cursor moves even if the record of the lease cannot be written",
        "I12: nobody gets the messages before it",
        (Patch(PopService, "_give", _cursor_first),),
        {},
    ),
    "pop-change-shortens": (
        "a longer invisible time is not granted, and nobody is told",
        "pop twice: a member works on a message that another one gets",
        (Patch(PopService, "change", _kept),),
        {},
    ),
}
POP_MUTANTS = {
    name: Mutant(name, failure, found_by, patches)
    for name, (failure, found_by, patches, _) in _TABLE.items()
}
POP_BIAS: dict[str, dict[str, Any]] = {
    name: {"scenes": frozenset({"popping"}), **bias} for name, (*_, bias) in _TABLE.items()
}

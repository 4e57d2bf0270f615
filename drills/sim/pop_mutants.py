"""Known bugs of pop, kept to be found again in its scene (`scenes/popping.py`)."""

from __future__ import annotations

from typing import Any

from saturnmq.broker.handlers import pop_acks
from saturnmq.broker.pop import leases, service
from saturnmq.broker.pop.leases import Leases, PopLane, PopLease
from saturnmq.broker.pop.orders import PopOrder, Popped
from saturnmq.broker.pop.recorder import PopRecorder
from saturnmq.broker.pop.service import PopService
from saturnmq.drills.mutants import Mutant, Patch
from saturnmq.drills.sim.scene_mutants import NO_FAULTS, RESTARTS
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


def _never(original: Any) -> Any:
    return lambda *args, **kwargs: False


def _new_ones_first(original: Any) -> Any:
    def give_again(self: PopService, order: PopOrder, popped: Popped, lane: PopLane) -> None:
        if order.ordered:
            self._give_new(order, popped, lane)
        original(self, order, popped, lane)

    return give_again


def _first_attempt(original: Any) -> Any:
    def give(self: PopService, popped: Popped, lease: PopLease, *args: Any) -> None:
        lease.attempts = 0
        original(self, popped, lease, *args)

    return give


def _first_only(original: Any) -> Any:
    return lambda text: original(text)[:1]


def _nothing_known(original: Any) -> Any:
    return lambda *args: None


FULL_DISKS = {
    "slaves": 1,
    "segment_bytes": 8 << 10,
    "safety_s": 40.0,
    "gap_s": 1.0,
    "weights": NO_FAULTS | {"full_disk": 6, "power_loss": 2},
}

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
        FULL_DISKS,
    ),
    "pop-change-shortens": (
        "a longer invisible time is not granted, and nobody is told",
        "pop twice: a member works on a message that another one gets",
        (Patch(PopService, "change", _kept),),
        {},
    ),
    "pop-order-unlocked": (
        "a queue of an ordered group is given to whoever asks",
        "pop: more of a queue while messages of it are out",
        (Patch(Leases, "is_blocked", _never),),
        {},
    ),
    "pop-order-goes-on": (
        "an ordered pop gives out new messages before those whose time is over",
        "pop: past a message that failed",
        (Patch(PopService, "_give_again", _new_ones_first),),
        {},
    ),
    "pop-attempts-uncounted": (
        "a message that is given out again does not say so",
        "pop: an attempt was not counted",
        (Patch(PopService, "_give", _first_attempt),),
        {},
    ),
    "pop-acks-the-first": (
        "of many messages that are acknowledged in one request the first one counts",
        "pop after its acknowledgement",
        (Patch(pop_acks, "_bits", _first_only),),
        {},
    ),
    "pop-begins-at-the-end": (
        "a group that pops, and begins at the end, does so in queues that are younger than itself",
        "I12: a topic is made again, and the group gets none of its first messages",
        (Patch(service, "beginning_of", _nothing_known),),
        {"scenes": frozenset({"recreating"})},
    ),
}
POP_MUTANTS = {
    name: Mutant(name, failure, found_by, patches)
    for name, (failure, found_by, patches, _) in _TABLE.items()
}
POP_BIAS: dict[str, dict[str, Any]] = {
    name: {"scenes": frozenset({"popping"}), **bias} for name, (*_, bias) in _TABLE.items()
}

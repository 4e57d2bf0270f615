"""The verdict on a simulated run: what was promised and seen, against what the logs hold.

By their names in docs/guarantees.md 3: I1 no acknowledged loss, I2 no phantom and no corruption, I3
rejected means never, I4 one message per (queue, offset), I5 order, I6 offsets, I12 liveness; I7 and
I8 are compared on the disks (`aftermath.py`).

`allowance.py` says which losses a mode allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from saturnmq.drills.sim.allowance import Allowance
from saturnmq.drills.sim.history import LATER, Ack, Delivery, Place, SimHistory
from saturnmq.drills.sim.staging import Acknowledged, PartitionKey

EXAMPLES = 4


@dataclass
class Evidence:
    """`stored`: what lies where in the masters' logs; `is_saved`: whether a value is in a side
    file."""

    history: SimHistory
    stored: Mapping[Place, str]
    is_saved: Callable[[str], bool]
    allowance: Allowance
    ordered: Mapping[str, bool]  # by consumer group


def told(what: str, examples: Sequence[object]) -> list[str]:
    """One line with the first examples of a violation; none if there is no example."""
    if not examples:
        return []
    shown = "; ".join(map(str, examples[:EXAMPLES]))
    more = f" and {len(examples) - EXAMPLES} more" if len(examples) > EXAMPLES else ""
    return [f"{what}: {shown}{more}"]


class Verdict:
    def __init__(self, evidence: Evidence) -> None:
        self._e = evidence
        self._kept: dict[str, list[Place]] = {}
        for place, value in evidence.stored.items():
            self._kept.setdefault(value, []).append(place)
        self.lost = 0  # promised, gone, and allowed to be
        self.found: list[str] = []

    def run(self) -> list[str]:
        """All violations, one line for each kind with its first examples."""
        history = self._e.history
        self._acked()
        for group in history.deliveries:
            self._delivered(group)
            self._places(group)
            if self._e.ordered[group]:
                self._skips(group)
        rejected = [v for v in history.rejected if v in self._kept]
        self._add("I3 rejected, but stored", rejected)
        self._sent_back()
        self._lanes()
        self._two_masters()
        return self.found

    def _add(self, what: str, examples: Sequence[object]) -> None:
        self.found += told(what, examples)

    # I1

    def _acked(self) -> None:
        gone: list[str] = []
        moved: list[str] = []
        unsaved = []
        for value, ack in self._e.history.acked.items():
            if self._e.stored.get(ack.place) == value:
                continue
            if ack.place.queue == LATER and value in self._kept:
                continue
            text = f"{value} at {ack.place}, acknowledged by {ack.by} at {ack.at:.3f}"
            if not self._may_go(ack.place.group, ack.at, ack.by):
                (moved if value in self._kept else gone).append(text)
                continue
            self.lost += value not in self._kept
            if value not in self._kept and not self._may_be_unsaved(value, ack):
                unsaved.append(text)
        self._add("I1 acknowledged, and lost", gone)
        self._add("I4 acknowledged at a place where it is not", moved)
        self._add("I1 cut off by a promotion, and in no side file", unsaved)

    def _may_be_unsaved(self, value: str, ack: Ack) -> bool:
        return self._e.is_saved(value) or self._e.allowance.lacks(ack.by, ack.at)

    def _may_go(self, group: str, at: float, by: str | None) -> bool:
        return self._e.allowance.may_go(group, at, by)

    def partitions(self, missing: Sequence[tuple[PartitionKey, Acknowledged]]) -> list[str]:
        """G3 for partitions of sinks that were acknowledged and are not in a log."""
        return [
            f"G3 {key} is missing, {told.by} acknowledged it at {told.at:.3f}"
            for key, told in missing
            if not self._may_go(key.group, told.at, None)
        ]

    def _two_masters(self) -> None:
        """Check that a promotion lies between acknowledgements of two nodes that came one after the
        other."""
        found = []
        acked: dict[str, list[tuple[float, float, str]]] = {}
        for value, ack in self._e.history.acked.items():
            begun = self._e.history.begun.get(value, ack.at)
            acked.setdefault(ack.place.group, []).append((ack.at, begun, ack.by))
        for group, acks in acked.items():
            for (at, since, by), (until, begun, other) in pairwise(sorted(acks)):
                if other == by or begun <= at or self._e.allowance.may_lead(group, since, until):
                    continue
                found.append(f"{other} of {group} at {until:.3f}, after {by} at {at:.3f}")
        self._add("I16 acknowledged by another, and nobody was promoted", found)

    # deliveries

    def _delivered(self, group: str) -> None:
        history = self._e.history
        seen = history.first_seen[group]
        missing = [
            f"{value} at {places[0]}" for value, places in self._kept.items() if value not in seen
        ]
        self._add(f"I12 stored, and not delivered to {group}", missing)
        strange = [
            f"{delivery.value!r} at {delivery.place}"
            for delivery in history.deliveries[group]
            if delivery.value is None or delivery.value not in history.invoked
        ]
        self._add(f"I2 delivered to {group}, and sent by nobody", strange)
        refused = [value for value in seen if value in history.rejected]
        self._add(f"I3 rejected, but delivered to {group}", refused)

    def _sent_back(self) -> None:
        """Messages that a listener asked for again came again. When which broker heard of that is
        not known, so any loss within some seconds may be to blame.
        """
        groups = {node.group for node in self._e.allowance.nodes}
        missing = [
            f"{value} of {group} at {delivery.at:.3f}"
            for (group, value), delivery in self._e.history.sent_back.items()
            if not any(
                self._may_go(kept_by, delivery.at + later / 2, None)
                for kept_by in groups
                for later in range(20)
            )
        ]
        self._add("I1 sent back by its listener, and never delivered again", missing)

    def _places(self, group: str) -> None:
        """A message that a consumer saw at a place stays there, unless it may be lost."""
        changed = []
        checked: set[tuple[Place, str]] = set()
        for delivery in self._e.history.deliveries[group]:
            value = delivery.value
            if value is None or (delivery.place, value) in checked:
                continue
            checked.add((delivery.place, value))
            now = self._e.stored.get(delivery.place)
            if now != value and not self._may_vanish(delivery, value):
                changed.append(f"{delivery.place} was {value} at {delivery.at:.3f} and is {now}")
        self._add(f"I4 seen by {group}, and not there any more", changed)

    def _may_vanish(self, delivery: Delivery, value: str) -> bool:
        ack = self._e.history.acked.get(value)
        by = ack.by if ack is not None and ack.place == delivery.place else None
        at = delivery.at
        if ack is not None and ack.place.queue != LATER:  # that one is copied when it is due
            at = min(ack.at, at)
        return self._may_go(delivery.place.group, at, by)

    def _skips(self, group: str) -> None:
        """Check that the reader skipped no message: before a delivery it had all earlier messages
        of the log."""
        skipped = []
        newest: dict[tuple[str, int], int] = {}
        for delivery in self._e.history.deliveries[group]:
            place = delivery.place
            queue = place.group, place.queue
            reached = newest.get(queue, -1)
            if place.offset > reached + 1:
                skipped.append(f"{place} after offset {reached}, at {delivery.at:.3f}")
            newest[queue] = max(place.offset, reached)
        self._add(f"I5 {group} skipped", skipped)

    def _lanes(self) -> None:
        """Check that the messages of one lane and one queue lie in the order of the sends."""
        wrong = []
        for lane in self._e.history.lanes():
            before: dict[tuple[str, int], tuple[int, str]] = {}
            for value in lane:
                place = self._e.history.acked[value].place
                if self._e.stored.get(place) != value:
                    continue
                queue = place.group, place.queue
                last = before.get(queue)
                if last is not None and place.offset <= last[0]:
                    wrong.append(f"{value} at {place} after {last[1]} at {last[0]}")
                before[queue] = place.offset, value
        self._add("I5 against the order of the sends", wrong)

"""The verdict on a drill, from its history and from the stores at its end. Pure.

Names are those of docs/guarantees.md 3: I1 no acknowledged loss, I2 no phantom, I3 rejected means
never, I4 one message per (queue, offset), I5 order, I6 committed offsets, I9 no dirty read, I12
liveness. All checks are linear in the history because a (queue, offset) names one value.

The losses that a mode allows: with asynchronous replication a promotion without hand-over leaves
behind the messages that only the old master had acknowledged. They are counted (`rpo`) and are no
violation, if they lie in the side file that the old master wrote when it truncated its log. Then
consumers may also have seen those values at offsets that other messages have now. All other
messages must be there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from saturnmq.drills.failover.commits_checker import ahead_of_work, beyond_the_end, moved_back
from saturnmq.drills.failover.history import AGAIN, IN_ORDER, ONCE, Event, History
from saturnmq.drills.sim.history import Place

LIVENESS_S = 10.0
# How much of what was committed may be forgotten by a failure: repeats of that long (I6).
COMMITS_AT_RISK_S = 1.0
_ANOTHER_LOSS_S = 2.0  # a group that lost nothing for so long lost by another promotion
_MANY_SENDS = 10  # of one sender: what a fault left unanswered are fewer
_EXAMPLES = 5


@dataclass
class Aftermath:
    """The state of the cluster after it stopped."""

    stored: Mapping[Place, str] | None = None  # the masters' logs, None if nobody looked
    saved: frozenset[str] = frozenset()  # values in the side files of truncations
    problems: list[str] = field(default_factory=list)  # I7, I8: `stores.py` words them
    # By group, of its longest log: numbers of epochs, and the offsets where they begin, rising.
    epochs: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)


@dataclass
class ModePromise:
    """The promises of the drill's mode."""

    may_lose: bool = False  # by a promotion without hand-over
    may_lose_s: float = inf  # no longer than so was it acknowledged
    groups: Mapping[str, bool] = field(default_factory=dict)  # group -> ordered
    one_master: bool = False  # acknowledges at a time, in each group
    steady: bool = False  # every send is acknowledged, of those who repeat what was refused
    queues_change: bool = False  # then a sharding key may move on to another queue
    commits_at_risk_s: float = COMMITS_AT_RISK_S
    sample_s: float = 0.5  # between two looks at the committed offsets
    liveness_s: float = LIVENESS_S


@dataclass
class DrillVerdict:
    """Violations by class, and the counts of what is none."""

    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rpo_ms: float = 0.0  # from the first acknowledgement lost to the last, by one promotion

    @property
    def ok(self) -> bool:
        return not self.violations

    def add(self, name: str, texts: list[str]) -> None:
        """A class of violations: its number and some examples, as one line."""
        if texts:
            self.counts[name] += len(texts)
            more = f" and {len(texts) - _EXAMPLES} more" if len(texts) > _EXAMPLES else ""
            self.violations.append(f"{name}: {'; '.join(texts[:_EXAMPLES])}{more}")

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "violations": self.violations,
            "counts": dict(self.counts),
            "rpo_ms": round(self.rpo_ms, 1),
        }


def check(
    history: History, promise: ModePromise, aftermath: Aftermath | None = None
) -> DrillVerdict:
    """Everything that is wrong."""
    return _HistoryCheck(history, promise, aftermath or Aftermath()).run()


class _HistoryCheck:
    """One pass over the events gathers; the checks look at what was gathered."""

    def __init__(self, history: History, promise: ModePromise, aftermath: Aftermath) -> None:
        self.history, self.promise, self.aftermath = history, promise, aftermath
        self.verdict = DrillVerdict()
        self.saved = aftermath.saved if promise.may_lose else frozenset()
        self.invoked: dict[str, Event] = {}
        self.acked: dict[str, Event] = {}
        self.failed: dict[str, Event] = {}
        self.unknown: dict[str, Event] = {}
        self.deliveries: dict[str, list[Event]] = {group: [] for group in promise.groups}
        self.first: dict[str, dict[str, Event]] = {group: {} for group in promise.groups}
        self.commits: list[Event] = []
        self.calm_at: float | None = None
        for event in history.events:
            self._gather(event)

    def _gather(self, event: Event) -> None:
        kind = event.kind
        if kind == "invoke":
            self.invoked[event.value] = event
        elif kind == "ok":
            self.acked[event.value] = event
        elif kind == "fail":
            self.failed[event.value] = event
        elif kind == "unknown":
            self.unknown[event.value] = event
        elif kind == "deliver":
            self.deliveries[event.who].append(event)
            if event.note != AGAIN:
                self.first[event.who].setdefault(event.value, event)
        elif kind == "committed":
            self.commits.append(event)
        elif kind == "calm":
            self.calm_at = event.at

    def run(self) -> DrillVerdict:
        counts = self.verdict.counts
        counts["sent"] = len(self.invoked)
        counts["acknowledged"] = len(self.acked)
        counts["refused"] = len(self.failed)
        # A request without an answer at the end is as unknown as a time-out.
        answered = len(self.acked) + len(self.failed)
        counts["unknown"] = len(self.invoked) - answered
        if not self.acked:
            self.verdict.add("nothing happened", ["no message was acknowledged"])
        self._losses()
        self._phantoms()
        self._places()
        self._masters()
        self._unsteady()
        for group, ordered in self.promise.groups.items():
            self._duplicates(group)
            if ordered:
                self._order(group)
                self._skips(group)
        self._lanes()
        self._committed()
        self._liveness()
        self.verdict.violations += self.aftermath.problems
        return self.verdict

    # -- I1 ----------------------------------------------------------------------------------------

    def _losses(self) -> None:
        stored = self.aftermath.stored
        if stored is not None:
            here = set(stored.values())
            gone = [event for value, event in self.acked.items() if value not in here]
            behind = [event for event in gone if event.value in self.saved]
            self._count_rpo(behind)
            lost = [event for event in gone if event.value not in self.saved]
            self._classify("I1 lost from the log", lost, here)
        for group, seen in self.first.items():
            missing = [
                event
                for value, event in self.acked.items()
                if value not in seen and value not in self.saved
            ]
            self._classify(f"I1 never delivered to {group}", missing, seen)

    def _count_rpo(self, lost: list[Event]) -> None:
        """Count the messages that promotions left behind, and the longest time of acknowledgements
        that one promotion did."""
        if not lost:
            return
        self.verdict.counts["lost in the window of the mode"] = len(lost)
        newest: dict[str, Event] = {}
        oldest: dict[str, Event] = {}
        late: list[str] = []
        for event in lost:  # as they were acknowledged
            before = newest.get(event.broker)
            if before is None or event.at > before.at + _ANOTHER_LOSS_S:
                oldest[event.broker] = event
            newest[event.broker] = event
            ms = (event.at - oldest[event.broker].at) * 1000
            self.verdict.rpo_ms = max(self.verdict.rpo_ms, ms)
            if ms > self.promise.may_lose_s * 1000:
                late.append(f"{event.value} by {event.node}, {ms:.0f} ms after the first")
        self.verdict.add("I1 lost for longer than a lease lasts", late)

    def _classify(self, name: str, lost: list[Event], there: Iterable[str]) -> None:
        """Prefix, middle or suffix: by the acknowledged offsets of the queue that are there."""
        if not lost:
            return
        present: dict[tuple[str, int], list[int]] = defaultdict(list)
        for value in there:
            event = self.acked.get(value)
            if event is not None:
                present[event.broker, event.queue].append(event.offset)
        bounds = {queue: (min(offsets), max(offsets)) for queue, offsets in present.items()}
        kinds: dict[str, list[str]] = defaultdict(list)
        for event in lost:
            least, most = bounds.get((event.broker, event.queue), (-1, -1))
            kind = "suffix"
            if event.offset < most:
                kind = "prefix" if event.offset < least else "middle"
            kinds[kind].append(f"{event.value} at {_place(event)}")
        for kind, texts in sorted(kinds.items()):
            self.verdict.add(f"{name}, {kind}", texts)

    # -- I2, I3 ------------------------------------------------------------------------------------

    def _phantoms(self) -> None:
        phantoms, damaged, rejected = [], [], []
        for group, events in self.deliveries.items():
            for event in events:
                if event.value not in self.invoked:
                    phantoms.append(f"{group} got {event.value!r} at {_place(event)}")
                elif event.note not in ("", AGAIN):
                    damaged.append(f"{group} got {event.value}: {event.note}")
                elif event.value in self.failed:
                    why = self.failed[event.value].note
                    rejected.append(f"{group} got {event.value}, refused with {why}")
        for place, value in (self.aftermath.stored or {}).items():
            if value not in self.invoked:
                phantoms.append(f"{value!r} lies at {place}")
            elif value in self.failed:
                why = self.failed[value].note
                rejected.append(f"{value} lies at {place}, refused with {why}")
        self.verdict.add("I2 phantom", phantoms)
        self.verdict.add("I2 changed", damaged)
        self.verdict.add("I3 refused and yet stored", rejected)

    # -- I4 ----------------------------------------------------------------------------------------

    def _places(self) -> None:
        """Every place that anybody told of holds one value; the stored log decides, if known."""
        names: dict[Place, str] = dict(self.aftermath.stored or {})
        clashes: dict[Place, str] = {}
        told = list(self.acked.values())
        for events in self.deliveries.values():
            told += events
        anew: set[Place] = set()
        for event in told:
            place = _place(event)
            name = names.setdefault(place, event.value)
            if name == event.value:
                continue
            if event.value in self.saved or name in self.saved:
                anew.add(place)
                if name in self.saved:
                    names[place] = event.value
            else:
                clashes.setdefault(place, f"{place} was {name} and became {event.value}")
        self.verdict.add("I4 inconsistent offsets", list(clashes.values()))
        if anew:
            self.verdict.counts["offsets given anew after a loss"] = len(anew)
        if self.aftermath.stored is not None:
            self._gaps(self.aftermath.stored)
            self._dirty_reads(self.aftermath.stored)

    def _gaps(self, stored: Mapping[Place, str]) -> None:
        queues: dict[tuple[str, int], list[int]] = defaultdict(list)
        for place in stored:
            queues[place.group, place.queue].append(place.offset)
        gaps = []
        for (broker, queue), offsets in sorted(queues.items()):
            offsets.sort()
            missing = offsets[-1] - offsets[0] + 1 - len(offsets)
            if missing:
                gaps.append(f"{missing} offsets of {broker} queue {queue} hold no message")
        self.verdict.add("I4 gaps in a queue", gaps)

    # -- I9 ---

    def _dirty_reads(self, stored: Mapping[Place, str]) -> None:
        """Messages that were handed out stay in the log."""
        gone = [
            f"{group} got {event.value} at {_place(event)}"
            for group, events in self.deliveries.items()
            for event in events
            if _place(event) not in stored
            and event.value in self.invoked
            and event.value not in self.saved
        ]
        self.verdict.add("I9 read and gone", gone)

    # -- masters -----------------------------------------------------------------------------------

    def _masters(self) -> None:
        """Check that in each epoch one node acknowledges, and none once a node of a higher epoch
        has begun to."""
        if not self.promise.one_master:
            return
        crowded, stale = [], []
        for group, epochs in self.aftermath.epochs.items():
            acks = [ack for ack in self.acked.values() if ack.broker == group and ack.node]
            owners: dict[int, str] = {}
            for ack, epoch in self._epochs_of(acks, epochs):
                owner = owners.setdefault(epoch, ack.node)
                if ack.node != owner:
                    crowded.append(f"{owner} and {ack.node} in epoch {epoch} of {group}")
            stale += self._stale(acks, epochs, owners)
        self.verdict.add("two masters of one epoch", sorted(set(crowded)))
        self.verdict.add("two masters at once", stale)

    def _epochs_of(
        self, acks: Iterable[Event], epochs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Event, int]]:
        """The acknowledgements that are in the log, each with its epoch."""
        stored = self.aftermath.stored or {}
        starts = [start for _, start in epochs]
        for ack in acks:
            index = bisect_right(starts, ack.position) - 1
            if index >= 0 and stored.get(_place(ack)) == ack.value:
                yield ack, epochs[index][0]

    def _stale(
        self,
        acks: Sequence[Event],
        epochs: Sequence[tuple[int, int]],
        owners: Mapping[int, str],
    ) -> list[str]:
        """Sent when a master of a higher epoch had acknowledged, and acknowledged by an old one."""
        of = {ack.value: epoch for ack, epoch in self._epochs_of(acks, epochs)}
        for ack in acks:  # a message left behind is of an epoch that its node led there
            led = [e for e, start in epochs if owners.get(e) == ack.node and start <= ack.position]
            if led:
                of.setdefault(ack.value, max(led))
        acks = [ack for ack in acks if ack.value in of]
        found = []
        answered = iter(sorted(acks, key=lambda ack: ack.at))
        newest, coming = None, next(answered, None)
        for ack in sorted(acks, key=lambda ack: self.invoked[ack.value].at):
            began = self.invoked[ack.value].at
            while coming is not None and coming.at < began:
                if newest is None or of[coming.value] > of[newest.value]:
                    newest = coming
                coming = next(answered, None)
            if newest is not None and of[ack.value] < of[newest.value]:
                found.append(
                    f"{ack.value} of {began:.3f} s by {ack.node} in epoch {of[ack.value]}, when "
                    f"{newest.node} had acknowledged {newest.value} in epoch {of[newest.value]}"
                )
        return found

    def _unsteady(self) -> None:
        """A master that hands over refuses a send, which is to be repeated elsewhere."""
        if not self.promise.steady:
            return
        ended = (*self.failed.values(), *self.unknown.values())
        texts = [
            f"{event.value} at {event.at:.2f} s: {event.note}"
            for event in ended
            if not (event.kind == "fail" and event.who.startswith(ONCE))
        ]
        self.verdict.add("a send failed", texts)

    # -- I5 ----------------------------------------------------------------------------------------

    def _duplicates(self, group: str) -> None:
        """Count duplicates: delivery at least once may repeat."""
        done = sum(event.note != AGAIN for event in self.deliveries[group])
        twice = done - len(self.first[group])
        self.verdict.counts[f"duplicates of {group}"] = twice

    def _order(self, group: str) -> None:
        """First deliveries of a sender come in the order of its sends."""
        newest: dict[tuple[str, ...], tuple[int, str]] = {}
        errors = []
        for value, event in self.first[group].items():
            sent = self.invoked.get(value)
            if sent is None or sent.note != IN_ORDER or value in self.saved:
                continue
            number = int(value.rpartition("-")[2])
            lane: tuple[str, ...] = (sent.who,)
            if self.promise.queues_change:
                lane = sent.who, event.broker, str(event.queue)
            before, name = newest.get(lane, (-1, ""))
            if number < before:
                errors.append(f"{value} at {_place(event)} came after {name}")
            else:
                newest[lane] = number, value
        self.verdict.add(f"I5 order of {group}", errors)

    def _skips(self, group: str) -> None:
        """A queue is read on from where it was, or from further back: never from further ahead."""
        at: dict[tuple[str, int], int] = defaultdict(lambda: -1)
        errors = []
        for event in self.deliveries[group]:
            queue = event.broker, event.queue
            if event.offset > at[queue] + 1:
                errors.append(f"{_place(event)} came after offset {at[queue]}")
            at[queue] = event.offset
        self.verdict.add(f"I5 skips of {group}", errors)

    def _lanes(self) -> None:
        """Acknowledged offsets of a sender rise in the order of its sends, on each queue."""
        last: dict[tuple[str, str, int], Event] = {}
        errors = []
        for value, sent in self.invoked.items():
            event = self.acked.get(value)
            if event is None or sent.note != IN_ORDER or value in self.saved:
                continue
            lane = sent.who, event.broker, event.queue
            before = last.get(lane)
            if before is not None and event.offset <= before.offset:
                errors.append(
                    f"{value} at {_place(event)}, {before.value} before it at {before.offset}"
                )
            last[lane] = event
        self.verdict.add("I5 order in the log", errors)

    # -- I6 ----------------------------------------------------------------------------------------

    def _committed(self) -> None:
        """Never ahead of what was processed, never back by more than what was at risk."""
        at_risk_s = self.promise.commits_at_risk_s + self.promise.sample_s
        ahead = ahead_of_work(self.commits, self.deliveries)
        self.verdict.add("I6 committed before processed", ahead)
        if not self.saved:
            back = moved_back(self.commits, self.history, at_risk_s)
            self.verdict.add("I6 committed offset went back", back)
        if self.aftermath.stored is not None:
            beyond = beyond_the_end(self.commits, self.aftermath.stored)
            self.verdict.add("I6 committed beyond the end", beyond)

    # -- I12 ---------------------------------------------------------------------------------------

    def _liveness(self) -> None:
        """Soon after the faults end everything is delivered, and every broker takes messages."""
        if self.calm_at is None:
            return
        until = self.calm_at + self.promise.liveness_s
        for group, seen in self.first.items():
            late = [
                f"{value} acknowledged at {sent.at:.2f} s, delivered at {seen[value].at:.2f} s"
                for value, sent in self.acked.items()
                if sent.at <= self.calm_at and value in seen and seen[value].at > until
            ]
            self.verdict.add(f"I12 late to {group}", late)
        brokers = {event.broker for event in self.acked.values()}
        alive = {e.broker for e in self.acked.values() if self.calm_at <= e.at <= until}
        silent = [
            f"{broker} acknowledged nothing in {self.promise.liveness_s:g} s after the faults"
            for broker in sorted(brokers - alive)
        ]
        self.verdict.add("I12 no sends", silent)
        tried: dict[str, list[bool]] = defaultdict(list)
        for value, sent in self.invoked.items():
            if self.calm_at <= sent.at <= until:
                tried[sent.who].append(value in self.acked)
        shut_out = [
            f"{who} sent {len(outcomes)} messages after the faults, none was acknowledged"
            for who, outcomes in tried.items()
            if len(outcomes) >= _MANY_SENDS and not any(outcomes)
        ]
        self.verdict.add("I12 shut out", shut_out)


def _place(event: Event) -> Place:
    return Place(event.broker, event.queue, event.offset)

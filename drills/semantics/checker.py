"""The verdict on the drill `semantics`, from its history and the stores at its end. Pure.

Beside the kinds of `failover/history.py` and `failover/waits_checker.py` there are:

| kind | who | the rest |
|---|---|---|
| `end` | DEALS | value; `note`: COMMIT or ROLLBACK, which a producer is about to tell the broker |
| `no half` | DEALS | value; an acknowledged half is unknown to its broker; `note` its error |
| `open` | a broker | `offset`: the open transactions when all was over, -1 if it did not say |
| `expired` | a broker | `offset`: the transactions about which it asks no more |
| `recalled` | TIMED | value; the broker has answered that the message will not come |
| `deliver` | POP | value; `note`: when its receiver asked for messages |
| `acks`, `acked` | POP | value and place; its receiver acknowledges it, the broker has answered |
| `deliver` | TIMED | value; `note`: the milliseconds since its moment, empty without a moment |

An acknowledgement, an answer to a recall and a `deliver` are written down when they arrive, a
request before it leaves. So each order that this verdict demands is one that the brokers saw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

from saturnmq.drills.failover.checker import LIVENESS_S, Aftermath, DrillVerdict
from saturnmq.drills.failover.history import Event, History
from saturnmq.drills.failover.waits_checker import EventIndex, delay_s, number_of, told
from saturnmq.drills.semantics import kinds

EARLY_S = 0.002  # brokers count milliseconds
SLEWED_S = 0.05  # by which a wall clock gains on a steady one while a message waits
# An open transaction is asked about so soon after the faults: a new master counts its age anew.
ASKED_S = kinds.TRANSACTION_S + 2 * kinds.QUESTION_S


def check_semantics(history: History, aftermath: Aftermath) -> DrillVerdict:
    """Everything that is wrong. `aftermath.stored` has the messages of DEALS."""
    return _SemanticsCheck(history, aftermath).run()


class _SemanticsCheck:
    def __init__(self, history: History, aftermath: Aftermath) -> None:
        self.verdict = DrillVerdict()
        self.aftermath = aftermath
        self.index = EventIndex(history)
        self.events, self.at = self.index.events, self.index.at
        self.delivered: dict[str, list[Event]] = defaultdict(list)
        for event in self.events["deliver"]:
            self.delivered[event.who].append(event)

    def run(self) -> DrillVerdict:
        self._count()
        self.index.phantoms(self.verdict, "deliver", "failed", "dead")
        self.index.retries(self.verdict, kinds.RETRY)
        self._levels()
        self._timed()
        self._deals()
        self._pop()
        self._fifo()
        self.verdict.violations += self.aftermath.problems
        return self.verdict

    def _count(self) -> None:
        counts, events = self.verdict.counts, self.events
        for kind in kinds.SHARES:
            acked = self.index.acked(kind)
            counts[f"{kind}: acknowledged"] = len(acked)
            if not acked:
                self.verdict.add("nothing happened", [f"no {kind} message was acknowledged"])
            places = {(event.value, _place(event)) for event in self.delivered[kind]}
            counts[f"{kind}: delivered twice"] = len(self.delivered[kind]) - len(places)
        counts["acknowledged"] = len(events["ok"])
        counts["refused"] = len(events["fail"])
        counts["unknown"] = len(events["invoke"]) - len(events["ok"]) - len(events["fail"])
        counts["dead letters"] = len(events["dead"])
        counts["retries"] = sum(e.note == "1" for e in self.delivered[kinds.RETRY])
        counts["recalled"] = len(events["recalled"])
        struck = [event.who for event in events["struck"]]
        counts["masters killed"] = sum(who.startswith("kill -9") for who in struck)
        healed = [event.who for event in events["heal"]]
        counts["slaves promoted"] = sum(who.endswith("is master") for who in healed)

    # -- messages that wait ------------------------------------------------------------------------

    def _levels(self) -> None:
        self.index.delays(self.verdict, kinds.LEVELS, delay_s)
        missing = self.index.missing(kinds.LEVELS)
        self.verdict.add("I1 never delivered, with a delay level", missing)

    def _timed(self) -> None:
        """A timed message comes once, not before its time, and not after the answer to its
        recall."""
        topic, at = kinds.TIMED, self.at
        early = [
            f"{told(event)}, {-float(event.note):.0f} ms before its moment"
            for event in self.delivered[topic]
            if event.note and float(event.note) < 0
        ]
        self.verdict.add("I14 before its moment", early)
        self.index.delays(self.verdict, topic, _delay)
        recalled = [told(e) for e in self.events["recalled"] if at["deliver", e.value]]
        self.verdict.add("I14 recalled and delivered", recalled)
        missing = [
            told(event)
            for event in self.index.acked(topic)
            if not at["deliver", event.value] and not kinds.is_recalled(event.value)
        ]
        self.verdict.add("I1 never delivered, timed", missing)
        self._once("I14 delivered more than once", topic)

    def _once(self, name: str, topic: str) -> None:
        """Check that each message has one place: its senders repeat nothing."""
        places: dict[str, set[str]] = defaultdict(set)
        for event in self.delivered[topic]:
            places[event.value].add(_place(event))
        twice = [f"{value} at {sorted(at)}" for value, at in places.items() if len(at) > 1]
        self.verdict.add(name, twice)

    # -- transactions ------------------------------------------------------------------------------

    def _deals(self) -> None:
        topic, at, counts = kinds.DEALS, self.at, self.verdict.counts
        wrong, stored = [], defaultdict(list)
        for place, value in (self.aftermath.stored or {}).items():
            stored[value].append(str(place))
        ends: dict[str, set[str]] = defaultdict(set)
        for event in self.events["end"]:
            ends[event.value].add(event.note)
            counts[f"deals: told to {event.note}"] += 1
        for event in self.delivered[topic]:
            if kinds.COMMIT not in ends[event.value]:
                wrong.append(f"{told(event)}, its ends were {sorted(ends[event.value])}")
        self.verdict.add("I13 not committed, and delivered", wrong)
        wrong = [f"{value} at {places}" for value, places in stored.items()
                 if kinds.COMMIT not in ends[value]]  # fmt: skip
        self.verdict.add("I13 not committed, and stored", wrong)
        wrong = [f"{value} at {places}" for value, places in stored.items() if len(places) > 1]
        self.verdict.add("I13 stored more than once", wrong)
        self._once("I13 delivered from two places", topic)
        acked = self.index.acked(topic)
        due = [event for event in acked if kinds.answer(event.value) == kinds.COMMIT]
        lost = [told(event) for event in due if not at["deliver", event.value]]
        self.verdict.add("I1 committed and never delivered", lost)
        unasked = [told(e) for e in acked
                   if kinds.fate(e.value) == kinds.ASK and not ends[e.value]]  # fmt: skip
        self.verdict.add("I13 left open and never asked about", unasked)
        gone = [f"{event.value}: {event.note}" for event in self.events["no half"]]
        self.verdict.add("I13 a half was lost", gone)
        still = [f"{event.offset} at {event.who}" for event in self.events["open"] if event.offset]
        self.verdict.add("I13 open when all was over", still)
        expired = [f"{e.offset} at {e.who}" for e in self.events["expired"] if e.offset]
        self.verdict.add("I13 given up", expired)
        self._late(topic, due, lambda value: ASKED_S if kinds.fate(value) == kinds.ASK else 0.0)

    # -- pop ---------------------------------------------------------------------------------------

    def _pop(self) -> None:
        """The two rules of docs/pop.md. A message's time begins when its broker records it, which
        is not before its receiver asked."""
        topic = kinds.POP
        twice, after, forgotten = [], [], []
        times: dict[str, list[Event]] = defaultdict(list)
        for event in self.delivered[topic]:
            times[f"{event.value} at {_place(event)}"].append(event)
        acked = {f"{e.value} at {_place(e)}": e for e in reversed(self.events["acked"])}
        asked_for = {f"{event.value} at {_place(event)}" for event in self.events["acks"]}
        for name, events in times.items():
            for one, two in pairwise(events):
                until = float(one.note) + kinds.INVISIBLE_S
                if two.at < until - EARLY_S:
                    twice.append(f"{name} at {one.at:.3f} and {two.at:.3f} s, before {until:.3f}")
            done = acked.get(name)
            last = max(float(event.note) for event in events)
            if done is not None and last > done.at:
                after.append(f"{name} was acknowledged at {done.at:.3f} s, asked for at {last:.3f}")
            if name not in asked_for:
                forgotten.append(f"{name}, {len(events)} times")
        self.verdict.add("I18 given out twice within its invisible time", twice)
        self.verdict.add("I18 given out after its acknowledgement", after)
        self.verdict.add("I18 not acknowledged, and never given out again", forgotten)
        self.verdict.add("I1 never given out", self.index.missing(topic))
        left_out = [name for name, events in times.items() if kinds.is_left_out(events[0].value)]
        self.verdict.counts["pop: left out once"] = len(left_out)
        waits = 2 * kinds.INVISIBLE_S  # a new master counts the whole time anew
        late = [
            f"{event.value} at {event.at:.2f} s"
            for event in self.events["acked"]
            if event.at > self.index.calm_at + waits + LIVENESS_S
        ]
        self.verdict.add("I12 late, popped", late)

    # -- order -------------------------------------------------------------------------------------

    def _fifo(self) -> None:
        """First deliveries of a lane come in the order of its sends."""
        newest: dict[str, int] = defaultdict(lambda: -1)
        seen: set[str] = set()
        wrong = []
        for event in self.delivered[kinds.FIFO]:
            if event.value in seen:
                continue
            seen.add(event.value)
            lane, number = kinds.lane_of(event.value), number_of(event.value)
            if number < newest[lane]:
                wrong.append(f"{told(event)} came after {lane}-{newest[lane]}")
            newest[lane] = max(newest[lane], number)
        self.verdict.add("I5 out of order", wrong)
        self.verdict.add("I1 never delivered, in order", self.index.missing(kinds.FIFO))
        self._late(kinds.FIFO, self.index.acked(kinds.FIFO), lambda value: 0.0)

    # -- I12 ---------------------------------------------------------------------------------------

    def _late(self, topic: str, due: list[Event], wait_s: Callable[[str], float]) -> None:
        late = []
        for event in due:
            seen = self.at["deliver", event.value]
            latest = max(event.at, self.index.calm_at) + wait_s(event.value) + LIVENESS_S
            if seen and seen[0].at > latest:
                late.append(f"{event.value} at {seen[0].at:.2f} s, its latest was {latest:.2f} s")
        self.verdict.add(f"I12 late, {topic}", late)


def _delay(value: str) -> float:
    """The time of a timed message by the steady clock; wall clocks, which judge moments, are slewed
    at most."""
    return kinds.time_s(value) - (SLEWED_S if kinds.by_moment(value) else 0.0)


def _place(event: Event) -> str:
    return f"{event.broker} {event.queue}:{event.offset}"

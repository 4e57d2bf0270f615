"""The verdict on forged histories of the drill `semantics`: each anomaly is found under its
name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from saturnmq.drills.failover.checker import Aftermath, DrillVerdict
from saturnmq.drills.failover.history import Event, History
from saturnmq.drills.failover.waits_checker import RETRY_S, delay_s
from saturnmq.drills.semantics import kinds
from saturnmq.drills.semantics.checker import check_semantics
from saturnmq.drills.sim.history import Place

A, B = "broker-a", "broker-b"
COUNT = 30  # messages of each kind, ten a second from 0 s on
CALM = 40.0
RETRY, LEVELS, TIMED, DEALS, POP, FIFO = kinds.SHARES


class SemanticsForge:
    """A sound history, which a test then spoils."""

    def __init__(self) -> None:
        self.events = [
            Event(CALM, "calm"),
            Event(CALM, "open", A, offset=0),
            Event(CALM, "expired", A, offset=0),
        ]
        self.stored: dict[Place, str] = {}
        for kind in kinds.SHARES:
            for number in range(COUNT):
                value = f"{kind}.0-{number}" if kind == FIFO else f"{kind}-{number}"
                self.events.append(Event(number / 10, "invoke", kind, value))
                self.tell(number / 10 + 0.01, "ok", value)
                getattr(self, f"_{kind}")(value, number / 10 + 0.02)

    def tell(self, at: float, kind: str, value: str, note: str = "") -> None:
        who = value.partition("-")[0].partition(".")[0]
        number = int(value.rpartition("-")[2])
        self.events.append(Event(at, kind, who, value, A, 0, number, note))

    def _retry(self, value: str, at: float) -> None:
        times = min(kinds.refusals(value), 2)
        for retry in range(times):
            self.tell(at + retry * (RETRY_S + 0.1), "failed", value, str(retry))
        kind = "dead" if times == 2 else "deliver"
        self.tell(at + times * (RETRY_S + 0.1), kind, value, str(times))

    def _levels(self, value: str, at: float) -> None:
        self.tell(at + delay_s(value), "deliver", value)

    def _timed(self, value: str, at: float) -> None:
        if kinds.is_recalled(value):
            self.tell(at, "recalled", value)
        else:
            note = "20.0" if kinds.by_moment(value) else ""
            self.tell(at + kinds.time_s(value), "deliver", value, note)

    def _deals(self, value: str, at: float) -> None:
        waits = 5.0 if kinds.fate(value) == kinds.ASK else 0.0
        self.tell(at + waits, "end", value, kinds.answer(value))
        if kinds.answer(value) == kinds.COMMIT:
            self.tell(at + waits + 0.1, "deliver", value)
            self.stored[Place(A, 0, len(self.stored))] = value

    def _pop(self, value: str, at: float) -> None:
        self.tell(at, "deliver", value, f"{at - 0.01:.4f}")
        if kinds.is_left_out(value):
            at += kinds.INVISIBLE_S
            self.tell(at, "deliver", value, f"{at - 0.01:.4f}")
        self.tell(at + 0.01, "acks", value)
        self.tell(at + 0.02, "acked", value)

    def _fifo(self, value: str, at: float) -> None:
        self.tell(at, "deliver", value)

    # what a test does to it

    def drop(self, kind: str, *values: str) -> None:
        self.events = [e for e in self.events if e.kind != kind or e.value not in values]

    def change(self, kind: str, value: str, /, **fields: object) -> None:
        found = [e for e in self.events if (e.kind, e.value) == (kind, value)]
        assert found, f"there is no {kind} of {value}"
        self.events[self.events.index(found[-1])] = found[-1]._replace(**fields)

    def again(self, kind: str, value: str, at: float, /, **fields: object) -> None:
        event = next(e for e in self.events if (e.kind, e.value) == (kind, value))
        self.events.append(event._replace(at=at, **fields))

    def verdict(self) -> DrillVerdict:
        history = History(events=sorted(self.events, key=lambda event: event.at))
        return check_semantics(history, Aftermath(stored=self.stored))


def test_a_sound_history_passes_and_is_counted():
    verdict = SemanticsForge().verdict()
    assert verdict.violations == []
    counts = verdict.counts
    assert counts["acknowledged"] == 6 * COUNT
    assert counts["deals: told to rollback"] == 9 + 1, "told at once, and when the broker asked"
    assert (counts["pop: left out once"], counts["recalled"]) == (2, 2)
    assert (counts["dead letters"], counts["retries"]) == (1, 2)


SPOILED: dict[str, Callable[[SemanticsForge], None]] = {
    "I2 phantom": lambda f: f.drop("invoke", "pop-1"),
    "I3 refused and yet delivered": lambda f: f.change("ok", "fifo.0-3", kind="fail"),
    "nothing happened": lambda f: f.drop("ok", *(f"levels-{n}" for n in range(COUNT))),
    "I1 lost on the way to another attempt": lambda f: f.drop("deliver", "retry-13"),
    "I14 a retry came early": lambda f: f.change("deliver", "retry-13", at=9.0),
    "dead with retries left": lambda f: f.drop("failed", "retry-3"),
    "I1 never delivered, with a delay level": lambda f: f.drop("deliver", "levels-4"),
    "I14 early": lambda f: f.change("deliver", "levels-2", at=0.2 + 9.99),
    "I14 held": lambda f: f.change("deliver", "levels-2", at=CALM + 20.1),
    "I14 before its moment": lambda f: f.change("deliver", "timed-3", note="-1.0"),
    "I14 recalled and delivered": lambda f: f.tell(9.0, "deliver", "timed-4"),
    "I1 never delivered, timed": lambda f: f.drop("deliver", "timed-5"),
    "I14 delivered more than once": lambda f: f.again("deliver", "timed-5", 30.0, broker=B),
    "I13 not committed, and delivered": lambda f: f.tell(3.0, "deliver", "deals-1"),
    "I13 not committed, and stored": lambda f: f.stored.update({Place(B, 0, 0): "deals-4"}),
    "I13 stored more than once": lambda f: f.stored.update({Place(B, 0, 0): "deals-2"}),
    "I13 delivered from two places": lambda f: f.again("deliver", "deals-2", 9.0, offset=77),
    "I1 committed and never delivered": lambda f: f.drop("deliver", "deals-5"),
    "I13 left open and never asked about": lambda f: f.drop("end", "deals-15"),
    "I13 a half was lost": lambda f: f.tell(1.0, "no half", "deals-0", "TransactionFailed"),
    "I13 open when all was over": lambda f: f.events.append(Event(50.0, "open", B, offset=1)),
    "I13 given up": lambda f: f.events.append(Event(50.0, "expired", B, offset=2)),
    "I12 late, deals": lambda f: f.change("deliver", "deals-2", at=CALM + 10.1),
    "I18 given out twice within its invisible time": lambda f: f.change(
        "deliver", "pop-7", at=0.72 + 4.9
    ),
    "I18 given out after its acknowledgement": lambda f: f.again(
        "deliver", "pop-2", 9.0, note="8.9"
    ),
    "I18 not acknowledged, and never given out again": lambda f: f.drop("acks", "pop-7"),
    "I1 never given out": lambda f: f.drop("deliver", "pop-8"),
    "I12 late, popped": lambda f: f.change("acked", "pop-9", at=CALM + 20.1),
    "I5 out of order": lambda f: f.change("deliver", "fifo.0-9", at=1.5),
    "I1 never delivered, in order": lambda f: f.drop("deliver", "fifo.0-9"),
    "I12 late, fifo": lambda f: f.change("deliver", f"fifo.0-{COUNT - 1}", at=CALM + 10.1),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_each_anomaly_is_found_under_its_name(name):
    forge = SemanticsForge()
    SPOILED[name](forge)
    assert name in [text.split(":")[0] for text in forge.verdict().violations]


def test_an_unknown_half_that_nobody_committed_may_not_be_delivered():
    forge = SemanticsForge()
    forge.change("ok", "deals-2", kind="unknown")
    assert forge.verdict().violations == [], "its sender committed it all the same"
    forge.change("end", "deals-2", note=kinds.ROLLBACK)
    names = [text.split(":")[0] for text in forge.verdict().violations]
    assert names == ["I13 not committed, and delivered", "I13 not committed, and stored"]


def test_the_shares_are_those_that_the_drill_promises():
    values = [f"x-{number}" for number in range(1000)]
    fates = [kinds.fate(value) for value in values]
    assert (fates.count(kinds.ROLLBACK), fates.count(kinds.ASK)) == (300, 100)
    answers = [kinds.answer(value) for value in values]
    assert answers.count(kinds.ROLLBACK) == 350
    assert sum(kinds.refusals(value) > 0 for value in values) == 100
    assert sum(kinds.SHARES.values()) == 100

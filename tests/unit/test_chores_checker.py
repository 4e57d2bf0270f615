"""The verdict on forged histories of an operator's chores: each anomaly is found under its name."""

from __future__ import annotations

import pytest
from saturnmq.drills.failover.checker import DrillVerdict
from saturnmq.drills.failover.chores_checker import (
    DELAYED,
    FAILING,
    GROWN,
    REMADE,
    RESET,
    check_chores,
    fate,
)
from saturnmq.drills.failover.history import Event, History
from saturnmq.drills.failover.waits_checker import NEVER, delay_s

A = "broker-a"
COUNT = 20  # messages to each topic, one a second from 0 s on
# When things happen, in seconds.
DELETED, MADE = 9.5, 9.7
TO_END, AT_END, TO_BEGINNING, AT_BEGINNING = 4.2, 4.6, 12.2, 12.6
CALM = 20.0


class Forge:
    """A sound history, which a test then spoils."""

    def __init__(self) -> None:
        self.events = [
            Event(DELETED, "delete", REMADE),
            Event(MADE, "made", REMADE),
            Event(TO_END, "reset", RESET, note="end"),
            Event(AT_END, "was reset", RESET, note="end"),
            Event(TO_BEGINNING, "reset", RESET, note="beginning"),
            Event(AT_BEGINNING, "was reset", RESET, note="beginning"),
            Event(CALM, "calm"),
        ]
        for topic in (REMADE, RESET, GROWN, DELAYED, FAILING):
            for number in range(COUNT):
                self.events.append(Event(number, "invoke", topic, f"{topic}-{number}"))
                self.tell(number + 0.01, "ok", topic, number)
        for number in range(COUNT):
            for topic in (REMADE, RESET, GROWN):
                self.tell(number + 0.02, "deliver", topic, number)
            if number < TO_BEGINNING:
                self.tell(AT_BEGINNING + 0.1, "deliver", RESET, number)
            if number > MADE:
                self.tell(30.0, "held", REMADE, number)
            self.tell(number + delay_s(f"-{number}") + 0.02, "deliver", DELAYED, number)
            times = min(fate(f"-{number}"), 2)
            for retry in range(times):
                self.tell(number + 0.02 + 10.1 * retry, "failed", FAILING, number, str(retry))
            kind, note = ("dead", "2") if times == 2 else ("deliver", str(times))
            self.tell(number + 0.03 + 10.1 * min(times, 1), kind, FAILING, number, note)

    def tell(self, at: float, kind: str, topic: str, number: int, note: str = "0") -> None:
        self.events.append(Event(at, kind, topic, f"{topic}-{number}", A, 0, number, note))

    def drop(self, kind: str, value: str) -> None:
        self.events = [e for e in self.events if (e.kind, e.value) != (kind, value)]

    def move(self, kind: str, value: str, at: float) -> None:
        self.events = [
            e._replace(at=at) if (e.kind, e.value) == (kind, value) else e for e in self.events
        ]

    def verdict(self) -> DrillVerdict:
        verdict = DrillVerdict()
        check_chores(History(events=sorted(self.events, key=lambda event: event.at)), verdict)
        return verdict

    def violations(self) -> list[str]:
        """Their names."""
        return [text.split(":")[0] for text in self.verdict().violations]


def test_a_sound_history_passes_and_is_counted():
    verdict = Forge().verdict()
    assert verdict.violations == []
    assert verdict.counts["acknowledged to remade"] == COUNT
    assert verdict.counts["dead letters"] == sum(fate(f"-{n}") == NEVER for n in range(COUNT)) == 2


def test_a_topic_to_which_nothing_was_sent_is_told():
    verdict = DrillVerdict()
    check_chores(History(), verdict)
    assert verdict.counts["nothing happened"] == 5


@pytest.mark.parametrize("kind", ["deliver", "dead", "held"])
def test_a_message_that_nobody_sent_is_a_phantom(kind):
    forge = Forge()
    forge.tell(15.0, kind, GROWN, 77)
    assert "I2 phantom" in forge.violations()


def test_a_refused_message_may_not_be_delivered():
    forge = Forge()
    forge.drop("ok", "grown-3")
    forge.tell(3.01, "fail", GROWN, 3)
    assert forge.violations() == ["I3 refused and yet delivered"]


def test_a_deleted_message_need_not_come_but_may_before_its_topic_is_made_again():
    forge = Forge()
    forge.drop("deliver", "remade-4")
    forge.move("deliver", "remade-9", MADE + 1.0)  # it had been pulled before
    assert forge.violations() == []


def test_a_deleted_message_that_is_delivered_later_came_back():
    forge = Forge()
    forge.tell(15.0, "deliver", REMADE, 4)
    assert forge.violations() == ["deleted and came back"]


def test_a_deleted_message_that_can_be_read_in_the_end_came_back():
    forge = Forge()
    forge.tell(30.0, "held", REMADE, 4)
    assert forge.violations() == ["deleted and came back"]


def test_what_was_sent_to_the_topic_made_again_is_there_and_delivered():
    forge = Forge()
    forge.drop("held", "remade-12")
    assert forge.violations() == ["I1 lost from a topic that was made again"]
    forge.drop("deliver", "remade-13")
    assert "I1 never delivered of a topic that was made again" in forge.violations()


def test_what_a_reset_to_the_end_left_out_is_excused_only_until_the_next_to_the_beginning():
    forge = Forge()
    forge.drop("deliver", "reset-4")
    assert forge.violations() == ["not repeated after a reset to the beginning"]
    forge.tell(AT_BEGINNING + 0.1, "deliver", RESET, 4)
    assert forge.violations() == []


def test_a_reset_to_the_beginning_repeats_all_of_it():
    forge = Forge()
    forge.drop("deliver", "reset-7")
    forge.tell(7.02, "deliver", RESET, 7)
    assert forge.violations() == ["not repeated after a reset to the beginning"]


def test_a_reset_to_the_end_skips_nothing_that_is_sent_after_it():
    forge = Forge()
    for event in [e for e in forge.events if e.kind == "reset" and e.note == "beginning"]:
        forge.events.remove(event)
    forge.drop("deliver", "reset-3")
    assert forge.violations() == []
    forge.drop("deliver", "reset-5")
    assert forge.violations() == ["skipped by a group that was reset"]


@pytest.mark.parametrize("topic", [GROWN, DELAYED])
def test_an_acknowledged_message_that_a_group_with_the_default_start_never_got_is_lost(topic):
    forge = Forge()
    forge.drop("deliver", f"{topic}-8")
    assert forge.violations() == [f"I1 never delivered to {topic}"]


def test_a_delay_counts_from_the_moment_of_the_send():
    forge = Forge()
    forge.move("deliver", "delayed-1", 1 + delay_s("-1") - 0.001)
    assert forge.violations() == ["I14 early"]


def test_a_delayed_message_may_wait_for_the_faults_to_end_and_not_much_longer():
    forge = Forge()
    forge.move("deliver", "delayed-2", CALM + delay_s("-2") + 9.0)
    assert forge.violations() == []
    forge.move("deliver", "delayed-2", CALM + delay_s("-2") + 10.1)
    assert forge.violations() == ["I14 held"]


def test_a_message_that_its_listener_refused_comes_again_or_is_dead():
    forge = Forge()
    forge.drop("deliver", "failing-6")
    forge.drop("dead", "failing-3")
    assert forge.violations() == ["I1 lost on the way to another attempt"]
    assert forge.verdict().counts["I1 lost on the way to another attempt"] == 2


def test_a_retry_comes_after_its_delay_and_not_much_later():
    forge = Forge()
    forge.move("deliver", "failing-6", 6.02 + 9.9)
    assert forge.violations() == ["I14 a retry came early"]
    forge.move("deliver", "failing-6", CALM + 20.1)
    assert forge.violations() == ["I14 a retry was held"]


def test_a_retry_that_nobody_asked_for_came_early():
    forge = Forge()
    forge.tell(15.0, "deliver", FAILING, 5, "1")
    assert forge.violations() == ["I14 a retry came early"]


def test_a_message_dies_after_its_last_attempt_only():
    forge = Forge()
    forge.tell(15.0, "dead", FAILING, 6)
    assert forge.violations() == ["dead with retries left"]

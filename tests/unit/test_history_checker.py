"""The verdict on forged histories: each anomaly is found under its name, a sound one passes."""

from __future__ import annotations

import json

import pytest
from saturnmq.drills.failover.checker import Aftermath, ModePromise, check
from saturnmq.drills.failover.history import AGAIN, IN_ORDER, Event, History
from saturnmq.drills.failover.measure import effects, timeline
from saturnmq.drills.sim.history import Place

A, B = "broker-a", "broker-b"
GROUPS = {"shared": False, "ordered": True}


class Forge:
    """A sound history of two senders and two groups, which a test then spoils."""

    def __init__(self, count: int = 10, may_lose: bool = False) -> None:
        self.events: list[Event] = []
        self.stored: dict[Place, str] = {}
        self.promise = ModePromise(may_lose=may_lose, groups=GROUPS)
        self.saved: frozenset[str] = frozenset()
        self.problems: list[str] = []
        self.epochs: dict[str, list[tuple[int, int]]] = {}
        for number in range(count):
            for sender, broker in (("key-0", A), ("free-0", B)):
                value = f"{sender}-{number}"
                at = number * 0.1
                order = IN_ORDER if sender.startswith("key") else ""
                self.events.append(Event(at, "invoke", sender, value, note=order))
                self.events.append(Event(at + 0.01, "ok", sender, value, broker, 0, number))
                self.stored[Place(broker, 0, number)] = value
                for group in GROUPS:
                    self.events.append(Event(at + 0.02, "deliver", group, value, broker, 0, number))
        for group in GROUPS:
            for broker in (A, B):
                self.events.append(Event(2.0, "committed", group, "", broker, 0, count))

    def drop(self, kind: str, *values: str, who: str = "") -> None:
        """Forget events."""
        self.events = [
            event
            for event in self.events
            if not (event.kind == kind and event.value in values and who in ("", event.who))
        ]

    def lose(self, *values: str) -> None:
        """As if these had never reached the log, nor anybody."""
        self.drop("deliver", *values)
        self.stored = {place: v for place, v in self.stored.items() if v not in values}

    def add(self, *events: Event) -> None:
        self.events = sorted([*self.events, *events], key=lambda event: event.at)

    def replace(self, what: str, value: str, who: str = "", **changes: object) -> None:
        events = [
            event._replace(**changes)
            if event.kind == what and event.value == value and who in ("", event.who)
            else event
            for event in self.events
        ]
        self.events = sorted(events, key=lambda event: event.at)

    def without_commits(self) -> Forge:
        self.events = [event for event in self.events if event.kind != "committed"]
        return self

    def replaced(self, number: int, *, may_lose: bool = False) -> Forge:
        """The first group is led by node-1 up to its message of this number, then by node-2."""
        for event in [event for event in self.events if event.kind == "ok" and event.broker == A]:
            node = "node-1" if event.offset < number else "node-2"
            self.replace("ok", event.value, node=node, position=100 * event.offset)
        self.epochs[A] = [(1, 0), (2, 100 * number)]
        self.promise.one_master = True
        self.promise.may_lose = may_lose
        return self

    def verdict(self):
        aftermath = Aftermath(self.stored, self.saved, self.problems, self.epochs)
        return check(History(events=self.events), self.promise, aftermath)

    def violations(self) -> list[str]:
        """Their names."""
        return [text.split(":")[0] for text in self.verdict().violations]


def test_a_sound_history_passes_and_is_counted():
    verdict = Forge().verdict()
    assert verdict.ok
    assert verdict.counts["acknowledged"] == verdict.counts["sent"] == 20
    assert verdict.counts["duplicates of shared"] == verdict.counts["unknown"] == 0


def test_a_history_without_acknowledgements_is_none():
    assert not check(History(), ModePromise(groups=GROUPS)).ok


@pytest.mark.parametrize(
    ("lost", "kind"),
    [(["key-0-0"], "prefix"), (["key-0-4"], "middle"), (["key-0-8", "key-0-9"], "suffix")],
)
def test_loss_is_told_from_where_it_lies(lost, kind):
    forge = Forge()
    forge.lose(*lost)
    found = forge.violations()
    assert f"I1 lost from the log, {kind}" in found
    assert f"I1 never delivered to shared, {kind}" in found


def test_a_message_that_is_stored_and_never_delivered_is_lost_to_its_group():
    forge = Forge().without_commits()
    forge.drop("deliver", "free-0-9", who="shared")
    assert forge.violations() == ["I1 never delivered to shared, suffix"]


def test_a_message_that_was_delivered_and_is_gone_from_the_log_is_lost():
    forge = Forge()
    del forge.stored[Place(B, 0, 9)]
    found = forge.violations()
    assert "I1 lost from the log, suffix" in found
    assert "I6 committed beyond the end" in found


def test_a_message_that_its_listener_only_put_off_counts_as_not_delivered():
    forge = Forge()
    forge.replace("deliver", "key-0-9", who="ordered", note=AGAIN)
    assert "I1 never delivered to ordered, suffix" in forge.violations()


@pytest.mark.parametrize("value", ["key-0-77", ""])
def test_a_message_that_nobody_sent_is_a_phantom(value):
    forge = Forge()
    forge.add(Event(1.5, "deliver", "shared", value, A, 0, 10))
    assert forge.violations() == ["I2 phantom"]


def test_a_message_with_other_keys_is_changed():
    forge = Forge()
    forge.replace("deliver", "free-0-3", who="shared", note="keys were ['x']")
    assert forge.violations() == ["I2 changed"]


def test_a_refused_message_may_not_be_stored_or_delivered():
    forge = Forge()
    forge.replace("ok", "free-0-9", kind="fail", note="SystemBusy: no")
    assert forge.violations() == ["I3 refused and yet stored"]
    forge.lose("free-0-9")
    assert forge.without_commits().violations() == []


def test_an_unknown_message_may_go_either_way():
    forge = Forge()
    forge.replace("ok", "free-0-9", kind="unknown", note="RequestTimeout")
    assert forge.violations() == []
    assert forge.verdict().counts["unknown"] == 1


def test_two_messages_at_one_place_are_inconsistent():
    forge = Forge()
    forge.replace("deliver", "free-0-5", who="shared", offset=4)
    assert "I4 inconsistent offsets" in forge.violations()


def test_an_acknowledged_place_holds_that_message():
    forge = Forge()
    forge.replace("ok", "free-0-9", offset=8)
    assert "I4 inconsistent offsets" in forge.violations()


def test_a_queue_with_a_hole_has_a_gap():
    forge = Forge()
    del forge.stored[Place(A, 0, 4)]
    assert "I4 gaps in a queue" in forge.violations()


def test_an_unknown_message_that_somebody_got_stays_in_the_log():
    forge = Forge().without_commits()
    forge.replace("ok", "free-0-9", kind="unknown", note="FLUSH_SLAVE_TIMEOUT")
    del forge.stored[Place(B, 0, 9)]
    assert forge.violations() == ["I9 read and gone"]


def test_a_second_delivery_is_a_duplicate_and_no_violation():
    forge = Forge()
    forge.add(Event(1.5, "deliver", "shared", "free-0-3", B, 0, 3))
    forge.add(Event(1.5, "deliver", "ordered", "key-0-8", A, 0, 8))
    forge.add(Event(1.6, "deliver", "ordered", "key-0-9", A, 0, 9))
    verdict = forge.verdict()
    assert verdict.ok
    assert verdict.counts["duplicates of shared"] == 1
    assert verdict.counts["duplicates of ordered"] == 2


def test_an_ordered_queue_read_out_of_order_has_skips_and_no_order():
    forge = Forge()
    forge.replace("deliver", "key-0-5", who="ordered", at=0.75)
    found = forge.violations()
    assert "I5 order of ordered" in found
    assert "I5 skips of ordered" in found


def test_a_key_that_moves_to_another_queue_is_in_order_on_each():
    forge = Forge().without_commits()
    for what in ("ok", "deliver"):
        forge.replace(what, "key-0-9", queue=1, offset=0)
    del forge.stored[Place(A, 0, 9)]
    forge.stored[Place(A, 1, 0)] = "key-0-9"
    forge.replace("deliver", "key-0-9", who="ordered", at=0.5)
    assert forge.violations() == ["I5 order of ordered"]
    forge.promise.queues_change = True
    assert forge.violations() == []
    forge.replace("deliver", "key-0-5", who="ordered", at=0.75)
    assert "I5 order of ordered" in forge.violations()


def test_a_repeated_suffix_that_leaves_one_out_is_a_skip():
    forge = Forge()
    forge.add(Event(1.5, "deliver", "ordered", "key-0-7", A, 0, 7))
    forge.add(Event(1.6, "deliver", "ordered", "key-0-9", A, 0, 9))
    assert forge.violations() == ["I5 skips of ordered"]


def test_a_concurrent_group_may_mix_what_it_gets():
    forge = Forge()
    forge.replace("deliver", "key-0-5", who="shared", at=1.3)
    assert forge.violations() == []


def test_acknowledged_offsets_of_an_ordered_sender_rise():
    forge = Forge()
    forge.replace("ok", "key-0-4", offset=5)
    forge.replace("ok", "key-0-5", offset=4)
    for number, value in ((4, "key-0-5"), (5, "key-0-4")):
        forge.stored[Place(A, 0, number)] = value
    assert "I5 order in the log" in forge.violations()


def test_a_commit_ahead_of_what_was_processed_is_found():
    forge = Forge()
    forge.add(Event(0.55, "committed", "shared", "", A, 0, 8))
    assert forge.violations() == ["I6 committed before processed"]


def test_a_committed_offset_that_goes_back_is_found_unless_it_is_recent():
    forge = Forge()
    forge.add(Event(2.5, "committed", "shared", "", A, 0, 7))
    assert forge.violations() == []  # 0.5 s of commits were at risk
    forge.add(Event(5.0, "committed", "shared", "", A, 0, 7))
    assert forge.violations() == ["I6 committed offset went back"]


@pytest.mark.parametrize(
    ("group", "begun", "struck", "lost"),
    [
        (A, 2.9, 3.0, False),  # the first sample is from 2.0: as old as what is at risk, and less
        ("", 2.9, 3.0, False),  # of all groups
        (A, 1.8, 2.1, False),
        (A, 3.6, 3.7, True),
        (B, 2.9, 3.0, True),
        (A, 1.7, 1.9, True),
    ],
)
def test_a_fault_takes_back_the_commits_just_before_it_however_long_the_group_is_away(
    group, begun, struck, lost
):
    forge = Forge()
    forge.add(
        Event(begun, "fault", "kill", broker=group),
        Event(struck, "struck", "kill"),
        Event(20.0, "committed", "shared", "", A, 0, 7),
        Event(20.0, "committed", "shared", "", B, 0, 10),
    )
    assert forge.violations() == (["I6 committed offset went back"] if lost else [])


def test_what_a_fault_could_have_taken_back_and_did_not_is_safe_later():
    forge = Forge()
    forge.add(
        Event(2.1, "fault", "kill", broker=A),
        Event(2.2, "struck", "kill"),
        Event(9.0, "committed", "shared", "", A, 0, 10),
        Event(20.0, "committed", "shared", "", A, 0, 9),
    )
    assert forge.violations() == ["I6 committed offset went back"]


def test_of_two_faults_of_one_name_each_has_its_own_end():
    forge = Forge().without_commits()
    forge.add(
        Event(0.5, "fault", "kill", broker=A),
        Event(0.6, "struck", "kill"),
        Event(9.0, "fault", "kill", broker=A),
        Event(9.2, "committed", "shared", "", A, 0, 10),
        Event(9.3, "struck", "kill"),
        Event(20.0, "committed", "shared", "", A, 0, 9),
    )
    assert forge.violations() == []


def test_late_delivery_after_calm_breaks_liveness():
    forge = Forge().without_commits()
    forge.add(Event(1.1, "calm"))
    forge.replace("deliver", "free-0-9", who="shared", at=40.0)
    forge.add(Event(1.2, "invoke", "free-0", "free-0-10"))
    assert forge.violations() == ["I12 late to shared", "I12 no sends"]


def test_a_sender_whose_sends_all_fail_after_the_faults_is_shut_out():
    forge = Forge().without_commits()
    forge.add(Event(1.1, "calm"))
    for number in range(10, 30):
        forge.add(Event(2.0, "invoke", "free-0", f"free-0-{number}"))
        forge.add(Event(2.1, "fail", "free-0", f"free-0-{number}", note="no such queue"))
    assert "I12 shut out" in forge.violations()
    forge.replace("fail", "free-0-29", kind="ok", broker=B, queue=0, offset=10)
    assert "I12 shut out" not in forge.violations()


def test_what_a_mode_may_lose_is_counted_when_it_was_saved():
    forge = Forge(may_lose=True).without_commits()
    forge.lose("key-0-8", "key-0-9")
    forge.saved = frozenset({"key-0-8", "key-0-9"})
    # What took their places is no inconsistency, even for a group that had seen the first.
    forge.add(Event(0.85, "deliver", "shared", "key-0-8", A, 0, 8))
    forge.add(Event(2.1, "invoke", "free-0", "free-0-10"))
    forge.add(Event(2.2, "ok", "free-0", "free-0-10", A, 0, 8))
    forge.stored[Place(A, 0, 8)] = "free-0-10"
    for group in GROUPS:
        forge.add(Event(2.3, "deliver", group, "free-0-10", A, 0, 8))
        forge.add(Event(2.4, "committed", group, "", A, 0, 9))
    verdict = forge.verdict()
    assert verdict.violations == []
    assert verdict.counts["lost in the window of the mode"] == 2
    assert verdict.rpo_ms == pytest.approx(100)
    assert verdict.counts["offsets given anew after a loss"] == 1


def test_losses_of_two_promotions_are_measured_apart():
    forge = Forge(count=40, may_lose=True).without_commits()
    lost = [f"key-0-{number}" for number in (2, 3, 4, 38, 39)]
    forge.lose(*lost)
    forge.saved = frozenset(lost)
    verdict = forge.verdict()
    assert verdict.counts["lost in the window of the mode"] == 5
    assert verdict.rpo_ms == pytest.approx(200)


def test_what_was_not_saved_is_lost_in_every_mode():
    forge = Forge(may_lose=True)
    forge.lose("key-0-9")
    assert "I1 lost from the log, suffix" in forge.violations()


def test_a_mode_that_promises_all_may_not_lose_what_was_saved_either():
    forge = Forge()
    forge.lose("key-0-9")
    forge.saved = frozenset({"key-0-9"})
    assert "I1 lost from the log, suffix" in forge.violations()


def test_what_the_stores_tell_is_part_of_the_verdict():
    forge = Forge()
    forge.problems = ["I7 divergence: logs differ at 4711"]
    assert forge.violations() == ["I7 divergence"]


def test_a_history_survives_its_file(tmp_path):
    forge = Forge()
    path = tmp_path / "history.jsonl"
    History(events=forge.events).write(path)
    assert json.loads(path.read_text().splitlines()[0])["kind"] == "invoke"
    with open(path) as lines:
        assert History.read(lines).events == forge.events


def test_a_fault_is_felt_until_the_next_success():
    history = History(
        events=[
            Event(0.9, "invoke", "free-0", "free-0-0"),
            Event(1.0, "ok", "free-0", "free-0-0", A, 0, 0),
            Event(2.0, "fault", "kill -9 a", broker=A),
            Event(2.1, "invoke", "free-0", "free-0-1"),
            Event(2.15, "invoke", "free-1", "free-1-0"),
            Event(2.2, "ok", "free-1", "free-1-0", A, 0, 1),
            Event(2.3, "struck", "kill -9 a"),
            Event(2.35, "invoke", "free-1", "free-1-1"),
            Event(2.4, "ok", "free-0", "free-0-1", B, 0, 0),
            Event(2.45, "ok", "free-1", "free-1-1", B, 0, 1),
            Event(2.5, "read", "reader", broker=A, note="2.2"),
            Event(3.0, "read", "reader", broker=A, note="2.4"),
            Event(5.0, "invoke", "free-0", "free-0-2"),
            Event(6.0, "ok", "free-0", "free-0-2", A, 0, 1),
        ]
    )
    (effect,) = effects(history)
    assert effect.send_s == 0.45, "of a send that began when it was done"
    assert (effect.stall_s, effect.stall_max_s) == (1.925, 3.6)
    assert (effect.send_group_s, effect.read_s) == (4.0, 1.0)
    assert sum(timeline(history).acked) == 5


def test_a_master_that_succeeds_another_acknowledges_alone():
    assert Forge().replaced(5).violations() == []


def test_two_nodes_that_acknowledge_in_one_epoch_are_found():
    forge = Forge().replaced(5)
    forge.replace("ok", "key-0-7", node="node-3")
    (text,) = forge.verdict().violations
    assert text == f"two masters of one epoch: node-2 and node-3 in epoch 2 of {A}"


def test_an_old_master_that_acknowledges_when_its_successor_has_begun_to_is_found():
    forge = Forge().replaced(5)
    forge.replace("invoke", "key-0-4", at=0.55)  # key-0-5 was acknowledged at 0.51 s
    forge.replace("ok", "key-0-4", at=0.56)
    (text,) = (each for each in forge.verdict().violations if each.startswith("two masters"))
    assert text == (
        "two masters at once: key-0-4 of 0.550 s by node-1 in epoch 1, when node-2 had "
        "acknowledged key-0-5 in epoch 2"
    )


def test_an_old_master_whose_send_began_before_its_successor_acknowledged_is_none():
    forge = Forge().replaced(5)
    forge.replace("invoke", "key-0-4", at=0.505)
    forge.replace("ok", "key-0-4", at=0.56)
    assert not [each for each in forge.violations() if each.startswith("two masters")]


def test_an_old_master_is_found_by_what_it_alone_had_too():
    forge = Forge().replaced(5, may_lose=True)
    forge.add(
        Event(0.7, "invoke", "free-9", "free-9-0"),
        Event(0.71, "ok", "free-9", "free-9-0", A, 1, 0, node="node-1", position=999),
    )
    forge.saved = frozenset({"free-9-0"})
    assert forge.violations() == ["two masters at once"]
    forge.promise.one_master = False
    assert forge.violations() == []


def test_a_send_that_fails_is_told_where_none_may():
    forge = Forge()
    forge.add(
        Event(0.7, "invoke", "free-9", "free-9-0"),
        Event(0.71, "fail", "free-9", "free-9-0", note="NoPermission: fenced"),
        Event(0.8, "invoke", "free-9", "free-9-1"),
        Event(0.81, "unknown", "free-9", "free-9-1", note="FLUSH_SLAVE_TIMEOUT"),
        Event(0.9, "invoke", "once-0", "once-0-0"),
        Event(0.91, "fail", "once-0", "once-0-0", note="it hands over: try another one"),
    )
    assert forge.violations() == []
    forge.promise.steady = True
    assert forge.verdict().violations == [
        "a send failed: free-9-0 at 0.71 s: NoPermission: fenced; "
        "free-9-1 at 0.81 s: FLUSH_SLAVE_TIMEOUT"
    ]


def test_what_a_master_acknowledged_alone_for_longer_than_a_lease_is_a_violation():
    forge = Forge(count=60, may_lose=True).without_commits()
    lost = [f"key-0-{number}" for number in range(10, 60)]
    forge.lose(*lost)
    forge.saved = frozenset(lost)
    assert forge.violations() == [], "5 s of it"
    forge.promise.may_lose_s = 4.0
    (text,) = forge.verdict().violations
    assert text.startswith("I1 lost for longer than a lease lasts: key-0-51 by ")

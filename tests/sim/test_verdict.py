"""Does the simulator's verdict find what it is for? Forged histories, one anomaly each."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from saturnmq.drills.sim.allowance import Allowance
from saturnmq.drills.sim.faults import PromotionOrder
from saturnmq.drills.sim.history import Ack, Place, SimHistory, make_body, read_body
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.nodes import SimBroker, Span, World
from saturnmq.drills.sim.plan import SimPlan
from saturnmq.drills.sim.scenes.pop_record import PopDelivery, PopRecord
from saturnmq.drills.sim.verdict import Evidence, Verdict

VALUES = ("a/0", "a/1", "a/2")
PLACES = [Place("broker-a", 0, offset) for offset in range(4)]
STORED = dict(zip(PLACES, VALUES, strict=False))
ACKED_AT = 10.0


class Case:
    """Three messages, acknowledged by node 0 at second 10 and read by one group, in order."""

    def __init__(self, *, sync_flush: bool = False, copies: int = 1) -> None:
        self.plan = SimPlan(sync_flush=sync_flush, copies=copies)
        loop = SimLoop(random.Random(1))
        world = World(1, loop, SimNetwork(loop, 1), self.plan)
        self.nodes = [SimBroker(world, "broker-a", n, NotImplemented) for n in range(2)]
        self.history = SimHistory()
        self.history.reader("readers")
        for place, value in STORED.items():
            self.history.invoked[value] = "a"
            self.history.ack(value, Ack(place, ACKED_AT, "broker-a-0"))
        self.stored: Mapping[Place, str] = STORED
        self.saved: list[str] = []
        self.promotions: list[PromotionOrder] = []
        self.healed: list[float] = []
        loop.close()

    def deliver(self, *offsets: int) -> None:
        for offset in offsets:
            body = make_body(VALUES[offset], 10)
            self.history.deliver("readers", ACKED_AT + 0.1, PLACES[offset], body)

    def promote(self, at: float, forced: bool = False) -> None:
        self.promotions.append(PromotionOrder(self.nodes[1], forced, at, at + 0.5))

    def verdict(self) -> list[str]:
        return Verdict(
            Evidence(
                self.history,
                self.stored,
                self.saved.__contains__,
                Allowance(self.plan, self.nodes, self.promotions, (), {"broker-a": self.healed}),
                {"readers": True},
            )
        ).run()

    def kinds(self) -> list[str]:
        return [line.partition(" ")[0] for line in self.verdict()]


def whole() -> Case:
    case = Case()
    case.deliver(0, 1, 2)
    return case


def test_a_clean_history_passes_also_with_repeats() -> None:
    case = whole()
    case.deliver(1, 2)
    assert case.verdict() == []


def test_a_message_that_was_not_delivered_is_named() -> None:
    case = Case()
    case.deliver(0, 1)
    assert case.verdict() == ["I12 stored, and not delivered to readers: a/2 at broker-a 0:2"]


def test_what_nobody_sent_is_a_phantom() -> None:
    case = whole()
    case.history.deliver("readers", 11.0, PLACES[3], make_body("x/9", 10))
    assert "I2" in case.kinds()


def test_a_skip_is_noticed() -> None:
    case = Case()
    case.deliver(0, 2, 1)
    assert case.kinds() == ["I5"]


def test_the_order_of_the_sends_is_that_of_the_log() -> None:
    case = whole()
    case.history.invoked = dict.fromkeys(("a/0", "a/2", "a/1"), "a")
    assert case.kinds() == ["I5"]


def test_a_rejected_message_is_neither_stored_nor_delivered() -> None:
    case = whole()
    case.history.rejected["a/1"] = "refused"
    assert sorted(case.kinds()) == ["I3", "I3"]


def test_a_place_keeps_its_message() -> None:
    case = whole()
    case.history.invoked["b/0"] = "b"
    case.stored = STORED | {PLACES[2]: "b/0"}
    case.history.deliver("readers", 11.0, PLACES[2], make_body("b/0", 10))
    assert sorted(case.kinds()) == ["I1", "I4"]


LOST = {place: STORED[place] for place in PLACES[:2]}


def lost(**plan: object) -> Case:
    """The third message is gone, and nobody saw it."""
    case = Case(**plan)  # type: ignore[arg-type]
    case.deliver(0, 1)
    case.stored = LOST
    return case


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("sync_flush", [False, True])
def test_nothing_may_be_lost_for_no_reason(copies: int, sync_flush: bool) -> None:
    assert lost(copies=copies, sync_flush=sync_flush).kinds() == ["I1"]


@pytest.mark.parametrize(
    ("sync_flush", "copies", "after_s", "nodes", "allowed"),
    [
        (False, 1, 0.3, 1, True),
        (False, 1, 2.0, 1, False),  # it was flushed long ago
        (True, 1, 0.3, 1, False),
        (False, 2, 0.3, 1, False),  # the slave has it
        (False, 2, 0.3, 2, True),
        (True, 2, 0.3, 2, False),
    ],
)
def test_a_power_loss_may_take_what_the_mode_leaves_unsynced(
    sync_flush: bool, copies: int, after_s: float, nodes: int, allowed: bool
) -> None:
    case = lost(sync_flush=sync_flush, copies=copies)
    for node in case.nodes[:nodes]:
        node.past.losses.append(Span(ACKED_AT + after_s, ACKED_AT + after_s))
    assert case.kinds() == ([] if allowed else ["I1"])


@pytest.mark.parametrize(("up_again_s", "allowed"), [(5.0, True), (-0.001, False)])
def test_an_answer_that_was_under_way_when_its_broker_died_was_given_before(
    up_again_s: float, allowed: bool
) -> None:
    case = lost()
    died_at = ACKED_AT - 0.002
    case.nodes[0].past.losses.append(Span(died_at, died_at))
    case.nodes[0].past.down.append(Span(died_at, ACKED_AT + up_again_s))
    assert case.kinds() == ([] if allowed else ["I1"])


@pytest.mark.parametrize(("up_again_s", "kinds"), [(5.0, []), (-0.001, ["I4"])])
def test_a_delivery_that_was_under_way_when_its_broker_died_was_seen_before(
    up_again_s: float, kinds: list[str]
) -> None:
    """Nobody was told that the message is stored, so only the reader may know who had it."""
    case = whole()
    del case.history.acked[VALUES[2]]
    case.stored = dict(zip(PLACES[:2], VALUES[:2], strict=True))
    seen_at = ACKED_AT + 0.1
    died_at = seen_at - 0.002
    case.nodes[0].past.losses.append(Span(died_at, died_at))
    case.nodes[0].past.down.append(Span(died_at, seen_at + up_again_s))
    assert case.kinds() == kinds


def test_a_frozen_process_flushes_nothing() -> None:
    case = lost()
    case.nodes[0].past.idle.append(Span(ACKED_AT + 0.1, ACKED_AT + 20.0))
    case.nodes[0].past.losses.append(Span(ACKED_AT + 15.0, ACKED_AT + 15.0))
    assert case.verdict() == []


def test_a_promotion_may_cut_off_what_was_not_replicated_if_it_is_saved() -> None:
    case = lost()
    case.promote(ACKED_AT + 1.0)
    assert case.kinds() == ["I1"]
    case.saved.append("a/2")
    assert case.verdict() == []


def test_a_promotion_takes_nothing_that_has_its_copies() -> None:
    case = lost(copies=2)
    case.promote(ACKED_AT + 1.0)
    case.saved.append("a/2")
    assert case.kinds() == ["I1"]
    case.promotions[0].forced = True
    assert case.verdict() == []


def test_a_deposed_master_acknowledges_nothing_unless_it_cannot_know() -> None:
    case = lost()
    case.saved.append("a/2")
    case.promote(ACKED_AT - 5.0)
    assert case.kinds() == ["I1"]
    case.nodes[0].past.isolated.append(Span(ACKED_AT - 6.0, ACKED_AT + 1.0))
    assert case.verdict() == []


def test_a_wiped_disk_is_one_copy_less() -> None:
    case = lost()
    case.nodes[0].past.aged_at.append(ACKED_AT + 100.0)
    assert case.verdict() == []


def test_disks_that_are_lost_one_after_the_other_take_nothing() -> None:
    case = lost(copies=2)
    for number, node in enumerate(case.nodes):
        node.past.aged_at.append(ACKED_AT + 10.0 + 20.0 * number)
    assert case.verdict() == []
    case.healed.append(ACKED_AT + 20.0)
    assert case.kinds() == ["I1"]


def test_who_acknowledges_was_promoted() -> None:
    case = whole()
    ack = case.history.acked["a/2"]
    case.history.begun["a/2"] = ACKED_AT + 2.0
    case.history.acked["a/2"] = ack._replace(by="broker-a-1", at=ACKED_AT + 2.1)
    assert case.kinds() == ["I16"]
    case.promote(ACKED_AT + 1.0)
    assert case.verdict() == []


def test_a_flipped_bit_in_a_body_is_noticed() -> None:
    body = bytearray(make_body("1/2.0", 100))
    assert read_body(bytes(body)) == "1/2.0"
    body[-1] ^= 1
    assert read_body(bytes(body)) is None


def popped(offset: int, pop: int, at: float, until: float) -> PopDelivery:
    place = Place("broker-a", 0, offset)
    return PopDelivery(place, f"v{offset}", pop, at, until, 0, "member")


@pytest.mark.parametrize("is_done", [True, False])
def test_an_acknowledgement_that_was_refused_takes_none_from_another_delivery(
    is_done: bool,
) -> None:
    record = PopRecord(lambda group, at: False)
    for delivery in (popped(0, 1, 1.0, 2.0), popped(0, 2, 3.0, 13.0), popped(1, 3, 5.0, 15.0)):
        record.add(delivery)
    key = popped(0, 1, 1.0, 2.0).key
    record.ask(key, 3.0)
    if is_done:
        record.ask(key, 3.1)
    record.refuse(key, 3.0)
    stored = {Place("broker-a", 0, offset): f"v{offset}" for offset in range(2)}
    found = record.order_verdict(stored)
    assert any("went past a message" in each for each in found) is not is_done

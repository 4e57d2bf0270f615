"""Lanes of earlier rounds go first."""

from __future__ import annotations

from typing import Any

from saturnmq.client.producer.lanes import Lane, Pin
from saturnmq.client.producer.leftovers import Leftovers
from saturnmq.protocol.message import MessageQueue


def lane(number: int | None, topic: str = "T") -> Lane:
    """Of round `number`; None: of the topic, and of no queue of it."""
    pin = None if number is None else Pin(MessageQueue(topic, "a", 0), number)
    owner: Any = None
    return Lane(owner, topic, pin, 0)


def test_a_lane_waits_for_all_of_earlier_rounds_and_for_none_of_its_own_or_later() -> None:
    leftovers = Leftovers()
    first, second, also_second, third = lane(1), lane(2), lane(2), lane(3)
    assert not leftovers.hold_back(third)
    for left in (second, first, also_second):
        leftovers.add(left)
    held_back = [leftovers.hold_back(each) for each in (first, second, also_second, third)]
    assert held_back == [False, True, True, True]
    assert not leftovers.hold_back(lane(3, "other"))
    assert leftovers.remove(first)
    assert not leftovers.remove(first), "it is no longer there"
    assert not leftovers.remove(third)
    assert not leftovers.hold_back(second)
    for left in (second, also_second):
        assert leftovers.hold_back(third)
        assert leftovers.remove(left)
    assert not leftovers.hold_back(third)
    assert not leftovers.remove(second)


def test_what_is_bound_to_no_queue_is_of_the_round_before_the_first() -> None:
    leftovers = Leftovers()
    leftovers.add(lane(None))
    assert leftovers.hold_back(lane(1))
    assert not leftovers.hold_back(lane(None))

"""The turns of polls: the compiled ones and the readable ones give the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.client.consumer import poll_reference, poll_turns

KINDS = [poll_reference, poll_turns]


@pytest.fixture(params=KINDS, ids=["reference", "chosen"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def queue(kind: Any, *messages: str, idle: bool = False) -> Any:
    turn = kind.QueueTurn(None)
    assert turn.idle
    assert list(turn.upcoming) == []
    turn.idle, turn.upcoming = idle, iter(list(messages))
    return turn


def turns_of(kind: Any, *queues: Any) -> Any:
    turns = kind.PollTurns()
    for each in queues:
        turns.add(each)
    return turns


def test_queues_take_turns(kind: Any) -> None:
    first, second = queue(kind, "a", "b", "c"), queue(kind, "x", "y", idle=True)
    turns = turns_of(kind, first, second)
    given_ = [turns.give(1) for _ in range(3)]
    assert given_ == [["a"], ["x"], ["b"]]
    assert (turns.last_turn, turns.last) == (first, 1)
    assert turns.give(5) == ["y"]
    assert (turns.last_turn, turns.last) == (second, 1)
    assert [turns.give(5), turns.give(5)] == [["c"], []]


def test_an_idle_queue_is_passed_over_and_a_drawn_one_asks_the_loop(kind: Any) -> None:
    idle, drawn, full = queue(kind, idle=True), queue(kind), queue(kind, "a")
    turns = turns_of(kind, idle, drawn, full)
    assert turns.give(1) == []
    assert turns.last_turn is drawn  # more of it may be there
    drawn.idle = True
    assert turns.give(1) == ["a"]


@pytest.mark.parametrize("most", [0, -1])
def test_a_poll_of_nothing_draws_nothing(kind: Any, most: int) -> None:
    turn = queue(kind, "a")
    turns = turns_of(kind, turn)
    assert turns.give(most) == []
    assert list(turn.upcoming) == ["a"]


def test_queues_come_and_go(kind: Any) -> None:
    one, two, three = (queue(kind, name, name) for name in "abc")
    turns = turns_of(kind, one, two, three)
    assert [turns.give(1) for _ in range(3)] == [["a"], ["b"], ["c"]]
    turns.remove(two)
    assert sorted(turns.give(1) + turns.give(1)) == ["a", "c"]
    turns.clear()
    assert turns.give(1) == []
    with pytest.raises(ValueError, match="not in list"):
        turns.remove(one)


@given(
    queues=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=5),
    polls=st.lists(st.integers(-1, 4), max_size=30),
)
def test_both_give_the_same(queues: list[tuple[int, bool]], polls: list[int]) -> None:
    told = []
    for kind in KINDS:
        made = [
            queue(kind, *(f"{place}-{n}" for n in range(count)), idle=idle)
            for place, (count, idle) in enumerate(queues)
        ]
        turns = turns_of(kind, *made)
        lasts = []
        for most in polls:
            messages = turns.give(most)
            last = None if turns.last_turn is None else made.index(turns.last_turn)
            lasts.append((messages, last, turns.last))
        told.append(lasts)
    assert told[0] == told[1]

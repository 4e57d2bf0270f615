"""The accounting of the drill `pipeline` is lied to, and notices."""

from __future__ import annotations

import pytest
from saturnmq.drills.failover.checker import DrillVerdict
from saturnmq.drills.pipeline import account

A, B = ("broker-a", 0), ("broker-b", 1)
GIVEN = {A: [b"a0", b"a1", b"a2"], B: [b"b0", b"b1"]}


def delivered(found):
    verdict = DrillVerdict()
    account.delivered(verdict, "replayed", GIVEN, found)
    return [text.split(":")[1].strip() for text in verdict.violations]


def archived(found):
    verdict = DrillVerdict()
    account.archived(verdict, GIVEN, found)
    return verdict.violations


@pytest.mark.parametrize(
    "found",
    [
        GIVEN,
        {A: [b"a0", b"b0", b"a1", b"b1", b"a2"]},
        {A: [b"b0", b"b1"], B: [b"a0"], ("broker-c", 0): [b"a1", b"a2"]},
    ],
)
def test_everything_once_and_in_order_is_right_wherever_it_lies(found):
    assert delivered(found) == []


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({A: [b"a0", b"a1"], B: [b"b0", b"b1"]}, "lost"),
        ({A: [b"a0", b"a1", b"a2", b"a2"], B: [b"b0", b"b1"]}, "doubled"),
        ({A: [b"a0", b"a1", b"a2"], B: [b"b0", b"b1", b"a1"]}, "doubled"),
        ({A: [b"a0", b"a1", b"a2", b"??"], B: [b"b0", b"b1"]}, "not from the source"),
        ({A: [b"a0", b"a2", b"a1"], B: [b"b0", b"b1"]}, "out of order"),
        ({A: [b"b1", b"a0", b"a1", b"a2", b"b0"]}, "out of order"),
    ],
)
def test_what_is_wrong_in_a_topic_is_named(found, wrong):
    assert delivered(found) == [wrong]


def test_an_archive_that_is_the_topic_is_right():
    assert archived({queue: list(enumerate(bodies)) for queue, bodies in GIVEN.items()}) == []


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([(0, b"a0"), (1, b"a1")], "has 2 of 3 rows, right up to 2"),
        ([(0, b"a0"), (1, b"a1"), (1, b"a1"), (2, b"a2")], "has 4 of 3 rows, right up to 2"),
        ([(0, b"a0"), (2, b"a2"), (1, b"a1")], "has 3 of 3 rows, right up to 1"),
        ([(0, b"a0"), (1, b"xx"), (2, b"a2")], "has 3 of 3 rows, right up to 1"),
        ([], "has 0 of 3 rows, right up to 0"),
    ],
)
def test_what_is_wrong_in_an_archive_is_told_with_its_place(rows, told):
    (text,) = archived({A: rows, B: list(enumerate(GIVEN[B]))})
    assert told in text
    assert "broker-a" in text


def test_a_queue_that_nobody_wrote_to_is_wrong():
    assert archived({**{q: list(enumerate(b)) for q, b in GIVEN.items()}, ("c", 9): [(0, b"x")]})

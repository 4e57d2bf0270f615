"""The positions of a log: they only rise, but for a reset."""

from __future__ import annotations

import pytest
from saturnmq.store.watermarks import Watermarks

NAMES = ("start", "appended", "flushed", "replicated", "confirmed", "dispatched")

# The watermarks that one follows, in an order in which they can be set.
FOLLOWS = {
    "start": ("appended", "flushed", "dispatched"),
    "appended": (),
    "flushed": ("appended",),
    "replicated": ("appended",),
    "confirmed": ("appended",),
    "dispatched": ("appended",),
}


def positions(marks: Watermarks) -> dict[str, int]:
    return {name: getattr(marks, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_position_begins_at_0_and_rises_alone(name: str) -> None:
    marks = Watermarks()
    assert positions(marks) == dict.fromkeys(NAMES, 0)
    followed = FOLLOWS[name]
    for leader in followed:
        setattr(marks, leader, 800)
    for told, known in ((700, 700), (699, 700), (700, 700), (701, 701), (-1, 701)):
        setattr(marks, name, told)
        expected = dict.fromkeys(NAMES, 0) | dict.fromkeys(followed, 800) | {name: known}
        assert positions(marks) == expected


@pytest.mark.parametrize(
    ("name", "slow"), [(name, slow) for name in NAMES for slow in FOLLOWS[name]]
)
def test_a_position_does_not_pass_those_that_it_follows(name: str, slow: str) -> None:
    marks = Watermarks()
    for leader in FOLLOWS[name]:
        setattr(marks, leader, 800 if slow in (leader, "appended") else 801)
    with pytest.raises(AssertionError, match="801"):
        setattr(marks, name, 801)


@pytest.mark.parametrize(("start", "end", "flushed"), [(-1, 5, 5), (6, 5, 5), (3, 5, 2)])
def test_a_reset_to_what_is_no_log_fails(start: int, end: int, flushed: int) -> None:
    with pytest.raises(AssertionError):
        Watermarks().reset(start, end, flushed=flushed, dispatched=end)


def test_a_reset_takes_every_position_back_to_the_end_and_raises_none_that_others_report() -> None:
    marks = Watermarks()
    marks.reset(100, 900, flushed=1000, dispatched=1000)
    assert positions(marks) == {
        **{"start": 100, "appended": 900, "flushed": 900, "dispatched": 900},
        **{"replicated": 0, "confirmed": 0},
    }
    marks.replicated, marks.confirmed = 900, 850
    marks.reset(200, 800, flushed=600, dispatched=700)
    assert positions(marks) == {
        **{"start": 200, "appended": 800, "flushed": 600, "dispatched": 700},
        **{"replicated": 800, "confirmed": 700},
    }
    marks.reset(200, 750, flushed=700, dispatched=750)
    assert positions(marks) == {
        **{"start": 200, "appended": 750, "flushed": 700, "dispatched": 750},
        **{"replicated": 750, "confirmed": 700},
    }

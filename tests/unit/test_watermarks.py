"""The positions of a log: they only rise, but for a reset."""

from __future__ import annotations

import pytest
from saturnmq.store.watermarks import Watermarks

NAMES = ("start", "appended", "flushed", "replicated", "confirmed", "dispatched")


def positions(marks: Watermarks) -> dict[str, int]:
    return {name: getattr(marks, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_position_begins_at_0_and_rises_alone(name: str) -> None:
    marks = Watermarks()
    assert positions(marks) == dict.fromkeys(NAMES, 0)
    for told, known in ((700, 700), (699, 700), (700, 700), (701, 701), (-1, 701)):
        setattr(marks, name, told)
        assert positions(marks) == dict.fromkeys(NAMES, 0) | {name: known}


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

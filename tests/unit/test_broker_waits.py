"""Since when delayed messages wait: never too early, a grain too late at most, in few entries."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.delay.waits import GRAIN_S, SHARE, Waits

DELAY_S = 60.0
GRAIN = min(GRAIN_S, DELAY_S / SHARE)

batches = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([0.0, 0.001, 0.1, 0.59, 0.61, 3.0, 70.0])),
    min_size=1,
    max_size=200,
)


def filled(steps: list[tuple[int, float]]) -> tuple[Waits, list[int], list[float]]:
    """So many messages, so long after those before; where they end and when they came."""
    waits = Waits(DELAY_S, 0.0, 0)
    ends = list(accumulate(count for count, _ in steps))
    times = list(accumulate(pause for _, pause in steps))
    for end, now in zip(ends, times, strict=True):
        assert waits.came(end, now)
        assert not waits.came(end, now + 1), "known"
    return waits, ends, times


@given(batches)
def test_no_message_is_due_early_or_more_than_a_grain_late(steps: list[tuple[int, float]]) -> None:
    waits, ends, times = filled(steps)
    for offset in range(ends[-1]):
        wanted = times[bisect_right(ends, offset)] + DELAY_S
        due = waits.due(offset, stored=-1e9)
        if wanted <= times[-1]:  # due already, and still so
            assert wanted <= due <= times[-1]
        else:
            assert wanted <= due <= wanted + GRAIN


@given(batches, st.integers(0, 300))
def test_what_another_process_takes_over_is_a_hundredth_of_the_delay_late_at_most(
    steps: list[tuple[int, float]], delivered: int
) -> None:
    waits, ends, times = filled(steps)
    told = waits.waiting(delivered)
    assert len(told) <= SHARE + 3
    other = Waits(DELAY_S, times[-1], ends[-1])
    other.adopt(told)
    for offset in range(delivered, ends[-1]):
        due = waits.due(offset, 0.0)
        assert due <= other.due(offset, stored=1e9) <= max(due + DELAY_S / SHARE, times[-1])


@given(batches, st.integers(0, 1000), st.integers(0, 1000))
def test_what_a_cut_took_is_forgotten_and_what_it_left_stays(
    steps: list[tuple[int, float]], end: int, more: int
) -> None:
    waits, ends, times = filled(steps)
    dues = [waits.due(offset, 0.0) for offset in range(ends[-1])]
    assert waits.cut(end) == (end < ends[-1])
    left = min(end, ends[-1])
    assert waits.end == left
    assert [waits.due(offset, 0.0) for offset in range(left)] == dues[:left]
    assert waits.came(left + 1 + more, times[-1] + 0.1)
    assert waits.due(left, 0.0) == times[-1] + 0.1 + DELAY_S


def test_under_a_steady_stream_there_are_no_more_entries_than_grains() -> None:
    waits = Waits(DELAY_S, 0.0, 0)
    for number in range(1, 20_000):
        waits.came(number, number * 0.05)
        assert len(waits) <= DELAY_S / GRAIN + 3


@pytest.mark.parametrize(("last", "told"), [(107.46875, []), (107.5, [(8, 102.0)])])
def test_of_a_long_delay_a_second_is_one_entry_and_for_another_process_a_hundredth(
    last: float, told: list[tuple[int, float]]
) -> None:
    waits = Waits(600.0, start=100.0, end=5)
    for end, now in ((6, 101.0), (7, 101.5), (8, 102.0), (9, last)):
        waits.came(end, now)
    dues = [waits.due(offset, 0.0) - 600.0 for offset in range(5, 9)]
    assert dues == [101.5, 101.5, 102.0, last]
    told = [*told, (9, last)]
    assert waits.waiting(0) == [(5, None), *told], "store time stays store time"
    assert waits.waiting(5) == told
    assert waits.waiting(8) == [(9, last)]
    assert waits.waiting(9) == []


@pytest.mark.parametrize(("stored", "due"), [(40.0, 100.0), (100.0, 160.0), (9e9, 160.0)])
def test_of_what_came_before_store_time_counts_unless_it_lies_ahead(
    stored: float, due: float
) -> None:
    waits = Waits(DELAY_S, start=100.0, end=5)
    waits.came(6, 130.0)
    assert waits.due(4, stored) == due
    assert waits.due(5, stored) == 190.0


def test_what_is_told_counts_as_far_as_the_queue_is_here_and_what_came_later_stays() -> None:
    waits = Waits(DELAY_S, start=100.0, end=10)
    waits.came(15, 110.0)
    waits.came(20, 120.0)
    waits.adopt([(4, None), (8, 50.0), (17, 60.0)])
    stored = 90.0
    dues = [waits.due(offset, stored) - DELAY_S for offset in (3, 7, 9, 16, 17, 19)]
    assert dues == [90.0, 50.0, 60.0, 60.0, 120.0, 120.0]
    waits.came(21, 120.1)
    assert waits.due(19, stored) == 180.0, "what was told is not made later"
    waits.adopt([(30, 70.0)])
    assert (waits.end, waits.due(20, stored)) == (21, 130.0)


def test_who_is_told_of_a_store_time_only_keeps_what_it_saw_itself() -> None:
    waits = Waits(DELAY_S, start=100.0, end=10)
    waits.came(11, 110.0)
    waits.came(15, 120.0)
    waits.adopt([(10, None)])
    assert [waits.due(offset, 90.0) for offset in (9, 10, 14)] == [150.0, 170.0, 180.0]
    waits.adopt([(11, None)])
    assert [waits.due(offset, 90.0) for offset in (10, 14)] == [170.0, 180.0]

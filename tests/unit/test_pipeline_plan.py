"""How a batch is cut and packed, and how a limit is shared: pure functions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.pipeline.plan import MAX_BYTES, WORTH_A_TASK, Range, ReadPlan, pack, share
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError

MIB = 1 << 20


def pieces(queue_id: int, *weights: int, rows: int = 100, start: int = 0) -> list[Range]:
    return [
        Range("T", "a", queue_id, start + n * rows, start + (n + 1) * rows, weight)
        for n, weight in enumerate(weights)
    ]


def covered(partitions: list[list[Range]]) -> list[tuple[int, int]]:
    return sorted(
        (item.queue_id, offset)
        for own in partitions
        for item in own
        for offset in range(item.start, item.end)
    )


def test_eight_short_queues_are_one_task():
    short = [piece for queue in range(8) for piece in pieces(queue, 300, rows=1)]
    assert pack(short, ReadPlan(parts=2)) == [short]


def test_a_hot_queue_is_shared_out_between_the_tasks():
    hot = pieces(0, *[8 * MIB] * 10)
    cold = [piece for queue in range(1, 4) for piece in pieces(queue, MIB)]
    partitions = pack(hot + cold, ReadPlan(parts=4))
    weights = [sum(item.bytes for item in own) for own in partitions]
    assert len(partitions) == 4
    assert max(weights) - min(weights) <= 8 * MIB
    assert all(own == sorted(own) for own in partitions)
    assert covered(partitions) == covered([hot + cold])


def test_more_bytes_than_the_tasks_may_have_make_more_tasks():
    partitions = pack(pieces(0, *[MIB] * 64), ReadPlan(parts=2, max_bytes=16 * MIB))
    assert len(partitions) == 4
    assert all(len(own) == 1 for own in partitions)


def test_no_task_runs_alone_in_the_last_round():
    partitions = pack(pieces(0, *[MIB] * 72), ReadPlan(parts=2, max_bytes=8 * MIB))
    weights = [sum(item.bytes for item in own) // MIB for own in partitions]
    assert len(weights) == 10
    assert set(weights) == {7, 8}


def test_a_limit_of_rows_holds_for_every_task():
    many = pieces(0, *[MIB] * 10) + pieces(1, *[MIB] * 3)
    partitions = pack(many, ReadPlan(parts=1, max_rows=250))
    assert all(sum(item.rows for item in own) <= 250 for own in partitions)
    assert covered(partitions) == covered([many])


def test_at_least_so_many_tasks_as_asked_for():
    plan = ReadPlan(parts=1, min_parts=6)
    _, grain_rows = plan.grain(1000)
    assert grain_rows <= 1000 // 6
    small = pieces(0, *[10] * (1000 // grain_rows), rows=grain_rows)
    assert len(pack(small, plan)) >= 6
    assert len(pack(pieces(0, 10, 10, rows=1), plan)) == 2


def test_nothing_to_read_is_no_task():
    assert pack([], ReadPlan()) == []
    assert pack([Range("T", "a", 0, 5, 5)], ReadPlan()) == []


plans = st.builds(
    ReadPlan,
    parts=st.integers(1, 5),
    max_bytes=st.integers(1000, 200_000),
    max_rows=st.one_of(st.just(0), st.integers(1, 400)),
    min_parts=st.integers(0, 5),
)


@given(plans, st.lists(st.lists(st.integers(1, 500), max_size=60), max_size=5), st.integers(0, 99))
def test_every_message_is_in_one_task_and_no_limit_is_broken(plan, queues, seed):
    rows = sum(map(len, queues))
    max_bytes, max_rows = plan.grain(rows)
    cut = []
    for queue_id, sizes in enumerate(queues):
        start = 0
        while start < len(sizes):
            end = start + 1
            while (
                end < len(sizes)
                and end - start < max_rows
                and sum(sizes[start : end + 1]) <= max_bytes
            ):
                end += 1
            cut.append(Range("T", "a", queue_id, start, end, sum(sizes[start:end])))
            start = end
    partitions = pack(cut, plan)
    assert covered(partitions) == covered([cut])
    for own in partitions:
        assert own == sorted(own)
        if plan.max_rows:
            assert sum(item.rows for item in own) <= plan.max_rows
        if len(own) > 1:
            assert sum(item.bytes for item in own) <= plan.max_bytes
    assert len(partitions) >= min(plan.min_parts, rows)
    shuffled = list(cut)
    random.Random(seed).shuffle(shuffled)
    assert pack(sorted(shuffled), plan) == partitions


def test_the_plan_comes_back_from_the_checkpoint():
    for plan in (ReadPlan(3), ReadPlan(3, MAX_BYTES, 7, 2)):
        assert ReadPlan.from_json(plan.to_json()) == plan
    assert ReadPlan(4).to_json() == {"parts": 4, "maxBytes": MAX_BYTES}
    for wrong in (
        None,
        {},
        {"parts": 4},
        {"parts": 0, "maxBytes": 1},
        {**ReadPlan(2).to_json(), "x": 1},
    ):
        with pytest.raises(ConfigError, match="new checkpoint"):
            ReadPlan.from_json(wrong)


def test_pieces_fill_a_task_closely():
    assert ReadPlan().grain(10**9) == (WORTH_A_TASK, 65_536)
    assert ReadPlan(max_bytes=1600).grain(10**9)[0] == 100
    assert ReadPlan(max_rows=10).grain(10**9)[1] == 10


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 10_000)), st.integers(1, 20_000))
def test_a_limit_is_shared_in_proportion_and_starves_nobody(lengths, limit):
    backlog = {MessageQueue("T", "a", number): rows for number, rows in lengths.items()}
    shares = share(backlog, limit)
    waiting = {queue: rows for queue, rows in backlog.items() if rows}
    total = sum(waiting.values())
    assert sum(shares.values()) == min(limit, total)
    assert all(0 < rows <= waiting[queue] for queue, rows in shares.items())
    if len(waiting) <= limit:
        assert set(shares) == set(waiting)
    if len(waiting) <= limit < total:
        for queue, rows in shares.items():
            assert abs(rows - waiting[queue] * limit / total) <= len(waiting) + 1


def test_with_more_queues_than_the_limit_the_longest_go_first():
    backlog = {MessageQueue("T", "a", n): rows for n, rows in enumerate((5, 9, 1, 7))}
    assert sorted(queue.queue_id for queue in share(backlog, 2)) == [1, 3]

"""Offsets of several nodes: what wins when their tables meet, and that nothing skips a message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.tables.deleted_groups import KEPT_MAX
from saturnmq.broker.tables.offsets import STEP_PLACES, STEP_READ, ConsumerOffsets
from saturnmq.broker.tables.progress import NOTHING, Mark, Progress
from saturnmq.runtime.steps import at_once

MARKS = st.builds(Mark, st.integers(0, 6), st.integers(0, 20))
TABLES = st.dictionaries(st.integers(0, 3), MARKS)


def progress(marks: dict[int, Mark]) -> Progress[int]:
    made: Progress[int] = Progress()
    made.merge(marks)
    return made


def merged(*tables: dict[int, Mark]) -> dict[int, Mark]:
    made = progress({})
    for table in tables:
        made.merge(table)
    return made.marks


@given(TABLES, TABLES, TABLES)
def test_merging_is_commutative_associative_and_idempotent(a, b, c) -> None:
    assert merged(a, b) == merged(b, a)
    assert merged(merged(a, b), c) == merged(a, merged(b, c))
    assert merged(a, b, b, a) == merged(a, b)


@given(TABLES, TABLES)
def test_within_a_generation_no_offset_falls(a, b) -> None:
    for key, mark in merged(a, b).items():
        for before in (a.get(key, NOTHING), b.get(key, NOTHING)):
            assert mark.generation >= before.generation
            assert mark.generation > before.generation or mark.offset >= before.offset


@given(TABLES, TABLES, st.integers(0, 20))
def test_no_mark_of_two_clamped_tables_lies_behind_the_end(own, other, end) -> None:
    tables = progress(own), progress(other)
    for table in tables:
        table.clamp(lambda _: end)
    assert all(mark.offset <= end for mark in merged(*(t.marks for t in tables)).values())


def offsets(*commits: tuple[int, int]) -> ConsumerOffsets:
    table = ConsumerOffsets(lambda: 1_000)
    for queue, offset in commits:
        table.commit("g", "t", queue, offset)
    return table


def copy(source: ConsumerOffsets, target: ConsumerOffsets) -> None:
    """As a slave does: through JSON."""
    target.merge(json.loads(json.dumps(source.snapshot())))


def test_messages_written_after_a_loss_are_not_skipped() -> None:
    """The master lost 80 to 100 in a power cut; the slave still knows that 100 was consumed."""
    master, slave = offsets((0, 70)), offsets((0, 100))
    assert master.clamp(lambda place: 80) == []
    master.commit("g", "t", 0, 85)  # of what was written since
    assert slave.clamp(lambda place: 80) == [(("t", "g", 0), 100, 80)]  # when it joins
    copy(slave, master)
    copy(master, slave)
    assert master.query("g", "t", 0) == slave.query("g", "t", 0) == 85


def test_what_was_consumed_at_the_slave_while_the_master_was_away_counts() -> None:
    master, slave = offsets((0, 70)), offsets()
    copy(master, slave)
    slave.commit("g", "t", 0, 95)
    copy(slave, master)
    assert master.query("g", "t", 0) == 95


def test_a_reset_survives_a_fail_over_and_is_told_there() -> None:
    master, slave = offsets((0, 100)), offsets((0, 100))
    master.reset("g", "t", 0, 10)
    copy(master, slave)
    assert slave.query("g", "t", 0) == 10
    assert not slave.commit("g", "t", 0, 101), "the consumer has not heard of it"
    assert slave.move_for("g", "t", 0, 100, None) == 10
    assert slave.move_for("g", "t", 0, 10, None) is None
    assert slave.commit("g", "t", 0, 11)
    copy(slave, master)
    assert master.move_for("g", "t", 0, 100, None) is None, "it was told"
    assert master.query("g", "t", 0) == 11


def test_a_reset_survives_a_restart() -> None:
    table, again = offsets((0, 100)), offsets()
    table.reset("g", "t", 0, 10)
    again.load(json.loads(json.dumps(table.snapshot())))
    assert again.move_for("g", "t", 0, 100, None) == 10


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_each_reset_beats_the_one_before(before: int, heard: bool) -> None:
    table, old = offsets((0, 100)), offsets()
    for _ in range(before):
        table.reset("g", "t", 0, 50)
        if heard:
            table.take_reset("g", "t", 0)
    copy(table, old)
    table.reset("g", "t", 0, 20)
    copy(old, table)
    assert table.query("g", "t", 0) == 20
    assert table.move_for("g", "t", 0, 50, None) == 20


def test_what_only_a_deposed_master_knows_does_not_reach_the_others() -> None:
    deposed, master = offsets((0, 100), (1, 5)), offsets((0, 60))
    deposed.reset("g", "t", 0, 40)  # unaware that it is
    deposed.distrust()
    copy(deposed, master)
    assert master.query("g", "t", 0) == 60
    copy(master, deposed)
    assert deposed.snapshot()["offsetTable"] == master.snapshot()["offsetTable"]
    deposed.commit("g", "t", 0, 61)
    copy(deposed, master)
    assert master.query("g", "t", 0) == 61


def test_a_distrusted_table_is_trusted_again_when_its_node_becomes_master() -> None:
    table, other = offsets((0, 7)), offsets()
    table.distrust()
    again = offsets()
    again.load(table.snapshot())
    copy(again, other)
    assert other.query("g", "t", 0) is None, "it is distrusted after a restart, too"
    again.trust()
    copy(again, other)
    assert other.query("g", "t", 0) == 7


def test_a_table_of_rocketmq_is_of_the_first_generation() -> None:
    table = offsets((0, 5))
    table.merge({"offsetTable": {"t@g@broadcast": {0: 50}, "t@g": {0: 9, 1: 0}}})
    assert table.query("g", "t", 0) == 9
    assert table.query("g", "t", 1) == 0
    version = {"counter": 2, "stateVersion": 0, "timestamp": 1_000}
    assert table.snapshot() == {
        "dataVersion": version,
        "offsetTable": {"t@g": {"0": 9, "1": 0}},
    }


def test_a_group_that_goes_on_at_the_first_message_is_known() -> None:
    table = offsets((0, 0))
    assert table.query("g", "t", 0) == 0
    assert Progress[int]().advance(0, 0)


def test_a_table_is_written_anew_when_it_changed_and_only_then() -> None:
    table, other, ahead = offsets((0, 5)), offsets((0, 5)), offsets((0, 6))
    table.clean()
    assert table.commit("g", "t", 0, 5)
    assert not table.commit("g", "t", 0, 4)
    copy(other, table)
    assert table.clamp(lambda _: 5) == []
    assert not table.dirty
    copy(ahead, table)
    assert table.dirty
    table.clean()
    assert table.clamp(lambda _: 5) != []
    assert table.dirty
    table.distrust()
    table.clean()
    copy(other, table)
    assert table.dirty, "it is no longer distrusted"


def test_within_a_generation_a_mark_moves_only_forward() -> None:
    table = progress({0: Mark(2, 5)})
    assert not table.advance(0, 5)
    assert not table.advance(0, 4)
    assert table.advance(0, 6)
    assert table.marks == {0: Mark(2, 6)}


def test_a_group_can_be_forgotten_and_the_others_go_on() -> None:
    table = offsets((0, 5), (1, 6))
    table.commit("h", "t", 0, 7)
    table.commit("h", "u", 2, 8)
    assert at_once(table.groups_of("t")) == ["g", "h"]
    assert at_once(table.groups_of("u")) == ["h"]
    assert at_once(table.topics_of("h")) == ["t", "u"]
    table.clean()
    at_once(table.forget({"g"}))
    assert table.dirty
    assert dict(table.items()) == {("t", "h"): {0: 7}, ("u", "h"): {2: 8}}


@pytest.mark.parametrize("why", ["group", "topic"])
def test_many_offsets_are_forgotten_in_steps_and_what_comes_meanwhile_stays(why: str) -> None:
    table = ConsumerOffsets(lambda: 1, lambda topic, _, offset: topic == "gone" and offset < 10)
    many = 3 * STEP_PLACES
    for queue_id in range(many):
        table.commit("g", "gone", queue_id, 5)
    table.commit("h", "stays", 0, 5)
    table.clean()
    work = table.forget({"g"}) if why == "group" else table.forget_deleted()
    next(work)
    assert len(table) == many + 1 - STEP_PLACES
    assert table.dirty
    table.commit("g", "gone", 0, 12)
    assert sum(1 for _ in work) >= 2
    assert dict(table.items()) == {("gone", "g"): {0: 12}, ("stays", "h"): {0: 5}}


def test_a_large_table_is_read_in_steps() -> None:
    table = offsets()
    document = {"offsetTable": {f"t@g{number}": {"0": 5} for number in range(4 * STEP_READ)}}
    assert sum(1 for _ in table.read(document)) >= 4
    assert len(table) == 0
    marks = at_once(table.read(document))
    assert len(marks) == 4 * STEP_READ
    table.take({"stale": True}, marks)
    assert len(table) == 0
    table.take(document, marks)
    assert len(table) == 4 * STEP_READ


def copied(table: ConsumerOffsets) -> ConsumerOffsets:
    """A table that was read from the text of this one, as at a start."""
    made = ConsumerOffsets(lambda: 1_000)
    made.load(json.loads(json.dumps(table.snapshot())))
    made.validate()
    return made


@pytest.mark.parametrize("resets", [0, 1, 2])
def test_offsets_of_a_deleted_group_do_not_come_back_from_a_node_that_was_away(resets: int) -> None:
    master = offsets((0, 1000), (1, 7))
    master.commit("other", "t", 0, 5)
    for _ in range(resets):
        master.reset("g", "t", 0, 900)
        master.take_reset("g", "t", 0)
    away = copied(master)
    at_once(master.delete("g"))
    for node in (master, copied(master)):
        node.merge(away.snapshot())
        node.validate()
        assert [node.query("g", "t", queue) for queue in (0, 1)] == [None, None]
        assert node.query("other", "t", 0) == 5
    assert master.commit("g", "t", 0, 3)  # it exists again, and begins anew
    assert master.moves("g", "t", 0) == master.moves("g", "t", 1)  # no member has to move
    master.merge(away.snapshot())
    assert master.query("g", "t", 0) == 3
    away.merge(master.snapshot())
    away.validate()
    assert [away.query("g", "t", queue) for queue in (0, 1)] == [3, None]
    master.reset("g", "t", 0, 1)
    at_once(master.delete("g"))
    away.merge(master.snapshot())
    assert (away.query("g", "t", 0), master.query("g", "t", 0)) == (None, None)


def test_a_reset_of_a_deleted_group_counts_at_a_node_that_was_away() -> None:
    master = offsets((0, 1000))
    away = copied(master)
    at_once(master.delete("g"))
    master.reset("g", "t", 0, 4)
    assert master.move_for("g", "t", 0, 9, heard=None) == 4
    away.merge(master.snapshot())
    assert (away.query("g", "t", 0), away.move_for("g", "t", 0, 9, heard=None)) == (4, 4)


def test_a_deletion_that_only_a_deposed_master_knows_gives_way_to_its_new_masters_table() -> None:
    master = offsets((0, 1000))
    deposed = copied(master)
    at_once(deposed.delete("g"))
    deposed.distrust()
    master.merge(deposed.snapshot())
    assert master.query("g", "t", 0) == 1000
    deposed.merge(master.snapshot())
    assert deposed.query("g", "t", 0) == 1000
    deposed.validate()


def test_the_newest_deletions_of_groups_are_kept_and_no_more() -> None:
    table = ConsumerOffsets(lambda: 1_000)
    away = ConsumerOffsets(lambda: 1_000)
    for number in range(KEPT_MAX + 1):
        for each in (table, away):
            each.commit(f"g{number}", "t", 0, 1)
        at_once(table.delete(f"g{number}"))
    table.validate()
    table.merge(away.snapshot())
    assert [table.query(f"g{number}", "t", 0) for number in (0, 1, KEPT_MAX)] == [1, None, None]

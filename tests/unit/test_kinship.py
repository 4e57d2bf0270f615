"""`broker/replication/kinship.py`: foreign nodes, outranked masters, cuts and words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.replication.introductions import MemberState
from saturnmq.broker.replication.kinship import (
    is_foreign,
    is_outranked,
    is_witness,
    may_cut,
    promises_needed,
    words_needed,
)
from saturnmq.protocol.epochs import TERM, next_promotion, next_restart, next_term
from saturnmq.store.log.epochs import Epoch

ONE, OTHER = "1" * 32, "2" * 32
SLAVE = MemberState(
    name="broker-a",
    identity=ONE,
    broker_id=1,
    address="127.0.0.1:1",
    ha_address="127.0.0.1:2",
    state="slave",
    epoch=TERM,
    epochs=[Epoch(TERM, 0)],
    start=0,
    end=1000,
    floor=900,
    lacks="",
    free_id=0,
    decided=False,
    replicas={1: "127.0.0.1:1"},
)


@pytest.mark.parametrize(
    ("mine", "theirs", "foreign"),
    [(ONE, OTHER, True), (ONE, ONE, False), ("", ONE, False), (ONE, "", False), ("", "", False)],
)
def test_only_two_known_identities_can_differ(mine: str, theirs: str, foreign: bool) -> None:
    assert is_foreign(mine, theirs) is foreign


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 4))
def test_a_node_is_outranked_by_epochs_that_it_did_not_open(
    mine: int, theirs: int, terms: int
) -> None:
    term = next_restart(0, mine)
    later = next_promotion(term, terms * TERM, theirs)
    slave = replace(SLAVE, epoch=later, epochs=[Epoch(term, 0), Epoch(later, 500)])
    assert is_outranked(term, mine, slave) is (mine != theirs)
    assert is_outranked(later, mine, slave) is False
    assert is_outranked(term, mine, replace(slave, state="master"))


@given(st.integers(0, 5))
def test_what_a_node_opened_itself_and_has_forgotten_does_not_outrank_it(opener: int) -> None:
    first = next_restart(0, opener)
    again = next_restart(first, opener)
    slave = replace(SLAVE, epoch=again, epochs=[Epoch(first, 0)])
    assert not is_outranked(first, opener, slave), "it opened that, and lost it"
    wiped = replace(SLAVE, epoch=first, epochs=[Epoch(first, 0)])
    assert not is_outranked(0, opener, wiped)


@given(st.integers(0, 5))
def test_a_fence_outranks_whoever_it_fences(opener: int) -> None:
    term = next_restart(0, opener)
    fenced = replace(SLAVE, epoch=next_term(term), epochs=[Epoch(term, 0)])
    assert is_outranked(term, opener, fenced)
    assert is_outranked(0, opener, fenced), "a wiped node must not lead past a promotion"


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 2000))
def test_nothing_below_the_floor_is_cut_but_by_force(offset: int, end: int, floor: int) -> None:
    refused = may_cut(offset, end, floor, TERM, [])
    assert bool(refused) is (offset < end and offset < floor)
    assert may_cut(offset, end, floor, TERM, [TERM]) == refused, "both logs have that epoch"
    assert not may_cut(offset, end, floor, TERM, [TERM, 2 * TERM])
    if refused:
        assert f"{offset} to {min(end, floor)}" in refused
        assert "--force" in refused


def test_who_has_lost_what_it_had_cannot_say_what_the_group_had() -> None:
    assert is_witness(ONE, TERM, SLAVE, known=True)
    assert is_witness("", 0, SLAVE, known=False), "the master lost all, its slave knows the group"
    assert not is_witness(ONE, TERM, replace(SLAVE, identity=""), known=True), "wiped"
    assert not is_witness(ONE, TERM, replace(SLAVE, lacks="the log"), known=True)
    assert not is_witness(OTHER, TERM, SLAVE, known=True)
    empty = replace(SLAVE, end=0, epochs=[])
    assert is_witness(ONE, TERM, replace(empty, identity="", epoch=0), known=False), (
        "it never had any"
    )
    assert is_witness(ONE, TERM, empty, known=True), "nor has this log"
    assert not is_witness("", 0, empty, known=False), (
        "it heard of a master, and may not have followed"
    )


@given(st.integers(0, 6), st.integers(1, 4))
def test_one_of_those_heard_has_whatever_was_acknowledged(slaves: int, required: int) -> None:
    needed = words_needed(slaves, required, may_lack=True)
    holders = required - 1
    if slaves >= holders > 0:
        assert needed <= slaves
        assert slaves - needed < holders, "those not heard are fewer than have it"
    assert words_needed(slaves, required, may_lack=False) == max(1, holders) <= needed


@given(st.integers(2, 9), st.integers(1, 9))
def test_nobody_acknowledges_without_one_that_promised_a_master_its_new_term(
    copies: int, required: int
) -> None:
    required = min(required, copies)
    promised = 1 + promises_needed(copies, required)  # the master itself is one
    assert 2 <= promised <= copies
    assert required > copies - promised

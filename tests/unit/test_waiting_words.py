"""How a master that waits for its slaves' word tells an operator whom it misses, and the way
out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication.events import Me
from saturnmq.broker.replication.introductions import MemberState
from saturnmq.broker.replication.role import Role
from saturnmq.broker.replication.words import Words
from saturnmq.protocol.epochs import TERM
from saturnmq.store.log.epochs import Epoch

GROUP = "1" * 32


def slave(number: int, *, end: int = 1000, lacks: str = "") -> MemberState:
    return MemberState(
        name="broker-a",
        identity=GROUP,
        broker_id=number,
        address=f"slave-{number}:1",
        ha_address=f"slave-{number}:2",
        state="slave",
        epoch=TERM,
        epochs=[Epoch(TERM, 0)] if end else [],
        start=0,
        end=end,
        floor=0,
        lacks=lacks,
        free_id=0,
        decided=False,
        replicas={},
    )


@pytest.fixture
def words() -> Words:
    """Of a master with three slaves, of which two have to be heard after a crash."""
    role = Role(BrokerConfig(broker_name="broker-a", role="SYNC_MASTER", in_sync_replicas=3))
    role.identity = GROUP
    role.replicas = {number: f"slave-{number}:1" for number in (1, 2, 3)}
    words = Words(Me("broker-a", 0, "master:1", 1 << 20), role)
    words.may_lack = True
    return words


def test_it_says_how_many_slaves_it_needs_and_from_whom_it_has_not_heard(words: Words) -> None:
    assert words.missing.startswith(
        "2 of its slaves (slave-1:1, slave-2:1, slave-3:1) must say what they have; "
        "not heard yet: slave-1:1, slave-2:1, slave-3:1. "
    )
    words.take(slave(2), GROUP)
    assert "not heard yet: slave-1:1, slave-3:1. " in words.missing


def test_a_slave_that_has_lost_its_log_is_not_told_to_be_started(words: Words) -> None:
    words.take(slave(1, lacks="its disk is empty"), GROUP)
    assert "not heard yet: slave-2:1, slave-3:1; " in words.missing
    assert "their own disk lacks something or is of another group: slave-1:1. " in words.missing


def test_a_slave_that_nobody_of_the_last_epoch_knows_has_no_word(words: Words) -> None:
    """A slave that is known may have been promoted, and the newcomer has promised it nothing."""
    words._role.log_epoch = 3 * TERM
    words.may_lack = False
    words._role.required = 2
    words.take(slave(4), GROUP)
    assert not words.enough
    words.take(replace(slave(4), epochs=[Epoch(TERM, 0), Epoch(3 * TERM, 500)]), GROUP)
    assert words.enough, "it has followed a master of the last epoch"
    words.forget()
    words.take(slave(1), GROUP)
    assert words.enough, "it is one of the slaves that are known"


def test_it_names_the_command_that_goes_on_without_them(words: Words) -> None:
    assert words.missing.endswith("`saturnmq admin promote broker-a master:1 --force`")

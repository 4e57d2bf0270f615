"""The record of a group is read as it was written, and no other one is used."""

from __future__ import annotations

import pytest
from election_rig import IDENTITY, PREFIX, TERM, address, master
from etcd_model import ModelEtcd
from saturnmq.broker.etcd.door import Put
from saturnmq.broker.replication.group_record import GroupRecord, read_record
from saturnmq.protocol.epochs import EPOCH_MAX
from saturnmq.runtime.errors import MalformedFrame

A, B, C = address("a"), address("b"), address("c")

GOOD = GroupRecord(
    IDENTITY,
    A,
    "a:10912",
    TERM,
    2 * TERM,
    frozenset({A, B}),
    5,
    {B: 2 * TERM},
    members=frozenset({A, B, C}),
)


def test_a_record_is_read_as_it_was_written() -> None:
    assert read_record(GOOD.to_bytes()) == GOOD


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":1', b'"version":2'),
        (b'"epoch":100000', b'"epoch":' + b"9" * 400),
        (b'"epoch":100000', b'"epoch":0'),
        (b'"epoch":100000', b'"epoch":300000'),  # more than was ever given
        (b'"given":200000', b'"given":' + str(EPOCH_MAX + 1).encode()),
        (b'"given":200000', b'"given":150000'),  # less than a claim
        (b'"confirmed":5', b'"confirmed":-5'),
        (b'"confirmed":5', b'"confirmed":"x"'),
        (IDENTITY.encode(), b"no identity"),
        (IDENTITY.encode(), b""),
        (b'"master":"a:10911"', b'"master":"a"'),
        (b'"master":"a:10911"', b'"master":7'),
        (b'"inSync":[', b'"inSync":[7,'),
        (b'"members":[', b'"members":["a",'),
        (b'"priority":2147483647', b'"priority":-1'),
        (b"{", b"["),
        (b"}", b""),
    ],
)
def test_a_record_that_nobody_writes_is_not_used(old: bytes, new: bytes) -> None:
    value = GOOD.to_bytes()
    assert old in value
    broken = value.replace(old, new)
    with pytest.raises((MalformedFrame, ValueError)):
        read_record(broken)
    etcd = ModelEtcd()
    etcd.commit([], [Put(f"{PREFIX}record", broken)], 0.0)
    node = master(etcd)
    assert node.until(0.0, 3.0) == []
    assert "remove it" in node.election.trouble(3.0, node.facts)

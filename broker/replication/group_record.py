"""The record that etcd keeps of a group, and the notes of a node about its etcd. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saturnmq.broker.etcd.door import KeyValue, Snapshot
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.epochs import EPOCH_MAX
from saturnmq.runtime.errors import MalformedFrame

MEMBERS_MAX = 100
PRIORITY_MAX = (1 << 31) - 1  # RocketMQ's default: not preferred


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The record that etcd keeps of a group."""

    identity: str
    master: str  # its address; the node of broker id 0
    ha_address: str
    epoch: int  # the master's
    given: int  # the highest that any candidate was given, or the master has
    in_sync: frozenset[str]  # addresses; the master's is one of them
    confirmed: int  # up to there each of them has the log
    claims: dict[str, int]  # epochs that candidates were given, who have not withdrawn
    priority: int = PRIORITY_MAX  # the master's
    members: frozenset[str] = frozenset()  # addresses, that of the master among them

    def validate(self) -> None:
        """Check the values. AssertionError: no broker writes such a record; one that was read may
        have them."""
        assert self.identity, "the record of no group"
        assert self.master, f"the record of {self.identity} names no master"
        assert 0 < self.epoch <= self.given, f"epoch {self.epoch}, and {self.given} was given"
        assert self.confirmed >= 0, f"{self.confirmed} is confirmed"
        for who, epoch in self.claims.items():
            assert 0 < epoch <= self.given, f"{who} claims {epoch}, and {self.given} was given"

    def to_bytes(self) -> bytes:
        self.validate()
        return fastjson.dumps(
            {
                "version": 1,
                "identity": self.identity,
                "masterId": 0,
                "master": self.master,
                "haAddress": self.ha_address,
                "epoch": self.epoch,
                "given": self.given,
                "claims": self.claims,
                "inSync": sorted(self.in_sync),
                "members": sorted(self.members),
                "confirmed": self.confirmed,
                "priority": self.priority,
            }
        )


def read_record(value: bytes) -> GroupRecord:
    """Read the record of a group. MalformedFrame: no broker writes such a record."""
    document = checked.document(value)
    if checked.integer(document, "version") != 1:
        raise MalformedFrame(f"version {document['version']} of a record is not known here")
    given = checked.integer(document, "given", least=1, most=EPOCH_MAX)
    record = GroupRecord(
        identity=checked.identity(document, "identity"),
        master=checked.as_address(checked.text(document, "master")),
        ha_address=checked.as_address(checked.text(document, "haAddress")),
        epoch=checked.integer(document, "epoch", least=1, most=EPOCH_MAX),
        given=given,
        in_sync=addresses(document, "inSync"),
        confirmed=checked.integer(document, "confirmed"),
        claims={
            checked.as_address(member): checked.as_integer(epoch, "a claim", least=1, most=given)
            for member, epoch in checked.table(document, "claims").items()
        },
        priority=checked.integer(document, "priority", most=PRIORITY_MAX),
        members=addresses(document, "members"),
    )
    if not record.identity or record.given < record.epoch or len(record.claims) > MEMBERS_MAX:
        raise MalformedFrame(f"epoch {record.epoch} of group {record.identity!r} is impossible")
    return record


def addresses(document: Mapping[str, Any], name: str) -> frozenset[str]:
    """The list of addresses under `name`. MalformedFrame: it is no such list."""
    each = checked.items(document, name, MEMBERS_MAX)
    return frozenset(checked.as_address(checked.as_text(one, "a member")) for one in each)


@dataclass
class Memory:
    """A node's notes about its etcd, kept through restarts (`config/election.json`)."""

    cluster: int = 0
    revision: int = 0
    record_changed: int = 0  # the revision of the newest record that was seen
    members: frozenset[str] = frozenset()  # the members in that record; empty: there was none
    forgot: str = ""  # why this etcd is not believed any more

    def check(self, snapshot: Snapshot, record: KeyValue | None) -> None:
        """Note what etcd says; or that it has forgotten what it said before."""
        if self.forgot:
            return
        if self.cluster and snapshot.cluster != self.cluster:
            what = f"this is etcd cluster {snapshot.cluster:x}, it was {self.cluster:x}"
        elif snapshot.revision < self.revision:
            what = f"etcd is at revision {snapshot.revision}, it was at {self.revision}"
        elif record is not None and record.changed < self.record_changed:
            what = f"the record is of revision {record.changed}, it was of {self.record_changed}"
        else:
            self.cluster, self.revision = snapshot.cluster, snapshot.revision
            self.record_changed = record.changed if record is not None else self.record_changed
            return
        self.forgot = (
            f"{what}: etcd was replaced, or restored from an old snapshot, and its record of this "
            "group is old. Check etcdEndpoints; if they are right, stop all nodes of the group, "
            "delete the group's record there (`etcdctl del`), remove config/election.json and its "
            ".bak of each node, and start them again"
        )

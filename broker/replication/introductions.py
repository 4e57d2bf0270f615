"""How the nodes of a group introduce themselves: HELLO, JOIN and REPLICA_STATE, read and checked.

Each is a JSON document with the same facts about a node and its log. HELLO adds the group's members
and settings, JOIN the offset to go on at. A value of another type or out of its bounds raises
MalformedFrame, which names it: nothing of such a document is acted on. `ceiling`: no epoch above it
is believed (`Role.ceiling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from saturnmq.broker.context import Context
from saturnmq.broker.replication.role import REPLICAS_MAX
from saturnmq.protocol import checked
from saturnmq.runtime.errors import MalformedFrame
from saturnmq.store.log.epochs import Epoch

VERSION = 1
EPOCHS_MAX = 100_000


@dataclass(frozen=True)
class MemberState:
    """A node as it introduces itself; offsets in bytes of its log."""

    name: str  # of its group
    identity: str  # of its group; empty if it does not know
    broker_id: int
    address: str
    ha_address: str
    state: str  # of its role, as `Role.state_name`
    epoch: int  # it serves and follows none below
    epochs: list[Epoch]  # of its log
    start: int
    end: int
    floor: int  # the position that it knows to be confirmed with copies
    lacks: str  # the part of the log that it has lost; empty if it lacks nothing
    free_id: int  # for a new slave; 0: not given
    decided: bool  # a promotion gave it its role and id, not its configuration
    replicas: dict[int, str]  # the slaves of its group that it knows, by id
    leads_in: int = 0  # the epoch of its term, as `Role.leads_in`
    forced: frozenset[int] = frozenset()  # epochs that an operator opened by force

    @property
    def group(self) -> str:
        """The identity of its log's group; empty if it is not known, or if the log is empty."""
        return self.identity if self.end else ""

    @property
    def term(self) -> int:
        """The newest epoch of its log; 0: none."""
        return self.epochs[-1].number if self.epochs else 0

    @property
    def position(self) -> tuple[int, int]:
        """The newness of its log: of two members, the one with the greater position has the newer
        log."""
        written = (epoch for epoch, start in reversed(self.epochs) if start < self.end)
        return next(written, 0), self.end


@dataclass(frozen=True)
class Hello(MemberState):
    """The introduction of a master."""

    confirmed: int = 0
    segment_bytes: int = 0
    sync_flush: bool = False
    required: int = 1

    @property
    def settled(self) -> int:
        """A position at or behind everything that the group had confirmed. A master that has just
        started does not know how much that is, but all of it lies before its epoch."""
        return max(self.confirmed, self.epochs[-1].start if self.epochs else 0)


@dataclass(frozen=True)
class Check:
    """The checksum of a log over [start, end)."""

    start: int
    end: int
    crc: int


@dataclass(frozen=True)
class Join(MemberState):
    """The introduction of a slave: with an `offset` it wants the log from there."""

    offset: int | None = None
    check: Check | None = None
    asks: bool = False  # it would cut its log at `offset`, and asks whether the rest is the same
    tail: bool = False  # a recovering master, which wants the part that it lost
    conflict: str = ""  # why it does not follow: it would lose confirmed messages


def introduce(c: Context) -> dict[str, Any]:
    """The facts about this node that every introduction has."""
    role, marks = c.role, c.store.watermarks
    return {
        "version": VERSION,
        "brokerName": c.config.broker_name,
        "identity": role.identity,
        "brokerId": role.broker_id,
        "address": c.address,
        "haAddress": c.ha_address,
        "role": role.state_name,
        "epoch": role.promised_epoch,
        "epochs": c.epochs.to_json(),
        "start": marks.start,
        "end": marks.appended,
        "floor": role.floor,
        "lacks": role.lacks,
        "decided": role.decided,
        "leadsIn": role.leads_in,
        "forced": role.forced,
        "replicas": {str(i): address for i, address in sorted(role.replicas.items())},
    }


def read_member(document: object, ceiling: int) -> MemberState:
    """REPLICA_STATE of another node."""
    return MemberState(**_member(checked.as_table(document, "the state of a replica"), ceiling))


def read_hello(document: Mapping[str, Any], ceiling: int) -> Hello:
    return Hello(
        **_member(document, ceiling),
        confirmed=checked.integer(document, "confirmed", 0),
        segment_bytes=checked.integer(document, "segmentBytes"),
        sync_flush=document.get("syncFlush") is True,
        required=_required(document),
    )


def read_join(document: Mapping[str, Any], ceiling: int) -> Join:
    check = checked.items(document, "check")
    if len(check) not in (0, 3):
        raise MalformedFrame("field 'check' is not a start, an end and a checksum")
    return Join(
        **_member(document, ceiling),
        offset=checked.integer(document, "from") if "from" in document else None,
        check=Check(*(checked.as_integer(n, "of field 'check'") for n in check)) if check else None,
        asks=document.get("asks") is True,
        tail=document.get("tail") is True,
        conflict=checked.text(document, "conflict", ""),
    )


def read_refusal(document: Mapping[str, Any]) -> tuple[int, tuple[int, int] | None]:
    """Read a REFUSE: the id that the slave takes instead of its own, if any, and the part where its
    log differs."""
    differs = checked.items(document, "differs")
    if len(differs) not in (0, 2):
        raise MalformedFrame("field 'differs' is not a start and an end")
    start, end = (checked.as_integer(n, "of field 'differs'") for n in differs or (0, 0))
    free_id = checked.integer(document, "freeId", 0, most=REPLICAS_MAX)
    return free_id, (start, end) if differs else None


def read_group(document: Mapping[str, Any]) -> tuple[int, dict[int, str]]:
    """Read a GROUP: the copies that a send waits for, and the slaves by id."""
    return _required(document), _replicas(document)


def _required(document: Mapping[str, Any]) -> int:
    return checked.integer(document, "required", 1, least=1, most=REPLICAS_MAX)


def _replicas(document: Mapping[str, Any]) -> dict[int, str]:
    replicas = checked.table(document, "replicas")
    if len(replicas) > REPLICAS_MAX:
        raise MalformedFrame(f"{len(replicas)} replicas: a group has at most {REPLICAS_MAX}")
    return {
        checked.as_integer(broker_id, "the id of a replica"): checked.as_address(
            checked.as_text(address, "the address of a replica")
        )
        for broker_id, address in replicas.items()
    }


def _member(document: Mapping[str, Any], ceiling: int) -> dict[str, Any]:
    epochs = [_epoch(pair, ceiling) for pair in checked.items(document, "epochs")]
    if len(epochs) > EPOCHS_MAX or any(
        a.number >= b.number or a.start > b.start for a, b in pairwise(epochs)
    ):
        raise MalformedFrame("field 'epochs' does not rise")
    ha_address = checked.text(document, "haAddress", "")
    return {
        "name": checked.text(document, "brokerName"),
        "identity": checked.identity(document, "identity"),
        "broker_id": checked.integer(document, "brokerId", 0),
        "address": checked.as_address(checked.text(document, "address")),
        "ha_address": checked.as_address(ha_address) if ha_address else "",
        "state": checked.text(document, "role", ""),
        "epoch": checked.integer(document, "epoch", most=ceiling),
        "epochs": epochs,
        "start": checked.integer(document, "start", 0),
        "end": checked.integer(document, "end", 0),
        "floor": checked.integer(document, "floor", 0),
        "lacks": checked.text(document, "lacks", ""),
        "free_id": checked.integer(document, "freeId", 0),
        "decided": document.get("decided") is True,
        "replicas": _replicas(document),
        "leads_in": checked.integer(document, "leadsIn", 0, most=ceiling),
        "forced": frozenset(
            checked.as_integer(epoch, "a forced epoch", least=1, most=ceiling)
            for epoch in checked.items(document, "forced")
        ),
    }


def _epoch(pair: object, ceiling: int) -> Epoch:
    if not isinstance(pair, list) or len(pair) != 2:
        raise MalformedFrame("an epoch is not a number and the offset where it begins")
    return Epoch(
        checked.as_integer(pair[0], "an epoch", most=ceiling),
        checked.as_integer(pair[1], "the start of an epoch"),
    )

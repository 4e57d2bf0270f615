"""The members of broker groups as they are now: their roles, and how far each log is.

Members are found through every nameserver (106), because one may have been away when a member
registered, and through what members report of each other (REPLICA_STATE, ours): a node in no route
may still live. Brokers of RocketMQ do not know REPLICA_STATE; they are listed with the nameserver's
answer only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID, brokers_of, deposed_of
from saturnmq.protocol.signing import ask_signed, unproven
from saturnmq.runtime.errors import (
    MalformedFrame,
    RequestTimeout,
    RouteNotFound,
    SaturnError,
    error_for,
    nearest,
)

ASK_TIMEOUT_S = 2.0
ASKED = frozenset({0, ResponseCode.SIGNATURE_NEEDED})
ROUNDS = 3  # rounds of asking the members that the last round named


@dataclass(frozen=True, slots=True)
class Truncation:
    """The part of the log that a deposed master had and its successor lacks: cut off, and kept in a
    file."""

    start: int
    end: int
    epoch: int
    file: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One member of a group. With an `error` it did not report its state; the other fields come
    from other nodes."""

    group: str
    broker_id: int
    address: str
    role: str = "unknown"  # master, slave, recovering, fenced, unsure
    identity: str = ""  # of its group; nodes of other groups do not count
    epoch: int = 0
    epochs: tuple[tuple[int, int], ...] = ()  # (epoch, offset where it began)
    start: int = 0
    end: int = 0
    flushed: int = 0
    confirmed: int = 0
    floor: int = 0  # the group has confirmed the log up to there with copies
    lacks: str = ""  # the part of its log that it has lost
    forced: tuple[int, ...] = ()  # epochs that an operator opened by force
    required: int = 1
    caught_up: bool = True  # it has had all that its master confirmed since it started
    master: str = ""
    refuses: str = ""  # why it takes no writes
    full: str = ""  # why it has no room for messages
    trouble: str = ""  # why it does not follow
    no_failover: str | None = None  # why no node can be elected now; None: the group never elects
    # Nodes that do not sign with its replicationSecret and are let in while that is not required.
    let_in: tuple[str, ...] = ()
    others: Mapping[int, str] = field(default_factory=dict)  # the slaves that it knows
    total: int = 0  # copies by its configuration; 0: unknown
    truncated: tuple[Truncation, ...] = ()
    in_sync: bool | None = None  # as the master says; None if it does not say
    lag_bytes: int | None = None
    lag_ms: int | None = None
    error: str = ""
    # A master reports of its slaves: in sync, lag in bytes and in ms; by broker id.
    slave_reports: Mapping[int, tuple[bool, int | None, int | None]] = field(default_factory=dict)

    @property
    def answers(self) -> bool:
        return not self.error

    @property
    def is_master(self) -> bool:
        return self.role == "master"

    @property
    def _had_all(self) -> bool:
        """Whether it had all that was confirmed. A log without epochs came from RocketMQ's master,
        which does not tell that; a group without a message has none yet."""
        return self.caught_up and (bool(self.epochs) or not self.end)

    @property
    def may_lack(self) -> bool:
        """Whether the node itself says that it may lack acknowledged messages: a master that
        starts, a slave that has not caught up since it started, a node that has lost a part of
        its log."""
        return (
            bool(self.lacks)
            or self.role in ("recovering", "unsure")
            or (self.role in ("slave", "fenced") and not self._had_all)
        )

    @property
    def position(self) -> tuple[int, int]:
        """The age of its log; positions of two members can be compared. An epoch without any
        message makes no difference."""
        written = (epoch for epoch, start in reversed(self.epochs) if start < self.end)
        return next(written, 0), self.end


def parse_state(body: bytes, address: str) -> Replica:
    """Parse the body of REPLICA_STATE, which `address` sent."""
    try:
        state = checked.document(body)
        in_sync = {_number(broker_id) for broker_id in checked.items(state, "inSync")}
        ms_behind = _numbers(state, "lagMs")
        return Replica(
            group=checked.text(state, "brokerName"),
            broker_id=checked.integer(state, "brokerId"),
            address=checked.text(state, "address", "") or address,
            role=checked.text(state, "role"),
            epoch=checked.integer(state, "epoch"),
            epochs=tuple(
                (_number(epoch), _number(start))
                for epoch, start in map(_pair, checked.items(state, "epochs"))
            ),
            start=checked.integer(state, "start", 0),
            end=checked.integer(state, "end"),
            flushed=checked.integer(state, "flushed", 0),
            confirmed=checked.integer(state, "confirmed", 0),
            identity=checked.text(state, "identity", ""),
            floor=checked.integer(state, "floor", 0),
            lacks=checked.text(state, "lacks", ""),
            forced=tuple(map(_number, checked.items(state, "forced"))),
            required=checked.integer(state, "required", 1),
            caught_up=state.get("caughtUp") is not False,
            master=checked.text(state, "master", ""),
            refuses=checked.text(state, "refuses", ""),
            full=checked.text(state, "full", ""),
            trouble=checked.text(state, "trouble", ""),
            no_failover=None
            if state.get("noFailover") is None
            else checked.text(state, "noFailover"),
            let_in=tuple(checked.texts(state, "letIn")),
            total=checked.integer(state, "total", 0),
            others={
                _number(broker_id): checked.as_text(other, "the address of a replica")
                for broker_id, other in checked.table(state, "replicas").items()
            },
            truncated=tuple(map(_truncation, checked.items(state, "truncated"))),
            slave_reports={
                broker_id: (broker_id in in_sync, behind, ms_behind.get(broker_id))
                for broker_id, behind in _numbers(state, "lagBytes").items()
            },
        )
    except MalformedFrame as error:
        raise SaturnError(f"{address} reports a state that does not parse: {error}") from None


def _truncation(value: object) -> Truncation:
    cut = checked.as_table(value, "a truncation")
    return Truncation(
        checked.integer(cut, "from"),
        checked.integer(cut, "to"),
        checked.integer(cut, "epoch", 0),
        checked.text(cut, "file", ""),
        checked.integer(cut, "timeMs", 0),
    )


def _number(value: object) -> int:
    return checked.as_integer(value, "a number of the state", least=-1)


def _numbers(state: Mapping[str, Any], name: str) -> dict[int, int]:
    return {_number(key): _number(value) for key, value in checked.table(state, name).items()}


def _pair(value: object) -> list[Any]:
    if isinstance(value, list) and len(value) == 2:
        return value
    raise MalformedFrame("an epoch is not a number and the offset where it begins")


async def ask_state(core: ClientCore, address: str, timeout_s: float = ASK_TIMEOUT_S) -> Replica:
    """The state of one node; raises a SaturnError if the node does not report it."""
    return await ask_node(core, address, Command.request(RequestCode.REPLICA_STATE), timeout_s)


async def ask_node(core: ClientCore, address: str, command: Command, timeout_s: float) -> Replica:
    """The state that a node answers to `command`, which is signed if this client has the brokers'
    secret."""
    signing = core.signing
    try:
        async with asyncio.timeout(timeout_s):
            answer = await ask_signed(
                signing, address, command, lambda each: core.invoke(address, each, timeout_s, ASKED)
            )
    except TimeoutError:
        raise RequestTimeout(f"{address} does not answer in {timeout_s:g} s") from None
    if answer.command.code:
        raise error_for(answer.command.code, answer.command.remark)
    if signing.refuses and not answer.is_proven:
        raise unproven(address)
    return parse_state(bytes(answer.command.body), address)


async def find_replicas(core: ClientCore, group: str | None = None) -> list[Replica]:
    """Every member of one group or of all, by group and broker id."""
    listed = await _listed(core, group)
    if group is not None and not listed:
        names = sorted({name for name, _ in (await _listed(core, None)).values()})
        known = f"; the groups are {', '.join(names)}" if names else "; no broker is registered"
        raise RouteNotFound(
            f"no broker is called {group!r}{nearest(group, names) or known}. A group that no "
            "nameserver lists has no living member: start one"
        )
    return await _ask_all(core, listed)


async def find_members(core: ClientCore, group: str, addresses: Iterable[str]) -> list[Replica]:
    """The members of one group at these addresses, and the members that they name. No nameserver is
    asked."""
    return await _ask_all(core, dict.fromkeys(addresses, (group, -1)))


async def _ask_all(core: ClientCore, listed: dict[str, tuple[str, int]]) -> list[Replica]:
    """The states of the listed nodes and of the nodes that they name."""
    found: dict[str, Replica] = {}
    asking = dict.fromkeys(listed)
    for _ in range(ROUNDS):
        replicas = await asyncio.gather(
            *(_state_or_error(core, address, listed[address]) for address in asking)
        )
        found.update((replica.address, replica) for replica in replicas)
        asking = {}
        for replica in replicas:
            named = {**replica.others, MASTER_ID: replica.master}
            for broker_id, address in named.items():
                if address and address not in found:
                    asking[address] = None
                    listed.setdefault(address, (replica.group, broker_id))
    return _with_lags(found.values())


async def _listed(core: ClientCore, group: str | None) -> dict[str, tuple[str, int]]:
    """Group and broker id of every address that any nameserver lists."""
    answers = await core.invoke_each(
        core.nameservers, RequestCode.GET_BROKER_CLUSTER_INFO, {}, b"", ASK_TIMEOUT_S
    )
    reason: BaseException | None = None
    known: list[dict[str, tuple[str, int]]] = []
    for answer in answers.values():
        try:
            known += [members_in(answer)] if isinstance(answer, Command) else []
        except MalformedFrame as error:
            reason = error
        reason = answer if isinstance(answer, BaseException) else reason
    if not known:
        raise reason or RouteNotFound("no nameserver is known")
    return {
        address: member
        for members in known
        for address, member in members.items()
        if group in (None, member[0])
    }


def members_in(answer: Command) -> dict[str, tuple[str, int]]:
    """Group and broker id by address, from a nameserver's answer to GET_BROKER_CLUSTER_INFO (106).
    Masters that are in no route, because there is one of a later epoch, are included."""
    document = checked.document(answer.body)
    deposed = deposed_of(document)
    found = {address: (name, MASTER_ID) for name in deposed for address in deposed[name]}
    for data in brokers_of(document):
        found |= {address: (data.broker_name, i) for i, address in data.addresses.items()}
    return found


async def _state_or_error(core: ClientCore, address: str, listed: tuple[str, int]) -> Replica:
    try:
        return await ask_state(core, address)
    except SaturnError as problem:
        group, broker_id = listed
        return Replica(group, broker_id, address, error=str(problem))


def _with_lags(replicas: Iterable[Replica]) -> list[Replica]:
    """Add to every slave what its master reports of it: of two the newer one, since the other may
    not know of it yet."""
    found = sorted(replicas, key=lambda replica: (replica.group, replica.broker_id))
    by_age = sorted(found, key=lambda replica: replica.epoch)
    masters = {replica.group: replica for replica in by_age if replica.is_master}
    result = []
    for replica in found:
        master = masters.get(replica.group)
        if master is None or replica.is_master:
            result.append(replica)
            continue
        # By address, too: if two slaves have one id by mistake, only one of them follows.
        follows = master.others.get(replica.broker_id, replica.address) == replica.address
        report = master.slave_reports.get(replica.broker_id) if follows else None
        in_sync, lag_bytes, lag_ms = report or (False, None, None)
        if lag_bytes is None and replica.answers:
            lag_bytes = max(0, master.end - replica.end)
        result.append(replace(replica, in_sync=in_sync, lag_bytes=lag_bytes, lag_ms=lag_ms))
    return result

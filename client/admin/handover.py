"""Handing over healthy groups: who takes over, and what the stop of a node costs.

Nothing is ever forced here. A master hands its group over (`client/admin/promotion.py`) to a slave
that answers, that the master counts in sync and that is near its end. Otherwise the request is
refused with nothing changed, or the old master leads on. Of several slaves the one with the lowest
`brokerElectionPriority` takes over, if the group elects its masters, else the one that is furthest
ahead.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from saturnmq.client.admin.promotion import TIMEOUT_S, Promoter, Promotion, find_member, leader
from saturnmq.client.admin.replicas import ASK_TIMEOUT_S, Replica, find_members, find_replicas
from saturnmq.client.core import ClientCore
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter, NoPermission, SaturnError, nearest

LOOK_S = 0.1
NOT_CAUGHT_UP = "has not had all that was confirmed since it started"
PRIORITY = "brokerElectionPriority"
NOT_PREFERRED = (1 << 31) - 1  # RocketMQ's default


@dataclass(frozen=True, slots=True)
class Drained:
    """A node that leads nothing, or, in a preview, a node that would lead nothing."""

    group: str
    node: str
    led: bool  # it is or was the master
    master: str  # the master afterwards; empty if there is none
    risk: str  # the cost to the group while the node is stopped; empty: none


class Succession:
    """Changes of masters that lose nothing and fail no send."""

    def __init__(
        self,
        core: ClientCore,
        *,
        timeout_s: float = TIMEOUT_S,
        addresses: Sequence[str] = (),
    ) -> None:
        """`timeout_s`: the time for a slave to come near, before anything changes. `addresses`:
        members are found through these, not through nameservers."""
        self._core = core
        self._timeout = timeout_s
        self._addresses = addresses

    async def hand_over(self, group: str, node: str | int | None = None) -> Promotion:
        """Make `node`, or the preferred slave, the master."""
        members = await self._members(group)
        target = await self._target(members, node)
        done = await self._promoter(group).hand_over(members, target)
        await self._settled(group, done.old_master, done.master)
        return done

    async def preview(self, group: str, node: str | int | None = None) -> Replica:
        """The member that `hand_over` would make the master."""
        return await self._target(await self._members(group), node)

    async def _target(self, members: Sequence[Replica], node: str | int | None) -> Replica:
        if node is None:
            return await self.successor(members)
        target = find_member(members, node)
        _check(members, target)
        return target

    async def successor(self, members: Sequence[Replica], avoid: Collection[str] = ()) -> Replica:
        """The member that should take over from the master of these members; never one at an
        address in `avoid`."""
        master = _master(members)
        others = [m for m in members if m is not master and m.address not in avoid]
        able = [member for member in others if not _unable(member, master)]
        if not able:
            why = "; ".join(f"{member.address} {_unable(member, master)}" for member in others)
            raise NoPermission(
                f"no node can take {master.group} over from {master.address}: "
                f"{why or 'it has no other member'}"
            )
        priorities = [0] * len(able)
        if master.no_failover is not None:
            priorities = await asyncio.gather(*(self._priority(each.address) for each in able))
        ranked = zip(priorities, able, strict=True)
        return min(
            ranked, key=lambda each: (each[0], *(-x for x in each[1].position), each[1].broker_id)
        )[1]

    async def drain(self, node: str, *, preview: bool = False) -> list[Drained]:
        """Make every member that `node` names (an address, a host or an id) lead nothing. With
        `preview` nothing changes."""
        members = await self._members(None)
        named = find_nodes(members, node)
        avoid = {member.address for member in named}
        planned = []
        for member in named:
            group = [each for each in members if each.group == member.group]
            master = leader(group)
            leads = master is not None and master.address == member.address
            planned.append((member, group, master, leads))
        # None is handed over unless each of them can be.
        successors = [
            await self.successor(group, avoid) if leads else master
            for _, group, master, leads in planned
        ]
        drained: list[Drained] = []
        for (member, group, _, leads), master in zip(planned, successors, strict=True):
            now = group
            if leads and master is not None and not preview:
                try:
                    await self._promoter(member.group).hand_over(group, master)
                except SaturnError as error:
                    over = [f"{each.group} to {each.master}" for each in drained if each.led]
                    if not over:
                        raise
                    raise _half_way(error, member, over) from error
                now = await self._settled(member.group, member.address, master.address)
            address = master.address if master is not None else ""
            risk = _risk(now, avoid, address)
            drained.append(Drained(member.group, member.address, leads, address, risk))
        return drained

    async def _members(self, group: str | None) -> list[Replica]:
        if group is not None and self._addresses:
            return await find_members(self._core, group, self._addresses)
        return await find_replicas(self._core, group)

    def _promoter(self, group: str) -> Promoter:
        return Promoter(self._core, group, force=False, timeout_s=self._timeout, asks=True)

    async def _settled(self, group: str, old: str, new: str) -> list[Replica]:
        """The members once the old master follows and the new one takes writes, or as they are at
        the deadline."""
        runtime = self._core.runtime
        deadline = runtime.monotonic() + self._timeout
        while True:
            members = await find_members(self._core, group, [old, new])
            states = {member.address: member for member in members}
            follows = old in states and states[old].in_sync
            serves = new in states and not states[new].refuses
            if (follows and serves) or runtime.monotonic() >= deadline:
                return members
            await runtime.sleep(LOOK_S)

    async def _priority(self, address: str) -> int:
        """The priority of a node by its configuration; a lower number is preferred."""
        command = Command.request(RequestCode.GET_BROKER_CONFIG)
        try:
            answer = await self._core.invoke(address, command, ASK_TIMEOUT_S)
            lines = bytes(answer.body).decode().splitlines()
            return int(dict(line.partition("=")[::2] for line in lines)[PRIORITY])
        except (SaturnError, ValueError, KeyError):
            return NOT_PREFERRED


def find_nodes(members: Sequence[Replica], node: str) -> list[Replica]:
    """The members of any groups that an address or a host names, or the one of this id."""
    addresses = [member.address for member in members]
    found = [member for member in members if node in _names(member)]
    if not found:
        found = [member for member in members if node == str(member.broker_id)]
        if len(found) > 1:
            known = ", ".join(f"{member.address} of {member.group}" for member in found)
            raise InvalidParameter(f"id {node} is that of {known}: give an address")
    if not found:
        raise InvalidParameter(
            f"{node!r} names no broker{nearest(node, addresses)}: give the address of one of "
            f"{', '.join(addresses) or 'none that is registered'}"
        )
    for member in found:
        if not member.answers:
            raise NoPermission(
                f"{member.address} of {member.group} does not answer, so it hands nothing over: "
                f"{member.error}"
            )
    return found


def _half_way(error: SaturnError, member: Replica, over: Sequence[str]) -> SaturnError:
    """The failure of a drain at the group of `member`, with what is handed over already."""
    told = copy.copy(error)
    told.args = (
        f"{member.address} did not hand {member.group} over: {error}. Handed over before, and left "
        f"so: {', '.join(over)}. Drain again to go on",
    )
    return told


def _names(member: Replica) -> tuple[str, str]:
    return member.address, member.address.rpartition(":")[0]


def _master(members: Sequence[Replica]) -> Replica:
    master = leader(members)
    if master is None:
        group = members[0].group
        told = "; ".join(
            f"{member.address} {'is ' + member.role if member.answers else 'does not answer'}"
            for member in members
        )
        raise NoPermission(
            f"{group} has no master that could hand over ({told}): "
            f"`saturnmq admin promote {group} NODE` makes one"
        )
    return master


def _check(members: Sequence[Replica], target: Replica) -> None:
    """Check that the master of these members may hand over to `target`."""
    master = _master(members)
    if target.address == master.address:
        raise InvalidParameter(
            f"{target.address} is the master of {target.group} already, in epoch {master.epoch}"
        )
    if why := _unable(target, master):
        raise NoPermission(
            f"{target.address} cannot take {target.group} over from {master.address}: it {why}. "
            "Wait until `saturnmq admin replicas` says that it is in sync, or choose another member"
        )


def _unable(member: Replica, master: Replica) -> str:
    """The reason why a slave cannot take over from its master; empty if it can."""
    if not member.answers:
        return f"does not answer: {member.error}"
    if not member.in_sync:
        behind = "" if member.lag_bytes is None else f", {member.lag_bytes:,} bytes behind"
        trouble = f" ({member.trouble})" if member.trouble else ""
        return f"is not in sync{behind}{trouble}"
    if member.lacks or not member.caught_up:  # a slave with an empty log has no epochs either
        return f"lacks a part of its log: {member.lacks}" if member.lacks else NOT_CAUGHT_UP
    if member.full and not master.full:
        return f"would take no sends: {member.full}"
    return ""


def _risk(members: Sequence[Replica], away: Collection[str], address: str) -> str:
    """The risk for the group that `address` leads while the nodes `away` are stopped."""
    group = members[0].group
    master = next((member for member in members if member.address == address), None)
    if master is None:
        return f"{group} has no master: `saturnmq admin promote {group} NODE` makes one"
    if master.is_master and master.refuses:
        return f"{address} takes no writes yet: {master.refuses}"
    staying = [m for m in members if m.in_sync and m.address not in away and m is not master]
    if 1 + len(staying) < master.required:
        return (
            f"{group} acknowledges with {master.required} copies and keeps {1 + len(staying)}: "
            "sends wait for the node, and after slaveTimeout are answered SLAVE_NOT_AVAILABLE"
        )
    return ""

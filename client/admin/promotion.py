"""Making another member of a group its master: on an operator's request, or after an election.

There are two ways; the state of the old master decides between them:

- **Hand-over**: the old master answers. When the new master follows it and is near, the old one is
  fenced, so that its log does not grow any more. When the new master has all of that log and the
  senders of the old one are answered, the new one is promoted. Nothing is lost; if the new master
  does not get that far, the old one is promoted again.
  After the fence the hand-over always runs to its end, even if its caller is interrupted
  (`ClientCore.finish`): otherwise the group would have no master.
- **Take-over**: the old master does not answer, or does not lead. Every member that can be reached
  is fenced first. None of them follows the old master any more, so it can acknowledge nothing
  further with their copies. An acknowledged message has `required` copies. So the members that
  answer have it between them if they are at least n - required + 1. A member that itself says that
  it may lack messages does not count (it has not caught up with a master since it started: its disk
  may be an older copy). If all members answer, the furthest has everything that still exists.
  Otherwise, or for a target that is not the furthest of them, only `force` promotes.

The new epoch is a number above all that any member knows; members refuse lower ones. An elected
node (`broker/replication/election.py`) brings an epoch that nobody else has.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from saturnmq.client.admin.replicas import Replica, ask_node, ask_state, find_members, find_replicas
from saturnmq.client.core import ClientCore
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import Credentials
from saturnmq.protocol.epochs import next_term
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import UNSIGNED, Signing
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    ConnectFailed,
    ConnectionLost,
    InvalidParameter,
    NoPermission,
    RequestTimeout,
    SaturnError,
    nearest,
)

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 5.0  # a node writes its new role to the disk before it answers
LOOK_S = 0.01
# A master is fenced only when its successor is this near: until the successor has caught up, nobody
# takes writes.
NEAR_BYTES = 1 << 20
PAUSE_S = 2.0  # nobody takes writes in a planned hand-over for longer than this
ANSWERED_S = 1.0  # the senders of a fenced master are answered within it, or wait for others
BACK_S = 5.0  # for this long the old master is asked to lead again
AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Promotion:
    """The outcome of a promotion."""

    group: str
    epoch: int
    start: int  # the offset where the epoch begins
    master: str
    old_master: str  # empty if there was none
    handed_over: bool  # the old master gave all its log


def find_member(members: Sequence[Replica], node: str | int) -> Replica:
    """The member that an address, the host of an address or a broker id names."""
    wanted = str(node)
    for names in (
        lambda member: member.address,
        lambda member: str(member.broker_id),
        lambda member: member.address.rpartition(":")[0],
    ):
        found = [member for member in members if names(member) == wanted]
        if len(found) == 1:
            return found[0]
    known = ", ".join(f"{member.address} (id {member.broker_id})" for member in members)
    addresses = [member.address for member in members]
    raise InvalidParameter(
        f"{wanted!r} names no one member of {members[0].group}{nearest(wanted, addresses)}: "
        f"give the address or the id of one of {known}"
    )


def leader(members: Sequence[Replica]) -> Replica | None:
    """The master that answers; of two masters the newer one, since the other may not know of it
    yet."""
    leaders = [member for member in members if member.answers and member.is_master]
    return max(leaders, key=lambda member: member.epoch, default=None)


def _of_one_group(members: Sequence[Replica], target: Replica) -> list[Replica]:
    """The members of the target's group: another group may have the same name by mistake."""
    known = ("", target.identity)
    return [m for m in members if not target.identity or m.identity in known]


async def promote_elected(
    runtime: Runtime,
    group: str,
    me: str,
    others: Sequence[str],
    *,
    epoch: int,
    force: bool,
    asks: bool,
    signing: Signing = UNSIGNED,
    credentials: Credentials | None = None,
) -> None:
    """Make the elected member at `me` the master, as `Promoter` does. It asks members, no
    nameserver. A SaturnError says why the promotion failed."""
    core = ClientCore(runtime, [me], signing=signing, credentials=credentials)
    addresses = [me, *others]
    promoter = Promoter(core, group, force=force, epoch=epoch, addresses=addresses, asks=asks)
    try:
        await promoter.run(me)
    finally:
        await core.close()


async def check_elected(
    runtime: Runtime,
    group: str,
    me: str,
    others: Sequence[str],
    *,
    force: bool,
    signing: Signing = UNSIGNED,
    credentials: Credentials | None = None,
) -> None:
    """Raise the SaturnError with which `promote_elected` would be refused now."""
    core = ClientCore(runtime, [me], signing=signing, credentials=credentials)
    try:
        await Promoter(core, group, force=force, addresses=[me, *others]).check(me)
    finally:
        await core.close()


class Promoter:
    """The work of one promotion."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        *,
        force: bool,
        timeout_s: float = TIMEOUT_S,
        epoch: int = 0,
        addresses: Sequence[str] = (),
        asks: bool = False,
    ) -> None:
        """`epoch`: the lowest epoch that may be opened. `addresses`: the members are found through
        these, not through nameservers; `asks`: do nothing unless a master hands over."""
        self._core = core
        self._group = group
        self._force = force
        self._timeout = timeout_s
        self._least = epoch
        self._addresses = addresses
        self._asks = asks
        self._epoch = 0
        self._insists = False  # an operator accepts the possible loss
        self._members = 0  # all members of the group, including those that do not answer
        self._required = 1  # the copies that an acknowledged message has

    async def run(self, node: str | int) -> Promotion:
        """Make `node` the master; a SaturnError says why it is not, and what holds now."""
        members, target = await self._find_with(node)
        old = leader(members)
        if self._asks:
            return await self.hand_over(members, target)
        self._epoch = self._next_epoch(members)
        if old is not None:
            try:
                return await self._hand_over(old, target)
            except _OldMasterGone as gone:
                log.warning("%s does not hand over: %s", old.address, gone)
                members = _of_one_group(await self._find(), target)
                self._epoch = self._next_epoch(members)
        return await self._take_over(members, target.address)

    async def check(self, node: str | int) -> None:
        """Raise the error that `run` would raise before it changes anything."""
        members, target = await self._find_with(node)
        if leader(members) is None:
            self._check_take_over(members, target.address)

    async def _find_with(self, node: str | int) -> tuple[list[Replica], Replica]:
        """The members, and the one of them that is to lead."""
        members = await self._find()
        target = find_member(members, node)
        members = _of_one_group(members, target)
        if not target.answers:
            raise NoPermission(
                f"{target.address} cannot become master, it does not answer: {target.error}"
            )
        old = leader(members)
        if old is not None and old.address == target.address:
            raise InvalidParameter(
                f"{target.address} is the master of {self._group} already, in epoch {target.epoch}"
            )
        return members, target

    async def _find(self) -> list[Replica]:
        if self._addresses:
            return await find_members(self._core, self._group, self._addresses)
        return await find_replicas(self._core, self._group)

    def _next_epoch(self, members: Sequence[Replica]) -> int:
        return max(self._least, next_term(max(member.epoch for member in members)))

    # -- hand-over -----------------------------------------------------------------------------

    async def hand_over(self, members: Sequence[Replica], target: Replica) -> Promotion:
        """Hand over from the master among these members to `target`, another member of its
        group."""
        old = leader(members)
        if old is None:
            raise NoPermission(f"no master hands {self._group} over to {target.address}")
        self._epoch = self._next_epoch(members)
        try:
            return await self._hand_over(old, target)
        except _OldMasterGone as gone:
            raise NoPermission(f"{old.address} does not hand over: {gone}") from gone

    async def _hand_over(self, old: Replica, target: Replica) -> Promotion:
        if target.full and not old.full and not self._force:
            raise NoPermission(
                f"{target.address} would take no sends: {target.full}. Promote another member; or "
                "make it the master all the same: --force"
            )
        deadline = self._core.runtime.monotonic() + self._timeout
        await self._catch_up(target, old.end, NEAR_BYTES, deadline, self._timeout)
        return await self._core.finish(self._change_masters(old, target, deadline))

    async def _change_masters(self, old: Replica, target: Replica, deadline: float) -> Promotion:
        """The group has no master until this has ended."""
        try:
            fenced = await self._change(RequestCode.FENCE, old.address)
        except (ConnectionLost, RequestTimeout) as error:
            if self._asks and not isinstance(error, ConnectFailed):
                await self._back_to(old, target, error)  # the old master may be fenced
            raise _OldMasterGone(error) from error
        allowed_s, pause_over = self._timeout, self._core.runtime.monotonic() + PAUSE_S
        if self._asks and pause_over < deadline:
            deadline, allowed_s = pause_over, PAUSE_S
        try:
            await self._catch_up(target, fenced.end, 0, deadline, allowed_s)
            await self._answered(old, fenced.end)
            master = await self._change(RequestCode.PROMOTE, target.address)
        except SaturnError as error:
            leads = await self._back_to(old, target, error)
            if leads is None:
                raise
            master = leads
        return self._done(master, old.address, handed_over=True)

    async def _catch_up(
        self, target: Replica, end: int, behind: int, deadline: float, allowed_s: float
    ) -> None:
        """Wait until the target is at most `behind` bytes before `end`, and would not refuse: it
        follows its master, and has caught up with it since it started."""
        runtime = self._core.runtime
        while True:
            state = await ask_state(self._core, target.address)
            follows = state.role == "slave" and state.caught_up
            if follows and end - state.end <= behind:
                return
            if runtime.monotonic() >= deadline:
                trouble = f" ({state.trouble})" if state.trouble else ""
                late = f"{end - state.end} bytes behind" if follows else "not following its master"
                raise NoPermission(
                    f"{target.address} is {late} after {allowed_s:g} s{trouble}: wait until it has "
                    "caught up, see `saturnmq admin replicas`, or allow more time"
                )
            await runtime.sleep(LOOK_S)

    async def _answered(self, old: Replica, end: int) -> None:
        """Wait until the fenced master has answered its senders: when it learns of the new master
        it can only answer them that the outcome is unknown."""
        runtime = self._core.runtime
        deadline = runtime.monotonic() + ANSWERED_S
        with contextlib.suppress(SaturnError):
            while (await ask_state(self._core, old.address)).confirmed < end:
                if runtime.monotonic() >= deadline:
                    break
                await runtime.sleep(LOOK_S)

    async def _back_to(self, old: Replica, target: Replica, error: Exception) -> Replica | None:
        """Make the old master lead again, because no node takes writes now. Returns the target's
        state if the target leads after all."""
        runtime = self._core.runtime
        fence, self._epoch = self._epoch, next_term(self._epoch)
        deadline = runtime.monotonic() + BACK_S
        while True:
            try:
                state = await ask_state(self._core, target.address)
                if state.is_master:
                    return state
            except SaturnError:
                pass  # a promotion still in its socket has a lower epoch then
            try:
                state = await ask_state(self._core, old.address)
                if state.role == "fenced":
                    state = await self._change(RequestCode.PROMOTE, old.address)
                if state.is_master and state.epoch != fence:  # otherwise it is about to be fenced
                    log.warning("%s leads %s again: %s", old.address, self._group, error)
                    return None
                second: Exception = NoPermission(f"it is {state.role}, in epoch {state.epoch}")
            except SaturnError as problem:
                second = problem
            if runtime.monotonic() >= deadline:
                raise SaturnError(
                    f"{self._group} has no master now: {target.address} was not promoted "
                    f"({error}), and {old.address}, which is fenced, does not lead again "
                    f"({second}). Run `saturnmq admin promote {self._group} NODE` for one of them; "
                    "it says when --force is needed"
                ) from second
            await runtime.sleep(AGAIN_S)

    # -- take-over -----------------------------------------------------------------------------

    async def _take_over(self, members: Sequence[Replica], target: str) -> Promotion:
        reachable, whole = self._check_take_over(members, target)
        fenced = []
        for member in sorted(reachable, key=lambda member: member.address == target):
            try:
                fenced.append(await self._change(RequestCode.FENCE, member.address))
            except (ConnectionLost, RequestTimeout) as error:
                log.warning("%s cannot be fenced: %s", member.address, error)
        # Their logs do not grow any more, and none may have lost something since it was asked.
        before = {member.address: member.position for member in reachable}
        whole &= {
            member.address
            for member in fenced
            if not member.may_lack and member.position >= before[member.address]
        }
        self._check(fenced, whole, target)
        (end,) = (member.end for member in fenced if member.address == target)
        try:
            # The result of this check is more than the node can know by itself.
            master = await self._change(RequestCode.PROMOTE, target, force=True, end=end)
        except SaturnError as error:
            raise type(error)(
                f"the promotion of {target} failed, and {self._group} has no master before one "
                f"succeeds: {error}"
            ) from error
        return self._done(master, "", handed_over=False)

    def _check_take_over(
        self, members: Sequence[Replica], target: str
    ) -> tuple[list[Replica], set[str]]:
        """Check before anything changes which members answer and which of them lack nothing."""
        reachable = [member for member in members if member.answers]
        whole = {member.address for member in reachable if not member.may_lack}
        self._members = len(members)
        self._check(reachable, whole, target)
        return reachable, whole

    def _check(self, members: Sequence[Replica], whole: Collection[str], address: str) -> None:
        """Check that enough members answer and that the target is the furthest of them."""
        target = next((member for member in members if member.address == address), None)
        if target is None:
            raise NoPermission(f"{address} does not answer any more: promote another member")
        why = self._would_lose(target, members, whole)
        self._insists = bool(why) and self._force
        if why and not self._force:
            raise NoPermission(why)

    def _would_lose(
        self, target: Replica, members: Sequence[Replica], whole: Collection[str]
    ) -> str:
        """The reason why a promotion of `target` may lose acknowledged messages; empty if it
        cannot."""
        self._required = max(self._required, *(member.required for member in members))
        required, address = self._required, target.address
        known = [max(1 + len(member.others), member.total) for member in members]
        copies = max(self._members, *known)
        if target.lacks:
            return (
                f"{address} has lost what it had: {target.lacks}. Promote another member; or go "
                "on without: --force"
            )
        # In that case the furthest member has everything that still exists; a lone empty node knows
        # nothing of the others.
        complete = len(members) >= copies and bool(target.epochs)
        if address not in whole and not complete:
            return (
                f"{address} has not followed a master since it started, or has not had all that "
                "it had confirmed: it may lack acknowledged messages. Start the others of the "
                "group, or promote another member; or lose them: --force"
            )
        needed = copies - required + 1
        count = sum(member.address in whole for member in members)
        if required > 1 and count < needed and not complete:
            return (
                f"{count} of {copies} members of {self._group} answer and may not lack anything. "
                f"A message is acknowledged with {required} copies, so {needed} must for "
                "one of them to have every such message. Start more of them; or lose what only "
                "the others have: --force"
            )
        best = max(members, key=lambda member: member.position)
        if best.position > target.position:
            return (
                f"{best.address} (id {best.broker_id}) has more of the log than {address}: it ends "
                f"at {best.end} in epoch {best.position[0]}, the other one at {target.end} in "
                f"epoch {target.position[0]}. Promote that one; or lose the difference: --force"
            )
        return ""

    # -- both ----------------------------------------------------------------------------------

    async def _change(
        self, code: RequestCode, address: str, *, force: bool = False, end: int = 0
    ) -> Replica:
        """Send FENCE or PROMOTE in the epoch of this promotion; returns the state of the node
        afterwards, whatever role it reports. It is refused if the node's log no longer reaches
        to `end`."""
        ext = {"epoch": str(self._epoch), "force": "true" if force else "false", "end": str(end)}
        if self._insists:
            ext["insist"] = "true"
        command = Command.request(code, ext)
        state = await ask_node(self._core, address, command, CHANGE_TIMEOUT_S)
        return replace(state, address=address)

    def _done(self, master: Replica, old: str, *, handed_over: bool) -> Promotion:
        epoch, start = master.epochs[-1] if master.epochs else (master.epoch, master.end)
        return Promotion(self._group, epoch, start, master.address, old, handed_over)


class _OldMasterGone(Exception):
    """The old master answered a moment ago and no longer does."""

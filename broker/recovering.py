"""A master that its slaves may know better: whose word it waits for, and what it copies back.

`kinship.py` has the rules. A slave gives its word when it joins, or when it is asked (`asking.py`).
One that has lost its own disk cannot; if all answer, though, there is nobody else to wait for,
unless this node knows that it has lost something. The slave with the furthest log gives back what
this one lacks: its end, or all of it, with its epochs; and its tables, if this node may have
forgotten them. All of it, too, if this log has its end and lacks its beginning, for a log grows at
its end only: what there is becomes a side file. What a start found damaged is mended before there
are new messages, and before a consumer passes over it. A log that contradicts what a slave knows to
be confirmed does not lead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from saturnmq.broker.context import Context
from saturnmq.broker.identity import belong, known
from saturnmq.broker.introductions import Member
from saturnmq.broker.kinship import is_witness, may_cut, words_needed
from saturnmq.broker.mending import Mending
from saturnmq.broker.role import State
from saturnmq.broker.tail_copy import TailCopy
from saturnmq.protocol.errors import SaturnError, StoreDamaged
from saturnmq.store.message_store import Truncated

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # before what failed is tried again


@dataclass
class Steps:
    """What others do for it."""

    cut: Callable[[int, str], Awaitable[None]]  # the log, at this offset, and why
    put_back: Callable[[Truncated], Awaitable[None]]  # what of it goes on at the log's end
    cut_torn: Callable[[], Awaitable[None]]  # a last frame that never came whole
    wake: Callable[[], None]  # the log grew
    adopt: Callable[[str], Awaitable[None]]  # the tables of the node at this address
    open_term: Callable[[], Awaitable[bool]]  # its epoch is written down; False: try again
    lead: Callable[[], None]
    call_back: Callable[[], None]  # slaves join again, and tell again what they have


def lost(c: Context) -> str:
    """What this node once had and has no more; empty if nothing says so."""
    if c.store.amnesia:
        return c.store.amnesia
    role, end = c.role, c.store.watermarks.appended
    if role.had_term > role.term and (c.store.recovery.clean or not end):
        return (
            f"config/role.json knows of epoch {role.had_term}, the log ends at {end} in epoch "
            f"{role.term}"
        )
    return ""


class Recovering:
    def __init__(
        self, context: Context, roles: asyncio.Lock, mending: Mending, steps: Steps
    ) -> None:
        """`roles` is held while the part of this node changes."""
        self._c = context
        self._mending = mending
        self._roles = roles
        self._steps = steps
        self.may_lack = False  # what was acknowledged
        self.known_epoch = 0  # the highest of which anybody told
        self._words: dict[str, Member] = {}  # by address
        self._answered: set[str] = set()  # members that cannot give their word
        self._java: set[str] = set()  # hosts of RocketMQ's slaves that have nothing more
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def wait(self) -> None:
        """Say what this node waits for."""
        self._say(self.missing())

    def _say(self, why: str) -> None:
        if why != self._c.role.why:
            log.warning("no writes yet: %s", why)
        self._c.role.why = why

    def missing(self) -> str:
        role, config, slaves = self._c.role, self._c.config, self._slaves()
        unheard = sorted(slaves - self._words.keys())
        text = f"{self._needed()} of its slaves must tell what they have"
        if unheard:
            text = (
                f"of the slaves {', '.join(sorted(slaves))} it has not heard {', '.join(unheard)}"
            )
        return (
            f"{role.lacks}{'; ' if role.lacks else ''}{text}. They may have acknowledged messages "
            "that this log has not. Start them, or say `saturnmq admin promote "
            f"{config.broker_name} {self._c.address} --force` to go on without"
        )

    def _needed(self) -> int:
        slaves, required = len(self._slaves()), self._c.role.required
        return words_needed(slaves, required, may_lack=self.may_lack)

    def _slaves(self) -> set[str]:
        """The addresses of those that this node knows; it may have forgotten some, of which others
        tell."""
        known = set(self._c.role.replicas.values())
        if self.may_lack:
            for member in self._words.values():
                known |= {member.address, *member.replicas.values()}
        return known - {self._c.address}

    # words

    def hear(self, member: Member) -> None:
        """A slave tells what it has."""
        role = self._c.role
        is_known = role.replicas.get(member.broker_id) == member.address
        if is_witness(known(self._c), is_known, role.term, member):
            self._words[member.address] = member
            self.known_epoch = max(self.known_epoch, member.epoch)
            # Its log has every epoch that it opened, unless its disk is an older copy. What that
            # lacks another slave may have.
            self.may_lack |= role.required > 1 and member.epoch > role.term
        elif is_known:
            self._answered.add(member.address)
        self.try_now()

    def hear_classic(self, host: str, end: int) -> bool:
        """A slave of RocketMQ's, whose log ends there, would follow this node; whether it may, once
        this node leads."""
        role, mine = self._c.role, self._c.store.watermarks.appended
        if role.state is not State.RECOVERING:
            return False
        if end > mine:
            self._say(f"the RocketMQ slave at {host} has the log up to {end}, this one to {mine}")
            return False
        self._java.add(host)
        self.try_now()
        return True

    def forget(self) -> None:
        """What was told may not be so any more."""
        self._words.clear()
        self._answered.clear()
        self._java.clear()

    def furthest(self) -> Member | None:
        """Who has more of the log than this node, at its end or before its beginning; None if
        nobody has."""
        c = self._c
        best = max(self._words.values(), key=lambda member: member.position, default=None)
        if best is not None and c.store.lacks_front(best.start):
            return best
        end = c.store.watermarks.appended
        newest = max((epoch for epoch, start in c.epochs.entries if start < end), default=0)
        return best if best is not None and best.position > (newest, end) else None

    def mendable(self) -> list[tuple[tuple[int, int], Member]]:
        """What is damaged in this log, and each who has that part of it."""
        c = self._c
        end = c.store.watermarks.appended
        shared = {
            address: common[1]
            for address, member in self._words.items()
            if (common := c.epochs.common(end, member.epochs, member.end))
        }
        return [
            (gap, self._words[address])
            for gap in c.store.recovery.gaps
            for address, until in shared.items()
            if self._words[address].start <= gap[0] and gap[1] <= until
        ]

    def _conflict(self) -> str:
        """Whom this log would contradict, and where; empty if nobody."""
        c = self._c
        end = c.store.watermarks.appended
        for member in self._words.values():
            common = c.epochs.common(end, member.epochs, member.end)
            shared = common[1] if common else 0
            if shared < end and (why := may_cut(shared, member.end, member.floor, (), ())):
                return f"{member.address} does not follow: {why}"
        return ""

    # recovering

    def try_now(self) -> None:
        """Go on if enough slaves have told what they have."""
        role = self._c.role
        if role.state is not State.RECOVERING:
            return
        if why := self._conflict():
            self._say(why)
            return
        self.wait()
        slaves = self._slaves()
        everybody = slaves and {*self._words, *self._answered} >= slaves
        enough = len(self._words) + len(self._java) >= self._needed()
        if not enough and (role.lacks or not everybody):
            return
        if self._task is None or self._task.done():
            self._task = self._c.runtime.spawn(self._recover(), name="recover-tail")

    async def _recover(self) -> None:
        async with self._roles:
            role = self._c.role
            if role.state is not State.RECOVERING:
                return
            furthest = self.furthest()
            try:
                if furthest is not None:
                    await self._copy_back(furthest)
                for damaged, member in self.mendable():
                    await self._mending.try_to_mend(*damaged, member.address)
            except (SaturnError, OSError) as error:
                log.error("what is missing was not copied, trying again: %s", error)
                if role.required > 1 or role.lacks:
                    self.forget()
                    self._say(f"{self.missing()}; the last try failed: {error}")
                    self._c.runtime.call_later(AGAIN_S, self._steps.call_back)
                    return
            if role.state is not State.RECOVERING:
                return  # somebody knew of a higher epoch meanwhile
            if await self._steps.open_term():
                self._steps.lead()
            else:
                self._c.runtime.call_later(AGAIN_S, self.try_now)

    async def _copy_back(self, member: Member) -> None:
        """Take from this slave what this log lacks."""
        c, role = self._c, self._c.role
        end = c.store.watermarks.appended
        log.warning(
            "%s has the log up to %d, this one ends at %d: copying it back",
            member.address,
            member.end,
            end,
        )
        forgot = role.lacks or c.store.recovery.clean or not end
        if member.identity:
            belong(c, member.identity)
        if end:
            await self._cut_what_differs(member, end)
        epochs, rest = c.epochs.entries, None
        if c.store.lacks_front(member.start):
            rest = await self._empty(f"its front is missing, and {member.address} has all of it")
        c.epochs.replace(member.epochs)  # a start passes over those behind the end
        await TailCopy(c, self._steps.wake).run(member)
        if rest is not None and rest.end > member.end and epochs:
            c.epochs.replace(epochs)
            await self._steps.put_back(rest)
        await self._steps.cut_torn()
        role.promise(c.epochs.last)
        role.has(c.epochs.last)
        if forgot:
            await self._steps.adopt(member.address)

    async def _empty(self, why: str) -> Truncated | None:
        """Cut all of the log; the side file that it is in then, if there was anything."""
        before = self._c.store.truncated()
        await self._steps.cut(0, why)
        return next((side for side in self._c.store.truncated() if side not in before), None)

    async def _cut_what_differs(self, member: Member, end: int) -> None:
        c = self._c
        common = c.epochs.common(end, member.epochs, member.end)
        if common is None:
            if c.epochs.entries:
                raise StoreDamaged(f"its log and that of {member.address} share no epoch")
            return
        epoch, shared = common
        if shared < min(end, member.end):
            since = (newer.number for newer in member.epochs if newer.number > epoch.number)
            if why := may_cut(shared, end, c.role.floor, since, ()):
                raise StoreDamaged(why)
            await self._steps.cut(shared, f"not in the log of {member.address}")

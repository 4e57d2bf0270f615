"""A promotion that did not come: the old master goes on, in a term above it.

A promotion fences members first: they promise to follow nobody below its number. If it ends there,
because whoever asked for it died or found that a node may lack something, a master that never heard
of it leads on, and those members wait for the next promotion. They dial that master and tell it
what they promised. Does one say so for longer than a promotion takes, the master has the others
promise a number above (FENCE with its `term`). When n - required + 1 members did, itself included,
it opens that term: should the other one be promoted after all, it cannot acknowledge anything.

A member refuses if the promotion came: its log has a newer epoch than this master's, or it knows of
another one than it had promised. So this master takes nothing from a successor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from saturnmq.broker.asking import answer_of, member_at
from saturnmq.broker.context import Context
from saturnmq.broker.introductions import Member
from saturnmq.broker.kinship import promises_needed
from saturnmq.broker.role import State
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import next_term
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.remoting import Command

log = logging.getLogger(__name__)

PROMOTION_S = 15.0  # a promotion that fenced somebody has come, or will not, by then


class Reclaiming:
    def __init__(
        self, context: Context, roles: asyncio.Lock, open_above: Callable[[int], None]
    ) -> None:
        """`roles` is held while the part of this node changes; `open_above` begins an epoch of this
        node in the term of that number or above, durably."""
        self._c = context
        self._roles = roles
        self._open_above = open_above
        self._epoch = 0  # the highest that a slave has promised
        self._since = 0.0
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def hear(self, member: Member) -> None:
        """A slave does not follow this master, because of what it promised."""
        now = self._c.runtime.monotonic()
        if member.epoch > self._epoch:
            self._epoch, self._since = member.epoch, now
        elif now - self._since >= PROMOTION_S and (self._task is None or self._task.done()):
            self._since = now  # it is tried again as long after
            self._task = self._c.runtime.spawn(self._reclaim(), name="reclaim")

    async def _reclaim(self) -> None:
        c = self._c
        async with self._roles:
            role = c.role
            others = [address for address in role.replicas.values() if address != c.address]
            copies = max(1 + len(others), c.config.total_replicas)
            needed = promises_needed(copies, role.required)
            members = await asyncio.gather(*(member_at(c, address) for address in others))
            willing = [
                member.address
                for member in members
                if member is not None and member.term <= role.term and member.epoch <= self._epoch
            ]
            fence = next_term(self._epoch)
            promised = 0
            if len(willing) >= needed:
                promised = sum(
                    await asyncio.gather(*(self._promises(address, fence) for address in willing))
                )
            if promised < needed:
                log.error(
                    "a promotion fenced slaves for epoch %d and did not come; %d other members "
                    "must promise this master %d, %d did: they do not follow",
                    self._epoch,
                    needed,
                    fence,
                    promised,
                )
            elif role.state is State.MASTER:
                log.warning("the promotion of epoch %d did not come: going on", self._epoch)
                try:
                    self._open_above(fence)
                except OSError as error:  # a full disk is not full for ever
                    log.error("the new epoch cannot be written down, trying again: %s", error)

    async def _promises(self, address: str, fence: int) -> bool:
        """Whether the member there serves and follows nobody below `fence` any more."""
        ext = {"epoch": str(fence), "term": str(self._c.role.term)}
        try:
            await answer_of(self._c, address, Command.request(RequestCode.FENCE, ext))
        except (SaturnError, OSError, TimeoutError, ValueError) as error:
            log.info("%s does not promise epoch %d: %s", address, fence, error)
            return False
        return True

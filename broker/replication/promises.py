"""A promotion that did not come: the old master goes on, in a term above it. Pure; a part of the
machine (`machine.py`).

A promotion fences members first: they promise to follow no node below its number. It may end there,
because the promoting process died or found that a node may lack messages. A master that never heard
of it leads on, while those members wait for the next promotion. They dial that master and tell it
their promise. If a member does so for longer than a promotion takes, the master has the others
promise a higher number (FENCE with its `term`). When n - required + 1 members have promised, itself
included, it opens that term. If the other node is promoted after all, it cannot acknowledge
anything.

A member refuses if the promotion came: its log has a newer epoch than this master's, or it knows of
another epoch than it had promised. So this master takes nothing from a successor.

A master that was fenced itself does the same if it finds no master for as long: its log is the same
as when it led, and a node that was promoted meanwhile cannot have reached enough copies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import Join, MemberState
from saturnmq.broker.replication.kinship import promises_needed
from saturnmq.broker.replication.role import State
from saturnmq.protocol.epochs import EPOCH_MAX, next_promotion, next_term

if TYPE_CHECKING:
    from saturnmq.broker.replication.machine import Machine

NO_ID = -1
PROMOTION_S = 15.0  # a promotion that fenced a member comes within this time, or not at all


class Promises:
    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self._me = machine.me
        self._role = machine.role
        self._promised, self._promised_at = 0, 0.0  # the highest epoch a slave promised to another
        self._fenced = 0  # the epoch for which this node was fenced while it led; 0: for none
        # The slave that dialled last. It may be in no table yet: the master before this one is in
        # none until it follows for the first time, and its promise keeps it from that.
        self._dialled: dict[int, str] = {}

    def validate(self) -> None:
        """AssertionError: no rule leads to this."""
        assert 0 <= self._promised <= EPOCH_MAX, f"epoch {self._promised} was promised"
        assert 0 <= self._fenced <= EPOCH_MAX, f"it was fenced for epoch {self._fenced}"
        assert self._promised_at <= self._m.now, f"{self._promised_at}, it is {self._m.now}"

    def hear(self, join: Join, *, is_twin: bool = False) -> None:
        """Note a slave that does not follow this master because of its promise; a twin has the id
        of another member."""
        self._dialled = {NO_ID if is_twin else join.broker_id: join.address}
        if join.epoch > self._promised:
            self._promised, self._promised_at = join.epoch, self._m.now
        elif self._m.now - self._promised_at >= PROMOTION_S:
            self._promised_at = self._m.now  # the next try comes as long after this one
            self._m.do(e.Ask("promises", self._others()))

    def fenced(self, epoch: int) -> None:
        """Note the epoch that this node promised while it led."""
        assert epoch == self._role.promised_epoch, (epoch, self._role.promised_epoch)
        self._promised, self._promised_at, self._fenced = epoch, self._m.now, epoch
        self._dialled = {}

    def looked(self, members: tuple[MemberState, ...]) -> None:
        """Act on a fenced node's search that found no master among these members."""
        if self.waits() and self._m.now - self._promised_at >= PROMOTION_S:
            self._promised_at = self._m.now
            self.ask(members)

    def waits(self) -> bool:
        """Whether this node is fenced for a promotion that it has not heard of since."""
        role = self._role
        return (
            role.state is State.FENCED
            and role.promised_epoch == self._fenced
            and not self._m.log.failed
        )

    def _others(self) -> tuple[str, ...]:
        """The addresses of all members that this node knows of, but its own."""
        known = {**self._role.replicas, **self._dialled}
        return tuple(sorted({*known.values()} - {self._me.address}))

    def _promises_needed(self) -> int:
        copies = max(1 + len(self._others()), self._me.total_replicas)
        return promises_needed(copies, self._role.required)

    def ask(self, members: tuple[MemberState, ...]) -> None:
        role, fence = self._role, next_term(self._promised)
        if role.state is not State.MASTER and not self.waits():
            return
        willing = tuple(
            member.address
            for member in members
            if member.term <= role.log_epoch and member.epoch <= self._promised
        )
        if len(willing) >= self._promises_needed():
            self._m.do(e.AskPromises(willing, fence, role.log_epoch))
        else:
            self.answered(fence, 0)

    def answered(self, fence: int, count: int) -> None:
        assert count >= 0, f"{count} have promised epoch {fence}"
        role, needed = self._role, self._promises_needed()
        if count < needed:
            self._m.do(
                e.Say(
                    f"a promotion to epoch {self._promised} fenced nodes and did not come; "
                    f"{needed} other members must promise this node {fence} before it goes on "
                    f"with them, {count} did"
                )
            )
        elif role.state is State.MASTER:
            role.suspect()  # no writes before the start of the epoch is known
            self._open(fence)
        elif self.waits():
            self._open(fence)

    def _open(self, fence: int) -> None:
        number = next_promotion(self._m.log.term, fence, self._me.broker_id)
        assert number >= fence, f"{fence} was promised, {number} is to be opened"
        self._m.open_epoch(number, self._m.log.end, partial(self._reclaimed, number))

    def _reclaimed(self, number: int, error: str) -> None:
        if error:  # a full disk may have room again later
            self._m.do(e.Say(f"the new epoch cannot be written down, trying again: {error}"))
            if self._role.state is State.FENCED:
                return
        else:
            self._m.has_opened(number)
        self._m.lead()

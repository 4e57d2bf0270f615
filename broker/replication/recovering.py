"""How a master gets back a missing part of its log. Pure; a part of the machine (`machine.py`).

When enough slaves have given their word (`words.py`), the one with the furthest log gives back the
missing part: the end, or all of the log, with its epochs; and its tables, if they are newer. All of
the log is also copied if this log lacks its beginning: the rest of it becomes a side file. Damage
that the start found is mended before there are new messages, and before a consumer passes over it.
A master does not lead with a log that contradicts messages that a slave knows to be confirmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import MemberState
from saturnmq.broker.replication.kinship import may_cut, no_epochs
from saturnmq.broker.replication.role import State
from saturnmq.broker.replication.words import Words
from saturnmq.store.log.epochs import Epoch, common

if TYPE_CHECKING:
    from saturnmq.broker.replication.machine import Machine

AGAIN_S = 1.0  # before slaves are heard anew


@dataclass
class RecoveryAttempt:
    """One try to get back the missing part."""

    member: MemberState | None  # its log has more; None: nothing is missing, but maybe damaged
    epochs: tuple[Epoch, ...]  # of this log before
    whole: bool = False  # all of the log is copied


class Recovering:
    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self._role = machine.role
        self.words = Words(machine.me, machine.role)
        self._under_way: RecoveryAttempt | None = None
        self._failed = ""  # why the last try failed

    def validate(self) -> None:
        """AssertionError: a try goes on that no part waits for."""
        state, attempt = self._role.state, self._under_way
        if attempt is not None:
            # A poll may have made it unsure; what the try ends in finds that out.
            assert state in (State.RECOVERING, State.UNSURE), f"recovers as {state.name}"
            assert attempt.member is not None or not attempt.whole, "no member has the whole log"
        self.words.validate()

    def hear(self, member: MemberState) -> None:
        """Take a slave's word."""
        self.words.take(member, self._m.group())
        self.try_now()

    def try_now(self) -> None:
        """Go on if enough slaves have given their word."""
        role, log, words = self._role, self._m.log, self.words
        if role.state is not State.RECOVERING or self._under_way is not None:
            return
        if why := words.conflict(log):
            role.why = why
            return
        role.why = self._waits_for()
        if not words.enough:
            return
        member = words.furthest(log)
        self._under_way = RecoveryAttempt(member, log.epochs)
        if member is None:
            self._mend()
        else:
            self._cut_what_differs(member)

    def _waits_for(self) -> str:
        failed = f"; the last try failed: {self._failed}" if self._failed else ""
        return f"{self.words.missing}{failed}"

    def _cut_what_differs(self, member: MemberState) -> None:
        """Cut the part that differs from the slave's log, before the rest of that is copied."""
        log = self._m.log
        if log.failed:
            self._fails(no_epochs(log.failed))
            return
        found = common(log.epochs, log.end, member.epochs, member.end) if log.end else None
        if found is None:
            if log.end and log.epochs:
                self._fails(f"its log and that of {member.address} share no epoch")
            else:
                self._empty("")
            return
        epoch, shared = found
        if shared >= min(log.end, member.end):
            self._empty("")
            return
        if why := may_cut(shared, log.end, self._role.floor, epoch.number, ()):
            self._fails(why)
        else:
            self._m.wait(e.Cut(shared, f"not in the log of {member.address}"), self._empty)

    def _empty(self, error: str) -> None:
        """Cut the whole log if it has lost its beginning: a log grows at its end only, so it is
        copied as a whole."""
        recovery = self._under_way
        assert recovery is not None, "it recovers"
        assert recovery.member is not None, "a member has more"
        member = recovery.member
        if error or not self._m.log.lacks_front(member.start):
            self._take_epochs(error)
            return
        recovery.whole = True
        why = f"its front is missing, and {member.address} has all of it"
        self._m.wait(e.Cut(0, why), self._take_epochs)

    def _take_epochs(self, error: str) -> None:
        assert self._under_way is not None, "it recovers"
        member = self._under_way.member
        assert member is not None, "a member has more"
        if error:
            self._fails(error)
            return
        taken = e.TakeEpochs(tuple(member.epochs), member.identity)
        self._m.wait(taken, partial(self._copy, member))

    def _copy(self, member: MemberState, error: str) -> None:
        if error:
            self._fails(error)
            return
        self._role.belongs(self._m.log.identity)
        self._role.takes_over(member.forced)
        self._m.do(e.CopyBack(member))

    def _goes_on(self, error: str) -> bool:
        """Whether the recovery goes on: this step of it succeeded, and is still wanted."""
        if self._under_way is None:
            return False  # it was promoted meanwhile
        if self._role.state is not State.RECOVERING:
            self._under_way = None  # another node may know of a higher epoch
            return False
        if error:
            self._fails(error)
        return not error

    def copied_back(self, error: str) -> None:
        """Go on after the copy of the missing part, or after its failure."""
        if not self._goes_on(error):
            return
        assert self._under_way is not None, "it goes on"
        if self._under_way.whole:
            self._m.wait(e.PutBack(self._under_way.epochs), self._cut_torn)
        else:
            self._cut_torn("")

    def _cut_torn(self, error: str) -> None:
        if error:
            self._fails(error)
        else:
            self._m.wait(e.CutTorn(), self._has_copied)

    def _has_copied(self, error: str) -> None:
        recovery, role = self._under_way, self._role
        assert recovery is not None, "it recovers"
        assert recovery.member is not None, "a member had more"
        if error:
            self._fails(error)
            return
        role.promise(self._m.log.term)
        role.has(self._m.log.term)
        self._m.do(e.Adopt(recovery.member.address))

    def adopted(self, error: str) -> None:
        if self._goes_on(error):
            self._mend()

    def _mend(self) -> None:
        """Mend the damage that the start found, before a consumer passes over it."""
        if ranges := self.words.mendable(self._m.log):
            self._m.do(e.Mend(ranges))
        else:
            self._recovered()

    def mended(self, error: str) -> None:
        if self._role.state is State.SLAVE:
            self._m.following.belongs_for_good()
        elif self._goes_on(error):
            self._recovered()

    def _recovered(self) -> None:
        assert self._role.state is State.RECOVERING, f"it is {self._role.state.name}"
        self._under_way, self._failed = None, ""
        self._m.open_term()

    def stop(self) -> None:
        """End the recovery: another node leads, or is about to, so no more bytes may come."""
        if self._under_way is not None:
            self._under_way = None
            self._m.do(e.HangUp())

    def _fails(self, error: str) -> None:
        """Give this try up, and hear the slaves anew. A master whose sends wait for no copy goes
        on."""
        assert error, "a try that failed says why"
        role, self._under_way, self._failed = self._role, None, error
        self._m.do(e.Say(f"the missing part was not copied, trying again: {error}"))
        if role.required > 1 or role.lacks:
            self.words.forget()
            role.why = self._waits_for()
            self._m.do(e.After("call back", AGAIN_S))
        else:
            self._m.open_term()

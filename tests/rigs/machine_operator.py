"""An operator's promotion in a world of machines, one request at a time: the order of requests is
that of `client/admin/promotion.py`, and so is the rule that says what may be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from machine_node import GROUP
from saturnmq.broker.replication import events as e
from saturnmq.client.admin.promotion import Promoter
from saturnmq.client.admin.replicas import Replica
from saturnmq.protocol.epochs import next_term

# The node's state when it has done this; None: it has not, or does not answer.
Ask = Callable[[str, e.Event | None], Replica | None]


@dataclass
class Promotion:
    target: str
    force: bool
    epoch: int = 0
    old: str = ""  # the master that hands over; empty: it is a take-over
    todo: list[str] = field(default_factory=list)  # to be fenced
    before: dict[str, Replica] = field(default_factory=dict)
    fenced: list[Replica] = field(default_factory=list)
    known: int = 0  # members, those that do not answer too
    over: bool = False

    def begin(self, found: Mapping[str, Replica], known: int) -> str:
        """Why it does not get under way with these members that answer; empty if it does."""
        self.known, self.before, self.fenced = known, dict(found), []
        if self.target not in found:
            return f"{self.target} does not answer"
        leaders = [member for member in found.values() if member.is_master]
        self.old = max(leaders, key=lambda member: member.epoch).address if leaders else ""
        if self.old == self.target:
            return f"{self.target} is the master already"
        self.epoch = next_term(max(member.epoch for member in found.values()))
        if self.old:
            self.todo = [self.old]
            return ""
        self.todo = sorted(found, key=lambda name: (name == self.target, name))
        whole = {name for name, member in found.items() if not member.may_lack}
        return "" if self.force else self._loses(list(found.values()), whole)

    def _loses(self, members: list[Replica], whole: set[str]) -> str:
        target = next((member for member in members if member.address == self.target), None)
        if target is None:
            return "it does not answer any more"
        promoter = Promoter(None, GROUP, force=self.force)  # type: ignore[arg-type]
        promoter._members = self.known
        return promoter._would_lose(target, members, whole)

    def waits_for(self) -> int:
        """Where the log of the target has to end before it is promoted."""
        return self.fenced[0].end if self.old and not self.todo else 0

    def go_on(self, ask: Ask) -> bool:
        """The next request. False: the old master does not answer, and all begins anew."""
        if self.todo:
            name = self.todo.pop(0)
            state = ask(name, e.Fence(0, self.epoch))
            if state is not None:
                self.fenced.append(state)
            return state is not None or not self.old
        self.over = True
        if self.old:
            if ask(self.target, e.Promote(0, self.epoch)) is None:
                self.back(ask)
            return True
        whole = {
            member.address
            for member in self.fenced
            if not member.may_lack
            and not self.before[member.address].may_lack
            and member.position >= self.before[member.address].position
        }
        why = self._loses(self.fenced, whole)
        if why and not self.force:
            return True
        end = next((m.end for m in self.fenced if m.address == self.target), None)
        if end is not None:
            insist = bool(why)
            ask(self.target, e.Promote(0, self.epoch, end=end, force=True, insist=insist))
        return True

    def back(self, ask: Ask) -> None:
        """The target does not come: the old master goes on."""
        self.over = True
        state = ask(self.target, None)
        if state is not None and state.is_master:
            return
        ask(self.old, e.Promote(0, next_term(self.epoch), force=True))

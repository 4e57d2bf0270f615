"""How a slave joins the master that it dialled. Pure; a part of the machine (`machine.py`).

If the slave's log goes beyond the common prefix of both logs, the slave asks first whether the logs
are equal before that place. It cuts nothing before the master has compared checksums, and nothing
that the group had confirmed, except for epochs that an operator opened by force. If its log lacks a
front that the master has, it cuts the whole log, because a log grows only at its end. Then it takes
over the master's epochs and goes on at the end of its log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import Hello
from saturnmq.broker.replication.joining import cannot_follow, shared_with
from saturnmq.broker.replication.kinship import is_foreign, may_cut, no_epochs
from saturnmq.broker.replication.role import MASTER_ID, State

if TYPE_CHECKING:
    from saturnmq.broker.replication.machine import Machine


@dataclass
class Joining:
    """The progress of this slave in joining its master."""

    link: int
    hello: Hello
    epoch: int = 0  # the last epoch in which both logs are one,
    offset: int = 0  # and the offset up to which they are
    whole: bool = False  # all of the log has to be copied
    accepted: bool = False  # its master has compared


class Following:
    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self._me = machine.me
        self._role = machine.role
        self._joining: Joining | None = None

    def validate(self) -> None:
        """AssertionError: it joins a master whose epoch it may not follow."""
        joining = self._joining
        if joining is not None:
            assert joining.hello.state == "master", f"it joins one that is {joining.hello.state}"
            assert joining.offset >= 0, f"both logs are one up to {joining.offset}"
            assert joining.epoch >= 0, f"both logs are one in epoch {joining.epoch}"

    def greeted(self, link: int, hello: Hello, foreign: str = "") -> None:
        """The dialled node has introduced itself, or reported that its role has changed."""
        role, mine = self._role, self._m.group()
        if role.state is not State.SLAVE:
            return
        self._joining = None
        leads = hello.state == "master"
        if foreign and (leads or hello.identity):
            # A master that is recovering, too, would take this node's word for that of its slave.
            self._give_up(link, foreign)
        elif why := cannot_follow(self._me, mine, hello):
            if leads and is_foreign(mine, hello.identity) and not hello.end:
                # If its disk was replaced it belongs to this group.
                self._m.do(e.SayJoin(link))
            self._give_up(link, why)
        elif not leads:
            self._m.do(e.SayJoin(link))  # it may need this state; it says HELLO again when it leads
            self._m.do(e.LookForMaster())
        elif hello.epoch < role.promised_epoch:
            self._m.do(e.SayJoin(link))  # so that it hears of it, too
            self._give_up(
                link,
                f"it is of epoch {hello.epoch}, this node knows of {role.promised_epoch}: "
                "it is deposed",
            )
        else:
            role.promise(hello.epoch)
            self.apply_group_info(hello.required, hello.replicas)
            self._joining = Joining(link, hello)
            self._m.save(self._find_common, self._join_fails)

    def apply_group_info(self, required: int, replicas: dict[int, str]) -> None:
        """Take the master's report of its group; this node may not have joined yet."""
        role = self._role
        if role.broker_id != MASTER_ID:
            replicas = {**replicas, role.broker_id: self._me.address}
        role.apply_group_info(required, replicas)

    def _give_up(self, link: int, why: str) -> None:
        self._joining = None
        self._m.do(e.GiveUp(link, why))

    def _join_fails(self, error: str) -> None:
        if self._joining is not None:
            self._give_up(self._joining.link, error)

    def _find_common(self) -> None:
        """Find the common prefix of both logs, as far as epochs show it."""
        joining, log = self._at_joining(), self._m.log
        if log.failed:
            self._join_fails(no_epochs(log.failed))
            return
        found = shared_with(self._me, log, joining.hello)
        if isinstance(found, str):
            self._join_fails(found)
            return
        joining.epoch, joining.offset = found
        joining.whole = log.lacks_front(joining.hello.start)
        if log.end and (joining.offset < log.end or not self._role.identity or joining.whole):
            self._ask_to_cut(joining)
        else:
            self._take_over()

    def _at_joining(self) -> Joining:
        assert self._joining is not None, "it joins"
        return self._joining

    def _ask_to_cut(self, joining: Joining) -> None:
        """Ask the master to compare checksums before this log is cut."""
        hello, log = joining.hello, self._m.log
        floor = self._role.floor
        if why := may_cut(joining.offset, log.end, floor, joining.epoch, hello.forced):
            self._m.do(e.SayJoin(joining.link, {"conflict": why}))
            self._join_fails(why)
        else:
            self._m.do(e.SayJoin(joining.link, {"asks": True}, at=joining.offset))

    def accepted(self, link: int) -> None:
        joining, role = self._joining, self._role
        if joining is None or joining.link != link or role.state is not State.SLAVE:
            return
        joining.accepted = True
        if joining.offset >= self._m.log.end:
            self._cut_whole("")
        elif joining.offset < role.floor:  # by force
            role.cut_by_force(joining.offset)
            self._m.save(self._cut, self._join_fails)
        else:
            self._cut()

    def _cut(self) -> None:
        joining = self._at_joining()
        assert joining.accepted, "its master has compared"
        cut = e.Cut(joining.offset, f"not in the log of {joining.hello.ha_address}")
        self._m.wait(cut, self._cut_whole)

    def _cut_whole(self, error: str) -> None:
        joining = self._at_joining()
        if error or not joining.whole:
            self._is_cut(error)
            return
        why = f"its front is missing, and {joining.hello.ha_address} has all of it"
        self._m.wait(e.Cut(0, why), self._is_cut)

    def _is_cut(self, error: str) -> None:
        joining = self._at_joining()
        if error:
            self._join_fails(error)
            return
        if not self._m.log.end:
            found = shared_with(self._me, self._m.log, joining.hello)
            assert not isinstance(found, str), "an empty log is a part of every log"
            joining.epoch, joining.offset = found
        self._take_over()

    def _take_over(self) -> None:
        """Take over the master's epochs and its group: this log is a prefix of the master's now."""
        joining = self._at_joining()
        assert self._role.state is State.SLAVE, f"it takes over as {self._role.state.name}"
        kept = tuple(epoch for epoch in self._m.log.epochs if epoch.number <= joining.epoch)
        self._m.wait(e.TakeEpochs(kept, joining.hello.identity), self._belongs)

    def _belongs(self, error: str) -> None:
        joining, role, log = self._at_joining(), self._role, self._m.log
        if error:
            self._join_fails(error)
            return
        hello = joining.hello
        role.belongs(log.identity)
        role.has(log.term)
        role.takes_over(hello.forced)
        if joining.offset < hello.settled:
            role.mark_lagging()
        sound = [gap for gap in log.gaps if hello.start <= gap[0] and gap[1] <= joining.offset]
        if sound:
            self._m.do(e.Mend(tuple((gap, hello.address) for gap in sound)))
        else:
            self.belongs_for_good()

    def belongs_for_good(self) -> None:
        if self._joining is not None:
            self._m.save(self._follows, self._join_fails)

    def _follows(self) -> None:
        joining = self._at_joining()
        self._m.do(e.SayJoin(joining.link, at=joining.offset))

    def refused(self, link: int, why: str, free_id: int) -> None:
        role = self._role
        if free_id and role.state is State.SLAVE:
            # Two deposed masters were given the same id, or one of them was given the id of a node
            # whose disk was replaced since.
            role.follow(free_id)
            self._m.do(e.Say(f"{why}; this node is slave {free_id} now"))
            self._m.save(lambda: None, self._not_renamed)
        else:
            self._give_up(link, why)

    def _not_renamed(self, error: str) -> None:
        self._m.do(e.Say(f"the new id is not written down: {error}"), e.SaveSoon())

    def reached(self, link: int) -> None:
        """The log has reached the position that was confirmed when it joined: this node lacks no
        message that the group had confirmed."""
        joining, role = self._joining, self._role
        if joining is None or joining.link != link or role.state is not State.SLAVE:
            return
        if not role.caught_up:
            self._m.wait(e.Settle(), self._settled)

    def _settled(self, error: str) -> None:
        if error:  # it is reached again with the next bytes
            self._m.do(e.Say(f"the copied log is not written down, trying again: {error}"))
            return
        self._role.lacks = ""
        self._role.mark_caught_up()
        self._m.do(e.SaveSoon())

    def left(self, link: int) -> None:
        """The connection to the master is gone."""
        if self._joining is not None and self._joining.link == link:
            self._joining = None

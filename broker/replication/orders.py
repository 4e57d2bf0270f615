"""FENCE and PROMOTE: orders to this node by an operator, an election or another master. Pure; a
part of the machine (`machine.py`).

FENCE makes a node promise never to serve or follow a lower epoch: a master stops taking writes,
goes on sending its log, and waits to learn its new master. PROMOTE makes a node master if it lacks
no message that its group has confirmed, or if an operator goes on without them. A change that
cannot be written down is taken back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.role import Kept, State, led
from saturnmq.protocol.epochs import TERM, next_promotion

if TYPE_CHECKING:
    from saturnmq.broker.replication.machine import Machine


class Orders:
    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self._me = machine.me
        self._role = machine.role

    def fence(self, request: int, epoch: int, term: int) -> None:
        role = self._role
        if why := self._may_not_promise(epoch, term):
            self._m.do(e.Decline(request, why))
            return
        kept = role.keep()
        assert epoch > role.promised_epoch, f"{epoch} is promised after {role.promised_epoch}"
        role.promise(epoch)
        self._m.save(
            partial(self._fenced, request, kept, epoch),
            partial(self._not_fenced, request, kept, epoch),
        )

    def _may_not_promise(self, epoch: int, term: int) -> str:
        role, newest = self._role, self._m.log.term
        if epoch <= role.promised_epoch:
            return (
                f"epoch {epoch} is not above {role.promised_epoch}, which this node knows already"
            )
        if term >= 0 and (not role.is_slave or newest > term or role.promised_epoch > epoch - TERM):
            return (
                f"there is a newer master than that of epoch {term}: this node knows of epoch "
                f"{role.promised_epoch}, and its log of {newest}"
            )
        return ""

    def _fenced(self, request: int, kept: Kept, epoch: int) -> None:
        role = self._role
        if role.is_slave:
            self._m.do(e.HangUp())  # its master is of a lower epoch
        else:
            # Its slaves may still fetch its log: the next master is one of them.
            role.depose(f"fenced for epoch {epoch}")
            self._m.recovering.stop()
            self._m.do(e.Say(f"fenced for epoch {epoch}: no more writes"), e.Retire(""))
            if led(kept):
                self._m.promises.fenced(epoch)
            self._m.look()
        self._m.do(e.Answer(request))

    def _not_fenced(self, request: int, kept: Kept, epoch: int, error: str) -> None:
        if self._m.log.failed:  # it takes no writes anyway
            self._fenced(request, kept, epoch)
            return
        self._role.take_back(kept, epoch)
        self._m.do(e.Decline(request, error, disk=True))

    def promote(self, asked: e.Promote) -> None:
        if why := self._may_not_lead(asked):
            self._m.do(e.Decline(asked.request, why))
            return
        role = self._role
        kept = role.keep()
        role.state = State.FENCED
        self._m.recovering.stop()
        self._m.do(e.HangUp())  # this node takes nothing from the old master any more
        number = next_promotion(
            self._m.log.term, max(asked.epoch, role.promised_epoch), self._me.broker_id
        )
        assert number > self._m.log.term, f"{number} is opened, the log has {self._m.log.term}"
        assert number >= max(asked.epoch, kept["promised_epoch"]), (number, asked.epoch)
        self._m.wait(e.CutTorn(), partial(self._promotion_saved, asked, number, kept))

    def _may_not_lead(self, asked: e.Promote) -> str:
        """Why this node is not promoted; empty if it may be."""
        role, log = self._role, self._m.log
        if role.state is State.MASTER:
            return f"this node is the master of epoch {role.promised_epoch} already"
        if role.state in (State.RECOVERING, State.UNSURE) and not asked.force:
            return f"{role.refuses(self._m.now)} (force: at once)"
        if asked.epoch < role.promised_epoch:
            return (
                f"epoch {asked.epoch} is below {role.promised_epoch}, which this node knows already"
            )
        if log.end < asked.end:
            return f"the log of this node ends at {log.end}, a moment ago it was {asked.end}"
        if log.failed:
            return f"this node takes no writes: {log.failed}"
        if role.lacks and not asked.insist:
            return (
                f"this node ({self._me.address}) has lost what it had: {role.lacks}. Promote "
                "another member; or go on without: --force"
            )
        if not role.caught_up and not asked.force:
            return (
                f"this node ({self._me.address}) may lack what its group has confirmed: "
                "acknowledged messages would be lost; start the others of the group, or promote by "
                "force"
            )
        return ""

    def _promotion_saved(self, asked: e.Promote, number: int, kept: Kept, error: str) -> None:
        """Write down that this node leads, now that the last frame is whole."""
        role = self._role
        undone = partial(self._not_promoted, asked, number, kept)
        if error:
            undone(error)
            return
        role.becomes_master(number)
        assert role.promised_epoch == number, f"{role.promised_epoch} is promised, not {number}"
        if asked.insist:
            role.forces(number)
            role.cut_by_force(self._m.log.end)
        self._m.save(partial(self._open_promoted, asked, number, kept), undone)

    def _open_promoted(self, asked: e.Promote, number: int, kept: Kept) -> None:
        self._m.open_epoch(number, self._m.log.end, partial(self._promoted, asked, number, kept))

    def _promoted(self, asked: e.Promote, number: int, kept: Kept, error: str) -> None:
        if error:
            self._not_promoted(asked, number, kept, error)
            return
        self._m.has_opened(number)
        self._m.do(e.Say(f"this node is the master of epoch {number}"))
        self._m.lead(promoted=True)
        self._m.do(e.Answer(asked.request))

    def _not_promoted(self, asked: e.Promote, number: int, kept: Kept, error: str) -> None:
        role = self._role
        role.take_back(kept, number)
        self._m.do(e.HangUp(), e.Decline(asked.request, error, disk=True))
        if role.state is State.UNSURE:
            self._m.ask()
        elif role.state is State.FENCED:
            self._m.look()
        self._m.recovering.try_now()

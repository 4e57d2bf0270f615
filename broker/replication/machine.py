"""The rules by which one node leads, follows or recovers, as a state machine. Pure.

`step` takes an event (`events.py`), the present log and the time, and returns instructions, in
order. Nothing else changes the role. An awaited instruction is the last of its step, and its
outcome comes before any other event: the disk takes part in the order of events.

| state | what it does | leaves it for |
|---|---|---|
| UNSURE | asks nameservers and members for a higher epoch | MASTER, RECOVERING, FENCED |
| RECOVERING | waits for slaves' words, copies back its missing log | MASTER, UNSURE, FENCED |
| MASTER | takes writes | UNSURE (it stood still), RECOVERING (it has forgotten), FENCED |
| FENCED | takes no writes, serves its log, looks for its master | SLAVE, MASTER (if none comes) |
| SLAVE | follows its master | FENCED (it is being promoted) |

The rules prevent two dangers: two nodes that both acknowledge, and the truncation of a log that
others rely on.

- A term of a master is an epoch (`protocol/epochs.py` counts them). Two nodes that cannot hear each
  other never open the same one, and a promotion outranks restarts. An epoch is written down before
  it is acted on. Every start opens a new one: its log may be an older copy of the others'.
- A master starts UNSURE. A node that does not answer does not count: if no other node answers, the
  master goes on, and then it acknowledges as its ack mode promises.
- A master whose sends wait for copies is RECOVERING at every start, until enough slaves have
  reported their logs. So is every master that finds less than it once had, and a leading master
  that hears that its group had confirmed messages that its log lacks.
- A slave's disk may be an older copy, too: it counts for a promotion when it has caught up again.
- A node that learns that it is deposed answers its waiting sends with "unknown" and follows the new
  master. It cuts the messages that the new master does not have, but never those that its group had
  confirmed (`kinship.py`).

This module has the start, leading, and news of other masters. The rest has modules of its own:
`recovering.py`, `slaves.py`, `following.py`, `orders.py` (FENCE and PROMOTE) and `promises.py` (a
promotion that did not come).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.following import Following
from saturnmq.broker.replication.introductions import MemberState
from saturnmq.broker.replication.kinship import is_copied_from, is_foreign, is_outranked
from saturnmq.broker.replication.orders import Orders
from saturnmq.broker.replication.promises import Promises
from saturnmq.broker.replication.recovering import Recovering
from saturnmq.broker.replication.role import Kept, Role, State
from saturnmq.broker.replication.slaves import Slaves
from saturnmq.protocol.epochs import is_own, next_restart

ASK_S = 1.0  # before other nodes are asked again
LOOK_S = 1.0  # before a fenced node looks again for its master
UNKNOWN = "stored here, but this node is not the master any more: the outcome is unknown"

MOVES = {
    State.UNSURE: {State.MASTER, State.RECOVERING, State.FENCED},
    State.RECOVERING: {State.MASTER, State.UNSURE, State.FENCED},
    State.MASTER: {State.UNSURE, State.RECOVERING, State.FENCED},
    # A promotion that cannot be written down ends where it began.
    State.FENCED: {State.SLAVE, State.MASTER, State.UNSURE, State.RECOVERING},
    State.SLAVE: {State.FENCED},
}


class Machine:
    def __init__(self, me: e.Me, role: Role) -> None:
        self.me = me
        self.role = role
        self.log = e.LogState()  # the log at this step
        self.now = 0.0
        self.recovering = Recovering(self)
        self.slaves = Slaves(self)
        self.promises = Promises(self)
        self.following = Following(self)
        self.orders = Orders(self)
        self._out: list[e.Instruction] = []
        self._then: Callable[[str], None] | None = None  # takes the awaited outcome

    def step(self, event: e.Event, log: e.LogState, now: float) -> list[e.Instruction]:
        before = self.role.state
        self.log, self.now = log, now
        self.note_floor(log, now)
        if isinstance(event, e.Done):
            assert self._then is not None, "an outcome that nobody awaits"
            then, self._then = self._then, None
            then(event.error)
        else:
            assert self._then is None, f"{event} came before an outcome that is awaited"
            self._take(event)
        out, self._out = self._out, []
        assert (self._then is not None) == bool(out and isinstance(out[-1], e.Awaited))
        assert not any(isinstance(each, e.Awaited) for each in out[:-1])
        assert before is self.role.state or self.role.state in MOVES[before], (before, event)
        return out

    def validate(self) -> None:
        """AssertionError: no rule leads to this."""
        state = self.role.state
        if self._then is None:  # else a change of the role is not written down yet
            self.role.validate()
        assert state in MOVES, f"{state} is no state"
        self.log.validate()
        self.recovering.validate()
        self.slaves.validate()
        self.promises.validate()
        self.following.validate()

    def note_floor(self, log: e.LogState, now: float) -> None:
        """Raise the floor to the confirmed position. It rises with every message, so it is noted at
        every look."""
        if self.role.state is State.SLAVE and log.confirmed >= 0:
            self.role.confirmed(log.confirmed, now)

    def _take(self, event: e.Event) -> None:
        match event:
            case e.Started():
                self._start()
            case e.Paused():
                self._doubt()
            case e.Polled(what, members):
                self._polled(what, members)
            case e.NameserverTold(epoch, master, ha_address):
                self._nameserver_told(epoch, master, ha_address)
            case e.Superseded(epoch, why, master, ha_address):
                self.superseded(epoch, why, master, ha_address)
            case e.Joined(link, join):
                self.slaves.joined(link, join)
            case e.JoinedClassic(link, host, end):
                self.slaves.joined_classic(link, host, end)
            case e.LinkLost(link):
                self.slaves.left(link)
                self.following.left(link)
            case e.Greeted(link, hello, foreign):
                self.following.greeted(link, hello, foreign)
            case e.Accepted(link):
                self.following.accepted(link)
            case e.Refused(link, why, free_id):
                self.following.refused(link, why, free_id)
            case e.Reached(link):
                self.following.reached(link)
            case e.GroupTold(required, replicas):
                self.following.apply_group_info(required, replicas)
                self.do(e.SaveSoon())
            case e.EpochBegan(number):
                self.role.has(max(number, self.role.log_epoch))
            case e.CopiedBack(error):
                self.recovering.copied_back(error)
            case e.Adopted(error):
                self.recovering.adopted(error)
            case e.Mended(error):
                self.recovering.mended(error)
            case e.Promised(fence, count):
                self.promises.answered(fence, count)
            case e.Fence(request, epoch, term):
                self.orders.fence(request, epoch, term)
            case e.Promote():
                self.orders.promote(event)
            case e.Again(what):
                self._again(what)

    def do(self, *instructions: e.Instruction) -> None:
        self._out += instructions

    def wait(self, instruction: e.Awaited, then: Callable[[str], None]) -> None:
        assert self._then is None, f"{instruction} beside another one that is awaited"
        self._out.append(instruction)
        self._then = then

    def save(self, then: Callable[[], None], otherwise: Callable[[str], None]) -> None:
        """Go on when the role is durable, or when it cannot be."""
        self.wait(e.Save(), lambda error: otherwise(error) if error else then())

    def _again(self, what: str) -> None:
        """Act on the end of a time."""
        state = self.role.state
        if what == "ask" and state is State.UNSURE:
            self.ask()
        elif what == "recover":
            self.recovering.try_now()
        elif what == "call back" and state is State.RECOVERING:
            self.do(e.DropSlaves())
        elif what == "look" and state is State.FENCED:
            self.look()
        elif what.startswith("name "):
            self.slaves.name(int(what.removeprefix("name ")))

    def group(self) -> str:
        """The identity of this log's group; empty if it is not known, or if the log is empty."""
        return self.role.identity if self.log.end else ""

    def others(self) -> tuple[str, ...]:
        return tuple(sorted({*self.role.replicas.values()} - {self.me.address}))

    def _start(self) -> None:
        role, log = self.role, self.log
        assert role.state in (State.SLAVE, State.UNSURE), f"a node starts as {role.state.name}"
        role.promised_epoch = max(role.promised_epoch, role.log_epoch)
        flushed = self.me.sync_flush and not log.torn  # then the log has all that it acknowledged
        may_lack = not log.clean and role.required > 1 and bool(role.replicas) and not flushed
        if what := self._lost():
            self.do(e.Say(f"this node has lost what it had: {what}", alarm=True))
            role.has_lost(what)
        elif role.required > 1:  # reported messages may be gone: its disk may be an older copy
            role.mark_lagging()
        if role.state is State.SLAVE:
            return
        unfinished = role.promised_epoch > max(role.log_epoch, role.recorded_log_epoch)
        if unfinished and role.leads_in < role.promised_epoch:  # a promotion has fenced it
            role.depose(f"it has promised to serve no epoch below {role.promised_epoch}")
            self.look()
            return
        # A promotion that was interrupted by a crash goes on; since then the disk may have lost
        # something.
        self.recovering.words.may_lack = may_lack or unfinished or bool(role.lacks)
        if role.required > 1 or role.lacks:
            role.next_state = State.RECOVERING
            role.why = self.recovering.words.missing
        self.ask()

    def _lost(self) -> str:
        """The part of the log that this node once had and has no more; empty: no sign of one."""
        role, log = self.role, self.log
        if log.amnesia:
            return log.amnesia
        if role.recorded_log_epoch > role.log_epoch and (log.clean or not log.end):
            return (
                f"config/role.json knows of epoch {role.recorded_log_epoch}, the log ends at "
                f"{log.end} in epoch {role.log_epoch}"
            )
        return ""

    def _doubt(self) -> None:
        """Suspend writes and ask: another node may have taken over meanwhile."""
        if self.role.state in (State.MASTER, State.RECOVERING):
            self.role.suspect()
            self.ask()

    def ask(self) -> None:
        # Its tables are up to a second old after a kill. Its slaves may know newer commits, and a
        # consumer that has been told of those must not be told of older ones.
        tables = not self.role.leads_since_start
        self.do(e.Ask("sure", self.others(), nameservers=True, tables=tables))

    def _polled(self, what: str, members: tuple[MemberState, ...]) -> None:
        if what == "sure":
            self._is_sure(members)
        elif what == "promises":
            self.promises.ask(members)
        elif self.role.state is State.FENCED:
            for member in members:
                if self._then is None:
                    self._follow(member)
            if what == "look" and self._then is None:
                self.promises.looked(members)
                self.do(e.After("look", LOOK_S))

    def _is_sure(self, members: tuple[MemberState, ...]) -> None:
        """Take writes, unless a member knows of a higher epoch or has to be heard first."""
        role = self.role
        for member in members:
            if role.state is State.UNSURE:
                self._hear(member)
        if role.state is not State.UNSURE:
            return
        log, words = self.log, self.recovering.words
        better = words.furthest(log) is not None or words.mendable(log)
        if role.next_state is State.MASTER and better:
            role.next_state = State.RECOVERING  # a slave has more, though sends wait for no copy
        if role.next_state is State.MASTER:
            self.open_term()
        else:
            role.state = State.RECOVERING
            self.recovering.try_now()

    def _hear(self, member: MemberState) -> None:
        """Take the state that another node of the group has reported."""
        role = self.role
        leads = member.state == "master"
        where = (member.address, member.ha_address) if leads else ("", "")
        if is_outranked(role.log_epoch, self.me.broker_id, member):
            self.superseded(member.epoch, f"{member.address} knows of it", *where)
        elif is_copied_from(role.log_epoch, member):
            self._give_way(member.epoch, f"{member.address} leads in it", *where)
        elif member.state == "slave":
            self.recovering.hear(member)

    def open_term(self) -> None:
        """Open a new epoch, as every start does; then take writes."""
        role, log = self.role, self.log
        known = max(role.promised_epoch, self.recovering.words.known_epoch)
        if role.leads_since_start and known <= role.log_epoch:
            self.lead()
            return
        number = next_restart(known, self.me.broker_id)
        self.open_epoch(number, log.end if log.epochs else 0, partial(self._opened, number))

    def open_epoch(self, number: int, start: int, then: Callable[[str], None]) -> None:
        assert number > self.log.term, f"epoch {number} is opened, the log has {self.log.term}"
        assert 0 <= start <= self.log.end, f"epoch {number} begins at {start} of {self.log.end}"
        assert self.role.state is not State.SLAVE, f"a slave opens epoch {number}"
        self.wait(e.Open(number, start), then)

    def _opened(self, number: int, error: str) -> None:
        role = self.role
        if error:  # a full disk may have room again later
            role.why = f"its new epoch cannot be written down: {error}"
            self.do(e.After("ask" if role.state is State.UNSURE else "recover", ASK_S))
            return
        self.has_opened(number)
        self.lead()

    def has_opened(self, number: int) -> None:
        role = self.role
        assert number >= role.promised_epoch, f"{number} is opened, {role.promised_epoch} known"
        role.belongs(self.log.identity)
        role.promise(number)
        role.has(number)
        role.leads_since_start = True
        if self.slaves.follow:
            self.do(e.DropSlaves())  # the next bytes are of an epoch that they do not know yet

    def lead(self, *, promoted: bool = False) -> None:
        role = self.role
        role.lead(self.now)
        role.lacks = ""
        role.mark_caught_up()
        self.recovering.words.may_lack = False
        self.recovering.words.forget()
        self.do(e.Lead(promoted))

    def forgot(self, why: str) -> None:
        """Stop writes until this master has again the confirmed messages that it lacks."""
        role = self.role
        role.recover(why)
        role.has_lost(why)
        self.recovering.words.may_lack = True
        self.do(
            e.Say(f"no more writes: {why}", alarm=True),
            e.Retire("a slave has what this log lacks: the outcome is unknown"),
            e.DropSlaves(),  # they join again, and report their logs
        )

    def _nameserver_told(self, epoch: int, master: str, ha_address: str) -> None:
        role = self.role
        if role.state is State.SLAVE:
            if ha_address:
                self.do(e.Dial(master, ha_address))
        elif master or not is_own(epoch, self.me.broker_id):
            self.superseded(epoch, "a nameserver knows of it", master, ha_address)
        elif epoch > max(role.log_epoch, role.recorded_log_epoch, role.promised_epoch):
            self._forgot_epoch(epoch)

    def _forgot_epoch(self, epoch: int) -> None:
        """Recover: this node opened an epoch that its log does not have."""
        role, words = self.role, self.recovering.words
        words.known_epoch = max(words.known_epoch, epoch)
        what = f"a nameserver knows of it: epoch {epoch}, which this node opened, is not in its log"
        if role.state is State.MASTER:
            self.forgot(what)
        elif role.state in (State.UNSURE, State.RECOVERING):
            role.has_lost(role.lacks or what)
            words.may_lack = True
            if role.state is State.UNSURE:
                role.next_state = State.RECOVERING

    def superseded(self, epoch: int, why: str, master: str = "", ha_address: str = "") -> None:
        """Give way to a master of a higher epoch than this node's."""
        role = self.role
        if epoch <= role.log_epoch and role.state is not State.FENCED:
            return
        if role.state is State.SLAVE:
            if master:
                self.do(e.Dial(master, ha_address))
            return
        self._give_way(epoch, why, master, ha_address)

    def _give_way(self, epoch: int, why: str, master: str, ha_address: str) -> None:
        role = self.role
        if role.state is not State.FENCED:
            what = f"this node is deposed: epoch {epoch} has begun ({why})"
            self.do(e.Say(what, alarm=True))
            self.look()
        role.promise(epoch)
        role.depose(f"epoch {epoch} has begun ({why})")
        self.recovering.stop()
        self.do(e.Retire(UNKNOWN), e.DropSlaves())
        if master:  # it may have confirmed messages that this node does not know
            role.mark_lagging()
            self.do(e.Ask("master", (master,)))

    def look(self) -> None:
        """Look for the master, at the nodes that may know it."""
        self.do(e.Ask("look", self.others(), nameservers=True))

    def _follow(self, member: MemberState) -> None:
        """Become a slave of this node, if it leads, or if it waits for its slaves' words and will
        lead in the newest epoch. A node that led no more when it promised a higher epoch follows
        as well: it tells the master of its promise, and that one goes on above it."""
        role = self.role
        leads = member.state == "master" and (
            member.epoch >= role.promised_epoch or not self.promises.waits()
        )
        will_lead = (
            member.state in ("recovering", "unsure") and member.leads_in >= role.promised_epoch
        )
        if not (leads or will_lead) or is_foreign(self.group(), member.group):
            return  # it is looked for again
        kept = role.keep()
        role.promise(member.epoch)
        role.follow(member.free_id or self.me.broker_id or 1)
        role.mark_lagging()  # until its log has what the new master had confirmed
        self.do(e.Freeze())
        self.save(partial(self._is_slave, member), partial(self._stays_fenced, kept, member.epoch))

    def _is_slave(self, member: MemberState) -> None:
        dial = e.Dial(member.address, member.ha_address)
        self.do(e.DropSlaves(), dial, e.Register())

    def _stays_fenced(self, kept: Kept, tried: int, error: str) -> None:
        self.do(e.Say(f"the new role cannot be written down, trying again: {error}"))
        self.role.take_back(kept, tried)
        self.role.why = f"its new role cannot be written down: {error}"
        self.do(e.After("look", LOOK_S))

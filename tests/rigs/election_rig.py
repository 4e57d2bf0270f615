"""Nodes under the rules of election, on virtual time, beside a model of etcd.

`Node` does at once what its `Election` says: for scenarios that are read line by line. `Group` is a
world with delays, pauses, partitions and clocks that drift, in which messages are acknowledged.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from etcd_model import ModelEtcd
from saturnmq.broker.etcd.door import EtcdError, LeaseLost
from saturnmq.broker.replication.election import (
    DRIFT,
    ETCD_ELECTION_S,
    Campaign,
    Commit,
    Election,
    Facts,
    Follow,
    Grant,
    Instruction,
    Poll,
    Read,
    Renew,
    Revoke,
)
from saturnmq.broker.replication.group_record import Memory

PREFIX = "/saturnmq/c/g/"
LEASE_S = 3
IDENTITY = "0123456789abcdef" * 2
TERM = 100_000


def address(name: str) -> str:
    return f"{name}:10911"


def ha_address(name: str) -> str:
    return f"{name}:10912"


def do(etcd: ModelEtcd, election: Election, what: Instruction, now: float) -> Callable[..., None]:
    """etcd does it; what tells the node of that, given the time when it was sent."""
    try:
        match what:
            case Read():
                snapshot = etcd.read(PREFIX, now)
                return lambda sent: election.saw(snapshot, sent)
            case Grant(seconds):
                lease = etcd.grant(seconds, now)
                return lambda sent: election.granted(lease, sent)
            case Renew(lease_id):
                seconds = etcd.keep(lease_id, now)
                return lambda sent: election.renewed(seconds, sent)
            case Revoke(lease_id):
                etcd.revoke(lease_id, now)
            case Commit(guards, writes):
                etcd.commit(guards, writes, now)
    except LeaseLost:
        return lambda _: election.lost()
    return lambda _: None


class Node:
    def __init__(self, name: str, etcd: ModelEtcd, facts: Facts, **options: Any) -> None:
        self.name, self.etcd, self.facts = name, etcd, facts
        self.memory = options.pop("memory", Memory())
        self.election = Election(
            PREFIX, address(name), ha_address(name), self.memory, lease_s=LEASE_S, **options
        )
        self.reaches_etcd = True
        self.did: list[Instruction] = []

    def run(self, now: float) -> list[Instruction]:
        """All that it does now, without what it only looks at and renews."""
        did: list[Instruction] = []
        for _ in range(20):
            what = self.election.step(now, self.facts)
            if what is None:
                break
            told = self.facts.follows or self.facts.deposed  # it hears that often
            heard = isinstance(what, Follow) and told
            if not isinstance(what, (Read, Renew)) and not heard:
                did.append(what)
            if isinstance(what, (Campaign, Follow, Poll)):
                continue
            if self.reaches_etcd:
                do(self.etcd, self.election, what, now)(now)
            else:
                self.election.failed("nobody answers", now)
        else:
            raise AssertionError(f"it does not come to rest: {did}")
        self.did += did
        return did

    def until(self, now: float, end: float) -> list[Instruction]:
        """All that it does from now until then, looking every 0.1 s."""
        did = []
        while now < end:
            did += self.run(now)
            now += 0.1
        return did

    def know(self, **facts: Any) -> None:
        self.facts = replace(self.facts, **facts)

    @property
    def record(self) -> Any:
        return self.election.record


def master(etcd: ModelEtcd, name: str = "a", term: int = TERM, **options: Any) -> Node:
    facts = Facts(leads=True, term=term, epoch=term, identity=IDENTITY, end=500, confirmed=500)
    return Node(name, etcd, facts, **options)


def slave(etcd: ModelEtcd, name: str = "b", **options: Any) -> Node:
    facts = Facts(follows=True, term=TERM, epoch=TERM, identity=IDENTITY, end=500)
    return Node(name, etcd, facts, **options)


# the world


@dataclass
class Question:
    what: Instruction
    sent_at: float  # by the node's clock
    reaches_at: float | None  # when etcd does it; None: it is lost
    answered_at: float  # when the answer is there, or the node gives up
    tell: Callable[..., None] | None = None


@dataclass
class Member:
    name: str
    election: Election
    rate: float  # of its clock
    rng: random.Random
    leads: bool = False
    term: int = 0
    epoch: int = TERM
    log: list[tuple[int, int]] = field(default_factory=list)  # (term, number)
    master: str = ""  # whom it follows
    deposed: bool = False  # and it does not know by whom
    heard_at: float = -100.0
    # As a master: what slaves reported, and reports on their way.
    reported: dict[str, int] = field(default_factory=dict)
    reports: deque[tuple[float, str, int, int]] = field(default_factory=deque)
    acked: int = 0
    known: set[str] = field(default_factory=set)
    asked: Question | None = None
    promoting_until: float | None = None
    promotion: Campaign | None = None
    paused_until: float = 0.0
    cut_off_until: float = 0.0  # from etcd
    dead_until: float = 0.0


class Group:
    """Three members, `required` copies; any of them may be paused, killed, cut off from the others
    or from etcd, at random. After each step the promises are checked."""

    NAMES = ("a", "b", "c")
    STEP_S = 0.05

    def __init__(self, seed: int, required: int, rules: type[Election] = Election) -> None:
        self.rng = rng = random.Random(seed)
        self.required = required
        self.etcd = ModelEtcd()
        self.now = 0.0
        self.parted: dict[frozenset[str], float] = {}
        self.members = {
            name: Member(
                name,
                rules(PREFIX, address(name), ha_address(name), Memory(), lease_s=LEASE_S),
                1 + rng.uniform(-DRIFT / 2, DRIFT / 2),
                rng,
            )
            for name in self.NAMES
        }
        first = self.members["a"]
        first.leads, first.term, first.known = True, TERM, {"b", "c"}
        for name in ("b", "c"):
            self.members[name].master = "a"
        self.terms: list[tuple[float, str, int, list[tuple[int, int]]]] = [(0.0, "a", TERM, [])]
        self.acknowledged: list[tuple[float, tuple[int, int]]] = []
        self.elections = self.under_witnesses = 0
        self._next_fault_at = 2.0

    def run(self, seconds: float) -> None:
        calm = seconds - 35.0
        while self.now < seconds:
            self.now += self.STEP_S
            if self.now < calm:
                self._break_something()
            for member in self.members.values():
                if self._lives(member):
                    self._step(member)

    # faults

    def _break_something(self) -> None:
        if self.now < self._next_fault_at:
            return
        self._next_fault_at = self.now + self.rng.uniform(1, 12)
        if self.rng.random() < 0.2:
            self.etcd.new_leader(self.now, ETCD_ELECTION_S)
            return
        leads = [name for name, member in self.members.items() if member.leads]
        member = self.members[self.rng.choice(leads * 3 + list(self.NAMES))]
        until = self.now + self.rng.choice((0.5, 4.0, 8.0, 15.0, 25.0))
        kind = self.rng.randrange(4)
        if kind == 0:
            member.paused_until = until
        elif kind == 1:
            member.cut_off_until = until
        elif kind == 2:
            other = self.rng.choice([name for name in self.NAMES if name != member.name])
            self.parted[frozenset({member.name, other})] = until
        else:
            for each in self.members.values():  # from everybody but etcd
                self.parted[frozenset({member.name, each.name})] = until

    def _lives(self, member: Member) -> bool:
        return self.now >= member.paused_until

    def _reach(self, one: Member, other: Member) -> bool:
        parted = self.parted.get(frozenset({one.name, other.name}), 0.0)
        return self._lives(one) and self._lives(other) and self.now >= parted

    # a member

    def _clock(self, member: Member) -> float:
        return 1_000 + self.now * member.rate

    def _facts(self, member: Member) -> Facts:
        leads = self.members.get(member.master)
        hears = leads is not None and self._clock(member) - member.heard_at < LEASE_S
        in_sync = {
            address(name): have
            for name, have in member.reported.items()
            if self.members[name].master == member.name and len(member.log) - have < 40
        }
        return Facts(
            leads=member.leads,
            follows=not member.leads and not member.deposed and member.promotion is None,
            deposed=member.deposed and member.promotion is None,
            term=member.term if member.leads else (member.log[-1][0] if member.log else 0),
            epoch=member.epoch,
            identity=IDENTITY,
            end=len(member.log),
            required=self.required,
            hears_master=hears and not member.leads,
            in_sync=in_sync if member.leads else {},
            confirmed=member.acked,
            replicas=frozenset(address(name) for name in member.known),
        )

    def _step(self, member: Member) -> None:
        facts = self._facts(member)
        self._talk(member, facts)
        if member.promotion is not None:
            self._promote(member)
        elif member.leads:
            self._lead(member, self._facts(member))
        else:
            self._follow(member)

    def _talk(self, member: Member, facts: Facts) -> None:
        clock, question = self._clock(member), member.asked
        if question is not None:
            there = question.reaches_at
            if there is not None and question.tell is None and self.now >= there:
                question.tell = do(self.etcd, member.election, question.what, there)
            if self.now < question.answered_at:
                return
            member.asked = None
            if question.tell is not None and self.now >= member.cut_off_until:
                question.tell(question.sent_at)
            else:
                member.election.failed("nobody answers", clock)
        what = member.election.step(clock, facts)
        if isinstance(what, Campaign):
            member.promotion, member.promoting_until = what, self.now + member.rng.uniform(0, 1)
        elif isinstance(what, Poll):
            member.election.polled(clock, "" if self._would_lead(member) else "it is behind")
        elif isinstance(what, Follow):
            self._hear_of(member, what.epoch, what.master.partition(":")[0])
        elif what is not None:
            there = self.now + member.rng.choice((0.0, 0.0, 0.0, 0.0, 0.1, 0.9))
            back = there + member.rng.choice((0.0, 0.0, 0.0, 0.0, 0.1, 0.9))
            lost = self.now < member.cut_off_until
            member.asked = Question(what, clock, None if lost else there, back)

    def _hear_of(self, member: Member, epoch: int, master: str) -> None:
        other = self.members[master]
        if other.term > member.term or not member.leads:
            member.leads, member.epoch = False, max(member.epoch, epoch)
            member.master, member.deposed = master, False

    def _fence(self, member: Member, epoch: int) -> bool:
        if epoch <= member.epoch:
            return False
        member.deposed |= member.leads
        member.epoch, member.leads, member.master = epoch, False, ""
        return True

    def _reached(self, member: Member) -> list[Member]:
        return [m for m in self.members.values() if m is member or self._reach(member, m)]

    def _would_lead(self, member: Member) -> bool:
        reached = self._reached(member)
        furthest = max(((m.log[-1] if m.log else (0, 0)), len(m.log)) for m in reached)
        mine = (member.log[-1] if member.log else (0, 0)), len(member.log)
        enough = self.required == 1 or len(reached) >= len(self.NAMES) - self.required + 1
        return enough and mine == furthest

    def _promote(self, member: Member) -> None:
        """What a promotion without force does, at its end, all at once."""
        assert member.promotion is not None
        if self.now < (member.promoting_until or 0.0):
            return
        epoch, member.promotion = member.promotion.epoch, None
        reached, led = self._reached(member), self._would_lead(member)
        if led:
            fenced = [self._fence(m, epoch) for m in reached]  # each of them, whatever comes of it
            led = all(fenced)
        if led:
            self.elections += 1
            member.leads, member.deposed, member.term = True, False, epoch + 1_000
            member.epoch, member.master = member.term, ""
            member.reported, member.known = {}, {n for n in self.NAMES if n != member.name}
            member.reports.clear()
            member.acked = 0
            self.terms.append((self.now, member.name, member.term, list(member.log)))
            for other in reached:
                if other is not member:
                    other.master = member.name
        member.election.campaign_ended(self._clock(member), led=led)

    def _lead(self, member: Member, facts: Facts) -> None:
        if self.rng.random() < 0.5:
            member.log.append((member.term, len(member.log)))
        while member.reports and member.reports[0][0] <= self.now:
            _, name, term, have = member.reports.popleft()
            if term == member.term:
                member.reported[name] = max(have, member.reported.get(name, 0))
        for name in list(member.reported):
            if self.members[name].master != member.name:
                del member.reported[name]  # the connection is gone
        witnesses = member.election.witnesses(self._clock(member), facts)
        have = sorted(member.reported.values(), reverse=True)
        position = len(member.log)
        if self.required > 1:
            position = have[self.required - 2] if len(have) >= self.required - 1 else 0
        for witness in witnesses:
            position = min(position, member.reported.get(witness.partition(":")[0], 0))
        self.under_witnesses += bool(witnesses) and position > member.acked
        while member.acked < position:
            self._acknowledge(member, member.log[member.acked])
            member.acked += 1

    def _follow(self, member: Member) -> None:
        leads = self.members.get(member.master)
        if leads is None or not leads.leads or leads.term < member.epoch:
            newest = max(
                (m for m in self.members.values() if m.leads and self._reach(member, m)),
                key=lambda m: m.term,
                default=None,
            )
            if newest is not None and newest.term >= member.epoch:
                member.master = newest.name
            return
        if not self._reach(member, leads):
            return
        member.epoch, member.heard_at = leads.term, self._clock(member)
        common = min(len(member.log), len(leads.log))
        while common and member.log[common - 1] != leads.log[common - 1]:
            common -= 1
        del member.log[common:]
        member.log += leads.log[common : common + member.rng.randrange(4)]
        arrives = self.now + member.rng.choice((0.0, 0.0, 0.3))
        arrives = max(arrives, leads.reports[-1][0] if leads.reports else 0.0)
        leads.reports.append((arrives, member.name, leads.term, len(member.log)))

    # promises

    def _acknowledge(self, member: Member, message: tuple[int, int]) -> None:
        self.acknowledged.append((self.now, message))
        for began, name, term, log in self.terms:
            if term > member.term and message not in log[message[1] : message[1] + 1]:
                raise AssertionError(
                    f"{self.now:.2f}: {member.name} of epoch {member.term} acknowledges {message}, "
                    f"which {name}, master of epoch {term} since {began:.2f}, does not have"
                )

    def check_nothing_lost(self) -> None:
        """In a group whose sends wait for copies: each master has what was acknowledged before."""
        for began, name, term, log in self.terms:
            for at, message in self.acknowledged:
                there = message in log[message[1] : message[1] + 1]
                if at <= began and message[0] < term and not there:
                    raise AssertionError(
                        f"{name} leads epoch {term} since {began:.2f} without {message}, which "
                        f"was acknowledged at {at:.2f}"
                    )


__all__ = ["EtcdError", "Group", "Node", "master", "slave"]

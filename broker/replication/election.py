"""The rules of election: who may make itself the master of its group. Pure: no I/O, no clock.

An election only replaces the operator who promotes. `client/admin/promotion.py` makes a promotion
safe: members are fenced before one of them leads, and enough of them must answer. This module
decides which node starts a promotion, and how long a master may acknowledge without asking others.

etcd holds two keys for each group, below /saturnmq/CLUSTER/GROUP/:

| key | value | lives |
|---|---|---|
| holder | the address of the node that leads, or is about to | as long as its lease |
| record | `GroupRecord`: the group's identity, members, master and in-sync set | for good |

A node that changes the record names the revisions of the record and of `holder` that it has seen: a
compare-and-swap. So only one candidate at a time takes `holder`, and each candidate gets an epoch
that no other node got. The candidate has a **claim** to its epoch until it leads, or withdraws
because it does not. While there is a claim, no master of a lower epoch takes the group back: it
could not know whether the candidate leads.

1. **Eligible** are the nodes that the record names in sync and whose log reaches the record's
   `confirmed`; with `electUncleanMaster` any node, by force. A slave that knows of nothing it lacks
   goes first. A slave that may lack something since its restart waits FORSAKEN_S longer. So does a
   deposed master that has heard of no new one: after a power cut there may be no other node. Such
   a node, and one whose last campaign failed, first asks the members whether they would allow the
   promotion (`Poll`), so that no epochs are wasted. Priority alone elects no node: a preferred
   slave (`brokerElectionPriority`; a lower number is preferred) that is in sync for SETTLE_S takes
   over from a living master by hand-over.
2. **A slave that hears its master does not elect**, whether or not `holder` is there: that master
   lives, and its slaves have the messages that it acknowledges.
3. **A master's lease** begins, for the master, before it sent the renewal; for etcd, when it
   answered. The master subtracts the possible drift of two clocks (DRIFT), and ETCD_ELECTION_S: an
   etcd leader that was voted out may still renew for so long, while the new one counts from its own
   beginning. So a master knows that its lease is over before etcd does.
4. **Without a lease** a master goes on while it is safe, because an elected node needs etcd and the
   members:
   - If its sends wait for copies and elections are clean, a candidate fences so many members that
     fewer than `required` are left. Fenced members confirm nothing to the old master any more.
   - Else every member that could be elected must have a message before it is acknowledged: the
     elected node fences itself first, and does not confirm again. If no member could be elected,
     the master goes on alone.
   So etcd may be away for long. Only a fail-over is impossible meanwhile, and the status says so.
5. **The in-sync set** in the record shrinks when a slave falls behind or leaves, but never below
   the copies that a send waits for: while fewer are in sync nothing is acknowledged, so the last
   members of the set lack nothing. All of them have reported the log up to `confirmed`. A slave
   counts for an acknowledgement only when the record names it as a member: a candidate that did not
   know of it would fence too few, and would not ask the node that has the message.
6. **etcd may have forgotten**: a revision that went back, or another cluster's id, means that etcd
   was restored or replaced. Then its in-sync set is old and may name a slave that is in sync no
   more. The node reports this loudly, and uses nothing of it until an operator has removed
   `config/election.json`, its `.bak` and the old record. A record that does not parse, or belongs
   to another group of this name, is not used either.

`Election.step(now, facts)` returns the next instruction, one at a time. Its outcome is reported by
`saw`, `granted`, `renewed`, `lost`, `failed`, `polled` and `campaign_ended`. A commit reports no
outcome: the next read shows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from saturnmq.broker.etcd.door import Guard, KeyValue, Lease, Put, Snapshot
from saturnmq.broker.replication.group_record import PRIORITY_MAX, GroupRecord, Memory, read_record
from saturnmq.protocol.epochs import EPOCH_MAX, TERM, next_term
from saturnmq.runtime.errors import MalformedFrame

DRIFT = 0.01  # two steady clocks may drift by this part: a hundred times the drift of quartz
ETCD_ELECTION_S = 1.0  # etcd's default election timeout
LEASE_S_MAX = 600
LEASE_S_MIN = 3  # etcd's least lease is 2 s, and so much must be left for the master
RENEW = 3  # so often a lease is renewed while it holds
READ_S = 1.0  # between two reads, if nothing else happens
AGAIN_S = 0.3  # after a question that failed
SILENT_S = 3.0  # etcd has not answered for so long: it is away
CONFIRMED_S = 2.0  # between two records that differ only in `confirmed`
STAGGER_S = 0.5  # between two slaves of the same record: the first should not be disturbed
BACK_OFF_S = 3.0  # after a campaign that failed, others have their turn
FORSAKEN_S = 8.0  # a group whose slaves in sync do not elect: another one may try
SETTLE_S = 10.0  # a preferred slave is in sync for so long before it takes over
HAND_OVER_AGAIN_S = 60.0
NO_RECORD = "no master has registered this group in etcd yet"
NAME_ONE = "; if none comes to lead, name one with `saturnmq admin promote`"
GIVEN_MAX = EPOCH_MAX - 2 * TERM  # a promotion in the next term can be counted


@dataclass(frozen=True, slots=True)
class Facts:
    """The present state of this node."""

    leads: bool = False
    follows: bool = False  # it is a slave
    deposed: bool = False  # it led, is fenced, and does not know who leads
    term: int = 0  # the epoch that it leads, or its log has
    epoch: int = 0  # the highest that it knows of
    identity: str = ""
    end: int = 0  # of its log
    required: int = 1  # copies that a send waits for
    hears_master: bool = False
    unfit: str = ""  # why it must not be promoted without force
    may_lack: bool = False  # it was restarted, and has not caught up with a master since
    # On a master: its slaves in sync with their positions; all slaves that it ever had.
    in_sync: dict[str, int] = field(default_factory=dict)
    confirmed: int = 0
    replicas: frozenset[str] = frozenset()


# instructions


@dataclass(frozen=True, slots=True)
class Read:
    """Read both keys; report to `saw`."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Get a lease; report to `granted`."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease; report to `renewed` or `lost`."""

    lease: int


@dataclass(frozen=True, slots=True)
class Revoke:
    lease: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction on etcd; the next read shows its outcome."""

    guards: tuple[Guard, ...]
    writes: tuple[Put, ...]


@dataclass(frozen=True, slots=True)
class Campaign:
    """Run the promotion of this node in `epoch`, beside everything else; report to
    `campaign_ended`. With `force` messages that only other members have may be lost. `asks`: the
    master must agree to hand over; if it does not, nothing happens."""

    epoch: int
    force: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """Ask whether a promotion of this node would succeed, beside everything else; report to
    `polled`."""

    force: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """There is a master of a higher epoch."""

    epoch: int
    master: str
    ha_address: str


Instruction = Read | Grant | Renew | Revoke | Commit | Poll | Campaign | Follow


class Election:
    """One node's view of etcd, and its decisions."""

    def __init__(
        self,
        prefix: str,
        address: str,
        ha_address: str,
        memory: Memory,
        *,
        lease_s: int,
        priority: int = PRIORITY_MAX,
        unclean: bool = False,
    ) -> None:
        """`prefix` is that of the keys, with a slash at its end."""
        self.record_key, self.holder_key = f"{prefix}record", f"{prefix}holder"
        self.memory = memory
        self._me, self._ha_address = address, ha_address
        self._lease_s, self._priority, self._unclean = lease_s, priority, unclean
        # the last read
        self.record: GroupRecord | None = None
        self._record_changed = 0  # its revision; 0: there is none
        self._holder: KeyValue | None = None
        self._damaged = ""  # why the record is not used
        self._seen_at: float | None = None
        self._read_at = float("-inf")  # when to read again
        self.error = ""  # of the last question, if it failed
        # The lease of this node; `holder` may not be bound to it (yet).
        self._lease: Lease | None = None
        self._until = 0.0  # it holds so long, by this node's clock
        self._renew_at = 0.0
        self._has_renewed = False  # by the last step
        # In sync by a commit that etcd may still do; it cannot once the record has changed.
        self._offered: frozenset[str] = frozenset()
        self._offered_on = 0
        self._first: frozenset[str] = frozenset()  # members that the group's first record names
        self._recorded_at = 0.0
        self._followed = 0  # the revision of the record whose master was told
        self._follow_at = 0.0  # when a node without a log is told it again
        # A slave's.
        self._free_since: float | None = None  # no node holds the group, no master is heard
        self._settled_since: float | None = None  # it could take over, being preferred
        self._not_before = 0.0  # the next campaign
        self._hand_over_at = 0.0
        self._tried = 0  # the epoch of the last campaign
        self.campaigning = False
        self._polling = False
        self._backed = False  # by the last poll: the members would take this node
        self._distrusts = False  # its last campaign failed
        self._opposed = ""  # why the last poll was against it
        self._stopped = False

    def validate(self) -> None:
        """AssertionError: no answer of etcd leads to this."""
        memory = self.memory
        assert memory.record_changed <= memory.revision, (memory.record_changed, memory.revision)
        assert not self._offered or self._offered_on >= 0, f"on revision {self._offered_on}"
        assert self._lease is not None or self._until == 0.0, f"no lease, held to {self._until}"
        assert not (self.record and self._damaged), "a damaged record is used"
        assert self._tried >= 0, f"it tried epoch {self._tried}"

    # the outcome of the instructions

    def saw(self, snapshot: Snapshot, now: float) -> None:
        """Take the answer to a read that was sent at `now`."""
        self.error = ""
        item = snapshot.items.get(self.record_key)
        self.memory.check(snapshot, item)
        self._seen_at = now
        self._holder = snapshot.items.get(self.holder_key)
        self._record_changed = item.changed if item is not None else 0
        if self._record_changed != self._offered_on:
            self._offered = frozenset()
        self.record, self._damaged = None, ""
        try:
            self.record = read_record(item.value) if item is not None else None
        except (MalformedFrame, ValueError) as error:
            self._damaged = (
                f"the key {self.record_key} in etcd was not written by a broker ({error}): remove "
                "it, and the master writes it anew"
            )
        if not self.refused:
            self.memory.members = self.members()

    def changed(self) -> None:
        """Read the keys: a watch has reported a change."""
        self._read_at = float("-inf")

    def granted(self, lease: Lease, sent_at: float) -> None:
        self.error = ""
        self._lease, self._until = lease, 0.0
        self._count(lease.seconds, sent_at)

    def renewed(self, seconds: int, sent_at: float) -> None:
        self.error = ""
        self._count(seconds, sent_at)

    def _count(self, seconds: int, sent_at: float) -> None:
        lasts = seconds * (1 - DRIFT) - ETCD_ELECTION_S
        self._until = max(self._until, sent_at + lasts)
        self._renew_at = sent_at + lasts / RENEW

    def lost(self) -> None:
        """Forget the lease: etcd does not know it."""
        self._lease, self._until = None, 0.0
        self.changed()

    def failed(self, error: str, now: float) -> None:
        """Note a request that got no answer, or was refused."""
        self.error = error
        self._read_at = now + AGAIN_S

    def polled(self, now: float, why: str) -> None:
        """Take the outcome of a poll: why the promotion would be refused, if so."""
        self._polling, self._backed, self._opposed = False, not why, why
        if why:
            self._not_before = now + BACK_OFF_S

    def campaign_ended(self, now: float, *, led: bool) -> None:
        self.campaigning, self._distrusts = False, not led
        if not led:
            self._not_before = now + BACK_OFF_S
            self._hand_over_at = now + HAND_OVER_AGAIN_S

    def stop(self) -> Revoke | None:
        """Stop in order: other nodes need not wait for the end of the lease."""
        self._stopped = True
        return self._give_up()

    # the present state

    @property
    def refused(self) -> str:
        """Why etcd's record is not used; empty if it is used."""
        return self.memory.forgot or self._damaged

    @property
    def _is_holder(self) -> bool:
        """Whether this node held the key at the last read."""
        held, lease = self._holder, self._lease
        return held is not None and lease is not None and held.lease == lease.id

    @property
    def _holds_from_before(self) -> bool:
        """Whether it holds the key by a lease that it got as a master, not as a candidate."""
        claims = self.record.claims if self.record is not None else {}
        return self._is_holder and not self.campaigning and self._me not in claims

    def holds(self, now: float, facts: Facts) -> bool:
        """Whether this master may acknowledge, whichever other nodes can be reached."""
        return now < self.holds_until(facts)

    def holds_until(self, facts: Facts) -> float:
        """The end of that permission by this node's clock; 0: it has none."""
        record = self.record
        mine = record is not None and (record.master, record.epoch) == (self._me, facts.term)
        return self._until if mine and self._is_holder and not self.refused else 0.0

    def members(self) -> frozenset[str]:
        """The members of the group, according to the record."""
        record = self.record
        if record is None:
            return frozenset()
        return record.members | record.in_sync | {record.master}

    def counting(self, identity: str) -> frozenset[str]:
        """The slaves of this master that may count for an acknowledgement, because every electable
        node knows of them. Empty: all slaves, because no other node is electable."""
        if self._foreign(identity):
            return frozenset()
        return (self.memory.members or self._first) - {self._me}

    def witnesses(self, now: float, facts: Facts) -> frozenset[str]:
        """The nodes that must have a message before this master acknowledges it, beside those that
        the ack mode asks for."""
        if self.holds(now, facts) or (facts.required > 1 and not self._unclean):
            return frozenset()
        record = self.record
        electable = facts.replicas
        if record is not None and not self.refused and not self._foreign(facts.identity):
            named = record.in_sync | self._offered
            electable = electable | named if self._unclean else named
        return electable - {self._me}

    def trouble(self, now: float, facts: Facts) -> str:
        """Why no fail-over is possible; empty if one is."""
        record = self.record
        if self.refused:
            return self.refused
        if self._seen_at is None or now - self._seen_at > SILENT_S:
            return f"etcd does not answer: {self.error or 'it was asked just now'}"
        if self.error:
            return f"a question to etcd failed: {self.error}"
        if record is None:
            return NO_RECORD if facts.leads or facts.hears_master else NO_RECORD + NAME_ONE
        if foreign := self._foreign(facts.identity):
            return foreign
        if record.given > GIVEN_MAX:
            return f"epoch {record.given} was given to a candidate, and the last is {EPOCH_MAX}"
        if facts.leads and (other := self._claimed(facts)):
            return (
                f"{other} may lead in a higher epoch, which it got: start it, or promote a "
                "node with `saturnmq admin promote`"
            )
        if facts.leads and not self.holds(now, facts):
            return "this master has no lease yet"
        if not facts.end:
            return "the log is empty: another node would have nothing to go on with"
        if not record.in_sync - {record.master} and not self._unclean:
            return "no slave is in sync"
        return self._opposed

    def refuses_group(self, identity: str) -> str:
        """Why this node, which has no log, does not follow a master of the group of this identity;
        empty if it may. The nameservers cannot tell: one that was restarted believes who comes
        first, and a node of another group may come before the nodes of this one."""
        if self._seen_at is None:
            return (
                "this node has no log, and etcd has not told yet which group is called so: "
                f"{self.error or 'it was asked just now'}"
            )
        if self._damaged:
            return self._damaged
        record = self.record
        if record is None or record.identity == identity:
            return ""
        return (
            f"its identity is {identity or 'not known'}, and {self.record_key} in etcd is of group "
            f"{record.identity}: it is of another group with this name. Give one of the two "
            "another brokerName; if the one in etcd is gone for good, remove the key"
        )

    def _foreign(self, identity: str) -> str:
        record = self.record
        if record is None or not identity or record.identity == identity:
            return ""
        return (
            f"{self.record_key} in etcd is of group {record.identity}, this node of "
            f"{identity}: two groups have one name. Give one another brokerName; if the "
            "other is gone for good, remove the key"
        )

    # the step

    def step(self, now: float, facts: Facts) -> Instruction | None:
        """The next action; None: look again a moment later."""
        if self._stopped:
            return None
        lease, wants_lease = self._lease, facts.leads or self.campaigning
        due = lease is not None and wants_lease and now >= self._renew_at
        # With a slow etcd a renewal is always due: other instructions have their turn, too.
        self._has_renewed = due and not self._has_renewed
        if lease is not None and self._has_renewed:
            self._renew_at = now + AGAIN_S  # if it fails
            return Renew(lease.id)
        if now >= self._read_at:
            self._read_at = now + READ_S
            return Read()
        if self.error:
            return None
        if self.refused or self._foreign(facts.identity):
            return self._give_up()
        if follow := self._follow(now, facts):
            return follow
        if facts.leads:
            return self._as_master(now, facts)
        if facts.follows or (facts.deposed and not self._holds_from_before):
            return self._as_slave(now, facts)
        return None  # this node finds out its role; or its chosen successor may be about to lead

    def _give_up(self) -> Revoke | None:
        """Revoke the lease, if there is one."""
        lease, self._lease, self._until = self._lease, None, 0.0
        if lease is None:
            return None
        self.changed()
        return Revoke(lease.id)

    def _follow(self, now: float, facts: Facts) -> Follow | None:
        """Follow the record's master: once for each record. A node without a log that hears no
        master is told again and again, because the nameservers may name one of another group."""
        record = self.record
        if record is None or record.master == self._me:
            return None
        is_lost = facts.follows and not facts.end and not facts.hears_master
        if self._followed == self._record_changed and not (is_lost and now >= self._follow_at):
            return None
        if record.epoch < (facts.term + 1 if facts.leads else facts.epoch):
            return None
        self._followed, self._follow_at = self._record_changed, now + READ_S
        return Follow(record.epoch, record.master, record.ha_address)

    def _commit(self, record: GroupRecord, *writes: Put) -> Commit:
        """Change the record, and other keys, if no node has changed them since the read."""
        known = self.record
        assert not self.refused, f"what etcd says is not used: {self.refused}"
        if known is not None:
            assert record.identity == known.identity, f"{known.identity} becomes {record.identity}"
            assert record.given >= known.given, f"{known.given} was given, then {record.given}"
        self._offered, self._offered_on = self._offered | record.in_sync, self._record_changed
        if self.record is None:
            self._first = record.members
        self.changed()
        holder = self._holder.changed if self._holder is not None else 0
        return Commit(
            (Guard(self.holder_key, holder), Guard(self.record_key, self._record_changed)),
            (*writes, Put(self.record_key, record.to_bytes())),
        )

    def _take(self, record: GroupRecord) -> Instruction:
        """Take `holder`, which no node has, and change the record."""
        assert self._holder is None, f"{self._holder} holds the group"
        if self._lease is None:
            return Grant(self._lease_s)
        return self._commit(record, Put(self.holder_key, self._me.encode(), self._lease.id))

    # a master

    def _as_master(self, now: float, facts: Facts) -> Instruction | None:
        if not facts.identity or (self._holder is not None and not self._is_holder):
            return None  # the holder lived a moment ago; it may be this node, before a restart
        known, wanted = self.record, self._mine(facts)
        if self._holder is None:
            return None if self._claimed(facts) else self._take(wanted)
        if wanted == known:
            return None
        same = known is not None and wanted == replace(known, confirmed=wanted.confirmed)
        if same and now - self._recorded_at < CONFIRMED_S:
            return None
        self._recorded_at = now
        return self._commit(wanted)

    def _mine(self, facts: Facts) -> GroupRecord:
        """The record as this master would have it."""
        known = self.record
        in_sync = frozenset({self._me, *facts.in_sync})
        confirmed = min([facts.confirmed, *facts.in_sync.values()])
        given, claims = facts.term, {}
        if known is not None:
            if len(in_sync) < facts.required:  # nothing is acknowledged
                in_sync |= known.in_sync
            if in_sync <= known.in_sync:  # each of them had the log up to the old `confirmed`
                confirmed = max(confirmed, known.confirmed)
            given = max(given, known.given)
            claims = {who: epoch for who, epoch in known.claims.items() if epoch > facts.term}
        return GroupRecord(
            identity=facts.identity,
            master=self._me,
            ha_address=self._ha_address,
            epoch=facts.term,
            given=given,
            in_sync=in_sync,
            confirmed=confirmed,
            claims=claims,
            priority=self._priority,
            members=in_sync | facts.replicas,
        )

    def _claimed(self, facts: Facts) -> str:
        """The nodes that may lead in a higher epoch than this master; empty: none."""
        claims = self.record.claims if self.record is not None else {}
        above = [who for who, epoch in claims.items() if epoch > facts.term and who != self._me]
        return ", ".join(sorted(above))

    # a slave

    def _as_slave(self, now: float, facts: Facts) -> Instruction | None:
        record = self.record
        if self.campaigning:
            return None
        if record is not None and self._me in record.claims:
            return self._claim(facts, record)
        if record is None or not self._eligible(facts):
            self._free_since = self._settled_since = None
            return self._give_up()
        if self._lease is not None and self._holder is not None:
            return self._give_up()  # a campaign has failed, or another node was quicker
        if self._holder is not None or facts.hears_master:
            self._free_since, self._backed, self._opposed = None, False, ""
            return self._hand_over(now, facts, record) if self._holder is not None else None
        if self._free_since is None:
            self._free_since = now
        if self._polling or now < max(self._not_before, self._free_since + self._waits_s(facts)):
            return None
        if record.given > GIVEN_MAX:
            return None
        trusts = not self._distrusts and (self._unclean or self._goes_first(facts))
        if not self._backed and not trusts:
            self._polling = True
            return Poll(force=self._unclean)
        return self._take(self._give_me(facts, record))

    def _claim(self, facts: Facts, record: GroupRecord) -> Instruction:
        """Use the epoch that this node has got once, or withdraw."""
        asks = not self._is_holder
        may = self._prefers(facts, record) if asks else self._eligible(facts)
        epoch = record.claims[self._me]
        if may and epoch > self._tried:
            assert not self.campaigning, f"a campaign for {epoch} beside that for {self._tried}"
            self._tried, self.campaigning, self._backed = epoch, True, False
            return Campaign(epoch, force=self._unclean and not asks, asks=asks)
        others = {who: epoch for who, epoch in record.claims.items() if who != self._me}
        return self._commit(replace(record, claims=others))

    def _give_me(self, facts: Facts, record: GroupRecord) -> GroupRecord:
        """The record that gives this candidate the next epoch."""
        epoch = next_term(max(record.given, facts.epoch))
        assert epoch > record.given, f"{epoch} is given after {record.given}"
        return replace(record, given=epoch, claims={**record.claims, self._me: epoch})

    def _is_named(self, facts: Facts) -> bool:
        """Whether the record names this node in sync, and its log reaches `confirmed`."""
        record = self.record
        if record is None or self._me not in record.in_sync:
            return False
        return facts.end >= record.confirmed and not facts.unfit

    def _goes_first(self, facts: Facts) -> bool:
        """Whether this node goes first among the eligible ones."""
        return facts.follows and not facts.may_lack and self._is_named(facts)

    def _eligible(self, facts: Facts) -> bool:
        return bool(facts.identity) and (self._unclean or self._is_named(facts))

    def _waits_s(self, facts: Facts) -> float:
        """The wait after the group lost its holder, in which other nodes have their turn."""
        record = self.record
        assert record is not None, "an eligible node has a record"
        # The last master has just been lost.
        order = sorted(record.in_sync, key=lambda member: (member == record.master, member))
        if self._unclean and not self._goes_first(facts):
            return len(order) * STAGGER_S
        waits_s = order.index(self._me) * STAGGER_S
        return waits_s if self._goes_first(facts) else FORSAKEN_S + waits_s

    def _prefers(self, facts: Facts, record: GroupRecord) -> bool:
        led = self._holder is not None and facts.hears_master
        return led and self._priority < record.priority and self._goes_first(facts)

    def _hand_over(self, now: float, facts: Facts, record: GroupRecord) -> Instruction | None:
        """Take over from a living master, if this node is the preferred one."""
        if not self._prefers(facts, record) or record.given > GIVEN_MAX:
            self._settled_since = None
            return None
        if self._settled_since is None:
            self._settled_since = now
        if now < max(self._settled_since + SETTLE_S, self._hand_over_at):
            return None
        self._settled_since = None
        return self._commit(self._give_me(facts, record))

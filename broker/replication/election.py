"""The rules of election: who may make itself the master of its group. Pure: no I/O, no clock.

An election changes only who promotes. `client/admin/promotion.py` makes a promotion safe: members
are fenced before one of them leads, and enough of them must answer. Here is decided who starts one,
and how long a master may acknowledge without asking anybody.

etcd holds two keys for each group, below /saturnmq/CLUSTER/GROUP/:

| key | value | lives |
|---|---|---|
| holder | the address of who leads, or is about to | as long as its lease |
| record | `GroupRecord`: the group's identity, its members, its master, who is in sync | for good |

Whoever changes the record says which revision of it and of `holder` it has seen: a
compare-and-swap. So one candidate at a time takes `holder`, and each is given an epoch that nobody
else got, to which it has a **claim**: until it leads, or has withdrawn because it does not, no
master of a lower epoch takes the group back. It could not know whether the candidate leads.

1. **Eligible** is who the record names in sync, and has what the record says was confirmed; with
   `electUncleanMaster` anybody, by force. A slave goes first that by its own knowledge lacks
   nothing. One that may lack something since it was restarted, or a master that was deposed and
   has heard of no new one, waits FORSAKEN_S longer: after a power cut there may be nobody else.
   Such a node, and one whose last campaign failed, asks the members first whether the promotion
   would be done (`Poll`), so that nobody uses epochs up for nothing. Priority elects nobody: a
   preferred slave (`brokerElectionPriority`; a lower number is preferred) that is in sync for
   SETTLE_S takes over from a living master by hand-over.
2. **A slave that hears its master elects nobody**, whether or not `holder` is there: that master
   lives, and what it acknowledges its slaves have.
3. **A master's lease** counts, for the master, from before it sent the renewal; for etcd from when
   it answered. Of its seconds the master takes off what two clocks may drift apart (DRIFT), and
   ETCD_ELECTION_S: an etcd leader that was voted out may still renew for so long, while the new one
   counts from its own beginning. So a master knows that its lease is over before etcd does.
4. **Without a lease** a master goes on as long as it needs no lease, because whoever is elected
   needs etcd, and the members:
   - its sends wait for copies, elections are clean: a candidate fences so many members that fewer
     than `required` are left; none of them confirms anything to the old master any more;
   - else every member that could be elected must have a message before it is acknowledged: the one
     that is elected fences itself first, and does not confirm again. With nobody who could be
     elected the master goes on alone.
   So etcd may be away for long; there is just no fail-over meanwhile, which the status says.
5. **The in-sync set** in the record shrinks when a slave falls behind or leaves, but never below
   the copies that a send waits for: while fewer are in sync nothing is acknowledged, so those that
   were in it lack nothing. `confirmed` in the record is what each of them has reported. A slave
   counts for an acknowledgement when the record names it as a member: a candidate that did not
   know of it would fence too few, and not ask the one that has the message.
6. **etcd may have forgotten**: revisions that went back, or another cluster's id, mean that it was
   restored or replaced. What it says of who was in sync is old then: nothing is done with it,
   loudly, until an operator has removed `config/election.json` and its `.bak`, and the old record,
   which may name a slave in sync that is not any more. A record that does
   not parse, or is of another group of this name, is not used either.

`Election.step(now, facts)` says what to do next, one thing at a time; what came of it is told by
`saw`, `granted`, `renewed`, `lost`, `failed`, `polled` and `campaign_ended`. Whether a commit was
done is not asked: a read says what is so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from saturnmq.broker.etcd.door import Guard, KeyValue, Lease, Put, Snapshot
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.epochs import EPOCH_MAX, TERM, next_term
from saturnmq.runtime.errors import MalformedFrame

DRIFT = 0.01  # by so much two steady clocks may run apart: a hundred times what quartz does
ETCD_ELECTION_S = 1.0  # etcd's default election timeout
LEASE_S_MAX = 600
LEASE_S_MIN = 3  # etcd's least lease is 2 s, and so much must be left for the master
RENEW = 3  # so often a lease is renewed while it holds
READ_S = 1.0  # between two reads, if nothing else happens
AGAIN_S = 0.3  # after a question that failed
SILENT_S = 3.0  # etcd has not answered for so long: it is away
CONFIRMED_S = 2.0  # between two records that differ in what is confirmed only
STAGGER_S = 0.5  # between two slaves of the same record: the first should not be disturbed
BACK_OFF_S = 3.0  # after a campaign that failed, others have their turn
FORSAKEN_S = 8.0  # a group whose slaves in sync elect nobody: another one may try
SETTLE_S = 10.0  # a preferred slave is in sync for so long before it takes over
HAND_OVER_AGAIN_S = 60.0
MEMBERS_MAX = 100
PRIORITY_MAX = (1 << 31) - 1  # RocketMQ's default: not preferred
GIVEN_MAX = EPOCH_MAX - 2 * TERM  # a promotion in the next term can be counted


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The record that etcd keeps of a group."""

    identity: str
    master: str  # its address; the node of broker id 0
    ha_address: str
    epoch: int  # the master's
    given: int  # the highest that any candidate was given, or the master has
    in_sync: frozenset[str]  # addresses; the master's is one of them
    confirmed: int  # up to there each of them has the log
    claims: dict[str, int]  # epochs that candidates were given, who have not withdrawn
    priority: int = PRIORITY_MAX  # the master's
    members: frozenset[str] = frozenset()  # addresses, that of the master among them

    def to_bytes(self) -> bytes:
        return fastjson.dumps(
            {
                "version": 1,
                "identity": self.identity,
                "masterId": 0,
                "master": self.master,
                "haAddress": self.ha_address,
                "epoch": self.epoch,
                "given": self.given,
                "claims": self.claims,
                "inSync": sorted(self.in_sync),
                "members": sorted(self.members),
                "confirmed": self.confirmed,
                "priority": self.priority,
            }
        )


def read_record(value: bytes) -> GroupRecord:
    """MalformedFrame: it is not what a broker writes."""
    document = checked.document(value)
    if checked.integer(document, "version") != 1:
        raise MalformedFrame(f"version {document['version']} of a record is not known here")
    given = checked.integer(document, "given", least=1, most=EPOCH_MAX)
    record = GroupRecord(
        identity=checked.identity(document, "identity"),
        master=checked.as_address(checked.text(document, "master")),
        ha_address=checked.as_address(checked.text(document, "haAddress")),
        epoch=checked.integer(document, "epoch", least=1, most=EPOCH_MAX),
        given=given,
        in_sync=addresses(document, "inSync"),
        confirmed=checked.integer(document, "confirmed"),
        claims={
            checked.as_address(member): checked.as_integer(epoch, "a claim", least=1, most=given)
            for member, epoch in checked.table(document, "claims").items()
        },
        priority=checked.integer(document, "priority", most=PRIORITY_MAX),
        members=addresses(document, "members"),
    )
    if not record.identity or record.given < record.epoch or len(record.claims) > MEMBERS_MAX:
        raise MalformedFrame(f"epoch {record.epoch} of group {record.identity!r} cannot be")
    return record


def addresses(document: Mapping[str, Any], name: str) -> frozenset[str]:
    """The list of addresses under `name`. MalformedFrame: it is none."""
    each = checked.items(document, name, MEMBERS_MAX)
    return frozenset(checked.as_address(checked.as_text(one, "a member")) for one in each)


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
    # A master's: its slaves that are in sync, with what they have; all that it ever had.
    in_sync: dict[str, int] = field(default_factory=dict)
    confirmed: int = 0
    replicas: frozenset[str] = frozenset()


# instructions


@dataclass(frozen=True, slots=True)
class Read:
    """Both keys; tell `saw`."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease; tell `granted`."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Tell `renewed`, or `lost`."""

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
    """Run the promotion of this node in `epoch`, beside everything else; tell `campaign_ended`.
    With `force` what other members may have is let go. `asks`: the master is to hand over, and
    nothing happens if it does not."""

    epoch: int
    force: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Poll:
    """Ask whether a promotion of this node would be done, beside everything else; tell `polled`."""

    force: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """There is a master of a higher epoch."""

    epoch: int
    master: str
    ha_address: str


Instruction = Read | Grant | Renew | Revoke | Commit | Poll | Campaign | Follow


@dataclass
class Memory:
    """A node's notes about its etcd, kept through restarts (`config/election.json`)."""

    cluster: int = 0
    revision: int = 0
    record_changed: int = 0  # the revision of the newest record that was seen
    members: frozenset[str] = frozenset()  # whom that named; empty: there was none
    forgot: str = ""  # why this etcd is not believed any more

    def check(self, snapshot: Snapshot, record: KeyValue | None) -> None:
        """Note what was read; or that etcd has forgotten what it once said."""
        if self.forgot:
            return
        if self.cluster and snapshot.cluster != self.cluster:
            what = f"this is etcd cluster {snapshot.cluster:x}, it was {self.cluster:x}"
        elif snapshot.revision < self.revision:
            what = f"etcd is at revision {snapshot.revision}, it was at {self.revision}"
        elif record is not None and record.changed < self.record_changed:
            what = f"the record is of revision {record.changed}, it was of {self.record_changed}"
        else:
            self.cluster, self.revision = snapshot.cluster, snapshot.revision
            self.record_changed = record.changed if record is not None else self.record_changed
            return
        self.forgot = (
            f"{what}: it was replaced, or restored from an old snapshot, and what it says of this "
            "group is old. Look at etcdEndpoints; if they are right, stop all nodes of the group, "
            "delete the group's record there (`etcdctl del`), remove config/election.json and its "
            ".bak of each node, and start them again"
        )


class Election:
    """One node's view of etcd, and what it does about it."""

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
        """`prefix`: of the keys, with a slash at its end."""
        self.record_key, self.holder_key = f"{prefix}record", f"{prefix}holder"
        self.memory = memory
        self._me, self._ha_address = address, ha_address
        self._lease_s, self._priority, self._unclean = lease_s, priority, unclean
        # What was read last.
        self.record: GroupRecord | None = None
        self._record_changed = 0  # its revision; 0: there is none
        self._holder: KeyValue | None = None
        self._damaged = ""  # why the record is not used
        self._seen_at: float | None = None
        self._read_at = float("-inf")  # when to read again
        self.error = ""  # of the last question, if it failed
        # The lease of this node: there may be one that `holder` is not bound to (yet).
        self._lease: Lease | None = None
        self._until = 0.0  # it holds so long, by this node's clock
        self._renew_at = 0.0
        self._has_renewed = False  # by the last step
        # In sync by a commit that may still be done: it cannot once the record has changed.
        self._offered: frozenset[str] = frozenset()
        self._offered_on = 0
        self._first: frozenset[str] = frozenset()  # members that the group's first record names
        self._recorded_at = 0.0
        self._followed = 0  # the revision of the record whose master was told
        # A slave's.
        self._free_since: float | None = None  # nobody holds the group, no master is heard
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

    # the outcome of the instructions

    def saw(self, snapshot: Snapshot, now: float) -> None:
        """The answer to a read that was sent at `now`."""
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
                f"the key {self.record_key} in etcd is not what a broker writes ({error}): remove "
                "it, and the master writes it anew"
            )
        if not self.refused:
            self.memory.members = self.members()

    def changed(self) -> None:
        """A watch has told something of the keys: read them."""
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
        """etcd does not know the lease."""
        self._lease, self._until = None, 0.0
        self.changed()

    def failed(self, error: str, now: float) -> None:
        """A question was not answered, or refused."""
        self.error = error
        self._read_at = now + AGAIN_S

    def polled(self, now: float, why: str) -> None:
        """`why` the promotion would be refused; empty: it would be done."""
        self._polling, self._backed, self._opposed = False, not why, why
        if why:
            self._not_before = now + BACK_OFF_S

    def campaign_ended(self, now: float, *, led: bool) -> None:
        self.campaigning, self._distrusts = False, not led
        if not led:
            self._not_before = now + BACK_OFF_S
            self._hand_over_at = now + HAND_OVER_AGAIN_S

    def stop(self) -> Revoke | None:
        """This node ends in order: others need not wait for the end of its lease."""
        self._stopped = True
        return self._give_up()

    # what holds

    @property
    def refused(self) -> str:
        """Why nothing that etcd says is used; empty if it is."""
        return self.memory.forgot or self._damaged

    @property
    def _is_holder(self) -> bool:
        """Whether this node held the key at the last read."""
        held, lease = self._holder, self._lease
        return held is not None and lease is not None and held.lease == lease.id

    @property
    def _holds_from_before(self) -> bool:
        """By a lease that it has as a master, not as a candidate."""
        claims = self.record.claims if self.record is not None else {}
        return self._is_holder and not self.campaigning and self._me not in claims

    def holds(self, now: float, facts: Facts) -> bool:
        """Whether this master may acknowledge whoever can be reached."""
        return now < self.holds_until(facts)

    def holds_until(self, facts: Facts) -> float:
        """By this node's clock; 0: it may not."""
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
        """The slaves of this master that may count for an acknowledgement: whoever could be elected
        knows of them. Empty: all, because nobody else could be."""
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
            return "no master has registered this group in etcd yet"
        if foreign := self._foreign(facts.identity):
            return foreign
        if record.given > GIVEN_MAX:
            return f"epoch {record.given} was given away, and there are none above {EPOCH_MAX}"
        if facts.leads and (other := self._claimed(facts)):
            return (
                f"{other} may lead in a higher epoch, which it was given: start it, or promote a "
                "node with `saturnmq admin promote`"
            )
        if facts.leads and not self.holds(now, facts):
            return "this master has no lease yet"
        if not facts.end:
            return "the log is empty: there is nothing that another node could go on with"
        if not record.in_sync - {record.master} and not self._unclean:
            return "no slave is in sync"
        return self._opposed

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
        # With an etcd that is slow a renewal is always due: other things have their turn.
        self._has_renewed = due and not self._has_renewed
        if lease is not None and self._has_renewed:
            self._renew_at = now + AGAIN_S  # should it fail
            return Renew(lease.id)
        if now >= self._read_at:
            self._read_at = now + READ_S
            return Read()
        if self.error:
            return None
        if self.refused or self._foreign(facts.identity):
            return self._give_up()
        if follow := self._follow(facts):
            return follow
        if facts.leads:
            return self._as_master(now, facts)
        if facts.follows or (facts.deposed and not self._holds_from_before):
            return self._as_slave(now, facts)
        return None  # it finds out what it is; or whom it handed over to may be about to lead

    def _give_up(self) -> Revoke | None:
        """The lease, if there is one."""
        lease, self._lease, self._until = self._lease, None, 0.0
        if lease is None:
            return None
        self.changed()
        return Revoke(lease.id)

    def _follow(self, facts: Facts) -> Follow | None:
        """Once for each record."""
        record = self.record
        if record is None or self._followed == self._record_changed or record.master == self._me:
            return None
        if record.epoch < (facts.term + 1 if facts.leads else facts.epoch):
            return None
        self._followed = self._record_changed
        return Follow(record.epoch, record.master, record.ha_address)

    def _commit(self, record: GroupRecord, *writes: Put) -> Commit:
        """Change the record, and what else, if nobody has changed anything since."""
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
        """`holder`, which nobody has, and change the record."""
        if self._lease is None:
            return Grant(self._lease_s)
        return self._commit(record, Put(self.holder_key, self._me.encode(), self._lease.id))

    # a master

    def _as_master(self, now: float, facts: Facts) -> Instruction | None:
        if not facts.identity or (self._holder is not None and not self._is_holder):
            return None  # who holds it lived a moment ago; that may be this node, before a restart
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
            if in_sync <= known.in_sync:  # each of them has had that
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
            return self._give_up()  # a campaign has failed, or somebody was quicker
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
        """This node has got an epoch: it uses it once, or withdraws."""
        asks = not self._is_holder
        may = self._prefers(facts, record) if asks else self._eligible(facts)
        epoch = record.claims[self._me]
        if may and epoch > self._tried:
            self._tried, self.campaigning, self._backed = epoch, True, False
            return Campaign(epoch, force=self._unclean and not asks, asks=asks)
        others = {who: epoch for who, epoch in record.claims.items() if who != self._me}
        return self._commit(replace(record, claims=others))

    def _give_me(self, facts: Facts, record: GroupRecord) -> GroupRecord:
        """The record that gives this candidate the next epoch."""
        epoch = next_term(max(record.given, facts.epoch))
        return replace(record, given=epoch, claims={**record.claims, self._me: epoch})

    def _is_named(self, facts: Facts) -> bool:
        """In sync by the record, and with what that has."""
        record = self.record
        if record is None or self._me not in record.in_sync:
            return False
        return facts.end >= record.confirmed and not facts.unfit

    def _goes_first(self, facts: Facts) -> bool:
        """Among those who may be elected."""
        return facts.follows and not facts.may_lack and self._is_named(facts)

    def _eligible(self, facts: Facts) -> bool:
        return bool(facts.identity) and (self._unclean or self._is_named(facts))

    def _waits_s(self, facts: Facts) -> float:
        """Since nobody holds the group: those before it have their turn."""
        record = self.record
        assert record is not None, "who is eligible has one"
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

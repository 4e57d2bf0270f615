"""The reports ("words") of other members to a starting master, and the conclusions from them. Pure.

A slave gives its word when it joins, or when it is asked. A slave that has lost its own disk
cannot. If all slaves answer, though, there is no other one to wait for, unless this node knows that
it has lost something.
"""

from __future__ import annotations

from saturnmq.broker.replication.events import LogState, Me
from saturnmq.broker.replication.introductions import MemberState
from saturnmq.broker.replication.kinship import is_witness, may_cut, words_needed
from saturnmq.broker.replication.role import Role
from saturnmq.store.log.epochs import common


class Words:
    def __init__(self, me: Me, role: Role) -> None:
        self._me = me
        self._role = role
        self.may_lack = False  # this node may lack acknowledged messages
        self.known_epoch = 0  # the highest epoch in any word
        self._members: dict[str, MemberState] = {}  # by address
        self._answered: set[str] = set()  # members that cannot give their word
        self._java: set[str] = set()  # hosts of RocketMQ's slaves that have nothing more

    def take(self, member: MemberState, group: str) -> None:
        """Take a member's word. `group` is the identity of this log's group."""
        role = self._role
        if role.lacks and not member.identity:
            return  # a new node cannot replace what this node knows to have lost
        if self.is_newcomer(member):
            return
        is_known = role.replicas.get(member.broker_id) == member.address
        if is_witness(group, role.log_epoch, member, known=is_known):
            self._members[member.address] = member
            self.known_epoch = max(self.known_epoch, member.epoch)
            # This log has every epoch that this node opened, unless its disk is an older copy. Then
            # another slave may have what the copy lacks.
            self.may_lack |= role.required > 1 and member.epoch > role.log_epoch
        elif is_known:
            self._answered.add(member.address)

    def is_newcomer(self, member: MemberState) -> bool:
        """Whether this member has followed no master of this log's last epoch, and is none of the
        slaves that this node knows from before. Those do not know of it. So one of them may have
        been promoted meanwhile without a promise of this member, and its word would not tell."""
        replicas, term = self._role.replicas, self._role.log_epoch
        known = member.broker_id in replicas or member.address in replicas.values()
        return bool(replicas) and not known and member.position[0] < term

    def validate(self) -> None:
        """AssertionError: a word has no author."""
        assert self.known_epoch >= 0, f"epoch {self.known_epoch} is known"
        for address, member in self._members.items():
            assert address == member.address, f"{member.address} is kept as {address}"

    def take_classic(self, host: str) -> None:
        """Take the word of a slave of RocketMQ's, which has no more than this node."""
        self._java.add(host)

    def forget(self) -> None:
        """Forget all words: they may not hold any more."""
        self._members.clear()
        self._answered.clear()
        self._java.clear()

    def _slaves(self) -> set[str]:
        """The addresses of the slaves that this node knows; it may have forgotten some, which other
        slaves name."""
        known = set(self._role.replicas.values())
        if self.may_lack:
            for member in self._members.values():
                known |= {member.address, *member.replicas.values()}
        return known - {self._me.address}

    def _needed(self) -> int:
        return words_needed(len(self._slaves()), self._role.required, may_lack=self.may_lack)

    @property
    def enough(self) -> bool:
        slaves = self._slaves()
        if len(self._members) + len(self._java) >= self._needed():
            return True
        everybody = slaves and {*self._members, *self._answered} >= slaves
        return bool(everybody) and not self._role.lacks

    @property
    def missing(self) -> str:
        """Why this node waits, for which slaves, and what an operator can do."""
        slaves, heard = self._slaves(), self._members.keys()
        named = f" ({', '.join(sorted(slaves))})" if slaves else ""
        parts = [self._role.lacks] if self._role.lacks else []
        needed = self._needed()
        what = "it has" if needed == 1 else "they have"
        parts.append(f"{needed} of its slaves{named} must say what {what}")
        if silent := ", ".join(sorted(slaves - heard - self._answered)):
            parts.append(f"not heard yet: {silent}")
        if useless := ", ".join(sorted(slaves & self._answered - heard)):
            parts.append(f"their own disk lacks something or is of another group: {useless}")
        return (
            f"{'; '.join(parts)}. A slave may have acknowledged messages that this log lacks. "
            f"Start the slaves, or go on without them: `saturnmq admin promote {self._me.group} "
            f"{self._me.address} --force`"
        )

    def furthest(self, log: LogState) -> MemberState | None:
        """The member with the most of the log, if it has more than this node at the end or before
        the beginning; else None."""
        best = max(self._members.values(), key=lambda member: member.position, default=None)
        if best is not None and log.lacks_front(best.start):
            return best
        newest = max((epoch for epoch, start in log.epochs if start < log.end), default=0)
        return best if best is not None and best.position > (newest, log.end) else None

    def mendable(self, log: LogState) -> tuple[tuple[tuple[int, int], str], ...]:
        """The damaged parts of this log, each with the address of a member that has the part."""
        shared = [
            (member, found[1])
            for member in self._members.values()
            if (found := common(log.epochs, log.end, member.epochs, member.end))
        ]
        return tuple(
            (gap, member.address)
            for gap in log.gaps
            for member, until in shared
            if member.start <= gap[0] and gap[1] <= until
        )

    def conflict(self, log: LogState) -> str:
        """The member that this log would contradict, and the place; empty if there is none."""
        for member in self._members.values():
            found = common(log.epochs, log.end, member.epochs, member.end)
            epoch, shared = (found[0].number, found[1]) if found else (0, 0)
            forced = self._role.forced if found else ()
            why = may_cut(shared, member.end, member.floor, epoch, forced)
            if why and shared < log.end:
                return f"{member.address} does not follow: {why}"
        return ""

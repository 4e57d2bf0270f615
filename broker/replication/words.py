"""What the other members told a master that waits for their word, and what follows from it. Pure.

A slave gives its word when it joins, or when it is asked. One that has lost its own disk cannot; if
all answer, though, there is nobody else to wait for, unless this node knows that it has lost
something.
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
        self.may_lack = False  # this node, of what was acknowledged
        self.known_epoch = 0  # the highest of which anybody told
        self._members: dict[str, MemberState] = {}  # by address
        self._answered: set[str] = set()  # members that cannot give their word
        self._java: set[str] = set()  # hosts of RocketMQ's slaves that have nothing more

    def take(self, member: MemberState, group: str) -> None:
        """`group`: the identity of the group that this node's log belongs to."""
        role = self._role
        if role.lacks and not member.identity:
            return  # one that is new does not make up for what this node knows to have lost
        is_known = role.replicas.get(member.broker_id) == member.address
        if is_witness(group, is_known, role.log_epoch, member):
            self._members[member.address] = member
            self.known_epoch = max(self.known_epoch, member.epoch)
            # Its log has every epoch that it opened, unless its disk is an older copy. What that
            # lacks another slave may have.
            self.may_lack |= role.required > 1 and member.epoch > role.log_epoch
        elif is_known:
            self._answered.add(member.address)

    def take_classic(self, host: str) -> None:
        """That of a slave of RocketMQ's, which has no more than this node."""
        self._java.add(host)

    def forget(self) -> None:
        """What was told may not be so any more."""
        self._members.clear()
        self._answered.clear()
        self._java.clear()

    def _slaves(self) -> set[str]:
        """The addresses of those that this node knows; it may have forgotten some, of which others
        tell."""
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
        """Why this node waits, for whom, and what an operator can do."""
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
        """Who has more of the log than this node, at its end or before its beginning; None if
        nobody has."""
        best = max(self._members.values(), key=lambda member: member.position, default=None)
        if best is not None and log.lacks_front(best.start):
            return best
        newest = max((epoch for epoch, start in log.epochs if start < log.end), default=0)
        return best if best is not None and best.position > (newest, log.end) else None

    def mendable(self, log: LogState) -> tuple[tuple[tuple[int, int], str], ...]:
        """What is damaged in this log, and the address of each who has that part of it."""
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
        """Whom this log would contradict, and where; empty if nobody."""
        for member in self._members.values():
            found = common(log.epochs, log.end, member.epochs, member.end)
            shared = found[1] if found else 0
            if shared < log.end and (why := may_cut(shared, member.end, member.floor, (), ())):
                return f"{member.address} does not follow: {why}"
        return ""

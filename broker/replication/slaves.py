"""Slaves that join this node: it refuses them, sends them the log, or counts their reports. Pure; a
part of the machine (`machine.py`).

A slave of another group, or one with the id of another connected slave, is refused before anything
else is looked at. Only a promise of such a twin is heard: it takes no other id from a master that
it may not follow. A node that does not lead takes its slaves' words, and sends the log only to a
node that wants its tail. A slave counts for acknowledgements when the file says that it belongs to
the group: a start that did not know of it would not wait for its word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from saturnmq.broker.replication import events as e
from saturnmq.broker.replication.introductions import Join
from saturnmq.broker.replication.joining import has_no_place, is_not_ours
from saturnmq.broker.replication.kinship import founded_by_mistake, has_promised, is_outranked
from saturnmq.broker.replication.role import MASTER_ID, State

if TYPE_CHECKING:
    from saturnmq.broker.replication.machine import Machine

NAME_S = 1.0  # before a slave that could not be written down is tried again


@dataclass
class Slave:
    """A slave that has joined."""

    join: Join
    named: bool = False  # the file says that it belongs to the group
    follows: bool = False  # it gets the log


class Slaves:
    def __init__(self, machine: Machine) -> None:
        self._m = machine
        self._me = machine.me
        self._role = machine.role
        self._slaves: dict[int, Slave] = {}  # by connection

    def validate(self) -> None:
        """AssertionError: two slaves of one id get the log."""
        followers: dict[int, set[str]] = {}
        for link, slave in self._slaves.items():
            join = slave.join
            assert link > 0, f"{join.address} is at the connection {link}"
            if slave.follows and join.broker_id and not join.tail:
                followers.setdefault(join.broker_id, set()).add(join.address)
        for broker_id, addresses in followers.items():
            assert len(addresses) == 1, f"{addresses} are all slave {broker_id}"

    def joined(self, link: int, join: Join) -> None:
        """Take a slave's introduction, which may name the offset to go on at."""
        role = self._role
        known = self._slaves.setdefault(link, Slave(join))
        known.join = join
        if why := is_not_ours(self._me, self._m.group(), join):
            self._m.do(e.Refuse(link, why))
        elif twin := self._twin(link, join):
            why = (
                f"{twin.address} is connected as slave {join.broker_id}: give {join.address} "
                "another brokerId, and an empty store if it was copied from there"
            )
            free = self.free_id() if twin.decided or join.decided else 0
            if self._waits_for_a_promotion(join):
                self._m.promises.hear(join, is_twin=True)
            self._m.do(e.Refuse(link, why, free_id=free))
        elif join.tail:
            if role.state is State.SLAVE:
                self._take_on(link, join)
            else:
                self._m.do(e.Refuse(link, "only a slave gives back the tail of a log"))
        elif not role.is_slave and is_outranked(role.log_epoch, self._me.broker_id, join):
            self._outranked(link, join)
        else:
            self._slave_told(link, join)

    def _twin(self, link: int, join: Join) -> Join | None:
        """Another slave that follows with the id of this one."""
        for other_link, slave in self._slaves.items():
            other = slave.join
            same = slave.follows and not other.tail and other.broker_id == join.broker_id != 0
            if same and other_link != link and other.address != join.address and not join.tail:
                return other
        return None

    @property
    def follow(self) -> bool:
        """Whether any slave gets the log."""
        return any(slave.follows for slave in self._slaves.values())

    def free_id(self) -> int:
        """An id for a slave that has none yet."""
        taken = {*self._role.replicas, *(slave.join.broker_id for slave in self._slaves.values())}
        free = min(set(range(1, len(taken) + 2)) - taken)
        assert free != MASTER_ID, f"of {taken} the id of the master is free"
        return free

    def _waits_for_a_promotion(self, join: Join) -> bool:
        """Whether this slave may not follow this master because of its promise."""
        role = self._role
        return (
            role.state is State.MASTER
            and join.state == "slave"
            and has_promised(join)
            and is_outranked(role.log_epoch, self._me.broker_id, join)
        )

    def _outranked(self, link: int, join: Join) -> None:
        """Act on a slave that knows of a higher epoch, of a master or of a promotion."""
        role = self._role
        if self._waits_for_a_promotion(join):
            self._m.promises.hear(join)
            self._m.do(e.Refuse(link, f"it was promised to a promotion to epoch {join.epoch}"))
            return
        why = f"epoch {role.log_epoch} is over: there is a master of epoch {join.epoch}"
        self._m.do(e.Refuse(link, why))
        self._m.superseded(join.epoch, f"{join.address} knows of it")

    def _slave_told(self, link: int, join: Join) -> None:
        role, log = self._role, self._m.log
        if role.state is State.MASTER and join.conflict:
            self._m.forgot(join.conflict)
        elif role.state is State.MASTER and founded_by_mistake(
            role.identity, log.end, role.replicas, join
        ):
            why = f"{join.address} has the log of a group of this name, and this node none"
            self._m.forgot(why)
        elif role.state is State.MASTER and join.epoch > role.log_epoch:
            self._m.forgot(f"{join.address} knows of epoch {join.epoch}, which this node opened")
        named = self._is_member(join) and not role.is_slave
        if role.state in (State.RECOVERING, State.UNSURE):
            # Taken before the slave is known: a new one has no word to give, neither now nor when
            # it joins again.
            words = self._m.recovering.words
            words.take(join, self._m.group())
            named = named and not words.is_newcomer(join)
        if named:
            role.add_replica(join.broker_id, join.address)
            if join.offset is not None and not join.asks:
                self._m.do(e.MergeBack(join.address))
        if role.state is State.MASTER and join.offset is not None:
            self._take_on(link, join)
        elif named:
            self.name(link)
        else:
            self._m.recovering.try_now()

    def _is_member(self, join: Join) -> bool:
        """Whether this slave belongs to the group, under an id of its own. A node that has lost its
        log may not know its group."""
        role = self._role
        if role.lacks and not role.identity:
            return False
        return join.broker_id != MASTER_ID and join.identity == role.identity

    def _take_on(self, link: int, join: Join) -> None:
        """Check whether both logs are equal before the slave's offset; if so, send it the log."""
        if why := has_no_place(self._m.log, join):
            self._m.do(e.Refuse(link, why))
            return
        assert join.check is not None, "it has a place"
        self._m.wait(e.Compare(join.check), partial(self._compared, link, join))

    def _compared(self, link: int, join: Join, error: str) -> None:
        assert join.check is not None, "it has a place"
        assert join.offset is not None, "it has a place"
        if error:
            self._m.do(e.Differs(link, join.check))
        elif join.asks:
            self._m.do(e.Accept(link))
        else:
            self._m.do(e.GoOn(link, join.offset))
            if not join.tail and link in self._slaves:
                self._slaves[link].follows = True
                self.name(link)

    def name(self, link: int) -> None:
        """Write the slave down as a member of the group; then its reports count."""
        slave = self._slaves.get(link)
        if slave is None or slave.named or not self._is_member(slave.join):
            self._m.recovering.try_now()
        else:
            self._m.wait(e.Save(), partial(self._named, link))

    def _named(self, link: int, error: str) -> None:
        if error:
            self._m.do(e.Say(f"a slave is not written down, trying again: {error}"))
            self._m.do(e.After(f"name {link}", NAME_S))
        elif link in self._slaves:
            self._slaves[link].named = True
            self._m.do(e.Count(link))
        self._m.recovering.try_now()

    def joined_classic(self, link: int, host: str, end: int) -> None:
        """Take on a slave of RocketMQ's, or refuse it."""
        role, log = self._role, self._m.log
        start = log.start if end == 0 else end
        if role.state is State.RECOVERING:
            if end > log.end:
                role.why = (
                    f"the RocketMQ slave at {host} has the log up to {end}, this one to {log.end}"
                )
                self._m.do(e.Refuse(link, role.why))
            else:
                self._m.recovering.words.take_classic(host)
                self._m.recovering.try_now()
        elif role.state is not State.MASTER:
            self._m.do(e.Refuse(link, "this node does not lead"))
        elif not log.start <= start <= log.end:
            why = (
                f"it asks for offset {end}, the log has {log.start} to {log.end}. Its log is not a "
                "prefix of this one; wipe its store to start it anew"
            )
            self._m.do(e.Refuse(link, why))
        else:
            self._m.do(e.GoOn(link, start), e.Count(link))

    def left(self, link: int) -> None:
        self._slaves.pop(link, None)

"""The role of this broker in its group, and whether it may take writes.

The configuration gives the first role. A promotion changes it while the broker runs; from then on
`config/role.json` decides at every start. A slave does not become a master by another
configuration: its master may live, and the other slaves go on acknowledging to it.

| key | meaning |
|---|---|
| identity | of the group, drawn when its first log began (`kinship.py`); empty: not known |
| decided | a promotion made this role: it wins over brokerRole and brokerId |
| brokerId | 0: master; without `decided` that of the configuration at the last start |
| epoch | the highest epoch this node knows: it serves and follows no lower one |
| term | the newest epoch that its log ever had |
| floor | the position that it knows to be confirmed with copies: no master may cut below |
| forced | epochs that an operator opened by force: followers cut to those |
| required | the copies that a send waits for, by the last master's word |
| replicas | the addresses of the slaves that ever followed this master, by id |
| caughtUp | since its start it had everything that was confirmed: it may be promoted |

The file is durable before this node acts on a change; `term` and `floor` follow a moment later.

A master takes writes only while there is no sign of another one (docs/guarantees.md I1 across a
fail-over). It takes none at its start and after a pause of its own (a stopped process wakes up with
requests in its sockets), until it has asked the nodes that would know; none while a slave may have
messages that it lacks (RECOVERING); and none once it knows of a higher epoch (FENCED).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Any

from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.tables.table_persistence import Document, Saveable, readable
from saturnmq.protocol import checked
from saturnmq.protocol.epochs import EPOCH_MAX, TERM, ceiling, is_own

PAUSE_S = 1.0  # if the loop stood still for longer, other nodes may have acted meanwhile
MASTER_ID = 0
FLOOR_S = 1.0  # between two writes of the floor, which rises with every message
FORCED_MAX = 16
REPLICAS_MAX = 1_000
Kept = dict[str, Any]  # a role as it was


class State(Enum):
    """The part of a node: whether it takes writes, and why."""

    UNSURE = "asks whether it still is the master"
    RECOVERING = "waits for slaves that may have what it lacks"
    MASTER = "takes writes"
    FENCED = "is deposed, and does not know its new master yet"
    SLAVE = "follows its master"


def led(kept: Kept) -> bool:
    """Whether the node took writes then."""
    return kept["_state"] is State.MASTER


class Role(Saveable):
    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.on_pause: Callable[[], None] = lambda: None  # other nodes may have acted meanwhile
        self.identity = ""  # of its group: 32 hex digits; empty: unknown
        self.broker_id = config.broker_id
        self.recorded_id = config.broker_id  # according to the file
        self.decided = False
        self.promised_epoch = 0
        self.log_epoch = (
            0  # the newest epoch its log has: what a master may say that it is master of
        )
        self.recorded_log_epoch = 0  # the newest epoch of the log, according to the file
        self.floor = 0
        self._floor_noted, self._floor_at = 0, 0.0
        self.forced: list[int] = []
        self.lacks = ""  # the part of the log that this node has lost
        self.required = config.replicas_required
        self.replicas: dict[int, str] = {}
        self.caught_up = False
        self.state = State.SLAVE if config.is_slave else State.UNSURE
        self.why = ""  # the special condition of this state, for status and refusals
        self.alive_at = 0.0  # when the loop was last seen turning
        self.leads_since_start = False  # the log is the same as when this process became master
        self.next_state = State.MASTER  # the role that follows UNSURE when no node objects

    def validate(self) -> None:
        """AssertionError: no rule leads to this."""
        state, known = self.state, max(self.promised_epoch, self.log_epoch)
        assert 0 <= self.promised_epoch <= EPOCH_MAX, f"epoch {self.promised_epoch} is promised"
        assert 0 <= self.log_epoch <= EPOCH_MAX, f"the log is of epoch {self.log_epoch}"
        assert 0 <= self.recorded_log_epoch <= EPOCH_MAX, self.recorded_log_epoch
        assert self.leads_in <= known <= self.ceiling, (self.leads_in, known, self.ceiling)
        assert self.floor >= 0, f"the floor is {self.floor}"
        assert self.required >= 1, f"{self.required} copies are required"
        assert self.broker_id >= MASTER_ID, f"the id is {self.broker_id}"
        assert len(self.forced) <= FORCED_MAX, f"{len(self.forced)} epochs were forced"
        assert MASTER_ID not in self.replicas, f"the master is a replica: {self.replicas}"
        if state is State.SLAVE:
            assert self.broker_id != MASTER_ID, "a slave has the id of the master"
        if state is State.MASTER:
            assert self.broker_id == MASTER_ID, f"a master has the id {self.broker_id}"
            assert self.log_epoch in (self.promised_epoch, 0), (
                f"it leads in {self.log_epoch}, and has promised {self.promised_epoch}"
            )
            assert not self.lacks, f"it takes writes, and lacks {self.lacks}"
            assert self.next_state in (State.MASTER, State.RECOVERING), self.next_state

    # the present role

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.is_slave = state in (State.SLAVE, State.FENCED)  # every request asks several times

    @property
    def leads_in(self) -> int:
        """The epoch of its term as master. A promotion that a crash interrupted may not have opened
        it. The number is its own, not that of the fence, which is the first of the term."""
        promoted = self.decided and self.broker_id == MASTER_ID and self.promised_epoch % TERM != 0
        return (
            self.promised_epoch
            if promoted and is_own(self.promised_epoch, self._config.broker_id)
            else self.log_epoch
        )

    @property
    def ceiling(self) -> int:
        """The highest epoch that this node believes."""
        return ceiling(max(self.promised_epoch, self.log_epoch))

    @property
    def name(self) -> str:
        """RocketMQ's name of this role."""
        if self.is_slave:
            return "SLAVE"
        return "SYNC_MASTER" if self.required > 1 else "ASYNC_MASTER"

    @property
    def state_name(self) -> str:
        """The state for the status: master, slave, recovering, fenced or unsure."""
        return "unsure" if self.state is State.UNSURE else self.state.name.lower()

    @property
    def may_have_forgotten(self) -> bool:
        """Whether its tables may be older than those of its slaves: it has started, and has not
        heard them yet."""
        waits = self.state in (State.UNSURE, State.RECOVERING) and not self.leads_since_start
        return waits and (self.required > 1 or bool(self.replicas))

    def refuses(self, now: float) -> str:
        """Why this node takes no writes now; empty if it does."""
        if self._state is State.MASTER:
            if now - self.alive_at > PAUSE_S:
                self.on_pause()  # leads on, if there is nobody who could have taken over
            if self._state is State.MASTER and now - self.alive_at <= PAUSE_S:
                return ""
        state = State.UNSURE if self.state is State.MASTER else self.state
        text = f"{self._config.broker_name} (id {self.broker_id}) {state.value}"
        if state is State.FENCED:
            text += f" (`saturnmq admin promote {self._config.broker_name} NODE` gives it one)"
        return f"{text}: {self.why}" if self.why else text

    def refuses_start(self, address: str) -> str:
        """Why this node, at this address, does not start; empty if it does. It followed a master,
        and its configuration makes it one. The record that a copy of another node's store brings is
        of another address: a group is restored from one copy."""
        followed = self.recorded_id != MASTER_ID and address == self.replicas.get(self.recorded_id)
        if self.decided or self.is_slave or not followed:
            return ""
        group = self._config.broker_name
        return (
            f"brokerRole is {self._config.role}, but {address} is slave {self.recorded_id} of "
            f"{group} (config/role.json), and another node may lead: both would take writes. The "
            "configuration gives only the first role. Start this node with brokerRole = SLAVE and "
            f"brokerId = {self.recorded_id}; then `saturnmq admin promote {group} {address}` makes "
            "it the master"
        )

    def tick(self, now: float) -> None:
        """Note that the loop turns; the first call after a pause reports the pause."""
        if self.state is State.MASTER and now - self.alive_at > PAUSE_S:
            self.on_pause()
        if self.state is not State.MASTER or now - self.alive_at <= PAUSE_S:
            self.alive_at = now
        if now - self._floor_at >= FLOOR_S:
            self.note_floor()

    def keep(self) -> Kept:
        """The values that `take_back` restores."""
        return dict(vars(self), replicas=dict(self.replicas), forced=list(self.forced))

    def take_back(self, kept: Kept, tried: int) -> None:
        """Take back every change since `keep`, which could not be written down; but keep an epoch
        above the one that was tried."""
        heard, changes, written = self.promised_epoch, self.changes, self._written
        vars(self).update(kept)
        self.changes, self._written = changes, written  # else a change might look as if written
        if heard > tried:
            self.promised_epoch = heard
        self.mark_dirty()

    # changes

    def suspect(self) -> None:
        """Take no writes for now: another node may have taken over meanwhile."""
        assert self.state in (State.MASTER, State.RECOVERING), f"it is {self.state.name}"
        self.next_state, self.state = self.state, State.UNSURE

    def becomes_master(self, epoch: int) -> None:
        """Become master by a promotion, which must be saved before `lead`."""
        assert epoch >= self.promised_epoch, f"promoted in {epoch}, knows {self.promised_epoch}"
        self.replicas.pop(self.broker_id, None)
        self.decided, self.broker_id = True, MASTER_ID
        self.promise(epoch)
        self.mark_dirty()

    def belongs(self, identity: str) -> None:
        """Belong to the group of this identity."""
        if identity != self.identity:
            self.identity = identity
            self.mark_dirty()

    def has(self, term: int) -> None:
        """Note the newest epoch of the log."""
        assert 0 <= term <= EPOCH_MAX, f"the log is of epoch {term}"
        if (term, term) != (self.log_epoch, self.recorded_log_epoch):
            self.log_epoch = self.recorded_log_epoch = term
            self.mark_dirty()

    def forces(self, epoch: int) -> None:
        """Note an epoch that an operator opens by force."""
        assert epoch > 0, f"epoch {epoch} is opened by force"
        self.forced = [*self.forced, epoch][-FORCED_MAX:]
        self.mark_dirty()

    def takes_over(self, forced: Collection[int]) -> None:
        """Note which epochs were opened by force in the history of another member's log, of which
        this log is a prefix from now on. If this node leads later, those that were away meanwhile
        cut to them."""
        if (known := sorted(forced)[-FORCED_MAX:]) != self.forced:
            self.forced = known
            self.mark_dirty()

    def confirmed(self, offset: int, now: float) -> None:
        """Raise the floor: this log has everything that the group has confirmed up to `offset`."""
        if offset > self.floor and self.required > 1:
            self.floor = offset
            if now - self._floor_at >= FLOOR_S:
                self._floor_at = now
                self.note_floor()

    def note_floor(self) -> None:
        """Have a changed floor written down."""
        if self.floor != self._floor_noted:
            self._floor_noted = self.floor
            self.mark_dirty()

    def cut_by_force(self, offset: int) -> None:
        """Lower the floor: an operator has given up the confirmed messages behind `offset`."""
        assert offset >= 0, f"cut at {offset}"
        self.floor = min(self.floor, offset)
        self.mark_dirty()

    def has_lost(self, what: str) -> None:
        """Note a part of the log that this node has lost: no other node may count on it before it
        has that part again."""
        self.lacks = what
        self.mark_lagging()

    def recover(self, why: str) -> None:
        """Take no writes until this master has the messages that a slave has and it lacks."""
        assert why, "who recovers says why"
        self.state, self.why = State.RECOVERING, why
        self.leads_since_start = False

    def lead(self, now: float) -> None:
        """Take writes."""
        assert self.state is not State.SLAVE, "a slave is promoted before it leads"
        assert self.broker_id == MASTER_ID, f"the node of id {self.broker_id} is to lead"
        self.state, self.why, self.alive_at = State.MASTER, "", now

    def promise(self, epoch: int) -> None:
        """Promise to serve and follow nothing below `epoch`."""
        if epoch > self.promised_epoch:
            assert epoch <= EPOCH_MAX, f"epoch {epoch} is promised, the limit is {EPOCH_MAX}"
            self.promised_epoch = epoch
            self.mark_dirty()

    def depose(self, why: str) -> None:
        """Take no writes any more: there is a newer master."""
        if self.state is not State.SLAVE:
            self.state, self.why = State.FENCED, why

    def follow(self, broker_id: int) -> None:
        """Become a slave under this id."""
        assert broker_id != MASTER_ID, "a slave is to have the id of the master"
        self.decided, self.broker_id, self.state, self.why = True, broker_id, State.SLAVE, ""
        self.mark_dirty()

    def add_replica(self, broker_id: int, address: str) -> None:
        """Note a slave that has joined."""
        assert broker_id != MASTER_ID, f"the slave {address} has the id of the master"
        if self.replicas.get(broker_id) != address:
            for other in [i for i, known in self.replicas.items() if known == address]:
                del self.replicas[other]
            self.replicas[broker_id] = address
            self.mark_dirty()

    def apply_group_info(self, required: int, replicas: Mapping[int, str]) -> None:
        """Apply the master's report of its group: a slave that is promoted goes on with it."""
        assert required >= 1, f"{required} copies are required"
        if (required, dict(replicas)) != (self.required, self.replicas):
            self.required, self.replicas = required, dict(replicas)
            self.mark_dirty()

    def mark_lagging(self) -> None:
        """Note that this node may lack confirmed messages of its group."""
        if self.caught_up:
            self.caught_up = False
            self.mark_dirty()

    def mark_caught_up(self) -> None:
        """Note that this node has all confirmed messages of its group."""
        if not self.caught_up:
            self.caught_up = True
            self.mark_dirty()

    # the file

    def document(self) -> Document:
        return {
            "identity": self.identity,
            "decided": self.decided,
            "brokerId": self.broker_id,
            "epoch": self.promised_epoch,
            "term": self.recorded_log_epoch,
            "floor": self.floor,
            "forced": self.forced,
            "required": self.required,
            "caughtUp": self.caught_up,
            "replicas": {str(i): address for i, address in sorted(self.replicas.items())},
        }

    def load(self, document: Mapping[str, Any]) -> None:
        """Read the file. MalformedFrame: a value in it is impossible, so the promises of this node
        are unknown."""
        self.identity = checked.identity(document, "identity")
        self.promised_epoch = checked.integer(document, "epoch", 0, most=EPOCH_MAX)
        self.recorded_log_epoch = checked.integer(document, "term", 0, most=EPOCH_MAX)
        self.floor = self._floor_noted = checked.integer(document, "floor", 0)
        self.forced = [
            checked.as_integer(epoch, "a forced epoch", least=1, most=EPOCH_MAX)
            for epoch in checked.items(document, "forced")
        ]
        replicas = checked.table(document, "replicas")
        self.replicas = dict(readable(replicas, _replica, "replica"))
        self.decided = document.get("decided") is True
        self.caught_up = document.get("caughtUp") is True
        self.recorded_id = checked.integer(document, "brokerId", self.broker_id)
        if self.decided:
            self.broker_id = checked.integer(document, "brokerId")
        if self.decided or self._config.is_slave:
            most = REPLICAS_MAX
            self.required = checked.integer(document, "required", self.required, least=1, most=most)
        self.state = State.SLAVE if self.broker_id != MASTER_ID else State.UNSURE


def _replica(broker_id: object, address: object) -> tuple[int, str]:
    where = checked.as_address(checked.as_text(address, "its address"))
    return checked.as_integer(broker_id, "its id", 1), where

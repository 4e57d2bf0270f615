"""The facts, events and instructions of the machine of replication. Values only.

An address names a node. A number that the executor gives names a connection or a request. An
instruction marked "Awaited" is the last one of its step: its outcome, `Done`, is the next event. An
instruction that asks other nodes is never awaited: it ends in an event of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from saturnmq.broker.replication.introductions import Check, Hello, Join, MemberState
from saturnmq.store.log.epochs import Epoch, check_rising

Range = tuple[int, int]  # a part of the log: its first byte, and the one behind its last


@dataclass(frozen=True)
class Me:
    """This node according to its configuration."""

    group: str  # its name
    broker_id: int  # as configured
    address: str
    segment_bytes: int
    sync_flush: bool = False
    sync_from_last_file: bool = False
    total_replicas: int = 1


@dataclass(frozen=True)
class LogState:
    """The log of this node, as a step finds it; offsets in bytes."""

    start: int = 0
    end: int = 0
    # The end of the last whole message that this node knows to be confirmed; -1: a slave that has
    # not heard of any since its start.
    confirmed: int = -1
    epochs: tuple[Epoch, ...] = ()
    identity: str = ""  # of its group, as the file of its epochs says
    amnesia: str = ""  # the part that the store once had and has not found
    missing: tuple[Range, ...] = ()  # the same as ranges
    gaps: tuple[Range, ...] = ()  # damaged ranges that the start has found
    clean: bool = True  # at the start: it was closed, and not killed
    torn: bool = False  # at the start: some of what had been flushed is gone
    failed: str = ""  # why the disk takes nothing more

    def validate(self) -> None:
        """AssertionError: no store and no file of epochs give this."""
        assert 0 <= self.start <= self.end or not self.end, f"{self.start} to {self.end}"
        assert -1 <= self.confirmed <= self.end, f"{self.confirmed} is confirmed of {self.end}"
        check_rising(self.epochs)
        assert all(first < last for first, last in (*self.missing, *self.gaps)), self.missing
        assert bool(self.missing) == bool(self.amnesia), (self.missing, self.amnesia)

    @property
    def term(self) -> int:
        """The newest epoch; 0: none."""
        return self.epochs[-1].number if self.epochs else 0

    def lacks_front(self, begins: int) -> bool:
        """Whether this log lacks a front that a log beginning there has. A log grows at its end
        only: it has to be copied back from its beginning."""
        return any(first < self.start and begins < last for first, last in self.missing)


# Events


@dataclass(frozen=True)
class Started:
    """The store is recovered, role.json is read, peers can connect."""


@dataclass(frozen=True)
class Paused:
    """The process stood still: other nodes may have acted meanwhile."""


@dataclass(frozen=True)
class Done:
    """The outcome of the awaited instruction."""

    error: str = ""  # why it failed; empty: it did not


@dataclass(frozen=True)
class Polled:
    """The outcome of Ask: the states of the nodes that answered."""

    what: str
    members: tuple[MemberState, ...] = ()


@dataclass(frozen=True)
class NameserverTold:
    """A nameserver knows of a higher epoch of this group, and maybe of its master."""

    epoch: int
    master: str = ""
    ha_address: str = ""


@dataclass(frozen=True)
class Superseded:
    """Another node opened a higher epoch; `why` names the node that knows of it."""

    epoch: int
    why: str
    master: str = ""
    ha_address: str = ""


@dataclass(frozen=True)
class Joined:
    """A slave has introduced itself, and may have named the offset to go on at."""

    link: int
    join: Join


@dataclass(frozen=True)
class JoinedClassic:
    """A slave of RocketMQ's has reported the end of its log."""

    link: int
    host: str
    end: int


@dataclass(frozen=True)
class LinkLost:
    link: int


@dataclass(frozen=True)
class Greeted:
    link: int
    hello: Hello
    foreign: str = ""  # why its group is not the one that etcd knows


@dataclass(frozen=True)
class Accepted:
    """The master has found both logs equal up to the place where this one is to be cut."""

    link: int


@dataclass(frozen=True)
class Refused:
    """The master refuses this node; `free_id` is for a slave whose id another one has."""

    link: int
    why: str
    free_id: int = 0


@dataclass(frozen=True)
class Reached:
    """The log of this slave has reached the position that was confirmed when it joined."""

    link: int


@dataclass(frozen=True)
class GroupTold:
    """The master has reported its group: copies that a send waits for, and slaves by id."""

    required: int
    replicas: dict[int, str]


@dataclass(frozen=True)
class EpochBegan:
    """The log that the master sends has reached the start of this epoch."""

    number: int


@dataclass(frozen=True)
class CopiedBack:
    """The outcome of CopyBack."""

    error: str = ""


@dataclass(frozen=True)
class Adopted:
    """The outcome of Adopt."""

    error: str = ""


@dataclass(frozen=True)
class Mended:
    """The outcome of Mend."""

    error: str = ""


@dataclass(frozen=True)
class Promised:
    """The outcome of AskPromises: the number of nodes that promised."""

    fence: int
    count: int


@dataclass(frozen=True)
class Fence:
    """Serve and follow nothing below this epoch: for a promotion, or for the master of `term`,
    which goes on above a promotion that did not come."""

    request: int
    epoch: int
    term: int = -1


@dataclass(frozen=True)
class Promote:
    request: int
    epoch: int
    end: int = 0
    force: bool = False  # the sender has looked at the other members, too
    insist: bool = False  # an operator accepts that messages may be lost


@dataclass(frozen=True)
class Again:
    """The time that After named is over."""

    what: str


Event = (
    Started
    | Paused
    | Done
    | Polled
    | NameserverTold
    | Superseded
    | Joined
    | JoinedClassic
    | LinkLost
    | Greeted
    | Accepted
    | Refused
    | Reached
    | GroupTold
    | EpochBegan
    | CopiedBack
    | Adopted
    | Mended
    | Promised
    | Fence
    | Promote
    | Again
)


# Instructions


@dataclass(frozen=True)
class Save:
    """Save the role, durably. Awaited."""


@dataclass(frozen=True)
class Open:
    """Write a new epoch into the epoch file, and an identity if the group has none, durably. From
    then on missing parts of the log count as lost, and entries of the topic table about offsets
    behind the log's end do not count. Awaited."""

    number: int
    start: int


@dataclass(frozen=True)
class Cut:
    """Truncate the log, into a side file. Awaited."""

    offset: int
    why: str


@dataclass(frozen=True)
class CutTorn:
    """Truncate a last frame that never came whole. Awaited."""


@dataclass(frozen=True)
class TakeEpochs:
    """Write down, durably, the epochs of this log and its group. Awaited."""

    epochs: tuple[Epoch, ...]
    identity: str


@dataclass(frozen=True)
class Settle:
    """Note, durably, that the missing part of the log is here again. Awaited."""


@dataclass(frozen=True)
class Compare:
    """Compare the checksum of this log there with the given one. Awaited; an error says that they
    differ."""

    check: Check


@dataclass(frozen=True)
class PutBack:
    """Append the rest of the side file of the last Cut: the part that the log has not got again, if
    there is any. Then the log has these epochs. Awaited."""

    epochs: tuple[Epoch, ...]


@dataclass(frozen=True)
class CopyBack:
    """Copy back the part of this slave's log that this log lacks. It ends in CopiedBack."""

    member: MemberState


@dataclass(frozen=True)
class Adopt:
    """Take the tables of the node at this address, all of them. It ends in Adopted."""

    address: str


@dataclass(frozen=True)
class Mend:
    """Replace damaged frames by those of the nodes at these addresses. It ends in Mended; frames
    that are damaged there, too, stay as they are."""

    ranges: tuple[tuple[Range, str], ...]


@dataclass(frozen=True)
class AskPromises:
    """Ask the nodes at these addresses to promise the master of `term` that they serve and follow
    no node below the epoch `fence`. It ends in Promised."""

    addresses: tuple[str, ...]
    fence: int
    term: int


@dataclass(frozen=True)
class Ask:
    """Ask these nodes, and maybe nameservers, for their state of the group; `tables`: merge those
    of slaves that have joined. It ends in Polled. An earlier Ask of the same kind is given up."""

    what: str
    addresses: tuple[str, ...]
    nameservers: bool = False
    tables: bool = False


@dataclass(frozen=True)
class Say:
    """Log a text for operators; with `alarm` it needs their attention."""

    text: str
    alarm: bool = False


@dataclass(frozen=True)
class SaveSoon:
    """Save the changed role; nothing waits for it."""


@dataclass(frozen=True)
class After:
    """Raise Again after some time."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Lead:
    """Take writes: begin the work of a master, tell slaves and nameservers. `promoted`: messages
    that the old master confirmed stay confirmed; the others need enough copies first."""

    promoted: bool = False


@dataclass(frozen=True)
class Retire:
    """End the work of a master, and answer the waiting sends with this text."""

    why: str


@dataclass(frozen=True)
class Dial:
    """Follow the master at these addresses."""

    address: str
    ha_address: str


@dataclass(frozen=True)
class Freeze:
    """Hide the messages behind the confirmed position from consumers until the new master confirms
    them."""


@dataclass(frozen=True)
class Register:
    """Register at the nameservers at once: this node's role has changed."""


@dataclass(frozen=True)
class HangUp:
    """End the connection to the master, and dial again while this node is a slave. Copies end,
    too."""


@dataclass(frozen=True)
class GiveUp:
    """End this connection to the master; operators learn `why`."""

    link: int
    why: str


@dataclass(frozen=True)
class LookForMaster:
    """Ask the nameservers for the master at once."""


@dataclass(frozen=True)
class SayJoin:
    """Send JOIN to the master: this node's state, and these fields."""

    link: int
    fields: dict[str, Any] = field(default_factory=dict)
    at: int = -1  # go on there, with a checksum of the log before; -1: only introduce this node


@dataclass(frozen=True)
class GoOn:
    """Send the log to this slave from there."""

    link: int
    offset: int


@dataclass(frozen=True)
class Count:
    """Count the reports of this slave for acknowledgements."""

    link: int


@dataclass(frozen=True)
class Accept:
    link: int


@dataclass(frozen=True)
class Refuse:
    link: int
    why: str
    free_id: int = 0  # for a slave whose id another one has


@dataclass(frozen=True)
class Differs:
    """Find out which node's frames are damaged, and mend them; this slave is refused until then."""

    link: int
    check: Check


@dataclass(frozen=True)
class MergeBack:
    """Merge the offsets that only the slave at this address knows."""

    address: str


@dataclass(frozen=True)
class DropSlaves:
    """Close the connections of all slaves: they join again, and report their logs."""


@dataclass(frozen=True)
class Answer:
    """Answer this request with the state of this node."""

    request: int


@dataclass(frozen=True)
class Decline:
    request: int
    why: str
    disk: bool = False  # it is the disk's fault


Awaited = Save | Open | Cut | CutTorn | TakeEpochs | Settle | PutBack | Compare
Instruction = (
    Awaited
    | CopyBack
    | Adopt
    | Mend
    | AskPromises
    | Say
    | SaveSoon
    | Freeze
    | Register
    | Count
    | Ask
    | After
    | Lead
    | Retire
    | Dial
    | HangUp
    | GiveUp
    | LookForMaster
    | SayJoin
    | GoOn
    | Accept
    | Refuse
    | Differs
    | MergeBack
    | DropSlaves
    | Answer
    | Decline
)

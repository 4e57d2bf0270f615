"""What the machine of replication knows, is told, and wants done. Values only.

Nodes are named by their address, connections by a number that the executor gives each, requests
too. An instruction marked "awaited" is the last one of its step: its outcome, `Done`, is the next
event. What asks other nodes is never awaited: it ends in an event of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from saturnmq.broker.replication.introductions import Check, Hello, Join, MemberState
from saturnmq.store.log.epochs import Epoch

Range = tuple[int, int]  # of the log: its first byte, and the one behind its last


@dataclass(frozen=True)
class Me:
    """What the configuration says of this node."""

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
    # Up to the last whole message of what it knows that its group has confirmed; -1: of a slave
    # that has not heard of it since its start.
    confirmed: int = -1
    epochs: tuple[Epoch, ...] = ()
    identity: str = ""  # of its group, as the file of its epochs says
    amnesia: str = ""  # the store knows that it had this, and has not found it
    missing: tuple[Range, ...] = ()  # the same as ranges
    gaps: tuple[Range, ...] = ()  # damaged, as its start has found
    clean: bool = True  # at the start: it was closed, and not killed
    torn: bool = False  # at the start: some of what had been flushed is gone
    failed: str = ""  # why the disk takes nothing more

    @property
    def term(self) -> int:
        """The newest epoch; 0: none."""
        return self.epochs[-1].number if self.epochs else 0

    def lacks_front(self, begins: int) -> bool:
        """Whether something is missing before its first byte, of what a log that begins there
        has. A log grows at its end only: it has to be copied back from its beginning."""
        return any(first < self.start and begins < last for first, last in self.missing)


# Events


@dataclass(frozen=True)
class Started:
    """The store is recovered, role.json is read, peers can connect."""


@dataclass(frozen=True)
class Paused:
    """The process stood still: others may have acted meanwhile."""


@dataclass(frozen=True)
class Done:
    """The outcome of the awaited instruction."""

    error: str = ""  # why it failed; empty: it did not


@dataclass(frozen=True)
class Polled:
    """The outcome of Ask: what those tell that answered."""

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
    """`why` says who knows of a higher epoch that another node opened."""

    epoch: int
    why: str
    master: str = ""
    ha_address: str = ""


@dataclass(frozen=True)
class Joined:
    """A slave has said who it is, and maybe where to go on."""

    link: int
    join: Join


@dataclass(frozen=True)
class JoinedClassic:
    """A slave of RocketMQ's has said where its log ends."""

    link: int
    host: str
    end: int


@dataclass(frozen=True)
class LinkLost:
    link: int


@dataclass(frozen=True)
class Greeted:
    """Whom this node dialled has said who it is."""

    link: int
    hello: Hello


@dataclass(frozen=True)
class Accepted:
    """The master has found both logs to be one up to where this one is to be cut."""

    link: int


@dataclass(frozen=True)
class Refused:
    """By the master; `free_id` is for a slave whose id another one has."""

    link: int
    why: str
    free_id: int = 0


@dataclass(frozen=True)
class Reached:
    """The log of this slave has what the master had confirmed when it joined."""

    link: int


@dataclass(frozen=True)
class GroupTold:
    """By the master: how many copies an acknowledgement waits for, and the slaves by id."""

    required: int
    replicas: dict[int, str]


@dataclass(frozen=True)
class EpochBegan:
    """The log that the master sends has come to where it opened this one."""

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
    """The outcome of AskPromises: how many promised."""

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
    force: bool = False  # whoever asks has looked at the others, too
    insist: bool = False  # an operator lets go of what may be lost


@dataclass(frozen=True)
class Again:
    """The time is over that After named."""

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
    """The role, durably. Awaited."""


@dataclass(frozen=True)
class Open:
    """A new epoch in the epoch file, and an identity if the group has none: what is missing is let
    go of, and so is all that the topic table says of the log behind its end. Durably. Awaited."""

    number: int
    start: int


@dataclass(frozen=True)
class Cut:
    """The log, into a side file. Awaited."""

    offset: int
    why: str


@dataclass(frozen=True)
class CutTorn:
    """A last frame that never came whole. Awaited."""


@dataclass(frozen=True)
class TakeEpochs:
    """These are the epochs of this log, which is of this group; durably. Awaited."""

    epochs: tuple[Epoch, ...]
    identity: str


@dataclass(frozen=True)
class Settle:
    """What was missing is here again: durably. Awaited."""


@dataclass(frozen=True)
class Compare:
    """Does this log have this checksum there? Awaited; an error tells that it has not."""

    check: Check


@dataclass(frozen=True)
class PutBack:
    """What the last Cut took and the log has not got again goes on at its end, if there is any; the
    epochs are these then. Awaited."""

    epochs: tuple[Epoch, ...]


@dataclass(frozen=True)
class CopyBack:
    """What this slave's log has more than this one. It ends in CopiedBack."""

    member: MemberState


@dataclass(frozen=True)
class Adopt:
    """Take the tables of the node at this address, all of them. It ends in Adopted."""

    address: str


@dataclass(frozen=True)
class Mend:
    """What is damaged, by what the nodes at these addresses have there. It ends in Mended; what
    they have not whole stays damaged."""

    ranges: tuple[tuple[Range, str], ...]


@dataclass(frozen=True)
class AskPromises:
    """Of the nodes at these addresses, to serve and follow nobody below the epoch `fence`, for the
    master of `term`. It ends in Promised."""

    addresses: tuple[str, ...]
    fence: int
    term: int


@dataclass(frozen=True)
class Ask:
    """These nodes what they know of the group, and maybe nameservers; it ends in Polled. One before
    it that asks for the same is given up."""

    what: str
    addresses: tuple[str, ...]
    nameservers: bool = False


@dataclass(frozen=True)
class Say:
    """To operators; with `alarm` somebody should look."""

    text: str
    alarm: bool = False


@dataclass(frozen=True)
class SaveSoon:
    """The role has changed, and nothing waits for it."""


@dataclass(frozen=True)
class After:
    """Some time, Again."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Lead:
    """Take writes: begin what only a master does, tell slaves and nameservers. `promoted`: what its
    old master confirmed is the group's; the rest once enough copies have it."""

    promoted: bool = False


@dataclass(frozen=True)
class Retire:
    """End what only a master does; who waits for an acknowledgement is told this."""

    why: str


@dataclass(frozen=True)
class Dial:
    """Follow the master at these addresses."""

    address: str
    ha_address: str


@dataclass(frozen=True)
class Freeze:
    """Of what this log has beyond what it confirmed, its consumers see nothing before the new
    master says so."""


@dataclass(frozen=True)
class Register:
    """At the nameservers, at once: this node's part has changed."""


@dataclass(frozen=True)
class HangUp:
    """End the connection to the master, and dial again while this node is a slave. No copy goes on
    either."""


@dataclass(frozen=True)
class GiveUp:
    """End this connection to the master; `why` is told to operators."""

    link: int
    why: str


@dataclass(frozen=True)
class LookForMaster:
    """At the nameservers, at once."""


@dataclass(frozen=True)
class SayJoin:
    """JOIN to the master: who this node is, and these fields."""

    link: int
    fields: dict[str, Any] = field(default_factory=dict)
    at: int = -1  # go on there, with a checksum of what lies before; -1: it only says who it is


@dataclass(frozen=True)
class GoOn:
    """The log is sent to this slave from there."""

    link: int
    offset: int


@dataclass(frozen=True)
class Count:
    """What this slave reports counts for acknowledgements."""

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
    """Find out whose frames are damaged, and mend them; this slave is refused until then."""

    link: int
    check: Check


@dataclass(frozen=True)
class MergeBack:
    """Offsets that the slave at this address knows and this node does not."""

    address: str


@dataclass(frozen=True)
class DropSlaves:
    """They join again, and tell what they have."""


@dataclass(frozen=True)
class Answer:
    """The state of this node, to whoever asked."""

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

"""Whether two logs are one log, which of two nodes has to give way, and when neither may. Pure.

A group has an identity, drawn when its first log begins. A node or a log that is known to belong to
another group is foreign: it is refused before anything else is looked at.

Logs of one group differ if a master wrote messages that were never confirmed: its successor does
not have them, and a follower cuts them off. A follower's **floor** is the position that it knows to
be confirmed in a group whose sends wait for copies. It cuts nothing below its floor, whoever the
master is: a master without that part has lost it, or belongs to another group. Then both nodes
stop. Only an operator can override this (`admin promote --force`): the new epoch is marked as
forced, and followers cut to it, into a side file. All members whose logs have that epoch know of
it, so one that was away may come back when another node leads.

A node cannot tell from its own disk whether that is an older copy of itself. So a master whose
sends wait for copies takes writes only after enough of its slaves have reported their logs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from saturnmq.broker.replication.introductions import MemberState
from saturnmq.protocol.epochs import TERM, is_own


def is_foreign(mine: str, theirs: str) -> bool:
    """Whether both identities are known and differ."""
    return bool(mine and theirs and mine != theirs)


def is_outranked(term: int, opener: int, other: MemberState) -> bool:
    """Whether another node leads since, or is about to: `other` knows of an epoch above `term` that
    the node of this configured id did not open. An epoch that it did open, it has forgotten."""
    if other.epoch <= term:
        return False
    if other.state == "master" or not is_own(other.epoch, opener):
        return True
    # A promotion fences with the first number of a term, which may be the node's own.
    return has_promised(other) and bool(term or other.term)


def is_copied_from(term: int, other: MemberState) -> bool:
    """Whether another node leads in `term`, the newest epoch of this log: the log is a copy."""
    return other.state == "master" and other.epoch == term


def has_promised(other: MemberState) -> bool:
    """Whether `other` was fenced for a promotion that it has not heard of since: the epoch of that
    promotion may never have been opened."""
    return other.epoch % TERM == 0 and other.epoch > other.term


def founded_by_mistake(mine: str, end: int, replicas: Collection[int], other: MemberState) -> bool:
    """Whether a master whose log ends at `end` has to give up its group for that of a slave that
    dials it: its disk is empty, no slave follows it, and the slave has a log of the same group
    name."""
    return not end and not replicas and is_foreign(mine, other.group)


def may_cut(offset: int, end: int, floor: int, epoch: int, forced: Iterable[int]) -> str:
    """Why a log that ends at `end` must not be cut at `offset`, in `epoch`, for another one that
    goes on there, in whose history these epochs were forced; empty if it may be."""
    assert offset >= 0, f"a log is to be cut at {offset}"
    assert floor >= 0, f"{floor} is confirmed"
    if offset >= min(end, floor) or any(opened > epoch for opened in forced):
        return ""
    return (
        f"its log lacks the part from {offset} to {min(end, floor)}, which this group had "
        "confirmed: one of the two logs has lost it, or was copied from elsewhere. Nothing is cut. "
        "Look at `saturnmq admin replicas`, and let the node with the right log lead: `saturnmq "
        "admin promote GROUP NODE --force` makes the other follow, and keeps the part that it cuts "
        "in a side file"
    )


def no_epochs(failed: str) -> str:
    """Why a node whose disk `failed` takes over the epochs of no other log. A write that failed may
    have left a whole frame behind the end of its log: the next start reads it, and would take it
    for one of those epochs."""
    return f"its disk takes no more writes: {failed}; check it, then restart the broker"


def is_witness(identity: str, term: int, other: MemberState, *, known: bool) -> bool:
    """Whether a slave can testify which messages the group had. A slave that lost its own disk
    cannot. Nor can a slave with an empty log that has heard of a master above `term`, the newest
    epoch of this log: it may never have followed that master. `known`: it belonged to the group
    before."""
    if other.lacks or is_foreign(identity, other.group):
        return False
    if other.epoch > term and not other.end:
        return False
    return bool(other.identity) or not known


def has_joined(identity: str, term: int, other: MemberState) -> bool:
    """Whether a slave's log has bytes of this master's `term`: it has joined the master then, and
    the marks in its tables are of this log. Those of another slave may be of a log that was cut
    off: of messages that only it or the master before had."""
    return other.state == "slave" and other.identity == identity and other.term == term


def words_needed(slaves: int, required: int, *, may_lack: bool) -> int:
    """The number of slaves that a starting master hears before it takes writes. It is the number of
    slaves that acknowledge with it. If the master may lack something (after a crash, or if a slave
    knows of a later start of it), one of the slaves heard must have every acknowledged message: of
    n slaves required - 1 have it, so one of any n - required + 2 has."""
    assert required >= 1, f"{required} copies are required"
    least = max(1, required - 1)
    return max(least, min(slaves, slaves - required + 2)) if may_lack else least


def promises_needed(copies: int, required: int) -> int:
    """The number of other members, of `copies` in all, that must promise a master a new term, so
    that no other master can acknowledge below it: any `required` copies include one that promised.
    """
    assert copies >= 1, f"a group of {copies} copies"
    assert required >= 1, f"{required} copies are required"
    return max(1, copies - required)

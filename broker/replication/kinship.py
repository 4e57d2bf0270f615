"""Whether two logs are one log, which of two nodes has to give way, and when nobody may. Pure.

A group has an identity, drawn when its first log begins. What is known to be of another group is
foreign: refused before anything else is looked at.

Logs of one group differ where a master wrote what nobody confirmed; its successor does not have
that, and the follower cuts it. Below its **floor**, what it knows was confirmed in a group whose
sends wait for copies, a follower cuts nothing, whoever asks: a master without it has lost it, or is
another's. Both stop then. Only an operator's word (`admin promote --force`) goes over that: the
epoch that it opens says so, and followers cut to it, into a side file.

A node's own disk cannot tell an older copy of itself from the truth. So a master whose sends wait
for copies takes writes when enough of its slaves have told what they have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from saturnmq.broker.replication.introductions import MemberState
from saturnmq.protocol.epochs import TERM, is_own


def is_foreign(mine: str, theirs: str) -> bool:
    """Whether both identities are known and differ."""
    return bool(mine and theirs and mine != theirs)


def is_outranked(term: int, opener: int, other: MemberState) -> bool:
    """Whether somebody else leads since, or is about to: `other` knows of an epoch above `term`
    that the node of this configured id did not open. One that it did open it has forgotten."""
    if other.epoch <= term:
        return False
    if other.state == "master" or not is_own(other.epoch, opener):
        return True
    # A promotion fences with the first number of a term, which may be the node's own.
    return has_promised(other) and bool(term or other.term)


def has_promised(other: MemberState) -> bool:
    """Whether `other` was fenced for a promotion that it has not heard of since: nobody may have
    opened its epoch."""
    return other.epoch % TERM == 0 and other.epoch > other.term


def founded_by_mistake(mine: str, end: int, replicas: Collection[int], other: MemberState) -> bool:
    """Whether a master whose log ends at `end` has to give up its group for that of a slave which
    dials it: its disk is empty, nobody follows it, and the slave has the log of its name."""
    return not end and not replicas and is_foreign(mine, other.group)


def may_cut(
    offset: int, end: int, floor: int, since: Iterable[int], forced: Collection[int]
) -> str:
    """Why a log that ends at `end` must not be cut at `offset` for a master whose epochs behind
    that place are `since`; empty if it may."""
    if offset >= min(end, floor) or any(epoch in forced for epoch in since):
        return ""
    return (
        f"its log has not what this group had confirmed from {offset} to {min(end, floor)}: one of "
        "the two has lost it, or was copied from elsewhere. Nothing is cut. Look at `saturnmq "
        "admin replicas`, and let the one that is right lead: `saturnmq admin promote GROUP NODE "
        "--force` makes the other follow, and keeps what it cuts in a side file"
    )


def is_witness(identity: str, known: bool, term: int, other: MemberState) -> bool:
    """Whether a slave can say what the group had: one that lost its own disk cannot, nor one with
    an empty log that has heard of a master above `term`, the newest epoch of this log: it may never
    have followed that. `known`: it belonged to the group before."""
    if other.lacks or is_foreign(identity, other.group):
        return False
    if other.epoch > term and not other.end:
        return False
    return bool(other.identity) or not known


def words_needed(slaves: int, required: int, *, may_lack: bool) -> int:
    """How many slaves a starting master hears before it takes writes. As many as acknowledge with
    it; if it may lack something (a crash, or a slave knows of a later start of it), so many that
    one of them has whatever was acknowledged: of n slaves required - 1 have it, so one of any
    n - required + 2."""
    least = max(1, required - 1)
    return max(least, min(slaves, slaves - required + 2)) if may_lack else least


def promises_needed(copies: int, required: int) -> int:
    """How many others must promise a master of `copies` members a new term, so that nobody else can
    acknowledge below it: `required` copies take one of those that did."""
    return max(1, copies - required)

"""Whether a slave and a master belong together, and where their logs part. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from saturnmq.broker.replication.events import LogState, Me
from saturnmq.broker.replication.introductions import Hello, Join
from saturnmq.broker.replication.kinship import is_foreign
from saturnmq.store.log.epochs import Epoch, common

CHECK_BYTES = 4 << 20  # of the log before the offset that a slave joins at


def is_not_ours(me: Me, group: str, join: Join) -> str:
    """Why this slave does not belong to this group, whose log has the identity `group`; empty if it
    does."""
    if join.name != me.group or is_foreign(group, join.group):
        return (
            f"it is of group {join.name} {join.identity}, this node of {me.group} {group}: look at "
            "its namesrvAddr and haMasterAddress, or wipe its store to make it a slave of this "
            "group"
        )
    if join.tail and (join.offset is None or join.check is None):
        return "it wants the tail of a log, and does not say from which offset"
    return ""


def has_no_place(log: LogState, join: Join) -> str:
    """Why a slave cannot go on in this log at its offset; empty if it can."""
    offset, check = join.offset, join.check
    if offset is None or check is None:
        return "it does not say at which offset to go on, with a checksum of the log before it"
    if not log.start <= offset <= log.end:
        return f"it asks for offset {offset}, the log has {log.start} to {log.end}"
    inside = log.start <= check.start <= check.end <= offset
    if not inside or check.end - check.start > CHECK_BYTES:
        return f"it checks {check.start} to {check.end}, the log has {log.start} to {log.end}"
    return ""


def cannot_follow(me: Me, group: str, hello: Hello) -> str:
    """Why this node, whose log has the identity `group`, cannot follow this master; empty if it
    can."""
    if hello.name != me.group:
        return f"it is of group {hello.name}, this node of {me.group}"
    leads = hello.state == "master"
    if is_foreign(group, hello.group) or (leads and group and hello.identity != group):
        return (
            f"it is of another group called {hello.name}: its identity is "
            f"{hello.identity or 'not known'}, that of this node {group}. Nothing is exchanged "
            "with it; look at namesrvAddr and haMasterAddress, or wipe this node's store to "
            "make it a slave of that group"
        )
    if hello.segment_bytes != me.segment_bytes:
        return (
            f"its segments are {hello.segment_bytes} bytes long, here {me.segment_bytes} "
            "(mappedFileSizeCommitLog): one log can have one size only"
        )
    return ""


def shared_with(me: Me, log: LogState, hello: Hello) -> tuple[int, int] | str:
    """The common prefix of this log and the master's, as far as epochs show it: (epoch, offset); or
    why there is none."""
    assert me.segment_bytes == hello.segment_bytes, (me.segment_bytes, hello.segment_bytes)
    if not log.end:
        last = max(hello.start, hello.end - hello.end % me.segment_bytes)
        return 0, last if me.sync_from_last_file else hello.start
    found = common(log.epochs, log.end, hello.epochs, hello.end)
    if found is None:
        if log.epochs or log.end > hello.end:
            return (
                f"the epochs of this log {_text(log.epochs)} and of the master's "
                f"{_text(hello.epochs)} have nothing in common; wipe this node's store"
            )
        return 0, log.end  # from before there were epochs: the checksum decides
    epoch, offset = found
    assert offset <= log.end, f"both logs are one up to {offset}, this one ends at {log.end}"
    assert offset <= hello.end, f"both logs are one up to {offset}, one ends at {hello.end}"
    if offset < hello.start:
        return (
            f"this log is the master's up to {offset}, and the master has deleted its log "
            f"before {hello.start}; wipe this node's store"
        )
    return epoch.number, offset


def _text(epochs: Sequence[Epoch]) -> str:
    return ", ".join(f"{number} from {start}" for number, start in epochs[-5:]) or "(none)"

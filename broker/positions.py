"""Where a consumer begins, where it may go on, and which offsets of it are kept.

After a loss that its mode allows (fault-model I4) a group's log goes on in a new epoch, and new
messages get the offsets of lost ones. A client of ours says in `saturnTerm` which epoch's log it
has read, or which it was told that its group's offset is of; what that epoch had behind the start
of the next is gone.
"""

from __future__ import annotations

from saturnmq.broker.context import Context, integer

NO_TERM = -1


def beginning(first: int, low: int, in_memory: bool) -> int | None:
    """Where a group that has no offset in a queue begins, if the broker is to say it; None: the
    consumer's `consumeFromWhere` decides.

    RocketMQ's rule (remoting.md 2.3, code 14): from the queue's first offset, while that is there
    (`low`, the least offset, is not above it) and the message at it is in memory. So a group misses
    nothing of a queue that is younger than itself: "from the last offset" is asked some time after
    the queue's first messages came. RocketMQ 5.4 says of an empty queue that there is no offset,
    and its client then asks for the end; between the two a message can come and be passed over.
    """
    return first if low <= first and in_memory else None


def lost_from(
    c: Context, ext: dict[str, str], topic: str, queue_id: int, offset: int
) -> int | None:
    """Where a consumer must go on whose offset is of messages that the group has lost; None if it
    may stay."""
    term = integer(ext, "saturnTerm", NO_TERM)
    if term in (NO_TERM, c.role.term):
        return None
    start = c.epochs.end_of(term)
    end = None if start is None else c.store.offset_at(topic, queue_id, start)
    return None if end is None or offset <= end else end


def commit(c: Context, ext: dict[str, str], place: tuple[str, str, int], offset: int) -> None:
    """Keep a group's offset (group, topic, queue), unless it is of messages that are lost. A slave
    may lag behind the master that its consumers have read from; a master has it all."""
    group, topic, queue_id = place
    if lost_from(c, ext, topic, queue_id, offset) is not None:
        return
    if c.role.is_slave or offset <= c.store.max_offset(topic, queue_id):
        c.offsets.commit(group, topic, queue_id, offset)

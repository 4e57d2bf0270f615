"""The offset at which a consumer begins or goes on after a loss, and the offsets that are kept.

After a loss that its mode allows (docs/guarantees.md I4) a group's log goes on in a new epoch, and
new messages get the offsets of lost ones. A client of ours sends in `saturnTerm` the epoch of the
log that it has read, or the epoch that came with its group's offset. The messages of that epoch
behind the start of the next one are gone.

The numbers alone do not show which epoch is the next: a node that could not hear of epoch 400000
may be promoted in 300000, while both epochs follow 100000. So a client sends in `saturnEpochs` the
epochs of its log up to its own. The two logs are one up to the place where they part.
"""

from __future__ import annotations

from saturnmq.broker.context import Context
from saturnmq.protocol import epochs
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.headers import PullHeader, ReaderHeader, UpdateOffsetHeader
from saturnmq.runtime.errors import InvalidParameter, TopicNotExist
from saturnmq.store.log.epochs import Epoch
from saturnmq.store.message_store import MessageStore

NO_TERM = -1


def log_of(c: Context) -> dict[str, str]:
    """The fields of an answer that identify its log: the epoch, and those that led to it. Empty:
    this log has no epoch yet."""
    term = c.role.log_epoch
    led = epochs.to_text(each for each in c.epochs.entries if each.number <= term)
    return {"saturnTerm": str(term), "saturnEpochs": led} if led else {}


def term_of(c: Context, header: ReaderHeader) -> dict[str, str]:
    """The same fields in the answer to a request with this header: the epoch, and those that led to
    it unless the client sent them itself. Java clients, which send no epoch, get only the one."""
    term = c.role.log_epoch
    if header.term is None or (header.term == term and header.epochs is not None):
        return {"saturnTerm": str(term)}
    return {"saturnTerm": str(term), **log_of(c)}


def beginning(first: int, low: int, *, in_memory: bool) -> int | None:
    """The offset at which a group without an offset in a queue begins, if the broker decides it;
    None: the consumer's `consumeFromWhere` decides.

    RocketMQ's rule (docs/internals/protocol.md 2.3, code 14): a group begins at the queue's first
    offset while that is there (`low`, the least offset, is not above it) and the message at it is
    in memory. So a group misses no message of a queue that is younger than itself, although a
    client asks for "the last offset" some time after the queue's first messages came. RocketMQ 5.4
    answers that an empty queue has no offset, and its client then asks for the end: between the two
    requests a message can come and be skipped.
    """
    return first if low <= first and in_memory else None


def beginning_of(store: MessageStore, topic: str, queue_id: int) -> int | None:
    """`beginning` for a queue as it is now."""
    low, first = store.min_offset(topic, queue_id), store.first_offset(topic, queue_id)
    return beginning(first, low, in_memory=store.is_in_memory(topic, queue_id, first))


def lost_from(
    c: Context, header: ReaderHeader, topic: str, queue_id: int, offset: int
) -> int | None:
    """The offset to which a consumer must go back if the group has lost the messages at its own;
    None if it may stay."""
    if header.term in (None, NO_TERM, c.role.log_epoch):
        return None
    start = _parted_at(c, header.term, _told(header))
    end = None if start is None else c.store.offset_at(topic, queue_id, start)
    assert end is None or end >= 0, f"queue {queue_id} of {topic} parted at {end}"
    return None if end is None or offset <= end else end


def _parted_at(c: Context, term: int, told: list[Epoch]) -> int | None:
    """The physical offset at which this log parts from the log of `term` that a client has read;
    `told` are the epochs of that log. None if this log has all of it, or is its beginning, as far
    as is known."""
    log_end = c.store.watermarks.appended
    common = c.epochs.common(log_end, told, INT64_MAX)
    if common is None:  # epochs before the oldest one that was sent may be common
        return c.epochs.end_of(told[0].number if told else term)
    epoch, end = common
    assert end <= log_end, f"logs part at {end}, this one ends at {log_end}"
    return None if epoch.number == c.epochs.last and end == log_end else end


def _told(header: ReaderHeader) -> list[Epoch]:
    said = header.epochs
    if said is None:
        return []
    told = epochs.from_text(said)
    if told is None:
        raise InvalidParameter(
            f"header field 'saturnEpochs' is {said[:80]!r}: send up to {epochs.TOLD_MAX} "
            "NUMBER-START, joined by commas"
        )
    return [Epoch(*each) for each in told]


def check_queue(c: Context, topic: str, queue_id: int) -> None:
    """Refuse a queue that does not exist and never did: an offset in it would stay for good. Queues
    that a topic had before it got fewer are accepted, as long as the log has them."""
    known = c.topics.get(topic)
    if known is None:
        raise TopicNotExist(f"topic {topic} does not exist")
    if not has_queue(c, topic, queue_id):
        raise InvalidParameter(
            f"queue id {queue_id} of topic {topic} is out of range; it has {known.queues} queues"
        )


def has_queue(c: Context, topic: str, queue_id: int) -> bool:
    """Whether this queue exists, or did according to the log. A queue of an unknown topic counts as
    existing, because this topic table may be older than another node's."""
    known = c.topics.get(topic)
    if known is None or 0 <= queue_id < known.queues:
        return True
    return queue_id >= 0 and c.store.max_offset(topic, queue_id) > 0


def moves_of(c: Context, header: PullHeader) -> dict[str, str]:
    """The field of an answer that says how often the group's offset was moved, for a client of ours
    that does not know it."""
    if header.term is None or c.role.is_slave:
        return {}
    moves = c.offsets.moves(header.group, header.topic, header.queue_id)
    return {} if header.moves == moves else {"saturnMoves": str(moves)}


def commit(
    c: Context,
    header: PullHeader | UpdateOffsetHeader,
    place: tuple[str, str, int],
    offset: int,
) -> None:
    """Keep a group's offset (group, topic, queue), unless it is of lost messages, or of a member
    that has not heard of a reset. On a slave an offset may be ahead of the log, because its
    consumers have read from the master."""
    group, topic, queue_id = place
    if lost_from(c, header, topic, queue_id, offset) is not None:
        return
    if header.moves is not None and header.moves < c.offsets.moves(group, topic, queue_id):
        return
    if c.role.is_slave or offset <= c.store.max_offset(topic, queue_id):
        c.offsets.commit(group, topic, queue_id, offset)

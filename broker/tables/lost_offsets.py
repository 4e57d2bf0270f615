"""Where a consumer begins, where it may go on, and which offsets of it are kept.

After a loss that its mode allows (docs/guarantees.md I4) a group's log goes on in a new epoch, and
new messages get the offsets of lost ones. A client of ours says in `saturnTerm` which epoch's log
it has read, or which it was told that its group's offset is of; what that epoch had behind the
start of the next is gone.

Which one is the next, the numbers do not say: a node that nobody could tell of epoch 400000 may be
promoted in 300000, of 100000 both. So a client says in `saturnEpochs` which epochs, up to its own,
that log had; the two logs are one up to where they part.
"""

from __future__ import annotations

from saturnmq.broker.context import Context
from saturnmq.protocol import epochs
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.headers import ReaderHeader
from saturnmq.runtime.errors import InvalidParameter, TopicNotExist
from saturnmq.store.log.epochs import Epoch

NO_TERM = -1


def log_of(c: Context) -> dict[str, str]:
    """The fields of an answer that say of which log it is: the epoch, and those that led to it.
    Empty: this log has none yet."""
    term = c.role.log_epoch
    led = epochs.to_text(each for each in c.epochs.entries if each.number <= term)
    return {"saturnTerm": str(term), "saturnEpochs": led} if led else {}


def term_of(c: Context, header: ReaderHeader) -> dict[str, str]:
    """The same, of an answer to a request with this header: the epoch, and those that led to it
    until the client says them itself. Java clients, which say no epoch, get the one alone."""
    term = c.role.log_epoch
    if header.term is None or (header.term == term and header.epochs is not None):
        return {"saturnTerm": str(term)}
    return {"saturnTerm": str(term), **log_of(c)}


def beginning(first: int, low: int, in_memory: bool) -> int | None:
    """Where a group that has no offset in a queue begins, if the broker is to say it; None: the
    consumer's `consumeFromWhere` decides.

    RocketMQ's rule (docs/internals/protocol.md 2.3, code 14): from the queue's first offset, while
    that is there (`low`, the least offset, is not above it) and the message at it is in memory. So
    a group misses nothing of a queue that is younger than itself: "from the last offset" is asked
    some time after the queue's first messages came. RocketMQ 5.4 says of an empty queue that there
    is no offset, and its client then asks for the end; between the two a message can come and be
    passed over.
    """
    return first if low <= first and in_memory else None


def lost_from(
    c: Context, header: ReaderHeader, topic: str, queue_id: int, offset: int
) -> int | None:
    """The offset to which a consumer must go back if the group has lost the messages at its own;
    None if it may stay."""
    if header.term in (None, NO_TERM, c.role.log_epoch):
        return None
    start = _parted_at(c, header.term, _told(header))
    end = None if start is None else c.store.offset_at(topic, queue_id, start)
    return None if end is None or offset <= end else end


def _parted_at(c: Context, term: int, told: list[Epoch]) -> int | None:
    """The physical offset up to which this log is the one of `term` that a client has read, whose
    epochs it was `told`; None if this log is all of that one, or its beginning, for all that is
    known."""
    log_end = c.store.watermarks.appended
    common = c.epochs.common(log_end, told, INT64_MAX)
    if common is None:  # epochs before the oldest of those may be common
        return c.epochs.end_of(told[0].number if told else term)
    epoch, end = common
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
    """Refuse a queue that there is not, and never was: what is kept of it would stay for good. The
    queues that a topic had before it got fewer count, as long as the log knows them."""
    known = c.topics.get(topic)
    if known is None:
        raise TopicNotExist(f"topic {topic} does not exist")
    if not has_queue(c, topic, queue_id):
        raise InvalidParameter(
            f"queue id {queue_id} of topic {topic} is out of range; it has {known.queues} queues"
        )


def has_queue(c: Context, topic: str, queue_id: int) -> bool:
    """Whether this queue is there, or was, as far as the log knows; of a topic that is not known
    nobody can tell (its table may be older than another's): then it is."""
    known = c.topics.get(topic)
    if known is None or 0 <= queue_id < known.queues:
        return True
    return queue_id >= 0 and c.store.max_offset(topic, queue_id) > 0


def commit(c: Context, header: ReaderHeader, place: tuple[str, str, int], offset: int) -> None:
    """Keep a group's offset (group, topic, queue), unless it is of messages that are lost. A slave
    may lag behind the master that its consumers have read from; a master has it all."""
    group, topic, queue_id = place
    if lost_from(c, header, topic, queue_id, offset) is not None:
        return
    if c.role.is_slave or offset <= c.store.max_offset(topic, queue_id):
        c.offsets.commit(group, topic, queue_id, offset)

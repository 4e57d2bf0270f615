"""Sends to topics with queue.type=BatchCQ: each request becomes one inner batch.

RocketMQ's rules, with its refusals (13): an inner batch goes to such a topic only; a message that
is none must not have the property INNER_NUM. A batch request becomes a batch of its messages; as
one message (code 10 or 310) a producer sends a batch that it has compressed as a whole, with both
flags and INNER_NUM. Differs: RocketMQ stores single messages, and those of batches without
UNIQ_KEY, as ordinary frames. Here they are inner batches, of one message, and with an id from the
broker: the log alone tells of which kind its queues are.

Nobody unpacks a compressed batch here. One that has not the messages that INNER_NUM promises comes
to its consumers as it is (`protocol/inner_batch.py`).
"""

from __future__ import annotations

from saturnmq.broker.tables.topics import Topic
from saturnmq.protocol.compression import COMPRESSED_FLAG
from saturnmq.protocol.frame import WRAPPED
from saturnmq.protocol.frame_reference import INNER_NUM_MAX
from saturnmq.protocol.inner_batch import BATCHED, QUEUE_TYPE, count_in
from saturnmq.protocol.properties import INNER_NUM, find_in_text
from saturnmq.runtime.errors import MessageIllegal
from saturnmq.store.message_store import AppendResult

Body = bytes | bytearray | memoryview


def is_batched(topic: Topic) -> bool:
    """Whether the frames of a topic are inner batches."""
    return topic.attributes.get(QUEUE_TYPE) == BATCHED


def check_not_wrapped(topic: str, sys_flag: int) -> None:
    """MessageIllegal: these flags are those of an inner batch, and the topic is not for them."""
    if sys_flag & WRAPPED:
        raise MessageIllegal(
            f"topic {topic} takes no inner batches (sysFlag {sys_flag:#x}): it would need "
            f"{QUEUE_TYPE}={BATCHED}, which a topic gets when it is created"
        )


def messages_of(body: Body, sys_flag: int) -> int:
    """The messages of a batch request, which becomes one frame. MessageIllegal: it cannot."""
    if sys_flag & (COMPRESSED_FLAG | WRAPPED):
        raise MessageIllegal(
            f"a batch request with sysFlag {sys_flag:#x}: a batch that is compressed as a whole is "
            "sent as one message, with the flags of an inner batch and INNER_NUM"
        )
    return count_in(body)


def messages_in(properties: str, body: Body, sys_flag: int) -> int:
    """The messages that one sent message stands for. MessageIllegal: it does not tell."""
    claimed = find_in_text(properties, f"{INNER_NUM}\x01")
    if not sys_flag & WRAPPED:
        if claimed:
            raise MessageIllegal(f"the message has {INNER_NUM}={claimed:.20}, and is no batch")
        return 1
    count = int(claimed) if len(claimed) < 6 and claimed.isascii() and claimed.isdigit() else 0
    if sys_flag & WRAPPED != WRAPPED or not 0 < count <= INNER_NUM_MAX:
        raise MessageIllegal(
            f"an inner batch with {INNER_NUM}={claimed!r:.20} and sysFlag {sys_flag:#x}: it needs "
            f"1 to {INNER_NUM_MAX} messages and both flags, {WRAPPED:#x}"
        )
    if not sys_flag & COMPRESSED_FLAG and count != (found := count_in(body)):
        raise MessageIllegal(f"the batch has {found} messages, {INNER_NUM} says {count}")
    return count


def frame_sizes(put: AppendResult) -> list[int]:
    """The sizes from which a producer counts the ids of its messages on: all those of an inner
    batch have the place of its frame."""
    return [0] * (put.count - len(put.sizes)) + [*put.sizes]

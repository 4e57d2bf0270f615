"""Answers to POP_MESSAGE: messages with their receipt handles (docs/internals/protocol.md 2.10).

The handle of a message is kept in its properties, under POP_CK, as in Java. An answer is checked
before any message of it is given out: each message must be named in `msgOffsetInfo`, in the order
of the frames, and each queue in `startOffsetInfo`. A broker of RocketMQ's gives messages of its
retry topics the name of the topic that was asked for, and writes their handles into them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from saturnmq.protocol import checked, kernels
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.pop_handle import KINDS, NORMAL, RETRY_V2, PopHandle, topic_of_kind
from saturnmq.protocol.properties import POP_CK
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame

QUEUES_MOST = 4096  # named in one answer


def handle_of(message: ReceivedMessage) -> PopHandle:
    """InvalidParameter: the message was not received by a SimpleConsumer."""
    try:
        return PopHandle.decode(message.properties.get(POP_CK, ""))
    except MalformedFrame as error:
        raise InvalidParameter(
            f"message {message.message_id} has no handle ({error}): only a message of receive() "
            "can be acknowledged"
        ) from None


def messages_in(
    answer: Command, topic: str, group: str, broker: str, *, verify_crc: bool
) -> list[ReceivedMessage]:
    """The messages of an answer, with their handles. MalformedFrame: it contradicts itself."""
    ext = answer.ext
    pop_ms, invisible_ms = (checked.integer(ext, name) for name in ("popTime", "invisibleTime"))
    revive_queue = checked.integer(ext, "reviveQid")
    starts = dict(_starts(ext.get("startOffsetInfo", "")))
    offsets = dict(_offsets(ext.get("msgOffsetInfo", "")))
    kinds = {topic_of_kind(topic, group, kind): kind for kind in KINDS}
    found = kernels.decode_frames(answer.body, verify_crc, broker)
    for message in found:
        kind = kinds.get(message.topic)
        if kind is None:
            raise MalformedFrame(f"a pop of {topic} has a message of {message.topic}")
        if kind == NORMAL and POP_CK in message.properties:
            kind = _written_kind(message, pop_ms, broker)
        queue = kind, message.queue_id
        named = offsets.get(queue)
        if not named or queue not in starts or named.pop(0) != message.queue_offset:
            raise MalformedFrame(
                f"a pop of {topic} does not name message {message.queue_offset} of queue "
                f"{message.queue_id} in its place"
            )
        handle = PopHandle(
            starts[queue],
            pop_ms,
            invisible_ms,
            revive_queue,
            kind,
            broker,
            message.queue_id,
            message.queue_offset,
        )
        message.properties[POP_CK] = str(handle)
        message.topic = topic
    if any(offsets.values()):
        raise MalformedFrame(f"a pop of {topic} names messages that it does not have")
    return found


def _written_kind(message: ReceivedMessage, pop_ms: int, broker: str) -> int:
    """The kind in the handle that a broker wrote into this message for this pop. Its producer may
    have left another one in it, which says nothing."""
    try:
        handle = PopHandle.decode(message.properties[POP_CK])
    except MalformedFrame:
        return NORMAL
    place = message.queue_id, message.queue_offset
    is_of_this_pop = (handle.pop_ms, handle.broker) == (pop_ms, broker)
    return handle.kind if is_of_this_pop and (handle.queue_id, handle.offset) == place else NORMAL


def _rows(info: str) -> Iterator[tuple[tuple[int, int], str]]:
    rows = info.split(";") if info else []
    if len(rows) > QUEUES_MOST:
        raise MalformedFrame(f"a pop names {len(rows)} queues, the limit is {QUEUES_MOST}")
    for row in rows:
        words = row.split(" ")
        if len(words) != 3:
            raise MalformedFrame(f"{row[:60]!r} names no queue of a pop")
        kind = checked.as_integer(words[0], "a kind", most=RETRY_V2)
        yield (kind, checked.as_integer(words[1], "a queue")), words[2]


def _starts(info: str) -> Iterator[tuple[tuple[int, int], int]]:
    for queue, word in _rows(info):
        yield queue, checked.as_integer(word, "a start")


def _offsets(info: str) -> Iterator[tuple[tuple[int, int], list[int]]]:
    for queue, word in _rows(info):
        yield queue, [checked.as_integer(each, "an offset") for each in word.split(",")]


def bits_of(offsets: Sequence[int], start: int) -> bytes:
    """The bit set of these offsets, as Java's BitSet.toByteArray."""
    number = 0
    for offset in offsets:
        number |= 1 << offset - start
    return number.to_bytes((number.bit_length() + 7) // 8, "little")

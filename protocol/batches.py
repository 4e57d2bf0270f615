"""Several batches, of several queues, in one request (SEND_BATCHES 390040, ours).

RocketMQ's batch has messages of one queue. A producer that writes to a thousand topics would send a
thousand small requests instead of a few large ones, and each costs both sides more than its
messages do. Here the batches of many queues travel together and each stands for itself: an error in
one does not keep the others from being stored.

The body of the request, for each part:

    i32 queue id | i32 system flag | i64 born, ms | u16 n, topic | i32 n, the batch (batch.py)

The body of the answer, one part for each of the request, in order:

    i32 code | i32 queue id | i64 queue offset | i64 physical offset of the first | i32 n, the rest

The rest is an i32 for each frame with its size or, if the part is not stored, the remark. The
answer's own code counts for all stored parts (0, or 10 to 12: stored, but not as safe as asked
for). If it is an error, no part is stored. `saturnHost` has the first half of their offset ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from saturnmq.runtime.errors import MalformedFrame

PARTS_MAX = 128  # a broker handles a request in one piece, so that piece must be short
HOST = "saturnHost"
TOPIC_BYTES_MAX = 255

_PART = struct.Struct(">iiqHi")
_ANSWER = struct.Struct(">iiqqi")
assert _PART.size == 22, "two i32, i64, u16 and i32"
assert _ANSWER.size == 28, "two i32, two i64 and i32"


class BatchPart(NamedTuple):
    """A batch for one queue."""

    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    body: Any  # bytes-like


class PartAnswer(NamedTuple):
    """The outcome of one batch."""

    code: int
    queue_id: int
    queue_offset: int = 0
    physical_offset: int = 0
    rest: bytes = b""


def encode_parts(parts: Iterable[BatchPart]) -> bytes:
    """The body of a request."""
    pieces: list[Any] = []
    for topic, queue_id, sys_flag, born_ms, body in parts:
        name = topic.encode()
        pieces += (_PART.pack(queue_id, sys_flag, born_ms, len(name), len(body)), name, body)
    return b"".join(pieces)


def decode_parts(body: Any) -> list[BatchPart]:
    """The parts of a request; their bodies are views. MalformedFrame: the body is no such
    request."""
    view, at = memoryview(body), 0
    parts: list[BatchPart] = []
    while at < len(view):
        if len(parts) == PARTS_MAX:
            raise MalformedFrame(f"a request has more than {PARTS_MAX} batches: send fewer in one")
        if len(view) - at < _PART.size:
            raise MalformedFrame(f"batch {len(parts)} ends in its head, at byte {len(view)}")
        queue_id, sys_flag, born_ms, named, size = _PART.unpack_from(view, at)
        begin = at + _PART.size + named
        at = begin + size
        if size < 0 or at > len(view) or not 0 < named <= TOPIC_BYTES_MAX or sys_flag < 0:
            raise MalformedFrame(
                f"batch {len(parts)} has a topic of {named} bytes, flag {sys_flag} and {size} "
                f"bytes, where {max(len(view) - begin, 0)} are left"
            )
        topic = _text(view[begin - named : begin])
        parts.append(BatchPart(topic, queue_id, sys_flag, born_ms, view[begin:at]))
    if not parts:
        raise MalformedFrame("a request has no batch")
    return parts


def encode_answers(answers: Iterable[PartAnswer]) -> bytes:
    """The body of an answer."""
    return b"".join(
        piece
        for code, queue_id, queue_offset, physical, rest in answers
        for piece in (_ANSWER.pack(code, queue_id, queue_offset, physical, len(rest)), rest)
    )


def decode_answers(body: Any, count: int) -> Sequence[PartAnswer]:
    """The outcomes of `count` parts. MalformedFrame: the body is no such answer."""
    data, at, answers = bytes(body), 0, []
    for number in range(count):
        if len(data) - at < _ANSWER.size:
            raise MalformedFrame(f"answer {number} of {count} ends in its head")
        code, queue_id, queue_offset, physical, size = _ANSWER.unpack_from(data, at)
        at += _ANSWER.size
        if not 0 <= size <= len(data) - at:
            raise MalformedFrame(f"answer {number} of {count} has {size} bytes, not {len(data)}")
        answers.append(PartAnswer(code, queue_id, queue_offset, physical, data[at : at + size]))
        at += size
    if at != len(data):
        raise MalformedFrame(f"{len(data) - at} bytes follow {count} answers")
    return answers


def _text(name: memoryview) -> str:
    try:
        return str(name, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"the topic of a batch is no UTF-8: {error}") from None

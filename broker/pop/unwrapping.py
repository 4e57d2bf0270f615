"""Pops of queues whose frames are inner batches: each message is given out for itself.

A read of the store gives whole batches. Here the messages in them take their place, from the
offset that was asked for on, as many as the pop may have, of its tags. A compressed batch may be
small in the log, so the bytes of its messages are counted here. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from saturnmq.broker.pop.orders import split
from saturnmq.protocol.frame import QUEUE_OFFSET_AT
from saturnmq.protocol.inner_batch import unwrapped
from saturnmq.protocol.jhash import tags_code
from saturnmq.protocol.kernels import decode_frames
from saturnmq.store.message_store import GetResult, GetStatus


def unwrap(
    result: GetResult, first: int, most: int, codes: frozenset[int] | None, room: int
) -> GetResult:
    """A result that was read from queue offset `first` on, with single messages, of `room` bytes at
    most, but one in any case."""
    if not result.of_batches:
        return result
    found: list[memoryview] = []
    following, size = result.next_begin_offset, 0
    for frame in split(bytes(unwrapped(result.data, first))):
        offset = int.from_bytes(frame[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big")
        if len(found) == most:
            following = offset
            break
        if codes is None or tags_code(decode_frames(frame, False)[0].tag) in codes:
            size += len(frame)
            if found and size > room:
                following = offset
                break
            found.append(memoryview(frame))
    status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
    return replace(
        result,
        status=status,
        pieces=found,
        count=len(found),
        next_begin_offset=following,
        runs=(),
    )


def is_there(result: GetResult, offset: int) -> bool:
    """Whether the message at this offset was found, and not one behind it."""
    return result.status == "FOUND" and result.next_begin_offset == offset + 1

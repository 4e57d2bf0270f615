"""Inner batches: many messages in one frame of the log, in topics with queue.type=BatchCQ.

The body of such a frame is that of SEND_BATCH_MESSAGE (`batch.py`), as a whole compressed if
sysFlag says so. sysFlag has INNER_BATCH; with NEED_UNWRAP the body is such a batch, without it one
ordinary message. INNER_NUM says how many messages there are, INNER_BASE the queue offset of the
first, which is the frame's; they follow each other. RocketMQ's rule, but for single messages,
which it stores without INNER_BATCH.

Brokers store such frames and give them to clients of Remoting; RocketMQ's Java clients unwrap them
as ours do. Pops and the gRPC port give out the messages in them.
"""

from __future__ import annotations

from saturnmq.protocol.compression import COMPRESSED_FLAG, TYPE_MASK, decompress
from saturnmq.protocol.frame import (
    BORN_HOST_V6,
    OFFSET,
    PHYSICAL_OFFSET_AT,
    STORE_HOST_V6,
    WRAPPED,
    Frame,
    decode_frame,
)
from saturnmq.protocol.frame_reference import INNER_NUM_MAX, Buffer
from saturnmq.protocol.kernels import check_batch, has_wrapped, write_batch
from saturnmq.protocol.properties import INNER_BASE, INNER_NUM
from saturnmq.runtime.errors import MessageIllegal

QUEUE_TYPE, BATCHED = "queue.type", "BatchCQ"
"""The attribute of a topic that says so, and its value."""

_OWN = WRAPPED | COMPRESSED_FLAG | TYPE_MASK  # flags of the frame, not of its messages


def count_in(body: Buffer) -> int:
    """The messages of a batch that is to become one frame; MessageIllegal if it cannot."""
    count, _ = check_batch(body, 1, 0, False, len(body))
    if count > INNER_NUM_MAX:
        raise MessageIllegal(
            f"the batch has {count} messages, a frame holds {INNER_NUM_MAX} at most: send smaller "
            "batches"
        )
    return count


def unwrapped(frames: Buffer, first: int) -> Buffer:
    """These whole frames, of which those with batches give way to frames of the messages in them,
    without messages before queue offset `first`. Frames without a batch are returned as they are.

    The new frames have the place in the log of the old one. A batch that is not what its frame
    says stays as it is: nobody can read it, but those behind it.
    """
    if not has_wrapped(frames):
        return frames
    view, pos = memoryview(frames), 0
    out = bytearray()
    while pos < len(view):
        outcome = decode_frame(view, pos)
        if not isinstance(outcome, Frame):
            out += view[pos:]  # the reader finds the damage, and names it
            break
        if outcome.sys_flag & WRAPPED == WRAPPED:
            try:
                out += _messages(outcome, first)
            except MessageIllegal:
                out += view[pos : pos + outcome.size]
        else:
            out += view[pos : pos + outcome.size]
        pos += outcome.size
    return bytes(out)


def _messages(frame: Frame, first: int) -> memoryview:
    """The frames of the messages in a batch from queue offset `first` on; MessageIllegal if they
    are not as many as the frame says."""
    body = decompress(frame.body, frame.sys_flag)
    hosts_v6 = bool(frame.sys_flag & BORN_HOST_V6) + bool(frame.sys_flag & STORE_HOST_V6)
    count, total = check_batch(body, len(frame.topic), hosts_v6, False, len(body))
    claimed = frame.properties
    if (claimed.get(INNER_NUM), claimed.get(INNER_BASE)) != (str(count), str(frame.queue_offset)):
        raise MessageIllegal(f"{count} messages in a batch of {claimed.get(INNER_NUM)}")
    out = bytearray(total)
    _, sizes = write_batch(
        body,
        out,
        0,
        frame.physical_offset,
        frame.queue_offset,
        frame.queue_id,
        frame.sys_flag & ~_OWN,
        frame.born_timestamp,
        frame.born_host,
        frame.store_timestamp,
        frame.store_host,
        frame.reconsume_times,
        frame.topic,
        False,
    )
    at = 0
    for size in sizes:
        OFFSET.pack_into(out, at + PHYSICAL_OFFSET_AT, frame.physical_offset)
        at += size
    return memoryview(out)[sum(sizes[: max(first - frame.queue_offset, 0)]) :]

"""The messages that say that a half is over: those of RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0.

RocketMQ's form: tag `d`, and a body of half queue offsets, each with a `,` behind it. A half that
is named there is not asked about any more. Ours name one half each, and have a property more:

    SATURN_ENDING = <kind> <physical offset of the half> <its root> <position> <base>

| kind | the half | stored right behind, in one write |
|---|---|---|
| c | was committed | the message, under its real topic |
| r | was rolled back | |
| m | waits on as a copy of itself | the copy |
| x | expired: its producer was asked often enough | a copy in TRANS_CHECK_MAX_TIME_TOPIC |

**The ending comes first, and counts only with the frame behind it**, which names the same half (its
PREPAREDTRANSACTIONOFFSET). So a crash or a promotion between the two has ended nothing: the half is
open as before, and no message was stored. And a message that is in the log was committed in every
part of the log that has it. No message is stored twice or lost, at whatever byte a log ends.

All halves before `position` were over when the ending was written, and no ending before `base` is
about a later half. The newest ending thus tells a start where to begin; the log needs no other
table. The offsets of the group CID_RMQ_SYS_TRANS, which RocketMQ's broker begins at, follow them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

from saturnmq.protocol import properties as names
from saturnmq.protocol.frame import (
    BODY_LENGTH_AT_V4,
    BORN_HOST_V6,
    FRAME_BYTES_MIN,
    OFFSET,
    PHYSICAL_OFFSET_AT,
    STORE_HOST_V6,
    SYS_FLAG_AT,
)
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.topics import OP_HALF_TOPIC
from saturnmq.store.message_store import PendingMessage

QUEUE = OP_HALF_TOPIC, 0
GROUP = "CID_RMQ_SYS_TRANS"
TAG = "d"
_ENDING = f"{names.WAIT}\x01true\x02{names.TAGS}\x01{TAG}\x02{names.ENDING}\x01"
_V6_BYTES = 12  # by which a host is longer
_PREPARED_AT_V4 = BODY_LENGTH_AT_V4 - OFFSET.size
HEAD_BYTES = _PREPARED_AT_V4 + 2 * _V6_BYTES + OFFSET.size


class EndingKind(StrEnum):
    COMMITTED = "c"
    ROLLED_BACK = "r"
    MOVED = "m"
    EXPIRED = "x"


@dataclass(frozen=True, slots=True)
class Ending:
    """An ending as it is read from the log; `kind` is None in one that RocketMQ wrote."""

    offset: int  # its own, in the queue of endings
    halves: tuple[int, ...]
    kind: EndingKind | None = None
    physical: int = -1
    root: int = -1
    position: int = -1
    base: int = -1


def write_ending(
    kind: EndingKind,
    half: int,
    physical: int,
    root: int,
    *,
    position: int,
    base: int,
    now_ms: int,
    host: bytes,
) -> PendingMessage:
    """The ending of the half at the queue offset `half`."""
    assert base >= 0, f"endings from {base} on"
    assert 0 <= position <= half, f"the half {half} is over, and all before {position}"
    said = f"{_ENDING}{kind} {physical} {root} {position} {base}\x02"
    return PendingMessage(
        OP_HALF_TOPIC,
        0,
        b"%d," % half,
        said.encode(),
        born_timestamp=now_ms,
        born_host=host,
        store_host=host,
    )


def read_ending(message: ReceivedMessage) -> Ending:
    """The ending in a message of its topic; without halves if it is none."""
    offset = message.queue_offset
    if message.tag != TAG:
        return Ending(offset, ())
    try:
        halves = tuple(int(part) for part in message.raw_body.split(b",") if part.strip())
    except ValueError:
        return Ending(offset, ())
    said = message.properties.get(names.ENDING, "").split()
    try:
        kind, numbers = EndingKind(said[0]), [int(number) for number in said[1:]]
        physical, root, position, base = numbers
    except (ValueError, IndexError):
        return Ending(offset, halves)
    return Ending(offset, halves, kind, physical, root, position, base)


def counts(ending: Ending, head: memoryview | None, end: int) -> bool:
    """Whether an ending that ends at the log's byte `end` counts, given the bytes behind it."""
    if ending.kind is None or ending.kind is EndingKind.ROLLED_BACK:
        return True
    if head is None or len(head) < FRAME_BYTES_MIN:
        return False
    (sys_flag,) = struct.unpack_from(">i", head, SYS_FLAG_AT)
    at = _PREPARED_AT_V4
    at += _V6_BYTES * (bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6))
    if len(head) < at + OFFSET.size or OFFSET.unpack_from(head, PHYSICAL_OFFSET_AT)[0] != end:
        return False
    prepared: int = OFFSET.unpack_from(head, at)[0]
    return prepared == ending.physical

"""One waiting message as sixteen bytes, which sort in the order in which messages come due.

    0   u64  the moment at which the message is looked at, ms of the clock of its shelf
    8   u64  the queue offset in rmq_sys_wheel_timer times 4, plus the kind

| kind | |
|---|---|
| 0 SETTLED | the message with this moment and offset waits no more: delivered, recalled or rolled |
| 1 DELIVER | it is due then |
| 2 ROLL | its log expires before it is due: it is written into the log anew then |

A SETTLED entry sorts directly before the entry that it ends, so two entries that meet while runs
are merged or read cancel each other out.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator

ENTRY = struct.Struct(">QQ")
ENTRY_BYTES = 16
assert ENTRY.size == ENTRY_BYTES, "two u64"

SETTLED, DELIVER, ROLL = 0, 1, 2
_KINDS = 3  # the bits of the kind


def pack(moment: int, offset: int, kind: int) -> bytes:
    assert moment >= 0, f"an entry of the moment {moment}"
    assert offset >= 0, f"an entry of the queue offset {offset}"
    return ENTRY.pack(moment, offset << 2 | kind)


def unpack(entry: bytes) -> tuple[int, int, int]:
    """(moment, queue offset, kind)"""
    moment, place = ENTRY.unpack(entry)
    return moment, place >> 2, place & _KINDS


def moment_of(entry: bytes) -> int:
    return int.from_bytes(entry[:8], "big")


def is_settled(entry: bytes) -> bool:
    return not entry[15] & _KINDS


def are_one(entry: bytes, other: bytes) -> bool:
    """Whether two entries are of the same message."""
    return entry[:15] == other[:15] and entry[15] >> 2 == other[15] >> 2


def merged(streams: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """The entries of sorted streams in order. Settled messages are left out; a SETTLED entry whose
    message is in none of the streams stays, because another run may have it."""
    before = None
    for entry in heapq.merge(*streams):
        if before is not None and is_settled(before) and are_one(before, entry):
            if not is_settled(entry):
                before = None  # they cancel each other out; else one of two alike stays
            continue
        if before is not None:
            yield before
        before = entry
    if before is not None:
        yield before

"""SQL92 conditions while a queue is read: which entries pass, as far as one call may look.

The tag of a message is in its entry, its properties are in the log only. So each frame is looked
at, and what that takes is counted: one call ends after a few milliseconds with what it has, and
says where to go on, though nothing may have matched.
"""

from __future__ import annotations

from collections.abc import Callable

from saturnmq.protocol.frame import frame_properties
from saturnmq.protocol.properties import decode_properties
from saturnmq.protocol.sql92 import Sql
from saturnmq.store.derived.consumequeue import ENTRY, FILLER, UNIT

PASSED = frozenset([1])
"""The tags code of entries that pass, once they are sifted."""

WORK_MAX = 8192  # of one call, in terms of a condition: a fraction of a microsecond each
FRAME_WORK = 8  # to find a frame and to take its properties apart
COLD_WORK = 128  # to read one from the disk
PROPERTY_BYTES = 32  # take as long as a term
_FILLER_SIZE = ENTRY.unpack(FILLER)[1]


def sift(
    entries: memoryview,
    sql: Sql,
    read: Callable[[int, int], memoryview | None],
    visible: int,
    cached: int,
    max_count: int,
    max_bytes: int,
) -> memoryview:
    """The entries that were looked at, with tags code 1 where the message matches, else 0.

    It ends where so many messages or bytes passed, before what ends behind `visible`, and when the
    work of one call is done; it looks at one at least. `read` gives a stretch of the log, of which
    what lies before `cached` comes from the disk.
    """
    assert len(entries) % UNIT == 0, f"{len(entries)} bytes are no entries of {UNIT}"
    work = 0
    sifted = bytearray()
    for physical, size, _ in ENTRY.iter_unpack(entries):
        if size == _FILLER_SIZE and physical == 0:
            sifted += FILLER
            continue
        if physical + size > visible or work >= WORK_MAX or max_count <= 0 or max_bytes <= 0:
            break
        frame = read(physical, size)
        properties = None if frame is None else frame_properties(frame)
        # A lost or damaged frame passes the filter, so that the reader reports it.
        passed = properties is None or sql.matches(decode_properties(properties))
        sifted += ENTRY.pack(physical, size, passed)
        work += FRAME_WORK + sql.terms + len(properties or b"") // PROPERTY_BYTES
        if physical < cached:
            work += COLD_WORK
        if passed:
            max_count -= 1
            max_bytes -= size
    assert len(sifted) <= len(entries), f"{len(sifted)} of {len(entries)} bytes were sifted"
    return memoryview(sifted)

"""SQL92 conditions while a queue is read: which entries pass, as far as one call may look.

The tag of a message is in its entry, its properties are in the log only. So each frame is looked
at, and what that takes is estimated: one call ends after a few milliseconds with what it has, and
says where to go on, though nothing may have matched. Estimates are used, not a clock, so that the
same call always has the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from saturnmq.protocol.frame import FRAME_BYTES_MIN, frame_properties
from saturnmq.protocol.kernels import COMPILED
from saturnmq.protocol.properties import decode_properties
from saturnmq.protocol.sql92 import Sql, program_of, searches_of
from saturnmq.store.derived.consumequeue import ENTRY, FILLER, UNIT

PASSED = frozenset([1])
"""The tags code of entries that pass, once they are sifted."""


class LookCosts(NamedTuple):
    """The time that it takes to look at a message, in nanoseconds."""

    frame: int  # to find it and its properties
    byte: int  # of the properties
    term: int  # of the condition

    def of(self, sql: Sql, size: int) -> int:
        """With properties of `size` bytes; a search reads one in a nanosecond."""
        return self.frame + self.term * sql.terms + (self.byte + searches_of(sql)) * size


WORK_MAX = 2_000_000  # of one call
COLD = 32_000  # more for a message on the disk
REFERENCE_COSTS = LookCosts(2000, 20, 250)
COMPILED_COSTS = LookCosts(80, 2, 10)
Read = Callable[[int, int], memoryview | None]
"""A stretch of the log, from an offset, of at most so many bytes. It is shorter where the log or a
segment ends, and None where there is none."""


def sift_reference(
    entries: memoryview,
    sql: Sql,
    read: Read,
    visible: int,
    cached: int,
    max_count: int,
    max_bytes: int,
    costs: LookCosts = REFERENCE_COSTS,
) -> memoryview:
    """See `sift`."""
    filler = ENTRY.unpack(FILLER)
    work = 0
    sifted = bytearray()
    for physical, size, _ in ENTRY.iter_unpack(entries):
        if (physical, size) == filler[:2]:
            sifted += FILLER
            continue
        if physical + size > visible or work >= WORK_MAX or max_count <= 0 or max_bytes <= 0:
            break
        frame = read(physical, size) if size >= FRAME_BYTES_MIN else None
        properties = None if frame is None else frame_properties(frame)
        # A lost or damaged frame passes the filter, so that the reader reports it.
        passed = properties is None or sql.matches(decode_properties(properties))
        sifted += ENTRY.pack(physical, size, passed)
        work += costs.of(sql, len(properties or b""))
        if physical < cached:
            work += COLD
        if passed:
            max_count -= 1
            max_bytes -= size
    return memoryview(sifted)


sift_compiled: Any = None
if not TYPE_CHECKING and COMPILED:
    try:
        from saturnmq.store.store_kernel import sift_compiled
    except ImportError:  # only the other kernels could be compiled
        sift_compiled = None


def sift(
    entries: memoryview,
    sql: Sql,
    read: Read,
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
    program = program_of(sql)
    if sift_compiled is None or program is None:
        return sift_reference(entries, sql, read, visible, cached, max_count, max_bytes)

    def judge(properties: bytes) -> tuple[bool, int]:
        passed = sql.matches(decode_properties(properties))
        return passed, REFERENCE_COSTS.of(sql, len(properties))

    of_one = COMPILED_COSTS.of(sql, 0)
    of_byte = COMPILED_COSTS.of(sql, 1) - of_one
    sifted: memoryview = sift_compiled(
        entries,
        program,
        judge,
        read,
        visible,
        cached,
        max_count,
        max_bytes,
        (WORK_MAX, COLD, of_one, of_byte),
    )
    return sifted

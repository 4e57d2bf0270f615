"""Cutting a range of a queue into pieces by the bytes of its messages.

ConsumeQueue entries hold the size of every frame and never change, so the same range is always cut
the same way, by whichever replica. A slot without a message weighs nothing, as does one that is
gone: its reader will find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from saturnmq.protocol.kernels import COMPILED
from saturnmq.store.derived.consumequeue import ENTRY, UNIT

_FILLER_SIZE = 0x7FFFFFFF

Entries = Callable[[int, int], memoryview]
"""At most so many (second) entries from an index (first) on; fewer where a file ends, none if they
are gone."""


def weigh_entries_reference(entries: memoryview, room: int) -> tuple[int, int]:
    """(how many, bytes): the entries from the first on whose frames are no larger than `room`
    together."""
    count = total = 0
    for _, size, _ in ENTRY.iter_unpack(entries):
        weight = size if 0 < size < _FILLER_SIZE else 0
        if total + weight > room:
            break
        count += 1
        total += weight
    return count, total


if not TYPE_CHECKING and COMPILED:
    try:
        from saturnmq.store.store_kernel import weigh_entries
    except ImportError:  # only the other kernel could be compiled
        weigh_entries = weigh_entries_reference
else:
    weigh_entries = weigh_entries_reference


def cut(
    entries: Entries, start: int, end: int, max_bytes: int, max_rows: int
) -> Iterator[tuple[int, int, int]]:
    """(start, end, bytes) of the pieces of [start, end): each has at most so many rows and bytes,
    and at least one row."""
    assert max_rows > 0, f"pieces of {max_rows} rows"
    assert max_bytes >= 0, f"pieces of {max_bytes} bytes"
    while start < end:
        stop, weight = start, 0
        last = min(end, start + max_rows)
        while stop < last:
            found = entries(stop, last - stop)
            if not found:
                stop = last
                break
            count, size = weigh_entries(found, max_bytes - weight)
            if not count and stop == start:  # larger than a piece: a piece of its own
                count, size = weigh_entries(found[:UNIT], _FILLER_SIZE)
            stop, weight = stop + count, weight + size
            if count * UNIT < len(found):
                break
        assert start < stop <= end, f"a piece from {start} to {stop} of what ends at {end}"
        yield start, stop, weight
        start = stop

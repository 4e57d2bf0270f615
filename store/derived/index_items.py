"""Slots and items of an index file (docs/internals/format.md 4): each slot has a chain of
items, the newest first.

The readable references of the kernel's two loops over them, and the choice between the two.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from saturnmq.protocol.kernels import COMPILED

HEADER = struct.Struct(">qqqqii")
ITEM = struct.Struct(">iqii")
INCOMING = struct.Struct(">iqq")
SLOT = struct.Struct(">i")
assert HEADER.size == 40, "four i64 and two i32"
assert ITEM.size == 20, "i32, i64, i32 and i32"
assert INCOMING.size == 20, "i32, i64 and i64"
assert SLOT.size == 4
_INT_MAX = 0x7FFFFFFF


def offset_in(items: bytes | memoryview, number: int) -> int:
    """The start of the message of an INCOMING item."""
    return int(INCOMING.unpack_from(items, INCOMING.size * number)[1])


def items_at(slots: int) -> int:
    """The place where the items begin, of which the first is never used."""
    return HEADER.size + SLOT.size * slots


def insert_items_reference(
    view: memoryview, slots: int, limit: int, header: list[int], items: memoryview
) -> int:
    """Insert `items` ('>iqq' each) until the file is full: how many went in.

    `header` is [begin time, end time, begin offset, end offset, slots used, count], updated.
    """
    base = items_at(slots)
    begin_time, end_time, begin_offset, end_offset, used, count = header
    done = 0
    for key_hash, offset, store_time in INCOMING.iter_unpack(items):
        if count >= limit:
            break
        slot = HEADER.size + SLOT.size * (key_hash % slots)
        previous = SLOT.unpack_from(view, slot)[0]
        if not 0 < previous < count:
            previous = 0
        seconds = (store_time - begin_time) // 1000 if begin_time > 0 else 0
        seconds = min(max(seconds, 0), _INT_MAX)
        ITEM.pack_into(view, base + ITEM.size * count, key_hash, offset, seconds, previous)
        SLOT.pack_into(view, slot, count)
        if count <= 1:
            begin_offset, begin_time = offset, store_time
        used += previous == 0
        count += 1
        end_offset, end_time = offset, store_time
        done += 1
    header[:] = [begin_time, end_time, begin_offset, end_offset, used, count]
    return done


def fill_slots_reference(view: memoryview, slots: int, count: int) -> int:
    """Make all slots from the items 1 to `count` - 1: how many are occupied."""
    base = items_at(slots)
    newest: dict[int, int] = {}
    for number in range(1, count):
        newest[ITEM.unpack_from(view, base + ITEM.size * number)[0] % slots] = number
    view[HEADER.size : base] = bytes(SLOT.size * slots)
    for slot, number in newest.items():
        SLOT.pack_into(view, HEADER.size + SLOT.size * slot, number)
    return len(newest)


if not TYPE_CHECKING and COMPILED:
    try:
        from saturnmq.store.store_kernel import fill_slots, insert_items
    except ImportError:  # only the other kernel could be compiled
        insert_items, fill_slots = insert_items_reference, fill_slots_reference
else:
    insert_items, fill_slots = insert_items_reference, fill_slots_reference

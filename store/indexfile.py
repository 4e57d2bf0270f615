"""IndexFile: from `topic#key` to the messages that carry it (store-format.md section 4).

    0   i64  begin time        8  i64  end time
    16  i64  begin offset     24  i64  end offset (start of the last message)
    32  i32  occupied slots   36  i32  items + 1
    40             i32 per slot: number of its newest item, 0 = none
    40 + 4*slots   20 bytes per item: i32 key hash, i64 offset, i32 seconds since begin,
                   i32 previous item of the slot; item 0 is never used

Written by reput after the queue entries; read by key queries. The header is written when a batch
of items is in. After a crash the file that was being filled is rebuilt from the CommitLog: pages
reach the disk in any order, so a chain in it may lead into zeroes.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from saturnmq.protocol.jhash import index_hash
from saturnmq.protocol.kernels import COMPILED
from saturnmq.store.disk import Disk, SegmentFile

HEADER = struct.Struct(">qqqqii")
ITEM = struct.Struct(">iqii")
INCOMING = struct.Struct(">iqq")
_SLOT = struct.Struct(">i")
_INT_MAX = 0x7FFFFFFF


def insert_items_reference(
    view: memoryview, slots: int, limit: int, header: list[int], items: memoryview
) -> int:
    """Insert `items` ('>iqq' each) until the file is full: how many went in.

    `header` is [begin time, end time, begin offset, end offset, slots used, count], updated.
    """
    base = 40 + 4 * slots
    begin_time, end_time, begin_offset, end_offset, used, count = header
    done = 0
    for key_hash, offset, store_time in INCOMING.iter_unpack(items):
        if count >= limit:
            break
        slot = 40 + 4 * (key_hash % slots)
        previous = _SLOT.unpack_from(view, slot)[0]
        if not 0 < previous < count:
            previous = 0
        seconds = (store_time - begin_time) // 1000 if begin_time > 0 else 0
        seconds = min(max(seconds, 0), _INT_MAX)
        ITEM.pack_into(view, base + 20 * count, key_hash, offset, seconds, previous)
        _SLOT.pack_into(view, slot, count)
        if count <= 1:
            begin_offset, begin_time = offset, store_time
        used += previous == 0
        count += 1
        end_offset, end_time = offset, store_time
        done += 1
    header[:] = [begin_time, end_time, begin_offset, end_offset, used, count]
    return done


if not TYPE_CHECKING and COMPILED:
    try:
        from saturnmq.store.store_kernel import insert_items
    except ImportError:  # only the other kernel could be compiled
        insert_items = insert_items_reference
else:
    insert_items = insert_items_reference


class IndexFile:
    """One file."""

    def __init__(self, file: SegmentFile, slots: int, items: int) -> None:
        self.file = file
        self.slots = slots
        self.items = items
        self.header: list[int] = list(HEADER.unpack_from(file.view))
        self.header[5] = max(self.header[5], 1)

    @property
    def begin_time(self) -> int:
        return self.header[0]

    @property
    def end_time(self) -> int:
        return self.header[1]

    @property
    def begin_offset(self) -> int:
        return self.header[2]

    @property
    def end_offset(self) -> int:
        return self.header[3]

    @property
    def count(self) -> int:
        return self.header[5]

    @property
    def full(self) -> bool:
        return self.count >= self.items

    def insert(self, items: memoryview) -> int:
        done = insert_items(self.file.view, self.slots, self.items, self.header, items)
        HEADER.pack_into(self.file.view, 0, *self.header)
        return done

    def find(self, key_hash: int, begin: int, end: int) -> Iterator[int]:
        """Offsets of items with this hash and a time in range, newest first."""
        view = self.file.view
        number = _SLOT.unpack_from(view, 40 + 4 * (key_hash % self.slots))[0]
        last = self.count
        while 0 < number < last:  # chains only lead to lower numbers: no cycle can hold us
            found, offset, seconds, previous = ITEM.unpack_from(
                view, 40 + 4 * self.slots + 20 * number
            )
            if seconds < 0:
                return
            time = self.begin_time + seconds * 1000
            if time < begin:
                return
            if found == key_hash and time <= end:
                yield offset
            last, number = number, previous


class Index:
    """All index files, oldest first."""

    def __init__(
        self, disk: Disk, directory: str, slots: int, items: int, now_ms: Callable[[], int]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._slots = slots
        self._items = items
        self._now_ms = now_ms
        self.files: list[IndexFile] = []
        self._dirty = False
        self.filled: list[IndexFile] = []

    def load(self) -> None:
        size = 40 + 4 * self._slots + 20 * self._items
        entries = [e for e in self._disk.list(self._directory) if not e.is_dir]
        for entry in sorted(entries, key=lambda e: e.name):
            if not entry.name.isdigit():
                continue
            path = posixpath.join(self._directory, entry.name)
            if entry.size == 0:
                self._disk.unlink(path)
                continue
            file = self._disk.open_segment(path, size)
            self.files.append(IndexFile(file, self._slots, self._items))

    def next_offset(self) -> int:
        """Messages below this are indexed already (-1: none)."""
        return self.files[-1].end_offset if self.files and self.files[-1].count > 1 else -1

    def append(self, items: bytes) -> None:
        """Insert items in log order; what an earlier run indexed already is skipped."""
        view = memoryview(items)
        last = self.next_offset()
        while view and INCOMING.unpack_from(view)[1] < last:
            view = view[INCOMING.size :]
        while view:
            if not self.files or self.files[-1].full:
                self._roll()
            view = view[self.files[-1].insert(view) * INCOMING.size :]
            self._dirty = True

    def _roll(self) -> None:
        previous = self.files[-1] if self.files else None
        if not self.files:
            self._disk.make_dirs(self._directory)
        stamp = self._now_ms()
        while True:  # names must rise, and a name may be taken within one millisecond
            moment = datetime.fromtimestamp(stamp / 1000)
            name = moment.strftime("%Y%m%d%H%M%S") + f"{stamp % 1000:03d}"
            path = posixpath.join(self._directory, name)
            if not self._disk.exists(path):
                break
            stamp += 1
        size = 40 + 4 * self._slots + 20 * self._items
        fresh = IndexFile(self._disk.create_segment(path, size), self._slots, self._items)
        if previous is not None:
            end = previous.header
            fresh.header[:4] = [end[1], end[1], end[3], end[3]]
            self.filled.append(previous)
        self.files.append(fresh)

    def rebuild_from(self) -> int | None:
        """Delete the file that was being filled; where to index from (None: from the start)."""
        if self.files and not self.files[-1].full:
            self._remove(self.files.pop())
        return self.files[-1].end_offset + 1 if self.files else None

    def truncate(self, end: int) -> None:
        """Delete files that name messages at or behind `end` (they are rebuilt)."""
        while self.files and self.files[-1].count > 1 and self.files[-1].end_offset >= end:
            self._remove(self.files.pop())

    def drop_before(self, log_start: int) -> None:
        while len(self.files) > 1 and self.files[0].end_offset < log_start:
            self._remove(self.files.pop(0))

    def _remove(self, index: IndexFile) -> None:
        index.file.close()
        self._disk.unlink(index.file.path)

    def candidates(self, topic: str, key: str, begin: int, end: int) -> Iterator[int]:
        """Offsets of messages that may carry the key, newest first; a second's rest is cut off."""
        key_hash = index_hash(topic, key)
        for index in reversed(self.files):
            if index.count > 1 and index.begin_time <= end and index.end_time >= begin:
                yield from index.find(key_hash, begin, end)
            if index.begin_time < begin:
                return

    def flush(self) -> None:
        """Blocking: make everything durable (at stop)."""
        if self._dirty and self.files:
            self._dirty = False
            for index in self.files[-2:]:
                index.file.flush(0, index.file.size)

    def destroy(self) -> None:
        while self.files:
            self._remove(self.files.pop())

    def close(self) -> None:
        for index in self.files:
            index.file.close()

"""IndexFile: from `topic#key` to the messages that carry it (docs/internals/format.md 4).

    0   i64  begin time        8  i64  end time
    16  i64  begin offset     24  i64  end offset (start of the last message)
    32  i32  occupied slots   36  i32  items + 1
    40             i32 per slot: number of its newest item, 0 = none
    40 + 4*slots   20 bytes per item: i32 key hash, i64 offset, i32 seconds since begin,
                   i32 previous item of the slot; item 0 is never used

Written by reput after the queue entries; read by key queries. The header is written when a batch
of items is in. Pages reach the disk in any order, so after a crash slots and header of the file
that was being filled may know items that are not there. But items are only ever added, and the
checkpoint keeps the header as it was when all of them were durable: `Index.restore` takes that
header and makes the slots anew from the items.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from saturnmq.protocol.jhash import index_hash
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.index_items import (
    HEADER,
    INCOMING,
    ITEM,
    SLOT,
    fill_slots,
    insert_items,
    items_at,
    offset_in,
)
from saturnmq.store.derived.room import STEP, Room, Rooms
from saturnmq.store.derived.spares import Spares
from saturnmq.store.disk import Disk, MappedFile
from saturnmq.store.reading import OF_DERIVED, number_of, read

log = logging.getLogger(__name__)

_READ = 1 << 20
INDEX_NAME_MAX = 1 << 62  # the next file has a greater one, which must be a number of 64 bits


def name_of(stamp_ms: int) -> int:
    """The number that names a file made at this time: local time to the millisecond."""
    moment = datetime.fromtimestamp(stamp_ms / 1000)
    return int(moment.strftime("%Y%m%d%H%M%S") + f"{stamp_ms % 1000:03d}")


class IndexFile:
    """One file of the index."""

    def __init__(self, file: MappedFile, slots: int, items: int, room: Room | None = None) -> None:
        """With `room` not all of the file has its place on the disk yet."""
        assert slots > 0, f"an index of {slots} slots"
        assert items > 1, f"an index of {items} items, of which the first is never used"
        assert file.size == items_at(slots) + ITEM.size * items, (file.size, slots, items)
        self.file = file
        self._room = room
        self.slots = slots
        self.items = items
        self.header: list[int] = list(HEADER.unpack(read(file, 0, HEADER.size, OF_DERIVED)))
        self.header[4] = min(max(self.header[4], 0), slots)
        self.header[5] = min(max(self.header[5], 1), items)

    def validate(self) -> None:
        """AssertionError: its header cannot be."""
        begin_time, _, begin_offset, end_offset, used, count = self.header
        assert 1 <= count <= self.items, f"{count} items, the limit is {self.items}"
        assert 0 <= used < count, f"{used} slots hold {count - 1} items"
        assert used <= self.slots, f"{used} of {self.slots} slots"
        assert begin_offset <= end_offset, f"items of {begin_offset} to {end_offset} in the log"
        assert begin_time >= 0 or count == 1, f"the first item is of {begin_time}"

    @property
    def name(self) -> int:
        return int(posixpath.basename(self.file.path))

    @property
    def begin_time(self) -> int:
        return self.header[0]

    @property
    def end_time(self) -> int:
        return self.header[1]

    @property
    def end_offset(self) -> int:
        return self.header[3]

    @property
    def count(self) -> int:
        return self.header[5]

    @property
    def full(self) -> bool:
        return self.header[5] >= self.items

    def follow(self, offset: int, store_time: int) -> None:
        """Before the first item: the file before this one ends with that message. RocketMQ counts
        the seconds of the first item from there."""
        self.header[:4] = [store_time, store_time, offset, offset]

    def insert(self, items: memoryview) -> int:
        """Those of `items` (INCOMING each) that the file still takes: how many. OSError: the disk
        has no room for them, none was put."""
        assert len(items) % INCOMING.size == 0, f"{len(items)} bytes are no items"
        header = self.header
        self._claim(header[5] + len(items) // INCOMING.size)
        done = insert_items(self.file.view, self.slots, self.items, header, items)
        HEADER.pack_into(self.file.view, 0, *header)
        assert header[5] <= self.items, f"{header[5]} items, the limit is {self.items}"
        return done

    def _claim(self, count: int) -> None:
        """Have room for so many items, and for all slots: a key may need any of them."""
        if self._room is not None:
            self._room.claim(0, items_at(self.slots) + ITEM.size * min(count, self.items))

    def offset_of(self, number: int) -> int:
        """The start of an item's message."""
        assert 0 < number < self.items, f"the item {number} of {self.items}"
        place = items_at(self.slots) + ITEM.size * number
        item = read(self.file, place, ITEM.size, OF_DERIVED)
        return int(ITEM.unpack(item)[1])

    def restore(self, header: bytes) -> None:
        """Go back to an earlier header and only the items it counts."""
        self.header = list(HEADER.unpack(header))
        end = items_at(self.slots) + ITEM.size * self.count
        for at in range(0, end, _READ):
            read(self.file, at, min(_READ, end - at), OF_DERIVED)
        self._claim(self.count)
        self.header[4] = fill_slots(self.file.view, self.slots, self.count)
        HEADER.pack_into(self.file.view, 0, *self.header)

    def cut(self, end: int, store_time_at: Callable[[int], int | None]) -> None:
        """Forget the items of messages at or behind `end`; the first item is of none of them."""
        count = bisect_left(range(self.count), end, lo=1, key=self.offset_of)
        assert count > 1, f"the first item is of the message {self.header[2]}, the end is {end}"
        if count == self.count:
            return
        self.header[3] = self.offset_of(count - 1)
        self.header[1] = store_time_at(self.header[3]) or self.header[1]
        self.header[5] = count
        self.restore(HEADER.pack(*self.header))

    def find(self, key_hash: int, begin: int, end: int) -> Iterator[int | None]:
        """The items of a slot, newest first: the offset of one with this hash and a time in range,
        None for another one."""
        view = self.file.view
        slot = HEADER.size + SLOT.size * (key_hash % self.slots)
        number = SLOT.unpack_from(view, slot)[0]
        last = self.count
        while 0 < number < last:  # chains only lead to lower numbers: no cycle can hold us
            found, offset, seconds, previous = ITEM.unpack_from(
                view, items_at(self.slots) + ITEM.size * number
            )
            if seconds < 0:
                return
            time = self.begin_time + seconds * 1000
            if time < begin:
                return
            yield offset if found == key_hash and time <= end else None
            last, number = number, previous


class IndexMark(NamedTuple):
    """The newest file, its header while all items it counts were durable (and all older files)."""

    name: int  # 0: there is no file
    header: bytes
    full_until: int  # end time of the newest full file


class Index:
    """All index files, oldest first."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        slots: int,
        items: int,
        now_ms: Callable[[], int],
        rooms: Rooms | None = None,
    ) -> None:
        self._disk = disk
        self._rooms = Rooms(disk) if rooms is None else rooms
        self._directory = directory
        self._slots = slots
        self._items = items
        self._now_ms = now_ms
        self._near = items - items // 16  # with so many items the next file is made ahead
        self._room = min(items_at(slots) + STEP, self.file_bytes)
        self._spares = Spares(self._rooms, directory, self.file_bytes, self._room, is_durable=True)
        self.files: list[IndexFile] = []
        self._unsynced: list[IndexFile] = []  # filled, or made, since the last flush began
        self._highest = 0  # no new file gets a name up to this one
        self._later = b""  # items that are to be inserted
        self._last = -1  # the message whose keys came last
        self._have = 0  # the number of its items that are there

    @property
    def file_bytes(self) -> int:
        return items_at(self._slots) + ITEM.size * self._items

    def validate(self, log_end: int) -> None:
        """AssertionError: its files are not in order, or lead the log, which ends at `log_end`."""
        for before, after in pairwise(self.files):
            assert before.name < after.name, f"{after.name} behind {before.name}"
            assert before.full, f"{before.name} has {before.count} of {before.items} items"
            assert before.end_offset <= after.header[2], f"{after.name} begins before its time"
        for index in self.files:
            index.validate()
            assert index.name <= self._highest, f"{index.name} is above {self._highest}"
        if self.files and self.files[-1].count > 1:
            end = self.files[-1].end_offset
            assert end < log_end, f"a message at {end} is indexed, the log ends at {log_end}"
        assert self._have >= 0, f"{self._have} items of the message at {self._last}"

    def load(self, *, clean: bool) -> None:
        """Open all files; if one has another length, they are built again from the log. After a
        crash nobody knows whether they are durable.

        When all have another length they were written with other settings: StoreDamaged.
        """
        listed = self._disk.list(self._directory)
        entries = [
            e for e in listed if not e.is_dir and number_of(e.name, INDEX_NAME_MAX) is not None
        ]
        wrong = [e for e in entries if e.size != self.file_bytes]
        if wrong and len(wrong) == len(entries) and any(e.size for e in wrong):
            raise StoreDamaged(
                f"{self._path(wrong[0].name)} is {wrong[0].size} bytes long, "
                f"maxHashSlotNum {self._slots} and maxIndexNum {self._items} make "
                f"{self.file_bytes}: set what it was written with, or delete the directory "
                f"{self._directory} to have it built again"
            )
        for entry in wrong:
            log.error("%s is %d bytes long: index rebuilt", self._path(entry.name), entry.size)
        # Newest first when they go: none may be left that a checkpoint names, without those before.
        for entry in reversed(entries) if wrong else entries:
            self._highest = max(self._highest, int(entry.name))
            if wrong:
                self._disk.unlink(self._path(entry.name))
            else:
                path = self._path(entry.name)
                self.files.append(self._file(self._disk.open_mapped(path, entry.size), 0))
        if not clean:
            self._unsynced = self.files[:]
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Have the next file made before it is needed."""
        if not self.files or self.files[-1].count >= self._near:
            self._spares.want()

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, name)

    def _file(self, file: MappedFile, room: int) -> IndexFile:
        place = Room(self._rooms, file.path, file.size, room)
        return IndexFile(file, self._slots, self._items, place)

    def restore(self, name: int, header: bytes) -> None:
        """After a crash: back to what the checkpoint says was durable; to nothing without it, or
        if that cannot be.
        """
        self._highest = max(self._highest, name)
        known = [index.name for index in self.files]
        if name not in known or not 0 < HEADER.unpack(header)[5] <= self._items:
            self.destroy()
            return
        while self.files[-1].name > name:
            self._remove(self.files.pop())
        self.files[-1].restore(header)

    def name_of_newest(self) -> int:
        return self.files[-1].name if self.files else 0

    def indexed_to(self) -> int | None:
        """The start of the last indexed message; some of its keys may be missing."""
        for index in reversed(self.files):
            if index.count > 1:
                return index.end_offset
        return None

    def resume(self) -> None:
        """After loading: learn what is there of the last message, so that it is not put twice."""
        self._last, self._have = -1, 0
        for index in reversed(self.files):
            for number in range(index.count - 1, 0, -1):
                offset = index.offset_of(number)
                if self._last < 0:
                    self._last = offset
                if offset != self._last:
                    return
                self._have += 1

    def append(self, items: bytes) -> None:
        """Insert items in log order; what an earlier run indexed already is skipped."""
        self.settle()
        self._insert(items)

    def later(self, items: bytes) -> None:
        """Keep items in log order, for `settle`."""
        self.settle()
        self._later = items

    def settle(self) -> None:
        """Insert what was kept. OSError: the disk has no room for it; it is kept on."""
        if self._later:
            self._insert(self._later)
            self._later = b""

    def searched(self) -> list[IndexFile]:
        """The files, for who looks for something: all that was kept is in them, unless the disk has
        no room for it."""
        with contextlib.suppress(OSError):
            self.settle()
        return self.files

    def _insert(self, items: bytes) -> None:
        view = memoryview(items)
        if self._last >= 0:
            view = self._fresh(view)
        while view:
            try:
                if not self.files or self.files[-1].full:
                    self._roll()
                view = view[self.files[-1].insert(view) * INCOMING.size :]
            except OSError:
                self.resume()  # the same items come again
                raise
        self._look_ahead()

    def _fresh(self, view: memoryview) -> memoryview:
        offset_of = partial(offset_in, view)
        count = len(view) // INCOMING.size
        first = bisect_left(range(count), self._last, key=offset_of)
        while first < count and self._have and offset_of(first) == self._last:
            first += 1
            self._have -= 1
        if first < count:
            self._last = -1
        return view[INCOMING.size * first :]

    def _roll(self) -> None:
        previous = self.files[-1] if self.files else None
        if not self.files:
            self._disk.make_dirs(self._directory)
        name = name_of(self._now_ms())
        # Names rise, whatever the clock does, and none is given twice: what a checkpoint says of a
        # file that is gone must not be taken for another one.
        self._highest = max(name, self._highest + 1)
        assert previous is None or self._highest > previous.name, (self._highest, previous)
        path = self._path(f"{self._highest:017d}")
        made = self._spares.take(path)
        if made is None:
            made = self._disk.create_mapped(path, self.file_bytes, self._room)
        fresh = self._file(made, self._room)
        if previous is not None:
            fresh.follow(previous.end_offset, previous.end_time)
        self.files.append(fresh)
        self._unsynced.append(fresh)

    def flush(self) -> IndexMark:
        """Blocking, may run beside `append`: what is durable then."""
        made, self._unsynced = self._unsynced, []
        files = self.files[:]
        if not files:
            return IndexMark(0, bytes(HEADER.size), 0)
        newest = files[-1]
        header = HEADER.pack(*newest.header[:])
        # those that were filled since the last flush, and the one that is being filled; what was
        # made may be gone again
        first = next((files.index(index) for index in made if index in files), len(files))
        try:
            for index in files[max(first - 1, 0) :]:
                index.file.flush(0, index.file.size)
            if made or self._unsynced:
                self._disk.sync_dir(self._directory)
        except OSError:
            self._unsynced[:0] = made
            raise
        return IndexMark(newest.name, header, files[-2].end_time if files[1:] else 0)

    def truncate(self, end: int, store_time_at: Callable[[int], int | None]) -> None:
        """Forget messages at or behind `end`."""
        kept = range(len(self._later) // INCOMING.size)
        count = bisect_left(kept, end, key=partial(offset_in, self._later))
        self._later = self._later[: INCOMING.size * count]
        while self.files and (self.files[-1].count <= 1 or self.files[-1].offset_of(1) >= end):
            self._remove(self.files.pop())
        if self.files:
            self.files[-1].cut(end, store_time_at)
        self.resume()

    def drop_before(self, log_start: int) -> list[str]:
        """Take out files, never the last, all of whose messages are gone: what is to be deleted."""
        gone = []
        while len(self.files) > 1 and self.files[0].end_offset < log_start:
            index = self.files.pop(0)
            index.file.close()
            gone.append(index.file.path)
        return gone

    def _remove(self, index: IndexFile) -> None:
        index.file.close()
        self._disk.unlink(index.file.path)

    def candidates(self, topic: str, key: str, begin: int, end: int) -> Iterator[int | None]:
        """Offsets of messages that may carry the key, newest first; a second's rest is cut off. For
        each item that was looked at in vain None: who looks decides when to go on, and whose file
        went meanwhile has no more items."""
        key_hash = index_hash(topic, key)
        for index in self.searched()[::-1]:
            if index not in self.files:
                continue
            if index.begin_time <= end and index.end_time >= begin:
                for found in index.find(key_hash, begin, end):
                    yield found
                    if index not in self.files:
                        break
            if index.begin_time < begin:
                return

    def destroy(self) -> None:
        self._later = b""
        while self.files:
            self._remove(self.files.pop())
        self._unsynced.clear()
        self.resume()

    def close(self) -> None:
        for index in self.files:
            index.file.close()
        self._spares.close()

"""IndexFiles held against the keys of the CommitLog's frames.

All files are one sequence of items, oldest first, which should be the sequence of keys in the log.
An item is found when its hash, offset and seconds are right and every item of its slot names the
one before it, from the newest that the slot names: then every key is findable.
"""

from __future__ import annotations

import posixpath
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saturnmq.protocol.frame import Frame, Outcome
from saturnmq.protocol.kernels import COMPILED
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.index_items import HEADER, INCOMING, ITEM
from saturnmq.store.disk import Disk, ReadFile
from saturnmq.store.inspect.verify_report import CERTAIN, Findings, Trust
from saturnmq.store.reading import number_of

_PIECE = 1 << 15  # items read at once
_BEYOND = "index: items that are no key of their message (RocketMQ 5.4 indexes tags)"


def seconds_since(begin_time: int, time: int) -> int:
    """The seconds that an index item stores for its message's time."""
    return min(max((time - begin_time) // 1000, 0), 0x7FFFFFFF) if begin_time else 0


def match_items_reference(expected: memoryview, items: memoryview, begin_time: int) -> int:
    """Count the leading `items` that match INCOMING `expected` as an IndexFile stores them.

    Without a begin time (-1) their seconds are not looked at.
    """
    number = 0
    pairs = zip(INCOMING.iter_unpack(expected), ITEM.iter_unpack(items), strict=False)
    for (key_hash, offset, time), (found_hash, found_offset, seconds, _) in pairs:
        if (key_hash, offset) != (found_hash, found_offset):
            break
        if begin_time >= 0 and seconds != seconds_since(begin_time, time):
            break
        number += 1
    return number


def follow_chains_reference(items: memoryview, newest: memoryview, number: int) -> int:
    """Check that each item names the one before it in its slot; how many do, from the first.

    `newest` has the number of the newest item of each slot before `items`, the first of which is
    `number`; it is updated.
    """
    slots = len(newest)
    for done, (key_hash, _, _, previous) in enumerate(ITEM.iter_unpack(items)):
        if key_hash < 0 or newest[key_hash % slots] != previous:
            return done
        newest[key_hash % slots] = number + done
    return len(items) // ITEM.size


if not TYPE_CHECKING and COMPILED:
    try:
        from saturnmq.store.store_kernel import follow_chains, match_items
    except ImportError:  # only the other kernel could be compiled
        follow_chains, match_items = follow_chains_reference, match_items_reference
else:
    follow_chains, match_items = follow_chains_reference, match_items_reference


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """The slots and items of a file of `bytes`: the default, or RocketMQ's ratio of 4."""

    slots: int
    items: int

    @classmethod
    def of(cls, size: int, slots: int = 0, items: int = 0) -> IndexSizes | None:
        """From the file's length and what is known; None if that does not say it."""
        rest = size - 40
        if slots and not items:
            items = (rest - 4 * slots) // 20
        elif items and not slots:
            slots = (rest - 20 * items) // 4
        elif not slots:
            slots = rest // 84
            items = 4 * slots
        fits = slots > 0 and items > 0 and 4 * slots + 20 * items == rest
        return cls(slots, items) if fits else None


class IndexCheck:
    """All index files as one sequence of items; `expect` in log order, then `finish`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sizes: tuple[int, int],
        findings: Findings,
        trust: Trust,
        frame_at: Callable[[int], Outcome],
    ) -> None:
        self.items = 0
        self.files = 0
        self._disk = disk
        self._sizes = sizes
        self._findings = findings
        self._trust = trust
        self._frame_at = frame_at
        self._found = [
            (posixpath.join(directory, entry.name), entry.size)
            for entry in disk.list(directory)
            if not entry.is_dir and number_of(entry.name) is not None and entry.size
        ]
        if self._found and not any(IndexSizes.of(size, *sizes) for _, size in self._found):
            path, size = self._found[0]
            raise StoreDamaged(
                f"{path} is {size} bytes long, which does not tell its slots and items: give "
                "--index-slots or --index-items (maxHashSlotNum, maxIndexNum of its broker)"
            )
        self._pieces: Iterator[bool] = self._all_pieces()
        self._piece: memoryview = memoryview(b"")  # items not yet compared, of the file `_path`
        self._path, self._position = directory, 0
        self._begin_time = -1

    @property
    def exists(self) -> bool:
        return bool(self._found)

    # comparing

    def expect(self, items: bytes) -> None:
        """The log says that INCOMING `items` come next."""
        wanted = memoryview(items)
        while wanted:
            if not self._more():
                for _, offset, _ in INCOMING.iter_unpack(wanted):
                    self._missing(offset)
                return
            count = match_items(wanted, self._piece, self._begin_time)
            wanted = wanted[count * INCOMING.size :]
            self._take(count)
            if wanted and self._piece:
                wanted = self._sort_out(wanted)

    def _more(self) -> bool:
        """Load the next piece when this one is used up; False if no items are left."""
        return bool(self._piece) or next(self._pieces, False)

    def _take(self, count: int) -> None:
        self._piece = self._piece[count * ITEM.size :]
        self._position += count * ITEM.size

    def _sort_out(self, wanted: memoryview) -> memoryview:
        """Compare log and index for the current message, because the two differ."""
        offset = INCOMING.unpack_from(wanted)[1]
        found = ITEM.unpack_from(self._piece)[1]
        if found < offset:
            self._surplus(self._of_message(found))
            return wanted
        want, have = [], []
        while wanted and INCOMING.unpack_from(wanted)[1] == offset:
            want.append(INCOMING.unpack_from(wanted))
            wanted = wanted[INCOMING.size :]
        place = self._path, self._position
        if found == offset:
            have = self._of_message(offset)
        wanted_hashes = Counter(item[0] for item in want)
        hashes = Counter(item[0] for item in have)
        for _ in (wanted_hashes - hashes).elements():
            self._missing(offset)
        if hashes - wanted_hashes:
            self._findings.add(_BEYOND, *place, offset, note=True)
        self._check_seconds(want[0][2], have, place)
        return wanted

    def _of_message(self, offset: int) -> list[tuple[int, ...]]:
        """Take all items of one message."""
        taken = []
        while self._more():
            item = ITEM.unpack_from(self._piece)
            if item[1] != offset:
                break
            taken.append((*item, self._begin_time))
            self._take(1)
        return taken

    def _check_seconds(
        self, time: int, have: list[tuple[int, ...]], place: tuple[str, int]
    ) -> None:
        for _, offset, seconds, _, begin_time in have:
            if begin_time >= 0 and seconds != seconds_since(begin_time, time):
                self._report("index: times are wrong", *place, offset)

    def _missing(self, offset: int) -> None:
        what = "index: keys are missing"
        self._report(what, self._path, self._position, offset, note=self._trust.foreign)

    def _surplus(self, items: list[tuple[int, ...]]) -> None:
        offset, trust = items[0][1], self._trust
        if offset < trust.log_start or trust.in_gap(offset):
            return
        if offset >= trust.log_end and trust.running:
            return
        place = self._path, self._position
        if isinstance(self._frame_at(offset), Frame):
            self._findings.add(_BEYOND, *place, offset, note=True, count=len(items))
        else:
            self._report("index: items point at nothing", *place, offset)

    def _report(
        self, what: str, path: str, position: int, offset: int, *, note: bool = False
    ) -> None:
        note = note or offset >= self._trust.below
        self._findings.add(what, path, position, offset, note=note)

    def finish(self) -> None:
        """Check the items behind the last message of the log."""
        while self._more():
            self._surplus(self._of_message(ITEM.unpack_from(self._piece)[1]))

    # the files themselves

    def _all_pieces(self) -> Iterator[bool]:
        """Sets the next piece; follows the chains and checks header and slots on the way."""
        for number, (path, size) in enumerate(self._found):
            self._path, self._position = path, 0
            sizes = IndexSizes.of(size, *self._sizes)
            if sizes is None:
                self._findings.add(f"index: {size} bytes are not the length of a file", path, 0)
                continue
            # Of the file being filled the items alone are certain; after a crash the next start
            # takes those that the checkpoint counts.
            filling = number == len(self._found) - 1 and self._trust.below < CERTAIN
            file = self._disk.open_readonly(path)
            try:
                yield from self._pieces_of(file, sizes, filling=filling)
            except OSError as error:
                self._findings.add(f"index: cannot be read: {error}", path, self._position)
            finally:
                file.close()

    def _pieces_of(self, file: ReadFile, sizes: IndexSizes, *, filling: bool) -> Iterator[bool]:
        self.files += 1
        header = HEADER.unpack(file.read(0, HEADER.size))
        count = min(max(header[5], 1), sizes.items)
        newest = array("i", bytes(4 * sizes.slots))
        sound, number, first, last = True, 1, 0, 0
        while number < count:
            # The first item's seconds may count from the end of the file before.
            step = 1 if number == 1 else min(count - number, _PIECE)
            self._begin_time = header[0] if number > 1 else -1
            self._position = 40 + 4 * sizes.slots + ITEM.size * number
            piece = memoryview(file.read(self._position, step * ITEM.size))
            good = follow_chains(piece, memoryview(newest), number) if sound else step
            if good < step:
                sound = False
                at = self._position + good * ITEM.size
                self._findings.add("index: a chain is broken", file.path, at, note=filling)
            first = ITEM.unpack_from(piece)[1] if number == 1 else first
            last = ITEM.unpack(piece[-ITEM.size :])[1]
            number += step
            self.items += step
            self._piece = piece
            yield True
        if filling:
            return
        if count > 1 and not self._header_is_right(header, first, last):
            self._findings.add("index: the header does not fit the items", file.path, 0)
        if sound and not _slots_are(file, header[4], newest):
            self._findings.add("index: the slots do not fit the items", file.path, HEADER.size)

    def _header_is_right(self, header: tuple[int, ...], first: int, last: int) -> bool:
        if header[2:4] != (first, last):
            return False
        ends = (self._frame_at(first), header[0]), (self._frame_at(last), header[1])
        return all(
            frame.store_timestamp == time for frame, time in ends if isinstance(frame, Frame)
        )


def _slots_are(file: ReadFile, occupied: int, newest: array[int]) -> bool:
    """Whether the file's slots hold `newest`, and its header their number."""
    if occupied != len(newest) - newest.count(0):
        return False
    if sys.byteorder == "little":
        newest.byteswap()
    return file.read(HEADER.size, 4 * len(newest)) == newest.tobytes()

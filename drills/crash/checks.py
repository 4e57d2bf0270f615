"""The checks of a store that was just opened, each under its name in docs/guarantees.md 3.

I1 nothing that had to survive is missing      I2 every byte is one that was sent, with its CRC
I3 nothing that was refused is there           I4 queue offsets are gapless and mean what they did
I7 what a truncation cuts off is saved first   I8 queues and index follow from the log
I10 a second recovery finds the same
I11 (damage.py) is for images with flipped bits
"""

from __future__ import annotations

import posixpath
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from saturnmq.drills.crash.model import Model
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.consumequeue import ConsumeQueue
from saturnmq.store.derived.index_items import HEADER, ITEM
from saturnmq.store.derived.tombstones import Tombstone, read_tombstones
from saturnmq.store.message_store import MessageStore

CONFIG_PATH = "/store/config/topics.json"


@dataclass(slots=True)
class Expected:
    """The required content of an image.

    Its log begins at one of `starts` and reaches `required` at least, of which `flushed` must
    survive another power loss. If the image was recovered before, the log ends exactly at `end`.
    Its config file has one of the contents `configs` (None: it may be missing). While a truncation
    to `cut_at` is under way the log may end before `uncut`, if a side file has the rest.
    """

    required: int
    flushed: int
    configs: list[object]
    starts: Sequence[int]
    end: int | None = None
    cut_at: int = 0
    uncut: int = 0


@dataclass(slots=True)
class Checker:
    """Runs the checks and counts them."""

    model: Model
    made: Counter[str] = field(default_factory=Counter)

    def store(self, disk: SimDisk, store: MessageStore, expected: Expected) -> list[str]:
        """The faults of a store that was just opened on `disk`."""
        found = self._log(store, expected)
        if not found:
            end = store.watermarks.appended
            found += self._behind_the_end(disk, end)
            found += self._side_file(disk, end, expected)
            found += self._queues(disk, store, end)
            found += self._index(disk, store, end)
            found += self._config(disk, expected)
        return found

    def _log(self, store: MessageStore, expected: Expected) -> list[str]:
        model, marks = self.model, store.watermarks
        start, end = marks.start, marks.appended
        self.made["I1"] += 1
        if end < expected.required:
            lost = model.count(expected.required) - model.count(end)
            return [f"I1 the log ends at {end}, {lost} messages up to {expected.required} are lost"]
        if store.amnesia:
            return [f"I1 a start misses what nobody promised: {store.amnesia}"]
        if expected.end is not None:
            self.made["I10"] += 1
            if end != expected.end:
                return [f"I10 the second recovery ends at {end}, the first at {expected.end}"]
        self.made["I2"] += 1
        if start not in expected.starts:
            return [f"I1 the log begins at {start}, not at one of {expected.starts}"]
        if end > len(model.log):
            return [f"I2 the log ends at {end}, only {len(model.log)} bytes were written"]
        if not model.may_end_at(end):
            return [f"I2 the log ends at {end}, which is no frame's end"]
        at: int = start
        while at < end:
            view = store.read_log(at, end - at)
            if not view:
                return [f"I1 the log cannot be read at {at} of {end}"]
            part = bytes(view)
            if part != model.log[at : at + len(part)]:
                return [f"I2 the log differs from what was sent within [{at}, {at + len(part)})"]
            at += len(part)
        self.made["I3"] += 1
        for first, last in model.refused:
            if first < end:
                return [f"I3 [{first}, {last}) was refused, the log ends at {end}"]
        return []

    def _behind_the_end(self, disk: SimDisk, end: int) -> list[str]:
        """The cut is on the platters, so that nothing behind it can ever come back."""
        self.made["I10"] += 1
        size = self.model.segment_bytes
        for path in disk.durable_paths("/store/commitlog"):
            start = int(path.rpartition("/")[2])
            if start + size > end and any(disk.platters(path)[max(0, end - start) :]):
                return [f"I10 {path} holds bytes behind the end at {end}, durably"]
        return []

    def _side_file(self, disk: SimDisk, end: int, expected: Expected) -> list[str]:
        """The bytes that a truncation has begun to cut off are on the platters, in a side file."""
        if end >= expected.uncut:
            return []
        self.made["I7"] += 1
        cut = bytes(self.model.log[expected.cut_at :])
        for path in disk.durable_paths("/store/truncated"):
            if path.endswith(".log") and disk.platters(path) == cut:
                return []
        return [f"I7 the log was cut at {end} before [{expected.cut_at}, ...) was saved"]

    def _queues(self, disk: SimDisk, store: MessageStore, end: int) -> list[str]:
        self.made["I4"] += 1
        self.made["I8"] += 1
        queues, start = store.queues(), store.watermarks.start
        tombstones = read_tombstones(disk, posixpath.dirname(posixpath.dirname(CONFIG_PATH)))
        for key in sorted(self.model.queues.keys() | queues.keys()):
            if key not in self.model.queues:
                if queues[key].max_offset:
                    return [f"I8 queue {key} was never written to"]
                continue
            topic, queue_id = key
            tombstone = tombstones.get(topic, Tombstone(0))
            first, entries = self.model.entries(key, max(start, tombstone.end), end)
            queue = queues.get(key)
            count = len(entries) // 20
            if first == count:
                first = count = max(count, tombstone.next.get(queue_id, 0))
            if queue is None:
                if count:
                    return [f"I8 queue {key} of {count} entries is missing"]
                continue
            if (queue.min_offset, queue.max_offset) != (first, count):
                return [
                    f"I8 queue {key} is [{queue.min_offset}, {queue.max_offset}), "
                    f"the log says [{first}, {count})"
                ]
            if _entries(queue, first, count) != entries[first * 20 :]:
                return [f"I8 queue {key} differs from what the log says"]
        return []

    def _index(self, disk: SimDisk, store: MessageStore, end: int) -> list[str]:
        self.made["I8"] += 1
        config = store.config
        items: list[tuple[int, int]] = []
        for entry in disk.list("/store/index"):
            data = disk.read_file(f"/store/index/{entry.name}")
            wrong = _read_index(data, config.index_slots, config.index_items, items)
            if wrong:
                return [f"I8 index {entry.name}: {wrong}"]
        found = sorted(item for item in items if item[0] >= store.watermarks.start)
        wanted = self.model.index_items(store.watermarks.start, end)
        if found != wanted:
            missing = Counter(wanted) - Counter(found)
            extra = Counter(found) - Counter(wanted)
            return [f"I8 the index lacks {missing.total()} items and has {extra.total()} too many"]
        return []

    def _config(self, disk: SimDisk, expected: Expected) -> list[str]:
        self.made["config"] += 1
        try:
            document = ConfigFile(disk, CONFIG_PATH).load()
        except StoreDamaged as error:
            return [f"config: {error}"]
        if document not in expected.configs:
            return [f"config: {document} was loaded, not one of {expected.configs}"]
        return []


def _entries(queue: ConsumeQueue, first: int, end: int) -> bytes:
    parts = []
    while first < end:
        part = bytes(queue.entries(first, end - first))
        if not part:
            break
        parts.append(part)
        first += len(part) // 20
    return b"".join(parts)


def _read_index(data: bytes, slots: int, limit: int, items: list[tuple[int, int]]) -> str:
    """Add the items of one index file to `items`; what is wrong with its chains, if anything."""
    if not data:
        return ""
    count = HEADER.unpack_from(data)[5]
    if count > limit:
        return f"{count} items, the limit is {limit}"
    base = 40 + 4 * slots
    chained = 0
    for slot, newest in enumerate(struct.unpack_from(f">{slots}i", data, 40)):
        number, last = newest, count
        while number:
            if not 0 < number < last:
                return f"the chain of slot {slot} leads from {last} to {number}"
            key_hash, offset, _, previous = ITEM.unpack_from(data, base + 20 * number)
            if key_hash % slots != slot:
                return f"item {number} with hash {key_hash} is in the chain of slot {slot}"
            items.append((offset, key_hash))
            chained += 1
            number, last = previous, number
    if chained != max(count - 1, 0):
        return f"{chained} of {count - 1} items are in a chain"
    return ""

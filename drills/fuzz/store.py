"""The files of a store, spoiled: opened and recovered, read, written to, checked by `store check`.

Half of the spoiled frames and checkpoints have a correct checksum, so that their values are
believed. If a start accepts a store, it can read it, append to it and close it, and the next start
accepts it, too.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable

from saturnmq.drills.crash.images import ImageClock, open_store
from saturnmq.drills.fuzz.mutations import NUMBERS, spoiled, spoiled_in_place
from saturnmq.drills.fuzz.scene import disk_of, files_of
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.frame import (
    BLANK,
    CRC_PROPERTY_BYTES,
    NUMBERS_AT_V4,
    crc32,
    crc_property_of,
    seal_body,
)
from saturnmq.runtime.errors import SaturnError
from saturnmq.store.inspect.verify import check
from saturnmq.store.message_store import AtomicBatchPart, MessageStore, PendingMessage, StoreConfig
from saturnmq.store.recovery.checkpoint import MAGIC

ROOT = "/store"
CONFIG = StoreConfig(
    root=ROOT,
    commitlog_segment_bytes=4096,
    consumequeue_segment_bytes=20 * 4,
    index_slots=10,
    index_items=16,
    zero_ahead_bytes=4096,
)
BUILT = LOG, QUEUES, INDEX = ROOT + "/commitlog/", ROOT + "/consumequeue/", ROOT + "/index/"
CHECKPOINT, ABORT = ROOT + "/checkpoint", ROOT + "/abort"
MESSAGES = 14
BODY_MAX = 1_000  # so few messages fill some segments
QUEUES_OF = {"orders": 2, "bills": 1}
# Of a frame, where numbers lie, and of how many bytes (IPv4 hosts; protocol/frame.py).
PAGE_NUMBERS = (*range(0, 40, 8), *range(72, 104, 8), 160, 168)
READS_MAX = 200  # of one queue
ROTS = 4  # of a start


class Store:
    """The target."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._clock = ImageClock()
        self._files = filled(seed, self._clock)
        self._disk = disk_of(self._files, seed)
        self._frames = _frames(self._files)
        log = sorted(path for path in self._files if path.startswith(LOG))
        self._places = [
            CONFIG.commitlog_segment_bytes * log.index(p) + at for p, at, _ in self._frames
        ]

    def close(self) -> None:
        pass

    def turn(self, rng: random.Random) -> list[str]:
        files = dict(self._files)
        for _ in range(rng.choice((1, 1, 2, 5))):
            self._spoil(rng, files)
        if rng.random() < 0.5:
            files[ABORT] = b"1"
        disk = self._changed(files)
        with contextlib.suppress(SaturnError):
            check(disk, ROOT)
        outcomes: list[str] = []
        for is_first in (True, False):
            try:
                store = open_store(CONFIG, disk, self._clock)
            except SaturnError as error:
                return [*outcomes, f"a start refused: {type(error).__name__}"]
            try:
                _reput(store)
                outcomes += self._live(rng, store, disk) if is_first else self._live_again(store)
            finally:
                store.close()
            disk.locks.clear()
        return outcomes

    def _changed(self, files: dict[str, bytes]) -> SimDisk:
        """A disk with these files: most of them are as they were."""
        disk = self._disk.kill_image(random.Random(self._seed))
        for path in self._files.keys() - files.keys():
            disk.unlink(path)
        for path, data in files.items():
            if self._files.get(path) is not data:
                disk.make_dirs(path.rpartition("/")[0])
                disk.write_file(path, data)
        return disk

    # spoiling

    def _spoil(self, rng: random.Random, files: dict[str, bytes]) -> None:
        ways: tuple[Callable[[random.Random, dict[str, bytes]], None], ...] = (
            self._frame, self._frame, self._entry, self._index, self._page, self._any, self._names,
        )  # fmt: skip
        rng.choice(ways)(rng, files)

    def _frame(self, rng: random.Random, files: dict[str, bytes]) -> None:
        path, at, size = rng.choice(self._frames)
        data = files.get(path, b"")
        frame = bytearray(data[at : at + size])
        if len(frame) < size:
            return
        if rng.random() < 0.8:
            place, width = rng.choice(NUMBERS_AT_V4)
            frame[place : place + width] = _number(rng, width)
        else:
            frame[:] = spoiled_in_place(rng, bytes(frame))
        if rng.random() < 0.5:
            seal_body(frame)
            frame[-CRC_PROPERTY_BYTES:] = crc_property_of(crc32(frame[:-CRC_PROPERTY_BYTES]))
        files[path] = data[:at] + bytes(frame) + data[at + size :]

    def _entry(self, rng: random.Random, files: dict[str, bytes]) -> None:
        path = _one(rng, files, QUEUES)
        at = rng.randrange(max(len(files[path]) // 20, 1)) * 20
        place, width = rng.choice(((0, 8), (8, 4), (12, 8)))
        files[path] = _replaced(files[path], at + place, _number(rng, width))

    def _index(self, rng: random.Random, files: dict[str, bytes]) -> None:
        path = _one(rng, files, INDEX)
        places = (*range(0, 32, 8), 32, 36, *range(40, 40 + 4 * CONFIG.index_slots, 4))
        items = 40 + 4 * CONFIG.index_slots
        at = rng.choice(places)
        if rng.random() < 0.5:
            at = items + 20 * rng.randrange(CONFIG.index_items) + rng.choice((0, 4, 12, 16))
        files[path] = _replaced(files[path], at, _number(rng, rng.choice((4, 8))))

    def _page(self, rng: random.Random, files: dict[str, bytes]) -> None:
        page = bytearray(files.get(CHECKPOINT, b"").ljust(4096, b"\0"))
        at = rng.choice(PAGE_NUMBERS)
        page[at : at + 8] = _number(rng, 8)
        if rng.random() < 0.7 and page[64:72] == MAGIC:
            page[176:180] = zlib.crc32(page[:176]).to_bytes(4, "big")
        files[CHECKPOINT] = bytes(page)

    def _any(self, rng: random.Random, files: dict[str, bytes]) -> None:
        path = rng.choice(sorted(files))
        files[path] = (spoiled_in_place if rng.random() < 0.7 else spoiled)(rng, files[path])

    def _names(self, rng: random.Random, files: dict[str, bytes]) -> None:
        path = rng.choice(sorted(files))
        directory, _, name = path.rpartition("/")
        data = files.pop(path)
        way = rng.randrange(4)
        if way == 0:
            return
        if way == 1:
            name = "".join(rng.choice("0123456789") for _ in range(rng.choice((1, 17, 20, 40))))
        elif way == 2:
            name = rng.choice(("x", "-1", "0" * 20, "9" * 20, "\u0663", ".tmp", name + ".bak"))
        else:
            files[path] = data
            directory = rng.choice((QUEUES + "orders/x", QUEUES + "new/" + "9" * 30, QUEUES + "a"))
        files[f"{directory}/{name}"] = data

    # living

    def _live(self, rng: random.Random, store: MessageStore, disk: SimDisk) -> list[str]:
        for topic, queue_id in store.queues():
            self._read_queue(store, topic, queue_id)
        for topic in QUEUES_OF:
            store.query_by_key(topic, "k", 3, 0, 1 << 62)
        store.message_at(rng.randrange(max(store.watermarks.appended, 1)))
        first, end = store.markers
        for number in range(first, min(end, first + 10)):
            store.marker(number)
        outcomes = self._rots(rng, store, disk)
        return [self._append(store), *outcomes]

    def _rots(self, rng: random.Random, store: MessageStore, disk: SimDisk) -> list[str]:
        """Spoils files under the running store, one after the other."""
        files = {path: disk.content(path) for path in disk.paths() if path.startswith(BUILT)}
        return [self._rot(rng, store, disk, files) for _ in range(ROTS if files else 0)]

    def _rot(
        self, rng: random.Random, store: MessageStore, disk: SimDisk, files: dict[str, bytes]
    ) -> str:
        """Spoils a file, reads, and puts it back."""
        spoiled_files = dict(files)
        rng.choice((self._frame, self._frame, self._entry, self._index))(rng, spoiled_files)
        for path, data in files.items():
            if spoiled_files[path] is not data:
                disk.open_segment(path, len(data)).write(0, spoiled_files[path][: len(data)])
        try:
            self._read(rng, store)
        except SaturnError as error:
            return f"a read refused: {type(error).__name__}"
        finally:
            for path, data in files.items():
                disk.open_segment(path, len(data)).write(0, data)
        return "a read answered"

    def _read(self, rng: random.Random, store: MessageStore) -> None:
        topic, queue_id = rng.choice(sorted(store.queues()) or [("orders", 0)])
        self._read_queue(store, topic, queue_id)
        store.query_by_key(topic, "k", 3, 0, 1 << 62)
        store.message_at(rng.choice(self._places))

    def _live_again(self, store: MessageStore) -> list[str]:
        """The next start takes what the first has taken: that is no input of its own."""
        for topic in QUEUES_OF:
            self._read_queue(store, topic, 0)
        self._append(store)
        return []

    def _append(self, store: MessageStore) -> str:
        outcome = "a start taken"
        try:
            for topic in QUEUES_OF:
                store.put(PendingMessage(topic, 0, b"more", b"TAGS\x01a\x02KEYS\x01k\x02"))
        except SaturnError as error:
            outcome = f"a start that takes no messages: {type(error).__name__}"
        _reput(store)
        for topic in QUEUES_OF:
            store.get_message(topic, 0, store.max_offset(topic, 0) - 1, 32)
        store.flush_derived()
        store.checkpoint()
        return outcome

    def _read_queue(self, store: MessageStore, topic: str, queue_id: int) -> None:
        offset: int = store.min_offset(topic, queue_id)
        for _ in range(READS_MAX):
            found = store.get_message(topic, queue_id, offset, 32)
            if found.next_begin_offset <= offset:
                break
            offset = found.next_begin_offset
        store.offset_by_time(topic, queue_id, self._clock.ms - 10)
        store.store_time_of(topic, queue_id, store.max_offset(topic, queue_id) - 1)
        store.offset_at(topic, queue_id, store.watermarks.start)


def _reput(store: MessageStore) -> None:
    while store.reput():
        pass


def filled(seed: int, clock: ImageClock) -> dict[str, bytes]:
    """The files of a store of some segments, stopped in order."""
    rng = random.Random(seed)
    disk = SimDisk(rng)
    store = open_store(CONFIG, disk, clock)
    for number in range(MESSAGES):
        properties = b"TAGS\x01a\x02KEYS\x01k%s\x02" % (b"" if number % 3 else b" k%d" % number)
        topic = ("orders", "orders", "bills")[number % 3]
        queue_id = number % QUEUES_OF[topic]
        body = b"x" * rng.choice((0, 40, BODY_MAX))
        store.put(PendingMessage(topic, queue_id, body, properties))
        clock.ms += 1
        if number == MESSAGES // 2:
            for _ in store.append_group(b'{"kind":"group","sink":"s"}', [_part(store)]):
                pass
    _reput(store)
    ticket = store.begin_flush()
    if ticket is not None:
        ticket.run()
        store.complete_flush(ticket)
    store.flush_derived()
    store.checkpoint()
    store.close()
    return files_of(disk)


def _part(store: MessageStore) -> AtomicBatchPart:
    batch = bytearray()
    encode_batch_item(batch, b"of a group", b"TAGS\x01a\x02")
    data = bytes(batch)
    count, size = store.measure_part("orders", data)
    return AtomicBatchPart("orders", 0, count, size, lambda: data)


def _frames(files: dict[str, bytes]) -> list[tuple[str, int, int]]:
    """Path, place and size of each frame of the log."""
    found = []
    for path, data in sorted(files.items()):
        at = 0
        while path.startswith(LOG) and at + 8 <= len(data):
            size, magic = BLANK.unpack_from(data, at)
            if magic & 0xFFFF0000 != 0xDAA30000:
                break
            found.append((path, at, size))
            at += size
    return found


def _one(rng: random.Random, files: dict[str, bytes], directory: str) -> str:
    found = sorted(path for path in files if path.startswith(directory))
    return rng.choice(found or sorted(files))


def _replaced(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def _number(rng: random.Random, width: int) -> bytes:
    number: int = rng.choice((*NUMBERS, 100, 8192, 8191, 1 << 40))
    return ((number + rng.choice((-1, 0, 0, 1))) % (1 << 8 * width)).to_bytes(width, "big")

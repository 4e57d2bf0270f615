"""What the tests of the rules share: a small store and a decoder of its files that knows nothing of
ours. The broker with clients on simulated machines is `world_rig.py`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from saturnmq.drills.sim.disk import SimDisk
from saturnmq.store.config import StoreConfig
from saturnmq.store.disk import Disk, NativeDisk, SegmentFile
from saturnmq.store.message_store import GetStatus, MessageStore, PendingMessage
from store_rig import dispatch, flush
from world_rig import NOW, new_disk

HOUR = 3_600_000
SEGMENT = 8192
SMALL = StoreConfig(
    root="/store",
    commitlog_segment_bytes=SEGMENT,
    consumequeue_segment_bytes=400,  # 20 entries
    index_slots=50,
    index_items=40,
    zero_ahead_bytes=4096,
    crc_property=False,  # frames as small as the articles have them
)

# The golden frame of a real RocketMQ: queue 0, body "0,1,", at offset 1251464 of its log.
GOLDEN_OFFSET = 1251464
GOLDEN = bytes.fromhex(
    "0000008bdaa320a714bdf36800000000000000000000000000000000000000000013188800000000000001a1fbc3be8d"
    "7f000001000051af000001a1fbc3be8f7f000001000051af00000000000000000000000000000004302c312c1b524d51"
    "5f5359535f5452414e535f4f505f48414c465f544f50494300115741495401747275650254414753016402"
)


class Clock:
    """The part of a runtime that a store uses."""

    def __init__(self, now: int = NOW) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


class SparseDisk(NativeDisk):
    """The real disk, but a file takes room only where it is written: a large one costs nothing."""

    def create_segment(self, path: str, size: int, *, durable: bool = True) -> SegmentFile:
        with open(path, "xb") as file:
            file.truncate(size)
        return self.open_segment(path, size)


# -- a store ---------------------------------------------------------------------------------------


def open_store(
    disk: Disk | None = None, clock: Clock | None = None, **changes: Any
) -> MessageStore:
    config = replace(SMALL, **changes)
    return MessageStore.open(config, disk or new_disk(), clock or Clock())


def message(
    body: bytes = b"x",
    topic: str = "T",
    queue: int = 0,
    *,
    tag: str | None = None,
    keys: str | None = None,
    unique: str | None = None,
    **more: Any,
) -> PendingMessage:
    names = {"UNIQ_KEY": unique, "KEYS": keys, "TAGS": tag}
    properties = "".join(f"{k}\x01{v}\x02" for k, v in names.items() if v is not None)
    return PendingMessage(topic, queue, body, properties.encode(), **more)


def settle(store: MessageStore) -> None:
    """Everything written is dispatched and durable, and the checkpoint says so."""
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()


def bodies(store: MessageStore, topic: str = "T", queue: int = 0) -> list[bytes]:
    """Every body of a queue, in order."""
    found: list[bytes] = []
    offset = store.min_offset(topic, queue)
    while True:
        result = store.get_message(topic, queue, offset, 32)
        if result.status is not GetStatus.FOUND:
            return found
        found += [frame.body for frame in frames(result.data)]
        offset = result.next_begin_offset


def found_by_key(store: MessageStore, key: str, topic: str = "T", most: int = 64) -> list[bytes]:
    return [next(frames(data)).body for data in store.query_by_key(topic, key, most, 0, 1 << 60)]


def fill(store: MessageStore, segments: int, **names: Any) -> None:
    """Write and settle until the log has so many segments; bodies are numbered."""
    number = 0
    while store.watermarks.appended <= (segments - 1) * SEGMENT:
        store.put(message(b"%d " % number + bytes(900), keys=f"k{number}", **names))
        number += 1
    settle(store)


def clean(store: MessageStore) -> list[str]:
    """One cleaning pass; the names of the segments that it took out."""
    ticket = store.begin_clean()
    if ticket is None:
        return []
    taken = [path.rpartition("/")[2] for path in ticket.segments]
    ticket.run()
    return taken


@dataclass
class Aged:
    """A store whose segments are a while old, on a disk that can be made to seem full."""

    store: MessageStore
    clock: Clock
    disk: SimDisk

    def use_disk_to(self, percent: float) -> None:
        """Shrink the disk until what is on it is so much of it."""
        used = self.disk.total_bytes - self.disk.free_space("/store")[1]
        self.disk.total_bytes = int(used * 100 / percent)
        self.store.watch_space()


def aged(segments: int, hour: int, *, hours_old: int = 72, **changes: Any) -> Aged:
    """So many segments, written so long before this local hour."""
    clock = Clock(at_hour(hour))
    disk = new_disk(now_ms=clock.now_ms)
    store = open_store(disk, clock, **changes)
    fill(store, segments)
    clock.now += hours_old * HOUR
    return Aged(store, clock, disk)


def segment_names(first: int, count: int) -> list[str]:
    return [f"{number * SEGMENT:020d}" for number in range(first, first + count)]


def at_hour(hour: int, minute: int = 0) -> int:
    """Milliseconds of that local hour, on the day of NOW."""
    day = datetime.fromtimestamp(NOW / 1000)
    return int(day.replace(hour=hour, minute=minute, second=0).timestamp()) * 1000


# -- its files, read without our code --------------------------------------------------------------


@dataclass
class RawFrame:
    """One frame as the table in docs/internals/format.md 2.1 lays it out."""

    at: int
    size: int
    magic: int
    crc: int
    queue: int
    flag: int
    queue_offset: int
    physical: int
    sys_flag: int
    born: int
    born_host: bytes
    stored: int
    store_host: bytes
    reconsumed: int
    prepared: int
    body: bytes
    topic: str
    properties: dict[str, str]


def frames(data: bytes, base: int = 0, segment: int = SEGMENT) -> Iterator[RawFrame]:
    """Frames until the first place without one; a blank leads to the next segment."""
    at = 0
    while at + 8 <= len(data):
        size, magic = struct.unpack_from(">ii", data, at)
        if magic == -875286124:
            assert size == segment - (base + at) % segment
            at += size
            continue
        if size == 0:
            return
        yield raw_frame(data[at : at + size], base + at)
        at += size


def raw_frame(data: bytes, at: int = 0) -> RawFrame:
    size, magic, crc, queue, flag, queue_offset, physical, sys_flag, born = struct.unpack_from(
        ">iiiiiqqiq", data
    )
    pos = 48
    born_host = data[pos : pos + (20 if sys_flag & 0x10 else 8)]
    pos += len(born_host)
    (stored,) = struct.unpack_from(">q", data, pos)
    store_host = data[pos + 8 : pos + 8 + (20 if sys_flag & 0x20 else 8)]
    pos += 8 + len(store_host)
    reconsumed, prepared, length = struct.unpack_from(">iqi", data, pos)
    pos += 16
    body = data[pos : pos + length]
    pos += length
    assert crc == zlib.crc32(body) & 0x7FFFFFFF
    form = ">b" if magic == -626843481 else ">h"
    (length,) = struct.unpack_from(form, data, pos)
    pos += struct.calcsize(form)
    topic = data[pos : pos + length].decode()
    pos += length
    (length,) = struct.unpack_from(">h", data, pos)
    pos += 2
    text = data[pos : pos + length].decode()
    assert pos + length == size == len(data)
    properties = dict(part.split("\x01", 1) for part in text.split("\x02") if part)
    return RawFrame(
        *(at, size, magic, crc, queue, flag, queue_offset, physical, sys_flag, born),
        *(born_host, stored, store_host, reconsumed, prepared, body, topic, properties),
    )


def build_frame(
    body: bytes,
    topic: str = "T",
    queue: int = 0,
    *,
    queue_offset: int,
    physical: int,
    stored: int = NOW,
    properties: bytes = b"",
) -> bytes:
    """A frame made without our encoder."""
    name = topic.encode()
    size = 91 + len(body) + len(name) + len(properties)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    head = struct.pack(
        ">iiiiiqqiq8sq8siqi",
        *(size, -626843481, crc, queue, 0, queue_offset, physical, 0, stored, bytes(8)),
        *(stored, bytes(8), 0, 0, len(body)),
    )
    tail = struct.pack(">b", len(name)) + name + struct.pack(">h", len(properties)) + properties
    return head + body + tail


def files_of(disk: Disk, directory: str) -> dict[str, bytes]:
    """Name -> content of the files in a directory, in order."""
    return {
        entry.name: disk.read_file(f"{directory}/{entry.name}")
        for entry in disk.list(directory)
        if not entry.is_dir
    }


def log_bytes(disk: Disk, root: str = "/store") -> bytes:
    return b"".join(files_of(disk, f"{root}/commitlog").values())


def log_frames(disk: Disk, root: str = "/store", segment: int = SEGMENT) -> list[RawFrame]:
    return list(frames(log_bytes(disk, root), 0, segment))


def entries_of(
    disk: Disk, topic: str = "T", queue: int = 0, root: str = "/store"
) -> list[tuple[int, int, int]]:
    """(offset, size, tags code) of a queue's files up to the first empty slot."""
    data = b"".join(files_of(disk, f"{root}/consumequeue/{topic}/{queue}").values())
    found = []
    for entry in struct.iter_unpack(">qiq", data):
        if entry[1] == 0:
            break
        found.append(entry)
    return found


@dataclass
class RawIndex:
    """One index file; `items` are (hash, offset, seconds, previous), item 0 included."""

    name: str
    header: tuple[int, int, int, int, int, int]
    slots: list[int]
    items: list[tuple[int, int, int, int]]


def indexes_of(disk: Disk, slots: int = SMALL.index_slots, root: str = "/store") -> list[RawIndex]:
    found = []
    for name, data in files_of(disk, f"{root}/index").items():
        header = struct.unpack_from(">qqqqii", data)
        table = list(struct.unpack_from(f">{slots}i", data, 40))
        items = list(struct.iter_unpack(">iqii", data[40 + 4 * slots :]))
        found.append(RawIndex(name, header, table, items[: header[5]]))
    return found


def java_hash(text: str) -> int:
    """String.hashCode, straight from its definition."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def text_of_hash(prefix: str, wanted: int) -> str:
    """A text that begins with `prefix` and has this Java hash: seven more characters."""
    places = 7
    base = 31**places
    start = java_hash(prefix) * base + 33 * ((base - 1) // 30)  # as if all were "!"
    rest = (wanted - start) % (1 << 32)
    digits = []
    for _ in range(places):
        rest, digit = divmod(rest, 31)
        digits.append(chr(33 + digit))
    assert rest == 0
    return prefix + "".join(reversed(digits))

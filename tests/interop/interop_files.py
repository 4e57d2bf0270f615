"""The files of a store, read without any code of ours that writes or opens stores.

Only `protocol.frame` is used, the readable reference of one frame; ConsumeQueue and IndexFile are
taken apart here. `StoreFiles.check` compares the three with each other: what a frame asks for lies
in its queue and in the index, in log order, and nothing else does.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from saturnmq.protocol.frame import Blank, Damage, End, Frame, NeedMore, decode_frame
from saturnmq.protocol.jhash import index_hash, jhash

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
DELAYS_S = [1, 5, 10, 30, *(60 * m for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)), 3600, 7200]
_ENTRY = struct.Struct(">qiq")
_HEADER = struct.Struct(">qqqqii")
_ITEM = struct.Struct(">iqii")
_FILLER = (0, 2147483647, 0)


class Entry(NamedTuple):
    """One ConsumeQueue entry."""

    offset: int
    size: int
    code: int


class Item(NamedTuple):
    """One IndexFile item; `number` is its place."""

    number: int
    key_hash: int
    offset: int
    seconds: int
    previous: int


@dataclass
class IndexImage:
    """One IndexFile."""

    begin_time: int
    end_time: int
    begin_offset: int
    end_offset: int
    slots_used: int
    slots: list[int]
    items: list[Item]


class Gap(NamedTuple):
    """A place of the log without a valid frame, and what is wrong there."""

    offset: int
    why: str


@dataclass
class StoreFiles:
    """The files below `root`, of the sizes that broker.conf gave."""

    root: Path
    segment_bytes: int
    queue_bytes: int
    slots: int
    items: int

    @property
    def log_start(self) -> int:
        """Where the oldest segment begins."""
        return min(int(path.name) for path in (self.root / "commitlog").glob("[0-9]*"))

    def log(self) -> Iterator[Frame | Blank | Gap]:
        """What the CommitLog holds, in order, up to the first zeros of its last segment."""
        for path in self._segments(self.root / "commitlog", self.segment_bytes):
            data, pos = memoryview(path.read_bytes()), 0
            while pos < len(data):
                found = decode_frame(data, pos)
                if isinstance(found, End):
                    break
                if isinstance(found, (Damage, NeedMore)):
                    yield Gap(int(path.name) + pos, str(found))
                    break
                assert isinstance(found, Blank) or found.physical_offset == int(path.name) + pos
                yield found
                pos += found.size
                if isinstance(found, Blank):
                    assert pos == len(data), f"a BLANK ends at {pos} of {path}"

    def frames(self) -> list[Frame]:
        """All frames; the log must hold nothing but them."""
        found = list(self.log())
        assert not [each for each in found if isinstance(each, Gap)]
        return [each for each in found if isinstance(each, Frame)]

    def blanks(self) -> list[Blank]:
        return [each for each in self.log() if isinstance(each, Blank)]

    def queues(self) -> dict[tuple[str, int], dict[int, Entry]]:
        """Entry by queue offset, of every queue that has any."""
        found: dict[tuple[str, int], dict[int, Entry]] = {}
        for directory in sorted((self.root / "consumequeue").glob("*/*")):
            entries: dict[int, Entry] = {}
            for path in self._segments(directory, self.queue_bytes):
                first = int(path.name) // _ENTRY.size
                for at, values in enumerate(_ENTRY.iter_unpack(path.read_bytes()), first):
                    if values[1] == 0:
                        break
                    if values != _FILLER:
                        entries[at] = Entry(*values)
            if entries:
                found[directory.parent.name, int(directory.name)] = entries
        return found

    def index(self) -> list[IndexImage]:
        """The IndexFiles, oldest first."""
        size = _HEADER.size + 4 * self.slots + _ITEM.size * self.items
        found = []
        for path in sorted((self.root / "index").iterdir()):
            data = path.read_bytes()
            assert len(data) == size, f"{path} is {len(data)} bytes long, not {size}"
            *head, used, count = _HEADER.unpack_from(data)
            slots = list(struct.unpack_from(f">{self.slots}i", data, _HEADER.size))
            base = _HEADER.size + 4 * self.slots
            items = [
                Item(number, *_ITEM.unpack_from(data, base + _ITEM.size * number))
                for number in range(1, count)
            ]
            found.append(IndexImage(*head, used, slots, items))
        return found

    @staticmethod
    def _segments(directory: Path, size: int) -> list[Path]:
        paths = sorted(path for path in directory.iterdir() if path.is_file())
        for path in paths:
            assert path.stat().st_size == size, f"{path} is {path.stat().st_size} bytes long"
            assert int(path.name) % size == int(paths[0].name) % size == 0
        return paths

    # the three against each other

    def check(self, *, twice: bool = False) -> int:
        """Assert that queues and index are what the log asks for; the number of frames.

        What they know of segments that were deleted is passed over. `twice`: after a crash of
        RocketMQ's an index may hold an item twice.
        """
        frames = self.frames()
        self._check_queues(frames)
        self._check_index(frames, twice=twice)
        return len(frames)

    def _check_queues(self, frames: list[Frame]) -> None:
        wanted: dict[tuple[str, int], dict[int, Entry]] = defaultdict(dict)
        for frame in frames:
            entry = Entry(frame.physical_offset, frame.size, tags_code(frame))
            wanted[frame.topic.decode(), frame.queue_id][frame.queue_offset] = entry
        found = {
            key: {at: entry for at, entry in entries.items() if entry.offset >= self.log_start}
            for key, entries in self.queues().items()
        }
        assert {key: entries for key, entries in found.items() if entries} == wanted

    def _check_index(self, frames: list[Frame], *, twice: bool) -> None:
        times = {frame.physical_offset: frame.store_timestamp for frame in frames}
        plain = [item for frame in frames for item in index_items(frame)]
        found = [item for item in self.indexed(frames) if item[1] >= self.log_start]
        assert (set(found) == set(plain)) if twice else (found == plain)
        before: IndexImage | None = None
        for image in self.index():
            if image.begin_offset >= self.log_start and (before is not None or not self.log_start):
                _check_image(image, before, times, self.slots)
            before = image

    def indexed(self, frames: list[Frame]) -> list[tuple[int, int]]:
        """(key hash, offset) of all items, without those that RocketMQ 5.4 adds for tags."""
        extra = {
            (index_hash(frame.topic.decode(), f"T#{tag}"), frame.physical_offset)
            for frame in frames
            if (tag := frame.properties.get("TAGS"))
        }
        pairs = [(i.key_hash, i.offset) for image in self.index() for i in image.items]
        return [pair for pair in pairs if pair not in extra]


def tags_code(frame: Frame) -> int:
    """What belongs into the queue entry of a frame."""
    properties = frame.properties
    if frame.topic.decode() == SCHEDULE:
        return frame.store_timestamp + DELAYS_S[int(properties["DELAY"]) - 1] * 1000
    return jhash(properties.get("TAGS", ""))


def index_items(frame: Frame) -> list[tuple[int, int]]:
    """(key hash, offset) of what belongs into the index for a frame."""
    topic, properties = frame.topic.decode(), frame.properties
    keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
    return [(index_hash(topic, key), frame.physical_offset) for key in keys if key]


def _check_image(
    image: IndexImage, before: IndexImage | None, times: dict[int, int], slots: int
) -> None:
    newest: dict[int, int] = {}
    # The first item's seconds count from what the new file had taken over from the full one.
    begin = before.end_time if before is not None else 0
    for item in image.items:
        slot = item.key_hash % slots
        assert item.previous == newest.get(slot, 0), f"{item} does not follow its slot's last"
        newest[slot] = item.number
        seconds = max(0, (times[item.offset] - begin) // 1000) if begin else 0
        assert item.seconds == seconds, f"{item} is {seconds} s after {begin}"
        begin = image.begin_time
    assert {slot: number for slot, number in enumerate(image.slots) if number} == newest
    assert image.slots_used == len(newest)
    first, last = image.items[0].offset, image.items[-1].offset
    assert (image.begin_offset, image.end_offset) == (first, last)
    assert (image.begin_time, image.end_time) == (times[first], times[last])

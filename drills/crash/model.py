"""The model that a recovered store is compared with: the log as it was meant, and all that follows
from it.

The model sees every write to the CommitLog before the disk does, parses it with the reference
codec, and derives queue entries and index items by itself. A log that recovery left must then be
a prefix of `log` that ends at a frame's end, and the derived files must be what follows from that
prefix. Cleaning takes whole segments from its front: `start`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from saturnmq.protocol.frame import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
    Blank,
    Frame,
    decode_frame,
)
from saturnmq.protocol.jhash import index_hash, tags_code
from saturnmq.protocol.topics import GROUPS_TOPIC
from saturnmq.store.derived.consumequeue import ENTRY, FILLER

Key = tuple[str, int]


@dataclass(slots=True)
class QueueModel:
    """One queue's entries, with the start and the end of the frame of each."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    entries: bytearray = field(default_factory=bytearray)

    def cut(self, end: int) -> None:
        count = bisect_right(self.ends, end)
        del self.starts[count:], self.ends[count:], self.entries[count * ENTRY.size :]


class Model:
    """See the module's text."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.log = bytearray()
        self.start = 0
        self.flushed = 0  # the log that a power loss must leave
        self.appended = 0  # the log that the death of the process must leave
        self.starts: list[int] = []  # of frames
        self.ends: list[int] = [0]  # places where the log may end, none of them inside a group
        self.groups: list[tuple[int, int]] = []  # the marker's start, the group's end
        self.queues: dict[Key, QueueModel] = {}
        self.items: list[tuple[int, int]] = []  # of the index: (offset, hash)
        self.refused: list[tuple[int, int]] = []  # bytes of messages that were answered with a no
        self.wrong: list[str] = []

    # steps of the store

    def intended(self, offset: int, data: bytes) -> None:
        """The store is about to write `data` at `offset` of the CommitLog."""
        if offset != len(self.log):
            self.wrong.append(f"I4 write at {offset} of a log that ends at {len(self.log)}")
            return
        at = 0
        while at < len(data):
            found = decode_frame(data, at)
            if isinstance(found, Blank):
                self.log += data[at:].ljust(found.size, b"\0")
                at = len(data)
            elif isinstance(found, Frame):
                self._add(found, len(self.log))
                self.log += data[at : at + found.size]
                at += found.size
            else:
                self.wrong.append(f"I2 no frame is written at {offset + at}: {found}")
                return
            if not self.groups or len(self.log) >= self.groups[-1][1]:
                self.ends.append(len(self.log))

    def _add(self, frame: Frame, offset: int) -> None:
        topic = frame.topic.decode()
        properties = frame.properties
        transaction = frame.sys_flag & TRANSACTION_MASK
        expected = 0
        if transaction in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            queue = self.queues.setdefault((topic, frame.queue_id), QueueModel())
            expected = len(queue.ends)
            queue.starts.append(offset)
            queue.ends.append(offset + frame.size)
            queue.entries += ENTRY.pack(offset, frame.size, tags_code(properties.get("TAGS")))
        if (frame.physical_offset, frame.queue_offset) != (offset, expected):
            self.wrong.append(
                f"I4 frame at {offset} says {frame.physical_offset}, offset {frame.queue_offset} "
                f"in {topic}/{frame.queue_id} instead of {expected}"
            )
        if topic == GROUPS_TOPIC:
            span = int.from_bytes(frame.body[:8], "big")
            if span:
                self.groups.append((offset, offset + span))
        self.starts.append(offset)
        if transaction != TRANSACTION_ROLLBACK:
            keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
            self.items += [(offset, index_hash(topic, key)) for key in keys if key]

    def cut(self, end: int) -> None:
        """The log ends at `end` now; what lay behind may be written anew."""
        del self.log[end:]
        del self.starts[bisect_left(self.starts, end) :]
        del self.ends[bisect_right(self.ends, end) :]
        del self.items[bisect_left(self.items, (end, -1)) :]
        for queue in self.queues.values():
            queue.cut(end)
        self.refused = [(a, b) for a, b in self.refused if b <= end]
        self.groups = [(a, b) for a, b in self.groups if b <= end]
        self.flushed = min(self.flushed, end)
        self.appended = min(self.appended, end)

    def skip(self, topic: str, queue_id: int, offset: int) -> None:
        """The queue goes on at this offset, whatever the log has: it is of a deleted topic, whose
        last messages the log has lost."""
        queue = self.queues.setdefault((topic, queue_id), QueueModel())
        count, end = offset - len(queue.ends), len(self.log)
        if count > 0:
            queue.starts += [end - 1] * count
            queue.ends += [end] * count
            queue.entries += FILLER * count

    def next_offset(self, topic: str, queue_id: int) -> int:
        queue = self.queues.get((topic, queue_id))
        return 0 if queue is None else len(queue.ends)

    # conclusions

    def may_end_at(self, offset: int) -> bool:
        at = bisect_left(self.ends, offset)
        return at < len(self.ends) and self.ends[at] == offset

    def group_at(self, offset: int) -> int | None:
        """The start of the group that `offset` lies in."""
        return next((a for a, b in reversed(self.groups) if a < offset < b), None)

    def entries(self, key: Key, start: int, end: int) -> tuple[int, bytes]:
        """(first queue offset at or behind `start`, all entries up to `end`)."""
        queue = self.queues[key]
        count = bisect_right(queue.ends, end)
        first = min(bisect_left(queue.starts, start), count)
        return first, bytes(queue.entries[: count * ENTRY.size])

    def index_items(self, start: int, end: int) -> list[tuple[int, int]]:
        low = bisect_left(self.items, (start, -1))
        return sorted(self.items[low : bisect_left(self.items, (end, -1))])

    def count(self, end: int) -> int:
        """Messages that end at or before `end`."""
        return bisect_left(self.starts, end)

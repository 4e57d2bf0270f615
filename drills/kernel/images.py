"""The log's content while the broker lived, and whether an image of its disk is a true past of it.

The log of the broker that lived is read once, every frame with its checksums. After a power cut an
image must hold a prefix of it, byte for byte, that ends between two frames (I2, I4), queues that
point at exactly the frames of that prefix (I8), every acknowledged message that the flush mode
covers (I1), and recovery must not change its mind when it is repeated or cut short (I10).
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saturnmq.drills.kernel.load import TOPIC, AckedMessage, Bodies
from saturnmq.drills.kernel.report import ImageLoss
from saturnmq.protocol.frame import Frame, decode_frame
from saturnmq.protocol.kernels import scan_frames
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.delay_levels import DEFAULT_DELAYS_MS
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import MessageStore, PendingMessage, StoreConfig

_ENTRY = struct.Struct(">qiq")
_Queue = tuple[str, int]
Progress = Callable[[int, int], None]


class LogImage:
    """A CommitLog's bytes from 0 to its end, and the queue entries that follow from them."""

    def __init__(self, directory: Path) -> None:
        self.entries: dict[_Queue, bytes] = {}
        self.ends: dict[_Queue, list[int]] = {}  # of each entry's frame
        self.borders = {0}
        self.why = ""  # it ends where it does
        parts = []
        self.end = 0
        for path in sorted(path for path in directory.iterdir() if path.name.isdigit()):
            data = path.read_bytes()
            stop, status = self._scan(data, int(path.name))
            parts.append(data[:stop])
            if status != "blank":
                break
        self.data = b"".join(parts)

    def _scan(self, data: bytes, base: int) -> tuple[int, str]:
        scan = scan_frames(data, 0, len(data), base, True, False, DEFAULT_DELAYS_MS)
        for topic, queue_id, first, _, entries in scan.runs:
            self._add((topic, queue_id), first, entries)
        self.end, self.why = base + scan.next_pos, scan.why
        self.borders.add(self.end)
        return scan.next_pos, scan.status

    def _add(self, queue: _Queue, first: int, entries: bytes) -> None:
        known = self.ends.setdefault(queue, [])
        if first != len(known):
            raise ValueError(f"queue {queue}: entry {first} follows {len(known)} others")
        self.entries[queue] = self.entries.get(queue, b"") + bytes(entries)
        ends = [at + size for at, size, _ in _ENTRY.iter_unpack(entries)]
        known += ends
        self.borders.update(ends)

    def count(self, queue: _Queue, end: int) -> int:
        """The number of a queue's frames that end at or before `end`."""
        return bisect.bisect_right(self.ends.get(queue, []), end)

    def frame(self, queue: _Queue, offset: int) -> Frame:
        at, size, _ = _ENTRY.unpack_from(self.entries[queue], offset * _ENTRY.size)
        found = decode_frame(self.data, at, at + size)
        assert isinstance(found, Frame)
        return found

    def match(self, acks: Sequence[AckedMessage], bodies: Bodies) -> Match:
        """Compare every message with what was sent and acknowledged."""
        numbers = {
            (topic, queue_id): [
                bodies.number(self.frame((topic, queue_id), n).body) for n in range(len(ends))
            ]
            for (topic, queue_id), ends in self.ends.items()
            if topic == TOPIC
        }
        match = Match()
        match.wrong += [
            f"I2: {queue} offset {offset} holds a message that nobody sent"
            for queue, found in numbers.items()
            for offset, number in enumerate(found)
            if number is None
        ]
        for ack in acks:
            found = numbers.get((TOPIC, ack.queue_id), [])
            if ack.queue_offset >= len(found):
                match.missing.append(ack)
            elif found[ack.queue_offset] != ack.number:
                match.wrong.append(f"I4: another message lies where one was acknowledged: {ack}")
            else:
                match.held.append((self.ends[TOPIC, ack.queue_id][ack.queue_offset], ack.at))
        return match


@dataclass
class Match:
    """Acknowledged messages against a log."""

    held: list[tuple[int, float]] = field(default_factory=list)  # end of the frame, when acked
    missing: list[AckedMessage] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass
class PowerCut:
    """A power cut: the image of the disk, and what had been acknowledged by then."""

    image: Path
    at: float  # monotonic seconds, just before the image was taken
    took: float


@dataclass
class ImageVerdict:
    """The content of an image, and its faults."""

    end: int = 0
    loss: ImageLoss = field(default_factory=ImageLoss)
    wrong: list[str] = field(default_factory=list)


def open_store(
    root: Path, options: dict[str, Any], progress: Progress | None = None
) -> MessageStore:
    """Recover the store on an image as a broker would."""
    config = StoreConfig(root=str(root), **options)
    return MessageStore.open(config, NativeDisk(), NativeRuntime(), progress)


class Judge:
    """Looks at images of one broker's disk; `held` are its acknowledged messages."""

    def __init__(
        self, log: LogImage, held: list[tuple[int, float]], *, sync: bool, options: dict[str, Any]
    ) -> None:
        self._log = log
        self._held = held
        self._sync = sync
        self._options = options

    def loss(self, end: int, at: float) -> ImageLoss:
        """Messages acknowledged before `at` that a log up to `end` lacks."""
        return ImageLoss.of(
            [acked for frame_end, acked in self._held if frame_end > end and acked < at]
        )

    def open(self, root: Path, progress: Progress | None = None) -> MessageStore:
        return open_store(root, self._options, progress)

    def look(self, root: Path, at: float) -> ImageVerdict:
        """Recover the store at `root`, read all of it, use it, recover it again."""
        verdict = ImageVerdict()
        store = self.open(root)
        try:
            self._compare(store, at, verdict)
            end = self._use(store, verdict)
        finally:
            store.close()
        store = self.open(root)
        try:
            if store.watermarks.appended != end:
                again = store.watermarks.appended
                verdict.wrong.append(f"I10: the log ended at {end}, opened again at {again}")
        finally:
            store.close()
        return verdict

    def look_again(self, root: Path, at: float, end: int) -> ImageVerdict:
        """An image taken during or right after the recovery of one whose log ended at `end`."""
        verdict = ImageVerdict()
        store = self.open(root)
        try:
            self._compare(store, at, verdict)
        finally:
            store.close()
        if verdict.end != end:
            text = f"I10: recovered up to {end}, after a second power cut up to {verdict.end}"
            verdict.wrong.append(text)
        return verdict

    def _compare(self, store: MessageStore, at: float, verdict: ImageVerdict) -> None:
        log, wrong = self._log, verdict.wrong
        end = verdict.end = store.watermarks.appended
        if end not in log.borders:
            wrong.append(f"I4: the log ends at {end}, inside a frame")
        gaps = getattr(store.recovery, "gaps", [])
        if gaps:
            wrong.append(f"I1: recovery found gaps in what was flushed: {gaps}")
        offset = 0
        while offset < end and (part := store.read_log(offset, end - offset)):
            if (has := bytes(part)) != (wrote := log.data[offset : offset + len(part)]):
                at = offset + next(n for n in range(len(has)) if has[n : n + 1] != wrote[n : n + 1])
                wrong.append(f"I2: the log, up to {end}, differs from what was written at {at}")
                return
            offset += len(part)
        if offset != end:
            wrong.append(f"I2: the log cannot be read at {offset} of {end}")
        for queue in log.ends.keys() | store.queues().keys():
            self._compare_queue(store, queue, log.count(queue, end), wrong)
        verdict.loss = self.loss(end, at)
        wrong += verdict.loss.violations(sync=self._sync)

    def _compare_queue(
        self, store: MessageStore, key: _Queue, count: int, wrong: list[str]
    ) -> None:
        queue = store.queues().get(key)
        if (queue.max_offset if queue else 0) != count:
            has = queue.max_offset if queue else 0
            wrong.append(f"I8: queue {key} has {has} entries, the log has {count}")
            return
        first = 0
        while queue and first < count and (part := queue.entries(first, count - first)):
            if bytes(part) != self._log.entries[key][first * 20 :][: len(part)]:
                wrong.append(f"I8: queue {key} differs from a rebuild at or behind {first}")
                return
            first += len(part) // 20
        if count:  # and a consumer gets the newest one
            got = store.get_message(*key, count - 1, 1)
            frame = self._log.frame(key, count - 1)
            end = self._log.ends[key][count - 1]
            if got.data != self._log.data[end - frame.size : end]:
                wrong.append(f"I1: queue {key} offset {count - 1} cannot be read: {got.status}")

    def _use(self, store: MessageStore, verdict: ImageVerdict) -> int:
        """Write on; the new end."""
        count = self._log.count((TOPIC, 0), verdict.end)
        put = store.put(PendingMessage(TOPIC, 0, b"after the power cut"))
        if put.queue_offset != count:
            verdict.wrong.append(f"I4: the next queue offset is {put.queue_offset}, not {count}")
        return put.end_offset

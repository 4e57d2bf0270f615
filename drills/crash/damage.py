"""I11, damage is loud: one flipped bit in a store that was stopped cleanly (docs/guarantees.md F6).

Whichever bit it is, the store opens or says why not. Every message but the one that was hit is
still there and delivered. If recovery reads the hit message, it reports a gap or a loss. In half of
the images the queues are gone as well, so that recovery reads the whole log. A hit message that it
did not read is delivered damaged, and the reader's checksum refuses it. If the log ends with an
atomic batch, a hit that destroys the end of the batch destroys all of it.
"""

from __future__ import annotations

import random
from bisect import bisect_right

from saturnmq.drills.crash.images import ImageClock, open_store
from saturnmq.drills.crash.model import Model
from saturnmq.drills.crash.plan import ROOT
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.frame import CRC_PROPERTY_BYTES, Frame, decode_frame
from saturnmq.runtime.errors import SaturnError, StoreDamaged
from saturnmq.store.message_store import MessageStore, StoreConfig

_LOG = ROOT + "/commitlog/"


class BitRot:
    """Flips one bit of an image, opens it, says what is wrong."""

    def __init__(self, model: Model, config: StoreConfig, clock: ImageClock) -> None:
        self._model = model
        self._config = config
        self._clock = clock

    def check(self, image: SimDisk, rng: random.Random) -> list[str]:
        path, position = self._aim(image, rng)
        image.flip(path, position, rng.randrange(8))
        if rng.random() < 0.5:
            image.remove_tree(ROOT + "/consumequeue")
        hit = int(path.removeprefix(_LOG)) + position if path.startswith(_LOG) else -1
        try:
            store = open_store(self._config, image, self._clock)
        except StoreDamaged:
            return []  # loud
        except Exception as error:
            return [f"I11 a bit of {path} at {position}: {type(error).__name__}: {error}"]
        wrong = self._log(store, hit) or (self._delivered(store, hit) if hit >= 0 else "")
        return [f"I11 a bit of {path} at {position}: {wrong}"] if wrong else []

    def _aim(self, image: SimDisk, rng: random.Random) -> tuple[str, int]:
        kinds = ("/commitlog/", "/commitlog/", "/consumequeue/", "/index/", "/checkpoint")
        kind = ROOT + rng.choice(kinds)
        paths = [path for path in image.paths() if path.startswith(kind)]
        path = rng.choice(paths or [ROOT + "/checkpoint"])
        size = len(image.read_file(path))
        if path.startswith(_LOG):  # recovery does not look behind the end
            size = min(size, len(self._model.log) - int(path.removeprefix(_LOG)))
        return path, rng.randrange(max(size, 1))

    def _frame(self, hit: int) -> tuple[int, int] | None:
        """The frame that holds the byte `hit`."""
        at = bisect_right(self._model.starts, hit) - 1
        if hit < 0 or at < 0:
            return None
        start = self._model.starts[at]
        frame = decode_frame(self._model.log, start)
        end = start + frame.size if isinstance(frame, Frame) else start
        return (start, end) if hit < end else None

    def _log(self, store: MessageStore, hit: int) -> str:
        model, marks, recovery = self._model, store.watermarks, store.recovery
        frame = self._frame(hit)
        end = marks.appended
        if end > len(model.log):
            return f"the log ends at {end}, it was written up to {len(model.log)} only"
        cut = model.group_at(hit) if frame is not None else None
        if end < len(model.log) and not (recovery.lost and (hit >= end or end == cut)):
            return f"the log ends at {end}, not at {len(model.log)}, and nothing is told as lost"
        at: int = marks.start
        while at < end:
            part = bytes(store.read_log(at, end - at) or b"")
            if not part:
                return f"the log cannot be read at {at}"
            meant = model.log[at : at + len(part)]
            if part != meant:
                bad = [at + n for n, (a, b) in enumerate(zip(part, meant, strict=True)) if a != b]
                if bad != [hit]:
                    return f"the log differs at {bad[:5]}"
            at += len(part)
        told = recovery.lost or any(first <= hit < last for first, last in recovery.gaps)
        is_read = frame is not None and frame[0] >= recovery.scanned_from and recovery.messages
        if is_read and not _in_checksum(frame, hit):
            return "" if told else f"the frame {frame} is damaged and nothing tells it"
        return ""

    def _delivered(self, store: MessageStore, hit: int) -> str:
        frame = self._frame(hit)
        for (topic, queue_id), queue in self._model.queues.items():
            offset: int = store.min_offset(topic, queue_id)
            end = len(queue.ends)
            seen = 0
            while offset < end:
                try:
                    result = store.get_message(topic, queue_id, offset, 32)
                except SaturnError as error:
                    return f"{topic}/{queue_id} cannot be read at {offset}: {error}"
                if result.next_begin_offset <= offset:
                    break
                offset = result.next_begin_offset
                seen += result.count
                wrong = self._frames(memoryview(result.data), hit, frame)
                if wrong:
                    return f"{topic}/{queue_id} delivers {wrong}"
            group = self._model.group_at(hit)
            last = end
            if group is not None and group == store.watermarks.appended:
                last = bisect_right(queue.ends, group)
            there = last - bisect_right(queue.starts, store.watermarks.start - 1)
            if seen < there - (frame is not None):
                return f"{topic}/{queue_id} delivers {seen} of {there} messages"
        return ""

    def _frames(self, data: memoryview, hit: int, frame: tuple[int, int] | None) -> str:
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big", signed=True)
            found = decode_frame(data, at)
            if not isinstance(found, Frame):
                return "" if frame is not None else f"what is no frame: {found}"
            place = found.physical_offset
            is_other = data[at : at + size] != self._model.log[place : place + size]
            if is_other and not _in_checksum(frame, hit):
                return f"another message at {place}"
            at += size
        return ""


def _in_checksum(frame: tuple[int, int] | None, hit: int) -> bool:
    return frame is not None and hit > frame[1] - CRC_PROPERTY_BYTES - 2

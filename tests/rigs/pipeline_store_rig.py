"""A small store on the real disk with many files, as the tests of the jobs want it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saturnmq.pipeline.access import Where
from saturnmq.pipeline.jobs.archive import Archived, archive
from saturnmq.pipeline.jobs.audit import Audited, audit
from saturnmq.pipeline.jobs.manifest import DataFile
from saturnmq.protocol.frame import Frame, decode_frame
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.verify import Sizes
from saturnmq.store.message_store import MessageStore, PendingMessage, StoreConfig

TOPICS = ("T0", "T1")
NO_CHECKSUMS = dict.fromkeys(("crc", "footer_bytes", "footer_crc"))  # as 0.1.0 lists a file
SIZES = Sizes(8192, 400, 20, 80)
START_MS = 1_763_740_000_000  # 2025-11-21, four minutes before an hour is full


class Clock:
    """The part of a runtime that the store uses: every message has its own time."""

    def __init__(self, step_ms: int) -> None:
        self.now = START_MS
        self._step = step_ms

    def now_ms(self) -> int:
        self.now += self._step
        return self.now


def opened(root: Path, step_ms: int = 400) -> MessageStore:
    config = StoreConfig(
        root=str(root),
        commitlog_segment_bytes=SIZES.segment_bytes,
        consumequeue_segment_bytes=SIZES.queue_file_bytes,
        index_slots=SIZES.index_slots,
        index_items=SIZES.index_items,
        zero_ahead_bytes=4096,
    )
    return MessageStore.open(config, NativeDisk(), Clock(step_ms))


def where(root: Path) -> Where:
    """The store as the jobs name it."""
    return Where.store(str(root), trust_tail=True)


def archived(
    root: Path, to: Path | str, topics: Sequence[str] = TOPICS, **options: Any
) -> Archived:
    """Archive what the store has and the archive has not, without Spark."""
    return archive(None, where(root), topics, str(to), **options)


def audited(root: Path, to: Path) -> Audited:
    """The store beside the archive, without Spark."""
    return audit(None, where(root), str(to), sizes=SIZES)


def put(store: MessageStore, count: int, seed: int = 3) -> None:
    """Messages of 2 topics with 3 queues each; most have ids and keys, all a tag."""
    rng = random.Random(seed)
    for number in range(count):
        keys = f"KEYS\x01k{number} all\x02UNIQ_KEY\x01u{seed}-{number}\x02" if number % 5 else ""
        properties = f"TAGS\x01t{number % 3}\x02{keys}".encode()
        body = rng.randbytes(rng.randrange(200))
        store.put(PendingMessage(f"T{number % 2}", rng.randrange(3), body, properties))
    while store.reput():
        pass


def made(root: Path, count: int = 200, step_ms: int = 400) -> Path:
    """A store that was stopped in order."""
    store = opened(root, step_ms)
    put(store, count)
    store.close()
    return root


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def damage_a_body(path: Path) -> bytes:
    """Flip a bit in the first body of a file of the log; the body as it was."""
    data = path.read_bytes()
    at = 0
    while not (frame := decode_frame(data, at)).body:
        at += frame.size
    assert isinstance(frame, Frame)
    place = data.index(frame.body, at)
    overwrite(path, place, bytes([data[place] ^ 0x10]))
    return frame.body


def list_differently(to: Path, file: DataFile, changes: Mapping[str, Any]) -> None:
    """Have the first manifest of an archive say something else of a file, of None nothing."""
    path = to / "_manifest" / "00000001.json"
    document = json.loads(path.read_text())
    listed = next(each for each in document["files"] if each["path"] == file.path)
    listed |= changes
    for name in [name for name, value in listed.items() if value is None]:
        del listed[name]
    path.write_text(json.dumps(document))

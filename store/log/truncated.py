"""Side files: what was cut off the CommitLog, for the user who misses a message.

A deposed master, or a slave that was ahead of the master promoted instead of it, cuts its log back
to what both have (docs/guarantees.md I7). A start cuts off what is damaged to the end of what was
durable, and what lies behind a missing segment (store/recovery/amnesia.py). The bytes [from, to)
that go are copied before, or their file is renamed, to

    truncated/<from>-<to>.log    the bytes as they were, BLANKs included; 20 digits each, as names
                                 of segments; `.1`, `.2` before `.log` when the name is taken
    truncated/<from>-<to>.json   {"from","to","epoch","timeMs","reason","messages","topics":
                                 {"<topic>":n},"segmentBytes","crc32"}

MessageStore writes them, nothing ever deletes them; `saturnmq store dump|check FILE` reads them,
`saturnmq store restore-truncated` sends again what the cluster does not have.

Order: the copy is written and synced under a name ending in `.tmp`, gets its name, then its facts,
and only then the log is cut. So a crash leaves the log whole or a whole copy; the truncation is
repeated then, and a copy that has all of it is not made twice. Memory: one chunk.
"""

from __future__ import annotations

import errno
import posixpath
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from saturnmq.protocol import fastjson
from saturnmq.runtime.errors import MalformedFrame, ServiceNotAvailable, StoreDamaged
from saturnmq.store.derived.consumequeue import UNIT
from saturnmq.store.disk import Disk, ReadFile
from saturnmq.store.log.log_files import Found, Gap, LogReader, SegmentFiles

DIRECTORY = "truncated"
_NAME = re.compile(r"(\d{20})-(\d{20})(?:\.\d+)?\.log")
_CHUNK = 4 << 20
_USUAL_SEGMENT = 1 << 30

Read = Callable[[int, memoryview], int]  # bytes of the log at an offset: how many there are


@dataclass(frozen=True, slots=True)
class Truncated:
    """One side file; without its facts (`time_ms` 0) a crash came before they were written."""

    file: str
    start: int
    end: int
    epoch: int = 0
    time_ms: int = 0
    reason: str = ""
    messages: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)
    segment_bytes: int = 0
    crc32: int | None = None

    @property
    def size(self) -> int:
        return self.end - self.start

    def validate(self) -> None:
        """AssertionError: it cannot be a part of a log."""
        assert 0 <= self.start < self.end, f"a side file from {self.start} to {self.end}"
        assert self.messages >= 0, f"{self.messages} messages in a side file"
        assert sum(self.topics.values()) <= self.messages, (self.topics, self.messages)

    def to_json(self) -> dict[str, Any]:
        return {
            "from": self.start,
            "to": self.end,
            "epoch": self.epoch,
            "timeMs": self.time_ms,
            "reason": self.reason,
            "messages": self.messages,
            "topics": dict(sorted(self.topics.items())),
            "segmentBytes": self.segment_bytes,
            "crc32": self.crc32,
        }


def find(disk: Disk, path: str) -> Truncated | None:
    """The side file at `path`, with its facts as far as they are there."""
    named = _NAME.fullmatch(posixpath.basename(path))
    if named is None or not disk.exists(path):
        return None
    start, end = int(named[1]), int(named[2])
    bare = Truncated(path, start, end)
    facts = _facts_path(path)
    if not disk.exists(facts):
        return bare
    try:
        document = fastjson.loads(disk.read_file(facts))
        return Truncated(
            path,
            start,
            end,
            int(document["epoch"]),
            int(document["timeMs"]),
            str(document["reason"]),
            int(document["messages"]),
            {str(topic): int(count) for topic, count in document["topics"].items()},
            int(document["segmentBytes"]),
            int(document["crc32"]),
        )
    except (AttributeError, KeyError, OSError, TypeError, ValueError, MalformedFrame):
        return bare  # the name tells what is needed to read it


def find_all(disk: Disk, root: str) -> list[Truncated]:
    """All side files of a store, by the offset they begin at."""
    directory = posixpath.join(root, DIRECTORY)
    paths = (posixpath.join(directory, entry.name) for entry in disk.list(directory))
    return [found for found in (find(disk, path) for path in paths) if found is not None]


class SideFiles:
    """The side files of one store, as its owner knows them."""

    def __init__(self, disk: Disk, root: str, segment_bytes: int) -> None:
        self._disk = disk
        self._root = root
        self._segment_bytes = segment_bytes
        self._known: list[Truncated] = []

    def load(self) -> None:
        self._known = find_all(self._disk, self._root)

    def __iter__(self) -> Iterator[Truncated]:
        return iter(self._known)

    def save(
        self, read: Read, start: int, end: int, *, epoch: int, time_ms: int, reason: str
    ) -> Truncated:
        """Blocking: copy the bytes [start, end) of the log, then describe them.

        ServiceNotAvailable: it could not be done.
        """
        wanted = Truncated(
            "", start, end, epoch, time_ms, reason, segment_bytes=self._segment_bytes
        )
        assert 0 <= start < end, f"the bytes {start} to {end} were to be saved"
        saved = _save(self._disk, self._root, read, wanted)
        assert saved.start == start, f"{saved.file} begins at {saved.start}, not at {start}"
        assert saved.end >= end, f"{saved.file} ends at {saved.end}, before {end}"
        self._known = [*(side for side in self._known if side.file != saved.file), saved]
        return saved

    def take(self, path: str, start: int, end: int, *, time_ms: int, reason: str) -> Truncated:
        """Blocking: make the file at `path`, the bytes [start, end) of the log, a side file; copied
        only where it lies on another file system.

        ServiceNotAvailable: it could not be done.
        """
        facts = Truncated("", start, end, 0, time_ms, reason, segment_bytes=self._segment_bytes)
        directory = posixpath.join(self._root, DIRECTORY)
        try:
            taken = replace(facts, file=_free_path(self._disk, directory, facts))
            try:
                self._disk.rename(path, taken.file)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                file = self._disk.open_readonly(path)
                try:
                    _copy(self._disk, taken.file, partial(_read_at, file, start), facts)
                finally:
                    file.close()
                self._disk.unlink(path)
            taken = _describe(self._disk, taken)
        except OSError as error:
            raise ServiceNotAvailable(
                f"{path} could not be moved to {directory} ({error}); make room there, or move it "
                "away by hand"
            ) from error
        self._known.append(taken)
        return taken


def _read_at(file: ReadFile, start: int, offset: int, buffer: memoryview) -> int:
    return file.read_into(offset - start, buffer)


def _save(disk: Disk, root: str, read: Read, facts: Truncated) -> Truncated:
    path = directory = posixpath.join(root, DIRECTORY)
    try:
        known = _saved_before(disk, root, read, facts)
        if known is not None and known.time_ms:
            return known
        if known is None:
            path = _free_path(disk, directory, facts)
            _copy(disk, path, read, facts)
            return _describe(disk, replace(facts, file=path))
        return _describe(disk, replace(facts, file=known.file, end=known.end))
    except OSError as error:
        raise ServiceNotAvailable(
            f"the log is not cut at {facts.start}: the {facts.size} bytes behind it could not be "
            f"saved to {path} ({error}); make room there, or replace the disk and start this node "
            "with an empty directory"
        ) from error


def _saved_before(disk: Disk, root: str, read: Read, facts: Truncated) -> Truncated | None:
    """The side file that has these bytes already, of a truncation that a crash kept from ending."""
    for known in find_all(disk, root):
        if known.start == facts.start and known.end >= facts.end:
            file = disk.open_readonly(known.file)
            try:
                if _same(file, read, facts):
                    return known
            finally:
                file.close()
    return None


def _same(file: ReadFile, read: Read, facts: Truncated) -> bool:
    at = facts.start
    for chunk in _chunks(read, facts):
        if file.read(at - facts.start, len(chunk)) != bytes(chunk):
            return False
        at += len(chunk)
    return True


def _free_path(disk: Disk, directory: str, facts: Truncated) -> str:
    disk.make_dirs(directory)
    stem = posixpath.join(directory, f"{facts.start:020d}-{facts.end:020d}")
    path, number = f"{stem}.log", 0
    while disk.exists(path):
        number += 1
        path = f"{stem}.{number}.log"
    return path


def _copy(disk: Disk, path: str, read: Read, facts: Truncated) -> None:
    unfinished = path + ".tmp"
    disk.unlink(unfinished)
    file = disk.create_segment(unfinished, facts.size, durable=False)
    try:
        at = 0
        for chunk in _chunks(read, facts):
            file.write(at, chunk)
            at += len(chunk)
        assert at == facts.size, f"{at} bytes of {facts.size} were copied"
        file.flush(0, facts.size)
    except BaseException:
        file.close()
        disk.unlink(unfinished)
        raise
    file.close()
    disk.rename(unfinished, path)


def _chunks(read: Read, facts: Truncated) -> Iterator[memoryview]:
    """The log's bytes, each chunk valid until the next."""
    buffer = memoryview(bytearray(min(_CHUNK, facts.size)))
    at = facts.start
    while at < facts.end:
        count = read(at, buffer[: min(len(buffer), facts.end - at)])
        if count <= 0:
            raise OSError(f"the log cannot be read at {at}")
        yield buffer[:count]
        at += count


def _describe(disk: Disk, facts: Truncated) -> Truncated:
    topics: Counter[str] = Counter()
    messages = 0
    files = SideFile(disk, facts)
    for piece in LogReader(files, index=False).read(files.start):
        if not isinstance(piece, Gap):
            messages += piece.scan.messages
            for topic, _, _, _, entries in piece.scan.runs:
                topics[topic] += len(entries) // UNIT
    whole = replace(facts, messages=messages, topics=dict(topics), crc32=files.crc32())
    whole.validate()
    files.close()
    disk.replace_file(_facts_path(facts.file), fastjson.dumps(whole.to_json()), keep_backup=False)
    return whole


def _facts_path(path: str) -> str:
    return path.removesuffix(".log") + ".json"


class SideFile(SegmentFiles):
    """A side file, to be read as the part of the log that it was."""

    def __init__(self, disk: Disk, facts: Truncated, segment_bytes: int = 0) -> None:
        self.facts = facts
        self._whole = Found(facts.start, facts.size, facts.file)
        size = segment_bytes or facts.segment_bytes or _USUAL_SEGMENT
        super().__init__(disk, posixpath.dirname(facts.file), size)

    @classmethod
    def open(cls, disk: Disk, path: str, segment_bytes: int = 0) -> SideFile:
        """StoreDamaged if there is none at `path`."""
        facts = find(disk, path)
        if facts is None:
            raise StoreDamaged(
                f"{path} is no side file of a truncation: those lie in the directory {DIRECTORY} "
                "of a store and are named by two offsets of 20 digits"
            )
        return cls(disk, facts, segment_bytes)

    def _list(self) -> list[Found]:
        return [self._whole]

    def _add(self, file: Found, *, last: bool) -> None:
        self.segments.append(file)

    @property
    def end(self) -> int:
        return self._whole.start + self._whole.size

    def find(self, offset: int) -> Found | None:
        """As much of the file as lay in the segment that held `offset`."""
        if not self.start <= offset < self.end:
            return None
        return self._whole._replace(start=offset - offset % self.segment_bytes)

    def following(self, offset: int) -> int:
        border = offset - offset % self.segment_bytes + self.segment_bytes
        return min(border, self.end)

    def place(self, offset: int) -> tuple[str, int]:
        return self._whole.path, offset - self._whole.start

    def crc32(self) -> int:
        """CRC-32 of all of it."""
        crc = 0
        buffer = memoryview(bytearray(_CHUNK))
        file = self._file(self._whole)
        for at in range(0, self._whole.size, _CHUNK):
            crc = zlib.crc32(buffer[: file.read_into(at, buffer)], crc)
        return crc

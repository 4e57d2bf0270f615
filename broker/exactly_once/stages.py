"""Stages: rows that sinks have sent and not published yet, in memory and in files beside the log.

A stage is one try of one partition: chunks of MessageBatch entries, in the order of their numbers.
Stages are kept in memory up to a limit, as long as half of the process's budget
(`protocol/budget.py`) is free. Beyond it they are kept in the files
`staging/<hash of the key>.<n>`, which grow with their stage; no two of a process have one number,
since the files of a dropped stage are there for a while. These files are never synced, since a
stage does not outlive the process that took it: the sink learns that its stage is lost, and stages
again. So the directory is emptied at every start.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

from saturnmq.protocol.budget import Budget
from saturnmq.runtime.errors import FlowControl, MessageIllegal, ServiceNotAvailable
from saturnmq.store.disk import Disk, SegmentFile, remedy
from saturnmq.store.message_store import AtomicBatchPart

log = logging.getLogger(__name__)

CHUNK_BYTES = 1000  # of memory for a chunk beside its rows, whether those are in memory or not
FIRST_FILE = 256 << 10
FILE_MAX = 64 << 20


class StageKey(NamedTuple):
    """The name of a stage. `attempt` is a text that no other try of the partition has."""

    sink: str
    epoch: int
    partition: int
    attempt: str


@dataclass(slots=True)
class StagedPartition:
    key: StageKey
    used_at: float  # monotonic seconds
    parts: list[AtomicBatchPart] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0  # of batch entries
    in_memory: int = 0  # of these bytes
    files: list[SegmentFile] = field(default_factory=list)
    filled: int = 0  # of the last file
    publishing: bool = False

    def validate(self) -> None:
        """AssertionError: rows and bytes are not those of its parts."""
        rows = sum(part.count for part in self.parts)
        assert self.rows == rows, f"{self.rows} rows are known of {rows}"
        assert 0 <= self.in_memory <= self.bytes, (self.in_memory, self.bytes)
        assert self.files or self.in_memory == self.bytes, f"{self.bytes} bytes without a file"
        assert not self.files or 0 <= self.filled <= self.files[-1].size, self.filled


class Stages:
    """All stages of one broker. `remove` deletes files and may block: call it in a thread."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        whole: Budget,
        *,
        max_bytes: int,
        memory_bytes: int,
        total_bytes: int,
    ) -> None:
        """`whole` is the budget of the process. Its other users come first, since stages can go
        into files."""
        self._disk = disk
        self._directory = posixpath.join(root, "staging")
        self._max_bytes = max_bytes
        self._whole = whole
        self._memory = Budget(memory_bytes, "stageMemoryBytes", whole)
        self._total_bytes = total_bytes
        self._stages: dict[StageKey, StagedPartition] = {}
        self._used = 0  # bytes of files
        self._numbers = count()

    def validate(self) -> None:
        """AssertionError: bytes of stages are counted wrongly."""
        in_files = in_memory = 0
        for key, stage in self._stages.items():
            assert stage.key == key, f"{stage.key} is kept as {key}"
            stage.validate()
            assert stage.bytes <= self._max_bytes, f"{stage.bytes} bytes of {self._max_bytes}"
            in_files += sum(file.size for file in stage.files)
            in_memory += stage.in_memory
        assert self._used == in_files, f"{self._used} bytes of files are known of {in_files}"
        assert self._used <= self._total_bytes, f"{self._used} bytes of {self._total_bytes}"
        assert self._memory.used == in_memory, f"{self._memory.used} bytes are known of {in_memory}"

    def clear(self) -> None:
        """Delete the files that another process has left. Blocking, at the start."""
        if self._disk.exists(self._directory):
            self.remove(
                [
                    posixpath.join(self._directory, entry.name)
                    for entry in self._disk.list(self._directory)
                ]
            )

    def __iter__(self) -> Iterator[StagedPartition]:
        return iter(list(self._stages.values()))

    def get(self, key: StageKey) -> StagedPartition | None:
        return self._stages.get(key)

    def add(
        self,
        key: StageKey,
        body: memoryview,
        part: Callable[[Callable[[], bytes]], AtomicBatchPart],
        now: float,
    ) -> StagedPartition:
        """Keep one more chunk; `part` makes its batch part from a function that reads the chunk. A
        SaturnError says why it cannot be kept."""
        stage = self._stages.get(key) or StagedPartition(key, now)
        assert not stage.publishing, f"{key} grows while it is published"
        size = len(body)
        if stage.bytes + size > self._max_bytes:
            raise MessageIllegal(
                f"partition {key.partition} has more than {self._max_bytes} bytes (stageMaxBytes): "
                "raise the number of partitions, or the limit"
            )
        if not self._whole.has_room(CHUNK_BYTES):
            raise self._whole.refusal(CHUNK_BYTES, "a chunk of a stage")
        self._stages[key] = stage
        if self._memory.has_spare(size) and self._memory.try_take(size):
            # Each call gives the same object.
            read: Callable[[], bytes] = partial(bytes, bytes(body))
            stage.in_memory += size
        else:
            read = self._write(stage, body)
        stage.parts.append(part(read))
        self._whole.hold(CHUNK_BYTES)
        stage.bytes += size
        assert stage.parts[-1].count > 0, f"a chunk of {key} without rows"
        stage.rows += stage.parts[-1].count
        stage.used_at = now
        return stage

    def _write(self, stage: StagedPartition, body: memoryview) -> Callable[[], bytes]:
        """Write the chunk into its file; return a function that reads it."""
        size = len(body)
        if not stage.files or stage.filled + size > stage.files[-1].size:
            self._add_file(stage, size)
        file, at = stage.files[-1], stage.filled
        assert at + size <= file.size, f"{size} bytes at {at} in a file of {file.size}"
        try:
            file.write(at, body)
        except OSError as error:
            raise self._full(error) from error
        stage.filled += size
        return partial(file.read, at, size)

    def _add_file(self, stage: StagedPartition, least: int) -> None:
        in_files = stage.bytes - stage.in_memory
        size = max(least, min(max(2 * in_files, FIRST_FILE), FILE_MAX, self._max_bytes))
        if self._used + size > self._total_bytes:
            raise FlowControl(
                f"the stages here take {self._used} bytes, the limit is {self._total_bytes} "
                "(stageTotalBytes): let fewer tasks run at once, or raise the limit"
            )
        digest = hashlib.sha1("\0".join(map(str, stage.key)).encode()).hexdigest()[:24]
        path = posixpath.join(self._directory, f"{digest}.{next(self._numbers)}")
        try:
            self._disk.make_dirs(self._directory, durable=False)
            file = self._disk.create_segment(path, size, durable=False)
        except OSError as error:
            raise self._full(error) from error
        stage.files.append(file)
        stage.filled = 0
        self._used += size

    @staticmethod
    def _full(error: OSError) -> ServiceNotAvailable:
        return ServiceNotAvailable(f"no room for the stage: {error}; {remedy(error)}")

    def drop(self, stage: StagedPartition) -> list[str]:
        """Forget a stage; return the files that `remove` has to delete."""
        assert not stage.publishing, f"{stage.key} is dropped while it is published"
        self._stages.pop(stage.key, None)
        self._memory.give_back(stage.in_memory)
        self._whole.give_back(CHUNK_BYTES * len(stage.parts))
        stage.in_memory = 0
        stage.parts.clear()
        paths = [file.path for file in stage.files]
        for file in stage.files:
            self._used -= file.size
            assert self._used >= 0, f"stages have {self._used} bytes of files"
            file.close()
        stage.files.clear()
        return paths

    def remove(self, paths: list[str]) -> None:
        """Delete files of dropped stages. Blocking."""
        for path in paths:
            try:
                self._disk.unlink(path)
            except OSError as error:
                log.error("%s cannot be deleted: %s", path, error)

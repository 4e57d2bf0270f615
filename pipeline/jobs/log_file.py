"""One CommitLog file as the work of one task: a frame never spans files, so each can be read alone.

The driver lists the files (`LogFiles`), a task reads one (`read`). Facts that need all files are
put together afterwards (`end_of_log`): where the log ends, and which bytes belong to it no more.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from saturnmq.protocol.kernels import Run
from saturnmq.store.disk import Disk, NativeDisk
from saturnmq.store.inspect.verify import UNKNOWN, Sizes, open_log
from saturnmq.store.log.log_files import UNREADABLE, Gap, LogReader, SegmentFiles
from saturnmq.store.recovery.checkpoint import Checkpoint

_JOINED_BYTES = 8 << 20  # of entries that are held until they are put where they belong


@dataclass(frozen=True, slots=True)
class LogFile:
    """The place of one file, and the part of it that counts."""

    root: str
    start: int
    segment_bytes: int
    cut_from: int | None  # from here on, bytes that are no frame end the log (log_files.py)

    @property
    def path(self) -> str:
        return posixpath.join(self.root, "commitlog", f"{self.start:020d}")

    @property
    def end(self) -> int:
        return self.start + self.segment_bytes

    def reader(self, *, limit: int | None = None, index: bool = False) -> LogReader:
        """A reader that knows of no other file."""
        directory = posixpath.join(self.root, "commitlog")
        files = SegmentFiles(NativeDisk(), directory, self.segment_bytes)
        files.keep_only(self.start)
        return LogReader(files, cut_from=self.cut_from, limit=limit, index=index)


@dataclass(slots=True)
class FileReach:
    """The part of a file that held frames."""

    start: int
    end: int = 0
    why: str = ""  # it ends before the file does
    messages: int = 0
    last_store_time: int = 0
    gaps: list[Gap] = field(default_factory=list)


def log_files(disk: Disk, root: str, sizes: Sizes = UNKNOWN) -> tuple[SegmentFiles, list[LogFile]]:
    """The CommitLog of the store at `root`, and the work there is; StoreDamaged if it is none."""
    files = open_log(disk, root, sizes)
    page = Checkpoint.load(disk, root)
    known = max(page.flushed, page.derived)
    cut_from = known if known >= 0 else None
    size = files.segment_bytes
    return files, [LogFile(root, segment.start, size, cut_from) for segment in files.segments]


def end_of_log(files: Sequence[LogFile], reached: Sequence[FileReach]) -> int:
    """The number of `files`, from the first, that belong to the log. Behind a place from `cut_from`
    on that holds no frame nothing belongs to it, even if frames follow."""
    for number, (file, found) in enumerate(zip(files, reached, strict=True)):
        cut = file.cut_from is not None and found.end >= file.cut_from
        if found.end < file.end and cut:
            return number + 1
    return len(files)


def gaps_and_end(
    files: Sequence[LogFile], reached: Sequence[FileReach]
) -> tuple[list[Gap], int, str]:
    """All that holds no frames though frames follow, where the log ends, and why there."""
    gaps: list[Gap] = []
    end, why = (files[0].start, "") if files else (0, "")
    for file, found in zip(files, reached, strict=True):
        if found.messages:
            if end < file.start:  # the file before ended early, or is not there
                gaps.append(Gap(end, file.start, why or UNREADABLE))
            gaps += found.gaps
        if found.messages or end == file.start:
            end, why = found.end, found.why
    return _touching_as_one(gaps), end, why


def _touching_as_one(gaps: Iterable[Gap]) -> list[Gap]:
    result: list[Gap] = []
    for gap in gaps:
        if result and result[-1].end == gap.start:
            result[-1] = result[-1]._replace(end=gap.end)
        else:
            result.append(gap)
    return result


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """The same entries in as few runs as possible, each queue's in their order: producers that take
    turns leave a run for each message."""
    held: dict[tuple[str, int], _Open] = {}
    size = 0
    for topic, queue_id, first, count, entries in runs:
        run = held.get((topic, queue_id))
        if run is None:
            run = held[topic, queue_id] = _Open(first, first)
        elif run.end != first:
            yield topic, queue_id, *run.closed()
            run = held[topic, queue_id] = _Open(first, first)
        run.end += count
        run.parts.append(entries)
        size += len(entries)
        if size >= _JOINED_BYTES:
            yield from ((*key, *run.closed()) for key, run in held.items())
            held.clear()
            size = 0
    yield from ((*key, *run.closed()) for key, run in held.items())


@dataclass(slots=True)
class _Open:
    """A run that may go on."""

    first: int
    end: int
    parts: list[bytes] = field(default_factory=list)

    def closed(self) -> tuple[int, int, bytes]:
        return self.first, self.end - self.first, b"".join(self.parts)

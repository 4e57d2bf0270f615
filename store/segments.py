"""A directory of equally long segment files that together are one address space.

Name = 20-digit start offset. Loading follows RocketMQ 5: sub-directories are skipped, an empty
file that sorts last is what a crash left of a creation and is deleted, any other file of the wrong
length or with a name that is no number stops the load. Used by the CommitLog and every queue.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right

from saturnmq.protocol.errors import StoreDamaged
from saturnmq.store.disk import Disk, SegmentFile


def segment_name(start: int) -> str:
    """The 20-digit file name of a segment."""
    return f"{start:020d}"


class Segment:
    """One file and its place; bytes below `prepared` are the writer's alone."""

    __slots__ = ("end", "file", "prepared", "start", "view")

    def __init__(self, start: int, file: SegmentFile) -> None:
        self.start = start
        self.end = start + file.size
        self.file = file
        self.view = file.view
        self.prepared = 0


class SegmentSeries:
    """The segments of one log or queue, oldest first, without holes."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self.disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self._starts: list[int] = []

    def load(self) -> None:
        """Open every segment file of the directory."""
        entries = [e for e in self.disk.list(self.directory) if not e.is_dir]
        entries.sort(key=lambda e: e.name)
        if entries and entries[-1].size == 0:
            self.disk.unlink(posixpath.join(self.directory, entries.pop().name))
        for entry in entries:
            path = posixpath.join(self.directory, entry.name)
            if not entry.name.isdigit():
                raise StoreDamaged(f"{path} is no segment (its name is no offset): move it away")
            if entry.size != self.segment_bytes:
                raise StoreDamaged(
                    f"{path} is {entry.size} bytes long, the configured segment size is "
                    f"{self.segment_bytes}: set the size it was written with, or move it away"
                )
            start = int(entry.name)
            if self.segments and start != self.segments[-1].end:
                raise StoreDamaged(
                    f"{path} does not follow {self.segments[-1].file.path}: a segment between "
                    "them is missing; restore it or move the older ones away"
                )
            self.add(Segment(start, self.disk.open_segment(path, self.segment_bytes)))

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._starts.append(segment.start)

    def path_of(self, start: int) -> str:
        return posixpath.join(self.directory, segment_name(start))

    def create(self, start: int) -> Segment:
        """Allocate the segment that begins at `start` without adding it."""
        if not self.segments:
            self.disk.make_dirs(self.directory)
        return Segment(start, self.disk.create_segment(self.path_of(start), self.segment_bytes))

    def find(self, offset: int) -> Segment | None:
        """The segment that holds the byte at `offset`."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self.segments[at].end:
            return None
        return self.segments[at]

    def drop_from(self, offset: int) -> None:
        """Delete segments that begin at or after `offset`, newest first."""
        while self.segments and self.segments[-1].start >= offset:
            self._remove(self.segments.pop())
            self._starts.pop()

    def drop_oldest(self) -> None:
        """Delete the oldest segment."""
        self._remove(self.segments.pop(0))
        self._starts.pop(0)

    def _remove(self, segment: Segment) -> None:
        segment.file.close()
        self.disk.unlink(segment.file.path)

    def destroy(self) -> None:
        """Delete everything."""
        self.drop_from(0)

    def close(self) -> None:
        for segment in self.segments:
            segment.file.close()

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0


def zero_tail(segment: Segment, pos: int, chunk: int = 1 << 20) -> bool:
    """Zero what is not yet zero after `pos`; read with read(), a bad sector must not be SIGBUS."""
    dirty = False
    file = segment.file
    zeros = bytes(chunk)
    for start, end in file.written(pos):
        for at in range(start, end, chunk):
            count = min(chunk, end - at)
            if file.read(at, count) != zeros[:count]:
                file.zero(at, at + count)
                dirty = True
    return dirty

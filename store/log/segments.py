"""A directory of equally long segment files that together are one address space.

Name = 20-digit start offset. Loading follows RocketMQ 5: sub-directories are skipped, an empty file
that sorts last is what a crash left of a creation and is deleted, any other file of the wrong
length or with a name that is no number stops the load. Older releases of RocketMQ warned and went
on without such a file (docs/internals/format.md 1.3); `set_aside` does that with the newest one,
whose place must be free for the next segment. Used by the CommitLog and every queue.
"""

from __future__ import annotations

import logging
import posixpath
from bisect import bisect_right
from itertools import pairwise
from typing import cast

from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.queue_files import QueueFiles
from saturnmq.store.disk import Disk, Entry, SegmentFile
from saturnmq.store.reading import number_of, read

log = logging.getLogger(__name__)

SET_ASIDE = "set-aside"  # RocketMQ ignores sub-directories, so nothing in one keeps it from opening


class SegmentsDamaged(StoreDamaged):
    """A segment is missing between others."""


class WrongLength(SegmentsDamaged):
    """A segment has another length than the setting says."""


def segment_name(start: int) -> str:
    """The 20-digit file name of a segment."""
    return f"{start:020d}"


class Segment:
    """One file and its place; bytes below `prepared` are the writer's alone."""

    __slots__ = ("end", "file", "prepared", "start")

    def __init__(self, start: int, file: SegmentFile) -> None:
        assert start >= 0, f"a segment begins at {start}"
        assert file.size > 0, f"the segment at {start} has {file.size} bytes"
        self.start = start
        self.end = start + file.size
        self.file = file
        self.prepared = 0

    @property
    def view(self) -> memoryview:
        return self.file.view


class SegmentSeries:
    """The segments of one log or queue, oldest first, without holes."""

    def __init__(
        self, disk: Disk, directory: str, segment_bytes: int, files: QueueFiles | None = None
    ) -> None:
        """With `files` it is that of a queue."""
        self.disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self._starts: list[int] = []
        self._files = files

    def load(self) -> None:
        """Open every segment file of the directory."""
        entries = self._entries()
        is_the_setting = any(entry.size == self.segment_bytes for entry in entries)
        for entry in entries:
            start = int(entry.name)
            path = self.path_of(start)
            if not entry.size:
                raise SegmentsDamaged(f"{path} is empty, and others follow it")
            if is_the_setting and entry.size < self.segment_bytes:
                raise WrongLength(
                    f"{path} is {entry.size} bytes long and was {self.segment_bytes}: it was cut "
                    "short, and who reads behind its end in memory ends with SIGBUS; copy it back "
                    "from another node, or move it and all older ones away"
                )
            if entry.size != self.segment_bytes:
                raise WrongLength(
                    f"{path} is {entry.size} bytes long, the configured segment size is "
                    f"{self.segment_bytes}: set the size it was written with, or move it away"
                )
            if start % self.segment_bytes:
                raise SegmentsDamaged(
                    f"{path} begins at no multiple of {self.segment_bytes}, the size of a segment: "
                    "restore its name, or move it away"
                )
            if self.segments and start != self.segments[-1].end:
                raise SegmentsDamaged(
                    f"{path} does not follow {self.segments[-1].file.path}: a segment between "
                    "them is missing; restore it or move the older ones away"
                )
            open_ = self.disk.open_segment if self._files is None else self._files.open
            self.add(Segment(start, cast(SegmentFile, open_(path, self.segment_bytes))))

    def _entries(self) -> list[Entry]:
        entries = [e for e in self.disk.list(self.directory) if not e.is_dir]
        entries.sort(key=lambda e: e.name)
        for entry in entries:
            if number_of(entry.name) is None or len(entry.name) != len(segment_name(0)):
                path = posixpath.join(self.directory, entry.name)
                raise StoreDamaged(
                    f"{path} is no segment (its name is no offset of 20 digits): move it away"
                )
        if entries and entries[-1].size == 0:
            self.disk.unlink(posixpath.join(self.directory, entries.pop().name))
        return entries

    def set_aside(self) -> None:
        """Before `load`: take the newest file out of the way if its length alone is wrong."""
        entries = self._entries()
        if len(entries) < 2 or entries[-1].size == self.segment_bytes:
            return
        if any(entry.size != self.segment_bytes for entry in entries[:-1]):
            return  # written with another size, or worse: `load` tells
        newest = entries[-1]
        aside = posixpath.join(self.directory, SET_ASIDE)
        self.disk.make_dirs(aside)
        path = posixpath.join(self.directory, newest.name)
        self.disk.rename(path, posixpath.join(aside, newest.name))
        log.error(
            "%s is %d bytes long instead of %d: it is not read and lies in %s now",
            path,
            newest.size,
            self.segment_bytes,
            aside,
        )

    def behind_hole(self) -> list[tuple[int, str]]:
        """Before `load`: start and path of the files behind the first missing segment, ascending;
        none if the files do not look like segments of this size."""
        entries = self._entries()
        starts = [int(entry.name) for entry in entries]
        if any(entry.size != self.segment_bytes for entry in entries):
            return []  # `load` tells
        for at, (before, after) in enumerate(pairwise(starts), 1):
            gap = after - before - self.segment_bytes
            if gap > 0 and gap % self.segment_bytes == 0:
                return [(start, self.path_of(start)) for start in starts[at:]]
        return []

    def validate(self) -> None:
        """AssertionError: there is a hole, or a segment of another length."""
        assert len(self._starts) == len(self.segments), (len(self._starts), len(self.segments))
        size, end = self.segment_bytes, -1
        for start, segment in zip(self._starts, self.segments, strict=True):
            assert start == segment.start, f"{start} is known, it begins at {segment.start}"
            assert start % size == 0, f"a segment begins at {start}, which is no multiple of {size}"
            assert segment.end - start == size, f"{segment.end - start} bytes instead of {size}"
            assert end in (-1, start), f"a hole from {end} to {start}"
            end = segment.end

    def add(self, segment: Segment) -> None:
        assert segment.start % self.segment_bytes == 0, (segment.start, self.segment_bytes)
        assert not self.segments or segment.start == self.end, (
            f"a segment at {segment.start} behind one that ends at {self.end}"
        )
        self.segments.append(segment)
        self._starts.append(segment.start)

    def path_of(self, start: int) -> str:
        return posixpath.join(self.directory, segment_name(start))

    def create(self, start: int) -> Segment:
        """Allocate the segment that begins at `start` without adding it."""
        if not self.segments:
            if self._files is not None and self.disk.list(self.directory):
                # A queue of a deleted topic was here, and its files could not be removed then.
                self.disk.remove_tree(self.directory, durable=False)
            self.disk.make_dirs(self.directory, durable=self._files is None)
        create = self.disk.create_segment if self._files is None else self._files.create
        file = create(self.path_of(start), self.segment_bytes)
        return Segment(start, cast(SegmentFile, file))

    def find(self, offset: int) -> Segment | None:
        """The segment that holds the byte at `offset`."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self.segments[at].end:
            return None
        return self.segments[at]

    def drop_from(self, offset: int) -> None:
        """Delete segments that begin at or after `offset`, newest first."""
        while self.segments and self.segments[-1].start >= offset:
            self._starts.pop()
            self._remove(self.segments.pop())

    def take_oldest(self) -> str:
        """Take out and close the oldest segment; the path of its file, which stays."""
        assert self.segments, f"{self.directory} has no segment to take out"
        segment = self.segments.pop(0)
        self._starts.pop(0)
        segment.file.close()
        return segment.file.path

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


def zero_tail(segment: Segment, pos: int, way_out: str, chunk: int = 1 << 20) -> None:
    """Zero what is not yet zero after `pos`."""
    file = segment.file
    assert 0 <= pos <= file.size, f"zeros from {pos} on in a file of {file.size} bytes"
    zeros = bytes(min(chunk, file.size - pos))
    for start, end in file.written(pos):
        for at in range(start, end, chunk):
            count = min(chunk, end - at)
            if read(file, at, count, way_out) != zeros[:count]:
                file.zero(at, at + count)

"""The files of a log or queue as they lie there, whatever state they are in: for looking, not for
serving.

`SegmentFiles` finds the segments of a directory and their size from names and lengths, and keeps
what does not fit as a list instead of refusing it. `LogReader` goes through a CommitLog frame by
frame with every check on and tells of each place that holds none (`Gap`): there it looks for the
next frame whose magic, own offset and checksums are right, and goes on. The log ends at the place
that no frame follows. Everything is read with pread through the disk door; nothing is ever written.

A place behind `cut_from` that holds no frame ends the log even if frames follow: the next start
will cut there, because nobody was promised what was not yet flushed (store/recovery/recovery.py).
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from saturnmq.protocol.frame import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    OFFSET,
    PHYSICAL_OFFSET_AT,
    Damage,
    End,
    Frame,
    NeedMore,
    Outcome,
    decode_frame,
    size_of,
)
from saturnmq.protocol.kernels import Scan, ScanStatus, scan_frames
from saturnmq.store.delay_levels import DEFAULT_DELAYS_MS
from saturnmq.store.disk import Disk, ReadFile
from saturnmq.store.reading import number_of

PAGE = 4096
_STRETCH = 4 << 20
_SEARCH = 1 << 20
_MAGICS = [magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2)]
_MAGIC_HEAD = _MAGICS[0][:3]
NOTHING = "there is nothing but zeros"  # the regular end of a log
UNREADABLE = "the disk does not give it, or no segment file holds it"


class Found(NamedTuple):
    """One segment file; `size` is its length, which may be wrong."""

    start: int
    size: int
    path: str


class Odd(NamedTuple):
    """A file that a start would refuse or ignore."""

    path: str
    why: str
    harmless: bool = False


class SegmentFiles:
    """The segments of one directory, oldest first."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int = 0) -> None:
        self.directory = directory
        self.segments: list[Found] = []
        self.odd: list[Odd] = []
        self._disk = disk
        self._open: dict[str, ReadFile] = {}
        files = self._list()
        self.segment_bytes = segment_bytes or _segment_bytes(files)
        for file in files:
            self._add(file, last=file is files[-1])
        self._starts = [segment.start for segment in self.segments]

    def _list(self) -> list[Found]:
        files = []
        for entry in self._disk.list(self.directory):
            path = posixpath.join(self.directory, entry.name)
            if entry.is_dir:
                continue
            if (start := number_of(entry.name)) is None:
                self.odd.append(Odd(path, "its name is no offset"))
            else:
                files.append(Found(start, entry.size, path))
        return files

    def _add(self, file: Found, *, last: bool) -> None:
        if file.size != self.segment_bytes:
            why = f"it is {file.size} bytes long, a segment is {self.segment_bytes}"
            crashed_creation = last and not file.size  # the next start deletes it
            self.odd.append(Odd(file.path, why, crashed_creation))
        if file.size == 0:
            return
        expected = self.segments[-1].start + self.segment_bytes if self.segments else file.start
        if file.start < expected:
            self.odd.append(Odd(file.path, f"the segment before it reaches to {expected}"))
            return
        if file.start > expected:
            self.odd.append(Odd(file.path, f"no segment holds {expected} to {file.start}"))
        self.segments.append(file)

    def keep_only(self, start: int) -> None:
        """Keep only the segment that begins at `start`: a reader of one file of many
        must not be led into the next."""
        self.segments = [segment for segment in self.segments if segment.start == start]
        self._starts = [segment.start for segment in self.segments]

    @property
    def start(self) -> int:
        return self.segments[0].start if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].start + self.segment_bytes if self.segments else 0

    def find(self, offset: int) -> Found | None:
        """The segment that holds `offset`."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self.segments[at].start + self.segment_bytes:
            return None
        return self.segments[at]

    def following(self, offset: int) -> int:
        """The start of the next segment behind `offset`; the end if there is none."""
        at = bisect_right(self._starts, offset)
        return self._starts[at] if at < len(self._starts) else self.end

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Bytes from `offset` on, of its segment only; fewer before a bad sector, 0 on one."""
        segment = self.find(offset)
        if segment is None:
            return 0
        file = self._file(segment)
        _, pos = self.place(offset)
        try:
            return file.read_into(pos, buffer)
        except OSError:
            return self._read_pages(file, pos, buffer)

    def _read_pages(self, file: ReadFile, pos: int, buffer: memoryview) -> int:
        done = 0
        while done < len(buffer):
            stop = min(len(buffer), done + PAGE - (pos + done) % PAGE)
            try:
                count = file.read_into(pos + done, buffer[done:stop])
            except OSError:
                break
            done += count
            if done < stop:
                break
        return done

    def read(self, offset: int, size: int) -> bytes:
        """As `read_into`."""
        buffer = bytearray(size)
        return bytes(buffer[: self.read_into(offset, memoryview(buffer))])

    def written(self, offset: int, unit: int = 1) -> Iterator[tuple[int, int]]:
        """The ranges from `offset` on, segment by segment, that may hold more than zeros; in whole
        units, because a hole of a file may begin within the zeros that end one."""
        for segment in self.segments:
            if segment.start + segment.size > offset:
                file = self._file(segment)
                for start, end in file.written(max(offset - segment.start, 0)):
                    yield segment.start + start - start % unit, segment.start + end + -end % unit

    def place(self, offset: int) -> tuple[str, int]:
        """File and position, for messages."""
        segment = self.find(offset)
        return (
            (self.directory, offset)
            if segment is None
            else (
                segment.path,
                offset - segment.start,
            )
        )

    def _file(self, segment: Found) -> ReadFile:
        file = self._open.get(segment.path)
        if file is None:
            self.close()  # one descriptor at a time
            file = self._open[segment.path] = self._disk.open_readonly(segment.path)
        return file

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()


def _segment_bytes(files: list[Found]) -> int:
    """Most neighbours lie one segment apart; a single file tells by its own length."""
    steps = [later.start - former.start for former, later in pairwise(files)]
    sizes = steps or [file.size for file in files if file.size]
    return Counter(sizes).most_common(1)[0][0] if sizes else 0


class Stretch(NamedTuple):
    """Whole frames from `start` on, and a BLANK behind them or none; valid until the next one."""

    start: int
    frames: memoryview
    scan: Scan


class Gap(NamedTuple):
    """[start, end) holds no frames, but frames follow."""

    start: int
    end: int
    why: str


class LogReader:
    """Goes through a CommitLog; `end` and `stopped_by` tell how it ended."""

    def __init__(
        self,
        files: SegmentFiles,
        *,
        cut_from: int | None = None,
        limit: int | None = None,
        index: bool = True,
    ) -> None:
        self.files = files
        self.end = files.start
        self.stopped_by = ""
        self._cut_from = cut_from
        self._limit = files.end if limit is None else min(limit, files.end)
        self._index = index
        self._buffer = memoryview(b"")

    def read(self, begin: int) -> Iterator[Stretch | Gap]:
        """Everything from `begin`, where a frame should begin, to the end."""
        offset, size = begin, _STRETCH
        while offset < self._limit:
            self.end = offset
            border = min(self._segment_end(offset), self._limit)
            asked = min(size, border - offset)
            size = _STRETCH
            view = self._view(offset, asked)
            scan = scan_frames(
                view,
                0,
                len(view),
                offset,
                verify_crc=True,
                index=self._index,
                delay_ms=DEFAULT_DELAYS_MS,
            )
            if scan.next_pos:
                why, end = scan.why, scan.next_pos
                if scan.status == ScanStatus.BLANK:
                    end = _blank_at(view)
                    if scan.next_pos != border - offset:  # it has to fill its segment
                        why = (
                            f"a BLANK of {scan.next_pos - end} bytes, {border - offset - end} left"
                        )
                        scan = scan._replace(next_pos=end)
                yield Stretch(offset, view[:end], scan)
            elif len(view) < asked:
                why = UNREADABLE
            elif asked < BLANK_BYTES:
                size, why = _STRETCH, f"{asked} bytes are too few for a frame"
            elif scan.status == ScanStatus.MORE:
                size = size_of(view)
                if asked < size <= border - offset:
                    continue
                size, why = _STRETCH, f"a frame of {size} bytes ends behind its segment"
            else:
                why = scan.why or NOTHING
            offset = self.end = offset + scan.next_pos
            if not why:
                continue
            if self._cut_from is not None and offset >= self._cut_from:
                found = None
            else:
                found = self.next_frame(offset + 1)
            if found is None:
                self.stopped_by = why
                return
            found = min(found, self._limit)  # a frame behind the limit ends the gap there
            assert offset < found, f"a gap from {offset} to {found}"
            yield Gap(offset, found, why)
            offset = self.end = found

    def _segment_end(self, offset: int) -> int:
        segment = self.files.find(offset)
        if segment is None:
            return self.files.following(offset)
        return segment.start + self.files.segment_bytes

    def _view(self, offset: int, size: int) -> memoryview:
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        return self._buffer[: self.files.read_into(offset, self._buffer[:size])]

    def next_frame(self, offset: int) -> int | None:
        """The first valid frame at or behind `offset`."""
        chunk = memoryview(bytearray(_SEARCH))
        for start, end in self.files.written(offset):
            at = start
            while at < end:
                count = self.files.read_into(at, chunk[: min(len(chunk), end - at)])
                for pos in _magic_places(bytes(chunk[:count])):
                    place = at + pos - MAGIC_AT
                    if place >= offset and self._is_frame(place):
                        return place
                if at + count >= end:
                    break
                # read a magic across the border again; go on behind a bad sector
                at += count - 3 if count > 3 else PAGE - at % PAGE
        return None

    def _is_frame(self, place: int) -> bool:
        head = self.files.read(place, PHYSICAL_OFFSET_AT + OFFSET.size)
        if int.from_bytes(head[PHYSICAL_OFFSET_AT:], "big", signed=True) != place:
            return False
        return isinstance(self.frame_at(place), Frame)

    def frame_at(self, offset: int) -> Outcome:
        """Parse the frame at `offset`, with its checksums."""
        if self.files.find(offset) is None:
            return End()
        left = self._segment_end(offset) - offset
        data = self.files.read(offset, min(left, PAGE))
        outcome = decode_frame(data)
        if isinstance(outcome, NeedMore) and len(data) < outcome.size <= left:
            outcome = decode_frame(self.files.read(offset, outcome.size))
        if isinstance(outcome, Frame) and outcome.physical_offset != offset:
            return Damage(f"frame says offset {outcome.physical_offset}, it lies at {offset}")
        return outcome

    def leftover(self) -> int | None:
        """The first byte behind the end that is not zero."""
        zeros = bytes(_SEARCH)
        for start, end in self.files.written(self.end):
            for at in range(start, end, _SEARCH):
                data = self.files.read(at, min(_SEARCH, end - at))
                if data != zeros[: len(data)]:
                    return at + len(data) - len(data.lstrip(b"\0"))
        return None


def _blank_at(view: memoryview) -> int:
    """The position of the BLANK behind whole frames."""
    pos = 0
    size, magic = BLANK.unpack_from(view)
    while magic != BLANK_MAGIC:
        assert size > 0, f"whole frames come before a BLANK, one at {pos} has {size} bytes"
        pos += size
        size, magic = BLANK.unpack_from(view, pos)
    return pos


def _magic_places(data: bytes) -> Iterator[int]:
    """The positions of magic numbers in `data`, ascending."""
    at = data.find(_MAGIC_HEAD)
    while at >= 0:
        if data[at : at + 4] in _MAGICS:
            yield at
        at = data.find(_MAGIC_HEAD, at + 1)

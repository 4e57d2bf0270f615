"""The CommitLog: all messages of a broker in one byte space (store-format.md section 2).

The single writer asks for room, builds a frame or a batch in the staging buffer and appends it:
written to the file (why not to the mapping: `disk.py`), `end` moved. A write that fails may have
left a part of it behind `end`: the store takes no more then. The buffer fits the processor's cache
and keeps the newest frames for dispatch, which comes right after.
A frame never crosses a segment: when frame + 8 > bytes left, the remainder becomes BLANK

    0  i32  bytes left
    4  i32  -875286124 (0xCBD43194)

and the frame, or the whole batch, goes to the next segment. Another thread zeroes a window ahead of
the writer, so that the disk has zeroes before it gets frames (fault-model.md section 4.3) and the
writer finds its pages in memory, and creates the next segment. `prepared` of a segment parts the
two: the thread zeroes behind it only and moves it when done; the writer needs the mutex only to
move it itself, when it overtakes the window. The window then begins anew at some distance.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from saturnmq.protocol.errors import StoreDamaged
from saturnmq.store.disk import Disk, SegmentFile
from saturnmq.store.segments import Segment, SegmentSeries, zero_tail

BLANK_MAGIC = -875286124
BLANK = struct.Struct(">ii")
_STEP = 512 << 10
_LEAD = 4 << 20  # how far before a writer that overtook it the window begins anew
_STAGING = 512 << 10  # it grows to the largest batch


@dataclass(slots=True)
class FlushTicket:
    """Ranges to make durable; `run` may be called in any thread."""

    target: int
    store_timestamp: int
    ranges: list[tuple[SegmentFile, int, int]] = field(default_factory=list)

    def run(self) -> None:
        for file, start, end in self.ranges:
            file.flush(start, end)


class CommitLog:
    """Segments, the append position and the window of zeroes before it."""

    def __init__(
        self, disk: Disk, directory: str, segment_bytes: int, ahead: int, sync_zeros: bool
    ) -> None:
        self.series = SegmentSeries(disk, directory, segment_bytes)
        self.segment_bytes = segment_bytes
        self.end = 0
        self._ahead = ahead
        self._sync_zeros = sync_zeros
        self._mutex = disk.mutex()
        self._spare: Segment | None = None
        self._closed = False
        self._staging = memoryview(bytearray(_STAGING))
        self._staged_start = 0  # the log's offset at the first byte of the staging buffer
        self._staged_end = -1  # it is a copy of the log from there to `end` if this is `end`

    @property
    def start(self) -> int:
        return self.series.start

    def room(self, size: int) -> tuple[Segment, int]:
        """The segment and position where `size` bytes go; rolls to the next segment if needed."""
        if size + 8 > self.segment_bytes:
            raise ValueError(f"{size} bytes do not fit a segment of {self.segment_bytes} bytes")
        segment = self._current()
        pos = self.end - segment.start
        left = self.segment_bytes - pos
        if size + 8 > left:
            fresh = self._next(segment.end)  # before the BLANK: a full disk changes nothing
            self._write(segment, pos, BLANK.pack(left, BLANK_MAGIC))
            self.end = segment.end
            segment, pos = fresh, 0
        return segment, pos

    def staging(self, size: int) -> memoryview:
        """Where to build `size` bytes of frames that `append` gets next; after `room`."""
        at = self.end - self._staged_start
        if self._staged_end != self.end or at + size > len(self._staging):
            if size > len(self._staging):
                self._staging = memoryview(bytearray(size))
            self._staged_start, at = self.end, 0
        return self._staging[at : at + size]

    def append(self, segment: Segment, pos: int, frames: memoryview) -> int:
        """Write the staged frames where `room` said; the new end."""
        self._staged_end = -1
        self._write(segment, pos, frames)
        self._staged_end = self.end
        return self.end

    def newest(self, offset: int) -> tuple[memoryview, int] | None:
        """Staged bytes up to the end and the log's offset at the first, if `offset` is among them.
        Valid until the next append."""
        if self._staged_end != self.end or not self._staged_start <= offset < self.end:
            return None
        return self._staging[: self.end - self._staged_start], self._staged_start

    def _write(self, segment: Segment, pos: int, data: bytes | memoryview) -> None:
        end = pos + len(data)
        if segment.prepared < end:
            with self._mutex:
                segment.prepared = max(segment.prepared, end)
        segment.file.write(pos, data)
        self.end = segment.start + end

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Copy the master's bytes; they never cross a segment."""
        if self.end == 0 and not self.series.segments:
            base = offset - offset % self.segment_bytes
            self.series.add(self._create(base))
            self.end = offset
        if offset != self.end:
            raise StoreDamaged(f"bytes for {offset} offered, this log ends at {self.end}")
        segment = self._current()
        pos = offset - segment.start
        if pos + len(data) > self.segment_bytes:
            raise StoreDamaged(f"{len(data)} bytes at {offset} would cross the segment's end")
        self._staged_end = -1
        self._write(segment, pos, data)

    def _current(self) -> Segment:
        segment = self.series.find(self.end)
        return segment if segment is not None else self._next(self.end)

    def _next(self, start: int) -> Segment:
        with self._mutex:
            segment, self._spare = self._spare, None
            if segment is None or segment.start != start:
                segment = self.series.create(start)
            self.series.add(segment)
            return segment

    def _create(self, start: int) -> Segment:
        with self._mutex:
            return self.series.create(start)

    def prepare_ahead(self) -> None:
        """Blocking: zero the window before the writer; create the next segment at 3/4 full."""
        segment = self.series.find(self.end)
        if segment is None:
            return
        self._prepare_window(segment)
        pos = self.end - segment.start
        if pos * 4 >= self.segment_bytes * 3 and self.series.end == segment.end:
            with self._mutex:
                if self._spare is None and self.series.end == segment.end and not self._closed:
                    self._spare = self.series.create(segment.end)
                spare = self._spare
            if spare is not None:
                self._prepare_window(spare)

    def _prepare_window(self, segment: Segment) -> None:
        while True:
            with self._mutex:
                pos = max(self.end - segment.start, 0)
                start = segment.prepared
                if 0 < start <= pos:
                    start = pos + min(_LEAD, self._ahead // 2)
                end = min(start + _STEP, pos + self._ahead, self.segment_bytes)
                if start >= end or self._closed:
                    return
                segment.file.zero(start, end)
                segment.prepared = end
            # else the writer's next sync would carry the whole window
            if self._sync_zeros and not self._closed:
                segment.file.flush(start, end)

    def ticket(self, flushed: int, store_timestamp: int) -> FlushTicket:
        """The dirty ranges between `flushed` and the end."""
        ticket = FlushTicket(self.end, store_timestamp)
        for segment in self.series.segments:
            if segment.end > flushed and segment.start < self.end:
                start = max(flushed, segment.start) - segment.start
                ticket.ranges.append(
                    (segment.file, start, min(self.end, segment.end) - segment.start)
                )
        return ticket

    def read(self, offset: int, limit: int) -> memoryview | None:
        """Bytes from `offset`, to the end of its segment at most; a view of the mapping."""
        segment = self.series.find(offset)
        if segment is None or offset >= self.end:
            return None
        pos = offset - segment.start
        stop = min(pos + limit, self.end - segment.start, self.segment_bytes)
        return segment.view[pos:stop]

    def truncate(self, end: int) -> int:
        """Cut durably: later segments go, the tail becomes zeroes and is synced."""
        old = max(self.end, self.series.end)
        self._drop_spare()
        segment = self.series.find(end)
        self.series.drop_from(end + (0 if segment is None or segment.start < end else 1))
        if segment is not None:
            pos = end - segment.start
            if zero_tail(segment, pos):
                segment.file.flush(pos, self.segment_bytes)
            segment.prepared = pos
        self.end = end
        self._staged_end = -1
        return old - end

    def _drop_spare(self) -> None:
        with self._mutex:
            if self._spare is not None:
                self._spare.file.close()
                self.series.disk.unlink(self._spare.file.path)
                self._spare = None

    def close(self) -> None:
        self._drop_spare()
        with self._mutex:  # the thread that prepares ahead must not write to closed files
            self._closed = True
            self.series.close()

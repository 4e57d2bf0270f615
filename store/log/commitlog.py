"""The CommitLog: all messages of a broker in one byte space (docs/internals/format.md 2).

The single writer asks for room, builds a frame or a batch in the staging buffer and appends it:
written to the file (why not to the mapping: `store/disk.py`), `end` moved. A write that fails may
have left a part of it behind `end`: the store takes no more then. The buffer fits the processor's
cache and keeps the newest frames for dispatch, which comes right after. A frame never crosses a
segment: when frame + 8 > bytes left, the remainder becomes BLANK

    0  i32  bytes left
    4  i32  -875286124 (0xCBD43194)

and the frame, or the whole batch, goes to the next segment. Another thread zeroes a window ahead of
the writer, so that the disk has zeroes before it gets frames (docs/guarantees.md S3) and the
writer finds its pages in memory, and creates the next segment. `prepared` of a segment parts the
two: the thread zeroes behind it only and moves it when done; the writer needs the mutex only to
move it itself, when it overtakes the window. The window then begins anew at some distance.

With a TransientStorePool a segment's bytes go to a borrowed buffer first; a commit, or the next
flush, writes them to the file. Readers see what is `committed`; without a pool that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from saturnmq.protocol.frame import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    FRAME_BYTES_MIN,
    Frame,
    decode_frame,
    store_timestamp_of,
)
from saturnmq.runtime.errors import StoreDamaged, SystemBusy
from saturnmq.store.disk import Advice, Disk
from saturnmq.store.log.flush_ticket import FlushTicket, LogFailed, gone
from saturnmq.store.log.segments import Segment, SegmentSeries, zero_tail
from saturnmq.store.log.transient_pool import TransientStorePool
from saturnmq.store.offsets import PhysicalOffset
from saturnmq.store.reading import OF_LOG, read
from saturnmq.store.watermarks import Watermarks

_STEP = 512 << 10
_LEAD = 4 << 20  # the distance of a new window from the writer that overtook the old one
_NEAR = 128 << 10  # the kernel reads ahead over shorter distances anyway
_STAGING = 512 << 10  # it grows to the largest batch


Range = tuple[int, int]
"""A stretch of the log, from and to."""


def _joined(ranges: Sequence[Range]) -> Iterator[Range]:
    """Ascending stretches, as few as there is a reason to tell apart."""
    first = end = -1
    for start, stop in ranges:
        if first >= 0 and start - end > _NEAR:
            yield first, end
            first = -1
        first = start if first < 0 else first
        end = stop
    if first >= 0:
        yield first, end


class CommitLog:
    """Segments, the append position and the window of zeroes before it."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        *,
        ahead: int,
        sync_zeros: bool = False,
        pool: TransientStorePool | None = None,
        advice: tuple[Advice, ...] = (),
        begins: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`begins` gets the start of the first segment before there is one; OSError: there is to be
        none now."""
        assert segment_bytes > BLANK_BYTES, f"a segment of {segment_bytes} bytes takes no frame"
        assert ahead >= 0, f"zeros for {ahead} bytes ahead"
        self.series = SegmentSeries(disk, directory, segment_bytes)
        self.segment_bytes = segment_bytes
        self.end = PhysicalOffset(0)
        self._begins = begins
        self._ahead = ahead
        self._sync_zeros = sync_zeros
        self._pool = pool
        self._advice = advice
        self._buffers: dict[int, memoryview] = {}  # by the start of the segment
        self._committed = 0
        self._mutex = disk.mutex()
        self._spares: dict[int, Segment] = {}  # allocated ahead, by their start
        self._closed = False
        self._staging = memoryview(bytearray(_STAGING))
        self._staged_start = 0  # the log's offset at the first byte of the staging buffer
        self._staged_end = -1  # it is a copy of the log from there to `end` if this is `end`

    def load(self, *, clean: bool) -> None:
        """Open the segments that are there. After a crash nobody knows whether the names that are
        gone are so for good."""
        self.series.load()
        if not clean and self.series.disk.exists(self.series.directory):
            self.series.disk.sync_dir(self.series.directory)
        for segment in self.series.segments:
            self._advise(segment)

    def forget_from(self, offset: int) -> None:
        """Have the disk asked again for what a failed sync may have left in memory only."""
        for segment in self.series.segments:
            if segment.end > offset:
                segment.file.forget(max(offset - segment.start, 0), self.segment_bytes)

    def check_files(self) -> None:
        """Blocking, may run beside the writer and the cleaner. OSError: a segment's file is not
        where it was."""
        for segment in self.series.segments[:]:
            # A thread that deletes a segment takes it out of the series first.
            if not segment.file.in_place() and segment in self.series.segments:
                raise gone(segment.file)

    def _advise(self, segment: Segment) -> None:
        for advice in self._advice:
            segment.file.advise(advice)

    @property
    def start(self) -> PhysicalOffset:
        return PhysicalOffset(self.series.start)

    @property
    def committed(self) -> PhysicalOffset:
        """Up to here the log can be read."""
        return PhysicalOffset(self._committed) if self._pool is not None else self.end

    def may_end_at(self, offset: int) -> bool:
        """Whether a BLANK fits behind `offset`: one follows the last frame of every segment."""
        return offset % self.segment_bytes <= self.segment_bytes - BLANK_BYTES

    def room(self, size: int) -> tuple[Segment, int]:
        """The segment and position where `size` bytes go, which fit a segment with a BLANK behind
        them; rolls to the next segment if needed.

        OSError: there is no room for that segment, and nothing was written.
        """
        segment = self._current()
        pos = self.end - segment.start
        left = self.segment_bytes - pos
        if size + BLANK_BYTES > left:
            fresh = self._next(segment.end)  # before the BLANK: a full disk changes nothing
            self._write(segment, pos, BLANK.pack(left, BLANK_MAGIC))
            self.end = PhysicalOffset(segment.end)
            segment, pos = fresh, 0
        return segment, pos

    def validate(self, marks: Watermarks) -> None:
        """AssertionError: segments, end, buffers and watermarks do not fit together."""
        marks.validate()
        assert marks.appended == self.end, f"{marks.appended} is appended, it ends at {self.end}"
        assert marks.start == self.start, f"the log begins at {self.start}, not at {marks.start}"
        assert marks.flushed <= self.committed, f"flushed {marks.flushed} of {self.committed}"
        series, end, size = self.series, self.end, self.segment_bytes
        series.validate()
        if series.segments:
            assert series.start <= end, f"the log begins at {series.start} and ends at {end}"
            assert end <= series.end, f"the log ends at {end}, its segments at {series.end}"
        assert self.committed <= end, f"{self.committed} is committed, the log ends at {end}"
        assert self._staged_end <= end, f"{self._staged_end} is staged, the log ends at {end}"
        if self._staged_end == end:
            staged = end - self._staged_start
            assert 0 <= staged <= len(self._staging), f"{staged} bytes of {len(self._staging)}"
        for start, spare in self._spares.items():
            assert start == spare.start, f"the spare for {start} begins at {spare.start}"
            assert start % size == 0, f"a spare segment begins at {start}, not at n * {size}"
            assert start >= series.end, f"a spare for {start}, the segments end at {series.end}"
        for segment in series.segments:
            assert 0 <= segment.prepared <= size, f"prepared {segment.prepared} of {size} bytes"
        if self._pool is None:
            assert not self._buffers, f"{len(self._buffers)} buffers without a pool"
        else:
            lent = len(self._buffers)
            assert lent + self._pool.free <= self._pool.size, (lent, self._pool.free)

    def staging(self, size: int) -> memoryview:
        """The buffer for `size` bytes of frames that go to `append` next; call `room` first."""
        at = self.end - self._staged_start
        if self._staged_end != self.end or at + size > len(self._staging):
            if size > len(self._staging):
                self._staging = memoryview(bytearray(size))
            self._staged_start, at = self.end, 0
        assert at >= 0, f"{at} in the staging buffer"
        return self._staging[at : at + size]

    def append(self, segment: Segment, pos: int, frames: memoryview) -> PhysicalOffset:
        """Write the staged frames at the place that `room` gave; return the new end."""
        self._staged_end = -1
        self._staged_end = self.end = self._write(segment, pos, frames)
        return self.end

    def newest(self, offset: int) -> tuple[memoryview, int] | None:
        """Staged bytes up to the end and the log's offset at the first, if `offset` is among them.
        Valid until the next append."""
        if self._staged_end != self.end or not self._staged_start <= offset < self.committed:
            return None
        return self._staging[: self.end - self._staged_start], self._staged_start

    def reserve(self, end: int) -> None:
        """Have every segment that the bytes up to `end` need, so that no atomic batch stops
        half-way.

        OSError: there is no room for one; nothing was written. SystemBusy: nor in the buffers.
        """
        first = self.series.end if self.series.segments else self.end
        starts = range(first, end, self.segment_bytes)
        pool = self._pool
        if pool is not None and pool.fail_fast and len(starts) > pool.free:
            raise SystemBusy(
                f"{len(starts)} buffers of the transient store pool are needed, {pool.free} are "
                "free: write less at once, or raise transientStorePoolSize"
            )
        for start in starts:
            with self._mutex:
                if start not in self._spares:
                    self._spares[start] = self.series.create(start)

    def write_ahead(self, offset: int, data: bytes | memoryview) -> None:
        """Write a piece of an atomic batch behind the end; it counts after `extend`."""
        assert offset >= self.end, f"{offset} was written ahead, the log ends at {self.end}"
        segment = self.series.find(offset) or self._next(offset)
        self._write(segment, offset - segment.start, data)

    def extend(self, end: int) -> None:
        """Count the bytes written ahead, up to `end`, as part of the log."""
        assert end >= self.end, f"the log ends at {self.end}, what was written ahead at {end}"
        assert end <= self.series.end, f"written ahead to {end}, segments end at {self.series.end}"
        self._staged_end = -1
        self.end = PhysicalOffset(end)

    def discard_ahead(self) -> None:
        """Blocking: what was written ahead is gone, durably: what comes next must not be followed
        by frames that look valid. OSError: nobody knows what is there now."""
        committed = self._committed
        self.truncate(self.end)
        self._committed = committed

    def _write(self, segment: Segment, pos: int, data: bytes | memoryview) -> PhysicalOffset:
        """Write `data`; return the log's offset behind it."""
        end = pos + len(data)
        assert end <= self.segment_bytes, f"{len(data)} bytes at {pos} leave their segment"
        if segment.prepared < end:
            with self._mutex:
                segment.prepared = max(segment.prepared, end)
        buffer = self._buffers.get(segment.start)
        if buffer is not None:
            buffer[pos:end] = data
        else:
            try:
                segment.file.write(pos, data)
            except OSError as error:
                raise LogFailed(f"a write failed: {error}") from error
        return PhysicalOffset(segment.start + end)

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Copy the master's bytes; they never cross a segment."""
        if not self.series.segments:
            if offset % self.segment_bytes:
                raise StoreDamaged(
                    f"bytes for {offset} offered to an empty log, which begins with a segment, at "
                    f"a multiple of {self.segment_bytes}"
                )
            self._begins(offset)
            self.series.add(self._create(offset))
            self.end = PhysicalOffset(offset)
        if offset != self.end:
            raise StoreDamaged(f"bytes for {offset} offered, this log ends at {self.end}")
        segment = self._current()
        pos = offset - segment.start
        if pos + len(data) > self.segment_bytes:
            raise StoreDamaged(f"{len(data)} bytes at {offset} would cross the segment's end")
        self._staged_end = -1
        self.end = self._write(segment, pos, data)

    def overwrite(self, offset: int, data: memoryview) -> None:
        """Blocking: have these bytes at a place before the end, durably. OSError: nobody knows what
        is there now."""
        while data:
            segment = self.series.find(offset)
            assert segment is not None, f"{offset} lies in the log"
            assert offset < self.end, f"{offset} was overwritten, the log ends at {self.end}"
            pos = offset - segment.start
            part = data[: self.segment_bytes - pos]
            segment.file.write(pos, part)
            segment.file.flush(pos, pos + len(part))
            offset, data = offset + len(part), data[len(part) :]

    def _current(self) -> Segment:
        segment = self.series.find(self.end)
        return segment if segment is not None else self._next(self.end)

    def _next(self, start: int) -> Segment:
        if not self.series.segments:
            self._begins(start)
        with self._mutex:
            if self._pool is not None and not self._pool.free and self._pool.fail_fast:
                raise SystemBusy(
                    f"all {self._pool.size} buffers of the transient store pool wait to be "
                    "written: send slower, or raise transientStorePoolSize"
                )
            segment = self._spares.pop(start, None) or self.series.create(start)
            self.series.add(segment)
            buffer = None if self._pool is None else self._pool.borrow()
            if buffer is not None:
                self._buffers[start] = buffer
        self._advise(segment)
        return segment

    def _create(self, start: int) -> Segment:
        with self._mutex:
            return self.series.create(start)

    def prepare_ahead(self) -> None:
        """Blocking: zero the window before the writer; create the next segment and, from the middle
        of this one on, the one after it."""
        segment = self.series.find(self.end)
        if segment is None:
            return
        self._prepare_window(segment)
        left = segment.end - self.end
        count = 1 if 2 * left > self.segment_bytes else 2
        for start in range(
            segment.end, segment.end + count * self.segment_bytes, self.segment_bytes
        ):
            with self._mutex:
                if self._closed or start < self.series.end:
                    continue  # the writer was faster
                if start not in self._spares:
                    self._spares[start] = self.series.create(start)
                spare = self._spares[start]
            if start == segment.end and left < self._ahead:
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
                try:
                    segment.file.flush(start, end)
                except OSError as error:  # the only report of what the file's other pages lost too
                    raise LogFailed(f"a sync failed: {error}") from error

    def ticket(self, flushed: int, store_timestamp: int) -> FlushTicket:
        """The dirty ranges between `flushed` and the end."""
        ticket = self.commit_ticket()
        ticket.store_timestamp = store_timestamp
        for segment in self.series.segments:
            if segment.end > flushed and segment.start < self.end:
                start = max(flushed, segment.start) - segment.start
                ticket.ranges.append(
                    (segment.file, start, min(self.end, segment.end) - segment.start)
                )
        return ticket

    def commit_ticket(self) -> FlushTicket:
        """The ranges that are in buffers only."""
        ticket = FlushTicket(self.end, 0)
        for segment in self.series.segments:
            buffer = self._buffers.get(segment.start)
            if buffer is not None and segment.end > self._committed:
                start = max(self._committed - segment.start, 0)
                stop = min(self.end, segment.end) - segment.start
                ticket.commits.append((segment.file, start, buffer[start:stop]))
        return ticket

    def committed_to(self, end: int) -> None:
        """Let readers see the bytes of a ticket that has run, and return its buffers to the
        pool."""
        if self._pool is None:
            return
        assert end <= self.end, f"{end} was committed, the log ends at {self.end}"
        self._committed = max(self._committed, end)
        for start in [s for s in self._buffers if s + self.segment_bytes <= self._committed]:
            self._pool.give_back(self._buffers.pop(start))

    def read(self, offset: int, limit: int) -> memoryview | None:
        """Bytes from `offset`, to the end of its segment at most; a view of the mapping."""
        segment = self.series.find(offset)
        end = self.committed
        if segment is None or offset >= end:
            return None
        pos = offset - segment.start
        stop = min(pos + limit, end - segment.start, self.segment_bytes)
        return segment.view[pos:stop]

    def is_cached(self, ranges: Sequence[Range]) -> bool:
        """Whether these bytes can be read without waiting for the disk."""
        return all(
            segment.file.is_cached(start, stop) for segment, start, stop in self._within(ranges)
        )

    def cache(self, ranges: Sequence[Range]) -> None:
        """Blocking, callable from any thread: read them into memory. OSError: a bad sector."""
        for segment, start, stop in self._within(ranges):
            segment.file.cache(start, stop)

    def cache_from(self, offset: int, limit: int) -> int:
        """The same, of so much from there, to the end of its segment at most; where that ends."""
        segment = self.series.find(offset)
        if segment is None:  # it was deleted: a reader will notice
            return offset + limit
        end = min(offset + limit, segment.end)
        segment.file.cache(offset - segment.start, end - segment.start)
        return end

    def _within(self, ranges: Sequence[Range]) -> Iterator[tuple[Segment, int, int]]:
        """Split the ranges by segment; short distances between two ranges are included."""
        for start, stop in _joined(ranges):
            segment = self.series.find(start)
            if segment is not None:
                yield segment, start - segment.start, min(stop - segment.start, self.segment_bytes)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Bytes from `offset` into `buffer`, to the end of their segment at most; how many. Read
        with read(): a bad sector is an OSError."""
        segment = self.series.find(offset)
        if segment is None:
            return 0
        return segment.file.read_into(offset - segment.start, buffer)

    def is_frame(
        self, offset: int, size: int, topic: str, queue_id: int, queue_offset: int
    ) -> bool:
        """Whether this frame lies at `offset`, as far as its header says; yes where nobody knows
        any more, before the start."""
        segment = self.series.find(offset)
        if segment is None or offset + size > segment.end:
            return offset < self.start
        data = read(segment.file, offset - segment.start, size, OF_LOG)
        found = decode_frame(data, 0, size, verify=False)
        return isinstance(found, Frame) and (
            (found.physical_offset, found.size, found.queue_id, found.queue_offset, found.topic)
            == (offset, size, queue_id, queue_offset, topic.encode())
        )

    def store_time_at(self, offset: int) -> int | None:
        """The store time in the frame at `offset`."""
        view = self.read(offset, FRAME_BYTES_MIN)
        return None if view is None else store_timestamp_of(view)

    def truncate(self, end: int) -> None:
        """Cut durably: later segments go, the tail becomes zeroes and is synced."""
        assert end >= 0, f"the log was to be cut at {end}"
        self._drop_spares()
        segment = self.series.find(end)
        self.series.drop_from(end + (0 if segment is None or segment.start < end else 1))
        if segment is not None:
            pos = end - segment.start
            zero_tail(segment, pos, OF_LOG)
            # also when it reads as zeros: the process before may have died before its sync
            segment.file.flush(pos, self.segment_bytes)
            segment.prepared = pos
        self._ends_at(end)

    def clear(self) -> None:
        """Delete everything, durably: the next bytes may be of any offset."""
        self._drop_spares()
        self.series.destroy()
        self._ends_at(0)

    def _ends_at(self, end: int) -> None:
        self.end = self._committed = PhysicalOffset(end)
        self._staged_end = -1
        for start in [start for start in self._buffers if start >= end]:
            assert self._pool is not None, f"the buffer of {start} came from a pool"
            self._pool.give_back(self._buffers.pop(start))

    def _drop_spares(self) -> None:
        with self._mutex:
            for start in sorted(self._spares, reverse=True):  # a crash in between leaves no hole
                spare = self._spares.pop(start)
                spare.file.close()
                self.series.disk.unlink(spare.file.path)

    def close(self) -> None:
        self._drop_spares()
        with self._mutex:  # the thread that prepares ahead must not write to closed files
            self._closed = True
            self.series.close()

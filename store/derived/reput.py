"""Reput: from the CommitLog's frames to queue entries and index items, in log order.

One bounded step at a time, so that the event loop keeps answering. Recovery runs the same code with
checksums on, over bytes it read itself. Dispatch goes up to the append position whatever the flush
mode is; what consumers may see is decided by the physical limit that the broker hands to
get_message. A group is dispatched when all of it is there (`store/log/atomic_batches.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from saturnmq.protocol.frame import (
    BLANK_BYTES,
    FRAME_BYTES_MIN,
    Frame,
    decode_frame,
    size_of,
    store_timestamp_of,
)
from saturnmq.protocol.kernels import Scan, ScanStatus, scan_frames
from saturnmq.store.derived.batchconsumequeue import TimeAt
from saturnmq.store.derived.derived import Arrival, Derived
from saturnmq.store.log.atomic_batches import AtomicBatch, groups_in
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.resync import next_frame
from saturnmq.store.offsets import PhysicalOffset
from saturnmq.store.reading import OF_LOG, read

STEP_BYTES = 4 << 20
NEW_QUEUES = 8  # in a step: the file system takes about a millisecond for the files of each


@dataclass(slots=True)
class Step:
    """The progress of a step; `status` as in `scan_frames`."""

    next_offset: PhysicalOffset
    status: str  # of ScanStatus
    why: str = ""
    last_store_timestamp: int = 0
    messages: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    groups: list[AtomicBatch] = field(default_factory=list)  # that begin in what the step looked at


def times_in(log: CommitLog) -> TimeAt:
    """The store times of frames that are being dispatched, also by a start, which reads files."""

    def time_at(offset: int) -> int | None:
        newest = log.newest(offset)
        if newest is not None:
            view, base = newest
            return store_timestamp_of(view[offset - base :][:FRAME_BYTES_MIN])
        segment = log.series.find(offset)
        if segment is None:
            return None
        at = offset - segment.start
        return store_timestamp_of(read(segment.file, at, FRAME_BYTES_MIN, OF_LOG))

    return time_at


class Reput:
    """Builds the derived files."""

    def __init__(self, log: CommitLog, derived: Derived) -> None:
        self._log = log
        self._derived = derived
        self._arrived: list[Arrival] = []  # of a step that the disk had no room to finish

    def step(self, offset: int, limit: int, *, index_later: bool = False) -> Step:
        """Dispatch frames from `offset` to `limit`, which lies behind it, or for about
        `STEP_BYTES`, within a segment; with `index_later` the index gets them with
        `Derived.settle_index`.

        OSError: a new queue or index file cannot be made; the same step may be tried again.
        """
        assert offset < limit, f"a step from {offset} to {limit}"
        newest = self._log.newest(offset)
        if newest is not None:
            view, base = newest
        else:
            segment = self._log.series.find(offset)
            assert segment is not None, f"{offset} lies in the log"
            view, base = segment.view, segment.start
        final = min(limit - base, len(view))
        assert base <= offset, f"{offset} lies before the bytes from {base} on"
        step = self.dispatch(view, base, offset - base, final, limit=limit, index_later=index_later)
        if step.next_offset > limit:  # a slave has the head of a BLANK
            whole = _first_that_is_no_frame(view, offset - base, final)
            step.next_offset = PhysicalOffset(base + whole)
            step.status = ScanStatus.MORE
        assert offset <= step.next_offset <= limit, (offset, step.next_offset, limit)
        return step

    def frame_at_or_before(self, offset: int) -> int:
        """The start of the frame (or BLANK) around `offset`; `offset` itself if one begins
        there."""
        segment = self._log.series.find(offset)
        if segment is None:
            return offset
        view, base, limit = segment.view, segment.start, offset - segment.start
        there = decode_frame(view, limit, len(view), verify=False)
        if isinstance(there, Frame) and there.physical_offset == offset:
            return offset
        pos, step = 0, STEP_BYTES
        while pos < limit:
            scan = scan_frames(
                view, pos, min(pos + step, limit), base, verify_crc=False, index=False
            )
            if scan.status == ScanStatus.BLANK:
                return base + _first_that_is_no_frame(view, pos, limit)
            if scan.next_pos > pos:
                pos, step = scan.next_pos, STEP_BYTES
            elif pos + step < limit:
                step = limit  # a frame longer than a step
            elif (
                scan.status == ScanStatus.DAMAGE
                and (after := next_frame(self._log.series, base + pos, offset)) is not None
            ):
                pos = after - base
            else:
                break
        return base + pos

    def dispatch(
        self,
        view: memoryview,
        base: int,
        pos: int,
        final: int,
        *,
        verify_crc: bool = False,
        limit: int | None = None,
        index_later: bool = False,
    ) -> Step:
        """Dispatch frames of [pos, final) of `view`, whose first byte is the log's byte `base`; but
        not beyond the marker of a group that ends behind `limit`: it is the last in `groups`."""
        end = min(final, pos + STEP_BYTES)
        scan = self._scan(view, pos, end, base, verify_crc=verify_crc)
        if end < final and scan.next_pos == pos:  # it may be a frame longer than a step
            end = min(final, pos + max(STEP_BYTES, size_of(view, pos)))
            scan = self._scan(view, pos, end, base, verify_crc=verify_crc)
        while limit is not None and self._makes_many(scan):
            half = self._scan(
                view, pos, pos + (scan.next_pos - pos) // 2, base, verify_crc=verify_crc
            )
            if half.next_pos == pos:
                break
            scan = half._replace(status=ScanStatus.MORE)
        assert scan.next_pos >= pos, f"a scan from {pos} came to {scan.next_pos}"
        cut = scan.status == ScanStatus.END and end - scan.next_pos < BLANK_BYTES
        if (
            pos < scan.next_pos
            and end < final
            and (cut or scan.status in (ScanStatus.MORE, ScanStatus.DAMAGE))
        ):
            # the end may have cut a frame: the next step looks at it again, whole
            scan = scan._replace(status=ScanStatus.MORE)
        groups = list(groups_in(scan.runs, lambda at, size: view[at - base : at - base + size]))
        if limit is not None and groups and groups[-1].end > limit:
            scan = self._scan(view, pos, groups[-1].start - base, base, verify_crc=verify_crc)
            scan = scan._replace(status=ScanStatus.MORE)
        begin, offset = base + pos, PhysicalOffset(base + scan.next_pos)
        segment_end = begin - begin % self._log.segment_bytes + self._log.segment_bytes
        if scan.status == ScanStatus.BLANK and offset != segment_end:
            why = f"a BLANK ends at {offset}, not at its segment's end"
            offset = PhysicalOffset(base + _first_that_is_no_frame(view, pos, final))
            scan = scan._replace(status=ScanStatus.DAMAGE, why=why)
        self._derived.append(scan, self._arrived, begin if index_later else None)
        arrivals, self._arrived = self._arrived, []
        return Step(
            offset, scan.status, scan.why, scan.last_store_ts, scan.messages, arrivals, groups
        )

    def _makes_many(self, scan: Scan) -> bool:
        """Whether more new queues get messages than a step may make files for."""
        runs = [*scan.runs, *scan.batches] if scan.batches else scan.runs
        return len(runs) > NEW_QUEUES and self._derived.queues.count_new(runs) > NEW_QUEUES

    def _scan(self, view: memoryview, pos: int, end: int, base: int, *, verify_crc: bool) -> Scan:
        index = self._derived.index is not None
        return scan_frames(view, pos, end, base, verify_crc, index, self._derived.delays_ms)


def _first_that_is_no_frame(view: memoryview, pos: int, end: int) -> int:
    while isinstance(outcome := decode_frame(view, pos, end, verify=False), Frame):
        pos += outcome.size
    return pos

"""Recovery: the work between opening the files and the first request.

Recovery starts to read the log at one of two places:
  our checkpoint  at the lesser of `derived` and the last indexed message. After a crash the queues
                  are cut at `derived` and the index goes back to what was durable; everything
                  behind is built again
  without it      (a RocketMQ store, or the page is gone) after a clean stop at the newest segment
                  whose first frame every queue has reached; after a crash, or when queue or index
                  files are missing, everything is rebuilt from the oldest segment
Frames are read with checksums on and with read(): a bad sector must not be a SIGBUS. A place
without a valid frame is one of two cases. Behind `flushed` of the checkpoint it is what a crash
left: the log ends there, and the tail is zeroed and synced before anything can be appended behind
it (docs/guarantees.md I10), so that recovering twice, or crashing in between, ends in the same log.
Before `flushed` it is damage: the disk has lost what it had. Recovery reports it and keeps the
frames that follow (I11). The damaged range is a gap that consumers skip. If no message of a queue
follows the gap, the lost messages keep their entries, as far as the queues or the frames' heads
still tell them, so that no other message gets their queue offsets. If nothing valid follows, the
log ends early, and the bytes that are cut off go to a side file (`store/log/truncated.py`). In both
cases an unfinished group is cut off as a whole, at its marker (`store/log/atomic_batches.py`): no
checkpoint lies in a group that was not flushed, so the scan has read the marker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from saturnmq.protocol.frame import BLANK_BYTES, FRAME_BYTES_MIN
from saturnmq.protocol.kernels import Run, Scan, ScanStatus, scan_frames
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.derived import Derived
from saturnmq.store.derived.reput import STEP_BYTES, Reput
from saturnmq.store.log.atomic_batches import AtomicBatch
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.resync import next_frame
from saturnmq.store.reading import OF_LOG, read, read_into
from saturnmq.store.recovery.checkpoint import NO_INDEX, Checkpoint
from saturnmq.store.recovery.repair import damaged_ranges

log = logging.getLogger(__name__)

_READ = 2 * STEP_BYTES


@dataclass(slots=True)
class RecoveryResult:
    """The findings of a recovery, for the log and metrics; offsets in bytes."""

    clean: bool
    scanned_from: int = 0
    end: int = 0
    messages: int = 0
    last_store_timestamp: int = 0
    stopped_by: str = ""
    gaps: list[tuple[int, int]] = field(default_factory=list)  # damage, as far as it was seen
    lost: int = 0  # flushed bytes at the end that are gone
    # Ranges that this disk once had and the log lacks, also those that an earlier start found.
    missing: list[tuple[int, int]] = field(default_factory=list)


Keep = Callable[[int, int], None]
"""Copies the bytes [first, second) of the log to a side file."""


def recover(
    commitlog: CommitLog,
    derived: Derived,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    keep: Keep,
    progress: Callable[[int, int], None] | None = None,
) -> RecoveryResult:
    """Bring log, queues and index to the same end. `keep` gets what of the log is cut off although
    it had been durable."""
    found = RecoveryResult(clean)
    if not commitlog.series.segments:
        derived.destroy()
        found.lost = max(checkpoint.flushed - max(checkpoint.start, 0), 0)
        return found
    places = _Places(commitlog, derived, checkpoint, found)
    begin = _start(commitlog, derived, checkpoint, places, clean=clean)
    derived.remove_deleted()
    scan = _Scan(commitlog, derived, checkpoint.flushed, found, progress)
    missing = scan.run(begin)
    if missing is not None:  # a queue lacks entries below the start
        log.warning("%s: rebuilding queues and index from the oldest segment", missing)
        derived.destroy(commitlog.start)
        derived.remove_deleted()
        found.messages = 0
        found.gaps.clear()
        scan.run(commitlog.start)
    # The log is cut where damage begins that no promised frame follows, and is sound before that.
    found.gaps = sorted(gap for gap in set(found.gaps) if gap[1] <= found.end)
    for start, end in found.gaps:
        log.error(
            "the CommitLog is damaged from %d to %d: what was there cannot be read, unless another "
            "node of the group has it",
            start,
            end,
        )
    places.keep()
    if found.stopped_by:
        log.warning("the CommitLog is cut at %d: %s", found.end, found.stopped_by)
    if found.end < checkpoint.flushed:
        found.lost = checkpoint.flushed - found.end
        log.error(
            "the bytes %d to %d of the CommitLog were on the disk and are gone",
            found.end,
            checkpoint.flushed,
        )
    known = checkpoint.flushed if checkpoint.flushed >= 0 else commitlog.series.end
    used = _used_end(commitlog, found.end, known)
    assert used >= found.end, f"bytes up to {used} are used, the log ends at {found.end}"
    if used > found.end:
        keep(found.end, used)
    commitlog.truncate(found.end)
    derived.truncate(found.end, commitlog.store_time_at)
    for queue in derived.queues:
        queue.correct_min(commitlog.start)
    return found


def _start(
    commitlog: CommitLog,
    derived: Derived,
    checkpoint: Checkpoint,
    places: _Places,
    *,
    clean: bool,
) -> int:
    """Cut queues and index to what can be trusted; the offset to read from."""
    oldest, end = commitlog.start, commitlog.series.end
    queues, index = derived.queues, derived.index
    known = oldest <= checkpoint.derived <= end and commitlog.may_end_at(checkpoint.derived)
    limit = end if clean or not known else checkpoint.derived
    ours = clean and known
    damaged = [
        queue
        for queue in queues
        if not queue.recover(limit, places.is_or_was_frame, nothing_behind=ours)
    ]
    for queue in damaged:
        log.error("queue %s/%d has lost entries: rebuilding", queue.topic, queue.queue_id)
        queue.destroy()
    whole = queues.non_empty() >= checkpoint.queues and not damaged
    if clean and not known and whole:
        begin = _newest_reached(commitlog, queues.max_physical())
    elif known and whole:
        begin = checkpoint.derived
    else:
        queues.destroy(oldest)
        begin = oldest
    if index is None:
        return begin
    if not clean or (known and index.name_of_newest() != checkpoint.index_name):
        index.restore(checkpoint.index_name if known else 0, checkpoint.index_header)
        indexed = index.indexed_to()
        if indexed is None and checkpoint.index_name == NO_INDEX and known:
            indexed = begin  # there was nothing to index
        begin = min(begin, max(oldest, oldest if indexed is None else indexed))
    index.resume()
    return begin


def _used_end(commitlog: CommitLog, start: int, end: int) -> int:
    """The end of what is not zero in [start, end) of the log, `start` if all is."""
    used = start
    for segment in commitlog.series.segments:
        stop = min(end, segment.end) - segment.start
        for first, last in segment.file.written(max(start - segment.start, 0)):
            for at in range(first, min(last, stop), STEP_BYTES):
                size = min(STEP_BYTES, min(last, stop) - at)
                data = read(segment.file, at, size, OF_LOG).rstrip(b"\0")
                used = segment.start + at + len(data) if data else used
    return used


def _newest_reached(commitlog: CommitLog, reached: int) -> int:
    for segment in reversed(commitlog.series.segments):
        if segment.start < reached:
            return segment.start
    return commitlog.start


class _Places:
    """Restores the queue entries of messages that lie in damage."""

    def __init__(
        self, commitlog: CommitLog, derived: Derived, checkpoint: Checkpoint, found: RecoveryResult
    ) -> None:
        self._log = commitlog
        self._derived = derived
        self._flushed = checkpoint.flushed
        self._found = found
        self._damaged: dict[int, list[tuple[int, int]]] = {}  # by the start of the segment

    def is_or_was_frame(
        self, offset: int, size: int, topic: str, queue_id: int, queue_offset: int
    ) -> bool:
        """As `CommitLog.is_frame`, also where the log is damaged now."""
        if self._log.is_frame(offset, size, topic, queue_id, queue_offset):
            return True
        segment = offset - offset % self._log.segment_bytes
        if segment not in self._damaged:
            limit = min(self._flushed, self._log.series.end)  # segments may be missing behind it
            end = min(segment + self._log.segment_bytes, limit)
            self._damaged[segment] = damaged_ranges(self._log, segment, end, limit)
        for start, end in self._damaged[segment]:
            if start <= offset and offset + size <= end:
                self._found.gaps.append((start, end))
                return True
        return False

    def keep(self) -> None:
        """Restore the entries of messages in gaps, if no message of their queue follows."""
        for start, end in self._found.gaps:
            for scan in self._heads(start, end):
                if all(self._can_be(run, end - start) for run in scan.runs):
                    self._derived.append(scan, [])

    def _can_be(self, run: Run, gap_bytes: int) -> bool:
        """Whether a gap of this size has room for all messages from the queue's end to the run."""
        topic, queue_id, first, count, _ = run
        queue = self._derived.queues.find(topic, queue_id)
        if queue is None or not queue.series.segments:
            return True  # it begins there
        return (first + count - queue.max_offset) * FRAME_BYTES_MIN <= gap_bytes

    def _heads(self, offset: int, end: int) -> Iterator[Scan]:
        """Read the heads of damaged frames, up to the first head that is damaged itself."""
        while offset < end:
            segment = self._log.series.find(offset)
            assert segment is not None, "a gap lies in the log"
            size = min(min(end, segment.end) - offset, _READ)
            data = memoryview(read(segment.file, offset - segment.start, size, OF_LOG))
            scan = scan_frames(
                data,
                0,
                len(data),
                offset,
                verify_crc=False,
                index=False,
                delay_ms=self._derived.delays_ms,
            )
            if not scan.next_pos:
                return
            yield scan
            offset += scan.next_pos


class _Scan:
    """Reads the log from some offset to its end and dispatches what it finds."""

    def __init__(
        self,
        commitlog: CommitLog,
        derived: Derived,
        flushed: int,
        found: RecoveryResult,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._log = commitlog
        self._derived = derived
        self._reput = Reput(commitlog, derived)
        self._flushed = flushed
        self._found = found
        self._progress = progress
        self._buffer = memoryview(bytearray(min(_READ, commitlog.segment_bytes)))
        self._base = 0  # the log's offset at the first byte of the buffer
        self._filled = 0

    def run(self, begin: int) -> str | None:
        """Dispatch everything from `begin`; return a text if a queue has a hole."""
        found = self._found
        found.scanned_from = offset = begin
        limit = self._log.series.end
        group: AtomicBatch | None = None  # the last one that begins in what was read
        expected = {key: queue.max_offset for key, queue in self._derived.queues.table.items()}
        holes = begin > self._log.start
        found.stopped_by = ""
        while offset < limit:
            self._read(offset)
            step = self._reput.dispatch(
                self._buffer, self._base, offset - self._base, self._filled, verify_crc=True
            )
            if step.groups:
                group = step.groups[-1]
            if step.messages:
                found.messages += step.messages
                found.last_store_timestamp = step.last_store_timestamp
            for arrival in step.arrivals if holes else ():
                key = arrival.topic, arrival.queue_id
                first = arrival.max_offset - arrival.messages
                if first != expected.get(key, 0):
                    return f"queue {arrival.topic}/{arrival.queue_id} lacks entries before {first}"
                expected[key] = arrival.max_offset
            before, offset = offset, step.next_offset
            assert before <= offset <= limit, f"from {before} to {offset}, the end is {limit}"
            if self._progress is not None:
                self._progress(offset - begin, limit - begin)
            if step.status in (ScanStatus.BLANK, ScanStatus.MORE) and offset > before:
                continue
            if step.status == ScanStatus.MORE and self._read_more(offset):
                continue
            if step.status == ScanStatus.END and self._used_up(offset):
                continue
            if step.status != ScanStatus.END and offset >= self._flushed:
                found.stopped_by = step.why or f"the frame at {offset} is longer than its segment"
            after = next_frame(self._log.series, offset, self._flushed)
            if after is None:
                break
            assert after > offset, f"damage from {offset} to {after}"
            holes = False  # the queues have holes here, and for ever
            found.gaps.append((offset, after))
            offset = after
        if group is not None and group.end > offset:
            found.stopped_by = (
                f"the group that begins there should end at {group.end}, the log ends at {offset}: "
                f"{found.stopped_by or 'it is not whole'}"
            )
            found.gaps = [gap for gap in found.gaps if gap[0] < group.start]
            offset = group.start
        found.end = offset
        assert self._log.start <= found.end <= limit, (self._log.start, found.end, limit)
        return None

    def _read(self, offset: int) -> None:
        """Have bytes from `offset` in the buffer, unless what is left of it fills a step."""
        left = self._base + self._filled - offset
        if self._base <= offset and left >= min(STEP_BYTES, self._end_of(offset) - offset):
            return
        self._fill(offset)

    def _used_up(self, offset: int) -> bool:
        """The scan ended for want of bytes: it takes up to 7 zeros for the end."""
        buffered = self._base + self._filled
        return buffered - offset < BLANK_BYTES and buffered < self._end_of(offset)

    def _fill(self, offset: int) -> None:
        segment = self._log.series.find(offset)
        assert segment is not None, f"{offset} lies between the ends of the log"
        self._filled = read_into(segment.file, offset - segment.start, self._buffer, OF_LOG)
        if not self._filled:
            raise StoreDamaged(f"{segment.file.path} ends before {offset - segment.start}")
        self._base = offset
        assert self._filled <= len(self._buffer), (self._filled, len(self._buffer))

    def _read_more(self, offset: int) -> bool:
        """Have more of the frame at `offset` in the buffer; False if it cannot be longer."""
        if self._base + self._filled == self._end_of(offset) and self._base == offset:
            return False
        if self._base == offset:
            size = min(2 * len(self._buffer), self._end_of(offset) - offset)
            self._buffer = memoryview(bytearray(size))
        self._fill(offset)
        return True

    def _end_of(self, offset: int) -> int:
        return offset - offset % self._log.segment_bytes + self._log.segment_bytes

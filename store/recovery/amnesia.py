"""Amnesia: a start that finds less of the log than was durable on this disk once.

The checkpoint is the evidence. It says where the log began (`start`, before its first segment is
made) and up to where it was durable (`flushed`, or `promised` of a start before this one that found
less): that is the promise. Any part of it that is not there is missing: the whole log after a lost
mount, its end after a disk that lied, or all behind a segment that is missing between others,
because those files are set aside. Segments go on behind the log's end, and one that begins behind
`start` tells that the front is missing, also when `flushed` is older than it. The cleaner is no
culprit: it moves `start` on, and until a checkpoint says so, the newest file it took waits in
`commitlog/deleted` (store/log/cleaner.py).

The promise stays in the checkpoint until the log has all of it again, or an operator settles the
matter (`MessageStore.settle`). `flushed` itself says what is durable now: between it and what was
promised a crash may leave anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from saturnmq.store.disk import Disk
from saturnmq.store.log.log_files import LogReader, SegmentFiles
from saturnmq.store.log.segments import SegmentSeries
from saturnmq.store.log.truncated import SideFiles
from saturnmq.store.recovery.checkpoint import Checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DurableRange:
    """The bytes [start, end) of the log were durable; `start` is -1 when it is unknown."""

    start: int
    end: int

    @classmethod
    def of(cls, page: Checkpoint, cleaned_to: int) -> DurableRange:
        """The range that this page promises for a log that was cleaned up to `cleaned_to`."""
        start = max(page.start, cleaned_to) if page.start >= 0 else -1
        return cls(start, max(page.flushed, page.promised))

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts that a log from `start` to `end` lacks; both are 0 without segments."""
        front = self.start, start
        rest = max(self.start, end), self.end
        assert 0 <= start <= end, f"a log from {start} to {end}"
        known = [rest] if self.start < 0 else [front, rest]
        return [(first, last) for first, last in known if first < last]

    def with_end(self, end: int) -> DurableRange:
        """Extend the range to `end`: the log has grown, and how far was not written down."""
        return replace(self, end=max(self.end, end))

    def cleaned(self, start: int) -> DurableRange:
        """The cleaner moved the log's start to `start`; nothing was missing before it."""
        assert start >= 0, f"the log begins at {start}"
        return replace(self, start=start) if 0 <= self.start < start else self

    def __str__(self) -> str:
        return f"{max(self.start, 0)} to {self.end}"


def set_aside_behind_hole(
    disk: Disk,
    root: str,
    page: Checkpoint,
    series: SegmentSeries,
    side_files: SideFiles,
    now_ms: Callable[[], int],
) -> None:
    """Before the segments are opened: where one is missing between others the log ends, and the
    files behind become side files, durably. `page` is saved first if it does not promise what they
    tell: that the log went up to where their frames end.
    """
    behind = series.behind_hole()
    if not behind:
        return
    hole = behind[0][0]
    assert hole % series.segment_bytes == 0, f"the segment behind the hole begins at {hole}"
    promised = max(page.flushed, page.promised)
    reach = _frames_end(disk, series, [start for start, _ in behind])
    if promised < 0:
        reach = max(reach, hole)
    if promised < reach:
        page.promised = reach
        page.save(disk, root)
    for start, path in behind:
        kept = side_files.take(
            path,
            start,
            start + series.segment_bytes,
            time_ms=now_ms(),
            reason=f"a segment before {hole} is missing",
        )
        log.error(
            "%s lies behind a missing segment that ended at %d: it is no part of the log any more, "
            "its %d messages are in %s now",
            path,
            hole,
            kept.messages,
            kept.file,
        )


def _frames_end(disk: Disk, series: SegmentSeries, starts: list[int]) -> int:
    """The end of the last frame in the segments at `starts`, -1 if they hold none."""
    for start in reversed(starts):
        files = SegmentFiles(disk, series.directory, series.segment_bytes)
        files.keep_only(start)
        reader = LogReader(files, index=False)
        for _ in reader.read(start):
            pass
        files.close()
        if reader.end > start:
            return reader.end
    return -1

"""What happens between opening the files and the first request.

Where to start reading the log:
  clean stop     at `derived` of our checkpoint; without it, at the newest segment whose first frame
                 every queue has reached
  crash          at `derived` too: entries below it were durable, everything behind is cut from the
                 queues and built again. The index file that was being filled is dropped, and
                 reading starts where it began. Without our part of the checkpoint (a RocketMQ
                 store), or when queue files are missing: everything is rebuilt from the oldest
                 segment
Frames are read with checksums on. The first place that holds no valid frame is the end: the tail is
zeroed and synced before anything can be appended behind it (fault-model.md I10), so that recovering
twice, or crashing in between, ends in the same log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from saturnmq.store.checkpoint import Checkpoint
from saturnmq.store.commitlog import CommitLog
from saturnmq.store.indexfile import Index
from saturnmq.store.queues import Queues
from saturnmq.store.reput import Reput

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovery:
    """What was found, for the log and metrics."""

    clean: bool
    scanned_from: int = 0
    end: int = 0
    messages: int = 0
    last_store_timestamp: int = 0
    stopped_by: str = ""


def recover(
    commitlog: CommitLog,
    queues: Queues,
    index: Index | None,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Recovery:
    """Bring log, queues and index to the same end."""
    found = Recovery(clean)
    series = commitlog.series
    if not series.segments:
        queues.destroy()
        if index is not None:
            index.destroy()
        return found
    begin = _start(commitlog, queues, index, checkpoint, clean)
    result = _scan(commitlog, queues, index, begin, found, progress)
    if result is not None:  # a queue lacks entries below the start
        log.warning("%s: rebuilding all queues from the oldest segment", result)
        queues.destroy()
        if index is not None:
            index.destroy()
        found.messages = 0
        _scan(commitlog, queues, index, series.start, found, progress)
    commitlog.truncate(found.end)
    for queue in queues:
        queue.truncate(found.end)
        queue.correct_min(commitlog.start)
    if index is not None:
        index.truncate(found.end)
    queues.reset_next()
    return found


def _start(
    commitlog: CommitLog,
    queues: Queues,
    index: Index | None,
    checkpoint: Checkpoint,
    clean: bool,
) -> int:
    """Cut the queues to what can be trusted; the offset to read from."""
    oldest = commitlog.start
    derived = checkpoint.derived
    if not oldest <= derived <= commitlog.series.end:
        derived = -1
    if clean:
        for queue in queues:
            queue.recover(commitlog.series.end)
        reached = queues.max_physical()
        if derived >= 0 and reached >= 0 and queues.non_empty() >= checkpoint.queues:
            return derived
        return _newest_reached(commitlog, reached) if reached >= 0 else oldest
    if derived < 0 or queues.non_empty() < checkpoint.queues:
        derived = oldest
    if derived == oldest:
        queues.destroy()
    for queue in queues:
        queue.recover(derived)
    if index is None:
        return derived
    wanted = index.rebuild_from()
    wanted = oldest if wanted is None else wanted
    if wanted >= derived:
        return derived
    # `wanted` is inside a frame (its start + 1): begin at the segment, what is known is skipped
    segment = commitlog.series.find(wanted)
    return oldest if segment is None else max(oldest, segment.start)


def _newest_reached(commitlog: CommitLog, reached: int) -> int:
    for segment in reversed(commitlog.series.segments):
        if segment.start < reached:
            return segment.start
    return commitlog.start


def _scan(
    commitlog: CommitLog,
    queues: Queues,
    index: Index | None,
    begin: int,
    found: Recovery,
    progress: Callable[[int, int], None] | None,
) -> str | None:
    """Dispatch everything from `begin`; a text if a queue turned out to have a hole."""
    reput = Reput(commitlog, queues, index)
    found.scanned_from = offset = begin
    limit = commitlog.series.end
    commitlog.end = limit
    holes = begin > commitlog.start
    known = {key: queue.max_offset for key, queue in queues.table.items()}
    while offset < limit:
        step = reput.step(offset, limit, verify_crc=True)
        if step.messages:
            found.messages += step.messages
            found.last_store_timestamp = step.last_store_timestamp
        if holes:
            for arrival in step.arrivals:
                key = arrival.topic, arrival.queue_id
                first = arrival.max_offset - len(arrival.entries) // 20
                if first != known.get(key, 0):
                    return f"queue {arrival.topic}/{arrival.queue_id} lacks entries before {first}"
                known[key] = arrival.max_offset
        advanced = step.next_offset > offset
        offset = step.next_offset
        if progress is not None:
            progress(offset - begin, limit - begin)
        segment_end = offset - offset % commitlog.segment_bytes + commitlog.segment_bytes
        if not advanced or step.status == "damage":
            found.stopped_by = step.why
            break
        if step.status == "end" and offset < segment_end and _is_zero(commitlog, offset):
            break
    found.end = offset
    if found.stopped_by:
        log.warning("the CommitLog is cut at %d: %s", offset, found.stopped_by)
    return None


def _is_zero(commitlog: CommitLog, offset: int) -> bool:
    segment = commitlog.series.find(offset)
    return segment is None or not any(segment.view[offset - segment.start :][:8])

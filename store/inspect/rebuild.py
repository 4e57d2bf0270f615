"""Building ConsumeQueues and IndexFiles again from the CommitLog, which is only read.

Safe to interrupt: first `abort` is there and the checkpoint says of no entry that it is durable, so
that whoever starts next, our broker, RocketMQ's or another rebuild, builds everything from the
oldest segment; only then is anything deleted. The checkpoint keeps what it knows of the log itself,
and damage in the middle of the log is skipped (`store/log/log_files.py`). Queues all of whose
messages were deleted stay: nothing could build them again, and their end is their next offset.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field

from saturnmq.protocol.frame import FRAME_BYTES_MIN, store_timestamp_of
from saturnmq.protocol.frame_reference import BATCH_UNIT
from saturnmq.store.derived.consumequeue import ENTRY, UNIT
from saturnmq.store.derived.derived import Derived
from saturnmq.store.derived.indexfile import Index
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.derived.tombstones import read_tombstones
from saturnmq.store.disk import Disk
from saturnmq.store.inspect.verify import (
    UNKNOWN,
    Progress,
    Sizes,
    check_sizes,
    directories,
    expected_end,
    found_sizes,
    is_queue,
    open_log,
)
from saturnmq.store.log.atomic_batches import AtomicBatch, groups_in
from saturnmq.store.log.log_files import NOTHING, Gap, LogReader, SegmentFiles
from saturnmq.store.recovery.checkpoint import AbortMark, Checkpoint


@dataclass(slots=True)
class Rebuilt:
    """The result of a rebuild; offsets and sizes in bytes."""

    directory: str
    sizes: Sizes
    log_start: int = 0
    log_end: int = 0
    messages: int = 0
    queues: int = 0
    index_items: int = 0
    gaps: list[Gap] = field(default_factory=list)
    stopped_by: str = ""  # the reason, if the log ends irregularly
    missing: int = 0  # bytes behind its end that were durable once
    not_queues: int = 0  # runs of frames whose topic or numbers can name no queue


def rebuild(
    disk: Disk,
    root: str,
    now_ms: Callable[[], int],
    sizes: Sizes = UNKNOWN,
    progress: Progress | None = None,
) -> Rebuilt:
    """Refused with DirectoryLocked while a broker runs there, and with ConfigError where the files
    contradict `sizes`."""
    files = open_log(disk, root, sizes)
    lock = disk.lock(posixpath.join(root, "lock"))
    try:
        check_sizes(disk, root, sizes)
        sizes = found_sizes(disk, root, sizes)
        return _DirectoryRebuild(disk, root, now_ms, files, sizes).run(progress)
    finally:
        files.close()
        lock.release()


def is_over(
    disk: Disk, directory: str, queue_file_bytes: int, log_start: int, unit: int = UNIT
) -> bool:
    """Whether these are sound files of a queue without a message left in a log that begins
    at `log_start`."""
    files = SegmentFiles(disk, directory, queue_file_bytes)
    if files.odd or not files.segments:
        return False
    newest = files.segments[-1]
    written = files.read(newest.start, newest.size).rstrip(b"\0")
    files.close()
    at = max(len(written) - 1, 0) // unit * unit
    offset, size, _ = ENTRY.unpack_from(written.ljust(at + unit, b"\0"), at)
    return bool(size > 0 and 0 <= offset + size <= log_start)


class _DirectoryRebuild:
    """One rebuild of one directory, whose lock is held."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        now_ms: Callable[[], int],
        files: SegmentFiles,
        sizes: Sizes,
    ) -> None:
        self._disk = disk
        self._root = root
        self._files = files
        self._abort = AbortMark(disk, root)
        self._page = Checkpoint.load(disk, root)
        self._derived = Derived(
            QueueTable(
                disk,
                posixpath.join(root, "consumequeue"),
                sizes.queue_file_bytes,
                batch_bytes=sizes.batch_file_bytes,
            ),
            Index(
                disk, posixpath.join(root, "index"), sizes.index_slots, sizes.index_items, now_ms
            ),
            time_at=lambda offset: store_timestamp_of(files.read(offset, FRAME_BYTES_MIN)),
        )
        self._built = Rebuilt(root, sizes, log_start=files.start)

    def run(self, progress: Progress | None) -> Rebuilt:
        try:
            clean = not self._abort.present()
            self._forget()
            self._derived.load(clean=clean)
            self._derived.queues.bury(read_tombstones(self._disk, self._root))
            for queue in self._derived.queues:
                queue.recover(self._files.end, _any_frame)
            self._derived.remove_deleted()
            known = max(self._page.flushed, self._page.derived)
            reader = LogReader(self._files, cut_from=known if known >= 0 else None)
            last_store_time = self._build(reader, progress)
            if not clean:
                self._make_log_durable(max(known, 0))
            self._promise(self._built.log_end, last_store_time)
            if clean:
                self._abort.clear()
        finally:
            self._derived.close()
        return self._built

    def _forget(self) -> None:
        """Let the next start build everything again, until `_promise`."""
        self._abort.set()
        page = self._page
        blank = Checkpoint(
            master_flushed=page.master_flushed,
            confirm=page.confirm,
            flushed=page.flushed,
            identity=page.identity,
            start=page.start,
            promised=page.promised,
        )
        blank.save(self._disk, self._root)
        self._disk.remove_tree(posixpath.join(self._root, "index"))
        sizes, start = self._built.sizes, self._files.start
        for name, size, unit in (
            ("consumequeue", sizes.queue_file_bytes, UNIT),
            ("batchconsumequeue", sizes.batch_file_bytes, BATCH_UNIT.size),
        ):
            for topic in directories(self._disk, posixpath.join(self._root, name)):
                for queue in directories(self._disk, topic):
                    if not is_over(self._disk, queue, size, start, unit):
                        self._disk.remove_tree(queue)

    def _build(self, reader: LogReader, progress: Progress | None) -> int:
        built = self._built
        total = expected_end(self._files) - built.log_start
        last_store_time = 0
        group: AtomicBatch | None = None
        for piece in reader.read(built.log_start):
            if isinstance(piece, Gap):
                built.gaps.append(piece)
                continue
            scan = piece.scan
            runs = [run for run in scan.runs if is_queue(run)]
            batches = [run for run in scan.batches if is_queue(run)]
            group = next(reversed([*groups_in(runs, self._files.read)]), group)
            built.not_queues += len(scan.runs) - len(runs) + len(scan.batches) - len(batches)
            self._derived.append(scan._replace(runs=runs, batches=batches), [])
            built.messages += scan.messages
            built.index_items += len(scan.index_items) // 20
            last_store_time = scan.last_store_ts if scan.messages else last_store_time
            if progress is not None:
                done = reader.end - built.log_start
                progress(done, max(total, done))
        built.log_end = reader.end
        if progress is not None:  # the log's end is known now
            progress(reader.end - built.log_start, reader.end - built.log_start)
        if group is not None and group.end > reader.end:
            built.log_end = group.start  # the next start of a broker cuts it off there
        built.queues = self._derived.queues.non_empty()
        if reader.stopped_by != NOTHING:
            built.stopped_by = reader.stopped_by
        return last_store_time

    def _make_log_durable(self, known: int) -> None:
        """Sync the log: a killed broker may have left bytes in the page cache only."""
        for segment in self._files.segments:
            if segment.start + segment.size > known:
                file = self._disk.open_segment(segment.path, segment.size)
                file.flush(0, segment.size)
                file.close()

    def _promise(self, end: int, last_store_time: int) -> None:
        mark = self._derived.flush()
        page = self._page
        self._built.missing = max(page.flushed, page.promised, end) - end
        # `flushed` stays where more was durable: the next start has to notice that it is gone.
        page.derived, page.flushed = end, max(end, page.flushed)
        page.queues = self._built.queues
        page.physic = page.logics = last_store_time
        if mark is not None:
            page.index_name, page.index_header = mark.name, mark.header
            page.index = mark.full_until
        page.save(self._disk, self._root)


def _any_frame(offset: int, size: int, topic: str, queue_id: int, queue_offset: int) -> bool:
    """The queues' ends are only looked at to tell what is deleted."""
    return True

"""MessageStore: the door to everything on disk. One writer calls it; watermarks come out.

All methods are for the owner of the store (the broker's event loop). A thread beside it may run
some: FlushTicket.run, prepare_ahead, make_room_ahead, flush_derived, check_files, checkpoint.

A failed flush is final (docs/guarantees.md S1): the store refuses writes from then on, names the
first error, and stays readable.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from saturnmq.protocol.sql92 import Sql
from saturnmq.runtime.door import Runtime, is_short_of_descriptors
from saturnmq.runtime.errors import SaturnError, ServiceNotAvailable
from saturnmq.runtime.steps import at_once
from saturnmq.store.config import StoreConfig
from saturnmq.store.derived.consumequeue import ConsumeQueue
from saturnmq.store.derived.derived import Arrival, Derived
from saturnmq.store.derived.dispatching import Dispatching
from saturnmq.store.derived.indexfile import Index
from saturnmq.store.derived.lookup import GetResult, GetStatus, Lookup
from saturnmq.store.derived.queue_files import QueueFiles
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.derived.reput import Reput, times_in
from saturnmq.store.derived.room import Rooms
from saturnmq.store.derived.tombstones import Tombstone, read_tombstones
from saturnmq.store.disk import Advice, DirectoryLock, Disk, remedy
from saturnmq.store.log.atomic_batches import AtomicBatchPart, Groups, Marker
from saturnmq.store.log.cleaner import MANUAL_PASSES, Cleaner, CleanTicket, Space
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.flush_ticket import FlushTicket, LogFailed
from saturnmq.store.log.resync import next_frame
from saturnmq.store.log.transient_pool import TransientStorePool
from saturnmq.store.log.truncated import SideFile, SideFiles, Truncated
from saturnmq.store.log.writer import AppendResult, PendingMessage, Writer
from saturnmq.store.offsets import PhysicalOffset, QueueOffset, StoreTime
from saturnmq.store.recovery.amnesia import DurableRange, set_aside_behind_hole
from saturnmq.store.recovery.checkpoint import INDEX_UNKNOWN, AbortMark, Checkpoint
from saturnmq.store.recovery.recovery import RecoveryResult, recover
from saturnmq.store.recovery.repair import check_repair, damaged_ranges
from saturnmq.store.watermarks import Watermarks

__all__ = [
    "AppendResult",
    "Arrival",
    "AtomicBatchPart",
    "FlushTicket",
    "GetResult",
    "GetStatus",
    "Marker",
    "MessageStore",
    "PendingMessage",
    "StoreConfig",
    "Truncated",
]

log = logging.getLogger(__name__)

_PIECE = 1 << 20
_INDEXED_AGAIN = 64 << 20  # bytes of the log: a second, in which nothing else is done


class MessageStore:
    """See the module's text; made by `open`."""

    def __init__(
        self, config: StoreConfig, disk: Disk, runtime: Runtime, lock: DirectoryLock
    ) -> None:
        self.config = config
        self.watermarks = Watermarks()
        self._failed: str | None = None
        self.recovery = RecoveryResult(clean=True)
        # The end of the log that consumers could see when the last run ended, bounded by the log's
        # present end. The whole log counts if the checkpoint does not say.
        self.recovered_confirm = 0
        # The identity of the group of brokers that owns this log, read from the checkpoint. The
        # broker sets it when it learns more, and the next checkpoint saves it.
        self.identity = ""
        self._disk = disk
        self._runtime = runtime
        self._lock = lock
        root, segment_bytes = config.root, config.commitlog_segment_bytes
        pool = None
        if config.transient_pool:
            size, fail_fast = config.transient_pool_size, config.transient_fail_fast
            pool = TransientStorePool(disk, size, segment_bytes, fail_fast=fail_fast)
        self._log = CommitLog(
            disk,
            posixpath.join(root, "commitlog"),
            segment_bytes,
            ahead=config.zero_ahead_bytes,
            sync_zeros=config.sync_zeros,
            pool=pool,
            advice=_advice(config),
            begins=self._log_begins,
        )
        directory = posixpath.join(root, "consumequeue")
        warm = (Advice.WARM,) if config.warm_files else ()
        self._rooms = Rooms(disk)
        files = QueueFiles(disk, self._rooms, config.queue_files_mapped)
        sizes = config.consumequeue_segment_bytes, config.batch_queue_segment_bytes
        queues = QueueTable(disk, directory, sizes[0], warm, files, batch_bytes=sizes[1])
        index: Index | None = None
        if config.index_enable:
            directory = posixpath.join(root, "index")
            slots, items = config.index_slots, config.index_items
            index = Index(disk, directory, slots, items, runtime.now_ms, self._rooms)
        self._queues = queues
        self._derived = Derived(queues, index, config.delays_ms, times_in(self._log))
        self._abort = AbortMark(disk, root)
        self._promise: DurableRange | None = None  # while the log lacks some of it
        self._saving = disk.mutex()  # of the checkpoint
        self._checkpoint = Checkpoint()
        self._saved = Checkpoint()
        self._side_files = SideFiles(disk, root, segment_bytes)
        self._reput = Reput(self._log, self._derived)
        self._groups = Groups(self._log, queues)
        self._dispatching = Dispatching(
            self._log,
            self._derived,
            self._reput,
            self._groups,
            self.watermarks,
            lambda start, end: self.recovery.gaps.append((start, end)),
        )
        limits = config.read_limits(disk.memory_bytes())
        self._lookup = Lookup(self._log, queues, index, limits)
        self._writer = Writer(
            config, self._log, queues, self._groups, self.watermarks, runtime.now_ms
        )
        self._cleaner = Cleaner(disk, self._log, self._derived, config)
        self._untold: list[Arrival] = []  # arrivals that `_dispatch` made and nobody took yet
        self._flushing: FlushTicket | None = None
        self._raw_end = 0  # a slave's bytes up to here may end within a frame
        self._whole_frames = 0  # the end of the last whole frame when the flush under way began
        self._flushed_frames = 0  # the same for the last flush that completed
        self._closed = False

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        disk: Disk,
        runtime: Runtime,
        progress: Callable[[int, int], None] | None = None,
    ) -> MessageStore:
        """Lock, load, recover; `progress(done, total)` is called in bytes."""
        try:
            disk.make_dirs(config.root)
            lock = disk.lock(posixpath.join(config.root, "lock"))
            store = cls(config, disk, runtime, lock)
            try:
                store._load(progress)
            except BaseException:
                store._release()
                raise
        except OSError as error:
            if error.errno == errno.ENOMEM or is_short_of_descriptors(error):
                raise ServiceNotAvailable(
                    f"the store in {config.root} cannot be opened: {error}; {remedy(error)}"
                ) from error
            raise
        return store

    def _load(self, progress: Callable[[int, int], None] | None) -> None:
        clean = not self._abort.present()
        page = self._checkpoint = Checkpoint.load(self._disk, self.config.root)
        self.identity = page.identity
        self._side_files.load()
        series, now_ms = self._log.series, self._runtime.now_ms
        series.set_aside()
        set_aside_behind_hole(self._disk, self.config.root, page, series, self._side_files, now_ms)
        promise = DurableRange.of(page, self._cleaner.taken_to())
        self._cleaner.finish_leftovers(page.start)
        self._log.load(clean=clean)
        self._derived.load(clean=clean)
        tables = posixpath.join(self.config.root, "config")
        if not clean and self._disk.exists(tables):
            # The table must be durable before files are deleted because of it. A power cut could
            # bring back an older copy, which relies on those files.
            self._disk.sync_dir(tables)
        self._queues.bury(read_tombstones(self._disk, self.config.root))
        self._abort.set()  # before anything changes: a crash during recovery is a crash
        if not clean:
            self._log.forget_from(page.flushed)
        self.recovery = recover(
            self._log, self._derived, page, clean=clean, keep=self._keep, progress=progress
        )
        self._queues.started()
        stamp = self.recovery.last_store_timestamp or page.physic
        self._writer.last_store_timestamp = self._dispatching.last_store_timestamp = stamp
        if not clean:
            # The bytes that recovery found may be in the page cache only (kill -9 without a sync).
            # They count as flushed, and under sync flush as readable, only after a sync.
            self._log.ticket(min(max(page.flushed, self._log.start), self._log.end), 0).run()
        end = self._log.end
        self.watermarks.reset(self._log.start, end, flushed=end, dispatched=end)
        self._groups.recovered(end)
        self._flushed_frames = end
        self.recovery.missing = promise.missing(self._log.start, end)
        if self.recovery.missing:
            self._promise = promise.with_end(end)
            log.error("%s", self.amnesia)
        page.flushed, page.derived = min(page.flushed, end), min(page.derived, end)
        page.confirm = min(page.confirm, end)
        gaps = (start for start, _ in self.recovery.gaps)  # another node may mend these
        self.recovered_confirm = min([page.confirm or end, *gaps])
        self.flush_derived()
        self.checkpoint()
        self._cleaner.finish_leftovers(self._saved.start)
        self._cleaner.look()

    def _keep(self, start: int, end: int) -> None:
        """Save a range of the log to a side file; see `recover`."""
        kept = self._side_files.save(
            self._log.read_into,
            start,
            end,
            epoch=0,
            time_ms=self._runtime.now_ms(),
            reason="a start found no valid frame there, though it had been flushed",
        )
        log.error("the bytes %d to %d of the CommitLog are in %s now", start, end, kept.file)

    def validate(self) -> None:
        """AssertionError: the parts of this store contradict each other. One that failed may."""
        if self.failed is None and not self._closed:
            self._log.validate(self.watermarks)
            self._derived.validate(self._log.end)
            self._groups.validate()
            self._saved.validate(self.watermarks.flushed)

    # amnesia

    @property
    def missing(self) -> list[tuple[int, int]]:
        """The ranges of the log that were durable on this disk once and are not now."""
        if self._promise is None:
            return []
        return self._promise.missing(self._log.start, self.watermarks.flushed)

    def lacks_front(self, begins: int) -> bool:
        """Whether bytes are missing before the log's first segment, given that the log begins at
        `begins`. Such a log must be copied back from its beginning, because a log grows only at its
        end."""
        start = self._log.start
        return any(first < start and begins < last for first, last in self.missing)

    @property
    def amnesia(self) -> str:
        """Describe the missing part of the log; an empty text if nothing is missing (see
        `store/recovery/amnesia.py`). While something is missing, the store accepts bytes that are
        copied back (`append_raw`) but no messages."""
        if self._promise is None or not (missing := self.missing):
            return ""
        return (
            f"{self._log.series.directory} lacks the bytes "
            f"{' and '.join(f'{start} to {end}' for start, end in missing)} of the log, which had "
            f"{self._promise} on this disk once"
        )

    def settle(self) -> None:
        """Blocking: declare that nothing is missing any more. Either the log was copied back, from
        wherever the other node's log begins, or an operator goes on without it. The change is
        durable on return. OSError: nothing has changed."""
        promise, self._promise = self._promise, None
        self._checkpoint.flushed = max(self._checkpoint.flushed, self._durable_end())
        try:
            self.checkpoint()
        except OSError:
            self._promise = promise
            raise

    # damage

    def damage(self, start: int, end: int) -> list[tuple[int, int]]:
        """Blocking: return the ranges without sound frames that overlap [start, end) of the
        dispatched log; see `repair.damaged_ranges`."""
        return damaged_ranges(self._log, start, end, self.watermarks.dispatched)

    def repair(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Blocking: replace a range that `damage` returned by another node's bytes, which must be
        whole, sound frames of this log. The bytes are synced on return. Their queue entries follow
        at once, or at the next start after a crash. Nothing else may be under way, as for
        `truncate`.

        StoreDamaged: the bytes do not fit, and nothing has changed. Another error: the store
        takes no more writes.
        """
        self._check_open()
        view, dispatched = memoryview(data), self.watermarks.dispatched
        scans = check_repair(self._log, offset, view, dispatched, self._derived.delays_ms)
        try:
            # After a crash from here on, the next start builds queues and index again from this
            # place.
            self._checkpoint.derived = min(self._checkpoint.derived, offset)
            self._checkpoint.index_name = INDEX_UNKNOWN
            self.checkpoint()
            self._log.overwrite(offset, view)
            left = sum(self._derived.restore(scan) for scan in scans)
            self._index_again(offset)
        except (OSError, SaturnError) as error:  # a queue's file may be busy: SystemBusy
            self._failed = self.failed or f"{type(error).__name__}: {error}"
            raise
        end = offset + len(view)
        gaps = self.recovery.gaps
        gaps[:] = [gap for gap in gaps if not (offset <= gap[0] and gap[1] <= end)]
        count = sum(scan.messages for scan in scans)
        log.warning("the CommitLog is repaired from %d to %d: %d messages", offset, end, count)
        if left:
            log.error(
                "%d of these messages have no place in their queues: it lies before the first "
                "file, or other messages took it; `saturnmq store rebuild` mends the former",
                left,
            )

    def _index_again(self, offset: int) -> None:
        """Rebuild the index from `offset` on. Index items lie in log order, and a start that skips
        damage adds no items for it."""
        index, end = self._derived.index, self.watermarks.dispatched
        if index is None:
            return
        if end - offset > _INDEXED_AGAIN:
            log.error(
                "messages of the repaired range may not be found by their keys: the index is not "
                "built again for %d MB behind it, `saturnmq store rebuild` does that",
                (end - offset) >> 20,
            )
            return
        index.truncate(offset, self._log.store_time_at)
        while offset < end:
            # the queues already have all entries
            reached: int = self._reput.step(offset, end).next_offset
            if reached == offset:
                reached = next_frame(self._log.series, offset, end) or end
            offset = reached

    # writing

    @property
    def failed(self) -> str | None:
        """The first write or sync that failed. The failure is final."""
        return self._failed or self._writer.failed

    def _check_open(self) -> None:
        if self.failed is not None:
            raise ServiceNotAvailable(
                f"the store takes no more writes, the disk failed: {self.failed}; "
                "check the disk, then restart the broker"
            )
        if self._closed:
            raise ServiceNotAvailable("the store is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self._promise is not None and self.amnesia:
            raise ServiceNotAvailable(
                f"{self.amnesia}: the store takes no messages until they are copied back from "
                "another node, or `saturnmq admin promote GROUP NODE --force` goes on without them"
            )
        if self.refuses:
            raise ServiceNotAvailable(self.refuses)

    @property
    def refuses(self) -> str:
        """The reason why sends are refused although nothing failed. The state ends by itself."""
        space = self._cleaner.space
        if space.full:
            return (
                f"the disk is used to {space.percent} %, no sends beyond "
                f"{self.config.disk_levels.warning} % (diskSpaceWarningLevelRatio): free some "
                "space, or say how many free bytes are enough (diskSpaceEnoughBytes)"
            )
        return self._dispatching.no_room

    def put(
        self, message: PendingMessage, *, is_copy: bool = False, inner: int = 0
    ) -> AppendResult:
        """Append one message; see `Writer`. A SaturnError says why the store refuses it."""
        self._check_writable()
        return self._writer.put(message, is_copy=is_copy, inner=inner)

    def put_adjacent(self, messages: Sequence[PendingMessage]) -> list[AppendResult]:
        """Append messages of the broker's own, each right behind the one before; see `Writer`."""
        self._check_writable()
        return self._writer.put_adjacent(messages)

    def put_batch(
        self, topic: str, queue_id: int, body: bytes | bytearray | memoryview, **fields: Any
    ) -> AppendResult:
        """Append every entry of a MessageBatch body, or none; see `Writer`."""
        self._check_writable()
        return self._writer.put_batch(topic, queue_id, body, **fields)

    # atomic batches

    @property
    def in_group(self) -> bool:
        """An atomic batch is being appended. Until it ends, `put` and `put_batch` are refused."""
        return self._writer.in_group

    def measure_part(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        sys_flag: int = 0,
        hosts_v6: int = 0,
    ) -> tuple[int, int]:
        """Return (messages, bytes of frames) of a batch that is part of an atomic batch. A
        SaturnError says why it cannot be stored, now or ever."""
        self._check_writable()
        return self._writer.measure(topic, body, sys_flag=sys_flag, hosts_v6=hosts_v6)

    def append_group(
        self, document: bytes, parts: Sequence[AtomicBatchPart], *, store_host: bytes = bytes(8)
    ) -> Generator[AppendResult | None, None, None]:
        """Append these parts behind a marker, all or none; see `Writer.append_group`."""
        self._check_writable()
        return self._writer.append_group(document, parts, store_host=store_host)

    def put_marker(self, document: bytes, *, store_host: bytes = bytes(8)) -> AppendResult:
        """Append a marker without an atomic batch behind it."""
        self._check_writable()
        return self._writer.put_marker(document, store_host=store_host)

    def align_to_batch(self, offset: int) -> PhysicalOffset:
        """Return the last offset up to `offset` that lies inside no atomic batch."""
        return PhysicalOffset(self._groups.align_to_batch(offset))

    def marker(self, queue_offset: int) -> Marker | None:
        """Return a dispatched marker; None if there is none at this place, or no longer."""
        return self._groups.marker(queue_offset)

    @property
    def markers(self) -> tuple[int, int]:
        """Return the queue offsets [first, end) of the dispatched markers."""
        return self._groups.range

    def append_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Append the master's bytes at the master's offset. A slave does so even when its disk is
        too full for sends."""
        self._check_open()
        self._writer.append_raw(offset, data)
        self._raw_end = self._log.end

    # flushing

    def begin_commit(self) -> FlushTicket | None:
        """Return a ticket for the bytes that wait in the transient pool, unless one is under
        way."""
        if not self.config.transient_pool or self.failed is not None or self._flushing is not None:
            return None
        ticket = self._log.commit_ticket()
        self._flushing = ticket if ticket.commits else None
        return self._flushing

    def complete_flush(self, ticket: FlushTicket, error: BaseException | None = None) -> None:
        """Report how the `run` of a flush or a commit ended."""
        if error is not None:
            self._failed = self.failed or f"{type(error).__name__}: {error}"
        if self._flushing is ticket and self.failed is None:
            self._log.committed_to(ticket.target)
            if ticket.ranges:
                self.watermarks.flushed = ticket.target
                self._flushed_frames = self._whole_frames
                self._checkpoint.physic = max(self._checkpoint.physic, ticket.store_timestamp)
                if self._promise is not None and not self.missing:
                    log.info("the log has all of %s again", self._promise)
                    self._promise = None
        self._flushing = None

    def begin_flush(self) -> FlushTicket | None:
        """Return a ticket for the next flush. None: nothing is dirty, a flush is under way, or the
        store failed."""
        if self.failed is not None or self._flushing is not None:
            return None
        if self._log.end <= self.watermarks.flushed:
            return None
        self._flushing = self._log.ticket(
            self.watermarks.flushed, self._writer.last_store_timestamp
        )
        dispatched = self.watermarks.dispatched
        self._whole_frames = dispatched if self._raw_end > dispatched else self._log.end
        return self._flushing

    def prepare_ahead(self) -> None:
        """Blocking: zero the log ahead of the writer and create the next segments. OSError: there
        is no room now. A failed sync fences the store, as everywhere."""
        if self.failed is None and not self._closed:
            try:
                self._log.prepare_ahead()
            except LogFailed as error:
                self._failed = self.failed or str(error)

    def make_room_ahead(self) -> None:
        """Blocking: make room where queue and index files grow, and their next files; as above."""
        if self.failed is None and not self._closed:
            self._rooms.make_ahead()

    @property
    def wants_room(self) -> bool:
        """Whether `make_room_ahead` has work."""
        return bool(self._rooms.waiting)

    # dispatch

    def reput(self) -> list[Arrival]:
        """Dispatch one bounded step; an empty list means that nothing is left to dispatch now. See
        `Dispatching`."""
        try:
            return self._dispatching.step()
        finally:  # also when damage ends what was dispatched
            writer, stamp = self._writer, self._dispatching.last_store_timestamp
            writer.last_store_timestamp = max(writer.last_store_timestamp, stamp)

    def settle_index(self) -> None:
        """Give the index what `reput` has dispatched; see `Dispatching`."""
        self._dispatching.settle_index()

    def take_untold(self) -> list[Arrival]:
        """Return, once, the arrivals that a truncation dispatched. No caller of `reput` has seen
        them."""
        untold, self._untold = self._untold, []
        return untold

    @property
    def unsynced_queue_files(self) -> int:
        """How many files the next `flush_derived` syncs, beside those of the index."""
        return self._queues.unsynced

    def flush_derived(self) -> None:
        """Blocking: make queue entries and index items durable, then move `derived` to their end.

        `derived` never passes `flushed`: a checkpoint may lag behind the log, but never lead it.
        `derived` also lies between two frames, although a slave's flush may end within one, and
        never passes what the index has. After a failure the page cache claims entries that the disk
        does not have: the store takes no more writes, and the next start builds the entries again.
        If only file descriptors were lacking, the next call tries again instead.
        """
        if self.failed is not None:
            return
        page = self._checkpoint
        dispatched, flushed = self.watermarks.dispatched, self._durable_end()
        # Read after `dispatched`: the loop goes on meanwhile.
        unindexed = self._derived.unindexed_from
        reach = min(dispatched, flushed, dispatched if unindexed is None else unindexed)
        stamp = self._dispatching.last_store_timestamp
        stamp = min(stamp, page.physic or stamp)
        count = self._queues.non_empty()
        try:
            mark = self._derived.flush()
        except OSError as error:
            if is_short_of_descriptors(error):
                raise  # nothing was tried: the next call does everything
            self._failed = f"{type(error).__name__}: {error}"
            self._checkpoint = replace(page, derived=-1)
            self.checkpoint()
            raise
        page.flushed = max(page.flushed, flushed)
        page.derived = max(page.derived, reach)
        page.queues = count
        page.logics = max(page.logics, stamp)
        if mark is not None:
            page.index_name, page.index_header = mark.name, mark.header
            page.index = max(page.index, mark.full_until)

    def _durable_end(self) -> PhysicalOffset:
        """Return the end of the durable whole frames. It lies inside no atomic batch, because the
        next start must read the marker."""
        dispatched, flushed = self.watermarks.dispatched, self._flushed_frames
        if dispatched <= self.watermarks.flushed:
            flushed = max(flushed, dispatched)
        return self.align_to_batch(flushed)

    def check_files(self) -> None:
        """Blocking: check that the log's files are still there. OSError: a file is gone; the store
        takes no more writes then."""
        if self.failed is not None or self._closed:
            return
        try:
            self._log.check_files()
        except OSError as error:
            self._failed = self.failed or f"{type(error).__name__}: {error}"
            raise

    def _log_begins(self, start: int) -> None:
        """Save where the log begins. Without it a log that loses its first segment before the first
        checkpoint would not notice."""
        self._checkpoint.start = start
        self.checkpoint()

    def checkpoint(self) -> None:
        """Blocking: write the checkpoint if it changed."""
        with self._saving:
            promise, start = self._promise, self._checkpoint.start
            if promise is not None:
                start = promise.start
            elif self._log.series.segments:
                start = self.watermarks.start
            current = replace(
                self._checkpoint,
                confirm=max(self._checkpoint.confirm, self.watermarks.confirmed),
                identity=self.identity,
                start=start,
                promised=-1 if promise is None else promise.end,
            )
            if current != self._saved:
                current.validate(self.watermarks.flushed)
                current.save(self._disk, self.config.root)
                self._saved = current

    # cleaning

    def watch_space(self) -> None:
        """Measure the disk. Sends are refused while it is too full."""
        self._cleaner.look()

    @property
    def space(self) -> Space:
        """The use of the disk, as last measured."""
        return self._cleaner.space

    def clean_on_request(self) -> None:
        """Let the next 20 passes delete expired segments at any hour (RocketMQ's manual
        deletion)."""
        self._cleaner.manual = MANUAL_PASSES

    def begin_clean(self, now_ms: int | None = None) -> CleanTicket | None:
        """Take out the files that are due for deletion at `now_ms`, by default the wall clock's
        time. Run the ticket in a thread. None: no file is due."""
        if self.lacks_front(0):
            return None  # the next start would take a gap here for segments that the cleaner took
        marks = self.watermarks
        # Queues and index cannot be rebuilt from a deleted segment. Their entries for it must be
        # durable, and the checkpoint must say so.
        safe = min(marks.flushed, self._saved.derived)
        now = self._runtime.now_ms() if now_ms is None else now_ms
        ticket = self._cleaner.plan(now, safe, self._saved.start)
        marks.start = self._log.start
        if self._promise is not None:
            self._promise = self._promise.cleaned(marks.start)
        return ticket

    # deleted topics

    @property
    def tombstones(self) -> Mapping[str, Tombstone]:
        """The tombstones that count, by topic."""
        return self._queues.tombstones

    def tombstone(self, topic: str) -> Tombstone:
        """Make a tombstone for deleting this topic now."""
        following = {
            queue_id: offset
            for (name, queue_id), offset in self._queues.next.items()
            if name == topic and offset
        }
        now = Tombstone(self._log.end, following)
        return now.merged(self._queues.tombstones.get(topic))

    def bury(self, tombstones: Mapping[str, Tombstone]) -> None:
        """Replace the tombstones in force by these, which must be durable. Messages before a
        tombstone are neither read nor found any more, and a new topic of the same name begins
        empty."""
        self._queues.bury(tombstones)

    def remove_deleted(self) -> Iterator[None]:
        """Delete the files of deleted queues, a bounded piece with each `next`. Run it only after a
        checkpoint: the previous one relies on those files."""
        # When this store is closed, another broker may be at work in the directory.
        pieces = self._queues.remove_deleted()
        while not self._closed and next(pieces, self) is None:
            yield

    def has_queues(self, topic: str) -> bool:
        """Whether the log has or had a message of this topic that is not deleted."""
        return any(
            not queue.is_empty for (name, _), queue in self._queues.table.items() if name == topic
        )

    def last_entries(self) -> Iterator[tuple[str, int, int]]:
        """Yield (topic, queue id, physical offset of the last message) for each non-empty queue."""
        for (topic, queue_id), queue in list(self._queues.table.items()):
            if not queue.is_empty:
                yield topic, queue_id, queue.last_physical

    def first_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset of this queue since its topic was last created."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else min(queue.first, queue.min_offset)

    def is_deleted(self, topic: str, physical: int) -> bool:
        """Whether the message for this topic at `physical` was deleted with the topic."""
        return physical < self._queues.since(topic)

    # reading

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int = 1 << 20,
        codes: frozenset[int] | None = None,
        visible: int | None = None,
        *,
        override_limits: bool = False,
        correct: bool = True,
        end: int | None = None,
        sql: Sql | None = None,
    ) -> GetResult:
        """Return frames from queue offset `offset` on, before `end`. Their tags code is one of
        `codes`, and their properties match `sql`; see `lookup.Lookup`.

        Without `correct` the answer does not replace an offset that is out of range: a slave may
        lag behind.
        """
        return self._lookup.get_message(
            topic,
            queue_id,
            offset,
            max_count,
            max_bytes,
            codes,
            self._log.end if visible is None else visible,
            override_limits=override_limits,
            correct=correct,
            end=end,
            sql=sql,
        )

    def entries(self, topic: str, queue_id: int, first: int, count: int) -> memoryview:
        """Return at most `count` queue entries from `first` on, fewer at the end of a file. Use
        them before the next call."""
        queue = self._queues.find(topic, queue_id)
        return memoryview(b"") if queue is None else queue.entries(first, count)

    def visible_end(self, topic: str, queue_id: int, visible: int) -> int:
        """The queue's end for readers that see no message that ends behind the log position
        `visible`."""
        return self._lookup.visible_end(topic, queue_id, visible)

    def min_offset(self, topic: str, queue_id: int) -> QueueOffset:
        queue = self._queues.find(topic, queue_id)
        return QueueOffset(0 if queue is None else queue.min_offset)

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        queue = self._queues.table.get((topic, queue_id))
        return QueueOffset(0 if queue is None else queue.max_offset)

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether reading a queue from `offset` should need no disk; see `lookup.Lookup`."""
        return self._lookup.is_in_memory(topic, queue_id, offset)

    def offset_at(self, topic: str, queue_id: int, physical: int) -> int | None:
        """The queue's next offset when the log ended at `physical`. None: the log begins behind
        that place, so nobody knows any more."""
        if physical < self._log.start:
            return None
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.offset_from(physical)

    def queue_ids(self, topic: str) -> list[int]:
        """The ids of the queues of `topic` that have files."""
        return sorted(queue_id for name, queue_id in self._queues.table if name == topic)

    def queues(self) -> dict[tuple[str, int], ConsumeQueue]:
        """Every queue by (topic, queue id)."""
        return dict(self._queues.table)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: str = "LOWER"
    ) -> int:
        return self._lookup.offset_by_time(topic, queue_id, timestamp, boundary)

    def store_time_of(self, topic: str, queue_id: int, offset: int) -> StoreTime | None:
        return self._lookup.store_time_of(topic, queue_id, offset)

    def message_at(self, physical: int) -> bytes | None:
        return self._lookup.message_at(physical)

    def query_by_key(
        self,
        topic: str,
        key: str,
        most: int,
        begin: int,
        end: int,
        visible: int | None = None,
    ) -> list[bytes]:
        """The newest `most` messages with this key, oldest first."""
        return at_once(self.search_key(topic, key, most, begin, end, visible))

    def search_key(
        self,
        topic: str,
        key: str,
        most: int,
        begin: int,
        end: int,
        visible: int | None = None,
    ) -> Generator[None, None, list[bytes]]:
        """The same in steps of a millisecond, because many keys may share one hash. Between two
        steps the log may grow or lose its oldest part; see `lookup.Lookup`."""
        limit = self._log.end if visible is None else visible
        return self._lookup.query_by_key(topic, key, most, begin, end, limit)

    def is_cached(self, result: GetResult) -> bool:
        """Whether the messages of a result are in memory; see `lookup.Lookup`."""
        return self._lookup.is_cached(result)

    def cache(self, result: GetResult) -> None:
        """Blocking, callable from any thread: read the result's messages into memory. OSError: a
        bad sector."""
        self._log.cache(result.runs)

    def indexed_until(self) -> tuple[int, int]:
        """Store time and physical offset of the last message in the index; zeros if it is empty."""
        return self._lookup.indexed_until()

    def is_recent(self, offset: int) -> bool:
        """Whether the log from `offset` on was written a moment ago."""
        return self._lookup.is_recent(offset)

    def cache_log(self, offset: int, limit: int) -> int:
        """Blocking, callable from any thread: read up to `limit` bytes of the log into memory,
        within one segment. Return the end of what was read. OSError: a bad sector."""
        return self._log.cache_from(offset, limit)

    def read_log(self, offset: int, limit: int) -> memoryview | None:
        """Raw bytes within one segment, up to appended; valid until the next call."""
        return self._log.read(offset, limit)

    # ends

    def truncate(self, offset: int, *, reason: str = "", epoch: int = 0) -> None:
        """Blocking: cut the log and everything derived from it at `offset`, durably. The bytes
        behind it are copied to a side file first (`truncated`). An `offset` before the log's start
        cuts everything, and the log may then begin anywhere. Nothing else may be under way: no
        flush, no `flush_derived`, no `prepare_ahead`, no `make_room_ahead`.

        ServiceNotAvailable: the copy or the checkpoint could not be written, and nothing was cut.
        Any other error came later, and the store takes no more writes.
        """
        self._check_open()
        self._commit()
        end = self._log.end
        if offset >= end:
            return
        self._dispatch(offset)  # only dispatched frames tell the next queue offsets
        start = max(offset, self._log.start)
        offset = offset if offset and offset >= self._log.start else 0
        if not offset:
            try:
                self._cleaner.finish_pass()
            except OSError as error:
                raise ServiceNotAvailable(
                    f"the log is not cut: expired files cannot be deleted ({error}); "
                    f"{remedy(error)}"
                ) from error
        log.warning("the log is cut from %d to %d (%s)", end, offset, reason or "no reason given")
        if start < end:
            saved = self._side_files.save(
                self._log.read_into,
                start,
                end,
                epoch=epoch,
                time_ms=self._runtime.now_ms(),
                reason=reason,
            )
            log.warning("%d messages of it are in %s now", saved.messages, saved.file)
        self._cut(PhysicalOffset(offset))

    def _cut(self, offset: PhysicalOffset) -> None:
        page, marks = self._checkpoint, self.watermarks
        flushed, all_dispatched, dispatched = marks.flushed, marks.dispatched, marks.dispatched
        if dispatched > offset:
            dispatched = self.align_to_batch(self._reput.frame_at_or_before(offset))
        # No watermark may claim bytes that are about to go. The index runs ahead of the others.
        page.derived, page.flushed = min(page.derived, dispatched), min(page.flushed, dispatched)
        self._flushed_frames = min(self._flushed_frames, dispatched)
        self._raw_end = min(self._raw_end, offset)
        page.confirm = min(page.confirm, dispatched)
        self.recovered_confirm = min(self.recovered_confirm, dispatched)
        page.index_name = INDEX_UNKNOWN
        marks.reset(marks.start, offset, flushed=flushed, dispatched=dispatched)
        try:
            self.checkpoint()
        except OSError as error:
            marks.reset(marks.start, self._log.end, flushed=flushed, dispatched=all_dispatched)
            raise ServiceNotAvailable(
                f"the log is not cut at {offset}: the checkpoint cannot be written ({error}); make "
                "room there"
            ) from error
        try:
            if offset:
                self._log.truncate(offset)
            else:
                self._log.clear()
            self._derived.truncate(dispatched, self._log.store_time_at)
        except (OSError, SaturnError) as error:
            # Entries of the part that is gone would name what comes in its place.
            self._failed = self.failed or f"the log could not be cut at {offset}: {error}"
            raise
        self._groups.cut(offset)
        self.recovery.gaps[:] = [gap for gap in self.recovery.gaps if gap[1] <= offset]
        marks.reset(self._log.start, offset, flushed=marks.flushed, dispatched=dispatched)
        self._flushing = None  # a flush under way no longer counts

    def truncate_torn(self, *, epoch: int = 0) -> int:
        """Blocking: cut a torn end off the log and return its size in bytes. A slave has a torn end
        when its master died in the middle of a frame or atomic batch. See `truncate`."""
        self._check_open()
        self._commit()
        self._dispatch(self._log.end)
        if no_room := self._dispatching.no_room:
            # reput stopped for lack of room, not at a torn frame
            raise ServiceNotAvailable(no_room)
        whole = self.watermarks.dispatched
        torn = self._log.end - whole
        if torn:
            self.truncate(whole, reason="the frame or group was not received whole", epoch=epoch)
        return torn

    def truncated(self) -> list[Truncated]:
        """The side files of the truncations of this log."""
        return list(self._side_files)

    def put_back(self, side: Truncated) -> None:
        """Blocking: append the bytes of a side file that continue the log's end. The side file must
        come from the same log.

        ServiceNotAvailable: the file cannot be read, or the store takes no writes.
        """
        files = SideFile(self._disk, side)
        try:
            while side.start <= self._log.end < side.end:
                data = files.read(self._log.end, min(side.end - self._log.end, _PIECE))
                if not data:
                    raise ServiceNotAvailable(f"{side.file} cannot be read at {self._log.end}")
                self.append_raw(self._log.end, data)
        finally:
            files.close()

    def _dispatch(self, offset: int) -> None:
        """Dispatch whole frames up to `offset` at least."""
        try:
            while self.watermarks.dispatched < offset and (arrivals := self.reput()):
                self._untold += arrivals
        except SaturnError as error:
            log.error("dispatch ends at %d: %s", self.watermarks.dispatched, error)

    def _commit(self) -> None:
        """Write the bytes that the transient pool holds."""
        ticket = self._log.commit_ticket()
        try:
            ticket.run()
        except OSError as error:
            self.complete_flush(ticket, error)
            self._check_open()
        self._log.committed_to(ticket.target)

    def close(self) -> None:
        """Blocking: dispatch and flush everything. The file `abort` is removed only if all of that
        worked."""
        if self._closed:
            return
        try:
            if self.failed is None:
                self._dispatch(self.watermarks.appended)
                self._flushing = None
                ticket = self.begin_flush()
                self._closed = True
                if ticket is not None:
                    try:
                        ticket.run()
                    except OSError as error:
                        self.complete_flush(ticket, error)
                    else:
                        self.complete_flush(ticket)
                if self.failed is None:
                    # the frames that a transient pool held until now
                    self._dispatch(self.watermarks.appended)
                    self.settle_index()
                    self.flush_derived()
                    self.checkpoint()
                    is_derived = self.watermarks.dispatched == self._log.end
                    if is_derived and not self._dispatching.no_room and not self.in_group:
                        self._abort.clear()
        finally:
            self._closed = True
            self._release()

    def _release(self) -> None:
        self._log.close()
        self._derived.close()
        self._lock.release()


def _advice(config: StoreConfig) -> tuple[Advice, ...]:
    wanted = ((Advice.RANDOM, not config.read_ahead), (Advice.LOCK, config.lock_in_memory))
    return tuple(advice for advice, yes in wanted if yes)

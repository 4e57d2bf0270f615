"""Checking a store: every frame of the CommitLog, and all that is derived from it against what a
rebuild would give.

The log is read once, from its first frame to its end (`store/log/log_files.py`); the queues
(`verify_queues.py`), index (`verify_index.py`) and checkpoint are compared on the way. Nothing is
written, no lock is taken, nothing is mapped; memory does not grow with the store. RocketMQ's
directories are read the same way; what it does differently, and what the next start repairs by
itself after a crash, are notes, not damage.

While a broker runs the log is checked up to where it ended when the check began.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from saturnmq.protocol.frame import FRAME_BYTES_MIN, store_timestamp_of
from saturnmq.protocol.frame_reference import Run
from saturnmq.runtime.errors import ConfigError, StoreDamaged
from saturnmq.store.derived.batchconsumequeue import place_of, singles
from saturnmq.store.derived.consumequeue import UNIT
from saturnmq.store.derived.tombstones import read_tombstones
from saturnmq.store.disk import Disk
from saturnmq.store.inspect.verify_batches import BatchChecks
from saturnmq.store.inspect.verify_index import IndexCheck, IndexSizes
from saturnmq.store.inspect.verify_queues import QueueChecks
from saturnmq.store.inspect.verify_report import CERTAIN, Finding, Findings, Trust
from saturnmq.store.log.log_files import NOTHING, Gap, LogReader, SegmentFiles, Stretch
from saturnmq.store.log.segments import SET_ASIDE
from saturnmq.store.log.truncated import SideFile, find, find_all
from saturnmq.store.reading import number_of
from saturnmq.store.recovery.checkpoint import MAGIC, MAGIC_BEFORE, PAGE, AbortMark, Checkpoint

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that the files do not tell; 0 = the files tell, or RocketMQ's default."""

    segment_bytes: int = 0
    queue_file_bytes: int = 0
    index_slots: int = 0
    index_items: int = 0
    batch_file_bytes: int = 0


UNKNOWN = Sizes()
_DEFAULTS = Sizes(
    queue_file_bytes=6_000_000,
    index_slots=5_000_000,
    index_items=20_000_000,
    batch_file_bytes=13_800_000,
)


@dataclass(slots=True)
class VerifyReport:
    """The result of a check; the store is sound if `damage` is empty."""

    directory: str
    running: bool = False  # a broker holds the lock
    crashed: bool = False  # the last one did not stop in order
    foreign: bool = False  # the checkpoint is not ours
    log_start: int = 0
    log_end: int = 0
    messages: int = 0
    queues: int = 0
    queue_entries: int = 0
    index_files: int = 0
    index_items: int = 0
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


def open_log(disk: Disk, root: str, sizes: Sizes = UNKNOWN) -> SegmentFiles:
    """The CommitLog's files; StoreDamaged if `root` holds no store."""
    directory = posixpath.join(root, "commitlog")
    if not disk.exists(directory) and not disk.exists(posixpath.join(root, "checkpoint")):
        inner = posixpath.join(root, "store")
        hint = f"; did you mean {inner}?" if disk.exists(f"{inner}/commitlog") else ""
        raise StoreDamaged(
            f"{root} is no store: it has no directory commitlog with files named by 20 digits "
            f"(storePathRootDir of the broker is wanted){hint}"
        )
    files = SegmentFiles(disk, directory, sizes.segment_bytes)
    if files.segments and not files.segment_bytes:
        raise StoreDamaged(
            f"{directory}: no file tells the size of a segment: give --segment-bytes"
        )
    return files


def open_frames(disk: Disk, path: str, sizes: Sizes = UNKNOWN) -> SegmentFiles:
    """The CommitLog of the store at `path`, or that path's side file of a truncation."""
    facts = find(disk, path)
    return (
        open_log(disk, path, sizes) if facts is None else SideFile(disk, facts, sizes.segment_bytes)
    )


def directories(disk: Disk, path: str) -> list[str]:
    """The directories in a directory."""
    return [posixpath.join(path, entry.name) for entry in disk.list(path) if entry.is_dir]


def expected_end(files: SegmentFiles) -> int:
    """About where the log ends, for progress."""
    if not files.segments:
        return 0
    newest = files.segments[-1].start
    return max((end for _, end in files.written(newest)), default=newest)


def check_sizes(disk: Disk, root: str, sizes: Sizes) -> None:
    """ConfigError: the files contradict a size that is given. A rebuild by it would read the log
    wrongly, delete what it cannot build again, and build what no broker of the old sizes takes."""
    given, directory = sizes.segment_bytes, posixpath.join(root, "commitlog")
    log = SegmentFiles(disk, directory)
    apart = (later.start - former.start for former, later in pairwise(log.segments))
    if any(each.size > given > 0 for each in log.segments) or any(step < given for step in apart):
        raise _contradiction("segments", given, log.segment_bytes, directory)
    given, directory = sizes.queue_file_bytes, posixpath.join(root, "consumequeue")
    if given % UNIT:
        raise ConfigError(f"queue files of {given} bytes: give a multiple of {UNIT}, one entry")
    if given and given != (told := _most_usual(disk, directory, given)):
        raise _contradiction("queue files", given, told, directory)
    if sizes.index_items == 1:
        raise ConfigError("an index of 1 item, of which the first is never used: give 2 or more")
    index = _index_lengths(disk, root)
    if index and _index_sizes(index, sizes) is None and (sizes.index_slots or sizes.index_items):
        raise ConfigError(
            f"{sizes.index_slots} slots and {sizes.index_items} items (0: not given) do not make "
            f"up the {index[0]} bytes of a file in {posixpath.join(root, 'index')}: give those of "
            "its broker, or delete that directory"
        )


def _contradiction(files: str, given: int, told: int, directory: str) -> ConfigError:
    return ConfigError(
        f"{files} of {given} bytes, but those in {directory} have {told}: leave the size out"
    )


def _index_lengths(disk: Disk, root: str) -> list[int]:
    entries = disk.list(posixpath.join(root, "index"))
    return [entry.size for entry in entries if number_of(entry.name) is not None]


def _index_sizes(lengths: list[int], sizes: Sizes) -> IndexSizes | None:
    """The slots and items that the first file tells whose length can."""
    told = (IndexSizes.of(size, sizes.index_slots, sizes.index_items) for size in lengths)
    return next((each for each in told if each is not None), None)


def found_sizes(disk: Disk, root: str, sizes: Sizes) -> Sizes:
    """`sizes` with what the derived files tell, else RocketMQ's defaults."""
    index = _index_sizes(_index_lengths(disk, root), sizes)
    return Sizes(
        sizes.segment_bytes,
        sizes.queue_file_bytes
        or _most_usual(disk, posixpath.join(root, "consumequeue"), _DEFAULTS.queue_file_bytes),
        sizes.index_slots or (index.slots if index else _DEFAULTS.index_slots),
        sizes.index_items or (index.items if index else _DEFAULTS.index_items),
        sizes.batch_file_bytes
        or _most_usual(disk, posixpath.join(root, "batchconsumequeue"), _DEFAULTS.batch_file_bytes),
    )


def _most_usual(disk: Disk, directory: str, default: int) -> int:
    """The size of most files of the queues in a directory."""
    lengths = Counter(
        SegmentFiles(disk, queue).segment_bytes
        for topic in directories(disk, directory)
        for queue in directories(disk, topic)
    )
    del lengths[0]
    return max(lengths, key=lengths.__getitem__, default=default)


def trust_in(disk: Disk, root: str, files: SegmentFiles, page: Checkpoint) -> Trust:
    """The trust in the log and its derived files; see `verify_report.py`."""
    foreign = page.derived < 0 and page.flushed < 0
    running = disk.locked(posixpath.join(root, "lock"))
    unsure = running or AbortMark(disk, root).present()
    return Trust(
        log_start=files.start,
        log_end=_end_now(files, page) if running else files.end,
        below=max(page.derived, 0) if unsure else CERTAIN,
        running=running,
        foreign=foreign,
        tombstones=read_tombstones(disk, root),
    )


def _end_now(files: SegmentFiles, page: Checkpoint) -> int:
    """The end of a running broker's log."""
    last = files.start
    for segment in files.segments:
        if any(files.read(segment.start, 8)):
            last = segment.start
    reader = LogReader(files, cut_from=page.flushed if page.flushed >= 0 else None, index=False)
    for _ in reader.read(last):
        pass
    return reader.end


def check(
    disk: Disk, root: str, sizes: Sizes = UNKNOWN, progress: Progress | None = None
) -> VerifyReport:
    """Look at everything; `progress(done, total)` is called in bytes of the log."""
    return _DirectoryCheck(disk, root, sizes).run(progress)


def check_side_file(
    disk: Disk, path: str, sizes: Sizes = UNKNOWN, progress: Progress | None = None
) -> VerifyReport:
    """Look at every frame of what a truncation cut off. A cut may go through a frame."""
    files = SideFile.open(disk, path, sizes.segment_bytes)
    findings = Findings()
    report = VerifyReport(path, damage=findings.damage, notes=findings.notes)
    report.log_start, report.log_end = files.start, files.end
    reader = LogReader(files, index=False)
    for piece in reader.read(files.start):
        if isinstance(piece, Gap):
            what = f"log: {piece.end - piece.start} bytes hold no frames: {piece.why}"
            first = piece.start == files.start
            findings.add(what, *files.place(piece.start), piece.start, note=first, together=False)
        else:
            report.messages += piece.scan.messages
        if progress is not None:
            progress(reader.end - files.start, files.end - files.start)
    if progress is not None:
        progress(files.end - files.start, files.end - files.start)
    if reader.end < files.end:
        what = f"log: it ends within a frame ({reader.stopped_by})"
        findings.add(what, *files.place(reader.end), reader.end, note=True)
    if files.facts.crc32 not in (None, files.crc32()):
        findings.add("log: its checksum is not the one that was written down", path, 0)
    files.close()
    return report


class _DirectoryCheck:
    """One check of one directory."""

    def __init__(self, disk: Disk, root: str, sizes: Sizes) -> None:
        self._disk = disk
        self._root = root
        self._files = open_log(disk, root, sizes)
        self._findings = findings = Findings()
        self._page = Checkpoint.load(disk, root)
        self._trust = trust = trust_in(disk, root, self._files, self._page)
        self._report = report = VerifyReport(
            root,
            running=trust.running,
            crashed=AbortMark(disk, root).present(),
            foreign=trust.foreign,
            damage=findings.damage,
            notes=findings.notes,
        )
        self._last_store_time = 0
        self._reader = LogReader(
            self._files,
            cut_from=None if report.foreign else max(self._page.flushed, self._page.derived),
            limit=trust.log_end,
        )
        self._queues = QueueChecks(
            disk, posixpath.join(root, "consumequeue"), sizes.queue_file_bytes, findings, trust
        )
        self._index = IndexCheck(
            disk,
            posixpath.join(root, "index"),
            (sizes.index_slots, sizes.index_items),
            findings,
            trust,
            self._reader.frame_at,
        )
        self._batches = BatchChecks(
            disk, posixpath.join(root, "batchconsumequeue"), findings, trust
        )

    def run(self, progress: Progress | None) -> VerifyReport:
        report, reader = self._report, self._reader
        self._findings.add_odd("log", self._files)
        aside = posixpath.join(self._files.directory, SET_ASIDE)
        if count := len(self._disk.list(aside)):
            what = "log: segments of wrong length were set aside by a start"
            self._findings.add(what, aside, 0, note=True, count=count)
        for side in find_all(self._disk, self._root):
            what = f"log: {side.messages} messages from {side.start} on were cut off"
            self._findings.add(what, side.file, 0, side.start, note=True)
        total = expected_end(self._files)
        for piece in reader.read(self._files.start):
            if isinstance(piece, Gap):
                self._gap(piece)
            else:
                self._stretch(piece)
            if progress is not None:
                progress(reader.end - self._files.start, max(total, reader.end) - self._files.start)
        if progress is not None:  # the log's end is known now
            progress(reader.end - self._files.start, reader.end - self._files.start)
        self._trust.log_end = reader.end
        self._end_of_log()
        self._queues.finish()
        self._batches.finish()
        self._index.finish()
        self._checkpoint()
        report.log_start, report.log_end = self._files.start, reader.end
        report.queues = len(self._queues.table) + len(self._batches.table)
        report.queue_entries = sum(check.entries for check in self._queues.table.values())
        report.queue_entries += sum(check.units for check in self._batches.table.values())
        report.index_files, report.index_items = self._index.files, self._index.items
        self._files.close()
        return report

    def _stretch(self, piece: Stretch) -> None:
        scan = piece.scan
        self._report.messages += scan.messages
        if scan.messages:
            if scan.last_store_ts < self._last_store_time:
                place = self._files.place(piece.start)
                self._findings.add("log: store times run backwards", *place, piece.start, note=True)
            self._last_store_time = scan.last_store_ts
        runs = [run for run in scan.runs if self._can_be(run, piece)]
        self._queues.expect(run for run in runs if run[:2] not in self._batches.table)
        units = [run for run in scan.batches if run[3] and self._can_be(run, piece)]
        for run in runs:  # frames that are no inner batches
            if run[:2] in self._batches.table:
                units += singles(run, self._time_at)
        self._batches.expect(sorted(units, key=place_of))
        if self._index.exists:
            self._index.expect(scan.index_items)

    def _can_be(self, run: Run, piece: Stretch) -> bool:
        topic, queue_id, first, _, _ = run
        if is_queue(run):
            return True
        what = f"log: a frame of topic {topic!r}, queue {queue_id}, queue offset {first} cannot be"
        self._findings.add(what, *self._files.place(piece.start), piece.start)
        return False

    def _time_at(self, offset: int) -> int | None:
        return store_timestamp_of(self._files.read(offset, FRAME_BYTES_MIN))

    def _gap(self, gap: Gap) -> None:
        self._trust.gaps.append((gap.start, gap.end))
        what = f"log: {gap.end - gap.start} bytes hold no frames: {gap.why}"
        self._findings.add(what, *self._files.place(gap.start), gap.start, together=False)

    def _end_of_log(self) -> None:
        """Check the bytes behind the end, unless a running broker writes there."""
        reader, report = self._reader, self._report
        if report.running:
            return
        place = self._files.place(reader.end)
        if reader.stopped_by not in ("", NOTHING):
            what = f"log: its end is torn ({reader.stopped_by}); the next start cuts it off"
            self._findings.add(what, *place, reader.end, note=True)
        elif (leftover := reader.leftover()) is not None:
            what = "log: bytes behind its end are not zero; the next start clears them"
            self._findings.add(what, *self._files.place(leftover), leftover, note=True)

    def _checkpoint(self) -> None:
        path = posixpath.join(self._root, "checkpoint")
        if not self._disk.exists(path):
            self._findings.add("checkpoint: there is none", path, 0, note=True)
            return
        data = self._disk.read_file(path)
        if len(data) != PAGE:
            self._findings.add(f"checkpoint: {len(data)} bytes long, not {PAGE}", path, 0)
        if self._report.foreign and data[64:72] in (MAGIC, MAGIC_BEFORE):
            what = "checkpoint: damaged, or another broker ran since ours; it counts as RocketMQ's"
            self._findings.add(what, path, 64, note=True)
        end = self._reader.end
        known = max(self._page.flushed, self._page.derived)
        if known > end:
            what = f"checkpoint: {known} bytes of log were durable, it ends at {end}"
            self._findings.add(what, path, 64, end)


def is_queue(run: Run) -> bool:
    """Whether a run's topic and numbers name a queue: a directory inside the store."""
    topic, queue_id, first, _, _ = run
    return queue_id >= 0 and first >= 0 and "/" not in topic and topic not in (".", "..")

"""Building ConsumeQueues and IndexFiles from a CommitLog into another directory, in Spark tasks.

Map only. An entry's place is its queue offset times 20, so the tasks, one a CommitLog file, write
into the same files without meeting; what an IndexFile holds follows from how many keys the files
before have, so those are one task each. The result is, byte for byte, what `saturnmq store rebuild`
and a broker's start build (`store/inspect/rebuild.py`), names of IndexFiles apart, which tell the
time.

The driver mends the things that no task can know alone: fillers where a queue does not begin at 0
or has holes, queues whose offsets do not rise along the log, and a log that ends before its files
do.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from saturnmq.pipeline.jobs.building import building
from saturnmq.pipeline.jobs.log_file import (
    FileReach,
    LogFile,
    end_of_log,
    gaps_and_end,
    joined,
    log_files,
)
from saturnmq.pipeline.jobs.manifest import local
from saturnmq.pipeline.jobs.tasks import Progress, attempt_name, run
from saturnmq.protocol.kernels import Run
from saturnmq.runtime.errors import ConfigError, DirectoryLocked
from saturnmq.store.derived.consumequeue import FILLER, UNIT, ConsumeQueue
from saturnmq.store.derived.index_items import INCOMING
from saturnmq.store.derived.indexfile import IndexFile, name_of
from saturnmq.store.derived.tombstones import read_tombstones, without_deleted
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.rebuild import Rebuilt, is_over
from saturnmq.store.inspect.verify import UNKNOWN, Sizes, directories, found_sizes, is_queue
from saturnmq.store.log.log_files import NOTHING, Gap
from saturnmq.store.log.segments import segment_name

_ITEMS = ".items-"  # keys of one CommitLog file, until they are in the index

Queue = tuple[str, int]


def rebuild(
    spark: Any,
    store: str,
    to: str,
    sizes: Sizes = UNKNOWN,
    *,
    now_ms: int | None = None,
    progress: Progress | None = None,
) -> Rebuilt:
    """Build `to`/consumequeue and `to`/index from the CommitLog of the directory `store`, which is
    only read. `progress` counts bytes of the log.

    ConfigError if there is something in `to`, DirectoryLocked while a broker writes to `store` or
    another job to `to`. Both are there when all is built, and not before.
    """
    disk = NativeDisk()
    store, to = local(store), local(to)
    files, units = log_files(disk, store, sizes)
    if disk.locked(posixpath.join(store, "lock")):
        raise DirectoryLocked(f"stop the broker of {store} first, or rebuild from a copy of it")
    stamp = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with building(to) as work:
        job = _SparkRebuild(spark, store, work, found_sizes(disk, store, sizes), progress)
        built = job.build(units, files.start, name_of(stamp))
    return replace(built, directory=to)


@dataclass(slots=True)
class _Built:
    """The result for one CommitLog file."""

    reached: FileReach
    items: int = 0  # keys
    not_queues: int = 0
    runs: list[tuple[Queue, int, int]] = field(default_factory=list)  # queue, [first, end)


class _SparkRebuild:
    """One rebuild on Spark."""

    def __init__(
        self, spark: Any, store: str, to: str, sizes: Sizes, progress: Progress | None
    ) -> None:
        self._spark = spark
        self._store = store
        self._to = to
        self._sizes = sizes
        self._progress = progress
        self._queue_bytes = sizes.queue_file_bytes + -sizes.queue_file_bytes % UNIT
        self._queues = posixpath.join(to, "consumequeue")
        self._index = posixpath.join(to, "index")

    def build(self, units: Sequence[LogFile], log_start: int, index_name: int) -> Rebuilt:
        for directory in (self._queues, self._index):
            os.makedirs(directory, exist_ok=True)
        built = self._from_files(units)
        wanted = end_of_log(units, [each.reached for each in built])
        if any(each.reached.messages for each in built[wanted:]):
            # frames behind a place where the log ends: rare enough to begin again without them
            shutil.rmtree(self._queues)
            self._clear_items()
            return self.build(units[:wanted], log_start, index_name)
        units, built = units[:wanted], built[:wanted]
        self._mend(units, built)
        self._keep_those_that_are_over(log_start)
        self._build_index(units, built, index_name)
        self._clear_items()
        _sync_tree(self._to)
        return self._result(units, built, log_start)

    def _from_files(self, units: Sequence[LogFile]) -> list[_Built]:
        work = partial(_build_file, to=self._to, queue_bytes=self._queue_bytes)
        weights = [unit.segment_bytes for unit in units]
        return run(self._spark, work, units, weights, self._progress)

    # -- what no task can know --------------------------------------------------------------------

    def _mend(self, units: Sequence[LogFile], built: Sequence[_Built]) -> None:
        runs: defaultdict[Queue, list[tuple[int, int]]] = defaultdict(list)
        for each in built:
            for queue, first, end in each.runs:
                runs[queue].append((first, end))
        twisted = set()
        for queue, ranges in runs.items():
            first = ranges[0][0]
            reached = first - first % (self._queue_bytes // UNIT)  # where its first file begins
            for begin, end in ranges:
                if begin < reached:
                    twisted.add(queue)
                    break
                _put(_queue_files(self._queues, queue), self._queue_bytes, reached, begin, FILLER)
                reached = end
        if twisted:
            self._build_in_order(units, twisted)

    def _build_in_order(self, units: Sequence[LogFile], wanted: set[Queue]) -> None:
        """Queues in which a frame takes a place that another one has, or had passed."""
        disk = NativeDisk()
        queues = {}
        for queue in wanted:
            directory = _queue_files(self._queues, queue)
            shutil.rmtree(directory)
            queues[queue] = ConsumeQueue(disk, directory, self._queue_bytes, *queue)
        for unit in units:
            for topic, queue_id, first, _, entries in joined(_runs(unit)):
                if (topic, queue_id) in queues:
                    queues[topic, queue_id].append(first, entries)
        for made in queues.values():
            made.close()

    def _keep_those_that_are_over(self, log_start: int) -> None:
        """Queues without a message left: their end is their next offset, and no frame tells it."""
        disk = NativeDisk()
        source = posixpath.join(self._store, "consumequeue")
        for topic in directories(disk, source):
            for queue in directories(disk, topic):
                to = posixpath.join(self._queues, posixpath.relpath(queue, source))
                known = disk.exists(to)
                if not known and is_over(disk, queue, self._sizes.queue_file_bytes, log_start):
                    shutil.copytree(queue, to)

    # -- the index --------------------------------------------------------------------------------

    def _build_index(
        self, units: Sequence[LogFile], built: Sequence[_Built], first_name: int
    ) -> None:
        counts = [each.items for each in built]
        paths = [_items_path(self._index, unit) for unit in units]
        room = self._sizes.index_items - 1  # item 0 of a file is never used
        slices = [
            _Slice(
                posixpath.join(self._index, f"{first_name + number:017d}"),
                list(_part(paths, counts, first, first + room)),
                next(_part(paths, counts, first - 1, first), None) if first else None,
            )
            for number, first in enumerate(range(0, sum(counts), room))
        ]
        work = partial(
            _build_index_file, slots=self._sizes.index_slots, items=self._sizes.index_items
        )
        run(self._spark, work, slices)

    def _clear_items(self) -> None:
        """Remove what only the way to the index needed."""
        for entry in NativeDisk().list(self._index):
            if entry.name.startswith("."):
                os.unlink(posixpath.join(self._index, entry.name))

    # -- the answer -------------------------------------------------------------------------------

    def _result(self, units: Sequence[LogFile], built: Sequence[_Built], start: int) -> Rebuilt:
        disk = NativeDisk()
        result = Rebuilt(self._to, self._sizes, log_start=start, log_end=start)
        for each in built:
            reached = each.reached
            result.messages += reached.messages
            result.index_items += each.items
            result.not_queues += each.not_queues
        result.gaps, result.log_end, why = gaps_and_end(units, [each.reached for each in built])
        result.stopped_by = "" if why == NOTHING else why
        result.queues = sum(len(directories(disk, t)) for t in directories(disk, self._queues))
        return result


# -- tasks ----------------------------------------------------------------------------------------


def _build_file(unit: LogFile, *, to: str, queue_bytes: int) -> _Built:
    """Write the queue entries of one CommitLog file to their places, its keys beside the index."""
    built = _Built(FileReach(unit.start))
    index = posixpath.join(to, "index")
    items_path = _items_path(index, unit)
    attempt = f"{items_path}.{attempt_name()}"
    with open(attempt, "wb") as items:
        for topic, queue_id, first, count, entries in joined(_runs(unit, built, items)):
            queue = topic, queue_id
            directory = _queue_files(posixpath.join(to, "consumequeue"), queue)
            _put(directory, queue_bytes, first, first + count, entries)
            last = built.runs[-1] if built.runs else None
            if last is not None and last[0] == queue and last[2] == first:
                built.runs[-1] = queue, last[1], first + count
            else:
                built.runs.append((queue, first, first + count))
    os.replace(attempt, items_path)
    return built


def _runs(unit: LogFile, built: _Built | None = None, items: Any = None) -> Iterator[Run]:
    """The runs of a file that belong into queues; what else is seen goes into `built`."""
    reader = unit.reader(index=items is not None)
    tombstones = read_tombstones(NativeDisk(), unit.root)
    for piece in reader.read(unit.start):
        if isinstance(piece, Gap):
            if built is not None:
                built.reached.gaps.append(piece)
            continue
        scan = piece.scan
        if scan.batches:
            raise ConfigError(
                f"topic {scan.batches[0][0]} has queues of batches, which this job does not build: "
                "rebuild the store with `saturnmq store rebuild`"
            )
        runs = [each for each in scan.runs if is_queue(each) and not each[0].startswith(".")]
        yield from without_deleted(runs, tombstones)
        if built is not None:
            built.reached.messages += scan.messages
            built.not_queues += len(scan.runs) - len(runs)
            built.items += len(scan.index_items) // INCOMING.size
        if items is not None:
            items.write(scan.index_items)
    if built is not None:
        built.reached.end, built.reached.why = reader.end, reader.stopped_by
    reader.files.close()


def _queue_files(directory: str, queue: Queue) -> str:
    return posixpath.join(directory, queue[0], str(queue[1]))


def _items_path(index: str, unit: LogFile) -> str:
    return posixpath.join(index, f"{_ITEMS}{unit.start:020d}")


def _put(directory: str, file_bytes: int, first: int, end: int, entries: bytes) -> None:
    """Write the entries [first, end) of a queue, or one that stands for each of them, into its
    files, which others may be making and writing to."""
    if first == end:
        return
    os.makedirs(directory, exist_ok=True)
    at, stop = first * UNIT, end * UNIT
    while at < stop:
        start = at - at % file_bytes
        part = min(stop, start + file_bytes)
        if len(entries) == UNIT:
            data = entries * ((part - at) // UNIT)
        else:
            data = entries[at - first * UNIT : part - first * UNIT]
        fd = os.open(posixpath.join(directory, segment_name(start)), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, file_bytes)
            _write_at(fd, data, at - start)
        finally:
            os.close(fd)
        at = part


def _write_at(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count


@dataclass(frozen=True, slots=True)
class _Part:
    """Keys [first, end) of one file of them."""

    path: str
    first: int
    end: int

    def read(self) -> bytes:
        with open(self.path, "rb") as file:
            file.seek(self.first * INCOMING.size)
            return file.read((self.end - self.first) * INCOMING.size)


@dataclass(frozen=True, slots=True)
class _Slice:
    """The content of one IndexFile, and the key before it."""

    path: str
    parts: list[_Part]
    before: _Part | None


def _part(paths: Sequence[str], counts: Sequence[int], first: int, end: int) -> Iterator[_Part]:
    """The parts of the files that have the keys [first, end), counted over all files."""
    at = 0
    for path, count in zip(paths, counts, strict=True):
        low, high = max(first - at, 0), min(end - at, count)
        if low < high:
            yield _Part(path, low, high)
        at += count


def _build_index_file(part: _Slice, *, slots: int, items: int) -> None:
    disk = NativeDisk()
    directory, name = posixpath.split(part.path)
    attempt = posixpath.join(directory, f".{name}.{attempt_name()}")
    file = IndexFile(
        disk.create_segment(attempt, 40 + 4 * slots + 20 * items, durable=False), slots, items
    )
    if part.before is not None:
        _, offset, store_time = INCOMING.unpack(part.before.read())
        file.follow(offset, store_time)
    for each in part.parts:
        file.insert(memoryview(each.read()))
    file.file.close()
    os.replace(attempt, part.path)


def _sync_tree(root: str) -> None:
    """Sync the result, so that a store may rely on it."""
    for directory, _, names in os.walk(root):
        for path in [*(os.path.join(directory, name) for name in names), directory]:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

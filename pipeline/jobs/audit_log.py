"""One CommitLog file's share of an audit: the task, and finding ids that come twice.

A producer gives each message an id (UNIQ_KEY) that no other has. To find those that come twice
somewhere in the log, every task gives away (hash of topic and id, offset) of its messages, grouped
by hash, and each group is sorted by the task that gets all of it (`find_repeated`). Topics of the
system and those of retries are left out: there a message keeps its id on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.decoding import Decoder
from saturnmq.pipeline.jobs.digest import (
    FACTOR,
    PLACE,
    Digests,
    value_hashes,
    within,
    without_corrupt,
)
from saturnmq.pipeline.jobs.log_file import FileReach, LogFile, joined
from saturnmq.pipeline.jobs.manifest import Ranges
from saturnmq.protocol.frame import Frame
from saturnmq.protocol.kernels import Run
from saturnmq.protocol.properties import UNIQ_KEY
from saturnmq.protocol.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from saturnmq.store.derived.tombstones import without_deleted
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.verify import is_queue
from saturnmq.store.inspect.verify_queues import QueueCheck
from saturnmq.store.inspect.verify_report import Finding, Findings, Trust
from saturnmq.store.log.log_files import Gap, LogReader, SegmentFiles, Stretch

EXAMPLES = 20  # of each group, that are looked at again
_ID = np.dtype([("hash", np.uint64), ("offset", np.int64)])


@dataclass(slots=True)
class FileAudit:
    """The result for one file."""

    reached: FileReach
    digests: Digests
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    runs: list[tuple[tuple[str, int], int, int]] = field(default_factory=list)
    """(queue, first, end) of queue offsets, in log order."""


def audit_file(
    unit: LogFile,
    *,
    trust: Trust,
    queue_bytes: int,
    broker: str,
    columns: tuple[str, ...],
    shared: Ranges | None,
    groups: int,
) -> tuple[FileAudit, Iterator[tuple[int, bytes]]]:
    """Look at every frame of a file. With `shared` its digests are of those ranges only."""
    task = _Task(unit, trust, queue_bytes, broker, columns, shared)
    return task.run(), _in_groups(task.ids, groups)


class _Task:
    """The look at one file."""

    def __init__(
        self,
        unit: LogFile,
        trust: Trust,
        queue_bytes: int,
        broker: str,
        columns: tuple[str, ...],
        shared: Ranges | None,
    ) -> None:
        self._unit = unit
        self._trust = trust
        self._queue_bytes = queue_bytes
        self._findings = findings = Findings()
        self._shared = shared
        self._found = FileAudit(
            FileReach(unit.start), Digests(columns), findings.damage, findings.notes
        )
        names = (*PLACE, "queueOffset", "storeTimestamp", *columns, "messageId", "physicalOffset")
        wanted = select([*dict.fromkeys(names), "_corrupt"])
        self._decoder = Decoder(wanted, broker=broker, mode="PERMISSIVE")
        self._checks: dict[tuple[str, int], QueueCheck] = {}
        self.ids: list[Any] = []

    def run(self) -> FileAudit:
        found = self._found
        reader = self._unit.reader(limit=self._trust.log_end)
        for piece in reader.read(self._unit.start):
            if isinstance(piece, Gap):
                self._trust.gaps.append((piece.start, piece.end))
                found.reached.gaps.append(piece)
            else:
                self._stretch(piece)
        for check in self._checks.values():
            check.settle()
        found.reached.end, found.reached.why = reader.end, reader.stopped_by
        reader.files.close()
        return found

    def _stretch(self, piece: Stretch) -> None:
        scan = piece.scan
        self._found.reached.messages += scan.messages
        for run in joined(scan.runs):
            if is_queue(run):
                for living in without_deleted([run], self._trust.tombstones):
                    self._entries(living)
            else:
                what = f"log: frames of topic {run[0]!r}, queue {run[1]} cannot be"
                self._findings.add(what, self._unit.path, piece.start - self._unit.start)
        path = self._unit.path
        at = piece.start - self._unit.start
        if scan.batches:
            what = "log: the messages in inner batches are not looked at"
            self._findings.add(what, path, at, note=True, count=len(scan.batches))
        for batch in self._decoder.frames(piece.frames, where=path, base=at):
            self._rows(batch)

    def _entries(self, run: Run) -> None:
        topic, queue_id, first, count, entries = run
        queue = topic, queue_id
        check = self._checks.get(queue)
        if check is None:
            check = self._checks[queue] = self._check(topic, queue_id, first)
        check.expect(first, count, entries)
        runs = self._found.runs
        if runs and runs[-1][0] == queue and runs[-1][2] == first:
            runs[-1] = queue, runs[-1][1], first + count
        else:
            runs.append((queue, first, first + count))

    def _check(self, topic: str, queue_id: int, first: int) -> QueueCheck:
        root = self._unit.root
        disk = NativeDisk()
        files = SegmentFiles(disk, f"{root}/consumequeue/{topic}/{queue_id}", self._queue_bytes)
        extended = disk.exists(f"{root}/consumequeue_ext")
        name = f"{topic}/{queue_id}"
        return QueueCheck(files, name, self._findings, self._trust, first=first, extended=extended)

    def _rows(self, batch: pa.RecordBatch) -> None:
        batch, damage = without_corrupt(batch)
        for text in damage:
            self._findings.add(f"log: {text}", self._unit.path, 0, together=False)
        self.ids.append(_ids(batch))
        if self._shared is not None:
            batch = within(batch, self._shared)
        self._found.digests.add(batch)


def _ids(batch: pa.RecordBatch) -> Any:
    """Hash and offset of each message that should have an id of its own."""
    topics = batch.column("topic").dictionary_encode()
    names = topics.dictionary
    own = np.array([_has_own_ids(name) for name in names.to_pylist()], bool)
    codes = topics.indices.to_numpy()
    hashes = value_hashes(batch.column("messageId"))
    hashes ^= value_hashes(names)[codes] * np.uint64(FACTOR)
    hashes *= np.uint64(FACTOR)
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(FACTOR)  # the group is taken from the upper half
    found = np.empty(batch.num_rows, _ID)
    found["hash"] = hashes
    found["offset"] = batch.column("physicalOffset").to_numpy()
    return found if own.all() else found[own[codes]]


def _has_own_ids(topic: str) -> bool:
    kept = topic.startswith((RETRY_PREFIX, DLQ_PREFIX, SYSTEM_PREFIX))
    return not kept and topic not in SYSTEM_TOPICS


def _in_groups(parts: list[Any], groups: int) -> Iterator[tuple[int, bytes]]:
    whole = np.concatenate(parts) if parts else np.empty(0, _ID)
    numbers = (whole["hash"] >> np.uint64(32)) % np.uint64(groups)
    # for so small ones numpy has a radix sort
    numbers = numbers.astype(np.uint16 if groups <= 1 << 16 else np.int64)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=groups))
    for group, end in enumerate(ends.tolist()):
        first = int(ends[group - 1]) if group else 0
        if end > first:
            yield group, whole[order[first:end]].tobytes()


@dataclass(frozen=True, slots=True)
class Repeated:
    """The number of messages whose id comes again, and offsets of some: the first's and the
    other's."""

    count: int
    examples: list[tuple[int, int]]


def find_repeated(parts: list[bytes]) -> Repeated:
    """Find repeated ids among all messages of a group; two ids of one hash count, too."""
    whole = np.concatenate([np.frombuffer(part, _ID) for part in parts])
    hashes = np.sort(whole["hash"])  # much cheaper than the order, which is rarely wanted
    if not (hashes[1:] == hashes[:-1]).any():
        return Repeated(0, [])
    whole = whole[np.argsort(whole["hash"], kind="stable")]
    again = np.flatnonzero(whole["hash"][1:] == whole["hash"][:-1]) + 1
    pairs = [
        tuple(sorted((int(whole["offset"][place - 1]), int(whole["offset"][place]))))
        for place in again[:EXAMPLES].tolist()
    ]
    return Repeated(len(again), [(first, other) for first, other in pairs])


def ids_differ(reader: LogReader, first: int, other: int) -> bool:
    """Whether only the hashes of these two messages are equal."""
    frames = [reader.frame_at(offset) for offset in (first, other)]
    keys = [
        (frame.topic, frame.properties.get(UNIQ_KEY)) if isinstance(frame, Frame) else None
        for frame in frames
    ]
    return keys[0] != keys[1]

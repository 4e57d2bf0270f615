"""The archive's side of an audit: the manifests by themselves, and every file that they list, one
task each.

Most messages of an archive are in no store any more, so nothing here needs one. A manifest's files
lie in the ranges that it covers, which follow each other in every queue. A file is there, has the
size and the rows that its manifest says, and can be read to its end, with the checksum of each
page; its rows are of its queue and hour, in the queue's order, within its offsets. The statistics
by which readers pass over rows are those of its rows (`statistics.py`). The digests are of what the
store or the cluster should hold as well.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from saturnmq.pipeline.jobs.checksums import crc_of_last
from saturnmq.pipeline.jobs.digest import PLACE, Digests, store_hours, within
from saturnmq.pipeline.jobs.manifest import (
    Archive,
    DataFile,
    Manifest,
    Ranges,
    hour_name,
    partition,
)
from saturnmq.pipeline.jobs.statistics import RowLimits, statistics_of
from saturnmq.pipeline.jobs.tasks import first_line, run
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.store.inspect.verify_report import Findings

_ROWS = 16_384


def queue_name(queue: MessageQueue) -> str:
    """A queue as findings name it."""
    return f"queue {queue.topic}/{queue.queue_id} of {queue.broker_name}"


@dataclass(slots=True)
class ArchiveFileAudit:
    """The result of one file: `digests` are of its `rows` that are to be compared."""

    digests: Digests
    rows: int = 0
    faults: list[str] = field(default_factory=list)


def audit_archive(
    spark: Any,
    archive: Archive,
    manifests: Sequence[Manifest],
    shared: Ranges,
    columns: Sequence[str],
    findings: Findings,
) -> tuple[Digests, int]:
    """Check all files. The digests of the `shared` messages, and the number of the other ones."""
    for note, faults in (False, _contradictions(manifests)), (True, _in_no_file(manifests)):
        for number, what in faults:
            findings.add(f"archive: {what}", archive.manifest(number), 0, note=note, together=False)
    files = [file for each in manifests for file in each.files]
    work = partial(_audit_file, archive=archive, shared=shared, columns=tuple(columns))
    result, others = Digests(tuple(columns)), 0
    for file, found in zip(files, run(spark, work, files), strict=True):
        result.merge(found.digests)
        others += found.rows - found.digests.rows
        for fault in found.faults:
            findings.add(f"archive: {fault}", archive.full(file), 0, together=False)
    return result, others


def _contradictions(manifests: Sequence[Manifest]) -> Iterator[tuple[int, str]]:
    """(number of the manifest, its fault): what manifests say of one thing twice must agree."""
    reached: dict[MessageQueue, int] = {}
    listed: set[str] = set()
    for manifest in manifests:
        number, rows = manifest.number, _rows_of(manifest)
        for file in manifest.files:
            first, end = manifest.ranges.get(file.queue, (0, 0))
            if not first <= file.first < file.end <= end:
                has = f"{file.path} has {file.first} to {file.end} of {queue_name(file.queue)}"
                yield number, f"{has}, the manifest covers {first} to {end}"
            if file.path in listed:
                yield number, f"{file.path} is listed twice"
            listed.add(file.path)
            place = partition(file.topic, file.hour)
            if posixpath.dirname(file.path) != place:
                yield number, f"{file.path} is in another directory than {place}"
        for queue, (first, end) in manifest.ranges.items():
            covers = f"the manifest covers {first} to {end} of {queue_name(queue)}"
            if first < min(end, reached.get(queue, 0)):
                yield number, f"{covers}, those before it reach to {reached[queue]}"
            if rows[queue] > end - first:
                yield number, f"{covers}, its files have {rows[queue]:,} messages of it"
            reached[queue] = end


def _in_no_file(manifests: Sequence[Manifest]) -> Iterator[tuple[int, str]]:
    """(number of the manifest, what it covers and does not have). A run leaves out what is damaged
    or lost if it is told to."""
    for manifest in manifests:
        rows = _rows_of(manifest)
        for queue, (first, end) in manifest.ranges.items():
            if missing := max(0, end - first - rows[queue]):
                what = f"{missing:,} of the messages {first} to {end} of {queue_name(queue)}"
                yield manifest.number, f"{what} were not archived, they are in no file"


def _rows_of(manifest: Manifest) -> Counter[MessageQueue]:
    rows: Counter[MessageQueue] = Counter()
    for file in manifest.files:
        rows[file.queue] += file.rows
    return rows


def _audit_file(
    file: DataFile, *, archive: Archive, shared: Ranges, columns: tuple[str, ...]
) -> ArchiveFileAudit:
    found = ArchiveFileAudit(Digests(columns))
    try:
        fault = archive.fault_of(file) or _read(file, archive, shared, found)
    except Exception as error:  # out of a damaged footer Arrow makes whatever it may
        fault = f"a file cannot be read: {first_line(error)}"
    if fault:
        found.faults.append(fault)
    return found


def _read(file: DataFile, archive: Archive, shared: Ranges, found: ArchiveFileAudit) -> str:
    """Read a file to its end, `found` has what is in it; the first fault, or nothing."""
    path = archive.full(file)
    if file.crc is not None and crc_of_last(path, file.bytes) != file.crc:
        return "a file has another checksum than its manifest says"
    groups = statistics_of(path)
    measured = [name for group in groups for name in group]
    needed = (*PLACE, "storeTimestamp", "queueOffset", *found.digests.columns)
    names = list(dict.fromkeys((*needed, *measured)))
    next_offset = file.first
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        for number, group in enumerate(groups):
            limits = {name: RowLimits() for name in group}
            for batch in parquet.iter_batches(_ROWS, row_groups=[number], columns=names):
                if fault := _fault_of(batch, file, next_offset):
                    return f"a file has rows {fault}"
                next_offset = batch.column("queueOffset")[-1].as_py() + 1
                found.rows += batch.num_rows
                found.digests.add(within(batch, shared))
                for name, of_column in limits.items():
                    of_column.add(batch.column(name))
            for name, told in group.items():
                if fault := told.fault(limits[name]):
                    return f"a file has {name} from {fault}"
    if found.rows != file.rows:
        return f"a file has {found.rows:,} rows, its manifest says {file.rows:,}"
    return ""


def _fault_of(batch: pa.RecordBatch, file: DataFile, next_offset: int) -> str:
    """Why these rows cannot be the next ones of the file, from `next_offset` on."""
    for name in (*PLACE, "storeTimestamp", "queueOffset"):
        if batch.column(name).null_count:
            return f"without {name}"
    for name, value in zip(PLACE, file.queue, strict=True):
        for found in pc.unique(batch.column(name)).to_pylist():
            if found != value:
                return f"of {name} {found!r}, its manifest says {value!r}"
    for hour in map(hour_name, np.unique(store_hours(batch)).tolist()):
        if hour != file.hour:
            return f"of the hour {hour}, its manifest says {file.hour}"
    offsets = batch.column("queueOffset").to_numpy(zero_copy_only=False)
    if offsets[0] < file.first or offsets[-1] >= file.end:
        return f"outside of the offsets {file.first} to {file.end} that its manifest says"
    if offsets[0] < next_offset or (np.diff(offsets) <= 0).any():
        return "that are not in the queue's order"
    return ""

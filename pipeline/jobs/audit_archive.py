"""The archive's side of an audit: every file that the manifests list, one task each.

Most messages of an archive are in no store any more, so nothing here needs one: a file is there,
has the size and the rows that its manifest says, and can be read to its end, with the checksum of
each page. The digests are of what the store or the cluster should hold as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow.parquet as pq
from saturnmq.pipeline.jobs.digest import PLACE, Digests, within
from saturnmq.pipeline.jobs.manifest import Archive, DataFile, Manifest, Ranges
from saturnmq.pipeline.jobs.tasks import run
from saturnmq.store.inspect.verify_report import Findings

_ROWS = 16_384


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
    files = [file for each in manifests for file in each.files]
    work = partial(_audit_file, archive=archive, shared=shared, columns=tuple(columns))
    result, others = Digests(tuple(columns)), 0
    for file, found in zip(files, run(spark, work, files), strict=True):
        result.merge(found.digests)
        others += found.rows - found.digests.rows
        for fault in found.faults:
            findings.add(f"archive: {fault}", archive.full(file), 0, together=False)
    return result, others


def _audit_file(
    file: DataFile, *, archive: Archive, shared: Ranges, columns: tuple[str, ...]
) -> ArchiveFileAudit:
    found = ArchiveFileAudit(Digests(columns))
    if fault := archive.fault_of(file):
        found.faults.append(fault)
        return found
    names = list(dict.fromkeys((*PLACE, "storeTimestamp", "queueOffset", *columns)))
    try:
        with pq.ParquetFile(archive.full(file), page_checksum_verification=True) as parquet:
            for batch in parquet.iter_batches(_ROWS, columns=names):
                found.rows += batch.num_rows
                found.digests.add(within(batch, shared))
    except (OSError, ValueError, KeyError) as error:
        found.faults.append(f"a file cannot be read: {str(error).splitlines()[0]}")
        return found
    if found.rows != file.rows:
        found.faults.append(f"a file has {found.rows:,} rows, its manifest says {file.rows:,}")
    return found

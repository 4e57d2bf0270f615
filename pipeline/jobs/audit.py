"""Checking a store against itself, and a store or a cluster against an archive.

A store against itself, one task a CommitLog file: every frame's checksums and place, every
ConsumeQueue entry against its frame, queue offsets without holes, ids that come twice, and digests
of each queue and hour (`audit_log.py`). The driver joins the ranges between files here.

Against an archive: digests of what both hold, queue by queue and hour by hour. The archive's come
from its Parquet files, all of which are checked (`audit_archive.py`); those of a store from the
same pass over the log, those of a cluster from reading its queues.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from saturnmq.pipeline.access import PERMISSIVE, STORE_BROKER, Decoding, Where
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.jobs.archive import brokers_of, workers
from saturnmq.pipeline.jobs.audit_archive import audit_archive, queue_name
from saturnmq.pipeline.jobs.audit_log import (
    FileAudit,
    Repeated,
    audit_file,
    find_repeated,
    ids_differ,
)
from saturnmq.pipeline.jobs.digest import PLACE, Digests, HourKey, Total, without_corrupt
from saturnmq.pipeline.jobs.log_file import LogFile, gaps_and_end, log_files
from saturnmq.pipeline.jobs.manifest import Archive, Manifest, Ranges, covered, hour_name
from saturnmq.pipeline.jobs.tasks import Progress, run, run_grouped
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range, ReadPlan, pack
from saturnmq.protocol.checked import INT32_MAX
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.derived.consumequeue import UNIT
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.verify import UNKNOWN, Sizes, directories, found_sizes, trust_in
from saturnmq.store.inspect.verify_queues import QueueCheck
from saturnmq.store.inspect.verify_report import Finding, Findings
from saturnmq.store.log.log_files import NOTHING, LogReader, SegmentFiles
from saturnmq.store.reading import number_of
from saturnmq.store.recovery.checkpoint import Checkpoint

HASHED = ("queueOffset", "storeTimestamp", "bornTimestamp", "keys", "tags", "body")
_GROUP_BYTES = 256 << 20  # of log, whose ids are sorted in one piece
Queue = tuple[str, int]


@dataclass(slots=True)
class Audited:
    """The result of an audit; sound if `damage` is empty. `digests` are of all that was looked at,
    or with an archive of what both should hold."""

    place: str
    archive: str = ""
    messages: int = 0
    log_start: int = 0
    log_end: int = 0
    queues: int = 0
    repeated: int = 0  # messages whose id an earlier one of their topic has
    archived: int = 0  # messages of the archive that were compared
    only_archived: int = 0  # and that were not: the place does not have them, or no more
    digests: Digests = field(default_factory=lambda: Digests(HASHED))
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.damage

    def totals(self) -> list[dict[str, Any]]:
        """A row for each queue and hour."""
        return [
            {
                "topic": key.topic,
                "broker": key.broker,
                "queue": key.queue_id,
                "hour": hour_name(key.hour),
                "messages": total.rows,
                "checksum": f"{total.sum:016x}",
            }
            for key, total in sorted(self.digests.totals.items())
        ]


def audit(
    spark: Any,
    where: Where,
    archive: str | None = None,
    *,
    sizes: Sizes = UNKNOWN,
    allow_repeated: bool = False,
    progress: Progress | None = None,
) -> Audited:
    """Check the store at `where`, and what it shares with `archive`; of a cluster only the latter.

    Producers send again what they are not sure of, so ids that come twice need not be an error:
    with `allow_repeated` they are notes. ConfigError for a cluster without archive.
    """
    if not where.path and archive is None:
        raise ConfigError("give an archive to compare with, or a store directory to check")
    shared: Ranges | None = None
    manifests: list[Manifest] = []
    columns: tuple[str, ...] = HASHED
    findings = Findings()
    if archive is not None:
        manifests, faults = Archive(archive).read()
        if not manifests and not faults:
            raise Archive(archive).nothing()
        for path, fault in faults:
            findings.add(f"archive: this file {fault}", path, 0, together=False)
        if manifests:
            has = set.intersection(*(set(each.columns) for each in manifests))
            columns = tuple(sorted(has - set(PLACE)))
        names = brokers_of(manifests)
        if where.path and where.broker_name == STORE_BROKER and len(names) == 1:
            where = replace(where, broker_name=names.pop())  # a store does not know its own
        shared = _shared(where, covered(manifests), archive, findings)
    audited = Audited(where.path or ",".join(where.nameservers), archive or "")
    audited.damage, audited.notes = findings.damage, findings.notes
    audited.digests = Digests(columns)
    if where.path:
        _LogAudit(spark, where, sizes, shared, audited, findings, allow_repeated).check(progress)
    else:
        assert shared is not None
        audited.digests = _of_queues(spark, where, shared, columns, findings, progress)
        audited.messages, audited.queues = audited.digests.rows, len(shared)
    if archive is not None and shared is not None:
        there, audited.only_archived = audit_archive(
            spark, Archive(archive), manifests, shared, columns, findings
        )
        audited.archived = there.rows
        _compare(audited.digests, there, archive, findings)
        if audited.only_archived:
            what = f"{audited.only_archived:,} messages have nothing to be compared with, only"
            _tell(findings, archive, f"{what} their files were checked", note=True)
    return audited


# -- the log --------------------------------------------------------------------------------------


class _LogAudit:
    """The check of one store's files."""

    def __init__(
        self,
        spark: Any,
        where: Where,
        sizes: Sizes,
        shared: Ranges | None,
        audited: Audited,
        findings: Findings,
        allow_repeated: bool,
    ) -> None:
        disk = NativeDisk()
        root = where.path
        self._disk = disk
        self._spark = spark
        self._root = root
        self._files, self._units = log_files(disk, root, sizes)
        self._trust = trust_in(disk, root, self._files, Checkpoint.load(disk, root))
        self._sizes = found_sizes(disk, root, sizes)
        self._broker = where.broker_name
        self._shared = shared
        self._audited = audited
        self._findings = findings
        self._allow_repeated = allow_repeated

    def check(self, progress: Progress | None) -> None:
        self._findings.add_odd("log", self._files)
        units = [unit for unit in self._units if unit.start < self._trust.log_end]
        groups = 1 + sum(unit.segment_bytes for unit in units) // _GROUP_BYTES
        work = partial(
            audit_file,
            trust=self._trust,
            queue_bytes=self._sizes.queue_file_bytes,
            broker=self._broker,
            columns=self._audited.digests.columns,
            shared=self._shared,
            groups=groups,
        )
        weights = [unit.segment_bytes for unit in units]
        found, repeated = run_grouped(
            self._spark, work, find_repeated, groups, units, weights, progress
        )
        self._add_up(units, found)
        self._check_queues(found)
        self._tell_repeated(units, repeated)
        self._files.close()

    def _add_up(self, units: Sequence[LogFile], found: Sequence[FileAudit]) -> None:
        audited, findings = self._audited, self._findings
        for each in found:
            for note, listed in ((False, each.damage), (True, each.notes)):
                for one in listed:
                    findings.add(
                        one.what, one.path, one.position, one.offset, note=note, count=one.count
                    )
            audited.digests.merge(each.digests)
            audited.messages += each.reached.messages
        gaps, end, why = gaps_and_end(units, [each.reached for each in found])
        for gap in gaps:
            self._trust.gaps.append((gap.start, gap.end))
            what = f"log: {gap.end - gap.start} bytes hold no frames: {gap.why}"
            findings.add(what, *self._files.place(gap.start), gap.start, together=False)
        if why not in ("", NOTHING) and not self._trust.running:
            what = f"log: its end is torn ({why}); the next start cuts it off"
            findings.add(what, *self._files.place(end), end, note=True)
        self._trust.log_end = end
        audited.log_start, audited.log_end = self._files.start, end

    def _check_queues(self, found: Sequence[FileAudit]) -> None:
        """The messages of the queues before, between and behind the ranges that the tasks
        compared."""
        ranges: defaultdict[Queue, list[tuple[int, int]]] = defaultdict(list)
        source = posixpath.join(self._root, "consumequeue")
        for topic in directories(self._disk, source):
            for queue in directories(self._disk, topic):
                queue_id = number_of(posixpath.basename(queue), INT32_MAX)
                if queue_id is not None:
                    ranges[posixpath.basename(topic), queue_id] = []
        for each in found:
            for name_and_id, first, end in each.runs:
                ranges[name_and_id].append((first, end))
        self._audited.queues = len(ranges)
        for (topic, queue_id), covered_by in sorted(ranges.items()):
            name = f"{topic}/{queue_id}"
            directory = posixpath.join(source, name)
            files = SegmentFiles(self._disk, directory, self._sizes.queue_file_bytes)
            check = QueueCheck(files, name, self._findings, self._trust)
            reached: int | None = None
            for first, end in covered_by:
                self._tell_holes(files, name, reached, first)
                check.expect(first, 0, b"")
                check.skip(end)
                reached = max(end, reached or 0)
            check.finish()

    def _tell_holes(self, files: SegmentFiles, name: str, reached: int | None, first: int) -> None:
        if reached is None or first == reached:
            return
        place = files.place(min(first, reached) * UNIT)
        if first > reached:
            count, what = first - reached, f"log: messages of queue {name} are missing"
        else:
            count, what = reached - first, f"log: queue offsets of {name} come twice"
        self._findings.add(f"{what}, from queue offset {min(first, reached)}", *place, count=count)

    def _tell_repeated(self, units: Sequence[LogFile], found: Iterable[Repeated]) -> None:
        """Hashes name the candidates; what is told as an example was read."""
        count, examples = 0, []
        for each in found:
            count += each.count
            examples += each.examples
        reader = LogReader(self._files)
        really = [pair for pair in examples if not ids_differ(reader, *pair)]
        count -= len(examples) - len(really)
        self._audited.repeated = count
        if really:
            first, again = min(really)
            what = f"log: ids of messages come again in their topic, as that at {first}"
            place = self._files.place(again)
            self._findings.add(what, *place, again, count=count, note=self._allow_repeated)


# -- the archive ----------------------------------------------------------------------------------


def _shared(where: Where, archived: Ranges, archive: str, findings: Findings) -> Ranges:
    """The messages that the place and the archive should both hold. The files of a running broker
    say later than it does what consumers may see."""
    running = bool(where.path) and NativeDisk().locked(posixpath.join(where.path, "lock"))
    with open_access(where) as access:
        bounds = access.bounds(sorted({queue.topic for queue in archived}), archived)
    shared = {}
    for queue, (first, end) in sorted(archived.items()):
        low, high = bounds.get(queue, (0, 0))
        if queue not in bounds:
            if not where.path or queue.broker_name == where.broker_name:
                _tell(findings, archive, f"{queue_name(queue)} is not there, only in the archive")
        elif high < end:
            what = f"{queue_name(queue)} ends at {high}, the archive reaches to {end}"
            _tell(findings, archive, what, note=running)
        if max(low, first) < min(high, end):
            shared[queue] = max(low, first), min(high, end)
    return shared


def _of_queues(
    spark: Any,
    where: Where,
    ranges: Ranges,
    columns: Sequence[str],
    findings: Findings,
    progress: Progress | None,
) -> Digests:
    """The digests of ranges of a cluster's queues; what is damaged there is told."""
    wanted = [Range(*queue, first, end) for queue, (first, end) in sorted(ranges.items())]
    plan = ReadPlan(parts=workers(spark))
    with open_access(where) as access:
        grain = plan.grain(sum(each.rows for each in wanted))
        parts = pack(access.cuts(wanted, *grain), plan)
    weights = [sum(piece.bytes for piece in part) for part in parts]
    work = partial(_digest_part, where=where, columns=tuple(columns))
    result = Digests(tuple(columns))
    for digests, damage in run(spark, work, parts, weights, progress):
        result.merge(digests)
        for text in damage:
            findings.add(f"cluster: {text}", ",".join(where.nameservers), 0, together=False)
    return result


def _digest_part(
    part: Sequence[Range], *, where: Where, columns: tuple[str, ...]
) -> tuple[Digests, list[str]]:
    """Also where a message is damaged, and how."""
    digests, damage = Digests(columns), []
    names = dict.fromkeys((*PLACE, "storeTimestamp", *columns, "_corrupt"))
    decoding = Decoding(columns=select(names), mode=PERMISSIVE, verify=True)
    with open_access(where) as access:
        for batch in access.batches(part, decoding):
            sound, corrupt = without_corrupt(batch)
            digests.add(sound)
            damage += corrupt
    return digests, damage


def _compare(here: Digests, there: Digests, archive: str, findings: Findings) -> None:
    nothing = Total()
    for key in sorted(set(here.totals) | set(there.totals)):
        one, other = here.totals.get(key, nothing), there.totals.get(key, nothing)
        if one != other:
            what = f"{_key_name(key)}: here {one}; in the archive {other}"
            _tell(findings, archive, what)


def _tell(findings: Findings, archive: str, what: str, *, note: bool = False) -> None:
    findings.add(f"archive: {what}", archive, 0, note=note, together=False)


def _key_name(key: HourKey) -> str:
    queue = MessageQueue(key.topic, key.broker, key.queue_id)
    return f"{queue_name(queue)}, hour {hour_name(key.hour)}"

"""Every BatchConsumeQueue held against the units that the CommitLog's inner batches ask for.

Both come in log order. A unit of a file that comes before the next one of the log must be of a
frame that is gone: deleted with its segment or its topic, or in damage.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from saturnmq.protocol.frame_reference import BATCH_UNIT, Run
from saturnmq.store.disk import Disk
from saturnmq.store.inspect.verify_report import Findings, Trust
from saturnmq.store.log.log_files import SegmentFiles
from saturnmq.store.reading import queues_in

_UNIT = BATCH_UNIT.size
_READ = _UNIT * 1024


class BatchCheck:
    """One queue; `expect` in log order, then `finish`."""

    def __init__(self, files: SegmentFiles, name: str, findings: Findings, trust: Trust) -> None:
        self._files = files
        self._name = name
        self._findings = findings
        self._trust = trust
        self._start = trust.start_of(name.rpartition("/")[0])
        self._found = self._units()
        self._next = next(self._found, None)
        self.units = 0
        findings.add_odd("queue", files)

    def _units(self) -> Iterator[tuple[int, bytes]]:
        """(position, unit) of all slots of the files that are not empty."""
        for segment in self._files.segments:
            for at in range(segment.start, segment.start + segment.size, _READ):
                size = min(_READ, segment.start + segment.size - at)
                data = self._files.read(at, size).ljust(size, b"\0")
                self._files.close()  # a store may have more queues than open files
                if not data.strip(b"\0"):
                    continue
                for first in range(0, size - _UNIT + 1, _UNIT):
                    if any(unit := data[first : first + _UNIT]):
                        yield at + first, unit

    def expect(self, unit: bytes) -> None:
        """The log says that this unit comes next."""
        self.units += 1
        wanted = BATCH_UNIT.unpack(unit)
        while self._next is not None and BATCH_UNIT.unpack(self._next[1])[0] < wanted[0]:
            self._surplus(*self._next)
            self._next = next(self._found, None)
        if self._next is None or BATCH_UNIT.unpack(self._next[1])[0] != wanted[0]:
            position = self._files.end if self._next is None else self._next[0]
            self._report("units are missing", position, wanted[0])
            return
        position, found = self._next
        if found != unit:
            self._report("units are wrong", position, wanted[0])
        self._next = next(self._found, None)

    def finish(self) -> None:
        """Judge the units behind the last one that the log asks for."""
        while self._next is not None:
            self._surplus(*self._next)
            self._next = next(self._found, None)

    def _surplus(self, position: int, unit: bytes) -> None:
        offset, trust = BATCH_UNIT.unpack(unit)[0], self._trust
        if 0 <= offset < self._start or trust.in_gap(offset):
            return
        if offset >= trust.log_end:
            if not trust.running:
                self._report("units point behind the log's end", position, offset)
        else:
            self._report("units point at nothing", position, offset)

    def _report(self, what: str, position: int, offset: int) -> None:
        path, place = self._files.place(position)
        note = offset >= self._trust.below
        self._findings.add(f"queue {self._name}: {what}", path, place, offset, note=note)


class BatchChecks:
    """All of a store."""

    def __init__(self, disk: Disk, directory: str, findings: Findings, trust: Trust) -> None:
        self._disk = disk
        self._directory = directory
        self._findings = findings
        self._trust = trust
        self.table: dict[tuple[str, int], BatchCheck] = {}
        for topic, queue_id in queues_in(disk, directory):
            self._make(topic, queue_id)

    def _make(self, topic: str, queue_id: int) -> BatchCheck:
        files = SegmentFiles(self._disk, posixpath.join(self._directory, topic, str(queue_id)))
        check = BatchCheck(files, f"{topic}/{queue_id}", self._findings, self._trust)
        self.table[topic, queue_id] = check
        return check

    def expect(self, runs: Iterable[Run]) -> None:
        """The log has these inner batches."""
        for topic, queue_id, _, _, unit in runs:
            if BATCH_UNIT.unpack(unit)[0] >= self._trust.start_of(topic):
                check = self.table.get((topic, queue_id)) or self._make(topic, queue_id)
                check.expect(unit)

    def finish(self) -> None:
        for check in self.table.values():
            check.finish()

"""Every ConsumeQueue held against the entries that the CommitLog's frames ask for.

The entries come in log order and are compared a piece at a time, so that a store of any size needs
little memory; what is in the files beyond them is judged at the end: fillers, entries of deleted
frames, or damage.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from saturnmq.protocol.frame_reference import SCHEDULE_TOPIC, Run
from saturnmq.store.derived.consumequeue import ENTRY, FILLER, UNIT
from saturnmq.store.derived.tombstones import without_deleted
from saturnmq.store.disk import Disk
from saturnmq.store.inspect.verify_report import Findings, Trust
from saturnmq.store.log.log_files import SegmentFiles
from saturnmq.store.reading import queues_in

_CHUNK = 64 << 10
_HASH_MIN = -(1 << 31)  # a tags code below is an address in RocketMQ's ConsumeQueueExt
_ABSENT = (0, 0, 0)
_FILLED = ENTRY.unpack(FILLER)


class QueueCheck:
    """One queue; `expect` in log order, then `finish`. Entries before `first` (by default the first
    in the files) are not checked."""

    def __init__(
        self,
        files: SegmentFiles,
        name: str,
        findings: Findings,
        trust: Trust,
        *,
        first: int | None = None,
        extended: bool = False,
    ) -> None:
        self.files = files
        self._extended = extended
        self.entries = 0
        self._name = name
        self._findings = findings
        self._trust = trust
        self._start = trust.start_of(name.rpartition("/")[0])
        self._delayed = name.startswith(SCHEDULE_TOPIC.decode() + "/")
        # the first index not yet looked at
        self._next = files.start // UNIT if first is None else first
        self._buffer = bytearray()
        if first is None:
            findings.add_odd("queue", files)

    def expect(self, first: int, count: int, entries: bytes) -> None:
        """The log says that `entries` stand from index `first` on."""
        self.entries += count
        following = self._next + len(self._buffer) // UNIT
        if first != following:
            self.settle()
            if first > self._next:
                self.judge_surplus(self._next, first)
                self._next = first
            elif first < self._next:
                entries = self._without_taken(first, entries)
        self._buffer += entries
        if len(self._buffer) >= _CHUNK:
            self.settle()

    def _without_taken(self, first: int, entries: bytes) -> bytes:
        """The entries whose place lies behind what was looked at."""
        taken = self._next - first
        for number, entry in enumerate(ENTRY.iter_unpack(entries[: taken * UNIT])):
            index = first + number
            if index * UNIT >= self.files.start:
                what = f"queue {self._name}: two frames have the same queue offset"
                self._report(what, index, entry[0])
            else:
                what = f"queue {self._name}: entries are missing"
                self._report(what, index, entry[0], note=self._trust.foreign)
        return entries[taken * UNIT :]

    def skip(self, end: int) -> None:
        """Another worker looks at what is not yet looked at before entry `end`."""
        self._next = max(self._next, end)

    def settle(self) -> None:
        """Compare what is still held back."""
        wanted, first = bytes(self._buffer), self._next
        self._next += len(wanted) // UNIT
        self._buffer.clear()
        found = self._read(first, len(wanted) // UNIT)
        if found == wanted:
            return
        pairs = zip(ENTRY.iter_unpack(wanted), ENTRY.iter_unpack(found), strict=True)
        for index, (want, have) in enumerate(pairs, first):
            if want != have:
                self._differs(index, want, have)

    def _differs(self, index: int, want: tuple[int, ...], have: tuple[int, ...]) -> None:
        same_frame = want[:2] == have[:2]
        if have == _ABSENT:
            self._report(f"queue {self._name}: entries are missing", index, want[0])
        elif have == _FILLED:
            what = f"queue {self._name}: slots are filled that have a frame"
            self._report(what, index, want[0], note=self._trust.foreign)
        elif same_frame and have[2] < _HASH_MIN and self._extended:
            what = f"queue {self._name}: tags codes refer to consumequeue_ext"
            self._report(what, index, want[0], note=True)
        elif same_frame and self._delayed:
            what = f"queue {self._name}: messages are due at times of other delay levels"
            self._report(what, index, want[0], note=True)
        elif same_frame:
            self._report(f"queue {self._name}: tags codes are wrong", index, want[0])
        else:
            self._report(f"queue {self._name}: entries are wrong", index, want[0])

    def _report(
        self, what: str, index: int, offset: int, *, note: bool = False, count: int = 1
    ) -> None:
        path, position = self.files.place(index * UNIT)
        note = note or offset >= self._trust.below
        self._findings.add(what, path, position, offset, note=note, count=count)

    def judge_surplus(self, first: int, end: int) -> None:
        """Slots that no frame of the log asks for: filler, expired, of a gap, or wrong."""
        while first < end:
            absent = self._without_file(first, end)
            if absent:  # however many: a damaged frame may claim any place
                if not self._trust.in_gap(0):
                    what = f"queue {self._name}: there is a hole"
                    self._report(what, first, 0, count=absent)
                first += absent
                continue
            count = min(end - first, _CHUNK // UNIT)
            slots = self._read(first, count)
            for index, (offset, size, code) in enumerate(ENTRY.iter_unpack(slots), first):
                if (offset, size, code) == _FILLED or self._trust.in_gap(offset):
                    continue
                if size > 0 and offset < self._start:
                    continue  # its frame was deleted with its segment or its topic
                what = f"queue {self._name}: entries point at nothing"
                if size == 0:
                    what = f"queue {self._name}: there is a hole"
                self._report(what, index, offset)
            first += count

    def _without_file(self, first: int, end: int) -> int:
        """The number of slots from `first` on, before `end`, that no file holds."""
        at = first * UNIT
        if self.files.find(at) is not None:
            return 0
        if at >= self.files.end:
            return end - first
        return min(end, -(-self.files.following(at) // UNIT)) - first

    def _read(self, first: int, count: int) -> bytes:
        parts, at, end = [], first * UNIT, (first + count) * UNIT
        while at < end:
            stop = min(end, self.files.following(at)) if at < self.files.end else end
            parts.append(self.files.read(at, stop - at).ljust(stop - at, b"\0"))
            at = stop
        self.files.close()  # a store may have more queues than a process may have open files
        return b"".join(parts)

    def finish(self) -> None:
        """Check the slots behind the last entry: all slots, if the queue's frames all expired."""
        self.settle()
        ranges = list(self.files.written(self._next * UNIT, UNIT))
        self.files.close()
        for start, end in ranges:
            for at in range(start // UNIT, end // UNIT, _CHUNK // UNIT):
                count = min(_CHUNK // UNIT, end // UNIT - at)
                slots = self._read(at, count)
                if slots.strip(b"\0"):
                    self._judge_behind(at, slots)

    def _judge_behind(self, first: int, slots: bytes) -> None:
        trust = self._trust
        for index, (offset, size, code) in enumerate(ENTRY.iter_unpack(slots), first):
            if (offset, size, code) in (_ABSENT, _FILLED) or trust.in_gap(offset):
                continue
            if size > 0 and offset < self._start:
                continue
            if trust.running and offset >= trust.log_end:
                continue
            what = f"queue {self._name}: entries point at nothing"
            if offset >= trust.log_end:
                what = f"queue {self._name}: entries point behind the log's end"
            self._report(what, index, offset)


class QueueChecks:
    """All queues of a store."""

    def __init__(
        self, disk: Disk, directory: str, segment_bytes: int, findings: Findings, trust: Trust
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._findings = findings
        self._trust = trust
        self.table: dict[tuple[str, int], QueueCheck] = {}
        for topic, queue_id in queues_in(disk, directory):
            self._make(topic, queue_id)

    def _make(self, topic: str, queue_id: int) -> QueueCheck:
        directory = posixpath.join(self._directory, topic, str(queue_id))
        files = SegmentFiles(self._disk, directory, self._segment_bytes)
        check = QueueCheck(
            files,
            f"{topic}/{queue_id}",
            self._findings,
            self._trust,
            extended=self._disk.exists(f"{self._directory}_ext"),
        )
        self.table[topic, queue_id] = check
        return check

    def expect(self, runs: Iterable[Run]) -> None:
        runs = without_deleted(runs, self._trust.tombstones)
        for topic, queue_id, first, count, entries in runs:
            check = self.table.get((topic, queue_id)) or self._make(topic, queue_id)
            check.expect(first, count, entries)

    def finish(self) -> None:
        for check in self.table.values():
            check.finish()

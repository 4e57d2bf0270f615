"""All ConsumeQueues of a store and the next logical offset of each.

`next` runs ahead of the queues: the writer hands offsets out at once, reput follows. Directories:
`consumequeue/<topic>/<queueId>/`; names below a topic that are no numbers are skipped.

A queue is of one of two kinds, and the frames of the log decide of which: an inner batch makes it
a BatchConsumeQueue, in `batchconsumequeue/`, where other frames count as batches of one message
(RocketMQ goes by the topic's attribute, with the same result).

The queues of a deleted topic stay in the table without files, because they know where a topic of
the same name goes on (`tombstones.py`).
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from saturnmq.protocol.kernels import Run
from saturnmq.store.derived.batchconsumequeue import BatchConsumeQueue, TimeAt, singles
from saturnmq.store.derived.consumequeue import UNIT, ConsumeQueue
from saturnmq.store.derived.queue_files import QueueFiles
from saturnmq.store.derived.tombstones import Tombstone
from saturnmq.store.disk import Advice, Disk
from saturnmq.store.log.segments import SegmentsDamaged, WrongLength
from saturnmq.store.reading import queues_in

log = logging.getLogger(__name__)

Key = tuple[str, int]
Kind = TypeVar("Kind", bound=ConsumeQueue)


class QueueTable:
    """The table of queues."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segment_bytes: int,
        advice: tuple[Advice, ...] = (),
        files: QueueFiles | None = None,
        *,
        batch_bytes: int = 13_800_000,
    ) -> None:
        self._disk = disk
        self._files = QueueFiles(disk) if files is None else files
        self._advice = advice
        batches = posixpath.join(posixpath.dirname(directory), "batchconsumequeue")
        self._places = {
            kind: (place, size + -size % kind.unit)
            for kind, place, size in (
                (BatchConsumeQueue, batches, batch_bytes),
                (ConsumeQueue, directory, segment_bytes),
            )
        }
        assert segment_bytes > 0, f"files of queues of {segment_bytes} bytes"
        assert batch_bytes > 0, f"files of queues of batches of {batch_bytes} bytes"
        place, size = self._places[ConsumeQueue]
        self._files.keep_spares(place, size, is_warm=Advice.WARM in advice)
        self.table: dict[Key, ConsumeQueue] = {}
        self.next: dict[Key, int] = {}
        self.tombstones: Mapping[str, Tombstone] = {}

    def load(self, *, clean: bool) -> None:
        """Open all queues. One whose files do not fit together is deleted, to be built again.
        After a crash nobody knows whether their names are durable.

        When every queue has files of another length they were written with another setting:
        WrongLength.
        """
        damage: list[tuple[Key, SegmentsDamaged]] = []
        self._files.trusted = clean
        for kind, topic, queue_id in self._found():
            if (topic, queue_id) in self.table:
                log.error("queue %s/%d is one of batches: its other files go", topic, queue_id)
                self._disk.remove_tree(self._directory(kind, topic, queue_id))
                continue
            queue = self._make(kind, topic, queue_id)
            queue.is_starting = True
            try:
                queue.series.load()
            except SegmentsDamaged as error:
                damage.append(((queue.topic, queue.queue_id), error))
        wrong = [error for _, error in damage if isinstance(error, WrongLength)]
        if wrong and len(wrong) == len(self.table):
            raise wrong[0]
        for key, why in damage:
            log.error("queue %s/%d is built again: %s", *key, why)
            queue = self.table.pop(key)
            queue.close()
            self._disk.remove_tree(queue.series.directory)

    def _found(self) -> Iterator[tuple[type[ConsumeQueue], str, int]]:
        """The queues that have directories, those of batches first."""
        for kind, (place, _) in self._places.items():
            for topic, queue_id in queues_in(self._disk, place):
                yield kind, topic, queue_id

    def validate(self, log_end: int) -> None:
        """AssertionError: a queue is not what its key says, leads the log, or has more entries than
        offsets were given out."""
        for (topic, queue_id), queue in self.table.items():
            assert (queue.topic, queue.queue_id) == (topic, queue_id), (queue.topic, topic)
            queue.validate(log_end)
            given = self.next.get((topic, queue_id), 0)
            assert queue.max_offset <= given, (
                f"{topic}/{queue_id} ends at {queue.max_offset}, the next offset is {given}"
            )
            tombstone = self.tombstones.get(topic)
            assert queue.since == (0 if tombstone is None else tombstone.end), topic
        for tombstone in self.tombstones.values():
            tombstone.validate()

    def started(self) -> None:
        """Note that a start could read all files."""
        for queue in self:
            queue.started()

    @property
    def unsynced(self) -> int:
        """The files that the next flush syncs."""
        return len(self._files.dirty)

    def flush(self) -> None:
        """Blocking, may run beside appends: entries put before are durable then."""
        self._files.flush()

    def _directory(self, kind: type[ConsumeQueue], topic: str, queue_id: int) -> str:
        return posixpath.join(self._places[kind][0], topic, str(queue_id))

    def _make(self, kind: type[Kind], topic: str, queue_id: int) -> Kind:
        assert (topic, queue_id) not in self.table, f"{topic}/{queue_id} is there already"
        directory, size = self._directory(kind, topic, queue_id), self._places[kind][1]
        queue = kind(self._disk, directory, size, topic, queue_id, self._advice, self._files)
        self.table[topic, queue_id] = queue
        if topic in self.tombstones:
            queue.bury(self.tombstones[topic].end, self.tombstones[topic].next.get(queue_id, 0))
        return queue

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The files of this queue; None if no message ever came."""
        return self.table.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        return self.table.get((topic, queue_id)) or self._make(ConsumeQueue, topic, queue_id)

    def of_kind(
        self, kind: type[ConsumeQueue], topic: str, queue_id: int, time_at: TimeAt
    ) -> ConsumeQueue:
        """The queue for frames of this kind, which is made if need be: of entries one that has
        entries, or has batches already; of batches one that has batches."""
        queue = self.table.get((topic, queue_id))
        if queue is None:
            return self._make(kind, topic, queue_id)
        if type(queue) is kind or (kind is ConsumeQueue and not queue.is_empty):
            return queue
        before: list[Run] = []
        offset = queue.min_offset
        while kind is not ConsumeQueue and (found := queue.entries(offset, queue.max_offset)):
            run = topic, queue_id, offset, len(found) // UNIT, bytes(found)
            before += singles(run, time_at)
            offset += len(found) // UNIT
        del self.table[topic, queue_id]
        made = self._make(kind, topic, queue_id)
        try:
            for _, _, first, _, unit in before:
                made.append(first, unit)
        except OSError:  # there is no room: it stays what it is
            made.close()
            self.table[topic, queue_id] = queue
            raise
        if queue.series.segments:
            self._disk.remove_tree(queue.let_go(), durable=False)
        return made

    def count_new(self, runs: Iterable[Run]) -> int:
        """The number of these queues for which files must be made."""
        known = self.table.get
        new = 0
        for run in runs:
            queue = known(run[:2])
            if queue is None or not queue.series.segments:
                new += 1
        return new

    def raise_next(self, topic: str, queue_id: int, value: int) -> None:
        if value > self.next.get((topic, queue_id), 0):
            self.next[topic, queue_id] = value

    def reset_next(self) -> None:
        """After recovery: the next offset of every queue is its end."""
        self.next = {key: queue.max_offset for key, queue in self.table.items()}

    def non_empty(self) -> int:
        """The number of queues with files that the next start must find, without deleted topics."""
        return sum(
            1
            for queue in self
            if queue.series.segments and not (queue.since and queue.min_offset == queue.max_offset)
        )

    def max_physical(self) -> int:
        return max((queue.max_physical for queue in self.table.values()), default=-1)

    def destroy(self, log_start: int) -> None:
        """Delete all entries but those of messages before `log_start`: nothing could build them
        again, and where nothing follows them any more, their end is the next offset."""
        assert log_start >= 0, f"a log that begins at {log_start}"
        for queue in self.table.values():
            queue.forget_from(log_start)

    # deleted topics

    def bury(self, tombstones: Mapping[str, Tombstone]) -> None:
        """These count from now on, and no others: no entry of a deleted topic is added or read; its
        files are still there."""
        over = self.tombstones.keys() - tombstones.keys()
        self.tombstones = dict(tombstones)
        for topic, tombstone in tombstones.items():
            for queue_id in tombstone.next:
                self.get_or_create(topic, queue_id)
        for key, queue in list(self.table.items()):
            topic, queue_id = key
            if topic in tombstones:
                first = tombstones[topic].next.get(queue_id, 0)
                queue.bury(tombstones[topic].end, first)
                self.raise_next(topic, queue_id, first)
            elif topic in over:
                queue.bury(0, 0)
                if not queue.series.segments:
                    del self.table[key]

    def since(self, topic: str) -> int:
        """Frames of the topic that lie before this place in the log are deleted."""
        tombstone = self.tombstones.get(topic)
        return 0 if tombstone is None else tombstone.end

    def remove_deleted(self) -> Iterator[None]:
        """Delete the files of deleted queues, a queue with each `next`, and directories of topics
        that have none any more. The names go without a sync: a start that finds them again does
        this again."""
        if not self.tombstones:
            return
        for queue in self:
            if queue.since and queue.series.segments and queue.is_empty:
                self._disk.remove_tree(queue.let_go(), durable=False)
                yield
        left = {queue.topic for queue in self if queue.series.segments}
        for place, _ in self._places.values():
            for entry in self._disk.list(place):
                if entry.is_dir and entry.name in self.tombstones and entry.name not in left:
                    self._disk.remove_tree(posixpath.join(place, entry.name), durable=False)

    def close(self) -> None:
        for queue in self.table.values():
            queue.close()
        self._files.close()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

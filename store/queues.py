"""All ConsumeQueues of a store and the next logical offset of each.

`next` runs ahead of the queues: the writer hands offsets out at once, reput follows. Directories:
`consumequeue/<topic>/<queueId>/`; names below a topic that are no numbers are skipped.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from saturnmq.store.consumequeue import ConsumeQueue
from saturnmq.store.disk import Disk

Key = tuple[str, int]


class Queues:
    """The table of queues."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes + -segment_bytes % 20
        self.table: dict[Key, ConsumeQueue] = {}
        self.next: dict[Key, int] = {}

    def load(self) -> None:
        for topic in self._disk.list(self._directory):
            if not topic.is_dir:
                continue
            for entry in self._disk.list(posixpath.join(self._directory, topic.name)):
                if entry.is_dir and entry.name.isdigit():
                    queue = self._make(topic.name, int(entry.name))
                    queue.series.load()

    def _make(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = posixpath.join(self._directory, topic, str(queue_id))
        queue = ConsumeQueue(self._disk, directory, self._segment_bytes, topic, queue_id)
        self.table[topic, queue_id] = queue
        return queue

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        return self.table.get((topic, queue_id)) or self._make(topic, queue_id)

    def raise_next(self, topic: str, queue_id: int, value: int) -> None:
        if value > self.next.get((topic, queue_id), 0):
            self.next[topic, queue_id] = value

    def reset_next(self) -> None:
        """After recovery: the next offset of every queue is its end."""
        self.next = {key: queue.max_offset for key, queue in self.table.items()}

    def non_empty(self) -> int:
        return sum(1 for queue in self.table.values() if queue.series.segments)

    def max_physical(self) -> int:
        return max((queue.max_physical for queue in self.table.values()), default=-1)

    def destroy(self) -> None:
        for queue in self.table.values():
            queue.destroy()

    def close(self) -> None:
        for queue in self.table.values():
            queue.close()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(list(self.table.values()))

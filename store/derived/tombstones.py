"""Deleted topics: what of a topic's messages does not count any more.

A tombstone says where the log ended when a topic was deleted, and the next offset of each of its
queues then. Entries of frames before `end` belong to the deleted topic: they are not built, not
read, and their files go. A topic of the same name begins empty at `next`: (queue, offset) means one
message for ever, also for a consumer that was away, and for queues that are built from the log
again.

`"deletedTable"` of `config/topics.json`: `{"<topic>":{"end":n,"next":{"<queue>":n}}}`, which
RocketMQ passes over. It stands beside the topics because both change in one step. Written by the
broker's topic table, copied by slaves with it (code 21); read by the broker, by the store when it
opens, and by `saturnmq store check|rebuild`.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from saturnmq.protocol import checked
from saturnmq.protocol.frame_reference import Run
from saturnmq.runtime.errors import MalformedFrame, StoreDamaged
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.disk import Disk

KEY = "deletedTable"
_ENTRY = struct.Struct(">q12x")  # of a queue entry the place of its frame
assert _ENTRY.size == 20, "an entry of a queue"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """`end`: a place in the log; `next`: queue offsets, without those that are 0."""

    end: int
    next: Mapping[int, int] = field(default_factory=dict)

    def validate(self) -> None:
        """Check the values. AssertionError: no deletion makes such a tombstone."""
        assert self.end >= 0, f"deleted up to {self.end}"
        for queue_id, offset in self.next.items():
            assert queue_id >= 0, f"the queue {queue_id} was deleted"
            assert offset >= 0, f"the queue {queue_id} goes on at {offset}"

    def merged(self, other: Tombstone | None) -> Tombstone:
        """Merge two deletions of one topic: everything that either deleted is gone, and the topic
        goes on behind both."""
        if other is None:
            return self
        following = {
            queue_id: max(self.next.get(queue_id, 0), other.next.get(queue_id, 0))
            for queue_id in self.next.keys() | other.next.keys()
        }
        return Tombstone(max(self.end, other.end), following)

    def within(self, end: int) -> Tombstone:
        """The same deletion in a log that ends at `end` now: later messages there are not
        deleted."""
        return replace(self, end=min(self.end, end))

    def to_json(self) -> dict[str, Any]:
        following = {str(queue_id): offset for queue_id, offset in sorted(self.next.items())}
        return {"end": self.end, "next": following}


def tombstones_of(document: Mapping[str, Any]) -> dict[str, Tombstone]:
    """The tombstones in a document of the topic table, by topic. MalformedFrame: an entry is
    none."""
    return {
        checked.as_text(topic, "a topic"): _tombstone(checked.as_table(item, "a tombstone"))
        for topic, item in checked.table(document, KEY).items()
    }


def _tombstone(item: Mapping[str, Any]) -> Tombstone:
    following = checked.table(item, "next")
    return Tombstone(
        checked.integer(item, "end"),
        {
            checked.as_integer(queue_id, "a queue", most=checked.INT32_MAX): checked.as_integer(
                offset, "where a queue goes on"
            )
            for queue_id, offset in following.items()
        },
    )


def without_deleted(runs: Iterable[Run], tombstones: Mapping[str, Tombstone]) -> Iterable[Run]:
    """The entries that frames of the log ask for, except those deleted with their topic."""
    return _without_deleted(runs, tombstones) if tombstones else runs


def _without_deleted(runs: Iterable[Run], tombstones: Mapping[str, Tombstone]) -> Iterator[Run]:
    for run in runs:
        topic, queue_id, first, count, entries = run
        tombstone = tombstones.get(topic)
        if tombstone is None or _ENTRY.unpack_from(entries)[0] >= tombstone.end:
            yield run
            continue
        size = _ENTRY.size
        if _ENTRY.unpack_from(entries, len(entries) - size)[0] < tombstone.end:
            continue
        gone = sum(1 for (offset,) in _ENTRY.iter_unpack(entries) if offset < tombstone.end)
        yield topic, queue_id, first + gone, count - gone, entries[gone * size :]


def read_tombstones(disk: Disk, root: str) -> dict[str, Tombstone]:
    """The tombstones of the store in `root`; none if it has no topic table yet."""
    file = ConfigFile(disk, posixpath.join(root, "config", "topics.json"))
    try:
        return tombstones_of(file.load() or {})
    except MalformedFrame as error:
        raise StoreDamaged(
            f"{KEY} of {file.path} is not what a broker writes ({error}): restore the file, or "
            "take the key out to have the deleted topics again"
        ) from error

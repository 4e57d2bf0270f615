"""A store directory as a source reads it: ours or RocketMQ's own, of a stopped broker, a slave, a
snapshot, or of a broker that is running.

Nothing is written, no lock is taken, no descriptor of the lock file opened (closing one would give
the broker's own lock up). Sizes of files come from their names and lengths. Reading beside a broker
that writes is safe, because only that is read which no longer changes: what lies below the
`confirm` mark of the checkpoint, which is replaced as a whole, and a file that is deleted meanwhile
stays readable as long as it is mapped, which is to the next look at how far the store is. With
`trust_tail` everything to the last whole frame is read, which is right for a broker that stopped,
however it did. RocketMQ's mark is not looked at: it says where the log ended when the broker
started. Its stores are read whole after an orderly stop, else with `trust_tail` only.

A store does not say what its broker is called: `Where.broker_name` does.
"""

from __future__ import annotations

import mmap
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from saturnmq.pipeline.access import Decoding, Where
from saturnmq.pipeline.batched_topics import LeftOut, refusal
from saturnmq.pipeline.plan import Range
from saturnmq.pipeline.reading import ReadTally, decoder, subscription
from saturnmq.protocol.checked import INT32_MAX
from saturnmq.protocol.codes import PERM_INHERIT, PERM_READ
from saturnmq.protocol.frame import Frame, decode_frame
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.route import TopicConfig
from saturnmq.protocol.topics import REPLY_SUFFIX, is_system_topic
from saturnmq.runtime.errors import ConfigError, StoreDamaged, nearest
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.consumequeue import FILLER, UNIT, ConsumeQueue
from saturnmq.store.derived.lookup import first_stored_from
from saturnmq.store.derived.range_split import cut
from saturnmq.store.derived.sql_filter import PASSED, sift
from saturnmq.store.derived.tombstones import Tombstone, read_tombstones
from saturnmq.store.disk import NativeDisk, SegmentFile
from saturnmq.store.inspect.verify import directories, open_log
from saturnmq.store.log.log_files import SegmentFiles
from saturnmq.store.log.segments import Segment
from saturnmq.store.reading import number_of
from saturnmq.store.recovery.checkpoint import AbortMark, Checkpoint

if TYPE_CHECKING:
    from saturnmq.pipeline.decoding import Decoder

ENTRIES = 1 << 18  # of a queue that are looked at in one go
_ALL = 1 << 62, 0, ENTRIES, 1 << 62  # of the entries are sifted: no limit but that of the work
_ENTRY = [("offset", ">i8"), ("size", ">i4"), ("high", ">i4"), ("code", ">i4")]


class _Mapped:
    """A whole file for reading."""

    def __init__(self, path: str) -> None:
        self.path = path
        fd = os.open(path, os.O_RDONLY)
        try:
            self._facts = _facts(os.fstat(fd))
            self.size = self._facts[0]
            self._map = mmap.mmap(fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        self.view = memoryview(self._map)

    def is_current(self) -> bool:
        """Whether its path still leads to this file. While it is mapped no other file has its
        inode."""
        try:
            return _facts(os.stat(self.path)) == self._facts
        except FileNotFoundError:
            return False


def _facts(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_ino, found.st_dev


class StoreDirectory:
    """Access to the store at `where.path`."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._disk = NativeDisk()
        self._root = where.path
        self._log: SegmentFiles | None = None
        self._limit = 0
        self._tombstones: dict[str, Tombstone] = {}
        self._queues: dict[MessageQueue, ConsumeQueue] = {}
        self._mapped: dict[str, _Mapped] = {}
        self._left_out = LeftOut()

    def close(self) -> None:
        """Close the files; they stay mapped as long as a view of one is in use."""
        self._queues.clear()
        self._mapped.clear()

    def __enter__(self) -> StoreDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what there is ---------------------------------------------------------------------------

    def topics(self) -> list[str]:
        open_log(self._disk, self._root)  # a directory that is no store has no topics, but why
        configs = self._topic_configs()
        templates = {name for name, config in configs.items() if config.perm & PERM_INHERIT}
        found = sorted(
            name
            for name in {*configs, *self._topic_directories()}
            if name not in templates
            and not is_system_topic(name)
            and not name.endswith(REPLY_SUFFIX)
        )
        return self._left_out.without(found, [name for name in found if self._is_batched(name)])

    def _is_batched(self, topic: str) -> bool:
        return self._disk.exists(self._path("batchconsumequeue", topic))

    def queues(self, topic: str) -> list[MessageQueue]:
        config = self._topic_configs().get(topic)
        ids: set[int] = set()
        if config is not None and config.perm & PERM_READ:
            ids.update(range(config.read_queues))
        for directory in directories(self._disk, self._path("consumequeue", topic)):
            queue_id = number_of(posixpath.basename(directory), INT32_MAX)
            if queue_id is not None:
                ids.add(queue_id)
        return [MessageQueue(topic, self._where.broker_name, number) for number in sorted(ids)]

    def _topic_configs(self) -> dict[str, TopicConfig]:
        document = ConfigFile(self._disk, self._path("config", "topics.json")).load() or {}
        table = document.get("topicConfigTable") or {}
        return {
            name: TopicConfig.from_json({"topicName": name, **value})
            for name, value in table.items()
        }

    def _topic_directories(self) -> list[str]:
        return [
            posixpath.basename(path) for path in directories(self._disk, self._path("consumequeue"))
        ]

    def bounds(
        self, topics: Collection[str], begun: Collection[MessageQueue] = ()
    ) -> dict[MessageQueue, tuple[int, int]]:
        """See `Access`; of a topic that has fewer queues now the others are there as well."""
        self._look()
        found = {}
        for topic in topics:
            if self._is_batched(topic):
                raise refusal(topic)
            for name in self.queues(topic):
                queue = self._queue(name)
                found[name] = queue.min_offset, queue.max_offset
        return found

    def end_in_log(self, queue: MessageQueue) -> int | None:
        """See `Access`; what is not confirmed counts as not there."""
        self._look()
        return int(self._queue(queue).max_offset)

    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        self._look()
        return first_stored_from(self._queue(queue), timestamp_ms, self._store_time_at)

    def committed(self, group: str, topic: str) -> dict[MessageQueue, int]:
        document = ConfigFile(self._disk, self._path("config", "consumerOffset.json")).load() or {}
        table = (document.get("offsetTable") or {}).get(f"{topic}@{group}") or {}
        return {
            MessageQueue(topic, self._where.broker_name, int(number)): int(offset)
            for number, offset in table.items()
        }

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        raise ConfigError(
            f"option group={group} cannot be kept in the store directory {self._root}, which is "
            "only read; leave group out, or read from endpoints"
        )

    def cuts(
        self,
        ranges: Sequence[Range],
        max_bytes: int,
        max_rows: int,
        *,
        first_only: bool = False,
    ) -> list[Range]:
        self._look()
        pieces = []
        for item in ranges:
            queue = self._queue(item.queue)
            for start, end, weight in cut(queue.entries, item.start, item.end, max_bytes, max_rows):
                pieces.append(item._replace(start=start, end=end, bytes=weight))
                if first_only:
                    break
        return pieces

    # -- messages --------------------------------------------------------------------------------

    def batches(self, pieces: Iterable[Range], decoding: Decoding) -> Iterator[Any]:
        """See `Access`. The ranges are such that `bounds` gave: it is not looked at again how far
        the log is confirmed."""
        if self._log is None:
            self._look()
        for piece in pieces:
            yield from self._batches_of(piece, decoding)

    def _batches_of(self, piece: Range, decoding: Decoding) -> Iterator[Any]:
        queue = self._queue(piece.queue)
        made = decoder(decoding, piece.broker)
        wanted = subscription(decoding)
        codes = wanted.filter_codes
        tally = ReadTally(piece, decoding)
        offset = piece.start
        if offset < queue.min_offset:
            offset = min(queue.min_offset, piece.end)
            tally.lose(piece.start, offset, "they are deleted")
        while offset < piece.end:
            entries = queue.entries(offset, min(piece.end - offset, ENTRIES))
            if not entries:  # no such file
                offset = min(piece.end, _next_file(offset, queue))
                continue
            if wanted.sql is not None:
                entries = sift(entries, wanted.sql, self._stretch, *_ALL)
                entries = _matching(entries, PASSED)
            elif codes is not None:
                entries = _matching(entries, codes)
            yield from tally.count(self._decoded(made, entries, offset))
            offset += len(entries) // UNIT
        tally.check()

    def _decoded(self, made: Decoder, entries: memoryview, first: int) -> Iterator[Any]:
        """The batches of entries, segment by segment."""
        import numpy as np

        log = self._log
        assert log is not None
        offsets = np.frombuffer(entries, _ENTRY)["offset"]
        segments = (offsets // log.segment_bytes).astype(np.int64)
        borders = np.flatnonzero(segments[1:] != segments[:-1]) + 1
        starts = [0, *borders.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(offsets)], strict=True):
            base = int(segments[start]) * log.segment_bytes
            found = log.find(int(offsets[start]))
            view, path = memoryview(b""), self._path("commitlog", f"{base:020d}")
            if found is not None:
                base, path = found.start, found.path
                view = self._map(found.path).view
            yield from made.entries(
                view, base, entries[start * UNIT : stop * UNIT], first + start, where=path
            )

    # -- files -----------------------------------------------------------------------------------

    def _path(self, *names: str) -> str:
        return posixpath.join(self._root, *names)

    def _look(self) -> None:
        """Look again how far the store is. Files that were deleted or replaced are let go: a topic
        that was created again has its queues at the same paths."""
        self._queues.clear()
        self._mapped = {path: each for path, each in self._mapped.items() if each.is_current()}
        self._tombstones = read_tombstones(self._disk, self._root)
        log = self._log = open_log(self._disk, self._root)
        page = Checkpoint.load(self._disk, self._root)
        ours = page.flushed >= 0 or page.derived >= 0
        if self._where.trust_tail or not log.segments:
            self._limit = log.end
        elif ours:
            self._limit = min(page.confirm, log.end)
        elif AbortMark(self._disk, self._root).present():
            raise ConfigError(
                f"store {self._root} does not say how far it is confirmed: its broker runs or was "
                "killed; give trustTail=true to read to the last whole message"
            )
        else:
            self._limit = log.end

    def _queue(self, name: MessageQueue) -> ConsumeQueue:
        """The queue as it was when `_look` looked."""
        queue = self._queues.get(name)
        if queue is None:
            if name.broker_name != self._where.broker_name:
                known = nearest(name.broker_name, [self._where.broker_name])
                raise ConfigError(
                    f"broker {name.broker_name!r} is not in the store {self._root}, which is read "
                    f"as {self._where.broker_name!r}{known}; name it with the option brokerName"
                )
            queue = self._queues[name] = self._open(name)
        return queue

    def _open(self, name: MessageQueue) -> ConsumeQueue:
        log = self._log
        assert log is not None
        directory = self._path("consumequeue", name.topic, str(name.queue_id))
        files = SegmentFiles(self._disk, directory)
        size = files.segment_bytes
        queue = ConsumeQueue(self._disk, directory, size, name.topic, name.queue_id)
        for found in files.segments:
            if found.size != size:
                raise StoreDamaged(
                    f"{found.path} is {found.size} bytes long, the others of its queue {size}: "
                    "rebuild the queue (saturnmq pipeline rebuild), or restore the file"
                )
            file = cast(SegmentFile, self._map(found.path))
            queue.series.add(Segment(found.start, file))
        low, high = queue.series.start // UNIT, queue.series.end // UNIT
        queue.set_ends(low, high)
        queue.set_ends(low, queue.first_at_or_after(self._limit, low, high))
        while queue.max_offset > low and not self._is_whole(queue, queue.max_offset - 1):
            queue.set_ends(low, queue.max_offset - 1)
        if name.topic in self._tombstones:
            tombstone = self._tombstones[name.topic]
            queue.bury(tombstone.end, tombstone.next.get(name.queue_id, 0))
        queue.correct_min(log.start)
        return queue

    def _is_whole(self, queue: ConsumeQueue, index: int) -> bool:
        """Whether the frame of an entry ends below the limit and, where the tail is trusted only as
        far as it is whole, is one."""
        entry = queue.entry(index)
        if entry is None or entry[0] + entry[1] > self._limit:
            return False
        assert self._log is not None
        if not self._where.trust_tail or entry[0] < self._log.start:
            return True  # nobody can look any more at what is deleted
        frame = self._frame_at(entry[0], check=True)
        return frame is not None and frame.size == entry[1] and frame.queue_offset == index

    def _stretch(self, offset: int, size: int | None = None) -> memoryview | None:
        """The unchecked bytes at this place; without a size up to the end of its file."""
        assert self._log is not None
        found = self._log.find(offset)
        if found is None:
            return None
        at = offset - found.start
        return self._map(found.path).view[at : None if size is None else at + size]

    def _frame_at(self, offset: int, *, check: bool) -> Frame | None:
        view = self._stretch(offset)
        outcome = None if view is None else decode_frame(view, 0, None, check)
        return outcome if isinstance(outcome, Frame) else None

    def _store_time_at(self, offset: int) -> int | None:
        frame = self._frame_at(offset, check=False)
        return None if frame is None else frame.store_timestamp

    def _map(self, path: str) -> _Mapped:
        mapped = self._mapped.get(path)
        if mapped is None:
            mapped = self._mapped[path] = _Mapped(path)
        return mapped


def _next_file(offset: int, queue: ConsumeQueue) -> int:
    """The first offset behind the queue's file that would hold `offset`."""
    per_file = max(queue.series.segment_bytes // UNIT, 1)
    return (offset // per_file + 1) * per_file


def _matching(entries: memoryview, codes: frozenset[int]) -> memoryview:
    """The entries with all others made to fillers, which nobody looks at."""
    import numpy as np

    table = np.frombuffer(entries, _ENTRY).copy()
    table[~np.isin(table["code"], list(codes))] = np.frombuffer(FILLER, _ENTRY)[0]
    return memoryview(table.tobytes())

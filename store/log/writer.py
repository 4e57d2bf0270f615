"""The single writer: it checks a message, gives it its places and appends its frame.

All or nothing: what is refused leaves no trace in the log but the BLANK that may have ended a
segment, and a batch goes in whole. When a write fails that is not known any more: the writer is
`failed` from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from saturnmq.protocol.frame import (
    BLANK_BYTES,
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    is_torn,
    own_properties,
    stored_properties_size,
)
from saturnmq.protocol.frame_reference import INNER_NUM_MAX
from saturnmq.protocol.kernels import check_batch, message_size, write_batch, write_message
from saturnmq.protocol.properties import INNER_BASE, INNER_NUM
from saturnmq.runtime.errors import (
    FlushDiskTimeout,
    MessageIllegal,
    SaturnError,
    ServiceNotAvailable,
    StageLost,
    SystemBusy,
)
from saturnmq.store.config import StoreConfig
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.disk import remedy
from saturnmq.store.log.appending import Appending, marker_size
from saturnmq.store.log.atomic_batches import QUEUE, AtomicBatchPart, Groups, marker_body
from saturnmq.store.log.commitlog import CommitLog
from saturnmq.store.log.flush_ticket import LogFailed
from saturnmq.store.log.segments import Segment
from saturnmq.store.offsets import PhysicalOffset, QueueOffset, StoreTime
from saturnmq.store.watermarks import Watermarks

PROPERTIES_MAX = 32_767
SIZE_EXCEEDED, PROPERTIES_EXCEEDED = "[MESSAGE_SIZE_EXCEEDED]", "[PROPERTIES_SIZE_EXCEEDED]"
"""RocketMQ's names of these refusals begin their texts: the code is the same for both."""
_WITHOUT_QUEUE = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


@dataclass(slots=True)
class PendingMessage:
    """One message to store; properties are encoded."""

    topic: str
    queue_id: int
    body: bytes | bytearray | memoryview
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_offset: int = 0


@dataclass(slots=True)
class AppendResult:
    """The place of an append; `end_offset` is what an ack waits for."""

    physical_offset: PhysicalOffset
    end_offset: PhysicalOffset
    queue_offset: QueueOffset
    count: int
    store_timestamp: StoreTime
    sizes: Sequence[int]


class Writer:
    """Appends to the log and advances `appended`; on a slave it copies its master's bytes."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        groups: Groups,
        watermarks: Watermarks,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._groups = groups
        self._watermarks = watermarks
        self._now_ms = now_ms
        self._topics: dict[str, bytes] = {}
        self.last_store_timestamp = 0
        self.failed: str | None = None
        self.in_group = False

    def _check_alone(self) -> None:
        if self.in_group:
            raise SystemBusy("a group is being appended, nothing else can be; try again")

    def _topic_bytes(self, topic: str) -> bytes:
        found = self._topics.get(topic)
        if found is None:
            found = topic.encode()
            limit = 255 if topic.startswith("%RETRY%") or topic.startswith("%DLQ%") else 127
            if not 0 < len(found) <= limit:
                raise MessageIllegal(
                    f"the topic name is {len(found)} bytes long, the limit is {limit}: shorten it"
                )
            if len(self._topics) > 65536:
                self._topics.clear()
            self._topics[topic] = found
        return found

    def _now(self) -> StoreTime:
        """Store time: the wall clock, but it never runs backwards within a log, or nothing in it
        could be found by time.

        So after a clock that was ahead all messages carry the stamp of the furthest moment until
        the right time has come there, also across restarts and promotions. Store time finds
        messages and names files; it measures no waiting (docs/clocks.md).
        """
        self.last_store_timestamp = max(self.last_store_timestamp, self._now_ms())
        return StoreTime(self.last_store_timestamp)

    def _check_fits(self, size: int) -> None:
        if size + BLANK_BYTES > self._config.commitlog_segment_bytes:
            raise MessageIllegal(
                f"{SIZE_EXCEEDED}{size} bytes do not fit a segment of "
                f"{self._config.commitlog_segment_bytes} bytes: send less at once"
            )

    def _room(self, size: int) -> tuple[Segment, int]:
        self._check_fits(size)
        self._check_alone()
        try:
            segment, pos = self._log.room(size)
        except LogFailed as error:
            raise self._fence(error) from error
        except OSError as error:  # before anything was written
            raise _no_room(error) from error
        if pos == 0:
            # The log may have rolled: a BLANK belongs to it, also if the message is refused now.
            self._watermarks.appended = self._log.end
        return segment, pos

    def _append(self, segment: Segment, pos: int, frames: memoryview) -> PhysicalOffset:
        try:
            return self._log.append(segment, pos, frames)
        except LogFailed as error:
            raise self._fence(error) from error

    def _fence(self, error: LogFailed) -> FlushDiskTimeout:
        # A part may be there, whole frames of a batch too: whatever came next could leave them
        # behind itself, and the next start may find them. So this is no refusal.
        self.failed = str(error)
        return FlushDiskTimeout(
            f"the CommitLog cannot be written, the message may be stored: {error}; check the "
            "disk, then restart the broker"
        )

    def put_marker(self, document: bytes, *, store_host: bytes) -> AppendResult:
        """Append a marker that no group follows."""
        topic, queue_id = QUEUE
        body = marker_body(0, document)
        return self.put(PendingMessage(topic, queue_id, body, store_host=store_host))

    def put(
        self, message: PendingMessage, *, is_copy: bool = False, inner: int = 0
    ) -> AppendResult:
        """Append one message; raises a SaturnError when it is refused.

        maxMessageSize bounds the body, as RocketMQ 5 has it; topic and properties have limits of
        their own. A copy of a stored message is as long as that was: refused after the limit was
        lowered, it could never be delivered.

        `inner`, if not 0, makes it an inner batch: a frame that stands for so many messages, whose
        queue offsets follow each other (`protocol/inner_batch.py`).
        """
        if inner:
            message = self._inner_batch(message, inner)
        topic = self._topic_bytes(message.topic)
        size = self._frame_size(message, topic, is_copy=is_copy)
        segment, pos = self._room(size)
        frames = self._log.staging(size)
        key = message.topic, message.queue_id
        in_queue = message.sys_flag & TRANSACTION_MASK not in _WITHOUT_QUEUE
        queue_offset = self._queues.next.get(key, 0) if in_queue else 0
        offset = self._log.end
        store_ts = self._now()
        self._write(frames, 0, offset, queue_offset, store_ts, message, topic)
        end = self._append(segment, pos, frames)
        assert end == offset + size, f"a frame of {size} bytes at {offset} ends at {end}"
        if in_queue:
            self._queues.next[key] = queue_offset + (inner or 1)
        self._watermarks.appended = end
        return AppendResult(offset, end, QueueOffset(queue_offset), inner or 1, store_ts, (size,))

    def _inner_batch(self, message: PendingMessage, count: int) -> PendingMessage:
        assert 0 < count <= INNER_NUM_MAX, f"{count} messages in a batch"
        base = self._queues.next.get((message.topic, message.queue_id), 0)
        separator = b"" if message.properties[-1:] in (b"", b"\x02") else b"\x02"
        own = f"{INNER_NUM}\x01{count}\x02{INNER_BASE}\x01{base}\x02".encode()
        properties = message.properties + separator + own
        return replace(message, properties=properties, sys_flag=message.sys_flag | INNER_BATCH)

    def put_adjacent(self, messages: Sequence[PendingMessage]) -> list[AppendResult]:
        """Append messages of the broker's own in one write, each right behind the one before, with
        no BLANK between them; or none. A crash may keep the first ones only."""
        topics = [self._topic_bytes(message.topic) for message in messages]
        named = list(zip(messages, topics, strict=True))
        sizes = [self._frame_size(message, topic, is_copy=True) for message, topic in named]
        segment, pos = self._room(sum(sizes))
        frames = self._log.staging(sum(sizes))
        start, store_ts = self._log.end, self._now()
        following: dict[tuple[str, int], int] = {}
        found = []
        at = 0
        for (message, topic), size in zip(named, sizes, strict=True):
            assert message.sys_flag & TRANSACTION_MASK not in _WITHOUT_QUEUE, "it has no queue"
            key = message.topic, message.queue_id
            queue_offset = following.get(key, self._queues.next.get(key, 0))
            following[key] = queue_offset + 1
            offset = PhysicalOffset(start + at)
            self._write(frames, at, offset, queue_offset, store_ts, message, topic)
            at += size
            end = PhysicalOffset(start + at)
            found.append(AppendResult(offset, end, QueueOffset(queue_offset), 1, store_ts, (size,)))
        end = self._append(segment, pos, frames)
        assert end == start + at, f"{at} bytes at {start} end at {end}"
        self._queues.next |= following
        self._watermarks.appended = end
        return found

    def _frame_size(self, message: PendingMessage, topic: bytes, *, is_copy: bool) -> int:
        """The bytes of a message's frame; MessageIllegal if it cannot be stored."""
        crc_property = self._config.crc_property
        stored = stored_properties_size(message.properties, crc_property)
        if stored > PROPERTIES_MAX:
            raise MessageIllegal(
                f"{PROPERTIES_EXCEEDED}the properties are {stored} bytes long as stored, the "
                f"limit is {PROPERTIES_MAX}: shorten them"
            )
        if not crc_property and is_torn(own_properties(message.properties)):
            raise MessageIllegal(
                "the last properties hold a zero byte, which would look like a frame that a crash "
                "tore; leave it out"
            )
        body, limit = len(message.body), self._config.max_message_bytes
        if body > limit and not is_copy:
            raise MessageIllegal(
                f"{SIZE_EXCEEDED}the body is {body} bytes long, the limit is {limit}: compress or "
                "split it, or raise maxMessageSize"
            )
        return message_size(
            body, len(topic), stored, len(message.born_host), len(message.store_host)
        )

    def _write(
        self,
        frames: memoryview,
        at: int,
        offset: int,
        queue_offset: int,
        store_ts: int,
        message: PendingMessage,
        topic: bytes,
    ) -> None:
        """Write the frame of a message that is to be stored at `offset`."""
        write_message(
            frames,
            at,
            offset,
            queue_offset,
            message.queue_id,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            store_ts,
            message.store_host,
            message.reconsume_times,
            message.prepared_offset,
            message.body,
            topic,
            message.properties,
            self._config.crc_property,
        )

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        body: bytes | bytearray | memoryview,
        *,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = bytes(8),
        store_host: bytes = bytes(8),
        reconsume_times: int = 0,
    ) -> AppendResult:
        """Append every entry of a MessageBatch body, or none."""
        name = self._topic_bytes(topic)
        crc_property = self._config.crc_property
        hosts_v6 = (len(born_host) == 20) + (len(store_host) == 20)
        count, total = self._measure(name, body, sys_flag, hosts_v6)
        segment, pos = self._room(total)
        frames = self._log.staging(total)
        key = topic, queue_id
        queue_offset = self._queues.next.get(key, 0)
        offset = self._log.end
        store_ts = self._now()
        count, sizes = write_batch(
            body,
            frames,
            0,
            offset,
            queue_offset,
            queue_id,
            sys_flag,
            born_timestamp,
            born_host,
            store_ts,
            store_host,
            reconsume_times,
            name,
            crc_property,
        )
        end = self._append(segment, pos, frames)
        assert end == offset + total, f"{total} bytes of a batch at {offset} end at {end}"
        self._queues.next[key] = queue_offset + count
        self._watermarks.appended = end
        return AppendResult(offset, end, QueueOffset(queue_offset), count, store_ts, sizes)

    def measure(
        self, topic: str, body: bytes | bytearray | memoryview, *, sys_flag: int, hosts_v6: int
    ) -> tuple[int, int]:
        """(messages, bytes of their frames) of a batch that is to be a part of a group, or why it
        cannot be one."""
        found = self._measure(self._topic_bytes(topic), body, sys_flag, hosts_v6)
        self._check_fits(found[1])
        return found

    def _measure(
        self, topic: bytes, body: bytes | bytearray | memoryview, sys_flag: int, hosts_v6: int
    ) -> tuple[int, int]:
        most, limit = self._config.max_batch_bytes, self._config.max_message_bytes
        if len(body) > most:
            raise MessageIllegal(
                f"{SIZE_EXCEEDED}the batch is {len(body)} bytes long, the limit is {most}: send "
                "smaller batches"
            )
        if sys_flag & TRANSACTION_MASK:
            raise MessageIllegal(
                "a batch cannot be part of a transaction: send its messages singly"
            )
        crc_property = self._config.crc_property
        return check_batch(body, len(topic), hosts_v6, crc_property, limit, PROPERTIES_MAX)

    def append_group(
        self, document: bytes, parts: Sequence[AtomicBatchPart], *, store_host: bytes = bytes(8)
    ) -> Generator[AppendResult | None, None, None]:
        """Append these parts behind a marker that says `document`, all or none: one with each
        `next`, the last of which gives the Put of the group; its offsets are the marker's.

        The caller goes on to the end, or to an error; other appends are refused meanwhile, and
        for ever if nobody goes on. An error is a refusal, nothing is in the log, unless a write
        failed. A SaturnError that the caller throws in gives the batch up.
        """
        self._check_alone()
        crc_property = self._config.crc_property
        stored = stored_properties_size(b"", crc_property)
        size = marker_size(document, stored, len(store_host))
        self._check_fits(size)
        appending = Appending(
            self._log,
            document,
            parts,
            lambda key: self._queues.next.get(key, 0),
            first_size=size,
            store_timestamp=self._now(),
            store_host=store_host,
            crc_property=crc_property,
        )
        group = appending.group
        try:
            self._log.reserve(group.end)
        except OSError as error:
            raise _no_room(error) from error
        self.in_group = True
        try:
            for _ in appending.steps():
                yield None
        except LogFailed as error:
            self.in_group = False  # requests that wait for the batch are refused, like all others
            raise self._fence(error) from error
        except (SaturnError, OSError) as error:
            self._discard(error)
            self.in_group = False
            if isinstance(error, OSError):
                raise StageLost(f"a part cannot be read: {error}; stage it again") from error
            raise
        self.in_group = False
        assert group.start >= self._watermarks.appended, (group, self._watermarks.appended)
        self._queues.next |= appending.next
        self._log.extend(group.end)
        self._groups.add(group, self._watermarks.dispatched)
        start, end = PhysicalOffset(group.start), PhysicalOffset(group.end)
        self._watermarks.appended = end
        first, stamp = QueueOffset(appending.marker_offset), StoreTime(appending.store_timestamp)
        yield AppendResult(start, end, first, appending.count, stamp, ())

    def _discard(self, error: Exception) -> None:
        try:
            self._log.discard_ahead()
        except OSError as failure:
            raise self._fence(LogFailed(f"{failure} (while a group was undone: {error})")) from None

    def append_raw(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """A slave's write: the master's bytes at the master's offset."""
        self._check_alone()
        fresh = not self._log.series.segments
        try:
            self._copy(offset, memoryview(data))
        finally:  # copied frames count, even if there was no room for the rest
            if fresh and self._log.series.segments:
                start = self._log.start
                self._watermarks.reset(start, start, flushed=start, dispatched=start)
            self._watermarks.appended = self._log.end

    def _copy(self, offset: int, view: memoryview) -> None:
        while view:
            left = self._log.segment_bytes - offset % self._log.segment_bytes
            part = view[:left]
            try:
                self._log.append_raw(offset, part)
            except LogFailed as error:
                raise self._fence(error) from error
            except OSError as error:
                raise _no_room(error) from error
            offset += len(part)
            view = view[len(part) :]
            assert self._log.end == offset, f"copied to {offset}, the log ends at {self._log.end}"


def _no_room(error: OSError) -> ServiceNotAvailable:
    return ServiceNotAvailable(f"no room for the next segment of the log: {error}; {remedy(error)}")

"""A group on its way into the log: one part at a time, and all of it counts with the last.

The places of everything are decided at the start, so nothing else may be appended meanwhile: the
writer refuses it. When a part turns out not to be what was checked, what was written is discarded
and the group never was; when a write fails that is final, as any is (`writer.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from saturnmq.protocol.frame import BLANK, BLANK_BYTES, BLANK_MAGIC, message_size
from saturnmq.protocol.kernels import write_batch, write_message
from saturnmq.runtime.errors import StageLost
from saturnmq.store.log.atomic_batches import (
    QUEUE,
    TOPIC_BYTES,
    AtomicBatch,
    AtomicBatchPart,
    lay_out,
    marker_body,
)
from saturnmq.store.log.commitlog import CommitLog

Key = tuple[str, int]

JOINED_BYTES = 64 << 10  # small parts are written together


def marker_size(document: bytes, stored_properties: int, host_bytes: int) -> int:
    """Bytes of the frame of a marker without properties of its own."""
    body = len(marker_body(0, document))
    return message_size(body, len(TOPIC_BYTES), stored_properties, 8, host_bytes)


class Appending:
    """See the module's text; `steps` is what the writer goes through."""

    def __init__(
        self,
        log: CommitLog,
        document: bytes,
        parts: Sequence[AtomicBatchPart],
        next_offset: Callable[[Key], int],
        *,
        first_size: int,
        store_timestamp: int,
        store_host: bytes,
        crc_property: bool,
    ) -> None:
        sizes = [first_size, *(part.size for part in parts)]
        self._places, end = lay_out(log.end, sizes, log.segment_bytes)
        self.group = AtomicBatch(self._places[0], end)
        self.marker_offset = next_offset(QUEUE)
        self.store_timestamp = store_timestamp
        self.count = sum(part.count for part in parts)
        self.next: dict[Key, int] = {QUEUE: self.marker_offset + 1}  # offsets when it is done
        self._log = log
        self._document = document
        self._parts = parts
        self._next_offset = next_offset
        self._store_host = store_host
        self._crc_property = crc_property
        self._buffer = memoryview(bytearray(max(JOINED_BYTES, *sizes)))
        self._filled = 0  # bytes of the buffer that are to be written, behind `_written`
        self._written: int = log.end
        start, stop = self.group
        assert log.end <= start < stop, f"a batch from {start} to {stop}, the log ends at {log.end}"
        assert len(self._places) == 1 + len(parts), "a place for the marker and for each part"

    def steps(self) -> Iterator[None]:
        """Write the marker, and then a part with each `next`. StageLost, MessageIllegal: a part is
        not what was checked; OSError: it cannot be read. LogFailed: a write failed."""
        span = self.group.end - self.group.start
        self._go_to(self.group.start)
        self._filled += write_message(
            self._buffer,
            0,
            self.group.start,
            self.marker_offset,
            0,
            0,
            0,
            self.store_timestamp,
            bytes(8),
            self.store_timestamp,
            self._store_host,
            0,
            0,
            marker_body(span, self._document),
            TOPIC_BYTES,
            b"",
            self._crc_property,
        )
        for part, place in zip(self._parts, self._places[1:], strict=True):
            if self._written + self._filled != place or self._filled + part.size > JOINED_BYTES:
                self._write()
                self._go_to(place)
            self._filled += self._encode(part, place)
            yield
        self._write()
        assert self._written == self.group.end, f"{self._written} is the end, not {self.group.end}"

    def _encode(self, part: AtomicBatchPart, place: int) -> int:
        key = part.topic, part.queue_id
        offset = self.next.get(key)
        if offset is None:
            offset = self._next_offset(key)
        try:
            count, sizes = write_batch(
                part.read(),
                self._buffer,
                self._filled,
                place,
                offset,
                part.queue_id,
                part.sys_flag,
                part.born_timestamp,
                part.born_host,
                self.store_timestamp,
                self._store_host,
                part.reconsume_times,
                part.topic.encode(),
                self._crc_property,
            )
        except ValueError as error:  # longer than what was checked
            raise StageLost(f"what was staged has changed: {error}; stage it again") from error
        if (count, sum(sizes)) != (part.count, part.size):
            raise StageLost(
                f"what was staged has changed: {count} messages instead of {part.count}; stage it "
                "again"
            )
        self.next[key] = offset + count
        return part.size

    def _write(self) -> None:
        """Write the pieces in the buffer."""
        if self._filled:
            self._log.write_ahead(self._written, self._buffer[: self._filled])
            self._written += self._filled
            self._filled = 0

    def _go_to(self, place: int) -> None:
        """The next piece begins at `place`; the one before was written."""
        left = place - self._written
        assert left == 0 or left >= BLANK_BYTES, f"{left} bytes before {place} hold no BLANK"
        if left:
            self._log.write_ahead(self._written, BLANK.pack(left, BLANK_MAGIC))
        self._written = place

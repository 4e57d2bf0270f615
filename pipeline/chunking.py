"""From Arrow batches to chunks: the bodies of SEND_BATCH_MESSAGE and of STAGE.

A chunk is for one queue, and a request says of all its messages when they were born and whether
they are compressed. So a chunk ends when it is full, and where one of the two changes: bodies on
both sides of the compression threshold, or `bornTimestamp`s that differ from row to row, cost
requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from saturnmq.pipeline.encoding import Encoder
from saturnmq.pipeline.selecting import RowGroup, Selector
from saturnmq.pipeline.sink_options import SinkOptions
from saturnmq.protocol import compression
from saturnmq.protocol.message_queue import MessageQueue

OPEN_BYTES_MAX = 64 << 20
"""The most that a task holds back in part-filled chunks: with many queues they leave sooner."""

NOW = -(1 << 61)  # ms since 1970 that no column has


@dataclass(slots=True)
class Chunk:
    """Messages of one request."""

    topic: str
    queue: MessageQueue | None  # None: any
    born_ms: int  # NOW: when it is sent
    sys_flag: int
    rows: int = 0
    size: int = 0  # bytes
    pieces: list[bytes] = field(default_factory=list)

    def body(self) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


def id_prefix(*identity: object) -> bytes:
    """The prefix of one task's UNIQ_KEYs: 24 hexadecimal digits, the same for the same
    `identity`."""
    text = "\0".join(map(str, identity))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest().upper().encode()


class Chunker:
    """Cuts the batches of one task; `emit` gets each chunk, those of one queue in order."""

    def __init__(
        self,
        columns: tuple[str, ...],
        options: SinkOptions,
        selector: Selector,
        prefix: bytes,
        emit: Callable[[Chunk], object],
    ) -> None:
        self._selector = selector
        self._options = options
        self._prefix = prefix
        self._emit = emit
        self._encoder = Encoder(columns)
        self._open: dict[tuple[str, MessageQueue | None], Chunk] = {}
        self._held = 0
        self.rows = 0
        self.bytes = 0
        self.chunks = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Encode all rows. MessageIllegal for one that cannot be sent."""
        batch, packed = self._compressed(batch)
        kinds = _kinds(batch, packed)
        for group in self._selector.groups(batch):
            for kind, rows in _runs(kinds, group):
                self._encode(batch, group, kind, rows)
        self.rows += batch.num_rows

    def flush(self) -> None:
        """Emit what is not full."""
        while self._open:
            self._leave(next(iter(self._open)))

    def _encode(self, batch: pa.RecordBatch, group: RowGroup, kind: int, rows: Any) -> None:
        born_ms, sys_flag = kind >> 1, 0
        if kind & 1:
            assert self._options.compression is not None
            sys_flag = compression.sys_flag_of(self._options.compression)
        limit = self._options.chunk_bytes
        key = (group.topic, group.queue)
        for body, count, _ in self._encoder.encode(batch, rows, self._prefix, self.rows, limit):
            chunk = self._open.get(key)
            if chunk is not None and (
                chunk.size + len(body) > limit
                or chunk.born_ms != born_ms
                or chunk.sys_flag != sys_flag
            ):
                self._leave(key)
                chunk = None
            if chunk is None:
                chunk = self._open[key] = Chunk(group.topic, group.queue, born_ms, sys_flag)
            chunk.pieces.append(body)
            chunk.rows += count
            chunk.size += len(body)
            self._held += len(body)
            if self._held > OPEN_BYTES_MAX:
                self.flush()

    def _leave(self, key: tuple[str, MessageQueue | None]) -> None:
        chunk = self._open.pop(key)
        self._held -= chunk.size
        self.bytes += chunk.size
        self.chunks += 1
        self._emit(chunk)

    def _compressed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        """`batch` with bodies from the threshold on compressed, and which ones those are."""
        kind = self._options.compression
        if kind is None:
            return batch, None
        bodies = batch.column("body")
        sizes = pc.binary_length(bodies).fill_null(0).to_numpy(zero_copy_only=False)
        packed = sizes >= self._options.compression_threshold
        if not packed.any():
            return batch, None
        plain = bodies.cast(pa.large_binary())
        found = [
            compression.compress(body.as_buffer(), kind) if pack else body.as_py()
            for body, pack in zip(plain, packed.tolist(), strict=True)
        ]
        at = batch.schema.get_field_index("body")
        return batch.set_column(at, "body", pa.array(found, pa.large_binary())), packed


def _kinds(batch: pa.RecordBatch, packed: Any) -> Any:
    """Per row what a request says of all its messages: born_ms * 2 + compressed; None if all rows
    are alike and ordinary."""
    born = "bornTimestamp" in batch.schema.names
    if packed is None and not born:
        return None
    kinds = np.full(batch.num_rows, NOW, np.int64)
    if born:
        micros = batch.column("bornTimestamp").cast(pa.int64())
        ms = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False) // 1000
        kinds = np.where(micros.is_null().to_numpy(zero_copy_only=False), NOW, ms)
    return kinds * 2 + (0 if packed is None else packed)


def _runs(kinds: Any, group: RowGroup) -> Iterator[tuple[int, Any]]:
    """The rows of `group`, cut where the kind changes."""
    if kinds is None:
        yield NOW << 1, group.rows
        return
    rows = np.arange(len(kinds)) if group.rows is None else group.rows
    mine = kinds[rows]
    for part in np.split(np.arange(len(mine)), np.flatnonzero(np.diff(mine)) + 1):
        if len(part):
            yield int(mine[part[0]]), rows[part]

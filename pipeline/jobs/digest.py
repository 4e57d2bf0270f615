"""Digests of the messages of each queue and hour: a count and a sum of 64-bit hashes.

The sum does not depend on order, so a store, its slave and an archive that hold the same messages
have the same digests however they were read. A message's hash is made of some of its columns, each
hashed by itself and folded in, in the order of their names:

    h = (h ^ column) * FACTOR mod 2**64;  h ^= h >> 32

A number counts as itself; text and bytes as the same fold over their words of 8 bytes, little
endian, the last filled up with zeros, beginning at their length * FACTOR; a map as the sum over its
entries of (key hash * FACTOR) ^ value hash; NULL as NULL_HASH. It finds accidents, not
attempts to fool it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from saturnmq.protocol.kernels import COMPILED
from saturnmq.protocol.message_queue import MessageQueue

FACTOR = 0x9E3779B97F4A7C15
NULL_HASH = 0xD1B54A32D192ED03
HOUR_US = 3_600_000_000
PLACE = ("topic", "brokerName", "queueId")
_SPAN_MAX = 1 << 16  # combinations that are counted in an array, whether they occur or not
_MASK = (1 << 64) - 1


def hash_slices_reference(offsets: Any, data: Any, out: Any) -> None:
    """The hash of each slice `data[offsets[n]:offsets[n + 1]]` into `out[n]`."""
    whole = bytes(data)
    for number in range(len(offsets) - 1):
        part = whole[offsets[number] : offsets[number + 1]]
        value = len(part) * FACTOR & _MASK
        for at in range(0, len(part), 8):
            word = int.from_bytes(part[at : at + 8], "little")
            value = (value ^ word) * FACTOR & _MASK
            value ^= value >> 32
        out[number] = value


if not TYPE_CHECKING and COMPILED and sys.byteorder == "little":
    try:
        from saturnmq.pipeline.jobs.digest_kernel import hash_slices
    except ImportError:  # only the other kernels could be compiled
        hash_slices = hash_slices_reference
else:
    hash_slices = hash_slices_reference


class HourKey(NamedTuple):
    """Messages of one queue stored in one hour (UTC, counted from 1970)."""

    topic: str
    broker: str
    queue_id: int
    hour: int


@dataclass(slots=True)
class Total:
    """A number of messages, and the sum of their hashes mod 2**64."""

    rows: int = 0
    sum: int = 0

    def add(self, rows: int, value: int) -> None:
        self.rows += rows
        self.sum = (self.sum + value) & _MASK

    def __str__(self) -> str:
        return f"{self.rows:,} messages, checksum {self.sum:016x}"


@dataclass(slots=True)
class Digests:
    """Totals by queue and hour. `columns` are those that are hashed."""

    columns: tuple[str, ...]
    totals: dict[HourKey, Total] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch; it has PLACE, storeTimestamp and what is hashed."""
        if not batch.num_rows:
            return
        hashes = row_hashes(batch, self.columns)
        for key, rows, value in _grouped(batch, hashes):
            self.totals.setdefault(key, Total()).add(rows, value)

    def merge(self, other: Digests) -> None:
        for key, total in other.totals.items():
            self.totals.setdefault(key, Total()).add(total.rows, total.sum)

    @property
    def rows(self) -> int:
        return sum(total.rows for total in self.totals.values())


def row_hashes(batch: pa.RecordBatch, columns: Sequence[str]) -> Any:
    """The hash of each row over these columns, uint64."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for name in sorted(columns):
        hashes ^= value_hashes(batch.column(name))
        hashes *= np.uint64(FACTOR)
        hashes ^= hashes >> np.uint64(32)
    return hashes


def value_hashes(array: pa.Array) -> Any:
    """The hash of each value of a column, uint64."""
    kind = array.type
    if pa.types.is_map(kind):
        found = _map_hashes(array)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = _slices(array)
    else:
        if pa.types.is_timestamp(kind):
            array = array.cast(pa.int64())
        found = array.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
    if array.null_count:
        found = np.where(
            array.is_null().to_numpy(zero_copy_only=False), np.uint64(NULL_HASH), found
        )
    return found


def _slices(array: pa.Array) -> Any:
    _, offsets, data = array.buffers()
    out = np.zeros(len(array), np.uint64)
    if offsets is not None and data is not None and len(array):
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        hash_slices(ends, np.frombuffer(data, np.uint8), out)
    return out


def _map_hashes(array: pa.Array) -> Any:
    """The sum over a map's entries, from the running sum over all."""
    ends = array.offsets.to_numpy().astype(np.int64)
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    keys = value_hashes(array.keys[first:last])
    entries = (keys * np.uint64(FACTOR)) ^ value_hashes(array.items[first:last])
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(entries, dtype=np.uint64)])
    found: Any = running[ends[1:] - first] - running[ends[:-1] - first]
    return found


def _grouped(batch: pa.RecordBatch, hashes: Any) -> Iterator[tuple[HourKey, int, int]]:
    """(key, rows, sum of their hashes) of each queue and hour in a batch."""
    hours = store_hours(batch)
    codes, queues = _queues(batch, hours)
    rows = np.bincount(codes)
    # halves: what a float adds up exactly
    low_sums = np.bincount(codes, weights=hashes & np.uint64(0xFFFFFFFF))
    high_sums = np.bincount(codes, weights=hashes >> np.uint64(32))
    for code, (queue, row) in queues.items():
        value = (int(low_sums[code]) + (int(high_sums[code]) << 32)) & _MASK
        yield HourKey(*queue, int(hours[row])), int(rows[code]), value


def _queues(
    batch: pa.RecordBatch, *further: Any
) -> tuple[Any, dict[int, tuple[MessageQueue, int]]]:
    """A small number for each row, equal where its queue (and what is in the `further` columns of
    integers) is equal, and for each number the queue and one of its rows."""
    topics, brokers = (batch.column(name).dictionary_encode() for name in PLACE[:2])
    queue_ids = batch.column(PLACE[2]).to_numpy(zero_copy_only=False).astype(np.int64)
    codes, span = np.zeros(batch.num_rows, np.int64), 1
    for column in (topics.indices.to_numpy(), brokers.indices.to_numpy(), queue_ids, *further):
        low = int(column.min())
        width = int(column.max()) - low + 1
        if width > 1:
            codes, span = codes * width + (column - low), span * width
    if span > _SPAN_MAX:
        codes = np.unique(codes, return_inverse=True)[1]
    a_row = np.full(int(codes.max()) + 1, -1, np.int64)
    a_row[codes] = np.arange(batch.num_rows)
    topic_names, broker_names = topics.dictionary.to_pylist(), brokers.dictionary.to_pylist()
    queues = {}
    for code in np.flatnonzero(a_row >= 0).tolist():
        row = int(a_row[code])
        topic = topic_names[topics.indices[row].as_py()]
        broker = broker_names[brokers.indices[row].as_py()]
        queues[code] = MessageQueue(topic, broker, int(queue_ids[row])), row
    return codes, queues


def within(batch: pa.RecordBatch, ranges: Mapping[MessageQueue, tuple[int, int]]) -> pa.RecordBatch:
    """The messages whose queue offsets lie in the [first, end) of their queue."""
    if not batch.num_rows:
        return batch
    codes, queues = _queues(batch)
    limits = np.zeros((int(codes.max()) + 1, 2), np.int64)
    for code, (queue, _) in queues.items():
        limits[code] = ranges.get(queue, (0, 0))
    offsets = batch.column("queueOffset").to_numpy(zero_copy_only=False)
    mask = (offsets >= limits[codes, 0]) & (offsets < limits[codes, 1])
    return batch if mask.all() else batch.filter(pa.array(mask))


def without_corrupt(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str]]:
    """The rows that are sound, and what the column `_corrupt` says of the others."""
    corrupt = batch.column("_corrupt")
    if corrupt.null_count == batch.num_rows:
        return batch, []
    return batch.filter(corrupt.is_null()), corrupt.drop_null().to_pylist()


def store_hours(batch: pa.RecordBatch) -> Any:
    """The hour in which each message was stored, counted from 1970, UTC; int64."""
    times = batch.column("storeTimestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return times // HOUR_US

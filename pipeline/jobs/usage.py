"""The sizes and features of a topic's messages, counted batch by batch and added up over tasks.

Sizes and delays are counted in classes whose limits grow by 4.4 %, so percentiles are right within
2.2 %. The most frequent keys and tags come from counts of which the lowest are dropped whenever
there are too many: a count that is told is right or, if something was dropped, too low by at most
`Top.dropped`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from saturnmq.pipeline.jobs.digest import store_hours
from saturnmq.protocol.properties import RETRY_TOPIC

_CLASSES = 16  # of a doubling
_KEPT, _HELD = 20_000, 400_000  # different values after dropping, rows before the next look
_SENT = 2_000  # values that a task gives back
_NO_ORIGIN = ""  # a message that came back and says no more where from


@dataclass(slots=True)
class Histogram:
    """The number of values in each class."""

    counts: Any = field(default_factory=lambda: np.zeros(0, np.int64))
    most: int = 0

    def add(self, values: Any) -> None:
        """An array of integers; those below 0 count as 0."""
        if not len(values):
            return
        values = np.maximum(values, 0)
        classes = (np.log2(values.astype(np.float64) + 1) * _CLASSES).astype(np.int64)
        self._add(np.bincount(classes))
        self.most = max(self.most, int(values.max()))

    def merge(self, other: Histogram) -> None:
        self._add(other.counts)
        self.most = max(self.most, other.most)

    def _add(self, counts: Any) -> None:
        if len(counts) > len(self.counts):
            counts, self.counts = self.counts, counts.copy()
        self.counts[: len(counts)] += counts

    def percentile(self, share: float) -> int:
        """The value that this share of all does not exceed, 0 < share <= 1."""
        total = int(self.counts.sum())
        if not total:
            return 0
        reached = np.cumsum(self.counts)
        number = int(np.searchsorted(reached, max(1, np.ceil(share * total))))
        middle = 2 ** ((number + 0.5) / _CLASSES) - 1
        return min(round(middle), self.most)

    def percentiles(self) -> dict[str, int]:
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
        return {name: self.percentile(share) for name, share in shares.items()} | {"max": self.most}

    def doublings(self) -> list[tuple[int, int]]:
        """(limit, how many are below it and not below half of it) for a plot."""
        whole = np.pad(self.counts, (0, -len(self.counts) % _CLASSES)).reshape(-1, _CLASSES)
        sums = whole.sum(axis=1).tolist()
        used = [number for number, count in enumerate(sums) if count]
        if not used:
            return []
        return [(2 ** (n + 1) - 1, sums[n]) for n in range(used[0], used[-1] + 1)]


class Top:
    """The most frequent of many texts."""

    def __init__(self) -> None:
        self.dropped = 0
        self._held: list[Any] = []
        self._rows = 0

    def add(self, texts: pa.Array) -> None:
        """Null counts as nothing."""
        counted = texts.drop_null().value_counts()
        if len(counted):
            self._put(counted.field("values"), counted.field("counts"))

    def merge(self, other: Top) -> None:
        self.dropped += other.dropped
        for values, counts in other._held:
            self._put(values, counts)

    def _put(self, values: pa.Array, counts: pa.Array) -> None:
        self._held.append((values, counts))
        self._rows += len(values)
        if self._rows > _HELD:
            self.shrink(_KEPT)

    def shrink(self, most: int) -> None:
        """Drop all but so many values."""
        if not self._held:
            return
        values = pa.chunked_array([pair[0] for pair in self._held])
        counts = pa.chunked_array([pair[1] for pair in self._held])
        table = pa.table({"value": values, "count": counts}).group_by("value")
        summed = table.aggregate([("count", "sum")])
        if summed.num_rows > most:
            summed = summed.sort_by([("count_sum", "descending"), ("value", "ascending")])
            self.dropped += summed["count_sum"][most].as_py()
            summed = summed.slice(0, most)
        summed = summed.combine_chunks()
        self._rows = summed.num_rows
        self._held = [
            (summed["value"].combine_chunks(), summed["count_sum"].combine_chunks())
            if self._rows
            else (pa.array([], pa.string()), pa.array([], pa.int64()))
        ]

    def most(self, number: int) -> list[tuple[str, int]]:
        """The first ones, most frequent first."""
        self.shrink(max(_KEPT, number))
        found = [
            (text, count)
            for values, counts in self._held
            for text, count in zip(values.to_pylist(), counts.to_pylist(), strict=True)
        ]
        return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:number]


@dataclass(slots=True)
class Amount:
    """A number of messages, and of their bytes, frames counted."""

    messages: int = 0
    bytes: int = 0

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size


@dataclass(slots=True)
class Usage:
    """The usage of one topic."""

    queues: dict[tuple[str, int], Amount] = field(default_factory=dict)
    hours: dict[int, Amount] = field(default_factory=dict)
    sizes: Histogram = field(default_factory=Histogram)
    delays_ms: Histogram = field(default_factory=Histogram)
    early: int = 0  # messages stored before they were born: clocks differ
    keys: Top = field(default_factory=Top)
    tags: Top = field(default_factory=Top)
    origins: Counter[str] = field(default_factory=Counter)  # of retries: the first topic
    tries: Counter[int] = field(default_factory=Counter)

    def add(self, broker: str, queue_id: int, batch: pa.RecordBatch) -> None:
        """Count messages of one queue. Columns: size, storeTimestamp, bornTimestamp, keys, tags;
        with reconsumeTimes and properties also what only retries have."""
        if not batch.num_rows:
            return
        sizes = batch.column("size").to_numpy(zero_copy_only=False)
        amount = self.queues.setdefault((broker, queue_id), Amount())
        amount.add(batch.num_rows, int(sizes.sum(dtype=np.int64)))
        self._add_hours(store_hours(batch), sizes)
        self.sizes.add(sizes)
        stored, born = (
            batch.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False) // 1000
            for name in ("storeTimestamp", "bornTimestamp")
        )
        delays = stored - born
        self.early += int((delays < 0).sum())
        self.delays_ms.add(delays)
        self.keys.add(_single_keys(batch.column("keys")))
        self.tags.add(batch.column("tags"))
        if "properties" in batch.schema.names:
            self._add_retries(batch)

    def _add_hours(self, hours: Any, sizes: Any) -> None:
        low = int(hours.min())
        counts = np.bincount(hours - low)
        sums = np.bincount(hours - low, weights=sizes)
        for at in np.flatnonzero(counts).tolist():
            self.hours.setdefault(low + at, Amount()).add(int(counts[at]), int(sums[at]))

    def _add_retries(self, batch: pa.RecordBatch) -> None:
        origins = pc.map_lookup(batch.column("properties"), RETRY_TOPIC, "last")
        self.origins.update(_counted(origins.fill_null(_NO_ORIGIN)))
        self.tries.update(_counted(batch.column("reconsumeTimes")))

    def merge(self, other: Usage) -> None:
        for queue, amount in other.queues.items():
            self.queues.setdefault(queue, Amount()).add(amount.messages, amount.bytes)
        for hour, amount in other.hours.items():
            self.hours.setdefault(hour, Amount()).add(amount.messages, amount.bytes)
        self.sizes.merge(other.sizes)
        self.delays_ms.merge(other.delays_ms)
        self.early += other.early
        self.keys.merge(other.keys)
        self.tags.merge(other.tags)
        self.origins.update(other.origins)
        self.tries.update(other.tries)

    def shrink(self) -> None:
        """Before it travels."""
        self.keys.shrink(_SENT)
        self.tags.shrink(_SENT)

    @property
    def total(self) -> Amount:
        return Amount(
            sum(amount.messages for amount in self.queues.values()),
            sum(amount.bytes for amount in self.queues.values()),
        )

    def skew(self, queues: int) -> float:
        """The fullest queue against the mean of all so many."""
        counts = [amount.messages for amount in self.queues.values()]
        return max(counts, default=0) * queues / max(sum(counts), 1)


def _single_keys(keys: pa.Array) -> pa.Array:
    """Each key of those that a message has with spaces between."""
    if pc.any(pc.match_substring(keys, " ")).as_py():
        keys = pc.list_flatten(pc.split_pattern(keys, " "))
        keys = keys.filter(pc.not_equal(keys, ""))
    return keys


def _counted(array: pa.Array) -> dict[Any, int]:
    counted = array.value_counts()
    values: Sequence[Any] = counted.field("values").to_pylist()
    return dict(zip(values, counted.field("counts").to_pylist(), strict=True))

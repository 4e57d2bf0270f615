"""`spark.read.format("saturnmq")`: planning on the driver, reading in tasks.

The driver asks for bounds, resolves where to begin and to end, has the ranges cut and packs them
(plan.py). A task gets its ranges in its `InputPartition` and needs nothing else but the pickled
reader: where the messages are and what is made of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from saturnmq.pipeline import options as _options
from saturnmq.pipeline import resolve_offsets
from saturnmq.pipeline.access import Access, Decoding, Where
from saturnmq.pipeline.columns import from_spark_schema
from saturnmq.pipeline.options import SourceOptions
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range, ReadPlan, pack

CLOCK_SLACK_MS = 60_000  # a broker's clock may have gone back between two messages


class Ranges(InputPartition):
    """The range that one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))


def batch_reader(given: Mapping[str, str], schema: Any) -> DataSourceReader:
    """The reader of `DataSource.reader`. ConfigError for wrong options and columns."""
    options = _options.parse(given, streaming=False)
    kind = PushingReader if options.pushdown else BatchReader
    return kind(options, schema)


def plan_of(options: SourceOptions) -> ReadPlan:
    """The plan by which batches are cut that begin under these options."""
    return ReadPlan(
        options.partitions or len(os.sched_getaffinity(0)),
        options.max_bytes_per_partition,
        options.max_rows_per_partition,
        options.min_partitions,
    )


def plan_ranges(access: Access, ranges: Sequence[Range], plan: ReadPlan) -> list[list[Range]]:
    """The partitions of a batch: ranges of whole queues, cut and packed."""
    ranges = sorted(item for item in ranges if item.rows > 0)
    if not ranges:
        return []
    grain = plan.grain(sum(item.rows for item in ranges))
    return pack(access.cuts(ranges, *grain), plan)


def read_ranges(where: Where, decoding: Decoding, ranges: Iterable[Range]) -> Iterator[Any]:
    """The batches of ranges, in order; for tasks of every kind."""
    with open_access(where) as access:
        yield from access.batches(ranges, decoding)


class BatchReader(DataSourceReader):
    """One batch read."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._where = options.where
        self._decoding = options.decoding(from_spark_schema(schema))

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with open_access(self._where) as access:
            bounds = resolve_offsets.find(access, options)
            ranges = self._narrowed(access, resolve_offsets.ranges(access, options, bounds))
            return [Ranges(own) for own in plan_ranges(access, ranges, plan_of(options))]

    def _narrowed(self, access: Access, ranges: list[Range]) -> list[Range]:
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_ranges(self._where, self._decoding, partition.value or ())


class PushingReader(BatchReader):
    """A batch read with option `pushdown`: filters make the ranges smaller before the read.

    Spark checks every row again: rows that are left out here could not have passed, and rows that
    stay still may not.
    """

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        super().__init__(options, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._filters = list(filters)
        return filters

    def _narrowed(self, access: Access, ranges: list[Range]) -> list[Range]:
        for item in self._filters:
            ranges = [_narrow(access, item, piece) for piece in ranges]
        return ranges


def _narrow(access: Access, condition: Filter, piece: Range) -> Range:
    """The part of the range that may satisfy the condition."""
    least: Any
    most: Any
    among: tuple[Any, ...] = ()
    match condition:
        case EqualTo((name,), value) | EqualNullSafe((name,), value):
            least, most, among = value, value, (value,)
        case In((name,), values):
            known = [value for value in values if value is not None]
            if not known:
                return piece
            least, most, among = min(known), max(known), tuple(known)
        case GreaterThan((name,), value) | GreaterThanOrEqual((name,), value):
            least, most = value, None
        case LessThan((name,), value) | LessThanOrEqual((name,), value):
            least, most = None, value
        case _:
            return piece
    if least is None and most is None:
        return piece
    own = {"topic": piece.topic, "brokerName": piece.broker, "queueId": piece.queue_id}.get(name)
    if own is not None:
        fits = own in among if among else _between(least, own, most)
        return piece if fits else piece._replace(end=piece.start)
    start, end = piece.start, piece.end
    if name == "queueOffset":
        start = start if least is None else max(start, least)
        end = end if most is None else min(end, most + 1)
    elif name == "storeTimestamp":
        if least is not None:
            start = max(start, access.offset_at_time(piece.queue, _ms(least) - CLOCK_SLACK_MS))
        if most is not None:
            end = min(end, access.offset_at_time(piece.queue, _ms(most) + CLOCK_SLACK_MS))
    return piece._replace(start=min(start, piece.end), end=max(min(start, piece.end), end))


def _between(least: Any, value: Any, most: Any) -> bool:
    return (least is None or least <= value) and (most is None or value <= most)


def _ms(value: datetime) -> int:
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)

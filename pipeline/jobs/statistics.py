"""The statistics in a Parquet file's footer beside the rows that they speak of.

Readers pass over groups of rows by them, unseen, so wrong ones lose rows of a query with a
condition without a word. No checksum of a page covers them. Arrow reads outside of its memory where
a damaged footer has it make statistics, so the footer is read here: it is a struct of Thrift's
compact protocol, whose fields have the numbers of Parquet's format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from saturnmq.pipeline.jobs.checksums import footer_bytes

_GROUPS, _COLUMNS, _META = 4, 1, 3  # of the file, of a group, of a column
_TYPE, _PATH, _STATISTICS = 1, 3, 12  # of a column's metadata
_NULLS = (
    3  # of statistics; two pairs of limits: as first versions of the format have it, and as now
)
_LIMITS = ((2, 1), (6, 5))
_INT32, _INT64, _BYTES = 1, 2, 6


@dataclass(slots=True)
class RowLimits:
    """The least and the greatest value of a column in a group of rows, and the number of nulls."""

    least: Any = None
    most: Any = None
    nulls: int = 0

    def add(self, values: pa.Array) -> None:
        self.nulls += values.null_count
        if pa.types.is_nested(values.type) or values.null_count == len(values):
            return
        ends = pc.min_max(_as_written(values)).as_py()
        self.least = ends["min"] if self.least is None else min(self.least, ends["min"])
        self.most = ends["max"] if self.most is None else max(self.most, ends["max"])


def _as_written(values: pa.Array) -> pa.Array:
    """A column in the type in which Parquet writes its statistics."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values.cast(pa.binary()) if pa.types.is_string(values.type) else values


@dataclass(frozen=True, slots=True)
class Told:
    """The words of a footer on a column in a group of rows; None: it has none."""

    limits: tuple[tuple[Any, Any], ...]
    nulls: int | None

    def fault(self, found: RowLimits) -> str:
        """How the rows differ from it; empty if they do not."""
        if self.nulls not in (None, found.nulls):
            return f"{self.nulls} nulls by its footer, {found.nulls} in its rows"
        for least, most in self.limits:
            if (least, most) != (found.least, found.most):
                rows = f"{found.least} to {found.most} in its rows"
                return f"{least} to {most} by its footer, {rows}"
        return ""


def statistics_of(path: str) -> list[dict[str, Told]]:
    """Of each group of rows in a Parquet file, what it says of columns that are not nested."""
    size = footer_bytes(path)
    with open(path, "rb") as file:
        file.seek(-size, 2)
        footer = _Compact(file.read(size - 8)).struct()
    return [dict(_of_group(group)) for group in footer[_GROUPS]]


def _of_group(group: Mapping[int, Any]) -> Iterator[tuple[str, Told]]:
    for column in group[_COLUMNS]:
        meta = column[_META]
        told, path = meta.get(_STATISTICS), meta[_PATH]
        if told is not None and len(path) == 1:
            kind = meta[_TYPE]
            limits = tuple(
                (_value(told[least], kind), _value(told[most], kind))
                for least, most in _LIMITS
                if least in told and most in told
            )
            yield path[0].decode(), Told(limits, told.get(_NULLS))


def _value(data: bytes, kind: int) -> Any:
    if kind not in (_INT32, _INT64):
        return data
    return struct.unpack("<i" if kind == _INT32 else "<q", data)[0]


class _Compact:
    """A reader of Thrift's compact protocol; what is damaged raises one of Python's errors."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> dict[int, Any]:
        """The values of a struct by the numbers of its fields."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step = head >> 4
            number = number + step if step else self._signed()
            found[number] = head & 15 == 1 if head & 15 <= 2 else self._value(head & 15)
        return found

    def _value(self, kind: int) -> Any:
        if kind in (4, 5, 6):
            return self._signed()
        if kind in (3, 7, 8):
            return self._bytes({3: 1, 7: 8}.get(kind) or self._unsigned())
        if kind == 9:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            return [self._value(head & 15) for _ in range(count)]
        if kind == 12:
            return self.struct()
        raise ValueError(f"a footer has a value of kind {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise ValueError("a footer ends within a value")
        return self._data[self._at - count : self._at]

    def _unsigned(self) -> int:
        found = shift = 0
        while (part := self._byte()) & 128:
            found |= (part & 127) << shift
            shift += 7
        return found | part << shift

    def _signed(self) -> int:
        found = self._unsigned()
        return found >> 1 ^ -(found & 1)

"""Rows of an Arrow batch to the bodies of SEND_BATCH_MESSAGE and STAGE: the encoder of the sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from saturnmq.pipeline import kernels
from saturnmq.pipeline.encode_reference import (
    ENTRY_BYTES_MAX,
    ID_PREFIX_BYTES,
    TEXT_COLUMNS,
    Encoded,
)
from saturnmq.runtime.errors import ConfigError

TAKEN = frozenset({"body", "properties", "flag", *TEXT_COLUMNS})


class Encoder:
    """Encodes batches that have these columns; those that say where or when a row goes are not
    looked at. Rows whose entry is above `entry_bytes_max` are refused."""

    def __init__(self, columns: Iterable[str], *, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        names = list(columns)
        if "body" not in names:
            raise ConfigError(f"column body is missing; the columns are {', '.join(names)}")
        if "deliveryTimestamp" in names:
            raise ConfigError(
                "column deliveryTimestamp cannot be written: the messages of a batch have no time "
                "of their own; drop it"
            )
        self._columns = [name for name in names if name in TAKEN]
        self._entry_bytes_max = entry_bytes_max
        self._batch: pa.RecordBatch | None = None  # that `_rows` is made of
        self._rows: kernels.RowColumns

    def encode(
        self, batch: pa.RecordBatch, rows: Any, id_prefix: bytes, first_id: int, max_bytes: int
    ) -> Iterator[Encoded]:
        """The entries of `rows` (ascending numbers, int64; None: all), cut so that a piece has at
        most `max_bytes`, but at least a row. A row's UNIQ_KEY is `id_prefix`, 24 hexadecimal
        digits, and `first_id` + its number in the batch as eight more. MessageIllegal names the
        first row that cannot be sent; what comes before it is given first."""
        assert len(id_prefix) == ID_PREFIX_BYTES
        if batch is not self._batch:
            columns = {name: _as_bytes(batch.column(name)) for name in self._columns}
            self._rows = kernels.RowColumns(columns, self._entry_bytes_max)
            self._batch = batch
        numbers = range(batch.num_rows) if rows is None else rows
        at = 0
        while at < len(numbers):
            piece = self._rows.encode(numbers, at, id_prefix, first_id, max_bytes)
            at = piece.next_row
            yield piece


def _as_bytes(column: pa.Array) -> pa.Array:
    """Text as its bytes, without a copy where it has offsets; flags as int32."""
    kind = column.type
    if pa.types.is_map(kind):
        return column.cast(pa.map_(_bytes_type(kind.key_type), _bytes_type(kind.item_type)))
    return column.cast(pa.int32() if pa.types.is_integer(kind) else _bytes_type(kind))


def _bytes_type(kind: pa.DataType) -> pa.DataType:
    return pa.binary() if kind in (pa.binary(), pa.string()) else pa.large_binary()

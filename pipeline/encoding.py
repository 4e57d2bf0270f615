"""Rows of an Arrow batch to the bodies of SEND_BATCH_MESSAGE and STAGE: the encoder of the sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from saturnmq.pipeline.encode_reference import TEXT_COLUMNS, Encoded, encode_rows

TAKEN = frozenset({"body", "properties", "flag", *TEXT_COLUMNS})


class Encoder:
    """Encodes batches that have these columns; those that say where a row goes are not looked
    at."""

    def __init__(self, columns: Iterable[str]) -> None:
        self._columns = [name for name in columns if name in TAKEN]

    def encode(
        self, batch: pa.RecordBatch, rows: Any, id_prefix: bytes, first_id: int, max_bytes: int
    ) -> Iterator[Encoded]:
        """The entries of `rows` (ascending numbers, int64; None: all), cut so that a piece has at
        most `max_bytes`, but at least a row. A row's UNIQ_KEY is `id_prefix`, hexadecimal digits,
        and `first_id` + its number in the batch. MessageIllegal names a row that cannot be sent."""
        columns = {name: batch.column(name) for name in self._columns}
        numbers = range(batch.num_rows) if rows is None else rows.tolist()
        return encode_rows(columns, numbers, id_prefix, first_id, max_bytes)

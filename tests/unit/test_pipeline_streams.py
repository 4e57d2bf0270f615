"""The offsets of micro-batches, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pipeline_store_rig import made, segments

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.streaming.datasource import ReadMaxRows
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.offsets import from_json
from saturnmq.pipeline.streaming import StreamReader, stream_reader


def reader_of(root: Path, **options: str) -> StreamReader:
    given = {
        "store": str(root),
        "trusttail": "true",
        "subscribe": "T0",
        "startingoffsets": "earliest",
        "maxoffsetspertrigger": "6",
        **options,
    }
    return cast(StreamReader, stream_reader(given, select().spark_schema()))


def rows(reader: StreamReader, start: dict, end: dict) -> int:
    """The messages of a micro-batch."""
    parts = reader.partitions(start, end)
    return sum(batch.num_rows for part in parts for batch in reader.read(part))


def test_one_batch_passes_over_messages_that_have_expired(tmp_path: Path) -> None:
    root = made(tmp_path / "store", 200)
    before = reader_of(root)
    start = before.initialOffset()
    end = before.latestOffset(start, before.getDefaultReadLimit())
    assert rows(before, start, end) == 6
    before.stop()
    for path in segments(root)[:3]:
        path.unlink()
    reader = reader_of(root, failondataloss="false")
    limit = reader.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    found = []
    while (after := reader.latestOffset(end, limit)) != end:
        found.append(rows(reader, end, after))
        end = after
    reader.stop()
    assert all(0 < count <= 6 for count in found)
    whole = reader_of(root)
    first = whole.initialOffset()
    assert sum(found) == sum(from_json(end).values()) - sum(from_json(first).values())
    whole.stop()

"""Digests: what the hash tells apart, that order does not matter, and that the kernel agrees."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.pipeline.jobs.digest import (
    FACTOR,
    HOUR_US,
    NULL_HASH,
    Digests,
    HourKey,
    Total,
    hash_slices,
    hash_slices_reference,
    row_hashes,
    value_hashes,
)

MASK = (1 << 64) - 1
PAIRS = pa.map_(pa.string(), pa.string())


def batch(rows: list[dict]) -> pa.RecordBatch:
    columns = {
        "topic": pa.string(),
        "brokerName": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "storeTimestamp": pa.timestamp("us", tz="UTC"),
        "tags": pa.string(),
        "body": pa.binary(),
        "properties": PAIRS,
    }
    return pa.RecordBatch.from_pydict(
        {name: pa.array([row.get(name) for row in rows], kind) for name, kind in columns.items()}
    )


def row(number: int, **other) -> dict:
    return {
        "topic": "T",
        "brokerName": "b",
        "queueId": number % 2,
        "queueOffset": number,
        "storeTimestamp": HOUR_US * 1000 + number * 1_000_000_000,
        "tags": None if number % 3 else "A",
        "body": bytes(number),
        "properties": [("k", str(number)), ("l", "m")],
    } | other


HASHED = ("queueOffset", "storeTimestamp", "tags", "body", "properties")


def digests(rows: list[dict]) -> Digests:
    found = Digests(HASHED)
    found.add(batch(rows))
    return found


@given(st.lists(st.binary(max_size=40)))
def test_the_kernel_agrees_with_its_reference(parts: list[bytes]) -> None:
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int32)
    data = np.frombuffer(b"".join(parts), np.uint8)
    one, other = np.ones(len(parts), np.uint64), np.zeros(len(parts), np.uint64)
    hash_slices(offsets, data, one)
    hash_slices_reference(offsets, data, other)
    assert one.tolist() == other.tolist()


def test_offsets_that_leave_the_data_are_refused_by_the_kernel() -> None:
    if hash_slices is hash_slices_reference:
        pytest.skip("no kernel")
    for wrong in ([0, 5], [2, 1], [-1, 2]):
        with pytest.raises(ValueError, match="slice 0"):
            hash_slices(np.array(wrong, np.int32), np.zeros(3, np.uint8), np.zeros(1, np.uint64))


def test_a_hash_is_what_the_module_says() -> None:
    length = 3 * FACTOR & MASK
    value = (length ^ int.from_bytes(b"abc", "little")) * FACTOR & MASK
    value ^= value >> 32
    assert value_hashes(pa.array(["abc", None])).tolist() == [value, NULL_HASH]
    pairs = pa.array([[("abc", "abc")], [], None], PAIRS)
    assert value_hashes(pairs).tolist() == [(value * FACTOR & MASK) ^ value, 0, NULL_HASH]


@given(st.permutations(range(12)))
def test_order_and_batches_do_not_matter(order: list[int]) -> None:
    found = Digests(HASHED)
    for part in (order[:5], order[5:5], order[5:]):
        found.add(batch([row(number) for number in part]))
    assert found.totals == digests([row(number) for number in range(12)]).totals
    assert found.rows == 12
    assert len(found.totals) == 7  # 12 x 1,000 s: the fourth hour has one message


@pytest.mark.parametrize(
    "change",
    [
        {"queueOffset": 8},
        {"storeTimestamp": HOUR_US * 1000 + 1},
        {"tags": ""},
        {"tags": "B"},
        {"body": bytes(8)},
        {"body": b"\1" + bytes(6)},
        {"properties": [("k", "7")]},
        {"properties": [("k", "m"), ("l", "7")]},
        {"properties": None},
    ],
)
def test_every_change_shows(change: dict) -> None:
    before, after = (row_hashes(batch([r]), HASHED)[0] for r in (row(7), row(7, **change)))
    assert before != after


def test_a_slice_of_a_batch_counts_as_its_rows() -> None:
    whole = batch([row(number) for number in range(12)])
    part = Digests(HASHED)
    part.add(whole.slice(4, 5))
    assert part.totals == digests([row(number) for number in range(4, 9)]).totals


def test_totals_add_up_when_merged() -> None:
    both = digests([row(0)])
    both.merge(digests([row(2)]))
    key = HourKey("T", "b", 0, 1000)
    assert both.totals == {key: digests([row(0), row(2)]).totals[key]}
    assert str(Total(1234, 255)) == "1,234 messages, checksum 00000000000000ff"

"""Rows of Arrow to the entries of a batch: the kernel against its reference, and round trips."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.protocol import properties as names
from saturnmq.protocol.batch import ENTRY_BYTES_MIN, iterate_batch
from saturnmq.protocol.kernels import check_batch, write_batch
from saturnmq.protocol.properties import decode_properties
from saturnmq.runtime.errors import ConfigError, MessageIllegal

pa = pytest.importorskip("pyarrow", reason="the pipeline needs pyarrow: saturnmq[spark]")
np = pytest.importorskip("numpy", reason="the pipeline needs numpy: saturnmq[spark]")

from saturnmq.pipeline import encode_reference, kernels  # noqa: E402
from saturnmq.pipeline.columns import select  # noqa: E402
from saturnmq.pipeline.decoding import Decoder  # noqa: E402
from saturnmq.pipeline.encoding import Encoder  # noqa: E402

try:
    compiled = importlib.import_module("saturnmq.pipeline.encode_kernel")
except ImportError:
    compiled = None

fast = compiled or encode_reference
both = pytest.mark.parametrize("kind", [encode_reference, fast], ids=["reference", "kernel"])
PREFIX = b"0123456789ABCDEF01234567"
HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
TEXTS = ("keys", "tags", "shardingKey")
MAP = pa.map_(pa.string(), pa.string())

words = st.text("abZ é漢\U0001f600", max_size=12)
odd_words = st.one_of(words, words, words, st.sampled_from(["\x01", "a\x02b", "ends\0", "\0" * 30]))
some_names = words | st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "DELAY", "__CRC32#", "x"])
pairs = st.lists(st.tuples(some_names, st.none() | odd_words), max_size=5)


@st.composite
def batches(draw):
    """A batch of the sink's columns, in any of the types they come in, maybe a slice of one."""
    count = draw(st.integers(0, 12))

    def column(items, kind):
        return pa.array(draw(st.lists(items, min_size=count, max_size=count)), kind)

    body = draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    bodies = st.one_of(st.binary(min_size=1, max_size=60), st.binary(max_size=3), st.none())
    columns = {"body": column(bodies if draw(st.booleans()) else st.binary(min_size=1), body)}
    for name in TEXTS:
        if draw(st.booleans()):
            kind = draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
            columns[name] = column(st.none() | (odd_words if draw(st.booleans()) else words), kind)
    if draw(st.booleans()):
        columns["flag"] = column(st.none() | st.integers(-(1 << 31), (1 << 31) - 1), pa.int32())
    if draw(st.booleans()):
        columns["properties"] = column(st.none() | pairs, MAP)
    batch = pa.record_batch(columns)
    return batch.slice(draw(st.integers(0, 3)), draw(st.integers(0, 12)))


def encoded(kind, batch, rows=None, first_id=0, max_bytes=1 << 20, **options):
    """The pieces that the encoder yields with `kind` in place of the chosen kernel, and the error
    that ends them."""
    chosen, kernels.RowColumns = kernels.RowColumns, kind.RowColumns
    pieces = []
    try:
        encoder = Encoder(batch.schema.names, **options)
        for piece in encoder.encode(batch, rows, PREFIX, first_id, max_bytes):
            pieces.append(tuple(piece))
    except MessageIllegal as error:
        return pieces, str(error)
    finally:
        kernels.RowColumns = chosen
    return pieces, ""


def entries(pieces):
    return [
        (bytes(entry.body), decode_properties(entry.properties), entry.flag)
        for body, *_ in pieces
        for entry in iterate_batch(body)
    ]


@given(
    batches(),
    st.none() | st.lists(st.integers(0, 11), unique=True, max_size=9).map(sorted),
    st.integers(0, 1000) | st.sampled_from([0xFFFFFFF8, 0xFFFFFFFF]),
    st.integers(1, 600),
    st.integers(60, 200),
)
def test_entries_are_the_same_from_kernel_and_reference(batch, rows, first_id, size, most):
    if rows is not None:
        rows = np.array([row for row in rows if row < batch.num_rows], np.int64)
    options = {"first_id": first_id, "max_bytes": size, "entry_bytes_max": most}
    expected = encoded(encode_reference, batch, rows, **options)
    assert encoded(fast, batch, rows, **options) == expected
    pieces, error = expected
    taken = sum(count for _, count, _ in pieces)
    assert error or taken == (batch.num_rows if rows is None else len(rows))
    for body, count, _ in pieces:
        assert len(body) <= size or count == 1
        assert check_batch(body, 5, 0, True, 1 << 20)[0] == count


@given(batches())
def test_what_the_broker_stores_gives_the_columns_back(batch):
    pieces, _ = encoded(fast, batch)
    frames = bytearray()
    for body, _, _ in pieces:
        _, size = check_batch(body, 5, 0, True, 1 << 20)
        out = bytearray(size)
        write_batch(body, out, 0, 0, 0, 3, 0, 1, HOST, 2, HOST, 0, b"topic", True)
        frames += out
    wanted = ["body", "keys", "tags", "flag", "messageId", "properties", "crcOk"]
    found = [
        row
        for decoded in Decoder(select(wanted), broker="b").frames(bytes(frames))
        for row in decoded.to_pylist(maps_as_pydicts="strict")
    ]
    for number, (row, back) in enumerate(zip(batch.to_pylist(), found, strict=False)):
        assert back["body"] == row["body"]
        assert back["flag"] == (row.get("flag") or 0)
        assert back["messageId"] == f"{PREFIX.decode()}{number:08X}"
        assert back["crcOk"]
        given_pairs = {name: value for name, value in row.get("properties") or () if value}
        for column, name in encode_reference.TEXT_COLUMNS.items():
            expected = row[column] if column in row else given_pairs.get(name)
            assert back["properties"].get(name) == (expected or None)
        own = {name: v for name, v in given_pairs.items() if name and name not in names.RESERVED}
        assert {n: v for n, v in back["properties"].items() if n not in names.RESERVED} == own


@both
def test_columns_win_over_the_map_and_the_systems_names_are_left_out(kind):
    given_pairs = [("TAGS", "old"), ("KEYS", "k"), ("UNIQ_KEY", "u"), ("WAIT", "false")]
    given_pairs += [("DELAY", "3"), ("__CRC32#", "1"), ("a", "1"), ("", "2"), ("b", "")]
    batch = pa.record_batch(
        {
            "body": ["ä"],
            "tags": pa.array([None], pa.string()),
            "properties": pa.array([given_pairs], MAP),
        }
    )
    (piece,), error = encoded(kind, batch, first_id=0xAB)
    assert not error
    ((body, found, flag),) = entries([piece])
    assert (body, flag) == ("ä".encode(), 0)
    assert found == {
        "UNIQ_KEY": "0123456789ABCDEF01234567000000AB",
        "WAIT": "true",
        "KEYS": "k",
        "a": "1",
    }


@both
def test_text_that_is_not_utf8_travels_as_it_is(kind):
    ends = pa.py_buffer(b"\0\0\0\0\2\0\0\0")
    text = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xff\xfe")])
    (piece,), _ = encoded(kind, pa.record_batch({"body": text, "tags": text}))
    (entry,) = iterate_batch(piece[0])
    assert bytes(entry.body) == b"\xff\xfe"
    assert b"TAGS\x01\xff\xfe\x02" in entry.properties


@both
@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"body": [b""]}, "row 0 of a batch has no body"),
        ({"body": pa.array([None], pa.binary())}, "row 0 of a batch has no body"),
        (
            {"body": [bytes((4 << 20) - 73)]},
            "has 4194305 B with its properties: compress",
        ),
        ({"body": [b"x"], "tags": ["a\x01b"]}, "holds a byte 1 or 2 in property b'TAGS'"),
        ({"body": [b"x"], "keys": ["a" * 32_691]}, "has properties of 32749 B: shorten keys"),
        ({"body": [b"x"], "keys": ["a" * 40_000]}, "has properties of 40058 B: shorten keys"),
        ({"body": [b"x"], "keys": ["a\0"]}, "ends its properties with a zero byte"),
        (
            {"body": [b"x"], "properties": pa.array([[("a\x02", "1")]], MAP)},
            "holds a byte 1 or 2 in property b'a\\x02'",
        ),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(kind, columns, text):
    pieces, error = encoded(kind, pa.record_batch(columns))
    assert pieces == []
    assert text in error


@both
def test_limits_are_reached_exactly(kind):
    longest = (4 << 20) - ENTRY_BYTES_MIN - encode_reference.PROPERTIES_BYTES_MAX
    batch = pa.record_batch({"body": [bytes(longest)], "keys": ["a" * 32_689]})
    (piece,), error = encoded(kind, batch)
    assert not error
    assert len(piece[0]) == 4 << 20  # as much as a broker takes
    assert check_batch(piece[0], 5, 0, True, 4 << 20)[0] == 1


@both
def test_what_comes_before_a_refused_row_is_given_first(kind):
    pieces, error = encoded(kind, pa.record_batch({"body": [b"a", b"b", b"", b"c"]}))
    assert [body for body, _, _ in entries(pieces)] == [b"a", b"b"]
    assert error.startswith("row 2 of a batch has no body")


@both
def test_ids_end_at_eight_digits(kind):
    pieces, error = encoded(kind, pa.record_batch({"body": [b"a", b"b"]}), first_id=0xFFFFFFFF)
    assert [found["UNIQ_KEY"][24:] for _, found, _ in entries(pieces)] == ["FFFFFFFF"]
    assert "row 4294967296 of a partition has no number" in error


@pytest.mark.skipif(compiled is None, reason="there is no kernel")
@pytest.mark.parametrize("ends", [(0, 9), (-1, 1), (2, 1), (1 << 30, (1 << 30) + 1)])
def test_offsets_that_lead_out_of_a_buffer_are_refused(ends):
    offsets = np.array([0, 1], np.int32)
    bent = pa.Array.from_buffers(
        pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(b"12345678")]
    )
    offsets[:] = ends  # only now: Arrow looks at what it is given
    sound = pa.array([b"x"])
    map_offsets = np.array([0, 1], np.int32)
    kind = pa.map_(pa.binary(), pa.binary())
    pair = pa.StructArray.from_arrays([sound, sound], fields=[kind.key_field, kind.item_field])
    bent_map = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(map_offsets)], children=[pair])
    map_offsets[:] = ends
    beyond = np.array([1], np.int64)
    for columns, rows in [
        ({"body": bent}, range(1)),
        ({"body": sound, "tags": bent}, range(1)),
        ({"body": sound, "properties": bent_map}, range(1)),
        ({"body": sound}, beyond),
        ({"body": sound}, -beyond),
    ]:
        with pytest.raises(ValueError, match="lies outside"):
            compiled.RowColumns(columns).encode(rows, 0, PREFIX, 0, 100)


def test_columns_that_cannot_be_written_are_refused():
    with pytest.raises(ConfigError, match="column body is missing; the columns are tags"):
        Encoder(["tags"])
    with pytest.raises(ConfigError, match="have no time of their own; drop it"):
        Encoder(["body", "deliveryTimestamp"])


def test_the_benchmark_of_the_kernels_runs():
    script = Path(__file__).parents[2] / "benchmarks" / "pipeline_kernels.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert all(row["figure"] > 0 and row["reference"] > 0 for row in facts["rows"])
    assert set(facts["targets"]) <= {row["work"] for row in facts["rows"]}

"""Batches become chunks: full ones, in order, each of messages that one request can carry."""

import pytest
from saturnmq.protocol import compression
from saturnmq.protocol.batch import iterate_batch
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.protocol.properties import decode_properties

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from saturnmq.pipeline import chunking  # noqa: E402
from saturnmq.pipeline.chunking import NOW, Chunker, id_prefix  # noqa: E402
from saturnmq.pipeline.selecting import Selector  # noqa: E402
from saturnmq.pipeline.sink_options import parse  # noqa: E402

QUEUES = [MessageQueue("orders", "a", number) for number in range(2)]


def chunks(*batches, selector="roundRobin", prefix=b"0123456789ABCDEF01234567", **options):
    """(chunk, its (body, properties, flag) entries) of each chunk."""
    given = parse({"endpoints": "x:1", "topic": "orders", **options})
    found = []
    columns = tuple(batches[0].schema.names)
    chunker = Chunker(
        columns, given, Selector("orders", selector, lambda topic: QUEUES), prefix, found.append
    )
    for batch in batches:
        chunker.add(batch)
    chunker.flush()
    assert chunker.rows == sum(batch.num_rows for batch in batches)
    assert (chunker.chunks, chunker.bytes) == (len(found), sum(chunk.size for chunk in found))
    return [(chunk, _entries(chunk)) for chunk in found]


def _entries(chunk):
    found = [
        (bytes(entry.body), decode_properties(entry.properties), entry.flag)
        for entry in iterate_batch(chunk.body())
    ]
    assert (len(found), len(chunk.body())) == (chunk.rows, chunk.size)
    return found


def test_batches_share_a_chunk_and_a_full_one_leaves():
    batches = [pa.record_batch({"body": [b"%04d" % n] * 10}) for n in range(100)]
    found = chunks(*batches, chunkBytes="16384")
    assert len(found) > 2
    assert all(8192 < chunk.size <= 16384 for chunk, _ in found[:-1])
    bodies = [body for _, entries in found for body, _, _ in entries]
    assert bodies == [b"%04d" % n for n in range(100) for _ in range(10)]
    assert {(chunk.queue, chunk.born_ms, chunk.sys_flag) for chunk, _ in found} == {(None, NOW, 0)}


def test_every_row_has_an_id_of_its_own_and_the_same_one_again():
    batches = [pa.record_batch({"body": [b"x"] * 5, "shardingKey": list("abcde")})] * 3
    once = chunks(*batches, selector="shardingKey")
    ids = [properties["UNIQ_KEY"] for _, entries in once for _, properties, _ in entries]
    assert len(set(ids)) == 15
    assert {len(bytes.fromhex(unique)) for unique in ids} == {16}
    assert {properties["WAIT"] for _, entries in once for _, properties, _ in entries} == {"true"}
    assert [entries for _, entries in chunks(*batches, selector="shardingKey")] == [
        entries for _, entries in once
    ]
    other = chunks(*batches, selector="shardingKey", prefix=id_prefix("other", 0, 0))
    assert not {p["UNIQ_KEY"] for _, entries in other for _, p, _ in entries} & set(ids)


def test_a_rows_id_says_its_number_whatever_queue_it_goes_to():
    batch = pa.record_batch({"body": [b"0", b"1", b"2", b"3"], "shardingKey": list("abab")})
    by_queue = chunks(batch, selector="shardingKey")
    plain = chunks(batch, selector="roundRobin")

    def ids(found):
        return {body: properties["UNIQ_KEY"] for _, es in found for body, properties, _ in es}

    assert len(by_queue) == 2
    assert ids(by_queue) == ids(plain)


def test_columns_become_properties_and_flags():
    rows = pa.record_batch(
        {
            "body": ["ä", "b"],
            "tags": ["T", None],
            "keys": ["k1 k2", None],
            "shardingKey": ["s", None],
            "flag": pa.array([7, None], pa.int32()),
            "properties": pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
        }
    )
    (_, entries), *rest = chunks(rows)
    assert not rest
    first, second = entries
    assert first[0] == "ä".encode()
    assert (first[2], second[2]) == (7, 0)
    expected = {"TAGS": "T", "KEYS": "k1 k2", "__SHARDINGKEY": "s", "a": "1", "WAIT": "true"}
    assert {**first[1], "UNIQ_KEY": ""} == {**expected, "UNIQ_KEY": ""}
    assert set(second[1]) == {"UNIQ_KEY", "WAIT"}


def test_a_chunk_ends_where_the_time_of_birth_changes():
    born = [5_000_000, 5_000_999, 6_000_000, None, 5_000_000]
    batch = pa.record_batch(
        {
            "body": [b"0", b"1", b"2", b"3", b"4"],
            "bornTimestamp": pa.array(born, pa.timestamp("us", tz="UTC")),
        }
    )
    found = [(chunk.born_ms, [body for body, _, _ in entries]) for chunk, entries in chunks(batch)]
    assert found == [(5000, [b"0", b"1"]), (6000, [b"2"]), (NOW, [b"3"]), (5000, [b"4"])]


def test_messages_may_be_born_before_1970():
    born = [-1, -1000, -1001, None, -(1 << 63), (1 << 63) - 1]
    times = pa.array(born, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    batch = pa.record_batch({"body": [b"%d" % n for n in range(6)], "bornTimestamp": times})
    found = [(chunk.born_ms, len(entries)) for chunk, entries in chunks(batch)]
    least, most = -(1 << 63) // 1000, ((1 << 63) - 1) // 1000
    assert found == [(-1, 2), (-2, 1), (NOW, 1), (least, 1), (most, 1)]
    assert NOW not in (-1, -2, least, most)


@pytest.mark.parametrize("kind", sorted(compression.NAMES))
def test_bodies_from_the_threshold_on_are_compressed_and_order_holds(kind):
    bodies = [b"s", b"L" * 900, b"M" * 900, b"t"]
    options = {"compression": kind, "compressionThreshold": "900"}
    found = chunks(pa.record_batch({"body": bodies}), **options)
    assert [chunk.rows for chunk, _ in found] == [1, 2, 1]
    plain = []
    for chunk, entries in found:
        assert chunk.size < 400
        for body, _, _ in entries:
            plain.append(compression.decompress(body, chunk.sys_flag))
    assert plain == bodies
    assert [bool(chunk.sys_flag & 1) for chunk, _ in found] == [False, True, False]


def test_what_is_held_back_for_many_queues_has_a_limit(monkeypatch):
    monkeypatch.setattr(chunking, "OPEN_BYTES_MAX", 10_000)
    batches = [pa.record_batch({"body": [b"x" * 1000] * 2, "shardingKey": ["a", "b"]})] * 20
    found = chunks(*batches, selector="shardingKey")
    assert all(chunk.size < 10_000 for chunk, _ in found)
    assert sum(chunk.rows for chunk, _ in found) == 40

"""READ_QUEUE, SPLIT_RANGE and QUEUE_BOUNDS of a real broker; and how a range is cut."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, insist, run, send, started, until
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.derived.consumequeue import ENTRY, FILLER
from saturnmq.store.derived.range_split import cut, weigh_entries, weigh_entries_reference

READ, CUT, BOUNDS = RequestCode.READ_QUEUE, RequestCode.SPLIT_RANGE, RequestCode.QUEUE_BOUNDS


async def fill(client: Endpoint, broker, count: int, queue: int = 0, size: int = 10) -> None:
    batch = bytearray()
    for n in range(count):
        tag = b"TAGS\x01" + (b"A" if n % 2 else b"B") + b"\x02"
        encode_batch_item(batch, b"%d" % n + b"." * size, tag, 0, True)
    ext = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "f": 0, "g": 1, "h": 0}
    before = broker.store.max_offset("orders", queue)
    sent = await ask(client, 320, {**ext, "e": queue, "m": "true"}, bytes(batch))
    assert sent.code == 0, sent.remark
    await until(lambda: broker.store.max_offset("orders", queue) == before + count)


async def read(client: Endpoint, offset: int, end: int, **more):
    ext = {"topic": "orders", "queueId": 0, "offset": offset, "end": end, **more}
    return await ask(client, READ, ext)


def numbers(reply) -> list[int]:
    return [int(m.body.partition(b".")[0]) for m in decode_frames(reply.body, True)]


def test_a_range_is_read_in_chunks_and_not_beyond_its_end(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 100)
        got, offset, chunks = [], 10, 0
        while offset < 90:
            reply = await read(client, offset, 90, maxBytes=2000)
            assert reply.code == 0, reply.remark
            assert len(reply.body) <= 2000
            got += numbers(reply)
            offset = int(reply.ext["nextBeginOffset"])
            chunks += 1
        assert got == list(range(10, 90))
        assert chunks > 3
        filtered = await read(client, 10, 20, subscription="A || C")
        assert numbers(filtered) == [11, 13, 15, 17, 19]
        assert filtered.ext["nextBeginOffset"] == "20"
        await broker.close()

    run(body)


def test_where_nothing_is_the_answer_tells_what_there_is(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 10)
        behind = await read(client, 10, 20)
        assert (behind.code, behind.ext["maxOffset"]) == (19, "10")
        far = await read(client, 15, 20)
        assert (far.code, far.ext["maxOffset"]) == (19, "10")
        nothing = await read(client, 0, 10, subscription="C")
        assert (nothing.code, nothing.ext["nextBeginOffset"]) == (20, "10")
        empty = await ask(client, READ, {"topic": "orders", "queueId": 1, "offset": 0, "end": 1})
        assert (empty.code, empty.ext["maxOffset"]) == (19, "0")
        refused = await read(client, 0, 10, subscription="a > 5", expressionType="XPATH")
        assert (refused.code, "XPATH" in refused.remark) == (23, True)
        for ext in ({"queueId": 99}, {"offset": 5, "end": 5}, {"offset": -1}):
            wrong = await read(client, **{"offset": 0, "end": 1, **ext})
            assert wrong.code == 29, wrong.remark
        assert (await read(client, 0, 1, topic="none")).code == 17
        await broker.close()

    run(body)


def test_cuts_cover_the_ranges_within_the_limits(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 300)
        await fill(client, broker, 50, queue=2)
        ranges = [[0, 5, 300], [2, 0, 50], [1, 0, 0]]
        ext = {"topic": "orders", "maxBytes": 3000, "maxRows": 15}
        reply = await ask(client, CUT, ext, json.dumps(ranges).encode())
        answer = json.loads(bytes(reply.body))
        assert answer["rest"] == []
        pieces = answer["pieces"]
        assert all(rows <= 15 for rows in (p[2] - p[1] for p in pieces))
        assert all(0 < p[3] <= 3000 for p in pieces)
        for queue_id, start, end in ((0, 5, 300), (2, 0, 50)):
            own = [p for p in pieces if p[0] == queue_id]
            assert own[0][1] == start
            assert own[-1][2] == end
            assert all(a[2] == b[1] for a, b in pairwise(own))
            frames = b"".join(
                [bytes((await read(client, p[1], p[2], queueId=queue_id)).body) for p in own]
            )
            assert sum(p[3] for p in own) == len(frames)
        first = await ask(client, CUT, {**ext, "firstOnly": "true"}, json.dumps(ranges).encode())
        found = [p[:3] for p in json.loads(bytes(first.body))["pieces"]]
        assert found == [[0, 5, pieces[0][2]], [2, 0, 15]]
        bad = await ask(client, CUT, ext, b'[[0,"a",2]]')
        assert (bad.code, "no range" in bad.remark) == (29, True)
        begun = time.thread_time()
        large = await ask(client, CUT, ext, b"{" + b"1:1," * (1 << 20))
        assert time.thread_time() - begun < 1.0, "quoting its keys takes two seconds"
        assert (large.code, "the limit is" in large.remark) == (1, True)
        await broker.close()

    run(body)


def test_bounds_are_those_of_all_queues(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await send(client, b"x")
        await fill(client, broker, 7, queue=3)
        reply = await ask(client, BOUNDS, {"topic": "orders"})
        assert json.loads(bytes(reply.body)) == {
            "0": [0, 1],
            "1": [0, 0],
            "2": [0, 0],
            "3": [0, 7],
        }
        await broker.close()

    run(body)


def test_what_is_not_confirmed_has_no_bounds_and_is_not_read(tmp_path: Path) -> None:
    """A synchronous master without its slave confirms nothing."""

    async def body(runtime: NativeRuntime) -> None:
        settings = config(tmp_path, role="SYNC_MASTER", slave_timeout_ms=100)
        broker = await started(runtime, settings)
        await insist(broker)
        client = await connected(runtime, broker)
        assert broker.context.visible == 0
        await fill_unconfirmed(client)
        await until(lambda: broker.store.max_offset("orders", 0) == 1)
        reply = await ask(client, BOUNDS, {"topic": "orders"})
        assert json.loads(bytes(reply.body))["0"] == [0, 0]
        assert (await read(client, 0, 1)).code == 19
        await broker.close()

    run(body)


async def fill_unconfirmed(client: Endpoint) -> None:
    reply = await send(client, b"nobody has it yet")
    assert reply.code in (10, 11, 12), reply.remark


sizes = st.lists(st.one_of(st.integers(1, 500), st.just(0x7FFFFFFF), st.integers(-5, 0)))


@given(sizes, st.integers(0, 3000))
def test_the_kernel_weighs_as_the_reference(sizes: list[int], room: int) -> None:
    data = memoryview(b"".join(ENTRY.pack(1, size, 0) for size in sizes))
    assert weigh_entries(data, room) == weigh_entries_reference(data, room)


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 900), st.integers(1, 20))
@pytest.mark.parametrize("per_file", [7, 1000])
def test_pieces_are_the_largest_within_the_limits(
    per_file: int, sizes: list[int], max_bytes: int, max_rows: int
) -> None:
    table = b"".join(ENTRY.pack(1, size, 0) for size in sizes)

    def entries(first: int, count: int) -> memoryview:
        count = min(count, per_file - first % per_file)
        return memoryview(table)[first * 20 : (first + count) * 20]

    position = 0
    for start, end, weight in cut(entries, 0, len(sizes), max_bytes, max_rows):
        assert start == position < end
        own = sizes[start:end]
        assert sum(own) == weight
        assert len(own) <= max_rows
        assert weight <= max_bytes or len(own) == 1
        if end < len(sizes) and len(own) < max_rows:
            assert weight + sizes[end] > max_bytes
        position = end
    assert position == len(sizes)


def test_fillers_and_what_is_gone_weigh_nothing() -> None:
    held = FILLER * 3 + ENTRY.pack(5, 70, 0)
    assert list(cut(lambda first, n: memoryview(held)[first * 20 :], 0, 4, 100, 10)) == [(0, 4, 70)]
    assert list(cut(lambda first, n: memoryview(b""), 3, 9, 100, 4)) == [(3, 7, 0), (7, 9, 0)]

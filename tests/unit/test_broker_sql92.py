"""SQL92 at a real broker: pulls, long polls, reads of ranges, groups by heartbeat, refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from broker_rig import ask, config, connected, pull, run, started, until
from frame_rig import plain_frame
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.broker.broker import Broker
from saturnmq.broker.handlers import pull as pull_handler
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.frame import Frame, decode_frame, frame_properties
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.properties import decode_properties
from saturnmq.protocol.sql92 import Sql
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.derived.consumequeue import ENTRY, FILLER
from saturnmq.store.derived.sql_filter import (
    COMPILED_COSTS,
    REFERENCE_COSTS,
    WORK_MAX,
    sift,
    sift_compiled,
)

SQL = "SQL92"
COSTS = REFERENCE_COSTS if sift_compiled is None else COMPILED_COSTS
SOME = {"expressionType": SQL, "subscription": "n >= 10 AND n < 20 AND TAGS = 'A'"}


async def fill(client: Endpoint, broker: Broker, start: int, end: int) -> None:
    """Messages with their number in property n, every second one of tag A."""
    before = broker.store.max_offset("orders", 0)
    for first in range(start, end, 1000):
        batch = bytearray()
        for n in range(first, min(first + 1000, end)):
            properties = f"n\x01{n}\x02TAGS\x01{'BA'[n % 2]}\x02".encode()
            encode_batch_item(batch, b"%d" % n, properties, 0, True)
        ext = {"a": "P", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        sent = await ask(client, 320, {**ext, "m": "true"}, bytes(batch))
        assert sent.code == 0, sent.remark
    await until(lambda: broker.store.max_offset("orders", 0) == before + end - start)


async def beat(client: Endpoint, expression: str, version: int, kind: str = SQL) -> None:
    subscription = {"topic": "orders", "subString": expression, "subVersion": version}
    group = {"groupName": "G", "subscriptionDataSet": [subscription | {"expressionType": kind}]}
    document = {"clientID": "C", "consumerDataSet": [group], "producerDataSet": []}
    answer = await ask(client, RequestCode.HEART_BEAT, {}, json.dumps(document).encode())
    assert answer.code == 0
    assert answer.version >= 232, "a Java client asks no older broker for SQL92"


async def check(client: Endpoint, expression: str | None, kind: str = SQL):
    data = {"topic": "orders", "subString": expression, "expressionType": kind}
    body = json.dumps({"clientId": "C", "group": "G", "subscriptionData": data}).encode()
    return await ask(client, RequestCode.CHECK_CLIENT_CONFIG, {}, body)


def numbers(reply) -> list[int]:
    return [int(m.body) for m in decode_frames(reply.body, True)]


def test_a_pull_gets_what_matches_and_is_told_where_to_go_on(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 0, 100)
        got = await pull(client, 0, **SOME)
        assert (got.code, numbers(got)) == (0, [11, 13, 15, 17, 19])
        assert got.ext["nextBeginOffset"] == "100"
        two = await pull(client, 0, **SOME, maxMsgNums=2)
        assert numbers(two) == [11, 13]
        assert two.ext["nextBeginOffset"] == "14"
        none = await pull(client, 20, **SOME)
        assert (none.code, none.ext["nextBeginOffset"], none.body) == (20, "100", b"")
        everything = await pull(client, 0, expressionType=SQL, subscription="n IS NOT NULL")
        assert len(numbers(everything)) == 32
        await broker.close()

    run(body)


@pytest.mark.parametrize("more", [10, 300])
def test_one_request_does_a_bounded_piece_of_work(tmp_path: Path, more: int) -> None:
    expression = "n < 0" + " OR n = 4000 AND n = 5" * more

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 0, 4000)
        filtered = {"expressionType": SQL, "subscription": expression}
        most = 1 + WORK_MAX // COSTS.of(Sql(expression), 0)
        offset, requests = 0, 0
        while offset < 400:
            got = await pull(client, offset, **filtered, maxMsgNums=4000)
            following = int(got.ext["nextBeginOffset"])
            assert got.code == 20
            assert 0 < following - offset <= most
            offset, requests = following, requests + 1
        assert requests >= 400 // most
        # A request that may wait is answered as well when there is more to look at.
        got = await pull(client, 0, **filtered, sysFlag=6, suspendTimeoutMillis=20_000)
        assert (got.code, int(got.ext["nextBeginOffset"]) < 4000) == (20, True)
        read = {"topic": "orders", "queueId": 0, "offset": 0, "end": 4000, **filtered}
        got = await ask(client, RequestCode.READ_QUEUE, read)
        assert (got.code, 0 < int(got.ext["nextBeginOffset"]) <= most) == (20, True)
        await broker.close()

    run(body)


def test_a_held_pull_wakes_for_a_match_only(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 0, 10)
        held = asyncio.ensure_future(
            pull(client, 0, **SOME, sysFlag=6, suspendTimeoutMillis=20_000)
        )
        await until(lambda: len(broker.messaging.pulls.held) == 1)
        await fill(client, broker, 100, 110)
        await until(
            lambda: all(
                p.offset == 20 for w in broker.messaging.pulls.held.by_queue.values() for p in w
            )
        )
        assert not held.done()
        await fill(client, broker, 12, 14)
        got = await held
        assert (numbers(got), got.ext["nextBeginOffset"]) == ([13], "22")
        idle = await pull(client, 22, **SOME, sysFlag=6, suspendTimeoutMillis=100)
        assert (idle.code, idle.ext["nextBeginOffset"]) == (19, "22")
        await broker.close()

    run(body)


def test_ranges_are_read_with_a_condition(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 0, 100)
        read = {"topic": "orders", "queueId": 0, "offset": 0, "end": 16, **SOME}
        got = await ask(client, RequestCode.READ_QUEUE, read)
        assert numbers(got) == [11, 13, 15]
        assert (got.ext["nextBeginOffset"], got.ext["maxOffset"]) == ("16", "100")
        wrong = await ask(client, RequestCode.READ_QUEUE, {**read, "subscription": "n > 'x'"})
        assert (wrong.code, "character 5" in wrong.remark) == (23, True)
        await broker.close()

    run(body)


def test_a_group_filters_as_its_heartbeat_says(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 0, 100)

        async def get(version: int):
            return await pull(client, 0, sysFlag=0, subVersion=version, subscription="")

        assert (await get(1)).code == 24
        await beat(client, "n > > 5", 1)
        refused = await get(1)
        assert (refused.code, "n > > 5" in refused.remark) == (27, True)
        await beat(client, "n BETWEEN 5 AND 7", 2)
        got = await get(2)
        assert (numbers(got), got.ext["nextBeginOffset"]) == ([5, 6, 7], "100")
        assert (await get(3)).code == 25
        await beat(client, "n >", 3)  # the older one stays
        assert ((await get(3)).code, numbers(await get(2))) == (28, [5, 6, 7])
        await beat(client, "A", 4, "TAG")
        assert numbers(await get(4))[:3] == [1, 3, 5]
        await beat(client, "||", 5, "TAG")
        assert (await get(5)).code == 24
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("kind", "before", "after", "found"),
    [
        (SQL, "n < 3", "n >= 103", [103]),
        ("TAG", "C", "A", [101, 103]),
        ("TAG", "C", "*", [100, 101, 102, 103]),
    ],
)
@pytest.mark.parametrize("wakes", [True, False])
def test_a_held_pull_reads_by_the_subscription_that_a_heartbeat_has_changed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    before: str,
    after: str,
    found: list[int],
    wakes: bool,
) -> None:
    monkeypatch.setattr(pull_handler, "PROGRESS_S", 1.5)  # the time for the second heartbeat

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        other = await connected(runtime, broker)
        await fill(other, broker, 0, 100)
        await beat(client, before, 1, kind)
        by_group = {"sysFlag": 2, "subscription": "", "subVersion": 1}
        held = asyncio.ensure_future(pull(client, 100, **by_group, suspendTimeoutMillis=60_000))
        pulls = broker.messaging.pulls.held
        await until(lambda: len(pulls) == 1)
        if wakes:
            await beat(client, after, 2, kind)
            await fill(other, broker, 100, 104)
        else:
            await fill(other, broker, 100, 104)
            await until(lambda: any(each.offset == 104 for each in pulls.by_queue["orders", 0]))
            await beat(client, after, 2, kind)
        got = await held
        assert (got.code, numbers(got)) == (0, found)
        await broker.close()

    run(body)


def test_a_held_pull_is_refused_when_its_group_reads_the_topic_no_more(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        await fill(client, broker, 0, 10)
        await beat(client, "n < 0", 1)
        by_group = {"sysFlag": 2, "subscription": "", "subVersion": 1}
        held = asyncio.ensure_future(pull(client, 10, **by_group, suspendTimeoutMillis=60_000))
        await until(lambda: len(broker.messaging.pulls.held) == 1)
        gone = {"clientID": "C", "consumerGroup": "G"}
        assert (await ask(client, RequestCode.UNREGISTER_CLIENT, gone)).code == 0
        await fill(client, broker, 10, 11)
        refused = await held
        assert (refused.code, len(broker.messaging.pulls.held)) == (24, 0)
        assert "has not subscribed topic orders" in str(refused.remark)
        await broker.close()

    run(body)


def test_a_client_asks_first_whether_its_condition_can_be_had(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await check(client, "a > 5")).code == 0
        assert (await check(client, "A || B", "TAG")).code == 0
        for expression in ("a >", "", None, "*"):
            refused = await check(client, expression)
            assert (refused.code, "SQL92 expression" in refused.remark) == (23, True)
        unknown = await check(client, "a > 5", "XPATH")
        assert (unknown.code, "use TAG or SQL92" in unknown.remark) == (23, True)
        await broker.close()

    run(body)


def test_a_broker_may_be_told_to_look_at_no_conditions(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, enable_property_filter=False))
        client = await connected(runtime, broker)
        await fill(client, broker, 0, 10)
        await beat(client, "n > 5", 1)
        read = {"topic": "orders", "queueId": 0, "offset": 0, "end": 10, **SOME}
        for refused in (
            await check(client, "n > 5"),
            await pull(client, 0, **SOME),
            await pull(client, 0, sysFlag=0, subVersion=1),
            await ask(client, RequestCode.READ_QUEUE, read),
        ):
            assert refused.code == 1
            text = "The broker does not support consumer to filter message by SQL92"
            assert refused.remark == text
        assert numbers(await pull(client, 0, subscription="A")) == [1, 3, 5, 7, 9]
        await broker.close()

    run(body)


# -- the store's part ------------------------------------------------------------------------------


def frame(physical: int, properties: bytes, body: bytes = b"b", **more) -> bytes:
    return plain_frame(physical_offset=physical, body=body, properties=properties, **more)


@given(st.binary(max_size=40), st.booleans(), st.booleans(), st.integers(1, 300), st.booleans())
def test_properties_are_found_as_in_a_decoded_frame(
    body: bytes, born_v6: bool, store_v6: bool, topic: int, crc: bool
) -> None:
    whole = frame(
        7,
        b"n\x015\x02",
        body,
        sys_flag=(16 if born_v6 else 0) | (32 if store_v6 else 0),
        born_host=bytes(20 if born_v6 else 8),
        store_host=bytes(20 if store_v6 else 8),
        topic=b"t" * topic,
        crc_property=crc,
    )
    decoded = decode_frame(whole)
    assert isinstance(decoded, Frame)
    assert frame_properties(whole) == decoded.raw_properties
    assert decode_properties(frame_properties(memoryview(whole)) or b"")["n"] == "5"


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_no_properties_are_found_in_what_is_no_frame(data: bytes, at: int, value: int) -> None:
    whole = bytearray(frame(7, b"n\x015\x02"))
    whole[at % len(whole)] = value
    frame_properties(bytes(whole[: at + 4] if value % 2 else whole))
    frame_properties(data)


def test_sifting_marks_what_matches_and_ends_where_it_should() -> None:
    log = b"".join(frame(0, b"n\x01%d\x02" % n) for n in range(10))
    size = len(log) // 10
    entries = FILLER + b"".join(ENTRY.pack(n * size, size, 99) for n in range(10))

    def codes(sql: str = "n > 6", visible: int = 1 << 40, cached: int = 0, **more) -> list[int]:
        most, room = more.get("most", 100), more.get("room", 1 << 30)
        read = more.get("read", lambda at, length: memoryview(log)[at : at + length])
        found = sift(memoryview(entries), Sql(sql), read, visible, cached, most, room)
        return [code for _, _, code in ENTRY.iter_unpack(found)]

    assert codes() == [0] * 8 + [1] * 3
    assert codes(visible=3 * size) == [0] * 4
    assert codes("n < 6", most=2) == [0, 1, 1]
    assert codes("n > 1", room=size) == [0, 0, 0, 1]
    # A frame that is gone or damaged passes: it is not lost in silence.
    assert codes(read=lambda at, length: None) == [0] + [1] * 10
    assert codes(read=lambda at, length: memoryview(bytes(length))) == [0] + [1] * 10
    # Work is bounded; on the disk, and of long properties and conditions, there is less of it.
    entries *= 2000
    warm, cold = len(codes("n > 99")), len(codes("n > 99", cached=1 << 40))
    long = len(codes("n > 99" + " OR n > 99" * 1000))
    expected = WORK_MAX // COSTS.of(Sql("n > 99"), 0)
    assert expected // 2 < warm < expected * 3 // 2
    assert 25 < cold < 100
    assert 2 <= long < 80


def test_a_subscription_by_condition_goes_through_a_heartbeat() -> None:
    some = Subscription.parse("T", Sql("a > 1"), 7)
    assert some == Subscription.parse("T", "a > 1", 7, SQL)
    assert (some.expression, some.expression_type, some.is_all) == ("a > 1", SQL, False)
    assert some.filter_codes is None
    data = some.to_json()
    assert (data["subString"], data["expressionType"], data["tagsSet"]) == ("a > 1", SQL, [])
    assert Subscription.from_json(data) == some

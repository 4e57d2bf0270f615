"""Rows 1.25 to 1.46: queues, index and reading. See `rows.tsv`."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest
from rig import (
    SEGMENT,
    SMALL,
    Clock,
    bodies,
    dispatch,
    entries_of,
    files_of,
    flush,
    found_by_key,
    frames,
    indexes_of,
    java_hash,
    message,
    open_store,
    raw_frame,
)
from saturnmq.broker.config import BrokerConfig
from saturnmq.protocol.ids import decode_message_id, encode_host, offset_message_id
from saturnmq.store.config import StoreConfig
from saturnmq.store.derived.consumequeue import ConsumeQueue
from saturnmq.store.derived.index_items import insert_items, insert_items_reference
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.log.segments import Segment, SegmentSeries
from saturnmq.store.message_store import GetStatus, MessageStore
from world_rig import NOW, World, new_disk, run

INCOMING = struct.Struct(">iqq")  # hash, offset, store time


def test_row_1_25_queue_files_have_6_000_000_bytes_and_such_names() -> None:
    disk = new_disk()
    queues = QueueTable(disk, "/queues", StoreConfig().consumequeue_segment_bytes)
    entry = struct.pack(">qiq", 0, 100, 0)
    queue = queues.get_or_create("T", 0)
    queue.append(0, entry * 300_000)
    queue.append(300_000, entry * 300_001)
    sizes = {name: len(data) for name, data in files_of(disk, "/queues/T/0").items()}
    assert sizes == {
        "00000000000000000000": 6_000_000,
        "00000000000006000000": 6_000_000,
        "00000000000012000000": 6_000_000,
    }


def ends_at(disk, whole: bytes) -> int:
    """How many entries a reader of a queue's only file takes for it."""
    series = ConsumeQueue(disk, "/store/consumequeue/T/0", len(whole), "T", 0)
    series.series.load()
    series.recover(1 << 40, lambda *_: True)
    return series.max_offset


@pytest.mark.parametrize("crash", [False, True])
def test_row_1_26_reading_a_queue_file_ends_at_size_0(crash: bool) -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(9):
        store.put(message(b"%d" % number))
    store.close()
    path = f"/store/consumequeue/T/0/{0:020d}"
    whole = disk.read_file(path)
    assert not any(whole[9 * 20 :])
    # The queue ends at the empty slot; that there is more behind it shows that it was damaged.
    disk.write_file(path, whole[: 5 * 20] + bytes(len(whole) - 5 * 20))
    assert ends_at(disk, whole) == 5
    data = whole[: 5 * 20] + bytes(20) + whole[6 * 20 :]
    disk.write_file(path, data)
    if crash:
        disk.write_file("/store/abort", b"")
    found = bodies(open_store(disk))
    assert found == [b"%d" % number for number in range(9)]


def sample_of_the_article(disk) -> None:
    """Messages of 201 bytes with TagA, sent round robin from queue 3 on."""
    store = open_store(disk)
    for number in range(12):
        body = bytes(201 - 91 - len("TopicTest") - len("TAGS|TagA|"))
        put = store.put(message(body, "TopicTest", (number + 3) % 4, tag="TagA"))
        assert put.sizes == (201,)
    dispatch(store)


def test_row_1_27_the_articles_sample_of_a_queue() -> None:
    disk = new_disk()
    sample_of_the_article(disk)
    assert entries_of(disk, "TopicTest", 0) == [
        (201, 201, 2598919),
        (1005, 201, 2598919),
        (1809, 201, 2598919),
    ]


def test_row_1_28_the_articles_sample_of_first_offsets() -> None:
    disk = new_disk()
    sample_of_the_article(disk)
    firsts = [entries_of(disk, "TopicTest", queue)[0][0] for queue in range(4)]
    assert firsts == [201, 402, 603, 0]


def test_row_1_29_a_segment_is_found_by_its_place() -> None:
    disk = new_disk()
    disk.make_dirs("/log")
    for start in (3, 4, 5):
        disk.create_segment(f"/log/{start * 100:020d}", 100)
    series = SegmentSeries(disk, "/log", 100)
    series.load()
    places = {offset: series.find(offset) for offset in (0, 299, 300, 399, 400, 599, 600)}
    found = {offset: segment and segment.start for offset, segment in places.items()}
    assert found == {0: None, 299: None, 300: 300, 399: 300, 400: 400, 599: 500, 600: None}
    assert series.start == 300, "where one begins who asks for the first"


class Gibibyte:
    """A file that is only its size."""

    path, size, view = "", 1 << 30, memoryview(b"")


def test_row_1_30_an_offset_of_the_second_file() -> None:
    series = SegmentSeries(new_disk(), "/log", 1 << 30)
    for number in range(3):
        series.add(Segment(number << 30, Gibibyte()))  # type: ignore[arg-type]
    segment = series.find(1073742827)
    assert segment is not None
    assert (segment.start, 1073742827 - segment.start) == (1073741824, 1003)


def test_row_1_31_a_read_is_valid_up_to_the_read_position_and_ends_there() -> None:
    store = open_store()
    put = store.put(message(b"abc"))
    end = put.end_offset
    lengths = {}
    for offset in (-1, 0, end - 1, end, end + 1, SEGMENT):
        view = store.read_log(offset, SEGMENT)
        lengths[offset] = None if view is None else len(view)
    assert lengths == {-1: None, 0: end, end - 1: 1, end: None, end + 1: None, SEGMENT: None}
    store.put(message(bytes(8090)))
    view = store.read_log(end - 1, 1 << 20)
    assert view is not None
    assert len(view) == SEGMENT - (end - 1), "not beyond its segment"


@pytest.mark.parametrize(
    ("ip", "port", "offset", "text"),
    [
        ("127.0.0.1", 20911, 828, "7F000001000051AF000000000000033C"),
        ("10.1.2.255", 10911, 0, "0A0102FF00002A9F0000000000000000"),
        (
            "fe80::1",
            10911,
            1 << 40,
            "FE800000000000000000000000000001" + "00002A9F" + "0000010000000000",
        ),
    ],
)
def test_row_1_32_a_message_id_is_address_port_and_offset(
    ip: str, port: int, offset: int, text: str
) -> None:
    host = encode_host(ip, port)
    assert offset_message_id(host[:-4], port, offset) == text
    assert decode_message_id(text) == (ip, port, offset)
    assert len(text) == (32 if "." in ip else 56)


def test_row_1_33_a_put_returns_before_its_entry_which_follows_soon() -> None:
    store = open_store()
    store.put(message())
    assert store.max_offset("T", 0) == 0
    dispatch(store)
    assert store.max_offset("T", 0) == 1

    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await client.send(b"x")
        sent = world.loop.time()
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        assert world.loop.time() - sent < 0.010
        await broker.close()

    run(body)


def test_row_1_34_an_index_file_is_named_by_its_creation() -> None:
    disk, clock = new_disk(), Clock(NOW + 7)
    store = open_store(disk, clock)
    store.put(message(keys="k"))
    dispatch(store)
    [index] = indexes_of(disk)
    local = time.strftime("%Y%m%d%H%M%S", time.localtime(NOW // 1000))
    assert index.name == f"{local}007"
    assert len(index.name) == 17
    default = StoreConfig()
    size = 40 + 4 * default.index_slots + 20 * default.index_items
    assert size == 420_000_040
    small = len(next(iter(files_of(disk, "/store/index").values())))
    assert small == 40 + 4 * SMALL.index_slots + 20 * SMALL.index_items


def test_row_1_35_five_million_slots_and_twenty_million_items() -> None:
    config = StoreConfig()
    assert (config.index_slots, config.index_items) == (5_000_000, 20_000_000)
    text = BrokerConfig.load("maxHashSlotNum=7\nmaxIndexNum=30").store_config()
    assert (text.index_slots, text.index_items) == (7, 30)


def test_row_1_36_the_header_counts_occupied_slots_and_items_plus_one() -> None:
    disk = new_disk()
    store = open_store(disk, index_slots=4, index_items=100)
    slots = set()
    for number in range(9):
        store.put(message(keys=f"k{number}"))
        dispatch(store)
        slots.add(abs(java_hash(f"T#k{number}")) % 4)
        assert indexes_of(disk, 4)[0].header[4:] == (len(slots), number + 2)
    assert len(slots) == 4


def test_row_1_37_places_of_slots_and_items() -> None:
    disk = new_disk()
    store = open_store(disk)
    puts = [store.put(message(keys=f"k{number}")) for number in range(5)]
    dispatch(store)
    [data] = files_of(disk, "/store/index").values()
    for number, put in enumerate(puts):
        key_hash = abs(java_hash(f"T#k{number}"))
        slot = struct.unpack_from(">i", data, 40 + 4 * (key_hash % 50))[0]
        assert slot >= number + 1
        item = struct.unpack_from(">iq", data, 40 + 50 * 4 + 20 * (number + 1))
        assert item == (key_hash, put.physical_offset)


def test_row_1_38_message_key_and_unique_key_are_indexed_separately() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one", keys="order", unique="C0A80001"))
    dispatch(store)
    assert indexes_of(disk)[0].header[5] == 3
    assert found_by_key(store, "order") == found_by_key(store, "C0A80001") == [b"one"]


def test_row_1_39_a_lookup_returns_32_by_default_and_64_at_most() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number in range(70):
            await client.send(b"%d" % number, KEYS="k", UNIQ_KEY="U")
        await world.until(lambda: broker.store.max_offset("T", 0) == 70)
        query = {"topic": "T", "beginTimestamp": 0, "endTimestamp": 1 << 60}

        async def found(**more: object) -> list[bytes]:
            got = await client.ask(12, {**query, **more})
            return [frame.body for frame in frames(bytes(got.body))]

        newest = [b"%d" % number for number in range(70)]
        assert await found(key="k") == newest[-32:]
        assert await found(key="k", maxNum=5) == newest[-5:]
        assert await found(key="k", maxNum=1000) == newest[-64:]
        unique = {"key": "U", "maxNum": 5, "_UNIQUE_KEY_QUERY": "true"}
        assert await found(**unique) == newest[-32:]
        await broker.close()

    run(body)


def inserted(
    insert, view: bytearray, header: list[int], *items: tuple[int, int, int], slots=5, limit=9
) -> int:
    data = b"".join(INCOMING.pack(*item) for item in items)
    return insert(memoryview(view), slots, limit, header, memoryview(data))


def items_in(view: bytearray, count: int, slots: int = 5) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack(">iqii", view[40 + 4 * slots :]))[:count]


both_inserts = pytest.mark.parametrize("insert", [insert_items, insert_items_reference])


@both_inserts
def test_row_1_40_seconds_are_clamped(insert) -> None:
    view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
    begin = 1000
    assert inserted(insert, view, header, (1, 0, begin)) == 1  # begin was 0: no difference
    times = (begin - 500, begin + 1999, begin + 1000 * (1 << 33))
    assert inserted(insert, view, header, *((1, n, t) for n, t in enumerate(times, 1))) == 3
    assert [item[2] for item in items_in(view, 5)[1:]] == [0, 0, 1, (1 << 31) - 1]


@both_inserts
@pytest.mark.parametrize("stale", [-1, 3, 1 << 30])
def test_row_1_41_a_slot_value_out_of_range_counts_as_empty(insert, stale: int) -> None:
    view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
    struct.pack_into(">i", view, 40 + 4 * 2, stale)
    assert inserted(insert, view, header, (7, 0, 1000), (7, 10, 1000)) == 2
    assert [item[3] for item in items_in(view, 3)[1:]] == [0, 1]
    assert header[4] == 1


@both_inserts
def test_row_1_42_the_first_item_sets_the_begin_and_only_empty_slots_count(insert) -> None:
    view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
    inserted(insert, view, header, (3, 111, 5000))
    assert header == [5000, 5000, 111, 111, 1, 2]
    inserted(insert, view, header, (8, 222, 6000), (4, 333, 7000))  # 8 shares the slot of 3
    assert header == [5000, 7000, 111, 333, 2, 4]


def test_row_1_43_a_full_file_takes_no_more_and_the_next_one_does() -> None:
    for insert in (insert_items, insert_items_reference):
        view, header = bytearray(40 + 4 * 5 + 20 * 9), [0, 0, 0, 0, 0, 1]
        assert inserted(insert, view, header, *((n, n, 1000) for n in range(20))) == 8
        assert header[5] == 9
        assert inserted(insert, view, header, (1, 99, 1000)) == 0
    disk = new_disk()
    store = open_store(disk, index_items=9)
    for number in range(10):
        store.put(message(b"%d" % number, keys=f"k{number}"))
    dispatch(store)
    assert [index.header[5] for index in indexes_of(disk)] == [9, 3]
    assert found_by_key(store, "k8") == [b"8"]


@pytest.mark.parametrize("asked", [15, 20, 30])
def test_row_1_44_an_empty_pull_is_held_and_answered_at_once_on_arrival(asked: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        sender = await world.connect(broker.address)
        await sender.send(b"first")
        await world.until(lambda: broker.store.max_offset("T", 0) == 1)
        began = world.loop.time()
        held = {"sysFlag": 6, "suspendTimeoutMillis": asked * 1000}
        idle = await client.pull(1, **held)
        assert (idle.code, idle.ext["nextBeginOffset"]) == (19, "1")
        assert asked <= world.loop.time() - began < asked + 5.5
        waiting = asyncio.ensure_future(client.pull(1, **held))
        await asyncio.sleep(asked / 2)
        assert not waiting.done()
        await sender.send(b"second")
        sent = world.loop.time()
        got = await waiting
        assert world.loop.time() - sent < 0.050
        assert [frame.body for frame in frames(bytes(got.body))] == [b"second"]
        await broker.close()

    run(body)


@pytest.mark.parametrize("seed", range(5))
def test_row_1_45_what_a_sync_flush_acknowledged_survives_a_loss_of_power(seed: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker(flush_disk_type="SYNC_FLUSH")
        client = await world.connect(broker.address)
        acknowledged: list[bytes] = []

        async def send(number: int) -> None:
            body = b"%d" % number
            if (await client.send(body, queue=number % 2)).code == 0:
                acknowledged.append(body)

        sends = [asyncio.ensure_future(send(number)) for number in range(200)]
        await world.until(lambda: len(acknowledged) > 20 + 30 * seed)
        [machine] = [node for node in world.nodes if node.name.startswith("broker")]
        machine.power_off()
        world.disk.power_off()
        for waiting in sends:
            waiting.cancel()
        known = set(acknowledged)
        world.disk.power_on()
        store = MessageStore.open(broker.config.store_config(), world.disk, Clock())
        found = set(bodies(store, "T", 0)) | set(bodies(store, "T", 1))
        assert known <= found
        assert len(known) > 20

    run(body, seed)


def test_row_1_46_a_query_goes_from_the_index_to_the_offset_to_the_body() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(20):
        store.put(message(b"body %d" % number, keys=f"k{number}"))
    dispatch(store)
    [index] = indexes_of(disk)
    key_hash = abs(java_hash("T#k13"))
    number = index.slots[key_hash % 50]
    while index.items[number][0] != key_hash:
        number = index.items[number][3]
    at = index.items[number][1]
    data = store.message_at(at)
    assert data is not None
    assert raw_frame(data).body == b"body 13"
    assert store.query_by_key("T", "k13", 64, 0, 1 << 60) == [data]
    assert store.message_at(at + 1) is None
    result = store.get_message("T", 0, 13, 1)
    assert (result.status, result.data) == (GetStatus.FOUND, data)
    flush(store)

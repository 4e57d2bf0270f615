"""Rows 0.26 to 0.40: IndexFile. See `rows.tsv` for what each row says."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from rig import (
    SMALL,
    Clock,
    aged,
    bodies,
    clean,
    dispatch,
    files_of,
    found_by_key,
    frames,
    indexes_of,
    java_hash,
    message,
    open_store,
    raw_frame,
    segment_names,
    text_of_hash,
)
from saturnmq.store.message_store import MessageStore
from world_rig import NOW, World, new_disk, run

I32_MIN = -(1 << 31)


def test_row_0_26_the_index_header_has_six_fields_in_40_bytes() -> None:
    disk, clock = new_disk(), Clock()
    store = open_store(disk, clock)
    first = store.put(message(keys="a"))
    clock.now += 5000
    last = store.put(message(keys="b c"))
    dispatch(store)
    [data] = files_of(disk, "/store/index").values()
    assert data[0:8] == NOW.to_bytes(8, "big")
    assert data[8:16] == (NOW + 5000).to_bytes(8, "big")
    assert data[16:24] == first.physical_offset.to_bytes(8, "big")
    assert data[24:32] == last.physical_offset.to_bytes(8, "big")
    assert data[32:36] == (3).to_bytes(4, "big")
    assert data[36:40] == (4).to_bytes(4, "big")


def test_row_0_27_the_slot_table_has_the_configured_size_and_the_newest_item() -> None:
    disk = new_disk()
    store = open_store(disk, index_slots=7, index_items=100)
    for number in range(30):
        store.put(message(keys=f"k{number}"))
    dispatch(store)
    [data] = files_of(disk, "/store/index").values()
    assert len(data) == 40 + 7 * 4 + 100 * 20
    newest = [0] * 7
    for number in range(30):
        newest[abs(java_hash(f"T#k{number}")) % 7] = number + 1
    assert list(struct.unpack_from(">7i", data, 40)) == newest


def test_row_0_28_an_item_is_20_bytes() -> None:
    disk, clock = new_disk(), Clock()
    store = open_store(disk, clock)
    store.put(message(keys="k"))
    clock.now += 61_000
    put = store.put(message(keys="k"))
    dispatch(store)
    [data] = files_of(disk, "/store/index").values()
    at = 40 + 4 * SMALL.index_slots + 20 * 2
    key_hash = abs(java_hash("T#k"))
    assert data[at : at + 4] == key_hash.to_bytes(4, "big")
    assert data[at + 4 : at + 12] == put.physical_offset.to_bytes(8, "big")
    assert data[at + 12 : at + 16] == (61).to_bytes(4, "big")
    assert data[at + 16 : at + 20] == (1).to_bytes(4, "big")


@pytest.mark.parametrize("wanted", [I32_MIN, I32_MIN + 1, -1, 0, 1, (1 << 31) - 1])
def test_row_0_29_a_slot_is_the_absolute_hash_modulo_slots(wanted: int) -> None:
    key = text_of_hash("T#", wanted)[2:]
    assert java_hash(f"T#{key}") == wanted
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"found", keys=key))
    dispatch(store)
    [index] = indexes_of(disk)
    key_hash = 0 if wanted == I32_MIN else abs(wanted)
    assert index.items[1][0] == key_hash
    assert index.slots[key_hash % SMALL.index_slots] == 1
    assert found_by_key(store, key) == [b"found"]


@pytest.mark.parametrize(
    ("late", "seconds"), [(0, 0), (999, 0), (1000, 1), (1999, 1), (3 << 40, (1 << 31) - 1)]
)
def test_row_0_30_an_items_time_is_whole_seconds_since_begin(late: int, seconds: int) -> None:
    disk, clock = new_disk(), Clock()
    store = open_store(disk, clock)
    store.put(message(keys="a"))
    clock.now += late
    store.put(message(keys="b"))
    dispatch(store)
    assert indexes_of(disk)[0].items[2][2] == seconds


def test_row_0_31_a_slot_leads_to_its_newest_item_and_each_to_the_one_before() -> None:
    disk = new_disk()
    store = open_store(disk, index_slots=1)
    for number in range(6):
        store.put(message(b"%d" % number, keys=f"k{number % 2}"))
    dispatch(store)
    [index] = indexes_of(disk, 1)
    assert index.slots == [6]
    assert [item[3] for item in index.items[1:]] == [0, 1, 2, 3, 4, 5]
    assert found_by_key(store, "k1") == [b"1", b"3", b"5"]


def test_row_0_32_settings_bound_an_index_file() -> None:
    disk = new_disk()
    store = open_store(disk, index_slots=9, index_items=11)
    for number in range(25):
        store.put(message(b"%d" % number, keys=f"k{number}"))
    dispatch(store)
    found = indexes_of(disk, 9)
    assert [len(index.items) - 1 for index in found] == [10, 10, 5]
    sizes = {len(data) for data in files_of(disk, "/store/index").values()}
    assert sizes == {40 + 9 * 4 + 11 * 20}
    assert [found_by_key(store, f"k{n}") for n in range(25)] == [[b"%d" % n] for n in range(25)]


def test_row_0_33_keys_are_parted_by_blanks_and_the_header_follows() -> None:
    disk, clock = new_disk(), Clock()
    store = open_store(disk, clock)
    store.put(message(keys=" a  bc "))
    dispatch(store)
    assert indexes_of(disk)[0].header[5] == 3
    clock.now += 1
    put = store.put(message(keys="d"))
    dispatch(store)
    header = indexes_of(disk)[0].header
    assert (header[1], header[3], header[5]) == (NOW + 1, put.physical_offset, 4)


def test_row_0_34_a_query_ends_at_an_earlier_item_and_at_max_num() -> None:
    disk, clock = new_disk(), Clock()
    store = open_store(disk, clock)
    for number in range(4):
        clock.now = NOW + 10_000 * number
        store.put(message(b"%d" % number, keys="k"))
    dispatch(store)
    assert found_by_key(store, "k", most=2) == [b"2", b"3"], "the newest count"
    store.close()
    # Item 3 claims to be early: what lies behind it in the chain is not looked at.
    [(name, data)] = files_of(disk, "/store/index").items()
    changed = bytearray(data)
    struct.pack_into(">i", changed, 40 + 4 * SMALL.index_slots + 20 * 3 + 12, 1)
    disk.write_file(f"/store/index/{name}", bytes(changed))
    store = open_store(disk, clock)
    found = store.query_by_key("T", "k", 64, NOW + 5000, NOW + 60_000)
    assert [next(frames(data)).body for data in found] == [b"3"]


def test_row_0_35_no_hit_by_hash_alone() -> None:
    store = open_store()
    assert java_hash("T#Aa") == java_hash("T#BB")
    for key in ("Aa", "BB", "Aa"):
        store.put(message(key.encode(), keys=key))
    dispatch(store)
    assert found_by_key(store, "Aa") == [b"Aa", b"Aa"]
    assert found_by_key(store, "BB") == [b"BB"]
    assert found_by_key(store, "BB", most=1) == [b"BB"], "who collides takes no place"
    assert found_by_key(store, "Aa", topic="U") == []


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [(2000, 2000, True), (0, 1999, False), (2001, 9000, False), (2000, 9000, True)],
)
def test_row_0_36_a_message_counts_with_its_second(begin: int, end: int, found: bool) -> None:
    clock = Clock()
    store = open_store(clock=clock)
    store.put(message(keys="first"))
    clock.now += 2700  # in the index: 2 s
    store.put(message(keys="k"))
    clock.now += 60_000
    store.put(message(keys="last"))
    dispatch(store)
    assert len(store.query_by_key("T", "k", 64, NOW + begin, NOW + end)) == found


def test_row_0_37_no_query_returns_what_lies_below_the_log() -> None:
    found = aged(6, 4)  # one index file: it stays, with items of messages that are gone
    store, disk = found.store, found.disk
    assert len(indexes_of(disk)) == 2
    assert found_by_key(store, "k0")
    assert clean(store) == segment_names(0, 5)
    assert any(item[1] < store.watermarks.start for item in indexes_of(disk)[0].items[1:])
    gone, kept = 0, 0
    for number in range(store.max_offset("T", 0)):
        hits = found_by_key(store, f"k{number}")
        gone += not hits
        kept += len(hits)
        assert bool(hits) == (number >= store.min_offset("T", 0))
    assert gone
    assert kept


def test_row_0_38_two_keys_of_one_message_both_find_it() -> None:
    store = open_store()
    store.put(message(b"body", keys="order_123 trace_abc"))
    dispatch(store)
    assert found_by_key(store, "order_123") == found_by_key(store, "trace_abc") == [b"body"]
    assert found_by_key(store, "order_123 trace_abc") == []
    assert found_by_key(store, "order") == []


def test_row_0_39_a_query_names_topic_key_most_begin_and_end() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        times = []
        for number in range(4):
            await client.send(b"%d" % number, "TU"[number % 2], KEYS=f"k{number // 2 % 2}")
            times.append(broker.store.watermarks.appended)
            await world.until(lambda n=number: broker.store.watermarks.dispatched == times[n])
        low, high = NOW - 1000, NOW + 60_000
        query = {"topic": "T", "key": "k1", "maxNum": 9, "beginTimestamp": low}

        async def ask(**changes: object) -> list[bytes]:
            got = await client.ask(12, {**query, "endTimestamp": high, **changes})
            assert got.code == (0 if got.body else 22)
            last = int(got.ext["indexLastUpdatePhyoffset"])
            assert raw_frame(broker.store.message_at(last) or b"").body == b"3"
            assert NOW <= int(got.ext["indexLastUpdateTimestamp"]) <= NOW + 60_000
            return [frame.body for frame in frames(bytes(got.body))]

        assert await ask() == [b"2"]
        assert await ask(topic="U") == [b"3"]
        assert await ask(key="k0") == [b"0"]
        assert await ask(maxNum=0) == []
        assert await ask(endTimestamp=low + 1) == []
        assert await ask(beginTimestamp=high - 1) == []
        await broker.close()

    run(body)


def test_row_0_40_pulls_need_no_index() -> None:
    disk = new_disk()
    store = open_store(disk, index_enable=False)
    for number in range(9):
        store.put(message(b"%d" % number, keys="k"))
    dispatch(store)
    assert disk.list("/store/index") == []
    assert len(bodies(store)) == 9
    assert store.query_by_key("T", "k", 9, 0, 1 << 60) == []
    store.close()
    store = open_store(disk)
    store.put(message(b"9", keys="k"))
    store.close()
    disk.remove_tree("/store/index")
    store = MessageStore.open(replace(SMALL), disk, Clock())
    assert bodies(store) == [b"%d" % number for number in range(10)]

"""Rows 0.01 to 0.25: three files and mmap. See `rows.tsv` for what each row says."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from rig import (
    HOUR,
    SEGMENT,
    SMALL,
    aged,
    at_hour,
    bodies,
    build_frame,
    clean,
    dispatch,
    entries_of,
    files_of,
    flush,
    found_by_key,
    frames,
    indexes_of,
    java_hash,
    log_bytes,
    log_frames,
    message,
    open_store,
    settle,
)
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.protocol.jhash import tags_code
from saturnmq.store.config import StoreConfig
from saturnmq.store.derived.lookup import Lookup
from saturnmq.store.derived.queues import QueueTable
from saturnmq.store.disk import Disk, NativeDisk
from saturnmq.store.message_store import GetStatus, MessageStore
from world_rig import World, new_disk, run, saved_json


def test_row_0_01_one_log_takes_all_topics_in_the_order_of_the_puts() -> None:
    disk = new_disk()
    store = open_store(disk)
    sent = [(f"T{n % 3}", n % 4, b"%d" % n) for n in range(24)]
    puts = [store.put(message(body, topic, queue)) for topic, queue, body in sent]
    stored = log_frames(disk)
    assert [(f.topic, f.queue, f.body) for f in stored] == sent
    assert [f.physical for f in stored] == [p.physical_offset for p in puts]
    assert [f.at for f in stored] == [f.physical for f in stored]
    assert all(a.at + a.size == b.at for a, b in pairwise(stored))


def test_row_0_02_segments_are_1_gib_and_allocated_before_they_are_mapped(tmp_path: Path) -> None:
    assert StoreConfig().commitlog_segment_bytes == 1_073_741_824
    store = open_store(NativeDisk(), root=str(tmp_path), commitlog_segment_bytes=1 << 20)
    store.put(message(b"first"))
    found = os.stat(tmp_path / "commitlog" / f"{0:020d}")
    assert found.st_size == 1 << 20
    assert found.st_blocks * 512 >= 1 << 20, "sparse: a full disk would be a SIGBUS"
    assert str(tmp_path / "commitlog") in Path("/proc/self/maps").read_text()
    store.close()


def test_row_0_03_a_stream_of_20_byte_entries_per_topic_and_queue() -> None:
    disk = new_disk()
    store = open_store(disk)
    put = {}
    for topic, queue in (("T", 0), ("T", 1), ("U", 0)):
        put[topic, queue] = [store.put(message(b"x" * n, topic, queue, tag="A")) for n in (1, 2)]
    dispatch(store)
    for (topic, queue), results in put.items():
        [data] = files_of(disk, f"/store/consumequeue/{topic}/{queue}").values()
        expected = b"".join(
            r.physical_offset.to_bytes(8, "big")
            + r.sizes[0].to_bytes(4, "big")
            + (65).to_bytes(8, "big")
            for r in results
        )
        assert data[:40] == expected
        assert not any(data[40:])


def test_row_0_04_the_log_first_then_queues_then_the_index_and_only_for_appended_frames() -> None:
    disk = new_disk()
    store = open_store(disk)
    put = store.put(message(keys="k"))
    assert disk.list("/store/consumequeue") == []
    assert disk.list("/store/index") == []
    made: list[str] = []
    disk.step = lambda operation, path: made.append(path) if operation == "create_segment" else None
    dispatch(store)
    assert [path.split("/")[2] for path in made] == ["consumequeue", "index"]
    assert entries_of(disk) == [(0, put.end_offset, 0)]
    assert indexes_of(disk)[0].header[3] == 0 < store.watermarks.appended == put.end_offset


def test_row_0_05_keys_and_the_unique_key_are_indexed_and_nothing_else() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"none", tag="A"))
    dispatch(store)
    assert indexes_of(disk) == []
    store.put(message(b"keys", keys="a b"))
    store.put(message(b"both", keys="c", unique="U"))
    dispatch(store)
    [index] = indexes_of(disk)
    hashes = [abs(java_hash(f"T#{key}")) for key in ("a", "b", "U", "c")]
    assert [item[0] for item in index.items[1:]] == hashes


@pytest.mark.parametrize("seed", range(10))
def test_row_0_06_after_a_crash_queues_and_index_equal_a_full_scan(seed: int) -> None:
    disk = new_disk(seed)
    store = open_store(disk)
    for number in range(60):
        store.put(message(b"%d" % number, queue=number % 2, tag="A", keys=f"k{number}"))
        if number % 7 == seed % 7:
            dispatch(store)
        if number == 30:
            flush(store)
            store.flush_derived()
            store.checkpoint()
    flush(store)
    disk.power_off()
    disk.power_on()
    store = open_store(disk)
    stored = log_frames(disk)
    assert len(stored) == 60
    for queue in (0, 1):
        scan = [(f.physical, f.size, 65) for f in stored if f.queue == queue]
        assert entries_of(disk, queue=queue) == scan
    for number in range(60):
        assert found_by_key(store, f"k{number}") == [b"%d" % number]


def test_row_0_07_a_pull_names_topic_queue_offset_most_and_filter() -> None:
    store = open_store()
    for number in range(12):
        store.put(message(b"%d" % number, "TU"[number % 2], number % 4, tag="AB"[number // 4 % 2]))
    dispatch(store)

    def asked(topic: str, queue: int, offset: int, most: int, tag: str | None) -> list[bytes]:
        codes = frozenset([java_hash(tag)]) if tag else None
        data = store.get_message(topic, queue, offset, most, 1 << 20, codes).data
        return [frame.body for frame in frames(data)]

    assert asked("T", 0, 0, 32, None) == [b"0", b"4", b"8"]
    assert asked("T", 2, 0, 32, None) == [b"2", b"6", b"10"]
    assert asked("U", 1, 0, 32, None) == [b"1", b"5", b"9"]
    assert asked("T", 0, 1, 32, None) == [b"4", b"8"]
    assert asked("T", 0, 0, 2, None) == [b"0", b"4"]
    assert asked("T", 0, 0, 32, "B") == [b"4"]


class CountedLog:
    """A CommitLog of 10,000 bytes that counts its reads."""

    start, end = 0, 10_000

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, limit: int) -> memoryview:
        self.reads.append((offset, limit))
        return memoryview(bytes(limit))


def test_row_0_08_a_tag_that_does_not_match_costs_no_read_of_the_log() -> None:
    queues, log = QueueTable(new_disk(), "/queues", 400), CountedLog()
    entry = struct.Struct(">qiq")
    queues.get_or_create("T", 0).append(
        0, entry.pack(0, 100, 65) + entry.pack(100, 50, 66) + entry.pack(150, 70, 65)
    )
    lookup = Lookup(log, queues, None, SMALL.read_limits(8 << 30))  # type: ignore[arg-type]

    def get(*codes: int) -> GetStatus:
        args = ("T", 0, 0, 32, 1 << 20, frozenset(codes), 10_000)
        return lookup.get_message(*args, override_limits=False, correct=True).status

    assert get(67) is GetStatus.NO_MATCHED_MESSAGE
    assert log.reads == []
    assert get(66) is GetStatus.FOUND
    assert log.reads == [(100, 50)]


@pytest.mark.parametrize(
    ("offset", "code", "following"),
    [(0, 0, 3), (3, 19, 3), (9, 21, 3), (-1, 21, 0)],
)
def test_row_0_09_every_reply_has_min_max_and_next(offset: int, code: int, following: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number in range(3):
            assert (await client.send(b"%d" % number)).code == 0
        await world.until(lambda: broker.store.max_offset("T", 0) == 3)
        got = await client.pull(offset)
        names = ("minOffset", "maxOffset", "nextBeginOffset")
        assert (got.code, *(got.ext[name] for name in names)) == (code, "0", "3", str(following))
        await broker.close()

    run(body)


def test_row_0_10_min_offset_is_the_smallest_that_is_kept() -> None:
    disk = new_disk()
    store = open_store(disk)
    # A log whose older part is gone begins in the middle of a queue.
    store.append_raw(SEGMENT, build_frame(b"seventh", queue_offset=7, physical=SEGMENT))
    dispatch(store)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (7, 8)
    assert store.get_message("T", 0, 6, 32).status is GetStatus.OFFSET_TOO_SMALL
    assert bodies(store) == [b"seventh"]
    assert entries_of(disk)[:7] == [(0, 2147483647, 0)] * 7, "places that were never filled"


def test_row_0_11_max_offset_is_the_next_to_be_written() -> None:
    disk = new_disk()
    store = open_store(disk)
    assert store.max_offset("T", 0) == 0
    for number in range(23):
        assert store.put(message()).queue_offset == number
    dispatch(store)
    assert store.max_offset("T", 0) == 23 == len(entries_of(disk))
    assert store.get_message("T", 0, 23, 32).status is GetStatus.OFFSET_OVERFLOW_ONE


def test_row_0_12_offsets_are_kept_per_group_in_consumer_offset_json() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number in range(9):
            await client.send(b"%d" % number)
        await client.commit(4, "G")
        await client.commit(7, "H")
        assert (await client.committed("G"), await client.committed("H")) == (4, 7)
        assert await client.committed("nobody") is None
        await broker.close()
        table = saved_json(world.disk, "consumerOffset.json")["offsetTable"]
        assert table == {"T@G": {"0": 4}, "T@H": {"0": 7}}

    run(body)


def test_row_0_13_log_offsets_are_bytes_and_queue_offsets_ordinals() -> None:
    disk = new_disk()
    store = open_store(disk)
    puts = [store.put(message(b"x" * (7 * n))) for n in range(10)]
    dispatch(store)
    [data] = files_of(disk, "/store/consumequeue/T/0").values()
    for number, put in enumerate(puts):
        assert put.queue_offset == number
        assert put.end_offset - put.physical_offset == 91 + 1 + 7 * number
        assert struct.unpack_from(">q", data, 20 * number) == (put.physical_offset,)


@pytest.mark.parametrize(("setting", "size"), [(30_000_000, 30_000_000), (399, 400), (400, 400)])
def test_row_0_14_a_queue_segment_is_a_setting(tmp_path: Path, setting: int, size: int) -> None:
    assert StoreConfig().consumequeue_segment_bytes == 6_000_000
    root = str(tmp_path)
    store = open_store(NativeDisk(), root=root, consumequeue_segment_bytes=setting)
    store.put(message())
    dispatch(store)
    assert os.stat(tmp_path / "consumequeue/T/0" / f"{0:020d}").st_size == size
    store.close()


def live_offsets(store: MessageStore, disk: Disk) -> dict[tuple[str, int], list[int]]:
    """CommitLog offsets of the entries that a queue still counts, read from its files."""
    found = {}
    for topic, queue in store.queues():
        files = files_of(disk, f"/store/consumequeue/{topic}/{queue}")
        first = int(min(files)) // 20
        entries = [entry[0] for entry in entries_of(disk, topic, queue)]
        found[topic, queue] = entries[store.min_offset(topic, queue) - first :]
    return found


def test_row_0_15_after_a_cleaning_no_entry_points_below_the_log() -> None:
    found = aged(8, 12)
    store, disk = found.store, found.disk
    for number in range(40):  # other queues, some of whose messages stay
        store.put(message(bytes(300), "U", number % 3))
    settle(store)
    assert clean(store) == [], "neither time nor disk: nothing goes"
    found.clock.now = at_hour(4) + 240 * HOUR
    assert clean(store) != []
    start = store.watermarks.start
    assert start == int(min(files_of(disk, "/store/commitlog"))) > 0
    live = live_offsets(store, disk)
    assert all(offset >= start for offsets in live.values() for offset in offsets)
    assert sorted(offset for offsets in live.values() for offset in offsets) == [
        frame.physical for frame in frames(log_bytes(disk), start)
    ]


def test_row_0_16_queue_files_follow_the_log_and_min_never_falls() -> None:
    found = aged(12, 4, delete_batch_max=2)
    store, disk = found.store, found.disk
    lows, names = [store.min_offset("T", 0)], [list(files_of(disk, "/store/consumequeue/T/0"))]
    while clean(store):
        lows.append(store.min_offset("T", 0))
        names.append(list(files_of(disk, "/store/consumequeue/T/0")))
    assert lows == sorted(set(lows))
    assert len(lows) > 4
    # 20 entries a file: those all of whose entries are below the least offset are gone.
    assert names == [[f"{n * 400:020d}" for n in range(low // 20, 5)] for low in lows]
    store.close()
    again = open_store(disk, found.clock)
    assert again.min_offset("T", 0) == lows[-1]


def test_row_0_17_index_files_go_with_the_log_and_roll_when_full() -> None:
    found = aged(12, 4, delete_batch_max=3, index_items=12)
    store, disk = found.store, found.disk
    before = indexes_of(disk)
    assert [index.header[5] for index in before[:-1]] == [12] * (len(before) - 1)
    while clean(store):
        start = store.watermarks.start
        kept = [index.name for index in before if index.header[3] >= start]
        assert [index.name for index in indexes_of(disk)] == kept
    assert 1 <= len(indexes_of(disk)) < len(before)


@pytest.mark.parametrize("tag", ["TagA", "polygenelubricants", "Ünïcödé 𝄞"])
def test_row_0_18_the_tags_code_is_an_i64_with_a_sign_extended_hash(tag: str) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(tag=tag))
    store.put(message())
    dispatch(store)
    assert entries_of(disk)[0][2] == java_hash(tag) == tags_code(tag)
    [data] = files_of(disk, "/store/consumequeue/T/0").values()
    high = {True: b"\xff\xff\xff\xff", False: bytes(4)}[java_hash(tag) < 0]
    assert data[12:16] == high
    assert entries_of(disk)[1][2] == 0, "no tag"


def consumer(world: World, nameserver: str, handle, group: str = "G", **options) -> PushConsumer:
    """A push consumer whose listener is `handle(messages) -> ConsumeResult`."""

    async def listen(messages):
        return handle(messages)

    return PushConsumer(
        group,
        [nameserver],
        runtime=world.node(f"consumer-{len(world.nodes)}"),
        listener=listen,
        from_beginning=True,
        **options,
    )


def test_row_0_19_tags_of_equal_hash_pass_the_broker_and_the_client_drops_them() -> None:
    async def body(world: World) -> None:
        assert java_hash("Aa") == java_hash("BB")
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        for tag in ("Aa", "BB", "Aa", "other"):
            assert (await client.send(tag.encode(), TAGS=tag)).code == 0
        await world.until(lambda: broker.store.max_offset("T", 0) == 4)
        got = await client.pull(0, subscription="Aa")
        assert [frame.body for frame in frames(bytes(got.body))] == [b"Aa", b"BB", b"Aa"]
        seen: list[bytes] = []

        def handle(messages) -> ConsumeResult:
            seen.extend(bytes(message.body) for message in messages)
            return ConsumeResult.SUCCESS

        pushed = consumer(world, nameserver, handle)
        pushed.subscribe("T", "Aa")
        await pushed.start()
        await world.until(lambda: broker.context.offsets.query("G", "T", 0) == 4)
        assert seen == [b"Aa", b"Aa"]
        await pushed.close()
        await broker.close()

    run(body)


def test_row_0_20_an_offset_moves_after_success_and_later_brings_the_message_again() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        assert (await client.send(b"hard")).code == 0
        seen: list[tuple[float, str, int]] = []
        committed: list[int | None] = []

        async def handle(messages) -> ConsumeResult:
            for one in messages:
                seen.append((world.loop.time(), one.topic, one.reconsume_times))
            await asyncio.sleep(12)  # twice as long as until the next commit
            committed.append(broker.context.offsets.query("G", messages[0].topic, 0))
            committed.append(broker.context.offsets.query("G", "%RETRY%G", 0))
            return ConsumeResult.RECONSUME_LATER if len(seen) == 1 else ConsumeResult.SUCCESS

        pushed = PushConsumer(
            "G",
            [nameserver],
            runtime=world.node("consumer"),
            listener=handle,
            from_beginning=True,
        )
        pushed.subscribe("T")
        await pushed.start()
        await world.until(lambda: len(committed) == 4)
        assert not any(committed[:2]), "before the listener is done there is nothing to commit"
        assert committed[2] == 1, "the first attempt is settled: its message went back"
        assert not committed[3], "the second is not"
        (first, topic, times), (second, again, more) = seen
        assert (topic, times) == ("T", 0)
        assert (again, more) == ("T", 1), "the client shows the topic it came from"
        assert 22 <= second - first < 24, "it failed after 12 s, delay level 3 is 10 s"
        retried = broker.context.offsets
        await world.until(lambda: retried.query("G", "%RETRY%G", 0) == 1)
        assert retried.query("G", "T", 0) == 1
        assert broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1
        await pushed.close()
        await broker.close()

    run(body)


def test_row_0_21_a_dead_letter_topic_is_a_topic_in_the_same_store() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        sent = await client.send(b"dead", KEYS="k")
        await client.ask(200, {}, b'{"groupName":"G"}')
        offset = int(sent.ext["msgId"][16:], 16)
        back = {"group": "G", "originTopic": "T", "offset": offset, "delayLevel": -1}
        assert (await client.ask(36, back)).code == 0
        await world.until(lambda: broker.store.max_offset("%DLQ%G", 0) == 1)
        [entry] = entries_of(world.disk, "%DLQ%G")
        stored = {f.physical: f for f in log_frames(world.disk, segment=1 << 20)}
        assert (stored[entry[0]].topic, stored[entry[0]].body) == ("%DLQ%G", b"dead")
        got = await client.pull(0, "%DLQ%G")
        assert [frame.body for frame in frames(bytes(got.body))] == [b"dead"]
        await broker.close()

    run(body)


def test_row_0_22_unseen_messages_are_counted_and_an_offset_ahead_is_led_back() -> None:
    store = open_store()
    for _ in range(3):
        last = store.put(message())
    assert store.watermarks.appended - store.watermarks.dispatched == last.end_offset
    assert store.get_message("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
    dispatch(store)
    assert store.watermarks.appended - store.watermarks.dispatched == 0
    for offset, status, following in (
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
    ):
        result = store.get_message("T", 0, offset, 32)
        assert (result.status, result.next_begin_offset) == (status, following)


def test_row_0_23_an_offset_below_min_is_led_to_min() -> None:
    store = open_store()
    store.append_raw(SEGMENT, build_frame(b"x", queue_offset=7, physical=SEGMENT))
    dispatch(store)
    result = store.get_message("T", 0, 3, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 7)
    assert result.count == 0


def test_row_0_24_tag_expressions_and_sql92_conditions_filter() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        for number, tag in enumerate("ABCA"):
            await client.send(tag.encode(), TAGS=tag, a=str(number))
        await world.until(lambda: broker.store.max_offset("T", 0) == 4)
        for expression, expected in (("*", b"ABCA"), ("A", b"AA"), ("A || C", b"ACA")):
            got = await client.pull(0, subscription=expression)
            assert b"".join(f.body for f in frames(bytes(got.body))) == expected
            assert got.ext["nextBeginOffset"] == "4"
        for condition, expected in (("a > 1", b"CA"), ("TAGS = 'A' AND NOT (a = 3)", b"A")):
            got = await client.pull(0, subscription=condition, expressionType="SQL92")
            assert b"".join(f.body for f in frames(bytes(got.body))) == expected
            assert got.ext["nextBeginOffset"] == "4"
        none = await client.pull(0, subscription="a IS NULL", expressionType="SQL92")
        assert (none.code, none.ext["nextBeginOffset"]) == (20, "4")
        await broker.close()

    run(body)


def test_row_0_25_another_process_sees_bytes_before_they_are_forced(tmp_path: Path) -> None:
    store = open_store(NativeDisk(), root=str(tmp_path), commitlog_segment_bytes=1 << 16)
    small = store.put(message(b"through the mapping"))
    large = store.put(message(bytes(8000)))  # not through the mapping: the view shows it as well
    dispatch(store)
    assert store.watermarks.flushed == 0
    path = tmp_path / "commitlog" / f"{0:020d}"
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
    seen = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, check=True
    ).stdout
    assert len(seen) == 1 << 16
    assert [f.physical for f in frames(seen, 0, 1 << 16)] == [0, small.end_offset]
    view = store.read_log(0, 1 << 16)
    assert view is not None
    assert bytes(view) == seen[: large.end_offset]
    lines = Path("/proc/self/maps").read_text().splitlines()
    lines = [line for line in lines if str(path.parent) in line]  # made without a name
    assert lines
    assert all(line.split()[1] == "rw-s" and line.split()[2] == "00000000" for line in lines)
    store.close()

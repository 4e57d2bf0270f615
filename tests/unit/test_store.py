"""The store on the simulated and the real disk: offsets, statuses, flush failures, recovery."""

from __future__ import annotations

import errno
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from saturnmq.protocol.batch import ENTRY_BYTES_MIN, encode_batch_item
from saturnmq.protocol.frame import decode_frame
from saturnmq.runtime.errors import (
    DirectoryLocked,
    MessageIllegal,
    ServiceNotAvailable,
    StoreDamaged,
)
from saturnmq.store.config import BATCH_BYTES_LEAST
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.consumequeue import (
    ENTRY,
    FILLER,
    entries_before,
    entries_before_reference,
)
from saturnmq.store.derived.index_items import INCOMING, insert_items, insert_items_reference
from saturnmq.store.derived.lookup import plan_reads, plan_reads_reference
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import GetStatus, MessageStore, PendingMessage, StoreConfig
from store_rig import CONFIG, SEGMENT, Clock, bodies, dispatch, flush, message, new_disk, open_store


def test_messages_come_back_in_order_across_segments() -> None:
    store = open_store(new_disk())
    sent = [b"%d-" % i + bytes(200) for i in range(100)]
    assert [store.put(message(b)).queue_offset for b in sent] == list(range(100))
    dispatch(store)
    assert bodies(store) == sent
    assert store.watermarks.appended > 2 * SEGMENT


def test_a_batch_never_crosses_a_segment() -> None:
    store = open_store(new_disk())
    store.put(message(bytes(6000)))
    batch = bytearray()
    for number in range(10):
        encode_batch_item(batch, b"%d" % number + bytes(200), b"TAGS\x01B\x02", 0, True)
    put = store.put_batch("T", 0, bytes(batch))
    assert (put.physical_offset, put.queue_offset, put.count) == (SEGMENT, 1, 10)
    dispatch(store)
    assert len(bodies(store)) == 11


def test_a_put_tells_where_its_message_went() -> None:
    store, now = open_store(new_disk()), Clock().now
    end = 0
    for number in range(3):
        put = store.put(message(b"x" * number))
        (size,) = put.sizes
        assert (put.physical_offset, put.end_offset) == (end, end + size)
        assert (put.queue_offset, put.count, put.store_timestamp) == (number, 1, now)
        end += size
    assert store.watermarks.appended == end


@pytest.mark.parametrize("crc_property", [True, False])
def test_properties_that_look_torn_need_the_checksum_behind_them(crc_property: bool) -> None:
    store = open_store(new_disk(), config=replace(CONFIG, crc_property=crc_property))
    torn, end = PendingMessage("T", 0, b"", b"a\x01b\0"), 0
    if crc_property:
        end = store.put(torn).end_offset
    else:
        with pytest.raises(MessageIllegal, match="zero byte"):
            store.put(torn)
    assert store.watermarks.appended == end
    assert store.put(PendingMessage("T", 0, b"", b"a\x01b\x02")).queue_offset == crc_property


@pytest.mark.parametrize("limit", [1000, BATCH_BYTES_LEAST + 5000])
def test_a_batch_may_have_4_mib_or_as_much_as_a_message_may(limit: int) -> None:
    most = max(limit, BATCH_BYTES_LEAST)
    batch = bytearray()
    while most - len(batch) >= 2 * (500 + ENTRY_BYTES_MIN):
        encode_batch_item(batch, bytes(500), b"", 0, True)
    encode_batch_item(batch, bytes(most - len(batch) - ENTRY_BYTES_MIN), b"", 0, True)
    assert len(batch) == most
    larger = replace(CONFIG, max_message_bytes=limit, commitlog_segment_bytes=16 << 20)
    store = open_store(new_disk(), config=larger)
    assert store.put_batch("T", 0, bytes(batch)).queue_offset == 0
    end = store.watermarks.appended
    batch[:] = b""
    while len(batch) <= most:
        encode_batch_item(batch, bytes(1000), b"", 0, True)
    with pytest.raises(MessageIllegal, match=f"the limit is {most}: send smaller"):
        store.put_batch("T", 0, bytes(batch))
    batch[:] = b""
    encode_batch_item(batch, b"x" * limit, b"", 0, True)
    encode_batch_item(batch, b"x" * (limit + 1), b"", 0, True)
    with pytest.raises(MessageIllegal, match=rf"limit (is|of) {min(limit, most)}"):
        store.put_batch("T", 0, bytes(batch))
    assert store.watermarks.appended == end


@pytest.mark.parametrize("store_host", [bytes(range(8)), bytes(range(20))])
@pytest.mark.parametrize("born_host", [bytes(range(1, 9)), bytes(range(1, 21))])
def test_a_batch_may_come_from_and_go_to_an_ipv6_address(
    born_host: bytes, store_host: bytes
) -> None:
    store = open_store(new_disk())
    batch = bytearray()
    for number in range(3):
        encode_batch_item(batch, b"%d" % number, b"", 0, True)
    sys_flag = 0x10 * (len(born_host) == 20) + 0x20 * (len(store_host) == 20)
    put = store.put_batch(
        "T", 0, bytes(batch), sys_flag=sys_flag, born_host=born_host, store_host=store_host
    )
    assert put.end_offset == sum(put.sizes) == store.watermarks.appended
    assert store.put(message(b"after")).queue_offset == 3
    dispatch(store)
    places = (sum(put.sizes[:number]) for number in range(3))
    frames = [decode_frame(store.read_log(place, SEGMENT) or b"") for place in places]
    assert [frame.body for frame in frames] == [b"0", b"1", b"2"]
    assert [(f.born_host, f.store_host) for f in frames] == [(born_host, store_host)] * 3


def test_a_refused_batch_leaves_nothing() -> None:
    store = open_store(new_disk())
    batch = bytearray()
    encode_batch_item(batch, b"first", b"", 0, True)
    encode_batch_item(batch, b"second", b"", 0, True)
    batch[-4] ^= 1
    end = store.watermarks.appended
    with pytest.raises(MessageIllegal):
        store.put_batch("T", 0, bytes(batch))
    assert store.watermarks.appended == end
    assert store.put(message(b"next")).queue_offset == 0
    dispatch(store)
    assert bodies(store) == [b"next"]


def test_a_batch_that_is_refused_at_the_end_of_a_segment_leaves_no_more_than_a_blank() -> None:
    disk = new_disk()
    store = open_store(disk)
    while SEGMENT - store.watermarks.appended > 900:
        store.put(message(bytes(100)))
    count = store.max_offset("T", 0)
    batch = bytearray()
    for number in range(3):
        encode_batch_item(batch, b"%d" % number + bytes(300), b"", 0)
    batch[batch.rindex(b"2" + bytes(300))] ^= 1
    with pytest.raises(MessageIllegal):
        store.put_batch("T", 0, bytes(batch))
    store.validate()
    assert store.watermarks.appended == SEGMENT
    dispatch(store)
    flush(store)
    assert store.watermarks.flushed == SEGMENT
    assert store.put(message(b"next")).physical_offset == SEGMENT
    dispatch(store)
    store.close()
    again = open_store(disk)
    assert len(bodies(again)) == again.max_offset("T", 0) > count
    assert bodies(again)[-1] == b"next"


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (0, GetStatus.FOUND, 5),
        (5, GetStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, GetStatus.OFFSET_OVERFLOW_BADLY, 5),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_statuses_and_next_offsets(offset: int, status: GetStatus, following: int) -> None:
    store = open_store(new_disk())
    for number in range(5):
        store.put(message(b"%d" % number))
    dispatch(store)
    result = store.get_message("T", 0, offset, 32)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 5)
    none = store.get_message("none", 0, 3, 32)
    assert (none.status, none.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    assert (none.min_offset, none.max_offset) == (0, 0)
    assert store.offset_by_time("none", 0, 0) == 0


def test_filter_and_visible_limit() -> None:
    store = open_store(new_disk())
    for number in range(6):
        last = store.put(message(b"%d" % number, tag="AB"[number % 2]))
    dispatch(store)
    only_b = frozenset([ord("B")])
    result = store.get_message("T", 0, 0, 32, 1 << 20, only_b)
    assert (result.count, result.next_begin_offset) == (3, 6)
    result = store.get_message("T", 0, 0, 32, 1 << 20, frozenset([7]))
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 6)
    limit = last.physical_offset
    result = store.get_message("T", 0, 0, 32, 1 << 20, None, limit)
    assert (result.count, result.next_begin_offset) == (5, 5)
    result = store.get_message("T", 0, 5, 32, 1 << 20, None, limit)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 5)


def test_a_failed_flush_is_final() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one"))
    disk.plan("flush", times=1)
    ticket = store.begin_flush()
    assert ticket is not None
    with pytest.raises(OSError, match="planned") as caught:
        ticket.run()
    store.complete_flush(ticket, caught.value)
    assert store.begin_flush() is None
    with pytest.raises(ServiceNotAvailable, match="planned"):
        store.put(message(b"two"))
    dispatch(store)
    assert bodies(store) == [b"one"]
    assert store.watermarks.flushed == 0
    store.close()
    assert disk.exists("/store/abort")


def test_clean_restart() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(60):
        store.put(message(b"%d" % number, queue=number % 3, key=f"k{number}"))
    store.close()
    again = open_store(disk)
    assert again.recovery.clean
    assert again.recovery.messages == 0
    assert bodies(again, 1) == [b"%d" % n for n in range(1, 60, 3)]
    assert len(again.query_by_key("T", "k7", 10, 0, 1 << 60)) == 1
    assert again.put(message(b"x", queue=1)).queue_offset == 20


@pytest.mark.parametrize("seed", range(40))
def test_flushed_messages_survive_power_loss(seed: int) -> None:
    disk = new_disk(seed)
    rng = random.Random(seed)
    safe: list[bytes] = []
    sent: list[bytes] = []
    for life in range(4):
        store = open_store(disk)
        found = bodies(store)
        assert found[: len(safe)] == safe
        assert found == sent[: len(found)]
        safe, sent = list(found), list(found)
        assert store.max_offset("T", 0) == len(found)
        for number in range(rng.randint(1, 60)):
            body = b"%d.%d " % (life, number) + bytes(rng.randint(0, 300))
            assert store.put(message(body, key=f"{life}.{number}")).queue_offset == len(sent)
            sent.append(body)
            if rng.random() < 0.3:
                dispatch(store)
            if rng.random() < 0.2:
                flush(store)
                safe = list(sent)
            if rng.random() < 0.1:
                store.flush_derived()
                store.checkpoint()
            if rng.random() < 0.1:
                store.prepare_ahead()
        disk.power_off()
        disk.power_on()


def test_queues_are_rebuilt_when_their_files_are_gone() -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(50):
        store.put(message(b"%d" % number))
    store.close()
    disk.remove_tree("/store/consumequeue")
    again = open_store(disk)
    assert len(bodies(again)) == 50


def test_a_slave_becomes_a_byte_copy() -> None:
    master, slave = open_store(new_disk()), open_store(new_disk(2))
    for number in range(80):
        master.put(message(b"%d" % number + bytes(150)))
    position = 0
    while (view := master.read_log(position, 1000)) is not None:
        slave.append_raw(position, bytes(view))
        position += len(view)
        dispatch(slave)
    assert slave.watermarks.appended == master.watermarks.appended
    assert len(bodies(slave)) == 80
    with pytest.raises(StoreDamaged):
        slave.append_raw(position + 1, b"x")
    slave.truncate(SEGMENT)
    assert slave.watermarks.appended == SEGMENT
    assert slave.max_offset("T", 0) == len(bodies(slave))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_slave_counts_on_where_its_master_ended(count: int) -> None:
    master, slave = open_store(new_disk()), open_store(new_disk(2))
    for number in range(count):
        put = master.put(message(b"%d" % number))
        slave.append_raw(put.physical_offset, bytes(master.read_log(put.physical_offset, 1000)))
    dispatch(slave)
    assert slave.put(message(b"mine")).queue_offset == count
    dispatch(slave)
    assert bodies(slave) == [b"%d" % n for n in range(count)] + [b"mine"]


def test_lookup_by_time_and_key() -> None:
    clock = Clock()
    store = open_store(new_disk(), clock)
    begin = clock.now
    for number in range(10):
        clock.now = begin + number // 2 * 1000
        store.put(message(b"%d" % number, key=f"a{number} b"))
    dispatch(store)
    assert store.offset_by_time("T", 0, begin + 1000, "LOWER") == 2
    assert store.offset_by_time("T", 0, begin + 1000, "UPPER") == 3
    assert store.offset_by_time("T", 0, begin + 1500, "LOWER") == 4
    assert store.offset_by_time("T", 0, begin + 9000, "LOWER") == 10
    assert len(store.query_by_key("T", "b", 64, 0, 1 << 60)) == 10
    assert len(store.query_by_key("T", "a3", 64, begin, begin + 1000)) == 1
    assert store.query_by_key("T", "c", 64, 0, 1 << 60) == []


def test_limits_are_named() -> None:
    store = open_store(new_disk())
    with pytest.raises(MessageIllegal, match="4194304"):
        store.put(message(bytes(4_194_305)))
    with pytest.raises(MessageIllegal, match="32767"):
        store.put(PendingMessage("T", 0, b"", b"a\x01" + b"x" * 32_767))
    with pytest.raises(MessageIllegal, match="127"):
        store.put(message(b"", topic="t" * 128))


def accepts(store: MessageStore, refused: str, **fields) -> bool:
    end = store.watermarks.appended
    try:
        store.put(PendingMessage(**{"topic": "T", "queue_id": 0, "body": b"", **fields}))
        return True
    except MessageIllegal as error:
        why = str(error)
    assert refused in why
    assert store.watermarks.appended == end
    return False


def test_what_is_as_long_as_its_limit_is_accepted() -> None:
    store = open_store(new_disk())
    for prefix, limit in (("", 127), ("%RETRY%", 255), ("%DLQ%", 255), ("%OTHER%", 127)):
        for length in (limit - 1, limit, limit + 1):
            topic = prefix.ljust(length, "t")
            assert accepts(store, f"the limit is {limit}", topic=topic) == (length <= limit)
    assert not accepts(store, "0 bytes long", topic="")
    assert accepts(store, "", topic="\u00e9" * 63)
    assert not accepts(store, "128 bytes long", topic="\u00e9" * 64)

    (empty,) = store.put(PendingMessage("T", 0, b"")).sizes
    for length in (SEGMENT - 9, SEGMENT - 8, SEGMENT - 7):
        fits = accepts(store, "do not fit a segment", body=bytes(length - empty))
        assert fits == (length <= SEGMENT - 8)

    config = replace(
        CONFIG, commitlog_segment_bytes=1 << 18, max_message_bytes=70_000, crc_property=False
    )
    store = open_store(new_disk(), config=config)
    for length in (69_999, 70_000, 70_001):
        assert accepts(store, "the limit is 70000", body=bytes(length)) == (length <= 70_000)
    for length in (32_766, 32_767, 32_768):
        properties = b"a\x01".ljust(length - 1, b"x") + b"\x02"
        fits = accepts(store, "the limit is 32767", properties=properties)
        assert fits == (length <= 32_767)
    longest = b"a\x01".ljust(32_766, b"x") + b"\x02"
    assert accepts(store, "", body=bytes(70_000), properties=longest)
    store.put(PendingMessage("T", 0, bytes(70_001)), is_copy=True)  # the limit was higher once


@pytest.mark.parametrize(("sys_flag", "queued"), [(0, True), (4, False), (8, True), (12, False)])
def test_halves_of_a_transaction_are_in_no_queue(sys_flag: int, queued: bool) -> None:
    store = open_store(new_disk())
    store.put(message(b"before"))
    put = store.put(replace(message(b"x"), sys_flag=sys_flag))
    assert put.queue_offset == (1 if queued else 0)
    after = store.put(message(b"after"))
    assert after.queue_offset == 1 + queued
    dispatch(store)
    assert bodies(store) == [b"before", *([b"x"] if queued else []), b"after"]
    batch = bytearray()
    encode_batch_item(batch, b"x", b"", 0, True)
    if sys_flag:
        with pytest.raises(MessageIllegal, match="transaction"):
            store.put_batch("T", 0, bytes(batch), sys_flag=sys_flag)


def test_a_store_time_never_runs_backwards() -> None:
    clock = Clock()
    disk = new_disk()
    store = open_store(disk, clock)
    begin = clock.now
    stamps = []
    for step in (0, 5, -100, 3, 200):
        clock.now = begin + step
        stamps.append(store.put(message(b"x")).store_timestamp - begin)
    assert stamps == [0, 5, 5, 5, 200]
    store.close()
    clock.now = begin
    assert open_store(disk, clock).put(message(b"x")).store_timestamp == begin + 200


def test_the_real_disk(tmp_path: Path) -> None:
    config = StoreConfig(
        root=str(tmp_path / "s"), commitlog_segment_bytes=1 << 16, index_slots=50, index_items=40
    )
    disk = NativeDisk()
    store = open_store(disk, config=config)
    with pytest.raises(DirectoryLocked, match="in use"):
        # fcntl locks belong to a process: the second holder is another one
        _open_elsewhere(config)
    for number in range(300):
        store.put(message(b"%d" % number + bytes(300)))
        if number % 50 == 0:
            store.prepare_ahead()
    flush(store)
    store.close()
    assert not (tmp_path / "s" / "abort").exists()
    again = open_store(disk, config=config)
    assert len(bodies(again)) == 300
    again.close()


def _open_elsewhere(config: StoreConfig) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from saturnmq.store.disk import NativeDisk\n"
        "from saturnmq.runtime.errors import DirectoryLocked\n"
        "try: NativeDisk().lock(sys.argv[1])\n"
        "except DirectoryLocked as e: print(e); sys.exit(3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, config.root + "/lock"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 3:
        raise DirectoryLocked(done.stdout)


def test_config_file_falls_back_and_refuses_two_bad_copies() -> None:
    disk = new_disk()
    disk.make_dirs("/c")
    file = ConfigFile(disk, "/c/topics.json")
    assert file.load() is None
    file.save({"a": 1})
    file.save({"a": 2})
    disk.write_file("/c/topics.json", b"{bad")
    assert file.load() == {"a": 1}
    disk.write_file("/c/topics.json.bak", b"")
    with pytest.raises(StoreDamaged, match="delete both"):
        file.load()


def test_a_config_file_that_is_gone_gives_way_to_its_backup() -> None:
    disk = new_disk()
    disk.make_dirs("/c")
    disk.write_file("/c/topics.json.bak", b'{"a":1}')
    assert ConfigFile(disk, "/c/topics.json").load() == {"a": 1}


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        bytes(4096),
        b"[]",
        b"null",
        b'"offsetTable"',
        b"\xff\xfe{}",
        b'{"offsetTable":{"T@G":{0:12,1:',
        b'{"offsetTable":{"T@G":{0:12}}}trailing',
        b'{"a":1' + b"\0" * 100,
        b'{"a":' + b"[" * 5000,
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_a_damaged_config_file_gives_way_to_its_backup(damaged: bytes) -> None:
    disk = new_disk()
    disk.make_dirs("/c")
    file = ConfigFile(disk, "/c/consumerOffset.json")
    disk.write_file("/c/consumerOffset.json.bak", b'{"offsetTable":{"T@G":{0:12,1:7}}}')
    disk.write_file("/c/consumerOffset.json", damaged)
    assert file.load() == {"offsetTable": {"T@G": {"0": 12, "1": 7}}}


def test_a_config_file_in_a_bad_sector_gives_way_to_its_backup() -> None:
    disk = new_disk()
    disk.make_dirs("/c")
    file = ConfigFile(disk, "/c/topics.json")
    file.save({"a": 1})
    file.save({"a": 2})
    disk.plan("read_file", pattern="/c/topics.json", times=None)
    assert file.load() == {"a": 1}
    disk.plan("read_file", times=None)
    with pytest.raises(StoreDamaged, match=r"/c/topics.json cannot be read.*delete both"):
        file.load()
    disk.plans.clear()
    disk.plan("read_file", errno.EACCES)  # an older copy is not what is wanted then
    with pytest.raises(PermissionError):
        file.load()


def test_a_config_file_cut_anywhere_gives_way_to_its_backup() -> None:
    disk = new_disk()
    disk.make_dirs("/c")
    file = ConfigFile(disk, "/c/topics.json")
    file.save({"old": True})
    file.save({"topicConfigTable": {"T": {"perm": 6, "attributes": {"+message.type": "FIFO"}}}})
    whole = disk.read_file("/c/topics.json")
    for end in range(len(whole)):
        disk.write_file("/c/topics.json", whole[:end])
        assert file.load() == {"old": True}


@pytest.mark.parametrize("seed", range(10))
def test_the_kernel_that_looks_behind_a_queue_agrees_with_its_reference(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [0, -1, 1, 300, 0x7FFFFFFF]
    offsets = [0, -5, 999, 1000, 1 << 40]
    data = b"".join(
        ENTRY.pack(rng.choice(offsets), rng.choice(sizes), rng.randint(-9, 9)) for _ in range(200)
    )
    assert entries_before(data, 1000) == entries_before_reference(data, 1000)
    assert entries_before(b"", 1000) == []


@pytest.mark.parametrize("seed", range(40))
def test_index_kernel_agrees_with_its_reference(seed: int) -> None:
    rng = random.Random(seed)
    slots, limit = rng.choice([1, 7, 90]), 50
    items = b"".join(
        INCOMING.pack(rng.randrange(1 << 31), n, rng.choice([1, 900, 1000, 1 << 50]) * n)
        for n in range(rng.randrange(60))
    )
    # slots may know numbers that no item has, after a crash
    file = bytearray(40 + 4 * slots + 20 * limit)
    for slot in range(slots):
        struct.pack_into(">i", file, 40 + 4 * slot, rng.choice([0, 0, 1, 2, rng.randint(-2, 60)]))
    begin = rng.choice([0, 1, 5000])
    start = [begin, begin, 0, 0, 0, rng.choice([1, 2, 30])]
    results = []
    for insert in (insert_items, insert_items_reference):
        view, header = bytearray(file), start[:]
        done = insert(memoryview(view), slots, limit, header, memoryview(items))
        results.append((done, header, bytes(view)))
    assert results[0] == results[1]
    assert results[0][0] == min(len(items) // INCOMING.size, limit - start[5])


@pytest.mark.parametrize("seed", range(200))
def test_read_kernel_agrees_with_its_reference(seed: int) -> None:
    rng = random.Random(seed)
    position, data, places = rng.choice([0, 100]), bytearray(), []
    for _ in range(40):
        position += rng.choice([0, 0, 50])
        size = rng.choice([91, 100, 300])
        code = rng.randint(-3, 3) + rng.choice([0, 0, 1 << 32, -1 << 32, 1 << 31])
        data += rng.choice([ENTRY.pack(position, size, code), *[FILLER] * (seed % 2)])
        places.append(position)
        position += size
    # values at which something changes are met exactly
    if rng.random() < 0.2:
        data += ENTRY.pack(*rng.choice([(0, 95), (position, 0x7FFFFFFF)]), 1)
    codes = rng.choice([None, frozenset([1, -2]), frozenset([-(1 << 31) + 1])])
    if rng.random() < 0.3:  # none, more than the kernel compares one by one, no hash
        codes = rng.choice([frozenset(), frozenset(range(-8, 2)), frozenset([1 << 32 | 1, 2])])
    limits = [(rng.randint(1, 20), 100 * rng.randint(1, 20)) for _ in range(3)]
    cached, start = rng.choice(places), rng.choice([places[0], places[0], rng.choice(places)])
    visible = rng.choice([rng.choice(places), 1 << 40])
    arguments = memoryview(data), *limits[0], *limits[1:], cached, codes, visible, start
    assert plan_reads(*arguments) == plan_reads_reference(*arguments)

"""What a start makes of what it finds: nothing lost, nothing invented, nothing silent."""

from __future__ import annotations

import dataclasses
import logging
import random
import struct

import pytest
from saturnmq.drills.sim.disk import PowerCutOdds, SimDisk, SimSegment
from saturnmq.protocol.frame import FRAME_BYTES_MIN, MAGIC_AT
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.index_items import (
    INCOMING,
    fill_slots,
    fill_slots_reference,
    insert_items,
)
from saturnmq.store.message_store import MessageStore, PendingMessage
from saturnmq.store.recovery import recovery
from saturnmq.store.recovery.checkpoint import INDEX_UNKNOWN, Checkpoint
from store_rig import CONFIG, SEGMENT, Clock, bodies, dispatch, flush, message, new_disk, open_store

LONG_AGO, FAR = 0, 1 << 60


def filled(disk, count: int, *, start: int = 0) -> MessageStore:
    """A store with `count` messages, all flushed and in the checkpoint."""
    store = open_store(disk)
    put(store, range(start, start + count))
    save(store)
    return store


def put(store: MessageStore, numbers) -> list:
    return [store.put(message(b"%d" % n + bytes(150), key=f"k{n} both{n}")) for n in numbers]


def save(store: MessageStore) -> None:
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()


def die(disk) -> None:
    disk.kill()
    disk.power_on()


def lose_power(disk) -> None:
    disk.power_off()
    disk.power_on()


def numbers(store: MessageStore) -> list[int]:
    return [int(body.rstrip(b"\0")) for body in bodies(store)]


def found(store: MessageStore, numbers) -> list[int]:
    return [
        n
        for n in numbers
        for key in (f"k{n}", f"both{n}")
        if len(store.query_by_key("T", key, 10, LONG_AGO, FAR)) == 1
    ]


@pytest.mark.parametrize("known", [True, False])
def test_a_start_tells_how_far_it_is(known: bool) -> None:
    disk = new_disk()
    store = filled(disk, 100)
    put(store, range(100, 170))
    dispatch(store)
    die(disk)
    if not known:
        disk.unlink("/store/checkpoint")
    told: list[tuple[int, int]] = []
    again = MessageStore.open(CONFIG, disk, Clock(), lambda done, all: told.append((done, all)))
    begin = again.recovery.scanned_from
    assert (begin > 0) == known
    capacity = SEGMENT * len([e for e in disk.list("/store/commitlog") if not e.is_dir])
    assert {total for _, total in told} == {capacity - begin}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert (told[0][0] > 0, told[-1][0]) == (True, again.recovery.end - begin)


def test_a_store_that_another_broker_stopped_is_read_from_its_newest_segment() -> None:
    disk = new_disk()
    store = filled(disk, 100)
    end = store.watermarks.appended
    store.close()
    disk.unlink("/store/checkpoint")
    again = open_store(disk)
    assert again.recovery.scanned_from == end - end % SEGMENT > 0
    assert numbers(again) == list(range(100))


@pytest.mark.parametrize("end", [die, lose_power])
def test_only_the_tail_since_the_checkpoint_is_read_again(end) -> None:
    disk = new_disk()
    store = filled(disk, 100)  # several segments, queue files and index files
    derived = store.watermarks.dispatched
    put(store, range(100, 110))
    flush(store)
    end(disk)
    again = open_store(disk)
    assert again.recovery.scanned_from > derived - 300  # the last message that was indexed
    assert again.recovery.messages <= 11
    assert numbers(again) == list(range(110))
    assert found(again, range(110)) == [n for n in range(110) for _ in "kb"]


def test_a_checkpoint_counts_on_nothing_that_is_not_durable() -> None:
    disk = new_disk()
    nothing_else = PowerCutOdds(kept=0.0, torn=0.0, names=0.0)
    store = open_store(disk)
    for written in range(15, 90, 15):
        put(store, range(written - 15, written))
        dispatch(store)
        if written == 45:  # the names of new files may be in memory only
            die(disk)
            store = open_store(disk)
        save(store)
        assert Checkpoint.load(disk, "/store").queues == 1
        again = open_store(disk.crash_image(random.Random(1), nothing_else))
        assert numbers(again) == list(range(written))
        assert found(again, range(written)) == [n for n in range(written) for _ in "kb"]
        assert again.recovery.messages <= 1, "it was read back, not built again"


@pytest.mark.parametrize("seed", range(20))
def test_the_index_is_that_of_a_rebuild_wherever_the_power_went(seed: int) -> None:
    disk = new_disk(seed)
    rng = random.Random(seed)
    store = open_store(disk)
    written = 0
    for _ in range(4):
        for _ in range(rng.randint(1, 30)):
            put(store, [written])
            written += 1
            if rng.random() < 0.3:
                dispatch(store)
            if rng.random() < 0.2:
                save(store)
        lose_power(disk)
        store = open_store(disk)
        dispatch(store)
        there = numbers(store)
        written = len(there)
        assert there == list(range(written))
        assert found(store, there) == [n for n in there for _ in "kb"]
        assert found(store, [written, written + 1]) == []


@pytest.mark.parametrize("end", [die, MessageStore.close])
@pytest.mark.parametrize("gone", ["/store/consumequeue", "/store/index", "/store/checkpoint"])
def test_what_was_deleted_is_built_again(end, gone: str) -> None:
    disk = new_disk()
    store = filled(disk, 60)
    end(disk if end is die else store)
    disk.remove_tree(gone)
    disk.unlink(gone)
    again = open_store(disk)
    assert numbers(again) == list(range(60))
    assert found(again, range(60)) == [n for n in range(60) for _ in "kb"]
    assert put(again, [60])[0].queue_offset == 60


@pytest.mark.parametrize("end", [die, MessageStore.close])
@pytest.mark.parametrize("directory", ["/store/consumequeue/T/0", "/store/index"])
def test_a_derived_file_of_wrong_length_is_built_again(end, directory: str) -> None:
    disk = new_disk()
    store = filled(disk, 60)
    end(disk if end is die else store)
    newest = disk.list(directory)[-1].name
    disk.unlink(f"{directory}/{newest}")
    disk.write_file(f"{directory}/{newest}", b"short")
    if directory.endswith("0"):  # another queue is sound: not a matter of settings
        disk.make_dirs("/store/consumequeue/U/0")
    again = open_store(disk)
    assert numbers(again) == list(range(60))
    assert found(again, range(60)) == [n for n in range(60) for _ in "kb"]


def test_without_a_log_there_are_no_queues_and_no_index() -> None:
    disk = new_disk()
    filled(disk, 60).close()
    disk.remove_tree("/store/commitlog")
    again = open_store(disk)
    assert (again.max_offset("T", 0), again.indexed_until()) == (0, (0, 0))
    assert [path for path in disk.paths() if "queue" in path or "index" in path] == []
    again.settle()
    put(again, range(10))
    dispatch(again)
    assert numbers(again) == list(range(10))


def test_files_of_another_setting_are_not_taken_for_damage() -> None:
    disk = new_disk()
    filled(disk, 60).close()
    for change in (
        {"consumequeue_segment_bytes": 800},
        {"index_slots": 60},
        {"commitlog_segment_bytes": 2 * SEGMENT},
    ):
        other = dataclasses.replace(CONFIG, **change)
        with pytest.raises(StoreDamaged, match="set "):
            open_store(disk, config=other)
    assert numbers(open_store(disk)) == list(range(60))


def test_a_newest_segment_of_wrong_length_is_set_aside(caplog) -> None:
    disk = new_disk()
    store = filled(disk, 100)
    end = store.watermarks.appended // SEGMENT * SEGMENT
    store.close()
    path = f"/store/commitlog/{end:020d}"
    disk.unlink(path)
    disk.write_file(path, b"x" * 100)
    with caplog.at_level(logging.ERROR):
        again = open_store(disk)
    assert "set-aside" in caplog.text
    assert disk.read_file(f"/store/commitlog/set-aside/{end:020d}") == b"x" * 100
    there = numbers(again)
    assert there == list(range(len(there)))
    assert again.watermarks.appended <= end
    assert again.recovery.lost > 0
    again.settle()
    put(again, range(len(there), 120))
    dispatch(again)
    assert numbers(again) == list(range(120))


@pytest.mark.parametrize(
    ("lengths", "why"),
    [
        ({1: 100}, "00000000000000008192 is 100 bytes long and was 8192: it was cut short"),
        ({1: SEGMENT + 1, -1: 100}, "00000000000000008192 is 8193 bytes long"),
        ({2: SEGMENT + 1, -1: 100}, "00000000000000016384 is 8193 bytes long"),
        ({0: 100, 1: 100, 2: 100, -1: 100}, "00000000000000000000 is 100 bytes long, the conf"),
        ({1: 0}, "00000000000000008192 is empty, and others follow"),
    ],
)
def test_segments_that_do_not_fit_together_refuse_the_start(
    lengths: dict[int, int], why: str
) -> None:
    disk = new_disk()
    filled(disk, 100).close()
    paths = [path for path in disk.paths() if path.startswith("/store/commitlog/")]
    assert len(paths) == 4
    for number, length in lengths.items():
        disk.unlink(paths[number])
        disk.write_file(paths[number], b"x" * length)
    before = disk.paths()
    with pytest.raises(StoreDamaged, match=why):
        open_store(disk)
    assert disk.paths() == before, "nothing was set aside or deleted"


def test_of_two_segments_the_newest_is_set_aside() -> None:
    disk = new_disk()
    store = filled(disk, 35)
    assert SEGMENT < store.watermarks.appended <= 2 * SEGMENT
    store.close()
    path = f"/store/commitlog/{SEGMENT:020d}"
    disk.unlink(path)
    disk.write_file(path, b"x" * 100)
    again = open_store(disk)
    assert disk.read_file(f"/store/commitlog/set-aside/{SEGMENT:020d}") == b"x" * 100
    assert again.watermarks.appended <= SEGMENT
    there = numbers(again)
    assert there == list(range(len(there)))
    assert len(there) > 20


def test_a_queue_file_that_is_missing_between_others_is_told_with_its_neighbours(caplog) -> None:
    disk = new_disk()
    filled(disk, 100).close()
    paths = [path for path in disk.paths() if path.startswith("/store/consumequeue/T/0/")]
    assert len(paths) >= 5
    disk.unlink(paths[3])
    again = open_store(disk)
    assert f"{paths[4]} does not follow {paths[2]}: a segment between" in caplog.text
    assert numbers(again) == list(range(100))


def test_the_only_segment_is_not_set_aside() -> None:
    disk = new_disk()
    filled(disk, 10).close()
    paths = [path for path in disk.paths() if path.startswith("/store/commitlog/")]
    for path in paths:
        disk.unlink(path)
    disk.write_file(paths[0], b"x" * 100)
    with pytest.raises(StoreDamaged, match="set the size it was written with"):
        open_store(disk)


@pytest.mark.parametrize("directory", ["/store/commitlog", "/store/consumequeue/T/0"])
def test_an_empty_file_behind_the_others_is_what_a_crash_left_of_a_creation(
    directory: str, caplog
) -> None:
    disk = new_disk()
    filled(disk, 100).close()
    disk.make_dirs(f"{directory}/a directory")
    newest = max(int(entry.name) for entry in disk.list(directory) if not entry.is_dir)
    second = disk.list(directory)[1].name
    path = f"{directory}/{newest + int(second):020d}"
    disk.write_file(path, b"")
    again = open_store(disk)
    assert path not in disk.paths()
    assert [r.message for r in caplog.records if r.levelname == "ERROR"] == []
    assert not disk.exists("/store/commitlog/set-aside"), "there was nothing in it to keep"
    assert numbers(again) == list(range(100))
    put(again, range(100, 200))
    dispatch(again)
    assert numbers(again) == list(range(200))


def damaged_store(disk, damage) -> tuple[MessageStore, list]:
    """A store that crashed with all on the disk but nothing dispatched, and then was damaged."""
    store = open_store(disk)
    puts = put(store, range(90))
    flush(store)
    store.flush_derived()
    store.checkpoint()
    die(disk)
    damage(puts)
    return open_store(disk), puts


@pytest.mark.parametrize("at", [0, 4, 8, 12, 30, 60, 100, 200])
def test_a_damaged_flushed_frame_is_a_gap_that_is_told(at: int, caplog) -> None:
    disk = new_disk()

    def damage(puts):
        offset = puts[40].physical_offset + at
        disk.flip(f"/store/commitlog/{offset // SEGMENT * SEGMENT:020d}", offset % SEGMENT, 3)

    with caplog.at_level(logging.ERROR):
        store, puts = damaged_store(disk, damage)
    assert store.recovery.gaps == [(puts[40].physical_offset, puts[41].physical_offset)]
    assert f"damaged from {puts[40].physical_offset}" in caplog.text
    assert "another node of the group" in caplog.text
    assert numbers(store) == [n for n in range(90) if n != 40]
    assert store.max_offset("T", 0) == 90
    assert store.message_at(puts[40].physical_offset) is None
    put(store, [90])
    save(store)
    die(disk)
    again = open_store(disk)
    assert numbers(again) == [n for n in range(91) if n != 40]


@pytest.mark.parametrize("count", [2, 30])
def test_damage_over_frames_and_segments_is_one_gap(count: int) -> None:
    disk = new_disk()

    def damage(puts):
        begin, end = puts[20].physical_offset + 5, puts[20 + count].physical_offset
        for offset in range(begin, end, 16):
            path = f"/store/commitlog/{offset // SEGMENT * SEGMENT:020d}"
            disk.flip(path, offset % SEGMENT, offset % 8)

    store, _ = damaged_store(disk, damage)
    assert numbers(store) == [n for n in range(90) if not 20 <= n < 20 + count]
    assert sum(b - a for a, b in store.recovery.gaps) > 0


def test_zeros_where_flushed_frames_were_are_no_end() -> None:
    disk = new_disk()

    def damage(puts):
        begin, end = puts[5].physical_offset, puts[9].physical_offset
        for offset in range(begin, end):
            path = f"/store/commitlog/{0:020d}"
            segment = disk.open_segment(path, SEGMENT)
            segment.write(offset, b"\0")
            segment.close()

    store, _ = damaged_store(disk, damage)
    assert numbers(store) == [n for n in range(90) if not 5 <= n < 9]


def test_a_lost_end_of_the_log_is_told(caplog) -> None:
    disk = new_disk()

    def damage(puts):
        newest = puts[-1].physical_offset // SEGMENT * SEGMENT
        segment = disk.open_segment(f"/store/commitlog/{newest:020d}", SEGMENT)
        segment.write(0, bytes(SEGMENT))
        segment.close()

    with caplog.at_level(logging.ERROR):
        store, puts = damaged_store(disk, damage)
    assert store.recovery.lost == puts[-1].end_offset - store.watermarks.appended > 0
    end = store.watermarks.appended
    assert f"the bytes {end} to {puts[-1].end_offset} of the CommitLog" in caplog.text


def test_damage_in_what_a_running_slave_gets_is_skipped() -> None:
    master = filled(new_disk(), 50)
    slave = open_store(new_disk(2))
    data = bytearray()
    while (view := master.read_log(len(data), 4096)) is not None:
        data += view
    offset = int.from_bytes(bytes(master.get_message("T", 0, 7, 1).data[28:36]), "big")
    data[offset + 4] ^= 1
    slave.append_raw(0, data)
    dispatch(slave)
    assert numbers(slave) == [n for n in range(50) if n != 7]
    assert len(slave.recovery.gaps) == 1


@pytest.mark.parametrize("number", [1, 2])
def test_a_blank_that_does_not_end_with_its_segment_is_skipped_as_damage(
    number: int, caplog
) -> None:
    master = filled(new_disk(), 100)
    data = bytearray()
    while (view := master.read_log(len(data), SEGMENT)) is not None:
        data += view
    at = data.rindex(b"\xcb\xd4\x31\x94", 0, number * SEGMENT) - 4
    left = number * SEGMENT - at
    assert int.from_bytes(data[at : at + 4], "big") == left
    data[at : at + 4] = (left - 10).to_bytes(4, "big")
    slave = open_store(new_disk(2))
    slave.append_raw(0, data)
    dispatch(slave)
    assert slave.recovery.gaps == [(at, number * SEGMENT)]
    assert f"damaged from {at} to {number * SEGMENT}: a BLANK ends at" in caplog.text
    assert numbers(slave) == list(range(100))


@pytest.mark.parametrize("half", [0, 1, 150])
def test_a_slave_whose_flush_ended_within_a_frame_loses_nothing_at_a_crash(half: int) -> None:
    master = filled(new_disk(), 20)
    data = bytearray()
    while (view := master.read_log(len(data), 4096)) is not None:
        data += view
    at = int.from_bytes(bytes(master.get_message("T", 0, 7, 1).data[28:36]), "big") + half
    disk = new_disk(2)
    slave = open_store(disk)
    slave.append_raw(0, data[:at])
    flush(slave)  # it may have dispatched what is whole
    slave.append_raw(at, data[at:])
    dispatch(slave)
    slave.flush_derived()
    slave.checkpoint()
    die(disk)
    slave = open_store(disk)
    assert slave.watermarks.appended == len(data)
    assert (slave.recovery.gaps, slave.recovery.lost) == ([], 0)
    assert numbers(slave) == list(range(20))


def test_a_topic_that_is_no_file_name_makes_no_file() -> None:
    store = open_store(new_disk())
    store.put(message(b"0", topic="T"))
    master = open_store(new_disk(3))
    for topic in ("../../x", "a/b", "..", ".x"):
        master.put(message(b"0", topic=topic))
    master.put(message(b"1", topic="T"))
    slave_disk = new_disk(4)
    slave = open_store(slave_disk)
    slave.append_raw(0, bytes(master.read_log(0, 4096)))
    dispatch(slave)
    assert numbers(slave) == [1]
    assert set(slave.queues()) == {("T", 0)}


@pytest.mark.parametrize("directory", ["/store/commitlog", "/store/consumequeue/T/0"])
def test_a_name_that_is_no_offset_refuses_the_start(directory: str) -> None:
    disk = new_disk()
    filled(disk, 5).close()
    disk.rename(f"{directory}/{0:020d}", f"{directory}/{0:021d}")
    with pytest.raises(StoreDamaged, match="20 digits"):
        open_store(disk)


@pytest.mark.parametrize("end", [die, MessageStore.close])
def test_only_directories_that_are_numbers_are_queues(end) -> None:
    disk = new_disk()
    store = filled(disk, 30)
    end(disk if end is die else store)
    for path in (".note", "A", "T/5", "T/note"):
        disk.write_file(f"/store/consumequeue/{path}", b"")
    for path in (".d", "B/x", "T/old", "T/0x"):
        disk.make_dirs(f"/store/consumequeue/{path}")
    again = open_store(disk)
    assert set(again.queues()) == {("T", 0)}
    assert numbers(again) == list(range(30))
    assert again.recovery.messages <= 1


@pytest.mark.parametrize(("setting", "length"), [(390, 400), (400, 400), (401, 420)])
def test_a_queue_file_holds_whole_entries(setting: int, length: int) -> None:
    disk = new_disk()
    config = dataclasses.replace(CONFIG, consumequeue_segment_bytes=setting)
    store = open_store(disk, config=config)
    put(store, range(50))
    save(store)
    assert {entry.size for entry in disk.list("/store/consumequeue/T/0")} == {length}
    assert numbers(store) == list(range(50))


@pytest.mark.parametrize("end", [die, MessageStore.close])
def test_a_hole_in_a_queue_has_it_built_again(end, caplog) -> None:
    disk = new_disk()
    store = filled(disk, 60)
    end(disk if end is die else store)
    segment = disk.open_segment(f"/store/consumequeue/T/0/{400:020d}", 400)
    segment.write(200, bytes(20))  # entry 30, which a search looks at first
    segment.close()
    with caplog.at_level(logging.ERROR):
        again = open_store(disk)
    assert numbers(again) == list(range(60))
    assert "has lost entries" in caplog.text


def test_a_page_that_rocketmq_wrote_since_says_nothing_of_ours() -> None:
    disk = new_disk()
    store = filled(disk, 60)
    die(disk)
    page = bytearray(disk.read_file("/store/checkpoint"))
    page[7] ^= 1  # its broker touches its part only
    disk.replace_file("/store/checkpoint", bytes(page), keep_backup=False)
    again = open_store(disk)
    assert again.recovery.scanned_from == 0
    assert numbers(again) == list(range(60))
    assert again.watermarks.appended == store.watermarks.appended


def test_after_a_failed_sync_the_next_start_asks_the_disk() -> None:
    disk = new_disk()
    store = filled(disk, 10)
    put(store, range(10, 15))
    disk.plan("flush", pattern="*commitlog*")
    ticket = store.begin_flush()
    assert ticket is not None
    with pytest.raises(OSError, match="planned"):
        ticket.run()
    die(disk)  # the cache shows 15 messages and calls them clean
    again = open_store(disk)
    assert numbers(again) == list(range(10))


@pytest.mark.parametrize("count", [0, 1, 2, 30])
@pytest.mark.parametrize("slots", [7, 100])
def test_slots_made_by_the_kernel_are_those_of_its_reference_and_of_the_inserts(
    slots: int, count: int
) -> None:
    rng = random.Random(3)
    limit = 50
    items = b"".join(INCOMING.pack(rng.randrange(1 << 31), n, 1000 * n) for n in range(count))
    view, header = bytearray(40 + 4 * slots + 20 * limit), [0, 0, 0, 0, 0, 1]
    insert_items(memoryview(view), slots, limit, header, memoryview(items))
    inserted = bytes(view)
    for fill in (fill_slots, fill_slots_reference):
        view[40 : 40 + 4 * slots] = rng.randbytes(4 * slots)
        assert fill(memoryview(view), slots, header[5]) == header[4]
        assert view == inserted


def flip(disk, offset: int) -> None:
    disk.flip(f"/store/commitlog/{offset // SEGMENT * SEGMENT:020d}", offset % SEGMENT, 3)


def overwrite(disk, path: str, at: int, data: bytes) -> None:
    segment = disk.open_segment(path, len(disk.content(path)))
    segment.write(at, data)
    segment.close()


def change_page(disk, **fields) -> None:
    dataclasses.replace(Checkpoint.load(disk, "/store"), **fields).save(disk, "/store")


def test_a_start_after_a_crash_that_lost_nothing_warns_of_nothing(caplog) -> None:
    disk = new_disk()
    store = filled(disk, 60)
    end = store.watermarks.appended
    die(disk)
    again = open_store(disk)
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert (again.recovery.end, again.recovery.stopped_by) == (end, "")
    assert (again.recovery.lost, again.truncated()) == (0, [])


@pytest.mark.parametrize(("start", "from_there"), [(-1, 0), (0, 0), (SEGMENT, SEGMENT)])
def test_of_a_log_that_is_gone_all_from_its_start_is_lost(start: int, from_there: int) -> None:
    disk = new_disk()
    end = filled(disk, 60).watermarks.flushed
    die(disk)
    disk.remove_tree("/store/commitlog")
    change_page(disk, start=start)
    assert open_store(disk).recovery.lost == end - from_there


def test_a_new_store_has_found_and_lost_nothing() -> None:
    found = open_store(new_disk()).recovery
    assert found == recovery.RecoveryResult(True, 0, 0, 0, 0, "", [], 0, [])


def test_a_queue_that_lost_its_end_is_built_again_from_the_oldest_segment(caplog) -> None:
    disk = new_disk()
    store = filled(disk, 60)
    put(store, range(60, 65))
    flush(store)
    die(disk)
    for number in range(50, 60):
        overwrite(disk, f"/store/consumequeue/T/0/{800:020d}", 20 * number - 800, bytes(20))
    again = open_store(disk)
    assert "queue T/0 lacks entries before 59: rebuilding" in caplog.text
    assert (again.recovery.scanned_from, again.recovery.messages) == (0, 65)
    assert numbers(again) == list(range(65))
    assert found(again, range(65)) == [n for n in range(65) for _ in "kb"]


def test_queues_that_are_new_behind_the_checkpoint_lack_nothing() -> None:
    """Nor do those that go on there in several segments, beside each other."""
    disk = new_disk()
    store = filled(disk, 30)
    for number in range(60):
        store.put(message(b"%d" % number + bytes(150), queue=number % 3))
    flush(store)
    die(disk)
    again = open_store(disk)
    assert again.recovery.scanned_from > SEGMENT // 2
    assert again.recovery.messages == 61
    assert [again.max_offset("T", queue) for queue in range(3)] == [50, 20, 20]


def test_behind_damage_a_queue_lacks_entries_and_is_not_built_again() -> None:
    disk = new_disk()
    store = filled(disk, 60)
    puts = put(store, range(60, 90))
    flush(store)
    store.flush_derived()
    store.checkpoint()
    die(disk)
    flip(disk, puts[10].physical_offset + 60)
    again = open_store(disk)
    assert again.recovery.scanned_from > 0
    assert again.recovery.gaps == [(puts[10].physical_offset, puts[11].physical_offset)]
    assert again.recovery.messages == 30, "the last message before the checkpoint is read again"
    assert numbers(again) == [n for n in range(90) if n != 70]


def test_of_what_was_never_flushed_nothing_is_kept(caplog) -> None:
    disk = new_disk()
    store = open_store(disk)
    assert Checkpoint.load(disk, "/store").flushed == 0
    [first] = put(store, [0])
    die(disk)
    flip(disk, 100)
    again = open_store(disk)
    assert (again.watermarks.appended, again.truncated(), again.recovery.lost) == (0, [], 0)
    assert "the CommitLog is cut at 0: " in caplog.text
    assert again.put(message(b"0" + bytes(150), key="k0 both0")).end_offset == first.end_offset


@pytest.mark.parametrize("step", [100, 1 << 20])
@pytest.mark.parametrize("number", [0, 1, 40, 89])
def test_without_a_checkpoint_all_behind_the_end_is_kept(
    step: int, number: int, monkeypatch
) -> None:
    """Segments and their ends are nothing special to it, nor are zeros before the last byte."""
    disk = new_disk()
    store = open_store(disk)
    puts = put(store, range(90))
    store.prepare_ahead()
    flush(store)
    whole = b"".join(
        disk.content(f"/store/commitlog/{start:020d}") for start in range(0, 5 * SEGMENT, SEGMENT)
    )
    die(disk)
    disk.unlink("/store/checkpoint")
    start = puts[number].physical_offset
    flip(disk, start + 60)
    monkeypatch.setattr(recovery, "STEP_BYTES", step)
    again = open_store(disk)
    assert again.watermarks.appended == start
    [side] = again.truncated()
    assert (side.start, side.end) == (start, puts[-1].end_offset)
    kept = disk.read_file(side.file)
    assert kept[0:60] == whole[start : start + 60]
    assert kept[61:] == whole[start + 61 : side.end]


@pytest.mark.parametrize("step", [100, 1 << 20])
def test_what_is_kept_of_a_lost_end_had_been_flushed(step: int, monkeypatch) -> None:
    disk = new_disk()
    store = open_store(disk)
    puts = put(store, range(80))
    flush(store)
    store.flush_derived()
    store.checkpoint()
    end = store.watermarks.flushed
    puts += put(store, range(80, 84))
    assert puts[74].physical_offset // SEGMENT == puts[-1].end_offset // SEGMENT
    die(disk)
    for each in puts[75:]:
        flip(disk, each.physical_offset + 60)
    monkeypatch.setattr(recovery, "STEP_BYTES", step)
    again = open_store(disk)
    start = puts[75].physical_offset
    assert (again.watermarks.appended, again.recovery.lost) == (start, end - start)
    assert [(s.start, s.end, s.epoch) for s in again.truncated()] == [(start, end, 0)]


@pytest.mark.parametrize("before", [0, 5])
def test_a_frame_that_would_not_end_with_its_segment_is_the_end_of_the_log(
    before: int, caplog
) -> None:
    disk = new_disk()
    store = filled(disk, before)
    [torn] = put(store, [before])
    die(disk)
    overwrite(disk, f"/store/commitlog/{0:020d}", torn.physical_offset, bytes([0, 0, 0x40, 0]))
    again = open_store(disk)
    at = torn.physical_offset
    assert again.watermarks.appended == at
    assert f"cut at {at}: the frame at {at} is longer than its segment" in caplog.text


@pytest.mark.parametrize("number", [2, 50])
def test_a_log_that_cannot_be_read_refuses_the_start_and_tells_the_place(number: int) -> None:
    disk = new_disk()
    store = filled(disk, number)
    [last] = put(store, [number])
    flush(store)
    die(disk)
    disk.remove_tree("/store/consumequeue")
    disk.remove_tree("/store/index")
    start = last.physical_offset // SEGMENT * SEGMENT
    path = f"/store/commitlog/{start:020d}"
    plan = disk.plan("read", pattern=path, times=None)
    with pytest.raises(StoreDamaged, match=f"{path} cannot be read at 0: .*copy the directory"):
        open_store(disk)
    plan.times = 0
    assert numbers(open_store(disk)) == list(range(number + 1))


class BadMapping:
    """Whoever touches a bad sector through a mapping is killed."""

    def __getitem__(self, _: object) -> bytes:
        raise AssertionError("SIGBUS")

    def release(self) -> None: ...


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_tells_which_file_cannot_be_read(
    is_clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = new_disk()
    store = filled(disk, 60)
    if is_clean:
        store.close()
    else:
        put(store, range(60, 62))
        flush(store)
        die(disk)
    refused = set()
    for path in disk.paths():
        image = disk.kill_image(random.Random(1))

        def opened(wanted: str, size: int, image=image, bad=path) -> SimSegment:
            segment = SimDisk.open_segment(image, wanted, size)
            if wanted == bad:
                segment.view = BadMapping()  # type: ignore[assignment]
            return segment

        monkeypatch.setattr(image, "open_segment", opened)
        for operation in ("read", "read_file"):
            image.plan(operation, pattern=path, times=None)
        said, again = "", None
        try:
            again = open_store(image)
        except StoreDamaged as error:
            said = str(error)
        if again is None:
            assert f"{path} cannot be read" in said
            assert "replace the disk" in said
            refused.add(path.removeprefix("/store/").partition("/")[0])
    assert refused == {"checkpoint", "commitlog", "consumequeue", "index"}


def test_a_log_that_ends_with_a_segment_is_not_read_again() -> None:
    master = filled(new_disk(), 60)
    data = bytearray()
    while len(data) < SEGMENT:
        data += master.read_log(len(data), SEGMENT) or b""
    for end in (MessageStore.close, die):
        disk = new_disk()
        slave = open_store(disk)
        slave.append_raw(0, data)
        save(slave)
        if end is die:
            die(disk)
        else:
            slave.close()
        disk.remove_tree("/store/index")
        change_page(disk, index_name=0)
        again = open_store(disk)
        assert again.watermarks.appended == SEGMENT
        assert again.recovery.messages == 0


def without_keys(number: int) -> PendingMessage:
    return PendingMessage("T", 0, b"%d" % number + bytes(150), b"TAGS\x01A\x02")


@pytest.mark.parametrize("known", [True, False])
def test_where_there_was_nothing_to_index_only_the_tail_is_read_again(known: bool) -> None:
    disk = new_disk()
    store = open_store(disk)
    for number in range(60):
        store.put(without_keys(number))
    save(store)
    derived = store.watermarks.dispatched
    for number in range(60, 65):
        store.put(without_keys(number))
    flush(store)
    die(disk)
    if not known:
        change_page(disk, index_name=INDEX_UNKNOWN)
    again = open_store(disk)
    assert again.recovery.scanned_from == (derived if known else 0)
    assert numbers(again) == list(range(65))


@pytest.mark.parametrize("more", [-1, 0])
def test_a_place_that_a_damaged_head_tells_must_fit_the_gap(more: int) -> None:
    """Its queue offset may be damaged itself: so many messages as it tells may have been there."""
    disk = new_disk()
    store = open_store(disk)
    put(store, range(3))
    spare = store.put(message(b""))
    size = spare.end_offset - spare.physical_offset
    length = 3 * FRAME_BYTES_MIN + more
    lost = store.put(message(bytes(length - size)))
    assert lost.end_offset - lost.physical_offset == length
    store.put(message(b"other", queue=1))
    flush(store)
    store.flush_derived()
    store.checkpoint()
    die(disk)
    told = lost.queue_offset + 2
    overwrite(
        disk, f"/store/commitlog/{0:020d}", lost.physical_offset + 20, told.to_bytes(8, "big")
    )
    again = open_store(disk)
    assert again.recovery.gaps == [(lost.physical_offset, lost.end_offset)]
    assert again.max_offset("T", 0) == (lost.queue_offset + 3 if more == 0 else lost.queue_offset)


def test_damage_before_a_torn_end_is_cut_off_with_it() -> None:
    """The last flushed frame is damaged. Of two behind it only the second was written."""
    disk = new_disk()
    store = open_store(disk)
    *_, last = put(store, range(3))
    save(store)
    torn, _ = put(store, range(3, 5))
    die(disk)
    flip(disk, last.physical_offset + MAGIC_AT)
    at, end = torn.physical_offset, torn.end_offset
    overwrite(disk, f"/store/commitlog/{0:020d}", at, bytes(end - at))
    again = open_store(disk)
    lost = last.end_offset - last.physical_offset
    assert (again.recovery.gaps, again.recovery.lost) == ([], lost)
    assert again.watermarks.appended == last.physical_offset
    assert again.max_offset("T", 0) == 2


@pytest.mark.parametrize("end", [die, MessageStore.close])
def test_queues_of_a_log_that_begins_within_them_are_built_again(end, caplog) -> None:
    """Their first entry is not number 0: that is no hole."""
    master = filled(new_disk(), 90)
    disk = new_disk(2)
    slave = open_store(disk)
    for start in range(SEGMENT, 4 * SEGMENT, SEGMENT):
        if (view := master.read_log(start, SEGMENT)) is not None:
            slave.append_raw(start, bytes(view))
    save(slave)
    there = numbers(slave)
    assert there == list(range(there[0], 90)) != list(range(90))
    end(disk if end is die else slave)
    disk.remove_tree("/store/consumequeue")
    again = open_store(disk)
    assert "lacks entries" not in caplog.text
    assert (again.recovery.scanned_from, again.recovery.messages) == (SEGMENT, len(there))
    assert numbers(again) == there
    assert (again.min_offset("T", 0), again.max_offset("T", 0)) == (there[0], 90)


@pytest.mark.parametrize("claimed", [-10, 0, 100])
def test_the_place_of_a_message_before_a_damaged_blank_is_kept(claimed: int) -> None:
    """Whatever length it claims: where it is right, the damage ends before it."""
    disk = new_disk()
    store = open_store(disk)
    last = None
    while last is None or last.end_offset + 300 < SEGMENT:
        last = store.put(message(bytes(150)))
    lost = store.put(message(b"only one", queue=1))
    assert lost.end_offset < SEGMENT
    put(store, range(3))
    assert store.watermarks.appended > SEGMENT
    flush(store)
    store.flush_derived()
    store.checkpoint()
    die(disk)
    disk.remove_tree("/store/consumequeue")
    flip(disk, lost.physical_offset + 90)  # in its body
    left = SEGMENT - lost.end_offset
    size = (left + claimed).to_bytes(4, "big")
    overwrite(disk, f"/store/commitlog/{0:020d}", lost.end_offset, size)
    again = open_store(disk)
    gap_end = SEGMENT if claimed else lost.end_offset
    assert again.recovery.gaps == [(lost.physical_offset, gap_end)]
    assert again.max_offset("T", 1) == 1
    assert again.put(message(b"another", queue=1)).queue_offset == 1


@pytest.mark.parametrize(("at", "longer"), [(0, 1), (-1, 0), (1, 0), (-1, 1)])
def test_an_entry_that_reaches_beyond_damage_is_none_of_it(at: int, longer: int) -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, range(20))
    lost = store.put(message(b"only one" + bytes(150), queue=1))
    put(store, range(20, 25))
    save(store)
    die(disk)
    flip(disk, lost.physical_offset + 100)
    size = lost.end_offset - lost.physical_offset
    path = f"/store/consumequeue/T/1/{0:020d}"
    torn = lost.physical_offset + at, size + longer
    overwrite(disk, path, 0, struct.pack(">qi", *torn))
    again = open_store(disk)
    entry = again.queues()["T", 1].entry(0)
    assert entry is not None
    assert entry[:2] == (lost.physical_offset, size)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("lost", [range(60, 66), range(62, 81), range(70, 99), [98], range(60, 99)])
def test_entries_behind_the_checkpoint_are_put_again(lost, known: bool) -> None:
    """A power loss may have taken any of them and left the others."""
    disk = new_disk()
    store = filled(disk, 60)
    put(store, range(60, 99))
    dispatch(store)
    flush(store)
    die(disk)
    for number in lost:
        start = number // 20 * 400
        overwrite(disk, f"/store/consumequeue/T/0/{start:020d}", 20 * number - start, bytes(20))
    if not known:
        disk.unlink("/store/checkpoint")
    again = open_store(disk)
    assert (again.recovery.scanned_from > 0) is known
    assert numbers(again) == list(range(99))
    assert found(again, range(99)) == [n for n in range(99) for _ in "kb"]


@pytest.mark.parametrize("end", [die, MessageStore.close])
def test_queues_begin_with_the_log_whatever_their_files_have(end) -> None:
    disk = new_disk()
    store = filled(disk, 90)
    first = len([n for n in range(90) if store.queues()["T", 0].entry(n)[0] < SEGMENT])
    end(disk if end is die else store)
    disk.unlink(f"/store/commitlog/{0:020d}")
    change_page(disk, start=SEGMENT)
    again = open_store(disk)
    assert (again.min_offset("T", 0), again.max_offset("T", 0)) == (first, 90)
    assert numbers(again) == list(range(first, 90))
    assert again.recovery.messages <= 1

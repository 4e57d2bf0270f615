"""`saturnmq store`: what a check finds and what it forgives, that a rebuild gives the same files
and may be interrupted, what dump prints.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import posixpath
import random
import struct
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
from frame_rig import plain_frame
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.cli.main import app
from saturnmq.cli.store_dump import DumpSelection, queue_entries
from saturnmq.drills.sim.disk import PowerLoss, SimDisk
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.errors import DirectoryLocked, StoreDamaged
from saturnmq.store.derived.consumequeue import FILLER
from saturnmq.store.derived.index_items import INCOMING, ITEM
from saturnmq.store.derived.indexfile import IndexFile
from saturnmq.store.disk import Disk, NativeDisk
from saturnmq.store.inspect.rebuild import Rebuilt, rebuild
from saturnmq.store.inspect.verify import Sizes, VerifyReport, check
from saturnmq.store.inspect.verify_index import (
    IndexSizes,
    follow_chains,
    follow_chains_reference,
    match_items,
    match_items_reference,
)
from saturnmq.store.inspect.verify_report import Finding
from saturnmq.store.message_store import GetStatus, MessageStore, PendingMessage, StoreConfig
from saturnmq.store.recovery.checkpoint import Checkpoint
from store_rig import files_have_holes
from typer.testing import CliRunner

SEGMENT = 8192
QUEUE = 400
SLOTS, ITEMS = 20, 80
SIZES = Sizes(SEGMENT, QUEUE, SLOTS, ITEMS)
LOG = f"/commitlog/{0:020d}"


class Clock:
    """The part of a runtime that the store uses; every message has its own millisecond."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        self.now += 400
        return self.now


def config(root: str) -> StoreConfig:
    return StoreConfig(
        root=root,
        commitlog_segment_bytes=SEGMENT,
        consumequeue_segment_bytes=QUEUE,
        index_slots=SLOTS,
        index_items=ITEMS,
        zero_ahead_bytes=4096,
    )


def put_messages(store: MessageStore, count: int, seed: int = 3) -> None:
    rng = random.Random(seed)
    for number in range(count):
        keys = f"KEYS\x01k{number} all\x02UNIQ_KEY\x01u{number}\x02" if number % 5 else ""
        properties = f"TAGS\x01t{number % 3}\x02{keys}".encode()
        body = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
        store.put(PendingMessage(f"T{number % 2}", number % 3, body, properties))
        if number % 20 == 0:
            while store.reput():
                pass


def made(disk: Disk, root: str, count: int = 150) -> None:
    """A store that was stopped in order."""
    store = MessageStore.open(config(root), disk, Clock())
    put_messages(store, count)
    store.close()


@pytest.fixture
def disk() -> SimDisk:
    door = SimDisk(random.Random(1))
    made(door, "/store")
    return door


def checked(disk: Disk, root: str = "/store") -> VerifyReport:
    return check(disk, root, SIZES)


def whats(findings: list[Finding]) -> str:
    return "; ".join(f"{finding.what} x{finding.count}" for finding in findings)


def change(disk: Disk, path: str, at: int, data: bytes) -> None:
    """Overwrite bytes of a file behind the store's back."""
    file = disk.open_segment(path, disk.open_readonly(path).size)
    file.view[at : at + len(data)] = data
    file.flush(0, file.size)
    file.close()


def flip(disk: Disk, path: str, at: int) -> None:
    change(disk, path, at, bytes([disk.read_file(path)[at] ^ 0x10]))


def cut_power_at(door: SimDisk, place: int) -> None:
    passed = 0

    def step(operation: str, path: str) -> None:
        nonlocal passed
        if passed == place:
            raise PowerLoss
        passed += 1

    door.step = step


def frame_starts(disk: Disk) -> list[int]:
    """Of the first segment."""
    frames, pos = disk.read_file("/store" + LOG), 0
    starts = []
    while frames[pos + 4 : pos + 8] == b"\xda\xa3\x20\xa7":
        starts.append(pos)
        pos += int.from_bytes(frames[pos : pos + 4], "big")
    return starts


def bodies(disk: Disk, root: str = "/store") -> dict[tuple[str, int], list[bytes]]:
    """What consumers read, by queue."""
    store = MessageStore.open(config(root), disk, Clock())
    found = {}
    for topic, queue in store.queues():
        got, offset = [], store.min_offset(topic, queue)
        while (result := store.get_message(topic, queue, offset, 32)).next_begin_offset > offset:
            if result.status is GetStatus.FOUND:
                got += [m.body for m in decode_frames(result.data, True)]
            offset = result.next_begin_offset
        found[topic, queue] = got
    store.close()
    return found


# -- check: sound ---------------------------------------------------------------------------------


def test_a_store_stopped_in_order_is_sound(disk: SimDisk) -> None:
    report = checked(disk)
    assert (report.damage, report.notes) == ([], [])
    assert (report.messages, report.queues, report.queue_entries) == (150, 6, 150)
    assert (report.index_files, report.index_items) == (5, 120 * 3)
    assert report.log_end > 2 * SEGMENT


def test_an_empty_store_is_sound() -> None:
    door = SimDisk(random.Random(1))
    made(door, "/store", 0)
    assert checked(door).damage == []


def test_a_check_writes_nothing_and_takes_no_lock(disk: SimDisk) -> None:
    seen = set()
    disk.step = lambda operation, path: seen.add(operation)
    checked(disk)
    assert seen <= {"list", "exists", "read", "read_file", "open_readonly", "locked"}


def test_beside_a_running_broker_the_log_is_checked_up_to_its_end() -> None:
    door = SimDisk(random.Random(1))
    store = MessageStore.open(config("/store"), door, Clock())
    put_messages(store, 70)  # the last nine are not dispatched
    report = checked(door)
    assert (report.running, report.damage) == (True, [])
    assert (report.messages, report.log_end) == (70, store.watermarks.appended)
    put_messages(store, 30)
    report = checked(door)
    assert (report.messages, report.damage) == (100, [])
    store.close()
    assert not checked(door).running


def test_sizes_come_from_the_files(disk: SimDisk) -> None:
    report = check(disk, "/store", Sizes(index_slots=SLOTS))
    assert (report.damage, report.messages, report.index_items) == ([], 150, 360)


def test_index_sizes_follow_from_the_length_by_default_and_in_rocketmqs_ratio() -> None:
    assert IndexSizes.of(420_000_040) == IndexSizes(5_000_000, 20_000_000)
    assert IndexSizes.of(40 + 84 * 1000) == IndexSizes(1000, 4000)
    assert IndexSizes.of(40 + 4 * 30 + 20 * 50) is None
    assert IndexSizes.of(40 + 4 * 30 + 20 * 50, slots=30) == IndexSizes(30, 50)
    assert IndexSizes.of(40 + 4 * 30 + 20 * 50, items=50) == IndexSizes(30, 50)
    assert IndexSizes.of(40 + 4 * 30 + 20 * 50, slots=31) is None


def test_an_index_whose_sizes_cannot_be_told_is_refused_with_the_option(disk: SimDisk) -> None:
    path = posixpath.join("/store/index", disk.list("/store/index")[0].name)
    disk.remove_tree("/store/index")
    disk.make_dirs("/store/index")
    disk.create_segment(path, 40 + 4 * 30 + 20 * 50).close()
    with pytest.raises(StoreDamaged, match="--index-slots"):
        check(disk, "/store")


@pytest.mark.parametrize("root", ["/elsewhere", "/"])
def test_a_directory_without_a_store_is_named_with_what_was_expected(root: str) -> None:
    door = SimDisk(random.Random(1))
    door.make_dirs("/store/commitlog")
    with pytest.raises(StoreDamaged, match="commitlog") as refused:
        check(door, root)
    assert ("did you mean" in str(refused.value)) == (root == "/")


# -- check: the log -------------------------------------------------------------------------------


def test_any_changed_bit_of_a_frame_is_found_where_the_frame_is(disk: SimDisk) -> None:
    rng = random.Random(5)
    starts = frame_starts(disk)
    for _ in range(150):
        number = rng.randrange(len(starts) - 1)
        at = rng.randrange(starts[number], starts[number + 1])
        if at - starts[number + 1] in (*range(-21, -11), -1):
            continue  # the name of the CRC property: without it a frame has none
        flip(disk, "/store" + LOG, at)
        first = checked(disk).damage[0]
        assert (first.path, first.offset) == ("/store" + LOG, starts[number]), at
        assert first.what.startswith(f"log: {starts[number + 1] - starts[number]} bytes hold no")
        flip(disk, "/store" + LOG, at)
    assert checked(disk).damage == []


def test_a_frame_at_a_wrong_place_is_damage_though_all_its_checksums_hold(disk: SimDisk) -> None:
    starts = frame_starts(disk)
    size = starts[4] - starts[3]
    frame = disk.read_file("/store" + LOG)[starts[3] : starts[4]]
    moved = plain_frame(size, physical_offset=starts[3] + 1, queue_offset=1, topic=b"T0")
    assert len(moved) == len(frame)
    change(disk, "/store" + LOG, starts[3], moved)
    first = checked(disk).damage[0]
    assert f"says offset {starts[3] + 1}" in first.what
    assert first.offset == starts[3]


def test_a_blank_of_wrong_size_is_damage(disk: SimDisk) -> None:
    data = disk.read_file("/store" + LOG)
    at = data.index(struct.pack(">I", 0xCBD43194)) - 4
    change(disk, "/store" + LOG, at, struct.pack(">i", SEGMENT - at - 8))
    report = checked(disk)
    assert [(f.offset, f.position) for f in report.damage] == [(at, at)]
    assert "BLANK" in report.damage[0].what
    assert report.messages == 150


def test_frames_behind_zeros_are_found_again(disk: SimDisk) -> None:
    starts = frame_starts(disk)
    change(disk, "/store" + LOG, starts[5], bytes(starts[9] - starts[5]))
    report = checked(disk)
    assert (report.damage[0].offset, report.messages) == (starts[5], 146)
    assert "nothing but zeros" in report.damage[0].what
    assert len(report.damage) == 1, "entries and items of what is lost are no damage of their own"


def test_a_missing_segment_is_named_with_what_it_held(disk: SimDisk) -> None:
    disk.unlink(f"/store/commitlog/{SEGMENT:020d}")
    report = checked(disk)
    assert f"no segment holds {SEGMENT} to {2 * SEGMENT}" in whats(report.damage)
    assert f"{SEGMENT} bytes hold no frames" in whats(report.damage)
    assert 0 < report.messages < 150


def test_a_segment_of_wrong_length_is_damage_and_an_empty_last_one_is_not(disk: SimDisk) -> None:
    end = disk.list("/store/commitlog")[-1].name
    disk.write_file(f"/store/commitlog/{int(end) + SEGMENT:020d}", b"")
    report = checked(disk)
    assert (report.damage, len(report.notes)) == ([], 1)
    disk.write_file(f"/store/commitlog/{int(end) + SEGMENT:020d}", b"short")
    assert "5 bytes long" in whats(checked(disk).damage)


def test_deleted_segments_on_their_way_are_ignored_and_those_set_aside_noted(disk: SimDisk) -> None:
    for below in ("deleted", "set-aside"):
        disk.make_dirs(f"/store/commitlog/{below}")
        disk.write_file(f"/store/commitlog/{below}/{0:020d}.delete", b"old")
    report = checked(disk)
    assert report.damage == []
    assert whats(report.notes) == "log: segments of wrong length were set aside by a start x1"


def test_a_page_that_cannot_be_read_is_damage_not_the_end(disk: SimDisk) -> None:
    real = disk.open_readonly

    def open_with_a_bad_sector(path: str):
        file = real(path)
        if path.endswith(LOG):
            inner = file.read_into

            def read_into(pos: int, buffer: memoryview) -> int:
                if pos < 8192 and pos + len(buffer) > 4096:
                    raise OSError(errno.EIO, "bad sector")
                return inner(pos, buffer)

            file.read_into = read_into
        return file

    disk.open_readonly = open_with_a_bad_sector
    report = checked(disk)
    assert "the disk does not give it" in report.damage[0].what
    assert report.messages > 75


def test_what_a_crash_tore_off_is_a_note_and_recovery_does_what_it_says() -> None:
    door = SimDisk(random.Random(1))
    store = MessageStore.open(config("/store"), door, Clock())
    put_messages(store, 40)
    while store.reput():
        pass
    end = store.watermarks.appended
    last = store.put(PendingMessage("T0", 0, b"body" * 30))
    door.kill()
    door.power_on()
    segment = f"/store/commitlog/{end // SEGMENT * SEGMENT:020d}"
    flip(door, segment, end % SEGMENT + 100)
    report = checked(door)
    assert (report.crashed, report.damage, report.log_end) == (True, [], end)
    assert "torn" in whats(report.notes)
    assert last.physical_offset == end
    MessageStore.open(config("/store"), door, Clock()).close()
    report = checked(door)
    assert (report.crashed, report.damage, report.notes, report.log_end) == (False, [], [], end)


def work_for_ever(store: MessageStore, rng: random.Random) -> None:
    while True:
        put_messages(store, 2, rng.randrange(1000))
        if rng.random() < 0.5:
            while store.reput():
                pass
        if rng.random() < 0.4 and (ticket := store.begin_flush()) is not None:
            ticket.run()
            store.complete_flush(ticket)
        if rng.random() < 0.2:
            store.flush_derived()
        if rng.random() < 0.2:
            store.checkpoint()


@pytest.mark.parametrize("seed", range(20))
def test_what_a_power_cut_leaves_is_no_damage_and_the_next_start_makes_it_sound(seed: int) -> None:
    rng = random.Random(seed)
    door = SimDisk(random.Random(seed))
    store = MessageStore.open(config("/store"), door, Clock())
    cut_power_at(door, rng.randrange(20, 1500))
    with pytest.raises(PowerLoss):
        work_for_ever(store, rng)
    door.step = None
    door.power_off()
    door.power_on()
    assert checked(door).damage == []
    MessageStore.open(config("/store"), door, Clock()).close()
    report = checked(door)
    assert (report.damage, report.notes) == ([], [])


def test_bytes_behind_the_end_are_a_note(disk: SimDisk) -> None:
    end = checked(disk).log_end
    segment = f"/store/commitlog/{end // SEGMENT * SEGMENT:020d}"
    change(disk, segment, end % SEGMENT + 500, b"old")
    report = checked(disk)
    assert report.damage == []
    assert [f.offset for f in report.notes] == [end + 500]


def test_a_checkpoint_that_knows_more_than_the_log_has_is_damage(disk: SimDisk) -> None:
    page = Checkpoint.load(disk, "/store")
    page.flushed += 100
    page.save(disk, "/store")
    assert f"{page.flushed} bytes of log were durable" in whats(checked(disk).damage)


# -- check: what is derived -----------------------------------------------------------------------


def queue_file(number: int = 0) -> str:
    return f"/store/consumequeue/T0/0/{number * QUEUE:020d}"


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (bytes(20), "queue T0/0: entries are missing x1"),
        (FILLER, "queue T0/0: slots are filled that have a frame x1"),
        (struct.pack(">qiq", 1, 100, 0), "queue T0/0: entries are wrong x1"),
    ],
)
def test_an_entry_that_is_not_what_the_frame_asks_for(
    disk: SimDisk, entry: bytes, what: str
) -> None:
    change(disk, queue_file(), 60, entry)
    [finding] = checked(disk).damage
    assert f"{finding.what} x{finding.count}" == what
    assert (finding.path, finding.position) == (queue_file(), 60)
    assert finding.offset is not None


def test_wrong_tags_codes_are_damage_but_due_times_of_other_levels_are_not(disk: SimDisk) -> None:
    flip(disk, queue_file(), 19)
    assert whats(checked(disk).damage) == "queue T0/0: tags codes are wrong x1"
    door = SimDisk(random.Random(1))
    store = MessageStore.open(config("/store"), door, Clock())
    store.put(PendingMessage("SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\x02"))
    store.close()
    flip(door, f"/store/consumequeue/SCHEDULE_TOPIC_XXXX/2/{0:020d}", 19)
    report = checked(door)
    assert (report.damage, len(report.notes)) == ([], 1)


def test_entries_behind_the_last_frame_are_damage(disk: SimDisk) -> None:
    report = checked(disk)
    last = disk.list("/store/consumequeue/T0/0")[-1].name
    path = f"/store/consumequeue/T0/0/{last}"
    data = disk.read_file(path)
    used = len(data.rstrip(b"\0")) // 20 * 20 + 20
    change(disk, path, used, struct.pack(">qiq", report.log_end, 100, 0))
    change(disk, path, used + 20, struct.pack(">qiq", 3, 100, 0))
    assert whats(checked(disk).damage) == (
        "queue T0/0: entries point behind the log's end x1; queue T0/0: entries point at nothing x1"
    )


def test_a_deleted_queue_is_told_with_the_number_of_its_entries(disk: SimDisk) -> None:
    disk.remove_tree("/store/consumequeue/T1")
    report = checked(disk)
    assert sum(finding.count for finding in report.damage) == 75
    assert {finding.what for finding in report.damage} == {
        f"queue T1/{queue}: entries are missing" for queue in range(3)
    }


def test_fillers_before_and_between_entries_are_sound() -> None:
    door = SimDisk(random.Random(1))
    store = MessageStore.open(config("/store"), door, Clock())
    for queue_offset in (30, 31, 35):  # as a slave gets it whose master had deleted the rest
        end = store.watermarks.appended
        frame = plain_frame(physical_offset=end, queue_offset=queue_offset, topic=b"T0")
        store.append_raw(end, frame)
    store.close()
    report = checked(door)
    assert (report.damage, report.notes, report.queue_entries) == ([], [], 3)


def index_files(disk: SimDisk) -> list[str]:
    return [f"/store/index/{entry.name}" for entry in disk.list("/store/index")]


def item_at(number: int) -> int:
    return 40 + 4 * SLOTS + 20 * number


def test_every_changed_bit_of_an_index_file_that_means_something_is_found(disk: SimDisk) -> None:
    rng = random.Random(6)
    path = index_files(disk)[1]
    for _ in range(150):
        at = rng.randrange(item_at(ITEMS))
        if item_at(0) <= at < item_at(1):
            continue  # item 0 is not used
        flip(disk, path, at)
        report = checked(disk)
        assert report.damage, at
        assert {finding.path for finding in report.damage} <= {path, *index_files(disk)}
        flip(disk, path, at)
    assert checked(disk).damage == []


def test_a_missing_key_is_told_with_its_message(disk: SimDisk) -> None:
    path = index_files(disk)[0]
    item = ITEM.unpack_from(disk.read_file(path), item_at(7))
    change(disk, path, item_at(7), ITEM.pack(item[0] ^ 1, *item[1:]))
    report = checked(disk)
    missing = next(f for f in report.damage if f.what == "index: keys are missing")
    assert (missing.offset, missing.count) == (item[1], 1)


def test_items_of_another_broker_are_a_note_and_items_of_nothing_damage(disk: SimDisk) -> None:
    # What RocketMQ 5.4 does: it adds `topic#T#tag` behind the keys.
    store = MessageStore.open(config("/store"), disk, Clock())
    put = store.put(PendingMessage("T0", 0, b"b", b"KEYS\x01one\x02"))
    store.close()
    path = index_files(disk)[-1]
    index = IndexFile(disk.open_segment(path, item_at(ITEMS)), SLOTS, ITEMS)
    index.insert(memoryview(INCOMING.pack(77, put.physical_offset, put.store_timestamp)))
    index.file.close()
    report = checked(disk)
    assert (report.damage, len(report.notes)) == ([], 1)
    path = index_files(disk)[0]
    offset = ITEM.unpack_from(disk.read_file(path), item_at(7))[1]
    change(disk, path, item_at(7) + 4, struct.pack(">q", offset + 1))
    assert "index: items point at nothing" in whats(checked(disk).damage)


def test_without_our_checkpoint_lost_keys_and_filled_slots_are_rocketmqs_ways(
    disk: SimDisk,
) -> None:
    disk.unlink("/store/checkpoint")
    for path in index_files(disk)[:2]:
        disk.unlink(path)
    change(disk, queue_file(), 0, FILLER * 3)
    report = checked(disk)
    assert (report.foreign, report.damage) == (True, [])
    assert "keys are missing" in whats(report.notes)
    assert "slots are filled" in whats(report.notes)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(-5000, 5000))),
    st.integers(0, 40),
    st.integers(-1, 3),
    st.integers(-1, 40),
)
def test_the_loops_over_items_are_their_references(
    keys: list[tuple[int, int, int]], wrong: int, field: int, begin_time: int
) -> None:
    expected, items, newest = bytearray(), bytearray(), dict[int, int]()
    for number, (key_hash, offset, time) in enumerate(keys, 1):
        expected += INCOMING.pack(key_hash, offset, time)
        seconds = max(0, (time - begin_time) // 1000) if begin_time > 0 else 0
        item = [key_hash, offset, seconds, newest.get(key_hash % 7, 0)]
        newest[key_hash % 7] = number
        if number == wrong and field >= 0:
            item[field] += 1
        items += ITEM.pack(*item)
    ends, tables = [], []
    for match, follow in (
        (match_items, follow_chains),
        (match_items_reference, follow_chains_reference),
    ):
        table = array("i", bytes(28))
        matched = match(memoryview(expected), memoryview(items), begin_time)
        ends.append((matched, follow(memoryview(items), memoryview(table), 1)))
        tables.append(table)
    assert ends[0] == ends[1]
    assert tables[0] == tables[1]
    if field == -1 or not 0 < wrong <= len(keys):
        assert ends[0] == (len(keys), len(keys))


# -- rebuild --------------------------------------------------------------------------------------


def rebuilt(disk: Disk, root: str = "/store") -> Rebuilt:
    return rebuild(disk, root, Clock().now_ms, SIZES)


def test_a_rebuild_gives_a_sound_store_that_reads_the_same(disk: SimDisk) -> None:
    before = bodies(disk)
    for path in (queue_file(), index_files(disk)[0]):
        change(disk, path, 0, random.Random(2).randbytes(300))
    disk.remove_tree("/store/consumequeue/T1")
    assert checked(disk).damage
    built = rebuilt(disk)
    assert (built.messages, built.queues, built.index_items) == (150, 6, 360)
    report = checked(disk)
    assert (report.damage, report.notes, report.crashed) == ([], [], False)
    assert bodies(disk) == before
    assert checked(disk).damage == []


def test_a_rebuild_copes_with_whatever_became_of_the_derived_files() -> None:
    reference = SimDisk(random.Random(1))
    made(reference, "/store")
    before = bodies(reference)
    for seed in range(25):
        rng = random.Random(seed)
        door = SimDisk(rng)
        made(door, "/store")
        for _ in range(4):
            directory = rng.choice(
                ["/store/index"]
                + [f"/store/consumequeue/T{t}/{q}" for t in range(2) for q in range(3)]
            )
            names = [entry.name for entry in door.list(directory)]
            path = f"{directory}/{rng.choice(names)}"
            match rng.randrange(4):
                case 0:
                    door.rename(path, path + rng.choice(["x", "0", ".delete"]))
                case 1:
                    door.write_file(path, rng.randbytes(rng.randrange(600)))
                case 2:
                    change(door, path, 0, rng.randbytes(len(door.read_file(path))))
                case 3:
                    door.write_file(f"{directory}/{rng.randrange(999)}", b"")
        checked(door)
        rebuilt(door)
        assert checked(door).damage == [], seed
        assert bodies(door) == before, seed


def test_a_rebuild_refuses_while_a_broker_runs() -> None:
    door = SimDisk(random.Random(1))
    store = MessageStore.open(config("/store"), door, Clock())
    put_messages(store, 10)
    with pytest.raises(DirectoryLocked):
        rebuilt(door)
    store.close()
    assert checked(door).damage == []


def test_a_rebuild_passes_over_damage_and_the_next_start_keeps_what_follows(
    disk: SimDisk,
) -> None:
    starts = frame_starts(disk)
    flip(disk, "/store" + LOG, starts[3] + 90)
    built = rebuilt(disk)
    assert [(gap.start, gap.end) for gap in built.gaps] == [(starts[3], starts[4])]
    assert built.messages == 149
    assert len(checked(disk).damage) == 1
    assert sum(map(len, bodies(disk).values())) == 149


def test_a_queue_whose_messages_are_all_deleted_keeps_its_end(disk: SimDisk) -> None:
    store = MessageStore.open(config("/store"), disk, Clock())
    for _ in range(100):
        store.put(PendingMessage("T9", 0, bytes(150)))
    store.close()
    disk.unlink(f"/store/commitlog/{0:020d}")
    disk.unlink(f"/store/commitlog/{SEGMENT:020d}")
    disk.unlink(f"/store/commitlog/{2 * SEGMENT:020d}")
    ends: dict[Any, Any] = {}
    for _ in range(2):
        store = MessageStore.open(config("/store"), disk, Clock())
        ends.setdefault("T0", []).append(store.max_offset("T0", 0))
        ends.setdefault("T9", []).append((store.min_offset("T9", 0), store.max_offset("T9", 0)))
        store.close()
        rebuilt(disk)
        assert checked(disk).damage == []
    assert ends["T0"] == [25, 25]
    assert ends["T9"][0] == ends["T9"][1]


def test_an_interrupted_rebuild_is_done_by_the_next_start() -> None:
    boundaries: list[str] = []
    reference = SimDisk(random.Random(1))
    made(reference, "/store", 60)
    before = bodies(reference)
    reference.step = lambda operation, path: boundaries.append(operation)
    rebuilt(reference)
    writing = {"write_file", "rename", "unlink", "create_segment", "write", "flush", "sync_dir"}
    places = [n for n, operation in enumerate(boundaries) if operation in writing]
    assert len(places) > 30
    for seed, place in enumerate(places):
        door = SimDisk(random.Random(seed))
        made(door, "/store", 60)
        bodies(door)
        cut_power_at(door, place)
        with pytest.raises(PowerLoss):
            rebuilt(door)
        door.step = None
        door.power_off()
        door.power_on()
        assert bodies(door) == before, boundaries[place]
        assert checked(door).damage == [], boundaries[place]


def test_a_rebuild_of_a_crashed_store_leaves_recovery_to_the_next_start() -> None:
    door = SimDisk(random.Random(1))
    store = MessageStore.open(config("/store"), door, Clock())
    put_messages(store, 40)
    door.kill()
    door.power_on()
    built = rebuilt(door)
    assert built.messages == 40
    report = checked(door)
    assert (report.crashed, report.damage) == (True, [])
    door.power_off()  # what the rebuild promised was durable
    door.power_on()
    assert sum(map(len, bodies(door).values())) == 40


# -- the commands ---------------------------------------------------------------------------------

runner = CliRunner()


@pytest.fixture
def directory(tmp_path: Path) -> str:
    made(NativeDisk(), str(tmp_path / "store"))
    return str(tmp_path / "store")


def run(*arguments: str):
    return runner.invoke(app, ["store", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})


def output(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_check_says_sound_with_status_0_and_damaged_with_status_1(directory: str) -> None:
    assert output("check", directory).splitlines()[-1] == "sound"
    facts = json.loads(output("check", directory, "--json"))
    assert (facts["sound"], facts["messages"], facts["damage"]) == (True, 150, [])
    flip(NativeDisk(), directory + LOG, 60)
    flip(NativeDisk(), f"{directory}/consumequeue/T1/0/{0:020d}", 10)
    result = run("check", directory)
    assert result.exit_code == 1
    assert f"the first in {directory}{LOG} at 0" in result.output
    assert f"saturnmq store rebuild {directory}" in result.output
    facts = json.loads(run("check", directory, "--json").output)
    assert (facts["sound"], facts["damage"][0]["offset"]) == (False, 0)


def test_dump_prints_one_line_for_each_frame(directory: str) -> None:
    lines = output("dump", directory).splitlines()
    assert len(lines) == 150
    assert " T1/1@0 " in lines[1]
    assert "tag=t1 keys=k1 all" in lines[1]
    assert output("dump", directory, "-n", "2").splitlines() == lines[:2]
    assert len(output("dump", directory, "--topic", "T1", "--queue", "2").splitlines()) == 25


def test_dump_as_json_has_every_field(directory: str) -> None:
    rows = [json.loads(line) for line in output("dump", directory, "--json").splitlines()]
    assert len(rows) == 150
    assert {len(row) for row in rows} == {17}
    assert rows[1]["properties"]["UNIQ_KEY"] == "u1"
    rng = random.Random(3)
    for row in rows:
        body = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
        stored = row["body"].encode() if "body" in row else base64.b64decode(row["body_base64"])
        assert stored == body
    second = rows[1]["physical_offset"]
    part = output("dump", directory, "--json", "--from", str(second - 5), "--to", "3000")
    offsets = [json.loads(line)["physical_offset"] for line in part.splitlines()]
    assert offsets == [o for row in rows if second <= (o := row["physical_offset"]) < 3000]


def test_dump_goes_on_behind_damage_and_says_so(directory: str) -> None:
    flip(NativeDisk(), directory + LOG, 60)
    done = subprocess.run(
        [sys.executable, "-m", "saturnmq", "store", "dump", directory],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 149
    assert "at 0 hold no frames" in done.stderr


def test_dump_shows_queue_entries_index_and_summary(directory: str) -> None:
    entries = [
        json.loads(line)
        for line in output("dump", directory, "--queue-entries", "--json").split("\n")
        if line
    ]
    assert len(entries) == 150
    assert {(e["topic"], e["queue_id"]) for e in entries} == {
        (t, q) for t in ("T0", "T1") for q in range(3)
    }
    items = output("dump", directory, "--index", "--index-slots", str(SLOTS)).splitlines()
    assert len(items) == 5 + 360
    facts = json.loads(output("dump", directory, "--summary", "--json"))
    assert facts["checkpoint"]["derived"] == checked(NativeDisk(), directory).log_end
    assert (facts["queues"]["count"], facts["commitlog"]["file_bytes"]) == (6, SEGMENT)
    assert "derived" in output("dump", directory, "--summary")


@pytest.mark.parametrize("number", [203, 204, 205, 409, 819])
def test_dump_shows_an_entry_beside_a_hole_of_the_file(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry 204 ends in zeros that lie in the next page, 819 begins in such of the one before."""
    files_have_holes(monkeypatch)
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/store/commitlog")
    disk.make_dirs("/store/consumequeue/T/0")
    data = bytes(20 * number) + struct.pack(">qiq", 1500, 100, 0)
    disk.write_file(f"/store/consumequeue/T/0/{0:020d}", data.ljust(20_000, b"\0"))
    (entry,) = queue_entries(disk, "/store", Sizes(), DumpSelection())
    assert (entry.fields["queue_offset"], entry.fields["physical_offset"]) == (number, 1500)


def test_dump_into_a_closed_pipe_is_quiet(directory: str) -> None:
    done = subprocess.run(
        f"'{sys.executable}' -m saturnmq store dump '{directory}' | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


def test_rebuild_asks_or_is_told_and_says_how_fast_it_was(directory: str) -> None:
    refused = run("rebuild", directory)
    assert refused.exit_code == 1
    assert "--yes" in refused.output
    flip(NativeDisk(), f"{directory}/consumequeue/T1/0/{0:020d}", 10)
    assert "150 messages in" in output("rebuild", directory, "--yes")
    assert run("check", directory).exit_code == 0
    facts = json.loads(output("rebuild", directory, "--yes", "--json"))
    assert facts["messages_per_second"] > 0


@pytest.mark.parametrize("command", ["check", "dump", "rebuild"])
def test_what_is_no_store_costs_one_line(command: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "saturnmq", "store", command, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert "no directory commitlog" in line
    assert os.listdir(tmp_path) == []


def test_the_benchmark_of_the_kernels_runs(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "store_kernels.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--json", "--directory", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert all(row["figure"] > 0 and row["reference"] > 0 for row in facts["rows"])
    works = [row["work"] for row in facts["rows"]]
    assert set(facts["targets"]) <= set(works)
    assert os.listdir(tmp_path) == []

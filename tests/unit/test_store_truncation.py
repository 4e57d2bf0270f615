"""Truncation: what is cut is saved first, whole frames only are left, and a crash on the way leaves
the log whole or a whole copy.
"""

from __future__ import annotations

import contextlib
import errno
import json
import random
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.cli.main import app
from saturnmq.drills.sim.disk import PowerLoss, SimDisk
from saturnmq.runtime.errors import ServiceNotAvailable, StoreDamaged
from saturnmq.store.disk import NativeDisk
from saturnmq.store.log.log_files import Gap, LogReader
from saturnmq.store.log.segments import Segment
from saturnmq.store.log.truncated import SideFile, SideFiles, find_all
from saturnmq.store.message_store import MessageStore
from store_rig import (
    CONFIG,
    SEGMENT,
    Clock,
    bodies,
    dispatch,
    flush,
    message,
    new_disk,
    open_store,
)
from typer.testing import CliRunner

BODIES = [b"%d" % number * 40 for number in range(90)]


def filled(disk: SimDisk | None = None, config=CONFIG) -> MessageStore:
    """About three segments of messages, flushed and dispatched."""
    store = open_store(disk or new_disk(), config=config)
    for body in BODIES:
        store.put(message(body))
    dispatch(store)
    flush(store)
    return store


def bytes_of(store: MessageStore, start: int, end: int) -> bytes:
    found = bytearray()
    while start + len(found) < end:
        view = store.read_log(start + len(found), end - start - len(found))
        assert view
        found += view
    return bytes(found)


def place_of(store: MessageStore, number: int) -> int:
    """Where the frame of message `number` begins."""
    entry = store.queues()["T", 0].entry(number)
    assert entry is not None
    return entry[0]


def copy_to(slave: MessageStore, data: bytes, start: int = 0) -> None:
    """Give a slave bytes of its master's log as transfers do: none crosses a segment."""
    end = start + len(data)
    at = start
    while at < end:
        stop = min(end, at - at % SEGMENT + SEGMENT)
        slave.append_raw(at, data[at - start : stop - start])
        at = stop


@pytest.mark.parametrize("number", [0, 1, 40, 89])
def test_what_is_cut_lies_in_a_side_file_with_its_facts(number: int) -> None:
    disk = new_disk()
    store = filled(disk)
    at, end = place_of(store, number), store.watermarks.appended
    gone = bytes_of(store, at, end)
    store.truncate(at, reason="deposed", epoch=7)
    assert bodies(store) == BODIES[:number]
    assert store.watermarks.appended == at
    (side,) = store.truncated()
    assert side.file == f"/store/truncated/{at:020d}-{end:020d}.log"
    assert disk.platters(side.file) == gone
    document = json.loads(disk.platters(side.file.replace(".log", ".json")))
    assert (document["from"], document["to"], document["epoch"]) == (at, end, 7)
    assert document["messages"] == len(BODIES) - number
    assert document["topics"] == {"T": len(BODIES) - number}
    assert document["reason"] == "deposed"
    assert document["crc32"] == zlib.crc32(gone)
    assert document["timeMs"] == 1_700_000_000_000
    store.put(message(b"new"))
    dispatch(store)
    assert bodies(store) == [*BODIES[:number], b"new"]
    store.close()
    again = open_store(disk)
    assert bodies(again) == [*BODIES[:number], b"new"]
    assert again.truncated() == [side]


def test_a_side_file_reads_as_the_part_of_the_log_that_it_was() -> None:
    disk = new_disk()
    store = filled(disk)
    store.truncate(place_of(store, 3) + 10)
    (side,) = store.truncated()
    files = SideFile.open(disk, side.file)
    reader = LogReader(files)
    gap, *pieces = list(reader.read(files.start))
    assert (gap.start, gap.end) == (side.start, side.start + place_of_next(side, disk))
    assert sum(piece.scan.messages for piece in pieces) == len(BODIES) - 4
    assert (reader.end, reader.stopped_by) == (side.end, "")


@pytest.mark.parametrize("number", [1, 2])
def test_damage_in_a_side_file_ends_with_its_segment(number: int) -> None:
    """What is damaged is the BLANK at the end of one."""
    disk = new_disk()
    store = filled(disk)
    last = max(n for n in range(len(BODIES)) if place_of(store, n) < number * SEGMENT)
    place, size, _ = store.queues()["T", 0].entry(last)
    blank = place + size
    store.truncate(place_of(store, 3))
    (side,) = store.truncated()
    assert side.end > number * SEGMENT > blank
    disk.flip(side.file, blank - side.start + 4, 1)
    pieces = list(LogReader(SideFile.open(disk, side.file)).read(side.start))
    gaps = [(piece.start, piece.end) for piece in pieces if isinstance(piece, Gap)]
    assert gaps == [(blank, number * SEGMENT)]
    scans = [piece.scan for piece in pieces if not isinstance(piece, Gap)]
    assert sum(scan.messages for scan in scans) == len(BODIES) - 3


@pytest.mark.parametrize("given", [0, 700])
def test_what_the_log_does_not_give_is_not_saved(given: int) -> None:
    disk = new_disk()

    def read(offset: int, buffer: memoryview) -> int:
        return max(min(given - offset, len(buffer)), 0)

    with pytest.raises(ServiceNotAvailable, match=f"the log cannot be read at {given}"):
        SideFiles(disk, "/store", SEGMENT).save(
            read, 0, 1000, epoch=1, time_ms=2, reason="a disk that ends early"
        )
    assert disk.paths() == []


def place_of_next(side, disk: SimDisk) -> int:
    """Where in a side file that begins within a frame the next one does."""
    whole = open_store(new_disk())
    for body in BODIES[:4]:
        whole.put(message(body))
    assert side.file in disk.paths()
    return whole.watermarks.appended - side.start


def test_a_cut_within_a_frame_leaves_the_frames_before_it() -> None:
    store = filled()
    at = place_of(store, 50) + 33
    store.truncate(at)
    assert bodies(store) == BODIES[:50]
    assert store.watermarks.appended == at
    assert store.watermarks.dispatched == at - 33
    assert store.reput() == []


def test_a_frame_within_a_frame_is_none() -> None:
    store = filled()
    inner = store.message_at(place_of(store, 5))
    assert inner is not None
    outer = store.put(message(inner))
    dispatch(store)
    store.truncate(outer.physical_offset + 88)
    assert store.watermarks.dispatched == outer.physical_offset


def test_a_cut_behind_damage_leaves_the_frames_before_it() -> None:
    """In a segment that is not the first one."""
    disk = new_disk()
    store = filled(disk)
    number = next(n for n in range(len(BODIES)) if place_of(store, n) >= SEGMENT)
    damaged, at = place_of(store, number + 3), place_of(store, number + 10)
    disk.flip(f"/store/commitlog/{SEGMENT:020d}", damaged - SEGMENT + 4, 1)
    store.truncate(at + 33)
    assert store.watermarks.dispatched == at
    assert store.max_offset("T", 0) == number + 10


def test_a_slave_gets_the_rest_of_a_frame_that_was_cut() -> None:
    master, slave = filled(), open_store(new_disk())
    log = bytes_of(master, 0, master.watermarks.appended)
    copy_to(slave, log)
    dispatch(slave)
    at = place_of(master, 50) + 33
    slave.truncate(at)
    copy_to(slave, log[at:], at)
    dispatch(slave)
    assert bodies(slave) == BODIES
    assert bytes_of(slave, 0, len(log)) == log


@pytest.mark.parametrize("extra", [1, 7, 50])
def test_a_torn_frame_is_cut_before_a_slave_becomes_master(extra: int) -> None:
    master, slave = filled(), open_store(new_disk())
    at = place_of(master, 50)
    copy_to(slave, bytes_of(master, 0, at + extra))
    assert slave.truncate_torn() == extra
    told = b"".join(arrival.entries for arrival in slave.take_untold())
    assert len(told) == 20 * 50
    assert not slave.take_untold()
    assert slave.watermarks.appended == at
    assert [side.size for side in slave.truncated()] == [extra]
    slave.put(message(b"first of the new epoch"))
    dispatch(slave)
    assert bodies(slave) == [*BODIES[:50], b"first of the new epoch"]
    assert slave.truncate_torn() == 0


def test_a_torn_blank_is_cut_before_a_slave_becomes_master() -> None:
    master, slave = filled(), open_store(new_disk())
    last = max(n for n in range(len(BODIES)) if place_of(master, n) < SEGMENT)
    offset, size, _ = master.queues()["T", 0].entry(last)
    blank = offset + size
    copy_to(slave, bytes_of(master, 0, blank + 8))
    dispatch(slave)
    assert slave.watermarks.dispatched == blank
    assert slave.truncate_torn() == 8
    slave.put(message(b"x"))
    dispatch(slave)
    assert bodies(slave) == [*BODIES[: last + 1], b"x"]
    copied = open_store(new_disk())
    log = bytes_of(master, 0, master.watermarks.appended)
    copy_to(copied, log[: blank + 8])
    dispatch(copied)
    copy_to(copied, log[blank + 8 :], blank + 8)
    dispatch(copied)
    assert bodies(copied) == BODIES


def test_a_log_that_shares_nothing_is_emptied_and_may_begin_anywhere() -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.appended
    store.truncate(0, reason="nothing in common")
    assert store.watermarks.appended == store.watermarks.start == 0
    assert [(side.start, side.end) for side in store.truncated()] == [(0, end)]
    other = open_store(new_disk(2))
    for number in range(120):
        other.put(message(b"other %d" % number * 30))
    log = bytes_of(other, 0, other.watermarks.appended)
    copy_to(store, log[SEGMENT:], SEGMENT)
    dispatch(store)
    store.close()
    again = open_store(disk)
    assert (again.watermarks.start, again.watermarks.appended) == (SEGMENT, len(log))
    assert bytes_of(again, SEGMENT, len(log)) == log[SEGMENT:]


def test_a_crash_once_the_log_is_empty_leaves_nothing_in_the_queues() -> None:
    disk = new_disk()
    store = filled(disk)

    def crash_once_it_is_empty(operation: str, path: str) -> None:
        if not any(name.startswith("/store/commitlog/") for name in disk.paths()):
            raise PowerLoss(operation)

    disk.step = crash_once_it_is_empty
    with pytest.raises(PowerLoss):
        store.truncate(0)
    disk.step = None
    disk.kill()
    disk.power_on()
    slave = open_store(disk)
    assert [path for path in disk.paths() if "/consumequeue/" in path] == []
    other = filled()
    log = bytes_of(other, SEGMENT, other.watermarks.appended)
    first = other.queues()["T", 0].first_at_or_after(SEGMENT, 0, len(BODIES))
    copy_to(slave, log, SEGMENT)
    dispatch(slave)
    assert (slave.min_offset("T", 0), slave.max_offset("T", 0)) == (first, len(BODIES))
    assert bodies(slave) == BODIES[first:]


def test_a_cut_before_the_start_empties_the_log_and_saves_what_was_left() -> None:
    store = open_store(new_disk(), config=replace(CONFIG, file_reserved_hours=0))
    for body in BODIES:
        store.put(message(body))
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    store.clean_on_request()
    ticket = store.begin_clean()
    assert ticket is not None
    ticket.run()
    start, end = store.watermarks.start, store.watermarks.appended
    assert start >= SEGMENT
    store.truncate(start - 100)
    assert store.watermarks.appended == 0
    assert [(side.start, side.end) for side in store.truncated()] == [(start, end)]


def test_a_cut_at_the_start_keeps_the_place() -> None:
    disk = new_disk()
    slave = open_store(disk)
    other = filled()
    log = bytes_of(other, SEGMENT, other.watermarks.appended)
    copy_to(slave, log, SEGMENT)
    dispatch(slave)
    slave.truncate(SEGMENT)
    assert slave.watermarks.appended == SEGMENT
    slave.close()
    again = open_store(disk)
    assert again.watermarks.appended == SEGMENT
    copy_to(again, log, SEGMENT)


def test_nothing_is_cut_at_or_behind_the_end() -> None:
    store = filled()
    end = store.watermarks.appended
    store.truncate(end)
    store.truncate(end + 1)
    assert store.watermarks.appended == end
    assert store.truncated() == []


@pytest.mark.parametrize("operation", ["create_segment", "write", "flush", "rename", "read"])
def test_what_cannot_be_saved_is_not_cut(operation: str) -> None:
    disk = new_disk()
    store = filled(disk)
    pattern = "/store/commitlog/*" if operation == "read" else "/store/truncated/*"
    disk.plan(operation, errno.ENOSPC, pattern)
    with pytest.raises(ServiceNotAvailable, match=r"/store/truncated.*make room"):
        store.truncate(place_of(store, 30))
    assert bodies(store) == BODIES
    store.truncate(place_of(store, 30))
    assert bodies(store) == BODIES[:30]
    (side,) = store.truncated()
    assert side.messages == len(BODIES) - 30
    assert [path for path in disk.paths() if path.endswith(".tmp")] == []


def test_a_cut_that_has_no_room_for_its_checkpoint_is_none_and_can_be_made_again() -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.appended
    disk.plan("rename", errno.ENOSPC, "/store/checkpoint.tmp*")
    with pytest.raises(ServiceNotAvailable, match=r"checkpoint.*make room"):
        store.truncate(place_of(store, 30))
    assert store.watermarks.appended == store.watermarks.dispatched == end
    assert store.failed is None
    assert bodies(store) == BODIES
    store.truncate(place_of(store, 30))
    assert bodies(store) == BODIES[:30]
    assert len(store.truncated()) == 1


@pytest.mark.parametrize("operation", ["zero", "flush"])
def test_a_log_that_could_not_be_cut_takes_no_more(operation: str) -> None:
    disk = new_disk()
    store = filled(disk)
    disk.plan(operation, errno.EIO, "/store/commitlog/*")
    with pytest.raises(OSError, match="planned failure"):
        store.truncate(place_of(store, 30))
    assert store.failed is not None
    with pytest.raises(ServiceNotAvailable, match="takes no more writes"):
        store.put(message(b"more"))


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("zero", "/store/consumequeue/*"),
        ("flush", "/store/consumequeue/*"),
        ("open_readonly", "/store/consumequeue/*"),
        ("unlink", "/store/consumequeue/*"),
        ("unlink", "/store/commitlog/*"),
        ("unlink", "/store/index/*"),
    ],
)
def test_a_cut_that_fails_behind_the_log_stops_the_store_until_its_next_start(
    operation: str, pattern: str
) -> None:
    disk = new_disk()
    store = filled(disk)
    store.flush_derived()
    cut = place_of(store, 30)
    plan = disk.plan(operation, errno.EMFILE, pattern)
    with pytest.raises(OSError, match="planned failure"):
        store.truncate(cut)
    assert plan.hits == 1
    assert "could not be cut" in (store.failed or "")
    with pytest.raises(ServiceNotAvailable, match="takes no more writes"):
        store.append_raw(cut, b"")
    for queue in store.queues().values():
        queue.series.validate()
    disk.kill()
    disk.power_on()
    again = open_store(disk)
    again.truncate(cut)  # what a node does again that joins again
    assert bodies(again) == BODIES[:30]
    assert again.put(message(b"other" * 50)).queue_offset == 30
    dispatch(again)
    assert bodies(again) == [*BODIES[:30], b"other" * 50]
    assert len(again.query_by_key("T", "k", 99, 0, 1 << 60)) == 31


def test_a_second_cut_of_other_bytes_in_the_same_place_has_its_own_file() -> None:
    store = filled()
    at, end = place_of(store, 60), store.watermarks.appended
    store.truncate(at)
    for body in BODIES[60:]:
        store.put(message(body[::-1]))
    assert store.watermarks.appended == end
    store.truncate(at)
    names = [side.file for side in store.truncated()]
    assert names == [
        f"/store/truncated/{at:020d}-{end:020d}.log",
        f"/store/truncated/{at:020d}-{end:020d}.1.log",
    ]


@given(st.integers(0, len(BODIES) - 1), st.integers(1, 60), st.sampled_from(["off", "kill"]))
def test_a_crash_on_the_way_leaves_all_of_the_log_or_all_of_the_copy(
    number: int, step: int, way: str
) -> None:
    disk = new_disk(step)
    store = filled(disk)
    at, end = place_of(store, number), store.watermarks.appended
    gone = bytes_of(store, at, end)
    left = step

    def count(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerLoss(operation)

    disk.step = count
    with contextlib.suppress(PowerLoss):
        store.truncate(at)
    disk.step = None
    image = disk.crash_image(random.Random(step)) if way == "off" else disk.kill_image(disk._rng)
    again = open_store(image)
    found = again.watermarks.appended
    assert at <= found <= end
    sides = [side for side in find_all(image, "/store") if side.end == end]
    if found < end:
        assert [image.platters(side.file) for side in sides] == [gone]
    again.truncate(at)
    assert bodies(again) == BODIES[:number]
    assert len(again.truncated()) == 1, "what was saved already is not saved again"
    assert again.truncated()[0].messages == len(BODIES) - number


def test_what_consumers_could_see_is_known_after_a_restart() -> None:
    disk = new_disk()
    store = filled(disk)
    end = store.watermarks.appended
    assert store.recovered_confirm == 0
    store.watermarks.confirmed = place_of(store, 50)
    store.flush_derived()
    store.checkpoint()
    again = open_store(disk.kill_image(random.Random(1)))
    assert again.recovered_confirm == place_of(store, 50)
    again.checkpoint()
    again.truncate(place_of(store, 20))
    assert again.recovered_confirm == place_of(store, 20)
    disk = new_disk()
    filled(disk).close()
    assert open_store(disk).recovered_confirm == end, "nobody wrote it down"


@pytest.fixture
def side_file(tmp_path: Path) -> Path:
    """What was cut off a real directory, from within message 20 on."""
    config = replace(CONFIG, root=str(tmp_path / "store"))
    store = MessageStore.open(config, NativeDisk(), Clock())
    for body in BODIES:
        store.put(message(body))
    dispatch(store)
    store.truncate(place_of(store, 20) + 50, reason="deposed", epoch=3)
    store.close()
    return Path(store.truncated()[0].file)


def test_an_operator_sees_what_was_cut_off(side_file: Path) -> None:
    done = CliRunner().invoke(app, ["store", "dump", str(side_file), "--json"])
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [line["body"].encode() for line in lines] == BODIES[21:]
    assert lines[0]["topic"] == "T"
    done = CliRunner().invoke(app, ["store", "check", str(side_file), "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["sound"], report["messages"]) == (0, True, len(BODIES) - 21)
    root = str(side_file.parents[1])
    slots = str(CONFIG.index_slots)
    done = CliRunner().invoke(app, ["store", "check", root, "--index-slots", slots, "--json"])
    notes = [note["path"] for note in json.loads(done.stdout)["notes"] if "cut off" in note["what"]]
    assert notes == [str(side_file)]
    done = CliRunner().invoke(app, ["store", "dump", root, "--summary", "--json"])
    (facts,) = json.loads(done.stdout)["truncated"].values()
    assert (facts["epoch"], facts["reason"]) == (3, "deposed")


def test_damage_in_a_side_file_is_told(side_file: Path) -> None:
    data = bytearray(side_file.read_bytes())
    data[len(data) // 2] ^= 1
    side_file.write_bytes(data)
    done = CliRunner().invoke(app, ["store", "check", str(side_file), "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["messages"]) == (1, len(BODIES) - 22)
    assert len(report["damage"]) == 2, "the frame, and the checksum of the file"


def test_a_side_file_without_its_facts_can_be_read(side_file: Path) -> None:
    side_file.with_suffix(".json").unlink()
    done = CliRunner().invoke(
        app, ["store", "check", str(side_file), "--segment-bytes", str(SEGMENT), "--json"]
    )
    assert json.loads(done.stdout)["messages"] == len(BODIES) - 21


def test_another_file_is_no_side_file(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"1")
    done = CliRunner().invoke(app, ["store", "check", str(tmp_path / "x.log")])
    assert isinstance(done.exception, StoreDamaged)
    assert "no side file" in str(done.exception)


def test_bytes_that_were_copied_count_if_there_is_no_room_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = open_store(new_disk()), open_store(new_disk())
    while master.watermarks.appended < SEGMENT + 500:
        master.put(message(bytes(150)))
    first = bytes(master.read_log(0, SEGMENT) or b"")
    second = bytes(master.read_log(SEGMENT, 400) or b"")
    create = slave._log.series.create

    def full(start: int) -> Segment:
        if start:
            raise OSError(errno.ENOSPC, "no room")
        return create(start)

    monkeypatch.setattr(slave._log.series, "create", full)
    with pytest.raises(ServiceNotAvailable):
        slave.append_raw(0, first + second)
    assert slave.watermarks.appended == SEGMENT
    slave.validate()

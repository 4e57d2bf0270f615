"""A check of a whole store: what it tells of log, checkpoint and directories, and how far it is."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from frame_rig import plain_frame
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.frame import BLANK_MAGIC
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.consumequeue import ENTRY
from saturnmq.store.inspect.verify import (
    Sizes,
    VerifyReport,
    check,
    check_side_file,
    expected_end,
    found_sizes,
    open_log,
    trust_in,
)
from saturnmq.store.inspect.verify_report import CERTAIN, Finding
from saturnmq.store.log.log_files import SegmentFiles
from saturnmq.store.log.truncated import SideFiles
from saturnmq.store.recovery.checkpoint import MAGIC, MAGIC_BEFORE, PAGE, Checkpoint
from store_rig import new_disk

SEGMENT = 1000
FIRST = 3000  # the log's first segments are deleted
LOG = f"/store/commitlog/{FIRST:020d}"


def frame(
    at: int, size: int = 200, *, topic: str = "T", queue_id: int = 0, number: int = 0, time: int = 1
) -> bytes:
    return plain_frame(
        size,
        physical_offset=at,
        queue_offset=number,
        queue_id=queue_id,
        store_timestamp=time,
        topic=topic.encode(),
    )


def blank(size: int) -> bytes:
    return struct.pack(">iI", size, BLANK_MAGIC).ljust(size, b"\0")


def write_log(disk: SimDisk, *segments: bytes) -> None:
    disk.make_dirs("/store/commitlog")
    for number, data in enumerate(segments):
        path = f"/store/commitlog/{FIRST + SEGMENT * number:020d}"
        disk.write_file(path, data.ljust(SEGMENT, b"\0"))


def write_queue(disk: SimDisk, *places: int, path: str = "T/0", size: int = 200) -> None:
    disk.make_dirs(f"/store/consumequeue/{path}")
    data = b"".join(ENTRY.pack(place, size, 0) for place in places)
    disk.write_file(f"/store/consumequeue/{path}/{0:020d}", data.ljust(200, b"\0"))


def two_segments() -> list[bytes]:
    """Five messages of 200 B, then two; the log ends at 4400."""
    frames = [frame(FIRST + 200 * n, number=n, time=100 + n) for n in range(7)]
    return [b"".join(frames[:5]), b"".join(frames[5:])]


def sound_store(*, flushed: int = 4400, derived: int = 4400) -> SimDisk:
    disk = new_disk()
    write_log(disk, *two_segments())
    write_queue(disk, *range(FIRST, 4400, 200))
    Checkpoint(derived=derived, flushed=flushed).save(disk, "/store")
    return disk


def told(findings: Iterable[Finding]) -> list[tuple[str, str, int, int | None, int]]:
    return [
        (f.what, f.path.removeprefix("/store"), f.position, f.offset, f.count) for f in findings
    ]


def checked(disk: SimDisk) -> VerifyReport:
    return check(disk, "/store")


def test_a_report_counts_what_there_is() -> None:
    report = checked(sound_store())
    assert (report.damage, report.notes) == ([], [])
    assert (report.running, report.crashed, report.foreign) == (False, False, False)
    assert (report.log_start, report.log_end, report.messages) == (FIRST, 4400, 7)
    assert (report.queues, report.queue_entries) == (1, 7)
    assert (report.index_files, report.index_items) == (0, 0)


def test_progress_is_told_in_bytes_of_the_log() -> None:
    disk = sound_store()
    steps: list[tuple[int, int]] = []
    check(disk, "/store", progress=lambda *step: steps.append(step))
    # told is where what was read last begins, and where the log ends when it has been read
    assert steps == [(0, 2000), (1000, 2000), (1400, 1400)]
    assert expected_end(open_log(disk, "/store")) == 5000
    assert expected_end(SegmentFiles(disk, "/nowhere")) == 0


# frames


@pytest.mark.parametrize(
    ("fields", "sound"),
    [
        ({"topic": "a/b"}, False),
        ({"topic": "."}, False),
        ({"topic": ".."}, False),
        ({"topic": "..."}, True),
        ({"queue_id": -1}, False),
        ({"queue_id": 1}, True),
        ({"number": -1}, False),
        ({"topic": "U"}, True),
    ],
)
def test_a_frame_that_no_queue_can_be_made_for_is_damage(fields, sound: bool) -> None:
    disk = new_disk()
    first, _ = two_segments()
    write_log(disk, first, frame(4000, **fields))
    write_queue(disk, *range(FIRST, 4000, 200))
    Checkpoint(derived=4200, flushed=4200).save(disk, "/store")
    report = checked(disk)
    topic, queue = fields.get("topic", "T"), fields.get("queue_id", 0)
    if sound:
        assert [f[0] for f in told(report.damage)] == [
            f"queue {topic}/{queue}: entries are missing"
        ]
    else:
        number = fields.get("number", 0)
        what = f"log: a frame of topic {topic!r}, queue {queue}, queue offset {number} cannot be"
        assert told(report.damage) == [(what, f"/commitlog/{4000:020d}", 0, 4000, 1)]
    assert report.messages == 6


@pytest.mark.parametrize(("time", "backwards"), [(99, True), (100, False), (101, False)])
def test_store_times_that_run_backwards_are_a_note(time: int, backwards: bool) -> None:
    disk = new_disk()
    first = frame(FIRST, 900, time=100) + blank(100)
    write_log(disk, first, blank(1000), frame(5000, number=1, time=time))
    write_queue(disk, FIRST, size=900)
    queue = f"/store/consumequeue/T/0/{0:020d}"
    data = bytearray(disk.read_file(queue))
    data[20:40] = ENTRY.pack(5000, 200, 0)
    disk.write_file(queue, bytes(data))
    Checkpoint(derived=5200, flushed=5200).save(disk, "/store")
    report = checked(disk)
    expected = [("log: store times run backwards", f"/commitlog/{5000:020d}", 0, 5000, 1)]
    assert (report.damage, told(report.notes)) == ([], expected if backwards else [])


def test_messages_of_a_clock_that_stands_at_0_do_not_run_backwards() -> None:
    disk = sound_store()
    disk.lose(LOG)
    disk.write_file(LOG, b"".join(frame(FIRST + 200 * n, number=n, time=0) for n in range(5)))
    report = checked(disk)
    assert (report.damage, report.notes) == ([], [])


def damage_body(disk: SimDisk, at: int) -> None:
    disk.flip(f"/store/commitlog/{at - at % SEGMENT:020d}", at % SEGMENT + 150, 0)


def test_what_was_durable_and_is_damaged_is_a_gap() -> None:
    disk = sound_store()
    damage_body(disk, 3400)
    report = checked(disk)
    ((what, path, position, offset, count),) = told(report.damage)
    assert what.startswith("log: 200 bytes hold no frames: body CRC")
    assert (path, position, offset, count) == (LOG.removeprefix("/store"), 400, 3400, 1)
    assert (report.messages, report.notes) == (6, [])


def test_each_gap_is_told_also_of_the_same_length_for_the_same_reason() -> None:
    places = [(3200, 3400), (3600, 3800)]
    damaged = bytearray(two_segments()[0])
    for start, end in places:
        damaged[start - FIRST : end - FIRST] = bytes(200)
    disk = sound_store()
    disk.lose(LOG)
    disk.write_file(LOG, bytes(damaged))
    expected = [("log: 200 bytes hold no frames: there is nothing but zeros", s) for s, _ in places]
    assert [(f.what, f.offset) for f in checked(disk).damage] == expected
    path = side_file(disk, FIRST, 4400)
    assert [(f.what, f.offset) for f in check_side_file(disk, path).damage] == expected


@pytest.mark.parametrize("known", ["flushed", "derived"])
@pytest.mark.parametrize(("at", "gap"), [(3600, False), (3601, True)])
def test_what_nobody_was_promised_is_the_torn_end(known: str, at: int, gap: bool) -> None:
    disk = sound_store(**{"flushed": 3000, "derived": 3000, known: at})
    damage_body(disk, 3600)
    report = checked(disk)
    if gap:
        assert "log: 200 bytes hold no frames" in report.damage[0].what
        assert report.log_end == 4400
    else:
        (note,) = [f for f in told(report.notes) if f[0].startswith("log: ")]
        assert "its end is torn (body CRC" in note[0]
        assert note[1:] == (LOG.removeprefix("/store"), 600, 3600, 1)
        assert report.log_end == 3600


def test_bytes_behind_the_end_are_told_where_they_are() -> None:
    disk = sound_store()
    disk.flip(f"/store/commitlog/{4000:020d}", 700, 1)
    what = "log: bytes behind its end are not zero; the next start clears them"
    assert told(checked(disk).notes) == [(what, f"/commitlog/{4000:020d}", 700, 4700, 1)]


def test_a_full_log_has_nothing_behind_its_end() -> None:
    disk = new_disk()
    write_log(disk, two_segments()[0])
    write_queue(disk, *range(FIRST, 4000, 200))
    Checkpoint(derived=4000, flushed=4000).save(disk, "/store")
    report = checked(disk)
    assert (report.damage, report.notes, report.log_end) == ([], [], 4000)


# a broker that runs, one that crashed, and another one


def test_beside_a_running_broker_the_end_is_where_the_check_began() -> None:
    disk = sound_store(derived=3600)
    lock = disk.lock("/store/lock")
    files = open_log(disk, "/store")
    trust = trust_in(disk, "/store", files, Checkpoint.load(disk, "/store"))
    assert (trust.running, trust.log_start, trust.log_end) == (True, FIRST, 4400)
    assert (trust.below, trust.foreign) == (3600, False)
    disk.flip(f"/store/commitlog/{4000:020d}", 700, 1)  # it writes there
    report = checked(disk)
    assert (report.running, report.messages, report.damage, report.notes) == (True, 7, [], [])
    lock.release()
    trust = trust_in(disk, "/store", files, Checkpoint.load(disk, "/store"))
    assert (trust.running, trust.log_end, trust.below) == (False, 5000, CERTAIN)


def test_the_end_of_a_running_log_lies_in_its_last_segment_that_is_used() -> None:
    disk = sound_store(flushed=4200)
    disk.write_file(f"/store/commitlog/{5000:020d}", bytes(SEGMENT))  # made ahead
    disk.lock("/store/lock")
    files = open_log(disk, "/store")
    page = Checkpoint.load(disk, "/store")
    assert trust_in(disk, "/store", files, page).log_end == 4400
    damage_body(disk, 4200)
    assert trust_in(disk, "/store", files, page).log_end == 4200
    damage_body(disk, 4200)
    damage_body(disk, 4000)  # durable, and a frame follows
    assert trust_in(disk, "/store", files, page).log_end == 4400


def test_damage_in_an_earlier_segment_does_not_end_the_log_of_a_running_broker() -> None:
    disk = sound_store(flushed=FIRST, derived=FIRST)
    damage_body(disk, 3400)
    disk.lock("/store/lock")
    trust = trust_in(disk, "/store", open_log(disk, "/store"), Checkpoint.load(disk, "/store"))
    assert trust.log_end == 4400


@pytest.mark.parametrize(("flushed", "end"), [(0, 4200), (-1, 4600)])
def test_beside_a_running_broker_without_a_flush_damage_ends_the_log_unless_it_is_anothers(
    flushed: int, end: int
) -> None:
    disk = sound_store(flushed=flushed, derived=flushed)
    write = frame(4000, number=5) + bytes(200) + frame(4400, number=7)
    disk.lose(f"/store/commitlog/{4000:020d}")
    disk.write_file(f"/store/commitlog/{4000:020d}", write.ljust(SEGMENT, b"\0"))
    disk.lock("/store/lock")
    trust = trust_in(disk, "/store", open_log(disk, "/store"), Checkpoint.load(disk, "/store"))
    assert trust.log_end == end


@pytest.mark.parametrize(("derived", "below"), [(3600, 3600), (0, 0), (-1, 0)])
def test_after_a_crash_what_is_derived_counts_as_far_as_the_checkpoint_says(
    derived: int, below: int
) -> None:
    disk = sound_store(derived=derived)
    disk.write_file("/store/abort", b"")
    files = open_log(disk, "/store")
    trust = trust_in(disk, "/store", files, Checkpoint.load(disk, "/store"))
    assert (trust.below, trust.running, trust.foreign) == (below, False, False)
    report = checked(disk)
    assert (report.crashed, report.running, report.foreign) == (True, False, False)


@pytest.mark.parametrize(
    ("derived", "flushed", "foreign"), [(-1, -1, True), (0, -1, False), (-1, 0, False)]
)
def test_a_checkpoint_that_says_nothing_is_anothers(
    derived: int, flushed: int, foreign: bool
) -> None:
    assert checked(sound_store(derived=derived, flushed=flushed)).foreign == foreign


# the checkpoint


@pytest.mark.parametrize("magic", [MAGIC, MAGIC_BEFORE])
def test_what_is_wrong_with_the_checkpoint_is_told(magic: bytes) -> None:
    disk = sound_store()
    disk.lose("/store/checkpoint")
    report = checked(disk)
    there_is_none = ("checkpoint: there is none", "/checkpoint", 0, None, 1)
    assert (report.damage, told(report.notes)) == ([], [there_is_none])
    disk.write_file("/store/checkpoint", bytes(PAGE - 1))
    report = checked(disk)
    wrong = (f"checkpoint: {PAGE - 1} bytes long, not {PAGE}", "/checkpoint", 0, None, 1)
    assert (told(report.damage), report.notes) == ([wrong], [])
    disk.write_file("/store/checkpoint", bytes(64) + magic + bytes(PAGE - 72))
    report = checked(disk)
    damaged = "checkpoint: damaged, or another broker ran since ours; it counts as RocketMQ's"
    assert (report.damage, told(report.notes)) == ([], [(damaged, "/checkpoint", 64, None, 1)])
    disk.write_file("/store/checkpoint", bytes(PAGE))
    report = checked(disk)
    assert (report.damage, report.notes, report.foreign) == ([], [], True)


@pytest.mark.parametrize(("flushed", "derived"), [(4401, 4400), (4400, 4401)])
def test_a_checkpoint_knows_no_more_than_the_log_has(flushed: int, derived: int) -> None:
    report = checked(sound_store(flushed=flushed, derived=derived))
    what = "checkpoint: 4401 bytes of log were durable, it ends at 4400"
    assert told(report.damage) == [(what, "/checkpoint", 64, 4400, 1)]


# directories


def test_what_is_set_aside_or_cut_off_is_noted() -> None:
    disk = sound_store()
    disk.make_dirs("/store/commitlog/set-aside")
    for name in "ab":
        disk.write_file(f"/store/commitlog/set-aside/{name}", b"")
    side = SideFiles(disk, "/store", SEGMENT)
    saved = side.save(
        open_log(disk, "/store").read_into, 4000, 4400, epoch=1, time_ms=5, reason="a test"
    )
    report = checked(disk)
    assert told(report.notes) == [
        (
            "log: segments of wrong length were set aside by a start",
            *("/commitlog/set-aside", 0, None, 2),
        ),
        (
            "log: 2 messages from 4000 on were cut off",
            *(saved.file.removeprefix("/store"), 0, 4000, 1),
        ),
    ]
    assert report.damage == []


def test_a_directory_without_a_log_may_be_a_store_that_has_none_yet() -> None:
    disk = new_disk()
    disk.make_dirs("/a/store/commitlog")
    with pytest.raises(StoreDamaged) as refused:
        open_log(disk, "/a")
    assert "/a is no store" in str(refused.value)
    assert "did you mean /a/store?" in str(refused.value)
    assert open_log(disk, "/a/store").segments == []
    disk.write_file("/a/checkpoint", bytes(PAGE))
    assert open_log(disk, "/a").segments == []


def test_a_size_that_no_file_tells_is_asked_for() -> None:
    disk = new_disk()
    disk.make_dirs("/store/commitlog")
    for name in ("0", "00"):
        disk.write_file(f"/store/commitlog/{name}", bytes(SEGMENT))
    with pytest.raises(StoreDamaged, match="--segment-bytes"):
        open_log(disk, "/store")
    assert open_log(disk, "/store", Sizes(segment_bytes=SEGMENT)).segment_bytes == SEGMENT


def test_sizes_are_those_of_most_files_or_the_default() -> None:
    disk = new_disk()
    disk.make_dirs("/store/commitlog")
    usual = Sizes(0, 6_000_000, 5_000_000, 20_000_000, 13_800_000)
    assert found_sizes(disk, "/store", Sizes()) == usual
    for queue, size in (("T/0", 400), ("T/1", 600), ("U/0", 600), ("V/0", 0), ("V/1", 0)):
        disk.make_dirs(f"/store/consumequeue/{queue}")
        disk.write_file(f"/store/consumequeue/{queue}/{0:020d}", bytes(size))
    disk.make_dirs("/store/consumequeue/V/2")
    disk.make_dirs("/store/index")
    disk.write_file("/store/index/notes", bytes(40 + 84 * 3))
    assert found_sizes(disk, "/store", Sizes()) == Sizes(0, 600, 5_000_000, 20_000_000, 13_800_000)
    disk.write_file(f"/store/index/{1:017d}", bytes(41))
    disk.write_file(f"/store/index/{2:017d}", bytes(40 + 84 * 9))
    assert found_sizes(disk, "/store", Sizes()) == Sizes(0, 600, 9, 36, 13_800_000)
    assert found_sizes(disk, "/store", Sizes(7, 8, 4, 37, 5)) == Sizes(7, 8, 4, 37, 5)


# what a truncation cut off


def side_file(disk: SimDisk, start: int, end: int) -> str:
    sides = SideFiles(disk, "/store", SEGMENT)
    files = open_log(disk, "/store")
    saved = sides.save(files.read_into, start, end, epoch=1, time_ms=5, reason="a test")
    return saved.file


def test_a_side_file_is_checked_like_the_log_that_it_was() -> None:
    disk = sound_store()
    path = side_file(disk, 3400, 4400)
    steps: list[tuple[int, int]] = []
    report = check_side_file(disk, path, progress=lambda *step: steps.append(step))
    assert (report.damage, report.notes) == ([], [])
    assert (report.directory, report.log_start, report.log_end) == (path, 3400, 4400)
    assert (report.messages, steps) == (5, [(0, 1000), (600, 1000), (1000, 1000)])
    assert (report.running, report.crashed, report.foreign) == (False, False, False)
    assert (report.queues, report.queue_entries) == (0, 0)
    assert (report.index_files, report.index_items) == (0, 0)


def test_a_cut_may_go_through_frames() -> None:
    disk = sound_store()
    path = side_file(disk, 3350, 4350)
    report = check_side_file(disk, path)
    (begin, end) = told(report.notes)
    assert begin[0].startswith("log: 50 bytes hold no frames")
    assert (begin[2:], end[2:]) == ((0, 3350, 1), (850, 4200, 1))
    assert end[0].startswith("log: it ends within a frame")
    assert (report.damage, report.messages) == ([], 4)


def test_damage_of_a_side_file_is_told_with_its_checksum() -> None:
    disk = sound_store()
    path = side_file(disk, 3400, 4400)
    disk.flip(path, 350, 0)
    report = check_side_file(disk, path)
    gap, checksum = told(report.damage)
    assert gap[0].startswith("log: 200 bytes hold no frames: body CRC")
    assert gap[2:] == (200, 3600, 1)
    what = "log: its checksum is not the one that was written down"
    assert checksum == (what, path.removeprefix("/store"), 0, None, 1)
    assert (report.notes, report.messages) == ([], 4)

"""Queues held against what the log asks for: each kind of difference, at its slot, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from saturnmq.drills.sim.disk import SimDisk, SimSegment
from saturnmq.store.derived.consumequeue import ENTRY
from saturnmq.store.derived.tombstones import Tombstone
from saturnmq.store.inspect.verify_queues import QueueCheck, QueueChecks
from saturnmq.store.inspect.verify_report import CERTAIN, Findings, Trust
from saturnmq.store.log.log_files import SegmentFiles
from store_rig import files_have_holes, new_disk

Slot = tuple[int, int, int]
Found = tuple[str, str, int, int | None, int, bool]  # what, file, position, offset, count, a note

PER_FILE = 5
FILE_BYTES = 20 * PER_FILE
ABSENT, FILLED = (0, 0, 0), (0, 0x7FFFFFFF, 0)
LOG_START, LOG_END = 1000, 9000
CODE_OF_EXT = -(1 << 31) - 1


def entry(number: int) -> Slot:
    return 1000 + 100 * number, 100, number


def entries(*numbers: int) -> list[Slot]:
    return [entry(number) for number in numbers]


def packed(slots: list[Slot]) -> bytes:
    return b"".join(ENTRY.pack(*slot) for slot in slots)


def write_queue(disk: SimDisk, slots: list[Slot], first: int = 0, path: str = "/cq/T/0") -> None:
    """The files of a queue whose slots, from `first` on, are these."""
    disk.make_dirs(path)
    begin = first - first % PER_FILE
    data = packed([ABSENT] * (first - begin) + slots)
    for at in range(0, len(data), FILE_BYTES):
        name = f"{path}/{20 * begin + at:020d}"
        disk.write_file(name, data[at : at + FILE_BYTES].ljust(FILE_BYTES, b"\0"))


def trust(**changes: Any) -> Trust:
    settled = {"log_start": LOG_START, "log_end": LOG_END, "below": CERTAIN}
    return Trust(**(settled | {"running": False, "foreign": False} | changes))


def told(findings: Findings) -> list[Found]:
    return [
        (
            f.what.partition(": ")[2],
            f.path[-20:].lstrip("0") or "0",
            f.position,
            f.offset,
            f.count,
            note,
        )
        for note, kind in ((False, findings.damage), (True, findings.notes))
        for f in kind
    ]


def differences(disk: SimDisk, *runs: tuple[int, list[Slot]], **changes: Any) -> list[Found]:
    """What is told of queue T/0 when the log asks for these runs of it."""
    findings = Findings()
    checks = QueueChecks(disk, "/cq", 0, findings, trust(**changes))
    for first, wanted in runs:
        checks.expect([("T", 0, first, len(wanted), packed(wanted))])
    checks.finish()
    assert checks.table["T", 0].entries == sum(len(wanted) for _, wanted in runs)
    assert all(finding.what.startswith("queue T/0: ") for finding in findings.damage)
    return told(findings)


def test_a_queue_that_holds_what_the_log_asks_for_is_sound() -> None:
    disk = new_disk()
    write_queue(disk, entries(*range(12)))
    assert differences(disk, (0, entries(*range(12)))) == []
    assert differences(disk, *((n, entries(n)) for n in range(12))) == []


@pytest.mark.parametrize("index", [0, 3, 5, 11])
@pytest.mark.parametrize(
    ("slot", "what"),
    [
        (ABSENT, "entries are missing"),
        (FILLED, "slots are filled that have a frame"),
        ((1, 0, 0), "entries are wrong"),
        ((0, 0, 1), "entries are wrong"),
        ((None, 100, 99), "tags codes are wrong"),
        ((None, 100, CODE_OF_EXT), "tags codes are wrong"),
        ((None, 99, None), "entries are wrong"),
        ((4321, 100, None), "entries are wrong"),
    ],
)
def test_a_slot_that_differs_is_told_with_its_place(index: int, slot: Slot, what: str) -> None:
    disk = new_disk()
    wanted = entries(*range(12))
    have = [*wanted]
    have[index] = tuple(
        own if given is None else given for given, own in zip(slot, wanted[index], strict=True)
    )
    write_queue(disk, have)
    start = 20 * (index - index % PER_FILE)
    place = (str(start), 20 * index - start, wanted[index][0])
    assert differences(disk, (0, wanted)) == [(what, *place, 1, False)]


@pytest.mark.parametrize("index", [0, 3275, 3276, 3277, 6551, 6552, 9999])
@pytest.mark.parametrize("run", [1, 7000, 10000])
def test_a_long_queue_is_compared_to_its_last_slot(index: int, run: int) -> None:
    disk = new_disk()
    wanted = entries(*range(10_000))
    have = [*wanted]
    have[index] = ABSENT
    disk.make_dirs("/cq/T/0")
    disk.write_file(f"/cq/T/0/{0:020d}", packed(have))
    runs = [(first, wanted[first : first + run]) for first in range(0, 10_000, run)]
    expected = [("entries are missing", "0", 20 * index, wanted[index][0], 1, False)]
    assert differences(disk, *runs) == expected


def test_a_queue_alone_has_no_addresses_for_tags_codes_unless_told() -> None:
    disk = new_disk()
    write_queue(disk, [(1000, 100, CODE_OF_EXT)])
    for told_of, what in (({}, "tags codes are wrong"), ({"extended": True}, "tags codes refer")):
        findings = Findings()
        files = SegmentFiles(disk, "/cq/T/0")
        check = QueueCheck(files, "T/0", findings, trust(), **told_of)
        check.expect(0, 1, packed(entries(0)))
        check.finish()
        assert [f[0].startswith(what) for f in told(findings)] == [True]


@pytest.mark.parametrize(("code", "note"), [(CODE_OF_EXT, True), (CODE_OF_EXT + 1, False)])
def test_a_tags_code_may_be_an_address_where_there_are_such(code: int, note: bool) -> None:
    disk = new_disk()
    disk.make_dirs("/cq_ext")
    write_queue(disk, [(1000, 100, code)])
    what = "tags codes refer to consumequeue_ext" if note else "tags codes are wrong"
    assert differences(disk, (0, entries(0))) == [(what, "0", 0, 1000, 1, note)]


def test_due_times_of_other_levels_are_a_note() -> None:
    disk = new_disk()
    topic = "SCHEDULE_TOPIC_XXXX"
    write_queue(disk, [(1000, 100, 99)], path=f"/cq/{topic}/3")
    findings = Findings()
    checks = QueueChecks(disk, "/cq", 0, findings, trust())
    checks.expect([(topic, 3, 0, 1, packed(entries(0)))])
    checks.finish()
    what = "messages are due at times of other delay levels"
    assert told(findings) == [(what, "0", 0, 1000, 1, True)]


def test_what_rocketmq_loses_and_what_is_built_again_are_notes() -> None:
    disk = new_disk()
    write_queue(disk, [FILLED, entry(1)])
    what = "slots are filled that have a frame"
    assert differences(disk, (0, entries(0, 1)), foreign=True) == [(what, "0", 0, 1000, 1, True)]
    for below, note in ((1000, True), (1001, False)):
        found = differences(disk, (0, entries(0, 1)), below=below)
        assert found == [(what, "0", 0, 1000, 1, note)]


@pytest.mark.parametrize(
    ("slot", "what"),
    [
        (FILLED, None),
        ((2000, 100, 7), None),  # a gap of the log
        ((2099, 100, 7), None),
        ((2100, 100, 7), "entries point at nothing"),
        ((999, 100, 7), None),  # deleted with its segment
        ((1000, 100, 7), "entries point at nothing"),
        (ABSENT, "there is a hole"),
        ((0, 0, 3), "there is a hole"),
        ((999, -1, 0), "entries point at nothing"),
        ((999, 1, 0), None),
        ((0, 0x7FFFFFFF, 1), None),
    ],
)
@pytest.mark.parametrize("index", [0, 4, 6])
def test_slots_before_an_entry_that_nothing_asks_for(
    slot: Slot, what: str | None, index: int
) -> None:
    disk = new_disk()
    slots = [FILLED] * 7 + entries(7, 8)
    slots[index] = slot
    write_queue(disk, slots)
    start = 20 * (index - index % PER_FILE)
    place = (str(start), 20 * index - start, slot[0])
    expected = [(what, *place, 1, False)] if what else []
    assert differences(disk, (7, entries(7, 8)), gaps=[(2000, 2100)]) == expected


@pytest.mark.parametrize(("start", "what"), [(0, ["entries point at nothing"]), (1, [])])
def test_only_before_the_logs_start_entries_may_be_left_over(start: int, what: list[str]) -> None:
    disk = new_disk()
    write_queue(disk, [(0, 100, 7), entry(1)])
    found = differences(disk, (1, entries(1)), log_start=start)
    assert [f[0] for f in found] == what


def test_a_long_stretch_that_nothing_asks_for_is_looked_at_to_its_last_slot() -> None:
    for index in (0, 3275, 3276, 6552, 9998):
        disk = new_disk()
        slots = [FILLED] * 9999 + entries(1)
        slots[index] = ABSENT
        disk.make_dirs("/cq/T/0")
        disk.write_file(f"/cq/T/0/{0:020d}", packed(slots))
        expected = [("there is a hole", "0", 20 * index, 0, 1, False)]
        assert differences(disk, (9999, entries(1))) == expected


@pytest.mark.parametrize("claimed", [30, 1 << 31, 1 << 58])
def test_a_place_that_no_file_holds_is_told_at_once_however_far_it_is(claimed: int) -> None:
    """As a damaged frame may claim it."""
    disk = new_disk()
    write_queue(disk, entries(*range(20)))
    found = differences(disk, (0, entries(*range(20))), (claimed, entries(21)))
    assert [f[0] for f in found] == ["there is a hole", "entries are missing"]
    assert [f[4] for f in found] == [claimed - 20, 1]


def test_the_slots_of_files_that_are_gone_are_counted() -> None:
    disk = new_disk()
    write_queue(disk, entries(*range(20)))
    disk.unlink(f"/cq/T/0/{FILE_BYTES:020d}")
    files, findings = SegmentFiles(disk, "/cq/T/0", FILE_BYTES), Findings()
    check = QueueCheck(files, "T/0", findings, trust(), first=0)
    check.judge_surplus(0, 20)
    assert [(f[0], f[4]) for f in told(findings)] == [
        ("entries point at nothing", 5),
        ("there is a hole", 5),
        ("entries point at nothing", 5),
        ("entries point at nothing", 5),
    ]


@pytest.mark.parametrize(
    ("slot", "running", "what"),
    [
        (ABSENT, False, None),
        (FILLED, False, None),
        ((2000, 100, 7), False, None),
        ((999, 100, 7), False, None),
        ((999, 1, 7), False, None),
        ((999, 0, 7), False, "entries point at nothing"),
        ((1000, 100, 7), False, "entries point at nothing"),
        ((LOG_END - 1, 100, 7), False, "entries point at nothing"),
        ((LOG_END, 100, 7), False, "entries point behind the log's end"),
        ((LOG_END - 1, 100, 7), True, "entries point at nothing"),
        ((LOG_END, 100, 7), True, None),
    ],
)
@pytest.mark.parametrize("index", [2, 4, 5, 9])
def test_slots_behind_the_last_entry(
    slot: Slot, running: bool, what: str | None, index: int
) -> None:
    disk = new_disk()
    slots = entries(0, 1) + [ABSENT] * 8
    slots[index] = slot
    write_queue(disk, slots)
    start = 20 * (index - index % PER_FILE)
    place = (str(start), 20 * index - start, slot[0])
    expected = [(what, *place, 1, False)] if what else []
    found = differences(disk, (0, entries(0, 1)), gaps=[(2000, 2100)], running=running)
    assert found == expected


@pytest.mark.parametrize("index", [1, 3276, 3277, 3278, 9999])
def test_what_stands_behind_is_looked_at_to_the_end_of_the_file(index: int) -> None:
    disk = new_disk()
    slots = entries(0) + [ABSENT] * 9999
    slots[index] = entry(5)
    disk.make_dirs("/cq/T/0")
    disk.write_file(f"/cq/T/0/{0:020d}", packed(slots))
    expected = [("entries point at nothing", "0", 20 * index, 1500, 1, False)]
    assert differences(disk, (0, entries(0))) == expected


@pytest.mark.parametrize("index", [1, 203, 204, 205, 409, 613, 614])
def test_what_stands_beside_a_hole_of_the_file_is_looked_at(
    index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry 204 ends in zeros that lie in the next page."""
    files_have_holes(monkeypatch)
    disk = new_disk()
    slots = entries(0) + [ABSENT] * 614
    slots[index] = (1500, 100, 0)
    disk.make_dirs("/cq/T/0")
    disk.write_file(f"/cq/T/0/{0:020d}", packed(slots))
    expected = [("entries point at nothing", "0", 20 * index, 1500, 1, False)]
    assert differences(disk, (0, entries(0))) == expected


def test_slots_that_may_be_left_over_do_not_hide_those_behind_them() -> None:
    disk = new_disk()
    deleted, wrong = (999, 100, 7), (3000, 100, 7)
    write_queue(disk, [deleted, wrong, entry(2), deleted, wrong, (LOG_END, 100, 7), wrong])
    found = differences(disk, (2, entries(2)), running=True)
    assert found == [
        ("entries point at nothing", "0", 20, 3000, 2, False),
        ("entries point at nothing", "100", 20, 3000, 1, False),
    ]


def test_entries_of_one_kind_are_counted_together() -> None:
    disk = new_disk()
    write_queue(disk, [ABSENT, entry(1), ABSENT, ABSENT, entry(4)])
    expected = [("entries are missing", "0", 0, 1000, 3, False)]
    assert differences(disk, (0, entries(0, 1, 2, 3, 4))) == expected


@pytest.mark.parametrize("foreign", [False, True])
def test_damage_is_told_of_each_file_and_a_note_once(foreign: bool) -> None:
    disk = new_disk()
    write_queue(disk, [FILLED, *entries(1, 2, 3), FILLED, FILLED, *entries(6, 7)])
    what = "slots are filled that have a frame"
    expected = [(what, "0", 0, 1000, 2, False), (what, "100", 0, 1500, 1, False)]
    if foreign:
        expected = [(what, "0", 0, 1000, 3, True)]
    assert differences(disk, (0, entries(*range(8))), foreign=foreign) == expected


def test_each_file_that_is_no_segment_is_told() -> None:
    disk = new_disk()
    for queue in (0, 1):
        write_queue(disk, entries(0), path=f"/cq/T/{queue}")
        disk.write_file(f"/cq/T/{queue}/{FILE_BYTES:020d}", b"")
        disk.write_file(f"/cq/T/{queue}/notes", b"")
    findings = Findings()
    QueueChecks(disk, "/cq", FILE_BYTES, findings, trust())
    assert [(f.what, f.path[-1], f.position, f.count) for f in findings.damage] == [
        ("queue: its name is no offset", "s", 0, 1)
    ] * 2
    assert [(f.what, f.path[-22], f.position, f.count) for f in findings.notes] == [
        ("queue: it is 0 bytes long, a segment is 100", queue, 0, 1) for queue in "01"
    ]


@pytest.mark.parametrize("foreign", [False, True])
def test_places_that_are_taken_or_gone_are_told(foreign: bool) -> None:
    disk = new_disk()
    write_queue(disk, entries(5, 6, 7), first=5)
    again = [(8100, 100, 1), (8200, 100, 1)]
    found = differences(disk, (5, entries(5, 6)), (5, again), (7, entries(7)), foreign=foreign)
    twice = "two frames have the same queue offset"
    assert found == [(twice, "100", 0, 8100, 2, False)]
    found = differences(disk, (4, entries(4, 5, 6, 7)), foreign=foreign)  # its file is gone
    assert found == [("entries are missing", "/cq/T/0", 80, 1400, 1, foreign)]
    found = differences(disk, (6, entries(6)), (5, [*again, entry(7)]))
    assert found == [
        ("entries point at nothing", "100", 0, 1500, 1, False),
        (twice, "100", 0, 8100, 2, False),
    ]


def test_entries_behind_the_files_and_queues_without_files_are_missing() -> None:
    disk = new_disk()
    write_queue(disk, entries(0, 1, 2, 3, 4))
    found = differences(disk, (0, entries(*range(7))))
    assert found == [("entries are missing", "/cq/T/0", 100, 1500, 2, False)]
    found = differences(new_disk(), (0, entries(0, 1)))
    assert found == [("entries are missing", "/cq/T/0", 0, 1000, 2, False)]


def test_a_missing_file_is_told_once_and_its_entries_too() -> None:
    disk = new_disk()
    write_queue(disk, entries(*range(15)))
    disk.lose(f"/cq/T/0/{FILE_BYTES:020d}")
    findings = Findings()
    checks = QueueChecks(disk, "/cq", FILE_BYTES, findings, trust())
    checks.expect([("T", 0, 0, 15, packed(entries(*range(15))))])
    checks.finish()
    assert [(f.what, f.count) for f in findings.damage] == [
        ("queue: no segment holds 100 to 200", 1),
        ("queue T/0: entries are missing", 5),
    ]


def test_only_directories_that_are_numbers_are_queues() -> None:
    disk = new_disk()
    write_queue(disk, [(2000, 100, 1)])
    write_queue(disk, [(2000, 100, 1)], path="/cq/T/x")
    disk.write_file("/cq/T/1", b"")
    disk.write_file("/cq/notes", b"")
    findings = Findings()
    checks = QueueChecks(disk, "/cq", 0, findings, trust())
    assert list(checks.table) == [("T", 0)]
    checks.finish()
    assert told(findings) == [("entries point at nothing", "0", 0, 2000, 1, False)]


def test_of_a_deleted_topic_nothing_is_asked_for() -> None:
    disk = new_disk()
    write_queue(disk, [entry(0), FILLED, entry(2), entry(3)])
    gone = {"T": Tombstone(1200, {0: 2})}
    findings = Findings()
    checks = QueueChecks(disk, "/cq", 0, findings, trust(tombstones=gone))
    checks.expect([("T", 0, 0, 4, packed(entries(0, 1, 2, 3)))])
    checks.finish()
    assert told(findings) == []
    assert checks.table["T", 0].entries == 2


def test_a_check_may_begin_within_a_queue_and_leave_out_what_others_look_at() -> None:
    disk = new_disk()
    wrong = (4444, 100, 1)
    write_queue(disk, [wrong, entry(1), wrong, entry(3), wrong, wrong, entry(6)])
    findings = Findings()
    check = QueueCheck(SegmentFiles(disk, "/cq/T/0"), "T/0", findings, trust(), first=1)
    check.expect(1, 1, packed(entries(1)))
    check.settle()
    check.skip(3)
    check.skip(2)
    check.expect(3, 1, packed(entries(3)))
    check.settle()
    check.skip(6)
    check.expect(6, 1, packed(entries(6)))
    check.finish()
    assert told(findings) == []
    check = QueueCheck(SegmentFiles(disk, "/cq/T/0"), "T/0", findings, trust(), first=1)
    check.judge_surplus(2, 5)
    assert told(findings) == [("entries point at nothing", "0", 40, 4444, 3, False)]


def test_no_file_of_a_queue_stays_open() -> None:
    disk = new_disk()
    write_queue(disk, entries(*range(12)))
    opened: list[SimSegment] = []
    closed: list[SimSegment] = []
    real = disk.open_readonly

    def open_readonly(path: str) -> SimSegment:
        file = real(path)
        opened.append(file)
        file.close = lambda: closed.append(file)
        return file

    disk.open_readonly = open_readonly
    checks = QueueChecks(disk, "/cq", 0, Findings(), trust())
    for first in (0, 3, 6):
        checks.expect([("T", 0, first, 2, packed(entries(first, first + 1)))])
        checks.table["T", 0].settle()
        assert len(opened) == len(closed)
    checks.finish()
    assert len(opened) == len(closed) > 4

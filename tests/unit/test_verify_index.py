"""Index files held against the keys of the log: each difference, at its item, and no other."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from frame_rig import plain_frame
from saturnmq.drills.sim.disk import SimDisk, SimSegment
from saturnmq.protocol.frame import End, Frame, Outcome, decode_frame
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.derived.index_items import INCOMING, ITEM
from saturnmq.store.derived.indexfile import Index
from saturnmq.store.inspect import verify_index
from saturnmq.store.inspect.verify_index import (
    IndexCheck,
    IndexSizes,
    follow_chains,
    follow_chains_reference,
    match_items,
    match_items_reference,
    seconds_since,
)
from saturnmq.store.inspect.verify_report import CERTAIN, Findings, Trust
from store_rig import Clock, new_disk

SLOTS, PLACES = 7, 6  # five items in a file
ITEMS_AT = 40 + 4 * SLOTS
FILE_BYTES = ITEMS_AT + 20 * PLACES
NOW = Clock().now_ms()
LOG_START, LOG_END = 100, 5000

Message = tuple[int, int, tuple[int, ...]]  # offset, store time, hashes of its keys
Found = tuple[str, int, int, int | None, int, bool]  # what, file, position, offset, count, a note

MESSAGES: list[Message] = [
    (100 * n, NOW + 700 * n, tuple(range(n % 4, n % 4 + (2, 1, 3)[n % 3]))) for n in range(1, 12)
]
SURPLUS = "items that are no key of their message (RocketMQ 5.4 indexes tags)"


def items(*messages: Message) -> bytes:
    return b"".join(
        INCOMING.pack(key_hash, offset, time)
        for offset, time, hashes in messages
        for key_hash in hashes
    )


def filled(*messages: Message, slots: int = SLOTS, places: int = PLACES) -> SimDisk:
    disk = new_disk()
    index = Index(disk, "/index", slots, places, Clock().now_ms)
    index.append(items(*messages))
    return disk


def names(disk: SimDisk) -> list[str]:
    return [f"/index/{entry.name}" for entry in disk.list("/index")]


def put(disk: SimDisk, number: int, at: int, form: str, *values: int) -> None:
    """Change what file `number` has at this place."""
    path = names(disk)[number]
    data = bytearray(disk.read_file(path))
    struct.pack_into(form, data, at, *values)
    disk.lose(path)
    disk.write_file(path, bytes(data))


def frame_at(offset: int) -> Outcome:
    """The log has a frame where MESSAGES say, of their times."""
    for at, time, _ in MESSAGES:
        if at == offset:
            return decode_frame(plain_frame(physical_offset=at, store_timestamp=time))
    return End()


def differences(
    disk: SimDisk,
    *wanted: Message,
    at: Callable[[int], Outcome] = frame_at,
    sizes: tuple[int, int] = (SLOTS, PLACES),
    counts: tuple[int, int] | None = None,
    **changes: Any,
) -> list[Found]:
    """What is told when the log asks for the keys of these messages."""
    settled = {"log_start": LOG_START, "log_end": LOG_END, "below": CERTAIN}
    trust = Trust(**(settled | {"running": False, "foreign": False} | changes))
    findings = Findings()
    check = IndexCheck(disk, "/index", sizes, findings, trust, at)
    for message in wanted:
        check.expect(items(message))
    check.finish()
    if counts is not None:
        assert (check.files, check.items) == counts
    known = names(disk)
    return [
        (
            f.what.removeprefix("index: "),
            known.index(f.path) if f.path in known else -1,
            (f.position - ITEMS_AT) / 20 if f.position >= ITEMS_AT else f.position - 1000,
            f.offset,
            f.count,
            note,
        )
        for note, kind in ((False, findings.damage), (True, findings.notes))
        for f in kind
    ]


ALL_ITEMS = len(items(*MESSAGES)) // INCOMING.size


@pytest.fixture(params=[1, 2, 3, 1 << 15])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many items are read at once."""
    monkeypatch.setattr(verify_index, "_PIECE", request.param)
    return request.param


def test_an_index_of_all_keys_is_sound(piece: int) -> None:
    disk = filled(*MESSAGES)
    assert len(names(disk)) == 5
    assert differences(disk, *MESSAGES, counts=(5, ALL_ITEMS)) == []
    assert differences(disk, *MESSAGES, sizes=(0, PLACES)) == []
    assert differences(disk, *MESSAGES, sizes=(SLOTS, 0)) == []


def place_of(offset: int, key: int = 0) -> tuple[int, int]:
    """The file and the number there of the item for a message's key."""
    before = len(items(*(m for m in MESSAGES if m[0] < offset))) // INCOMING.size + key
    return before // (PLACES - 1), before % (PLACES - 1) + 1


@pytest.mark.parametrize("message", MESSAGES)
def test_keys_that_the_index_lacks_are_told_with_their_message(
    piece: int, message: Message
) -> None:
    offset, time, hashes = message
    rest = [m for m in MESSAGES if m != message]
    (found,) = differences(filled(*rest), *MESSAGES)
    assert (found[0], *found[3:]) == ("keys are missing", offset, len(hashes), False)
    fewer = [m if m != message else (offset, time, hashes[1:]) for m in MESSAGES]
    (found,) = differences(filled(*fewer), *MESSAGES)
    assert (found[0], *found[3:]) == ("keys are missing", offset, 1, False)
    for below, note in ((offset, True), (offset + 1, False)):
        found = differences(filled(*fewer), *MESSAGES, below=below)
        assert [(*f[3:],) for f in found] == [(offset, 1, note)]
    assert [f[5] for f in differences(filled(*fewer), *MESSAGES, foreign=True)] == [True]


@pytest.mark.parametrize("message", MESSAGES)
def test_items_that_the_log_does_not_ask_for_are_told(piece: int, message: Message) -> None:
    offset, time, hashes = message
    rest = [m for m in MESSAGES if m != message]
    disk, place = filled(*MESSAGES), place_of(offset, len(hashes))
    (found,) = differences(disk, *rest)
    assert (found[0], *found[3:]) == (SURPLUS, offset, len(hashes), True)
    fewer = [m if m != message else (offset, time, hashes[:-1]) for m in MESSAGES]
    if len(hashes) > 1:
        (found,) = differences(disk, *fewer)
        assert (found[0], *found[3:]) == (SURPLUS, offset, 1, True)

    def at(place: int) -> Outcome:
        return End() if place == offset else frame_at(place)

    (found,) = differences(disk, *rest, at=at)
    assert (found[0], *found[3:]) == ("items point at nothing", offset, 1, False)
    for changes, told in [
        ({"below": offset}, [True]),
        ({"below": offset + 1}, [False]),
        ({"log_start": offset}, [False]),
        ({"log_start": offset + 1}, []),
        ({"gaps": [(offset - 9, offset)]}, [False]),
        ({"gaps": [(offset, offset + 1)]}, []),
        ({"log_end": offset}, [False]),
        ({"log_end": offset, "running": True}, []),
        ({"log_end": offset + 1, "running": True}, [False]),
    ]:
        assert [f[5] for f in differences(disk, *rest, at=at, **changes)] == told
    assert place[1] > 0


def test_an_item_of_another_key_is_a_missing_one_and_one_too_many() -> None:
    offset, time, hashes = MESSAGES[4]
    disk = filled(*MESSAGES)
    other = (offset, time, (*hashes[:-1], 99))
    file, number = place_of(offset)
    assert differences(disk, *MESSAGES[:4], other, *MESSAGES[5:]) == [
        ("keys are missing", *place_of(offset, len(hashes)), offset, 1, False),
        (SURPLUS, file, number + len(hashes) - 1, offset, 1, True),
    ]


@pytest.mark.parametrize("key", [0, 1])
@pytest.mark.parametrize("message", [m for m in MESSAGES if len(m[2]) > 1])
def test_wrong_seconds_are_told_but_those_of_a_files_first_item(
    piece: int, message: Message, key: int
) -> None:
    disk = filled(*MESSAGES)
    file, number = place_of(message[0], key)
    at = ITEMS_AT + 20 * number
    key_hash, offset, seconds, previous = ITEM.unpack_from(disk.read_file(names(disk)[file]), at)
    assert offset == message[0]
    put(disk, file, at, ">iqii", key_hash, offset, seconds + 1, previous)
    found = differences(disk, *MESSAGES)
    if number == 1:
        assert found == []  # they count from the end of the file before
    else:
        assert [(f[0], f[1], *f[3:]) for f in found] == [
            ("times are wrong", file, offset, 1, False)
        ]


@pytest.mark.parametrize("match", [match_items, match_items_reference])
@pytest.mark.parametrize(
    ("begin", "later_ms", "seconds"),
    [
        *[(NOW, -5000, 0), (NOW, 999, 0), (NOW, 1000, 1), (NOW, 61_999, 61)],
        *[(NOW, 1000 * last, last) for last in (0x7FFFFFFE, 0x7FFFFFFF)],
        (NOW, 1000 << 31, 0x7FFFFFFF),
        (0, NOW, 0),
        *[(1, 999, 0), (1, 1000, 1)],
    ],
)
def test_an_item_counts_the_seconds_since_its_file_began(
    match: Callable[[memoryview, memoryview, int], int], begin: int, later_ms: int, seconds: int
) -> None:
    assert seconds_since(begin, begin + later_ms) == seconds
    wanted = memoryview(INCOMING.pack(5, 100, begin + later_ms))
    for told, same in ((seconds, 1), (seconds ^ 1, 0)):
        assert match(wanted, memoryview(ITEM.pack(5, 100, told, 0)), begin) == same
        assert match(wanted, memoryview(ITEM.pack(5, 100, told, 0)), -1) == 1


@pytest.mark.parametrize("match", [match_items, match_items_reference])
def test_items_are_matched_to_the_first_that_differs_or_is_not_there(
    match: Callable[[memoryview, memoryview, int], int],
) -> None:
    wanted = [(n, 100 * n, NOW) for n in range(5)]
    expected = memoryview(b"".join(INCOMING.pack(*each) for each in wanted))
    for number in range(5):
        for other in [(9, 100 * number, 0), (number, 9, 0), (number, 100 * number, 1)]:
            found = [(n, at, 0) for n, at, _ in wanted]
            found[number] = other
            data = b"".join(ITEM.pack(*each, 0) for each in found)
            assert match(expected, memoryview(data), NOW) == number
            assert match(expected, memoryview(data)[: 20 * number], NOW) == number
            assert match(expected[: 20 * number], memoryview(data), NOW) == number


@pytest.mark.parametrize("follow", [follow_chains, follow_chains_reference])
@pytest.mark.parametrize(
    ("item", "sound"), [((8, 2), True), ((8, 1), False), ((8, 0), False), ((-1, 0), False)]
)
def test_a_chain_is_followed_to_the_first_item_that_breaks_it(
    follow: Callable[[memoryview, memoryview, int], int], item: tuple[int, int], sound: bool
) -> None:
    chain = [(1, 0), (8, 1), item, (3, 0)]
    data = b"".join(ITEM.pack(key_hash, 0, 0, previous) for key_hash, previous in chain)
    newest = array("i", bytes(4 * SLOTS))
    assert follow(memoryview(data), memoryview(newest), 1) == (4 if sound else 2)
    assert list(newest) == ([0, 3, 0, 4, 0, 0, 0] if sound else [0, 2, 0, 0, 0, 0, 0])


# one file


@pytest.mark.parametrize("file", [0, 2, 4])
@pytest.mark.parametrize(
    ("at", "form", "what"),
    [
        *[(at, ">q", "the header does not fit the items") for at in (0, 8, 16, 24)],
        (32, ">i", "the slots do not fit the items"),
    ],
)
@pytest.mark.parametrize("step", [-1, 1])
def test_a_header_fits_its_items(file: int, at: int, form: str, what: str, step: int) -> None:
    disk = filled(*MESSAGES)
    (value,) = struct.unpack_from(form, disk.read_file(names(disk)[file]), at)
    put(disk, file, at, form, value + step)
    found = [f[:3] for f in differences(disk, *MESSAGES) if f[0] != "times are wrong"]
    assert found == [(what, file, (40 if at == 32 else 0) - 1000)]
    # of the file that is being filled the items alone are certain
    found = [f[:2] for f in differences(disk, *MESSAGES, below=LOG_END) if "times" not in f[0]]
    assert found == ([(what, file)] if file < 4 else [])


@pytest.mark.parametrize("slot", [0, SLOTS - 1])
def test_a_slot_names_its_newest_item(slot: int) -> None:
    disk = filled(*MESSAGES)
    (value,) = struct.unpack_from(">i", disk.read_file(names(disk)[1]), 40 + 4 * slot)
    put(disk, 1, 40 + 4 * slot, ">i", value + 1)
    what = "the slots do not fit the items"
    assert differences(disk, *MESSAGES) == [(what, 1, -960, None, 1, False)]


@pytest.mark.parametrize(
    ("file", "number"), [(0, 1), (0, 2), (0, 5), (3, 1), (3, 4), (4, 1), (4, 2)]
)
def test_an_item_names_the_one_before_it(piece: int, file: int, number: int) -> None:
    disk = filled(*MESSAGES)
    at = ITEMS_AT + 20 * number + 16
    (value,) = struct.unpack_from(">i", disk.read_file(names(disk)[file]), at)
    put(disk, file, at, ">i", value + 1)
    assert differences(disk, *MESSAGES) == [("a chain is broken", file, number, None, 1, False)]
    found = differences(disk, *MESSAGES, below=LOG_END)
    assert found == [("a chain is broken", file, number, None, 1, file == 4)]


@pytest.mark.parametrize(
    ("count", "items_read"), [(-5, 0), (0, 0), (1, 0), (2, 1), (7, 5), (99, 5)]
)
def test_a_count_that_no_file_has_is_the_nearest(count: int, items_read: int) -> None:
    disk = filled(*MESSAGES)
    for name in names(disk)[1:]:
        disk.lose(name)
    put(disk, 0, 36, ">i", count)
    found = differences(disk, *MESSAGES, counts=(1, items_read))
    missing = [f for f in found if f[0] == "keys are missing"]
    assert sum(f[4] for f in missing) == ALL_ITEMS - items_read
    if not items_read:
        assert missing[0][1:3] == (0, -1000)


@pytest.mark.parametrize("at", [0, 8, 16, 24])
def test_a_header_fits_a_single_item(at: int) -> None:
    disk = filled(MESSAGES[0])
    assert differences(disk, MESSAGES[0], counts=(1, 1)) == []
    (value,) = struct.unpack_from(">q", disk.read_file(names(disk)[0]), at)
    put(disk, 0, at, ">q", value + 1)
    what = "the header does not fit the items"
    assert differences(disk, MESSAGES[0]) == [(what, 0, -1000, None, 1, False)]


def test_without_a_file_all_keys_are_missing_from_the_directory() -> None:
    found = differences(new_disk(), *MESSAGES, counts=(0, 0))
    assert found == [("keys are missing", -1, -1000, 100, ALL_ITEMS, False)]


def test_a_file_of_another_length_is_told_and_the_others_are_read() -> None:
    disk = filled(*MESSAGES)
    path = names(disk)[0]
    disk.lose(path)
    disk.write_file(path, bytes(60))
    found = differences(disk, *MESSAGES, counts=(4, ALL_ITEMS - 5))
    assert found[0] == ("60 bytes are not the length of a file", 0, -1000, None, 1, False)
    assert [(f[0], f[4]) for f in found[1:]] == [("keys are missing", 5)]


def test_what_is_no_file_or_empty_is_passed_over() -> None:
    disk = filled(*MESSAGES)
    disk.make_dirs("/index/1")
    disk.write_file("/index/notes", b"mine")
    disk.write_file("/index/99999999999999999", b"")
    assert differences(disk, *MESSAGES, counts=(5, ALL_ITEMS)) == []
    # the empty one is not the one that is being filled
    put(disk, 5, 32, ">i", 99)
    assert [f[0] for f in differences(disk, *MESSAGES)] == ["the slots do not fit the items"]
    assert differences(disk, *MESSAGES, below=LOG_END) == []


def test_lengths_that_tell_nothing_are_refused() -> None:
    disk = new_disk()
    disk.make_dirs("/index")
    for number in (1, 2):
        disk.write_file(f"/index/{number:017d}", bytes(60 + number))
    with pytest.raises(StoreDamaged) as refused:
        differences(disk, sizes=(0, 0))
    for part in ("/index/00000000000000001 is 61 bytes", "--index-slots or --index-items"):
        assert part in str(refused.value)
    assert differences(new_disk(), sizes=(0, 0), counts=(0, 0)) == []


def test_a_file_that_cannot_be_read_is_told_and_the_next_is_read() -> None:
    disk = filled(*MESSAGES)
    opened: list[SimSegment] = []
    closed: list[str] = []
    real = disk.open_readonly

    def open_readonly(path: str) -> SimSegment:
        file = real(path)
        opened.append(file)
        file.close = lambda: closed.append(path)
        whole = file.read

        def read(pos: int, size: int) -> bytes:
            if path == names(disk)[1] and pos >= ITEMS_AT + 40:
                raise OSError(5, "bad sector")
            return whole(pos, size)

        file.read = read
        return file

    disk.open_readonly = open_readonly
    found = differences(disk, *MESSAGES)
    assert "cannot be read: [Errno 5] bad sector" in found[0][0]
    assert (found[0][1], found[0][2]) == (1, 2)
    assert [(f[0], f[4]) for f in found[1:]] == [("keys are missing", 4)]
    assert len(closed) == len(opened) == 5


def test_sizes_follow_from_a_length() -> None:
    for slots, places in ((1, 4), (5, 20)):
        size = 40 + 4 * slots + 20 * places
        assert IndexSizes.of(size) == IndexSizes(slots, places)
        for wrong in (size - 1, size + 1, size + 4, size - 4):
            assert IndexSizes.of(wrong) is None
    assert IndexSizes.of(40) is None
    assert IndexSizes.of(FILE_BYTES, slots=SLOTS) == IndexSizes(SLOTS, PLACES)
    assert IndexSizes.of(FILE_BYTES, items=PLACES) == IndexSizes(SLOTS, PLACES)
    assert IndexSizes.of(FILE_BYTES, SLOTS, PLACES) == IndexSizes(SLOTS, PLACES)
    assert IndexSizes.of(FILE_BYTES, SLOTS, PLACES + 1) is None
    assert IndexSizes.of(40 + 4 * SLOTS, slots=SLOTS) is None, "no room for an item"
    assert IndexSizes.of(40 + 20 * PLACES, items=PLACES) is None, "no slot"
    assert IndexSizes.of(40 + 4 + 20, slots=1) == IndexSizes(1, 1)
    assert isinstance(frame_at(100), Frame)

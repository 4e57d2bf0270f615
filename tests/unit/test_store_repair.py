"""Damage in the middle of a log: found where it is, and mended with another node's bytes."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable

import pytest
from saturnmq.runtime.errors import ServiceNotAvailable, StoreDamaged
from saturnmq.store.message_store import MessageStore
from store_rig import SEGMENT, bodies, dispatch, flush, message, new_disk, open_store

COUNT = 90
QUEUES = 3


def save(store: MessageStore) -> None:
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()


def filled(disk) -> tuple[MessageStore, list[int], bytes]:
    """A store, where each message lies, where the last one ends, and the log's bytes."""
    store = open_store(disk)
    puts = [
        store.put(message(b"%d" % n + bytes(150), queue=n % QUEUES, key=f"k{n}"))
        for n in range(COUNT)
    ]
    save(store)
    places: list[int] = [*(put.physical_offset for put in puts), puts[-1].end_offset]
    return store, places, content(store)


def content(store: MessageStore) -> bytes:
    data, at = b"", store.watermarks.start
    while at < store.watermarks.appended:
        piece = bytes(store.read_log(at, 1 << 20) or b"")
        assert piece
        data += piece
        at += len(piece)
    return data


def flip(disk, offset: int) -> None:
    disk.flip(f"/store/commitlog/{offset // SEGMENT * SEGMENT:020d}", offset % SEGMENT, 2)


def reopened(disk, *, dispatched: bool = True) -> MessageStore:
    """As a crash leaves it; unless `dispatched` the queues have to be built again."""
    disk.kill()
    disk.power_on()
    if not dispatched:
        disk.remove_tree("/store/consumequeue")
        disk.remove_tree("/store/index")
    return open_store(disk)


def everything(store: MessageStore) -> list[int]:
    return sorted(
        int(body.rstrip(b"\0")) for queue in range(QUEUES) for body in bodies(store, queue)
    )


def test_a_sound_log_has_no_damage() -> None:
    store, _, data = filled(new_disk())
    assert store.damage(0, len(data)) == []
    assert store.damage(0, 1 << 60) == []
    assert store.damage(len(data), 1 << 60) == []


@pytest.mark.parametrize("number", [0, 1, 28, 29, 30, 60, COUNT - 1])
def test_damage_is_told_as_whole_frames(number: int) -> None:
    """Those at 28 to 30 lie around the end of a segment."""
    disk = new_disk()
    store, at, _ = filled(disk)
    flip(disk, at[number] + 150)
    [(start, end)] = store.damage(0, 1 << 60)
    assert start == at[number]
    assert end == at[number + 1]
    assert store.damage(start, end) == [(start, end)]
    assert store.damage(start + 1, start + 2) == [(start, end)]
    assert store.damage(0, start) == []
    assert store.damage(end, 1 << 60) == []
    assert store.damage(end - 1, end) == [(start, end)]


def test_several_damaged_places_are_told_apart() -> None:
    disk = new_disk()
    store, at, _ = filled(disk)
    for number in (3, 10, 11, 50):
        flip(disk, at[number] + 150)
    assert store.damage(0, 1 << 60) == [
        (at[3], at[4]),
        (at[10], at[12]),
        (at[50], at[51]),
    ]


@pytest.mark.parametrize("dispatched", [True, False])
@pytest.mark.parametrize(
    "numbers", [[0], [7], [28], [29], range(25, 33), range(20, 65), range(80, 89)]
)
def test_a_repaired_log_has_all_of_its_messages_again(dispatched: bool, numbers, caplog) -> None:
    disk = new_disk()
    _, at, data = filled(disk)
    for number in numbers:
        flip(disk, at[number] + 150)
    store = reopened(disk, dispatched=dispatched)
    assert (store.recovery.gaps == []) is dispatched
    [(start, end)] = store.damage(0, len(data))
    assert start == at[numbers[0]]
    store.repair(start, data[start:end])
    assert store.damage(0, len(data)) == []
    assert store.recovery.gaps == []
    assert content(store) == data
    assert everything(store) == list(range(COUNT))
    assert "no place" not in caplog.text
    save(store)
    for end_it in (disk.power_off, disk.kill):
        end_it()
        disk.power_on()
        store = open_store(disk)
        assert (content(store), store.recovery.gaps) == (data, [])
        assert everything(store) == list(range(COUNT))
    assert store.put(message(b"90")).queue_offset == COUNT // QUEUES


def test_the_last_messages_of_a_queue_get_their_places_behind_its_end() -> None:
    """Nothing of queue 1 and 2 follows the gap, and the frames' heads tell no places."""
    disk = new_disk()
    store, _, _ = filled(disk)
    last = [store.put(message(b"%d" % (COUNT + n) + bytes(150), queue=0)) for n in range(3)]
    save(store)
    data = content(store)
    at = [put.physical_offset for put in last]
    lost = store.get_message("T", 1, COUNT // QUEUES - 1, 1)
    assert lost.count == 1
    size = last[1].physical_offset - last[0].physical_offset
    flip(disk, at[0] - 2 * size + 5)
    flip(disk, at[0] - size + 5)
    store = reopened(disk, dispatched=False)
    ranges = store.damage(0, len(data))
    assert store.max_offset("T", 1) < COUNT // QUEUES or store.max_offset("T", 2) < COUNT // QUEUES
    for start, end in ranges:
        store.repair(start, data[start:end])
    assert [store.max_offset("T", queue) for queue in range(QUEUES)] == [33, 30, 30]
    assert everything(store) == list(range(COUNT + 3))


def sound(data: bytes, start: int, end: int, at: list[int]) -> bytes:
    return data[start:end]


def one_byte_wrong(data: bytes, start: int, end: int, at: list[int]) -> bytes:
    bad = bytearray(data[start:end])
    bad[150] ^= 1
    return bytes(bad)


def of_another_place(data: bytes, start: int, end: int, at: list[int]) -> bytes:
    return data[at[1] : at[1] + end - start]


def one_frame_short(data: bytes, start: int, end: int, at: list[int]) -> bytes:
    return data[start : at[at.index(end) - 1]]


def one_frame_too_many(data: bytes, start: int, end: int, at: list[int]) -> bytes:
    return data[start : at[at.index(end) + 1]]


def zeros(data: bytes, start: int, end: int, at: list[int]) -> bytes:
    return bytes(end - start)


def a_blank(data: bytes, start: int, end: int, at: list[int]) -> bytes:
    size = end - start
    return (size.to_bytes(4, "big") + (0xCBD43194).to_bytes(4, "big")).ljust(size, b"\0")


@pytest.mark.parametrize(
    "offer",
    [one_byte_wrong, of_another_place, one_frame_short, one_frame_too_many, zeros, a_blank],
)
def test_bytes_that_do_not_fit_change_nothing(offer: Callable[..., bytes]) -> None:
    disk = new_disk()
    _, at, data = filled(disk)
    for number in (40, 41):
        flip(disk, at[number] + 150)
    store = reopened(disk)
    before = content(store)
    with pytest.raises(StoreDamaged, match=str(at[40])):
        store.repair(at[40], offer(data, at[40], at[42], at))
    with pytest.raises(StoreDamaged, match="no damaged range"):
        store.repair(at[10], data[at[10] : at[11]])  # sound: nobody overwrites that
    assert content(store) == before
    store.repair(at[40], data[at[40] : at[42]])
    assert content(store) == data


def test_a_refusal_tells_what_is_damaged_and_where_the_bytes_offered_end() -> None:
    disk = new_disk()
    store, at, data = filled(disk)
    with pytest.raises(StoreDamaged, match="nothing is damaged there"):
        store.repair(at[3], data[at[3] : at[4]])
    for number in (40, 41):
        flip(disk, at[number] + 150)
    with pytest.raises(StoreDamaged, match=f"{at[40]} to {at[42]} is damaged there"):
        store.repair(at[40], data[at[40] : at[41]])
    zeros = bytes(at[42] - at[41])
    with pytest.raises(StoreDamaged, match=rf"they end at {at[41]} \(end\)"):
        store.repair(at[40], data[at[40] : at[41]] + zeros)
    wrong = bytearray(data[at[40] : at[42]])
    wrong[-100] ^= 1
    with pytest.raises(StoreDamaged, match=rf"they end at {at[41]} \(.*CRC.*\)"):
        store.repair(at[40], bytes(wrong))
    assert store.damage(at[40] + 1, at[40] + 1) == []


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_crash_within_a_repair_leaves_damage_or_all_of_it(cut: int) -> None:
    disk = new_disk(cut)
    _, at, data = filled(disk)
    for number in range(26, 34):
        flip(disk, at[number] + 150)
    store = reopened(disk, dispatched=False)
    save(store)
    [(start, end)] = store.damage(0, len(data))
    steps = 0

    def step(operation: str, path: str) -> None:
        nonlocal steps
        steps += operation not in ("read", "list", "open_readonly")
        if steps == cut:
            raise Cut

    disk.step = step
    with contextlib.suppress(Cut):
        store.repair(start, data[start:end])
    disk.step = None
    if random.Random(cut).random() < 0.5:
        disk.kill()
    else:
        disk.power_off()
    disk.power_on()
    store = open_store(disk)
    for first, last in store.damage(0, len(data)):
        store.repair(first, data[first:last])
    assert content(store) == data
    assert everything(store) == list(range(COUNT))


class Cut(Exception):
    """The power went here."""


@pytest.mark.parametrize("numbers", [[COUNT - 2], [COUNT - 3, COUNT - 2]])
def test_a_message_whose_place_was_taken_is_told(numbers: list[int], caplog) -> None:
    """Beside it may be one of another queue, whose place is free."""
    disk = new_disk()
    _, at, data = filled(disk)
    for number in numbers:
        flip(disk, at[number] + 5)  # and no queue is left that knows its place
    store = reopened(disk, dispatched=False)
    [gap] = store.recovery.gaps
    taken = store.put(message(b"new", queue=(COUNT - 2) % QUEUES))
    assert taken.queue_offset == COUNT // QUEUES - 1
    save(store)
    store.repair(gap[0], data[gap[0] : gap[1]])
    assert " 1 of these messages have no place in their queues" in caplog.text
    assert store.damage(0, 1 << 60) == []


@pytest.mark.parametrize("operation", ["write", "flush"])
def test_a_repair_that_the_disk_refuses_ends_all_writing(operation: str) -> None:
    disk = new_disk()
    _, at, data = filled(disk)
    flip(disk, at[5] + 150)
    store = reopened(disk)
    disk.plan(operation, errno.EIO, "/store/commitlog/*")
    with pytest.raises(OSError, match="planned"):
        store.repair(at[5], data[at[5] : at[6]])
    with pytest.raises(ServiceNotAvailable, match="planned"):
        store.put(message(b"x"))


@pytest.mark.parametrize("at_byte", [5, 150], ids=["head", "body"])
@pytest.mark.parametrize("end", ["closed", "killed", "power lost"])
def test_the_queue_offset_of_a_damaged_message_is_given_to_no_other(at_byte: int, end: str) -> None:
    """It was the last of its queue; nobody has it whole, and no start forgets that it was there."""
    disk = new_disk()
    store, at, data = filled(disk)
    last = store.max_offset("T", 1) - 1
    damaged = COUNT - 2
    assert damaged % QUEUES == 1
    flip(disk, at[damaged] + at_byte)
    for number in range(3):
        if end == "closed":
            store.close()
        elif end == "killed":
            disk.kill()
            disk.power_on()
        else:
            disk.power_off()
            disk.power_on()
        store = open_store(disk)
        assert store.max_offset("T", 1) == last + 1, number
    put = store.put(message(b"%d" % COUNT + bytes(150), queue=1))
    assert put.queue_offset == last + 1
    save(store)
    store.repair(at[damaged], data[at[damaged] : at[damaged + 1]])
    assert everything(store) == list(range(COUNT + 1))


@pytest.mark.parametrize("dispatched", [True, False])
def test_the_messages_of_a_repaired_range_are_found_by_their_keys(dispatched: bool) -> None:
    disk = new_disk()
    _, at, data = filled(disk)
    for number in (20, 60):
        flip(disk, at[number] + 5)
    store = reopened(disk, dispatched=dispatched)
    for first in (60, 20):
        store.repair(at[first], data[at[first] : at[first + 1]])
    save(store)
    for _ in range(2):
        for number in range(COUNT):
            [found] = store.query_by_key("T", f"k{number}", 10, 0, 1 << 62)
            assert found == data[at[number] :][: len(found)]
        store = reopened(disk)


def test_a_rebuild_keeps_the_place_of_a_message_whose_body_alone_is_damaged() -> None:
    disk = new_disk()
    store, at, data = filled(disk)
    flip(disk, at[COUNT - 2] + 150)
    for _ in range(2):
        store = reopened(disk, dispatched=False)
        [gap] = store.recovery.gaps
        assert store.max_offset("T", 1) == COUNT // QUEUES
    assert store.put(message(b"%d" % COUNT, queue=1)).queue_offset == COUNT // QUEUES
    save(store)
    store.repair(gap[0], data[gap[0] : gap[1]])
    assert COUNT - 2 in everything(store)

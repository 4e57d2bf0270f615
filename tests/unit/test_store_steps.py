"""The log is looked at in steps, by dispatch, by a recovery and by a truncation: how long those are
changes nothing."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from saturnmq.protocol.batch import encode_batch
from saturnmq.store.derived import reput
from saturnmq.store.message_store import AtomicBatchPart, MessageStore
from saturnmq.store.recovery import recovery
from store_rig import SEGMENT, bodies, dispatch, flush, message, new_disk, open_store

LENGTHS = [8, 9, *range(200, 209), 1000, 2 * SEGMENT]  # a step that is shorter than 8 sees no frame


@pytest.fixture(params=LENGTHS)
def length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(reput, "STEP_BYTES", request.param)
    monkeypatch.setattr(recovery, "STEP_BYTES", request.param)
    monkeypatch.setattr(recovery, "_READ", 2 * request.param)
    return request.param


def append_group(store: MessageStore, *rows: bytes) -> None:
    parts = []
    for row in rows:
        data = bytes(encode_batch([(row, b"", 0)] * 2))
        count, size = store.measure_part("T", data)
        parts.append(AtomicBatchPart("T", 0, count, size, lambda data=data: data))
    for _ in store.append_group(b"{}", parts):
        pass


def fill(store: MessageStore) -> list[int]:
    """Four segments of messages long and short, with a group over a border; where each of them
    begins, the markers and what follows the last included."""
    rng = random.Random(4)
    for number in range(60):
        store.put(message(b"%d" % number + bytes(rng.choice([0, 1, 90, 400, 3000]))))
        if number == 30:
            append_group(store, bytes(2500), bytes(2000), bytes(900))
    return borders(store)


def borders(store: MessageStore) -> list[int]:
    found, at, end = [0], 0, store.watermarks.appended
    while at < end:
        view = store.read_log(at, 8)
        assert view is not None
        at += int.from_bytes(view[:4], "big")
        found.append(at)
    return found


def test_all_is_dispatched_once(length: int) -> None:
    store = open_store(new_disk())
    longest = max(end - start for start, end in pairwise(fill(store)))
    arrivals, before = [], 0
    while step := store.reput():
        arrivals += step
        assert store.watermarks.dispatched - before <= length + 2 * longest, "a BLANK may follow"
        before = store.watermarks.dispatched
    assert store.watermarks.dispatched == store.watermarks.appended
    ours = [arrival for arrival in arrivals if arrival.topic == "T"]
    in_files = (bytes(store.entries("T", 0, first, 20)) for first in range(0, 80, 20))
    assert b"".join(a.entries for a in ours) == b"".join(in_files)
    assert [a.max_offset for a in ours] == sorted({a.max_offset for a in ours})
    assert len(bodies(store)) == store.max_offset("T", 0) == 66
    assert store.markers == (0, 1)


def test_a_slave_dispatches_what_is_whole(length: int) -> None:
    master, slave = open_store(new_disk()), open_store(new_disk(2))
    places = fill(master)
    dispatch(master)
    marker = master.marker(0)
    assert marker is not None
    rng, at, end = random.Random(length), 0, master.watermarks.appended
    while at < end:
        stop = min(at + rng.choice([1, 7, 60, 1000]), end, at - at % SEGMENT + SEGMENT)
        slave.append_raw(at, bytes(master.read_log(at, stop - at)))
        at = stop
        dispatch(slave)
        whole = max(place for place in places if place <= at)
        expected = marker.start if marker.start <= whole < marker.end else whole
        assert slave.watermarks.dispatched == expected
    assert bodies(slave) == bodies(master)


def test_a_slave_skips_damage(length: int) -> None:
    master, slave = open_store(new_disk()), open_store(new_disk(2))
    places = fill(master)
    data, gaps = bytearray(), [(places[10], places[11]), (places[-3], places[-2])]
    while (view := master.read_log(len(data), SEGMENT)) is not None:
        data += view
    for start, _ in gaps:
        data[start + 4] ^= 1
    slave.append_raw(0, data)
    dispatch(slave)
    assert slave.recovery.gaps == gaps
    assert slave.watermarks.dispatched == places[-1]
    assert len(bodies(slave)) == slave.max_offset("T", 0) - len(gaps)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_recovery_finds_the_same(length: int, damaged: bool) -> None:
    disk = new_disk()
    store = open_store(disk)
    places = fill(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    assert store.watermarks.dispatched == 0
    disk.kill()
    disk.power_on()
    gaps = []
    if damaged:
        gaps = [(places[10], places[11]), (places[-3], places[-2])]
        for start, end in gaps:
            assert start // SEGMENT == end // SEGMENT
            path = f"/store/commitlog/{start - start % SEGMENT:020d}"
            disk.flip(path, start % SEGMENT + 4, 1)
    again = open_store(disk)
    assert (again.recovery.gaps, again.recovery.lost) == (gaps, 0)
    assert again.recovery.messages == 67 - len(gaps)
    assert again.watermarks.appended == places[-1]
    assert len(bodies(again)) == again.max_offset("T", 0) - len(gaps) == 66 - len(gaps)
    again.truncate(places[11] + 30)
    assert again.watermarks.dispatched == places[11], "right behind the first gap"


def test_a_cut_keeps_the_frames_before_it(length: int) -> None:
    rng = random.Random(length)
    store = open_store(new_disk())
    places = fill(store)
    dispatch(store)
    marker = store.marker(0)
    assert marker is not None
    stretches = list(pairwise(places))
    blanks = [(start, end) for start, end in stretches if end % SEGMENT == 0]
    assert len(blanks) >= 3
    for start, end in sorted({*rng.sample(stretches, 6), *blanks})[::-1]:
        at = rng.choice([start, start + 5, start + 8, rng.randint(start, end - 1)])
        store.truncate(at)
        expected = marker.start if marker.start <= start < marker.end else start
        assert (store.watermarks.appended, store.watermarks.dispatched) == (at, expected)

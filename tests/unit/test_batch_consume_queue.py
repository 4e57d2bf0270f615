"""Inner batches in the store: one frame, one unit and many queue offsets, against naive models."""

from __future__ import annotations

import dataclasses
import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.drills.sim.disk import PowerCutOdds, SimDisk
from saturnmq.protocol import kernels
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.compression import ZSTD, compress, sys_flag_of
from saturnmq.protocol.frame import INNER_BATCH, NEED_UNWRAP, WRAPPED, Frame, decode_frame
from saturnmq.protocol.frame_reference import BATCH_UNIT, INNER_NUM_MAX
from saturnmq.protocol.frame_reference import scan_frames as scan_reference
from saturnmq.protocol.inner_batch import count_in, unwrapped
from saturnmq.protocol.sql92 import compiled
from saturnmq.runtime.errors import InvalidParameter, MessageIllegal
from saturnmq.store.derived.batchconsumequeue import BatchConsumeQueue
from saturnmq.store.derived.tombstones import Tombstone
from saturnmq.store.inspect import rebuild, verify
from saturnmq.store.message_store import GetStatus, MessageStore, PendingMessage
from store_rig import CONFIG, Clock, bodies, dispatch, flush, message, new_disk, open_store

PER_FILE = 5
BATCHES = dataclasses.replace(CONFIG, batch_queue_segment_bytes=46 * PER_FILE)
PATH = "/store/batchconsumequeue/B/0"


def opened(disk: SimDisk, clock: Clock | None = None) -> MessageStore:
    return open_store(disk, clock, BATCHES)


def put(store: MessageStore, first: int, count: int, *, packed: bool = False, queue: int = 0):
    """A batch of the messages `first`, `first` + 1, ..."""
    items = [
        (b"%d" % n, b"KEYS\x01k%d\x02TAGS\x01t%d\x02" % (n, n % 2), n)
        for n in range(first, first + count)
    ]
    body, flags = bytes(encode_batch(items)), NEED_UNWRAP
    if packed:
        body, flags = compress(body, ZSTD, 3), NEED_UNWRAP | sys_flag_of(ZSTD)
    pending = PendingMessage("B", queue, body, b"UNIQ_KEY\x01U%d\x02" % first, sys_flag=flags)
    return store.put(pending, inner=count)


def put_single(store: MessageStore, number: int):
    return store.put(PendingMessage("B", 0, b"%d" % number, b"TAGS\x01t0\x02"), inner=1)


def fill(store: MessageStore, sizes: list[int]) -> int:
    """Batches of these sizes (1: every second one a single message); the messages."""
    total = 0
    for number, size in enumerate(sizes):
        if size == 1 and number % 2:
            put_single(store, total)
        else:
            put(store, total, size, packed=number % 3 == 0)
        total += size
    return total


def messages(store: MessageStore, first: int | None = None) -> list[tuple[int, int]]:
    """(queue offset, number in the body) of all from `first` on, as a client reads them."""
    found = []
    offset = store.min_offset("B", 0) if first is None else first
    while offset < store.max_offset("B", 0):
        result = store.get_message("B", 0, offset, 32)
        assert result.next_begin_offset > offset
        data = memoryview(unwrapped(result.data, offset))
        at = 0
        while at < len(data):
            frame = decode_frame(data, at)
            assert isinstance(frame, Frame), frame
            assert not frame.sys_flag & NEED_UNWRAP
            found.append((frame.queue_offset, int(frame.body)))
            at += frame.size
        offset = result.next_begin_offset
    return found


def units(disk: SimDisk) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for file in disk.list(PATH):
        found += BATCH_UNIT.iter_unpack(disk.read_file(f"{PATH}/{file.name}"))
    return [unit for unit in found if unit[1]]


def save(store: MessageStore) -> None:
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=30)


@given(sizes=SIZES, start=st.integers(0, 300))
def test_a_queue_of_batches_gives_every_message_from_every_offset(sizes: list[int], start: int):
    store = opened(new_disk())
    total = fill(store, sizes)
    dispatch(store)
    store.validate()
    expected = [(n, n) for n in range(total)]
    assert messages(store) == expected
    start %= total
    assert messages(store, start) == expected[start:]
    assert (store.min_offset("B", 0), store.max_offset("B", 0)) == (0, total)
    store.close()


def test_a_unit_has_rocketmqs_fields():
    disk = new_disk()
    clock = Clock()
    store = opened(disk, clock)
    first = put(store, 0, 3)
    clock.now += 5
    second = put_single(store, 3)
    assert (first.queue_offset, first.count) == (0, 3)
    assert (second.queue_offset, second.count) == (3, 1)
    dispatch(store)
    flush(store)
    store.flush_derived()
    assert units(disk) == [
        (0, first.sizes[0], 0, clock.now - 5, 0, 3, -1, 0),
        (first.end_offset, second.sizes[0], 3644, clock.now, 3, 1, -1, 0),
    ]
    frame = decode_frame(store.message_at(0))
    assert isinstance(frame, Frame)
    assert frame.sys_flag & WRAPPED == WRAPPED
    assert {"INNER_NUM": "3", "INNER_BASE": "0"}.items() <= frame.properties.items()
    single = decode_frame(store.message_at(first.end_offset))
    assert isinstance(single, Frame)
    assert single.sys_flag & WRAPPED == INNER_BATCH
    assert {"INNER_NUM": "1", "INNER_BASE": "3"}.items() <= single.properties.items()
    store.close()


@given(sizes=SIZES, cut=st.integers(0, 10_000))
def test_a_truncation_leaves_whole_batches_and_the_next_one_follows_them(sizes, cut):
    disk = new_disk()
    store = opened(disk)
    fill(store, sizes)
    dispatch(store)
    ends = [0]
    for offset, size, *_ in units_of(store):
        ends.append(offset + size)
    cut = cut % (store.watermarks.appended + 1)
    kept = sum(end <= cut for end in ends) - 1
    store.truncate(ends[kept])
    left = sum(sizes[:kept])
    assert messages(store) == [(n, n) for n in range(left)]
    assert put(store, left, 4).queue_offset == left
    dispatch(store)
    store.validate()
    assert messages(store) == [(n, n) for n in range(left + 4)]
    store.close()


def units_of(store: MessageStore) -> list[tuple[int, ...]]:
    queue = store.queues()["B", 0]
    assert isinstance(queue, BatchConsumeQueue)
    count, offset = 0, queue.min_offset
    found: list[tuple[int, ...]] = []
    while offset < queue.max_offset:
        entry = queue.entry(offset)
        assert entry is not None
        found.append(entry)
        count += 1
        offset = queue.offset_behind(offset, 1)
    return found


@pytest.mark.parametrize("saved", [0, 3, 7])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_a_power_cut_leaves_the_next_start_has_what_was_flushed(saved: int, seed: int):
    rng = random.Random(seed)
    disk = new_disk(seed)
    store = opened(disk)
    total = number = 0
    flushed = 0
    for number in range(rng.randrange(8, 24)):
        size = rng.randrange(1, 6)
        put(store, total, size, packed=bool(number % 2))
        total += size
        dispatch(store)
        if number == saved:
            save(store)
            flushed = total
        elif rng.random() < 0.2:
            flush(store)
            flushed = total
    odds = PowerCutOdds(kept=rng.random(), torn=rng.random(), names=rng.random())
    again = opened(disk.crash_image(rng, odds))
    again.validate()
    found = messages(again)
    assert found == [(n, n) for n in range(len(found))]
    assert flushed <= len(found) <= total
    put(again, len(found), 3)
    dispatch(again)
    assert messages(again) == [(n, n) for n in range(len(found) + 3)]
    again.close()


def test_whatever_lies_behind_a_torn_unit_the_next_start_has_all_messages():
    disk = new_disk()
    store = opened(disk)
    put(store, 0, 3)
    save(store)
    total = 3
    for size in (1, 4, 2, 5, 6, 1):
        put(store, total, size)
        total += size
    dispatch(store)
    flush(store)
    length = 46 * PER_FILE
    for cut in range(46, 46 * 7):
        again = disk.kill_image(random.Random(2))
        for number, file in enumerate(again.list(PATH)):
            mapped = again.open_segment(f"{PATH}/{file.name}", length)
            mapped.zero(min(max(cut - length * number, 0), length), length)
            mapped.close()
        start = opened(again)
        start.validate()
        assert messages(start) == [(n, n) for n in range(total)], cut
        start.close()
    store.close()


def test_units_built_again_from_the_log_are_the_same():
    disk = new_disk()
    store = opened(disk)
    total = fill(store, [3, 1, 4, 1, 5, 9, 2, 6])
    save(store)
    store.close()
    before = units(disk)
    report = verify.check(disk, "/store", BATCH_SIZES)
    assert not report.damage, report.damage
    disk.remove_tree("/store/batchconsumequeue")
    store = opened(disk)
    assert messages(store) == [(n, n) for n in range(total)]
    store.close()
    assert units(disk) == before


@pytest.mark.parametrize(
    ("slot", "at", "value", "told"),
    [
        (2, 12, b"x", "units are wrong"),
        (2, 0, bytes(46), "units are missing"),
        (7, 0, BATCH_UNIT.pack(1, 2, 0, 0, 31, 1, -1, 0), "units point at nothing"),
        (7, 0, BATCH_UNIT.pack(1 << 30, 2, 0, 0, 31, 1, -1, 0), "units point behind the log's end"),
    ],
)
def test_a_check_tells_of_units_that_the_log_does_not_ask_for(slot, at, value, told):
    disk = new_disk()
    store = opened(disk)
    fill(store, [3, 1, 4, 1, 5, 9, 2])
    save(store)
    store.close()
    file = disk.list(PATH)[slot // PER_FILE]
    mapped = disk.open_segment(f"{PATH}/{file.name}", 46 * PER_FILE)
    mapped.write(46 * (slot % PER_FILE) + at, value)
    mapped.close()
    report = verify.check(disk, "/store", BATCH_SIZES)
    [damage] = report.damage
    assert damage.what == f"queue B/0: {told}"


def test_batches_are_found_by_time():
    clock = Clock()
    store = opened(new_disk(), clock)
    times = []
    for number in range(12):
        put(store, 3 * number, 3)
        times.append(clock.now)
        clock.now += 10
    dispatch(store)
    for number, time in enumerate(times):
        assert store.offset_by_time("B", 0, time) == 3 * number
        assert store.offset_by_time("B", 0, time - 1) == 3 * number
        assert store.offset_by_time("B", 0, time + 1) == 3 * (number + 1)
        assert store.offset_by_time("B", 0, time, "UPPER") == 3 * number + 2
        assert store.store_time_of("B", 0, 3 * number + 1) == time
    store.close()


def test_no_reader_sees_a_batch_that_ends_behind_what_is_visible():
    store = opened(new_disk())
    first, second = put(store, 0, 3), put(store, 3, 2)
    dispatch(store)
    assert store.visible_end("B", 0, second.end_offset) == 5
    assert store.visible_end("B", 0, second.end_offset - 1) == 3
    assert store.visible_end("B", 0, first.end_offset - 1) == 0
    result = store.get_message("B", 0, 1, 32, visible=second.end_offset - 1)
    assert (result.status, result.next_begin_offset, result.count) == (GetStatus.FOUND, 3, 1)
    assert store.offset_at("B", 0, second.physical_offset) == 3
    store.close()


def test_a_read_takes_whole_batches_of_no_more_messages_than_it_asks_for_but_always_one():
    wide = dataclasses.replace(CONFIG, batch_queue_segment_bytes=46 * 100)
    store = open_store(new_disk(), config=wide)
    for number in range(6):
        put(store, 4 * number, 4)
    dispatch(store)
    counts = [store.get_message("B", 0, 0, most).count for most in (1, 4, 7, 8, 12)]
    assert counts == [1, 1, 1, 2, 3]
    assert store.get_message("B", 0, 0, 100).count == 6
    for number in range(6, 12):
        put(store, 4 * number, 4)
    dispatch(store)
    assert store.get_message("B", 0, 1, 100).next_begin_offset == 32, "32 messages are enough"
    assert store.get_message("B", 0, 1, 100, override_limits=True).next_begin_offset == 48
    assert store.get_message("B", 0, 2, 4).next_begin_offset == 4  # with the next one it would be 6
    store.close()


def test_a_batch_without_a_tag_passes_every_filter_and_a_condition_is_refused():
    store = opened(new_disk())
    put(store, 0, 2)
    put_single(store, 2)
    dispatch(store)
    assert store.get_message("B", 0, 0, 32, codes=frozenset({77})).count == 1
    with pytest.raises(InvalidParameter, match="lie in batches"):
        store.get_message("B", 0, 0, 32, sql=compiled("a = 1"))
    store.close()


def test_cleaning_leaves_a_queue_that_begins_with_its_first_whole_batch():
    clock = Clock()
    disk = new_disk()
    store = opened(disk, clock)
    total = fill(store, [5] * 120)
    save(store)
    assert len(disk.list(PATH)) > 20
    clock.now += 100 * 3600 * 1000
    store.clean_on_request()
    ticket = store.begin_clean(clock.now)
    assert ticket is not None
    ticket.run()
    store.validate()
    low = store.min_offset("B", 0)
    assert 0 < low < total
    assert low % 5 == 0
    assert messages(store) == [(n, n) for n in range(low, total)]
    assert store.get_message("B", 0, low - 1, 32).status is GetStatus.OFFSET_TOO_SMALL
    save(store)
    assert len(disk.list(PATH)) < 20
    store.close()
    again = opened(disk, clock)
    assert messages(again) == [(n, n) for n in range(low, total)]
    again.close()


def test_a_deleted_topic_goes_on_at_its_offset_as_one_of_either_kind():
    disk = new_disk()
    store = opened(disk)
    put(store, 0, 3)
    dispatch(store)
    store.bury({"B": store.tombstone("B")})
    list(store.remove_deleted())
    assert messages(store) == []
    store.put(PendingMessage("B", 0, b"plain"))
    dispatch(store)
    store.validate()
    assert bodies(store, topic="B") == [b"plain"]
    store.bury({"B": store.tombstone("B")})
    list(store.remove_deleted())
    put(store, 4, 2)
    dispatch(store)
    store.validate()
    assert messages(store) == [(4, 4), (5, 5)]
    assert isinstance(store.tombstone("B"), Tombstone)
    store.close()


@given(st.lists(st.sampled_from(("batch", "single", "plain", "else", "step")), max_size=14))
def test_frames_that_are_no_batches_are_batches_of_one_in_a_queue_that_has_any(
    kinds: list[str],
) -> None:
    disk, clock = new_disk(), Clock()
    store = opened(disk, clock)
    total = 0
    for kind in [*kinds, "batch"]:
        clock.now += 7
        if kind == "step":
            dispatch(store)
        elif kind == "batch":
            total += put(store, total, 3).count
        elif kind == "single":
            total += put_single(store, total).count
        elif kind == "plain":  # as RocketMQ stores a single message
            store.put(PendingMessage("B", 0, b"%d" % total))
            total += 1
        else:
            store.put(message(b"else"))
    dispatch(store)
    store.validate()
    assert messages(store) == [(n, n) for n in range(total)]
    assert bodies(store) == [b"else"] * kinds.count("else")
    save(store)
    store.close()
    before = units(disk)
    assert [unit[4] + unit[5] for unit in before][-1] == total
    assert all(unit[3] for unit in before), "each has its store time"
    assert not disk.exists("/store/consumequeue/B/0")
    assert not verify.check(disk, "/store", BATCH_SIZES).damage
    rebuild.rebuild(disk, "/store", clock.now_ms, BATCH_SIZES)
    assert units(disk) == before
    disk.remove_tree("/store/batchconsumequeue")
    again = opened(disk, clock)
    assert messages(again) == [(n, n) for n in range(total)]
    again.close()
    assert units(disk) == before


@pytest.mark.parametrize(
    ("operation", "pattern"),
    [
        ("create_segment", "/store/batchconsumequeue/*"),
        ("make_dirs", "/store/batchconsumequeue/*"),
        ("remove_tree", "/store/consumequeue/*"),
    ],
)
def test_a_queue_that_cannot_become_one_of_batches_now_keeps_its_messages(
    operation: str, pattern: str
):
    disk = new_disk()
    store = opened(disk)
    for number in range(7):
        store.put(PendingMessage("B", 0, b"%d" % number))
    dispatch(store)
    plan = disk.plan(operation, errno.ENOSPC, pattern)
    put(store, 7, 3)
    dispatch(store)
    assert plan.hits == 1
    dispatch(store)  # there is room again
    store.validate()
    assert store.refuses == ""
    assert messages(store) == [(n, n) for n in range(10)]


def test_a_repaired_range_gets_its_units_back_between_the_others():
    disk = new_disk()
    store = opened(disk)
    places = [put(store, 3 * number, 3) for number in range(9)]
    save(store)
    whole = bytes(store.read_log(0, 1 << 20) or b"")
    store.close()
    victim = places[4]
    log = disk.open_segment("/store/commitlog/" + "0" * 20, CONFIG.commitlog_segment_bytes)
    at = victim.physical_offset
    log.write(at + 8, b"spoiled")
    log.flush(0, CONFIG.commitlog_segment_bytes)
    log.close()
    disk.remove_tree("/store/batchconsumequeue")
    store = opened(disk)
    assert messages(store) == [(n, n) for n in range(27) if not 12 <= n < 15]
    [(start, end)] = store.damage(0, places[-1].end_offset)
    store.repair(start, whole[start:end])
    store.validate()
    assert messages(store) == [(n, n) for n in range(27)]
    store.close()
    assert [unit[4] for unit in units(disk)] == [3 * number for number in range(9)]


@given(st.data())
def test_the_kernels_scan_of_batches_is_the_references(data: st.DataObject):
    store = opened(new_disk())
    number = 0
    for _ in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(("batch", "single", "plain", "other", "wrong")))
        if kind == "batch":
            number += put(store, number, data.draw(st.integers(1, 4))).count
        elif kind == "single":
            number += put_single(store, number).count
        elif kind == "wrong":
            properties = data.draw(
                st.sampled_from(
                    (
                        b"",
                        b"INNER_NUM\x010\x02INNER_BASE\x010\x02",
                        b"INNER_NUM\x01-1\x02",
                        b"INNER_NUM\x0199999\x02INNER_BASE\x010\x02",
                        b"INNER_NUM\x01x\x02",
                    )
                )
            )
            store.put(PendingMessage("B", 1, b"w", properties, sys_flag=INNER_BATCH))
        else:
            store.put(PendingMessage("B" if kind == "plain" else "T", 0, b"x"))
    view = bytes(store.read_log(0, 1 << 20) or b"")
    assert kernels.scan_frames(view, 0, len(view), 0) == scan_reference(view, 0, len(view), 0)
    dispatch(store)
    store.validate()
    store.close()


def test_a_batch_that_is_not_what_it_says_stays_one_message():
    store = opened(new_disk())
    good = bytes(encode_batch([(b"0", b"", 0), (b"1", b"", 0)]))
    for body, count, flags in (
        (good, 3, NEED_UNWRAP),
        (b"nonsense", 2, NEED_UNWRAP),
        (b"nonsense", 2, NEED_UNWRAP | sys_flag_of(ZSTD)),
        (good, 2, NEED_UNWRAP),
    ):
        store.put(PendingMessage("B", 0, body, sys_flag=flags), inner=count)
    dispatch(store)
    data = store.get_message("B", 0, 0, 32).data
    assert kernels.has_wrapped(data)
    plain = unwrapped(data, 0)
    frames, at = [], 0
    while at < len(plain):
        frame = decode_frame(plain, at)
        assert isinstance(frame, Frame)
        frames.append((frame.queue_offset, frame.body))
        at += frame.size
    assert frames == [(0, good), (3, b"nonsense"), (5, b"nonsense"), (7, b"0"), (8, b"1")]
    store.close()


def test_a_frame_holds_no_more_messages_than_its_unit_can_count():
    item = bytes(encode_batch([(b"x", b"", 0)]))
    assert count_in(item * INNER_NUM_MAX) == INNER_NUM_MAX
    with pytest.raises(MessageIllegal, match="a frame holds 32767"):
        count_in(item * (INNER_NUM_MAX + 1))


def test_rebuild_makes_the_same_units():
    disk = new_disk()
    store = opened(disk)
    fill(store, [3, 1, 4, 1, 5, 9, 2, 6])
    save(store)
    store.close()
    before = units(disk)
    disk.remove_tree("/store/batchconsumequeue")
    rebuild.rebuild(disk, "/store", Clock().now_ms, BATCH_SIZES)
    assert units(disk) == before


BATCH_SIZES = verify.Sizes(8192, 400, 50, 40)

"""The door to the store: what it promises of flushes, checkpoints, cuts and its end."""

from __future__ import annotations

import dataclasses
import errno
import logging

import pytest
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.topics import GROUPS_TOPIC
from saturnmq.runtime.errors import ServiceNotAvailable
from saturnmq.store import message_store
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.tombstones import KEY
from saturnmq.store.message_store import AtomicBatchPart, MessageStore
from saturnmq.store.recovery.checkpoint import Checkpoint
from store_rig import CONFIG, SEGMENT, Clock, bodies, dispatch, flush, message, new_disk, open_store

POOL = dataclasses.replace(CONFIG, transient_pool=True, transient_pool_size=2)


def put(store: MessageStore, numbers) -> list:
    return [store.put(message(b"%d" % n + bytes(150), key=f"k{n}")) for n in numbers]


def save(store: MessageStore) -> None:
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()


def die(disk) -> None:
    disk.kill()
    disk.power_on()


def numbers(store: MessageStore) -> list[int]:
    return [int(body.rstrip(b"\0")) for body in bodies(store)]


def page(disk) -> Checkpoint:
    return Checkpoint.load(disk, "/store")


def flip(disk, offset: int) -> None:
    disk.flip(f"/store/commitlog/{offset // SEGMENT * SEGMENT:020d}", offset % SEGMENT, 3)


def content(store: MessageStore) -> bytes:
    data = bytearray()
    while (view := store.read_log(len(data), SEGMENT)) is not None:
        data += view
    return bytes(data)


# flushing


@pytest.mark.parametrize("count", [0, 10, 50])
@pytest.mark.parametrize("known", [True, False])
def test_what_a_failed_sync_lost_is_not_taken_for_durable(count: int, known: bool) -> None:
    """The cache shows it and calls it clean."""
    disk = new_disk()
    store = open_store(disk)
    put(store, range(count))
    save(store)
    put(store, range(count, count + 5))
    disk.plan("flush", pattern="*commitlog*")
    ticket = store.begin_flush()
    assert ticket is not None
    with pytest.raises(OSError, match="planned"):
        ticket.run()
    die(disk)
    if not known:
        disk.unlink("/store/checkpoint")
    store = open_store(disk)
    there = numbers(store)
    disk.power_off()
    disk.power_on()
    assert numbers(open_store(disk)) == there == list(range(count))


def test_what_a_start_found_is_durable() -> None:
    """Nothing of it was synced by the process before, which was killed."""
    disk = new_disk()
    put(open_store(disk), range(50))
    die(disk)
    assert numbers(open_store(disk)) == list(range(50))
    disk.power_off()
    disk.power_on()
    assert numbers(open_store(disk)) == list(range(50))


def test_a_flush_ends_where_the_log_ended_when_it_began(caplog) -> None:
    caplog.set_level(logging.INFO)
    store = open_store(new_disk())
    assert (store.begin_flush(), store.reput()) == (None, [])
    [first] = put(store, [0])
    ticket = store.begin_flush()
    assert ticket is not None
    assert store.begin_flush() is None, "one is under way"
    put(store, [1])
    ticket.run()
    store.complete_flush(ticket)
    assert store.watermarks.flushed == first.end_offset
    flush(store)
    assert store.watermarks.flushed == store.watermarks.appended
    assert store.begin_flush() is None, "nothing is dirty"
    assert "the log has all of" not in caplog.text


def test_a_flush_that_was_under_way_when_the_log_was_cut_does_not_count() -> None:
    store = open_store(new_disk())
    puts = put(store, range(3))
    dispatch(store)
    ticket = store.begin_flush()
    assert ticket is not None
    ticket.run()
    store.truncate(puts[1].physical_offset)
    store.complete_flush(ticket)
    assert store.watermarks.flushed <= store.watermarks.appended == puts[1].physical_offset
    flush(store)
    assert store.watermarks.flushed == puts[1].physical_offset


def test_the_first_failure_is_the_one_that_is_told() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, range(2))
    ticket = store.begin_flush()
    assert ticket is not None
    for why in ("first", "second"):
        store.complete_flush(ticket, OSError(errno.EIO, why))
        assert "first" in (store.failed or "")
    disk.unlink(f"/store/commitlog/{0:020d}")
    store.check_files()  # it has failed already
    assert "first" in (store.failed or "")
    before = disk.paths()
    store.prepare_ahead()
    assert disk.paths() == before
    assert store.begin_commit() is None


def test_a_closed_store_takes_and_looks_at_nothing() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, range(2))
    store.close()
    with pytest.raises(ServiceNotAvailable, match="the store is closed"):
        put(store, [2])
    disk.unlink(f"/store/commitlog/{0:020d}")
    store.check_files()
    store.prepare_ahead()
    store.close()
    assert store.failed is None


@pytest.mark.parametrize("raw", [False, True])
def test_a_checkpoint_promises_all_that_is_flushed(raw: bool) -> None:
    """A slave's bytes count up to the last frame that was known to be whole."""
    disk, master = new_disk(), open_store(new_disk(2))
    put(master, range(3))
    store = open_store(disk)
    if raw:
        store.append_raw(0, content(master))
        dispatch(store)
        assert store.put(message(b"of its own")).queue_offset == 3
    else:
        put(store, range(3))
    flush(store)
    store.flush_derived()
    store.checkpoint()
    assert page(disk).flushed == store.watermarks.appended
    assert page(disk).promised == -1


def test_what_is_dispatched_after_its_flush_is_promised_too() -> None:
    disk, master = new_disk(), open_store(new_disk(2))
    put(master, range(3))
    store = open_store(disk)
    store.append_raw(0, content(master))
    flush(store)
    store.flush_derived()
    store.checkpoint()
    assert page(disk).flushed == 0, "nobody knew where a frame ends"
    dispatch(store)
    store.flush_derived()
    store.checkpoint()
    assert page(disk).flushed == store.watermarks.appended


def test_the_times_of_a_checkpoint_are_those_of_what_is_flushed() -> None:
    disk, clock = new_disk(), Clock()
    store = open_store(disk, clock)
    begin = clock.now
    put(store, [0])
    dispatch(store)
    flush(store)
    clock.now += 1000
    put(store, [1])
    dispatch(store)
    store.flush_derived()
    store.checkpoint()
    assert (page(disk).physic, page(disk).logics) == (begin, begin)
    save(store)
    assert (page(disk).physic, page(disk).logics) == (begin + 1000, begin + 1000)


def test_the_time_goes_on_from_what_a_crash_left() -> None:
    disk, clock = new_disk(), Clock()
    begin = clock.now
    store = open_store(disk, clock)
    put(store, [0])
    save(store)
    clock.now += 1000
    put(store, [1])
    die(disk)
    clock.now = begin
    store = open_store(disk, clock)
    assert put(store, [2])[0].store_timestamp == begin + 1000


# amnesia and damage


def test_a_log_lacks_its_front_only_if_something_is_missing_before_it() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, range(120))
    save(store)
    assert not store.lacks_front(0)
    for number, lacking in ((3, False), (0, True)):
        die(disk)
        disk.unlink(f"/store/commitlog/{number * SEGMENT:020d}")
        store = open_store(disk)
        assert store.missing != []
        assert store.lacks_front(0) is lacking
    assert store.lacks_front(SEGMENT - 1)
    assert not store.lacks_front(SEGMENT), "the other node's log has no more"
    die(disk)
    disk.remove_tree("/store/commitlog")
    assert not open_store(disk).lacks_front(0), "it can be copied from its beginning"


def damaged(disk, at_numbers: list[int]) -> tuple[MessageStore, list, bytes]:
    """A store that was built again around damaged messages, its puts and its bytes before."""
    store = open_store(disk)
    puts = put(store, range(90))
    save(store)
    data = content(store)
    for number in at_numbers:
        flip(disk, puts[number].physical_offset + 5)  # no checksum is needed to see it
    die(disk)
    disk.remove_tree("/store/consumequeue")
    disk.remove_tree("/store/index")
    return open_store(disk), puts, data


@pytest.mark.parametrize("order", [(20, 40, 60), (60, 40, 20), (40, 20, 60)])
def test_one_repair_after_the_other_leaves_the_rest_as_it_is(order: tuple[int, ...]) -> None:
    store, puts, data = damaged(new_disk(), sorted(order))
    left = {n: (puts[n].physical_offset, puts[n].end_offset) for n in sorted(order)}
    assert store.recovery.gaps == list(left.values())
    for number in order:
        start, end = left.pop(number)
        store.repair(start, data[start:end])
        assert store.recovery.gaps == list(left.values())
        for each in range(90):
            assert len(store.query_by_key("T", f"k{each}", 9, 0, 1 << 62)) == (each not in left)


@pytest.mark.parametrize("more", [0, -1])
def test_keys_are_not_put_in_order_again_where_that_takes_long(
    more: int, monkeypatch, caplog
) -> None:
    store, puts, data = damaged(new_disk(), [80])
    start, end = puts[80].physical_offset, puts[80].end_offset
    monkeypatch.setattr(message_store, "_INDEXED_AGAIN", len(data) - start + more)
    store.repair(start, data[start:end])
    assert ("may not be found by their keys" in caplog.text) is (more < 0)
    assert len(store.query_by_key("T", "k80", 9, 0, 1 << 62)) == (more == 0)
    assert numbers(store) == list(range(90))


# cuts


def test_a_gap_stays_where_the_log_is_cut_behind_it() -> None:
    for more in (0, 10, -10):
        store, puts, _ = damaged(new_disk(), [20])
        [(start, end)] = store.recovery.gaps
        assert (start, end) == (puts[20].physical_offset, puts[20].end_offset)
        store.truncate(end + more)
        assert store.recovery.gaps == ([] if more < 0 else [(start, end)])


def test_a_log_that_is_cut_at_its_start_is_emptied_without_another_copy() -> None:
    store = open_store(new_disk())
    put(store, range(3))
    master = open_store(new_disk())
    put(master, range(60))
    store.truncate(0)
    store.append_raw(SEGMENT, content(master)[SEGMENT:])
    dispatch(store)
    store.truncate(SEGMENT)
    assert (store.watermarks.start, store.watermarks.appended) == (SEGMENT, SEGMENT)
    before = store.truncated()
    store.truncate(0)
    assert (store.watermarks.start, store.watermarks.appended) == (0, 0)
    assert store.truncated() == before


def test_a_cut_is_told_with_its_reason(caplog) -> None:
    store = open_store(new_disk())
    puts = put(store, range(3))
    store.truncate(puts[2].end_offset)  # which is no cut
    store.truncate(puts[2].physical_offset, reason="because")
    store.truncate(puts[1].physical_offset)
    first, second = [r.message for r in caplog.records if "is cut" in r.message]
    assert first.endswith("(because)")
    assert second.endswith("(no reason given)")
    assert [(side.reason, side.epoch) for side in store.truncated()] == [("because", 0), ("", 0)]


def test_what_was_cut_off_is_put_back_as_far_as_it_goes_on_there() -> None:
    disk = new_disk()
    store = open_store(disk)
    puts = put(store, range(120))
    save(store)
    data, cut = content(store), puts[20].physical_offset
    store.truncate(cut)
    [side] = store.truncated()
    store.truncate(puts[10].physical_offset)
    store.put_back(side)
    assert store.watermarks.appended == puts[10].physical_offset, "it begins behind the log's end"
    store.put_back(store.truncated()[1])
    assert store.watermarks.appended == cut
    store.append_raw(cut, data[cut : cut + 100])
    store.put_back(side)
    dispatch(store)
    assert (content(store), numbers(store)) == (data, list(range(120)))
    store.put_back(side)
    assert store.watermarks.appended == len(data), "all of it is there"
    store.truncate(cut)
    disk.unlink(side.file)
    disk.write_file(side.file, data[cut : cut + 50])
    with pytest.raises(ServiceNotAvailable, match=f"cannot be read at {cut + 50}"):
        store.put_back(side)


# ends


def test_half_a_frame_is_cut_off_in_no_epoch_unless_one_is_given() -> None:
    master, slave = open_store(new_disk(2)), open_store(new_disk())
    puts = put(master, range(3))
    slave.append_raw(0, content(master)[:-10])
    assert slave.truncate_torn() == puts[2].end_offset - puts[2].physical_offset - 10
    assert [side.epoch for side in slave.truncated()] == [0]
    assert slave.watermarks.appended == puts[1].end_offset


def test_half_a_frame_is_left_to_the_next_start() -> None:
    master, disk = open_store(new_disk(2)), new_disk()
    put(master, range(3))
    data = content(master)
    for size, clean in ((len(data) - 10, False), (len(data), True)):
        slave = open_store(disk)
        at = slave.watermarks.appended
        slave.append_raw(at, data[at:size])
        slave.close()
        assert disk.exists("/store/abort") is not clean
    assert numbers(open_store(disk)) == [0, 1, 2]


def test_half_a_group_is_left_to_the_next_start() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, range(3))
    rows = bytes(encode_batch([(b"row", b"", 0)] * 2))
    parts = [
        AtomicBatchPart("T", 0, *store.measure_part("T", rows), lambda: rows) for _ in range(2)
    ]
    next(store.append_group(b"{}", parts))
    assert store.in_group
    store.close()
    assert disk.exists("/store/abort")
    assert numbers(open_store(disk)) == [0, 1, 2]


def test_a_pool_is_written_and_dispatched_before_the_end() -> None:
    disk = new_disk()
    store = open_store(disk, config=POOL)
    put(store, range(3))
    assert store.begin_commit() is not None
    assert store.begin_commit() is None, "one is under way"
    store.close()
    assert not disk.exists("/store/abort")
    again = open_store(disk, config=POOL)
    assert (again.recovery.clean, again.recovery.messages) == (True, 0)
    assert numbers(again) == [0, 1, 2]
    assert again.begin_commit() is None, "nothing waits"


def test_without_a_pool_there_is_nothing_to_commit() -> None:
    store = open_store(new_disk())
    put(store, range(3))
    assert store.begin_commit() is None
    assert store.begin_flush() is not None


def test_a_flush_that_fails_at_the_end_leaves_the_rest_to_the_next_start(caplog) -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, range(3))
    disk.plan("flush", pattern="*commitlog*")
    store.close()
    assert "planned" in (store.failed or "")
    assert disk.exists("/store/abort")


def test_queues_that_fail_to_be_flushed_are_built_again() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, range(60))
    save(store)
    put(store, range(60, 70))
    dispatch(store)
    flush(store)
    disk.plan("flush", pattern="*consumequeue*")
    with pytest.raises(OSError, match="planned"):
        store.flush_derived()
    assert "planned" in (store.failed or "")
    assert page(disk).derived < 0
    disk.power_off()
    disk.power_on()
    again = open_store(disk)
    assert again.recovery.scanned_from == 0
    assert numbers(again) == list(range(70))


# queues


def test_what_is_no_queue_is_empty() -> None:
    store = open_store(new_disk())
    put(store, range(3))
    dispatch(store)
    assert (store.min_offset("none", 0), store.max_offset("none", 0)) == (0, 0)
    assert (store.first_offset("none", 0), store.offset_at("none", 0, 0)) == (0, 0)
    assert bytes(store.entries("none", 0, 0, 9)) == b""
    assert len(store.entries("T", 0, 0, 9)) == 60
    assert (store.queue_ids("T"), store.queue_ids("none")) == ([0], [])
    assert (store.has_queues("T"), store.has_queues("none")) == (True, False)
    store.bury({"T": store.tombstone("T")})
    [other] = [store.put(message(b"x", "U"))]
    marker = store.put_marker(b"{}")
    dispatch(store)
    ends = {topic: (queue, at) for topic, queue, at in store.last_entries()}
    assert ends == {"U": (0, other.physical_offset), GROUPS_TOPIC: (0, marker.physical_offset)}


def test_the_offset_at_a_place_is_known_from_the_log_s_start_on() -> None:
    master = open_store(new_disk())
    puts = put(master, range(60))
    store = open_store(new_disk(2))
    store.append_raw(SEGMENT, content(master)[SEGMENT:])
    dispatch(store)
    first = store.min_offset("T", 0)
    assert puts[first].physical_offset == SEGMENT
    assert store.offset_at("T", 0, SEGMENT - 1) is None
    assert store.offset_at("T", 0, SEGMENT) == first
    assert store.offset_at("T", 0, SEGMENT + 1) == first + 1
    assert store.offset_at("T", 0, store.watermarks.appended) == 60


def test_files_of_deleted_queues_are_left_to_the_next_start_when_the_store_is_closed() -> None:
    disk = new_disk()
    store = open_store(disk)
    for queue in range(3):
        store.put(message(b"x", queue=queue))
    save(store)
    stone = store.tombstone("T")
    disk.make_dirs("/store/config")
    document = {"topicConfigTable": {}, KEY: {"T": stone.to_json()}}
    ConfigFile(disk, "/store/config/topics.json").save(document)
    store.bury({"T": stone})
    assert store.is_deleted("T", store.watermarks.appended - 1)
    assert not store.is_deleted("T", store.watermarks.appended)
    save(store)
    pieces = store.remove_deleted()
    next(pieces)
    store.close()
    for _ in range(2):
        assert len([path for path in disk.paths() if "consumequeue" in path]) == 2
        assert list(pieces) == [], "another broker may be at work there"
    open_store(disk)
    assert [path for path in disk.paths() if "consumequeue" in path] == []


def test_a_start_says_of_itself_whether_the_store_was_stopped_in_order() -> None:
    disk = new_disk()
    store = open_store(disk)
    assert store.recovery.clean
    put(store, range(3))
    store.close()
    assert open_store(disk).recovery.clean
    die(disk)
    assert not open_store(disk).recovery.clean

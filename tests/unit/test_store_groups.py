"""Groups in the log: all or nothing for the writer, for recovery, for a slave and for consumers."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.frame import CRC_PROPERTY_BYTES, decode_frame
from saturnmq.protocol.topics import GROUPS_TOPIC
from saturnmq.runtime.errors import (
    FlushDiskTimeout,
    MessageIllegal,
    SaturnError,
    ServiceNotAvailable,
    StageLost,
    SystemBusy,
)
from saturnmq.store.inspect.rebuild import rebuild
from saturnmq.store.inspect.verify import Sizes
from saturnmq.store.log.atomic_batches import AtomicBatch, lay_out
from saturnmq.store.message_store import AppendResult, AtomicBatchPart, MessageStore, PendingMessage
from store_rig import CONFIG, SEGMENT, Clock, bodies, dispatch, flush, message, new_disk, open_store


def part(store: MessageStore, *rows: bytes, queue: int = 0) -> AtomicBatchPart:
    data = bytes(encode_batch((row, b"", 0) for row in rows))
    count, size = store.measure_part("T", data)
    return AtomicBatchPart("T", queue, count, size, lambda: data)


def append(store: MessageStore, *parts: AtomicBatchPart, document: bytes = b"{}") -> AppendResult:
    *_, put = store.append_group(document, parts)
    assert put is not None
    return put


def die(disk: SimDisk) -> None:
    """kill -9, and a new process."""
    disk.kill()
    disk.power_on()


def rows(count: int, size: int = 900) -> list[bytes]:
    return [b"%d|" % n + bytes([n]) * size for n in range(count)]


@pytest.mark.parametrize("end", [0, 100, SEGMENT - 60, SEGMENT])
def test_the_places_of_a_group_are_those_that_batches_would_get(end: int) -> None:
    sizes = [50, 4000, 4000, 10, SEGMENT - 8]
    places, last = lay_out(end, sizes, SEGMENT)
    for place, size, after in zip(places, sizes, [*places[1:], last], strict=True):
        assert place % SEGMENT + size + 8 <= SEGMENT
        assert after == place + size or after % SEGMENT == 0
    assert places[0] in (end, end - end % SEGMENT + SEGMENT)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_piece_that_fits_to_the_byte_stays_in_its_segment(more: int) -> None:
    places, end = lay_out(100, [SEGMENT - 108 + more, 10], SEGMENT)
    if more == 1:
        assert (places, end) == ([SEGMENT, 2 * SEGMENT - 107], 2 * SEGMENT - 97)
    else:
        assert (places, end) == ([100, SEGMENT], SEGMENT + 10)


def test_nothing_of_a_group_counts_before_all_of_it_is_written() -> None:
    store = open_store(new_disk())
    store.put(message(b"before"))
    end = store.watermarks.appended
    steps = store.append_group(b"{}", [part(store, *rows(3), queue=n % 2) for n in range(6)])
    for n in range(6):
        assert next(steps) is None, n
        flush(store)
        dispatch(store)
        assert (store.watermarks.appended, store.watermarks.flushed) == (end, end)
        assert store.in_group
        with pytest.raises(SystemBusy):
            store.put(message(b"between"))
    put = next(steps)
    assert put is not None
    assert (put.count, store.watermarks.appended) == (18, put.end_offset)
    assert put.end_offset > 2 * SEGMENT
    dispatch(store)
    assert bodies(store) == [b"before", *rows(3) * 3]
    assert bodies(store, 1) == rows(3) * 3
    marker = store.marker(0)
    assert marker is not None
    assert (marker.start, marker.end, marker.document) == (end, put.end_offset, b"{}")
    assert store.put(message(b"after")).queue_offset == 10


def test_a_group_that_a_crash_interrupts_never_was(caplog) -> None:
    for written in range(4):
        disk = new_disk()
        store = open_store(disk)
        store.put(message(b"before"))
        steps = store.append_group(b"{}", [part(store, *rows(3)) for _ in range(4)])
        for _ in range(written):
            next(steps)
        die(disk)
        store = open_store(disk)
        assert bodies(store) == [b"before"]
        assert store.markers == (0, 0)
        assert store.put(message(b"after")).queue_offset == 1
        store.close()
        assert bodies(open_store(disk)) == [b"before", b"after"]
    assert "it is not whole" in caplog.text


def test_a_crash_that_interrupts_a_group_takes_none_of_the_one_before() -> None:
    disk = new_disk()
    store = open_store(disk)
    first = append(store, part(store, *rows(2)))
    steps = store.append_group(b"{}", [part(store, *rows(2)) for _ in range(2)])
    next(steps)
    die(disk)
    store = open_store(disk)
    assert store.watermarks.appended == first.end_offset
    assert (store.markers, bodies(store)) == ((0, 1), rows(2))


@pytest.mark.parametrize("beside", [False, True])
def test_damage_that_takes_the_end_of_a_group_takes_all_of_it(beside: bool, caplog) -> None:
    """Damage within it is told no more; that right before it is."""
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"before"))
    neighbour = store.put(message(b"beside"))
    start = neighbour.end_offset
    end = append(store, *[part(store, *rows(3)) for _ in range(2)]).end_offset
    assert end < SEGMENT
    flush(store)
    store.flush_derived()
    store.checkpoint()
    die(disk)
    for at in (start + 800, end - 500, *([neighbour.physical_offset + 60] if beside else [])):
        disk.flip(f"/store/commitlog/{0:020d}", at, 3)
    store = open_store(disk)
    assert store.recovery.gaps == ([(neighbour.physical_offset, start)] if beside else [])
    assert (store.watermarks.appended, store.markers) == (start, (0, 0))
    assert bodies(store) == [b"before"] + ([] if beside else [b"beside"])
    [side] = store.truncated()
    assert (side.start, side.end, store.recovery.lost) == (start, end, end - start)
    assert f"cut at {start}: the group that begins there should end at {end}, " in caplog.text


def test_a_group_that_a_crash_tore_is_told_with_the_frame_that_is_torn(caplog) -> None:
    disk = new_disk()
    store = open_store(disk)
    end = append(store, *[part(store, *rows(3)) for _ in range(2)]).end_offset
    die(disk)
    disk.flip(f"/store/commitlog/{0:020d}", 800, 3)
    assert open_store(disk).watermarks.appended == 0
    assert f"should end at {end}, the log ends at " in caplog.text
    assert "CRC" in caplog.text


def test_a_whole_group_survives_the_death_of_the_process() -> None:
    disk = new_disk()
    store = open_store(disk)
    append(store, *[part(store, *rows(3)) for _ in range(4)])
    die(disk)
    store = open_store(disk)
    assert bodies(store) == rows(3) * 4
    assert store.markers == (0, 1)


def bent(good: AtomicBatchPart) -> AtomicBatchPart:
    return replace(good, count=good.count + 1)


def unreadable(good: AtomicBatchPart) -> AtomicBatchPart:
    def read() -> bytes:
        raise OSError(5, "Input/output error")

    return replace(good, read=read)


def of_another_checksum(good: AtomicBatchPart) -> AtomicBatchPart:
    data = bytearray(good.read())
    data[20] ^= 1
    return replace(good, read=lambda: bytes(data))


@pytest.mark.parametrize(
    ("spoil", "error"),
    [(bent, StageLost), (unreadable, StageLost), (of_another_checksum, MessageIllegal)],
)
def test_a_group_with_a_bad_part_is_undone_to_the_last_byte(
    spoil: Callable[[AtomicBatchPart], AtomicBatchPart], error: type[Exception]
) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"before"))
    flush(store)
    end = store.watermarks.appended
    good = [part(store, *rows(3)) for _ in range(5)]
    with pytest.raises(error):
        append(store, *good, spoil(part(store, *rows(3))))
    assert (store.in_group, store.watermarks.appended) == (False, end)
    for path in disk.durable_paths("/store/commitlog"):
        start = int(path.rpartition("/")[2])
        assert not any(disk.platters(path)[max(0, end - start) :])
    assert append(store, *good).queue_offset == 0
    dispatch(store)
    assert bodies(store) == [b"before", *rows(3) * 5]


def test_a_group_that_a_failed_disk_ended_keeps_nobody_waiting() -> None:
    """A broker parks what comes while `in_group` holds: after the failure it has to refuse it."""
    disk = new_disk()
    store = open_store(disk)
    steps = store.append_group(b"{}", [part(store, *rows(3)) for _ in range(6)])
    next(steps)
    assert store.in_group
    disk.plan("write", errno.EIO, "/store/commitlog/*")
    with pytest.raises(FlushDiskTimeout, match="restart the broker"):
        list(steps)
    assert not store.in_group
    with pytest.raises(SaturnError, match="restart the broker"):
        store.put(message(b"after"))


def test_a_group_that_has_no_room_writes_nothing() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"before"))
    end = store.watermarks.appended
    total, free = disk.free_space("/store")
    disk.total_bytes = total - free + SEGMENT
    with pytest.raises(ServiceNotAvailable, match="no room"):
        append(store, *[part(store, *rows(3)) for _ in range(12)])
    disk.total_bytes = total
    assert store.watermarks.appended == end
    assert store.put(message(b"after")).queue_offset == 1
    assert append(store, *[part(store, *rows(3)) for _ in range(12)]).count == 36


def test_what_cannot_be_a_part_is_refused_before_it_is_staged() -> None:
    store = open_store(new_disk())
    with pytest.raises(MessageIllegal, match="send less at once"):
        part(store, bytes(SEGMENT))
    with pytest.raises(MessageIllegal, match="transaction"):
        store.measure_part("T", bytes(encode_batch([(b"x", b"", 0)])), sys_flag=4)


# what comes piece by piece


def replicate(source: MessageStore, target: MessageStore, end: int) -> None:
    start = target.watermarks.appended
    while start < end:
        data = source.read_log(start, end - start)
        assert data is not None
        target.append_raw(start, bytes(data))
        start = target.watermarks.appended


def master_with_a_group() -> tuple[MessageStore, AtomicBatch]:
    master = open_store(new_disk())
    master.put(message(b"before"))
    start = master.watermarks.appended
    put = append(master, *[part(master, *rows(3)) for _ in range(4)])
    master.put(message(b"after"))
    dispatch(master)
    assert start == put.physical_offset
    return master, AtomicBatch(start, put.end_offset)


def ends(master: MessageStore) -> list[int]:
    """Every place between two frames."""
    found, at = [], 0
    end = master.watermarks.appended
    while at < end:
        data = master.read_log(at, end - at)
        assert data is not None
        at += int.from_bytes(data[:4], "big")
        found.append(at)
    return found


def test_a_slave_dispatches_nothing_of_a_group_before_it_has_all_of_it() -> None:
    master, group = master_with_a_group()
    slave = open_store(new_disk(2))
    for end in [place + extra for place in ends(master)[:-1] for extra in (-3, 0, 50)]:
        replicate(master, slave, end)
        flush(slave)
        dispatch(slave)
        slave.flush_derived()
        slave.checkpoint()
        if group.start <= end < group.end:
            assert slave.watermarks.dispatched == group.start
            assert bodies(slave) == [b"before"]
    replicate(master, slave, master.watermarks.appended)
    dispatch(slave)
    assert bodies(slave) == [b"before", *rows(3) * 4, b"after"]


def test_a_promotion_cuts_an_unfinished_group_off_at_its_marker() -> None:
    master, group = master_with_a_group()
    for end in (group.start + 10, group.start + 2000, group.end - 1):
        slave = open_store(new_disk(end))
        replicate(master, slave, end)
        assert slave.truncate_torn() == end - group.start
        assert slave.watermarks.appended == group.start
        assert [side.start for side in slave.truncated()] == [group.start]
        assert slave.put(message(b"new")).queue_offset == 1
        dispatch(slave)
        assert bodies(slave) == [b"before", b"new"], "nothing waits for the rest of it any more"
    whole = open_store(new_disk(9))
    replicate(master, whole, group.end)
    assert whole.truncate_torn() == 0
    assert bodies(whole) == [b"before", *rows(3) * 4]


def test_a_slave_that_restarts_or_is_cut_within_a_group_goes_on_with_it() -> None:
    master, group = master_with_a_group()
    middle = next(end for end in ends(master) if end > group.start + 3000)
    disk = new_disk(2)
    slave = open_store(disk)
    replicate(master, slave, middle)
    flush(slave)
    slave.close()
    slave = open_store(disk)
    assert slave.watermarks.appended == group.start
    replicate(master, slave, group.end)
    dispatch(slave)
    assert slave.max_offset("T", 0) == 13
    slave.watermarks.confirmed = group.end
    slave.truncate(middle)
    assert (slave.watermarks.appended, slave.watermarks.dispatched) == (middle, group.start)
    assert slave.watermarks.confirmed == group.start
    assert bodies(slave) == [b"before"]
    replicate(master, slave, master.watermarks.appended)
    dispatch(slave)
    assert bodies(slave) == [b"before", *rows(3) * 4, b"after"]


def test_of_two_groups_that_arrived_together_the_whole_one_is_dispatched() -> None:
    master = open_store(new_disk())
    whole, half = (append(master, part(master, *rows(2))) for _ in range(2))
    slave = open_store(new_disk(2))
    replicate(master, slave, half.end_offset - 1)
    dispatch(slave)
    assert slave.watermarks.dispatched == whole.end_offset == half.physical_offset
    assert bodies(slave) == rows(2)
    assert slave.markers == (0, 1)


def test_what_takes_the_place_of_half_a_group_waits_for_nothing() -> None:
    """A slave that is cut at the marker, or before it, to what its new master has."""
    master, group = master_with_a_group()
    for end in (0, group.start):
        slave = open_store(new_disk(2))
        replicate(master, slave, group.end - 1)
        dispatch(slave)
        slave.truncate(end)
        assert slave.put(message(b"other")).queue_offset == (1 if end else 0)
        dispatch(slave)
        assert slave.watermarks.dispatched == slave.watermarks.appended
        assert bodies(slave) == [*[b"before"] * bool(end), b"other"]


def test_a_power_loss_at_a_slave_never_leaves_a_part_of_a_group() -> None:
    master, group = master_with_a_group()
    places = ends(master)
    for seed in range(60):
        disk = new_disk(seed)
        slave = open_store(disk)
        for n, end in enumerate(places):
            replicate(master, slave, end)
            if (seed + n) % 3 == 0:
                flush(slave)
            if (seed + n) % 4 == 0:
                slave.reput()
            if (seed + n) % 5 == 0:
                slave.flush_derived()
                slave.checkpoint()
            if end >= places[seed % len(places)]:
                break
        disk.power_off()
        disk.power_on()
        slave = open_store(disk)
        assert not group.start < slave.watermarks.appended < group.end
        assert slave.max_offset("T", 0) in (0, 1, 13, 14)


def test_no_position_lies_within_a_group() -> None:
    master, group = master_with_a_group()
    end = master.watermarks.appended
    for restarts in (0, 1):
        store = reopened(master) if restarts else master
        for offset in range(0, end, 7):
            inside = group.start < offset < group.end
            assert store.align_to_batch(offset) == (group.start if inside else offset)
        assert store.align_to_batch(end) == end


def reopened(store: MessageStore) -> MessageStore:
    disk = store._disk
    assert isinstance(disk, SimDisk)
    store.close()
    return open_store(disk)


def test_a_marker_is_an_ordinary_message_whatever_the_checksums_are() -> None:
    for crc_property in (True, False):
        store = open_store(new_disk(), config=replace(CONFIG, crc_property=crc_property))
        put = append(store, document=b'{"kind":"group"}')
        assert put.count == 0
        data = store.read_log(put.physical_offset, 1000)
        assert data is not None
        frame = decode_frame(data)
        assert (frame.topic.decode(), frame.queue_id) == (GROUPS_TOPIC, 0)
        assert len(frame.raw_properties) == CRC_PROPERTY_BYTES * crc_property
        assert store.put_marker(b"{}").queue_offset == 1
        dispatch(store)
        markers = [store.marker(n) for n in range(*store.markers)]
        assert [marker.document for marker in markers if marker] == [b'{"kind":"group"}', b"{}"]


def test_the_fields_of_a_group_s_frames_say_nothing_but_what_is_known() -> None:
    store = open_store(new_disk())
    now = Clock().now
    hosts = bytes(range(8)), bytes(range(8, 16))
    of_part = replace(part(store, *rows(2)), sys_flag=1, born_timestamp=now - 5, born_host=hosts[0])
    *_, put = store.append_group(b"{}", [of_part], store_host=hosts[1])
    assert put is not None
    data = bytes(store.read_log(put.physical_offset, SEGMENT) or b"")
    frames = [decode_frame(data)]
    while len(frames) < 3:
        frames.append(decode_frame(data, sum(frame.size for frame in frames)))
    marker, *others = frames
    for frame in frames:
        assert (frame.flag, frame.reconsume_times, frame.prepared_offset) == (0, 0, 0)
        assert (frame.store_timestamp, frame.store_host) == (now, hosts[1])
    assert (marker.sys_flag, marker.born_timestamp, marker.born_host) == (0, now, bytes(8))
    for number, frame in enumerate(others):
        assert (frame.sys_flag, frame.born_timestamp, frame.born_host) == (1, now - 5, hosts[0])
        assert (frame.queue_id, frame.queue_offset) == (0, number)


def test_groups_that_touch_each_other_are_two() -> None:
    """Before and after they are dispatched."""
    store = open_store(new_disk())
    store.put(message(b"before"))
    dispatch(store)
    groups = [append(store, part(store, *rows(2)), part(store, *rows(1))) for _ in range(3)]
    for _ in range(2):
        for put in groups:
            assert store.align_to_batch(put.physical_offset) == put.physical_offset
            assert store.align_to_batch(put.physical_offset + 1) == put.physical_offset
            assert store.align_to_batch(put.end_offset - 1) == put.physical_offset
            assert store.align_to_batch(put.end_offset) == put.end_offset
        dispatch(store)


@pytest.mark.parametrize(
    "body", [b"", b"1234567", bytes(8), b"\0" * 7 + b"\5more", b"\xff" * 8, b"\x80" + bytes(7)]
)
def test_a_marker_of_nothing_ends_with_itself(body: bytes) -> None:
    store = open_store(new_disk())
    put = store.put(PendingMessage(GROUPS_TOPIC, 0, body))
    store.put(message(b"x"))
    dispatch(store)
    marker = store.marker(0)
    assert marker is not None
    assert (marker.start, marker.end) == (put.physical_offset, put.end_offset)
    assert marker.document == body[8:]
    assert store.marker(-1) is store.marker(1) is None
    for offset in range(store.watermarks.appended + 1):
        assert store.align_to_batch(offset) == offset


def test_a_group_may_have_a_marker_that_says_nothing() -> None:
    store = open_store(new_disk())
    put = append(store, part(store, *rows(3)), document=b"")
    dispatch(store)
    marker = store.marker(0)
    assert marker is not None
    assert (marker.end, marker.document) == (put.end_offset, b"")


def test_a_marker_that_the_disk_has_lost_is_none() -> None:
    disk = new_disk()
    store = open_store(disk)
    put = append(store, part(store, *rows(3)))
    dispatch(store)
    assert store.marker(0) is not None
    disk.flip(f"/store/commitlog/{0:020d}", put.physical_offset + 4, 1)
    assert store.marker(0) is None
    assert store.align_to_batch(put.end_offset - 1) == put.end_offset - 1


def test_a_rebuild_without_the_broker_does_not_promise_half_a_group() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"before"))
    start = store.watermarks.appended
    steps = store.append_group(b"{}", [part(store, *rows(3)) for _ in range(4)])
    next(steps)
    next(steps)
    die(disk)
    sizes = Sizes(SEGMENT, 400, 50, 40)
    assert rebuild(disk, "/store", lambda: 0, sizes).log_end == start
    store = open_store(disk)
    assert (store.watermarks.appended, bodies(store)) == (start, [b"before"])

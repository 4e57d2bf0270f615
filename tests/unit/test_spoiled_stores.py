"""Files of a store with values that cannot be, and checksums that are right: what the drill `fuzz`
found (`drills/fuzz/store.py`). A start refuses them by name, or serves the rest.
"""

from __future__ import annotations

import posixpath
import struct

import pytest
import world_rig
from frame_rig import plain_frame
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.received_reference import ReceivedMessage
from saturnmq.runtime.errors import ServiceNotAvailable
from saturnmq.store.inspect.verify import Sizes, check
from saturnmq.store.reading import number_of
from saturnmq.store.recovery.checkpoint import Checkpoint
from store_rig import CONFIG, SEGMENT, bodies, dispatch, flush, message, new_disk, open_store
from world_rig import World, saved_json

ROOT = CONFIG.root


def frame_at(
    offset: int,
    queue_offset: int,
    queue: int = 0,
    properties: bytes = b"",
    topic: bytes = b"T",
) -> bytes:
    return plain_frame(
        physical_offset=offset,
        queue_offset=queue_offset,
        queue_id=queue,
        body=b"lie",
        topic=topic,
        properties=properties,
        crc_property=True,
    )


@pytest.mark.parametrize("queue_offset", [1000, 1 << 40, (1 << 62)])
def test_a_frame_far_behind_the_end_of_its_queue_makes_no_files_up_to_there(
    queue_offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As the master that a slave follows may send it: the files between were made without end."""
    store = open_store(new_disk())
    store.put(message(b"first"))
    dispatch(store)
    end = store.watermarks.appended
    store.append_raw(end, frame_at(end, queue_offset))
    dispatch(store)
    assert "there is no room for all before" in caplog.text or "an offset" in caplog.text
    store.put(message(b"next"))
    dispatch(store)
    assert bodies(store) == [b"first", b"next"]


def test_an_entry_before_the_log_makes_no_room_for_a_frame_far_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"first"))
    dispatch(store)
    queue = disk.open_segment(
        ROOT + "/consumequeue/T/0/" + "0" * 20, CONFIG.consumequeue_segment_bytes
    )
    queue.write(0, struct.pack(">q", -(1 << 63)))
    end = store.watermarks.appended
    store.append_raw(end, frame_at(end, (1 << 31) - 1))
    dispatch(store)
    assert "there is no room for all before" in caplog.text


def test_a_queue_that_lost_messages_goes_on_behind_them() -> None:
    store = open_store(new_disk())
    store.put(message(b"first", queue=0))
    for _ in range(9):
        store.put(message(b"between", queue=1))
    dispatch(store)
    end = store.watermarks.appended
    store.append_raw(end, frame_at(end, 9))
    dispatch(store)
    assert bodies(store) == [b"first", b"lie"]
    assert store.max_offset("T", 0) == 10


@pytest.mark.parametrize(("queue", "queue_offset"), [(-1, 0), (0, -1), (0, (1 << 63) - 1)])
def test_a_frame_of_a_queue_that_cannot_be_is_not_dispatched(queue: int, queue_offset: int) -> None:
    store = open_store(new_disk())
    store.append_raw(0, frame_at(0, queue_offset, queue))
    dispatch(store)
    assert store.queues() == {}
    store.put(message(b"next"))
    dispatch(store)
    assert bodies(store) == [b"next"]


NAMES = ["\u00b2", "\u0663", "9" * 30, "9" * 5000, "-1", "1_0"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("directory", ["index", "consumequeue/T"])
def test_a_start_passes_over_files_whose_names_are_no_numbers_of_ours(
    name: str, directory: str
) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one"))
    dispatch(store)
    store.close()
    path = posixpath.join(ROOT, directory, name)
    if directory == "index":
        disk.write_file(path, bytes(40 + 4 * CONFIG.index_slots + 20 * CONFIG.index_items))
    else:
        disk.make_dirs(path)
    disk.locks.clear()
    for _ in range(2):
        store = open_store(disk)
        store.put(message(b"more"))
        dispatch(store)
        assert bodies(store)[0] == b"one"
        store.close()
        disk.locks.clear()
    sizes = Sizes(index_slots=CONFIG.index_slots, index_items=CONFIG.index_items)
    assert check(disk, ROOT, sizes).damage == []


def test_a_name_is_a_number_as_brokers_write_it() -> None:
    assert [number_of(name) for name in ("0", "7", "0" * 19 + "7")] == [0, 7, 7]
    assert [number_of(name) for name in (*NAMES, "", "x", "0x1", " 7", "0" * 21)] == [None] * 11
    assert (number_of("8", 8), number_of("9", 8)) == (8, None)


def filled() -> tuple[SimDisk, Checkpoint]:
    """The disk of a stopped store with one message, and its checkpoint."""
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one"))
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.close()
    disk.locks.clear()
    return disk, Checkpoint.load(disk, ROOT)


def test_a_checkpoint_that_names_an_index_file_beyond_64_bits_says_nothing_of_the_index() -> None:
    disk, page = filled()
    page.index_name = (1 << 63) - 1
    page.save(disk, ROOT)
    store = open_store(disk)
    store.checkpoint()
    assert len(store.query_by_key("T", "k", 9, 0, 1 << 62)) == 1


@pytest.mark.parametrize("count", [-1, 0, CONFIG.index_items + 1, (1 << 31) - 1])
def test_a_checkpoint_that_counts_items_which_no_index_file_has_says_nothing_of_the_index(
    count: int,
) -> None:
    disk, page = filled()
    page.index_header = page.index_header[:36] + struct.pack(">i", count)
    page.save(disk, ROOT)
    disk.write_file(ROOT + "/abort", b"1")
    store = open_store(disk)
    assert len(store.query_by_key("T", "k", 9, 0, 1 << 62)) == 1


@pytest.mark.parametrize("used", [-1, CONFIG.index_slots, (1 << 31) - 1])
def test_an_index_file_that_counts_slots_which_it_has_not_takes_more_items(used: int) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one"))
    dispatch(store)
    store.close()
    (path,) = (path for path in disk.paths() if "/index/" in path)
    data = disk.content(path)
    disk.write_file(path, data[:32] + struct.pack(">i", used) + data[36:])
    disk.locks.clear()
    store = open_store(disk)
    store.put(message(b"next", key="another"))
    dispatch(store)
    assert len(store.query_by_key("T", "another", 9, 0, 1 << 62)) == 1


@pytest.mark.parametrize("left", [1, 7])
def test_a_checkpoint_that_ends_the_log_where_no_blank_fits_is_not_believed(left: int) -> None:
    disk, page = filled()
    page.derived = page.flushed = SEGMENT - left
    page.save(disk, ROOT)
    store = open_store(disk)
    with pytest.raises(ServiceNotAvailable, match="lacks the bytes"):
        store.put(message(b"next" * 100))
    assert bodies(store) == [b"one"]


@pytest.mark.parametrize("level", ["9" * 5000, "\u0663", "-1", "x"])
def test_a_delay_level_that_is_no_number_is_none(level: str) -> None:
    frame = frame_at(0, 0, properties=f"DELAY\x01{level}\x02".encode())
    assert ReceivedMessage(frame).delay_level == 0


def test_a_broker_whose_log_holds_what_is_no_frame_ends_in_order() -> None:
    """As the master that a slave follows may send it: the end saved no table, and kept the lock."""

    async def body(world: World) -> None:
        broker = await world.broker(role="SLAVE", broker_id=1)
        broker.store.append_raw(0, b"x" * 300)
        broker.context.offsets.commit("g", "t", 0, 7)
        await broker.close()
        assert world.disk.locks == {}
        assert broker.store.watermarks.flushed == 300
        assert world.disk.exists("/store/abort"), "the next start looks at all of the log"
        assert saved_json(world.disk, "consumerOffset.json")["offsetTable"] == {"t@g": {"0": 7}}

    world_rig.run(body)


def test_damage_that_goes_on_into_a_segment_that_is_missing_ends_where_the_log_does() -> None:
    """The start after a crash failed by an assertion."""
    disk = new_disk()
    store = open_store(disk)
    ends = []
    while store.watermarks.appended < SEGMENT:
        ends.append(store.watermarks.appended)
        store.put(message(b"x" * 100))
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    store.close()
    log, queue = ROOT + "/commitlog/", ROOT + "/consumequeue/T/0/" + "0" * 20
    disk.unlink(log + f"{SEGMENT:020}")
    first = disk.content(log + "0" * 20)
    disk.write_file(log + "0" * 20, first[: ends[-2] + 24] + b"\x7f" + first[ends[-2] + 25 :])
    disk.write_file(queue, bytes(400))
    disk.write_file(ROOT + "/abort", b"1")
    disk.locks.clear()
    store = open_store(disk)
    assert bodies(store) == [b"x" * 100] * (len(ends) - 2)


def test_a_file_of_a_queue_whose_name_lies_between_two_entries_is_damage() -> None:
    """A start searched it without end."""
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one"))
    dispatch(store)
    store.close()
    queue = ROOT + "/consumequeue/T/0/"
    disk.rename(queue + "0" * 20, queue + "01517092857710819369")
    disk.locks.clear()
    store = open_store(disk)
    assert bodies(store) == [b"one"]


def test_a_frame_that_was_spoiled_under_the_store_keeps_no_key_from_being_found() -> None:
    """A topic that is no text any more, with a checksum that is right, made the search fail."""
    disk = new_disk()
    store = open_store(disk)
    for body in (b"one", b"two"):
        store.put(message(body))
    dispatch(store)
    lie = frame_at(0, 0, properties=message(b"").properties, topic=b"\xcd")
    assert 2 * len(lie) == store.watermarks.appended
    disk.open_segment(ROOT + "/commitlog/" + "0" * 20, SEGMENT).write(0, lie)
    (found,) = store.query_by_key("T", "k", 9, 0, 1 << 62)
    assert b"two" in found

"""Files of a store with values that cannot be, and checksums that are right: what the drill `fuzz`
found (`drills/fuzz/store.py`). A start refuses them by name, or serves the rest.
"""

from __future__ import annotations

import posixpath

import pytest
import world_rig
from saturnmq.protocol.errors import ServiceNotAvailable
from saturnmq.protocol.frame import encode_frame
from saturnmq.protocol.received import ReceivedMessage
from saturnmq.store.checkpoint import Checkpoint
from saturnmq.store.reading import number_of
from saturnmq.store.verify import Sizes, check
from store_rig import CONFIG, SEGMENT, bodies, dispatch, flush, message, new_disk, open_store
from world_rig import World, saved_json

ROOT = CONFIG.root


def frame_at(offset: int, queue_offset: int, queue: int = 0, properties: bytes = b"") -> bytes:
    return encode_frame(
        physical_offset=offset,
        queue_offset=queue_offset,
        queue_id=queue,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=bytes(8),
        store_timestamp=1,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_offset=0,
        body=b"lie",
        topic=b"T",
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


def test_a_checkpoint_that_names_an_index_file_beyond_64_bits_says_nothing_of_the_index() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one"))
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.close()
    page = Checkpoint.load(disk, ROOT)
    page.index_name = (1 << 63) - 1
    page.save(disk, ROOT)
    disk.locks.clear()
    store = open_store(disk)
    store.checkpoint()
    assert len(store.query_by_key("T", "k", 9, 0, 1 << 62)) == 1


@pytest.mark.parametrize("left", [1, 7])
def test_a_checkpoint_that_ends_the_log_where_no_blank_fits_is_not_believed(left: int) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(b"one"))
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.close()
    page = Checkpoint.load(disk, ROOT)
    page.derived = page.flushed = SEGMENT - left
    page.save(disk, ROOT)
    disk.locks.clear()
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

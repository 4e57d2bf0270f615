"""A rebuild of queues and index: what it reports, what it promises to the next start, and which
queues it must not touch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from saturnmq.cli.main import app
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.batch import encode_batch
from saturnmq.runtime.errors import ConfigError, ServiceNotAvailable
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.consumequeue import ENTRY
from saturnmq.store.derived.tombstones import KEY
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.rebuild import Rebuilt, is_over, rebuild
from saturnmq.store.inspect.verify import Sizes
from saturnmq.store.message_store import AtomicBatchPart, MessageStore
from saturnmq.store.recovery.checkpoint import Checkpoint
from store_rig import CONFIG, SEGMENT, Clock, bodies, dispatch, message, new_disk, open_store
from typer.testing import CliRunner

QUEUE_FILE = CONFIG.consumequeue_segment_bytes
SIZES = Sizes(SEGMENT, QUEUE_FILE, CONFIG.index_slots, CONFIG.index_items, 13_800_000)
BODY = bytes(150)


def rebuilt(disk: SimDisk, **options: object) -> Rebuilt:
    return rebuild(disk, "/store", Clock().now_ms, SIZES, **options)


def put(store: MessageStore, count: int, topic: str = "T", queue: int = 0) -> list[int]:
    """Messages, and where they lie; behind them the end of the last one."""
    puts = [
        store.put(message(b"%d" % n + BODY, topic=topic, queue=queue, key=f"k{n}"))
        for n in range(count)
    ]
    return [*(one.physical_offset for one in puts), puts[-1].end_offset]


def flip(disk: SimDisk, offset: int) -> None:
    disk.flip(f"/store/commitlog/{offset // SEGMENT * SEGMENT:020d}", offset % SEGMENT, 2)


@pytest.mark.parametrize("count", [0, 90])
def test_a_rebuild_promises_what_the_broker_had_promised(count: int) -> None:
    disk = new_disk()
    store = open_store(disk)
    end = put(store, count)[-1] if count else 0
    store.close()
    promised = Checkpoint.load(disk, "/store")
    assert promised.derived == end
    disk.make_dirs("/store/commitlog")
    built = rebuilt(disk)
    assert built == Rebuilt("/store", SIZES, 0, end, count, min(count, 1), count)
    assert Checkpoint.load(disk, "/store") == promised
    assert not disk.exists("/store/abort")
    disk.unlink("/store/checkpoint")
    rebuilt(disk)
    assert Checkpoint.load(disk, "/store") == replace(promised, start=-1)


@pytest.mark.parametrize("fill", [b"\0", b"x"], ids=["zeros", "garbage"])
def test_a_rebuild_tells_of_a_flushed_end_that_is_gone_and_so_does_the_next_start(
    tmp_path: Path, fill: bytes
) -> None:
    disk, root = NativeDisk(), str(tmp_path)
    config = replace(CONFIG, root=root)
    store = open_store(disk, config=config)
    at = put(store, 45)
    cut, end = at[40], at[-1]
    assert cut // SEGMENT == end // SEGMENT
    store.close()
    newest = disk.open_segment(f"{root}/commitlog/{end // SEGMENT * SEGMENT:020d}", SEGMENT)
    newest.write(cut % SEGMENT, fill * (end - cut))
    newest.close()
    sizes = f"--index-slots {CONFIG.index_slots} --index-items {CONFIG.index_items}".split()
    result = CliRunner().invoke(app, ["store", "rebuild", root, "--yes", *sizes])
    assert f"{end - cut:,} bytes of the log behind {cut:,} were on this disk once" in result.output
    page = Checkpoint.load(disk, root)
    assert (page.derived, page.flushed) == (cut, end)
    again = open_store(disk, config=config)
    assert again.missing == [(cut, end)]
    assert again.max_offset("T", 0) == 40
    with pytest.raises(ServiceNotAvailable, match=f"lacks the bytes {cut} to {end}"):
        again.put(message(b"next"))
    again.close()


def test_the_progress_is_that_within_the_log_that_is_left() -> None:
    disk = new_disk()
    store = open_store(disk)
    end = put(store, 90)[-1]
    store.close()
    disk.unlink(f"/store/commitlog/{0:020d}")
    seen: list[tuple[int, int]] = []
    built = rebuilt(disk, progress=lambda done, total: seen.append((done, total)))
    assert (built.log_start, built.log_end) == (SEGMENT, end)
    assert seen.pop() == (end - SEGMENT, end - SEGMENT)
    assert [done for done, _ in seen] == [0, SEGMENT, 2 * SEGMENT]
    assert {total for _, total in seen} == {3 * SEGMENT}


def test_behind_what_was_durable_a_damaged_frame_is_the_end_of_the_log() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 20)
    store.close()
    store = open_store(disk)
    at = put(store, 20)
    disk.kill()
    disk.power_on()
    flip(disk, at[4] + 100)
    built = rebuilt(disk)
    assert (built.messages, built.log_end, built.gaps) == (24, at[4], [])
    assert "CRC" in built.stopped_by
    disk.unlink("/store/checkpoint")
    built = rebuilt(disk)  # nobody knows what was durable
    assert [(gap.start, gap.end) for gap in built.gaps] == [(at[4], at[5])]
    assert (built.messages, built.log_end, built.stopped_by) == (39, at[-1], "")


def test_where_nothing_was_durable_the_first_damaged_frame_is_the_end_of_the_log() -> None:
    disk = new_disk()
    at = put(open_store(disk), 20)
    disk.kill()
    disk.power_on()
    Checkpoint(derived=0, flushed=0, start=0).save(disk, "/store")
    flip(disk, at[4] + 100)
    built = rebuilt(disk)
    assert (built.messages, built.log_end, built.gaps) == (4, at[4], [])


def test_what_a_rebuild_read_of_a_killed_brokers_log_is_durable() -> None:
    disk = new_disk()
    end = put(open_store(disk), 90)[-1]
    disk.kill()
    disk.power_on()
    assert rebuilt(disk).log_end == end
    disk.power_off()
    disk.power_on()
    store = open_store(disk)
    assert (store.watermarks.appended, len(bodies(store))) == (end, 90)


def test_a_group_that_ends_with_the_log_is_whole() -> None:
    disk = new_disk()
    store = open_store(disk)
    data = bytes(encode_batch((b"%d" % n, b"", 0) for n in range(3)))
    count, size = store.measure_part("T", data)
    *_, last = store.append_group(b"{}", [AtomicBatchPart("T", 0, count, size, lambda: data)])
    assert last is not None
    store.close()
    assert rebuilt(disk).log_end == last.end_offset == store.watermarks.appended


def test_frames_that_name_no_queue_are_counted() -> None:
    disk = new_disk()
    store = open_store(disk)
    put(store, 3)
    for topic in ("../T", "T", "../T"):
        put(store, 2, topic)
    store.close()
    built = rebuilt(disk)
    assert (built.messages, built.queues, built.not_queues) == (9, 1, 2)


@pytest.mark.parametrize("tag", ["A", ""])
def test_the_end_of_a_queue_without_messages_is_its_next_offset(tag: str) -> None:
    disk = new_disk()
    store = open_store(disk)
    last = [store.put(message(BODY, queue=5, tag=tag)) for _ in range(45)][-1]
    put(store, 90)
    dispatch(store)
    store.close()
    for start in range(0, last.end_offset, SEGMENT):
        disk.unlink(f"/store/commitlog/{start:020d}")
    for _ in range(2):
        assert rebuilt(disk).queues == 2
        store = open_store(disk)
        assert (store.min_offset("T", 5), store.max_offset("T", 5)) == (45, 45)
        assert store.min_offset("T", 0) > 0
        store.close()


def test_the_end_of_a_topic_that_was_made_again_is_its_next_offset() -> None:
    """Also where none of its messages is left: its tombstone tells where it began, not its end."""
    disk = new_disk()
    store = open_store(disk)
    put(store, 10, queue=5)
    dispatch(store)
    stone = store.tombstone("T")
    disk.make_dirs("/store/config")
    document = {"topicConfigTable": {}, KEY: {"T": stone.to_json()}}
    ConfigFile(disk, "/store/config/topics.json").save(document)
    store.bury({"T": stone})
    end = put(store, 35, queue=5)[-1]
    put(store, 90, "U")
    dispatch(store)
    assert store.max_offset("T", 5) == 45
    store.close()
    for start in range(0, end, SEGMENT):
        disk.unlink(f"/store/commitlog/{start:020d}")
    for _ in range(2):
        rebuilt(disk)
        store = open_store(disk)
        assert (store.min_offset("T", 5), store.max_offset("T", 5)) == (45, 45)
        assert store.recovery.messages == 0
        store.close()


# -- whether a queue is over ----------------------------------------------------------------------


def queue_files(*files: list[tuple[int, int, int]]) -> SimDisk:
    """A queue whose files hold these entries."""
    disk = new_disk()
    disk.make_dirs("/q")
    for number, entries in enumerate(files):
        file = disk.create_segment(f"/q/{number * QUEUE_FILE:020d}", QUEUE_FILE)
        file.write(0, b"".join(ENTRY.pack(*entry) for entry in entries))
        file.close()
    return disk


@pytest.mark.parametrize("code", [0, 1, 256, -1])
@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_queue_is_over_where_the_log_begins_behind_its_last_message(
    count: int, code: int
) -> None:
    disk = queue_files([(100 * n, 100, code) for n in range(count)])
    end = 100 * count
    for start, over in ((0, False), (end - 1, False), (end, True), (end + 1, True)):
        assert is_over(disk, "/q", QUEUE_FILE, start) is over


def test_the_newest_file_tells_whether_a_queue_is_over() -> None:
    disk = queue_files([(100 * n, 100, 1) for n in range(20)], [(2000, 100, 1)])
    assert not is_over(disk, "/q", QUEUE_FILE, 2099)
    assert is_over(disk, "/q", QUEUE_FILE, 2100)


@pytest.mark.parametrize(
    "files",
    [[], [[]], [[(0, 100, 1)] * 20, []], [[(0, 0, 1)]], [[(-101, 100, 1)]], [[(0, -1, 1)]]],
    ids=["no file", "no entry", "none in the newest", "no bytes", "no place", "no size"],
)
def test_what_is_no_end_of_a_queue_is_built_again(files: list[list[tuple[int, int, int]]]) -> None:
    assert not is_over(queue_files(*files), "/q", QUEUE_FILE, 1 << 60)


def test_a_queue_with_a_file_that_does_not_fit_is_built_again() -> None:
    disk = queue_files([(0, 100, 1)])
    assert is_over(disk, "/q", QUEUE_FILE, 100)
    disk.write_file(f"/q/{QUEUE_FILE:020d}", bytes(20))
    assert not is_over(disk, "/q", QUEUE_FILE, 100)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (f"--segment-bytes {SEGMENT // 2}", f"segments of {SEGMENT // 2} bytes, but those in"),
        (f"--segment-bytes {SEGMENT * 2}", f"those in .*commitlog have {SEGMENT}: leave the size"),
        (f"--queue-file-bytes {QUEUE_FILE * 2}", f"those in .*consumequeue have {QUEUE_FILE}"),
        ("--queue-file-bytes 7", "queue files of 7 bytes: give a multiple of 20"),
        ("--index-slots 3", r"3 slots and 0 items \(0: not given\) do not make up the 1040 bytes"),
        ("--index-items 1", "an index of 1 item"),
        ("--index-slots 50 --index-items 41", "give those of its broker"),
    ],
)
def test_a_size_that_the_files_contradict_is_refused_before_anything_is_deleted(
    tmp_path: Path, options: str, why: str
) -> None:
    disk, root = NativeDisk(), str(tmp_path)
    store = open_store(disk, config=replace(CONFIG, root=root))
    put(store, 90)
    dispatch(store)
    store.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    command = ["store", "rebuild", root, "--yes", *options.split()]
    with pytest.raises(ConfigError, match=why):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_size_that_the_files_do_not_tell_may_be_given() -> None:
    disk = new_disk()
    store = open_store(disk)
    end = put(store, 3)[-1]
    store.close()
    disk.remove_tree("/store/index")
    disk.remove_tree("/store/consumequeue")
    sizes = Sizes(2 * SEGMENT, 800, 3, 7, 46)
    assert rebuild(disk, "/store", Clock().now_ms, sizes).log_end == end

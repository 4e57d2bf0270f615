"""A store with many queues costs what they hold."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from saturnmq.drills.sim.disk import PowerCutOdds
from saturnmq.protocol.batch import encode_batch
from saturnmq.runtime.errors import ServiceNotAvailable, SystemBusy
from saturnmq.store.derived.queue_files import QueueFiles
from saturnmq.store.derived.reput import NEW_QUEUES
from saturnmq.store.disk import MappedFile, NativeDisk
from saturnmq.store.message_store import MessageStore, StoreConfig
from store_rig import (
    CONFIG,
    SEGMENT,
    Clock,
    bodies,
    dispatch,
    flush,
    message,
    new_disk,
    open_store,
)

TOPICS, QUEUES = 4, 3


def real_store(root: Path, **changes: int) -> MessageStore:
    config = StoreConfig(root=str(root), commitlog_segment_bytes=1 << 20, **changes)
    return open_store(NativeDisk(), Clock(), config)


def fill(store: MessageStore) -> None:
    """A message in each of the queues."""
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            store.put(message(b"x", f"topic-{topic}", queue))
            dispatch(store)


def test_a_start_after_a_clean_stop_syncs_no_queue() -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store)
    store.close()
    seen: Counter[str] = Counter()

    def note(operation: str, path: str) -> None:
        seen[operation] += "/consumequeue" in path

    disk.step = note
    store = open_store(disk)
    assert len(store.queues()) == TOPICS * QUEUES
    assert seen["flush"] == seen["sync_dir"] == seen["zero"] == 0


def test_a_start_after_a_crash_syncs_each_queue_once() -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    disk.kill()
    disk.power_on()
    synced: Counter[str] = Counter()

    def note(operation: str, path: str) -> None:
        if operation in ("flush", "sync_dir") and "/consumequeue/" in path:
            synced[path] += 1

    disk.step = note
    store = open_store(disk)
    assert len(store.queues()) == TOPICS * QUEUES
    assert len([path for path in synced if path.endswith("0" * 20)]) == TOPICS * QUEUES
    assert set(synced.values()) == {1}


def test_a_start_reads_no_more_of_a_queue_than_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = real_store(tmp_path)
    fill(store)
    store.close()
    read: Counter[str] = Counter()
    pread = os.pread

    def count(fd: int, size: int, at: int) -> bytes:
        data = pread(fd, size, at)
        read[os.readlink(f"/proc/self/fd/{fd}")] += len(data)
        return data

    monkeypatch.setattr(os, "pread", count)
    store = real_store(tmp_path)
    of_queues = [size for path, size in read.items() if "consumequeue" in path]
    assert len(store.queues()) == TOPICS * QUEUES
    assert max(of_queues) <= 64 << 10
    store.close()


# -- the disk --------------------------------------------------------------------------------------


def queue_file(root: Path, topic: int = 0, queue: int = 0) -> Path:
    return root / f"consumequeue/topic-{topic}/{queue}/{0:020d}"


def test_a_queue_takes_the_room_of_what_it_holds(tmp_path: Path) -> None:
    store = real_store(tmp_path)
    fill(store)
    found = queue_file(tmp_path).stat()
    assert found.st_size == 6_000_000
    assert found.st_blocks * 512 <= 64 << 10
    [index] = (tmp_path / "index").iterdir()
    assert index.stat().st_size == 420_000_040
    assert index.stat().st_blocks * 512 <= 21 << 20  # its slots
    store.close()


def test_no_entry_is_written_to_a_sparse_part(tmp_path: Path) -> None:
    store = real_store(tmp_path)
    for _ in range(60):
        store.put_batch("topic-0", 0, b"".join(encoded(b"x") for _ in range(500)))
        dispatch(store)
        entries = 20 * store.max_offset("topic-0", 0)
        assert entries <= queue_file(tmp_path).stat().st_blocks * 512 <= 2 * entries + (128 << 10)
    store.close()
    store = real_store(tmp_path)  # which knows nothing of the room that there is
    store.put_batch("topic-0", 0, b"".join(encoded(b"x") for _ in range(4000)))
    dispatch(store)
    found = queue_file(tmp_path).stat()
    assert found.st_blocks * 512 >= 20 * store.max_offset("topic-0", 0) == 680_000
    store.close()


def encoded(body: bytes) -> bytes:
    return bytes(encode_batch([(body, b"", 0)]))


WIDE = replace(CONFIG, consumequeue_segment_bytes=200_000, commitlog_segment_bytes=1 << 20)


def test_room_is_made_before_the_writer_needs_it() -> None:
    disk = new_disk()
    store = open_store(disk, config=WIDE)
    made: list[str] = []
    late: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "make_room" and "/consumequeue/" in path:
            made.append(path)

    disk.step = note
    for _ in range(2000):
        store.put(message(b"x"))
        before = len(made)
        dispatch(store)
        late += made[before:]
        if store.wants_room:
            store.make_room_ahead()
    assert made
    assert not late
    assert not store.wants_room


def test_a_step_makes_the_files_of_a_few_queues_only() -> None:
    disk = new_disk()
    store = open_store(disk, config=WIDE)
    for number in range(100):
        store.put(message(b"x", f"topic-{number % 50}"))
    made = [0]

    def note(operation: str, path: str) -> None:
        made[-1] += operation == "create_segment" and "/consumequeue/" in path

    disk.step = note
    while store.reput():
        made.append(0)
    assert sum(made) == 50
    assert max(made) <= NEW_QUEUES
    assert [bodies(store, 0, f"topic-{number}") for number in range(50)] == [[b"x"] * 2] * 50
    store.put_batch("topic-new", 0, b"".join(encoded(b"x") for _ in range(50)))
    assert len(store.reput()) == 1
    store.close()


def test_where_a_queue_has_no_room_sends_are_refused_until_it_has() -> None:
    disk = new_disk()
    store = open_store(disk, config=WIDE)
    plan = disk.plan("make_room", errno.ENOSPC, "*/consumequeue/*", times=None)

    def send() -> None:
        for _ in range(1000):
            store.put(message(b"x"))
            dispatch(store)

    with pytest.raises(ServiceNotAvailable, match=r"no room for the queue and index files.*disk"):
        send()
    assert store.failed is None
    plan.times = 0
    dispatch(store)
    store.put(message(b"x"))
    dispatch(store)
    assert len(bodies(store)) == store.max_offset("T", 0) > 200
    store.close()


@pytest.mark.parametrize("kind", ["crash", "kill"])
def test_a_start_writes_to_no_part_whose_room_went_with_the_power(kind: str) -> None:
    disk = new_disk()
    store = open_store(disk, config=WIDE)
    for number in range(600):
        store.put(message(b"x", key=f"k{number}"))
        dispatch(store)
        if number == 300:
            flush(store)
            store.flush_derived()
            store.checkpoint()
    rng = random.Random(1)
    nothing = PowerCutOdds(kept=0, torn=0, names=0)
    disk = disk.crash_image(rng, nothing) if kind == "crash" else disk.kill_image(rng)
    store = open_store(disk, config=WIDE)  # the simulated disk tells a store to a sparse part
    for number in range(600):
        store.put(message(b"x", key=f"k{number}"))
        dispatch(store)
    flush(store)
    store.flush_derived()
    assert len(bodies(store)) == store.max_offset("T", 0) >= 901
    store.close()


# -- descriptors and mappings ----------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapped_queues(root: Path) -> int:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len([line for line in maps if f"{root}/consumequeue" in line])


def test_a_queue_takes_no_descriptor(tmp_path: Path) -> None:
    store = real_store(tmp_path)
    store.put(message(b"x", "topic-0"))
    dispatch(store)
    before = descriptors()
    fill(store)
    assert descriptors() == before
    assert mapped_queues(tmp_path) == TOPICS * QUEUES
    store.close()
    assert mapped_queues(tmp_path) == 0


def test_so_many_queue_files_are_mapped_and_no_more(tmp_path: Path) -> None:
    store = real_store(tmp_path, queue_files_mapped=3)
    for _ in range(3):
        fill(store)
        flush(store)
        store.flush_derived()
        for topic in range(TOPICS):
            for queue in range(QUEUES):
                assert store.entries(f"topic-{topic}", queue, 0, 1)
        assert mapped_queues(tmp_path) == 3
    for topic in range(TOPICS):
        for queue in range(QUEUES):
            assert bodies(store, queue, f"topic-{topic}") == [b"x"] * 3
    store.close()
    store = real_store(tmp_path, queue_files_mapped=3)
    assert mapped_queues(tmp_path) == 0, "a start reads"
    assert bodies(store, 1, "topic-2") == [b"x"] * 3
    store.close()


def test_a_start_that_makes_all_queues_again_maps_no_crowd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = real_store(tmp_path)
    for topic in range(20):
        store.put(message(b"x", f"topic-{topic}"))
    dispatch(store)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    mapped: list[int] = []
    create = NativeDisk.create_mapped

    def count(disk: NativeDisk, path: str, size: int, room: int) -> MappedFile:
        mapped.append(mapped_queues(tmp_path))
        return create(disk, path, size, room)

    monkeypatch.setattr(NativeDisk, "create_mapped", count)
    store = real_store(tmp_path, queue_files_mapped=2)
    assert len(mapped) == 20
    assert max(mapped) <= 4 * 2
    assert all(bodies(store, 0, f"topic-{topic}") == [b"x"] for topic in range(20))
    store.close()


def test_what_is_not_synced_stays_mapped() -> None:
    disk = new_disk()
    disk.make_dirs("/s/q/T/0")
    files = QueueFiles(disk, most=2)
    made = [files.create(f"/s/q/T/0/{number:020d}", 100) for number in range(5)]
    for file in made:
        file.write(0, b"not yet synced")
    opened: list[str] = []
    disk.step = lambda operation, path: opened.append(path) if operation == "open_segment" else None
    assert all(bytes(file.view[:14]) == b"not yet synced" for file in made)
    assert not opened, "all of them are still mapped"
    files.flush()
    assert all(bytes(file.view[:14]) == b"not yet synced" for file in made)
    assert len(opened) >= 3
    disk = disk.crash_image(random.Random(1), PowerCutOdds(kept=0, torn=0, names=0))
    assert all(disk.content(file.path)[:14] == b"not yet synced" for file in made)


def test_a_sync_that_fails_is_told_and_leaves_the_file_to_be_synced() -> None:
    disk = new_disk()
    disk.make_dirs("/s/q/T/0")
    files = QueueFiles(disk)
    file = files.create("/s/q/T/0/" + "0" * 20, 100)
    file.write(0, b"x")
    disk.plan("flush", errno.EIO, times=1)
    with pytest.raises(OSError, match="flush"):
        files.flush()
    assert file.dirty


# -- a process without descriptors -----------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_queue_file_that_cannot_be_opened_is_read_later(error: int) -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store)
    store.close()
    store = open_store(disk)
    disk.plan("open_segment", error, "*/consumequeue/*", times=1)
    with pytest.raises(SystemBusy, match="try again"):
        bodies(store, 2, "topic-3")
    assert bodies(store, 2, "topic-3") == [b"x"]
    assert store.failed is None
    store.close()


def test_a_checkpoint_that_lacks_descriptors_is_made_later() -> None:
    disk = new_disk()
    store = open_store(disk)
    fill(store)
    flush(store)
    plan = disk.plan("sync_dir", errno.EMFILE, "*/consumequeue/*", times=1)
    with pytest.raises(OSError, match="sync_dir"):
        store.flush_derived()
    assert plan.hits == 1
    assert store.failed is None
    store.put(message(b"on"))
    dispatch(store)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    disk = disk.crash_image(random.Random(1), PowerCutOdds(kept=0, torn=0, names=0))
    store = open_store(disk)
    assert store.recovery.messages <= 1, "all of it was durable; the index looks at the last again"
    assert bodies(store, 2, "topic-3") == [b"x"]
    assert bodies(store) == [b"on"]


@pytest.mark.parametrize(
    ("error", "way_out"),
    [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max"), (errno.ENOMEM, "max_map_count")],
)
@pytest.mark.parametrize("operation", ["create_segment", "sync_dir"])
def test_a_log_that_cannot_roll_for_want_of_descriptors_rolls_later(
    operation: str, error: int, way_out: str
) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(bytes(SEGMENT // 2)))
    plan = disk.plan(operation, error, "*/commitlog*", times=1)
    with pytest.raises(ServiceNotAvailable, match=rf"next segment of the log.*{way_out}"):
        store.put(message(bytes(SEGMENT // 2)))
    assert plan.hits == 1
    store.put(message(bytes(SEGMENT // 2)))
    dispatch(store)
    assert len(bodies(store)) == 2
    store.close()


def test_a_start_without_descriptors_says_what_is_lacking() -> None:
    disk = new_disk()
    open_store(disk).close()
    disk.plan("write_file", errno.EMFILE)
    with pytest.raises(ServiceNotAvailable, match=r"/store cannot be opened.*ulimit -n"):
        open_store(disk)
    open_store(disk).close()

"""A store with many queues costs what they hold: at a start, on the disk, in descriptors."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import MessageStore, StoreConfig
from store_rig import Clock, dispatch, flush, message, new_disk, open_store

TOPICS, QUEUES = 4, 3


def real_store(root: Path, **changes) -> MessageStore:
    config = StoreConfig(root=str(root), commitlog_segment_bytes=1 << 20, index_enable=False)
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
    read, pread = Counter[str](), os.pread

    def count(fd: int, size: int, at: int) -> bytes:
        data = pread(fd, size, at)
        read[os.readlink(f"/proc/self/fd/{fd}")] += len(data)
        return data

    monkeypatch.setattr(os, "pread", count)
    store = real_store(tmp_path)
    of_queues = [size for path, size in read.items() if "consumequeue" in path]
    assert len(store.queues()) == TOPICS * QUEUES
    assert max(of_queues) <= 256 << 10  # the kernel reads ahead, and that counts as written
    store.close()

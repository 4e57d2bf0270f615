"""A store with many queues costs what they hold."""

from __future__ import annotations

from collections import Counter

from saturnmq.store.message_store import MessageStore
from store_rig import dispatch, flush, message, new_disk, open_store

TOPICS, QUEUES = 4, 3


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

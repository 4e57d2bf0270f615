"""A store with many queues costs what they hold."""

from __future__ import annotations

import errno
import random
from collections import Counter

import pytest
from saturnmq.drills.sim.disk import Outcome
from saturnmq.protocol.errors import ServiceNotAvailable
from saturnmq.store.message_store import MessageStore
from store_rig import SEGMENT, bodies, dispatch, flush, message, new_disk, open_store

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


# -- a process without descriptors -----------------------------------------------------------------


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
    disk = disk.crash_image(random.Random(1), Outcome(kept=0, torn=0, names=0))
    store = open_store(disk)
    assert store.recovery.messages <= 1, "all of it was durable; the index looks at the last again"
    assert bodies(store, 2, "topic-3") == [b"x"]
    assert bodies(store) == [b"on"]


@pytest.mark.parametrize("operation", ["create_segment", "sync_dir"])
def test_a_log_that_cannot_roll_for_want_of_descriptors_rolls_later(operation: str) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.put(message(bytes(SEGMENT // 2)))
    plan = disk.plan(operation, errno.EMFILE, "*/commitlog*", times=1)
    with pytest.raises(ServiceNotAvailable, match=r"next segment of the log.*ulimit -n"):
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

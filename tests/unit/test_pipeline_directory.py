"""How far a store directory is read: what RocketMQ writes down about it, and what ours does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_store_rig import made, opened, put
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.places import open_access
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.tombstones import KEY
from saturnmq.store.disk import NativeDisk
from saturnmq.store.recovery.checkpoint import AbortMark, Checkpoint

COUNT = 60
TOPICS = ("T0", "T1")
DISK = NativeDisk()


@pytest.fixture
def root(tmp_path):
    return str(made(tmp_path / "store", COUNT))


def messages(root, *, trust_tail=False):
    with open_access(Where.store(root, trust_tail=trust_tail)) as access:
        return sum(high - low for low, high in access.bounds(TOPICS).values())


def confirmed(root, offset, *, by_rocketmq):
    """Write a checkpoint that says that the log is confirmed up to `offset`."""
    page = Checkpoint.load(DISK, root)
    page.confirm = offset
    if by_rocketmq:
        page.derived = page.flushed = -1
    page.save(DISK, root)


def test_ours_is_read_to_what_is_confirmed(root):
    confirmed(root, 1 << 20, by_rocketmq=False)
    assert messages(root) == COUNT
    confirmed(root, 2000, by_rocketmq=False)
    assert 0 < messages(root) < COUNT
    assert messages(root, trust_tail=True) == COUNT
    AbortMark(DISK, root).set()  # its broker runs: the mark holds
    assert 0 < messages(root) < COUNT


@pytest.mark.parametrize("mark", [0, 2000])
def test_the_mark_of_rocketmq_is_one_of_its_start(root, mark):
    confirmed(root, mark, by_rocketmq=True)
    assert messages(root) == COUNT
    AbortMark(DISK, root).set()
    with pytest.raises(ConfigError, match=r"its broker runs or was killed; give trustTail=true"):
        messages(root)
    assert messages(root, trust_tail=True) == COUNT


def test_what_was_deleted_with_its_topic_is_not_read_though_its_files_are_there(root):
    """As a broker leaves it that was killed before it could delete them."""
    before = messages(root, trust_tail=True)
    store = opened(Path(root))
    stone = store.tombstone("T0")
    put(store, COUNT, seed=4)
    store.close()
    DISK.make_dirs(f"{root}/config")
    ConfigFile(DISK, f"{root}/config/topics.json").save({KEY: {"T0": stone.to_json()}})
    with open_access(Where.store(root, trust_tail=True)) as access:
        bounds = access.bounds(["T0"])
    assert {queue.queue_id: low for queue, (low, _) in bounds.items()} == stone.next
    assert before < messages(root, trust_tail=True) < 2 * before

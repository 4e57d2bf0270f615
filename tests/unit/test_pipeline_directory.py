"""How far a store directory is read: what RocketMQ writes down about it, and what ours does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_store_rig import made, opened, put, segments
from saturnmq.pipeline.access import Decoding, Where
from saturnmq.pipeline.columns import select
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import Range
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.derived.tombstones import KEY
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import PendingMessage
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


def test_a_topic_that_was_deleted_and_created_again_is_read_from_its_new_files(tmp_path):
    root = tmp_path / "store"
    store = opened(root)

    def send(count):
        for number in range(count):
            store.put(PendingMessage("A", 0, b"body%d" % number, b"TAGS\x01t\x02"))
        while store.reput():
            pass

    send(5)
    with open_access(Where.store(str(root), trust_tail=True)) as access:
        assert list(access.bounds(["A"]).values()) == [(0, 5)]
        stone = store.tombstone("A")
        DISK.make_dirs(f"{root}/config")
        ConfigFile(DISK, f"{root}/config/topics.json").save({KEY: {"A": stone.to_json()}})
        store.bury({"A": stone})
        for _ in store.remove_deleted():
            pass
        assert access.bounds(["A"]) == {}
        send(7)
        ((queue, bounds),) = access.bounds(["A"]).items()
        assert bounds == (5, 12)
        pieces = [Range(*queue, *bounds)]
        read = [
            row["body"]
            for batch in access.batches(pieces, Decoding(select(("body",))))
            for row in batch.to_pylist()
        ]
        assert read == [b"body%d" % number for number in range(7)]
    store.close()


def test_segments_that_were_deleted_are_let_go(root):
    def mapped():
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if root in line]

    with open_access(Where.store(root, trust_tail=True)) as access:
        pieces = [Range(*queue, *bounds) for queue, bounds in access.bounds(TOPICS).items()]
        read = sum(batch.num_rows for batch in access.batches(pieces, Decoding(select(("body",)))))
        assert read == COUNT
        files = segments(Path(root))
        assert len(files) > 1
        for path in files[:-1]:
            path.unlink()
        assert any(line.endswith("(deleted)") for line in mapped())
        access.bounds(TOPICS)
        assert not any(line.endswith("(deleted)") for line in mapped())

"""New queue files and index files are made ahead, in a thread, and get their names when needed."""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from saturnmq.drills.sim.disk import PowerCutOdds
from saturnmq.store.derived.queue_files import SPARES
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import MessageStore, StoreConfig
from store_rig import CONFIG, Clock, bodies, dispatch, flush, message, new_disk, open_store

NOTHING_KEPT = PowerCutOdds(kept=0, torn=0, names=0)
SMALL = {
    "commitlog_segment_bytes": 1 << 20,
    "consumequeue_segment_bytes": 400,
    "index_slots": 50,
    "index_items": 40,
}


def real_store(root: Path, **changes: int) -> MessageStore:
    return open_store(NativeDisk(), Clock(), StoreConfig(root=str(root), **{**SMALL, **changes}))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls that take the file system's time for a new file, by name."""
    count: Counter[str] = Counter()

    def counted(name: str) -> None:
        call = getattr(os, name)

        def counting(*args: int) -> None:
            count[name] += 1
            call(*args)

        monkeypatch.setattr(os, name, counting)

    counted("ftruncate")
    counted("posix_fallocate")
    return count


def send(store: MessageStore, *, ahead: bool, made: Counter[str] | None = None) -> Counter[str]:
    """Messages for new queues, and enough of them for several files of a queue and of the index;
    the calls of the owner of the store."""
    own: Counter[str] = Counter()
    for number in range(150):
        store.put(message(b"x", "T", number % 3, key=f"k{number}"))
        before = Counter(made)
        dispatch(store)
        own += Counter(made) - before
        if ahead and store.wants_room:
            store.make_room_ahead()
    return own


def test_the_owner_of_the_store_makes_no_file_of_a_queue_or_of_the_index(
    tmp_path: Path, made: Counter[str]
) -> None:
    store = real_store(tmp_path)
    store.make_room_ahead()
    assert not send(store, ahead=True, made=made)
    assert len(list((tmp_path / "consumequeue/T/0").iterdir())) == 3
    assert len(list((tmp_path / "index").iterdir())) == 4
    store.close()


def test_the_owner_makes_a_file_for_which_no_spare_is_ready(
    tmp_path: Path, made: Counter[str]
) -> None:
    store = real_store(tmp_path)
    own = send(store, ahead=False, made=made)
    assert own["ftruncate"] == 9 + 4, "of three queues and of the index"
    assert bodies(store, 2) == [b"x"] * 50
    store.close()


def test_files_made_ahead_have_the_bytes_of_others(tmp_path: Path) -> None:
    found = []
    for ahead in (False, True):
        root = tmp_path / str(ahead)
        store = real_store(root)
        if ahead:
            store.make_room_ahead()
        send(store, ahead=ahead)
        store.close()
        paths = [*(root / "consumequeue").rglob("*"), *(root / "index").rglob("*")]
        found.append(
            {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}
        )
    assert found[0] == found[1]
    assert len(found[0]) == 9 + 4


def test_a_spare_file_leaves_nothing_behind(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    store = real_store(tmp_path)
    opened = len(os.listdir("/proc/self/fd"))
    store.make_room_ahead()
    store.put(message(b"x"))
    dispatch(store)
    assert len(os.listdir("/proc/self/fd")) > opened + SPARES // 2
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["T"]
    assert len(list((tmp_path / "index").iterdir())) == 1
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_warm_file_is_warmed_ahead(tmp_path: Path, made: Counter[str]) -> None:
    size = 400_000
    store = real_store(tmp_path, warm_files=True, consumequeue_segment_bytes=size)
    store.make_room_ahead()
    store.put(message(b"x"))
    before = Counter(made)
    dispatch(store)
    assert Counter(made) == before
    assert os.stat(tmp_path / f"consumequeue/T/0/{0:020d}").st_blocks * 512 >= size
    store.close()


# -- the simulated disk ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["power", "kill"])
def test_a_crash_leaves_no_spare_and_what_became_of_one_is_durable(kind: str) -> None:
    disk = new_disk()
    store = open_store(disk)
    store.make_room_ahead()
    send(store, ahead=True)
    flush(store)
    store.flush_derived()
    store.checkpoint()
    used = sum(len(disk.content(path)) for path in disk.paths() if "/consumequeue/" in path)
    rng = random.Random(1)
    after = disk.crash_image(rng, NOTHING_KEPT) if kind == "power" else disk.kill_image(rng)
    assert used == sum(len(after.content(p)) for p in after.paths() if "/consumequeue/" in p)
    store = open_store(after)
    assert store.recovery.messages <= 1, "the index looks at the last again"
    for queue in range(3):
        assert bodies(store, queue) == [b"x"] * 50


def test_a_disk_that_makes_no_spares_is_asked_once_for_a_file() -> None:
    disk = new_disk()
    plan = disk.plan("make_spare", errno.EOPNOTSUPP, times=None)
    store = open_store(disk)
    for _ in range(3):
        store.make_room_ahead()
    assert plan.hits == 2, "for queues and for the index"
    send(store, ahead=True)
    assert bodies(store, 2) == [b"x"] * 50
    assert plan.hits <= 2 + 9 + 4
    store.close()


def test_a_spare_that_cannot_have_its_name_gives_way() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.make_room_ahead()
    plan = disk.plan("create_segment", errno.EXDEV, "*/consumequeue/*")
    store.put(message(b"x"))
    dispatch(store)
    assert plan.hits == 1
    assert bodies(store) == [b"x"]
    store.close()


def test_spares_take_room_until_they_are_gone() -> None:
    disk = new_disk()
    config = replace(CONFIG, consumequeue_segment_bytes=8000)
    store = open_store(disk, config=config)
    before = disk.used_bytes
    store.make_room_ahead()
    assert disk.used_bytes > before + SPARES * 4096
    store.close()
    assert disk.used_bytes <= before + CONFIG.commitlog_segment_bytes

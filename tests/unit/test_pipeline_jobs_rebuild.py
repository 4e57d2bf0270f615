"""`saturnmq pipeline rebuild`: what the tasks build equals what a rebuild in one go builds."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kill_rig import killed_at
from pipeline_store_rig import SIZES, made, opened, overwrite, put, segments
from saturnmq.pipeline.jobs.log_file import joined
from saturnmq.pipeline.jobs.rebuild import rebuild
from saturnmq.runtime.errors import ConfigError, DirectoryLocked, StoreDamaged
from saturnmq.store.derived.indexfile import IndexFile
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.rebuild import Rebuilt
from saturnmq.store.inspect.rebuild import rebuild as rebuild_in_place
from saturnmq.store.recovery.checkpoint import Checkpoint

NOW = 1_763_740_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store")


def files(root: Path) -> dict[str, bytes]:
    """Contents by name; IndexFiles by their number, since names tell the time."""
    found: dict[Any, Any] = {}
    for kind in ("consumequeue", "index"):
        for path in sorted((root / kind).rglob("*")):
            if path.is_file():
                number = sum(name.startswith("index/") for name in found)
                name = f"index/{number}" if kind == "index" else str(path.relative_to(root))
                found[name] = path.read_bytes()
    return found


def assert_equal(root: Path) -> tuple[Rebuilt, Rebuilt]:
    """Rebuild beside `root` in tasks, and a copy of it in one go."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    there = rebuild(None, str(root), str(root.with_name("built")), SIZES, now_ms=NOW)
    here = rebuild_in_place(NativeDisk(), str(copy), lambda: NOW, SIZES)
    assert files(root.with_name("built")) == files(copy)
    index = root.with_name("built") / "index"
    assert sorted(os.listdir(index)) == sorted(os.listdir(copy / "index"))
    for name in ("messages", "queues", "index_items", "log_end", "stopped_by", "not_queues"):
        assert getattr(there, name) == getattr(here, name), name
    assert there.gaps == here.gaps
    return there, here


def test_a_sound_store_is_built_again_byte_for_byte(root: Path) -> None:
    built, _ = assert_equal(root)
    assert built.messages == 200
    assert built.queues == 6
    assert len(list((root.with_name("built") / "index").iterdir())) > 3
    assert files(root.with_name("built")) == files(root)


def test_a_log_that_lost_its_oldest_files_is_built_from_what_is_left(root: Path) -> None:
    for path in segments(root)[:3]:
        path.unlink()
    assert_equal(root)


def test_a_queue_that_has_no_message_left_is_kept(root: Path) -> None:
    store = opened(root)
    put(store, 200, seed=4)
    store.close()
    with_all = files(root)
    for path in segments(root)[:-1]:
        path.unlink()
    assert_equal(root)
    assert {name for name in files(root.with_name("built")) if name[0] == "c"} <= set(with_all)


def test_damage_in_the_middle_leaves_the_same_hole(root: Path) -> None:
    overwrite(segments(root)[2], 3000, bytes(900))
    built, _ = assert_equal(root)
    assert built.gaps


def test_a_missing_file_in_the_middle_is_skipped(root: Path) -> None:
    segments(root)[2].unlink()
    built, _ = assert_equal(root)
    assert len(built.gaps) == 1


def test_the_end_of_a_file_that_is_gone_is_skipped(root: Path) -> None:
    overwrite(segments(root)[1], 5000, bytes(8192 - 5000))
    assert_equal(root)


def test_frames_behind_the_place_where_a_crash_ended_the_log_are_not_in_it(root: Path) -> None:
    disk = NativeDisk()
    page = Checkpoint.load(disk, str(root))
    page.flushed = page.derived = 2 * 8192 + 100
    page.save(disk, str(root))
    overwrite(segments(root)[2], 4000, bytes(900))
    built, _ = assert_equal(root)
    assert built.log_end < 3 * 8192 < segments(root)[-1].stat().st_size * len(segments(root))
    assert built.messages < 150


def test_frames_that_take_each_other_s_places_leave_what_came_first(root: Path) -> None:
    first, second = segments(root)[1], segments(root)[2]
    data, at = bytearray(second.read_bytes()), 0
    # the same frames once more, where they say they lie: every queue offset comes twice
    twice = bytearray(first.read_bytes())
    while int.from_bytes(twice[at + 4 : at + 8], "big") == 0xDAA320A7:
        size = int.from_bytes(twice[at : at + 4], "big")
        twice[at + 28 : at + 36] = (8192 * 2 + at).to_bytes(8, "big")
        at += size
    assert len(data) == len(twice)
    second.write_bytes(_without_crc(twice))
    assert_equal(root)


def _without_crc(data: bytearray) -> bytes:
    """Their frame checksums no longer hold: make them a property of another name."""
    return bytes(data).replace(b"__CRC32#", b"__CRC32_")


def test_no_log_no_frames_no_error(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    built = rebuild(None, str(tmp_path / "store"), str(tmp_path / "built"), SIZES)
    assert (built.messages, built.queues) == (0, 0)


def test_what_cannot_be_done_says_what_to_change(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose another directory"):
        rebuild(None, str(root), str(root), SIZES)
    with pytest.raises(StoreDamaged, match="is no store"):
        rebuild(None, str(tmp_path), str(tmp_path / "x"), SIZES)
    store = opened(root)
    try:
        with pytest.raises(DirectoryLocked, match="stop the broker"):
            rebuild(None, str(root), str(tmp_path / "x"), SIZES)
    finally:
        store.close()


def test_runs_of_queues_that_take_turns_become_one_each() -> None:
    runs = [(f"T{n % 2}", 0, n // 2, 1, bytes([n]) * 20) for n in range(10)]
    assert list(joined(runs)) == [
        ("T0", 0, 0, 5, b"".join(bytes([n]) * 20 for n in range(0, 10, 2))),
        ("T1", 0, 0, 5, b"".join(bytes([n]) * 20 for n in range(1, 10, 2))),
    ]
    again = [("T", 0, 7, 1, b"a" * 20), ("T", 0, 7, 1, b"b" * 20), ("T", 0, 9, 1, b"c" * 20)]
    assert list(joined(again)) == again


# -- the directory --------------------------------------------------------------------------------


def build_in(root: Path, to: Path) -> Rebuilt:
    return rebuild(None, str(root), str(to), SIZES, now_ms=NOW)


def test_of_two_rebuilds_into_one_directory_the_second_is_refused(root: Path, monkeypatch) -> None:
    to = root.with_name("built")
    whole = IndexFile.insert
    refused: list[DirectoryLocked] = []

    def second_begins(self: IndexFile, items: memoryview) -> object:
        if not refused:
            with pytest.raises(DirectoryLocked, match=f"another job builds in {to}") as told:
                build_in(root, to)
            refused.append(told.value)
        return whole(self, items)

    monkeypatch.setattr(IndexFile, "insert", second_begins)
    build_in(root, to)
    assert refused
    assert files(to) == files(root)
    assert sorted(os.listdir(to)) == ["consumequeue", "index"]


def test_rebuilds_that_begin_at_one_moment_build_once(root: Path) -> None:
    to = root.with_name("built")
    with ThreadPoolExecutor(8) as threads:
        tries = [threads.submit(build_in, root, to) for _ in range(8)]
    errors = [each.exception() for each in tries if each.exception()]
    assert len(errors) == 7
    assert {type(error) for error in errors} <= {DirectoryLocked, ConfigError}
    assert files(to) == files(root)


@pytest.mark.timeout(120)
def test_a_killed_rebuild_looks_like_no_result_and_the_next_one_says_so(root: Path) -> None:
    to = root.with_name("built")
    number = 0
    while killed_at(number, lambda: build_in(root, to)):
        left = sorted(os.listdir(to)) if to.exists() else []
        if ".building" in left:
            with pytest.raises(ConfigError, match=rf"remove {to}, or choose .* was killed"):
                build_in(root, to)
            shutil.rmtree(to)
        elif "index" in left:
            assert files(to) == files(root)
            shutil.rmtree(to)
        else:
            build_in(root, to)
            assert files(to) == files(root)
            shutil.rmtree(to)
        number += 7
    assert number > 30


def test_a_rebuild_that_failed_leaves_nothing(root: Path, monkeypatch) -> None:
    to = root.with_name("built")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "x")

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "insert", full)
        with pytest.raises(OSError, match="No space left"):
            build_in(root, to)
    assert not os.listdir(to)
    assert build_in(root, to).directory == str(to)


def test_a_rebuild_is_given_the_name_of_its_directory(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a path is empty"):
        rebuild(None, str(root), "", SIZES)
    with pytest.raises(ConfigError, match="a path is empty"):
        rebuild(None, "", str(tmp_path / "x"), SIZES)

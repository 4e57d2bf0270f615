"""A file that is replaced on a full disk: three files take turns, and no crash loses them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saturnmq.store.disk import NativeDisk

DISK = NativeDisk()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


def test_a_full_disk_has_room_for_a_file_that_keeps_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inodes take turns: none is made, and none is cut to nothing before it is written."""
    DISK.replace_file(f"{root}/f", b"1", keep_room=True)
    used = {os.stat(f"{root}/{entry.name}").st_ino for entry in DISK.list(root)}
    assert len(used) == 3
    opened, flags = os.open, []

    def record(path: str, how: int, mode: int = 0o777) -> int:
        flags.append(how)
        return opened(path, how, mode)

    monkeypatch.setattr(os, "open", record)
    for content in (b"2", b"3", b"4", b"5"):
        DISK.replace_file(f"{root}/f", content, keep_room=True)
        assert {os.stat(f"{root}/{e.name}").st_ino for e in DISK.list(root)} == used
        assert DISK.read_file(f"{root}/f") == content
    assert flags
    assert not any(how & os.O_TRUNC for how in flags)


@pytest.mark.parametrize("died_at", range(8))
def test_a_crash_between_two_turns_leaves_a_whole_file_and_the_next_turn_goes_on(
    root: str, died_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"1", b"2", b"3"):
        DISK.replace_file(f"{root}/f", content, keep_room=True)
    calls = itertools.count()

    def dies(original: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            if next(calls) == died_at:
                raise KeyboardInterrupt
            original(*args)

        return call

    with monkeypatch.context() as patched:
        for name in ("fsync", "link", "replace", "unlink"):
            patched.setattr(os, name, dies(getattr(os, name)))
        with contextlib.suppress(KeyboardInterrupt):
            DISK.replace_file(f"{root}/f", b"4", keep_room=True)
    assert DISK.read_file(f"{root}/f") in (b"3", b"4")
    assert DISK.read_file(f"{root}/f.bak") in (b"2", b"3")
    before = DISK.read_file(f"{root}/f")
    DISK.replace_file(f"{root}/f", b"5", keep_room=True)
    assert DISK.read_file(f"{root}/f.bak") == before
    DISK.replace_file(f"{root}/f", b"6", keep_room=True)
    assert (DISK.read_file(f"{root}/f"), DISK.read_file(f"{root}/f.bak")) == (b"6", b"5")
    names = ["f", "f.bak", "f.tmp"]
    assert [entry.name for entry in DISK.list(root)] == names
    assert len({os.stat(f"{root}/{name}").st_ino for name in names}) == 3


def test_a_file_with_another_name_is_not_overwritten_in_place(root: str) -> None:
    for content in (b"1", b"2"):
        DISK.replace_file(f"{root}/f", content, keep_room=True)
    os.unlink(f"{root}/f.tmp")
    os.link(f"{root}/f.bak", f"{root}/f.tmp")
    DISK.replace_file(f"{root}/f", b"3", keep_room=True)
    os.unlink(f"{root}/f.bak")
    os.link(f"{root}/f", f"{root}/f.bak")
    DISK.replace_file(f"{root}/f", b"4", keep_room=True)
    assert (DISK.read_file(f"{root}/f"), DISK.read_file(f"{root}/f.bak")) == (b"4", b"3")

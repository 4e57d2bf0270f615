"""The full page cache of `saturnmq bench --against --full-cache`."""

from __future__ import annotations

import os

import pytest
from saturnmq.cli import page_cache
from saturnmq.cli.page_cache import STEP_BYTES, FullCache
from typer import Exit

STEPS = 8  # of all memory


class Memory:
    """A machine where each step that is read takes memory, and the file is held whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, keeps: bool = True) -> None:
        self.free = STEPS
        self.read: list[int] = []
        self.synced = -1
        self._keeps = keeps
        self._preadv = os.preadv
        monkeypatch.setattr(page_cache, "_memory", self.told)
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "sync", self.sync)

    def sync(self) -> None:
        self.synced = len(self.read)

    def told(self) -> dict[str, int]:
        return {"MemTotal": STEPS * STEP_BYTES, "MemFree": self.free * STEP_BYTES}

    def preadv(self, fd: int, buffers: list[bytearray], offset: int) -> int:
        count = self._preadv(fd, buffers, offset)
        assert count == STEP_BYTES
        self.read.append(offset // STEP_BYTES)
        self.free -= self._keeps
        return count


def test_it_reads_until_an_eighth_is_free_and_goes_on_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory(monkeypatch)
    with FullCache() as cache:
        cache.fill()
        assert memory.read == [0, 1, 2, 3, 4, 5, 6]
        assert memory.synced == 0, "dirty pages go first"
        cache.fill()
        assert len(memory.read) == 7, "it is full"
        memory.free += 3  # a file was deleted, and the oldest pages had left before
        cache.fill()
        assert memory.read[7:] == [7, 0, 1]


def test_a_folder_that_is_not_cached_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = Memory(monkeypatch, keeps=False)
    with FullCache() as cache, pytest.raises(Exit):
        cache.fill()
    assert memory.read == list(range(STEPS)), "once round, and no further"
    assert "128 MiB of memory are free after a file of 128 MiB was read" in capsys.readouterr().err

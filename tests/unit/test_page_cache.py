"""The full page cache of `saturnmq bench --against --full-cache`."""

from __future__ import annotations

import os

import pytest
from saturnmq.cli import page_cache
from saturnmq.cli.page_cache import ALL, FREE, ROUNDS, STEP_BYTES, FullCache
from typer import Exit

STEPS = 32  # of all memory
KEPT = 3  # which the kernel keeps free


class Memory:
    """A machine where each step that is read takes memory, as long as there is some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, keeps: bool = True) -> None:
        self.free = 10
        self.read: list[int] = []
        self.synced = -1
        self._keeps = keeps
        self._preadv = os.preadv
        monkeypatch.setattr(page_cache, "_bytes", self.told)
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "sync", self.sync)

    def sync(self) -> None:
        self.synced = len(self.read)

    def told(self, pages: str) -> int:
        return {ALL: STEPS, FREE: self.free}[pages] * STEP_BYTES

    def preadv(self, fd: int, buffers: list[bytearray], offset: int) -> int:
        count = self._preadv(fd, buffers, offset)
        assert count == STEP_BYTES
        self.read.append(offset // STEP_BYTES)
        if self._keeps and self.free > KEPT:
            self.free -= 1
        return count


def test_it_reads_as_much_as_is_free_and_goes_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch)
    with FullCache() as cache:
        cache.fill()
        assert memory.synced == 0, "dirty pages go first"
        assert memory.read == list(range(10)), "also what the kernel keeps free was used once"
        cache.fill()
        assert (memory.synced, len(memory.read)) == (10, 10), "it is full"
        memory.free = 25  # files were deleted
        cache.fill()
        assert memory.read[10:] == [*range(10, STEPS), 0, 1, 2]


def test_memory_that_was_given_back_meanwhile_is_filled_in_another_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = Memory(monkeypatch)
    preadv = os.preadv

    def given_back(fd: int, buffers: list[bytearray], offset: int) -> int:
        count = preadv(fd, buffers, offset)
        if len(memory.read) == 10:
            memory.free += 6
        return count

    monkeypatch.setattr(os, "preadv", given_back)
    with FullCache() as cache:
        cache.fill()
    assert memory.read == list(range(19))
    assert memory.free == KEPT


def test_a_folder_that_is_not_cached_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = Memory(monkeypatch, keeps=False)
    with FullCache() as cache, pytest.raises(Exit):
        cache.fill()
    assert memory.read == [step % STEPS for step in range(10 * ROUNDS)], "and no further"
    told = capsys.readouterr().err
    assert "160 MiB of memory are still free" in told
    assert "the limit is 128 MiB" in told

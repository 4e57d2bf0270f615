"""Shelves of timed messages: any order of arrivals, settlements, merges and restarts gives what a
plain sorted set gives."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from saturnmq.broker.timer.entries import (
    DELIVER,
    ENTRY_BYTES,
    ROLL,
    SETTLED,
    merged,
    pack,
    unpack,
)
from saturnmq.broker.timer.runs import BLOCK_ENTRIES, FILE_ENTRIES, Run, RunFolder, RunPart
from saturnmq.broker.timer.shelf import ALIKE_MAX, Shelf
from saturnmq.runtime.errors import StoreDamaged
from world_rig import new_disk


def folder() -> RunFolder:
    made = RunFolder(new_disk(), "/timer")
    made.open()
    return made


def never(_moment: int, _offset: int) -> bool:
    return False


def load(shelf: Shelf, files: RunFolder) -> None:
    for run in shelf.unloaded:
        run.show(run.block_at(files, run.position))


def take(shelf: Shelf, files: RunFolder, now: int, most: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    while len(found) < most:
        load(shelf, files)
        got = shelf.take_due(now, most - len(found), never)
        if not got and not shelf.unloaded:
            break
        found += got
    return found


def write(shelf: Shelf, files: RunFolder) -> None:
    for run in shelf.runs:
        if not run.parts:
            run.parts = (files.write(run.block_at(files, 0)[0]),)


def merge(shelf: Shelf, files: RunFolder, runs: list[Run], meanwhile: int) -> None:
    """Merge these runs; so many messages leave between the reading and the end."""
    for run in runs:
        run.last = b""
    entries = list(merged([run.entries(files) for run in runs]))
    take(shelf, files, 1 << 40, meanwhile)
    new = Run((files.write(b"".join(entries)),)) if entries else None
    if new is not None:
        last = max(run.last for run in runs)
        new.skip_to(files, last)
        if len(new):
            new.show(new.block_at(files, new.position))
            assert new.pass_over(last)
    shelf.replace(runs, new)


def test_an_entry_is_what_was_packed() -> None:
    for kind in (SETTLED, DELIVER, ROLL):
        assert unpack(pack(1 << 50, (1 << 40) + 3, kind)) == (1 << 50, (1 << 40) + 3, kind)
    assert pack(5, 9, SETTLED) < pack(5, 9, DELIVER) < pack(5, 10, SETTLED) < pack(6, 0, SETTLED)


def test_settled_messages_leave_while_runs_are_merged() -> None:
    streams = [
        [pack(1, 1, DELIVER), pack(3, 3, DELIVER), pack(7, 7, SETTLED)],
        [pack(1, 1, SETTLED), pack(2, 2, DELIVER), pack(3, 3, SETTLED), pack(7, 7, SETTLED)],
        [pack(3, 3, SETTLED), pack(4, 3, DELIVER)],
    ]
    found = [unpack(entry) for entry in merged(streams)]
    assert found == [(2, 2, DELIVER), (4, 3, DELIVER), (7, 7, SETTLED)]


@pytest.mark.parametrize("seed", range(30))
def test_a_shelf_gives_what_a_sorted_set_gives(seed: int) -> None:
    chance = random.Random(seed)
    files, shelf = folder(), Shelf()
    waiting: set[tuple[int, int, int]] = set()
    number, now = 0, 0
    for _ in range(400):
        what = chance.randrange(10)
        if what < 5:
            kind = ROLL if chance.random() < 0.1 else DELIVER
            entry = now + chance.randrange(-20, 200), number, kind
            entry = max(entry[0], 0), *entry[1:]
            number += 1
            shelf.add(*entry)
            waiting.add(entry)
        elif what == 5 and waiting:
            gone = chance.choice(sorted(waiting))
            for _ in range(chance.randrange(1, 4)):
                shelf.add(gone[0], gone[1], SETTLED)
            waiting.discard(gone)
        elif what == 6:
            shelf.freeze()
            write(shelf, files)
        elif what == 7 and len(shelf.runs) > 2:
            runs = chance.sample(shelf.runs, 3)
            before = sorted(waiting)
            leaving = chance.randrange(5)
            merge(shelf, files, runs, leaving)
            waiting -= set(islice(before, leaving))
        elif what == 8:
            kept = [Run(run.parts, run.position) for run in shelf.runs if run.parts]
            if all(run.parts for run in shelf.runs) and not shelf.fresh:
                shelf = Shelf(kept)
        else:
            now += chance.randrange(40)
            most = chance.randrange(1, 20)
            found = take(shelf, files, now, most)
            due = sorted(entry for entry in waiting if entry[0] <= now)[:most]
            assert found == due
            waiting -= set(due)
            if found and chance.random() < 0.3:
                shelf.add(*found[-1])  # it could not be delivered
                waiting.add(found[-1])
        shelf.validate()
    assert take(shelf, files, 1 << 40, 10_000) == sorted(waiting)
    assert len(shelf) == 0


def test_settled_messages_at_the_front_leave_without_the_others() -> None:
    shelf = Shelf()
    for offset in range(10):
        shelf.add(offset, offset, DELIVER)
    for offset in (0, 1, 2, 5):
        shelf.add(offset, offset, SETTLED)
    assert shelf.drop_settled(2)
    assert not shelf.drop_settled(10)
    assert shelf.next_moment() == 3
    assert len(shelf) == 8


def test_many_runs_of_a_size_become_one_and_a_large_one_has_several_blocks() -> None:
    files, shelf = folder(), Shelf()
    for run in range(ALIKE_MAX):
        for number in range(1000):
            shelf.add(number * 10 + run, run * 1000 + number, DELIVER)
        assert not shelf.mergeable()
        shelf.freeze()
    runs = shelf.mergeable()
    assert len(runs) == ALIKE_MAX
    merge(shelf, files, runs, 17)
    assert len(shelf.runs) == 1
    assert len(shelf) == 8000 - 17
    assert shelf.runs[0].count > BLOCK_ENTRIES
    found = take(shelf, files, 1 << 40, 10_000)
    assert found == sorted(found)
    assert len(found) == 8000 - 17


@pytest.mark.parametrize("spoil", ["flip", "cut", "gone"])
def test_a_spoiled_block_is_no_entries(spoil: str) -> None:
    disk = new_disk()
    files = RunFolder(disk, "/timer")
    files.open()
    part = files.write(b"".join(pack(n, n, DELIVER) for n in range(BLOCK_ENTRIES + 5)))
    assert len(files.read(part, 1)) == 5 * ENTRY_BYTES
    path = f"/timer/{part.name}"
    data = bytearray(disk.read_file(path))
    data[-30] ^= 1
    disk.unlink(path)
    if spoil != "gone":
        disk.write_file(path, bytes(data if spoil == "flip" else data[:-3]))
        assert len(files.read(part, 0)) == BLOCK_ENTRIES * ENTRY_BYTES
    with pytest.raises(StoreDamaged):
        files.read(part, 1)


def test_a_new_process_gives_files_new_names_and_removes_the_others() -> None:
    disk = new_disk()
    for turn in range(3):
        files = RunFolder(disk, "/timer")
        files.open()
        assert files.write(pack(1, 1, DELIVER)) == RunPart(f"{turn:012d}.run", 1)
    files.keep({f"{1:012d}.run"})
    assert files.names() == [f"{1:012d}.run"]
    assert FILE_ENTRIES % BLOCK_ENTRIES == 0

"""The epoch table: where two logs part, and a file that survives damage and power losses."""

import errno
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.runtime.errors import StoreDamaged
from saturnmq.store.log.epochs import Epoch, Epochs


def epochs(*entries: tuple[int, int]) -> Epochs:
    return Epochs(SimDisk(random.Random(1)), "/", [Epoch(*entry) for entry in entries])


@pytest.mark.parametrize(
    ("mine", "end", "theirs", "their_end", "expected"),
    [
        ([(1, 0)], 100, [(1, 0)], 300, (1, 100)),  # a slave that lags
        ([(1, 0)], 300, [(1, 0)], 100, (1, 100)),  # a master that lost its tail
        ([(1, 0)], 300, [(1, 0), (2, 200)], 500, (1, 200)),  # a deposed master
        ([(1, 0), (2, 200)], 300, [(1, 0), (3, 250)], 500, (1, 200)),  # two masters parted
        ([(1, 0), (2, 200)], 200, [(1, 0), (2, 200)], 200, (2, 200)),
        ([(1, 0), (2, 200)], 300, [(1, 0), (2, 210)], 500, (1, 200)),
        ([(4, 50)], 300, [(1, 0)], 500, None),
        ([], 300, [(1, 0)], 500, None),
    ],
)
def test_two_logs_are_equal_up_to_the_end_of_their_newest_common_epoch(
    mine: list[tuple[int, int]],
    end: int,
    theirs: list[tuple[int, int]],
    their_end: int,
    expected: tuple[int, int] | None,
) -> None:
    found = epochs(*mine).common(end, [Epoch(*entry) for entry in theirs], their_end)
    assert (found and (found[0].number, found[1])) == expected


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1000)), max_size=8))
def test_what_was_opened_is_read_again(steps: list[tuple[int, int]]) -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    number = start = 0
    for more, further in steps:
        number, start = number + more, start + further
        table.open(number, start)
    assert Epochs.load(disk, "/", start).entries == table.entries
    assert all(a < b for a, b in pairwise(table.entries))
    half = start // 2
    assert Epochs.load(disk, "/", half).entries == [e for e in table.entries if e.start <= half]


def test_the_file_is_rocketmqs_text() -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    table.open(1, 0)
    table.open(3, 4096)
    count, _, *lines = disk.read_file("/epochFileCheckpoint").decode().splitlines()
    assert (count, lines) == ("2", ["1-0", "3-4096"])
    disk.write_file("/epochFileCheckpoint", b"1\n0\n7-12\n")  # 0: the CRC is not checked
    assert Epochs.load(disk, "/", 100).entries == [(7, 12)]
    assert Epochs.load(disk, "/", 12).entries == [(7, 12)]
    assert Epochs.load(disk, "/", 11).entries == []
    disk.write_file("/epochFileCheckpoint", b"0\n0\n")
    assert Epochs.load(disk, "/", 100).entries == []
    disk.write_file("/epochFileCheckpoint", b"2\n0\n1-0\n2-0\n")  # the first wrote nothing
    assert Epochs.load(disk, "/", 0).entries == [(1, 0), (2, 0)]


def test_a_file_that_a_crash_took_is_that_of_its_backup() -> None:
    disk = SimDisk(random.Random(1))
    assert Epochs.load(disk, "/", 100).entries == []
    table = Epochs(disk, "/")
    table.open(1, 0)
    table.open(2, 50)
    disk.unlink("/epochFileCheckpoint")
    assert Epochs.load(disk, "/", 100).entries == [(1, 0)]


def test_a_table_knows_its_last_epoch_and_where_each_ends() -> None:
    assert (epochs().last, epochs().end_of(0), epochs().to_json()) == (0, None, [])
    table = epochs((2, 0), (3, 50), (7, 50), (9, 80))
    assert table.last == 9
    assert [table.end_of(number) for number in (0, 2, 3, 6, 7, 8, 9)] == [
        0,
        50,
        50,
        50,
        80,
        80,
        None,
    ]
    assert table.to_json() == [[2, 0], [3, 50], [7, 50], [9, 80]]
    for number in (8, 9):
        with pytest.raises(AssertionError, match="opened after 9"):
            table.open(number, 100)


def test_a_table_that_does_not_change_is_not_written() -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    table.open(1, 0)
    table.open(2, 50)
    disk.plan("write_file", times=None)
    table.cut(2)
    table.cut(5)
    table.replace([Epoch(1, 0), Epoch(2, 50)])
    with pytest.raises(OSError, match="planned"):
        table.cut(1)
    assert table.entries == [(1, 0), (2, 50)], "what is not written does not count"


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\n",
        b"2\n0\n1-0\n",
        b"1\n5\n1-0\n",
        b"1\n0\n1-x\n",
        b"1\n0\n1\n",
        b"1\n0\n1-0-0\n",
        b"1\n0\n1--1\n",
        b"2\n0\n1-0\n1-5\n",
        b"2\n0\n2-0\n1-5\n",
        b"2\n0\n1-5\n2-4\n",
        b"3\n0\n1-0\n2-5\n3-4\n",
    ],
)
def test_a_damaged_file_falls_back_and_is_refused_with_its_backup(damage: bytes) -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    table.open(1, 0)
    table.open(2, 50)
    disk.write_file("/epochFileCheckpoint", damage)
    assert Epochs.load(disk, "/", 100).entries == [(1, 0)]
    disk.write_file("/epochFileCheckpoint.bak", damage)
    with pytest.raises(StoreDamaged, match="epochFileCheckpoint"):
        Epochs.load(disk, "/", 100)


def test_a_file_in_a_bad_sector_falls_back_and_is_refused_with_its_backup() -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    table.open(1, 0)
    table.open(2, 50)
    disk.plan("read_file", pattern="/epochFileCheckpoint", times=None)
    assert Epochs.load(disk, "/", 100).entries == [(1, 0)]
    disk.plan("read_file", pattern="*", times=None)
    with pytest.raises(StoreDamaged, match=r"/epochFileCheckpoint \(.*\.bak \(.* restore"):
        Epochs.load(disk, "/", 100)
    disk.plans.clear()
    disk.plan("read_file", errno.EACCES)  # an older copy is not what is wanted then
    with pytest.raises(PermissionError):
        Epochs.load(disk, "/", 100)


def test_what_is_cut_is_forgotten_for_good() -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    for number, start in ((1, 0), (2, 50), (4, 70)):
        table.open(number, start)
    table.cut(2)
    assert Epochs.load(disk, "/", 100).entries == [(1, 0), (2, 50)]


OURS, OTHERS = "00112233445566778899aabbccddeeff", "f" * 32


def test_the_identity_is_durable_and_no_change_of_the_entries_loses_it() -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    assert table.identity == ""
    table.adopt(OURS)  # a slave learns it before it has an entry
    disk.power_off()
    disk.power_on()
    table = Epochs.load(disk, "/", 100)
    assert (table.entries, table.identity) == ([], OURS)
    table.open(1, 0)
    table.open(3, 50)
    table.cut(1)
    table.replace([Epoch(1, 0), Epoch(2, 60)])
    disk.power_off()
    disk.power_on()
    again = Epochs.load(disk, "/", 100)
    assert (again.entries, again.identity) == ([(1, 0), (2, 60)], OURS)
    again.adopt(OURS)
    count, _, *lines = disk.read_file("/epochFileCheckpoint").decode().splitlines()
    assert (count, lines) == ("2", ["1-0", "2-60", OURS])


def test_a_log_of_one_group_is_not_adopted_by_another() -> None:
    table = epochs((1, 0))
    table.adopt(OURS)
    with pytest.raises(StoreDamaged, match=f"{OURS}.*{OTHERS}"):
        table.adopt(OTHERS)
    for text in ("", "5", OURS.upper(), OURS + "\n"):
        with pytest.raises(ValueError, match="32 hex digits"):
            table.adopt(text)
    assert table.identity == OURS


@pytest.mark.parametrize("at", [-2, -20, -33])
def test_a_file_damaged_in_its_identity_counts_as_damaged(at: int) -> None:
    disk = SimDisk(random.Random(1))
    table = Epochs(disk, "/")
    table.adopt(OURS)
    table.open(1, 0)
    data = bytearray(disk.read_file("/epochFileCheckpoint"))
    data[at] ^= 1
    disk.write_file("/epochFileCheckpoint", bytes(data))
    again = Epochs.load(disk, "/", 100)
    assert (again.entries, again.identity) == ([], OURS)  # the backup, one entry behind
    disk.write_file("/epochFileCheckpoint.bak", bytes(data))
    with pytest.raises(StoreDamaged, match="epochFileCheckpoint"):
        Epochs.load(disk, "/", 100)

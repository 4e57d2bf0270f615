"""The checkpoint's page: what is written is read again, and pages of before and of RocketMQ too."""

import random
import struct
import zlib

import pytest
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.store.recovery.checkpoint import INDEX_UNKNOWN, NO_INDEX, AbortMark, Checkpoint
from store_rig import flush, message, new_disk, open_store

PAGE = 4096
IDENTITY = "00112233445566778899aabbccddeeff"
FULL = Checkpoint(1, 2, 3, 4, 5, 6, 7, 8, 9, bytes(range(40)), IDENTITY, 10, 11)


@pytest.mark.parametrize(
    "page",
    [
        FULL,
        Checkpoint(),
        Checkpoint(physic=5),
        Checkpoint(flushed=0),
        Checkpoint(derived=0),
        Checkpoint(promised=7),
        Checkpoint(promised=0),
        Checkpoint(identity=IDENTITY),  # before there is anything else to tell
    ],
)
def test_what_is_saved_is_read_again(page: Checkpoint) -> None:
    disk = SimDisk(random.Random(1))
    page.save(disk, "/")
    assert Checkpoint.load(disk, "/") == page
    assert len(disk.read_file("/checkpoint")) == PAGE


def test_the_page_is_rocketmqs_with_ours_behind_it() -> None:
    disk = SimDisk(random.Random(1))
    Checkpoint(1, 2, 3, 4, 5).save(disk, "/")
    assert disk.read_file("/checkpoint") == struct.pack(">5q", 1, 2, 3, 4, 5).ljust(PAGE, b"\0")
    FULL.save(disk, "/")
    page = disk.read_file("/checkpoint")
    assert struct.unpack_from(">5q24x8s", page) == (1, 2, 3, 4, 5, b"SATURN03")
    assert struct.unpack_from(">4q", page, 72) == (6, 7, 8, 9)
    assert page[104:144] == bytes(range(40))
    assert page[144:160].hex() == IDENTITY
    assert struct.unpack_from(">qqI", page, 160) == (10, 11, zlib.crc32(page[:176]))
    assert not any(page[180:])
    assert not disk.exists("/checkpoint.bak")


def test_what_is_not_in_the_page_is_not_known() -> None:
    disk = SimDisk(random.Random(1))
    assert Checkpoint.load(disk, "/") == Checkpoint()
    assert Checkpoint() == Checkpoint(0, 0, 0, 0, 0, -1, 0, -1, NO_INDEX, bytes(40), "", -1, -1)
    assert (NO_INDEX, INDEX_UNKNOWN) == (0, -1)
    disk.write_file("/checkpoint", struct.pack(">3q", 1, 2, 3))  # an old RocketMQ's
    assert Checkpoint.load(disk, "/") == Checkpoint(1, 2, 3)
    FULL.save(disk, "/")
    page = bytearray(disk.read_file("/checkpoint"))
    page[71:72] = b"4"  # of a version to come, whole
    page[176:180] = zlib.crc32(page[:176]).to_bytes(4, "big")
    disk.write_file("/checkpoint", bytes(page))
    assert Checkpoint.load(disk, "/") == Checkpoint(1, 2, 3, 4, 5)


def test_abort_is_there_from_set_to_clear() -> None:
    disk = SimDisk(random.Random(1))
    mark = AbortMark(disk, "/")
    assert not mark.present()
    mark.set()
    assert mark.present()
    assert disk.durable_paths("/") == ["/abort"]
    mark.clear()
    assert not mark.present()


def test_a_page_of_before_has_no_identity_and_no_start() -> None:
    disk = SimDisk(random.Random(1))
    page = struct.pack(">qqqqq", 1, 2, 3, 4, 5).ljust(64, b"\0")
    page += struct.pack(">8sqqqq40s", b"SATURN02", 6, 7, 8, 9, bytes(range(40)))
    page += struct.pack(">I", zlib.crc32(page))
    disk.write_file("/checkpoint", page.ljust(PAGE, b"\0"))
    found = Checkpoint.load(disk, "/")
    assert found == Checkpoint(1, 2, 3, 4, 5, 6, 7, 8, 9, bytes(range(40)), "", -1)


@pytest.mark.parametrize("at", [0, 70, 143, 144, 159, 160, 167, 175, 176])
def test_a_page_that_changed_by_a_bit_says_nothing_of_ours(at: int) -> None:
    disk = SimDisk(random.Random(1))
    FULL.save(disk, "/")
    disk.flip("/checkpoint", at, 0)
    found = Checkpoint.load(disk, "/")
    assert (found.derived, found.flushed, found.identity) == (-1, -1, "")
    assert (found.start, found.promised) == (-1, -1)


def test_a_store_keeps_the_identity_that_it_was_given() -> None:
    disk = new_disk()
    store = open_store(disk)
    assert store.identity == ""
    store.identity = IDENTITY
    store.put(message(b"x"))
    flush(store)
    store.checkpoint()
    disk.power_off()
    disk.power_on()
    assert open_store(disk).identity == IDENTITY
    disk.kill()
    disk.power_on()
    assert open_store(disk).identity == IDENTITY  # the start before wrote it again

"""The checkpoint's page: what is written is read again, and pages of before and of RocketMQ too."""

import random
import struct
import zlib

import pytest
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.store.checkpoint import PAGE, Checkpoint
from store_rig import flush, message, new_disk, open_store

IDENTITY = "00112233445566778899aabbccddeeff"
FULL = Checkpoint(1, 2, 3, 4, 5, 6, 7, 8, 9, bytes(range(40)), IDENTITY, 10)


@pytest.mark.parametrize(
    "page",
    [
        FULL,
        Checkpoint(),
        Checkpoint(physic=5),
        Checkpoint(flushed=0),
        Checkpoint(identity=IDENTITY),  # before there is anything else to tell
    ],
)
def test_what_is_saved_is_read_again(page: Checkpoint) -> None:
    disk = SimDisk(random.Random(1))
    page.save(disk, "/")
    assert Checkpoint.load(disk, "/") == page
    assert len(disk.read_file("/checkpoint")) == PAGE


def test_a_page_of_before_has_no_identity_and_no_start() -> None:
    disk = SimDisk(random.Random(1))
    page = struct.pack(">qqqqq", 1, 2, 3, 4, 5).ljust(64, b"\0")
    page += struct.pack(">8sqqqq40s", b"SATURN02", 6, 7, 8, 9, bytes(range(40)))
    page += struct.pack(">I", zlib.crc32(page))
    disk.write_file("/checkpoint", page.ljust(PAGE, b"\0"))
    found = Checkpoint.load(disk, "/")
    assert found == Checkpoint(1, 2, 3, 4, 5, 6, 7, 8, 9, bytes(range(40)), "", -1)


@pytest.mark.parametrize("at", [0, 70, 143, 144, 159, 160, 167, 168])
def test_a_page_that_changed_by_a_bit_says_nothing_of_ours(at: int) -> None:
    disk = SimDisk(random.Random(1))
    FULL.save(disk, "/")
    disk.flip("/checkpoint", at, 0)
    found = Checkpoint.load(disk, "/")
    assert (found.derived, found.flushed, found.identity, found.start) == (-1, -1, "", -1)


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

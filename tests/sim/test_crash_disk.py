"""What the crash drill needs of the simulated disk: images that disturb nobody, crash points inside
writes, lengths and overwritten files that are not durable by themselves.
"""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest
from saturnmq.drills.sim.disk import PAGE, PowerCutOdds, SimDisk

NOTHING = PowerCutOdds(0.0, 0.0, 0.0)
NAMES = PowerCutOdds(0.0, 0.0, 1.0)


def new_disk() -> SimDisk:
    disk = SimDisk(random.Random(1), writeback=0.0)
    disk.make_dirs("/d")
    return disk


def test_an_image_shows_the_crash_and_leaves_the_disk_as_it_was() -> None:
    disk = new_disk()
    segment = disk.create_segment("/d/s", PAGE)
    segment.write(0, b"synced")
    segment.flush(0, PAGE)
    segment.write(0, b"later!")
    lost = disk.crash_image(random.Random(2), NOTHING)
    killed = disk.kill_image(random.Random(2))
    assert lost.read_file("/d/s")[:6] == b"synced"
    assert killed.read_file("/d/s")[:6] == b"later!"
    assert killed.crash_image(random.Random(3), NOTHING).read_file("/d/s")[:6] == b"synced"
    killed.unlink("/d/s")
    assert segment.read(0, 6) == b"later!"


def test_a_crash_may_come_inside_a_write_at_each_border_of_a_page() -> None:
    disk = new_disk()
    segment = disk.create_segment("/d/s", 4 * PAGE)
    data = b"x" * (3 * PAGE)
    seen = set()

    def step(operation: str, path: str) -> None:
        if operation == "write":
            image = disk.kill_image(random.Random(1))
            seen.add(image.read_file("/d/s").count(b"x"))

    disk.step = step
    segment.write(100, data)
    assert {0, PAGE - 100, 2 * PAGE - 100, 3 * PAGE - 100} <= seen
    assert max(seen) < len(data)
    assert segment.read(100, len(data)) == data


def test_a_failed_write_has_written_a_part() -> None:
    disk = new_disk()
    segment = disk.create_segment("/d/s", PAGE)
    disk.plan("write", errno.EIO)
    with pytest.raises(OSError, match="planned"):
        segment.write(0, b"12345678")
    assert segment.read(0, 8) == b"1234" + bytes(4)


def test_a_file_that_was_never_synced_may_be_empty() -> None:
    disk = new_disk()
    disk.create_segment("/d/s", PAGE, durable=False)
    sizes = {
        len(disk.crash_image(random.Random(seed), PowerCutOdds(1.0, 0.0, 0.9)).read_file("/d/s"))
        for seed in range(60)
        if disk.crash_image(random.Random(seed), PowerCutOdds(1.0, 0.0, 0.9)).exists("/d/s")
    }
    assert sizes == {0, PAGE}
    disk.open_segment("/d/s", PAGE).flush(0, PAGE)
    disk.sync_dir("/d")
    assert len(disk.crash_image(random.Random(1), NOTHING).read_file("/d/s")) == PAGE


def test_an_overwritten_file_loses_its_old_content_before_the_new_one_is_there() -> None:
    disk = new_disk()
    disk.write_file("/d/f", b"old")
    left: set[Any] = set()

    def step(operation: str, path: str) -> None:
        if operation == "flush":
            left.update(
                disk.crash_image(random.Random(seed), outcome).read_file("/d/f")
                for seed in range(20)
                for outcome in (NOTHING, NAMES, PowerCutOdds(1.0, 0.0, 1.0))
            )

    disk.step = step
    disk.write_file("/d/f", b"new")
    assert left == {b"", bytes(3), b"new"}


def test_a_page_that_is_written_again_after_a_failed_sync_is_synced_by_the_next_one() -> None:
    disk = new_disk()
    segment = disk.create_segment("/d/s", PAGE)
    segment.write(0, b"data")
    disk.plan("flush", times=1)
    with pytest.raises(OSError, match="planned"):
        segment.flush(0, PAGE)
    segment.flush(0, PAGE)
    assert disk.crash_image(random.Random(1), NOTHING).read_file("/d/s")[:4] == bytes(4)
    segment.write(0, b"data")
    segment.flush(0, PAGE)
    assert disk.crash_image(random.Random(1), NOTHING).read_file("/d/s")[:4] == b"data"

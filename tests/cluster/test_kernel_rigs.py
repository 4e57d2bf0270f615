"""A small share of the kernel drills: power cuts and block errors under the real page cache.

`saturnmq drill crash --kernel` runs more. Skipped where the machine lacks what they need.
"""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from saturnmq.drills.kernel import run_kernel_drill, why_not
from saturnmq.drills.kernel.block_errors import block_error
from saturnmq.drills.kernel.device import BLOCK, FAULTS, FaultyDevice
from saturnmq.drills.kernel.mounts import reflink_host
from saturnmq.drills.kernel.power_cuts import power_cuts
from saturnmq.drills.kernel.report import KernelReport, KernelRun
from saturnmq.drills.kernel.rocketmq import why_not as why_no_rocketmq
from saturnmq.runtime.errors import InvalidParameter

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]
needs_the_kernel = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@needs_the_kernel
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_power_cuts_under_load_lose_no_more_than_the_flush_mode_allows(flush: str) -> None:
    report = run_kernel_drill(images=10, errors=0, seed=1, flush=flush, rates=(1_000,))
    assert (report.images, report.violations) == (10, [])
    assert report.acked > 100


@needs_the_kernel
@pytest.mark.parametrize(
    ("kind", "flush"),
    [
        ("torn write", "sync"),
        ("EIO once", "sync"),
        ("EIO on flush", "async"),
        ("slow disk", "async"),
        ("bit flip", "sync"),
    ],
)
def test_a_failing_disk_costs_nothing_that_the_flush_mode_covers(
    tmp_path: Path, kind: str, flush: str
) -> None:
    run = KernelRun(kind, 1, flush, 500)
    block_error(tmp_path, run)
    assert run.violations == []
    assert run.acked > 20
    assert kind == "bit flip" or run.faults["faults"]


@needs_the_kernel
def test_the_rig_sees_that_async_flush_breaks_the_promise_of_sync_flush(tmp_path: Path) -> None:
    run = KernelRun("power cut", 1, "sync", 1_000)
    with reflink_host(tmp_path) as host:
        power_cuts(host, tmp_path, run, 5, flush="async")
    assert any("sync flush lost" in text for text in run.violations), run.violations


@pytest.mark.interop
@pytest.mark.skipif(why_no_rocketmq() is not None, reason=str(why_no_rocketmq()))
@needs_the_kernel
def test_the_same_power_cuts_hit_a_real_rocketmq() -> None:
    report = run_kernel_drill(
        images=5, errors=0, seed=1, flush="async", rates=(1_000,), server="rocketmq"
    )
    assert (report.images, report.violations) == (5, [])
    assert report.acked > 100


def test_a_drill_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InvalidParameter, match="one of sync, async, both"):
        run_kernel_drill(flush="never")
    with pytest.raises(InvalidParameter, match="for saturnmq only"):
        run_kernel_drill(server="rocketmq", errors=1)


def test_a_drill_that_did_nothing_is_not_a_green_one() -> None:
    assert KernelReport(seed=0).violations


@pytest.fixture
def device(tmp_path: Path):
    path = tmp_path / "disk"
    path.write_bytes(bytes(4 * BLOCK))
    device = FaultyDevice(path, random.Random(0))
    yield device
    device.close()


ONES = memoryview(b"\1" * BLOCK)


def test_a_faulty_device_reads_what_it_caches_and_keeps_what_it_flushed(device, tmp_path) -> None:
    device.write(512, memoryview(b"\2" * 512))
    device.write(BLOCK, ONES)
    assert device.read(0, 2 * BLOCK) == bytes(512) + b"\2" * 512 + bytes(BLOCK - 1024) + bytes(ONES)
    assert (tmp_path / "disk").read_bytes() == bytes(4 * BLOCK)
    device.flush()
    device.power_cut()
    assert (tmp_path / "disk").read_bytes()[: 2 * BLOCK] == device.read(0, 2 * BLOCK)


def test_a_power_cut_tears_unflushed_blocks_at_sectors(device, tmp_path) -> None:
    device.write(0, memoryview(b"\1" * 4 * BLOCK))
    device.power_cut(tear=1.0)
    device.write(0, memoryview(b"\2" * BLOCK))
    device.flush()
    left = (tmp_path / "disk").read_bytes()
    assert device.counts["torn"] == 4
    for start in range(0, 4 * BLOCK, BLOCK):
        ones = left[start : start + BLOCK].count(1)
        assert 0 < ones < BLOCK
        assert ones % 512 == 0
        assert left[start : start + BLOCK] == b"\1" * ones + bytes(BLOCK - ones)


def test_an_armed_error_meets_the_write_it_is_aimed_at_once(device) -> None:
    device.arm(FAULTS["EIO once"], aim=b"\1")
    device.write(0, memoryview(b"\2" * BLOCK))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        device.write(0, ONES)
    device.write(BLOCK, ONES)
    assert device.read(0, BLOCK) == b"\2" * BLOCK
    assert device.counts["faults"] == 1


def test_a_lost_write_is_acknowledged_and_not_there(device) -> None:
    device.arm(FAULTS["lost write"])
    device.write(0, ONES)
    device.flush()
    assert device.read(0, BLOCK) == bytes(BLOCK)

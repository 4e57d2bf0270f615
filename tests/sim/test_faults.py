"""The simulator's own faults: each kind really happens, and only in the ways docs/guarantees.md 8.2
allows.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from saturnmq.drills.sim.disk import PAGE, SECTOR, PowerLoss, SimDisk
from saturnmq.drills.sim.loop import SimLoop, SimStuck, TooLong
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import PoweredOff, SimRuntime
from saturnmq.runtime.errors import ConnectFailed

# -- the disk
# ---------------------------------------------------------------------------------------


def after_power_loss(seed: int, write: Callable[[SimDisk], None]) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    disk.make_dirs("/d")
    write(disk)
    disk.power_off()
    disk.power_on()
    return disk


def test_flushed_pages_survive_power_loss_and_others_are_kept_dropped_or_torn() -> None:
    def write(disk: SimDisk) -> None:
        segment = disk.create_segment("/d/s", 3 * PAGE)
        segment.view[:PAGE] = b"a" * PAGE
        segment.flush(0, 10)
        segment.view[PAGE : 2 * PAGE] = b"b" * PAGE

    fates = {"kept": 0, "dropped": 0, "torn": 0}
    for seed in range(200):
        segment = after_power_loss(seed, write).open_segment("/d/s", 3 * PAGE)
        assert bytes(segment.view[:PAGE]) == b"a" * PAGE
        page = bytes(segment.view[PAGE : 2 * PAGE])
        sectors = [page[n : n + SECTOR] for n in range(0, PAGE, SECTOR)]
        assert all(sector in (b"b" * SECTOR, bytes(SECTOR)) for sector in sectors)
        written = sum(sector[0] == ord("b") for sector in sectors)
        fates["kept" if written == 8 else "torn" if written else "dropped"] += 1
        if 0 < written < 8:  # one border, not a patchwork
            assert sum(a != b for a, b in itertools.pairwise(sectors)) == 1
    assert min(fates.values()) >= 20, fates


def test_names_are_durable_only_after_their_directory_was_synced() -> None:
    def write(disk: SimDisk) -> None:
        disk.write_file("/d/f", b"old")
        disk._write_synced("/d/f.tmp", b"new")
        disk._rename("/d/f.tmp", "/d/f")

    contents = {after_power_loss(seed, write).read_file("/d/f") for seed in range(50)}
    assert contents == {b"old", b"new"}


def test_replacing_a_file_is_atomic_at_every_crash_point() -> None:
    seen = set()
    for cut in range(1, 20):
        for seed in range(10):
            disk = SimDisk(random.Random(seed))
            disk.make_dirs("/d")
            disk.replace_file("/d/f", b"one")
            disk.replace_file("/d/f", b"two")
            left = cut

            def step(operation: str, path: str, disk: SimDisk = disk) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise PowerLoss(operation)

            disk.step = step
            finished = True
            try:
                disk.replace_file("/d/f", b"three")
            except PowerLoss:
                finished = False
            disk.step = None
            disk.power_off()
            disk.power_on()
            content = disk.read_file("/d/f")
            assert content == b"three" if finished else content in (b"two", b"three")
            seen.add(content)
    assert seen == {b"two", b"three"}


def test_a_failed_flush_loses_its_pages_though_later_flushes_succeed() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("/d")
    segment = disk.create_segment("/d/s", PAGE)
    segment.view[:4] = b"lost"
    disk.plan("flush", errno.EIO, "/d/*", times=1)
    with pytest.raises(OSError, match="planned"):
        segment.flush(0, 4)
    segment.flush(0, 4)  # "success"
    assert segment.read(0, 4) == b"lost"  # and the page cache shows it
    disk.power_off()
    disk.power_on()
    assert disk.open_segment("/d/s", PAGE).read(0, 4) == bytes(4)


def test_a_full_disk_refuses_a_segment_and_leaves_nothing() -> None:
    disk = SimDisk(random.Random(1), total_bytes=PAGE)
    disk.make_dirs("/d")
    with pytest.raises(OSError, match="fit") as caught:
        disk.create_segment("/d/s", 2 * PAGE)
    assert caught.value.errno == errno.ENOSPC
    assert disk.list("/d") == []


# -- loop, network and power
# ------------------------------------------------------------------------


def run(body: Callable[[SimLoop, SimNetwork], Coroutine[Any, Any, None]], seed: int = 1) -> SimLoop:
    loop = SimLoop(random.Random(seed), limit_s=100.0)
    try:
        loop.run_until_complete(body(loop, SimNetwork(loop, seed)))
    finally:
        loop.close()
    return loop


class Sink(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.buffer = bytearray(4096)
        self.received = b""
        self.lost: Exception | str | None = "connected"
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += bytes(self.buffer[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc


async def connected(
    loop: SimLoop, network: SimNetwork
) -> tuple[SimRuntime, SimRuntime, Sink, Sink]:
    a = SimRuntime(loop, network, 1, "a", "10.0.0.1")
    b = SimRuntime(loop, network, 1, "b", "10.0.0.2")
    far, near = Sink(), Sink()
    await b.listen("10.0.0.2", 1, lambda: far)
    await a.connect("10.0.0.2", 1, near)
    return a, b, near, far


def test_a_partition_holds_bytes_back_until_it_heals() -> None:
    async def body(loop: SimLoop, network: SimNetwork) -> None:
        a, _, near, far = await connected(loop, network)
        network.partition(["a"], ["b"])
        near.transport.write(b"held")
        far.transport.write(b"flows")
        await a.sleep(5.0)
        assert (far.received, near.received) == (b"", b"flows")
        with pytest.raises(ConnectFailed):
            await a.connect("10.0.0.2", 1, Sink())
        network.heal()
        await a.sleep(0.1)
        assert far.received == b"held"

    run(body)


def test_a_killed_connection_delivers_a_prefix_and_both_ends_hear_of_it() -> None:
    sizes = set()

    async def body(loop: SimLoop, network: SimNetwork) -> None:
        a, _, near, far = await connected(loop, network)
        data = bytes(range(100))
        for value in data:
            near.transport.write(bytes([value]))
            await a.sleep(0.00001)
        network.kill(near.transport)
        await a.sleep(1.0)
        assert isinstance(near.lost, ConnectionResetError)
        assert isinstance(far.lost, ConnectionResetError)
        assert data.startswith(far.received)
        sizes.add(len(far.received))

    for seed in range(20):
        run(body, seed)
    assert len(sizes) > 5


def test_nothing_of_a_powered_off_node_runs_or_is_heard() -> None:
    async def body(loop: SimLoop, network: SimNetwork) -> None:
        a, b, near, far = await connected(loop, network)
        ran: list[str] = []

        async def work() -> None:
            await b.sleep(1.0)
            ran.append("task")

        b.spawn(work(), name="work")
        b.call_later(1.0, ran.append, "timer")
        far.transport.write(b"already on the wire")
        b.power_off(reset_peers_after=0.5)
        far.transport.write(b"never")
        await b.settle()
        await a.sleep(2.0)
        assert ran == []
        assert b"never" not in near.received
        assert isinstance(near.lost, ConnectionResetError)
        assert far.lost == "connected"  # a dead machine is told nothing
        with pytest.raises(PoweredOff):
            await b.listen("10.0.0.2", 2, Sink)

    run(body)


def test_a_frozen_process_does_nothing_and_catches_up_when_it_thaws() -> None:
    async def body(loop: SimLoop, network: SimNetwork) -> None:
        a, b, near, far = await connected(loop, network)
        ran: list[float] = []

        async def work() -> None:
            while True:
                await b.sleep(1.0)
                ran.append(loop.time())

        b.spawn(work(), name="work")
        b.call_later(2.0, ran.append, -1.0)
        await a.sleep(0.5)
        b.pause()
        near.transport.write(b"waits in its kernel")
        late = Sink()
        await a.connect("10.0.0.2", 1, late)  # the kernel takes connections for it
        await a.sleep(10.0)
        assert (ran, far.received, near.lost) == ([], b"", "connected")
        b.resume()
        await a.sleep(1.5)
        assert far.received == b"waits in its kernel"
        assert sorted(at > 10.0 for at in ran) == [False, True, True]  # the timer notes -1
        b.power_off()

    run(body)


def test_a_frozen_process_can_be_killed() -> None:
    async def body(loop: SimLoop, network: SimNetwork) -> None:
        a, b, near, _ = await connected(loop, network)
        b.spawn(b.sleep(100.0), name="work")
        b.pause()
        b.power_off()
        await b.settle()
        await a.sleep(1.0)
        assert isinstance(near.lost, ConnectionResetError)

    run(body)


def test_partitions_that_overlap_end_one_by_one() -> None:
    async def body(loop: SimLoop, network: SimNetwork) -> None:
        a, _, near, far = await connected(loop, network)
        network.partition(["a"], ["b", "c"])
        network.partition(["a"], ["b"])
        near.transport.write(b"held")
        network.mend(["a"], ["b"])
        await a.sleep(1.0)
        assert far.received == b""
        network.mend(["a"], ["b", "c"])
        await a.sleep(1.0)
        assert far.received == b"held"

    run(body)


def test_an_hour_of_virtual_time_passes_at_once_and_a_hang_is_an_error() -> None:
    async def sleeps(loop: SimLoop, network: SimNetwork) -> None:
        await asyncio.sleep(99.0)

    assert run(sleeps).time() == pytest.approx(99.0)

    async def hangs(loop: SimLoop, network: SimNetwork) -> None:
        await loop.create_future()

    with pytest.raises(SimStuck):
        run(hangs)

    async def lives_for_ever(loop: SimLoop, network: SimNetwork) -> None:
        while True:
            await asyncio.sleep(1.0)

    with pytest.raises(TooLong):
        run(lives_for_ever)

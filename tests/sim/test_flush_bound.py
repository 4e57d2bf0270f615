"""With asynchronous flush no acknowledgement is more than 500 ms ahead of the disk, however slow
that is; a disk that fails ends in a state that says so.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.drills.sim.loop import SimLoop
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.store.recovery.checkpoint import Checkpoint

IP = "10.0.0.2"


class Machine:
    """A broker on a simulated machine whose syncs take `sync_s` seconds, and a client of it."""

    def __init__(self, loop: SimLoop, sync_s: float, flush: str) -> None:
        network = SimNetwork(loop, 1)
        half = sync_s / 2
        self.runtime = SimRuntime(
            loop, network, 1, "broker", IP, blocking_latency_s=(half, half * 1.01)
        )
        self.client = SimRuntime(loop, network, 1, "client", "10.0.0.3")
        self.disk = SimDisk(random.Random(1))
        self.config = BrokerConfig(
            host=IP,
            root="/store",
            flush_disk_type=flush,
            store_options={
                "commitlog_segment_bytes": 1 << 20,
                "index_enable": False,
                "zero_ahead_bytes": 8 << 10,
            },
        )
        self.acks: list[tuple[float, int, int]] = []  # when, code, number
        self.flushed: list[tuple[float, int]] = []  # when, offset

    async def start(self) -> None:
        self.broker = Broker(self.config, self.runtime, self.disk)
        await self.broker.start()
        self.endpoint = Endpoint(self.client, lambda e, c: None)
        await self.client.connect(IP, 10911, self.endpoint)

    async def send(self, number: int) -> None:
        ext = {"a": "P", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
        request = Command.request(310, ext | {"h": "0", "i": ""}, b"%d" % number)
        reply = await self.endpoint.request(request, 60.0)
        self.acks.append((self.client.monotonic(), reply.code, number))

    async def load(self, count: int, every_s: float) -> None:
        sends = []
        for number in range(count):
            sends.append(self.client.spawn(self.send(number), name=f"send-{number}"))
            await self.client.sleep(every_s)
            position = self.broker.store.watermarks.flushed
            if not self.flushed or position != self.flushed[-1][1]:
                self.flushed.append((self.client.monotonic(), position))
        await asyncio.gather(*sends)


def run(sync_s: float, flush: str, body: Callable[[Machine], Awaitable[None]]) -> None:
    loop = SimLoop(random.Random(1))
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(body(Machine(loop, sync_s, flush)))
    finally:
        loop.close()


@pytest.mark.parametrize("sync_s", [0.001, 0.2, 0.7, 1.5])
def test_acknowledgements_stay_within_half_a_second_of_the_disk(sync_s: float) -> None:
    async def body(machine: Machine) -> None:
        await machine.start()
        await machine.load(1000, 0.01)
        times = [when for when, code, _ in machine.acks if code == 0]
        assert len(times) == 1000
        # Between two moments at which the disk caught up, acknowledgements come within 0.5 s.
        for (begin, _), (end, _) in pairwise(machine.flushed):
            burst = [t for t in times if begin + 0.011 < t < end]
            assert not burst or burst[-1] - burst[0] <= 0.5
        longest = max(b - a for a, b in pairwise(times))
        assert longest < 0.1 if sync_s < 0.2 else longest < 2 * sync_s + 0.3

    run(sync_s, "ASYNC_FLUSH", body)


def test_a_disk_that_takes_longer_than_the_timeout_is_answered_as_such() -> None:
    async def body(machine: Machine) -> None:
        await machine.start()
        await machine.load(200, 0.01)
        codes = {code for _, code, _ in machine.acks}
        assert codes == {0, 10}  # FLUSH_DISK_TIMEOUT: stored, but the promise is not kept in time

    run(14.0, "ASYNC_FLUSH", body)


def test_a_checkpoint_that_finds_no_room_is_written_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(machine: Machine) -> None:
        await machine.start()
        await machine.load(1, 0.01)  # where the log begins is written down before
        plan = machine.disk.plan("write_file", errno.ENOSPC, "*/checkpoint.tmp", times=2)
        await machine.load(20, 0.01)
        await machine.client.sleep(5.0)
        assert plan.hits == 2
        assert caplog.text.count("the checkpoint cannot be written") == 2
        assert machine.broker.failed is None
        end = machine.broker.store.watermarks.appended
        page = Checkpoint.load(machine.disk, "/store")
        assert (page.flushed, page.derived) == (end, end)

    run(0.01, "ASYNC_FLUSH", body)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_after_a_failed_sync_nothing_is_acknowledged_and_everything_is_told(flush: str) -> None:
    async def body(machine: Machine) -> None:
        await machine.start()
        await machine.load(20, 0.01)
        plan = machine.disk.plan("flush", pattern="*commitlog*", times=1)
        await machine.load(200, 0.01)
        assert plan.hits == 1
        codes = [code for _, code, number in machine.acks[20:]]
        first = next(at for at, code in enumerate(codes) if code)
        assert set(codes[first:]) <= {10, 14}
        assert 14 in codes
        status = await machine.endpoint.request(Command.request(28), 5.0)
        assert b"planned failure of flush" in bytes(status.body)
        ext = {"consumerGroup": "G", "topic": "orders", "queueId": "0", "queueOffset": "0"}
        ext |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0"}
        ext |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
        pulled = await machine.endpoint.request(Command.request(11, ext), 5.0)
        assert pulled.code == 0  # it stays readable
        assert machine.broker.failed is not None
        await machine.broker.close()
        assert machine.disk.exists("/store/abort")

    run(0.01, flush, body)

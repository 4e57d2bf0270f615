"""An answer says what is durable: a full disk at the moment when a table is saved."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, send
from saturnmq.broker.broker import Broker
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol import jsonx
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.native import NativeRuntime

TABLES = "/store/config/*.json*"
TOPIC = {"topic": "made", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
RESET = {"topic": "orders", "group": "G", "timestamp": -1, "queueId": 0, "offset": 1}
GROUP = jsonx.dumps({"groupName": "made", "retryMaxTimes": 3})

Body = Callable[[NativeRuntime, SimDisk, Broker, Endpoint], Awaitable[None]]


def on_simulated_disk(body: Body) -> None:
    """A broker on a simulated disk that holds a topic, an offset and a group."""

    async def main(runtime: NativeRuntime) -> None:
        disk = SimDisk(random.Random(1))
        broker, endpoint = await start(runtime, disk)
        await send(endpoint, b"one")
        await send(endpoint, b"two")
        commit = {"consumerGroup": "G", "topic": "orders", "queueId": 0, "commitOffset": 2}
        assert (await ask(endpoint, 15, commit)).code == 0
        await body(runtime, disk, broker, endpoint)

    run(main)


async def start(runtime: NativeRuntime, disk: SimDisk) -> tuple[Broker, Endpoint]:
    broker = Broker(config("/store", fast_port=False), runtime, disk)  # type: ignore[arg-type]
    await broker.start()
    return broker, await connected(runtime, broker)


async def killed(runtime: NativeRuntime, disk: SimDisk, broker: Broker) -> tuple[Broker, Endpoint]:
    """The next process after kill -9: it finds what was written, and nothing else."""
    image = disk.kill_image(random.Random(2))
    disk.plans.clear()
    await broker.close(clean=False)
    return await start(runtime, image)


def table(broker: Broker, name: str) -> Any:
    return broker.context.topics.get(name)


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [(17, TOPIC, b""), (200, {}, GROUP), (222, RESET, b"")],
    ids=["topic create", "group create", "offset reset"],
)
def test_what_could_not_be_saved_is_no_success_and_can_be_repeated(
    code: int, ext: dict[str, Any], body: bytes
) -> None:
    async def scene(
        runtime: NativeRuntime, disk: SimDisk, broker: Broker, endpoint: Endpoint
    ) -> None:
        disk.plan("write_file", errno.ENOSPC, TABLES, times=None)
        reply = await ask(endpoint, code, ext, body)
        assert reply.code == 1
        assert "not saved" in str(reply.remark)
        assert "repeat" in str(reply.remark)
        assert is_there(broker), "in effect, as the answer says"
        disk.plans.clear()
        assert (await ask(endpoint, code, ext, body)).code == 0
        broker, endpoint = await killed(runtime, disk, broker)
        assert is_there(broker)
        await broker.close()

    def is_there(broker: Broker) -> bool:
        c = broker.context
        return {
            17: lambda: c.topics.get("made") is not None,
            200: lambda: c.groups.get("made") is not None,
            222: lambda: c.offsets.query("G", "orders", 0) == 1,
        }[code]()

    on_simulated_disk(scene)


def test_a_topic_whose_deletion_could_not_be_saved_is_there_as_it_was() -> None:
    async def scene(
        runtime: NativeRuntime, disk: SimDisk, broker: Broker, endpoint: Endpoint
    ) -> None:
        disk.plan("write_file", errno.ENOSPC, TABLES, times=None)
        reply = await ask(endpoint, 215, {"topic": "orders"})
        assert reply.code == 1
        assert "not deleted" in str(reply.remark)
        assert broker.context.topics.get("orders") is not None
        assert broker.store.min_offset("orders", 0) == 0
        assert (await send(endpoint, b"three")).ext["queueOffset"] == "2"
        disk.plans.clear()
        assert (await ask(endpoint, 215, {"topic": "orders"})).code == 0
        broker, endpoint = await killed(runtime, disk, broker)
        assert broker.context.topics.get("orders") is None
        assert not broker.store.has_queues("orders")
        await broker.close()

    on_simulated_disk(scene)


def test_a_table_that_could_not_be_saved_is_saved_when_there_is_room_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(
        runtime: NativeRuntime, disk: SimDisk, broker: Broker, endpoint: Endpoint
    ) -> None:
        plan = disk.plan("write_file", errno.ENOSPC, TABLES, times=None)
        assert (await ask(endpoint, 17, TOPIC)).code == 1
        hits = plan.hits
        while plan.hits == hits:  # the saver tries again by itself
            await runtime.sleep(0.01)
        assert "cannot save" in caplog.text
        disk.plans.clear()
        while broker.context.topics.dirty:
            await runtime.sleep(0.01)
        broker, endpoint = await killed(runtime, disk, broker)
        assert broker.context.topics.get("made") is not None
        await broker.close()

    on_simulated_disk(scene)


@pytest.mark.parametrize(
    ("operation", "path"),
    [("write_file", "/store/checkpoint*"), ("remove_tree", "/store/consumequeue/*")],
)
def test_a_deletion_stands_though_its_files_cannot_be_removed_yet(
    operation: str, path: str
) -> None:
    async def scene(
        runtime: NativeRuntime, disk: SimDisk, broker: Broker, endpoint: Endpoint
    ) -> None:
        disk.plan(operation, errno.EIO, path, times=None)
        assert (await ask(endpoint, 215, {"topic": "orders"})).code == 0
        assert broker.context.topics.get("orders") is None
        assert disk.exists("/store/consumequeue/orders/0")
        broker, endpoint = await killed(runtime, disk, broker)
        assert broker.context.topics.get("orders") is None
        assert not disk_of(broker).exists("/store/consumequeue/orders")
        await broker.close()

    on_simulated_disk(scene)


def disk_of(broker: Broker) -> SimDisk:
    disk = broker._disk
    assert isinstance(disk, SimDisk)
    return disk

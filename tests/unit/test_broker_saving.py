"""An answer says what is durable: a full disk at the moment when a table is saved."""

from __future__ import annotations

import asyncio
import errno
import random
import re
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, send, until
from saturnmq.broker.broker import Broker
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import TERM
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.config_files import ConfigFile
from saturnmq.store.disk import NativeDisk

TABLES = "/store/config/*.json*"
TOPIC = {"topic": "made", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
RESET = {"topic": "orders", "group": "G", "timestamp": -1, "queueId": 0, "offset": 1}
GROUP = fastjson.dumps({"groupName": "made", "retryMaxTimes": 3})
MODE = fastjson.dumps({"topic": "orders", "consumerGroup": "popping", "mode": "POP"})

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
    [(17, TOPIC, b""), (200, {}, GROUP), (222, RESET, b""), (401, {}, MODE)],
    ids=["topic create", "group create", "offset reset", "request mode"],
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
        assert not broker.failures.count, broker.failures.last
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
            401: lambda: c.groups.get("popping") is not None,
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


def test_two_deletions_of_a_topic_that_could_not_be_saved_leave_it_as_it_was() -> None:
    async def scene(
        runtime: NativeRuntime, disk: SimDisk, broker: Broker, endpoint: Endpoint
    ) -> None:
        disk.plan("write_file", errno.ENOSPC, TABLES, times=None)
        asked = (ask(endpoint, 215, {"topic": "orders"}) for _ in range(2))
        assert [reply.code for reply in await asyncio.gather(*asked)] == [1, 1]
        disk.plans.clear()
        await broker.ground.persistence.save_changed()
        broker, endpoint = await killed(runtime, disk, broker)
        assert broker.context.topics.get("orders") is not None
        assert broker.store.has_queues("orders"), "its messages are those of a deleted topic"
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
        path = "/store/config/topics.json"
        while not (disk.exists(path) and b'"made"' in disk.content(path)):
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


def test_a_change_of_the_role_that_could_not_be_written_down_is_none() -> None:
    async def scene(
        runtime: NativeRuntime, disk: SimDisk, broker: Broker, endpoint: Endpoint
    ) -> None:
        def part() -> tuple[Any, ...]:
            state = broker.replica_state()
            return state["role"], state["epochs"], state["decided"]

        async def in_vain(code: int, file: str) -> None:
            before, plan = part(), disk.plan("write_file", errno.ENOSPC, file, times=None)
            reply = await ask(endpoint, code, {"epoch": 3 * TERM, "force": "true"})
            assert (reply.code, plan.hits > 0) == (1, True), (code, file, reply.remark)
            told = f"{broker.address} cannot write its role to its disk: .*{file[:-1]}.*Free space"
            assert re.search(told, str(reply.remark)), reply.remark
            assert part() == before
            disk.plans.clear()

        role, epochs = "/store/config/role.json*", "/store/epochFileCheckpoint*"
        await in_vain(RequestCode.FENCE, role)
        assert (await send(endpoint, b"goes on")).code == 0
        assert (await ask(endpoint, RequestCode.FENCE, {"epoch": 3 * TERM})).code == 0
        for file in (role, epochs):
            await in_vain(RequestCode.PROMOTE, file)
            assert (await send(endpoint, b"refused")).code == 2
        reply = await ask(endpoint, RequestCode.PROMOTE, {"epoch": 5 * TERM, "force": "true"})
        assert reply.code == 0, reply.remark
        assert (await send(endpoint, b"taken")).code == 0
        broker, endpoint = await killed(runtime, disk, broker)
        assert broker.replica_state()["role"] == "master"
        assert broker.context.role.promised_epoch >= 5 * TERM
        await broker.close()

    on_simulated_disk(scene)


def test_a_master_whose_disk_is_full_promises_to_lead_no_more() -> None:
    async def scene(
        runtime: NativeRuntime, disk: SimDisk, broker: Broker, endpoint: Endpoint
    ) -> None:
        total = disk.total_bytes
        disk.total_bytes -= disk.free_space("/store")[1] - 16
        with pytest.raises(OSError, match="do not fit"):
            disk.write_file("/store/more", bytes(17))
        for term in (3, 5, 7, 9):
            reply = await ask(endpoint, RequestCode.FENCE, {"epoch": term * TERM})
            assert reply.code == 0, reply.remark
            saved = ConfigFile(disk, "/store/config/role.json").load()
            assert saved is not None
            assert saved["epoch"] == term * TERM
        assert (await send(endpoint, b"refused")).code == 2
        disk.total_bytes = total
        await broker.close()

    on_simulated_disk(scene)


class SlowDisk(NativeDisk):
    """Takes its time for the role, and counts who writes it at once."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.writers = self.most = 0

    def replace_file(
        self, path: str, data: bytes, *, keep_backup: bool = True, keep_room: bool = False
    ) -> None:
        replace = partial(super().replace_file, path, data)
        if not path.endswith("role.json"):
            replace(keep_backup=keep_backup, keep_room=keep_room)
            return
        self.writers += 1
        self.most = max(self.most, self.writers)
        self.begun.set()
        assert self.may_end.wait(10)
        replace(keep_backup=keep_backup, keep_room=keep_room)
        self.writers -= 1


def test_a_node_that_ends_while_its_role_is_written_writes_it_once_more_afterwards(
    tmp_path: Path,
) -> None:
    """Two writers of one file would mix it, or find it gone."""

    async def main(runtime: NativeRuntime) -> None:
        disk = SlowDisk()
        disk.may_end.set()
        broker = Broker(config(tmp_path), runtime, disk)
        await broker.start()
        disk.begun.clear()
        disk.may_end.clear()
        endpoint = await connected(runtime, broker)
        asked = asyncio.ensure_future(ask(endpoint, RequestCode.FENCE, {"epoch": 3 * TERM}))
        await until(disk.begun.is_set)
        closing = asyncio.ensure_future(broker.close())
        broker.context.role.add_replica(5, "127.0.0.1:1")  # so that there is more to write
        await until(lambda: broker.replication.executor._closed)
        for _ in range(20):  # turns of the loop, in which a second writer would begin
            await asyncio.sleep(0.005)
        disk.may_end.set()
        await closing
        asked.cancel()
        assert (disk.most, broker.failed) == (1, None)
        saved = ConfigFile(disk, f"{tmp_path}/config/role.json").load()
        assert saved is not None
        assert (saved["epoch"], saved["replicas"]) == (3 * TERM, {"5": "127.0.0.1:1"})

    run(main)

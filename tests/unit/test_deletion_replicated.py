"""A deletion and a slave: it is there at the slave as well, through restarts and promotions."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker_rig import ask, config, connected, pull, run, send, slave_config, started, until
from failover_rig import Group
from saturnmq.broker.broker import Broker
from saturnmq.client.admin.admin import Admin
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk
from saturnmq.store.message_store import MessageStore


async def delete(group: Group, broker: Broker, topic: str = "orders") -> int:
    client = await connected(group.runtime, broker)
    code = (await ask(client, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})).code
    client.close()
    return code


async def bodies(group: Group, broker: Broker, offset: int) -> list[bytes]:
    client = await connected(group.runtime, broker)
    reply = await pull(client, offset)
    client.close()
    return [m.body for m in decode_frames(reply.body, True)] if reply.code == 0 else []


async def promote(group: Group, broker: Broker) -> None:
    code, state = await group.role(broker, RequestCode.PROMOTE, epoch=2 * TERM, force="true")
    assert code == 0, state


def files(group: Group, node: str) -> set[str]:
    return {path.name for path in (group.root / node / "consumequeue").iterdir()}


def test_a_slave_deletes_what_its_master_deletes_and_keeps_to_it(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"1", b"2") == [0, 0]
            await until(lambda: group.slave.context.topics.get("orders") is not None)
            await until(lambda: group.slave.store.max_offset("orders", 0) == 2)
            assert await delete(group, group.master) == 0
            assert await delete(group, group.slave) == 0
            for broker, node in ((group.master, "m"), (group.slave, "s")):
                assert broker.context.topics.get("orders") is None
                assert "orders" not in files(group, node)
            await group.slave.close(clean=False)
            await group.master.close(clean=False)
            group.slave = await group.start("s")
            assert group.slave.context.topics.get("orders") is None
            assert group.slave.store.max_offset("orders", 0) == 2
            group.master = await group.start("m")

    run(body)


@pytest.mark.parametrize("recreated", [False, True])
def test_a_slave_that_is_promoted_right_after_a_deletion_does_not_bring_the_topic_back(
    tmp_path: Path, recreated: bool
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"1", b"2") == [0, 0]
            client = await connected(runtime, group.master)
            place = {"consumerGroup": "G", "topic": "orders", "queueId": 0}
            await ask(client, 15, {**place, "commitOffset": 1})
            await until(lambda: group.slave.context.offsets.query("G", "orders", 0) == 1)
            assert await delete(group, group.master) == 0
            if recreated:
                assert (await send(client, b"new")).ext["queueOffset"] == "2"
            assert await delete(group, group.slave) == 0
            await group.master.close(clean=False)
            await promote(group, group.slave)
            topic = group.slave.context.topics.get("orders")
            assert (topic is not None) == recreated
            assert group.slave.context.offsets.query("G", "orders", 0) is None
            assert await bodies(group, group.slave, 0) == []
            assert await bodies(group, group.slave, 2) == ([b"new"] if recreated else [])
            group.master = await group.start("m")
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            assert await group.send_all(group.slave, b"after") == [0]
            expected = [b"new", b"after"] if recreated else [b"after"]
            assert await bodies(group, group.slave, 2) == expected

    run(body)


def test_a_slave_has_nothing_of_a_group_when_its_deletion_is_answered(tmp_path: Path) -> None:
    """It may be promoted at once; by itself it looks at its master's tables once a minute here."""

    async def body(runtime: NativeRuntime) -> None:
        server = NameServer(runtime, port=0)
        await server.start()
        known = {"nameservers": (server.address,), "slave_sync_ms": 60_000}
        master = await started(runtime, config(tmp_path / "m", **known))
        client = await connected(runtime, master)
        async with Admin(server.address, runtime=runtime) as admin:
            await admin.create_group("G")
            await send(client, b"1")
            place = {"consumerGroup": "G", "topic": "orders", "queueId": 0}
            await ask(client, 15, {**place, "commitOffset": 1})
            slave = await started(runtime, slave_config(tmp_path / "s", master, **known))
            groups, offsets = slave.context.groups, slave.context.offsets
            await until(lambda: offsets.query("G", "orders", 0) == 1)
            assert groups.get("G") is not None
            assert len(await admin.cluster()) == 2
            await admin.delete_group("G")
            assert groups.get("G") is None
            assert offsets.query("G", "orders", 0) is None
        client.close()
        for each in (slave, master, server):
            await each.close()

    run(body)


def test_a_deposed_master_tells_its_successor_what_it_had_deleted(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=200, slave_sync_ms=60_000) as group:
            assert await group.send_all(group.master, b"1", b"2") == [0, 0]
            client = await connected(runtime, group.master)
            assert (await send(client, b"kept", topic="other")).code == 0
            await until(lambda: group.slave.store.max_offset("other", 0) == 1)
            await group.slave.replication.table_sync.copy_now()
            assert await delete(group, group.master) == 0
            assert await delete(group, group.master, "other") == 0
            await group.master.close(clean=False)
            await promote(group, group.slave)
            assert group.slave.context.topics.get("orders") is not None, "nobody told it"
            client = await connected(runtime, group.slave)
            await send(client, b"since", topic="other")
            group.master = await group.start("m")
            await until(lambda: group.slave.context.topics.get("orders") is None)
            await until(lambda: "orders" not in files(group, "s"))
            assert group.slave.context.topics.get("other") is not None
            await until(lambda: group.slave.context.copies_in_sync() == 2)
            for broker in (group.slave, group.master):
                low = broker.store.min_offset("other", 0)
                assert [low, broker.store.max_offset("other", 0)] == [1, 2]

    run(body)


def test_a_topic_of_which_the_slave_has_the_messages_only_is_there_after_a_promotion(
    tmp_path: Path,
) -> None:
    """Received, and not dispatched when its master died."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=200, slave_sync_ms=60_000) as group:
            assert await group.send_all(group.master, b"1") == [0]
            slave = group.slave
            await until(lambda: slave.store.watermarks.dispatched > 0)
            slave.ground.advancer.stopped = True
            client = await connected(runtime, group.master)
            assert (await send(client, b"young", topic="young")).code in (0, 11, 12)
            end = group.master.store.watermarks.appended
            await until(lambda: slave.store.watermarks.appended == end)
            await group.master.close(clean=False)
            await promote(group, slave)
            assert slave.context.topics.get("young") is not None
            group.master = await group.start("m")

    run(body)


async def fewer_queues(group: Group) -> None:
    client = await connected(group.runtime, group.master)
    changed = {"topic": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    changed |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    reply = await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, changed)
    assert reply.code == 0, reply.remark
    client.close()


@pytest.mark.parametrize("gone", ["topic", "queues"])
def test_the_lost_end_of_a_log_brings_nothing_back_when_it_is_copied_back(
    tmp_path: Path, gone: str
) -> None:
    """What was taken away lies in it, and the order to take it away came behind it."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"kept") == [0]
            end = group.master.store.watermarks.appended
            client = await connected(runtime, group.master)
            for queue_id in range(4):
                assert (await send(client, b"in %d" % queue_id, e=queue_id)).code == 0
            client.close()
            if gone == "topic":
                assert await delete(group, group.master) == 0
            else:
                await fewer_queues(group)
            slave = group.slave.store.watermarks
            await until(lambda: slave.appended == group.master.store.watermarks.appended)
            await group.master.close(clean=False)
            settings = group.configs["m"].store_config()
            store = MessageStore.open(settings, NativeDisk(), runtime)
            store.truncate(end)
            store.close()
            (tmp_path / "m" / "abort").touch()  # it did not stop in order
            group.master = master = await group.start("m")
            await until(lambda: master.replica_state()["role"] == "master")
            await until(lambda: master.store.watermarks.dispatched == slave.appended)
            topic = master.context.topics.get("orders")
            assert (topic is None) if gone == "topic" else (topic.queues == 1)

    run(body)

"""A slave that is stopped in order is expected back, one that is lost is not; and a broker that is
stopped leaves its nameservers for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_rig import ask, connected, run, until
from failover_rig import Group
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.runtime.native import NativeRuntime
from world_rig import World
from world_rig import run as run_world

GONE = ResponseCode.SLAVE_NOT_AVAILABLE


def test_sends_wait_for_a_slave_that_is_restarted(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=30_000) as group:
            assert await group.send_all(group.master, b"before") == [0]
            await group.slave.close()
            await until(lambda: group.master.context.copies_in_sync() == 1)
            waiting = asyncio.create_task(group.send_all(group.master, b"meanwhile"))
            await until(lambda: len(group.master.context.ledger) == 1)
            group.slave = await group.start("s")
            assert await waiting == [0]
            assert await group.bodies(group.slave) == [b"before", b"meanwhile"]

    run(body)


def test_a_slave_that_stays_away_is_not_waited_for_any_more(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=300) as group:
            await group.slave.close()
            async with asyncio.timeout(30):
                while await group.send_all(group.master, b"meanwhile") != [GONE]:
                    pass  # it waited, and was answered late

    run(body)


@pytest.mark.parametrize("says", ["nothing", "a stranger"])
def test_a_slave_that_is_lost_is_not_waited_for(tmp_path: Path, says: str) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, slave_timeout_ms=30_000) as group:
            group.master.ground.master._slaves_by = 0.0  # that it has just started is long ago
            assert await group.send_all(group.master, b"before") == [0]
            if says == "a stranger":
                client = await connected(runtime, group.master)
                leaves = {"brokerAddr": "127.0.0.1:1"}
                assert (await ask(client, RequestCode.SLAVE_LEAVES, leaves)).code == 0
            await group.slave.close(clean=False)
            await until(lambda: group.master.context.copies_in_sync() == 1)
            assert await group.send_all(group.master, b"alone") == [GONE]

    run(body)


def test_a_broker_that_has_left_one_nameserver_stays_away_while_another_does_not_answer() -> None:
    async def body(world: World) -> None:
        nodes = [world.node(f"nameserver-{number}") for number in range(2)]
        servers = [NameServer(node, node.ip, 9876) for node in nodes]
        for server in servers:
            await server.start()
        broker = await world.broker(nameservers=tuple(server.address for server in servers))
        await world.until(lambda: len(broker.replication.registrar.registered) == 2)
        first, name = servers[0].routes, broker.broker_name
        nodes[1].pause()
        closing = asyncio.create_task(broker.close())
        await world.until(lambda: not first.addresses(name))
        while not closing.done():
            await asyncio.sleep(0.01)
            assert not first.addresses(name), "clients are sent to a broker that listens no more"
        nodes[1].resume()
        await world.until(lambda: not servers[1].routes.addresses(name))

    run_world(body)

"""RocketMQ's own mqadmin asks a nameserver of ours what it asks a controller: who leads, who is in
sync; and elects another master."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from interop_messages import until
from interop_nodes import BROKER, CLUSTER, SATURNMQ, Node, Nodes
from saturnmq.aio import Admin, Message, Producer, SendStatus
from saturnmq.cli.free_ports import free_block
from saturnmq.client.admin.replicas import Replica

pytestmark = [pytest.mark.quick, pytest.mark.interop, pytest.mark.timeout(300)]


def start(nodes: Nodes, store: Path, broker_id: int, port: int) -> Node:
    role = "SLAVE" if broker_id else "SYNC_MASTER"
    settings = {"brokerId": broker_id, "brokerRole": role, "inSyncReplicas": 2}
    return nodes.broker(SATURNMQ, store, port, settings)


async def until_members(nameserver: str, check: Callable[[list[Replica]], bool], what: str) -> None:
    async with Admin(nameserver) as admin:

        async def is_so() -> bool:
            return check(await admin.replicas(BROKER))

        await until(is_so, what)


def are_in_sync(members: list[Replica]) -> bool:
    return len(members) == 2 and all(member.is_master or member.in_sync for member in members)


async def send(nameserver: str) -> SendStatus:
    async with Producer(nameservers=nameserver) as producer:
        return (await producer.send(Message("elected", b"a message"))).status


def test_mqadmin_sees_who_is_in_sync_and_elects_another_master(
    nodes: Nodes, tmp_path: Path, figures: Counter[str]
) -> None:
    ports = free_block("127.0.0.1", 8)
    master = start(nodes, tmp_path / "m", 0, ports + 2)
    slave = start(nodes, tmp_path / "s", 1, ports + 6)
    nameserver = nodes.nameserver(SATURNMQ)
    asyncio.run(until_members(nameserver, are_in_sync, "both are in sync"))
    assert asyncio.run(send(nameserver)) is SendStatus.OK

    told = nodes.mqadmin("getControllerMetaData", "-a", nameserver)
    assert nameserver in told
    told = nodes.mqadmin("getSyncStateSet", "-a", nameserver, "-b", BROKER)
    in_set = [line for line in told.splitlines() if "InSyncReplica" in line]
    assert all(any(node.address in line for line in in_set) for node in (master, slave)), told
    told = nodes.mqadmin("electMaster", "-a", nameserver, "-c", CLUSTER, "-bn", BROKER, "-b", "1")
    assert slave.address in told

    def is_elected(members: list[Replica]) -> bool:
        leads = [member.address for member in members if member.is_master]
        return leads == [slave.address] and are_in_sync(members)

    asyncio.run(until_members(nameserver, is_elected, "the slave leads, and the other follows"))
    assert asyncio.run(send(nameserver)) is SendStatus.OK
    figures["masters elected by mqadmin"] += 1

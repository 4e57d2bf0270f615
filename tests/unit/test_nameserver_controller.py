"""RocketMQ's controller requests, to a nameserver and to brokers: who leads, who is in sync, which
master wrote what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, connected, run, until
from failover_rig import Group
from saturnmq.protocol import jsonx
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.native import NativeRuntime
from saturnmq.protocol.runtime import split_address


async def nameserver(group: Group) -> Endpoint:
    endpoint = Endpoint(group.runtime, lambda e, c: None)
    await group.runtime.connect(*split_address(group.nameserver.address), endpoint)
    return endpoint


async def replicas(endpoint: Endpoint, *names: str) -> dict[str, Any]:
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    reply = await ask(endpoint, code, body=jsonx.dumps(list(names)))
    assert reply.code == 0, reply.remark
    return jsonx.loads(reply.body)["replicasInfoTable"]


def test_a_nameserver_names_itself_as_the_leading_controller(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            endpoint = await nameserver(group)
            reply = await ask(endpoint, RequestCode.CONTROLLER_GET_METADATA_INFO)
            assert reply.code == 0
            assert reply.ext["controllerLeaderAddress"] == group.nameserver.address
            assert reply.ext["isLeader"] == "true"
            assert group.nameserver.address in reply.ext["peers"]
            endpoint.close()

    run(body)


def test_the_replicas_in_sync_are_those_that_the_master_counts(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            name, endpoint = group.master.config.broker_name, await nameserver(group)
            await until(lambda: bool(group.slave._registration.registered))
            table = await replicas(endpoint, name, "nobody")
            assert list(table) == [name]
            told = table[name]
            assert (told["masterBrokerId"], told["masterAddress"]) == (0, group.master.address)
            assert told["masterEpoch"] == group.master.context.role.epoch
            master, slave = told["inSyncReplicas"]
            assert master == {
                "brokerName": name,
                "brokerId": 0,
                "brokerAddress": group.master.address,
                "alive": True,
            }
            assert (slave["brokerId"], slave["brokerAddress"]) == (1, group.slave.address)
            assert told["notInSyncReplicas"] == []
            await group.slave.close()
            await until(lambda: group.master.context.copies_in_sync() == 1)
            after = (await replicas(endpoint, name))[name]
            assert [each["brokerId"] for each in after["inSyncReplicas"]] == [0]
            [gone] = after["notInSyncReplicas"]
            assert (gone["brokerId"], gone["alive"]) == (1, False)
            assert after["syncStateSetEpoch"] > told["syncStateSetEpoch"]
            await group.master.close()
            await until(lambda: not group.nameserver.routes.addresses(name))
            assert await replicas(endpoint, name) == {}
            endpoint.close()

    run(body)


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"nothing", b"[" + b'"a",' * 1000 + b'"a"]'])
def test_what_is_no_list_of_names_is_refused(tmp_path: Path, body: bytes) -> None:
    async def asks(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            endpoint = await nameserver(group)
            code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
            reply = await ask(endpoint, code, body=body)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert (await ask(endpoint, RequestCode.CONTROLLER_GET_METADATA_INFO)).code == 0
            endpoint.close()

    run(asks)


def test_a_broker_tells_which_master_wrote_what(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            end = group.master.store.watermarks.appended
            await until(lambda: group.slave.context.role.caught_up)
            await group.master.close()
            code, state = await group.role(group.slave, RequestCode.PROMOTE, epoch=2 * TERM)
            assert code == 0, state
            client = await connected(runtime, group.slave)
            told = jsonx.loads((await ask(client, RequestCode.GET_BROKER_EPOCH_CACHE)).body)
            epochs = [(x["epoch"], x["startOffset"], x["endOffset"]) for x in told["epochList"]]
            assert epochs == [(TERM, 0, end), (state["epoch"], end, INT64_MAX)]
            assert (told["brokerId"], told["maxOffset"]) == (0, end)
            assert told["brokerName"] == group.slave.config.broker_name
            assert told["clusterName"] == group.slave.config.cluster_name
            client.close()

    run(body)


def test_a_master_that_registers_no_address_keeps_no_question_without_an_answer(
    tmp_path: Path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            name, endpoint = group.master.config.broker_name, await nameserver(group)
            told = {"clusterName": "C", "brokerName": "other", "brokerAddr": "nowhere"}
            registered = {**told, "brokerId": 0, "haServerAddr": "nowhere"}
            reply = await ask(endpoint, RequestCode.REGISTER_BROKER, registered)
            assert reply.code == 0, reply.remark
            assert list(await replicas(endpoint, "other", name)) == [name]
            endpoint.close()

    run(body)

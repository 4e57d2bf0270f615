"""RocketMQ's controller requests, to a nameserver and to brokers: who leads, who is in sync, which
master wrote what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, connected, run, until
from failover_rig import Group
from saturnmq.broker.replication.role import State
from saturnmq.cli import nodes
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson
from saturnmq.protocol.checked import INT64_MAX
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import UNSIGNED
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime


async def nameserver(group: Group) -> Endpoint:
    endpoint = Endpoint(group.runtime, lambda e, c: None)
    await group.runtime.connect(*split_address(group.nameserver.address), endpoint)
    return endpoint


async def replicas(endpoint: Endpoint, *names: str) -> dict[str, Any]:
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    reply = await ask(endpoint, code, body=fastjson.dumps(list(names)))
    assert reply.code == 0, reply.remark
    return fastjson.loads(reply.body)["replicasInfoTable"]


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
            await until(lambda: bool(group.slave.replication.registrar.registered))
            table = await replicas(endpoint, name, "nobody")
            assert list(table) == [name]
            told = table[name]
            assert (told["masterBrokerId"], told["masterAddress"]) == (0, group.master.address)
            assert told["masterEpoch"] == group.master.context.role.promised_epoch
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


async def elect(endpoint: Endpoint, name: str, broker_id: int | str | None, **ext: Any) -> Command:
    """As `mqadmin electMaster` asks for it."""
    header = {"clusterName": "C", "brokerName": name, "designateElect": "true", **ext}
    if broker_id is not None:
        header["brokerId"] = str(broker_id)
    return await ask(endpoint, RequestCode.CONTROLLER_ELECT_MASTER, header)


def hands_over(group: Group) -> None:
    """Give the nameserver the means that the program gives it."""
    group.nameserver = NameServer(
        group.runtime, "127.0.0.1", 0, nodes.hand_over(group.runtime, UNSIGNED)
    )


def test_a_broker_is_elected_by_a_hand_over(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        group = Group(runtime, tmp_path)
        hands_over(group)
        async with group:
            name, endpoint = group.master.config.broker_name, await nameserver(group)
            await until(lambda: bool(group.slave.replication.registrar.registered))
            assert await group.send_all(group.master, b"one") == [0]
            reply = await elect(endpoint, name, 1)
            assert (reply.code, reply.remark) == (0, None)
            assert group.slave.replica_state()["role"] == "master"
            assert reply.ext["masterBrokerId"] == "0"
            assert reply.ext["masterAddress"] == group.slave.address
            assert reply.ext["masterEpoch"] == str(group.slave.context.role.promised_epoch)
            assert int(reply.ext["syncStateSetEpoch"]) >= 1
            told = fastjson.loads(reply.body)
            members = {"0": group.slave.address, "1": group.master.address}
            assert told["brokerMemberGroup"] == {
                "cluster": "C",
                "brokerName": name,
                "brokerAddrs": members,
            }
            assert told["syncStateSet"] == [0, 1]
            assert told["brokerAddrs"] == members, "where mqadmin looks for them"
            assert await group.send_all(group.slave, b"two") == [0]
            endpoint.close()

    run(body)


def test_who_leads_goes_on_when_nobody_else_is_named_or_can(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        group = Group(runtime, tmp_path)
        hands_over(group)
        async with group:
            name, endpoint = group.master.config.broker_name, await nameserver(group)
            await until(lambda: bool(group.slave.replication.registrar.registered))
            still = (
                await elect(endpoint, name, 0),
                await elect(endpoint, name, 1, designateElect="false"),
                await elect(endpoint, name, -1),
                await elect(endpoint, name, None),
            )
            for reply in still:
                assert reply.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
                assert reply.ext["masterAddress"] == group.master.address
            reply = await elect(endpoint, name, 7)
            assert reply.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            assert "'7' names no one member" in str(reply.remark)
            await group.slave.close()
            reply = await elect(endpoint, name, 1)
            assert reply.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            assert "does not answer" in str(reply.remark)
            reply = await elect(endpoint, "nobody", 1)
            assert reply.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            assert (await elect(endpoint, name, "one")).code == ResponseCode.INVALID_PARAMETER
            assert group.master.context.role.state is State.MASTER
            endpoint.close()

    run(body)


def test_a_group_without_a_master_is_not_given_one(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        group = Group(runtime, tmp_path)
        hands_over(group)
        async with group:
            name, endpoint = group.master.config.broker_name, await nameserver(group)
            await until(lambda: bool(group.slave.replication.registrar.registered))
            await group.master.close()
            await until(lambda: 0 not in group.nameserver.routes.addresses(name))
            reply = await elect(endpoint, name, 1)
            assert reply.code == ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
            assert "admin promote" in str(reply.remark)
            assert group.slave.context.role.state is State.SLAVE
            endpoint.close()

    run(body)


def test_a_nameserver_without_means_elects_nobody(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            name, endpoint = group.master.config.broker_name, await nameserver(group)
            reply = await elect(endpoint, name, 1)
            assert reply.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
            endpoint.close()

    run(body)


def test_what_fails_unforeseen_while_a_master_is_elected_is_answered(tmp_path: Path) -> None:
    async def hand_over(group: str, addresses: list[str], broker_id: int) -> str:
        raise RuntimeError(f"{group} upsets it")

    async def body(runtime: NativeRuntime) -> None:
        group = Group(runtime, tmp_path)
        group.nameserver = NameServer(runtime, "127.0.0.1", 0, hand_over)
        async with group:
            name, endpoint = group.master.config.broker_name, await nameserver(group)
            reply = await elect(endpoint, name, 1)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert reply.remark == f"RuntimeError: {name} upsets it"
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
            told = fastjson.loads((await ask(client, RequestCode.GET_BROKER_EPOCH_CACHE)).body)
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

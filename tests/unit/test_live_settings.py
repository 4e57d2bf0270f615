"""Settings that a running broker or nameserver changes on request, and all that it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from saturnmq.broker.config import LIVE, BrokerConfig
from saturnmq.nameserver.settings import LIVE as LIVE_AT_NAMESERVER
from saturnmq.protocol.codes import RequestCode
from world_rig import Remote, World, run

UPDATE, SHOW = RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GET_BROKER_CONFIG
OF_NAMESERVER = RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.UPDATE_CONTROLLER_CONFIG


async def shown(client: Remote, code: int = SHOW) -> dict[str, str]:
    answer = await client.ask(code)
    lines = bytes(answer.body).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_only_numbers_and_switches_can_be_changed() -> None:
    fields = {field.name: field for field in dataclasses.fields(BrokerConfig)}
    assert len(LIVE) > 10
    for key, name in LIVE.items():
        assert type(fields[name].default) in (bool, int), key
        assert fields[name].metadata["key"] == key
    assert all(isinstance(least, int) for least, _ in LIVE_AT_NAMESERVER.values())


def test_a_changed_setting_counts_at_once() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        before = await shown(client)
        lines = b"# by hand\nautoCreateTopicEnable = false\ntransactionCheckMax=7\n"
        assert (await client.ask(UPDATE, {}, lines)).code == 0
        changed = {"autoCreateTopicEnable": "false", "transactionCheckMax": "7"}
        assert await shown(client) == before | changed
        assert (await client.send(b"x")).code == 17
        assert (await client.ask(UPDATE, {}, b"autoCreateTopicEnable=true")).code == 0
        assert (await client.send(b"x")).code == 0
        assert (await client.ask(UPDATE, {}, b"autoCreateSubscriptionGroup=false")).code == 0
        assert (await client.pull(0)).code == 26
        await broker.close()

    run(body)


def test_topics_are_made_by_sends_from_when_a_broker_is_told_to() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(auto_create_topics=False)
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 17
        assert (await client.ask(UPDATE, {}, b"autoCreateTopicEnable=true")).code == 0
        assert (await client.send(b"x")).code == 0
        await broker.close()

    run(body)


def test_a_broker_that_may_only_be_read_leaves_the_routes_of_writers() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client, asker = await world.connect(broker.address), await world.connect(nameserver)
        assert (await client.send(b"x")).code == 0

        async def perms() -> list[int]:
            answer = await asker.ask(105, {"topic": "T"})
            if answer.code:
                return []
            return [row["perm"] for row in json.loads(bytes(answer.body))["queueDatas"]]

        async def until(wanted: list[int]) -> None:
            async with asyncio.timeout(60):
                while await perms() != wanted:
                    await asyncio.sleep(0.01)

        await until([6])
        for permission in (4, 6):
            changed = await client.ask(UPDATE, {}, b"brokerPermission=%d" % permission)
            assert changed.code == 0, changed.remark
            await until([permission])
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("lines", "code", "word"),
    [
        ("storePathRootDir=/tmp/elsewhere", 16, "storePathRootDir cannot be changed"),
        ("brokerIP1=10.0.0.1", 16, "brokerIP1"),
        ("namesrvAddr=10.0.0.1:9876", 16, "namesrvAddr"),
        ("etcdCaFile=/etc/passwd", 16, "etcdCaFile"),
        ("replicationSecret=mine", 16, "replicationSecret"),
        ("inSyncReplicas=1", 16, "inSyncReplicas"),
        ("transactioncheckmax=7", 16, "did you mean 'transactionCheckMax'"),
        ("transaction_check_max=7", 16, "transaction_check_max"),
        ("transactionCheckMax=0", 29, "from 1 to"),
        ("transactionCheckMax=many", 29, "must be a number"),
        ("slaveReadEnable=perhaps", 29, "true or false"),
        ("brokerPermission=8", 29, "2 (write), 4 (read) or 6"),
        ("transactionCheckMax", 29, "key=value"),
        ("", 29, "names no setting"),
        ("transactionCheckMax=7\nrocketmqHome=/tmp", 16, "rocketmqHome"),
        ("x" * (1 << 17), 29, "the limit is"),
    ],
)
def test_what_cannot_be_changed_changes_nothing(lines: str, code: int, word: str) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        before = await shown(client)
        answer = await client.ask(UPDATE, {}, lines.encode())
        assert answer.code == code
        assert word in (answer.remark or "")
        assert await shown(client) == before
        await broker.close()

    run(body)


def test_cve_2023_33246_no_setting_of_a_broker_runs_a_command(tmp_path: Path) -> None:
    """RocketMQ's broker ran `rocketmqHome` as a part of a command, every 30 s while
    `filterServerNums` was above 0."""
    mark = tmp_path / "pwned"
    attack = f"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch {mark};\n".encode()

    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        before = await shown(client)
        for lines in (attack, attack.splitlines()[0], attack.splitlines()[1]):
            assert (await client.ask(UPDATE, {}, lines)).code == 16
        assert not {"filterServerNums", "rocketmqHome"} & before.keys()
        assert await shown(client) == before
        await broker.close()

    run(body)
    assert not mark.exists()


@pytest.mark.parametrize("code", OF_NAMESERVER)
def test_cve_2023_37582_no_setting_of_a_nameserver_writes_a_file(tmp_path: Path, code: int) -> None:
    """RocketMQ's nameserver wrote its settings to the file that `configStorePath` named."""
    mark = tmp_path / "pwned"
    attack = f"configStorePath={mark}\nproductEnvName=* * * * * root id\n".encode()

    async def body(world: World) -> None:
        client = await world.connect(await world.nameserver())
        before = await shown(client, RequestCode.GET_NAMESRV_CONFIG)
        again = b"scanNotActiveBrokerInterval=6000\n" + attack
        for lines in (attack, again, f"kvConfigPath={mark}".encode(), b"rocketmqHome=/tmp"):
            assert (await client.ask(code, {}, lines)).code == 16
        assert not any("/" in value for value in before.values())
        assert await shown(client, RequestCode.GET_NAMESRV_CONFIG) == before

    run(body)
    assert not mark.exists()


@pytest.mark.parametrize("code", OF_NAMESERVER)
def test_a_nameserver_changes_how_often_it_looks_for_silent_brokers(code: int) -> None:
    async def body(world: World) -> None:
        client = await world.connect(await world.nameserver())
        assert (await client.ask(code, {}, b"scanNotActiveBrokerInterval=1000\n")).code == 0
        for show in (RequestCode.GET_NAMESRV_CONFIG, RequestCode.GET_CONTROLLER_CONFIG):
            assert (await shown(client, show))["scanNotActiveBrokerInterval"] == "1000"
        for value in (b"999", b"60001", b"-5000", b"9" * 5000, "１０００".encode(), b"soon", b""):
            lines = b"scanNotActiveBrokerInterval=" + value
            assert (await client.ask(code, {}, lines)).code == 29
        for lines in (b"", b"scanNotActiveBrokerInterval", b"\xff=1", b"#" * (1 << 17)):
            assert (await client.ask(code, {}, lines)).code == 29
        assert (await shown(client, 319))["scanNotActiveBrokerInterval"] == "1000"

    run(body)

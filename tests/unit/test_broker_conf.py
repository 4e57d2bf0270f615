"""Settings of a RocketMQ broker.conf do at a broker what their names say, in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.runtime.door import is_loopback
from saturnmq.runtime.errors import ConfigError
from saturnmq.store.delay_levels import parse_levels
from world_rig import World, run

LEVELS = {"delay_levels": "1s 3s 1m"}


def test_delay_levels_are_read_as_rocketmq_reads_them() -> None:
    assert parse_levels("1s 5m 2h 1d") == (1_000, 300_000, 7_200_000, 86_400_000)
    assert parse_levels(" 10s\t0s ") == (10_000, 0)
    assert len(parse_levels("1s " * 64)) == 64
    assert parse_levels(f"{10**11 - 1}d")[0] < 1 << 63
    config = BrokerConfig.load("messageDelayLevel=1s 5s 1m\n", path="broker.conf")
    assert config.store_config().delays_ms == (1_000, 5_000, 60_000)


@pytest.mark.parametrize(
    "text", ["", "5", "5x", "s", "-1s", "1.5s", "²s", "٣s", " ".join(["1s"] * 65)]
)
def test_a_wrong_delay_level_says_the_way_out(text: str) -> None:
    with pytest.raises(ConfigError, match=r"messageDelayLevel.*such as"):
        BrokerConfig.load(f"messageDelayLevel={text}\n", path="broker.conf").store_config()


@pytest.mark.parametrize(("level", "seconds"), [(1, 1), (2, 3), (3, 60), (9, 60)])
def test_a_message_waits_as_long_as_its_configured_level(level: int, seconds: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker(store_options=LEVELS)
        client = await world.connect(broker.address)
        began = world.loop.time()
        assert (await client.send(b"later", DELAY=str(level))).code == 0
        await world.until(lambda: broker.store.max_offset("T", 0) == 1, 70, every=0.01)
        assert seconds <= world.loop.time() - began < seconds + 1
        waited = broker.store.max_offset("SCHEDULE_TOPIC_XXXX", min(level, 3) - 1)
        assert waited == 1
        await broker.close()

    run(body)


def test_what_waits_when_levels_change_waits_as_long_as_they_say_now() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(store_options={"delay_levels": "1h 1h 1h"})
        client = await world.connect(broker.address)
        for level in ("1", "2", "3"):
            assert (await client.send(b"later", queue=int(level), DELAY=level)).code == 0
        await broker.close()
        broker = await world.broker(store_options={"delay_levels": "5s 10s"})
        for queue, seconds in ((1, 5), (2, 10), (3, 10)):  # the third level is gone
            await world.until(lambda q=queue: broker.store.max_offset("T", q) == 1, 11, every=0.01)
            assert seconds - 1 < world.loop.time() < seconds + 2
        await broker.close()

    run(body)


def test_each_retry_waits_a_level_longer_than_the_one_before() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        sent = await client.send(b"hard")
        offset = int(sent.ext["msgId"][16:], 16)
        for done, seconds in enumerate((10, 30, 60)):
            began = world.loop.time()
            level = {"delayLevel": 0} if done else {}  # 0 or none: the broker's choice
            assert (await client.ask(36, {"group": "G", "offset": offset, **level})).code == 0
            await world.until(
                lambda n=done + 1: broker.store.max_offset("%RETRY%G", 0) == n, 70, every=0.1
            )
            assert seconds <= world.loop.time() - began < seconds + 1
            found = broker.store.get_message("%RETRY%G", 0, done, 1)
            offset = int.from_bytes(bytes(found.data)[28:36], "big")
        await broker.close()

    run(body)


def test_a_message_retried_sixteen_times_is_dead_whatever_the_levels_are() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(store_options={"delay_levels": "1s"})
        client = await world.connect(broker.address)
        sent = await client.send(b"hard")
        offset = int(sent.ext["msgId"][16:], 16)
        for done in range(16):
            back = {"group": "G", "offset": offset, "delayLevel": 0}
            assert (await client.ask(36, back)).code == 0
            await world.until(
                lambda n=done + 1: broker.store.max_offset("%RETRY%G", 0) == n, 5, every=0.01
            )
            found = broker.store.get_message("%RETRY%G", 0, done, 1)
            offset = int.from_bytes(bytes(found.data)[28:36], "big")
        assert (await client.ask(36, {"group": "G", "offset": offset, "delayLevel": 0})).code == 0
        assert broker.store.max_offset("%RETRY%G", 0) == 16
        await world.until(lambda: broker.store.max_offset("%DLQ%G", 0) == 1)
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("permission", "pulled", "given_back", "ordered", "plain"),
    [(6, 0, 0, 0, 0), (4, 0, 16, 16, 0), (2, 16, 0, 0, 0)],
)
def test_a_broker_gives_and_takes_what_its_permission_says(
    permission: int, pulled: int, given_back: int, ordered: int, plain: int
) -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,), permission=permission)
        client = await world.connect(broker.address)
        sent = await client.send(b"x")
        assert sent.code == plain, "clients know by the route, as with a topic's own permission"
        for name, order in (("plain", "false"), ("ordered", "true")):
            made = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            assert (await client.ask(17, {**made, "order": order})).code == 0
        assert (await client.send(b"x", "ordered")).code == ordered
        assert (await client.pull(0)).code == pulled
        back = {"group": "G", "offset": int(sent.ext["msgId"][16:], 16), "delayLevel": 1}
        assert (await client.ask(36, back)).code == given_back
        told = await world.connect(nameserver)

        async def route() -> dict[str, Any]:
            answer = await told.ask(105, {"topic": "plain", "acceptStandardJsonOnly": "true"})
            return json.loads(bytes(answer.body)) if answer.code == 0 else {}

        [queues] = (await route())["queueDatas"]
        assert queues["perm"] == permission
        await broker.close()

    run(body)


def test_a_permission_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="brokerPermission is 5; it must be 2"):
        BrokerConfig.load("brokerPermission=5\n", path="broker.conf")


def test_slaves_are_told_the_address_of_replication_that_is_set() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(ha_advertised_host="10.9.9.9")
        assert broker.address.startswith("10.0.0.")
        assert broker.ha_address == "10.9.9.9:10912"
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("text", "path", "environ", "deletes"),
    [
        ("brokerName=a\n", "broker.conf", {}, True),
        ("cleanFileForciblyEnable=false\n", "broker.conf", {}, False),
        ("brokerName=a\n", "broker.conf", {"SATURNMQ_CLEAN_FORCIBLY": "false"}, False),
        ('brokerName = "a"\n', "broker.toml", {}, False),
        ("cleanFileForciblyEnable = true\n", "broker.toml", {}, True),
        ("", "", {}, False),
        ("", "", {"SATURNMQ_CLEAN_FORCIBLY": "true"}, True),
    ],
)
def test_a_broker_conf_alone_deletes_what_has_not_expired_unasked(
    text: str, path: str, environ: dict[str, str], deletes: bool
) -> None:
    config = BrokerConfig.load(text, path=path, environ=environ)
    assert config.store_config().clean_forcibly is deletes


@pytest.mark.parametrize("forced", [True, False])
def test_a_broker_that_would_delete_what_has_not_expired_says_so_at_its_start(
    forced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: World) -> None:
        broker = await world.broker(store_options={"clean_forcibly": forced})
        await broker.close()

    run(body)
    told = [r for r in caplog.records if "cleanFileForciblyEnable" in r.message]
    assert [r.levelname for r in told] == ["WARNING"] * forced


def test_a_node_that_other_machines_reach_says_once_that_nobody_is_authenticated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    addresses = []

    async def body(world: World) -> None:
        addresses.append(await world.nameserver())
        broker = await world.broker(nameservers=(addresses[0],))
        addresses.append(broker.address)
        await world.until(lambda: broker.replication.registrar.registered)
        await broker.close()

    run(body)
    told = [record for record in caplog.records if "authenticated" in record.message]
    assert [(r.levelname, r.message.split()[0]) for r in told] == [
        ("WARNING", address) for address in addresses
    ]
    assert all("trusted networks only" in record.message for record in told)


@pytest.mark.parametrize(
    ("address", "only_here"),
    [
        ("127.0.0.1:9876", True),
        ("127.8.0.1:9876", True),
        ("[::1]:9876", True),
        ("0.0.0.0:9876", False),
        ("[::]:9876", False),
        ("10.0.0.1:9876", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(address: str, only_here: bool) -> None:
    assert is_loopback(address) is only_here

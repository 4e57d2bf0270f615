"""Messages of exactly `maxMessageSize`, which clients of gRPC are told as the limit of a body: they
are taken, kept and delivered whichever way they come and go, and one byte more is refused."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import saturnmq
from gateway_rig import Caller, Code, create_topic, served, with_slave
from pop_rig import Popper
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.gateway import v2
from saturnmq.gateway.gateway import Gateway
from saturnmq.nameserver.gateway_node import NameserverNode
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.limits import MEMORY_MIN
from saturnmq.runtime.errors import ConfigError, MessageIllegal
from served_rig import served as served_on_loopback
from transactions_rig import COMMIT, end, half, stored
from world_rig import World, run

MOST = 4 << 20
BODY = random.Random(1).randbytes(MOST)
LARGE: dict[str, Any] = {"store_options": {"commitlog_segment_bytes": 16 << 20}}
PROPERTIES = {f"p{n}": "x" * 100 for n in range(128)}


@pytest.mark.parametrize("auto_renew", [False, True])
def test_over_grpc_with_as_many_properties_as_are_allowed(auto_renew: bool) -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world, **LARGE)
        system = {"tag": "t" * 1000, "keys": ["k" * 1000], "trace_context": "c" * 10_000}
        sent = caller.message(BODY, user=PROPERTIES, **system)
        assert (await caller.send(sent)).status.code == Code.OK
        over = await caller.send(caller.message(BODY + b"x"))
        assert over.status.code == Code.MESSAGE_BODY_TOO_LARGE
        (message,) = (await caller.receive(auto_renew=auto_renew)).messages
        assert (message.body, message.user_properties["p127"]) == (BODY, "x" * 100)
        assert (await caller.ack(message)).status.code == Code.OK
        broker.validate()

    run(body)


def test_over_remoting_also_with_delays_retries_and_transactions() -> None:
    async def body(world: World) -> None:
        broker, _ = await served(world, **LARGE)
        client = await world.connect(broker.address)
        for names in ({}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "2000"}):
            assert (await client.send(BODY, **names)).code == 0
            refused = await client.send(BODY + b"x", **names)
            assert (refused.code, "the limit is 4194304" in str(refused.remark)) == (13, True)
        assert (await end(client, await half(client, BODY), COMMIT)).code == 0
        await world.until(lambda: broker.store.max_offset("T", 0) == 4)
        messages = await stored(world, broker)
        assert [len(message.body) for message in messages] == [MOST] * 4
        back = {"group": "G", "offset": messages[0].physical_offset, "delayLevel": 1}
        assert (await client.ask(36, back)).code == 0
        await world.until(lambda: broker.store.max_offset("%RETRY%G", 0) == 1)
        assert (await stored(world, broker, "%RETRY%G"))[0].body == BODY
        (one,) = await Popper(client).pop(1)
        assert one.body == BODY
        broker.validate()

    run(body)


def test_the_greatest_limit_that_can_be_set_holds_over_both_protocols() -> None:
    """A frame of Remoting has room for such a message with all of its properties, both ways."""

    async def body(world: World) -> None:
        most = 16_711_680
        with pytest.raises(ConfigError, match="maxMessageSize is 16711681"):
            BrokerConfig(max_message_bytes=most + 1)
        options = {"store_options": {"commitlog_segment_bytes": 64 << 20}}
        limits = {"max_message_bytes": most, "memory_budget_bytes": MEMORY_MIN}
        broker, caller = await served(world, **options, **limits)
        largest, client = BODY * 4, await world.connect(broker.address)
        largest = largest[:most]
        assert (await client.send(largest, p="x" * 32_000)).code == 0
        assert (await caller.send(caller.message(largest, user=PROPERTIES))).status.code == Code.OK
        assert largest in bytes((await client.pull(0)).body)
        bodies: list[bytes] = []
        while got := (await caller.receive()).bodies:
            bodies += got
        assert bodies == [largest] * 2
        broker.validate()

    run(body)


def test_a_batch_is_as_long_as_a_body_may_be() -> None:
    async def body(world: World) -> None:
        broker, _ = await served(world, **LARGE)
        client = await world.connect(broker.address)
        ext = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
        ext |= {"i": "", "m": "true"}
        empty = bytearray()
        encode_batch_item(empty, b"", b"", 0)
        for more, code in ((0, 0), (1, 13)):
            batch = bytearray()
            for size in (MOST - len(empty) * 2 - 1000 + more, 1000):
                encode_batch_item(batch, BODY[:size], b"", 0)
            assert len(batch) == MOST + more
            assert (await client.ask(320, ext, bytes(batch))).code == code
        assert [len(message.body) for message in await stored(world, broker)][1] == 1000

    run(body)


def test_a_slave_copies_it_and_serves_it() -> None:
    async def body(world: World) -> None:
        master, slave, caller = await with_slave(world, await world.nameserver(), **LARGE)
        assert (await caller.send(caller.message(BODY))).status.code == Code.OK
        marks = slave.store.watermarks
        await world.until(lambda: marks.dispatched == master.store.watermarks.appended)
        queue = next(n for n in range(4) if slave.store.max_offset("T", n))
        remote = await world.connect(slave.address)
        reply = await remote.pull(0, queue=queue)
        assert (reply.code, BODY in bytes(reply.body)) == (0, True)
        await slave.close()
        await master.close()

    run(body)


def test_our_clients_send_and_read_it(tmp_path: Path) -> None:
    with served_on_loopback(tmp_path, **LARGE) as nameserver:
        with saturnmq.Producer("P", nameserver) as producer:
            producer.send(saturnmq.Message("T", BODY))
            with pytest.raises(MessageIllegal, match="limit of 4194304 B"):
                producer.send(saturnmq.Message("T", BODY + b"x"))
        consumer = saturnmq.SimpleConsumer("G", nameserver)
        consumer.subscribe("T")
        with consumer:
            (message,) = consumer.receive(1, wait_s=20)
            assert message.body == BODY


async def beside_a_nameserver(world: World, **changes: Any) -> tuple[Broker, Caller]:
    """A broker with topics T, D and X, and a client of its nameserver's gateway, which announces
    limits of its own."""
    machine = world.node("nameserver")
    server = NameServer(machine, machine.ip, 9876)
    await server.start()
    broker = await world.broker(nameservers=(server.address,), **changes)
    await world.until(lambda: broker.messaging.popping.serves)
    for topic, kind in (("T", "NORMAL"), ("D", "DELAY"), ("X", "TRANSACTION")):
        await create_topic(world, broker, topic, kind)
    await asyncio.sleep(5)
    gateway = Gateway(machine, NameserverNode(machine, server), f"{machine.ip}:8081")
    return broker, Caller(world, gateway)


def test_limits_of_a_broker_that_are_lower_than_those_of_the_node_that_was_asked() -> None:
    async def body(world: World) -> None:
        changes = {"max_message_bytes": 10_000, "timer_max_delay_s": 3600}
        broker, caller = await beside_a_nameserver(world, **changes)
        Type = v2.MessageType
        later_ms = world.nodes[0].now_ms() + 7_200_000
        long = {"trace_context": "c" * 32_500}
        for size, code in ((10_000, Code.OK), (10_001, Code.MESSAGE_BODY_TOO_LARGE)):
            answer = await caller.send(caller.message(bytes(size)))
            assert answer.status.code == answer.entries[0].status.code == code
        for topic, system, code in (
            ("D", {"message_type": Type.DELAY, "delivery_timestamp": later_ms}, 40012),
            ("X", {"message_type": Type.TRANSACTION, **long}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
            ("T", {"trace_context": "c" * 32_680}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
            ("T", {"trace_context": "c" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
            ("T", {"born_host": "c" * 40_000}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ):
            answer = await caller.send(caller.message(b"x", topic, **system))
            assert (answer.status.code, answer.entries[0].status.code) == (code, code), system
        broker.validate()

    run(body)

"""Ordered topics: nameservers, brokers and producers know where they are written."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from gateway_rig import Caller, Code, create_topic
from saturnmq.client.admin.admin import Admin
from saturnmq.client.producer.placing import Placement, queue_of
from saturnmq.client.producer.producer import Producer
from saturnmq.client.routes import RouteCache
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.gateway.gateway import Gateway
from saturnmq.gateway.node import GatewayNode
from saturnmq.nameserver.gateway_node import NameserverNode
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData, QueueData, TopicRoute, order_queues
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import MalformedFrame, SaturnError, StoreDamaged
from saturnmq.store.config_files import ConfigFile
from world_rig import World, new_disk, run

CONF = "b:2;a:1"
QUEUES = [MessageQueue("T", "b", 0), MessageQueue("T", "b", 1), MessageQueue("T", "a", 0)]


def route(*names: str, order: str | None = CONF) -> TopicRoute:
    """A topic with four queues on each of these brokers."""
    return TopicRoute(
        queues=[QueueData(name, 4, 4) for name in names],
        brokers=[BrokerData("C", name, {0: f"{name}:1"}) for name in names],
        order_topic_conf=order,
    )


def test_an_order_configuration_names_queues_by_broker_in_its_order() -> None:
    assert list(order_queues(CONF).items()) == [("b", 2), ("a", 1)]
    assert order_queues("with:colon:3") == {"with:colon": 3}
    assert order_queues("") == {}


@pytest.mark.parametrize("wrong", ["a", "a:", ":3", "a:x", "a:-1", "a:1;", "a:123456", "a:1;b"])
def test_a_route_with_an_order_configuration_that_is_none_is_no_route(wrong: str) -> None:
    with pytest.raises(MalformedFrame, match=r"orderTopicConf has .*BROKER:QUEUES"):
        TopicRoute.from_json(route("a", order=wrong).to_json())


def test_a_route_cannot_name_more_queues_than_any_topic_has() -> None:
    many = ";".join(f"broker-{n}:65536" for n in range(1000))
    with pytest.raises(MalformedFrame, match="a route of 65536000 queues"):
        TopicRoute.from_json(route("a", order=many).to_json())


def test_an_ordered_topic_is_written_where_its_configuration_says() -> None:
    table = RouteCache()
    for there in (("a", "b"), ("a",), ("c",)):
        table.update("T", route(*there))
        assert table.publish_queues("T") == QUEUES
        assert {q.broker_name for q in table.subscribe_queues("T")} == set(there)
    table.update("T", route("c", order=None))
    assert {q.broker_name for q in table.publish_queues("T")} == {"c"}


def test_keys_of_an_ordered_topic_never_move() -> None:
    placement = Placement(60.0)
    for now, there in ((0.0, ("a", "b")), (10.0, ("a",)), (1000.0, ()), (2000.0, ("a", "b", "c"))):
        placement.take("T", route(*there), now)
        placement.withdraw("T", "b")
        assert placement.round("T") == (1, QUEUES)
        assert placement.away("T") == frozenset()
    placement.take("T", route("c", order=None), 3000.0)
    placement.take("T", route("c", order=None), 3060.0)
    assert {q.broker_name for q in placement.round("T").queues} == {"c"}
    placement.take("T", route("c", "d", order=None), 3061.0)
    placement.withdraw("T", "c")
    assert {q.broker_name for q in placement.round("T").queues} == {"d"}


async def nameserver(world: World, *, order_messages: bool = True) -> NameServer:
    node = world.node("nameserver")
    server = NameServer(node, node.ip, 9876, order_messages=order_messages)
    await server.start()
    return server


@pytest.mark.parametrize("order_messages", [True, False])
def test_routes_have_the_configuration_if_the_nameserver_was_told_so(order_messages: bool) -> None:
    async def body(world: World) -> None:
        server = await nameserver(world, order_messages=order_messages)
        broker = await world.broker(nameservers=(server.address,))
        told: list[object] = []

        def heard(_: Endpoint, command: Command) -> None:
            told.append(fastjson.loads(bytes(command.body)))

        client = await world.connect(server.address, heard)

        async def conf() -> str | None:
            answer = await client.ask(105, {"topic": "TBW102", "saturnWatch": "true"})
            return TopicRoute.from_json(fastjson.loads(bytes(answer.body))).order_topic_conf

        await world.until(lambda: "TBW102" in server.routes.topics())
        assert await conf() is None
        told.clear()
        entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TBW102", "value": "broker-a:3"}
        assert (await client.ask(100, entry)).code == 0
        await world.until(lambda: told == [["TBW102"]])
        assert await conf() == ("broker-a:3" if order_messages else None)
        assert (await client.ask(102, entry)).code == 0
        await world.until(lambda: told == [["TBW102"], ["TBW102"]])
        assert await conf() is None
        shown = bytes((await client.ask(319)).body).decode()
        assert f"orderMessageEnable={str(order_messages).lower()}\n" in shown
        await broker.close()

    run(body)


def test_keys_stay_with_a_broker_that_is_away_for_long() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        brokers = {
            name: await world.broker(
                new_disk(seed), broker_name=name, nameservers=(server.address,)
            )
            for seed, name in enumerate(("a", "b"))
        }
        async with Admin([server.address], runtime=world.node("admin")) as admin:
            await admin.create_topic("T", write_queues=2, read_queues=4, order=True)
            assert [s.order for s in (await admin.topic_settings("T")).values()] == [True, True]
        queues = [MessageQueue("T", name, n) for name in ("a", "b") for n in (0, 1)]
        keys = {queue_of(str(n), queues): str(n) for n in range(50)}
        producer = Producer(
            nameservers=[server.address], runtime=world.node("producer"), delivery_timeout=5.0
        )
        async with producer:
            for queue, key in keys.items():
                sent = await producer.send(Message("T", b"x"), sharding_key=key)
                assert sent.queue == queue
            await brokers.pop("b").close()
            await asyncio.sleep(100.0)
            for queue, key in keys.items():
                if queue.broker_name == "a":
                    sent = await producer.send(Message("T", b"y"), sharding_key=key)
                    assert sent.queue == queue
                else:
                    with pytest.raises(SaturnError):
                        await producer.send(Message("T", b"y"), sharding_key=key)
            assert (await producer.send(Message("T", b"z"))).queue.broker_name == "a"
        await brokers["a"].close()

    run(body)


def test_a_broker_marks_the_topics_that_a_nameserver_calls_ordered() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        broker = await world.broker(nameservers=(server.address,))
        client = await world.connect(broker.address)
        assert (await client.send(b"x")).code == 0
        for topic in ("T", "unknown"):
            server.kv.put("ORDER_TOPIC_CONFIG", topic, "broker-a:4")
        topics = broker.context.topics

        def is_ordered() -> bool:
            topic = topics.get("T")
            return topic is not None and topic.order

        assert not is_ordered()
        await world.until(is_ordered, 40.0)
        assert topics.get("unknown") is None
        version = topics.data_version["counter"]
        await asyncio.sleep(70.0)
        assert topics.data_version["counter"] == version, "it is marked once"
        server.kv.delete("ORDER_TOPIC_CONFIG", "T")
        await asyncio.sleep(70.0)
        assert is_ordered(), "as at a broker of RocketMQ"
        await broker.close()

    run(body)


def test_message_groups_go_where_the_configuration_says_at_every_gateway() -> None:
    async def body(world: World) -> None:
        server = await nameserver(world)
        conf = "broker-1:2;broker-0:1"
        server.kv.put("ORDER_TOPIC_CONFIG", "T", conf)
        nodes: list[tuple[Runtime, GatewayNode]] = [
            (world.nodes[0], NameserverNode(world.nodes[0], server))
        ]
        for number in range(2):
            broker = await world.broker(
                new_disk(number + 1), broker_name=f"broker-{number}", nameservers=(server.address,)
            )
            await create_topic(world, broker, "T", "FIFO")
            nodes.append((broker.context.runtime, broker))
        await world.until(lambda: len(server.routes.route("T").queues) == 2)
        placement = Placement(10)
        placement.take("T", route("broker-0", "broker-1", order=conf), 0)
        for number, (runtime, node) in enumerate(nodes):
            caller = Caller(world, Gateway(runtime, node, f"10.9.9.{number}:8081"), f"c{number}")
            for group in map(str, range(6)):
                sent = caller.message(group.encode(), message_type=2, message_group=group)
                assert (await caller.send(sent)).status.code == Code.OK
        found = set()
        for broker_name in ("broker-0", "broker-1"):
            received = await caller.receive(broker=broker_name, poll_ms=5000)
            for message in received.messages:
                system = message.system_properties
                found.add((system.message_group, broker_name, system.queue_id))
        queues = placement.round("T").queues
        places = {key: queue_of(key, queues) for key in map(str, range(6))}
        assert found == {(key, at.broker_name, at.queue_id) for key, at in places.items()}

    run(body)


FILE = "/kv/kvConfig.json"
ENTRY = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:1"}


async def kept(world: World, disk: SimDisk) -> NameServer:
    node = world.node("nameserver")
    server = NameServer(node, node.ip, 9876, kv_file=ConfigFile(disk, FILE))
    await server.start()
    return server


def test_a_nameserver_with_a_file_has_its_configuration_after_a_power_cut() -> None:
    async def body(world: World) -> None:
        disk = new_disk()
        disk.make_dirs("/kv")
        server = await kept(world, disk)
        client = await world.connect(server.address)
        other = {**ENTRY, "key": "U", "value": "ü:2"}
        answers = await asyncio.gather(client.ask(100, ENTRY), client.ask(100, other))
        assert [answer.code for answer in answers] == [0, 0]
        for seed in range(20):
            after = await kept(world, disk.crash_image(random.Random(seed)))
            assert after.kv.table("ORDER_TOPIC_CONFIG") == {"T": "a:1", "U": "ü:2"}
        for entry in (ENTRY, other):
            assert (await client.ask(102, entry)).code == 0
        after = await kept(world, disk.crash_image(random.Random(0)))
        assert after.kv.table("ORDER_TOPIC_CONFIG") == {}
        assert disk.read_file(FILE) == b'{"configTable":{"ORDER_TOPIC_CONFIG":{}}}'

    run(body)


def test_a_change_that_cannot_be_saved_is_told_and_saved_with_the_next_one() -> None:
    async def body(world: World) -> None:
        disk = new_disk()
        disk.make_dirs("/kv")
        server = await kept(world, disk)
        client = await world.connect(server.address)
        disk.plan("rename", errno.EIO, f"{FILE}*")
        refused = await client.ask(100, ENTRY)
        assert (refused.code, FILE in refused.remark, "until" in refused.remark) == (1, True, True)
        assert (await client.ask(100, {**ENTRY, "key": "U"})).code == 0
        after = await kept(world, disk.crash_image(random.Random(0)))
        assert after.kv.table("ORDER_TOPIC_CONFIG") == {"T": "a:1", "U": "a:1"}

    run(body)


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b'{"configTable":[]}',
        b'{"configTable":{"N":[]}}',
        b'{"configTable":{"N":{"k":1}}}',
        b'{"configTable":{"N":{"k":"' + b"x" * 70_000 + b'"}}}',
        b"no json",
    ],
)
def test_a_nameserver_does_not_start_with_a_file_of_another_shape(text: bytes) -> None:
    async def body(world: World) -> None:
        disk = new_disk()
        disk.make_dirs("/kv")
        disk.write_file(FILE, text)
        with pytest.raises(StoreDamaged, match=FILE):
            await kept(world, disk)

    run(body)

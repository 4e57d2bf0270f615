"""Patterns of topics: which topics every kind of consumer reads while topics come and go."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.sql92 import Sql
from saturnmq.runtime.errors import ConnectFailed, InvalidParameter, SubscriptionParseFailed
from world_rig import Remote, World, new_disk, run

ORDERS = re.compile("orders-.*")
LOOKS_S = 45.0  # two looks for topics
KINDS = ("push", "pull", "simple")


class Cluster:
    """A nameserver and a broker in which no topic counts as one in memory."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def start(self) -> None:
        self.nameserver = await self.world.nameserver()
        self.disk = new_disk()
        await self.start_broker()

    async def start_broker(self) -> None:
        self.broker: Broker = await self.world.broker(
            self.disk, nameservers=(self.nameserver,), store_options={"access_in_memory_ratio": 0}
        )
        await self.connect()

    async def connect(self) -> None:
        self.remote: Remote = await self.world.connect(self.broker.address)

    async def send(self, *places: str, **names: str) -> None:
        """A message to each topic, which a first one makes; its body is the topic's name."""
        for topic in places:
            assert (await self.remote.send(topic.encode(), topic=topic, **names)).code == 0
        await self.broker.replication.registrar.ask_all(5.0)

    async def delete(self, topic: str) -> None:
        async with Admin(self.nameserver, runtime=self.world.node("admin")) as admin:
            await admin.delete_topic(topic)


class Reader:
    """A consumer of one kind; `got` has the topics that its messages came from."""

    def __init__(self, cluster: Cluster, kind: str, **options: Any) -> None:
        self.got: list[str] = []
        self.kind = kind
        node = cluster.world.node(kind)
        options = {"nameservers": cluster.nameserver, "runtime": node, **options}
        if kind == "push":
            self.consumer: Any = PushConsumer("G", listener_one=self._take, **options)
        elif kind == "pull":
            self.consumer = PullConsumer("G", **options)
        else:
            self.consumer = SimpleConsumer("G", **options)

    async def _take(self, message: ReceivedMessage) -> None:
        self.got.append(message.topic)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with self.consumer:
            task = None if self.kind == "push" else asyncio.create_task(self._poll())
            yield
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            if self.kind == "pull":
                messages = await self.consumer.poll(1.0)
            else:
                messages = []
                try:
                    messages = await self.consumer.receive(wait_s=1.0)
                    await self.consumer.ack(messages)
                except ConnectFailed:  # no broker could be asked
                    await asyncio.sleep(1.0)
            for message in messages:
                await self._take(message)

    def topics(self) -> dict[str, str]:
        """Topics and expressions, as the brokers are told."""
        data = self.consumer.heartbeat_data()["subscriptionDataSet"]
        told = {each["topic"]: each["subString"] for each in data}
        return {topic: text for topic, text in told.items() if not topic.startswith("%RETRY%")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_follows_topics_as_they_come_and_go(kind: str) -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("orders-eu", "orders", "xorders-eu", "rmq_sys_orders-a", "%DLQ%orders-a")
        reader = Reader(cluster, kind)
        reader.consumer.subscribe(ORDERS, "*")
        async with reader.reading():
            await asyncio.sleep(5.0)
            assert reader.got == []  # it begins at the end
            await cluster.send("orders-eu", "orders")
            await world.until(lambda: reader.got, LOOKS_S)
            await cluster.send("orders-us")  # newer than the consumer: from its first message on
            await world.until(lambda: len(reader.got) == 2, LOOKS_S)
            assert reader.got == ["orders-eu", "orders-us"]
            assert reader.topics() == {"orders-eu": "*", "orders-us": "*"}
            await cluster.delete("orders-eu")
            await world.until(lambda: "orders-eu" not in reader.topics(), 3 * LOOKS_S)
            await cluster.send("orders-us")
            await world.until(lambda: len(reader.got) == 3, LOOKS_S)
            await cluster.send("orders-eu")  # a new topic of that name
            await world.until(lambda: len(reader.got) == 4, 2 * LOOKS_S)
            assert reader.got[2:] == ["orders-us", "orders-eu"]
        await cluster.broker.close()

    run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_keeps_its_topics_while_no_broker_is_there(kind: str) -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("orders-eu", "orders-eu")
        await cluster.broker.close()
        reader = Reader(cluster, kind)
        reader.consumer.subscribe(ORDERS)
        async with reader.reading():
            await asyncio.sleep(LOOKS_S)
            assert reader.topics() == {}
            await cluster.start_broker()
            await world.until(lambda: reader.topics() == {"orders-eu": "*"}, LOOKS_S)
            await asyncio.sleep(LOOKS_S)
            assert reader.got == [], "it is older than the consumer, which begins at the end"
            await cluster.connect()
            await cluster.send("orders-eu")
            await world.until(lambda: reader.got, LOOKS_S)
            await cluster.broker.close()
            await asyncio.sleep(3 * LOOKS_S)
            assert reader.topics() == {"orders-eu": "*"}
            await cluster.start_broker()
            await cluster.send("orders-eu")
            await world.until(lambda: len(reader.got) == 2, LOOKS_S)
        await cluster.broker.close()

    run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_may_be_added_and_removed_while_it_runs(kind: str) -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("orders-eu", "sales-eu", "named")
        reader = Reader(cluster, kind)
        reader.consumer.subscribe("named")
        async with reader.reading():
            await asyncio.sleep(5.0)
            reader.consumer.subscribe(ORDERS, "a || b")
            await world.until(lambda: "orders-eu" in reader.topics(), 5.0)
            assert reader.topics() == {"named": "*", "orders-eu": "a || b"}
            reader.consumer.subscribe(ORDERS)  # another expression, for its topics as well
            await world.until(lambda: reader.topics()["orders-eu"] == "*", 5.0)
            reader.consumer.subscribe(re.compile(".*-eu"), "c")  # the first pattern goes before
            await world.until(lambda: "sales-eu" in reader.topics(), 5.0)
            assert reader.topics() == {"named": "*", "orders-eu": "*", "sales-eu": "c"}
            reader.consumer.unsubscribe(ORDERS)
            await world.until(lambda: reader.topics().get("orders-eu") == "c", LOOKS_S)
            reader.consumer.unsubscribe(re.compile(".*-eu"))
            assert reader.topics() == {"named": "*"}
            await asyncio.sleep(5.0)
            await cluster.send("orders-eu", "sales-eu", "named")
            await world.until(lambda: reader.got, 30.0)
            await asyncio.sleep(LOOKS_S)
            assert reader.got == ["named"]
        await cluster.broker.close()

    run(body)


def test_a_topic_that_is_named_too_keeps_its_expression_until_it_is_left() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("orders-eu")
        reader = Reader(cluster, "pull")
        reader.consumer.subscribe(ORDERS, "a")
        reader.consumer.subscribe("orders-eu", "b")
        async with reader.reading():
            assert reader.topics() == {"orders-eu": "b"}
            await asyncio.sleep(LOOKS_S)
            assert reader.topics() == {"orders-eu": "b"}
            reader.consumer.unsubscribe("orders-eu")
            assert reader.topics() == {"orders-eu": "a"}
            await asyncio.sleep(LOOKS_S)
            assert reader.topics() == {"orders-eu": "a"}
        await cluster.broker.close()

    run(body)


def test_the_topics_of_a_pattern_stay_while_a_nameserver_that_has_just_started_knows_none() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("orders-eu")
        reader = Reader(cluster, "pull")
        reader.consumer.subscribe(ORDERS)
        async with reader.reading():
            assert reader.topics() == {"orders-eu": "*"}
            core = reader.consumer.core
            lists = [[], ["orders-eu"], [], ["orders-eu"], [], []]
            asked = core.ask_nameserver

            async def forgetful(command: Any, *args: Any, **more: Any) -> Any:
                if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER and lists:
                    said = json.dumps({"topicList": lists.pop(0)}).encode()
                    return args[0](command.reply(body=said))
                return await asked(command, *args, **more)

            core.ask_nameserver = forgetful
            while len(lists) > 1:
                assert reader.topics() == {"orders-eu": "*"}
                await asyncio.sleep(1.0)
            assert reader.topics() == {"orders-eu": "*"}
            await world.until(lambda: reader.topics() == {}, LOOKS_S)  # twice in a row
            await world.until(lambda: reader.topics() == {"orders-eu": "*"}, LOOKS_S)
        await cluster.broker.close()

    run(body)


def test_a_pattern_is_of_the_names_in_the_namespace() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("space%orders-eu", "orders-us", "other%orders-eu")
        reader = Reader(cluster, "pull", namespace="space", from_beginning=True)
        reader.consumer.subscribe(ORDERS)
        async with reader.reading():
            await world.until(lambda: reader.got, 30.0)
            assert reader.got == ["orders-eu"]
            assert reader.topics() == {"space%orders-eu": "*"}
        await cluster.broker.close()

    run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_that_nothing_matches_yet_waits_for_its_first_topic(kind: str) -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        reader = Reader(cluster, kind)
        reader.consumer.subscribe(re.compile("ORDERS-.*", re.IGNORECASE))
        async with reader.reading():
            await asyncio.sleep(5.0)
            await cluster.send("orders-eu")
            await world.until(lambda: reader.got == ["orders-eu"], LOOKS_S)
        await cluster.broker.close()

    run(body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_that_makes_no_sense_is_refused(kind: str) -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        reader = Reader(cluster, kind)
        subscribe = reader.consumer.subscribe
        with pytest.raises(SubscriptionParseFailed, match="names no tag"):
            subscribe(ORDERS, "||")
        with pytest.raises(InvalidParameter, match="of text"):
            subscribe(re.compile(b"orders"))
        subscribe(ORDERS, Sql("a > 3"))
        await cluster.broker.close()

    run(body)

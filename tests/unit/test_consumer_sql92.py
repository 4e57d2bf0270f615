"""Consumers with conditions: real ones, a real broker and nameserver on loopback ports."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, started, until
from saturnmq.aio import Message, Producer, PullConsumer, PushConsumer, Sql
from saturnmq.client.consumer.filter_check import find_brokers
from saturnmq.client.consumer.starting import Baseline
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Expression, Subscription
from saturnmq.runtime.errors import (
    ConnectionLost,
    FilterNotSupported,
    SubscriptionParseFailed,
    TopicNotExist,
    error_for,
)
from saturnmq.runtime.native import NativeRuntime

CONDITION = Sql("price > 3 AND TAGS IN ('A', 'C')")
WANTED = [n for n in range(4, 100) if n % 4 in (0, 2)]


@asynccontextmanager
async def cluster(runtime: NativeRuntime, root: Path, **changes):
    """A nameserver's address and a broker with 100 messages: price n, tag by n % 4."""
    nameserver = NameServer(runtime, port=0)
    await nameserver.start()
    names = {"nameservers": (nameserver.address,), "register_ms": 100}
    broker = await started(runtime, config(root, **names, **changes))
    async with Producer(nameservers=nameserver.address) as producer:
        for n in range(100):
            message = Message("orders", b"%d" % n, tag="ABCD"[n % 4])
            message.properties["price"] = str(n)
            await producer.send(message)
    yield nameserver.address, broker
    await broker.close()
    await nameserver.close()


def test_consumers_get_what_matches(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with cluster(runtime, tmp_path) as (names, broker):
            pulled: list[int] = []
            consumer = PullConsumer("pulling", names, from_beginning=True)
            consumer.subscribe("orders", CONDITION)
            async with consumer:
                while len(pulled) < len(WANTED):
                    pulled += [int(m.body) for m in await consumer.poll(10.0)]
                assert sorted(pulled) == WANTED
                assert await consumer.poll(0.2) == []

            pushed: list[int] = []
            pushing = PushConsumer(
                "pushing", names, from_beginning=True, listener=lambda found: note(pushed, found)
            )
            pushing.subscribe("orders", CONDITION)
            async with pushing:
                await until(lambda: len(pushed) >= len(WANTED))
                assert sorted(pushed) == WANTED
                document = broker.context.clients.subscription_document("pushing", "orders")
                assert document is not None
                assert document["expressionType"] == "SQL92"
                assert document["subString"] == CONDITION.expression
                pushing.subscribe("orders", Sql("price > 1000"))  # while it runs
                newest = pushing.subscriptions["orders"].sub_version
                await until(
                    lambda: (
                        broker.context.clients.subscription("pushing", "orders").sub_version
                        == newest
                    )
                )

    run(body)


def note(pushed: list[int], found) -> None:
    pushed += [int(message.body) for message in found]


def test_a_broker_that_looks_at_no_conditions_ends_the_start(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with cluster(runtime, tmp_path, enable_property_filter=False) as (names, broker):
            pulling = PullConsumer("pulling", names)
            pulling.subscribe("orders", CONDITION)
            pushing = PushConsumer("pushing", names, listener=print)
            pushing.subscribe("orders", CONDITION)
            for consumer in (pulling, pushing):
                with pytest.raises(FilterNotSupported, match="by SQL92") as caught:
                    await consumer.start()
                assert broker.address in str(caught.value)
                assert not caught.value.retriable
            assert broker.context.clients.consumers == {}
            # A broker that is asked about a group's tags is content.
            client = await connected(runtime, broker)
            data = {"subscriptionData": {"topic": "orders", "subString": "A"}}
            code = RequestCode.CHECK_CLIENT_CONFIG
            assert (await ask(client, code, {}, json.dumps(data).encode())).code == 0

    run(body)


def test_a_broker_that_does_not_know_the_question_knows_no_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with cluster(runtime, tmp_path) as (names, _):
            request = Command.request

            def older(code, *rest):
                return request(399_999 if code == RequestCode.CHECK_CLIENT_CONFIG else code, *rest)

            monkeypatch.setattr(Command, "request", older)
            consumer = PullConsumer("pulling", names)
            consumer.subscribe("orders", CONDITION)
            with pytest.raises(FilterNotSupported, match="knows no conditions"):
                await consumer.start()

    run(body)


class Core:
    """Brokers a, which is away, b, of which a slave is left, and c."""

    client_id = "me"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def route(self, topic: str) -> None:
        if topic == "nowhere":
            raise TopicNotExist("no such topic")

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        return [] if topic == "nowhere" else [MessageQueue(topic, name, 0) for name in "cab"]

    def broker_address(self, name: str, *, master: bool = True) -> str | None:
        return {"a": None, "b": None if master else "b:2", "c": "c:1"}[name]

    async def invoke(self, address: str, request: Command) -> None:
        document = fastjson.loads(bytes(request.body))
        assert (document["clientId"], document["group"]) == ("me", "G")
        self.asked.append((address, document["subscriptionData"]["topic"]))
        raise ConnectionLost("it does not answer")


def test_all_brokers_that_can_be_reached_are_asked_about_each_condition() -> None:
    expressions: dict[str, Expression] = {"T": "A", "U": CONDITION, "nowhere": "B", "V": CONDITION}
    subscriptions = {
        topic: Subscription.parse(topic, expression, 1) for topic, expression in expressions.items()
    }
    core: Any = Core()
    baseline = Baseline()
    asyncio.run(find_brokers(core, "G", subscriptions, baseline))
    assert core.asked == [("b:2", "U"), ("c:1", "U"), ("b:2", "V"), ("c:1", "V")]
    assert not baseline.is_older(MessageQueue("nowhere", "a", 0))


def test_a_wrong_condition_is_told_where_it_is_written() -> None:
    with pytest.raises(SubscriptionParseFailed, match="character 9"):
        Sql("price > 'x'")
    told = error_for(1, "The broker does not support consumer to filter message by SQL92")
    assert isinstance(told, FilterNotSupported)

"""SimpleConsumer against real brokers in virtual time, and what it refuses of an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from frame_rig import plain_frame
from saturnmq.broker.broker import Broker
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.popped import messages_in
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.sql92 import Sql
from saturnmq.runtime.errors import (
    ClientClosed,
    ConfigError,
    InvalidParameter,
    MalformedFrame,
    NoMessage,
    SubscriptionParseFailed,
    TopicNotExist,
)
from world_rig import Remote, World, new_disk, run


class Cluster:
    """A nameserver, brokers, and consumers of one topic."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.brokers: list[Broker] = []
        self.remotes: list[Remote] = []

    async def start(self, brokers: int = 1) -> None:
        self.nameserver = await self.world.nameserver()
        for number in range(brokers):
            broker = await self.world.broker(
                new_disk(number + 1),
                nameservers=(self.nameserver,),
                broker_name=f"broker-{'ab'[number]}",
            )
            self.brokers.append(broker)
            self.remotes.append(await self.world.connect(broker.address))
            await self.send("first", broker=number)
            await broker.replication.registrar.ask_all(5.0)

    async def send(self, *bodies: str, broker: int = 0, queue: int = 0, **names: str) -> None:
        for body in bodies:
            reply = await self.remotes[broker].send(body.encode(), queue=queue, **names)
            assert reply.code == 0, reply.remark

    async def consumer(self, expression: Any = "*", **options: Any) -> SimpleConsumer:
        node = self.world.node(f"consumer-{len(self.world.nodes)}")
        consumer = SimpleConsumer(
            "G", self.nameserver, runtime=node, from_beginning=True, **options
        )
        consumer.subscribe("T", expression)
        await consumer.start()
        return consumer


def texts(messages: list[ReceivedMessage]) -> list[str]:
    return [bytes(message.body).decode() for message in messages]


def test_received_messages_are_acknowledged_or_come_again() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("second")
        one, two = await cluster.consumer(), await cluster.consumer()
        first, second = await one.receive(invisible_s=5)
        assert texts([first, second]) == ["first", "second"]
        assert await two.receive(wait_s=1) == []
        await one.ack(first)
        with pytest.raises(NoMessage, match="acknowledged"):
            await one.ack(first)
        begun = world.loop.time()
        (again,) = await two.receive(wait_s=10)
        assert again.body == b"second"
        assert again.reconsume_times == 1
        assert world.loop.time() - begun > 3
        with pytest.raises(NoMessage):
            await one.ack(second)
        await two.ack([again])
        assert await one.receive(wait_s=6) == []
        await one.close()
        await two.close()

    run(body)


def test_a_consumer_acknowledges_what_another_one_received() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("second")
        receiver = await cluster.consumer()
        first, second = await receiver.receive(invisible_s=10.0)
        for act in ("ack", "ack_both", "change"):
            node = world.node(f"other-{act}")
            async with SimpleConsumer("G", cluster.nameserver, runtime=node) as other:
                if act == "change":
                    await other.change_invisible_duration(second, 0.0)
                elif act == "ack":
                    await other.ack(first)
                else:
                    with pytest.raises(NoMessage):  # the first is acknowledged already
                        await other.ack([first, first])
        assert texts(await receiver.receive()) == ["second"]
        await receiver.close()

    run(body)


def test_a_receive_waits_for_a_message_of_any_broker() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start(2)
        consumer = await cluster.consumer()
        found = await consumer.receive() + await consumer.receive()
        assert texts(found) == ["first", "first"]
        assert {message.broker_name for message in found} == {"broker-a", "broker-b"}
        await consumer.ack(found)
        for broker in (1, 0, 1):
            waiting = asyncio.ensure_future(consumer.receive(wait_s=30))
            await asyncio.sleep(2)
            assert not waiting.done()
            begun = world.loop.time()
            await cluster.send("late", broker=broker)
            messages = await waiting
            assert texts(messages) == ["late"]
            assert world.loop.time() - begun < 0.2
            await consumer.ack(messages)
        begun = world.loop.time()
        assert await consumer.receive(wait_s=3) == []
        assert 3 <= world.loop.time() - begun < 4.5
        await consumer.close()

    run(body)


def test_many_acknowledgements_go_in_one_request_and_a_late_one_is_told() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("b", "c", "d")
        consumer = await cluster.consumer()
        found = await consumer.receive(invisible_s=3)
        await consumer.ack(found[:2])
        with pytest.raises(NoMessage, match="1 of 2 handles"):
            await consumer.ack(found[1:3])
        assert texts(await consumer.receive(wait_s=5)) == ["d"]
        await consumer.close()

    run(body)


def test_two_ordered_receives_at_once_do_not_get_the_same_messages() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        consumer = await cluster.consumer(ordered=True)
        await consumer.ack(await consumer.receive())
        waiting = [
            asyncio.create_task(consumer.receive(wait_s=10, invisible_s=60)) for _ in range(2)
        ]
        await asyncio.sleep(1)
        await cluster.send("m1", "m2")
        found = [text for each in waiting for text in texts(await each)]
        assert len(found) == len(set(found)), "one message for two receivers"
        assert found[0] == "m1"
        await consumer.close()

    run(body)


def test_an_ordered_receive_that_was_cancelled_is_repeated_by_the_next() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        consumer = await cluster.consumer(ordered=True)
        await consumer.ack(await consumer.receive())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive(wait_s=10, invisible_s=60), 1)
        await cluster.send("m1", "m2")  # the first goes out in the answer that nobody waits for
        await asyncio.sleep(1)
        assert texts(await consumer.receive(wait_s=2))[0] == "m1"
        await consumer.close()

    run(body)


def test_the_invisible_time_can_be_changed_more_than_once() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        consumer = await cluster.consumer()
        (message,) = await consumer.receive(invisible_s=5)
        for _ in range(3):
            await asyncio.sleep(4)
            await consumer.change_invisible_duration(message, 5)
        await consumer.change_invisible_duration(message, 0)
        (again,) = await consumer.receive(wait_s=1)
        assert again.reconsume_times == 1
        await consumer.ack(again)
        await consumer.close()

    run(body)


def test_tags_conditions_and_order() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("a1", "a2", TAGS="a", n="1")
        await cluster.send("b9", TAGS="b", n="9")
        tagged = await cluster.consumer("b")
        assert texts(await tagged.receive()) == ["b9"]
        await tagged.close()
        node = world.node("other")
        chosen = SimpleConsumer("H", cluster.nameserver, runtime=node, from_beginning=True)
        chosen.subscribe("T", Sql("n < 5"))
        async with chosen:
            assert texts(await chosen.receive()) == ["a1", "a2"]
        node = world.node("third")
        ordered = SimpleConsumer(
            "I", cluster.nameserver, runtime=node, from_beginning=True, ordered=True
        )
        ordered.subscribe("T")
        async with ordered:
            found = await ordered.receive(2, invisible_s=5)
            assert texts(found) == ["first", "a1"]
            assert await ordered.receive(2, wait_s=1) == []
            await ordered.ack(found[1])
            assert texts(await ordered.receive(2, wait_s=9)) == ["first", "a2"]

    run(body)


def test_topics_come_and_go_while_it_runs() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("u1", topic="U", TAGS="a")
        await cluster.send("u2", topic="U", TAGS="b")
        await cluster.brokers[0].replication.registrar.ask_all(5.0)
        consumer = await cluster.consumer()
        (first,) = await consumer.receive()
        consumer.subscribe("U", "b")
        others = [*await consumer.receive(wait_s=1), *await consumer.receive(wait_s=1)]
        assert texts(others) == ["u2"]
        entry = consumer.heartbeat_data()
        assert {each["topic"] for each in entry["subscriptionDataSet"]} == {"T", "U"}
        consumer.unsubscribe("T")
        await cluster.send("second")
        assert await consumer.receive(wait_s=1) == []
        await consumer.ack([first, *others])  # also of the topic that it has left
        consumer.subscribe("T")
        assert texts(await consumer.receive()) == ["second"]
        await consumer.close()

    run(body)


@pytest.mark.parametrize("left", ["T", "U"])
def test_a_topic_may_be_left_while_a_receive_asks_for_its_messages(left: str) -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("u1", topic="U")
        await cluster.brokers[0].replication.registrar.ask_all(5.0)
        consumer = await cluster.consumer()
        consumer.subscribe("U")
        await consumer.ack([*await consumer.receive(wait_s=0), *await consumer.receive(wait_s=0)])
        waiting = asyncio.create_task(consumer.receive(wait_s=3))
        await asyncio.sleep(0.0001)  # it asks for those of the first topic
        consumer.unsubscribe(left)
        assert await waiting == []
        await consumer.close()

    run(body)


async def dead_letters(cluster: Cluster) -> list[str]:
    async with Admin(cluster.nameserver, runtime=cluster.world.node("admin")) as admin:
        return texts(await admin.dead_letters("G"))


def test_a_message_that_is_given_up_is_a_dead_letter_at_once_and_does_not_block_its_queue() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        await cluster.send("poison", "third")
        consumer = await cluster.consumer(ordered=True)
        first, poison = await consumer.receive(2, invisible_s=60)
        assert texts([first, poison]) == ["first", "poison"]
        await consumer.ack(first)
        assert await consumer.receive(2, wait_s=1) == []
        await consumer.dead_letter(poison)
        assert texts(await consumer.receive(2, wait_s=1)) == ["third"]
        with pytest.raises(NoMessage):
            await consumer.ack(poison)
        await cluster.brokers[0].replication.registrar.ask_all(5.0)
        assert await dead_letters(cluster) == ["poison"]
        await consumer.close()

    run(body)


def test_messages_of_several_brokers_are_given_up_together_also_by_another_member() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start(brokers=2)
        consumer = await cluster.consumer()
        found = [*await consumer.receive(), *await consumer.receive()]
        assert len(found) == 2
        node = world.node("other")
        async with SimpleConsumer("G", cluster.nameserver, runtime=node) as other:
            await other.dead_letter(found)
        assert await consumer.receive(wait_s=40) == []  # longer than they were invisible
        for broker in cluster.brokers:
            await broker.replication.registrar.ask_all(5.0)
        assert await dead_letters(cluster) == ["first", "first"]
        await consumer.close()

    run(body)


def test_a_message_whose_time_is_over_is_a_dead_letter_and_the_caller_is_told() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        consumer = await cluster.consumer()
        (late,) = await consumer.receive(invisible_s=1)
        await asyncio.sleep(3)
        (again,) = await consumer.receive()
        with pytest.raises(NoMessage):
            await consumer.dead_letter(late)
        await consumer.ack(again)
        await cluster.brokers[0].replication.registrar.ask_all(5.0)
        assert await dead_letters(cluster) == ["first"]
        await consumer.close()

    run(body)


def test_wrong_uses_are_refused() -> None:
    async def body(world: World) -> None:
        cluster = Cluster(world)
        await cluster.start()
        consumer = await cluster.consumer()
        for bad in ({"max_messages": 0}, {"max_messages": 33}, {"invisible_s": -1}):
            with pytest.raises(InvalidParameter):
                await consumer.receive(**bad)
        with pytest.raises(ConfigError, match="consume_from 'middle'"):
            SimpleConsumer("G", cluster.nameserver, runtime=world.node("x"), consume_from="middle")
        with pytest.raises(SubscriptionParseFailed):
            consumer.subscribe("U", "||")
        async with SimpleConsumer("G", cluster.nameserver, runtime=world.node("y")) as idle:
            with pytest.raises(ConfigError, match="subscribes to a topic before it receives"):
                await idle.receive()
        (message,) = await consumer.receive()
        message.properties.pop("POP_CK")
        for act in (consumer.ack, consumer.dead_letter):
            with pytest.raises(InvalidParameter, match="has no handle"):
                await act(message)
        await consumer.close()
        with pytest.raises(ClientClosed):
            await consumer.receive()
        node = world.node("lost")
        lost = SimpleConsumer("G", cluster.nameserver, runtime=node)
        lost.subscribe("nowhere")
        async with lost:
            with pytest.raises(TopicNotExist):
                await lost.receive()

    run(body)


GOOD = {
    "popTime": "7",
    "invisibleTime": "9",
    "reviveQid": "0",
    "restNum": "0",
    "startOffsetInfo": "0 0 4",
    "msgOffsetInfo": "0 0 4",
}


@pytest.mark.parametrize(
    "changes",
    [
        {"popTime": "x"},
        {"popTime": "-1"},
        {"reviveQid": ""},
        {"startOffsetInfo": ""},
        {"startOffsetInfo": "0 0"},
        {"startOffsetInfo": "0 1 4"},
        {"msgOffsetInfo": "0 0 5"},
        {"msgOffsetInfo": "0 0 4,5"},
        {"msgOffsetInfo": "3 0 4"},
        {"msgOffsetInfo": "0 0 4;0 1 4"},
        {"msgOffsetInfo": "0 0 99999999999999999999"},
        {"msgOffsetInfo": ";" * 5000},
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(changes: dict[str, str]) -> None:
    frame = plain_frame(topic=b"T", queue_id=0, queue_offset=4)

    def read(ext: dict[str, str]) -> list[ReceivedMessage]:
        answer = Command.request(0, ext, frame)
        return messages_in(answer, "T", "G", "broker-a", verify_crc=True)

    (message,) = read(GOOD)
    assert message.properties["POP_CK"] == "4 7 9 0 0 broker-a 0 4"
    with pytest.raises(MalformedFrame):
        read({**GOOD, **changes})


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("3 7 9 0 1 broker-a 0 4", 1),
        ("3 7 9 0 2 broker-a 0 4", 2),
        ("3 6 9 0 1 broker-a 0 4", 0),  # of another pop
        ("3 7 9 0 1 broker-b 0 4", 0),  # of another broker
        ("3 7 9 0 1 broker-a 0 5", 0),  # of another message
        ("3 7 9 0 1", 0),
    ],
)
def test_a_retry_that_a_broker_of_rocketmqs_wrote_its_handle_into_has_the_kind_of_that(
    written: str, kind: int
) -> None:
    """RocketMQ's broker gives it the name of the topic that was asked for; a producer may have left
    a handle as well, which says nothing."""
    frame = plain_frame(
        topic=b"T", queue_id=0, queue_offset=4, properties=encode_properties({"POP_CK": written})
    )
    ext = {**GOOD, "startOffsetInfo": f"{kind} 0 3", "msgOffsetInfo": f"{kind} 0 4"}
    (message,) = messages_in(Command.request(0, ext, frame), "T", "G", "broker-a", verify_crc=True)
    assert message.topic == "T"
    assert message.properties["POP_CK"] == f"3 7 9 0 {kind} broker-a 0 4"

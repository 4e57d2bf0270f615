"""Namespaces: names as brokers see them and as applications do, in every client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from saturnmq import (
    Admin,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
    aio,
    deliver_after,
)
from saturnmq.protocol.namespaces import NO_NAMESPACE, Namespace, namespace_of
from saturnmq.protocol.topics import TRACE_TOPIC
from saturnmq.protocol.trace import TraceKind
from saturnmq.runtime.errors import InvalidParameter
from served_rig import served
from traces_rig import traces_of

WAIT_S = 30.0


@pytest.mark.parametrize(
    ("plain", "wrapped"),
    [
        ("T", "space%T"),
        ("%RETRY%G", "%RETRY%space%G"),
        ("%DLQ%G", "%DLQ%space%G"),
        ("other%T", "space%other%T"),
        ("spaceT", "space%spaceT"),
    ],
)
def test_a_name_is_wrapped_once_and_unwrapped_again(plain: str, wrapped: str) -> None:
    # NamespaceUtilTest of RocketMQ 5.4 has the same rules.
    space = Namespace("space")
    assert space.wrap(plain) == space.wrap(wrapped) == wrapped
    assert space.plain(wrapped) == space.plain(plain) == plain
    queue = MessageQueue(plain, "b", 3)
    assert space.wrap_queue(queue) == MessageQueue(wrapped, "b", 3)
    assert space.plain_queue(space.wrap_queue(queue)) == queue
    assert NO_NAMESPACE.wrap(plain) == NO_NAMESPACE.plain(plain) == plain


@pytest.mark.parametrize("name", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_x", "TOOLS_CONSUMER"])
def test_names_of_the_system_are_never_wrapped(name: str) -> None:
    assert Namespace("space").wrap(name) == name


@pytest.mark.parametrize("name", ["a%b", "a b", "ä", "x" * 101])
def test_a_namespace_with_another_character_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameter, match="namespace"):
        Producer("g", namespace=name)
    with pytest.raises(InvalidParameter, match="namespace"):
        namespace_of(name)


def test_all_synchronous_clients_work_in_a_namespace(tmp_path: Path) -> None:
    seen: list[ReceivedMessage] = []
    enough = threading.Event()

    def listener(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message)
        if message.reconsume_times:
            enough.set()
        return ConsumeResult.SUCCESS if message.reconsume_times else ConsumeResult.RETRY

    with served(tmp_path) as address:
        space: dict[str, Any] = {"namespace": "space"}
        push = PushConsumer("pushed", address, listener_one=listener, max_reconsume=3, **space)
        push.subscribe("t")
        assert push.group == "pushed"
        with Producer("senders", address, **space) as producer, Admin(address) as admin:
            message = Message("t", b"0")
            result = producer.send(message)
            assert (result.queue.topic, message.topic, message.properties) == ("t", "t", {})
            [queue] = {producer.send(Message("t", b"k"), sharding_key="k").queue for _ in range(3)}
            assert queue in producer.queues("t")

            def first(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
                assert {each.topic for each in queues} == {"t"}
                return queues[0]

            chosen = producer.send(Message("t", b"s"), selector=first).queue
            assert producer.send(Message("t", b"q"), queue=chosen).queue == chosen
            batch = producer.send_batch([Message("t", b"b")] * 2, queue=chosen)
            assert {each.queue for each in batch} == {chosen}
            handles = producer.send_batch_async([Message("t", b"a")] * 2)
            assert {each.result().queue.topic for each in handles} == {"t"}
            producer.send_oneway(Message("t", b"o"))
            late = producer.send(deliver_after(Message("t", b"late"), 3600))
            producer.recall(late)
            assert "space%t" in admin.list_topics()
            assert "t" not in admin.list_topics()
            with push:
                assert enough.wait(WAIT_S)
            assert {each.topic for each in seen} == {"t"}
            assert "space%pushed" in admin.list_groups()

            with PullConsumer("pulled", address, from_beginning=True, **space) as pull:
                pull.assign(producer.queues("t"))
                assert {each.topic for each in pull.assignment()} == {"t"}
                pull.pause([chosen])
                assert pull.paused() == [chosen]
                pull.resume([chosen])
                pull.seek(chosen, 1)
                got: list[ReceivedMessage] = []
                while not any(each.queue == chosen for each in got):
                    got += pull.poll(1.0)
                mine = [each for each in got if each.queue == chosen]
                assert mine[0].queue_offset == 1
                position = pull.position(chosen)
                assert position is not None
                pull.commit({chosen: position})
                assert pull.committed(chosen) == position
                assert pull.lag(chosen) == 0
            committed = {each.queue: each.committed for each in admin.group_lag("space%pulled")}
            assert committed[MessageQueue("space%t", *chosen[1:])] == position

            simple = SimpleConsumer("popped", address, from_beginning=True, **space)
            simple.subscribe("t")
            with simple:
                popped = simple.receive()
                assert {each.topic for each in popped} == {"t"}
                simple.change_invisible_duration(popped[0], 60)
                simple.ack(popped)


def test_a_transaction_in_a_namespace_is_committed_asked_for_and_traced(tmp_path: Path) -> None:
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        return TransactionState.COMMIT

    settings = {"transaction_timeout_ms": 0, "transaction_check_ms": 50}
    with served(tmp_path, **settings) as address:
        made = TransactionProducer(
            "payers", address, check=check, namespace="space", trace=True, topics=["t"]
        )
        with made as producer:
            assert producer.group == "payers"
            with producer.transaction(Message("t", b"1")) as first:
                assert first.result.queue.topic == "t"
            second = producer.send_in_transaction(
                Message("t", b"2"), lambda message, _: TransactionState.UNKNOWN
            )
            consumer = PullConsumer("g", address, from_beginning=True, namespace="space")
            consumer.subscribe("t")
            with consumer:
                got: set[bytes] = set()
                while got != {b"1", b"2"}:
                    got |= {message.body for message in consumer.poll(1.0)}
        assert {message.topic for message in asked} == {"t"}
        with Admin(address) as admin:
            records = traces_of(
                admin,
                second.transaction_id,
                lambda found: len({each.kind for each in found}) == 2,
                TRACE_TOPIC,
            )
        assert {(record.topic, record.group) for record in records} == {("t", "payers")}
        assert {record.kind for record in records} == {TraceKind.PUB, TraceKind.END_TRANSACTION}


def test_the_asynchronous_clients_do_the_same(tmp_path: Path) -> None:
    async def main(address: str) -> None:
        seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

        async def listener(message: ReceivedMessage) -> None:
            await seen.put(message)

        consumer = aio.PushConsumer(
            "g", address, listener_one=listener, ordered=True, namespace="space"
        )
        consumer.subscribe("t", "tag")
        async with aio.Producer("p", address, namespace="space") as producer, consumer:
            sent = await producer.send(Message("t", b"x", tag="tag"))
            assert sent.queue.topic == "t"
            assert sent.queue in await producer.queues("t")
            async with asyncio.timeout(WAIT_S):
                message = await seen.get()
            assert (message.topic, message.queue) == ("t", sent.queue)
            assert message.properties["INSTANCE_ID"] == "space"

    with served(tmp_path) as address:
        asyncio.run(main(address))


def test_a_request_in_a_namespace_gets_its_reply(tmp_path: Path) -> None:
    with served(tmp_path) as address, Producer("p", address, namespace="space") as producer:

        def answer(message: ReceivedMessage) -> None:
            producer.reply(message, message.body + b"!")

        producer.send(Message("sums", b"make the topic"))
        consumer = PushConsumer("g", address, listener_one=answer, namespace="space")
        consumer.subscribe("sums", "ask")
        with consumer:
            reply = producer.request(Message("sums", b"x", tag="ask"), timeout=WAIT_S)
        assert reply.body == b"x!"

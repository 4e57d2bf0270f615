"""A little work for each kind of client, with options that all of them take, and none that is
theirs alone: how they connect, and who they are. The topic `sent` is made by the first send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from saturnmq import (
    Admin,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
    aio,
)
from saturnmq.client.producer.posting import OPEN_AFTER
from saturnmq.client.producer.transactions import TransactionState


def sends(nameserver: str, **options: Any) -> None:
    with Producer("senders", nameserver, **options) as producer:
        for number in range(5):
            producer.send(Message("sent", b"%d" % number))
        for _ in range(OPEN_AFTER + 20):  # these have a connection of their own, without TLS
            producer.send_async(Message("sent", b"alone")).result(10)
        handles = [producer.send_async(Message("sent", b"x" * 5000)) for _ in range(50)]
        assert all(handle.result(10) for handle in handles)


def polls(nameserver: str, **options: Any) -> None:
    sends(nameserver, **options)
    with PullConsumer("pollers", nameserver, from_beginning=True, **options) as consumer:
        consumer.subscribe("sent")
        assert any(consumer.poll(1.0) for _ in range(20))


def listens(nameserver: str, **options: Any) -> None:
    sends(nameserver, **options)
    bodies: list[bytes] = []
    consumer = PushConsumer(
        "listeners",
        nameserver,
        from_beginning=True,
        listener=lambda messages: bodies.extend(message.body for message in messages),
        **options,
    )
    consumer.subscribe("sent")
    with consumer, Admin(nameserver, **options) as admin:
        for _ in range(1000):
            if bodies:
                break
            admin.list_topics()
    assert bodies


def receives(nameserver: str, **options: Any) -> None:
    sends(nameserver, **options)
    with SimpleConsumer("receivers", nameserver, from_beginning=True, **options) as consumer:
        consumer.subscribe("sent")
        found = consumer.receive()
        assert found
        for message in found:
            consumer.ack(message)


def commit(message: object) -> TransactionState:
    return TransactionState.COMMIT


def commits(nameserver: str, **options: Any) -> None:
    producer = TransactionProducer("payers", nameserver, check=commit, **options)
    with producer, producer.transaction(Message("sent", b"paid")):
        pass


def sends_on_a_loop(nameserver: str, **options: Any) -> None:
    async def body() -> None:
        async with aio.Producer("senders", nameserver, **options) as producer:
            await producer.send(Message("sent", b"1"))
        async with aio.Admin(nameserver, **options) as admin:
            async with asyncio.timeout(30):  # a new topic is registered behind the answer
                while "sent" not in await admin.list_topics():
                    await asyncio.sleep(0.02)
        payer = aio.TransactionProducer("payers", nameserver, check=commit, **options)
        async with payer, payer.transaction(Message("sent", b"paid")):
            pass
        consumer = aio.PullConsumer("pollers", nameserver, **options)
        consumer.subscribe("sent")
        async with consumer:
            await consumer.poll(0.01)

    asyncio.run(body())


Work = Callable[..., None]
WORK: list[Work] = [sends, polls, listens, receives, commits, sends_on_a_loop]

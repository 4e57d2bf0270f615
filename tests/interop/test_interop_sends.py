"""Our producer to brokers of both makes, over many topics at once: ours take small batches of
several topics in one request, RocketMQ's do not know it and get each in its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from interop_nodes import BROKER, ROCKETMQ, SATURNMQ, Nodes
from saturnmq.aio import Admin, Message, MessageQueue, Producer, PullConsumer
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol.codes import RequestCode

pytestmark = [pytest.mark.quick, pytest.mark.interop, pytest.mark.timeout(300)]
TOPICS = [f"many-{number}" for number in range(20)]
QUEUES, SENDERS, EACH = 2, 40, 25


@pytest.mark.parametrize("make", [ROCKETMQ, SATURNMQ])
def test_what_goes_to_many_topics_at_once_is_stored_once_each(
    nodes: Nodes, tmp_path: Path, figures: Counter[str], make: str
) -> None:
    store = tmp_path / make
    store.mkdir()
    settings = {"mappedFileSizeCommitLog": 1 << 24, "mappedFileSizeConsumeQueue": 20_000}
    nodes.broker(make, store, free_block("127.0.0.1", 4) + 2, settings)
    codes = asyncio.run(_send(nodes.nameserver(make)))
    together = codes[RequestCode.SEND_BATCHES]
    # One is refused before the client knows; until it does a few more may be under way.
    assert together > 10 if make == SATURNMQ else 0 < together <= 4
    figures[f"messages over many topics to a broker of {make}"] += SENDERS * EACH


async def _send(nameserver: str) -> Counter[int]:
    sent: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
    codes: Counter[int] = Counter()
    async with Admin(nameserver) as admin:
        for topic in TOPICS:
            await admin.create_topic(topic, queues=QUEUES)
    async with Producer("writers", nameserver) as producer:
        command = producer.core.connected

        def counting(address: str) -> object:
            endpoint = command(address)
            if endpoint is not None and not hasattr(endpoint.request_callback, "counts"):
                ask = endpoint.request_callback

                def request_callback(request, *more):  # type: ignore[no-untyped-def]
                    codes[request.code] += 1
                    return ask(request, *more)

                request_callback.counts = True
                endpoint.request_callback = request_callback
            return endpoint

        producer.core.connected = counting

        async def one(sender: int) -> None:
            for number in range(EACH):
                topic = TOPICS[(sender + number) % len(TOPICS)]
                body = b"%d/%d" % (sender, number)
                result = await producer.send(Message(topic, body))
                assert result.ok
                assert len(result.offset_message_id) == 32
                sent[topic].add(body)

        await asyncio.gather(*(one(sender) for sender in range(SENDERS)))
    for topic, bodies in sent.items():
        async with PullConsumer("readers", nameserver) as consumer:
            consumer.assign(MessageQueue(topic, BROKER, queue) for queue in range(QUEUES))
            found: list[bytes] = []
            while len(found) < len(bodies):
                messages = await consumer.poll(10.0)
                assert messages, f"{len(found)} of {len(bodies)} of {topic}"
                found += [bytes(message.body) for message in messages]
        assert sorted(found) == sorted(bodies)
    return codes

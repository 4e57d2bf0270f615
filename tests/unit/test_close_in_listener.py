"""Ends that are asked for twice, or by the listener that they wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import client_fakes as fakes
import pytest
from saturnmq import Message, Producer, PullConsumer, PushConsumer, aio
from saturnmq.client.consumer.holdings import CLOSE_WAIT_S
from saturnmq.runtime.errors import SaturnError
from served_rig import served

WAIT_S = 5.0  # less than the end waits for a listener
assert WAIT_S < CLOSE_WAIT_S


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    """With a message in topic T."""
    with served(tmp_path) as address:
        with Producer(nameservers=address) as producer:
            producer.send(Message("T", b"only"))
        yield address


def left_over(nameserver: str) -> list[bytes]:
    """The messages that the group has not consumed."""
    with PullConsumer("g", nameserver, from_beginning=True) as consumer:
        consumer.subscribe("T")
        return [bytes(message.body) for message in consumer.poll(1.0)]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_listener_closes_its_consumer(nameserver: str, ordered: bool) -> None:
    told: list[SaturnError] = []
    took: list[float] = []
    closed = threading.Event()

    def listener(_: Any) -> None:
        began = time.monotonic()
        consumer.close()
        took.append(time.monotonic() - began)
        closed.set()

    consumer = PushConsumer(
        "g",
        nameserver,
        listener=listener,
        from_beginning=True,
        ordered=ordered,
        on_error=told.append,
    )
    consumer.subscribe("T")
    began = time.monotonic()
    with consumer:
        assert closed.wait(WAIT_S)
    # The end of the block waited for the end that the listener had begun.
    assert not consumer._thread._thread.is_alive()
    assert (time.monotonic() - began < CLOSE_WAIT_S, len(took), told) == (True, 1, [])
    assert left_over(nameserver) == []


def test_an_async_listener_closes_its_consumer(nameserver: str) -> None:
    told: list[SaturnError] = []

    async def main() -> None:
        closed = asyncio.Event()

        async def listener(_: Any) -> None:
            await consumer.close()
            closed.set()

        consumer = aio.PushConsumer(
            "g", nameserver, listener=listener, from_beginning=True, on_error=told.append
        )
        consumer.subscribe("T")
        async with asyncio.timeout(WAIT_S), consumer:
            await closed.wait()

    asyncio.run(main())
    assert told == []
    assert left_over(nameserver) == []


def test_a_second_close_of_a_consumer_waits_for_the_first(nameserver: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def listener(_: Any) -> None:
        begun.set()
        go_on.wait(WAIT_S)

    consumer = PushConsumer("g", nameserver, listener=listener, from_beginning=True)
    consumer.subscribe("T")
    consumer.start()
    assert begun.wait(WAIT_S)
    closing = [threading.Thread(target=consumer.close) for _ in range(2)]
    for each in closing:
        each.start()
    closing[1].join(0.2)
    assert all(each.is_alive() for each in closing)  # the listener has not returned
    go_on.set()
    for each in closing:
        each.join(WAIT_S)
        assert not each.is_alive()
    assert left_over(nameserver) == []


def test_a_second_close_of_a_producer_takes_nothing_from_the_first() -> None:
    with fakes.threaded("a") as cluster:
        broker = cluster.brokers["a"]
        answer, held = broker.serve, []
        broker.serve = lambda endpoint, command: held.append((endpoint, command))

        async def main() -> None:
            producer = await aio.Producer("g", cluster.address).start()
            handle = await producer.send_async(Message("T", b"x"))
            ends = [asyncio.create_task(producer.close()) for _ in range(2)]
            while not any(command.code in (310, 320) for _, command in held):
                await asyncio.sleep(0.01)
            assert not any(end.done() for end in ends)
            broker.serve = answer
            for endpoint, command in held:
                cluster.on_loop(answer, endpoint, command)
            await asyncio.gather(*ends)
            assert (await handle).ok

        asyncio.run(asyncio.wait_for(main(), WAIT_S))

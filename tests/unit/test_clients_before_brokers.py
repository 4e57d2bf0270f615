"""Producers that start before the brokers do, as all containers of a composition do at once."""

from __future__ import annotations

import asyncio
from typing import Any

import client_fakes as fakes
import pytest
from client_fakes import run_producer as run
from saturnmq.aio import Producer
from saturnmq.client.blocking import Producer as BlockingProducer
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.errors import RequestTimeout, RouteNotFound, TopicNotExist

SENDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pinned": {"queue": MessageQueue("T", "a", 1)},
    "with a key": {"sharding_key": "k"},
    "with a selector": {"selector": lambda queues, message: queues[-1]},
}


def leave(cluster: Any) -> None:
    """The nameserver knows no broker, as after its own start."""
    cluster.known, cluster.topic = [], "nothing"


def come(cluster: Any) -> None:
    cluster.known, cluster.topic = ["a"], "T"


@pytest.mark.parametrize("options", SENDS.values(), ids=SENDS)
def test_a_send_waits_for_the_first_broker(options: dict[str, Any]) -> None:
    async def test(cluster: Any, producer: Producer) -> None:
        leave(cluster)
        sent = asyncio.create_task(producer.send(Message("T", b"x"), **options))
        await asyncio.sleep(2)
        assert not sent.done()
        come(cluster)
        assert (await sent).ok
        assert cluster.brokers["a"].bodies() == [b"x"]

    run(test)


@pytest.mark.parametrize("options", SENDS.values(), ids=SENDS)
def test_a_send_says_after_its_time_that_there_is_no_broker(options: dict[str, Any]) -> None:
    async def test(cluster: Any, producer: Producer) -> None:
        leave(cluster)
        with pytest.raises(RouteNotFound, match="'T': no nameserver knows a broker yet"):
            await producer.send(Message("T", b"x"), **options)
        come(cluster)
        assert (await producer.send(Message("T", b"y"), **options)).ok

    run(test, send_timeout=1.0, retries=0, delivery_timeout=1.0)


@pytest.mark.parametrize("options", SENDS.values(), ids=SENDS)
def test_a_send_waits_no_longer_than_it_says(options: dict[str, Any]) -> None:
    async def test(cluster: Any, producer: Producer) -> None:
        leave(cluster)
        clock = producer.core.runtime.monotonic
        for timeout in (0.0, 2.0):
            begun = clock()
            with pytest.raises((RouteNotFound, RequestTimeout)):
                await producer.send(Message("T", b"x"), timeout=timeout, **options)
            assert timeout <= clock() - begun < timeout + 0.5
        sent = asyncio.create_task(producer.send(Message("T", b"y"), timeout=3.0, **options))
        await asyncio.sleep(2.0)
        cluster.brokers["a"].answer = lambda cmd: "silence"
        come(cluster)
        begun = clock()
        with pytest.raises(RequestTimeout):
            await sent
        assert clock() - begun < 1.1, "both waits together"

    run(test, delivery_timeout=5.0)


@pytest.mark.parametrize("options", SENDS.values(), ids=SENDS)
def test_a_topic_that_no_broker_has_is_told_at_once(options: dict[str, Any]) -> None:
    async def test(cluster: Any, producer: Producer) -> None:
        cluster.topic = "nothing"
        begun = producer.core.runtime.monotonic()
        with pytest.raises(TopicNotExist, match="'T': no broker serves it"):
            await producer.send(Message("T", b"x"), **options)
        assert producer.core.runtime.monotonic() - begun < 0.2

    run(test)


def test_a_request_waits_for_the_first_broker_as_long_as_it_may() -> None:
    async def test(cluster: Any, producer: Producer) -> None:
        leave(cluster)
        asked = asyncio.create_task(producer.request(Message("T", b"x"), timeout=5))
        await asyncio.sleep(2)
        assert not asked.done()
        come(cluster)
        broker = cluster.brokers["a"]
        while not broker.bodies():
            await asyncio.sleep(0.1)
        assert not asked.done(), "nobody has replied"
        asked.cancel()

    run(test)


def test_a_one_way_send_waits_for_no_broker() -> None:
    async def test(cluster: Any, producer: Producer) -> None:
        leave(cluster)
        begun = producer.core.runtime.monotonic()
        with pytest.raises(RouteNotFound):
            await producer.send_oneway(Message("T", b"x"))
        assert producer.core.runtime.monotonic() - begun < 0.2

    run(test)


@pytest.mark.parametrize("options", SENDS.values(), ids=SENDS)
def test_a_thread_waits_for_the_first_broker_as_long_as_it_says(options: dict[str, Any]) -> None:
    with (
        fakes.threaded("a") as cluster,
        BlockingProducer("senders", cluster.address, delivery_timeout=60) as producer,
    ):
        leave(cluster)
        with pytest.raises((RouteNotFound, RequestTimeout)):
            producer.send(Message("T", b"x"), timeout=0.1, **options)
        come(cluster)
        assert producer.send(Message("T", b"y"), **options).ok

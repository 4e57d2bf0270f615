"""Nameservers that are no addresses, or that nobody reaches: who names them is told so."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import saturnmq
from core_world import World
from saturnmq import Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer, aio
from saturnmq.client.core import nameservers_of
from saturnmq.client.producer.staging import StagingClient
from saturnmq.runtime.errors import ConfigError, ConnectFailed, SaturnError, UnsupportedRequest

NO_ADDRESSES = ["127.0.0.1:abc", "127.0.0.1:99999", "127.0.0.1:0", "http://127.0.0.1:9876", ":1"]
MAKERS: dict[str, Callable[[Any], Any]] = {
    "producer": lambda named: Producer("g", named),
    "push": lambda named: PushConsumer("g", named, listener=print),
    "pull": lambda named: PullConsumer("g", named),
    "simple": lambda named: SimpleConsumer("g", named),
    "transactions": lambda named: saturnmq.TransactionProducer("g", named, check=print),
    "admin": Admin,
    "staging": StagingClient,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("named", [*NO_ADDRESSES, ["127.0.0.1:1", "x"]])
def test_a_client_of_what_is_no_address_is_not_made(make: Callable[[Any], Any], named: Any) -> None:
    with pytest.raises(ConfigError, match=r"nameservers wants HOST:PORT\[,...\] with ports from 1"):
        make(named)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("named", ["", [], ",;", [""], 5, [5], b"127.0.0.1:9876"])
def test_a_client_of_no_nameserver_is_not_made(make: Callable[[Any], Any], named: Any) -> None:
    with pytest.raises(ConfigError, match=r"nameservers (names no address|wants HOST:PORT)"):
        make(named)


def test_the_nameserver_of_the_machine_is_the_one_that_nobody_named() -> None:
    assert nameservers_of(None) == ["127.0.0.1:9876"]
    assert nameservers_of("a:1;b:2, [::1]:3") == ["a:1", "b:2", "[::1]:3"]


@pytest.mark.parametrize("kind", [aio.PullConsumer, aio.PushConsumer])
@pytest.mark.parametrize("topic", ["T", re.compile("T.*")])
def test_a_consumer_says_once_for_each_outage_that_no_nameserver_answers(
    kind: Any, topic: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    told: list[SaturnError] = []

    async def main() -> None:
        core = world.core(1, 2)
        await core.start()
        consumer = kind("g", core=core, on_error=told.append, rebalance_interval_s=2.0)
        consumer.subscribe(topic, **({"listener": print} if kind is aio.PushConsumer else {}))
        await consumer.start()
        await world.runtime.sleep(30.0)  # of virtual time, in which it asks again and again
        assert len(told) == 1
        await world.servers[1].open()
        world.route("U", a={0: 3})
        while not core.publish_queues("U"):  # the consumer asks at the same time, of either
            with contextlib.suppress(ConnectFailed):
                await core.route("U")
        world.servers[1].shut()
        consumer.subscribe("another")
        await world.runtime.sleep(30.0)
        assert len(told) == 2
        await consumer.close()
        await core.close()

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    for error in told:
        assert "no route from the nameservers 10.0.0.1:9876, 10.0.0.2:9876, asking" in str(error)
        assert isinstance(error, ConnectFailed)
    assert sum("no route from" in each.message for each in caplog.records) == 2


def test_a_consumer_says_that_its_nameserver_is_none() -> None:
    world = World()
    told: list[SaturnError] = []

    async def main() -> None:
        await world.servers[1].open()
        world.servers[1].does = lambda line, asked: line.send(asked.reply(3, "a broker"), asked)
        core = world.core(1)
        await core.start()
        consumer = aio.PullConsumer("g", core=core, on_error=told.append)
        consumer.subscribe("T")
        await consumer.start()
        await world.runtime.sleep(30.0)
        await consumer.close()
        await core.close()

    try:
        world.loop.run_until_complete(main())
    finally:
        world.loop.close()
    [error] = told
    assert isinstance(error, UnsupportedRequest)
    assert "10.0.0.1:9876 (SaturnMQ) does not serve GET_ROUTEINFO_BY_TOPIC: a broker" in str(error)

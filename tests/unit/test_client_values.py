"""Options of clients and time-outs of calls that make no sense are refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import client_fakes as fakes
import pytest
from saturnmq import Admin, Producer, PullConsumer, PushConsumer, SimpleConsumer, aio
from saturnmq.client.option_checks import BOUNDS
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.protocol.message import Message
from saturnmq.runtime.errors import ConfigError, InvalidParameter

NOWHERE = "127.0.0.1:1"
NAN, INF = float("nan"), float("inf")
OPTIONS = {
    Producer: [
        "send_timeout",
        "retries",
        "delivery_timeout",
        "absence_timeout",
        "batch_bytes",
        "buffer_bytes",
        "in_flight",
        "linger",
        "max_message_bytes",
        "compress_above",
    ],
    PushConsumer: [
        "consume_message_batch_max_size",
        "consume_threads",
        "max_reconsume",
        "consume_timeout_s",
        "suspend_s",
        "pop_invisible_s",
        "rebalance_interval_s",
        "commit_interval_s",
        "hold_s",
        "max_cached_messages",
        "max_cached_bytes",
    ],
    PullConsumer: [
        "rebalance_interval_s",
        "commit_interval_s",
        "hold_s",
        "max_cached_messages",
        "max_cached_bytes",
    ],
    Admin: ["timeout"],
}
CASES = [(kind, name) for kind, names in OPTIONS.items() for name in names]


def made(kind: Any, **options: Any) -> Any:
    return Admin(NOWHERE, **options) if kind is Admin else kind("g", NOWHERE, **options)


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("value", [NAN, INF, -2, "3", b"3", True, [], None, 10**30])
def test_an_option_that_makes_no_sense_is_refused_by_name(kind: Any, name: str, value: Any) -> None:
    if value is None and BOUNDS[name].or_none:
        return
    with pytest.raises(ConfigError, match=rf"^{name} is .*: give -?[\d.]+.* to \d"):
        made(kind, **{name: value})


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_ends_of_a_range_are_in_it(kind: Any, name: str) -> None:
    whole = BOUNDS[name].what != "seconds"
    for end in (BOUNDS[name].least, BOUNDS[name].most):
        if kind is Producer:
            ProducerOptions(**{name: int(end) if whole else end})
    assert name in OPTIONS[kind]


def test_every_range_is_that_of_an_option() -> None:
    assert set(BOUNDS) == {name for names in OPTIONS.values() for name in names}


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer, SimpleConsumer, Admin])
def test_what_is_called_can_be_called(kind: Any) -> None:
    with pytest.raises(ConfigError, match="on_error is 5: give a function"):
        made(kind, on_error=5)


@pytest.mark.parametrize("name", ["listener", "listener_one"])
def test_a_listener_can_be_called(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 5: give a function"):
        made(PushConsumer, **{name: 5})
    consumer = made(PushConsumer)
    try:
        with pytest.raises(ConfigError, match=f"{name} is 5: give a function"):
            consumer.subscribe("T", **{name: 5})
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
@pytest.mark.parametrize("value", ["FAIR", None, 5])
def test_a_strategy_is_one_of_the_known_ones(kind: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"rebalance is .*: give one of AVG"):
        made(kind, rebalance=value)


# -- time-outs -------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Any]:
    with fakes.threaded("a") as world:
        yield world


NO_TIMEOUTS = [NAN, INF, -1, "1", True, 10**30]
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "send": lambda producer, timeout: producer.send(Message("T", b"x"), timeout=timeout),
    "keyed": lambda producer, timeout: producer.send(
        Message("T", b"x"), sharding_key="k", timeout=timeout
    ),
    "send_batch": lambda producer, timeout: producer.send_batch(
        [Message("T", b"x")], timeout=timeout
    ),
    "request": lambda producer, timeout: producer.request(Message("T", b"x"), timeout=timeout),
    "flush": lambda producer, timeout: producer.flush(timeout),
    "close": lambda producer, timeout: producer.close(timeout),
}


@pytest.mark.parametrize("timeout", NO_TIMEOUTS)
def test_a_time_out_that_nobody_can_wait_for_is_refused_before_anything_is_done(
    cluster: Any, timeout: Any
) -> None:
    with Producer("g", cluster.address) as producer:
        for call in CALLS.values():
            with pytest.raises(InvalidParameter, match=r"timeout is .*: give 0 to"):
                call(producer, timeout)
        with pytest.raises(InvalidParameter, match="timeout is None"):
            CALLS["request"](producer, None)
        assert producer.send(Message("T", b"sound")).ok
    assert cluster.brokers["a"].bodies() == [b"sound"]

    async def main() -> None:
        async with aio.Producer("g", cluster.address) as producer:
            for call in CALLS.values():
                with pytest.raises(InvalidParameter, match=r"timeout is .*: give 0 to"):
                    await call(producer, timeout)
            assert (await producer.send(Message("T", b"sound"))).ok

    asyncio.run(main())
    assert cluster.brokers["a"].bodies() == [b"sound", b"sound"]


@pytest.mark.parametrize("timeout", NO_TIMEOUTS)
def test_so_are_those_of_consumers(cluster: Any, timeout: Any) -> None:
    told = r"timeout_s is .*: give 0 to"
    with (
        PullConsumer("g", cluster.address) as puller,
        pytest.raises(InvalidParameter, match=told),
    ):
        puller.poll(timeout)
    with SimpleConsumer("g", cluster.address) as simple:
        for name in ("wait_s", "invisible_s"):
            with pytest.raises(InvalidParameter, match=f"{name} is .*: give 0 to"):
                simple.receive(**{name: timeout})

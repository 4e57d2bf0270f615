"""A send or a request that ran out of time says how its last try ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import client_fakes as fakes
import pytest
from saturnmq import Producer, aio
from saturnmq.protocol.message import Message
from saturnmq.runtime.errors import RequestTimeout

NOWHERE = "127.0.0.1:1"
SHORT_S = 0.6
X = Message("T", b"x")
CALLS: dict[str, Callable[[Any], Any]] = {
    "send": lambda producer: producer.send(X, timeout=SHORT_S),
    "send_batch": lambda producer: producer.send_batch([X, X], timeout=SHORT_S),
    "request": lambda producer: producer.request(X, timeout=SHORT_S),
}
SENDS = ["send", "send_batch"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("namespace", ["", "N"])
def test_no_nameserver(call: str, namespace: str) -> None:
    told = r"no (acknowledgement|reply) in 0.6 s \(the last try: no connection to 127\.0\.0\.1:1: "
    with (
        Producer("g", NOWHERE, namespace=namespace, send_timeout=0.3) as producer,
        pytest.raises(RequestTimeout, match=told),
    ):
        CALLS[call](producer)

    async def main() -> None:
        async with aio.Producer("g", NOWHERE, namespace=namespace, send_timeout=0.3) as producer:
            with pytest.raises(RequestTimeout, match=told):
                await CALLS[call](producer)

    asyncio.run(main())


@pytest.mark.parametrize("call", SENDS)
def test_no_broker(call: str) -> None:
    told = r"no acknowledgement in 0.6 s \(the last try: no connection to 127\.0\.0\.1:\d+: "
    with fakes.threaded("a") as cluster:
        cluster.on_loop(cluster.brokers["a"].stop)
        with (
            Producer("g", cluster.address, retries=3, send_timeout=0.4) as producer,
            pytest.raises(RequestTimeout, match=told),
        ):
            CALLS[call](producer)

        async def main() -> None:
            async with aio.Producer("g", cluster.address, retries=3, send_timeout=0.4) as producer:
                with pytest.raises(RequestTimeout, match=told):
                    await CALLS[call](producer)
                await producer.close(0.0)

        asyncio.run(main())


def test_a_silent_broker_is_no_reason() -> None:
    with fakes.threaded("a") as cluster:
        cluster.brokers["a"].serve = lambda *_: None
        with Producer("g", cluster.address) as producer:
            with pytest.raises(RequestTimeout, match=r"in 0.6 s; the send goes on$"):
                producer.send(X, timeout=SHORT_S)
            producer.close(0.0)

"""Real brokers on loopback ports and temporary directories, spoken to in Remoting commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication import role
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk

SMALL = {
    "commitlog_segment_bytes": 1 << 20,
    "consumequeue_segment_bytes": 20 * 1000,
    "index_slots": 100,
    "index_items": 400,
}
BUSY_S = 30.0


def config(root: Path, **changes: Any) -> BrokerConfig:
    base = BrokerConfig(root=str(root), port=0, ha_port=0, ha_reconnect_ms=50, slave_sync_ms=100)
    options = {**SMALL, **changes.pop("store_options", {})}
    return replace(base, store_options=options, **changes)


def slave_config(root: Path, master: Broker, broker_id: int = 1, **changes: Any) -> BrokerConfig:
    changes = {"role": "SLAVE", "ha_master_address": master.ha_address, **changes}
    return config(root, broker_id=broker_id, **changes)


def run(body: Callable[[NativeRuntime], Awaitable[None]]) -> None:
    """Run a test on the real clock. A master that stands still for a second asks the others before
    it goes on; a machine that is busy with other tests may bring that about at any place."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await body(NativeRuntime())

    with patch.object(role, "PAUSE_S", BUSY_S):
        asyncio.run(main())


async def started(runtime: NativeRuntime, settings: BrokerConfig) -> Broker:
    broker = Broker(settings, runtime, NativeDisk())
    await broker.start()
    return broker


async def connected(runtime: NativeRuntime, broker: Broker) -> Endpoint:
    endpoint = Endpoint(runtime, lambda e, c: None)
    host, port = split_address(broker.address)
    await runtime.connect(host, port, endpoint)
    return endpoint


async def ask(
    endpoint: Endpoint, code: int, ext: dict[str, Any] | None = None, body: bytes = b""
) -> Command:
    texts = {k: str(v) for k, v in (ext or {}).items()}
    return await endpoint.request(Command.request(code, texts, body), 10.0)


async def insist(broker: Broker) -> None:
    """An operator lets this node lead without its slaves' word."""
    client = await connected(broker._runtime, broker)
    ext = {"epoch": TERM, "force": "true", "insist": "true"}
    reply = await ask(client, RequestCode.PROMOTE, ext)
    assert reply.code == 0, reply.remark
    client.close()
    broker.ground.master._slaves_by = 0.0  # it waits for none that dial


async def send(endpoint: Endpoint, body: bytes, topic: str = "orders", **more: Any) -> Command:
    ext = {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1,
        "h": 0,
        "i": "UNIQ_KEY\x01U1\x02KEYS\x01k1\x02TAGS\x01A\x02",
        **more,
    }
    return await ask(endpoint, 310, ext, body)


async def pull(endpoint: Endpoint, offset: int, **more: Any) -> Command:
    ext = {
        "consumerGroup": "G",
        "topic": "orders",
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
        **more,
    }
    return await ask(endpoint, 11, ext)


async def until(check: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)

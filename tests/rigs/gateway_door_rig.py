"""A gateway on a port of loopback over a real broker, called by grpcio's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from broker_rig import config, started
from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from saturnmq.gateway.descriptors import rpcs_of
from saturnmq.gateway.door import Door
from saturnmq.gateway.gateway import Gateway
from saturnmq.gateway.http2.grpc_calls import GrpcCalls
from saturnmq.runtime.native import NativeRuntime


@dataclass
class Opened:
    broker: Broker
    door: Door
    gateway: Gateway
    address: str
    channel: grpc.aio.Channel

    def method(self, name: str, service: str = v2.SERVICE) -> Any:
        """A call, as a function of its request or, with a stream of them, of nothing."""
        rpc = rpcs_of(service)[name]
        kinds: dict[tuple[bool, bool], Any] = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, True): self.channel.stream_stream,
        }
        return kinds[rpc.takes_stream, rpc.gives_stream](
            f"/{service}/{name}",
            request_serializer=rpc.request.SerializeToString,
            response_deserializer=rpc.response.FromString,
        )


@asynccontextmanager
async def opened(runtime: NativeRuntime, root: Path, **changes: Any) -> AsyncIterator[Opened]:
    """A broker with topic T, and a channel to its gateway."""
    broker = await started(runtime, config(root, **changes))
    door = Door(runtime, broker.connections, lambda: None, broker.body_max)
    address = await door.listen("127.0.0.1", 0)
    turns = broker.connections.turns
    gateway = Gateway(runtime, broker, address, turns)
    door.serve(GrpcCalls(runtime, gateway.services, turns).begin)
    try:
        broker.ground.context.topics.ensure("T", 4)
        while not broker.messaging.popping.serves:
            await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(address) as channel:
            yield Opened(broker, door, gateway, address, channel)
    finally:
        await door.close()
        await gateway.close()
        await broker.close()

"""A broker that listens already, and cannot serve yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from broker_rig import ask, config
from saturnmq.broker.broker import Broker
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Listener, split_address
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.disk import NativeDisk

CODES = [RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE]


class Watched(NativeRuntime):
    """Somebody has waited for the port of the broker, and asks as soon as it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Command] = []

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> Listener:
        listener = await super().listen(host, port, factory)
        if not self.replies:
            client = Endpoint(self, lambda _, __: None)
            await self.connect(*split_address(listener.address), client)
            self.replies = [await ask(client, code) for code in CODES]
            client.close()
        return listener


def test_a_request_that_comes_during_the_start_is_asked_to_come_again(tmp_path: Path) -> None:
    """Clients take "not supported" for the last word, and try no other broker."""

    async def main() -> None:
        runtime = Watched()
        broker = Broker(config(tmp_path), runtime, NativeDisk())
        await broker.start()
        assert [reply.code for reply in runtime.replies] == [2] * len(CODES)
        assert "starting" in str(runtime.replies[0].remark)
        await broker.close()

    asyncio.run(asyncio.wait_for(main(), 60))

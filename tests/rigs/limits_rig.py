"""A server of nothing but echoes, on loopback, with limits on its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from saturnmq.protocol.asking import connect
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.limits import Limits
from saturnmq.protocol.remoting import Command, encode
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime, new_event_loop

REPLY = 200  # a request of this code is answered with so many KiB as its field `n` says


class Served:
    """A server of nothing but echoes; `address` is set when it listens."""

    address: tuple[str, int]

    def __init__(self, runtime: NativeRuntime, limits: Limits) -> None:
        self.runtime = runtime
        self.handled = 0
        self.closed: list[Endpoint] = []
        self.all = Connections(runtime, limits, self._handle, self.closed.append)

    def _handle(self, endpoint: Endpoint, command: Command) -> None:
        self.handled += 1
        body = bytes(int(command.ext["n"]) << 10) if command.code == REPLY else b""
        endpoint.send(command.reply(ext={"size": str(len(command.body))}, body=body), command)

    async def connect(self) -> Endpoint:
        return await connect(self.runtime, *self.address)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address)

    async def until(self, check: Callable[[], object], ahead_s: float = 0.0) -> None:
        """While time passes, and with `ahead_s` so much more than really does."""
        async with asyncio.timeout(5):
            while not check():
                self.all.expire(self.runtime.monotonic() + ahead_s)
                await asyncio.sleep(0.002)


def run(body: Callable[[Served], Awaitable[None]], **limits: Any) -> None:
    @asynccontextmanager
    async def served() -> AsyncIterator[Served]:
        runtime = NativeRuntime()
        server = Served(runtime, Limits(**limits))
        listener = await runtime.listen("127.0.0.1", 0, server.all.accept)
        server.address = split_address(listener.address)
        try:
            yield server
        finally:
            listener.close()
            server.all.close("over")
            runtime.close()

    async def main() -> None:
        async with asyncio.timeout(20), served() as server:
            await body(server)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:  # as servers have it
        runner.run(main())


async def ask(endpoint: Endpoint, code: int = 1, body: bytes = b"", **ext: str) -> Command:
    return await endpoint.request(Command.request(code, ext, body), 5)


def frame(size: int, opaque: int = 7) -> bytes:
    return b"".join(encode(Command(1, {}, bytes(size), opaque=opaque)))

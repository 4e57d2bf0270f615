"""A connection whose socket is never empty leaves other connections their turns of the loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from saturnmq.broker.replication.ha_slave import MasterConnection
from saturnmq.protocol import ha
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import FLAG_ONEWAY, Command, encode
from saturnmq.protocol.signing import Signing
from saturnmq.runtime import native, turns
from saturnmq.runtime.native import NativeRuntime

BUFFERED = 4 << 20


async def reads_in_turns(protocol: asyncio.BufferedProtocol, data: bytes) -> list[int]:
    """How often the protocol object was given bytes in each turn that read, until it had all of
    what another thread sent."""
    loop = asyncio.get_running_loop()
    mine, other = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFERED)
    sender = threading.Thread(target=mine.sendall, args=(data,))
    sender.start()
    counts: list[int] = []
    got = reads = 0
    take = protocol.buffer_updated

    def end_of_turn() -> None:
        nonlocal reads
        counts.append(reads)
        reads = 0

    def buffer_updated(size: int) -> None:
        nonlocal got, reads
        if not reads:
            loop.call_soon(end_of_turn)
        reads += 1
        got += size
        take(size)

    protocol.buffer_updated = buffer_updated  # type: ignore[method-assign]
    transport, _ = await loop.create_unix_connection(lambda: protocol, sock=other)
    async with asyncio.timeout(20):
        while got < len(data):
            await asyncio.sleep(0)
    sender.join()
    transport.close()
    mine.close()
    await asyncio.sleep(0)
    return counts


@pytest.fixture(autouse=True)
def _a_turn_is_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)


def test_a_client_that_sends_without_end() -> None:
    async def body(runtime: NativeRuntime) -> None:
        sizes: list[int] = []
        endpoint = Endpoint(
            runtime, lambda _, command: sizes.append(len(command.body)), server=True
        )
        request = b"".join(encode(Command(10, body=bytes(100_000), flag=FLAG_ONEWAY)))
        counts = await reads_in_turns(endpoint, 160 * request)
        assert max(counts) == 1, counts
        assert sizes == 160 * [100_000]

    native.run(body)


def test_a_master_whose_slave_has_to_catch_up() -> None:
    class Log:
        end = 0

        def now(self) -> float:
            return 0.0

        def append(self, transfer: ha.Transfer) -> None:
            assert transfer.offset == 0
            assert transfer.data == bytes(1 << 20)
            self.end += len(transfer.data)

        def received(self, connection: MasterConnection) -> None:
            pass

    async def body(runtime: NativeRuntime) -> None:
        log = Log()
        config = SimpleNamespace(signing=Signing())
        context: Any = SimpleNamespace(runtime=runtime, config=config, let_in=None)
        connection = MasterConnection(log, context)  # type: ignore[arg-type]
        size = 1 << 20
        transfer = ha.encode_transfer_header(0, size) + bytes(size)
        counts = await reads_in_turns(connection, 16 * transfer)
        assert max(counts) == 1, counts
        assert log.end == 16 * size

    native.run(body)

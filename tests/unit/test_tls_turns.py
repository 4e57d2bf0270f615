"""Many connections over TLS: their handshakes share the turns of a node's loop. Both kinds of port
take part, of Remoting and of gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from limits_rig import Served, ask, run
from saturnmq.gateway.certificates import Certificate, self_signed
from saturnmq.gateway.door import Door
from saturnmq.protocol.tls import Tls
from saturnmq.runtime import turns
from saturnmq.runtime.door import split_address
from tls_rig import client_hello

CLIENTS = 20


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(self_signed(tmp_path_factory.mktemp("node") / "tls", ["127.0.0.1"]))


def run_both(pem: str, body: Callable[[Served, tuple[str, int]], Awaitable[None]]) -> None:
    """With the address of the gRPC port."""

    @asynccontextmanager
    async def with_door(server: Served) -> AsyncIterator[tuple[str, int]]:
        certificate = Certificate(pem, pem).current
        server.all.certificates = certificate
        door = Door(server.runtime, server.all, certificate, 4 << 20)
        address = await door.listen("127.0.0.1", 0)
        try:
            yield split_address(address)
        finally:
            await door.close()

    async def main(server: Served) -> None:
        async with with_door(server) as grpc_address:
            await body(server, grpc_address)

    run(main)


@pytest.mark.parametrize("is_grpc", [False, True], ids=["Remoting", "gRPC"])
def test_a_turn_of_the_loop_that_is_over_does_one_step_of_all_handshakes(
    pem: str, monkeypatch: pytest.MonkeyPatch, is_grpc: bool
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    turn = 0
    steps: Counter[int] = Counter()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    step = Tls.received

    def received(self: Tls, data: bytes) -> tuple[bytes, bytes, bool]:
        steps[turn] += 1
        return step(self, data)

    monkeypatch.setattr(Tls, "received", received)

    async def body(server: Served, grpc_address: tuple[str, int]) -> None:
        address = grpc_address if is_grpc else server.address
        hello = client_hello()
        plain = await server.connect()
        opened = [socket.create_connection(address) for _ in range(CLIENTS)]
        await server.until(lambda: len(server.all) == CLIENTS + 1)
        counting = asyncio.create_task(count_turns())
        for each in opened:
            each.sendall(hello)
        assert (await ask(plain)).code == 0
        assert steps.total() < CLIENTS, "a request of plain text waits for no handshake"
        await server.until(lambda: steps.total() == CLIENTS)
        counting.cancel()
        assert max(steps.values()) == 1
        for each in opened:
            each.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(each, 1), "the server's hello"
            each.close()

    run_both(pem, body)

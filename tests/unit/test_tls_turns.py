"""Many connections over TLS: their handshakes share the turns of a node's loop, and they leave
nothing behind. Both kinds of port take part, of Remoting and of gRPC."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from garbage_rig import without_collections
from limits_rig import Served, ask, run
from saturnmq.gateway.certificates import Certificate, self_signed
from saturnmq.gateway.door import Door
from saturnmq.gateway.http2.connection import Http2Connection
from saturnmq.gateway.http2.socket_side import GrpcSocket
from saturnmq.gateway.opening import PREFACE
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.tls import SESSION_BYTES, Tls
from saturnmq.protocol.tls_link import TlsLink
from saturnmq.runtime import turns
from saturnmq.runtime.door import split_address
from tls_rig import client_hello

CLIENTS = 20
SETTINGS = bytes.fromhex("000000 04 00 00000000")  # an empty frame of settings
KINDS = (TlsLink, GrpcSocket, Http2Connection, Tls)


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


def ended() -> list[object]:
    """The objects of connections that ended."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, KINDS)
        or (isinstance(each, Endpoint) and each.closed and each._turns is not None)
    ]


@contextmanager
def watched() -> Iterator[Callable[[], int]]:
    """Count the objects of connections that ended in the block; nothing collects them meanwhile."""
    with without_collections():
        before = ended()  # of other tests: they stay alive, so that no id is used again
        known = {id(each) for each in before}
        yield lambda: sum(id(each) not in known for each in ended())


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
    counted = [lambda: 0]
    most = 0

    def received(self: Tls, data: bytes) -> tuple[bytes, bytes, bool]:
        nonlocal most
        steps[turn] += 1
        most = max(most, counted[0]() - SESSION_BYTES * steps.total())
        return step(self, data)

    monkeypatch.setattr(Tls, "received", received)

    async def body(server: Served, grpc_address: tuple[str, int]) -> None:
        address = grpc_address if is_grpc else server.address
        hello = client_hello()
        plain = await server.connect()
        opened = [socket.create_connection(address) for _ in range(CLIENTS)]
        await server.until(lambda: len(server.all) == CLIENTS + 1)
        counting = asyncio.create_task(count_turns())
        assert (await ask(plain)).code == 0
        before = server.all.budget.used
        counted[0] = lambda: server.all.budget.used - before
        for each in opened:
            each.sendall(hello)
        assert (await ask(plain)).code == 0
        assert steps.total() < CLIENTS, "a request of plain text waits for no handshake"
        await server.until(lambda: steps.total() == CLIENTS)
        counting.cancel()
        assert max(steps.values()) == 1
        assert most >= len(hello), "the memory of those that wait is counted"
        if not is_grpc:
            assert counted[0]() == SESSION_BYTES * CLIENTS
        for each in opened:
            each.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(each, 1), "the server's hello"
            each.close()

    run_both(pem, body)


def test_a_connection_that_ends_leaves_nothing_that_only_a_collection_frees(pem: str) -> None:
    """Nodes free no cycle that has lived through a collection (`cli/garbage.py`)."""
    trusting = ssl.create_default_context(cafile=pem)
    trusting.set_alpn_protocols(["h2"])

    async def body(server: Served, grpc_address: tuple[str, int]) -> None:
        client = Endpoint(server.runtime, None)
        await server.runtime.connect(*server.address, client, tls=trusting)
        assert (await ask(client)).code == 0
        client.close()
        for tls in (None, trusting):
            reader, writer = await asyncio.open_connection(*grpc_address, ssl=tls)
            writer.write(PREFACE + SETTINGS)
            assert await reader.readexactly(9), "a frame of settings"
            writer.close()
        for address in (server.address, grpc_address):  # left in the middle
            reader, writer = await asyncio.open_connection(*address)
            writer.write(client_hello())
            assert await reader.readexactly(1)
            writer.close()
        await server.until(lambda: not len(server.all))
        server.closed.clear()
        await server.until(lambda: not left())

    with watched() as left:
        run_both(pem, body)


def test_a_connection_that_is_refused_leaves_nothing_that_only_a_collection_frees() -> None:
    async def body(server: Served) -> None:
        kept = await server.connect()
        refused = await server.connect()
        assert (await ask(refused)).code == 2
        await server.until(lambda: refused.closed)
        await server.until(lambda: not server.all._refusing)
        server.closed.clear()
        await server.until(lambda: not left())
        kept.close()

    with watched() as left:
        run(body, connections=1)

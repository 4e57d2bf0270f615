"""Connections that a server takes over TLS beside those of plain text, on one port."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from limits_rig import REPLY, Served, ask, frame, run
from saturnmq.gateway.certificates import Certificate, self_signed
from saturnmq.protocol import connections
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.tls import NO_TLS_ANSWER, SESSION_BYTES
from saturnmq.protocol.tls_link import TlsLink
from saturnmq.runtime.door import join_address
from saturnmq.runtime.errors import ConnectFailed, RequestTimeout
from tls_rig import client_hello

Body = Callable[[Served], Awaitable[None]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_S", 0.01)
    monkeypatch.setattr(connections, "STOOD_S", 1e9)  # time that is skipped is no pause


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(self_signed(tmp_path_factory.mktemp("node") / "tls", ["127.0.0.1"]))


@pytest.fixture
def trusting(pem: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=pem)


def run_with(pem: str, body: Body, **limits: Any) -> None:
    async def with_tls(server: Served) -> None:
        server.all.certificates = Certificate(pem, pem).current
        await body(server)

    run(with_tls, **limits)


async def connected(server: Served, tls: ssl.SSLContext | None) -> Endpoint:
    endpoint = Endpoint(server.runtime, None)
    await server.runtime.connect(*server.address, endpoint, tls=tls)
    return endpoint


def test_a_port_takes_plain_text_and_tls(pem: str, trusting: ssl.SSLContext) -> None:
    async def body(server: Served) -> None:
        for tls in (None, trusting, None, trusting):
            client = await connected(server, tls)
            for size in (0, 1, 70_000, 3 << 20):
                assert (await ask(client, body=bytes(size))).ext == {"size": str(size)}
            answers = [ask(client, REPLY, n=str(n)) for n in (1, 3000, 0, 500)]
            sizes = [len((await each).body) for each in answers]
            assert sizes == [n << 10 for n in (1, 3000, 0, 500)]
            [end] = server.all._hosts
            assert isinstance(end, Endpoint)
            assert isinstance(end._transport, TlsLink) is (tls is not None), "it costs no more"
            assert end.budget.used == len(end._view) + (SESSION_BYTES if tls is not None else 0)
            client.close()
            await server.until(lambda: not len(server.all))
        assert (len(server.closed), server.all.budget.used) == (4, 0)

    run_with(pem, body)


def test_requests_that_come_with_the_first_byte_are_all_handled(
    pem: str, trusting: ssl.SSLContext
) -> None:
    async def body(server: Served) -> None:
        for tls in (None, trusting):
            reader, writer = await asyncio.open_connection(*server.address, ssl=tls)
            before = server.handled
            writer.write(b"".join(frame(1000, number) for number in range(1, 401)))
            await server.until(lambda before=before: server.handled == before + 400)
            assert await reader.readexactly(4)
            writer.close()

    run_with(pem, body)


def test_a_client_that_does_not_read_is_not_read(pem: str, trusting: ssl.SSLContext) -> None:
    """Neither are its requests that were decrypted already."""

    async def body(server: Served) -> None:
        client = await connected(server, trusting)
        transport = cast(asyncio.Transport, client._transport)
        transport.pause_reading()
        much = bytes(300_000)
        asked = [asyncio.ensure_future(ask(client, REPLY, much, n="1000")) for _ in range(60)]
        await server.until(lambda: any(each.unsent for each in server.all._hosts))
        [end] = server.all._hosts
        assert isinstance(end, Endpoint)
        for _ in range(200):
            await asyncio.sleep(0)
        assert server.handled < 10
        assert end.budget.used - end.unsent < len(much) * 3
        transport.resume_reading()
        assert {len((await each).body) for each in asked} == {1000 << 10}
        await server.until(lambda: end.budget.used == SESSION_BYTES + len(end._view))
        client.close()
        await server.until(lambda: not len(server.all))
        assert server.all.budget.used == 0

    run_with(pem, body)


def test_a_handshake_byte_by_byte(pem: str, trusting: ssl.SSLContext) -> None:
    async def body(server: Served) -> None:
        received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        link = trusting.wrap_bio(received, sent, server_hostname="127.0.0.1")
        reader, writer = await server.open()
        while True:
            try:
                link.do_handshake()
                break
            except ssl.SSLWantReadError:
                for byte in sent.read():
                    writer.write(bytes([byte]))
                    await writer.drain()
                received.write(await reader.read(1))
        link.write(frame(10))
        for byte in sent.read():
            writer.write(bytes([byte]))
            await writer.drain()
        await server.until(lambda: server.handled)
        writer.close()

    run_with(pem, body)


def test_both_ends_say_when_they_are_over(pem: str, trusting: ssl.SSLContext) -> None:
    async def body(server: Served) -> None:
        def last_bytes() -> bytes:
            with (
                socket.create_connection(server.address) as opened,
                trusting.wrap_socket(
                    opened, server_hostname="127.0.0.1", suppress_ragged_eofs=False
                ) as secured,
            ):
                secured.sendall(frame(10))
                found = b""
                while part := secured.recv(100):  # without an alert the end is an error
                    found += part
                return found

        reading = asyncio.create_task(asyncio.to_thread(last_bytes))
        await server.until(lambda: server.handled)
        server.all.close("over")
        assert await reading
        client = await connected(server, trusting)
        await ask(client)
        client.close()
        await server.until(lambda: len(server.closed) == 2)

    run_with(pem, body)


@pytest.mark.parametrize(
    "start",
    [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 400, client_hello()[:60]],
    ids=["a byte", "no hello", "no record", "half a hello"],
)
def test_bytes_that_are_no_handshake_end_the_connection_in_time(pem: str, start: bytes) -> None:
    async def body(server: Served) -> None:
        reader, writer = await server.open()
        writer.write(start)
        await server.until(lambda: len(server.all))
        await server.until(lambda: server.closed, ahead_s=60)
        await reader.read()
        writer.close()
        client = await connected(server, None)
        assert (await ask(client)).code == 0

    run_with(pem, body)


def test_a_server_without_a_certificate_says_so_to_a_tls_client() -> None:
    async def body(server: Served) -> None:
        server.all.certificates = lambda: None
        reader, writer = await server.open()
        writer.write(client_hello())
        assert await reader.read() == NO_TLS_ANSWER
        writer.close()
        client = await connected(server, None)
        assert (await ask(client)).code == 0

    run(body)


def test_connections_are_counted_and_refused_as_those_of_plain_text(
    pem: str, trusting: ssl.SSLContext
) -> None:
    async def body(server: Served) -> None:
        first = await connected(server, trusting)
        assert (await ask(first)).code == 0
        second = await connected(server, trusting)
        refused = await ask(second)
        assert (refused.code, "maxConnections" in str(refused.remark)) == (2, True)
        await server.until(lambda: second.closed)
        assert (await ask(first)).code == 0
        first.close()

    run_with(pem, body, connections=1)


def test_a_client_checks_whom_it_talks_to(pem: str, trusting: ssl.SSLContext) -> None:
    async def body(server: Served) -> None:
        with pytest.raises(ConnectFailed, match="self-signed certificate"):
            await connected(server, ssl.create_default_context())
        endpoint = Endpoint(server.runtime, None)
        _, port = server.address
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.2"):
            await server.runtime.connect("127.0.0.2", port, endpoint, tls=trusting)
        server.all.certificates = None
        with pytest.raises(ConnectFailed):
            await connected(server, trusting)

    run_with(pem, body)


def test_a_channel_over_tls(pem: str, trusting: ssl.SSLContext) -> None:
    async def body(server: Served) -> None:
        address = join_address(*server.address)

        def talk() -> None:
            with pytest.raises(ConnectFailed, match="self-signed certificate"):
                Channel(server.runtime, address, 5.0, tls=ssl.create_default_context())
            channel = Channel(server.runtime, address, 5.0, tls=trusting)
            for size in (1, 0, 3 << 20):
                answer = channel.request(Command.request(1, {}, bytes(size)), 5.0)
                assert answer.ext == {"size": str(size)}
            answer = channel.request(Command.request(REPLY, {"n": "3000"}), 5.0)
            assert len(answer.body) == 3000 << 10
            assert channel.is_alive()
            channel.close()

        await asyncio.to_thread(talk)
        await server.until(lambda: server.closed)

    run_with(pem, body)


def test_a_channel_over_tls_waits_no_longer_than_it_may(pem: str, trusting: ssl.SSLContext) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(pem)

    async def body(server: Served) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]

            def talk() -> None:
                channel = Channel(server.runtime, f"127.0.0.1:{port}", 5.0, tls=trusting)
                with pytest.raises(RequestTimeout):
                    channel.request(Command.request(1), 0.05)
                channel.close()

            talking = asyncio.create_task(asyncio.to_thread(talk))
            accepted, _ = await asyncio.to_thread(silent.accept)
            with await asyncio.to_thread(server_side.wrap_socket, accepted, True):
                await talking

    run(body)

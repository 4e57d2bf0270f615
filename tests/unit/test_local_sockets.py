"""Unix sockets beside the ports of brokers: who comes over them, and when the port is taken."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from broker_rig import config, connected, pull, run, send, started
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.runtime import local_sockets
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime

NOBODY = 65534


@pytest.fixture(autouse=True)
def modest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any system gives so much room."""
    monkeypatch.setattr(local_sockets, "SEND_BUFFER", 64 << 10)


def family(endpoint: Endpoint) -> int:
    assert endpoint._transport is not None
    return int(endpoint._transport.get_extra_info("socket").family)


async def stored(client: Endpoint, count: int) -> list[ReceivedMessage]:
    """The messages of queue 0, pulled one by one: an answer has 256 KiB at most."""
    found = []
    for offset in range(count):
        reply = await pull(client, offset, maxMsgNums=1)
        assert reply.code == 0, reply.remark
        found += decode_frames(bytes(reply.body), True)
    return found


def test_a_client_of_the_same_machine_comes_over_the_socket(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert family(client) == socket.AF_UNIX
        assert client.peer_address == broker.address
        assert client.local_address == "127.0.0.1:0"
        assert (await send(client, b"near")).code == 0
        [message] = await stored(client, 1)
        assert message.born_host == "127.0.0.1:0", "a client is where its broker is"
        assert [each.peer_address for each in broker._connections._hosts] == ["127.0.0.1:0"]
        client.close()
        await broker.close()

    run(body)


def room(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2


def test_both_sides_of_each_connection_have_room_for_bulk(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        channel = Channel(runtime, broker.address, 3.0)
        assert (await send(client, b"near")).code == 0
        assert (await asyncio.to_thread(channel.request, Command.request(28), 3.0)).code == 0
        accepted = [each for each in broker._connections._hosts if isinstance(each, Endpoint)]
        assert len(accepted) == 2
        ends = [client, *accepted]
        sockets = [end._transport.get_extra_info("socket") for end in ends if end._transport]
        for sock in (channel._socket, *sockets):
            assert (sock.family, room(sock)) == (socket.AF_UNIX, local_sockets.SEND_BUFFER)
        channel.close()
        client.close()
        await broker.close()

    run(body)


def test_bulk_takes_tcp_where_the_system_leaves_a_unix_socket_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = int(Path("/proc/sys/net/core/wmem_max").read_text())
    monkeypatch.setattr(local_sockets, "SEND_BUFFER", 2 * limit + 2)

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert family(client) == socket.AF_INET
        assert (await send(client, b"far")).code == 0
        channel = Channel(runtime, broker.address, 3.0)
        assert channel._socket.family == socket.AF_UNIX, "one request at a time needs no room"
        channel.close()
        client.close()
        await broker.close()

    run(body)


def test_a_broker_may_have_none(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, local_socket=False))
        client = await connected(runtime, broker)
        assert family(client) == socket.AF_INET
        assert (await send(client, b"far")).code == 0
        client.close()
        await broker.close()

    run(body)


def test_both_ways_serve_the_same_queues(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        near = await connected(runtime, broker)
        far = Endpoint(runtime, None)
        await runtime.loop.create_connection(lambda: far, *split_address(broker.address))
        assert (family(near), family(far)) == (socket.AF_UNIX, socket.AF_INET)
        for number, client in enumerate((near, far, near, far)):
            reply = await send(client, bytes([number]) * 300_000)
            assert (reply.code, reply.ext["queueOffset"]) == (0, str(number))
        for client in (near, far):
            bodies = [bytes(message.body) for message in await stored(client, 4)]
            assert [each[:1] for each in bodies] == [b"\0", b"\1", b"\2", b"\3"]
            assert {len(each) for each in bodies} == {300_000}
        near.close()
        far.close()
        await broker.close()

    run(body)


def test_a_blocking_connection_takes_the_socket_too(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))

        def ask() -> tuple[int, int]:
            channel = Channel(runtime, broker.address, 3.0)
            try:
                code = channel.request(Command.request(105, {"topic": "none"}), 3.0).code
                return channel._socket.family, code
            finally:
                channel.close()

        assert await asyncio.to_thread(ask) == (socket.AF_UNIX, 3), "a broker tells no routes"
        await broker.close()

    run(body)


def test_the_name_goes_with_its_broker_and_comes_back_with_the_next(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        host, port = split_address(broker.address)
        await broker.close()
        assert local_sockets.dial(host, port) is None
        broker = await started(runtime, config(tmp_path, port=port))
        client = await connected(runtime, broker)
        assert family(client) == socket.AF_UNIX
        client.close()
        await broker.close()

    run(body)


def test_a_broker_whose_name_is_taken_serves_its_port(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        host, port = split_address(broker.address)
        await broker.close()
        taken = local_sockets.bind(host, port)
        assert taken is not None
        assert local_sockets.bind(host, port) is None
        broker = await started(runtime, config(tmp_path, port=port))
        taken.close()
        client = await connected(runtime, broker)
        assert family(client) == socket.AF_INET
        client.close()
        await broker.close()

    run(body)


def of_nobody(act: Callable[[tuple[str, int]], Awaitable[None]], address: tuple[str, int]) -> None:
    """Have a process of another user listen on the socket of `address` meanwhile."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.setuid(NOBODY)
        listening = local_sockets.bind(*address)
        os.write(ready[1], b"!" if listening else b"?")
        os.read(go[0], 1)
        os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"!"
        asyncio.run(act(address))  # type: ignore[arg-type]  # an async function gives a coroutine
    finally:
        os.write(go[1], b"!")
        os.waitpid(child, 0)
        for end in (*ready, *go):
            os.close(end)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_socket_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()

    async def act(address: tuple[str, int]) -> None:
        assert local_sockets.dial(*address) is None
        runtime = NativeRuntime()
        broker = await started(runtime, config(tmp_path, port=address[1]))
        client = await connected(runtime, broker)
        assert family(client) == socket.AF_INET
        assert (await send(client, b"safe")).code == 0
        client.close()
        await broker.close()

    of_nobody(act, address)


def test_names_of_both_kinds_of_addresses() -> None:
    for host in ("127.0.0.1", "::1"):
        listening = local_sockets.bind(host, 1)
        assert listening is not None
        with listening:
            found = local_sockets.dial(host, 1)
            assert found is not None
            found.close()
        assert local_sockets.dial(host, 1) is None

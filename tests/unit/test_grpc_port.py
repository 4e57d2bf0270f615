"""The port of gRPC, which takes TLS and plain text: its limits, and bad input at the
door, with a service of the test's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from saturnmq.drills.fuzz import http2 as h2
from saturnmq.gateway.certificates import Certificate, self_signed
from saturnmq.gateway.door import Door
from saturnmq.gateway.http2.grpc_calls import DONE, HEAD
from saturnmq.gateway.http2.socket_side import BASE_BYTES, LINGER_S
from saturnmq.gateway.http2.stream import MESSAGE_HEAD, Stream
from saturnmq.gateway.opening import PREFACE
from saturnmq.protocol import connections
from saturnmq.protocol.asking import connect
from saturnmq.protocol.connections import SLOW_S, Connections
from saturnmq.protocol.limits import MEMORY_MIN, Limits
from saturnmq.protocol.remoting import Command, encode
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime, new_event_loop
from tls_rig import client_hello

SETTINGS = bytes.fromhex("000000 04 00 00000000")  # an empty frame of settings
PART = bytes(64 << 10)
PARTS = 2_000  # 125 MiB


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWEEP_S", "RELIEF_S"):
        monkeypatch.setattr(connections, name, 0.01)
    monkeypatch.setattr(connections, "STOOD_S", 1e9)  # time that is skipped is no pause


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("node") / "tls", ["127.0.0.1"])


def only_certificate(file: Path) -> bytes:
    data = file.read_bytes()
    return data[data.index(b"-----BEGIN CERTIFICATE") :]


class Echo:
    """`Echo` answers its request, `Peer` the client's address. `Much` sends 125 MiB; `Deaf` reads
    nothing."""

    def __init__(self) -> None:
        self.sent = 0

    def begin(self, stream: Stream, peer: str) -> None:
        path = stream.headers[":path"]
        if stream.begun or not (stream.ended or path == "/test/Deaf"):
            return
        work = {
            "/test/Echo": self._echo,
            "/test/Peer": self._peer,
            "/test/Much": self._much,
            "/test/Deaf": self._deaf,
        }[path]
        stream.serve(asyncio.get_running_loop().create_task(work(stream, peer)))

    async def _echo(self, stream: Stream, peer: str) -> None:
        found = stream.take()
        assert found is not None
        stream.answer(HEAD, MESSAGE_HEAD.pack(0, len(found[1])) + found[1], DONE)

    async def _peer(self, stream: Stream, peer: str) -> None:
        stream.answer(HEAD, MESSAGE_HEAD.pack(0, len(peer)) + peer.encode(), DONE)

    async def _much(self, stream: Stream, peer: str) -> None:
        for _ in range(PARTS):
            await stream.write(HEAD, MESSAGE_HEAD.pack(0, len(PART)) + PART)
            self.sent += 1
        stream.finish(HEAD, DONE)

    async def _deaf(self, stream: Stream, peer: str) -> None:
        await asyncio.get_running_loop().create_future()


class Node:
    """A gRPC server and a port of Remoting that share their limits."""

    def __init__(self, limits: Limits, pem: Path | None) -> None:
        self.runtime = runtime = NativeRuntime()
        self.all = Connections(runtime, limits, lambda *_: None, lambda _: None)
        self.handler = Echo()
        tls = Certificate(str(pem), str(pem)).current if pem else lambda: None
        self.server = Door(runtime, self.all, tls, 4 << 20)
        self.address = ""

    async def open(self, start: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*split_address(self.address))
        writer.write(start)
        return reader, writer

    def channel(self, pem: Path | None = None) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if pem is None:
            return grpc.aio.insecure_channel(self.address, options)
        return grpc.aio.secure_channel(
            self.address, grpc.ssl_channel_credentials(only_certificate(pem)), options
        )

    async def until(self, check: Callable[[], object], ahead_s: float = 0.0) -> None:
        """While time passes, and with `ahead_s` so much more than really does."""
        async with asyncio.timeout(10):
            while not check():
                self.all.expire(self.runtime.monotonic() + ahead_s)
                await asyncio.sleep(0.002)

    async def is_ended(self, reader: asyncio.StreamReader) -> bytes:
        """The answer before the end of this connection."""
        async with asyncio.timeout(10):
            try:
                return await reader.read()
            except ConnectionResetError:
                return b""


def run(body: Callable[[Node], Awaitable[None]], pem: Path | None = None, **limits: Any) -> None:
    @asynccontextmanager
    async def served() -> AsyncIterator[Node]:
        node = Node(Limits(**limits), pem)
        node.address = await node.server.listen("127.0.0.1", 0)
        node.server.serve(node.handler.begin)
        try:
            yield node
        finally:
            await node.server.close()
            node.all.close("over")
            await node.until(lambda: not len(node.all))
            assert node.all.budget.used == 0
            node.runtime.close()

    async def main() -> None:
        async with served() as node:
            await body(node)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


# one port for both


def test_clients_with_tls_and_plain_text_use_one_port(pem: Path) -> None:
    async def body(node: Node) -> None:
        body = bytes(range(256)) * 8_192  # 2 MiB: several reads, windows of HTTP/2
        for file in (None, pem):
            async with node.channel(file) as channel:
                assert await channel.unary_unary("/test/Echo")(body, timeout=10) == body
                assert len(node.all) == 1
            await node.until(lambda: not len(node.all))

    run(body, pem)


def test_tls_offers_h2(pem: Path) -> None:
    async def body(node: Node) -> None:
        context = ssl.create_default_context(cafile=str(pem))
        context.set_alpn_protocols(["http/1.1", "h2"])
        host, port = split_address(node.address)
        _, writer = await asyncio.open_connection(host, port, ssl=context)
        chosen = writer.get_extra_info("ssl_object")
        assert (chosen.selected_alpn_protocol(), chosen.version()) == ("h2", "TLSv1.3")
        writer.close()

    run(body, pem)


@pytest.mark.parametrize("secure", [False, True])
def test_a_handler_sees_the_address_of_its_client(pem: Path, secure: bool) -> None:
    async def body(node: Node) -> None:
        async with node.channel(pem if secure else None) as channel:
            seen = await channel.unary_unary("/test/Peer")(b"", timeout=10)
        assert [seen.decode()] == [c.peer_address for c in node.all._hosts]
        assert split_address(seen.decode())[0] == "127.0.0.1"

    run(body, pem)


# bad input at the door


@pytest.mark.parametrize(
    "start",
    [b"", PREFACE[:10], b"\x16", client_hello()[:100]],
    ids=["nothing", "preface", "byte", "hello"],
)
def test_a_client_that_finishes_no_opening_ends_after_the_time_for_it(
    pem: Path, start: bytes
) -> None:
    async def body(node: Node) -> None:
        reader, writer = await node.open(start)
        waiting = BASE_BYTES + len(start)
        await node.until(lambda: node.all.budget.used == waiting)
        await node.until(lambda: node.all.ended == 1, ahead_s=31)
        assert await node.is_ended(reader) == b""
        writer.close()

    run(body, pem, frame_s=30)


@pytest.mark.parametrize(
    "start",
    [PREFACE, client_hello(), client_hello() + b"\xff" * 100],
    ids=["preface", "hello", "garbage"],
)
def test_a_client_that_stops_behind_its_opening_ends_after_the_time_for_it(
    pem: Path, start: bytes
) -> None:
    async def body(node: Node) -> None:
        reader, writer = await node.open(start)
        await node.until(lambda: len(node.all) == 1 or node.all.ended)
        await node.until(lambda: not len(node.all), ahead_s=31)
        await node.is_ended(reader)
        writer.close()

    run(body, pem, frame_s=30)


@pytest.mark.parametrize(
    "start",
    [b"\0\0\0\x10garbage", b"\xff" * 65_536, b"".join(encode(Command(105))), b"\x16\x02 no TLS"],
    ids=range(4),
)
def test_garbage_ends_at_once(pem: Path, start: bytes) -> None:
    async def body(node: Node) -> None:
        reader, writer = await node.open(start)
        assert await node.is_ended(reader) == b""
        await node.until(lambda: not len(node.all))
        writer.close()

    run(body, pem)


def test_a_client_of_http_1_is_told_what_the_port_serves(pem: Path) -> None:
    async def body(node: Node) -> None:
        reader, writer = await node.open(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, text = (await node.is_ended(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 505 ")
        assert b"Content-Length: %d\r\n" % len(text) in head
        assert b"gRPC" in text
        writer.close()

    run(body, pem)


def test_a_client_with_tls_is_told_that_there_is_no_certificate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(node: Node) -> None:
        host, port = split_address(node.address)
        for _ in range(3):
            with pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"):
                await asyncio.open_connection(host, port, ssl=True)

    run(body)
    told = [record for record in caplog.records if "no certificate" in record.message]
    assert [record.levelname for record in told].count("WARNING") == 1


def test_a_flood_of_bad_openings_leaves_nothing_and_delays_nobody(pem: Path) -> None:
    starts = [
        b"\xff" * 1_000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x40\x00\x01" + b"x" * 9_000,
    ]

    async def body(node: Node) -> None:
        flood = [await node.open(starts[i % 3]) for i in range(300)]
        async with node.channel(pem) as channel:
            assert await channel.unary_unary("/test/Echo")(b"1", timeout=10) == b"1"
        await node.until(lambda: len(node.all) == 100)  # those that are not finished
        await node.until(lambda: not len(node.all), ahead_s=31)
        for reader, writer in flood:
            await node.is_ended(reader)
            writer.close()

    run(body, pem, frame_s=30)


# limits


def test_connections_of_grpc_and_remoting_count_together(pem: Path) -> None:
    async def body(node: Node) -> None:
        listener = await node.runtime.listen("127.0.0.1", 0, node.all.accept)
        endpoint = await connect(node.runtime, *split_address(listener.address))
        first, one = await node.open(PREFACE + SETTINGS)
        assert await first.read(9)
        second, two = await node.open(PREFACE + SETTINGS)
        assert await node.is_ended(second) == b""
        assert node.all.refused == 1
        one.close()
        await node.until(lambda: len(node.all) == 1)
        third, three = await node.open(PREFACE + SETTINGS)
        assert await third.read(9)
        for writer in (two, three):
            writer.close()
        endpoint.close()
        listener.close()

    run(body, pem, connections=2)


def test_one_address_has_a_limit_of_its_own(pem: Path) -> None:
    async def body(node: Node) -> None:
        first, one = await node.open(PREFACE + SETTINGS)
        assert await first.read(9)
        second, two = await node.open(client_hello())
        assert await node.is_ended(second) == b""
        assert node.all.status()["connectionsRefused"] == "1"
        one.close()
        two.close()

    run(body, pem, per_address=1)


def test_a_silent_client_is_asked_for_a_sign_of_life(pem: Path) -> None:
    async def body(node: Node) -> None:
        reader, writer = await node.open(PREFACE + SETTINGS)
        async with asyncio.timeout(10):
            kinds = set()
            while 6 not in kinds:  # a PING
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3], "big"))
                kinds.add(head[3])
                if head[3] == 4 and not head[4]:
                    writer.write(bytes.fromhex("000000 04 01 00000000"))
                    await reader.readexactly(13 + 9)  # the window, and the word that SETTINGS came
                    now = node.runtime.monotonic()
                    for ahead_s in (40, 41, 42, 43):
                        node.all.expire(now + ahead_s)
        writer.close()

    run(body, pem, idle_s=120)


def test_a_client_that_stays_silent_ends(pem: Path) -> None:
    async def body(node: Node) -> None:
        reader, writer = await node.open(PREFACE + SETTINGS)
        assert await reader.read(9)
        await node.until(lambda: node.all.ended == 1, ahead_s=121)
        await node.is_ended(reader)
        writer.close()

    run(body, pem, idle_s=120)


# flow control


def test_what_a_client_does_not_read_stays_at_the_server() -> None:
    async def body(node: Node) -> None:
        # 2 GiB - 1 of window for the stream, and a GiB for the connection.
        start = h2.PREFACE + h2.settings((h2.INITIAL_WINDOW, (1 << 31) - 1))
        _, writer = await node.open(start + h2.window(0, 1 << 30) + h2.call(1, "/test/Much"))
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport
        await node.until(
            lambda: any(c.unread_s(node.runtime.monotonic()) > 0.3 for c in node.all._hosts)
        )
        assert 20 < node.handler.sent < PARTS // 2
        assert node.all.budget.used < BASE_BYTES + (1 << 20)
        await node.until(lambda: node.all.ended == 1, ahead_s=31)
        writer.transport.abort()

    run(body, frame_s=30)


def test_what_the_server_does_not_read_stays_at_the_client(pem: Path) -> None:
    async def body(node: Node) -> None:
        async with node.channel(pem) as channel:
            call = channel.stream_unary("/test/Deaf")(timeout=60)
            writing = asyncio.ensure_future(_write_all(call))
            await asyncio.wait((writing,), timeout=1)
            assert not writing.done()
            assert node.all.budget.used < BASE_BYTES + (9 << 17)
            call.cancel()
            await asyncio.wait((writing,), timeout=10)
            assert await channel.unary_unary("/test/Echo")(b"1", timeout=10) == b"1"

    run(body, pem)


def test_the_end_of_the_server_waits_for_no_client_that_does_not_read() -> None:
    async def body(node: Node) -> None:
        start = h2.PREFACE + h2.settings((h2.INITIAL_WINDOW, (1 << 31) - 1))
        start += h2.window(0, 1 << 30) + h2.call(1, "/test/Much")
        _, writer = await node.open(start)
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport
        await node.until(
            lambda: any(c.unread_s(node.runtime.monotonic()) > 0.1 for c in node.all._hosts)
        )
        (found,) = node.server._open
        assert found.unsent > 0
        await node.server.close()
        async with asyncio.timeout(LINGER_S / 2):
            await node.until(lambda: found.unsent == 0)
        writer.transport.abort()

    run(body)


def untaken(path: str, calls: int) -> bytes:
    """What a client says that lets no answer come."""
    begin = h2.PREFACE + h2.settings((h2.INITIAL_WINDOW, 0))
    return begin + b"".join(h2.call(n, path) for n in range(1, 2 * calls, 2))


def test_clients_that_take_no_answer_give_way_when_memory_is_short() -> None:
    async def body(node: Node) -> None:
        greedy = [await node.open(untaken("/test/Much", 60)) for _ in range(5)]
        await node.until(lambda: node.all.budget.used > node.all.budget.limit)
        now = node.runtime.monotonic
        await node.until(lambda: all(c.held_up_s(now()) > SLOW_S for c in node.all._hosts))
        async with node.channel() as channel:
            assert await channel.unary_unary("/test/Echo")(b"1", timeout=10) == b"1"
        assert node.all.ended >= 1
        assert node.all.budget.used < node.all.budget.limit
        assert node.all.budget.most < 2 * MEMORY_MIN
        for _, writer in greedy:
            writer.transport.abort()

    run(body, memory_bytes=MEMORY_MIN)


def test_an_answer_that_nobody_takes_ends_and_its_connection_goes_on() -> None:
    async def body(node: Node) -> None:
        _, writer = await node.open(untaken("/test/Much", 2))
        await node.until(lambda: node.all.budget.used > 512 << 10)
        await node.until(lambda: node.all.budget.used == BASE_BYTES, ahead_s=31)
        assert len(node.all) == 1
        writer.transport.abort()

    run(body, frame_s=30)


def test_a_request_that_never_ends_is_ended_and_its_connection_goes_on() -> None:
    async def body(node: Node) -> None:
        start = h2.PREFACE + h2.settings() + h2.call(1, "/test/Echo", None)
        reader, writer = await node.open(start + h2.frame(h2.DATA, 0, 1, b"\0\0\0"))
        await node.until(lambda: node.all.budget.used > BASE_BYTES)
        await node.until(lambda: node.all.budget.used == BASE_BYTES, ahead_s=31)
        writer.write(h2.call(3, "/test/Echo", b"1"))
        async with asyncio.timeout(10):
            got = await reader.readuntil(h2.frame(h2.DATA, 0, 3, h2.message(b"1")))
        assert b"grpc-status\x014" in got
        writer.close()

    run(body, frame_s=30)


@pytest.mark.parametrize(
    "part",
    [h2.frame(h2.PING, payload=bytes(8))[:-1], h2.frame(h2.HEADERS, 0, 1, bytes(9_000))],
    ids=["frame", "headers"],
)
def test_a_frame_that_never_ends_counts_and_ends_its_connection(part: bytes) -> None:
    async def body(node: Node) -> None:
        reader, writer = await node.open(h2.PREFACE + h2.settings() + part)
        await node.until(lambda: node.all.budget.used > BASE_BYTES)
        await node.until(lambda: node.all.ended == 1, ahead_s=31)
        await node.is_ended(reader)
        writer.close()

    run(body, frame_s=30)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_a_client_of_an_older_tls_is_told_so(pem: Path) -> None:
    async def body(node: Node) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        host, port = split_address(node.address)
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"):
            await asyncio.open_connection(host, port, ssl=context)
        await node.until(lambda: not len(node.all))

    run(body, pem)


async def _write_all(call: Any) -> None:
    for _ in range(PARTS):
        await call.write(PART)


def test_a_pause_of_the_node_costs_no_client_its_opening(
    pem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STOOD_S", 3.0)

    async def body(node: Node) -> None:
        _, writer = await node.open(PREFACE[:3])
        await node.until(lambda: len(node.all) == 1)
        later = node.runtime.monotonic() + 31
        for turn in range(5):
            node.all.expire(later + turn)
        assert node.all.ended == 0
        writer.close()

    run(body, pem, frame_s=30)


def test_unfinished_openings_give_way_when_memory_is_short(
    pem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SLOW_S", 0.0)

    async def body(node: Node) -> None:
        reader, writer = await node.open(b"\x16\x03\x01\x40\x00\x01" + b"x" * 9_000)
        await node.until(lambda: node.all.budget.used > BASE_BYTES + 9_000)
        node.all.budget.hold(MEMORY_MIN)
        _, other = await node.open(b"\x16\x03\x01\x40\x00\x01" + b"x" * 9_000)
        await node.until(lambda: node.all.ended > 0)
        assert await node.is_ended(reader) == b""
        node.all.budget.give_back(MEMORY_MIN)
        writer.close()
        other.close()

    run(body, pem, memory_bytes=MEMORY_MIN)


# the end


def test_the_end_of_the_server_ends_calls_connections_and_the_port(pem: Path) -> None:
    async def body(node: Node) -> None:
        channels = [node.channel(), node.channel(pem)]
        calls = [channel.stream_unary("/test/Deaf")(timeout=60) for channel in channels]
        for call in calls:
            await call.wait_for_connection()
        _, writer = await node.open(PREFACE[:3])
        await node.until(lambda: len(node.all) == 3)
        await node.server.close()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        await node.until(lambda: not len(node.all))
        with pytest.raises(ConnectionRefusedError):
            await node.open()
        for channel in channels:
            await channel.close()
        writer.close()

    run(body, pem)


def test_new_files_serve_from_the_next_connection_on(tmp_path: Path, pem: Path) -> None:
    async def body(node: Node) -> None:
        async with node.channel(file) as channel:
            assert await channel.unary_unary("/test/Echo")(b"1", timeout=10) == b"1"
        other = self_signed(tmp_path / "other", ["127.0.0.1"])
        renewed.write_bytes(other.read_bytes())
        other.replace(file)
        async with node.channel(file) as channel:
            assert await channel.unary_unary("/test/Echo")(b"2", timeout=10) == b"2"
        file.write_text("half a renewal")
        async with node.channel(renewed) as channel:
            assert await channel.unary_unary("/test/Echo")(b"3", timeout=10) == b"3"

    file, renewed = tmp_path / "node.pem", tmp_path / "renewed.pem"
    file.write_bytes(pem.read_bytes())
    run(body, file)

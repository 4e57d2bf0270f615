"""Limits of a server, on loopback: how many connections, how long they may be silent or slow, and
how much memory their peers may take."""

from __future__ import annotations

import asyncio
import gc
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import broker_rig
import pytest
from limits_rig import REPLY, Served, ask, frame, run
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.replication import ha_master
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import connections, fastjson
from saturnmq.protocol import endpoint as endpoint_module
from saturnmq.protocol.asking import connect
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.limits import MEMORY_MIN, Limits
from saturnmq.protocol.remoting import Command, FrameDecoder, encode
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWEEP_S", "RELIEF_S"):
        monkeypatch.setattr(connections, name, 0.01)


@pytest.mark.parametrize(
    ("limits", "name"),
    [({"connections": 3}, "maxConnections"), ({"per_address": 3}, "maxConnectionsPerAddress")],
)
def test_a_connection_beyond_a_limit_is_told_it_and_closed(
    limits: dict[str, int], name: str
) -> None:
    async def body(served: Served) -> None:
        first = [await served.connect() for _ in range(3)]
        for endpoint in first:
            await ask(endpoint)
        further = await served.connect()
        refused = await ask(further)
        assert refused.code == 2
        assert "3 connections" in str(refused.remark)
        assert f"the limit is {name}:" in str(refused.remark)
        await served.until(lambda: further.closed)
        assert (len(served.all), served.all.refused, served.handled) == (3, 1, 3)
        first[0].close()
        await served.until(lambda: len(served.all) == 2)
        assert (await ask(await served.connect())).code == 0

    run(body, **limits)


class From(asyncio.Transport):
    """A transport of a peer at this address."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 4711)})

    def writelines(self, list_of_data: object) -> None:
        pass

    def abort(self) -> None:
        pass

    close = abort

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass


@pytest.mark.parametrize(
    ("first", "then", "refused"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_addresses_of_one_ipv6_network_count_as_one(first: str, then: str, refused: bool) -> None:
    async def body(served: Served) -> None:
        for host in (first, then):
            served.all.accept().connection_made(From(host))
        assert served.all.refused == refused
        assert len(served.all) == 2 - refused

    run(body, per_address=1)


def test_those_who_are_refused_and_ask_nothing_do_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "REFUSING_MAX", 2)
    monkeypatch.setattr(connections, "REFUSING_S", 0.5)

    async def body(served: Served) -> None:
        await ask(await served.connect())
        told = [await served.connect() for _ in range(2)]
        await served.until(lambda: served.all.refused == 2)
        cut = await served.connect()
        await served.until(lambda: cut.closed)
        assert not any(endpoint.closed for endpoint in told)
        await served.until(lambda: all(endpoint.closed for endpoint in told), ahead_s=0.6)
        assert len(served.all) == 1

    run(body, connections=1)


def test_who_says_nothing_ends_and_who_speaks_stays() -> None:
    async def body(served: Served) -> None:
        speaks, silent = await served.connect(), await served.connect()
        for endpoint in (speaks, silent):
            await ask(endpoint)
        await asyncio.sleep(0.3)
        await ask(speaks)
        await served.until(lambda: silent.closed, ahead_s=0.8)
        assert not speaks.closed
        assert served.all.ended == 1
        assert [endpoint.peer_address for endpoint in served.closed] == [silent.local_address]

    run(body, idle_s=1)


@pytest.mark.parametrize("sent", [b"", b"\0", frame(100)[:-1], frame(100) + frame(100)[:9]])
def test_a_request_that_is_never_whole_ends_its_connection(sent: bytes) -> None:
    async def body(served: Served) -> None:
        whole = await served.connect()
        await ask(whole)
        _, writer = await served.open()
        writer.write(sent)
        await served.until(lambda: len(served.all) == 2)
        await asyncio.sleep(0.01)
        await served.until(lambda: len(served.all) == 1, ahead_s=1.0)
        assert not whole.closed
        writer.close()

    run(body, frame_s=1)


def test_bytes_that_drop_in_do_not_prolong_a_request() -> None:
    async def body(served: Served) -> None:
        _, writer = await served.open()
        whole = frame(1 << 16)
        sent = 0

        def dribble() -> bool:
            nonlocal sent
            if not writer.is_closing():
                writer.write(whole[sent : sent + 1])
            sent += 1
            return sent > 1 and not len(served.all)

        await served.until(dribble)
        assert sent < len(whole)
        writer.close()

    run(body, frame_s=0.2)


def test_nobody_was_silent_while_this_process_stood_still() -> None:
    async def body(served: Served) -> None:
        client = await served.connect()
        await ask(client)
        now = served.runtime.monotonic()
        served.all.expire(now)
        for later in (1000, 1000.5, 1001.5):  # it stood still, and heard nobody
            served.all.expire(now + later)
            await asyncio.sleep(0.01)
            assert not client.closed
        served.all.expire(now + 1002.5)
        await served.until(lambda: client.closed, ahead_s=1003)

    run(body, idle_s=2)


def test_requests_are_not_handled_while_replies_are_not_read() -> None:
    async def body(served: Served) -> None:
        reader, writer = await served.open()
        count = 60
        for opaque in range(count):
            asked = Command(REPLY, {"n": "1024"}, opaque=opaque)
            writer.write(b"".join(encode(asked)))
        await served.until(lambda: served.handled)
        await asyncio.sleep(0.1)
        assert served.handled < 20
        assert (1 << 16) < served.all.budget.used < 4 << 20
        decoder = FrameDecoder()
        seen: list[Any] = []
        async with asyncio.timeout(10):
            while len(seen) < count:
                seen += [reply.opaque for reply in decoder.feed(await reader.read(1 << 20))]
        assert seen == list(range(count))
        await served.until(lambda: served.all.budget.used < 1 << 20)
        writer.close()

    run(body)


def test_who_never_reads_ends() -> None:
    async def body(served: Served) -> None:
        _, writer = await served.open()
        asked = Command(REPLY, {"n": "15000"}, opaque=1)
        writer.write(b"".join(encode(asked)) * 3)
        await served.until(lambda: served.all.budget.used > 1 << 20)
        await served.until(lambda: not len(served.all), ahead_s=1.1)
        assert served.all.budget.used == 0
        writer.close()

    run(body, frame_s=1, idle_s=1000)


def test_a_connection_that_is_refused_before_it_is_open_does_not_stay() -> None:
    async def body(served: Served) -> None:
        def accept() -> Endpoint:
            endpoint = Endpoint(served.runtime, None, server=True)
            endpoint.abort("there is no room")
            return endpoint

        listener = await served.runtime.listen("127.0.0.1", 0, accept)
        client = await connect(served.runtime, *split_address(listener.address))
        await served.until(lambda: client.closed)
        listener.close()

    run(body)


def test_what_a_closed_connection_does_not_read_is_kept_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint_module, "LINGER_S", 0.1)

    async def body(served: Served) -> None:
        reader, writer = await served.open()
        writer.write(b"".join(encode(Command(REPLY, {"n": "15000"}, opaque=1))))
        await served.until(lambda: served.all.budget.used > 1 << 20)
        served.all.close("this server ends")
        await asyncio.sleep(0.3)
        got = 0
        while part := await reader.read(1 << 20):
            got += len(part)
        assert got < 15_000 << 10
        writer.close()

    run(body)


@pytest.mark.parametrize("said", [b"", b"\0"])
def test_who_dials_the_port_of_slaves_and_says_nothing_whole_does_not_stay(
    tmp_path: Path, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_master, "CONNECTIONS_MAX", 1)

    async def body(runtime: NativeRuntime) -> None:
        settings = broker_rig.config(tmp_path, ha_idle_ms=200, ha_heartbeat_ms=20)
        broker = await broker_rig.started(runtime, settings)
        _, writer = await asyncio.open_connection(*split_address(broker.ha_address))
        await broker_rig.until(lambda: len(broker.ground.master.connections) == 1)
        further, second = await asyncio.open_connection(*split_address(broker.ha_address))
        assert await further.read() == b""
        assert len(broker.ground.master.connections) == 1
        began = runtime.monotonic()
        while broker.ground.master.connections and not writer.is_closing():
            writer.write(said)
            await asyncio.sleep(0.05)
            assert runtime.monotonic() - began < 5
        for each in (writer, second):
            each.close()
        await broker.close()

    broker_rig.run(body)


class Dribblers:
    """Connections that promise 16 MiB each, and send `size` bytes of it."""

    def __init__(self, served: Served, size: int) -> None:
        self.served = served
        self.start = struct.pack(">i", 16 << 20) + frame(0)[4:]
        self.rest = bytes(size - len(self.start))
        self.opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def add(self, count: int) -> None:
        """All are there before the first one sends: a connection has its first buffer in any
        case, also beyond the budget."""
        opened = [await self.served.open() for _ in range(count)]
        self.opened += opened
        await self.served.until(lambda: len(self.served.all) >= len(self.opened))
        for _, writer in opened:
            writer.write(self.start + self.rest)
        async with asyncio.timeout(10):
            await asyncio.gather(*(writer.drain() for _, writer in self.opened))

    def close(self) -> None:
        for _, writer in self.opened:
            writer.close()


def test_many_that_promise_16_mib_and_dribble_take_no_more_than_the_budget() -> None:
    async def body(served: Served) -> None:
        budget = served.all.budget
        dribblers = Dribblers(served, 3 << 20)
        await dribblers.add(40)
        await served.until(lambda: budget.refused)
        assert budget.most <= budget.limit
        other = await served.connect()
        assert (await ask(other)).code == 0  # which needs no more than a connection has
        dribblers.close()
        await served.until(lambda: len(served.all) == 1)
        large = await ask(other, body=bytes(4 << 20))
        assert (large.code, large.ext) == (0, {"size": str(4 << 20)})

    run(body, memory_bytes=64 << 20)


def test_a_connection_that_ends_leaves_no_buffer_behind() -> None:
    async def body(served: Served) -> None:
        gc.disable()
        try:
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            dribblers = Dribblers(served, 3 << 20)
            await dribblers.add(3)
            await served.until(lambda: served.all.budget.used >= 12 << 20)
            dribblers.close()
            dribblers.opened.clear()
            await served.until(lambda: not len(served.all))
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
        assert after - before < 4 << 20

    run(body)


def test_whose_request_has_no_room_is_told_so_and_goes_on() -> None:
    async def body(served: Served) -> None:
        budget = served.all.budget
        budget.hold(budget.limit - (1 << 20))
        client = await served.connect()
        refused = await ask(client, body=bytes(4 << 20))
        assert refused.code == 2
        assert "memoryBudgetBytes" in str(refused.remark)
        assert str(budget.limit) in str(refused.remark)
        assert (await ask(client, body=bytes(1000))).ext == {"size": "1000"}
        budget.give_back(budget.limit - (1 << 20))
        assert (await ask(client, body=bytes(4 << 20))).code == 0
        assert served.all.status()["memoryRefused"] == "1"

    run(body, memory_bytes=64 << 20)


def test_one_connection_gets_its_part_and_no_more() -> None:
    async def body(served: Served) -> None:
        client = await served.connect()
        await ask(client)
        (of_it,) = served.all._hosts
        of_it.budget.hold(15 << 20)
        refused = await ask(client, body=bytes(4 << 20))
        assert (refused.code, "of one connection" in str(refused.remark)) == (2, True)
        assert (await ask(await served.connect(), body=bytes(4 << 20))).code == 0

    run(body, memory_bytes=64 << 20)


def test_slow_ones_give_way_to_others_when_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "SLOW_S", 0.2)

    async def body(served: Served) -> None:
        dribblers = Dribblers(served, 3 << 20)
        await dribblers.add(14)  # 4 MiB of memory each
        await asyncio.sleep(0.25)
        client = await served.connect()
        reply = await ask(client, body=bytes(12 << 20))
        assert (reply.code, reply.ext) == (0, {"size": str(12 << 20)})
        status = served.all.status()
        assert int(status["connectionsEnded"]) >= 1
        assert int(status["memoryMostUsedBytes"]) <= 64 << 20
        told = [
            FrameDecoder().feed(await reader.read(1 << 16))[0].code
            for reader, _ in dribblers.opened[:1]  # the oldest
        ]
        assert told == [2]
        dribblers.close()

    run(body, memory_bytes=64 << 20)


def test_buffers_of_connections_that_rest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "REST_S", 0.5)

    async def body(served: Served) -> None:
        client = await served.connect()
        await ask(client, body=bytes(1 << 20))
        used = served.all.budget.used
        await served.until(lambda: served.all.budget.used < used, ahead_s=0.6)
        assert served.all.budget.used == 16 << 10
        assert (await ask(client, body=bytes(1 << 20))).code == 0

    run(body)


def test_nothing_is_begun_while_the_budget_is_overdrawn() -> None:
    async def body(served: Served) -> None:
        client, budget = await served.connect(), served.all.budget
        await ask(client)
        budget.hold(budget.limit)
        assert (await ask(client)).code == 2
        budget.give_back(budget.limit)
        assert (await ask(client)).code == 0
        assert served.handled == 2

    run(body)


def test_half_of_the_memory_there_is_is_the_most(caplog: pytest.LogCaptureFixture) -> None:
    asked = Limits(memory_bytes=512 << 20)
    assert asked.within(1 << 30) == asked
    assert not caplog.records
    assert asked.within(600 << 20) == Limits(memory_bytes=300 << 20)
    assert "memoryBudgetBytes is 314572800" in caplog.text
    assert asked.within(1 << 20).memory_bytes == MEMORY_MIN


def test_limits_that_make_no_sense_are_refused() -> None:
    for changes, text in (
        ({"max_connections": 0}, "maxConnections is 0"),
        ({"max_connections_per_address": -1}, "maxConnectionsPerAddress is -1"),
        ({"max_idle_s": 0}, "serverChannelMaxIdleTimeSeconds is 0"),
        ({"frame_timeout_s": 0}, "frameTimeoutSeconds is 0"),
        ({"memory_budget_bytes": 1000}, "memoryBudgetBytes is 1000"),
    ):
        with pytest.raises(ConfigError, match=text):
            BrokerConfig(**changes)


def test_a_nameserver_refuses_and_ends_connections_and_tells_the_figures() -> None:
    async def main() -> None:
        runtime = NativeRuntime()
        server = NameServer(runtime, "127.0.0.1", 0, limits=Limits(connections=2, idle_s=1))
        await server.start()
        address = split_address(server.address)
        async with asyncio.timeout(10):
            first = [await connect(runtime, *address) for _ in range(2)]
            for endpoint in first:
                assert (await ask(endpoint, 106)).code == 0
            further = await connect(runtime, *address)
            assert (await ask(further, 106)).code == 2
            table = fastjson.loads((await ask(first[0], 28)).body)["table"]
            assert (table["connections"], table["connectionsMax"]) == ("2", "2")
            assert table["connectionsRefused"] == "1"
            while not first[1].closed:
                await asyncio.sleep(0.01)
                await ask(first[0], 106)
        await server.close()

    asyncio.run(main())


def test_a_broker_refuses_and_ends_connections_and_tells_the_figures(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = broker_rig.config(tmp_path, max_connections=2, max_idle_s=1)
        broker = await broker_rig.started(runtime, settings)
        first = [await broker_rig.connected(runtime, broker) for _ in range(2)]
        for endpoint in first:
            assert (await ask(endpoint, 28)).code == 0
        further = await broker_rig.connected(runtime, broker)
        assert (await ask(further, 28)).code == 2
        table = fastjson.loads((await ask(first[0], 28)).body)["table"]
        assert (table["connections"], table["connectionsRefused"]) == ("2", "1")
        assert 0 < int(table["memoryUsedBytes"]) < int(table["memoryBudgetBytes"]) == 512 << 20
        async with asyncio.timeout(10):
            while not first[1].closed:
                await asyncio.sleep(0.01)
                await ask(first[0], 28)
        await broker.close()

    broker_rig.run(body)

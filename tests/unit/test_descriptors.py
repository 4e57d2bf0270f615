"""A process that runs out of descriptors: connections do not take those that files need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Awaitable, Callable, Iterator

import pytest
from saturnmq.protocol.asking import connect
from saturnmq.protocol.channel import Channel
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError, ConnectFailed
from saturnmq.runtime.native import NativeRuntime, raise_descriptor_limit

MORE = 40  # descriptors that are free at first


@pytest.fixture
def few() -> Iterator[int]:
    """The limit: some more than are in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    limit = highest + 1 + MORE
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def is_kept(reader: asyncio.StreamReader) -> bool:
    """Whether the other side greets, instead of hanging up."""
    try:
        return bool(await asyncio.wait_for(reader.read(1), 5))
    except ConnectionError:
        return False


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"!")  # type: ignore[attr-defined]


def test_connections_leave_descriptors_to_files(few: int, caplog) -> None:
    asyncio.run(connect_until_refused(few))
    assert f"the limit is {few}" in caplog.text


async def connect_until_refused(most: int) -> None:
    listener = await NativeRuntime().listen("127.0.0.1", 0, Greeting)
    address = split_address(listener.address)
    open_: list[asyncio.StreamWriter] = []
    kept = True
    while kept:
        assert len(open_) < most
        reader, writer = await asyncio.open_connection(*address)
        kept = await is_kept(reader)
        open_.append(writer)
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    for file in files:
        os.close(file)
    assert len(open_) >= 3
    for writer in open_:
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(5):
        while not kept:  # as soon as the listener's side has closed them
            reader, writer = await asyncio.open_connection(*address)
            kept = await is_kept(reader)
            writer.close()
    listener.close()


def test_a_node_that_gets_no_socket_to_listen_on_says_what_is_lacking(few: int) -> None:
    async def listen() -> None:
        runtime, files = NativeRuntime(), []
        try:
            with contextlib.suppress(OSError):
                while True:
                    files.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1.*ulimit -n"):
                await runtime.listen("127.0.0.1", 0, Greeting)
        finally:
            for file in files:
                os.close(file)

    asyncio.run(listen())


async def awaited(address: str) -> None:
    await connect(NativeRuntime(), *split_address(address))


async def blocking(address: str) -> None:
    Channel(NativeRuntime(), address, 1)


@pytest.mark.parametrize("dial", [awaited, blocking])
def test_who_gets_no_socket_to_connect_is_told_what_is_lacking(
    few: int, dial: Callable[[str], Awaitable[None]]
) -> None:
    async def body() -> None:
        files: list[int] = []
        listener = await NativeRuntime().listen("127.0.0.1", 0, Greeting)
        try:
            with contextlib.suppress(OSError):
                while True:
                    files.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(ConnectFailed, match=r"no connection to 127\.0\.0\.1.*ulimit -n"):
                await dial(listener.address)
        finally:
            for file in files:
                os.close(file)
            listener.close()

    asyncio.run(body())


def test_a_node_opens_as_many_files_as_the_system_allows(few: int) -> None:
    raise_descriptor_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > few
    assert hard in (soft, resource.RLIM_INFINITY)

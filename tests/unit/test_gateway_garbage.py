"""A call of gRPC that ends, in whatever way, leaves nothing that only a collection frees: its
request may have megabytes, and a node's collector looks rarely (`cli/garbage.py`)."""

from __future__ import annotations

import ast
import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from broker_rig import run, until
from gateway_door_rig import Opened, opened
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CLIENT_ID, GrpcCall
from saturnmq.gateway.http2.connection import Http2Connection
from saturnmq.gateway.http2.socket_side import GrpcSocket
from saturnmq.gateway.http2.stream import Stream
from saturnmq.runtime.native import NativeRuntime

HEADERS = ((CLIENT_ID, "client"),)
OF_A_CALL = (Stream, GrpcCall, Http2Connection, GrpcSocket)
SERVERS = ("broker", "gateway", "nameserver", "protocol", "runtime", "store")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def garbage() -> list[str]:
    """The kinds of the objects of calls that a collection finds now."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [type(each).__name__ for each in gc.garbage if isinstance(each, OF_A_CALL)]
    gc.garbage.clear()
    return found


def send_request(topic: str) -> Any:
    message = v2.Message(topic=v2.Resource(name=topic), body=b"x" * 1000)
    message.system_properties.message_id = "0123456789ABCDEF"
    message.system_properties.message_type = v2.MessageType.NORMAL
    return v2.SendMessageRequest(messages=[message])


def receive_request(poll_s: int, topic: str = "T", broker: str = "") -> Any:
    queue = v2.MessageQueue(topic=v2.Resource(name=topic), broker=v2.Broker(name=broker))
    request = v2.ReceiveMessageRequest(group=v2.Resource(name="G"), message_queue=queue)
    request.invisible_duration.FromSeconds(30)
    request.long_polling_timeout.FromSeconds(poll_s)
    return request


async def taken(call: Any) -> list[Any]:
    return [each async for each in call]


async def sends_to_nowhere(node: Opened) -> None:
    answer = await node.method("SendMessage")(send_request("nowhere"), metadata=HEADERS)
    assert answer.status.code == v2.Code.TOPIC_NOT_FOUND


async def asks_an_unknown_broker(node: Opened) -> None:
    call = node.method("ReceiveMessage")(receive_request(1, broker="other"), metadata=HEADERS)
    assert (await taken(call))[0].status.code not in (v2.Code.OK, v2.Code.MESSAGE_NOT_FOUND)


async def receives_nothing_in_time(node: Opened) -> None:
    call = node.method("ReceiveMessage")(receive_request(9), metadata=HEADERS, timeout=0.3)
    assert (await taken(call))[0].status.code == v2.Code.MESSAGE_NOT_FOUND


async def talks_until_it_is_late(node: Opened) -> None:
    call = node.method("Telemetry")(metadata=HEADERS, timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError):
        await taken(call)


async def receives_and_leaves(node: Opened) -> None:
    held = node.broker.messaging.pops.held
    call = node.method("ReceiveMessage")(receive_request(9), metadata=HEADERS)
    reading = asyncio.ensure_future(taken(call))
    await until(lambda: len(held) > 0)
    call.cancel()
    await asyncio.wait([reading])


async def talks_and_leaves(node: Opened) -> None:
    call = node.method("Telemetry")(metadata=HEADERS)
    command = v2.TelemetryCommand()
    command.settings.client_type = v2.ClientType.SIMPLE_CONSUMER
    command.settings.subscription.group.name = "G"
    await call.write(command)
    assert (await call.read()).HasField("settings")
    call.cancel()


@pytest.mark.parametrize(
    "act",
    [
        sends_to_nowhere,
        asks_an_unknown_broker,
        receives_nothing_in_time,
        receives_and_leaves,
        talks_until_it_is_late,
        talks_and_leaves,
    ],
)
def test_a_call_that_ends_leaves_no_garbage(
    tmp_path: Path, act: Callable[[Opened], Awaitable[None]]
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            for _ in range(3):
                await act(node)
            await until(lambda: not any(each.http2.streams for each in node.door._open))
            await until(lambda: not len(node.broker.messaging.pops.held))
            assert garbage() == []

    run(body)


def test_a_connection_with_open_calls_that_ends_leaves_no_garbage(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            held = node.broker.messaging.pops.held
            receive = node.method("ReceiveMessage")
            calls = [receive(receive_request(9), metadata=HEADERS) for _ in range(70)]
            reading = [asyncio.ensure_future(taken(call)) for call in calls]
            talk = node.method("Telemetry")(metadata=HEADERS)
            await until(lambda: len(held) == len(calls))
            for each in list(node.door._open):
                each.abort("as if its client were gone")
            del each
            await asyncio.wait(reading)
            del talk
            await until(lambda: not node.door._open and not len(held))
            assert garbage() == []

    run(body)


def kept_errors(function: ast.AST) -> Iterator[tuple[int, str]]:
    """The places where it raises what a name of its own has: its frame is in the traceback of that
    error then, so both stay, with all that the frames below have, until a collection. `copy` of
    the error, a list from which it is popped, or `del` is the way out."""
    own: list[ast.AST] = []
    left = list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            own.append(node)
            left += ast.iter_child_nodes(node)
    names = [each for each in own if isinstance(each, ast.Name)]
    kept = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    kept -= {each.id for each in names if isinstance(each.ctx, ast.Del)}
    for node in own:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name) and node.exc.id in kept:
            yield node.lineno, node.exc.id


def test_no_server_raises_an_error_that_a_name_keeps() -> None:
    found = []
    for folder in SERVERS:
        for file in (ROOT / folder).rglob("*.py"):
            for each in ast.walk(ast.parse(file.read_text())):
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    places = kept_errors(each)
                    found += [f"{file.relative_to(ROOT)}:{line} {name}" for line, name in places]
    assert found == []

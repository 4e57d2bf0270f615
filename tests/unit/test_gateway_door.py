"""The door of a gateway: real calls over loopback, by grpcio's client."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from broker_rig import run
from gateway_door_rig import opened
from saturnmq.cli import grpc_gateway
from saturnmq.cli.grpc_gateway import NodeGateway, TlsSettings
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CLIENT_ID
from saturnmq.gateway.door import Door
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.limits import Limits
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime

Code = v2.Code
HEADERS = ((CLIENT_ID, "client"),)


def receive_request(seconds: int) -> Any:
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name="G"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name="T")),
        auto_renew=True,
    )
    request.long_polling_timeout.FromSeconds(seconds)
    return request


def test_calls_reach_the_gateway_with_their_headers_and_deadlines(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            beat = node.method("Heartbeat")
            request = v2.HeartbeatRequest(group=v2.Resource(name="G"), client_type=2)
            assert (await beat(request, metadata=HEADERS)).status.code == Code.OK
            (member,) = node.broker.ground.context.clients.consumer_group("G").members
            assert member.peer_address.startswith("127.0.0.1:")
            assert (await beat(request)).status.code == Code.CLIENT_ID_REQUIRED
            receive = node.method("ReceiveMessage")
            begun = runtime.monotonic()
            parts = [
                each async for each in receive(receive_request(20), timeout=2, metadata=HEADERS)
            ]
            assert 1.3 < runtime.monotonic() - begun < 2
            assert parts[0].status.code == Code.MESSAGE_NOT_FOUND
            assert parts[-1].HasField("delivery_timestamp")

    run(body)


def test_a_client_that_hangs_up_waits_for_nothing(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            held = node.broker.messaging.pops.held
            waiting = node.method("ReceiveMessage")(
                receive_request(20), timeout=30, metadata=HEADERS
            )
            reading = asyncio.ensure_future(waiting.read())
            async with asyncio.timeout(10):
                while not len(held):
                    await asyncio.sleep(0.01)
                waiting.cancel()
                while len(held):
                    await asyncio.sleep(0.01)
            with pytest.raises(asyncio.CancelledError):
                await reading

    run(body)


def test_telemetry_goes_both_ways_and_ends_with_an_error_for_settings_of_no_client(
    tmp_path,
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            good = v2.Settings(client_type=v2.ClientType.PRODUCER)
            good.publishing.topics.add(name="T")
            stream = node.method("Telemetry")(metadata=HEADERS)
            await stream.write(v2.TelemetryCommand(settings=good))
            answer = await stream.read()
            assert answer.status.code == Code.OK
            assert answer.settings.publishing.max_body_size > 0
            wrong = v2.Settings(client_type=v2.ClientType.PRODUCER)
            await stream.write(v2.TelemetryCommand(settings=wrong))
            async with asyncio.timeout(10):
                refusal = await stream.read()  # Node's client reads it, others the end
                assert refusal.status.code == Code.BAD_REQUEST
                assert not refusal.HasField("settings")
                assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "publishing" in await stream.details()

    run(body)


def test_thousands_of_calls_that_begin_at_once_are_all_answered(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            beat, request = node.method("Heartbeat"), v2.HeartbeatRequest(client_type=1)
            calls = (beat(request, metadata=((CLIENT_ID, f"client-{n}"),)) for n in range(4000))
            answers = await asyncio.gather(*calls)
            assert {answer.status.code for answer in answers} == {Code.OK}

    run(body)


def message(body: bytes) -> Any:
    system = v2.SystemProperties(message_id="ID", message_type=v2.MessageType.NORMAL)
    return v2.Message(topic=v2.Resource(name="T"), body=body, system_properties=system)


async def received(stream: Any) -> list[bytes]:
    return [part.message.body async for part in stream if part.HasField("message")]


def test_ten_of_the_largest_messages_come_in_one_request(tmp_path) -> None:
    """Rust's client sends several messages at once."""

    async def body(runtime: NativeRuntime) -> None:
        changes = {"store_options": {"commitlog_segment_bytes": 64 << 20}}
        async with opened(runtime, tmp_path, **changes) as node:

            async def send(*bodies: bytes) -> Any:
                request = v2.SendMessageRequest(messages=[message(each) for each in bodies])
                return await node.method("SendMessage")(request, metadata=HEADERS, timeout=30)

            answer = await send(*(bytes([n]) * (2 << 20) for n in range(10)))
            assert answer.status.code == Code.OK
            assert [entry.status.code for entry in answer.entries] == [Code.OK] * 10
            for size in ((4 << 20) + 1, 20 << 20):
                assert (await send(bytes(size))).status.code == Code.MESSAGE_BODY_TOO_LARGE
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await send(bytes(42 << 20))
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "maxMessageSize" in str(caught.value.details())
            assert (await send(b"good")).status.code == Code.OK

    run(body)


def test_a_client_with_a_limit_of_4_mib_receives_more_than_that_in_one_answer(tmp_path) -> None:
    """C#'s, Node's and Rust's have it, and grpcio's: a message of an answer is bounded, not the
    answer. Only a body that almost is as large as the limit cannot be received by them, and waits
    for another client."""

    async def body(runtime: NativeRuntime) -> None:
        changes = {"store_options": {"commitlog_segment_bytes": 64 << 20}}
        async with opened(runtime, tmp_path, **changes) as node:
            send, receive = node.method("SendMessage"), node.method("ReceiveMessage")
            bodies = [b"1" * (3 << 20), b"2" * (3 << 20), b"3" * ((4 << 20) - 2000)]
            messages = [message(each) for each in bodies]
            request = v2.SendMessageRequest(messages=messages)
            assert (await send(request, metadata=HEADERS)).status.code == Code.OK
            found: list[bytes] = []
            while len(found) < len(bodies):
                found += await received(receive(receive_request(5), timeout=20, metadata=HEADERS))
            assert sorted(found) == sorted(bodies)
            request = v2.SendMessageRequest(messages=[message(bytes(4 << 20))])
            assert (await send(request, metadata=HEADERS)).status.code == Code.OK
            asked, small = receive_request(15), ((CLIENT_ID, "small"),)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await received(receive(asked, timeout=20, metadata=small))
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            ended = v2.NotifyClientTerminationRequest(group=v2.Resource(name="G"))
            await node.method("NotifyClientTermination")(ended, metadata=small)
            options = [("grpc.max_receive_message_length", -1)]
            async with grpc.aio.insecure_channel(node.address, options) as channel:
                node.channel = channel
                other = node.method("ReceiveMessage")(asked, timeout=20, metadata=HEADERS)
                assert await received(other) == [bytes(4 << 20)]

    run(body)


def test_a_port_that_is_in_use_is_an_error(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        all_ = Connections(runtime, Limits(), lambda *_: None, lambda _: None)
        first, second = (Door(runtime, all_, lambda: None, 4 << 20) for _ in range(2))
        host, port = split_address(await first.listen("127.0.0.1", 0))
        with pytest.raises(ConfigError, match=str(port)):
            await second.listen(host, port)
        await first.close()
        await second.close()

    run(body)


@pytest.mark.parametrize("level", ["WARNING", "ERROR"])
def test_a_node_goes_on_without_grpc_and_the_usual_port_of_another_node_is_no_error(
    level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        all_ = Connections(runtime, Limits(), lambda *_: None, lambda _: None)
        other = Door(runtime, all_, lambda: None, 4 << 20)
        host, port = split_address(await other.listen("127.0.0.1", 0))
        monkeypatch.setattr(grpc_gateway, "USUAL_PORT", port if level == "WARNING" else 0)
        node: Any = SimpleNamespace(host=host, body_max=4 << 20)
        tls = TlsSettings("", "", is_self_signed=False, directory=None)
        gateway = NodeGateway(runtime, node, all_, host, port, tls)
        await gateway.start()
        assert gateway.address == ""
        await gateway.close()
        await other.close()
        (told,) = (each for each in caplog.records if "gRPC API are not served" in each.message)
        assert told.levelname == level
        assert told.message.endswith("or -1 for none (grpcServerPort; --grpc-port)")

    run(body)

"""Telemetry streams: their end from the server's side, and what clients are asked over them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from broker_rig import run as run_natively
from gateway_door_rig import opened
from gateway_rig import Caller, Code, create_topic, served
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CLIENT_ID
from saturnmq.gateway.door import Door
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.limits import Limits
from saturnmq.runtime.native import NativeRuntime
from world_rig import NOW, World
from world_rig import run as run_world

G = v2.Resource(name="G")


streams: list[asyncio.Task[None]] = []  # of the test that runs


def run(body: Callable[[World], Awaitable[None]]) -> None:
    """Run a test, and end its streams."""

    async def whole(world: World) -> None:
        streams.clear()
        await body(world)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    run_world(whole)


def settings_of(kind: int, group: str = "G", topic: str = "T") -> Any:
    """What a client says first."""
    asked = v2.Settings(client_type=kind)
    if kind == v2.ClientType.PRODUCER:
        asked.publishing.topics.add(name=topic)
    else:
        asked.subscription.group.name = group
        entry = asked.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = topic, "*"
        entry.expression.type = v2.FilterType.TAG
    return v2.TelemetryCommand(settings=asked)


async def greeted(
    world: World, caller: Caller, kind: int = v2.ClientType.PUSH_CONSUMER
) -> asyncio.Task[None]:
    """The stream of a client that has its settings, both times."""
    stream = caller.open_telemetry()
    streams.append(stream)
    caller.says.put_nowait(settings_of(kind))
    await world.until(lambda: len(caller.told) == 2)
    caller.told.clear()
    return stream


# the end of a stream


def test_the_stream_of_a_client_that_ends_is_ended() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        again = Caller(world, caller.gateway, caller.client_id)  # a second stream of the same
        other = Caller(world, caller.gateway, "other")
        for each in (caller, again, other):
            await greeted(world, each)
        assert (await caller.ask("NotifyClientTermination", group=G)).status.code == Code.OK
        async with asyncio.timeout(1):
            await asyncio.gather(*streams[:2])
        await asyncio.sleep(5)
        assert not streams[2].done()

    run(body)


def test_node_ends_its_stream_by_itself() -> None:
    """It takes another end for a loss, also while it ends: its process would never end."""

    async def body(world: World) -> None:
        _, caller = await served(world)
        caller.language = "HTTP"  # as it says
        stream = await greeted(world, caller)
        assert (await caller.ask("NotifyClientTermination", group=G)).status.code == Code.OK
        await asyncio.sleep(5)
        assert not stream.done()
        caller.says.put_nowait(None)
        async with asyncio.timeout(1):
            await stream

    run(body)


def test_the_stream_of_a_client_that_was_forgotten_is_ended() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world, max_idle_s=120)
        caller.language = "GO"
        stream = await greeted(world, caller)
        await asyncio.sleep(100)
        assert not stream.done()
        async with asyncio.timeout(40):
            await stream
        assert broker.ground.context.clients.consumer_group("G") is None

    run(body)


def test_a_stream_that_a_client_opens_after_its_end_is_ended() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        end = await caller.ask("NotifyClientTermination", group=G)  # the node has just restarted
        assert end.status.code == Code.OK
        async with asyncio.timeout(1):
            await caller.open_telemetry()
        await caller.ask("QueryRoute", topic=v2.Resource(name="T"))
        stream = await greeted(world, caller)  # another one, with the same id
        await asyncio.sleep(5)
        assert not stream.done()
        await caller.ask("NotifyClientTermination", group=G)
        rust = Caller(world, caller.gateway, caller.client_id, "RUST")
        stream = await greeted(world, rust)  # the next one with the same id
        await asyncio.sleep(5)
        assert not stream.done()
        await caller.ask("NotifyClientTermination", group=G)
        await asyncio.sleep(15)
        caller.says = asyncio.Queue()
        later = await greeted(world, caller)
        assert not later.done()
        assert not caller.gateway._clients._ended

    run(body)


def test_a_stream_that_a_java_client_leaves_behind_is_ended_soon() -> None:
    """It ended while this node could not be reached, and waits for the end of what it opened since.
    One that lives sends heartbeats."""

    async def body(world: World) -> None:
        broker, caller = await served(world, max_idle_s=120)
        left = await greeted(world, caller)
        alive = Caller(world, caller.gateway, "alive")
        kept, begun = await greeted(world, alive), world.loop.time()
        for _ in range(6):
            assert not left.done() or world.loop.time() - begun > 30
            await asyncio.sleep(6)
            await alive.ask("Heartbeat", client_type=v2.ClientType.PUSH_CONSUMER)
        assert left.done()
        assert not kept.done()
        assert len(broker.ground.context.clients.consumer_group("G").members) == 2
        again = await greeted(world, caller)  # it was only held up
        await asyncio.sleep(20)
        assert not again.done()

    run(body)


def test_a_client_that_comes_back_before_it_is_forgotten_keeps_its_stream() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        stream = await greeted(world, caller)
        caller.gateway._clients.of(caller.call()).link.close("silent for too long")
        assert broker.ground.context.clients.consumer_group("G") is None
        beat = await caller.ask("Heartbeat", client_type=v2.ClientType.PUSH_CONSUMER)
        assert beat.status.code == Code.OK
        group = broker.ground.context.clients.consumer_group("G")
        assert group.subscriptions["T"].expression == "*"
        await asyncio.sleep(10)
        assert not stream.done()

    run(body)


def test_grpc_tells_a_client_that_its_stream_has_ended(tmp_path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            headers = ((CLIENT_ID, "client"),)
            stream = node.method("Telemetry")(metadata=headers)
            await stream.write(settings_of(v2.ClientType.PRODUCER))
            assert (await stream.read()).status.code == Code.OK
            end = node.method("NotifyClientTermination")
            await end(v2.NotifyClientTerminationRequest(), metadata=headers)
            async with asyncio.timeout(10):
                while await stream.read() != grpc.aio.EOF:
                    pass
                assert await stream.code() == grpc.StatusCode.OK

    run_natively(body)


# what operators ask


def running_info(caller: Caller, *, stacks: bool) -> dict[str, Any]:
    return {"consumerGroup": "G", "clientId": caller.client_id, "jstackEnable": str(stacks).lower()}


async def command(world: World, caller: Caller, kind: str) -> Any:
    """The next command that a client is sent."""
    await world.until(lambda: caller.told)
    found = caller.told.pop()
    assert found.WhichOneof("command") == kind
    return getattr(found, kind)


async def verify(world: World, broker: Any, caller: Caller) -> tuple[asyncio.Task[Any], str]:
    """An operator has a client consume a message; the answer, and the nonce of the command."""
    remote = await world.connect(broker.address)
    sent = await remote.send(b"body", KEYS="k", TAGS="A", UNIQ_KEY="U")
    ext = {"consumerGroup": "G", "clientId": caller.client_id, "msgId": sent.ext["msgId"]}
    asking = asyncio.ensure_future(remote.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext))
    asked = await command(world, caller, "verify_message_command")
    system = asked.message.system_properties
    assert (asked.message.topic.name, asked.message.body) == ("T", b"body")
    assert (system.message_id, system.tag, list(system.keys)) == ("U", "A", ["k"])
    return asking, asked.nonce


def verified(nonce: str, code: int, kind: str = "verify_message_result") -> Any:
    status = v2.Status(code=code, message="as I say")
    return v2.TelemetryCommand(status=status, **{kind: {"nonce": nonce}})


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (Code.OK, "CR_SUCCESS"),
        (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
    ],
)
def test_a_consumer_verifies_a_message(code: int, outcome: str) -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await greeted(world, caller)
        asking, nonce = await verify(world, broker, caller)
        caller.says.put_nowait(verified(nonce, code))
        answer = await asking
        assert (answer.code, fastjson.loads(answer.body)["consumeResult"]) == (0, outcome)

    run(body)


@pytest.mark.parametrize(
    ("code", "kind", "wanted"),
    [
        (
            Code.VERIFY_FIFO_MESSAGE_UNSUPPORTED,
            "verify_message_result",
            ResponseCode.NO_PERMISSION,
        ),
        (Code.NOT_IMPLEMENTED, "verify_message_result", ResponseCode.SYSTEM_ERROR),
        (Code.NOT_IMPLEMENTED, "verify_message_command", ResponseCode.SYSTEM_ERROR),  # Node.js's
    ],
)
def test_a_client_that_does_not_verify_says_so(code: int, kind: str, wanted: int) -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await greeted(world, caller)
        asking, nonce = await verify(world, broker, caller)
        caller.says.put_nowait(verified(nonce, code, kind))
        answer = await asking
        assert answer.code == wanted
        assert "as I say" in answer.remark

    run(body)


def test_node_goes_on_over_its_stream_after_it_was_forgotten() -> None:
    """It sends no heartbeats to a broker that is in none of its routes for a while."""

    async def body(world: World) -> None:
        broker, caller = await served(world, max_idle_s=120)
        caller.language = "HTTP"  # as it says
        stream = await greeted(world, caller)
        await asyncio.sleep(140)
        assert broker.ground.context.clients.consumer_group("G") is None
        caller.says.put_nowait(settings_of(v2.ClientType.PUSH_CONSUMER))
        await world.until(lambda: caller.told)
        assert caller.told.pop().status.code == Code.OK
        asking, nonce = await verify(world, broker, caller)
        caller.says.put_nowait(verified(nonce, Code.OK))
        assert (await asking).code == 0
        assert not stream.done()

    run(body)


def test_a_client_is_answered_over_a_new_stream_while_its_old_one_takes_nothing() -> None:
    """The old one's network drops all packets, and the last command is too large to be under
    way."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "X", "TRANSACTION")
        stuck = asyncio.Event()

        async def says() -> Any:
            yield settings_of(v2.ClientType.PRODUCER, topic="X")
            await asyncio.Event().wait()

        async def take(part: Any) -> None:
            if part.HasField("recover_orphaned_transaction_command"):
                stuck.set()
                await asyncio.Event().wait()

        call = caller.call(None)
        streams.append(asyncio.ensure_future(caller.gateway.telemetry(call, says(), take)))
        half = caller.message(topic="X", message_type=v2.MessageType.TRANSACTION)
        assert (await caller.send(half)).status.code == Code.OK
        async with asyncio.timeout(60):
            await stuck.wait()
        await greeted(world, caller, v2.ClientType.PRODUCER)

    run(body)


def test_a_client_with_two_streams_can_be_asked_after_the_newer_one_has_ended() -> None:
    """C++'s client has one at its access point, and one at a broker, which may be the same node."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        await greeted(world, caller)
        newer = Caller(world, caller.gateway, caller.client_id)
        ended = await greeted(world, newer)
        newer.says.put_nowait(None)
        await ended
        asking, nonce = await verify(world, broker, caller)
        caller.says.put_nowait(verified(nonce, Code.OK))
        assert (await asking).code == 0

    run(body)


def test_only_the_client_that_was_asked_can_answer_and_only_once() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        other = Caller(world, caller.gateway, "other")
        await greeted(world, other, v2.ClientType.PRODUCER)
        await greeted(world, caller)
        asking, nonce = await verify(world, broker, caller)
        for says, wrong in ((other.says, nonce), (caller.says, "no nonce"), (caller.says, "")):
            says.put_nowait(verified(wrong, Code.OK))
        await asyncio.sleep(1)
        assert not asking.done()
        for code in (Code.FAILED_TO_CONSUME_MESSAGE, Code.OK):
            caller.says.put_nowait(verified(nonce, code))
        assert fastjson.loads((await asking).body)["consumeResult"] == "CR_LATER"
        await asyncio.sleep(1)
        assert not caller.gateway._members._commands._waiting

    run(body)


def test_a_client_tells_its_stacks() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await greeted(world, caller)
        remote = await world.connect(broker.address)
        ext = running_info(caller, stacks=True)
        asking = asyncio.ensure_future(remote.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext))
        asked = await command(world, caller, "print_thread_stack_trace_command")
        stacks = v2.ThreadStackTrace(nonce=asked.nonce, thread_stack_trace="main: f(), g()")
        caller.says.put_nowait(
            v2.TelemetryCommand(status=v2.Status(code=Code.OK), thread_stack_trace=stacks)
        )
        answer = await asking
        assert answer.code == 0
        assert fastjson.loads(answer.body)["jstack"] == "main: f(), g()"

    run(body)


def test_without_stacks_the_gateway_tells_what_it_knows_of_a_client() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await caller.ask("Heartbeat", group=G, client_type=v2.ClientType.SIMPLE_CONSUMER)
        remote = await world.connect(broker.address)
        ext = running_info(caller, stacks=False)
        without = await remote.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(ext))
        found = fastjson.loads(without.body)
        assert found["subscriptionSet"] == []
        assert found["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_POP"
        await greeted(world, caller)
        answer = await remote.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(ext))
        info = fastjson.loads(answer.body)
        assert [each["topic"] for each in info["subscriptionSet"]] == ["T"]
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        since = int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"])  # mqadmin reads it
        assert NOW <= since <= NOW + int(world.loop.time() * 1000)
        assert not caller.told

    run(body)


def test_a_client_that_cannot_be_asked_or_does_not_answer_is_an_error_in_time() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await caller.ask("Heartbeat", group=G, client_type=v2.ClientType.PUSH_CONSUMER)
        remote = await world.connect(broker.address)
        ext = running_info(caller, stacks=True)
        answer = await remote.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(ext))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "no Telemetry stream" in answer.remark
        await greeted(world, caller)
        begun = world.loop.time()
        answer = await remote.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(ext))
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
        assert world.loop.time() - begun < 11
        caller.told.clear()
        asking = asyncio.ensure_future(remote.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, dict(ext)))
        await command(world, caller, "print_thread_stack_trace_command")
        await caller.ask("NotifyClientTermination", group=G)
        answer = await asking
        assert answer.code != 0
        assert "has ended" in answer.remark
        reset = await remote.ask(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "G"}
        )
        assert reset.code != 0

    run(body)


def test_no_client_is_told_to_reconnect(tmp_path: Path) -> None:
    """It would connect to a node that has gone, and Node's may end with it: HTTP/2 says it."""

    async def body(runtime: NativeRuntime) -> None:
        async with opened(runtime, tmp_path) as node:
            stream = node.method("Telemetry")(metadata=((CLIENT_ID, "client"),))
            await stream.write(settings_of(v2.ClientType.PUSH_CONSUMER))
            told = [await stream.read() for _ in range(2)]
            await node.gateway.health.end()
            await node.door.close()
            with contextlib.suppress(grpc.aio.AioRpcError):
                while (command := await stream.read()) != grpc.aio.EOF:
                    told.append(command)
            assert await stream.code() != grpc.StatusCode.OK
            assert {each.WhichOneof("command") for each in told} == {"settings"}

    run_natively(body)


# before the gateway serves


def test_a_call_that_comes_too_early_is_told_to_try_again() -> None:
    async def body(runtime: NativeRuntime) -> None:
        all_ = Connections(runtime, Limits(), lambda *_: None, lambda _: None)
        door = Door(runtime, all_, lambda: None, 4 << 20)
        async with grpc.aio.insecure_channel(await door.listen("127.0.0.1", 0)) as channel:
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/any/Call")(b"", timeout=10)
                assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await door.close()

    run_natively(body)


def test_settings_are_answered_and_told_once_more() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        asked = v2.Settings(client_type=v2.ClientType.PUSH_CONSUMER)
        asked.subscription.group.name = "G"
        entry = asked.subscription.subscriptions.add()
        entry.topic.name, entry.expression.expression = "T", "A"
        entry.expression.type = v2.FilterType.TAG
        stream = caller.open_telemetry()
        caller.says.put_nowait(v2.TelemetryCommand(settings=asked))
        await world.until(lambda: caller.told)
        answer = caller.told[0]
        assert answer.status.code == Code.OK
        assert answer.settings.backoff_policy.max_attempts == 17
        assert answer.settings.subscription.receive_batch_size == 32
        members = broker.ground.context.clients.consumer_group("G")
        assert members.subscriptions["T"].expression == "A"
        await world.until(lambda: len(caller.told) == 2, 2.0)
        assert caller.told[0] == caller.told[1]
        caller.says.put_nowait(None)
        await stream

    run_world(body)

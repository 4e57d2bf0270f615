"""Handles that are dead, or whose broker is away: what clients are told about their messages, so
that none asks for ever, and no dead letter is stored twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_rig import Caller, Code, served, two
from saturnmq.gateway import v2
from saturnmq.gateway.peers import Peers
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from world_rig import World, run

G, T = v2.Resource(name="G"), v2.Resource(name="T")


async def forward(caller: Caller, message: Any, topic: Any = T) -> int:
    """The code of the answer."""
    answer = await caller.ask(
        "ForwardMessageToDeadLetterQueue",
        group=G,
        topic=topic,
        receipt_handle=message.system_properties.receipt_handle,
        message_id=message.system_properties.message_id,
    )
    return int(answer.status.code)


async def dead_letters(caller: Caller, broker: str = "broker-a") -> list[bytes]:
    return (await caller.receive("%DLQ%G", "OTHER", broker=broker, poll_ms=2000)).bodies


@pytest.mark.parametrize("auto_renew", [False, True])
def test_a_message_that_is_forwarded_again_is_one_dead_letter(auto_renew: bool) -> None:
    """Java's client forwards it until it hears OK; the answer may have been lost."""

    async def body(world: World) -> None:
        broker, caller = await served(world)
        await caller.send(caller.message(b"a"))
        (message,) = (await caller.receive(auto_renew=auto_renew)).messages
        if auto_renew:
            await asyncio.sleep(100)  # the handle that the client has is not the present one
        for _ in range(3):
            assert await forward(caller, message) == Code.OK
        assert await dead_letters(caller) == [b"a"]
        await asyncio.sleep(120)
        assert (await caller.receive()).code == Code.MESSAGE_NOT_FOUND
        broker.validate()

    run(body)


def test_a_message_whose_time_is_over_is_not_forwarded_but_comes_again() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"a"))
        (message,) = (await caller.receive(invisible_ms=10_000)).messages
        await asyncio.sleep(12)
        assert await forward(caller, message) == Code.OK
        assert await dead_letters(caller) == []
        (again,) = (await caller.receive()).messages
        assert await forward(caller, message) == Code.OK  # another consumer has it
        assert (await caller.ack(again)).status.code == Code.OK
        assert await dead_letters(caller) == []

    run(body)


@pytest.mark.parametrize("broker", ["broker-0", "broker-1"])  # that of the gateway, and another
def test_handles_of_a_topic_that_does_not_exist_are_dead(broker: str) -> None:
    """Java's and Go's clients try again for ever after any other answer."""

    async def body(world: World) -> None:
        ((_, here), (_, there)) = await two(world)
        await (here if broker == "broker-0" else there).send(here.message(b"a"))
        (message,) = (await here.receive(broker=broker, poll_ms=5000)).messages
        missing = v2.Resource(name="MISSING")
        handle = message.system_properties.receipt_handle
        answer = await here.ack(message, topic="MISSING")
        assert answer.status.code == answer.entries[0].status.code == Code.INVALID_RECEIPT_HANDLE
        changed = await here.change(handle, 20_000, topic="MISSING")
        assert changed.status.code == Code.INVALID_RECEIPT_HANDLE
        assert await forward(here, message, missing) == Code.OK
        assert (await here.ack(message)).status.code == Code.OK  # it was touched by none of them

    run(body)


def test_a_handle_of_a_broker_that_is_away_is_dead_once_its_time_is_over() -> None:
    async def body(world: World) -> None:
        ((_, here), (gone, there)) = await two(world)
        await there.send(there.message(b"a"))
        got = await here.receive(broker="broker-1", poll_ms=5000, invisible_ms=20_000)
        (message,) = got.messages
        handle = message.system_properties.receipt_handle
        await gone.close()
        away = {Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT}
        assert (await here.ack(message)).status.code in away
        assert (await here.change(handle, 20_000)).status.code in away
        assert await forward(here, message) in away
        await asyncio.sleep(21)
        assert (await here.ack(message)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert (await here.change(handle, 20_000)).status.code == Code.INVALID_RECEIPT_HANDLE
        assert await forward(here, message) == Code.OK

    run(body)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_dead_letter_at_a_broker_of_rocketmq_is_acknowledged(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's broker stores a copy, whatever the handle, and leaves the message out."""

    async def body(world: World) -> None:
        ((_, here), (_, there)) = await two(world)
        await there.send(there.message(b"a"))
        (message,) = (await here.receive(broker="broker-1", poll_ms=5000)).messages
        asked: list[int] = []

        async def ask(_: Peers, __: str, command: Command, *___: Any) -> Command:
            asked.append(command.code)
            if command.code == RequestCode.CONSUMER_SEND_MSG_BACK and not is_there:
                return command.reply(ResponseCode.SYSTEM_ERROR, "look message by offset failed, 7")
            return command.reply(0)

        monkeypatch.setattr(Peers, "ask", ask)
        assert await forward(here, message) == Code.OK
        wanted = [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.ACK_MESSAGE]
        assert asked == (wanted if is_there else wanted[:1])

    run(body)

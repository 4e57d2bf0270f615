"""Pulls and offsets over gRPC: consumers that choose queues and keep offsets themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_rig import Caller, Code, served, with_slave
from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from saturnmq.gateway.gateway import Gateway
from saturnmq.nameserver.gateway_node import NameserverNode
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol.codes import RequestCode
from world_rig import World, run

G = v2.Resource(name="G")


def queue(number: int = 0, topic: str = "T", broker: str = "broker-a") -> Any:
    return v2.MessageQueue(topic=v2.Resource(name=topic), id=number, broker=v2.Broker(name=broker))


async def pull(caller: Caller, offset: int, poll_ms: int = 0, **more: Any) -> Any:
    """(code, messages, the next offset) of a pull."""
    fields = {"group": G, "message_queue": queue(), "batch_size": 32, **more}
    request = v2.PullMessageRequest(offset=offset, **fields)
    request.long_polling_timeout.FromMilliseconds(poll_ms)
    parts: list[Any] = []

    async def write(part: Any) -> None:
        parts.append(part)

    await caller.gateway.streams["PullMessage"](caller.call(30), request, write)
    kinds = [part.WhichOneof("content") for part in parts]
    assert kinds == ["status", *["message"] * (len(parts) - 2), "next_offset"][: len(parts)]
    messages = [part.message for part in parts[1:-1]]
    return parts[0].status.code, messages, parts[-1].next_offset if len(parts) > 1 else None


async def filled(world: World, broker: Broker, *tags: str) -> None:
    """Messages in queue 0, over Remoting."""
    remote = await world.connect(broker.address)
    for number, tag in enumerate(tags):
        body = f"{number}".encode()
        assert (await remote.send(body, TAGS=tag, UNIQ_KEY=f"ID{number}")).code == 0


def test_a_pull_gives_messages_from_an_offset_on_and_the_next_offset() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await filled(world, broker, "A", "B", "A", "C")
        code, messages, after = await pull(caller, 1)
        assert (code, after) == (Code.OK, 4)
        assert [message.body for message in messages] == [b"1", b"2", b"3"]
        system = messages[0].system_properties
        assert (system.message_id, system.queue_offset, system.tag) == ("ID1", 1, "B")
        assert system.receipt_handle == ""
        code, messages, after = await pull(caller, 0, batch_size=2)
        assert (code, len(messages), after) == (Code.OK, 2, 2)
        only = v2.FilterExpression(type=v2.FilterType.TAG, expression="A || C")
        code, messages, after = await pull(caller, 0, filter_expression=only)
        assert ([message.body for message in messages], after) == ([b"0", b"2", b"3"], 4)
        none = v2.FilterExpression(type=v2.FilterType.TAG, expression="X")
        assert await pull(caller, 0, filter_expression=none) == (Code.MESSAGE_NOT_FOUND, [], 4)

    run(body)


def test_a_topic_of_batches_gives_single_messages_from_within_a_batch_on() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        remote = await world.connect(broker.address)
        ext = {"topic": "B", "readQueueNums": 1, "writeQueueNums": 1}
        ext |= {"attributes": "+queue.type=BatchCQ,+message.type=NORMAL"}
        assert (await remote.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        told = await caller.send(*(caller.message(b"%d" % n, topic="B") for n in range(5)))
        assert [entry.offset for entry in told.entries] == [0, 1, 2, 3, 4]
        code, messages, following = await pull(caller, 2, 1000, message_queue=queue(topic="B"))
        assert (code, [message.body for message in messages]) == (Code.OK, [b"2", b"3", b"4"])
        assert [message.system_properties.queue_offset for message in messages] == [2, 3, 4]
        assert following == 5
        received = await caller.receive("B", most=2)
        assert received.bodies == [b"0", b"1"]
        assert (await caller.ack(*received.messages, topic="B")).status.code == Code.OK
        assert (await caller.receive("B")).bodies == [b"2", b"3", b"4"]
        broker.validate()

    run(body)


def test_a_pull_waits_for_messages_as_long_as_it_says() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        begun = world.loop.time()
        assert await pull(caller, 0, poll_ms=7000) == (Code.MESSAGE_NOT_FOUND, [], 0)
        assert 6.5 < world.loop.time() - begun < 8
        waiting = asyncio.ensure_future(pull(caller, 0, poll_ms=15_000))
        await world.until(lambda: len(broker.messaging.pulls.held) == 1)
        await filled(world, broker, "A")
        code, messages, after = await waiting
        assert (code, len(messages), after) == (Code.OK, 1, 1)

    run(body)


def test_a_pull_whose_client_hangs_up_waits_for_nothing() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        waiting = asyncio.ensure_future(pull(caller, 0, poll_ms=15_000))
        await world.until(lambda: len(broker.messaging.pulls.held) == 1)
        waiting.cancel()
        await asyncio.wait((waiting,))
        await world.until(lambda: not len(broker.messaging.pulls.held), 1)

    run(body)


def test_a_pull_of_an_offset_beyond_the_queue_says_where_to_go_on() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await filled(world, broker, "A", "B")
        assert await pull(caller, 900) == (Code.ILLEGAL_OFFSET, [], 2)
        assert await pull(caller, -1) == (Code.ILLEGAL_OFFSET, [], None)

    run(body)


def test_offsets_are_those_of_the_group_over_remoting_too() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await filled(world, broker, "A", "B", "C")
        fields = {"group": G, "message_queue": queue()}
        missing = await caller.ask("GetOffset", **fields)
        assert missing.status.code == Code.OFFSET_NOT_FOUND
        assert (await caller.ask("UpdateOffset", offset=2, **fields)).status.code == Code.OK
        got = await caller.ask("GetOffset", **fields)
        assert (got.status.code, got.offset) == (Code.OK, 2)
        remote = await world.connect(broker.address)
        assert await remote.committed() == 2
        wrong = await caller.ask("UpdateOffset", offset=-1, **fields)
        assert wrong.status.code == Code.ILLEGAL_OFFSET

    run(body)


def test_the_ends_of_a_queue_and_a_moment_in_it() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await filled(world, broker, "A", "B")
        await asyncio.sleep(10)
        moment_ms = broker._runtime.now_ms()
        await asyncio.sleep(10)
        await filled(world, broker, "C")
        for policy, wanted in (("BEGINNING", 0), ("END", 3)):
            found = await caller.ask(
                "QueryOffset", message_queue=queue(), query_offset_policy=policy
            )
            assert (found.status.code, found.offset) == (Code.OK, wanted)
        request = {"message_queue": queue(), "query_offset_policy": "TIMESTAMP"}
        without = await caller.ask("QueryOffset", **request)
        assert without.status.code == Code.BAD_REQUEST
        timestamp = {"seconds": moment_ms // 1000}
        found = await caller.ask("QueryOffset", **request, timestamp=timestamp)
        assert (found.status.code, found.offset) == (Code.OK, 2)

    run(body)


@pytest.mark.parametrize("name", ["UpdateOffset", "GetOffset", "QueryOffset"])
def test_a_queue_that_is_not_there_is_refused(name: str) -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        group = {} if name == "QueryOffset" else {"group": G}
        for wrong, code in (
            (queue(4), Code.BAD_REQUEST),
            (queue(-1), Code.BAD_REQUEST),
            (queue(broker="other"), Code.BAD_REQUEST),
            (queue(topic="MISSING"), Code.TOPIC_NOT_FOUND),
        ):
            answer = await caller.ask(name, message_queue=wrong, **group)
            assert answer.status.code == code, wrong
        assert (await pull(caller, 0, message_queue=queue(9)))[0] == Code.BAD_REQUEST

    run(body)


def test_without_a_master_a_slave_answers_pulls() -> None:
    async def body(world: World) -> None:
        machine = world.node("nameserver")
        server = NameServer(machine, machine.ip, 9876)
        await server.start()
        master, _, beside = await with_slave(world, server.address)
        node = NameserverNode(machine, server)
        caller = Caller(world, Gateway(machine, node, f"{node.host}:8081"))
        await filled(world, master, "A", "B")
        route = {"topic": v2.Resource(name="T")}
        assert (await caller.ask("QueryRoute", **route)).status.code == Code.OK
        await master.close()
        await asyncio.sleep(5)
        for each, refusal in ((caller, Code.TOO_MANY_REQUESTS), (beside, Code.HA_NOT_AVAILABLE)):
            code, messages, after = await pull(each, 0)
            assert (code, [found.body for found in messages], after) == (Code.OK, [b"0", b"1"], 2)
            assert (await each.receive()).code == refusal  # clients try again

    run(body)

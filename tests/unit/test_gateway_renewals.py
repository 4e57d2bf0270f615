"""Push consumers over the gRPC API: messages that the server keeps for them while they work."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_rig import Caller, Code, at_nameserver, create_group, served
from saturnmq.gateway import v2
from world_rig import World, run


def test_a_message_of_a_push_consumer_stays_its_own_and_its_first_handle_valid() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        other = Caller(world, caller.gateway, "other")
        group, kind = v2.Resource(name="G"), v2.ClientType.PUSH_CONSUMER
        await caller.send(caller.message(b"long"))
        (message,) = (await caller.receive(auto_renew=True, invisible_ms=None)).messages
        for _ in range(40):  # 400 s
            for each in (caller, other):
                await each.ask("Heartbeat", group=group, client_type=kind)
            got = await other.receive(auto_renew=True, poll_ms=9_900)
            assert got.code == Code.MESSAGE_NOT_FOUND
        assert len(caller.gateway._receiving.renewals) == 1
        assert (await caller.ack(message)).status.code == Code.OK
        assert len(caller.gateway._receiving.renewals) == 0
        assert (await caller.ack(message)).status.code == Code.INVALID_RECEIPT_HANDLE

    run(body)


def test_a_push_consumer_gives_a_message_back_by_its_first_handle() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"x"))
        (message,) = (await caller.receive(auto_renew=True, invisible_ms=None)).messages
        for _ in range(10):
            await asyncio.sleep(10)
            await caller.ask("Heartbeat", client_type=v2.ClientType.PRODUCER)
        first = message.system_properties.receipt_handle
        changed = await caller.change(first, 2000)
        assert changed.status.code == Code.OK
        begun = world.loop.time()
        (again,) = (await caller.receive(auto_renew=True, poll_ms=9000)).messages
        assert 1.9 < world.loop.time() - begun < 3
        assert again.system_properties.delivery_attempt == 2

    run(body)


@pytest.mark.parametrize("says_so", [True, False])
def test_messages_of_a_consumer_that_ends_go_to_others(says_so) -> None:
    async def body(world: World) -> None:
        _, caller = await served(world, max_idle_s=120)
        other = Caller(world, caller.gateway, "other")
        await caller.send(caller.message(b"a"), caller.message(b"b"))
        got = await caller.receive(auto_renew=True, invisible_ms=None)
        assert len(got.messages) == 2
        if says_so:
            await caller.ask("NotifyClientTermination", group=v2.Resource(name="G"))
        begun = world.loop.time()
        found: list[bytes] = []
        while len(found) < 2 and world.loop.time() - begun < 300:
            found += (await other.receive(auto_renew=True, poll_ms=9000)).bodies
        assert sorted(found) == [b"a", b"b"]
        assert world.loop.time() - begun < (3 if says_so else 200)

    run(body)


def test_a_message_that_is_being_written_when_its_client_ends_goes_to_others() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        other = Caller(world, caller.gateway, "other")
        await caller.send(caller.message(b"x"))

        async def write(part: Any) -> None:
            if part.WhichOneof("content") == "message":
                await caller.ask("NotifyClientTermination", group=v2.Resource(name="G"))

        queue = v2.MessageQueue(topic=v2.Resource(name="T"), broker=v2.Broker(name="broker-a"))
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name="G"), message_queue=queue, auto_renew=True
        )
        request.long_polling_timeout.FromSeconds(1)
        await caller.gateway.streams["ReceiveMessage"](caller.call(30), request, write)
        begun = world.loop.time()
        while not (got := await other.receive(poll_ms=9000)).messages:
            assert world.loop.time() - begun < 60
        assert got.bodies == [b"x"]
        assert world.loop.time() - begun < 5

    run(body)


def test_a_message_that_a_listener_never_ends_waits_as_the_policy_of_its_group_says() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        other = Caller(world, caller.gateway, "other")
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 1, 600_000, 1]}}
        await create_group(world, broker, "G", groupRetryPolicy=policy)
        await caller.send(caller.message(b"stuck"))
        await caller.receive(auto_renew=True, invisible_ms=None)
        renewals = caller.gateway._receiving.renewals
        begun = world.loop.time()
        while len(renewals):
            await asyncio.sleep(30)
            await caller.ask("Heartbeat", client_type=v2.ClientType.PRODUCER)
        ended = world.loop.time()
        assert 3 * 3600 <= ended - begun < 4.2 * 3600
        found: list[v2.Message] = []
        while not found:
            found = list((await other.receive(auto_renew=True, poll_ms=9_000)).messages)
        assert 565 < world.loop.time() - ended < 605
        (again,) = found
        assert again.system_properties.delivery_attempt == 2

    run(body)


AWAY_S = 8.0  # less than a message is renewed ahead


async def beat(world: World, until_s: float, *callers: Caller) -> None:
    """Push consumers that live, up to this moment."""
    group, kind = v2.Resource(name="G"), v2.ClientType.PUSH_CONSUMER
    while (left_s := until_s - world.loop.time()) > 0:
        for each in callers:
            await each.ask("Heartbeat", group=group, client_type=kind)
        await asyncio.sleep(min(left_s, 5.0))


async def away(world: World) -> None:
    """The broker cannot be reached from the node of the gateway for a while."""
    names = [node.name for node in world.nodes]
    (gateway,), brokers = names[:1], names[1:]
    world.network.partition([gateway], brokers)
    await asyncio.sleep(AWAY_S)
    world.network.heal()


@pytest.mark.parametrize("renewal_at", [45, 92])
def test_a_message_is_kept_while_its_broker_is_away_for_a_moment(renewal_at: int) -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        other = Caller(world, caller.gateway, "other")
        begun = world.loop.time()
        await caller.send(caller.message(b"long"))
        (message,) = (await caller.receive(auto_renew=True, invisible_ms=None)).messages
        await beat(world, begun + renewal_at - 1, caller, other)
        await away(world)
        await beat(world, begun + renewal_at + 60, caller, other)
        got = await other.receive(auto_renew=True, poll_ms=9_900)
        assert got.code == Code.MESSAGE_NOT_FOUND
        assert (await caller.ack(message)).status.code == Code.OK
        assert len(caller.gateway._receiving.renewals) == 0

    run(body)


def test_the_first_handle_is_valid_between_two_tries_to_renew_a_message() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        begun = world.loop.time()
        await caller.send(caller.message(b"long"))
        (message,) = (await caller.receive(auto_renew=True, invisible_ms=None)).messages
        await beat(world, begun + 91, caller)
        await away(world)
        while not (await caller.ask("QueryRoute", topic=v2.Resource(name="T"))).message_queues:
            await asyncio.sleep(0.1)  # until the broker has registered again
        assert (await caller.ack(message)).status.code == Code.OK

    run(body)


def test_messages_of_a_consumer_that_ends_before_its_broker_is_back_go_to_others() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        other = Caller(world, caller.gateway, "other")
        begun = world.loop.time()
        await caller.send(caller.message(b"long"))
        await caller.receive(auto_renew=True, invisible_ms=None)
        await beat(world, begun + 120, caller, other)  # it is renewed for minutes now
        await away(world)  # for so long that the broker left the routes
        await caller.ask("NotifyClientTermination", group=v2.Resource(name="G"))
        ended = world.loop.time()
        found: list[bytes] = []
        while not found:
            await asyncio.sleep(1)  # until the broker has registered again
            found = (await other.receive(auto_renew=True, poll_ms=9_000)).bodies
        assert world.loop.time() - ended < 60

    run(body)


def test_a_message_whose_broker_stays_away_is_forgotten_when_its_time_is_over() -> None:
    async def body(world: World) -> None:
        _, caller = await at_nameserver(world)
        begun = world.loop.time()
        await caller.send(caller.message(b"long"))
        await caller.receive(auto_renew=True, invisible_ms=None)
        names = [node.name for node in world.nodes]
        world.network.partition(names[:1], names[1:])
        renewals = caller.gateway._receiving.renewals
        await beat(world, begun + 58, caller)
        assert len(renewals) == 1
        await beat(world, begun + 75, caller)
        assert len(renewals) == 0

    run(body)

"""Push consumers over the gRPC API: messages that the server keeps for them while they work."""

from __future__ import annotations

import asyncio

import pytest
from gateway_rig import Caller, Code, create_group, served
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

"""What a filter drops counts as read soon, though the pull over it is held; in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.protocol.subscription import Sql
from saturnmq.runtime.errors import ConfigError
from world_rig import Remote, World, run

HELD = {"sysFlag": 6, "suspendTimeoutMillis": 15_000, "subscription": "wanted"}
COMMIT_S = 1.0
FILTERS = ["wanted", Sql("price > 1000")]


async def cluster(world: World) -> tuple[str, Broker, Remote]:
    """A nameserver, a broker and ten messages that nobody wants."""
    nameserver = await world.nameserver()
    broker = await world.broker(nameservers=(nameserver,))
    client = await world.connect(broker.address)
    await fill(world, broker, client, 10)
    return nameserver, broker, client


async def fill(world: World, broker: Broker, client: Remote, count: int) -> None:
    before = broker.store.max_offset("T", 0)
    for _ in range(count):
        await client.send(b"x", TAGS="unwanted", price="1")
    await world.until(lambda: broker.store.max_offset("T", 0) == before + count)


def test_a_pull_over_a_filtered_stretch_is_answered_soon_with_where_it_ends() -> None:
    async def body(world: World) -> None:
        _, _, client = await cluster(world)
        began = world.loop.time()
        answer = await client.pull(0, **HELD)
        assert answer.ext["nextBeginOffset"] == "10"
        assert world.loop.time() - began < 1.0

    run(body)


def test_a_held_pull_that_messages_come_past_is_answered_soon_too() -> None:
    async def body(world: World) -> None:
        _, broker, client = await cluster(world)
        held = asyncio.ensure_future(client.pull(10, **HELD))
        await asyncio.sleep(3.0)
        assert not held.done(), "nothing came: it is held"
        await fill(world, broker, client, 5)
        began = world.loop.time()
        assert (await held).ext["nextBeginOffset"] == "15"
        assert world.loop.time() - began < 1.0

    run(body)


def test_a_stream_of_unwanted_messages_is_not_answered_one_by_one() -> None:
    async def body(world: World) -> None:
        _, broker, client = await cluster(world)
        sending = asyncio.ensure_future(fill(world, broker, client, 1000))
        began, answers, offset = world.loop.time(), 0, 10
        while offset < 1010:
            answer = await client.pull(offset, **HELD)
            offset, answers = int(answer.ext["nextBeginOffset"]), answers + 1
        await sending
        assert answers <= 2 + (world.loop.time() - began) / 0.3

    run(body)


def test_a_wanted_message_behind_unwanted_ones_is_not_kept_waiting() -> None:
    async def body(world: World) -> None:
        _, _, client = await cluster(world)
        held = asyncio.ensure_future(client.pull(0, **HELD))
        await asyncio.sleep(0.05)
        began = world.loop.time()
        await client.send(b"x", TAGS="wanted")
        assert (await held).code == 0
        assert world.loop.time() - began < 0.1

    run(body)


@pytest.mark.parametrize("expression", FILTERS)
def test_a_group_that_wants_none_of_the_messages_is_soon_at_the_end(expression: Any) -> None:
    async def body(world: World) -> None:
        nameserver, broker, client = await cluster(world)
        common: dict[str, Any] = {"from_beginning": True, "commit_interval_s": COMMIT_S}
        push = PushConsumer(
            "push", nameserver, runtime=world.node("push"), listener_one=print, **common
        )
        pull = PullConsumer("pull", nameserver, runtime=world.node("pull"), **common)

        def committed(group: str) -> int | None:
            return broker.context.offsets.query(group, "T", 0)

        push.subscribe("T", expression)
        pull.subscribe("T", expression)
        async with push, pull:
            polling = asyncio.ensure_future(pull.poll(60.0))
            for end in (10, 17, 40):
                await fill(world, broker, client, end - broker.store.max_offset("T", 0))
                patience = 2 * COMMIT_S if end > 10 else 30.0  # to join the group
                for group in ("push", "pull"):
                    await world.until(lambda: committed(group) == end, patience)  # noqa: B023
            polling.cancel()

    run(body)


def test_what_the_application_still_works_on_is_not_committed_with_a_stretch() -> None:
    async def body(world: World) -> None:
        nameserver, broker, client = await cluster(world)
        pull = PullConsumer(
            "pull",
            nameserver,
            runtime=world.node("pull"),
            from_beginning=True,
            commit_interval_s=COMMIT_S,
        )
        pull.subscribe("T", "wanted")
        await client.send(b"x", TAGS="wanted")
        async with pull:
            assert len(await pull.poll(30.0)) == 1
            await fill(world, broker, client, 5)
            await asyncio.sleep(5 * COMMIT_S)
            assert (broker.context.offsets.query("pull", "T", 0) or 0) <= 10

    run(body)


@pytest.mark.parametrize("hold_s", [0.5, 4.0])
def test_a_consumer_says_how_long_its_pulls_are_held(hold_s: float) -> None:
    async def body(world: World) -> None:
        nameserver, _, _ = await cluster(world)
        answered: list[float] = []
        push = PushConsumer(
            "push",
            nameserver,
            runtime=world.node("push"),
            listener_one=lambda _: answered.append(world.loop.time()),
            from_beginning=True,
            hold_s=hold_s,
        )
        push.subscribe("T")
        async with push:
            await world.until(lambda: len(answered) == 10)
            (queue,) = [each for each in push.held_queues() if each.topic == "T"][:1]
            pulled_at = set()
            for _ in range(int(12 / 0.05)):
                await asyncio.sleep(0.05)
                pulled_at.add(push.running_info()["mqTable"][queue]["lastPullTimestamp"])
            assert abs(len(pulled_at) - 12 / hold_s) <= 2 + 12 / hold_s / 4

    run(body)


@pytest.mark.parametrize("hold_s", [0.0, -1.0, 60.5, float("nan")])
def test_a_hold_that_makes_no_sense_is_refused(hold_s: float) -> None:
    async def body(world: World) -> None:
        for kind in (PushConsumer, PullConsumer):
            with pytest.raises(ConfigError, match="hold_s"):
                kind("G", "127.0.0.1:1", runtime=world.node(kind.__name__), hold_s=hold_s)

    run(body)

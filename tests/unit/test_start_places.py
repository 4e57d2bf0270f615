"""First, last, a time: where each kind of consumer begins when its group has no offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from saturnmq.client.admin.admin import Admin
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.simple_consumer import SimpleConsumer
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import SaturnError
from world_rig import World, run

ALL = ["before", "between", "after"]
COLD = {"access_in_memory_ratio": 0}  # no topic counts as one in memory
SINCE_S = 5.0  # a time between the first message and the second


class Reader:
    """A consumer of one kind in a group of its own; `got` is what it got."""

    def __init__(self, world: World, nameserver: str, kind: str, place: str) -> None:
        self.got: list[str] = []
        self.kind = kind
        options: dict[str, Any] = {
            "nameservers": [nameserver], "runtime": world.node(kind),
        }  # fmt: skip
        self.options = options
        since = world.nodes[0].now_ms() - round((world.loop.time() - SINCE_S) * 1000)
        start = {"time": since, "later": since + 10**6}.get(place, place)
        self.pushes = kind in ("push", "popping push")
        if self.pushes:
            self.consumer: Any = PushConsumer(
                "G", listener_one=self._take, consume_from=start, **options
            )
        elif kind == "pull":
            self.consumer = PullConsumer("G", consume_from=start, **options)
        else:
            self.consumer = SimpleConsumer("G", consume_from=start, **options)
        self.consumer.subscribe("T")

    async def _take(self, message: ReceivedMessage) -> None:
        self.got.append(bytes(message.body).decode())

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        async with self.consumer:
            task = None
            if not self.pushes:
                task = asyncio.create_task(self._poll())
            yield
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            if self.kind == "pull":
                messages = await self.consumer.poll(1.0)
            else:
                try:
                    messages = await self.consumer.receive(wait_s=1.0)
                except SaturnError:  # no topic yet, or no broker
                    await asyncio.sleep(0.1)
                    continue
            for message in messages:
                await self._take(message)


@pytest.mark.parametrize(
    ("kind", "place", "in_memory", "expected"),
    [
        (kind, place, in_memory, expected)
        for kind in ("push", "popping push", "pull", "simple")
        for place, in_memory, expected in (
            ("first", True, ALL),
            ("first", False, ALL),
            ("last", True, ALL),  # RocketMQ's rule for topics in memory
            ("last", False, ALL[2:]),
            ("time", True, ALL[1:]),
            ("time", False, ALL[1:]),
        )
    ],
)
def test_a_group_without_an_offset_begins_where_its_consumer_says(
    kind: str, place: str, in_memory: bool, expected: list[str]
) -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        options = {"access_in_memory_ratio": 40 if in_memory else 0}
        broker = await world.broker(nameservers=(nameserver,), store_options=options)
        client = await world.connect(broker.address)
        began = world.loop.time()
        assert (await client.send(b"before")).code == 0
        await asyncio.sleep(began + 10.0 - world.loop.time())
        assert (await client.send(b"between")).code == 0
        await broker.replication.registrar.ask_all(5.0)
        await asyncio.sleep(1.0)
        if kind == "popping push":
            async with Admin([nameserver], runtime=world.node("admin")) as admin:
                await admin.create_group("G")
                await admin.set_request_mode("G", "T", "POP")
        reader = Reader(world, nameserver, kind, place)
        async with reader.reading():
            await asyncio.sleep(5.0)
            assert reader.got == expected[:-1]
            assert (await client.send(b"after")).code == 0
            await world.until(lambda: len(reader.got) >= len(expected), 30.0)
            await asyncio.sleep(5.0)
            assert reader.got == expected
        await broker.close()

    run(body)


@pytest.mark.parametrize("kind", ["push", "pull", "simple"])
def test_a_group_with_an_offset_goes_on_there_wherever_its_consumer_would_begin(kind: str) -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        for text in ALL:
            assert (await client.send(text.encode())).code == 0
        assert (await client.commit(1)).code == 0
        await broker.replication.registrar.ask_all(5.0)
        reader = Reader(world, nameserver, kind, "first")
        async with reader.reading():
            await world.until(lambda: len(reader.got) >= 2, 30.0)
            await asyncio.sleep(5.0)
            assert reader.got == ALL[1:]
        await broker.close()

    run(body)


@pytest.mark.parametrize("kind", ["push", "pull", "simple"])
def test_a_group_with_an_offset_goes_on_there_though_its_consumer_names_a_time(kind: str) -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        for text in ALL:
            assert (await client.send(text.encode())).code == 0
        assert (await client.commit(2)).code == 0
        await broker.replication.registrar.ask_all(5.0)
        await asyncio.sleep(SINCE_S + 1.0)
        reader = Reader(world, nameserver, kind, "time")
        async with reader.reading():
            await world.until(lambda: reader.got, 30.0)
            await asyncio.sleep(5.0)
            assert reader.got == ALL[2:]
        await broker.close()

    run(body)


@pytest.mark.parametrize("kind", ["push", "pull", "simple"])
@pytest.mark.parametrize("place", ["last", "later"])
def test_a_topic_that_appears_later_is_read_from_its_first_message_whatever_is_named(
    kind: str, place: str
) -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,), store_options=COLD)
        client = await world.connect(broker.address)
        await broker.replication.registrar.ask_all(5.0)
        reader = Reader(world, nameserver, kind, place)
        async with reader.reading():
            await asyncio.sleep(2.0)
            for text in ALL:
                assert (await client.send(text.encode())).code == 0
            await broker.replication.registrar.ask_all(5.0)
            await world.until(lambda: len(reader.got) == 3, 60.0)
            assert reader.got == ALL
        await broker.close()

    run(body)


def test_a_receiver_whose_start_cannot_be_set_yet_receives_nothing_and_then_from_there() -> None:
    """The broker is away when the group's offset would be set: the pop must not begin without."""

    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,), store_options=COLD)
        client = await world.connect(broker.address)
        began = world.loop.time()
        assert (await client.send(b"before")).code == 0
        await asyncio.sleep(began + 10.0 - world.loop.time())
        assert (await client.send(b"between")).code == 0
        await broker.replication.registrar.ask_all(5.0)
        reader = Reader(world, nameserver, "simple", "time")
        async with reader.reading():
            world.network.partition(["broker-1"], ["simple"])
            # The first request fails after 3 s. One that came then would be answered.
            await asyncio.sleep(4.0)
            assert reader.got == []
            world.network.heal()
            await world.until(lambda: reader.got, 60.0)
            await asyncio.sleep(5.0)
            assert reader.got == ["between"]
        await broker.close()

    run(body)

"""Rows 1.22 to 1.24: which queue and which broker a producer takes. See `rows.tsv`."""

from __future__ import annotations

import asyncio

import pytest
from saturnmq.client.producer.faults import FaultStrategy
from saturnmq.client.producer.producer import Producer
from saturnmq.protocol.message import Message
from world_rig import World, new_disk, run


async def producer_of(world: World, nameserver: str) -> Producer:
    return await Producer("P", [nameserver], runtime=world.node("producer")).start()


def test_row_1_22_a_new_topic_has_4_queues_and_100_messages_are_spread_evenly() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        await asyncio.sleep(2)  # virtual: the broker has registered
        producer = await producer_of(world, nameserver)
        for number in range(100):
            assert (await producer.send(Message("Fresh", b"%d" % number))).ok
        await world.until(
            lambda: broker.store.watermarks.dispatched == broker.store.watermarks.appended
        )
        topic = broker.context.topics.get("Fresh")
        assert topic is not None
        assert (topic.read_queues, topic.write_queues) == (4, 4)
        assert [broker.store.max_offset("Fresh", queue) for queue in range(4)] == [25] * 4
        template = broker.context.topics.get("TBW102")
        assert template is not None
        assert template.write_queues == 8
        await producer.close()
        await broker.close()

    run(body)


def test_row_1_23_a_producer_takes_the_queues_in_turn() -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        await asyncio.sleep(2)
        producer = await producer_of(world, nameserver)
        queues = []
        for number in range(11):
            result = await producer.send(Message("Fresh", b"%d" % number))
            queues.append(result.queue.queue_id)
        assert queues == [(queues[0] + number) % 4 for number in range(11)]
        await producer.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("latency", "seconds"), [(100, 0), (549, 0), (551, 3), (999, 3), (1001, 60), (9000, 60)]
)
def test_row_1_24_a_slow_send_takes_its_broker_out(latency: float, seconds: float) -> None:
    faults = FaultStrategy()
    faults.succeeded("a", latency, now=100.0)
    assert faults.available("a", 100.0 + seconds)
    assert not seconds or not faults.available("a", 100.0 + seconds - 0.001)
    assert faults.available("b", 100.0)


@pytest.mark.parametrize(("latency", "seconds"), [(540, 0), (560, 3), (990, 3), (1010, 60)])
def test_row_1_24_a_producer_leaves_a_broker_alone_that_was_slow(
    latency: float, seconds: float
) -> None:
    async def body(world: World) -> None:
        nameserver = await world.nameserver()
        slow = await world.broker(broker_name="slow", nameservers=(nameserver,))
        machine = world.nodes[-1].name
        fast = await world.broker(new_disk(), broker_name="fast", nameservers=(nameserver,))
        await asyncio.sleep(2)
        producer = await producer_of(world, nameserver)

        async def chosen() -> set[str]:
            """Where a few sends go, with and without an answer."""
            before = slow.store.watermarks.appended
            for _ in range(16):
                await producer.send_oneway(Message("T", b"x"))
            await asyncio.sleep(0.01)
            reached = slow.store.watermarks.appended > before
            results = [await producer.send(Message("T", b"x")) for _ in range(16)]
            names = {result.queue.broker_name for result in results}
            assert reached == ("slow" in names)
            return names

        assert await chosen() == {"slow", "fast"}
        links = ("producer", machine), (machine, "producer")
        for link in links:
            world.network.slow_down(*link, (latency / 2000, latency / 2000))
        while (await producer.send(Message("T", b"x"))).queue.broker_name != "slow":
            pass
        world.network.heal()
        answered = world.loop.time()
        if seconds:
            assert await chosen() == {"fast"}
            await asyncio.sleep(answered + seconds - 0.1 - world.loop.time())
            assert await chosen() == {"fast"}
            await asyncio.sleep(answered + seconds - world.loop.time())
        assert await chosen() == {"slow", "fast"}
        await producer.close()
        await slow.close()
        await fast.close()

    run(body)

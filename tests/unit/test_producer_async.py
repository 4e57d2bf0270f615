"""The asynchronous producer's own part: how its calls wait and end, and what is its core's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from producer_world import A0, A1, Cluster, Make, clusters
from saturnmq.client.kernels import Outbox
from saturnmq.client.producer.batch_reference import Outbox as ReferenceOutbox
from saturnmq.client.producer.producer import Producer
from saturnmq.protocol.message import Message
from saturnmq.runtime.errors import ClientClosed, ClientForked, RequestTimeout, SaturnError

HALF = 0.5


@pytest.fixture
def cluster() -> Iterator[Make]:
    with clusters() as make:
        yield make


class Core:
    """A cluster as the core of a producer, which neither starts nor closes it."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.groups: list[str] = []
        self.oneways: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.world, name)

    def register_producer(self, group: str, handler: object) -> None:
        self.groups.append(group)

    async def unregister_producer(self, group: str) -> None:
        self.groups.remove(group)

    def oneway(self, address: str, command: Any) -> None:
        self.oneways.append(command.ext["e"])


def run(
    world: Cluster, test: Callable[[Producer, Core], Awaitable[None]], **options: Any
) -> Producer:
    core = Core(world)
    made = Producer("G", core=core, **options)  # type: ignore[arg-type]

    async def main() -> None:
        async with asyncio.timeout(1000):
            await test(made, core)

    world.loop.run_until_complete(main())
    return made


def x(count: int = 1) -> list[Message]:
    return [Message("T", b"x") for _ in range(count)]


def test_a_producer_is_in_its_group_from_its_start_to_its_end(cluster: Make) -> None:
    async def test(made: Producer, core: Core) -> None:
        with pytest.raises(ClientClosed, match="not started"):
            await made.send(x()[0])
        await made.close()
        async with made:
            engine = made.engine
            await made.start()
            assert (made.engine, core.groups) == (engine, ["G"])
            assert (await made.send(x()[0])).ok
        assert core.groups == []
        with pytest.raises(ClientClosed, match="the producer is closed"):
            await made.send(x()[0])

    run(cluster({"a": 1}), test)


def test_a_call_ends_in_its_time_and_its_send_goes_on(cluster: Make) -> None:
    world = cluster({"a": 1})

    async def test(made: Producer, core: Core) -> None:
        async with made:
            world.takes_s = lambda _: 1.8
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: made.send(x()[0], timeout=HALF),
                lambda: made.send_batch(x(2), timeout=HALF),
                lambda: made.flush(HALF),
            ]
            for call in calls:
                began = world.now
                with pytest.raises(RequestTimeout, match=r"no acknowledgement in 0\.5 s; the send"):
                    await call()
                assert world.now - began == pytest.approx(HALF, abs=0.01)
            await made.flush()
            assert made.engine.accumulator.active == set()
            handle = await made.send_async(x()[0])
            with pytest.raises(RequestTimeout, match="await the handle"):
                handle.result()
            assert (await handle).ok
            assert (await made.send(x()[0], timeout=2.0)).ok

    run(world, test)
    assert world.idle()


def test_what_is_bound_to_a_queue_asks_for_no_route_and_what_has_a_key_does(cluster: Make) -> None:
    world = cluster({"a": 2})

    async def test(made: Producer, core: Core) -> None:
        async with made:
            keyed = Message("T", b"x", sharding_key="k")
            for message, how in (
                (x()[0], {}),
                (x()[0], {"queue": A1}),
                (keyed, {"queue": A1, "sharding_key": "k", "selector": lambda queues, _: A0}),
            ):
                assert (await made.send(message, **how)).ok  # type: ignore[arg-type]
            assert [sent.queue for sent in world.sent[1:]] == [A1, A1]
            assert world.asked == []
            ways: list[tuple[Message, dict[str, Any]]] = [
                (keyed, {}),
                (x()[0], {"sharding_key": "k"}),
                (x()[0], {"selector": lambda queues, _: A0}),
            ]
            for number, (message, how) in enumerate(ways, 1):
                result = await made.send(message, **how)
                assert len(world.asked) == number
            assert result.queue == A0
            results = await made.send_batch(x(3), queue=A1)
            assert [(each.queue, each.queue_offset) for each in results] == [
                (A1, 0),
                (A1, 1),
                (A1, 2),
            ]
            assert len(await made.send_batch(x(2))) == 2
            assert len(world.asked) == 3
            await made.send_oneway(x()[0], queue=A1)
            assert core.oneways == ["1"]
            await made.send_oneway(x()[0], sharding_key="k")
            await made.send_oneway(keyed)
            assert core.oneways[1] == core.oneways[2]
            assert await made.queues("T") == [A0, A1]
            assert world.created == [True] * 6 + [False]

    run(world, test)


def test_who_sends_more_than_there_is_room_for_waits(cluster: Make) -> None:
    world = cluster({"a": 1})

    async def test(made: Producer, core: Core) -> None:
        async with made:
            world.takes_s = lambda _: 1.0
            await made.send_async(x()[0])
            waiting = [asyncio.ensure_future(made.send_async(each)) for each in x(2)]
            waiting.append(asyncio.ensure_future(made.send_batch(x())))  # type: ignore[arg-type]
            given_up = asyncio.ensure_future(made.send_async(x()[0]))
            await world.runtime.sleep(0.1)
            assert not any(each.done() for each in waiting)
            given_up.cancel()
            await world.runtime.sleep(0.1)
            assert given_up.cancelled()
            await asyncio.gather(*waiting)
            await made.flush()
            assert len(world.sent) == 4

    run(world, test, buffer_bytes=100, batch_bytes=100)


def test_who_waits_for_room_hears_that_the_producer_is_closed(cluster: Make) -> None:
    world = cluster({"a": 1})
    world.answer = lambda _: 14

    async def test(made: Producer, core: Core) -> None:
        await made.start()
        handle = await made.send_async(x()[0])
        waiting = asyncio.ensure_future(made.send_async(x()[0]))
        await world.runtime.sleep(0.1)
        began = world.now
        await made.close()
        assert world.now - began == pytest.approx(30.0, abs=0.01)
        assert isinstance(handle.exception(), SaturnError)
        with pytest.raises(ClientClosed):
            await waiting

    run(world, test, buffer_bytes=100, batch_bytes=100, until_delivered=True)


def test_errors_that_no_call_can_raise_go_to_the_listener(cluster: Make) -> None:
    world = cluster({"a": 1})
    listeners: list[Any] = []
    world.on_error = listeners.append  # type: ignore[attr-defined]
    core: Any = Core(world)
    Producer("G", core=core)
    Producer("G", core=core, on_error=print)
    assert listeners == [print]


def test_a_forked_engine_refuses_everything(cluster: Make) -> None:
    world = cluster({"a": 1})
    world.engine.check_open()
    world.engine.check_forked()
    world.engine.forked()
    for use in (
        world.engine.check_open,
        world.engine.check_forked,
        lambda: world.engine.enqueue(x()[0], None),
        lambda: world.loop.run_until_complete(world.engine.flush()),
    ):
        with pytest.raises(ClientForked):
            use()


def test_only_bodies_that_may_be_sent_go_the_short_way(cluster: Make) -> None:
    world = cluster({"a": 1}, max_message_bytes=500, compress_above=None)
    world.send()
    offer = world.engine.accumulator.offer
    assert offer(Message("T", b"x" * 501)) is None
    assert (offer(Message("T", b"x" * 500)) is None) == (Outbox is ReferenceOutbox)


def test_a_message_that_travels_alone_is_one_and_what_was_encoded_elsewhere_has_no_flag(
    cluster: Make,
) -> None:
    world = cluster({"a": 1})
    handle = world.engine.enqueue(Message("T", b"x", delay_level=1), None)
    assert handle is not None
    assert (handle.batch.count, handle.batch.single) == (1, True)
    batch = world.engine.enqueue_encoded("T", None, b"body", 3)
    assert batch is not None
    world.until_done(handle, batch.handle(0))
    assert [sent.command.ext["f"] for sent in world.sent] == ["0", "0"]
    assert (batch.count, batch.single) == (3, False)


@pytest.mark.parametrize("batches", [False, True], ids=["messages", "batches"])
def test_the_loop_sends_while_a_task_goes_on_sending(cluster: Make, batches: bool) -> None:
    world = cluster({"a": 1})

    async def test(made: Producer, core: Core) -> None:
        async with made:
            await made.send(x()[0])
            for _ in range(60):  # without a wait for an answer, or for room
                if batches:
                    await made.send_batch_async(x(100))
                else:
                    for each in x(100):
                        await made.send_async(each)
            assert len(world.sent) > 5

    run(world, test, batch_bytes=5_000)


def test_an_ordinary_message_goes_into_the_open_batch_without_further_checks(cluster: Make) -> None:
    world = cluster({"a": 1})

    async def test(made: Producer, core: Core) -> None:
        async with made:
            await made.send_async(x()[0])
            checked: list[Message] = []
            enqueue = made.engine.enqueue
            made.engine.enqueue = lambda message, pin: (  # type: ignore[method-assign]
                checked.append(message) or enqueue(message, pin)  # type: ignore[func-returns-value]
            )
            keyed = Message("T", b"x", sharding_key="k")
            handles = [await made.send_async(each) for each in (*x(3), keyed)]
            assert checked == ([keyed] if Outbox is not ReferenceOutbox else [*checked])
            assert [handle.batch is handles[0].batch for handle in handles] == [True] * 3 + [False]

    run(world, test)

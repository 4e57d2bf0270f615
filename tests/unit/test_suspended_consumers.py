"""A push consumer that is suspended: no call of the listener begins, and nothing is lost by it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from consumer_world import Q0, Q1, World, consumer
from saturnmq import ConsumeResult, Message, Producer, PushConsumer, ReceivedMessage
from served_rig import served


class Listener:
    """Takes a while for each message, and fails those in `fails` once."""

    def __init__(self, world: World, takes_s: float, fails: set[int] | None = None) -> None:
        self.world, self.takes_s = world, takes_s
        self.fails = set(fails or ())
        self.began: list[int] = []
        self.ended: list[int] = []

    async def __call__(self, message: ReceivedMessage) -> ConsumeResult:
        self.began.append(message.queue_offset)
        await self.world.runtime.sleep(self.takes_s)
        self.ended.append(message.queue_offset)
        if message.queue_offset in self.fails:
            self.fails.remove(message.queue_offset)
            return ConsumeResult.RETRY
        return ConsumeResult.SUCCESS


def backlog(count: int, queues: int = 1) -> World:
    world = World(queues=queues)
    for n in range(count):
        for queue in range(queues):
            world.send(queue, b"%d" % n)
    return world


@pytest.mark.parametrize("ordered", [False, True])
def test_calls_under_way_end_and_none_begins_until_it_is_resumed(ordered: bool) -> None:
    world = backlog(2000, queues=2)

    async def main() -> None:
        listener = Listener(world, 0.01)
        made = consumer(world, listener_one=listener, ordered=ordered, consume_threads=3)
        async with made:
            await world.until(lambda: len(listener.ended) > 50)
            made.suspend()
            began = len(listener.began)
            await world.runtime.sleep(20.0)
            assert len(listener.began) == began == len(listener.ended)
            assert sorted(made.held_queues()) == [Q0, Q1]
            assert sum(world.offsets.values()) == began  # committed, and no more
            made.resume()
            await world.until(lambda: world.offsets == {Q0: 2000, Q1: 2000}, 200.0)
            assert len(listener.began) == 4000  # each once

    world.run(main)


@pytest.mark.parametrize("ordered", [False, True])
def test_one_may_begin_suspended(ordered: bool) -> None:
    world = backlog(5)

    async def main() -> None:
        listener = Listener(world, 0.0)
        made = consumer(world, listener_one=listener, ordered=ordered)
        made.suspend()
        async with made:
            await world.runtime.sleep(60.0)
            assert listener.began == []
            made.resume()
            await world.until(lambda: len(listener.ended) == 5)

    world.run(main)


def test_a_failed_message_that_no_broker_takes_back_waits_for_the_end_of_the_suspension() -> None:
    world = backlog(1)
    world.refuse_backs = 1

    async def main() -> None:
        listener = Listener(world, 0.0, {0})
        async with consumer(world, listener_one=listener) as made:
            await world.until(lambda: listener.ended == [0])
            made.suspend()
            await world.runtime.sleep(30.0)
            assert listener.began == [0]
            made.resume()
            await world.until(lambda: world.offsets.get(Q0) == 1)
            assert listener.began == [0, 0]

    world.run(main)


def test_an_ordered_message_that_failed_is_the_first_one_after_the_suspension() -> None:
    world = backlog(3)

    async def main() -> None:
        listener = Listener(world, 0.1, {1})
        async with consumer(world, listener_one=listener, ordered=True) as made:
            await world.until(lambda: listener.began == [0, 1])
            made.suspend()
            await world.runtime.sleep(30.0)
            assert listener.began == [0, 1]
            made.resume()
            await world.until(lambda: world.offsets.get(Q0) == 3)
            assert listener.began == [0, 1, 1, 2]

    world.run(main)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_suspended_consumer_closes_and_gives_its_queues_up(ordered: bool) -> None:
    world = backlog(200)

    async def main() -> None:
        listener = Listener(world, 0.01)
        async with consumer(world, listener_one=listener, ordered=ordered) as made:
            await world.until(lambda: len(listener.ended) > 20)
            made.suspend()
            await world.runtime.sleep(1.0)
            world.members = ["another", "me"]  # the only queue goes to the first
            made.on_ids_changed()
            await world.until(lambda: made.held_queues() == [])
            assert world.offsets[Q0] == len(listener.began)
            world.members = ["me"]
            made.on_ids_changed()
            await world.until(lambda: made.held_queues() == [Q0])
        assert world.offsets[Q0] == len(listener.began)

    world.run(main)


def test_a_listener_in_a_thread_may_suspend_its_consumer(tmp_path: Path) -> None:
    got: list[str] = []
    suspended, all_came = threading.Event(), threading.Event()

    def take(message: ReceivedMessage) -> None:
        got.append(bytes(message.body).decode())
        if len(got) == 10:
            pushed.suspend()
            suspended.set()
        if len(got) == 100:
            all_came.set()

    with served(tmp_path) as nameserver:
        with Producer(nameservers=nameserver) as producer:
            for number in range(100):
                producer.send(Message("T", str(number).encode()))
        pushed = PushConsumer(
            "G", nameserver, listener_one=take, from_beginning=True, consume_threads=1
        )
        pushed.subscribe("T")
        with pushed:
            assert suspended.wait(30)
            assert not all_came.wait(0.5)
            assert len(got) == 10
            pushed.resume()
            assert all_came.wait(30)
    assert sorted(map(int, got)) == list(range(100))

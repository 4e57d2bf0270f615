"""An ordered queue has one owner at a time, however long its listener takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumer_world import MASTER, Q0, Q1, World, WorldCore, consumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.drills.sim.network import SimNetwork
from saturnmq.drills.sim.runtime import SimRuntime
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.runtime.errors import ListenerStuck


class Group:
    """Ordered consumers of one world, and when their listeners were in which message."""

    def __init__(self, world: World, takes_s: float = 30.0) -> None:
        self.world = world
        self.takes_s = takes_s
        self.finished: dict[MessageQueue, list[int]] = {Q0: [], Q1: []}
        self.inside: dict[MessageQueue, str] = {}
        self.hang: set[MessageQueue] = set()
        self.freed = asyncio.Event()
        self.told: list[Any] = []

    def member(self, name: str, runtime: SimRuntime | None = None, **options: Any) -> PushConsumer:
        async def listener(message: ReceivedMessage) -> None:
            queue = MessageQueue("T", "a", message.queue_id)
            assert queue not in self.inside, f"{name} and {self.inside[queue]} are in {queue}"
            self.inside[queue] = name
            await asyncio.sleep(self.takes_s)
            if queue in self.hang:
                await self.freed.wait()
            del self.inside[queue]
            self.finished[queue].append(message.queue_offset)

        made = consumer(
            self.world,
            WorldCore(self.world, name, runtime),
            listener_one=listener,
            ordered=True,
            on_error=self.told.append,
            **options,
        )
        made.subscribe("T")
        return made

    def join(self, *members: PushConsumer) -> None:
        """The broker's list of members is this from now on, and they are told."""
        self.world.members = [member.core.client_id for member in members]
        for member in members:
            member.on_ids_changed()


def backlog(count: int = 6) -> World:
    world = World(queues=2)
    for n in range(count):
        world.send(0, b"%d" % n)
        world.send(1, b"%d" % n)
    return world


def test_a_queue_changes_hands_when_its_listener_has_returned() -> None:
    world = backlog()
    group = Group(world)

    async def main() -> None:
        one, two, three = (group.member(name) for name in ("1", "2", "3"))
        world.members = ["1"]
        async with one:
            await world.until(lambda: len(group.inside) == 2)
            async with two:
                group.join(one, two)
                await world.until(lambda: group.finished[Q1] != [], 60.0)
                await world.until(lambda: two.held_queues() == [Q1], 60.0)
                async with three:
                    group.join(two, three)  # the first one hands over its queue as well
                    await world.until(lambda: len(group.finished[Q1]) == 6, 600.0)
                    await world.until(lambda: len(group.finished[Q0]) == 6, 600.0)
        assert group.finished == {Q0: [0, 1, 2, 3, 4, 5], Q1: [0, 1, 2, 3, 4, 5]}
        assert world.offsets == {Q0: 6, Q1: 6}
        assert group.told == []

    world.run(main)


def test_a_queue_that_comes_back_while_it_is_left_goes_on_where_it_was() -> None:
    world = backlog(3)
    group = Group(world)

    async def main() -> None:
        one = group.member("1")
        world.members = ["1"]
        async with one:
            await world.until(lambda: len(group.inside) == 2)
            world.members = ["0", "1"]
            one.on_ids_changed()
            await asyncio.sleep(5.0)
            group.join(one)
            await world.until(lambda: sum(map(len, group.finished.values())) == 6, 200.0)
        assert group.finished == {Q0: [0, 1, 2], Q1: [0, 1, 2]}

    world.run(main)


def test_a_listener_that_does_not_return_keeps_its_queue_and_is_told() -> None:
    world = backlog()
    group = Group(world, takes_s=1.0)
    group.hang = {Q1}

    async def main() -> None:
        one = group.member("1", consume_timeout_s=60.0)
        two = group.member("2")
        world.members = ["1"]
        async with one, two:
            await world.until(lambda: group.inside.get(Q1) == "1" and len(group.finished[Q0]) > 1)
            group.join(one, two)
            await world.until(lambda: len(group.finished[Q0]) == 6)
            await asyncio.sleep(200.0)
            assert group.finished[Q1] == []
            assert world.unlocked == []
            assert world.offsets == {Q0: 6, Q1: 0}
            assert {type(error) for error in group.told} == {ListenerStuck}
            assert 2 <= len(group.told) <= 4
            assert str(Q1) in str(group.told[0])
            assert "consume_timeout_s" in str(group.told[0])
            table = one.running_info()["mqTable"]
            assert (table[Q1]["droped"], table[Q1]["locked"]) == (True, True)
            assert table[Q1]["tryUnlockTimes"] >= 5
            now = world.runtime.now_ms()
            assert now - table[Q1]["lastLockTimestamp"] < 30_000
            assert 190_000 < now - table[Q0]["lastConsumeTimestamp"] < 220_000
            group.hang.clear()
            group.freed.set()
            await world.until(lambda: two.held_queues() == [Q1], 3.0)
            await world.until(lambda: len(group.finished[Q1]) == 6)
        assert group.finished[Q1] == [0, 1, 2, 3, 4, 5]

    world.run(main)


def test_close_does_not_give_a_queue_away_under_its_listener() -> None:
    world = backlog()
    group = Group(world, takes_s=1.0)
    group.hang = {Q1}

    async def main() -> None:
        one, two = group.member("1"), group.member("2")
        world.members = ["1"]
        async with one:
            await world.until(lambda: group.finished[Q0] == [0, 1] and Q1 in group.inside)
            closed_at = world.loop.time()
        assert world.loop.time() - closed_at < 15.0
        assert world.unlocked == [Q0]
        assert world.offsets[Q1] == 0
        (error,) = group.told
        assert isinstance(error, ListenerStuck)
        assert str(Q1) in str(error)
        world.members = ["2"]
        async with two:
            await world.until(lambda: group.inside.get(Q0) == "2")
            assert group.inside[Q1] == "1"
            await asyncio.sleep(20.0)
            group.freed.set()  # in time
            await world.until(lambda: len(group.finished[Q1]) == 7, 120.0)
        assert group.finished[Q1] == [0, 0, 1, 2, 3, 4, 5]  # again, because it was not committed

    world.run(main)


def test_a_lock_that_comes_anew_under_a_listener_brings_nothing_twice() -> None:
    world = backlog(3)
    group = Group(world, takes_s=100.0)

    async def main() -> None:
        one = group.member("1")
        world.members = ["1"]
        async with one:
            await world.until(lambda: len(group.inside) == 2)
            world.down.add(MASTER)
            await asyncio.sleep(40.0)  # longer than a client trusts a lock
            world.down.clear()
            await world.until(lambda: len(group.finished[Q0]) == 3, 400.0)
        assert group.finished[Q0] == [0, 1, 2]

    world.run(main)


def test_a_process_that_slept_longer_than_its_lock_commits_and_begins_nothing() -> None:
    world = World(queues=1)
    for n in range(6):
        world.send(0, b"%d" % n)
    group = Group(world, takes_s=5.0)
    sleeper = SimRuntime(world.loop, SimNetwork(world.loop, 8), 8, "sleeper")
    begun: list[int] = []

    async def slow(message: ReceivedMessage) -> None:
        begun.append(message.queue_offset)
        await asyncio.sleep(7.0)

    async def main() -> None:
        world.members = ["1"]
        options: Any = {"listener_one": slow, "ordered": True}
        one = consumer(world, WorldCore(world, "1", sleeper), **options)
        two = group.member("2")
        await sleeper.run(one.start())
        await world.until(lambda: world.offsets.get(Q0) == 1)
        sleeper.pause()
        world.members = ["2"]
        async with two:
            await world.until(lambda: group.finished[Q0] == [1, 2, 3], 120.0)
            await world.until(lambda: world.offsets[Q0] == 4)
            sleeper.resume()
            await asyncio.sleep(4.0)
            assert begun == [0, 1]
            await world.until(lambda: world.offsets[Q0] == 6)
            await asyncio.sleep(30.0)
        offsets = [offset for queue, offset in world.commits if queue == Q0]
        assert offsets == sorted(offsets)
        assert begun == [0, 1]
        await sleeper.run(one.close())

    world.run(main)


def test_a_concurrent_listener_that_hangs_in_a_queue_that_went_elsewhere_is_told() -> None:
    world, freed = World(queues=1), asyncio.Event()
    told: list[Any] = []
    world.send(0, b"0")

    async def hang(message: ReceivedMessage) -> None:
        await freed.wait()

    async def main() -> None:
        made = consumer(world, listener_one=hang, on_error=told.append, consume_timeout_s=60.0)
        async with made:
            await world.until(lambda: world.pulls != [])
            await asyncio.sleep(1.0)
            world.members = ["a", "me"]
            made.on_ids_changed()
            await world.until(lambda: Q0 not in made.held_queues())
            await world.until(lambda: told != [], 80.0)
            assert world.backs == []
            freed.set()

    world.run(main)
    assert isinstance(told[0], ListenerStuck)
    assert "thread" in str(told[0])


@pytest.mark.parametrize("ordered", [False, True])
def test_what_was_finished_before_a_listener_hangs_is_committed(ordered: bool) -> None:
    """Though it was handed over in one piece with the message that it hangs in."""
    world, freed, done = World(queues=1), asyncio.Event(), []
    for n in range(500):
        world.send(0, b"%d" % n)

    async def listener(message: ReceivedMessage) -> None:
        if message.queue_offset == 300:
            await freed.wait()
        done.append(message.queue_offset)

    async def main() -> None:
        made = consumer(world, listener_one=listener, ordered=ordered)
        async with made:
            await world.until(lambda: world.offsets.get(Q0) == 300)
            await asyncio.sleep(30.0)
            assert world.offsets[Q0] == 300
            assert 300 not in done
            freed.set()
            await world.until(lambda: world.offsets.get(Q0) == 500)

    world.run(main)


@pytest.mark.parametrize("broadcasting", [False, True])
def test_a_concurrent_listener_that_hangs_is_told(broadcasting: bool) -> None:
    world = World(queues=1)
    told: list[Any] = []
    world.send(0, b"0")

    class NoFiles:
        def read(self, path: str) -> bytes | None:
            return None

        def replace(self, path: str, data: bytes) -> None: ...

        def lock(self, path: str) -> str | None:
            return None

        def unlock(self, path: str) -> None: ...

    async def main() -> None:
        freed = asyncio.Event()

        async def hang(message: ReceivedMessage) -> None:
            await freed.wait()

        options: Any = {"broadcasting": broadcasting, "files": NoFiles()}
        async with consumer(
            world, listener_one=hang, on_error=told.append, consume_timeout_s=60.0, **options
        ):
            await world.until(lambda: told != [], 80.0)
            freed.set()

    world.run(main)
    assert isinstance(told[0], ListenerStuck)

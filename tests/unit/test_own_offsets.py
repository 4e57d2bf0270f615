"""Offsets that the application keeps: where a pull consumer begins, and what it has saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from consumer_world import Q0, Q1, World, puller
from saturnmq import Message, MessageQueue, Producer, PullConsumer, aio
from saturnmq.runtime.errors import InvalidParameter, OffsetsNotSaved, SaturnError
from served_rig import served


class Shelf:
    """A store that runs in threads."""

    def __init__(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        self.offsets = offsets or {}
        self.saves: list[dict[MessageQueue, int]] = []
        self.fails = False

    def load(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        if self.fails:
            raise OSError("no room")
        self.saves.append(dict(offsets))
        self.offsets.update(offsets)


class AsyncShelf(Shelf):
    """A store that runs on the loop."""

    async def load(self, queue: MessageQueue) -> int | None:  # type: ignore[override]
        return super().load(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:  # type: ignore[override]
        super().save(offsets)


def filled(queues: int = 2) -> World:
    world = World(queues=queues)
    for n in range(10 * queues):
        world.send(n % queues, b"x")
    return world


@pytest.mark.parametrize("shelf", [Shelf({Q0: 7}), AsyncShelf({Q0: 7})], ids=["plain", "async"])
def test_a_consumer_begins_and_ends_where_the_store_says(shelf: Shelf) -> None:
    world = filled()

    async def main() -> None:
        made = puller(world, offset_store=shelf, auto_commit=False)
        made.assign([Q0, Q1])
        async with made:
            got: dict[MessageQueue, list[int]] = {Q0: [], Q1: []}
            while sum(map(len, got.values())) < 13:
                for message in await made.poll():
                    got[message.queue].append(message.queue_offset)
            assert got == {Q0: [7, 8, 9], Q1: list(range(10))}
            assert shelf.saves == []
            await made.commit({Q0: 8})
            assert (shelf.saves, await made.committed(Q0)) == ([{Q0: 8}], 8)
            made.seek(Q0, 2)
            await made.commit()
            assert shelf.offsets == {Q0: 2, Q1: 10}
        assert world.commits == []

    world.run(main)


def test_a_commit_that_cannot_be_saved_is_raised_and_saved_later() -> None:
    world, shelf = filled(1), Shelf()
    reported: list[SaturnError] = []

    async def main() -> None:
        made = puller(world, offset_store=shelf, on_error=reported.append)
        made.assign([Q0])
        async with made:
            await made.poll()
            shelf.fails = True
            with pytest.raises(OffsetsNotSaved, match="no room"):
                await made.commit()
            assert (reported, shelf.offsets) == ([], {})
            shelf.fails = False
        assert shelf.offsets == {Q0: 10}

    world.run(main)


def test_offsets_that_nobody_waits_for_and_cannot_be_saved_are_reported_once() -> None:
    world, shelf = filled(1), Shelf()
    reported: list[SaturnError] = []

    async def main() -> None:
        made = puller(world, offset_store=shelf, on_error=reported.append)
        made.assign([Q0])
        await made.start()
        await made.poll()
        await made.poll(0.1)  # what the first one gave is done
        shelf.fails = True
        await world.until(lambda: reported != [], 10.0)
        await world.runtime.sleep(20.0)
        assert [type(error) for error in reported] == [OffsetsNotSaved]
        await made.close()
        assert [type(error) for error in reported] == [OffsetsNotSaved] * 2, "the last attempt"

    world.run(main)


@pytest.mark.parametrize("offset", [-1, "7"])
def test_a_store_that_says_nonsense_is_told(offset: Any) -> None:
    world = filled(1)

    async def main() -> None:
        made = puller(world, offset_store=Shelf({Q0: offset}))
        made.assign([Q0])
        async with made:
            with pytest.raises(InvalidParameter, match=r"offset_store.load says"):
                await made.committed(Q0)

    world.run(main)


class SlowShelf(Shelf):
    """Its first save ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        if not self.begun.is_set():
            self.begun.set()
            self.go_on.wait(30)
        super().save(offsets)


def test_a_save_waits_for_the_one_before_though_its_caller_was_cancelled(tmp_path: Path) -> None:
    shelf = SlowShelf()

    async def body(address: str, queue: MessageQueue) -> None:
        async with aio.PullConsumer(
            "g",
            address,
            from_beginning=True,
            offset_store=shelf,
            auto_commit=False,
            commit_interval_s=60,
        ) as consumer:
            consumer.assign([queue])
            assert await consumer.poll(30, 1)
            first = asyncio.create_task(consumer.commit())
            await asyncio.to_thread(shelf.begun.wait, 30)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert await consumer.poll(30, 1)
            second = asyncio.create_task(consumer.commit())
            await asyncio.wait([second], timeout=0.2)
            assert shelf.saves == [], "the second save overlaps with the first"
            shelf.go_on.set()
            await second
            assert shelf.saves == [{queue: 1}, {queue: 2}]

    with served(tmp_path) as address, Producer("senders", address) as producer:
        queue = producer.send(Message("t", b"0")).queue
        producer.send(Message("t", b"1"), queue=queue)
        asyncio.run(body(address, queue))


def test_a_group_with_a_store_shares_queues_and_goes_on_there(tmp_path: Path) -> None:
    shelf = Shelf()
    with served(tmp_path) as address, Producer("senders", address) as producer:
        for part in (range(20), range(20, 30)):
            for n in part:
                producer.send(Message("t", b"%d" % n))
            consumer = PullConsumer("g", address, from_beginning=True, offset_store=shelf)
            consumer.subscribe("t")
            with consumer:
                got: list[int] = []
                while len(got) < len(part):
                    got += (int(message.body) for message in consumer.poll())
                assert sorted(got) == list(part)
        assert sum(shelf.offsets.values()) == 30

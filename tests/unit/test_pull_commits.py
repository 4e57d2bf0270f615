"""What a pull consumer commits when its program fails or leaves, or a queue is taken from it,
and what it is told when a commit fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_rig import config, started
from consumer_world import MASTER, Q0, Q1, SLAVE, World, puller
from saturnmq import Message, Producer, PullConsumer, ReceivedMessage
from saturnmq.client.consumer.pull_consumer import PullConsumer as AsyncPullConsumer
from saturnmq.client.loop_thread import LoopThread
from saturnmq.nameserver.server import NameServer
from saturnmq.runtime.errors import ConnectionLost, InvalidParameter, SaturnError


def backlog(count: int = 20, queues: int = 1) -> World:
    world = World(queues=queues)
    for n in range(count):
        for queue in range(queues):
            world.send(queue, b"%d" % n)
    return world


FAILURES = [ValueError("mine"), asyncio.CancelledError(), KeyboardInterrupt()]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
def test_nothing_of_the_last_poll_is_committed_when_the_body_raises(failure: Any) -> None:
    world = backlog()

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")

        async def body() -> None:
            async with made:
                await made.poll(5.0, max_messages=4)
                await made.poll(5.0, max_messages=4)
                raise failure

        with pytest.raises(type(failure)):
            await body()
        assert world.offsets == {Q0: 4}

    world.run(main)


def test_a_commit_that_was_cancelled_is_sent_with_the_next_one() -> None:
    world = backlog()

    async def main() -> None:
        made = puller(world, auto_commit=False)
        made.subscribe("T")
        async with made:
            assert len(await made.poll(5.0)) == 20
            world.hung |= {MASTER, SLAVE}
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(made.commit(), 1)
            world.hung.clear()
            assert world.offsets == {}
            await made.commit()
            assert world.offsets == {Q0: 20}

    world.run(main)


def test_a_topic_that_is_subscribed_again_at_once_is_read_on() -> None:
    world = backlog(2, queues=2)

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")
        async with made:
            found: list[ReceivedMessage] = []
            while len(found) < 4:
                found += await made.poll(5.0)
            made.pause([Q1])
            made.unsubscribe("T")
            assert made.paused() == [Q1], "that of the application alone"
            made.subscribe("T")
            for queue in (0, 1):
                world.send(queue, b"new")
            assert [message.queue for message in await made.poll(5.0)] == [Q0]
            made.resume([Q1])
            assert [message.queue for message in await made.poll(5.0)] == [Q1]

    world.run(main)


def test_nothing_at_all_is_committed_when_the_first_poll_is_not_done_with() -> None:
    world = backlog()

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")

        async def body() -> None:
            async with made:
                assert len(await made.poll(5.0)) == 20
                await world.runtime.sleep(30.0)  # and the commits of every five seconds pass
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await body()
        assert world.commits == []

    world.run(main)


@pytest.mark.parametrize("auto_commit", [True, False])
def test_what_was_committed_by_hand_stays_when_the_body_raises(auto_commit: bool) -> None:
    world = backlog()

    async def main() -> None:
        made = puller(world, auto_commit=auto_commit)
        made.subscribe("T")

        async def body() -> None:
            async with made:
                await made.poll(5.0)
                await made.commit({Q0: 3})
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await body()
        assert world.offsets == {Q0: 3}

    world.run(main)


@pytest.mark.parametrize("leave", ["body", "close"])
def test_everything_polled_is_committed_at_the_end_of_a_body_and_by_close(leave: str) -> None:
    world = backlog()

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")
        await made.start()
        await made.poll(5.0, max_messages=4)
        await made.poll(5.0, max_messages=4)
        if leave == "body":
            async with made:
                pass
        await made.close()
        assert world.offsets == {Q0: 8}

    world.run(main)


def test_a_queue_that_is_taken_away_while_its_messages_are_worked_on_is_not_committed() -> None:
    world = backlog(queues=2)

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")
        async with made:
            await world.runtime.sleep(1.0)
            polls = [await made.poll(5.0, max_messages=4) for _ in range(3)]
            assert [poll[0].queue_id for poll in polls] == [0, 1, 0]
            world.members = ["a-new-one", "me"]  # comes first, and gets the first queue
            made.on_ids_changed()
            await world.until(lambda: made.assignment() == [Q1])
            assert world.offsets[Q0] == 4  # which the second poll confirmed
            await made.poll(5.0, max_messages=4)
            await made.poll(5.0, max_messages=4)
            await world.until(lambda: world.offsets.get(Q1) == 8)
            assert world.offsets[Q0] == 4

    world.run(main)


def test_a_seek_is_committed_by_the_next_poll_or_commit_and_not_before() -> None:
    world = backlog()
    world.offsets[Q0] = 10

    async def main() -> None:
        made = puller(world)
        made.assign([Q0])
        async with made:
            assert (await made.poll(5.0))[0].queue_offset == 10
            made.seek(Q0, 2)
            await world.runtime.sleep(30.0)
            assert world.offsets == {Q0: 10}
            assert (await made.poll(5.0))[0].queue_offset == 2
            await world.until(lambda: world.offsets == {Q0: 2})

    world.run(main)
    world = backlog()
    world.offsets[Q0] = 10

    async def by_hand() -> None:
        made = puller(world, auto_commit=False)
        made.assign([Q0])
        async with made:
            await made.poll(5.0)
            made.seek(Q0, 2)
            await world.runtime.sleep(30.0)
            assert world.offsets == {Q0: 10}
            await made.commit()
            assert world.offsets == {Q0: 2}

    world.run(by_hand)


def reader(world: World) -> AsyncPullConsumer:
    """It reads two queues, and commits what its application says."""
    made = puller(world, auto_commit=False)
    made.assign([Q0, Q1])
    return made


def test_a_commit_that_no_broker_confirms_is_raised_and_made_again_with_the_next_one() -> None:
    world = backlog(3, queues=2)

    async def main() -> None:
        async with reader(world) as made:
            polled = await made.poll(5.0) + await made.poll(5.0)
            assert len(polled) == 6
            world.down.update((MASTER, SLAVE))
            with pytest.raises(ConnectionLost):
                await made.commit()
            assert world.offsets == {}
            world.down.clear()
            await made.commit()
            assert world.offsets == {Q0: 3, Q1: 3}

    world.run(main)


def test_what_close_cannot_commit_is_reported() -> None:
    world = backlog(3, queues=2)
    told: list[SaturnError] = []

    async def main() -> None:
        made = reader(world)
        made.core.report_error = told.append  # type: ignore[method-assign]
        async with made:
            await made.poll(5.0)
            made._polled.note_all()
            world.down.update((MASTER, SLAVE))
        assert any(isinstance(error, ConnectionLost) for error in told), told

    world.run(main)


@pytest.mark.parametrize("offset", [-1, 4, 1 << 70])
def test_an_offset_outside_its_queue_is_refused_and_hinders_no_other(offset: int) -> None:
    world = backlog(3, queues=2)

    async def main() -> None:
        async with reader(world) as made:
            await made.poll(5.0)
            await made.poll(5.0)
            with pytest.raises(InvalidParameter, match=f"offset {offset} is outside"):
                await made.commit({Q1: 1, Q0: offset})
            await made.commit({Q0: 3})
            assert world.offsets == {Q0: 3}
            await made.commit({Q0: 2})
            assert world.offsets == {Q0: 3}, "seek() goes back"

    world.run(main)


def test_a_place_that_no_queue_has_is_not_sought() -> None:
    world = backlog(3, queues=2)

    async def main() -> None:
        async with reader(world) as made:
            with pytest.raises(InvalidParameter, match="is not from 0 to"):
                made.seek(Q0, 1 << 63)

    world.run(main)


def test_the_synchronous_consumer_follows_the_same_rule(tmp_path: Path) -> None:
    server = LoopThread()

    async def serve() -> Any:
        nameserver = NameServer(server.runtime, port=0)
        await nameserver.start()
        names = {"nameservers": (nameserver.address,), "register_ms": 100}
        return nameserver, await started(server.runtime, config(tmp_path, **names))

    nameserver, broker = server.run(serve())
    try:
        with Producer(nameservers=nameserver.address) as producer:
            for n in range(20):
                producer.send(Message("orders", b"%d" % n))

        def read(count: int) -> list[bytes]:
            consumer = PullConsumer("readers", nameserver.address, from_beginning=True)
            consumer.subscribe("orders")
            got: list[bytes] = []
            with consumer:
                while len(got) < count:
                    got += [bytes(message.body) for message in consumer.poll(10.0)]
                    if count < 20:
                        raise ValueError("mine")
            return got

        with pytest.raises(ValueError, match="mine"):
            read(1)
        assert len(read(20)) == 20
    finally:
        server.run(broker.close())
        server.run(nameserver.close())
        server.close()

"""What a pull consumer reads ahead, what its polls give, and where seeks and orders take it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumer_world import MASTER, Q0, Q1, SLAVE, World, WorldCore, consumer, puller
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.sql92 import Sql
from saturnmq.runtime.errors import ClientClosed, ConfigError, InvalidParameter


def backlog(count: int, queues: int = 1) -> World:
    world = World(queues=queues)
    for n in range(count):
        world.send(n % queues, b"%d" % n)
    return world


def offsets(messages: Any) -> list[int]:
    return [message.queue_offset for message in messages]


def test_a_poll_gives_so_many_and_waits_so_long() -> None:
    world = backlog(1100)

    async def main() -> None:
        made = puller(world)
        made.assign([Q0])
        with pytest.raises(ClientClosed, match="not running"):
            await made.poll()
        async with made:
            await world.runtime.sleep(1.0)
            with pytest.raises(InvalidParameter, match="max_messages 0 must be at least 1"):
                await made.poll(max_messages=0)
            assert offsets(await made.poll(max_messages=1)) == [0]
            assert offsets(await made.poll()) == list(range(1, 32))  # of the first, small pull
            assert offsets(await made.poll()) == list(range(32, 1056))
            assert offsets(await made.poll()) == list(range(1056, 1100))
            for waits, seconds in ((made.poll(), 5.0), (made.poll(0.25), 0.25)):
                began = world.loop.time()
                assert await waits == []
                assert world.loop.time() - began == pytest.approx(seconds, abs=0.002)

    world.run(main)


def test_a_poll_that_waits_gets_the_first_message_at_once_and_none_when_the_consumer_closes() -> (
    None
):
    world = World(queues=1)

    async def main() -> None:
        made = puller(world)
        made.assign([Q0])
        await made.start()
        await made.start()
        waiting = asyncio.ensure_future(made.poll(60.0))
        await world.runtime.sleep(1.0)
        world.send(0, b"x")
        assert offsets(await asyncio.wait_for(waiting, 0.1)) == [0]
        waiting = asyncio.ensure_future(made.poll(60.0))
        await world.runtime.sleep(1.0)
        await made.close()
        assert await asyncio.wait_for(waiting, 0.1) == []
        await made.close()
        with pytest.raises(ClientClosed, match="make a new one"):
            await made.start()
        with pytest.raises(ClientClosed, match="not running"):
            await made.poll()

    world.run(main)


@pytest.mark.parametrize(
    "bound", [{"max_cached_messages": 100}, {"max_cached_bytes": 10_000}], ids=str
)
def test_so_much_is_read_ahead_of_the_polls(bound: dict[str, int]) -> None:
    world = backlog(6000)

    async def main() -> None:
        made = puller(world, **bound)
        made.assign([Q0])
        async with made:
            await world.runtime.sleep(30.0)
            read = int(world.pulls[-1]["queueOffset"]) + int(world.pulls[-1]["maxMsgNums"])
            assert 100 <= read < 100 + 2048 + 32
            asked = len(world.pulls)
            while asked == len(world.pulls):
                assert len(await made.poll(1.0)) > 0
                await world.runtime.sleep(1.0)
            assert int(world.pulls[-1]["queueOffset"]) == read

    world.run(main)


def test_a_consumer_either_subscribes_or_is_assigned_queues() -> None:
    world = World()

    async def main() -> None:
        assigned, subscribed = puller(world), puller(world)
        assigned.assign([Q0])
        with pytest.raises(ConfigError, match="either subscribes to topics or is assigned"):
            assigned.subscribe("T")
        subscribed.subscribe("T")
        subscribed.subscribe("T", "A")
        with pytest.raises(ConfigError, match="either subscribes to topics or is assigned"):
            subscribed.assign([Q0])
        assert assigned.assignment() == [Q0]
        assert subscribed.assignment() == []
        with pytest.raises(ConfigError, match="either subscribes to topics or is assigned"):
            assigned.unsubscribe("T")
        async with puller(world) as running:
            running.assign([Q1])
            assert running.assignment() == [Q1]
            with pytest.raises(ConfigError, match="either subscribes to topics or is assigned"):
                running.subscribe("T")

    world.run(main)


def test_topics_come_and_go_while_it_runs() -> None:
    world = World(queues=1)
    other = MessageQueue("other", "a", 0)
    world.frames[other] = []
    world.listed.append("other")

    async def main() -> None:
        options = {"rebalance_interval_s": 1000.0, "auto_commit": False}
        async with puller(world, **options) as made:
            await world.runtime.sleep(5.0)
            made.subscribe("other")
            await world.until(lambda: made.assignment() == [other])
            made.subscribe("T", "A")
            await world.until(lambda: made.assignment() == [Q0, other])
            said = made.heartbeat_data()["subscriptionDataSet"]
            assert {each["topic"]: each["subString"] for each in said} == {"T": "A", "other": "*"}
            world.send(0, b"x", "A")
            world.send(0, b"y", "A")
            assert offsets(await made.poll(max_messages=1)) == [0]
            await made.commit()
            assert offsets(await made.poll(max_messages=1)) == [1]
            world.send(0, b"z", "A")
            await world.runtime.sleep(1.0)
            made.unsubscribe("T")
            assert await made.poll(5.0) == []  # at once
            assert made.assignment() == [other]
            assert world.offsets[Q0] == 1, "the last poll is not done with"
            made.unsubscribe("unknown")
            made.subscribe("T", "A")
            assert offsets(await made.poll(max_messages=1)) == [1]

    world.run(main)


def test_a_condition_that_a_broker_refuses_later_is_told_to_the_log_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(queues=1)

    async def main() -> None:
        async with puller(world) as made:
            made.subscribe("T", Sql("a > 3"))
            await world.until(lambda: "knows no conditions" in caplog.text)

    world.run(main)


def test_what_stays_assigned_is_read_on_and_what_goes_is_forgotten() -> None:
    world = backlog(20, queues=2)

    async def main() -> None:
        made = puller(world)
        made.assign([Q1, Q0, Q1])
        assert made.held_queues() == [Q1, Q0]
        async with made:
            await world.runtime.sleep(1.0)
            polls = [await made.poll(5.0, max_messages=4) for _ in range(3)]
            assert [(poll[0].queue_id, offsets(poll)[0]) for poll in polls] == [
                (1, 0),
                (0, 0),
                (1, 4),
            ]
            assert (made.position(Q0), made.position(Q1)) == (4, 8)
            made.assign([Q0])
            assert (made.assignment(), made.position(Q0), made.position(Q1)) == ([Q0], 4, None)
            assert offsets(await made.poll(5.0)) == [4, 5, 6, 7, 8, 9]
            assert await made.poll(1.0) == []

    world.run(main)


def test_a_queue_can_be_sought_before_the_start_and_a_seek_behind_all_waits_there() -> None:
    world = backlog(5)

    async def main() -> None:
        made = puller(world)
        made.assign([Q0])
        made.seek(Q0, 9)
        assert await made.lag() == 0, "it is behind the end"
        made.seek(Q0, 3)
        assert made.position(Q0) == 3
        async with made:
            assert offsets(await made.poll(5.0)) == [3, 4]
            made.seek(Q0, 0)
            assert offsets(await made.poll(5.0)) == [0, 1, 2, 3, 4]
            made.seek(Q0, 5)
            world.send(0, b"late")
            assert offsets(await made.poll(5.0)) == [5]

    world.run(main)


def test_a_queue_that_is_sought_as_soon_as_it_is_assigned_is_read_without_a_pause() -> None:
    world = backlog(5)

    async def main() -> None:
        async with puller(world) as made:
            made.assign([Q0])
            made.seek(Q0, 3)
            began = world.runtime.monotonic()
            assert offsets(await made.poll(5.0)) == [3, 4]
            assert world.runtime.monotonic() - began < 0.5

    world.run(main)


def test_only_what_is_assigned_is_committed_and_lags() -> None:
    world = backlog(20, queues=2)
    world.offsets[Q1] = 4

    async def main() -> None:
        made = puller(world, auto_commit=False)
        made.assign([Q0])
        async with made:
            with pytest.raises(InvalidParameter, match=r"queueId=1\] is not assigned"):
                await made.commit({Q1: 5})
            assert world.offsets == {Q1: 4}
            assert len(await made.poll(5.0, max_messages=3)) == 3
            assert await made.lag() == 7
            assert await made.lag(Q1) == 6
            del world.offsets[Q1]
            assert await made.lag(Q1) == 10
            world.offsets[Q1] = 4
            await made.commit({Q0: 2})
            assert world.offsets == {Q0: 2, Q1: 4}
            assert await made.committed(Q1) == 4
            made.seek(Q0, 99)
            assert await made.lag() == 0

    world.run(main)


@pytest.mark.parametrize("use", ["commit", "lag"])
def test_a_queue_of_which_nobody_has_asked_yet_can_be_committed_and_lags(use: str) -> None:
    world = backlog(10)

    async def main() -> None:
        async with puller(world) as made:
            if use == "lag":
                assert await made.lag(Q0) == 10
                return
            made.assign([Q0])
            await made.commit({Q0: 3})
            assert world.offsets == {Q0: 3}

    world.run(main)


def test_a_queue_that_comes_back_is_read_from_where_the_group_is_by_then() -> None:
    world = backlog(10)

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")
        async with made:
            assert len(await made.poll(5.0)) == 10
            await made.commit()
            world.members = ["another", "me"]  # which comes first, and gets the only queue
            made.on_ids_changed()
            await world.until(lambda: made.assignment() == [])
            world.offsets[Q0] = 4  # an operator went back
            world.members = ["me"]
            made.on_ids_changed()
            assert offsets(await made.poll(5.0)) == list(range(4, 10))

    world.run(main)


def test_a_queue_without_messages_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    world = World(queues=3)
    for n in range(6):
        world.send(1, b"%d" % n)
    world.damaged = {MASTER: {2}, SLAVE: {2}}

    async def main() -> None:
        made = puller(world)
        made.assign([Q0, Q1, MessageQueue("T", "a", 2)])
        async with made:
            await world.runtime.sleep(60.0)
            began = world.loop.time()
            assert [offsets(await made.poll(max_messages=1)) for _ in range(5)] == [
                [0],
                [1],
                [3],
                [4],
                [5],
            ], "the damaged one is told and passed over"
            assert world.loop.time() == began

    world.run(main)
    assert "is damaged on every broker" in caplog.text


def test_what_is_given_twice_is_read_once_and_nothing_after_the_end() -> None:
    world = backlog(3)

    async def main() -> None:
        made = puller(world)
        made.subscribe("T")
        async with made:
            assert await made.take_queues([Q0])
            assert await made.take_queues([Q0])
            assert made.held_queues() == [Q0]
            assert offsets(await made.poll()) == [0, 1, 2]
            assert await made.poll(1.0) == []
        assert await made.take_queues([Q0])
        assert made.held_queues() == []

    world.run(main)


def test_an_order_moves_the_queues_of_its_topic_and_is_committed() -> None:
    world = backlog(20, queues=2)
    other = MessageQueue("other", "a", 0)

    async def main() -> None:
        made = puller(world, auto_commit=False)
        made.assign([Q0])
        async with made:
            assert len(await made.poll(5.0)) == 10
            made.on_reset_offsets("other", {Q0: 1})
            made.on_reset_offsets("T", {Q0: 6, Q1: 3, other: 2})
            assert made.consumer_status("T") == {Q0: 6}
            assert made.consumer_status("other") == {}
            assert offsets(await made.poll(5.0)) == [6, 7, 8, 9]
            await world.until(lambda: world.offsets == {Q0: 6}, 6.0)

    world.run(main)


@pytest.mark.parametrize("leave", ["commit", "close"])
def test_a_commit_that_is_waited_for_is_answered(leave: str) -> None:
    """What is sent without an answer may be lost with its connection."""
    world = backlog(3)

    class Core(WorldCore):
        def oneway(self, address: str, cmd: Any) -> None: ...

    async def main() -> None:
        core: Any = Core(world)
        made = PullConsumer("G", core=core, from_beginning=True)
        made.assign([Q0])
        async with made:
            assert len(await made.poll()) == 3
            if leave == "commit":
                await made.commit()
                assert world.offsets == {Q0: 3}
        assert world.offsets == {Q0: 3}

    world.run(main)


def test_a_seek_goes_back_behind_what_is_committed() -> None:
    world = backlog(20)

    async def main() -> None:
        made = puller(world)
        made.assign([Q0])
        async with made:
            for _ in range(3):
                await made.poll(max_messages=4)
            await world.until(lambda: world.offsets == {Q0: 8})
            made.seek(Q0, 2)
            assert offsets(await made.poll(max_messages=1)) == [2]
            await world.until(lambda: world.offsets == {Q0: 2})

    world.run(main)


def test_who_never_polls_commits_nothing() -> None:
    world = backlog(3)

    async def main() -> None:
        made = puller(world, from_beginning=False)
        made.assign([Q0])
        async with made:
            await world.runtime.sleep(60.0)
            assert made.position(Q0) == 3
            assert world.commits == []

    world.run(main)


def test_what_comes_while_it_is_closed_was_not_polled() -> None:
    world = backlog(3)

    async def main() -> None:
        answered = asyncio.Event()

        class Core(WorldCore):
            async def invoke(self, address: str, cmd: Any, *how: Any, **more: Any) -> Any:
                answer = await super().invoke(address, cmd, *how, **more)
                if cmd.code == RequestCode.PULL_MESSAGE:
                    await answered.wait()
                return answer

        core: Any = Core(world)
        made = PullConsumer("G", core=core, from_beginning=True)
        made.assign([Q0])
        async with made:
            await world.runtime.sleep(0.1)
            answered.set()
        assert world.offsets == {Q0: 0}

    world.run(main)


@pytest.mark.parametrize("make", [puller, consumer])
def test_a_closed_consumer_asks_nobody_for_anything(make: Any) -> None:
    world = World(queues=1)

    async def main() -> None:
        made = make(world)
        if make is puller:
            made.subscribe("T")
        else:
            made.subscribe("T", listener_one=lambda message: None)
        async with made:
            await world.until(lambda: made.held_queues() == [Q0])
        await world.runtime.sleep(0.1)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not any(name.startswith("client/") for name in names), names
        asked = len(world.members_asked), len(world.pulls)
        await world.runtime.sleep(60.0)
        assert (len(world.members_asked), len(world.pulls)) == asked

    world.run(main)


def test_an_order_that_comes_with_a_pull_leaves_out_what_is_not_done() -> None:
    world = backlog(10)

    async def main() -> None:
        made = puller(world, auto_commit=False)
        made.assign([Q0])
        async with made:
            assert offsets(await made.poll(max_messages=3)) == [0, 1, 2]
            world.order = 8
            await world.until(lambda: made.position(Q0) == 8)
            assert offsets(await made.poll()) == [8, 9]
            await world.until(lambda: world.offsets == {Q0: 8}, 6.0)

    world.run(main)


@pytest.mark.parametrize("trouble", ["stuck", "down"])
def test_a_broker_in_trouble_is_asked_every_second(trouble: str) -> None:
    world = backlog(1)

    async def main() -> None:
        made = puller(world)
        made.assign([Q0])
        async with made:
            assert len(await made.poll(5.0)) == 1
            world.stuck = trouble == "stuck"
            if trouble == "down":
                world.down |= {MASTER, SLAVE}
            world.send(0, b"x")
            asked = len(world.pulls)
            await world.runtime.sleep(10.5)
            assert (len(world.pulls) - asked in range(8, 12)) == world.stuck
            world.stuck = False
            world.down.clear()
            assert offsets(await made.poll(1.1)) == [1]

    world.run(main)


def test_a_queue_that_lost_its_beginning_is_read_from_what_is_left_and_that_is_committed() -> None:
    world = backlog(10)
    world.first_kept = 6
    world.offsets[Q0] = 2

    async def main() -> None:
        made = puller(world, auto_commit=False)
        made.assign([Q0])
        async with made:
            await world.until(lambda: made.position(Q0) == 6)
            assert offsets(await made.poll(5.0)) == [6, 7, 8, 9]
            await world.until(lambda: world.offsets == {Q0: 6}, 6.0)

    world.run(main)


def test_a_consumer_tells_its_group_and_operators_what_it_is() -> None:
    world = World(queues=1)
    made: PullConsumer = puller(world)
    made.subscribe("T", "A")
    entry = made.heartbeat_data()
    assert (entry["consumeType"], entry["messageModel"]) == ("CONSUME_ACTIVELY", "CLUSTERING")
    assert entry["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert [each["subString"] for each in entry["subscriptionDataSet"]] == ["A"]

    async def main() -> None:
        async with made:
            await world.until(lambda: made.assignment() == [Q0])
            info = made.running_info()
            assert list(info["mqTable"]) == [Q0]
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
            assert info["properties"]["PROP_CONSUMEORDERLY"] == "false"

    world.run(main)


@pytest.mark.parametrize(("options", "every_s"), [({}, 20.0), ({"rebalance_interval_s": 7.0}, 7.0)])
@pytest.mark.parametrize("make", [puller, consumer])
def test_a_consumer_looks_so_often_who_the_members_are(
    make: Any, options: dict[str, float], every_s: float
) -> None:
    world = World(queues=1)
    world.listed.append("%RETRY%G")
    world.frames[MessageQueue("%RETRY%G", "a", 0)] = []

    async def main() -> None:
        made = make(world, **options)
        if make is puller:
            made.subscribe("T")
        else:
            made.subscribe("T", listener_one=lambda message: None)
        async with made:
            await world.runtime.sleep(4.5 * every_s)
            begun = world.members_asked[0]
            rounds = {round((at - begun) / every_s, 1) for at in world.members_asked}
            assert {1.0, 2.0, 3.0, 4.0} <= rounds
            assert all(each < 0.2 or each.is_integer() for each in rounds), rounds

    world.run(main)


def test_a_paused_queue_gives_nothing_until_it_goes_on() -> None:
    world = backlog(8, queues=2)

    async def main() -> None:
        made = puller(world)
        made.assign([Q0, Q1])
        async with made:
            made.pause([Q0])
            assert made.paused() == [Q0]
            await world.runtime.sleep(1.0)
            polled = [await made.poll(0.1) for _ in range(3)]
            assert [[message.queue for message in each] for each in polled] == [[Q1] * 4, [], []]
            waiting = asyncio.ensure_future(made.poll(60.0))
            await world.runtime.sleep(1.0)
            made.resume([Q0])
            messages = await asyncio.wait_for(waiting, 0.1)
            assert ([message.queue for message in messages], made.paused()) == ([Q0] * 4, [])
            made.pause([Q0])
            made.assign([Q1])
            assert made.paused() == []
            with pytest.raises(InvalidParameter, match="not assigned"):
                made.pause([Q0])

    world.run(main)


def test_a_queue_is_sought_by_its_ends_and_by_time() -> None:
    world = backlog(10)

    async def main() -> None:
        made = puller(world)
        made.assign([Q0])
        async with made:
            assert offsets(await made.poll()) == list(range(10))
            assert await made.seek_to(Q0, "first") == 0
            assert offsets(await made.poll()) == list(range(10))
            assert await made.seek_to(Q0, "last") == 10
            assert await made.poll(0.1) == []
            sought = await made.seek_to(Q0, 0)
            assert offsets(await made.poll()) == list(range(sought, 10))
            with pytest.raises(InvalidParameter, match="give 'first', 'last' or a time"):
                await made.seek_to(Q0, "middle")
            with pytest.raises(InvalidParameter, match="not assigned"):
                await made.seek_to(Q1, "first")

    world.run(main)

"""What a push consumer subscribes to, reads ahead, says of itself and does at an order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from consumer_world import MASTER, Q0, Q1, SLAVE, World, WorldCore, consumer
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.results import ConsumeResult
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.runtime.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    MalformedFrame,
    SaturnError,
)

RETRY = "%RETRY%G"


def backlog(count: int, queues: int = 1) -> World:
    world = World(queues=queues)
    for n in range(count):
        world.send(n % queues, b"%d" % n)
    return world


def test_a_consumer_begins_once_and_only_with_a_topic_and_a_listener() -> None:
    world = World()
    core: Any = WorldCore(world)

    async def main() -> None:
        with pytest.raises(ConfigError, match="no topic"):
            await PushConsumer("G", core=core, listener_one=print).start()
        got: list[ReceivedMessage] = []
        made = PushConsumer("G", core=core)
        made.subscribe("T", listener_one=got.append)
        await made.start()
        await made.start()
        assert sorted(made.subscriptions) == [RETRY, "T"]
        await world.until(lambda: made.held_queues() == [Q0, Q1])
        assert list(core.handlers) == ["G"]
        await made.close()
        await made.close()
        assert core.handlers == {}
        with pytest.raises(ClientClosed, match="make a new one"):
            await made.start()

    world.run(main)


def test_a_topic_may_come_and_go_while_it_runs() -> None:
    world = World(queues=1)
    other = MessageQueue("other", "a", 0)
    world.frames[other] = []
    world.listed.append("other")
    made = consumer(world, listener_one=lambda _: None, rebalance_interval_s=1000.0)

    async def main() -> None:
        async with made:
            await world.until(lambda: made.held_queues() == [Q0])
            made.subscribe("other", "A || B")
            await world.until(lambda: sorted(made.held_queues()) == [Q0, other])
            said = made.heartbeat_data()["subscriptionDataSet"]
            assert {each["topic"]: each["subString"] for each in said} == {
                "T": "*",
                RETRY: "*",
                "other": "A || B",
            }
            made.unsubscribe("T")
            await world.until(lambda: made.held_queues() == [other])
            made.unsubscribe("unknown")

    world.run(main)


@pytest.mark.parametrize(
    ("options", "model", "start"),
    [
        ({}, "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET"),
        ({"from_beginning": False}, "CLUSTERING", "CONSUME_FROM_LAST_OFFSET"),
        ({"from_beginning": False, "consume_from": 7}, "CLUSTERING", "CONSUME_FROM_TIMESTAMP"),
        ({"broadcasting": True}, "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET"),
    ],
)
def test_a_heartbeat_says_how_it_consumes(options: Any, model: str, start: str) -> None:
    world = World()
    entry = consumer(world, listener_one=print, **options).heartbeat_data()
    assert (entry["groupName"], entry["consumeType"]) == ("G", "CONSUME_PASSIVELY")
    assert (entry["messageModel"], entry["consumeFromWhere"]) == (model, start)
    assert entry["unitMode"] is False
    world.loop.close()


@pytest.mark.parametrize("orderly", [{}, {"ordered": True}, {"orderly": True}])
def test_operators_are_told_whether_it_consumes_in_order(orderly: dict[str, bool]) -> None:
    world = World(queues=1)

    async def main() -> None:
        async with consumer(world, listener_one=lambda _: None, **orderly) as made:
            await world.until(lambda: made.held_queues() == [Q0])
            info = made.running_info()
            assert list(info["mqTable"]) == [Q0]
            assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
            assert info["properties"]["PROP_CONSUMEORDERLY"] == ("true" if orderly else "false")
            since = int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"])  # mqadmin reads it
            assert 0 < since <= made.runtime.now_ms()

    world.run(main)


@pytest.mark.parametrize("ordered", [False, True])
def test_one_message_is_consumed_at_an_operators_word(ordered: bool) -> None:
    world = World(queues=1)
    world.send(0, b"good")
    world.send(0, b"bad")
    got: list[ReceivedMessage] = []

    async def listener(message: ReceivedMessage) -> ConsumeResult | None:
        await world.runtime.sleep(0.25)
        got.append(message)
        return ConsumeResult.RETRY if message.body == b"bad" else None

    async def main() -> None:
        made = consumer(world, listener_one=listener, ordered=ordered)
        good, bad = world.frames[Q0]
        await world.runtime.sleep(5.0)
        told = await made.consume_directly({"brokerName": "b"}, good)
        assert told == {
            "order": ordered,
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS",
            "spentTimeMills": 250,
        }
        assert (await made.consume_directly({}, bad))["consumeResult"] == "CR_LATER"
        assert [(each.body, each.broker_name) for each in got] == [(b"good", "b"), (b"bad", "")]
        assert (world.offsets, world.backs) == ({}, [])

    world.run(main)


def test_a_damaged_message_is_not_consumed_at_an_operators_word_unless_nobody_looks() -> None:
    world = backlog(1)
    (frame,) = world.frames[Q0]
    damaged = frame[:88] + b"?" + frame[89:]
    got: list[bytes] = []

    def listener(message: ReceivedMessage) -> None:
        got.append(bytes(message.body))

    async def main() -> None:
        with pytest.raises(MalformedFrame, match="no whole frame at byte 0"):
            await consumer(world, listener_one=listener).consume_directly({}, damaged)
        assert got == []
        careless = consumer(world, listener_one=listener, verify_crc=False)
        await careless.consume_directly({}, damaged)
        assert got == [b"?"]

    world.run(main)


def test_an_order_moves_the_queues_of_its_topic_and_is_committed() -> None:
    world = backlog(20, queues=2)
    other = MessageQueue("other", "a", 0)
    got: list[tuple[int, int]] = []

    def listener(message: ReceivedMessage) -> None:
        got.append((message.queue_id, message.queue_offset))

    async def main() -> None:
        async with consumer(world, listener_one=listener) as made:
            await world.until(lambda: world.offsets == {Q0: 10, Q1: 10})
            got.clear()
            made.on_reset_offsets("other", {Q0: 1})
            made.on_reset_offsets("T", {Q0: 7, other: 2, MessageQueue("T", "a", 9): 3})
            assert made.consumer_status("T") == {Q0: 7, Q1: 10}
            assert made.consumer_status("other") == {}
            await world.until(lambda: len(got) == 3, 1.0)
            await world.until(lambda: (Q0, 10) in world.commits[-2:], 6.0)
            made.on_reset_offsets("T", {Q1: 10})  # a pull that waits begins anew as well
            asked = len(world.pulls)
            await world.until(lambda: len(world.pulls) > asked, 0.1)
        assert sorted(got) == [(0, 7), (0, 8), (0, 9)]

    world.run(main)


def test_offsets_are_committed_so_often_and_told_with_the_pulls() -> None:
    world = backlog(3)
    got: list[ReceivedMessage] = []

    async def main() -> None:
        async with consumer(world, listener_one=got.append, commit_interval_s=0.5):
            await world.until(lambda: (Q0, 3) in world.commits, 1.1)
            world.send(0, b"3")
            await world.until(lambda: len(got) == 4)
            await world.until(lambda: world.pulls[-1]["queueOffset"] == "4")
        said = [(pull["queueOffset"], pull["commitOffset"]) for pull in world.pulls]
        assert (said[0], said[-1]) == (("0", "0"), ("4", "4"))
        tells = [int(world.pulls[n]["sysFlag"]) & 1 for n in (0, -1)]
        assert tells == [0, 1], "nothing is known at first"

    world.run(main)


def test_offsets_that_close_cannot_commit_are_reported() -> None:
    world = backlog(3)
    got: list[ReceivedMessage] = []
    told: list[SaturnError] = []

    async def main() -> None:
        made = consumer(world, listener_one=got.append, commit_interval_s=1000.0)
        made.core.report_error = told.append  # type: ignore[method-assign]
        async with made:
            await world.until(lambda: len(got) == 3)
            world.down.update((MASTER, SLAVE))
        assert any(isinstance(error, ConnectionLost) for error in told), told
        assert world.offsets == {}

    world.run(main)


def test_pulls_commit_what_is_done_and_no_more() -> None:
    """Otherwise the messages of a whole `commit_interval_s` come again when a member is lost."""
    world = backlog(0)
    got: list[int] = []
    hold = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        got.append(message.queue_offset)
        if message.queue_offset == 20:
            await hold.wait()

    async def main() -> None:
        async with consumer(world, listener_one=listener, commit_interval_s=60.0):
            for number in range(20):
                world.send(0, b"x")
                await world.until(lambda: len(got) == number + 1)  # noqa: B023
                await world.until(lambda: world.pulls[-1]["queueOffset"] == str(number + 1))  # noqa: B023
                assert number <= world.offsets.get(Q0, 0) <= number + 1
            for number in range(20, 25):
                world.send(0, b"x")
                await world.until(lambda: len(got) == number + 1)  # noqa: B023
            await world.until(lambda: world.pulls[-1]["queueOffset"] == "25")
            assert world.offsets[Q0] == 20, "the listener works on that"
            assert world.commits == []
            hold.set()

    world.run(main)


def test_an_order_that_comes_with_a_pull_leaves_out_what_is_not_done() -> None:
    world = backlog(10)
    got: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        got.append(message.queue_offset)
        if len(got) <= 10:
            await asyncio.Event().wait()

    async def main() -> None:
        async with consumer(world, listener_one=listener):
            await world.until(lambda: len(got) == 10)
            world.order = 8
            await world.until(lambda: world.offsets == {Q0: 10})
        assert got == [*range(10), 8, 9]

    world.run(main)


@pytest.mark.parametrize("trouble", ["stuck", "down"])
def test_a_broker_in_trouble_is_asked_every_second(trouble: str) -> None:
    world = backlog(1)
    got: list[ReceivedMessage] = []

    async def main() -> None:
        async with consumer(world, listener_one=got.append):
            await world.until(lambda: len(got) == 1)
            world.stuck = trouble == "stuck"
            if trouble == "down":
                world.down |= {MASTER, SLAVE}
            world.send(0, b"x")
            asked = len(world.pulls)
            await world.runtime.sleep(10.5)
            assert (len(world.pulls) - asked in range(8, 12)) == world.stuck
            world.stuck = False
            world.down.clear()
            await world.until(lambda: len(got) == 2, 1.1)

    world.run(main)


@pytest.mark.parametrize(
    ("queues", "bound", "most"),
    [
        (1, {"max_cached_messages": 100}, 100),
        (1, {"max_cached_bytes": 10_000}, 100),
        (8, {"max_cached_messages": 5000}, 1024),
        (2, {"max_cached_messages": 5000}, 4096),
    ],
)
def test_so_much_is_pulled_ahead_of_a_listener_that_hangs(
    queues: int, bound: dict[str, int], most: int
) -> None:
    """A consumer of many queues pulls less of each."""
    pulled = 2048
    world = backlog(queues * (most + pulled), queues)

    async def hangs(message: ReceivedMessage) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with consumer(world, listener_one=hangs, **bound) as made:
            await world.until(lambda: len(made.held_queues()) == queues)
            await world.runtime.sleep(20.0)
            ends = dict.fromkeys(made.held_queues(), 0)
            for pull in world.pulls:
                queue = MessageQueue("T", "a", int(pull["queueId"]))
                ends[queue] = int(pull["queueOffset"]) + int(pull["maxMsgNums"])
            assert all(most <= end < most + pulled for end in ends.values()), ends

    world.run(main)


def test_a_queue_of_which_too_much_was_pulled_is_pulled_on_when_that_is_consumed() -> None:
    world = backlog(3000)
    goes_on = asyncio.Event()
    got: list[int] = []

    async def listener(message: ReceivedMessage) -> None:
        await goes_on.wait()
        got.append(message.queue_offset)

    async def main() -> None:
        async with consumer(world, listener_one=listener, max_cached_messages=100):
            await world.runtime.sleep(10.0)
            asked = len(world.pulls)
            await world.runtime.sleep(10.0)
            assert len(world.pulls) == asked
            goes_on.set()
            await world.until(lambda: len(got) == 3000)

    world.run(main)


def test_a_pull_from_before_a_lock_was_lost_and_taken_again_counts_for_nothing() -> None:
    """Another member has consumed the first message meanwhile."""
    world = World(queues=1)
    got: list[ReceivedMessage] = []

    async def main() -> None:
        async with consumer(world, listener_one=got.append, ordered=True) as made:
            await world.until(lambda: len(world.pulls) == 1)
            for granted in (False, True):
                world.locks_granted = granted
                made.on_route_changed("T")  # a reason to ask for the locks
                await world.runtime.sleep(0.5)
            assert len(world.pulls) == 1, "it is still held"
            world.offsets[Q0] = 1
            world.commits.clear()
            for n in range(2):
                world.send(0, b"%d" % n)
            await world.until(lambda: (Q0, 2) in world.commits)
        assert [message.queue_offset for message in got] == [1]
        assert {offset for _, offset in world.commits} <= {1, 2}

    world.run(main)


def test_routes_concern_a_consumer_that_runs_and_its_topics() -> None:
    world = World(queues=1)
    beats: list[float] = []

    class Core(WorldCore):
        async def heartbeat_now(self) -> None:
            beats.append(world.loop.time())

    async def main() -> None:
        made = consumer(world, Core(world), listener_one=lambda _: None)
        made.on_route_changed("T")
        await world.runtime.sleep(0.1)
        assert beats == []
        async with made:
            await world.runtime.sleep(0.1)
            for topic, more in (("other", 0), ("T", 1)):
                before = len(beats)
                made.on_route_changed(topic)
                await world.runtime.sleep(0.1)
                assert len(beats) - before == more
        before = len(beats)
        made.on_route_changed("T")
        await world.runtime.sleep(0.1)
        assert len(beats) == before

    world.run(main)


def test_how_a_consumer_consumes_unless_it_is_told_otherwise() -> None:
    world = backlog(100)
    core: Any = WorldCore(world)
    sizes: list[int] = []
    assert PushConsumer("G", core=core).consume_from == "last"
    assert PullConsumer("G", core=core).consume_from == "last"

    async def main() -> None:
        async with consumer(world, listener=lambda messages: sizes.append(len(messages))):
            await world.until(lambda: sum(sizes) == 100)
        assert max(sizes) == 32
        world.offsets.clear()
        async with consumer(world, listener_one=lambda message: ConsumeResult.RETRY):
            await world.until(lambda: len(world.backs) == 100)
        assert not any("maxReconsumeTimes" in back for back in world.backs), "as the group has it"

    world.run(main)

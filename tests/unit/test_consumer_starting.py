"""Where a group begins: nothing that is newer than its first member is passed over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import world_rig
from broker_rig import ask, config, connected, run, send, started, until
from consumer_world import World, WorldCore
from saturnmq.broker.tables.lost_offsets import beginning
from saturnmq.client.consumer.offset_store import RemoteOffsets
from saturnmq.client.consumer.pull_consumer import PullConsumer
from saturnmq.client.consumer.push_consumer import PushConsumer
from saturnmq.client.consumer.starting import Baseline, ask_offset, start_offset
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.runtime.native import NativeRuntime

Q0, Q1, Q2 = (MessageQueue("T", "a", number) for number in range(3))
ELSEWHERE = MessageQueue("T", "b", 0)
PLACE = {"consumerGroup": "G", "topic": "orders", "queueId": 0}

# -- the broker's answer ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "low", "in_memory", "expected"),
    [(0, 0, True, 0), (0, 0, False, None), (0, 1, True, None), (7, 7, True, 7), (7, 8, True, None)],
)
def test_a_broker_says_where_to_begin_while_the_first_message_is_at_hand(
    first: int, low: int, in_memory: bool, expected: int | None
) -> None:
    assert beginning(first, low, in_memory=in_memory) == expected


@pytest.mark.parametrize("role", [{}, {"role": "SLAVE", "broker_id": 1}])
def test_a_group_without_an_offset_begins_at_0_in_a_queue_that_nobody_knows_yet(
    tmp_path: Path, role: dict[str, Any]
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, **role))
        client = await connected(runtime, broker)
        answer = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, PLACE)
        assert (answer.code, answer.ext.get("offset")) == (0, "0")
        client.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize(("percent_of_memory", "expected"), [(40, "0"), (0, None)])
def test_a_group_without_an_offset_begins_at_0_while_the_first_message_is_in_memory(
    tmp_path: Path, percent_of_memory: int, expected: str | None
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        options = {"access_in_memory_ratio": percent_of_memory}
        broker = await started(runtime, config(tmp_path, store_options=options))
        client = await connected(runtime, broker)
        for number in range(3):
            await send(client, b"%d" % number)
        await until(lambda: broker.store.max_offset("orders", 0) == 3)
        answer = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, PLACE)
        assert answer.ext.get("offset") == expected
        assert answer.code == (22 if expected is None else 0)
        stored = {**PLACE, "setZeroIfNotFound": "False"}
        assert (await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, stored)).code == 22
        await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, {**PLACE, "commitOffset": 2})
        answer = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, stored)
        assert (answer.code, answer.ext["offset"]) == (0, "2")
        client.close()
        await broker.close()

    run(body)


@pytest.mark.parametrize(("role", "kept"), [({}, None), ({"role": "SLAVE", "broker_id": 1}, "8")])
def test_an_offset_behind_the_end_is_kept_by_a_slave_only_which_may_lag(
    tmp_path: Path, role: dict[str, Any], kept: str | None
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path, **role))
        client = await connected(runtime, broker)
        empty = {**PLACE, "topic": "BenchmarkTest", "setZeroIfNotFound": "False"}
        given = await ask(client, RequestCode.UPDATE_CONSUMER_OFFSET, {**empty, "commitOffset": 8})
        assert given.code == 0
        answer = await ask(client, RequestCode.QUERY_CONSUMER_OFFSET, empty)
        assert answer.ext.get("offset") == kept
        client.close()
        await broker.close()

    run(body)


# -- the consumer's baseline -----------------------------------------------------------------------


def test_what_the_first_answer_names_is_older_than_the_consumer_and_all_else_is_not() -> None:
    baseline = Baseline()
    assert baseline.is_older(Q0), "nobody has answered: nothing is known to be newer"
    baseline.answered("T", [Q0, Q1])
    baseline.answered("T", [Q0, Q1, Q2])
    assert [baseline.is_older(queue) for queue in (Q0, Q1, Q2)] == [True, True, False]


def test_of_a_topic_that_did_not_exist_all_queues_are_newer() -> None:
    baseline = Baseline()
    baseline.answered("T", [])
    baseline.answered("T", [Q0])
    assert not baseline.is_older(Q0)


def test_a_queue_that_was_taken_away_and_comes_back_is_newer() -> None:
    baseline = Baseline()
    for queues in ([Q0, Q1], [Q0], [Q0, Q1]):
        baseline.answered("T", queues)
    assert [baseline.is_older(Q0), baseline.is_older(Q1)] == [True, False]


def test_the_queues_of_a_broker_that_was_away_are_as_old_as_before() -> None:
    baseline = Baseline()
    for queues in ([Q0, ELSEWHERE], [Q0], [Q0, ELSEWHERE]):
        baseline.answered("T", queues)
    assert baseline.is_older(ELSEWHERE)


def test_a_broker_that_was_away_at_the_join_has_newer_queues() -> None:
    baseline = Baseline()
    baseline.answered("T", [Q0])
    baseline.answered("T", [Q0, ELSEWHERE])
    assert not baseline.is_older(ELSEWHERE), "what it took after the join must not be passed over"


def test_who_leaves_a_topic_and_joins_again_takes_a_new_baseline() -> None:
    baseline = Baseline()
    baseline.answered("T", [])
    baseline.forget("T")
    baseline.answered("T", [Q0])
    assert baseline.is_older(Q0)


# -- consumers at a broker whose messages are no longer in memory (it answers 22) ------------------


@pytest.mark.parametrize("consume_from", ["last", 1_000, "first"])
@pytest.mark.parametrize("how", [{}, {"ordered": True}, {"broadcasting": True}])
def test_a_queue_that_appears_later_is_read_from_its_beginning(
    consume_from: str | int, how: dict[str, bool], tmp_path: Path
) -> None:
    world, got = World(queues=1), []
    core: Any = WorldCore(world)
    made = PushConsumer(
        "G",
        core=core,
        listener_one=lambda message: got.append((message.queue_id, message.queue_offset)),
        consume_from=consume_from,
        offsets_path=str(tmp_path / "offsets.json"),
        **how,
    )
    made.subscribe("T")

    async def main() -> None:
        async with made:
            await world.until(lambda: made.held_queues() != [])
            world.frames[Q1] = []
            for number in range(3):
                world.send(1, b"%d" % number)
            await core.route("T", refresh=True)
            await world.until(lambda: len(got) == 3)

    world.run(main)
    assert sorted(got) == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("consume_from", ["last", 1_000])
def test_a_topic_that_appears_after_the_subscription_is_read_from_its_beginning(
    consume_from: str | int,
) -> None:
    world = World(queues=1)
    pushed: list[Any] = []
    world.listed = []
    core: Any = WorldCore(world)
    push = PushConsumer("G", core=core, listener_one=pushed.append, consume_from=consume_from)
    push.subscribe("T")
    pull = PullConsumer("H", core=core, consume_from=consume_from)
    pull.subscribe("T")

    async def main() -> None:
        async with push, pull:
            for number in range(3):
                world.send(0, b"%d" % number)
            world.listed = ["T"]
            await world.until(lambda: len(pushed) == 3)
            assert len(await pull.poll()) == 3

    world.run(main)


def test_a_nameserver_that_does_not_answer_at_the_join_sets_no_baseline() -> None:
    world = World(queues=1)
    got: list[Any] = []
    for number in range(3):
        world.send(0, b"%d" % number)
    core: Any = WorldCore(world)
    core.unreachable = True
    made = PushConsumer("G", core=core, listener_one=got.append)
    made.subscribe("T")

    async def main() -> None:
        async with made:
            core.unreachable = False
            await world.until(lambda: bool(world.pulls))
            world.send(0, b"late")
            await world.until(lambda: bool(got))

    world.run(main)
    assert [message.queue_offset for message in got] == [3]


# -- consumers at a real broker that has everything in memory --------------------------------------


def test_committed_is_none_while_the_group_has_no_offset_and_it_begins_with_the_first_message() -> (
    None
):
    async def body(world: world_rig.World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        for number in range(3):
            await client.send(b"%d" % number)
        queue = MessageQueue("T", broker.config.broker_name, 0)
        pull = PullConsumer("G", nameserver, runtime=world.node("reader"), auto_commit=False)
        pull.assign([queue])
        async with pull:
            assert await pull.committed(queue) is None
            assert [message.queue_offset for message in await pull.poll()] == [0, 1, 2]
            await pull.commit()
            assert await pull.committed(queue) == 3

    world_rig.run(body)


def test_a_time_is_honoured_of_a_topic_in_memory() -> None:
    async def body(world: world_rig.World) -> None:
        nameserver = await world.nameserver()
        broker = await world.broker(nameservers=(nameserver,))
        client = await world.connect(broker.address)
        await client.send(b"before")
        await asyncio.sleep(10.0)
        node = world.node("reader")
        since = node.now_ms() - 5_000
        await client.send(b"after")
        await world.until(lambda: broker.store.max_offset("T", 0) == 2)
        pull = PullConsumer("G", nameserver, runtime=node, consume_from=since)
        pull.subscribe("T")
        async with pull:
            assert [bytes(message.body) for message in await pull.poll(30.0)] == [b"after"]

    world_rig.run(body)


@pytest.mark.parametrize("own", [0, 3])
def test_what_a_consumer_has_read_counts_though_its_broker_has_forgotten_it(own: int) -> None:
    world = World()

    async def main() -> None:
        core = WorldCore(world)
        await core.route("T")
        offsets = RemoteOffsets(core, "G")
        offsets.update(Q0, own)
        assert await start_offset(core, offsets, Q0, 1_000, Baseline()) == own

    world.run(main)


def test_where_a_queue_ends_is_asked_of_a_slave_while_there_is_no_master() -> None:
    world = World()
    world.masterless = True
    world.send(0, b"x")

    async def main() -> None:
        core = WorldCore(world)
        await core.route("T")
        assert await ask_offset(core, RequestCode.GET_MAX_OFFSET, Q0) == 1

    world.run(main)

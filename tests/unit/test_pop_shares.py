"""A group that acknowledges nothing leaves room for the others, and is told of."""

from __future__ import annotations

import asyncio
import logging
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pop_rig import Popper, bodies, send, started
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.pop.leases import LanePlace, Leases, PopLease
from saturnmq.broker.pop.shares import PopShares
from saturnmq.protocol.checked import as_table
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.fastjson import loads
from world_rig import World, run

HOUR_MS = 3_600_000


async def told(popper: Popper) -> dict[str, str]:
    """The runtime information of the broker."""
    reply = await popper.remote.ask(Code.GET_BROKER_RUNTIME_INFO)
    return as_table(loads(bytes(reply.body))["table"], "the table")


async def drain(popper: Popper) -> int:
    """How many messages a group gets that acknowledges none."""
    number = 0
    while found := await popper.pop(invisible=HOUR_MS):
        number += len(found)
    return number


def test_a_group_that_acknowledges_nothing_leaves_room_for_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(world: World) -> None:
        broker, greedy = await started(world, max_popped_messages=50)
        await send(greedy, *(f"{n}" for n in range(100)))
        with caplog.at_level(logging.WARNING):
            assert await drain(greedy) == 40
            assert await drain(greedy) == 0
        assert caplog.text.count("group G gets no new messages by pop: it has 40 open") == 1
        facts = await told(greedy)
        assert facts["popsOpen"] == "40"
        assert facts["popsOpenMax"] == "50"
        assert facts["popsOpenByGroup"] == "G=40"
        assert facts["popGroupsHeldBack"] == "G"
        other = Popper(greedy.remote, group="H")
        found = await other.pop(4)
        assert bodies(found) == [b"0", b"1", b"2", b"3"]
        for one in found:
            assert (await other.ack(one)).code == 0
        broker.validate()

    run(body)


def test_a_held_pop_is_answered_when_the_group_has_room_again() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world, max_popped_messages=5)
        await send(popper, *"abcdefgh")
        out = await popper.pop(invisible=HOUR_MS)
        assert bodies(out) == [b"a", b"b", b"c", b"d"]
        waiting = asyncio.ensure_future(popper.pop(pollTime=15_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        begun = world.loop.time()
        assert (await popper.ack(out[0])).code == 0
        assert bodies(await waiting) == [b"e"]
        assert world.loop.time() - begun < 0.5
        assert (await told(popper))["popGroupsHeldBack"] == ""
        broker.validate()

    run(body)


def test_a_message_whose_time_is_over_is_given_out_again_to_a_group_without_room() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world, max_popped_messages=5)
        await send(popper, *"abcdefgh")
        assert len(await popper.pop(invisible=2000)) == 4
        await asyncio.sleep(3)
        assert bodies(await popper.pop()) == [b"a", b"b", b"c", b"d"]

    run(body)


@pytest.mark.parametrize(("is_on", "most"), [(True, 3), (False, 6)])
def test_a_queue_has_rocketmqs_threshold_of_its_own(is_on: bool, most: int) -> None:
    async def body(world: World) -> None:
        _, popper = await started(world, pop_threshold_enable=is_on, pop_queue_threshold=3)
        await send(popper, *"abcdef")
        await send(popper, "other", queue=1)
        assert len(await popper.pop(queueId=0, invisible=HOUR_MS)) == most
        assert await popper.pop(queueId=0) == []
        assert bodies(await popper.pop(queueId=1)) == [b"other"]

    run(body)


def test_the_bounds_change_while_the_broker_runs() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world, max_popped_messages=5)
        await send(popper, *"abcdefgh")
        assert len(await popper.pop(invisible=HOUR_MS)) == 4
        change = b"maxPoppedMessages=100\n"
        assert (await popper.remote.ask(Code.UPDATE_BROKER_CONFIG, body=change)).code == 0
        assert bodies(await popper.pop()) == [b"e", b"f", b"g", b"h"]

    run(body)


@given(
    limit=st.integers(1, 200),
    share=st.integers(1, 9),
    turns=st.lists(st.integers(0, 5), max_size=300),
)
def test_each_group_that_acknowledges_nothing_leaves_a_part_of_the_room(
    limit: int, share: int, turns: list[int]
) -> None:
    config = BrokerConfig(root="-", max_popped_messages=limit, pop_group_share=share)
    leases, offsets = Leases(), count()
    shares = PopShares(leases, lambda: config)
    for turn in turns:
        lane = leases.lane(LanePlace(f"G{turn}", "T", 0), 0)
        room = shares.room(lane)
        if room:
            at = next(offsets)
            leases.take(PopLease(lane, [at], 1, 1000), 0.0, at)
        # The last message of a group may fill its share, and no message is beyond it.
        own = leases.by_group.get(lane.place.group, 0)
        assert not room or own - 1 < share * (limit - leases.count + 1)
    leases.validate()
    assert limit - leases.count >= limit // (1 + share) ** len(leases.by_group)

"""Messages whose properties have no room for what a copy has more. Their copies are stored with
less, and keep nothing that comes behind them waiting."""

from __future__ import annotations

import asyncio
import json

from pop_rig import bodies, started
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from world_rig import Remote, World, run

MOST = 32_767


async def send_full(remote: Remote, topic: str, **names: str) -> None:
    """Send the message with the most properties that the broker takes."""
    low, high = 30_000, MOST
    while low < high:
        middle = (low + high + 1) // 2
        reply = await remote.send(b"full", topic="probe", pad="x" * middle, **names)
        low, high = (middle, high) if reply.code == 0 else (low, middle - 1)
    assert (await remote.send(b"full", topic=topic, pad="x" * low, **names)).code == 0


async def messages(remote: Remote, topic: str, queue: int = 0) -> list[ReceivedMessage]:
    reply = await remote.pull(0, topic=topic, queue=queue)
    return decode_frames(bytes(reply.body), True) if reply.code == 0 else []


def test_a_popped_one_becomes_a_dead_letter() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        settings = json.dumps({"groupName": "G", "retryMaxTimes": 1}).encode()
        await popper.remote.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=settings)
        await send_full(popper.remote, "T")
        for _ in range(2):
            assert bodies(await popper.pop(1, invisible=1000)) == [b"full"]
            await asyncio.sleep(2)
        assert (await popper.remote.send(b"behind")).code == 0
        assert bodies(await popper.pop()) == [b"behind"]
        (dead,) = await messages(popper.remote, "%DLQ%G")
        assert (dead.body, "ORIGIN_MESSAGE_ID" in dead.properties) == (b"full", False)
        assert dead.reconsume_times == 2
        broker.validate()

    run(body)


def test_one_that_was_given_back_is_retried() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        remote = popper.remote
        await send_full(remote, "T")
        (first,) = await messages(remote, "T")
        back = {"group": "G", "offset": first.physical_offset, "delayLevel": 1}
        assert (await remote.ask(Code.CONSUMER_SEND_MSG_BACK, back)).code == 0
        await world.until(lambda: broker.store.max_offset("%RETRY%G", 0) == 1)
        (again,) = await messages(remote, "%RETRY%G")
        assert (again.body, again.reconsume_times) == (b"full", 1)
        back |= {"offset": again.physical_offset, "delayLevel": -1}
        assert (await remote.ask(Code.CONSUMER_SEND_MSG_BACK, back)).code == 0
        (dead,) = await messages(remote, "%DLQ%G")
        assert (dead.body, dead.reconsume_times) == (b"full", 2)
        broker.validate()

    run(body)


def test_a_timed_one_that_is_written_anew_keeps_no_other_waiting() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world, store_options={"file_reserved_hours": 1})
        remote = popper.remote
        await send_full(remote, "full", TIMER_DELAY_SEC="6000")
        await asyncio.sleep(broker.messaging.timers.window_ms / 1000 + 60)
        assert (await remote.send(b"behind", TIMER_DELAY_SEC="5")).code == 0
        await asyncio.sleep(10)
        assert [each.body for each in await messages(remote, "T")] == [b"behind"]
        assert await messages(remote, "full") == []
        await asyncio.sleep(6000)
        (one,) = await messages(remote, "full")
        assert (one.body, "TIMER_ROLL_TIMES" in one.properties) == (b"full", False)
        broker.validate()

    run(body)

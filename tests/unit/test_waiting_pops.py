"""Pops that wait: each is answered when its message comes, also while it is looked for in steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_rig import Caller, served, with_slave
from pop_rig import Popper, bodies, send, settled, started
from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from saturnmq.gateway.gateway import Gateway
from saturnmq.protocol.codes import RequestCode as Code
from world_rig import World, run

CONDITION = {"exp": "a > 1", "expType": "SQL92"}


def slow_steps(broker: Broker, world: World) -> list[float]:
    """Let other work take its steps in between; the times of the steps so far."""
    steps, times = broker.ground.context.steps, []
    following = steps.next

    async def next_one() -> None:
        await asyncio.sleep(0.2)
        await following()
        times.append(world.loop.time())

    steps.next = next_one  # type: ignore[method-assign]  # a busy broker
    return times


def test_pops_of_several_queues_get_what_comes_at_one_time() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await settled(world, broker, popper)
        await send(popper, "first")
        (first,) = await popper.pop()
        await popper.ack(first)

        async def wait(queue: int) -> list[bytes]:
            other = Popper(await world.connect(broker.address))
            return bodies(await other.pop(pollTime=15_000, queueId=queue))

        waiting = []
        for queue in range(3):  # in this order
            waiting.append(asyncio.ensure_future(wait(queue)))
            await world.until(lambda: len(broker.messaging.pops.held) == len(waiting))
        begun = world.loop.time()
        await asyncio.gather(*(popper.remote.send(b"%d" % n, queue=n) for n in (0, 2)))
        assert (await waiting[0], await waiting[2]) == ([b"0"], [b"2"])
        assert world.loop.time() - begun < 1
        assert await waiting[1] == []
        broker.validate()

    run(body)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("queue", range(4))
def test_a_message_that_comes_into_a_queue_that_was_looked_at_is_found(
    queue: int, again: bool
) -> None:
    """Three of four queues were looked at. `again`: the pop is held before, and tried once more
    because something else came."""

    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "first", a="5")
        (first,) = await popper.pop(**CONDITION)
        await popper.ack(first)
        sender = await world.connect(broker.address)
        begun = world.loop.time()
        if again:
            waiting = asyncio.ensure_future(popper.pop(pollTime=15_000, **CONDITION))
            await world.until(lambda: len(broker.messaging.pops.held) == 1)
            steps = slow_steps(broker, world)
            assert (await sender.send(b"other", a="1")).code == 0
        else:
            steps = slow_steps(broker, world)
            waiting = asyncio.ensure_future(popper.pop(pollTime=15_000, **CONDITION))
        await world.until(lambda: len(steps) >= 3)
        assert (await sender.send(b"late", queue=queue, a="7")).code == 0
        assert bodies(await waiting) == [b"late"]
        assert world.loop.time() - begun < 5
        broker.validate()

    run(body)


def test_its_time_ends_also_while_messages_for_others_come() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "first", a="1")
        slow_steps(broker, world)
        sender = await world.connect(broker.address)
        begun = world.loop.time()
        waiting = asyncio.ensure_future(popper.pop(pollTime=3000, **CONDITION))
        while not waiting.done():
            assert (await sender.send(b"other", a="1")).code == 0
            await asyncio.sleep(0.02)
            assert world.loop.time() - begun < 4
        assert (await waiting, popper.answers[-1].code) == ([], 210)

    run(body)


def test_a_notification_of_many_queues_is_answered_once() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        ext: dict[str, Any] = {"topic": "T", "defaultTopic": "TBW102", "perm": 6}
        ext |= {"readQueueNums": 100, "writeQueueNums": 100, "topicFilterType": "SINGLE_TAG"}
        ext |= {"topicSysFlag": 0, "order": "false"}
        assert (await popper.remote.ask(Code.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        await settled(world, broker, popper)
        await send(popper, "a", queue=80)
        ask = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 5000, "bornTime": 0}
        reply = await popper.remote.ask(Code.NOTIFICATION, ask)
        assert reply.ext["hasMsg"] == "true"
        await asyncio.sleep(0.5)
        assert len(broker.messaging.pops.held) == 0

    run(body)


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_receive_that_is_cancelled_while_it_is_looked_for_takes_nothing(turns: int) -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await caller.receive(poll_ms=0)
        selected = v2.FilterExpression(type=v2.FilterType.SQL, expression="n > 0")

        def receive(poll_ms: int) -> Any:
            return caller.receive(poll_ms=poll_ms, invisible_ms=600_000, expression=selected)

        waiting = asyncio.ensure_future(receive(20_000))
        for _ in range(turns):  # of the loop
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(1)
        assert len(broker.messaging.pops.held) == 0
        await caller.send(caller.message(b"wanted", user={"n": "1"}))
        assert (await receive(5000)).bodies == [b"wanted"]
        broker.validate()

    run(body)


@pytest.mark.parametrize("comes_at_once", [False, True])
def test_a_receive_that_is_cancelled_while_its_lease_is_copied_gives_back(
    comes_at_once: bool,
) -> None:
    """`comes_at_once`: the call ends in the turn of the loop in which its answer comes."""

    async def body(world: World) -> None:
        master, slave, _ = await with_slave(world, await world.nameserver())
        caller = Caller(world, Gateway(master._runtime, master, "10.9.9.7:8081"))
        await caller.receive(poll_ms=0)
        held = master.messaging.pops.held
        receive = caller.receive(poll_ms=20_000, invisible_ms=3_600_000)
        waiting = asyncio.ensure_future(receive)
        await world.until(lambda: len(held) == 1)
        sent = asyncio.ensure_future(caller.send(caller.message(b"a")))
        await world.until(lambda: len(held) == 0)  # it was popped, and the slave has not the lease
        ledger = master.ground.context.ledger
        release = ledger.release

        def release_and_cancel(confirmed: int) -> int:
            released = release(confirmed)
            if released and not len(ledger):
                waiting.cancel()
            return released

        if comes_at_once:
            ledger.release = release_and_cancel  # type: ignore[method-assign]  # no time between
        else:
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await sent
        (again,) = (await caller.receive(poll_ms=15_000)).messages
        assert (again.body, again.system_properties.delivery_attempt) == (b"a", 1)
        await slave.close()
        await master.close()

    run(body)


def test_a_pop_that_is_to_end_is_answered_at_once() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        other = Popper(await world.connect(broker.address))
        await send(popper, "a")
        assert len(await popper.pop()) == 1
        waiting = asyncio.ensure_future(popper.pop(pollTime=20_000))
        held = broker.messaging.pops.held
        await world.until(lambda: len(held) == 1)
        ((pop,),) = held.by_queue.values()
        opaque = pop.request.opaque
        begun = world.loop.time()
        for remote in (other.remote, popper.remote):  # the number is that of a connection
            assert len(held) == 1
            assert (await remote.ask(Code.END_POLL, {"opaque": opaque})).code == 0
        assert len(held) == 0
        assert await waiting == []
        assert popper.answers[-1].code == 210
        assert world.loop.time() - begun < 1
        assert (await popper.remote.ask(Code.END_POLL, {"opaque": opaque})).code == 0
        broker.validate()

    run(body)

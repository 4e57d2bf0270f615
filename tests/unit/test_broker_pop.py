"""Pop on a simulated machine: times, attempts, order, handles, and what a restart knows."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import Mock

import pytest
from pop_rig import Popper, bodies, send, settled, started
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.kernels import decode_frames
from saturnmq.runtime.errors import SystemError_
from world_rig import World, new_disk, run


def test_a_popped_message_is_invisible_until_its_time_is_over() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b")
        first = await popper.pop(invisible=10_000)
        assert bodies(first) == [b"a", b"b"]
        begun = world.loop.time()
        assert await popper.pop() == []
        while not (again := await popper.pop(pollTime=5000)):
            broker.validate()
        assert 10.0 <= world.loop.time() - begun < 10.3
        assert bodies(again) == [b"a", b"b"]
        assert [one.message.reconsume_times for one in again] == [1, 1]
        assert [one.message.reconsume_times for one in first] == [0, 0]

    run(body)


def test_an_acknowledged_message_does_not_come_again_and_the_offset_follows() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b", "c")
        a, b, _ = await popper.pop(invisible=1000)
        assert (await popper.ack(b)).code == 0
        assert await popper.remote.committed() == 0
        assert (await popper.ack(a)).code == 0
        assert await popper.remote.committed() == 2
        await asyncio.sleep(3)
        again = await popper.pop()
        assert bodies(again) == [b"c"]
        assert (await popper.ack(again[0])).code == 0
        assert await popper.remote.committed() == 3
        broker.validate()

    run(body)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_restart_knows_what_was_acknowledged_and_what_is_out(orderly: bool) -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b", "c", "d")
        a, b, c = await popper.pop(3, invisible=20_000)
        assert (await popper.ack(a)).code == 0
        assert (await popper.ack(c)).code == 0
        if orderly:
            await broker.close()
        else:
            world.nodes[0].power_off()
            world.disk.kill()
            world.disk.power_on()
        begun = world.loop.time()
        broker, popper = await started(world)
        await settled(world, broker, popper)
        assert bodies(await popper.pop()) == [b"d"]
        assert (await popper.ack(b)).code == 0, "the handle of the process before"
        assert await popper.remote.committed() == 3
        while not (again := await popper.pop(pollTime=5000)):
            pass
        assert bodies(again) == [b"d"]
        assert world.loop.time() - begun >= 10
        broker.validate()

    run(body)


def test_a_restart_counts_the_whole_invisible_time_anew_whatever_clocks_say() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a")
        assert bodies(await popper.pop(invisible=20_000)) == [b"a"]
        await asyncio.sleep(15)
        await broker.close()
        broker, popper = await started(world, ahead_ms=3_600_000)
        begun = world.loop.time()
        while not (again := await popper.pop(pollTime=5000)):
            pass
        assert 20 <= world.loop.time() - begun < 21
        assert again[0].message.reconsume_times == 1

    run(body)


def test_a_change_of_the_invisible_time_counts_from_now_and_ends_the_old_handle() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world)
        await send(popper, "a")
        (one,) = await popper.pop(invisible=5000)
        reply = await popper.change(one, 30_000)
        assert reply.code == 0, reply.remark
        assert reply.ext["invisibleTime"] == "30000"
        assert (await popper.ack(one)).code == 208
        begun = world.loop.time()
        while not (again := await popper.pop(pollTime=5000)):
            pass
        assert 30 <= world.loop.time() - begun < 30.5
        assert bodies(again) == [b"a"]

    run(body)


def test_the_handle_of_a_change_acknowledges() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world)
        await send(popper, "a")
        (one,) = await popper.pop(invisible=5000)
        reply = await popper.change(one, 1000)
        words = one.handle.split(" ")
        words[1:4] = reply.ext["popTime"], reply.ext["invisibleTime"], reply.ext["reviveQid"]
        assert (await popper.ack(one, extraInfo=" ".join(words))).code == 0
        await asyncio.sleep(5)
        assert await popper.pop() == []

    run(body)


@pytest.mark.parametrize("order", ["false", "true"])
def test_a_message_that_is_given_back_unseen_had_no_attempt(order: str) -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        group = {"groupName": "G", "retryMaxTimes": 1, "consumeMessageOrderly": order == "true"}
        await popper.remote.ask(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode()
        )
        await send(popper, "a")
        for seen in (0, 1):
            for _ in range(5):
                (one,) = await popper.pop(order=order, pollTime=1000)
                assert one.message.reconsume_times == seen
                assert (await popper.change(one, 0, saturnUnseen="true")).code == 0
            await broker.close()
            broker, popper = await started(world)
            (one,) = await popper.pop(order=order, pollTime=1000)
            assert one.message.reconsume_times == seen
            assert (await popper.change(one, 0)).code == 0
        assert await popper.pop(order="false", pollTime=1000) == [], "it is a dead letter"

    run(body)


def test_after_the_last_attempt_a_message_is_a_dead_letter() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        group = {"groupName": "G", "retryMaxTimes": 2}
        reply = await popper.remote.ask(
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()
        )
        assert reply.code == 0, reply.remark
        await send(popper, "a", KEYS="k")
        for attempt in range(3):
            (one,) = await popper.pop(invisible=1000)
            assert one.message.reconsume_times == attempt
            await asyncio.sleep(2)
        assert await popper.pop() == []
        await asyncio.sleep(0.1)
        dead = broker.store.get_message("%DLQ%G", 0, 0, 10)
        (message,) = decode_frames(dead.data, True)
        assert message.body == b"a"
        assert message.keys == ["k"]
        assert message.reconsume_times == 3
        assert message.properties["RETRY_TOPIC"] == "T"
        assert await popper.remote.committed() == 1
        broker.validate()

    run(body)


@pytest.mark.parametrize("filter_", [{}, {"exp": "n > 3", "expType": "SQL92"}])
def test_a_pop_waits_for_a_minute_at_most(filter_: dict[str, str]) -> None:
    async def body(world: World) -> None:
        _, popper = await started(world)
        await send(popper, "a")
        assert bodies(await popper.pop(invisible=900_000)) == [b"a"]
        sender = await world.connect(popper.remote.endpoint.peer_address)
        ext = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 1, "bornTime": 0}
        ext |= {"invisibleTime": 1000, "initMode": 0, "pollTime": 1 << 50, **filter_}
        begun = world.loop.time()
        waiting = asyncio.ensure_future(popper.remote.ask(Code.POP_MESSAGE, ext, seconds=900.0))
        while not waiting.done():
            await asyncio.sleep(7.0)
            if filter_:  # it is looked at again
                await sender.send(b"no", n="1")
        assert (await waiting).code == 210
        assert 60 <= world.loop.time() - begun < 68

    run(body)


def test_a_long_poll_gets_a_message_when_it_comes() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a")
        assert bodies(await popper.pop()) == [b"a"]
        waiting = asyncio.ensure_future(popper.pop(pollTime=20_000))
        await world.until(lambda: len(broker.messaging.pops.held) == 1)
        ask = {"consumerGroup": "G", "topic": "T", "queueId": -1}
        sender = await world.connect(broker.address)
        info = await sender.ask(Code.POLLING_INFO, ask)
        assert info.ext["pollingNum"] == "1"
        begun = world.loop.time()
        assert (await sender.send(b"b", queue=3)).code == 0
        assert bodies(await waiting) == [b"b"]
        assert world.loop.time() - begun < 0.1
        begun = world.loop.time()
        assert await popper.pop(pollTime=3000) == []
        assert popper.answers[-1].code == 210
        assert popper.answers[-1].ext.keys() >= {"popTime", "invisibleTime", "reviveQid", "restNum"}
        assert 3 <= world.loop.time() - begun < 3.3
        broker.validate()

    run(body)


def test_two_consumers_share_a_topic_and_each_message_goes_to_one() -> None:
    async def body(world: World) -> None:
        broker, one = await started(world)
        two = Popper(await world.connect(broker.address))
        for number in range(40):
            await send(one, f"m{number}", queue=number % 4)
        seen: list[bytes] = []
        for _ in range(20):
            seen += bodies(await one.pop(3)) + bodies(await two.pop(3))
        assert sorted(seen) == sorted(f"m{number}".encode() for number in range(40))
        other = Popper(await world.connect(broker.address), group="other")
        theirs: list[bytes] = []
        while found := await other.pop():
            theirs += bodies(found)
        assert sorted(theirs) == sorted(seen), "a group of its own gets all"

    run(body)


@pytest.mark.parametrize("to_its_time", [False, True])
@pytest.mark.parametrize("turn", range(4))
def test_an_ordered_attempt_goes_past_nothing_when_the_clock_was_set_back(
    turn: int, to_its_time: bool
) -> None:
    """An answer cannot give out again, beside messages of another queue, those of a lost answer
    that bears a later time, or the same."""

    async def body(world: World) -> None:
        broker, popper = await started(world)
        attempt = {"order": "true", "attemptId": "x", "invisible": 50_000}
        assert (await popper.remote.send(b"b0", queue=1)).code == 0
        await settled(world, broker, popper)
        lost = await popper.pop(**attempt)
        assert bodies(lost) == [b"b0"]
        world.nodes[0].jump_wall_clock(-3_600_000)
        for queue, text in ((0, b"a0"), (1, b"b1")):
            assert (await popper.remote.send(text, queue=queue)).code == 0
        await settled(world, broker, popper)
        for _ in range(turn):  # which queue is looked at first
            await Popper(popper.remote, group="another").pop(1)
        if to_its_time:
            popped_at = int(lost[0].handle.split(" ")[1])
            world.nodes[0].now_ms = lambda: popped_at  # type: ignore[method-assign]
        seen: list[bytes] = []
        for _ in range(3):
            found = await popper.pop(**attempt)
            seen += [one.body for one in found if one.message.queue_id == 1]
            for one in found:
                assert (await popper.ack(one)).code == 0
        assert seen == [b"b0", b"b1"]
        broker.validate()

    run(body)


def test_an_ordered_pop_waits_for_the_messages_before() -> None:
    async def body(world: World) -> None:
        broker, one = await started(world)
        two = Popper(await world.connect(broker.address))
        await send(one, "a", "b", "c", "d")
        first = await one.pop(2, order="true", attemptId="x", invisible=5000)
        assert bodies(first) == [b"a", b"b"]
        assert one.answers[-1].ext["reviveQid"] == "999"
        assert one.answers[-1].ext["orderCountInfo"] == "0 0 0"
        assert await two.pop(2, order="true", attemptId="y") == []
        lost = await one.pop(2, order="true", attemptId="x", invisible=5000)
        assert bodies(lost) == [b"a", b"b"], "the consumer lost the answer"
        assert [one.message.reconsume_times for one in lost] == [0, 0]
        assert (await one.ack(lost[1])).code == 0
        assert await two.pop(2, order="true", attemptId="y") == [], "a is out"
        waiting = asyncio.ensure_future(two.pop(2, order="true", attemptId="y", pollTime=20_000))
        again = await waiting
        assert bodies(again) == [b"a", b"c"], "b is done"
        assert [each.message.reconsume_times for each in again] == [1, 0]
        assert two.answers[-1].ext["orderCountInfo"] == "0 qo0%0 1;0 0 0"
        waiting = asyncio.ensure_future(one.pop(2, order="true", attemptId="z", pollTime=20_000))
        await world.until(lambda: len(broker.messaging.pops.held) == 1)
        begun = world.loop.time()
        assert (await two.ack(again[1])).code == 0
        assert not waiting.done()
        assert (await two.ack(again[0])).code == 0
        assert bodies(await waiting) == [b"d"]
        assert world.loop.time() - begun < 0.2, "an acknowledgement wakes the next"
        broker.validate()

    run(body)


def test_tags_and_conditions_select() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        for number in range(6):
            await send(
                popper, f"m{number}", TAGS="even" if number % 2 == 0 else "odd", n=str(number)
            )
        assert bodies(await popper.pop(exp="even", expType="TAG")) == [b"m0", b"m2", b"m4"]
        other = Popper(popper.remote, group="other")
        found = await other.pop(exp="n > 3", expType="SQL92")
        assert bodies(found) == [b"m4", b"m5"]
        reply = await other.remote.ask(
            Code.POP_MESSAGE,
            {
                "consumerGroup": "other",
                "topic": "T",
                "invisibleTime": 1000,
                "exp": "n >",
                "expType": "SQL92",
            },
        )
        assert reply.code == 23
        waiting = asyncio.ensure_future(other.pop(exp="n > 3", expType="SQL92", pollTime=9000))
        await world.until(lambda: len(broker.messaging.pops.held) == 1)
        sender = await world.connect(broker.address)
        await sender.send(b"no", n="1")
        await sender.send(b"yes", n="9")
        assert bodies(await waiting) == [b"yes"]
        broker.validate()

    run(body)


def test_messages_in_the_retry_topic_of_a_rocketmq_broker_are_given_out() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "new")
        broker.context.topics.ensure("%RETRY%G_T", 1)
        assert (await popper.remote.send(b"old", topic="%RETRY%G_T", queue=0)).code == 0
        found = await popper.pop()
        assert bodies(found) == [b"old", b"new"]
        old = found[0]
        assert old.message.topic == "%RETRY%G_T"
        assert (await popper.ack(old)).code == 0
        assert (await popper.ack(found[1])).code == 0
        await asyncio.sleep(12)
        assert await popper.pop() == []
        broker.validate()

    run(body)


def test_a_reset_moves_the_group_and_its_open_messages_are_forgotten() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b", "c")
        found = await popper.pop(invisible=60_000)
        reply = await popper.remote.ask(
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            {
                "topic": "T",
                "group": "G",
                "timestamp": 0,
                "isForce": "true",
                "queueId": 0,
                "offset": 1,
            },
        )
        assert reply.code == 0, reply.remark
        assert bodies(await popper.pop(invisible=60_000)) == [b"b", b"c"]
        assert (await popper.ack(found[0])).code == 208
        await broker.close()
        broker, popper = await started(world)
        await settled(world, broker, popper)
        assert await popper.pop() == []
        assert await popper.remote.committed() == 1

    run(body)


def test_beyond_the_limit_of_open_messages_only_old_ones_are_given_out() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world, max_popped_messages=3)
        await send(popper, "a", "b", "c", "d", "e")
        found = await popper.pop(invisible=2000)
        assert bodies(found) == [b"a", b"b", b"c"]
        assert await popper.pop() == []
        assert (await popper.ack(found[0])).code == 0
        assert bodies(await popper.pop(invisible=2000)) == [b"d"]
        await asyncio.sleep(3)
        assert bodies(await popper.pop()) == [b"b", b"c", b"d"]
        broker.validate()

    run(body)


def test_a_group_without_an_offset_may_begin_at_the_end() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world)
        await send(popper, "a")
        assert bodies(await popper.pop(initMode=1)) == [b"a"], "the queue has its first messages"

    run(body)


def test_a_group_that_begins_at_the_end_misses_nothing_of_a_topic_that_was_made_again() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world)
        await send(popper, "a")
        (one,) = await popper.pop(initMode=1)
        assert (await popper.ack(one)).code == 0
        assert (await popper.remote.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        await send(popper, "b", "c")
        for group in ("G", "H"):
            again = Popper(popper.remote, group)
            assert bodies(await again.pop(initMode=1)) == [b"b", b"c"]

    run(body)


def test_notification_and_peek_take_nothing() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a")
        ask = {"consumerGroup": "G", "topic": "T", "queueId": -1, "pollTime": 5000, "bornTime": 0}
        reply = await popper.remote.ask(Code.NOTIFICATION, ask)
        assert reply.ext["hasMsg"] == "true"
        peeked = await popper.remote.ask(Code.PEEK_MESSAGE, {**ask, "maxMsgNums": 8})
        assert [m.body for m in decode_frames(peeked.body, True)] == [b"a"]
        assert bodies(await popper.pop(invisible=60_000)) == [b"a"]
        begun = world.loop.time()
        reply = await popper.remote.ask(Code.NOTIFICATION, ask)
        assert reply.ext["hasMsg"] == "false"
        assert world.loop.time() - begun >= 5
        peeked = await popper.remote.ask(Code.PEEK_MESSAGE, {**ask, "maxMsgNums": 8})
        assert peeked.code == 19
        waiting = asyncio.ensure_future(popper.remote.ask(Code.NOTIFICATION, ask))
        await world.until(lambda: len(broker.messaging.pops.held) == 1)
        sender = await world.connect(broker.address)
        assert (await sender.send(b"b", queue=3)).code == 0
        assert (await waiting).ext["hasMsg"] == "true"
        assert bodies(await popper.pop()) == [b"b"]

    run(body)


def test_a_deleted_group_begins_anew_also_after_a_restart() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b")
        one = (await popper.pop(invisible=60_000))[0]
        assert (await popper.ack(one)).code == 0
        ext = {"groupName": "G", "cleanOffset": "true"}
        reply = await popper.remote.ask(Code.DELETE_SUBSCRIPTIONGROUP, ext)
        assert reply.code == 0, reply.remark
        await broker.close()
        broker, popper = await started(world)
        await settled(world, broker, popper)
        assert bodies(await popper.pop(invisible=60_000)) == [b"a", b"b"]

    run(body)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("made_again", [False, True])
def test_messages_of_a_deleted_topic_are_not_out(restart: bool, made_again: bool) -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world, max_popped_messages=4)
        await send(popper, "a", "b")
        assert len(await popper.pop(invisible=600_000)) == 2
        ext = {"topic": "T"}
        assert (await popper.remote.ask(Code.DELETE_TOPIC_IN_BROKER, ext)).code == 0
        if made_again:
            await send(popper, "c")
        if restart:
            await broker.close()
            broker, popper = await started(world, max_popped_messages=4)
            await settled(world, broker, popper)
        await world.until(lambda: broker.messaging.popping.status()["popsOpen"] == "0", 11)
        assert await popper.remote.committed() is None
        if made_again:
            assert bodies(await popper.pop()) == [b"c"]
        broker.validate()

    run(body)


def test_messages_of_a_queue_that_was_removed_are_out_until_their_time_is_over() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", queue=0)
        await send(popper, "b", queue=3)
        assert len(await popper.pop(invisible=30_000)) == 2
        ext = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2}
        ext |= {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        assert (await popper.remote.ask(Code.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        await asyncio.sleep(20)
        status = broker.messaging.popping.status
        assert status()["popsOpen"] == "2"
        await world.until(lambda: status()["popsOpen"] == "1", 25)
        assert bodies(await popper.pop()) == [b"a"]
        assert (
            await popper.remote.ask(Code.UPDATE_AND_CREATE_TOPIC, ext | {"readQueueNums": 4})
        ).code == 0
        assert bodies(await popper.pop()) == [b"b"]
        broker.validate()

    run(body)


def test_a_slave_that_is_promoted_knows_what_is_out() -> None:
    async def body(world: World) -> None:
        master = await world.broker(role="SYNC_MASTER", alone=True)
        slave = await world.broker(
            new_disk(2),
            broker_id=1,
            role="SLAVE",
            ha_master_address=master.ha_address,
            slave_sync_ms=100,
        )
        popper = Popper(await world.connect(master.address))
        await world.until(lambda: master.context.copies_in_sync() == 2)
        await send(popper, "a", "b", "c", "d")
        a, b, c = await popper.pop(3, invisible=20_000)
        assert (await popper.ack(b)).code == 0
        assert not slave.messaging.popping.serves
        theirs = Popper(await world.connect(slave.address))
        await theirs.pop()
        assert theirs.answers[-1].code == 2, "a slave gives out nothing"
        world.nodes[0].power_off()
        ext = {"epoch": TERM + 1, "force": "true", "insist": "true"}
        reply = await theirs.remote.ask(Code.PROMOTE, ext)
        assert reply.code == 0, reply.remark
        await world.until(lambda: slave.messaging.popping.serves)
        slave.validate()
        begun = world.loop.time()
        table = slave.messaging.popping.leases
        assert [sorted(lane.open) for lane in table.lanes.values() if lane.open] == [[0, 2]]
        assert table.count == 2
        (lane,) = (lane for lane in table.lanes.values() if lane.open)
        assert lane.cursor == 3
        assert {lease.pop_ms for lease in lane.open.values()} == {int(a.handle.split(" ")[1])}
        assert c.handle.split(" ")[1] == a.handle.split(" ")[1]
        assert world.loop.time() - begun < 1

    run(body)


def test_a_pop_whose_record_cannot_be_written_takes_nothing() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b")
        assert bodies(await popper.pop(1, invisible=60_000)) == [b"a"]
        recorder = broker.messaging.popping._recorder
        write, recorder._append = recorder._append, Mock(side_effect=SystemError_("no room"))
        assert await popper.pop() == []
        assert popper.answers[-1].code == 1
        recorder._append = write
        assert bodies(await popper.pop()) == [b"b"]
        broker.validate()

    run(body)

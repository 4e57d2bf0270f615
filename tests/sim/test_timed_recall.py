"""Recall of timed messages on simulated machines: never delivered once it was answered, and a typed
error for each handle that does not name a waiting message."""

from __future__ import annotations

import asyncio
import base64
import random

import pytest
from machines_rig import Machine, World, follow, group, promote, run
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.recall_handle import RecallHandle, decode_handle
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import TIMER_TOPIC
from saturnmq.runtime.errors import IllegalOperation
from timed_rig import after, booted, later, wall


async def recall(machine: Machine, handle: str, topic: str = "T") -> Command:
    return await machine.ask(
        RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle, "producerGroup": "P"}
    )


def handle_of(reply: Command) -> str:
    return reply.ext["recallHandle"]


def test_a_delivered_message_without_room_for_the_time_of_that_is_not_recalled() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        sent = await later(machine, b"full", TIMER_DELAY_MS=1500, pad="x" * 32_550)
        await asyncio.sleep(3)
        [message] = await machine.read()
        assert "TIMER_DEQUEUE_MS" not in message.properties
        refused = await recall(machine, handle_of(sent))
        assert refused.code == IllegalOperation.code
        assert "was delivered already" in str(refused.remark)

    run(body)


def test_a_recalled_message_is_never_delivered() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        gone = handle_of(await after(machine, b"gone", 20))
        await after(machine, b"kept", 20)
        also = handle_of(await later(machine, b"also", TIMER_DELIVER_MS=wall(machine) + 20_000))
        assert decode_handle(gone).message_id == "gone"
        for handle, name in ((gone, "gone"), (also, "also")):
            reply = await recall(machine, handle)
            assert (reply.code, reply.ext["msgId"]) == (0, name), reply.remark
        assert dict(machine.broker.messaging.timers.pending.topics) == {"T": 1}
        await asyncio.sleep(5)
        await machine.restart(clean=False)
        await asyncio.sleep(20)
        assert await machine.bodies() == [b"kept"]
        assert len(machine.broker.messaging.timers.pending) == 0

    run(body)


@pytest.mark.parametrize(("appends", "key"), [(False, "gone"), (True, "T+gone")])
def test_a_recall_is_in_the_log_as_rocketmq_reads_it(appends: bool, key: str) -> None:
    async def body(world: World) -> None:
        machine = await booted(world, append_topic_to_recalls=appends)
        assert (await recall(machine, handle_of(await after(machine, b"gone", 20)))).code == 0
        await asyncio.sleep(1)  # the queue has it
        store = machine.broker.store
        end = store.max_offset(TIMER_TOPIC, 0)
        result = store.get_message(TIMER_TOPIC, 0, 0, end, override_limits=True)
        waiting, recalling = decode_frames(result.data, False)
        assert recalling.properties["TIMER_DEL_UNIQKEY"] == key
        for name in ("TIMER_OUT_MS", "REAL_TOPIC", "UNIQ_KEY"):  # one slot of RocketMQ's wheel
            assert recalling.properties[name] == waiting.properties[name]

    run(body)


def test_what_does_not_wait_cannot_be_recalled() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        delivered = handle_of(await after(machine, b"delivered", 5))
        recalled = handle_of(await after(machine, b"recalled", 500))
        assert (await recall(machine, recalled)).code == 0
        await asyncio.sleep(6)
        known = decode_handle(delivered)
        unknown = RecallHandle("T", known.broker_name, known.moment, "nobody").encode()
        other_time = RecallHandle("T", known.broker_name, known.moment + 1000, "delivered").encode()
        other_broker = RecallHandle("T", "elsewhere", known.moment, "delivered").encode()
        forged = base64.urlsafe_b64encode(b"v2 T b 1 x").decode()
        for handle, code, word in (
            (delivered, 604, "was delivered"),
            (recalled, 604, "was recalled"),
            (unknown, 604, "no message nobody"),
            (other_time, 604, "no message delivered"),
            (other_broker, 604, "elsewhere"),
            (forged, 604, "invalid handle"),
            ("not base64!", 604, "invalid handle"),
        ):
            reply = await recall(machine, handle)
            assert (reply.code, word in str(reply.remark)) == (code, True), reply.remark
        assert (await recall(machine, delivered, "nowhere")).code == 17
        await machine.send(b"x", topic="other")
        reply = await recall(machine, delivered, "other")
        assert (reply.code, "topic not match" in str(reply.remark)) == (604, True)
        assert await machine.bodies() == [b"delivered"]

    run(body)


@pytest.mark.parametrize(
    "settings", [{"recall_messages": False}, {"store_options": {"index_enable": False}}]
)
def test_a_broker_that_does_not_recall_says_so(settings: dict[str, object]) -> None:
    async def body(world: World) -> None:
        machine = await booted(world, **settings)
        handle = handle_of(await after(machine, b"comes", 5))
        assert (await recall(machine, handle)).code == 16
        await asyncio.sleep(6)
        assert await machine.bodies() == [b"comes"]

    run(body)


def test_an_answered_recall_outlives_a_power_cut_and_a_promotion() -> None:
    async def body(world: World) -> None:
        master, slave = await group(world, 0)
        await slave.boot()
        await follow(slave, master)
        handles = [handle_of(await after(master, b"%d" % n, 60)) for n in range(10)]
        for handle in handles[::2]:
            assert (await recall(master, handle)).code == 0
        await follow(slave, master)
        await master.kill()
        await promote(slave)
        assert (await recall(slave, handles[0])).code == 604
        assert (await recall(slave, handles[1])).code == 0
        await asyncio.sleep(70)
        assert sorted(await slave.bodies()) == [b"3", b"5", b"7", b"9"]

    run(body)


def test_a_recall_at_the_last_moment_is_either_refused_or_kept() -> None:
    async def body(world: World) -> None:
        machine = await booted(world)
        chance = random.Random(3)
        outcomes = {}
        for number in range(60):
            name = b"%d" % number
            handle = handle_of(
                await later(machine, name, TIMER_DELAY_MS=400 + chance.randrange(300))
            )
            await asyncio.sleep(0.4 + chance.random() * 0.3)
            outcomes[name] = (await recall(machine, handle)).code
        await asyncio.sleep(2)
        store = machine.broker.store
        assert set(outcomes.values()) == {0, 604}
        delivered = {bytes(m.body) for m in await machine.read()}
        delivered |= {bytes(m.body) for m in await machine.read(32)}
        assert delivered == {name for name, code in outcomes.items() if code}
        assert store.max_offset("T", 0) == len(delivered)

    run(body)


@pytest.mark.parametrize(
    "text",
    ["", "x", "dg==", "djEgYSBiIGM=", "djEgYSBiIC0xIGQ=", "djEgYSBiIDEgZA", "A" * 2000, "\u00e9"],
)
def test_a_handle_that_no_broker_gave_is_refused(text: str) -> None:
    with pytest.raises(IllegalOperation, match="recall failed"):
        decode_handle(text)


def test_a_handle_has_rocketmqs_form() -> None:
    handle = RecallHandle("T", "broker-a", 1_700_000_000_001, "AC10")
    text = base64.urlsafe_b64encode(b"v1 T broker-a 1700000000001 AC10").decode()
    assert handle.encode() == text
    assert decode_handle(text) == handle


def test_with_the_check_of_types_only_a_topic_of_timed_messages_has_recalls() -> None:
    async def body(world: World) -> None:
        machine = await booted(world, check_message_types=True)
        for topic, changes in (("T", "+message.type=DELAY"), ("plain", "")):
            ext = {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "attributes": changes}
            assert (await machine.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        handle = handle_of(await after(machine, b"x", 500))
        refused = await recall(machine, handle, "plain")
        assert (refused.code, "actual type is DELAY" in str(refused.remark)) == (13, True)
        assert (await recall(machine, handle)).code == 0

    run(body)

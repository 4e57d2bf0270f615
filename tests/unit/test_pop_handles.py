"""Handles of popped messages: forged, foreign, expired, used; batches of them; bad pops."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from pop_rig import Got, bodies, send, started
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.pop_handle import PopHandle
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import MalformedFrame
from world_rig import World, run


def test_the_words_of_a_handle_are_read_as_they_were_written() -> None:
    handle = PopHandle(1, 1700000000000, 30000, 999, 2, "broker-a", 3, 40)
    text = "1 1700000000000 30000 999 2 broker-a 3 40"
    assert str(handle) == text
    assert PopHandle.decode(text) == handle
    without_offset = text.rpartition(" ")[0]
    assert PopHandle.decode(without_offset, 40) == handle
    for wrong in (without_offset, f"{text} 1", text.replace("999", "2147483648"), ""):
        with pytest.raises(MalformedFrame):
            PopHandle.decode(wrong)


def test_a_batch_of_acknowledgements() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b", "c")
        found = await popper.pop(invisible=2000)
        words = found[0].handle.split(" ")

        def entry(bits: int) -> dict[str, Any]:
            return {
                "c": "G",
                "t": "T",
                "r": "0",
                "so": int(words[0]),
                "q": int(words[6]),
                "rq": int(words[3]),
                "pt": int(words[1]),
                "it": int(words[2]),
                "b": base64.b64encode(bytes([bits])).decode(),
            }

        async def acks(*entries: Any) -> Command:
            asked = {"brokerName": "broker-a", "acks": list(entries)}
            return await popper.remote.ask(Code.BATCH_ACK_MESSAGE, body=json.dumps(asked).encode())

        assert (await acks(entry(0b101))).code == 0
        reply = await acks(entry(0b011))
        assert reply.code == 0, "b is valid"
        assert reply.remark.startswith("1 of 2 handles are not valid")
        assert (await acks(entry(0b111))).code == 208
        assert (await acks()).code == 208
        assert (await acks({**entry(1), "b": "!"})).code == 29
        await asyncio.sleep(5)
        assert await popper.pop() == []
        assert await popper.remote.committed() == 3
        broker.validate()

    run(body)


@pytest.mark.parametrize(
    ("word", "value", "code"),
    [
        (1, "1", 208),  # another pop time
        (2, "9", 208),  # another invisible time
        (5, "broker-b", 208),
        (6, "1", 29),  # another queue than the request's
        (7, "1", 29),  # another offset than the request's
        (4, "7", 29),  # no kind
        (1, "-5", 29),
        (1, "99999999999999999999", 29),
        (0, "x", 29),
    ],
)
def test_a_forged_handle_is_refused(word: int, value: str, code: int) -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b")
        one = (await popper.pop())[0]
        words = one.handle.split(" ")
        words[word] = value
        assert (await popper.ack(one, extraInfo=" ".join(words))).code == code
        reply = await popper.change(one, 1000, extraInfo=" ".join(words))
        assert reply.code == code
        assert (await popper.ack(one)).code == 0, "the true one still counts"
        broker.validate()

    run(body)


def test_a_foreign_an_expired_and_a_used_handle_are_refused() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b")
        a, b = await popper.pop(invisible=1000)
        assert (await popper.ack(a, consumerGroup="other")).code == 208
        assert (await popper.ack(a, topic="none")).code == 17
        assert (await popper.ack(a, queueId=8)).code == 13
        assert (await popper.ack(a, queueId=-1)).code == 13
        far = a.handle.rpartition(" ")[0] + " 9000000000000"
        assert (await popper.ack(a, offset=9_000_000_000_000, extraInfo=far)).code == 208
        assert (await popper.ack(a)).code == 0
        used = await popper.ack(a)
        assert used.code == 208
        assert "acknowledged" in used.remark
        await asyncio.sleep(1.5)
        late = await popper.ack(b)
        assert late.code == 208
        assert "expired" in late.remark
        (again,) = await popper.pop()
        assert (await popper.ack(b)).code == 208
        assert (await popper.ack(again)).code == 0
        broker.validate()

    run(body)


@pytest.mark.parametrize("ordered", [False, True])
def test_the_handle_of_a_dead_letter_ends_with_it(ordered: bool) -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b")
        order = {"order": str(ordered).lower()}
        await popper.pop(invisible=1000, **order)
        await asyncio.sleep(2)
        a, b = await popper.pop(**order)

        async def bury(one: Got, **more: Any) -> Command:
            ext = {"group": "G", "offset": one.message.physical_offset, "delayLevel": -1}
            ext |= {"originTopic": "T", "extraInfo": one.handle, **more}
            return await popper.remote.ask(Code.CONSUMER_SEND_MSG_BACK, ext)

        assert (await bury(a, delayLevel=0)).code == 29
        assert (await bury(a, extraInfo="none")).code == 29
        assert (await bury(a, originTopic="none")).code == 17
        assert (await bury(a, group="other")).code == 208
        assert (await bury(a, extraInfo=a.handle.replace("broker-a", "broker-b"))).code == 208
        assert [(await bury(a)).code for _ in range(3)] == [0, 208, 208]
        assert (await popper.ack(a)).code == 208
        assert (await popper.ack(b)).code == 0
        assert await popper.remote.committed() == 2
        dead = broker.store.get_message("%DLQ%G", 0, 0, 10)
        (message,) = decode_frames(dead.data, True)
        assert (message.body, message.reconsume_times) == (b"a", 2)
        await asyncio.sleep(12)
        assert await popper.pop(**order) == []
        broker.validate()

    run(body)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"maxMsgNums": 33}, 29),
        ({"maxMsgNums": 0}, 29),
        ({"queueId": 8}, 29),
        ({"topic": "none"}, 17),
        ({"invisibleTime": -1}, 29),
        ({"invisibleTime": 1 << 40}, 29),
        ({"attemptId": "x" * 300}, 29),
        ({"exp": "a || ||", "expType": "NONE"}, 23),
    ],
)
def test_a_bad_pop_is_refused(changes: dict[str, Any], code: int) -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a")
        assert await popper.pop(**changes) == []
        assert popper.answers[-1].code == code
        assert bodies(await popper.pop()) == [b"a"]
        broker.validate()

    run(body)


def test_clients_cannot_write_records() -> None:
    async def body(world: World) -> None:
        _, popper = await started(world)
        reply = await popper.remote.send(b"{}", topic="rmq_sys_REVIVE_LOG_DefaultCluster")
        assert reply.code == 16

    run(body)


def test_handles_are_valid_while_their_topic_may_not_be_read() -> None:
    async def body(world: World) -> None:
        broker, popper = await started(world)
        await send(popper, "a", "b", "c")
        a, b, c = await popper.pop()
        ext = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4}
        ext |= {"perm": 2, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        assert (await popper.remote.ask(Code.UPDATE_AND_CREATE_TOPIC, ext)).code == 0
        assert (await popper.ack(a)).code == 0
        assert (await popper.change(b, 60_000)).code == 0
        back = {"group": "G", "offset": c.message.physical_offset, "delayLevel": -1}
        back |= {"originTopic": "T", "extraInfo": c.handle}
        assert (await popper.remote.ask(Code.CONSUMER_SEND_MSG_BACK, back)).code == 0
        assert (await popper.ack(a, queueId=4)).code == 13
        assert (await popper.pop(), popper.answers[-1].code) == ([], 16)
        broker.validate()

    run(body)

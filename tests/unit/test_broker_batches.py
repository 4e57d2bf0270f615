"""Topics with queue.type=BatchCQ at a broker: what is stored, refused, pulled and popped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import broker_rig
import pop_rig
import pytest
from saturnmq.broker.broker import Broker
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.batches import BatchPart, decode_answers, encode_parts
from saturnmq.protocol.codes import RequestCode as Code
from saturnmq.protocol.compression import ZSTD, compress, sys_flag_of
from saturnmq.protocol.frame import INNER_BATCH, NEED_UNWRAP, WRAPPED
from saturnmq.protocol.inner_batch import unwrapped
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.native import NativeRuntime
from saturnmq.store.message_store import PendingMessage
from world_rig import Remote, World, run

FIELDS = {"a": "P", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
ZIPPED = WRAPPED | sys_flag_of(ZSTD)


def packed(first: int, count: int) -> bytes:
    """A batch of the messages `first`, `first` + 1, ..., with tags t0, t1, t0..."""
    return bytes(
        encode_batch(
            (b"%d" % n, b"UNIQ_KEY\x01U%d\x02TAGS\x01t%d\x02" % (n, n % 2), 0)
            for n in range(first, first + count)
        )
    )


async def create(client: Remote, attributes: str = "+queue.type=BatchCQ", topic: str = "B") -> Any:
    ext = {"topic": topic, "readQueueNums": 2, "writeQueueNums": 2, "attributes": attributes}
    return await client.ask(Code.UPDATE_AND_CREATE_TOPIC, ext)


async def batch(client: Remote, first: int, count: int, **more: Any) -> Command:
    ext = {**FIELDS, "b": "B", "i": f"UNIQ_KEY\x01K{first}\x02", **more}
    return await client.ask(320, ext, packed(first, count))


async def zipped(client: Remote, first: int, count: int, **more: Any) -> Command:
    """A batch that is compressed as a whole, sent as one message."""
    ext = {**FIELDS, "b": "B", "f": ZIPPED, "i": f"UNIQ_KEY\x01K{first}\x02INNER_NUM\x01{count}"}
    return await client.ask(310, {**ext, **more}, compress(packed(first, count), ZSTD, 3))


async def single(client: Remote, number: int, **names: str) -> Command:
    return await client.send(b"%d" % number, topic="B", **names)


async def world(it: World) -> tuple[Broker, Remote]:
    broker = await it.broker()
    client = await it.connect(broker.address)
    assert (await create(client)).code == 0
    return broker, client


def read(reply: Command, first: int = 0) -> list[tuple[int, bytes]]:
    body = bytes(reply.body)
    found = decode_frames(unwrapped(body, first), True)
    return [(message.queue_offset, message.body) for message in found]


def numbers(*ranges: tuple[int, int]) -> list[tuple[int, bytes]]:
    return [(n, b"%d" % n) for first, end in ranges for n in range(first, end)]


def mixed(broker: Broker) -> None:
    """A queue as RocketMQ fills it: single messages are plain frames, of which the first has no
    tag. They lie before, between and behind batches."""
    tags = {0: b"", 4: b"\x02TAGS\x01t0", 9: b"\x02TAGS\x01t1"}
    zipped_body = compress(packed(5, 4), ZSTD, 3)
    for first, count, body, flags in (
        (0, 0, b"0", 0),
        (1, 3, packed(1, 3), NEED_UNWRAP),
        (4, 0, b"4", 0),
        (5, 4, zipped_body, NEED_UNWRAP | sys_flag_of(ZSTD)),
        (9, 0, b"9", 0),
    ):
        properties = b"UNIQ_KEY\x01U%d%b" % (first, tags.get(first, b""))
        message = PendingMessage("B", 0, body, properties, sys_flag=flags)
        assert broker.store.put(message, inner=count).queue_offset == first


async def settled(it: World, broker: Broker) -> None:
    marks = broker.store.watermarks
    await it.until(lambda: marks.dispatched == marks.appended)


def test_every_way_of_sending_makes_inner_batches_with_offsets_that_follow_each_other() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        told = await batch(client, 0, 3)
        assert (told.code, told.ext["queueOffset"], told.ext["batchUniqId"]) == (0, "0", "K0")
        assert "," not in told.ext["msgId"]
        assert (await single(client, 3)).ext["queueOffset"] == "3"
        assert (await zipped(client, 4, 5)).ext["queueOffset"] == "4"
        parts = encode_parts([BatchPart("B", 0, 0, 1, packed(9, 2))])
        many = await client.ask(390040, {"c": "TBW102", "d": 4}, parts)
        [answer] = decode_answers(bytes(many.body), 1)
        assert (answer.code, answer.queue_offset) == (0, 9)
        assert len(answer.rest) == 8
        assert (await single(client, 11)).ext["queueOffset"] == "11"
        await settled(it, broker)
        broker.validate()
        reply = await client.pull(0, topic="B")
        assert (reply.code, reply.ext["nextBeginOffset"]) == (0, "12")
        frames = decode_frames(bytes(reply.body), True)
        assert [frame.sys_flag & WRAPPED for frame in frames] == [
            WRAPPED, INNER_BATCH, WRAPPED, WRAPPED, INNER_BATCH,
        ]  # fmt: skip
        assert [frame.properties["INNER_NUM"] for frame in frames] == ["3", "1", "5", "2", "1"]
        assert all(frame.properties["INNER_BASE"] == str(frame.queue_offset) for frame in frames)
        assert all(frame.properties["UNIQ_KEY"] for frame in frames)
        assert read(reply) == numbers((0, 12))
        inside = await client.pull(6, topic="B")
        assert read(inside, 6) == numbers((6, 12))

    run(body)


def test_a_client_of_ours_counts_the_ids_of_a_batch_from_its_frame() -> None:
    async def body(it: World) -> None:
        _, client = await world(it)
        await single(client, 0)
        told = await batch(client, 1, 3, saturnSizes="true")
        sizes = [int.from_bytes(told.body[at : at + 4], "big") for at in (0, 4, 8)]
        assert sizes[:2] == [0, 0]
        assert sizes[2] > 100

    run(body)


@pytest.mark.parametrize(
    ("ext", "what"),
    [
        ({"f": ZIPPED, "i": "A\x01b\x02"}, "INNER_NUM=''"),
        ({"f": ZIPPED, "i": "INNER_NUM\x010\x02"}, "1 to 32767 messages"),
        ({"f": ZIPPED, "i": "INNER_NUM\x0132768\x02"}, "1 to 32767 messages"),
        ({"f": ZIPPED, "i": "INNER_NUM\x01-3\x02"}, "1 to 32767 messages"),
        ({"f": INNER_BATCH, "i": "INNER_NUM\x013\x02"}, "both flags"),
        ({"f": NEED_UNWRAP, "i": "INNER_NUM\x013\x02"}, "both flags"),
        ({"f": WRAPPED, "i": "INNER_NUM\x014\x02"}, "the batch has 3 messages, INNER_NUM says 4"),
        ({"f": 0, "i": "INNER_NUM\x013\x02"}, "is no batch"),
        ({"f": WRAPPED, "i": "INNER_NUM\x013\x02DELAY\x013\x02"}, "delayed ones singly"),
        ({"f": 0, "i": "TRAN_MSG\x01true\x02PGROUP\x01P\x02"}, "neither messages of transactions"),
        ({"f": 0, "i": "TIMER_DELAY_MS\x015000\x02"}, "nor timed ones"),
    ],
)
def test_what_is_no_inner_batch_is_refused(ext: dict[str, Any], what: str) -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        end = broker.store.watermarks.appended
        reply = await client.ask(310, {**FIELDS, "b": "B", **ext}, packed(0, 3))
        assert reply.code == 13
        assert what in str(reply.remark)
        assert broker.store.watermarks.appended == end

    run(body)


@pytest.mark.parametrize("flags", [WRAPPED, INNER_BATCH, sys_flag_of(ZSTD)])
@pytest.mark.parametrize("code", [320, 390040])
def test_a_batch_request_has_no_flags_of_an_inner_batch(flags: int, code: int) -> None:
    async def body(it: World) -> None:
        _, client = await world(it)
        if code == 320:
            reply = await batch(client, 0, 3, f=flags)
            assert reply.code == 13
        else:
            parts = encode_parts([BatchPart("B", 0, flags, 1, packed(0, 3))])
            told = await client.ask(390040, {"c": "TBW102", "d": 4}, parts)
            assert [each.code for each in decode_answers(bytes(told.body), 1)] == [13]

    run(body)


def test_a_topic_without_the_attribute_takes_no_inner_batches() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        for flags in (WRAPPED, INNER_BATCH):
            refused = [
                await client.ask(310, {**FIELDS, "b": "T", "f": flags, "i": ""}, b"x"),
                await client.ask(320, {**FIELDS, "b": "T", "f": flags, "i": ""}, packed(0, 2)),
            ]
            assert [reply.code for reply in refused] == [13, 13]
            assert "takes no inner batches" in str(refused[0].remark)
            parts = encode_parts([BatchPart("T", 0, flags, 1, packed(0, 3))])
            told = await client.ask(390040, {"c": "TBW102", "d": 4}, parts)
            assert [each.code for each in decode_answers(bytes(told.body), 1)] == [13]
        named = await client.send(b"x", INNER_NUM="3")
        assert (named.code, "is no batch" in str(named.remark)) == (13, True)
        assert broker.store.watermarks.appended == 0

    run(body)


def test_a_delayed_message_becomes_a_batch_when_it_is_delivered() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        assert (await single(client, 0, DELAY="1")).code == 0
        await it.until(lambda: broker.store.max_offset("B", 0) == 1)
        broker.validate()
        reply = await client.pull(0, topic="B")
        assert read(reply) == numbers((0, 1))
        assert decode_frames(bytes(reply.body), True)[0].sys_flag & INNER_BATCH

    run(body)


def test_the_type_of_queues_is_given_when_a_topic_is_created() -> None:
    async def body(it: World) -> None:
        _, client = await world(it)
        changed = await create(client, "+queue.type=SimpleCQ")
        assert (changed.code, "unchangeable" in str(changed.remark)) == (29, True)
        retry = await create(client, topic="%RETRY%G")
        assert (retry.code, "have no batches" in str(retry.remark)) == (29, True)

    run(body)


def test_a_condition_and_a_range_are_refused_by_name() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        await batch(client, 0, 3)
        await settled(it, broker)
        more = {"subscription": "a = 1", "expressionType": "SQL92"}
        asked = await client.pull(0, topic="B", **more)
        assert asked.code != 0
        ext = {"topic": "B", "maxBytes": 1 << 20, "maxRows": 100}
        cut = await client.ask(390021, ext, b"[[0,0,3]]")
        assert (cut.code, "not read in ranges" in str(cut.remark)) == (29, True)

    run(body)


def test_the_entries_of_a_queue_are_those_of_its_units() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        for number in range(4):
            await batch(client, 3 * number, 3)
        await settled(it, broker)
        ext = {"topic": "B", "queueId": 0, "index": 1, "count": 3, "consumerGroup": "G"}
        told = await client.ask(Code.QUERY_CONSUME_QUEUE, ext)
        assert told.code == 0
        assert bytes(told.body).count(b"physicOffset") in (3, 4)

    run(body)


def test_batches_behind_plain_messages_are_unwrapped_in_one_reply() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        mixed(broker)
        await settled(it, broker)
        for first in range(10):
            reply = await client.pull(first, topic="B")
            frames = decode_frames(bytes(reply.body), True)
            assert len(frames) == sum(first < end for end in (1, 4, 5, 9, 10))
            assert read(reply, first) == numbers((first, 10))
        assert [frame.sys_flag & WRAPPED for frame in frames] == [0]

    run(body)


# pops


async def popped(popper: pop_rig.Popper, *most: int) -> list[pop_rig.Got]:
    """The messages of several pops, each of at most so many."""
    found: list[pop_rig.Got] = []
    for count in most:
        got = await popper.pop(count)
        assert len(got) <= count
        found += got
    return found


def test_a_pop_gives_out_the_messages_of_batches_one_by_one() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        popper = pop_rig.Popper(client, topic="B")
        await it.until(lambda: broker.messaging.popping.serves)
        await batch(client, 0, 5)
        await zipped(client, 5, 4)
        await single(client, 9)
        await settled(it, broker)
        found = await popped(popper, 2, 1, 4, 32)
        assert [(one.message.queue_offset, one.body) for one in found] == numbers((0, 10))
        assert not any(one.message.sys_flag & NEED_UNWRAP for one in found)
        for one in found[:7]:
            assert (await popper.ack(one)).code == 0
        assert await popper.pop() == []
        broker.validate()

    run(body)


def test_messages_that_are_not_acknowledged_come_again_without_the_others_of_their_batch() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        popper = pop_rig.Popper(client, topic="B")
        await it.until(lambda: broker.messaging.popping.serves)
        await zipped(client, 0, 6)
        await settled(it, broker)
        found = await popper.pop(32, 1000)
        assert len(found) == 6
        for one in found:
            if one.message.queue_offset not in (2, 4):
                assert (await popper.ack(one)).code == 0
        again: list[pop_rig.Got] = []

        async def look() -> None:
            while len(again) < 2:
                again.extend(await popper.pop(32, 60_000, pollTime=500, bornTime=0))

        await asyncio.wait_for(look(), 60)
        assert [(one.message.queue_offset, one.body) for one in again] == numbers((2, 3), (4, 5))
        broker.validate()

    run(body)


def test_a_pop_by_tag_looks_into_batches() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        popper = pop_rig.Popper(client, topic="B")
        await it.until(lambda: broker.messaging.popping.serves)
        await batch(client, 0, 6)
        await settled(it, broker)
        found = await popper.pop(32, exp="t1", expType="TAG")
        assert [one.body for one in found] == [b"1", b"3", b"5"]
        assert await popper.pop(32, exp="t1", expType="TAG") == []

    run(body)


def test_pops_of_a_queue_with_plain_messages_and_batches_get_each_message() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        popper = pop_rig.Popper(client, topic="B")
        tagged = pop_rig.Popper(client, topic="B", group="H")
        await it.until(lambda: broker.messaging.popping.serves)
        mixed(broker)
        await settled(it, broker)
        found = await popped(popper, 3, 1, 4, 32)
        assert [(one.message.queue_offset, one.body) for one in found] == numbers((0, 10))
        for one in found:
            assert (await popper.ack(one)).code == 0
        found = await tagged.pop(32, exp="t0", expType="TAG")
        assert [one.body for one in found] == [b"2", b"4", b"6", b"8"]
        broker.validate()

    run(body)


def test_one_message_of_a_batch_is_sent_back() -> None:
    async def body(it: World) -> None:
        broker, client = await world(it)
        await zipped(client, 0, 6)
        await single(client, 6)
        await settled(it, broker)
        reply = await client.pull(0, topic="B")
        found = decode_frames(unwrapped(bytes(reply.body), 0), True)
        for message in (found[4], found[6]):
            ext = {
                "offset": message.physical_offset,
                "group": "G",
                "delayLevel": 1,
                "originMsgId": message.message_id,
                "originTopic": "B",
                "maxReconsumeTimes": 3,
            }
            assert (await client.ask(Code.CONSUMER_SEND_MSG_BACK, ext)).code == 0
        store = broker.store
        await it.until(lambda: store.max_offset("%RETRY%G", 0) == 2)
        again = decode_frames(store.get_message("%RETRY%G", 0, 0, 32).data, True)
        assert [message.body for message in again] == [b"4", b"6"]
        assert not any(message.sys_flag & WRAPPED for message in again)
        assert not any("INNER_NUM" in message.properties for message in again)
        broker.validate()

    run(body)


# replication


def test_a_slave_has_the_same_units_and_serves_them(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await broker_rig.started(runtime, broker_rig.config(tmp_path / "a"))
        client = Remote(await broker_rig.connected(runtime, master))
        assert (await create(client)).code == 0
        await batch(client, 0, 5)
        slave = await broker_rig.started(runtime, broker_rig.slave_config(tmp_path / "b", master))
        await zipped(client, 5, 3)
        await single(client, 8)
        await broker_rig.until(lambda: slave.store.max_offset("B", 0) == 9)
        reader = Remote(await broker_rig.connected(runtime, slave))
        await broker_rig.until(lambda: slave.context.topics.get("B") is not None)
        assert read(await reader.pull(2, topic="B"), 2) == numbers((2, 9))
        await slave.close()
        await master.close()
        first, second = (
            (tmp_path / name / "batchconsumequeue" / "B" / "0" / ("0" * 20)).read_bytes()
            for name in "ab"
        )
        assert first.rstrip(b"\0") == second.rstrip(b"\0")
        assert len(first.rstrip(b"\0")) in range(2 * 46, 3 * 46)

    broker_rig.run(body)

"""Sends to a broker on a simulated machine: what is checked, what is stored, what is answered."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from saturnmq.broker.broker import Broker
from saturnmq.protocol import compression
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.batches import BatchPart, PartAnswer, decode_answers, encode_parts
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.remoting import Command
from world_rig import NOW, Remote, World, new_disk, run

TRANSACTION = 0xC
STORED = (0, 10, 11, 12)
SYNC_FLUSH = {"flush_disk_type": "SYNC_FLUSH"}
FIELDS = {"a": "P", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
LONG = {
    "producerGroup": "P",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 3,
    "queueId": 2,
    "sysFlag": 8,
    "bornTimestamp": 7,
    "flag": 5,
    "properties": "KEYS\x01k\x02",
    "reconsumeTimes": 6,
    "unitMode": "false",
}


async def send(client: Remote, body: bytes = b"x", code: int = 310, **more: Any) -> Command:
    return await client.ask(code, {**FIELDS, **more}, body)


async def batch(client: Remote, count: int = 3, topic: str = "T", **more: Any) -> Command:
    data = bytearray()
    for number in range(count):
        encode_batch_item(data, b"%d" % number, b"", 0, True)
    return await client.ask(320, {**FIELDS, "b": topic, **more}, bytes(data))


async def stored(world: World, broker: Broker, topic: str = "T", queue: int = 0) -> ReceivedMessage:
    """The last message of a queue."""
    marks = broker.store.watermarks
    await world.until(lambda: marks.dispatched == marks.appended)
    end = broker.store.max_offset(topic, queue)
    [message] = decode_frames(broker.store.get_message(topic, queue, end - 1, 1).data, True)
    return message


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("POP_CK\x011 2 3\x02KEYS\x01k\x02", {"KEYS": "k"}),
        ("KEYS\x01POP_CK\x02POP_CK\x011 2 3", {"KEYS": "POP_CK"}),
        ("A_POP_CK\x011\x02", {"A_POP_CK": "1"}),
    ],
)
def test_a_popped_message_that_is_sent_on_loses_its_handle(
    given: str, kept: dict[str, str]
) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        assert (await send(client, i=given)).code == 0
        properties = dict((await stored(world, broker)).properties)
        assert {name: properties[name] for name in kept} == kept
        assert "POP_CK" not in properties

    run(body)


@pytest.mark.parametrize("code", [10, 310])
def test_a_send_is_stored_with_all_that_its_header_says_by_either_names(code: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        short = dict(zip("abcdefghijk", LONG.values(), strict=True))
        reply = await client.ask(code, LONG if code == 10 else short, b"body")
        assert reply.code == 0, reply.remark
        message = await stored(world, broker, queue=2)
        assert (message.body, message.flag, message.sys_flag) == (b"body", 5, 0)
        assert (message.born_timestamp, message.reconsume_times) == (7, 6)
        topic = broker.context.topics.get("T")
        assert topic is not None
        assert topic.queues == 3
        added = dict(message.properties)
        assert added.pop("__CRC32#").isdigit()
        unique = added.pop("UNIQ_KEY")
        assert len(unique) == 32
        assert added == {
            "KEYS": "k",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
        assert reply.ext == {
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "msgId": f"{broker.context.store_host.hex().upper()}{message.physical_offset:016X}",
            "queueId": "2",
            "queueOffset": "0",
            "transactionId": unique,
        }
        await broker.close()

    run(body)


def test_of_the_flags_all_are_stored_but_those_of_transactions() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        compressed = compression.sys_flag_of(compression.ZLIB)
        packed = compression.compress(b"x", compression.ZLIB)
        assert (await send(client, packed, f=compressed | 0xF)).code == 0
        message = await stored(world, broker)
        assert (message.body, message.sys_flag) == (b"x", compressed | 0x3)
        await broker.close()

    run(body)


def test_what_a_header_leaves_out_has_its_default() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        reply = await client.ask(310, {"b": "T", "c": "TBW102"}, b"x")
        assert reply.code == 0, reply.remark
        topic = broker.context.topics.get("T")
        assert topic is not None
        assert topic.queues == 4
        message = await stored(world, broker, queue=int(reply.ext["queueId"]))
        assert (message.flag, message.sys_flag, message.reconsume_times) == (0, 0, 0)
        assert 0 <= message.born_timestamp - NOW < 1000, "no time is now"
        data = bytearray()
        encode_batch_item(data, b"x", b"", 0, True)
        assert (await client.ask(320, {"b": "T", "e": 0}, bytes(data))).code == 0
        message = await stored(world, broker)
        assert (message.sys_flag, message.reconsume_times) == (0, 0)
        assert 0 <= message.born_timestamp - NOW < 1000
        for code in (310, 320):  # 1970 is a time
            assert (await client.ask(code, {"b": "T", "e": 0, "g": 0}, bytes(data))).code == 0
            assert (await stored(world, broker)).born_timestamp == 0
        await broker.close()

    run(body)


def test_a_send_to_any_queue_goes_to_one_of_the_topics() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        chosen = {(await send(client, e=-1)).ext["queueId"] for _ in range(60)}
        assert chosen == {"0", "1", "2", "3"}
        for queue, code in ((3, 0), (4, 29)):
            assert (await send(client, e=queue)).code == code
        await broker.close()

    run(body)


@pytest.mark.parametrize(("queues", "code"), [(0, 17), (1, 0)])
def test_a_send_to_any_queue_of_few(queues: int, code: int) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        group = json.dumps({"groupName": "G", "retryQueueNums": queues}).encode()
        assert (await client.ask(200, {}, group)).code == 0
        for name, expected in (("T", code), ("%RETRY%G", 0)):
            for _ in range(8):
                reply = await send(client, b=name, d=queues, e=-1)
                assert (reply.code, reply.ext.get("queueId", "0")) == (expected, "0")
        retries = broker.context.topics.get("%RETRY%G")
        assert retries is not None
        assert retries.queues == 1, "one at least"
        await broker.close()

    run(body)


def test_a_batch_is_stored_as_it_came_and_answered_with_the_ids_of_all() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        prefix = broker.context.store_host.hex().upper()
        whole = await batch(client, e=1, f=TRANSACTION | 1 << 5, g=7, j=2)
        assert whole.code == 0, whole.remark
        message = await stored(world, broker, queue=1)
        assert (message.body, message.born_timestamp, message.reconsume_times) == (b"2", 7, 2)
        assert message.sys_flag & TRANSACTION == 0
        result = broker.store.get_message("T", 1, 0, 10)
        offsets = [found.physical_offset for found in decode_frames(result.data, True)]
        assert whole.ext == {
            **{"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
            "queueId": "1",
            "queueOffset": "0",
            "msgId": ",".join(f"{prefix}{offset:016X}" for offset in offsets),
        }
        assert whole.body == b""
        for count in (1, 2):
            assert (await batch(client, count, e=2)).ext["msgId"].count(",") == count - 1
        short = await batch(client, e=1, i="UNIQ_KEY\x01U\x02", saturnSizes="true")
        assert (short.ext["queueOffset"], short.ext["transactionId"]) == ("3", "U")
        await stored(world, broker, queue=1)
        result = broker.store.get_message("T", 1, 3, 1)
        [first] = decode_frames(result.data, True)
        assert short.ext["msgId"] == f"{prefix}{first.physical_offset:016X}"
        assert bytes(short.body) == len(result.data).to_bytes(4, "big") * 3
        assert (await batch(client, i="UNIQ_KEY\x01U")).ext["transactionId"] == "U"
        refused = await batch(client, topic="%RETRY%G")
        assert (refused.code, "singly" in str(refused.remark)) == (13, True)
        await broker.close()

    run(body)


async def batches(
    client: Remote, *parts: BatchPart, **more: Any
) -> tuple[Command, list[PartAnswer]]:
    reply = await client.ask(390040, {"a": "P", "c": "TBW102", "d": 4, **more}, encode_parts(parts))
    return reply, list(decode_answers(reply.body, len(parts))) if reply.code in STORED else []


def part(
    *bodies: bytes, topic: str = "T", queue: int = 0, sys_flag: int = 0, born: int = 1
) -> BatchPart:
    data = bytearray()
    for body in bodies:
        encode_batch_item(data, body, b"KEYS\x01k\x02", 0, True)
    return BatchPart(topic, queue, sys_flag, born, bytes(data))


def test_batches_of_one_request_are_stored_as_each_would_be_in_its_own() -> None:
    async def body(world: World) -> None:
        parts = [
            part(b"a", b"b", queue=1, sys_flag=TRANSACTION | 1 << 5, born=7),
            part(b"c", topic="U", queue=2),
            part(b"d", queue=1, born=0),
        ]
        logs = []
        for together in (True, False):
            broker = await world.broker(new_disk())
            client = await world.connect(broker.address)
            for topic in ("T", "U"):
                await batch(client, 1, topic)
            begin = broker.store.watermarks.appended
            if together:
                reply, answers = await batches(client, *parts)
                assert reply.ext["saturnHost"] == broker.context.store_host.hex().upper()
            else:
                for one in parts:
                    ext = {"b": one.topic, "e": one.queue_id, "f": one.sys_flag, "g": one.born_ms}
                    single = await client.ask(
                        320, {**FIELDS, **ext, "saturnSizes": "true"}, one.body
                    )
                    answer = answers.pop(0)
                    assert (answer.code, str(answer.queue_id)) == (0, single.ext["queueId"])
                    assert str(answer.queue_offset) == single.ext["queueOffset"]
                    assert single.ext["msgId"].endswith(f"{answer.physical_offset:016X}")
                    assert answer.rest == bytes(single.body)
            await stored(world, broker, queue=1)
            end = broker.store.watermarks.appended
            frames = broker.store.get_message("T", 1, 0, 10).data
            found = [(m.body, m.sys_flag, m.born_timestamp) for m in decode_frames(frames, True)]
            logs.append((end - begin, found))
            assert [(row[0], row[2]) for row in found] == [(b"a", 7), (b"b", 7), (b"d", 0)]
            await broker.close()
        assert logs[0] == logs[1]

    run(body)


def test_a_batch_that_cannot_be_stored_keeps_no_other_from_it() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        await batch(client, 1)
        bent = part(b"bent")._replace(body=b"\0" * 30)
        reply, answers = await batches(
            client,
            part(b"first"),
            part(b"x", queue=99),
            part(b"x", topic="%RETRY%G"),
            part(b"x", topic="SCHEDULE_TOPIC_XXXX"),
            part(b"x", topic="no such"),
            bent,
            part(b"new", topic="N", queue=3),
            part(b"last", queue=-1),
            c="TBW102",
            d=8,
        )
        assert reply.code == 0
        codes = [answer.code for answer in answers]
        assert (codes[0], codes[6], codes[7]) == (0, 0, 0)
        assert 0 not in codes[1:6]
        assert b"out of range" in answers[1].rest
        assert b"singly" in answers[2].rest
        assert (await stored(world, broker, "N", 3)).body == b"new"
        assert answers[7].queue_id in range(4)
        assert (await stored(world, broker, "T", answers[7].queue_id)).body == b"last"
        none, answers = await batches(client, part(b"x", queue=99))
        assert (none.code, len(answers)) == (0, 1)
        await broker.close()

    run(body)


def test_a_request_of_batches_that_is_none_or_too_long_is_refused_whole() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(max_message_bytes=10_000)
        client = await world.connect(broker.address)
        end = broker.store.watermarks.appended
        for data in (b"", b"x", encode_parts([part(b"x")])[:-1], encode_parts([part(b"x")] * 129)):
            reply = await client.ask(390040, {}, data)
            assert reply.code == 1, reply.remark
        reply, _ = await batches(client, part(b"x" * 2_100_000), part(b"x" * 2_100_000))
        assert (reply.code, "the limit is 4194304" in str(reply.remark)) == (13, True)
        assert broker.store.watermarks.appended == end
        reply, answers = await batches(client, part(b"x" * 9999), part(b"x" * 10_001))
        assert (reply.code, [answer.code for answer in answers]) == (0, [0, 13])
        await broker.close()

    run(body)


def test_batches_are_acknowledged_when_the_last_is_as_safe_as_is_asked_for() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(flush_disk_type="SYNC_FLUSH", sync_flush_timeout_ms=800)
        machine = world.nodes[-1]
        client = await world.connect(broker.address)
        reply, answers = await batches(client, part(b"a"), part(b"b", queue=1))
        assert reply.code == 0
        assert broker.store.watermarks.flushed == broker.store.watermarks.appended
        machine.blocking_latency_s = (2.0, 2.0)
        reply, answers = await batches(client, part(b"a"), part(b"b", queue=1))
        assert (reply.code, [answer.queue_offset for answer in answers]) == (10, [1, 1])
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ("UNIQ_KEY\x01U\x02", "U"),
        ("UNIQ_KEY\x01U", "U"),
        ("XUNIQ_KEY\x01no\x02UNIQ_KEY\x01U\x02", "U"),
        ("KEYS\x01k\x02UNIQ_KEY\x01U\x02WAIT\x01true\x02", "U"),
        ('UNIQ_KEY\x01a"b\\c\n\x02', 'a"b\\c\n'),
        ("UNIQ_KEY\x01\u00dc7\x02", "\u00dc7"),
        ("XUNIQ_KEY\x01no\x02", None),
        ("", None),
    ],
)
def test_an_id_is_found_among_the_properties_or_made(properties: str, found: str | None) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        reply = await send(client, i=properties)
        told = reply.ext["transactionId"]
        assert (told == found) if found else len(told) == 32
        message = await stored(world, broker)
        assert message.properties["UNIQ_KEY"] == told
        assert message.properties["CLUSTER"] == "DefaultCluster"
        frame = bytes(broker.store.get_message("T", 0, 0, 1).data)
        assert b"\x02\x02" not in frame[frame.index(b"MSG_REGION") - 2 :]
        await broker.close()

    run(body)


def test_a_time_of_its_own_counts_unless_a_level_says_how_long() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        queue = "rmq_sys_wheel_timer", 0
        for number, name in enumerate(("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")):
            value = NOW + 90_000 if name == "TIMER_DELIVER_MS" else 90
            assert (await send(client, i=f"{name}\x01{value}\x02")).code == 0
            await world.until(lambda n=number: broker.store.max_offset(*queue) == n + 1)
            assert (await send(client, i=f"X{name}\x01{value}\x02")).code == 0
            assert (await send(client, i=f"{name}\x01{value}\x02DELAY\x011\x02")).code == 0
            assert broker.store.max_offset(*queue) == number + 1
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMER_DELIVER_MS", "soon"),
        ("TIMER_DELIVER_MS", str(NOW * 100)),
        ("TIMER_DELIVER_MS", "9" * 400),
        ("TIMER_DELAY_SEC", str(3 * 86_400 + 1)),
        ("TIMER_DELAY_MS", str(3 * 86_400_000 + 1)),
        ("TIMER_DELAY_MS", "1.5"),
        ("TIMER_DEL_UNIQKEY", "T+id"),
    ],
)
def test_a_time_beyond_the_limit_or_that_is_none_is_refused(name: str, value: str) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        refused = await send(client, i=f"{name}\x01{value}\x02")
        assert (refused.code, name in str(refused.remark)) == (13, True), refused.remark
        assert broker.store.max_offset("rmq_sys_wheel_timer", 0) == 0
        await broker.close()

    run(body)


def test_a_broker_without_timers_refuses_timed_messages() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(timer_wheel=False)
        client = await world.connect(broker.address)
        refused = await send(client, i="TIMER_DELAY_SEC\x015\x02")
        assert (refused.code, "timerWheelEnable" in str(refused.remark)) == (1, True)
        await broker.close()

    run(body)


def test_a_send_that_wants_no_answer_is_stored() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        texts = {name: str(value) for name, value in FIELDS.items()}
        data = bytearray()
        encode_batch_item(data, b"two", b"", 0, True)
        for code, content in ((310, b"one"), (320, bytes(data))):
            client.endpoint.oneway(Command.request(code, texts, content))
        await world.until(lambda: broker.store.max_offset("T", 0) == 2)
        assert (await stored(world, broker)).body == b"two"
        await broker.close()

    run(body)


@pytest.mark.parametrize("level", ["", "DELAY\x013\x02"])
def test_who_is_over_the_limit_of_retries_goes_to_the_dead_letters_at_once(level: str) -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        group = json.dumps({"groupName": "G", "retryMaxTimes": 2, "retryQueueNums": 3}).encode()
        assert (await client.ask(200, {}, group)).code == 0
        reply = await send(client, b="%RETRY%G", e=2, j=2)
        assert (reply.code, reply.ext["queueId"]) == (0, "2")
        reply = await send(client, b="%RETRY%G", e=2, j=3, i=level)
        assert (reply.code, reply.ext["queueId"]) == (0, "0")
        marks = broker.store.watermarks
        await world.until(lambda: marks.dispatched == marks.appended)
        assert broker.store.queues().keys() == {("%RETRY%G", 2), ("%DLQ%G", 0)}
        dead_letters = broker.context.topics.get("%DLQ%G")
        assert dead_letters is not None
        assert (dead_letters.queues, dead_letters.perm) == (1, 6)
        await broker.close()

    run(body)


def test_a_delayed_message_is_acknowledged_with_the_queue_that_it_is_for() -> None:
    async def body(world: World) -> None:
        broker = await world.broker()
        client = await world.connect(broker.address)
        reply = await send(client, e=3, i="DELAY\x015\x02")
        assert (reply.code, reply.ext["queueId"]) == (0, "3")
        message = await stored(world, broker, "SCHEDULE_TOPIC_XXXX", 4)
        assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "3")
        for _ in range(4):
            reply = await send(client, e=-1, i="DELAY\x015\x02")
            message = await stored(world, broker, "SCHEDULE_TOPIC_XXXX", 4)
            assert reply.ext["queueId"] == message.properties["REAL_QID"]
        await broker.close()

    run(body)


def test_a_message_of_the_greatest_size_can_be_sent_back_though_its_copy_is_larger() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(max_message_bytes=8000)
        client = await world.connect(broker.address)
        size = 8000
        while (await send(client, bytes(size))).code:
            size -= 1
        message = await stored(world, broker)
        back = {"group": "G", "offset": message.physical_offset, "delayLevel": 1}
        assert (await client.ask(36, back)).code == 0
        await world.until(lambda: broker.store.max_offset("%RETRY%G", 0) == 1)
        copy = await stored(world, broker, "%RETRY%G")
        assert copy.body == message.body
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("settings", "code", "seconds"),
    [
        ({"role": "SYNC_MASTER", "alone": True, "slave_timeout_ms": 700}, 11, 0.0),
        ({"role": "SYNC_MASTER", "alone": True, "min_in_sync_replicas": 1}, 11, 0.0),
        ({"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout_ms": 800}, 10, 0.8),
    ],
)
def test_an_acknowledgement_that_cannot_be_given_is_not_waited_for_longer_than_is_said(
    settings: dict[str, Any], code: int, seconds: float
) -> None:
    async def body(world: World) -> None:
        broker = await world.broker(**settings)
        world.nodes[-1].blocking_latency_s = (2.0, 2.0)  # on each side of a flush
        client = await world.connect(broker.address)
        began = world.loop.time()
        reply = await send(client)
        assert reply.code == code, reply.remark
        assert seconds <= world.loop.time() - began < seconds + 0.3
        assert reply.ext["queueOffset"] == "0", "it is stored"
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({"slave_timeout_ms": 700, "sync_flush_timeout_ms": 900}, 0.7),
        ({"slave_timeout_ms": 700, "sync_flush_timeout_ms": 900, **SYNC_FLUSH}, 0.9),
        ({"slave_timeout_ms": 700, "sync_flush_timeout_ms": 500, **SYNC_FLUSH}, 0.7),
    ],
)
def test_a_slave_that_falls_silent_is_waited_for_and_then_told_of(
    settings: dict[str, Any], seconds: float
) -> None:
    async def body(world: World) -> None:
        master = await world.broker(role="SYNC_MASTER", **settings)
        address = {"ha_master_address": master.ha_address}
        slave = await world.broker(new_disk(), role="SLAVE", broker_id=1, **address)
        machines = [node.name for node in world.nodes]
        await world.until(lambda: master.context.copies_in_sync() == 2)
        client = await world.connect(master.address)
        assert (await send(client)).code == 0
        world.network.partition(machines[1:], machines[:1])
        began = world.loop.time()
        reply = await send(client)
        assert (reply.code, reply.remark) == (12, "stored, but not replicated in time")
        assert seconds <= world.loop.time() - began < seconds + 0.2
        again = asyncio.create_task(send(client, i="WAIT\x01false\x02"))
        await asyncio.sleep(0.1)
        assert (await again).code == 0, "it does not wait"
        await slave.close()
        await master.close()

    run(body)


def test_nothing_is_stored_while_fewer_copies_are_in_sync_than_there_must_be() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(role="SYNC_MASTER", alone=True, min_in_sync_replicas=2)
        client = await world.connect(broker.address)
        refused = await send(client)
        assert (refused.code, "1 copies are in sync" in str(refused.remark)) == (1, True)
        assert broker.store.watermarks.appended == 0
        await broker.close()

    run(body)


def test_a_promoted_slave_whose_master_waited_for_no_copies_needs_none_in_sync() -> None:
    async def body(world: World) -> None:
        settings = {"broker_id": 1, "min_in_sync_replicas": 2}
        broker = await world.broker(role="SLAVE", alone=True, **settings)
        client = await world.connect(broker.address)
        assert (await send(client)).code == 0
        await broker.close()

    run(body)


def test_sends_are_refused_while_too_many_wait_for_their_acknowledgement() -> None:
    async def body(world: World) -> None:
        broker = await world.broker(flush_disk_type="SYNC_FLUSH", max_pending_acks=2)
        world.nodes[-1].blocking_latency_s = (0.5, 0.5)
        client = await world.connect(broker.address)
        first = [asyncio.create_task(send(client)) for _ in range(2)]
        await world.until(lambda: len(broker.context.ledger) == 2)
        refused = await send(client)
        assert (refused.code, "maxPendingAcks" in str(refused.remark)) == (2, True)
        assert [(await each).code for each in first] == [0, 0]
        assert (await send(client)).code == 0
        await broker.close()

    run(body)

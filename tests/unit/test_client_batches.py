"""Batches that a producer compresses as a whole, in topics of batches; over a real broker."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
from saturnmq import (
    Admin,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    Retry,
    SimpleConsumer,
)
from saturnmq.cli.main import app
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.protocol.compression import TYPE_SHIFT, ZSTD
from saturnmq.protocol.frame import NEED_UNWRAP
from saturnmq.protocol.frame_reference import BATCH_UNIT
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.runtime.errors import ConfigError, MessageIllegal
from served_rig import served
from typer.testing import CliRunner, Result

QUEUE = MessageQueue("logs", "broker-a", 0)
COUNT = 500


def message(number: int) -> Message:
    body = json.dumps({"number": number, "level": "information", "text": "a line of a log " * 8})
    return Message("logs", body.encode(), tag=f"t{number % 2}", keys=[f"k{number}"])


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as address:
        with Admin(address) as admin:
            admin.create_topic("logs", queues=1, attributes={"queue.type": "BatchCQ"})
            admin.create_topic("plain", queues=1)
        yield address


def fill(nameserver: str) -> None:
    with Producer(nameservers=nameserver, compression="zstd") as producer:
        handles = [producer.send_async(message(number)) for number in range(COUNT - 1)]
        results = [handle.result(30) for handle in handles]
        results.append(producer.send(message(COUNT - 1)))
    assert [result.queue_offset for result in results] == list(range(COUNT))
    assert all(len(result.offset_message_id) == 32 for result in results)


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [json.loads(bytes(each.body))["number"] for each in messages]


def test_a_batch_is_one_compressed_frame_and_its_messages_come_one_by_one(
    nameserver: str, tmp_path: Path
) -> None:
    fill(nameserver)
    found: list[ReceivedMessage] = []
    with PullConsumer("readers", nameserver) as consumer:
        consumer.assign([QUEUE])
        while len(found) < COUNT:
            polled = consumer.poll(10.0)
            assert polled
            found += polled
    assert numbers(found) == list(range(COUNT))
    assert [each.queue_offset for each in found] == list(range(COUNT))
    assert {(each.tag, each.keys[0]) for each in found} == {
        (f"t{n % 2}", f"k{n}") for n in range(COUNT)
    }
    directory = tmp_path / "batchconsumequeue" / "logs" / "0"
    units = [
        unit
        for unit in BATCH_UNIT.iter_unpack((directory / ("0" * 20)).read_bytes()[: 46 * COUNT])
        if unit[1]
    ]
    assert sum(unit[5] for unit in units) == COUNT
    assert len(units) < COUNT // 4
    stored = sum(unit[1] for unit in units)
    assert stored < sum(len(each.body) for each in found) // 4, "it is compressed as a whole"


def test_a_reader_begins_within_a_batch(nameserver: str) -> None:
    fill(nameserver)
    with PullConsumer("readers", nameserver, auto_commit=False) as consumer:
        consumer.assign([QUEUE])
        for start in (1, COUNT // 2, COUNT - 2):
            consumer.seek(QUEUE, start)
            assert numbers(consumer.poll(10.0, 1)) == [start]
            assert consumer.position(QUEUE) == start + 1


def test_push_and_simple_consumers_get_the_messages_that_they_subscribed_to(
    nameserver: str,
) -> None:
    fill(nameserver)
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()

    def listener(messages: list[ReceivedMessage]) -> ConsumeResult:
        for number in numbers(messages):
            seen.put(number)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer("pushed", nameserver, listener=listener, from_beginning=True)
    consumer.subscribe("logs", "t1")
    with consumer:
        assert sorted(seen.get(timeout=30) for _ in range(COUNT // 2)) == list(range(1, COUNT, 2))
    popped: list[int] = []
    with SimpleConsumer("simple", nameserver, consume_from="first") as simple:
        simple.subscribe("logs", "t0")
        while len(popped) < COUNT // 2:
            received = simple.receive()
            popped += numbers(received)
            simple.ack(received)
    assert sorted(popped) == list(range(0, COUNT, 2))


def test_a_topic_without_batches_takes_none_of_a_producer_that_compresses_them(
    nameserver: str,
) -> None:
    with (
        Producer(nameservers=nameserver, compression="zstd") as producer,
        pytest.raises(MessageIllegal, match=r"takes no inner batches.*queue.type=BatchCQ"),
    ):
        producer.send(Message("plain", b"x"))


def test_send_batch_and_messages_that_travel_alone_are_stored_too(nameserver: str) -> None:
    with Producer(nameservers=nameserver, compression="zstd") as producer:
        results = producer.send_batch([message(number) for number in range(3)])
        assert [result.queue_offset for result in results] == [0, 1, 2]
        large = Message("logs", b"x" * (1 << 20))
        assert producer.send(large).queue_offset == 3
    with PullConsumer("readers", nameserver) as consumer:
        consumer.assign([QUEUE])
        found: list[ReceivedMessage] = []
        while len(found) < 4:
            found += consumer.poll(10.0)
    assert numbers(found[:3]) == [0, 1, 2]
    assert bytes(found[3].body) == b"x" * (1 << 20)
    assert not found[0].sys_flag & NEED_UNWRAP
    assert found[0].sys_flag >> TYPE_SHIFT != ZSTD


def test_a_failed_message_of_a_batch_comes_again_alone(nameserver: str) -> None:
    with Producer(nameservers=nameserver, compression="zstd") as producer:
        producer.send_batch([message(number) for number in range(4)])
    seen: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def listener(messages: list[ReceivedMessage]) -> Retry | None:
        for done, (number, one) in enumerate(zip(numbers(messages), messages, strict=True)):
            seen.put((number, one.reconsume_times))
            if number == 2 and not one.reconsume_times:
                return Retry(delay_level=1, done=done)
        return None

    consumer = PushConsumer("pushed", nameserver, listener=listener, from_beginning=True)
    consumer.subscribe("logs")
    with consumer:
        found = {seen.get(timeout=60) for _ in range(5)}
    assert found == {(0, 0), (1, 0), (2, 0), (2, 1), (3, 1)}


def test_the_command_compresses_the_lines_of_a_topic_of_batches(nameserver: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(50))

    def produce(topic: str, *more: str) -> Result:
        command = ["produce", topic, "--compression", "zstd", *more, "--nameserver", nameserver]
        return CliRunner().invoke(app, command, input=lines)

    assert "50 of 50 messages acknowledged" in produce("logs").stdout
    assert "takes no inner batches" in produce("plain").stderr
    assert "leave --compression out" in produce("logs", "--transaction", "commit").stderr
    with PullConsumer("readers", nameserver) as consumer:
        consumer.assign([QUEUE])
        found: list[str] = []
        while len(found) < 50:
            found += [bytes(each.body).decode() for each in consumer.poll(10.0)]
    assert found == lines.splitlines()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"compression": "gzip"}, "compression is 'gzip': give \"zstd\" or None"),
        ({"compression": "zstd", "batch_bytes": 4 << 20}, "batch_bytes is 4194304"),
    ],
)
def test_a_compression_that_makes_no_sense_is_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ProducerOptions(**options)  # type: ignore[arg-type]  # the values are the test's

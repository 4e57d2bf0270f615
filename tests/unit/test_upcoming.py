"""A listener's messages: what was decoded of one goes when the next one is asked for, unless the
application has kept the message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from frame_rig import plain_frame
from saturnmq.client.consumer.process_queue import MessageRun, ProcessQueue
from saturnmq.protocol import kernels
from saturnmq.protocol.compression import COMPRESSED_FLAG, ZLIB, compress
from saturnmq.protocol.message import ReceivedMessage

COUNT = 10


def frame(number: int, body: bytes = b"body", sys_flag: int = 0) -> bytes:
    properties = f"KEYS\x01order-{number}\x02TAGS\x01A\x02".encode()
    return plain_frame(body=body, properties=properties, queue_offset=number, sys_flag=sys_flag)


def pulled() -> list[ReceivedMessage]:
    return kernels.decode_frames(b"".join(frame(number) for number in range(COUNT)))


def drawn(messages: list[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    return MessageRun(messages, 0, 1, draw=kernels.upcoming).upcoming


def test_messages_come_in_their_order_and_end_once() -> None:
    messages = pulled()
    upcoming = drawn(messages)
    found = list(upcoming)
    assert all(one is other for one, other in zip(found, messages, strict=True))
    assert list(upcoming) == []
    assert list(drawn([])) == []


@pytest.mark.skipif(not kernels.COMPILED, reason="the reference forgets nothing")
def test_the_properties_of_a_message_that_nobody_kept_are_forgotten() -> None:
    messages = pulled()
    seen = []
    for message in drawn(messages):
        seen.append(message.properties)
        assert message.properties is seen[-1], "while the listener has it"
    again = [each.properties for each in messages]
    assert again == seen
    assert not {id(each) for each in again} & {id(each) for each in seen}


@pytest.mark.skipif(not kernels.COMPILED, reason="the reference forgets nothing")
def test_an_unpacked_body_is_forgotten_with_them() -> None:
    body = bytes(range(256)) * 40
    packed = frame(0, compress(body, ZLIB, 5), COMPRESSED_FLAG)
    messages = kernels.decode_frames(packed + frame(1))
    bodies = [message.body for message in drawn(messages)]
    assert bodies == [body, b"body"]
    assert messages[0].body == body
    assert messages[0].body is not bodies[0]


def test_a_message_that_the_application_keeps_stays_as_it_is() -> None:
    messages, kept = pulled(), []
    for message in drawn(messages):
        message.properties["mine"] = "changed"
        kept.append(message)
    assert all(each.properties["mine"] == "changed" for each in kept)
    assert [each.properties["KEYS"] for each in kept] == [f"order-{n}" for n in range(COUNT)]


def test_a_kept_message_stays_as_it_is_though_the_rest_of_its_pull_goes_meanwhile() -> None:
    queue, kept, rest = ProcessQueue(next_offset=0, draw=kernels.upcoming), [], []
    queue.put(pulled(), COUNT, 100)
    run = queue.take(4)
    assert run is not None
    for message in run.upcoming:
        message.properties["mine"] = "changed"
        kept.append(message)
        rest.append(queue.take(COUNT))
    assert rest[0] is not None
    assert [each.queue_offset for each in rest[0].messages] == [4, 5, 6, 7, 8, 9]
    assert [each.properties.get("mine") for each in kept] == ["changed"] * 4


def test_what_the_listener_was_not_given_keeps_its_place() -> None:
    queue = ProcessQueue(next_offset=0, draw=kernels.upcoming)
    queue.put(pulled(), COUNT, 100)
    run = queue.take(4)
    assert run is not None

    def listener(message: ReceivedMessage) -> None:
        message.properties["mine"] = "changed"
        queue.split(run)  # by the loop, as it takes long
        assert message.properties["mine"] == "changed"

    first = next(run.upcoming)
    listener(first)
    assert next(run.upcoming, None) is None
    rest = queue.take(COUNT)
    assert rest is not None
    assert [each.queue_offset for each in rest.messages] == [1, 2, 3]
    last = queue.take(COUNT)
    assert last is not None
    assert [each.queue_offset for each in last.messages] == [4, 5, 6, 7, 8, 9]

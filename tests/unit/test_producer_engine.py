"""Which messages a producer takes, how they are encoded, and what is sent without an answer."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from producer_world import A0, A1, B0, Make, clusters
from saturnmq.client.producer.batch import EXTRA_BYTES_MAX, ITEM_OVERHEAD
from saturnmq.client.producer.given_properties import encode_given, identity
from saturnmq.client.producer.lanes import Pin
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.batch import iterate_batch
from saturnmq.protocol.frame import CRC_PROPERTY_BYTES
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.properties import PROPERTIES_BYTES_MAX, decode_properties
from saturnmq.runtime.errors import (
    ClientClosed,
    InvalidParameter,
    MessageIllegal,
    RouteNotFound,
    SaturnError,
)

PACKED = 0x301  # compressed, with zlib


@pytest.fixture
def cluster() -> Iterator[Make]:
    with clusters() as make:
        yield make


def sent(world: Any, message: Message) -> Any:
    """The request of the first attempt."""
    handle = world.engine.enqueue(message, None)
    assert world.outcome(handle) is SendStatus.OK
    return world.sent.pop().command


@pytest.mark.parametrize("above", [100, None])
@pytest.mark.parametrize("size", [99, 100, 101])
def test_bodies_from_a_size_on_are_compressed(cluster: Make, size: int, above: int | None) -> None:
    world = cluster({"a": 1}, compress_above=above)
    command = sent(world, Message("T", b"x" * size))
    if above is None or size < above:
        assert (command.code, command.ext["f"]) == (320, "0")
        assert [each.body for each in iterate_batch(command.body)] == [b"x" * size]
    else:
        assert (command.code, command.ext["f"]) == (310, str(PACKED))
        assert command.body == zlib.compress(b"x" * size, 5)
        squares = b"".join(
            b"%d," % n**2 for n in range(500)
        )  # other levels make more or less of it
        assert sent(world, Message("T", squares)).body == zlib.compress(squares, 5)


@pytest.mark.parametrize("body", [random.Random(1).randbytes(200), b"x" * 99])
def test_a_body_that_would_not_be_smaller_travels_as_it_is(cluster: Make, body: bytes) -> None:
    world = cluster({"a": 1}, compress_above=100)
    command = sent(world, Message("T", body, delay_level=1))
    assert (command.code, command.ext["f"], command.body) == (310, "0", body)


@pytest.mark.parametrize("above", [1000, None])
def test_a_body_of_the_greatest_size_is_taken_and_a_longer_one_is_not(
    cluster: Make, above: int | None
) -> None:
    world = cluster({"a": 1}, max_message_bytes=500, compress_above=above, batch_bytes=400)
    assert sent(world, Message("T", b"x" * 500)).ext["f"] == "0"
    for take in (
        lambda message: world.engine.enqueue(message, None),
        lambda message: world.engine.enqueue_batch([message], None),
        lambda message: world.engine.oneway(message, None),
    ):
        with pytest.raises(MessageIllegal, match="body of 501 B exceeds the limit of 500 B"):
            take(Message("T", b"x" * 501))
        with pytest.raises(MessageIllegal, match="the body is empty"):
            take(Message("T", b""))


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"a\x01": "b"}, "holds a byte 1 or 2"),
        ({"a\x02": "b"}, "holds a byte 1 or 2"),
        ({"a": "b\x01"}, "holds a byte 1 or 2"),
        ({"a": "\x02b"}, "holds a byte 1 or 2"),
        ({"a": ""}, "property 'a' is '': names and values have at least one character"),
        ({"": "b"}, "property '' is 'b'"),
        ({"a": 1}, "property 'a' has a int, 1: give text"),
        ({1: "a"}, "property 1 has a int, 1: give text"),
        ({"a": None}, "property 'a' has a NoneType, None: give text"),
        ({"a": "b\ud800"}, "property 'a': .* has no UTF-8"),
        ({"UNIQ_KEY": "\ud800"}, "has no UTF-8"),
        ({"a": "b\0"}, "ends with a zero byte: leave it out"),
        ({"a": "x" * (EXTRA_BYTES_MAX - 2)}, f"of {EXTRA_BYTES_MAX + 1} B exceed the limit"),
    ],
    ids=[
        *("name 1", "name 2", "value 1", "value 2", "no value", "no name", "a number"),
        *("a number as name", "None", "a surrogate", "a surrogate in the id"),
        *("a zero at the end", "too long"),
    ],
)
def test_properties_that_no_reader_would_see_as_they_are_or_that_are_too_long_are_refused(
    cluster: Make, properties: dict[Any, Any], why: str
) -> None:
    world = cluster({"a": 1})
    message = Message("T", b"x", properties=properties)
    assert world.engine.enqueue(Message("T", b"x"), None) is not None  # there is an open batch
    for take in (
        lambda: world.engine.enqueue(message, None),
        lambda: world.engine.enqueue_batch([message], None),
        lambda: world.engine.enqueue_all([message], None),
        lambda: world.engine.oneway(message, None),
    ):
        with pytest.raises(MessageIllegal, match=why):
            take()
    zeros = {"a": "b\0c", "b": "x" * CRC_PROPERTY_BYTES}
    assert world.engine.enqueue(Message("T", b"x", properties=zeros), None)
    longest = {"a": "x" * (EXTRA_BYTES_MAX - 3)}
    assert world.engine.enqueue(Message("T", b"x", properties=longest), None)
    extra, _ = encode_given(longest)
    stored = len(identity("I" * 32)) + len(extra) + CRC_PROPERTY_BYTES
    assert stored == PROPERTIES_BYTES_MAX, "a broker that adds a checksum takes it"
    with pytest.raises(MessageIllegal, match="exceed the limit"):
        encode_given({**longest, "UNIQ_KEY": "I" * 33})
    for _ in range(2):
        with pytest.raises(InvalidParameter, match="bad topic"):
            world.engine.enqueue(Message("bad topic", b"x"), None)


@pytest.mark.parametrize("delay_level", [0, 2])
def test_a_message_keeps_the_properties_and_the_id_that_it_came_with(
    cluster: Make, delay_level: int
) -> None:
    world = cluster({"a": 1})
    given = {"UNIQ_KEY": "mine", "WAIT": "false", "a": "x" * 100}
    alone = {"UNIQ_KEY": "mine"}
    for properties in (given, alone, {"WAIT": "false"}, {"a": "x" * (EXTRA_BYTES_MAX - 20)}):
        message = Message("T", b"x", properties=properties, delay_level=delay_level)
        handle = world.engine.enqueue(message, None)
        assert handle is not None
        world.until_done(handle)
        command = world.sent.pop().command
        if delay_level:
            encoded = command.ext["i"].encode()
            told = decode_properties(encoded)
            assert told.pop("DELAY") == "2"
        else:
            (entry,) = iterate_batch(command.body)
            encoded = bytes(entry.properties)
            told = decode_properties(encoded)
        assert (encoded.count(b"UNIQ_KEY\x01"), encoded.count(b"WAIT\x01")) == (1, 1)
        assert told == {**properties, "UNIQ_KEY": handle.message_id, "WAIT": "true"}
        assert (handle.message_id == "mine") == ("UNIQ_KEY" in properties)


def test_a_batch_has_one_topic_and_a_size_and_nothing_that_travels_alone(cluster: Make) -> None:
    world = cluster({"a": 2}, max_message_bytes=1000)
    take = world.engine.enqueue_batch
    with pytest.raises(InvalidParameter, match="no messages"):
        take([], None)
    with pytest.raises(InvalidParameter, match="topics 'T' and 'U': a batch has one topic"):
        take([Message("T", b"x"), Message("U", b"x")], None)
    for message in (Message("T", b"x", delay_level=1), Message("%RETRY%G", b"x")):
        with pytest.raises(MessageIllegal, match="cannot be in a batch"):
            take([message], None)
    half = Message("T", b"x" * (500 - ITEM_OVERHEAD))
    longer = Message("T", b"x" * (501 - ITEM_OVERHEAD))
    tagged = Message("T", half.body, tag="t")
    for messages in ([half, longer], [half, tagged]):
        with pytest.raises(MessageIllegal, match=r"batch of 10\d\d? B exceeds the limit of 1000 B"):
            take(messages, None)
    batch = take([half, half], None)
    assert batch is not None
    handles = [batch.handle(0), batch.handle(1)]
    world.until_done(*handles)
    (request,) = world.sent
    entries = list(iterate_batch(request.command.body))
    assert [bytes(each.body) for each in entries] == [half.body] * 2
    ids = [decode_properties(bytes(each.properties))["UNIQ_KEY"] for each in entries]
    assert ids == [handle.message_id for handle in handles]


def test_a_batch_keeps_the_ids_that_its_messages_came_with(cluster: Make) -> None:
    world = cluster({"a": 1})
    mine = Message("T", b"1", properties={"UNIQ_KEY": "mine"}, flag=5, tag="t")
    batch = world.engine.enqueue_batch([Message("T", b"0", flag=4), mine], None)
    assert batch is not None
    world.until_done(batch.handle(1))
    entries = list(iterate_batch(world.sent[0].command.body))
    assert [each.flag for each in entries] == [4, 5]
    assert [bytes(each.properties).count(b"UNIQ_KEY") for each in entries] == [1, 1]
    assert decode_properties(bytes(entries[1].properties)) == {
        "UNIQ_KEY": "mine",
        "WAIT": "true",
        "TAGS": "t",
    }
    assert batch.handle(1).message_id == "mine" != batch.handle(0).message_id


def test_what_binds_a_message_is_its_queue_its_selector_or_its_key(cluster: Make) -> None:
    world = cluster({"a": 2, "b": 1})
    engine = world.engine
    message = Message("T", b"x", sharding_key="k")
    assert engine.pin_for(Message("T", b"x"), None, None, None) is None
    with pytest.raises(RouteNotFound, match="no route that is known yet"):
        engine.pin_for(message, None, None, None)
    world.sender.key_queues.learn("T")
    own = engine.pin_for(message, None, None, None)
    assert own == engine.pin_for(Message("T", b"x"), None, "k", None)
    assert own is not None
    assert (own.round, own.queue in (A0, A1, B0)) == (1, True)
    given = engine.pin_for(message, B0, "k", lambda queues, _: A0)
    assert given is not None
    assert (given.queue, given.round) == (B0, 0)
    for queue, number in ((A1, 1), (MessageQueue("T", "z", 9), 0)):
        pin = engine.pin_for(message, None, "k", lambda queues, _, queue=queue: queue)
        assert pin is not None
        assert (pin.queue, pin.round) == (queue, number)
    world.change({"a": 0, "b": 0})
    with pytest.raises(RouteNotFound, match="no queue to write to now"):
        engine.pin_for(message, None, None, None)


class Wire:
    """Takes what is sent without an answer."""

    def __init__(self, world: Any) -> None:
        self.sent: list[tuple[str, Any]] = []
        world.oneway = lambda address, command: self.sent.append((address, command))


@pytest.mark.parametrize("queue", [0, "a", 1.5, ("T", "a", 0)])
def test_what_is_no_queue_is_refused_at_once(cluster: Make, queue: Any) -> None:
    engine = cluster({"a": 1}).engine
    engine.sender.key_queues.learn("T")
    message = Message("T", b"x")
    with pytest.raises(InvalidParameter, match=r"queue is .*: give a MessageQueue"):
        engine.pin(queue)
    with pytest.raises(InvalidParameter, match=r"queue is .*: give a MessageQueue"):
        engine.pin_for(message, queue, None, None)
    with pytest.raises(InvalidParameter, match=r"the selector returned .*: give a MessageQueue"):
        engine.pin_for(message, None, None, lambda *_: queue)
    with pytest.raises(InvalidParameter, match=r"sharding_key is 5: give text"):
        engine.pin_for(message, None, 5, None)


def test_a_body_that_grows_while_it_is_sent_is_refused_and_not_lost(cluster: Make) -> None:
    class Growing(bytearray):
        def __len__(self) -> int:
            return 1  # as it was when the batch was made for it

    engine = cluster({"a": 1}).engine
    messages = [Message("T", b"x"), Message("T", Growing(b"y" * 500)), Message("T", b"z")]
    with pytest.raises(MessageIllegal, match="grew while it was sent"):
        engine.batch_of(messages, None)


def test_a_oneway_message_goes_to_a_broker_that_is_well(cluster: Make) -> None:
    world = cluster({"a": 1, "b": 1})
    wire = Wire(world)
    world.sender.faults.failed("a", world.loop.time())
    for _ in range(8):
        world.engine.oneway(Message("T", b"x"), None)
    assert {address for address, _ in wire.sent} == {"b1"}
    world.sender.faults.failed("b", world.loop.time())
    for _ in range(20):
        world.engine.oneway(Message("T", b"x"), None)
    assert {address for address, _ in wire.sent} == {"a1", "b1"}
    wire.sent.clear()
    message = Message("T", b"x", sharding_key="k")
    world.engine.oneway(message, world.engine.pin_for(message, B0, None, None))
    ((address, command),) = wire.sent
    assert (address, command.code, command.ext["e"], command.body) == ("b1", 310, "0", b"x")


def test_a_oneway_message_that_can_go_nowhere_is_refused(cluster: Make) -> None:
    world = cluster({"a": 1})
    wire = Wire(world)
    world.engine.oneway(Message("T", bytes(4 << 20)), None)
    assert len(wire.sent) == 1
    pin = world.engine.pin_for(Message("T", b"x"), A0, None, None)
    world.change({"a": 1}, {"a": ""})
    with pytest.raises(RouteNotFound, match="topic 'T' has no writable queue now"):
        world.engine.oneway(Message("T", b"x"), None)
    with pytest.raises(RouteNotFound, match="broker a has no master in the route"):
        world.engine.oneway(Message("T", b"x"), pin)


def test_what_was_encoded_elsewhere_says_when_it_was_born(cluster: Make) -> None:
    world = cluster({"a": 1})
    for born_ms in (77, None):
        batch = world.engine.enqueue_encoded("T", None, b"body", 3, born_ms=born_ms, sys_flag=9)
        assert batch is not None
        assert (batch.count, batch.bytes) == (3, 4)
        world.until_done(batch.handle(0))
        request = world.sent.pop().command
        assert (bytes(request.body), request.ext["f"]) == (b"body", "9")
        assert (int(request.ext["g"]) == 77) == (born_ms is not None)


def test_a_closed_engine_takes_nothing_and_fails_what_is_left(cluster: Make) -> None:
    world = cluster({"a": 1}, until_delivered=True)
    left: list[str] = []

    async def unregister(group: str) -> None:
        left.append(group)

    world.unregister_producer = unregister  # type: ignore[attr-defined]
    world.answer = lambda _: 14
    handle = world.send()
    world.loop.run_until_complete(world.engine.close(1.0))
    assert 1.0 <= world.now < 1.1
    assert isinstance(handle.exception(), SaturnError)
    assert left == ["G"]
    assert [str(error) for error in world.reported] == [
        "1 messages of producer G may be lost: the producer was closed, and had no acknowledgement "
        "within 1 s"
    ]
    for take in (
        lambda: world.engine.enqueue(Message("T", b"x"), None),
        lambda: world.engine.enqueue_batch([Message("T", b"x")], None),
        lambda: world.engine.enqueue_encoded("T", None, b"x", 1),
    ):
        with pytest.raises(ClientClosed, match="the producer is closed"):
            take()
    world.loop.run_until_complete(world.engine.close(1.0))
    assert left == ["G"]


def test_a_closed_engine_asks_for_no_more_routes(cluster: Make) -> None:
    world = cluster({}, until_delivered=True)
    world.unregister_producer = lambda group: world.runtime.sleep(0)  # type: ignore[attr-defined]
    handle = world.send()
    world.loop.run_until_complete(world.engine.close(0.5))
    assert isinstance(handle.exception(), ClientClosed)
    world.run(0.3)
    asked = len(world.asked)
    world.run(2.0)
    assert len(world.asked) == asked


def test_how_much_and_how_long_unless_the_producer_is_told_otherwise(cluster: Make) -> None:
    world = cluster({"a": 1})
    with pytest.raises(MessageIllegal, match=f"exceeds the limit of {4 << 20} B"):
        world.engine.enqueue(Message("T", bytes((4 << 20) + 1)), None)
    for size, code in ((4095, 320), (4096, 310), (4 << 20, 310)):
        assert sent(world, Message("T", bytes(size))).code == code
    bound = world.engine.accumulator.lane("T", Pin(A0))
    while not bound.ready:
        world.engine.enqueue(Message("T", bytes(4000)), Pin(A0))
    assert len(bound.ready[0].buffer) == 1 << 20
    world.until_done(bound.ready[0].handle(0))
    world.run(1.0)
    world.sent.clear()
    world.takes_s = lambda _: 1.0
    for _ in range(12):
        assert world.engine.enqueue_batch([Message("T", b"x")], None)
    world.run(0.5)
    assert len(world.sent) == 10
    world.run(2.0)
    world.sent.clear()
    world.answer = lambda _: 12
    assert world.outcome(world.send()) is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(world.sent) == 1
    began = world.now
    world.answer = lambda _: 14
    assert "not acknowledged in 120 s" in str(world.outcome(world.send(A0)))
    assert world.now - began == pytest.approx(120.0, abs=0.9)


def test_how_the_documents_say_for_how_long_keys_keep_their_queues() -> None:
    page = (Path(__file__).parents[2] / "docs/clients.md").read_text()
    assert f"`absence_timeout` ({ProducerOptions().absence_timeout:g} s)" in page

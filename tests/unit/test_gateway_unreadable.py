"""Messages that cannot be decompressed, and those beside them, for consumers over gRPC."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from gateway_rig import Caller, Code, create_group, create_topic, served
from saturnmq.broker.broker import Broker
from saturnmq.gateway import v2
from saturnmq.protocol.compression import BODY_BYTES_MAX
from saturnmq.protocol.message import ReceivedMessage
from world_rig import World, run

DAMAGED = zlib.compress(b"x" * 1000)[:10]
DEAD = "%DLQ%G"


async def between_sound_ones(caller: Caller, unreadable: bytes, **system: Any) -> None:
    """Messages in one queue of topic P, the second of which is unreadable."""
    await caller.send(caller.message(b"before", "P", **system))
    bad = caller.message(unreadable, "P", body_encoding=v2.Encoding.GZIP, **system)
    assert (await caller.send(bad)).status.code == Code.OK
    for number in range(3):
        await caller.send(caller.message(b"behind-%d" % number, "P", **system))


def dead_letters(broker: Broker) -> list[bytes]:
    """The bodies in queue 0 of the group's dead letters, as they are stored."""
    store = broker.store
    offsets = range(store.max_offset(DEAD, 0))
    found = [bytes(store.get_message(DEAD, 0, offset, 1).data) for offset in offsets]
    return [ReceivedMessage(each).raw_body for each in found]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("renews", [False, True])
def test_one_unreadable_message_is_a_dead_letter_and_its_neighbours_are_delivered(
    orderly: bool, renews: bool
) -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "P", "FIFO" if orderly else "NORMAL", queues=1)
        await create_group(world, broker, "G", consumeMessageOrderly=orderly)
        kind = v2.MessageType.FIFO if orderly else v2.MessageType.NORMAL
        ordered = {"message_group": "one"} if orderly else {}
        await between_sound_ones(caller, DAMAGED, message_type=kind, **ordered)
        got = await caller.receive("P", auto_renew=renews, invisible_ms=None if renews else 60_000)
        assert (got.code, got.bodies[0]) == (Code.OK, b"before")
        assert got.parts[-1].WhichOneof("content") == "delivery_timestamp"
        bodies = list(got.bodies)
        while len(bodies) < 4:
            assert len(caller.gateway._receiving.renewals) == (len(got.messages) if renews else 0)
            assert (await caller.ack(*got.messages, topic="P")).status.code == Code.OK
            got = await caller.receive("P", auto_renew=renews, invisible_ms=60_000)
            bodies += got.bodies
        assert bodies == [b"before", b"behind-0", b"behind-1", b"behind-2"]
        for message in got.messages:
            assert message.system_properties.delivery_attempt == 1
        await world.until(lambda: dead_letters(broker) == [DAMAGED])
        await caller.ack(*got.messages, topic="P")
        assert (await caller.receive("P", poll_ms=200_000)).code == Code.MESSAGE_NOT_FOUND
        assert dead_letters(broker) == [DAMAGED]

    run(body)


def test_a_simple_consumer_of_an_ordered_group_gets_a_message_as_often_as_the_group_says() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "P", "FIFO", queues=1)
        await create_group(world, broker, "G", consumeMessageOrderly=True, retryMaxTimes=2)
        for each in (b"bad", b"good"):
            kind = v2.MessageType.FIFO
            sent = caller.message(each, topic="P", message_type=kind, message_group="one")
            assert (await caller.send(sent)).status.code == Code.OK
        for attempt in (1, 2, 3):
            (bad,) = (await caller.receive("P", most=1, poll_ms=15_000)).messages
            assert (bad.body, bad.system_properties.delivery_attempt) == (b"bad", attempt)
            receipt = bad.system_properties.receipt_handle
            changed = await caller.ask(
                "ChangeInvisibleDuration",
                group=v2.Resource(name="G"),
                topic=v2.Resource(name="P"),
                receipt_handle=receipt,
            )
            assert changed.status.code == Code.OK
        assert (await caller.receive("P", most=1, poll_ms=15_000)).code == Code.MESSAGE_NOT_FOUND
        await world.until(lambda: dead_letters(broker) == [b"bad"])
        (good,) = (await caller.receive("P", most=1, poll_ms=15_000)).messages
        assert (good.body, good.system_properties.delivery_attempt) == (b"good", 1)

    run(body)


def test_a_pop_of_unreadable_messages_alone_finds_nothing() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "P", "NORMAL", queues=1)
        bomb = zlib.compress(bytes(BODY_BYTES_MAX + 1))
        packed = caller.message(bomb, "P", body_encoding=v2.Encoding.GZIP)
        assert (await caller.send(packed)).status.code == Code.OK
        got = await caller.receive("P", invisible_ms=60_000)
        assert (got.code, got.bodies) == (Code.MESSAGE_NOT_FOUND, [])
        await world.until(lambda: dead_letters(broker) == [bomb])

    run(body)


def test_a_pull_leaves_an_unreadable_message_out_and_goes_on_behind_it() -> None:
    async def body(world: World) -> None:
        broker, caller = await served(world)
        await create_topic(world, broker, "P", "NORMAL", queues=1)
        await between_sound_ones(caller, DAMAGED)
        request = v2.PullMessageRequest(
            group=v2.Resource(name="G"),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name="P"), broker=v2.Broker(name="broker-a")
            ),
            batch_size=32,
        )
        parts: list[Any] = []

        async def write(part: Any) -> None:
            parts.append(part)

        await caller.gateway.streams["PullMessage"](caller.call(30), request, write)
        bodies = [part.message.body for part in parts[1:-1]]
        assert bodies == [b"before", b"behind-0", b"behind-1", b"behind-2"]
        assert (parts[0].status.code, parts[-1].next_offset) == (Code.OK, 5)

    run(body)


def test_what_was_written_before_a_client_went_is_renewed_no_more() -> None:
    async def body(world: World) -> None:
        _, caller = await served(world)
        await caller.send(caller.message(b"a"))
        await caller.send(caller.message(b"b"))
        request = v2.ReceiveMessageRequest(
            group=v2.Resource(name="G"),
            message_queue=v2.MessageQueue(
                topic=v2.Resource(name="T"), broker=v2.Broker(name="broker-a")
            ),
            filter_expression=v2.FilterExpression(type=v2.FilterType.TAG),
            batch_size=32,
            auto_renew=True,
        )
        written: list[Any] = []

        async def write(part: Any) -> None:
            if len(written) == 2:
                raise ConnectionResetError("the client has gone")
            written.append(part)

        with pytest.raises(ConnectionResetError):
            await caller.gateway.streams["ReceiveMessage"](caller.call(30), request, write)
        assert written[1].message.body in (b"a", b"b")
        assert len(caller.gateway._receiving.renewals) == 0
        begun = world.loop.time()
        found: list[bytes] = []
        while len(found) < 2 and world.loop.time() - begun < 100:
            got = await caller.receive(poll_ms=9_000)
            await caller.ack(*got.messages)
            found += got.bodies
        assert sorted(found) == [b"a", b"b"]

    run(body)

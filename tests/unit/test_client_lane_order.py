"""Batches of one lane leave in their order, whatever one of them has to wait for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from producer_world import Cluster, Make, clusters
from saturnmq.client.producer.carriers import SMALL_BYTES
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.compression import decompress
from saturnmq.protocol.message import Message, MessageQueue


@pytest.fixture
def cluster() -> Iterator[Make]:
    with clusters() as make:
        yield make


def send(world: Cluster, body: bytes, *, alone: bool = False) -> Any:
    """One message of the topic's one lane; `alone`: it does not join a batch."""
    properties = {"TIMER_DELAY_MS": "5"} if alone else {}
    handle = world.engine.enqueue(Message("T", body, properties=properties), None)
    assert handle is not None
    return handle


def delayed(world: Cluster) -> list[bool]:
    """For each request, in order, whether it is that of a message that travels alone."""
    return [sent.command.code == RequestCode.SEND_MESSAGE_V2 for sent in world.sent]


def test_nothing_overtakes_the_batches_that_wait_for_a_connection(cluster: Make) -> None:
    world = cluster({"a": 1})
    connect = world.connect

    async def slowly(address: str) -> Any:
        line = await connect(address)  # from now on it is there for all
        await world.runtime.sleep(0.005)
        return line

    world.connect = slowly  # type: ignore[method-assign]
    bodies = [b"%d" % number for number in range(4)]
    handles = [send(world, body, alone=True) for body in bodies[:3]]
    world.run(0.002)
    assert world.connected("a1") is not None
    handles.append(send(world, bodies[3], alone=True))
    world.until_done(*handles)
    assert [bytes(sent.command.body) for sent in world.sent] == bodies
    assert world.idle()


def test_a_message_that_travels_alone_does_not_overtake_a_small_batch(cluster: Make) -> None:
    world = cluster({"a": 1})
    world.until_done(send(world, b"the first one connects"))
    world.sent.clear()
    handles = [send(world, b"small"), send(world, b"alone", alone=True)]
    world.until_done(*handles)
    assert delayed(world) == [False, True]
    assert world.idle()


def test_a_message_that_travels_alone_does_not_overtake_one_that_is_compressed(
    cluster: Make,
) -> None:
    world = cluster({"a": 1}, compression="zstd")
    world.until_done(send(world, b"the first one connects"))
    world.sent.clear()
    handles = [send(world, b"packed"), *(send(world, b"%d" % n, alone=True) for n in range(2))]
    world.until_done(*handles)
    assert ["TIMER_DELAY_MS" in sent.command.ext["i"] for sent in world.sent] == [
        False,
        True,
        True,
    ]
    assert [bytes(sent.command.body) for sent in world.sent[1:]] == [b"0", b"1"]
    assert world.idle()


SIZES = (10, 10, 10, 3000, SMALL_BYTES)
sends = st.tuples(
    st.sampled_from(SIZES),
    st.booleans(),  # whether it travels alone
    st.sampled_from([0.0, 0.0, 0.0, 0.0005, 0.003]),  # seconds to the next one
)


def numbers_in(world: Cluster) -> list[int]:
    """The messages in all requests, in the order in which those left."""
    found: list[int] = []
    for sent in world.sent:
        body = bytes(sent.command.body)
        if "INNER_NUM" in sent.command.ext.get("i", ""):
            body = decompress(body, int(sent.command.ext["f"]))
        found += [int(number) for number in re.findall(rb"<(\d+)>", body)]
    return found


@given(
    st.lists(sends, min_size=2, max_size=30),
    st.sampled_from([None, "zstd"]),
    st.sampled_from([0.0, 0.001, 0.004]),
    st.sampled_from([1, 2, 5]),
    st.integers(1, 3),
)
def test_messages_of_one_queue_leave_in_the_order_of_their_sends(
    sequence: list[tuple[int, bool, float]],
    compression: str | None,
    connects_s: float,
    in_flight: int,
    lanes: int,
) -> None:
    """Other lanes have messages, too; nothing fails."""
    with clusters() as make:
        world = make({"a": 1}, compression=compression, in_flight=in_flight, compress_above=None)
        connect = world.connect

        async def slowly(address: str) -> Any:
            line = await connect(address)
            await world.runtime.sleep(connects_s)
            return line

        world.connect = slowly  # type: ignore[method-assign]
        handles = []
        for number, (size, alone, gap_s) in enumerate(sequence):
            for lane in range(1, lanes):
                message = Message("T", b"of another lane")
                pin = world.engine.pin_for(message, MessageQueue("T", "a", lane), None, None)
                handles.append(world.engine.enqueue(message, pin))
            handles.append(send(world, b"<%d>" % number + bytes(size), alone=alone))
            if gap_s:
                world.run(gap_s)
        world.until_done(*handles)
        assert numbers_in(world) == list(range(len(sequence)))
        assert world.idle()

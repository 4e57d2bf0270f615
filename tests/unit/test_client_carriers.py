"""Small batches of several lanes in one request: who goes together, who waits, who goes alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from producer_world import Answer, Cluster, Line, Make, Sent, clusters
from saturnmq.client.producer.carriers import PARTS, SMALL_BYTES, UNDER_WAY
from saturnmq.client.producer.results import STATUS_OF_CODE, SendStatus
from saturnmq.protocol.batches import HOST, PartAnswer, encode_answers
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectionLost, MessageIllegal, SaturnError


@pytest.fixture
def cluster() -> Iterator[Make]:
    with clusters() as make:
        yield make


def queue(number: int, broker: str = "a") -> MessageQueue:
    return MessageQueue("T", broker, number)


def ready(cluster: Make, queues: dict[str, int], **options: object) -> Cluster:
    """Connected to each broker."""
    world = cluster(queues, **options)
    for broker in queues:
        world.until_done(world.send(queue(0, broker)))
    world.sent.clear()
    return world


def test_small_batches_of_several_lanes_go_in_one_request_each_to_its_queue(cluster: Make) -> None:
    world = ready(cluster, {"a": 5, "b": 2})
    wanted = [
        queue(number, broker) for broker, count in (("a", 5), ("b", 2)) for number in range(count)
    ]
    handles = [world.send(each) for each in wanted]
    assert [world.outcome(handle) for handle in handles] == [SendStatus.OK] * 7
    assert world.carried == [5, 2]
    assert [sent.queue for sent in world.sent] == wanted
    assert [handle.result().queue for handle in handles] == wanted
    assert handles[0].result().offset_message_id == "AB" + 16 * "0"
    assert world.idle()


def test_a_lane_that_is_alone_goes_as_rocketmq_has_it(cluster: Make) -> None:
    world = ready(cluster, {"a": 2})
    world.until_done(world.send(queue(1)))
    assert [sent.command.code for sent in world.sent] == [320]
    assert not world.carried


def test_beyond_the_requests_that_may_be_under_way_lanes_stand_in_line_and_fill(
    cluster: Make,
) -> None:
    world = ready(cluster, {"a": 64})
    world.takes_s = lambda _: 1.0
    handles = []
    for number in range(UNDER_WAY):
        handles.append(world.send(queue(number)))
        world.run(0.01)
    assert len(world.sent) == UNDER_WAY
    in_line = range(UNDER_WAY, UNDER_WAY + 3)
    for _ in range(4):
        handles += [world.send(queue(number)) for number in in_line]
        world.run(0.01)
    assert len(world.sent) == UNDER_WAY, "they stand in line"
    world.until_done(*handles)
    assert world.carried == [3], "and leave together when an answer is here"
    assert [sent.at for sent in world.sent[UNDER_WAY:]] == [world.sent[0].at + 1.0] * 3
    assert [handle.index for handle in handles[-3:]] == [3, 3, 3], "four messages in each"
    assert world.idle()


def test_who_stands_in_line_for_a_crowded_broker_goes_to_one_with_room(cluster: Make) -> None:
    world = ready(cluster, {"a": 8, "b": 1})
    world.takes_s = lambda sent: 5.0 if sent.broker == "a" else 0.001
    handles = []
    for number in range(UNDER_WAY):
        handles.append(world.send(queue(number)))
        world.run(0.01)
    free = [world.send() for _ in range(3)]
    world.until_done(*free)
    assert world.now < 5.0
    assert {handle.result().queue.broker_name for handle in free} == {"b"}
    world.until_done(*handles)


def test_a_request_has_no_more_batches_than_it_may(cluster: Make) -> None:
    world = ready(cluster, {"a": 2 * PARTS + 1})
    handles = [world.send(queue(number)) for number in range(2 * PARTS + 1)]
    world.until_done(*handles)
    assert world.carried == [PARTS, PARTS]
    assert len(world.sent) == 2 * PARTS + 1


def test_a_large_batch_goes_alone(cluster: Make) -> None:
    world = ready(cluster, {"a": 3}, compress_above=None)
    handles = [world.send(queue(number)) for number in (0, 1)]
    message = Message("T", bytes(SMALL_BYTES))
    large = world.engine.enqueue(message, world.engine.pin_for(message, queue(2), None, None))
    assert large is not None
    world.until_done(*handles, large)
    assert world.carried == [2]


@pytest.mark.parametrize(("code", "error"), [(13, MessageIllegal), (18, SaturnError)])
def test_what_is_wrong_with_one_batch_is_nothing_to_the_others(
    cluster: Make, code: int, error: type[SaturnError]
) -> None:
    world = ready(cluster, {"a": 3})
    world.answer = lambda sent: code if sent.queue.queue_id == 1 else 0
    handles = [world.send(queue(number)) for number in range(3)]
    first, second, third = (world.outcome(handle) for handle in handles)
    assert (first, third) == (SendStatus.OK, SendStatus.OK)
    assert isinstance(second, error)
    assert (second.code, "said so" in str(second)) == (code, True)
    assert len(world.sent) == 3


def test_a_batch_that_is_refused_for_now_is_repeated_alone(cluster: Make) -> None:
    world = ready(cluster, {"a": 3})
    busy = [2]

    def answer(sent: Sent) -> Answer:
        return busy.pop() if sent.queue.queue_id == 1 and busy else 0

    world.answer = answer
    handles = [world.send(queue(number)) for number in range(3)]
    assert [world.outcome(handle) for handle in handles] == [SendStatus.OK] * 3
    assert world.carried == [3]
    assert [sent.queue.queue_id for sent in world.sent] == [0, 1, 2, 1]
    assert [handle.batch.attempts for handle in handles] == [1, 2, 1]


@pytest.mark.parametrize("status", [10, 11, 12])
def test_what_is_stored_less_safely_than_asked_for_says_so(cluster: Make, status: int) -> None:
    world = ready(cluster, {"a": 2})
    world.answer = lambda _: status
    handles = [world.send(queue(number)) for number in range(2)]
    found = {world.outcome(handle) for handle in handles}
    assert found == {STATUS_OF_CODE[status]}
    assert SendStatus.OK not in found


@pytest.mark.parametrize("lost", [ConnectionLost("gone"), None])
def test_an_answer_that_never_comes_is_that_of_none(cluster: Make, lost: Answer) -> None:
    world = ready(cluster, {"a": 3})
    world.answer = lambda _: lost if len(world.sent) <= 3 else 0
    handles = [world.send(queue(number)) for number in range(3)]
    assert [world.outcome(handle) for handle in handles] == [SendStatus.OK] * 3
    assert [handle.batch.unsure for handle in handles] == [True] * 3
    assert world.idle()


def test_a_broker_that_does_not_know_the_request_gets_each_alone_and_is_not_asked_again(
    cluster: Make,
) -> None:
    """RocketMQ's answers 3."""
    world = ready(cluster, {"a": 4})
    world.speaks_batches = False
    for _ in range(2):
        handles = [world.send(queue(number)) for number in range(4)]
        assert [world.outcome(handle) for handle in handles] == [SendStatus.OK] * 4
        assert [handle.batch.attempts for handle in handles] == [1] * 4
    assert world.carried == [4]
    assert {sent.command.code for sent in world.sent} == {320}
    world.lines["a1"] = Line(world, "a1")  # another connection may lead to another broker
    world.until_done(*(world.send(queue(number)) for number in range(4)))
    assert world.carried == [4, 4]


def nonsense() -> list[Callable[[Command], Command]]:
    def of(body: bytes) -> Callable[[Command], Command]:
        return lambda command: command.reply(0, "", {HOST: "AB"}, body)

    right = PartAnswer(0, 0)
    return [
        of(b""),
        of(b"\0" * 7),
        of(encode_answers([right])),
        of(encode_answers([right] * 3)),
        of(encode_answers([right, PartAnswer(0, 70_000)])),
        of(encode_answers([right, PartAnswer(0, 0, -1)])),
        of(encode_answers([right, PartAnswer(0, 0, 0, -1)])),
        of(struct.pack(">iiqqi", 0, 0, 0, 0, 2**31 - 1) * 2),
    ]


@pytest.mark.parametrize("answer", nonsense())
def test_an_answer_that_is_none_is_an_error_of_each(
    cluster: Make, answer: Callable[[Command], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ready(cluster, {"a": 2}, delivery_timeout=0.5)

    def request_callback(
        line: Line, command: Command, _: float, answered: Callable[[Command], None]
    ) -> None:
        reply = command.reply(1, "no") if command.code == 320 else answer(command)
        line.world.runtime.call_later(0.001, answered, reply)

    monkeypatch.setattr(Line, "request_callback", request_callback)
    handles = [world.send(queue(number)) for number in range(2)]
    found = [world.outcome(handle) for handle in handles]
    assert all(isinstance(error, SaturnError) for error in found)
    assert world.idle()

"""Which batch goes where and when, and what happens when it fails; in virtual time."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from producer_world import A0, A1, B0, B1, Answer, Cluster, Line, Make, Sent, clusters
from saturnmq.client.producer.batch import ProducerBatch, SendHandle, SendResult
from saturnmq.client.producer.lanes import Pin
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    MessageIllegal,
    RequestTimeout,
    RouteNotFound,
    SaturnError,
    SystemBusy,
    SystemError_,
    TopicNotExist,
    error_for,
)


@pytest.fixture
def cluster() -> Iterator[Make]:
    with clusters() as make:
        yield make


# -- requests and answers --------------------------------------------------------------------------


def test_a_batch_says_what_it_is_and_where_it_goes(cluster: Make) -> None:
    world = cluster({"a": 2})
    handle = world.send(A1)
    assert world.outcome(handle) is SendStatus.OK
    (sent,) = world.sent
    batch = handle.batch
    assert sent.command.code == 320
    assert sent.command.ext == {
        "a": "G",
        "b": "T",
        "c": "TBW102",
        "d": "7",
        "e": "1",
        "f": "0",
        "g": str(batch.born_ms),
        "h": "0",
        "i": f"UNIQ_KEY\x01{handle.message_id}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "true",
        "n": "a",
        "saturnSizes": "true",
    }
    assert (sent.address, sent.timeout) == ("a1", 3.0)
    assert world.idle()


def test_a_message_that_travels_alone_says_so(cluster: Make) -> None:
    world = cluster({"a": 1})
    message = Message("T", b"x" * 5000, flag=9, delay_level=3, tag="t")
    handle = world.engine.enqueue(message, None)
    assert handle is not None
    assert world.outcome(handle) is SendStatus.OK
    (sent,) = world.sent
    said = {name: sent.command.ext[name] for name in "fhm"}
    assert (sent.command.code, said) == (310, {"f": str(0x301), "h": "9", "m": "false"})
    assert sent.command.ext["i"].startswith(f"UNIQ_KEY\x01{handle.message_id}\x02WAIT\x01true\x02")
    assert "DELAY\x013\x02" in sent.command.ext["i"]


@pytest.mark.parametrize(
    ("ext", "expected"),
    [
        ({"queueId": "1", "queueOffset": "7"}, (A1, 7)),
        ({"queueId": "", "queueOffset": ""}, (A0, 0)),
        ({"queueId": "0", "queueOffset": "0", "msgId": ""}, (A0, 0)),
    ],
)
def test_a_result_is_what_the_broker_says(
    cluster: Make, ext: dict[str, str], expected: tuple[MessageQueue, int]
) -> None:
    world = cluster({"a": 2})
    world.answer = lambda _: ext
    handle = world.send(A0)
    world.until_done(handle)
    result = handle.result()
    assert (result.queue, result.queue_offset) == expected
    assert result.offset_message_id == ext.get("msgId", "X")


@pytest.mark.parametrize("ext", [{"queueOffset": "-1"}, {"queueId": "x"}, {"queueId": "9999999"}])
def test_an_answer_that_is_nonsense_leaves_it_open_whether_a_message_is_stored(
    cluster: Make, ext: dict[str, str]
) -> None:
    world = cluster({"a": 2}, retries=0)
    world.answer = lambda _: ext
    error = world.outcome(world.send())
    assert isinstance(error, SystemError_)
    assert (error.outcome, "a answers a send with nonsense" in str(error)) == ("unknown", True)


V4, V6 = "7F00000100002A9F" + "0" * 13 + "064", "F" * 40 + "0" * 13 + "0FF"


@pytest.mark.parametrize(
    ("ids", "sizes", "expected"),
    [
        (V4, [0x9C, 200, 300], [V4, V4[:-3] + "100", V4[:-3] + "1C8"]),
        (V6, [1, 0x10, 7], [V6, V6[:-3] + "100", V6[:-3] + "110"]),
        (V4.lower(), [16, 1, 1], [V4.lower()[:16] + V4[16:], V4.lower()[:16] + V4[16:-2] + "74"]),
        (V4, [100, 200], [V4, ""]),
        (V4, [], [V4, "", ""]),
        (V4 + "0", [1, 1, 1], [V4 + "0", ""]),
        ("x,y,z", [1, 1, 1], ["x", "y", "z"]),
        ("", [], ["", ""]),
    ],
)
def test_the_offset_id_of_a_message_is_told_or_found_by_the_sizes_before_it(
    cluster: Make, ids: str, sizes: list[int], expected: list[str]
) -> None:
    world = cluster({"a": 1})
    world.answer = lambda _: {"msgId": ids, "body": struct.pack(f">{len(sizes)}i", *sizes)}
    batch = world.engine.enqueue_batch([Message("T", b"x")] * 3, None)
    assert batch is not None
    results = [batch.handle(n) for n in range(3)]
    world.until_done(*results)
    found = [handle.result().offset_message_id for handle in results]
    assert found[: len(expected)] == expected


def test_a_handle_is_done_once_and_tells_where_its_message_lies(cluster: Make) -> None:
    world = cluster({"a": 2})
    world.answer = lambda _: {"queueOffset": "40"}
    batch = world.engine.enqueue_batch([Message("T", b"x")] * 17, Pin(A1))
    assert batch is not None
    first, last = batch.handle(0), batch.handle(16)
    told: list[SendHandle] = []
    last.add_done_callback(told.append)
    assert (last.done(), last.exception(), told) == (False, None, [])

    async def wait() -> SendResult:
        return await last

    result = world.loop.run_until_complete(wait())
    assert (last.done(), told) == (True, [last])
    last.add_done_callback(told.append)
    assert told == [last, last]
    assert (result.ok, result.queue, result.queue_offset) == (True, A1, 56)
    assert batch.handle(0).result().queue_offset == 40
    assert result.message_id == last.message_id == f"{first.message_id[:-4]}0010"
    assert "SendResult(OK, " in repr(result)
    assert "offset 56)" in repr(result)


def test_a_handle_of_a_failed_send_raises_an_error_of_its_own_each_time(cluster: Make) -> None:
    world = cluster({"a": 1})
    world.answer = lambda _: 13
    handle = world.send()
    world.until_done(handle)
    raised = []
    for _ in range(2):
        with pytest.raises(MessageIllegal, match="said so") as error:
            handle.result()
        raised.append(error.value)
    assert raised[0] is not raised[1]
    assert handle.exception() not in raised


# -- placement -------------------------------------------------------------------------------------


def test_batches_go_round_the_queues(cluster: Make) -> None:
    world = cluster({"a": 2, "b": 1})
    for _ in range(7):
        world.until_done(world.send())
    order = [A0, A1, B0]
    places = [order.index(sent.queue) for sent in world.sent]
    assert places == [(places[0] + n) % 3 for n in range(7)]


def test_a_queue_of_a_busy_broker_is_passed_over_and_the_round_goes_on_behind(
    cluster: Make,
) -> None:
    world = cluster({"a": 2, "b": 1, "c": 1})
    handles = [world.send()]
    world.until_done(*handles)
    while world.sent[-1].broker != "c":
        world.until_done(world.send())
    world.sent.clear()
    world.takes_s = lambda sent: 1.0 if sent.broker == "a" else 0.001
    for _ in range(5):
        handles.append(world.send())
        world.run(0.01)
    world.until_done(*handles)
    queues = [(sent.broker, sent.queue.queue_id) for sent in world.sent]
    assert queues == [("a", 0), ("b", 0), ("c", 0), ("b", 0), ("c", 0)]


def test_what_queues_while_a_batch_is_under_way_goes_together_and_full_ones_at_once(
    cluster: Make,
) -> None:
    world = cluster({"a": 2}, batch_bytes=1000, in_flight=3)
    world.takes_s = lambda _: 1.0
    handles = [world.send()]
    world.run(0.1)
    handles += [world.send() for _ in range(3)]
    world.run(0.1)
    assert len(world.sent) == 1, "a part-filled one waits"
    while len(world.engine.accumulator.lane("T", None).ready) < 4:
        handles.append(world.send())
    world.run(0.1)
    assert len(world.sent) == 3, "of the full ones as many go as may be in flight"
    world.until_done(*handles)
    assert world.idle()
    most = max(sum(one.at <= at < one.at + 1.0 for one in world.sent) for at in (0, 0.3, 1.1, 2.2))
    assert most == 3


def test_one_batch_more_goes_for_each_that_is_answered(cluster: Make) -> None:
    world = cluster({"a": 1}, batch_bytes=1000, in_flight=2)
    world.takes_s = lambda _: 0.5 if len(world.sent) == 1 else 2.0
    handles = [world.send()]
    while len(world.engine.accumulator.lane("T", None).ready) < 5:
        handles.append(world.send())
    world.run(0.4)
    assert len(world.sent) == 2
    world.run(0.2)
    assert len(world.sent) == 3
    world.until_done(*handles)
    assert world.idle()


def test_a_batch_goes_to_a_broker_that_has_none_of_its_lane_under_way(cluster: Make) -> None:
    world = cluster()
    world.takes_s = lambda _: 0.5
    handles = []
    for _ in range(3):
        handles.append(world.send())
        world.run(0.1)
    assert sorted(sent.broker for sent in world.sent) == ["a", "b"]
    world.until_done(*handles)
    assert world.idle()


def test_what_is_bound_to_a_queue_goes_one_batch_at_a_time(cluster: Make) -> None:
    world = cluster(batch_bytes=200)
    world.takes_s = lambda _: 1.0
    handles = [world.send(B1) for _ in range(5)]
    world.until_done(*handles)
    assert {sent.queue for sent in world.sent} == {B1}
    assert all(b.at - a.at > 0.99 for a, b in pairwise(world.sent))
    assert len(world.sent) >= 3


@pytest.mark.parametrize(
    ("latency_ms", "out_s"), [(540.0, 0.0), (551.0, 3.0), (990.0, 3.0), (1001.0, 60.0)]
)
def test_a_slow_broker_gets_nothing_for_a_time(
    cluster: Make, latency_ms: float, out_s: float
) -> None:
    world = cluster({"a": 1, "b": 1})
    slow = [True]
    world.takes_s = lambda sent: latency_ms / 1000 if sent.broker == "a" and slow else 0.001
    while not any(sent.broker == "a" for sent in world.sent):
        world.until_done(world.send())
    slow.clear()
    since = world.now
    world.sent.clear()
    while world.now < since + 70.0:
        world.until_done(world.send())
        world.run(0.2)
    first = next(sent.at for sent in world.sent if sent.broker == "a")
    assert out_s <= first - since <= out_s + 0.7


def test_when_all_brokers_are_out_the_one_that_comes_back_first_is_asked(cluster: Make) -> None:
    world = cluster({"a": 2, "b": 2}, latency_table=((0.0, 10.0),), in_flight=1)
    handles = []
    for _ in range(2):  # each takes its broker out
        world.until_done(world.send())
        world.run(1.0)
    earlier = world.sent[0].broker
    world.takes_s = lambda _: 0.5
    world.sent.clear()
    for _ in range(2):
        handles.append(world.send())
        world.run(0.1)
    assert [sent.broker for sent in world.sent] == [earlier]
    world.until_done(*handles)
    assert world.sent[0].queue != world.sent[1].queue
    assert world.idle()


def test_the_queues_of_a_broker_that_is_out_are_taken_in_turn_as_well(cluster: Make) -> None:
    world = cluster({"a": 3}, latency_table=((0.0, 10.0),))
    for _ in range(6):
        world.until_done(world.send())
    numbers = [sent.queue.queue_id for sent in world.sent]
    assert numbers[2:] == [(numbers[1] + n) % 3 for n in range(1, 5)]


# -- attempts --------------------------------------------------------------------------------------

REPEATED = {1, 2, 14, 16, 17, 204, 205, 1500}


@pytest.mark.parametrize("code", sorted(REPEATED | {3, 13, 15, 18, 29, 203, 206, 1499, 1501}))
@pytest.mark.parametrize("pinned", [None, A0])
def test_some_refusals_are_worth_another_attempt(
    cluster: Make, code: int, pinned: MessageQueue | None
) -> None:
    world = cluster({"a": 1}, send_timeout=1.0)
    world.answer = lambda _: code if len(world.sent) == 1 else 0
    outcome = world.outcome(world.send(pinned))
    if code in REPEATED or (code == 29 and pinned is None):
        assert (outcome, len(world.sent)) == (SendStatus.OK, 2)
    else:
        assert (type(outcome), len(world.sent)) == (type(error_for(code, "")), 1)
    assert world.idle()


def test_an_attempt_that_cannot_be_told_is_made_once(cluster: Make) -> None:
    world = cluster({"a": 1})
    line = Line(world, "a1")

    def refuse(*_: Any) -> None:
        raise SaturnError("too large for a frame")

    line.request_callback = refuse  # type: ignore[method-assign]
    world.lines["a1"] = line
    assert "too large" in str(world.outcome(world.send()))
    assert world.idle()


def test_the_pauses_between_attempts_grow_to_a_quarter_of_a_second(cluster: Make) -> None:
    world = cluster({"a": 1}, until_delivered=True, delivery_timeout=2.0)
    world.answer = lambda _: SystemBusy("busy")
    error = world.outcome(world.send())
    assert isinstance(error, RequestTimeout)
    pauses = [round(b.at - a.at - 0.001, 2) for a, b in pairwise(world.sent)]
    assert pauses == [0.05, 0.1, 0.2, *[0.25] * (len(pauses) - 3)]
    assert 2.0 <= world.now < 2.3
    assert f"not acknowledged in 2 s after {len(world.sent)} attempts" in str(error)
    assert "last reason: SystemBusy('busy')" in str(error)


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (2, 3), (3, 4)])
@pytest.mark.parametrize("answer", [None, ConnectionLost("lost"), 1])
def test_what_may_be_stored_is_repeated_so_often(
    cluster: Make, answer: Answer, retries: int, attempts: int
) -> None:
    world = cluster({"a": 1}, retries=retries, send_timeout=1.0)
    world.answer = lambda _: answer
    error = world.outcome(world.send())
    assert (len(world.sent), error.outcome) == (attempts, "unknown")
    assert world.sent[0].timeout == 1.0
    assert world.idle()


@pytest.mark.parametrize(
    ("queues", "answer"), [({"a": 1}, 14), ({"a": 1, "b": 1}, 14), ({"a": 1}, ConnectFailed("no"))]
)
@pytest.mark.parametrize(("retries", "lasts_s"), [(0, 0.0), (1, 2.0), (2, 2.0)])
def test_what_was_refused_is_repeated_for_as_long_as_one_attempt_may_take(
    cluster: Make, queues: dict[str, int], answer: Answer, retries: int, lasts_s: float
) -> None:
    world = cluster(queues, retries=retries, send_timeout=2.0)
    world.answer = lambda _: answer
    error = world.outcome(world.send())
    assert lasts_s <= world.now <= lasts_s + 0.3
    assert error.outcome == "rejected"
    assert (len(world.sent) > 1) == (retries > 0)


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_a_queue_that_is_gone_ends_no_send_that_has_time_left(cluster: Make, retries: int) -> None:
    """Its broker was out of reach before that, for as long as refused sends are repeated."""
    world = cluster({"a": 8}, retries=retries, send_timeout=2.0)
    away_s = 2.1 if retries else 0.0

    def answer(sent: Sent) -> Answer:
        if world.now < away_s:
            return ConnectFailed("no")
        return 29 if sent.queue.queue_id > 1 else 0

    world.answer = answer
    handle = world.send()
    world.run(away_s + 0.05)
    world.change({"a": 2})
    assert world.outcome(handle) is SendStatus.OK
    assert world.idle()


def test_a_batch_that_went_to_another_broker_is_under_way_there(cluster: Make) -> None:
    world = cluster({"a": 1, "b": 1})
    world.answer = lambda _: 14 if len(world.sent) == 1 else 0
    world.takes_s = lambda _: 0.001 if len(world.sent) == 1 else 0.5
    handles = [world.send()]
    world.run(0.1)
    handles.append(world.send())
    world.until_done(*handles)
    refused, moved, behind = world.sent
    assert refused.broker != moved.broker == behind.broker
    assert behind.at >= moved.at + 0.5
    assert world.idle()


def test_an_answer_of_a_broker_that_lives_is_waited_out_by_nobody(cluster: Make) -> None:
    for code in (1, 17):
        world = cluster({"a": 1})
        world.answer = lambda _, code=code: code  # type: ignore[misc]
        assert isinstance(world.outcome(world.send(A0)), SystemError_ | TopicNotExist)
        assert len(world.sent) == 3


@pytest.mark.parametrize(
    ("delivery_timeout", "attempts"),
    [(0.96, [(0, 0.4), (0.45, 0.4), (0.95, 0.05)]), (0.9, [(0, 0.4), (0.45, 0.4)])],
)
def test_what_is_bound_to_a_queue_is_repeated_there_until_its_time_is_over(
    cluster: Make, delivery_timeout: float, attempts: list[tuple[float, float]]
) -> None:
    world = cluster(delivery_timeout=delivery_timeout, send_timeout=0.4, retries=0)
    world.answer = lambda _: None
    error = world.outcome(world.send(B1))
    assert isinstance(error, RequestTimeout)
    assert "to b queue 1 of topic 'T'" in str(error)
    found = [(round(sent.at, 2), round(sent.timeout, 2)) for sent in world.sent]
    assert found == attempts
    assert {sent.queue for sent in world.sent} == {B1}


def test_a_refused_batch_goes_to_another_broker_at_once_and_back_after_a_pause(
    cluster: Make,
) -> None:
    world = cluster(retries=3)
    world.answer = lambda sent: 2 if len(world.sent) < 4 else 0
    handle = world.send()
    assert world.outcome(handle) is SendStatus.OK
    brokers = [sent.broker for sent in world.sent]
    first, second = brokers[:2]
    assert brokers == [first, second, first, second]
    pauses = [round(b.at - a.at, 2) for a, b in pairwise(world.sent)]
    assert pauses == [0.0, 0.1, 0.2], "both are in back-off from the second attempt on"
    assert world.refreshed == ["T"] * 3
    assert world.idle()


def test_a_broker_without_an_answer_is_left_for_another_and_its_connection_given_up(
    cluster: Make,
) -> None:
    world = cluster(send_timeout=1.0)
    world.answer = lambda _: None if len(world.sent) == 1 else 0
    assert world.outcome(world.send()) is SendStatus.OK
    silent = world.sent[0].address
    assert [round(sent.at, 1) for sent in world.sent] == [0.0, 1.0]
    assert (silent not in world.lines, world.refreshed) == (True, ["T"])


@pytest.mark.parametrize(("heard", "kept"), [(0.5, True), (-0.5, False)])
def test_a_connection_that_brought_something_since_is_kept(
    cluster: Make, heard: float, kept: bool
) -> None:
    world = cluster({"a": 1}, send_timeout=1.0, retries=0)
    world.until_done(world.send())
    began = world.loop.time()
    world.answer = lambda _: None
    handle = world.send()
    world.lines["a1"].last_received = began + heard
    assert isinstance(world.outcome(handle), RequestTimeout)
    assert ("a1" in world.lines) == kept


@pytest.mark.parametrize("failing", ["lost", "refused"])
def test_a_failed_attempt_after_a_lost_one_does_not_say_that_nothing_is_stored(
    cluster: Make, failing: str
) -> None:
    world = cluster({"a": 1}, send_timeout=1.0)
    world.answer = lambda _: (
        ConnectionLost("lost") if failing == "lost" and len(world.sent) == 1 else 14
    )
    refused = error_for(14, "")
    error = world.outcome(world.send())
    assert type(error) is type(refused)
    assert error.outcome == ("unknown" if failing == "lost" else "rejected")
    assert refused.outcome == "rejected"


def test_a_broker_whose_master_has_a_successor_is_used_at_once(cluster: Make) -> None:
    world = cluster({"a": 1})
    world.answer = lambda sent: 14 if sent.address == "a1" else 0
    handle = world.send()
    world.run(0.2)
    assert not handle.done()
    for master in ("", "a3"):  # it is away, then another one is there
        world.change({"a": 1}, {"a": master})
    world.until_done(handle)
    assert world.sent[-1].address == "a3"
    assert world.sender.faults.available("a", world.loop.time())


@pytest.mark.parametrize("back", ["a1", "a3"])
def test_a_broker_is_well_again_when_its_master_is_back_or_another(
    cluster: Make, back: str
) -> None:
    world = cluster({"a": 1}, retries=0)
    world.answer = lambda _: 14
    world.until_done(world.send())
    available = lambda: world.sender.faults.available("a", world.loop.time())  # noqa: E731
    world.change({"a": 2})
    assert not available(), "another route, but the same master"
    world.change({"a": 2}, {"a": ""})
    assert not available()
    world.change({"a": 2}, {"a": back})
    assert available()


def test_a_broker_without_a_master_is_a_failed_attempt(cluster: Make) -> None:
    world = cluster({"a": 1, "b": 1}, delivery_timeout=1.0)
    handle = world.send(B0)
    world.change({"a": 1}, {"b": ""})
    error = world.outcome(handle)
    assert "broker b has no master in the route" in str(error)
    assert (world.sent, error.outcome) == ([], "unknown")


def test_an_address_that_nobody_listens_at_is_a_failed_attempt(cluster: Make) -> None:
    world = cluster({"a": 1, "b": 1})
    world.down = {"a1"}
    for _ in range(4):
        world.until_done(world.send())
    assert [sent.broker for sent in world.sent] == ["b"] * 4
    assert world.idle()


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize("pinned", [None, A0])
@pytest.mark.parametrize("wanted", [False, True])
def test_a_batch_stored_short_of_its_ack_mode_is_repeated_if_that_is_wanted(
    cluster: Make, wanted: bool, pinned: MessageQueue | None, retries: int
) -> None:
    world = cluster({"a": 1}, retry_unless_stored=wanted, retries=retries)
    world.answer = lambda _: 12
    assert world.outcome(world.send(pinned)) is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert len(world.sent) == (retries + 1 if wanted else 1)
    world.sent.clear()
    world.answer = lambda _: 12 if len(world.sent) == 1 else 13
    if wanted and retries:
        error = world.outcome(world.send(pinned))
        assert (error.code, error.outcome) == (13, "unknown"), "the first may be in the log"
    assert world.idle()


# -- routes ----------------------------------------------------------------------------------------


def test_a_topic_without_a_route_is_asked_for_until_it_has_one(cluster: Make) -> None:
    world = cluster({})
    world.route_error = ConnectionLost("no nameserver")
    handles = [world.send()]
    world.run(0.5)
    handles.append(world.send())
    world.run(0.2)
    assert [refresh for _, refresh in world.asked] == [False] * 4
    assert [at for at, _ in world.asked] == pytest.approx([0.0, 0.2, 0.4, 0.6], abs=0.005)
    world.route_error = None
    world.run(0.2)
    assert not any(handle.done() for handle in handles)
    world.change({"a": 1})
    world.until_done(*handles)
    assert len(world.sent) == 1, "together"
    world.change({"a": 0})
    world.asked.clear()
    handle = world.send()
    world.run(0.3)
    assert [refresh for _, refresh in world.asked] == [True, True]
    assert all(world.created)
    world.change({"a": 1})
    assert world.outcome(handle) is SendStatus.OK


@pytest.mark.parametrize("pinned", [None, A0])
@pytest.mark.parametrize(
    ("error", "lasts_s"),
    [(None, 3.0), (ConnectionLost("no nameserver"), 3.0), (TopicNotExist("no T"), 0.0)],
)
def test_a_send_without_a_route_ends_with_the_reason(
    cluster: Make, error: SaturnError | None, lasts_s: float, pinned: MessageQueue | None
) -> None:
    world = cluster({}, send_timeout=1.0, retries=2, delivery_timeout=3.0)
    world.route_error = error
    for _ in range(2):
        began = world.now
        found = world.outcome(world.send(pinned))
        assert lasts_s <= world.now - began <= lasts_s + 0.21
        assert found is error or isinstance(found, RouteNotFound)
        assert error is not None or "has no writable queue" in str(found)
    assert world.idle()


def test_a_pinned_send_waits_for_the_route_of_its_topic(cluster: Make) -> None:
    world = cluster({})
    handle = world.send(A0)
    world.run(0.5)
    assert (world.sent, all(world.created)) == ([], True)
    world.change({"a": 1})
    assert world.outcome(handle) is SendStatus.OK
    assert world.now < 1.0


@pytest.mark.parametrize("what", ["sender", "core"])
def test_nobody_asks_for_routes_or_repeats_anything_for_a_producer_that_is_closed(
    cluster: Make, what: str
) -> None:
    world = cluster({})
    world.route_error = ConnectionLost("no nameserver")
    handle = world.send()
    world.run(0.1)
    closing: Any = world.sender if what == "sender" else world
    closing.closed = True
    assert isinstance(world.outcome(handle), ConnectionLost)
    assert world.now < 0.5
    world = cluster({"a": 1})
    world.answer = lambda _: 14
    handle = world.send()
    world.run(0.02)
    closing = world.sender if what == "sender" else world
    closing.closed = True
    assert world.outcome(handle).code == 14
    assert world.now < 0.2
    if what == "sender":
        assert isinstance(world.outcome(world.send()), ClientClosed)


# -- queues that go --------------------------------------------------------------------------------


def keys_of(world: Cluster, queue: MessageQueue, count: int) -> list[str]:
    """Keys that are bound to `queue` now."""
    world.sender.key_queues.learn("T")
    message = Message("T", b"x")
    keys = (f"k{n}" for n in range(1000))
    found = [key for key in keys if world.engine.pin_for(message, None, key, None)[0] == queue]  # type: ignore[index]
    return found[:count]


def test_what_waits_for_a_gone_queue_goes_first_and_to_one_queue(cluster: Make) -> None:
    world = cluster({"a": 8})
    world.takes_s = lambda _: 1.0
    last = MessageQueue("T", "a", 7)
    (key,) = keys_of(world, last, 1)
    handles = [world.send(key=key)]
    world.run(0.1)
    handles += [world.send(key=key) for _ in range(3)]
    world.answer = lambda sent: 29 if sent.queue.queue_id > 1 else 0
    world.change({"a": 2})
    handles += [world.send(key=key) for _ in range(2)]
    world.until_done(*handles)
    assert [handle.exception() for handle in handles] == [None] * 6
    assert [sent.queue.queue_id for sent in world.sent][:2] == [7, 1]
    order = [handle.batch for handle in handles]
    sent_at = [batch.sent_at for batch in dict.fromkeys(order)]
    assert sent_at == sorted(sent_at)
    assert all(b - a >= 1.0 for a, b in pairwise(sent_at))
    assert world.idle()


def test_what_was_bound_before_a_change_and_queues_behind_it_goes_first_too(cluster: Make) -> None:
    """As of a thread that had chosen and was interrupted."""
    world = cluster({"a": 8})
    world.takes_s = lambda _: 1.0
    (key,) = keys_of(world, MessageQueue("T", "a", 7), 1)
    message = Message("T", b"x")
    bound = world.engine.pin_for(message, None, key, None)
    world.change({"a": 2})
    before = world.engine.enqueue(message, bound)
    behind = world.send(key=key)
    assert before is not None
    world.until_done(before, behind)
    assert [sent.at for sent in world.sent] == [0.001, 1.001]
    assert before.batch.sent_at < behind.batch.sent_at


def test_keys_wait_for_what_is_left_of_all_earlier_rounds(cluster: Make) -> None:
    world = cluster({"a": 2})
    world.takes_s = lambda _: 1.0
    (key,) = keys_of(world, A1, 1)
    handles = [world.send(key=key)]
    for queues in (8, 5):  # the first is under way, then the second one waits for it
        world.run(0.1)
        world.change({"a": queues})
        handles.append(world.send(key=key))
    world.until_done(*handles)
    first, second, third = (handle.batch.sent_at for handle in handles)
    assert second >= first + 1.0
    assert third >= second + 1.0
    assert world.idle()


@pytest.mark.parametrize("queue", [A1, None])
def test_keys_do_not_wait_for_what_has_none(cluster: Make, queue: MessageQueue | None) -> None:
    world = cluster({"a": 2})
    (key,) = keys_of(world, A0, 1)
    world.takes_s = lambda _: 1.0 if len(world.sent) == 1 else 0.001
    others = [world.send(queue), world.send(queue)]
    world.run(0.1)
    others.append(world.send(queue))
    assert world.outcome(world.send(key=key)) is SendStatus.OK
    assert not any(handle.done() for handle in others)
    world.until_done(*others)


def test_keys_of_a_broker_that_has_the_topic_no_longer_go_to_one_with_a_master(
    cluster: Make,
) -> None:
    world = cluster({"a": 2, "b": 2})
    (key,) = keys_of(world, B1, 1)
    world.answer = lambda sent: 17 if sent.broker == "b" else 0
    handle = world.send(key=key)
    assert world.outcome(handle) is SendStatus.OK
    assert [sent.broker for sent in world.sent] == ["b", "a"]
    assert Counter(queue.broker_name for queue in world.engine.round("T").queues) == {"a": 2}


def test_what_waits_for_a_gone_queue_goes_where_a_master_is_if_there_is_one(cluster: Make) -> None:
    world = cluster({"a": 1, "b": 1, "c": 1})
    (key,) = keys_of(world, B0, 1)
    world.answer = lambda sent: 17 if sent.broker == "b" else 0
    world.change({"a": 1, "b": 1, "c": 1}, {"a": ""})
    assert world.outcome(world.send(key=key)) is SendStatus.OK
    assert [sent.broker for sent in world.sent] == ["b", "c"]


def test_what_waits_for_a_gone_queue_waits_for_a_master_if_there_is_none(cluster: Make) -> None:
    world = cluster({"a": 1, "b": 1})
    (key,) = keys_of(world, B0, 1)
    world.answer = lambda sent: 17 if sent.broker == "b" else 0
    world.change({"a": 1, "b": 1}, {"a": ""})
    handle = world.send(key=key)
    world.run(1.0)
    assert ([sent.broker for sent in world.sent], handle.done()) == (["b"], False)
    world.change({"a": 1})
    assert world.outcome(handle) is SendStatus.OK
    assert [sent.broker for sent in world.sent] == ["b", "a"]


@pytest.mark.parametrize(("code", "queue", "left"), [(14, None, 4), (17, A0, 4), (17, None, 2)])
def test_keys_leave_the_queues_of_a_broker_only_if_it_has_no_such_topic_for_anybody(
    cluster: Make, code: int, queue: MessageQueue | None, left: int
) -> None:
    world = cluster()
    world.sender.key_queues.learn("T")
    world.answer = lambda _: code if len(world.sent) == 1 else 0
    assert world.outcome(world.send(queue)) is SendStatus.OK
    assert len(world.engine.round("T").queues) == left


def test_a_queue_that_the_caller_chose_is_not_changed_for_another(cluster: Make) -> None:
    world = cluster({"a": 8}, delivery_timeout=1.0)
    world.answer = lambda sent: 29 if sent.queue.queue_id > 1 else 0
    error = world.outcome(world.send(MessageQueue("T", "a", 7)))
    assert (error.code, len(world.sent)) == (29, 1)
    world.answer = lambda sent: 17
    error = world.outcome(world.send(A0))
    assert isinstance(error, TopicNotExist)
    assert {sent.queue for sent in world.sent[1:]} == {A0}


def batch_of(world: Cluster) -> ProducerBatch:
    return world.engine.only(Message("T", b"x"), world.engine.accumulator.lane("T", None))


def test_who_asks_for_a_queue_from_another_thread_begins_nothing(cluster: Make) -> None:
    world = cluster({})
    assert world.sender.queue_now(world.engine.accumulator.lane("T", None)) is None
    world.run(0.1)
    assert world.asked == []


@pytest.mark.parametrize("code", [0, 14])
def test_a_batch_whose_first_attempt_was_made_elsewhere_goes_on_here(
    cluster: Make, code: int
) -> None:
    world = cluster({"a": 1, "b": 1}, retry_unless_stored=True)
    world.until_done(world.send())
    lane = world.engine.accumulator.lane("T", None)
    queue = world.sender.queue_now(lane)
    assert queue is not None
    batch = batch_of(world)
    batch.attempts, batch.sent_at, batch.queue = 1, world.loop.time(), queue
    world.sent.clear()
    world.sender.take_over(batch, queue, error_for(code, "") if code else None)
    assert lane.in_flight != {}
    world.until_done(batch.handle(0))
    assert [sent.broker for sent in world.sent] != [queue.broker_name]
    assert (batch.error, batch.unsure, world.idle()) == (None, not code, True)


def test_a_batch_whose_first_attempt_was_made_elsewhere_is_under_way(cluster: Make) -> None:
    world = cluster({"a": 1})
    world.until_done(world.send())
    world.takes_s = lambda _: 1.0
    queue = world.sender.queue_now(world.engine.accumulator.lane("T", None))
    assert queue is not None
    batch = batch_of(world)
    batch.attempts, batch.sent_at, batch.queue = 1, world.loop.time(), queue
    world.sent.clear()
    world.sender.take_over(batch, queue, error_for(14, ""))
    behind = world.send()
    world.until_done(batch.handle(0), behind)
    first, second = world.sent
    assert second.at >= first.at + 1.0
    assert (batch.sent_at < behind.batch.sent_at, world.idle()) == (True, True)


def test_keys_leave_a_broker_that_is_away_when_its_time_is_over(cluster: Make) -> None:
    world = cluster(absence_timeout=10.0)
    with pytest.raises(RouteNotFound, match="no route that is known yet"):
        world.engine.pin_for(Message("T", b"x"), None, "k", None)
    (key,) = keys_of(world, B1, 1)
    assert world.engine.round("T").number == 1
    for back in (True, False):
        world.change({"a": 2, "b": 2}, {"b": ""})
        world.run(9.5)
        assert len(world.engine.round("T").queues) == 4
        if back:
            world.change({"a": 2, "b": 2})
            world.run(1.0)
            assert len(world.engine.round("T").queues) == 4
    handle = world.send(key=key)
    assert not handle.done()
    assert world.outcome(handle) is SendStatus.OK
    assert 20.0 <= world.now < 21.0
    assert list(world.engine.round("T").queues) == [A0, A1]
    assert {sent.broker for sent in world.sent} == {"a"}


def test_a_client_that_is_closed_gives_up_nobody(cluster: Make) -> None:
    world = cluster(absence_timeout=10.0)
    world.sender.key_queues.learn("T")
    world.change({"a": 2, "b": 2}, {"b": ""})
    world.closed = True
    world.run(30.0)
    assert len(world.engine.round("T").queues) == 4

"""Asynchronous sends of an idle lane, whose thread sends the request: against scripted connections
in virtual time. test_posting_threads.py has real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from producer_world import A0, A1, Cluster, clusters
from saturnmq.client.producer import posting
from saturnmq.client.producer.batch import SendHandle
from saturnmq.client.producer.carriers import SMALL_BYTES, UNDER_WAY
from saturnmq.client.producer.lanes import Pin
from saturnmq.client.producer.posting import OPEN_AFTER
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.remoting import Body, Command
from saturnmq.runtime.errors import (
    ConnectFailed,
    ConnectionLost,
    MessageIllegal,
    RequestTimeout,
    SaturnError,
)


class Loop:
    """The callbacks of a loop for descriptors, called by a test."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}
        self.writers: dict[int, Callable[[], None]] = {}

    def add_reader(self, number: int, call: Callable[[], None]) -> None:
        self.readers[number] = call

    def add_writer(self, number: int, call: Callable[[], None]) -> None:
        self.writers[number] = call

    def remove_reader(self, number: int) -> None:
        self.readers.pop(number)

    def remove_writer(self, number: int) -> None:
        self.writers.pop(number, None)


class Wire:
    """A connection whose answers a test gives; `room` is that of its socket, in parts."""

    def __init__(self, world: Cluster, address: str, number: int) -> None:
        self.world, self.address, self.number = world, address, number
        self.posted: list[Command] = []
        self.written: list[Body] = []
        self.room = 1 << 30
        self.failure: BaseException | None = None
        self.answers: list[Command] = []
        self.open = True
        self.used_at = world.loop.time()

    def fileno(self) -> int:
        return self.number

    def idle_s(self) -> float:
        return float(self.world.loop.time() - self.used_at)

    def is_silent_since(self, moment: float) -> bool:
        return bool(self.used_at <= moment)

    def post(self, command: Command) -> list[Body]:
        assert self.open
        if self.failure is not None:
            raise self.failure
        self.posted.append(command)
        return self.post_rest([b"head", command.body])

    def post_rest(self, parts: list[Body]) -> list[Body]:
        if self.failure is not None:
            raise self.failure
        self.written += parts[: self.room]
        rest = parts[self.room :]
        self.room -= len(parts) - len(rest)
        return rest

    def take(self) -> list[Command]:
        if self.failure is not None:
            raise self.failure
        self.used_at = self.world.loop.time()
        answers, self.answers = self.answers, []
        return answers

    def close(self) -> None:
        assert self.open
        self.open = False


class Way:
    """A Posting over the engine of a virtual cluster, whose topic's lane is idle and whose
    connection is there."""

    def __init__(self, world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.loop = world, Loop()
        self.wires: list[Wire] = []
        self.nobody = False
        monkeypatch.setattr(posting, "Channel", self.channel)
        self.posting = posting.Posting(world.engine, self.loop)  # type: ignore[arg-type]
        world.until_done(world.send())
        world.sent.clear()

    def channel(
        self, runtime: object, address: str, timeout_s: float, *, credentials: object
    ) -> Wire:
        assert (runtime, timeout_s, credentials) == (self.world.runtime, 2.5, None)
        if self.nobody:
            raise ConnectFailed("nobody")
        self.wires.append(Wire(self.world, address, len(self.wires)))
        return self.wires[-1]

    def post(self, pinned: Pin | None = None, body: bytes = b"x") -> SendHandle | None:
        return self.posting.post(Message("T", body), pinned)

    def opened(self) -> Way:
        for _ in range(OPEN_AFTER):
            assert self.post() is None
        self.world.run(0.01)
        return self

    @property
    def wire(self) -> Wire:
        return self.wires[-1]

    def answer(self, code: int = 0, number: int = -1) -> None:
        """Answer a request on the newest connection, the last one unless `number` says another."""
        place = {"queueId": "0", "queueOffset": "7", "msgId": "X"}
        command = self.wire.posted[number]
        reply = command.reply(code, "said so", place)
        reply.opaque = command.opaque
        self.wire.answers.append(reply)
        self.loop.readers[self.wire.number]()


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Way]]:
    with clusters() as make:
        yield lambda *args, **options: Way(make(*args, **options), monkeypatch)


def posted(handle: SendHandle | None) -> SendHandle:
    assert handle is not None
    return handle


def test_a_connection_is_opened_once_it_was_wanted_a_few_times(way: Any) -> None:
    here = way({"a": 1})
    for _ in range(OPEN_AFTER - 1):
        assert here.post() is None
    here.world.run(0.01)
    assert here.wires == []
    here.nobody = True
    assert here.post() is None
    here.world.run(0.01)
    here.nobody = False
    for _ in range(2 * OPEN_AFTER):
        assert here.post() is None
    here.world.run(0.01)
    assert [wire.address for wire in here.wires] == ["a1"]
    handle = posted(here.post())
    assert len(here.wires) == 1
    here.answer()
    assert (handle.result().queue_offset, handle.result().status) == (7, SendStatus.OK)
    assert here.world.sent == []
    assert here.world.idle()


def test_two_threads_that_ask_for_a_connection_at_once_get_one(way: Any) -> None:
    here = way({"a": 1})
    for _ in range(2):
        for _ in range(OPEN_AFTER):
            assert here.post() is None
        here.posting._wanted.clear()  # as if one had not seen what the other counted
    here.world.run(0.01)
    assert sorted(wire.open for wire in here.wires) == [False, True]
    assert here.post() is not None
    assert [len(wire.posted) for wire in here.wires] == [wire.open for wire in here.wires]


def test_what_comes_meanwhile_goes_together_on_the_ordinary_path(way: Any) -> None:
    here = way({"a": 1}).opened()
    first = posted(here.post())
    assert here.post() is None
    others = [here.world.send() for _ in range(3)]
    here.world.run(0.1)
    assert here.world.sent == [], "it is in flight"
    here.answer()
    here.world.until_done(*others)
    assert first.done()
    assert len(here.world.sent) == 1
    assert here.post() is not None


def test_a_lane_that_is_new_or_at_work_goes_the_ordinary_way(way: Any) -> None:
    here = way({"a": 1}).opened()
    assert here.post(Pin(A0)) is None, "no lane yet"
    handle = here.world.send()
    assert here.post() is None, "one waits"
    here.world.until_done(handle)
    here.world.change({"a": 1}, {"a": ""})
    assert here.post() is None, "no master"
    here.world.change({"a": 1})
    assert here.post(body=b"x" * (SMALL_BYTES + 1)) is None
    here.world.engine.accumulator.buffered = 1 << 40
    assert here.post() is None, "the buffer is full"
    here.world.engine.accumulator.buffered = 0
    here.world.run(10.0)
    assert (here.wire.posted, len(here.world.sent), here.world.idle()) == ([], 1, True)
    with pytest.raises(MessageIllegal):
        here.post(body=b"")
    assert here.post() is not None
    here.answer()
    assert here.world.idle()


def test_a_lane_that_another_thread_used_meanwhile(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = way({"a": 1}).opened()
    only, others = here.world.engine.only, []

    def make(*args: Any) -> Any:
        others.append(here.world.send())
        return only(*args)

    monkeypatch.setattr(here.world.engine, "only", make)
    assert here.post() is None
    here.world.until_done(*others)
    assert (here.wire.posted, len(here.world.sent)) == ([], 1)


def test_messages_that_come_fast_travel_together(way: Any) -> None:
    here = way({"a": 1}).opened()
    for _ in range(200):
        here.world.run(0.0001)
        if here.post() is not None:
            here.answer()
    assert 0 < len(here.wire.posted) < 200
    assert here.post() is None
    here.world.run(0.2)
    here.world.until_done(here.world.send())  # the first one that comes slowly
    assert here.post() is not None


def test_a_pinned_lane_keeps_its_order(way: Any) -> None:
    here = way({"a": 2}).opened()
    here.world.until_done(here.world.send(A1))
    here.world.sent.clear()
    first = posted(here.post(Pin(A1)))
    assert here.wire.posted[-1].ext["e"] == "1"
    second = here.world.send(A1)
    here.world.run(0.5)
    assert here.world.sent == []
    here.answer(14)
    here.world.until_done(first, second)
    bodies = [sent.command.body for sent in here.world.sent]
    assert [sent.queue for sent in here.world.sent] == [A1, A1]
    assert bodies[0] == bytes(here.wire.posted[-1].body), "the refused one first"


def test_posts_go_round_the_queues_also_if_some_take_the_ordinary_path(way: Any) -> None:
    here = way({"a": 4}).opened()
    queues = []
    for number in range(40):
        if number % 2:
            with here.posting._lines["a1"]._turn:  # another thread posts
                assert here.post() is None
            handle = here.world.send()
            here.world.until_done(handle)
            queues.append(here.world.sent[-1].queue.queue_id)
        else:
            assert here.post() is not None
            queues.append(int(here.wire.posted[-1].ext["e"]))
            here.answer()
    assert queues == [queues[0], *((queues[0] + n) % 4 for n in range(1, 40))]


def test_few_posts_are_on_their_way_at_once(way: Any) -> None:
    here = way({"a": 8}).opened()
    lanes = [Pin(MessageQueue("T", "a", number)) for number in range(8)]
    for pin in lanes:
        here.world.engine.accumulator.lane("T", pin)
    handles = [here.post(pin) for pin in lanes]
    assert [handle is not None for handle in handles] == [n < UNDER_WAY for n in range(8)]
    for number in (2, 0, 3, 1):
        here.answer(number=number)
        assert posted(handles[number]).done()
    assert here.post(lanes[7]) is not None


@pytest.mark.parametrize(
    ("code", "retries", "outcome"),
    [(13, 2, MessageIllegal), (1, 0, SaturnError), (14, 2, SendStatus.OK), (10, 2, SendStatus.OK)],
)
def test_refusals_are_those_of_any_send(way: Any, code: int, retries: int, outcome: Any) -> None:
    here = way({"a": 1}, retries=retries, retry_unless_stored=True).opened()
    handle = posted(here.post())
    here.answer(code)
    found = here.world.outcome(handle)
    assert found is outcome or isinstance(found, outcome)
    assert len(here.world.sent) == (outcome is SendStatus.OK)
    assert handle.batch.unsure == (code in {1, 10})
    assert here.world.idle()


@pytest.mark.parametrize("options", [{}, {"send_timeout": 1.0}, {"delivery_timeout": 1.5}])
def test_an_answer_that_does_not_come_is_given_up(way: Any, options: dict[str, float]) -> None:
    here = way({"a": 1}, retries=0, **options).opened()
    lane = here.world.engine.accumulator.lane("T", None if "send_timeout" in options else Pin(A0))
    here.world.until_done(here.world.send())
    began = here.world.now
    handle = posted(here.post(lane.pinned))
    limit_s = next(iter(options.values()), 3.0)
    here.world.answer = lambda _: None
    here.world.run(limit_s - 0.01)
    assert (handle.batch.attempts, here.wire.open) == (1, True)
    here.world.run(1.0)
    assert not here.wire.open, "nothing came on it since"
    assert isinstance(here.world.outcome(handle), RequestTimeout)
    assert here.world.now - began < 10 if lane.pinned is None else 200
    assert here.world.idle()


def test_a_line_that_answers_others_outlives_an_answer_that_does_not_come(way: Any) -> None:
    here = way({"a": 2}).opened()
    here.world.engine.accumulator.lane("T", Pin(A1))
    lost = posted(here.post())
    for _ in range(7):
        here.world.run(0.5)
        assert here.post(Pin(A1)) is not None
        here.answer()
    assert here.wire.open
    assert here.world.outcome(lost) is SendStatus.OK, "of the next attempt"
    assert (lost.batch.unsure, len(here.world.sent)) == (True, 1)
    here.answer(number=0)  # late
    assert here.wire.open


def test_a_line_is_watched_only_while_it_is_used(way: Any) -> None:
    here = way({"a": 1}).opened()
    calls: list[float] = []
    woken: list[object] = []
    call_on_loop = here.world.engine.call_on_loop

    def wake(call: Callable[[], None]) -> None:
        woken.append(call)
        call_on_loop(call)

    here.world.engine.call_on_loop = wake
    later = here.world.runtime.call_later

    def noted(delay: float, *args: Any) -> Any:
        calls.append(delay)
        return later(delay, *args)

    here.world.runtime.call_later = noted
    for _ in range(2):
        for _ in range(20):
            posted(here.post())
            here.answer()
            here.world.run(0.5)
        here.world.run(10.0)
        assert len(woken) == 1
        assert 10 <= len(calls) <= 20
        calls.clear()
        woken.clear()
        here.world.run(20.0)
        assert calls == []


def test_a_lost_connection_fails_what_waits_on_it(way: Any) -> None:
    here = way({"a": 1}).opened()
    handle = posted(here.post())
    here.wire.failure = ConnectionLost("gone")
    here.loop.readers[0]()
    began = here.world.now
    assert here.world.outcome(handle) is SendStatus.OK
    assert here.world.now - began < 0.5
    assert (handle.batch.attempts, handle.batch.unsure) == (2, True)
    assert (here.wire.open, here.loop.readers) == (False, {})
    here.world.run(61.0)  # the broker is well again
    here.opened()
    assert here.post() is not None
    assert len(here.wires) == 2


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), KeyboardInterrupt()], ids=repr)
def test_a_line_on_which_a_write_failed_is_not_used_again(way: Any, failure: BaseException) -> None:
    here = way({"a": 2}).opened()
    here.world.engine.accumulator.lane("T", Pin(A1))
    here.wire.failure = failure
    if isinstance(failure, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            here.post()
        assert here.post(Pin(A1)) is None
    else:
        handle = posted(here.post())
        assert here.post(Pin(A1)) is None
        assert here.world.outcome(handle) is SendStatus.OK
        assert here.world.now < 0.5
    here.world.run(61.0)
    assert (here.wire.open, here.world.idle()) == (False, True)
    assert here.opened().post() is not None


def test_an_interrupt_before_the_batch_counts_leaves_nothing(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = way({"a": 1}).opened()

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(here.world.sender, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        here.post()
    here.world.run(61.0)
    assert (here.wire.open, here.world.idle(), here.world.sent) == (False, True, [])


def test_the_loop_writes_what_the_socket_had_no_room_for(way: Any) -> None:
    here = way({"a": 2}).opened()
    here.world.engine.accumulator.lane("T", Pin(A1))
    here.wire.room = 1
    handle = posted(here.post())
    assert here.post(Pin(A1)) is None, "the rest goes first"
    here.world.run(0.001)
    here.loop.writers[0]()
    assert (here.wire.written, list(here.loop.writers)) == ([b"head"], [0])
    here.wire.room = 10
    here.loop.writers[0]()
    assert (here.wire.written, here.loop.writers) == ([b"head", here.wire.posted[0].body], {})
    assert here.post(Pin(A1)) is not None
    here.answer(number=0)
    assert handle.result().ok


def test_a_connection_that_is_lost_before_the_rest_was_written(way: Any) -> None:
    here = way({"a": 1}).opened()
    here.wire.room = 1
    handle = posted(here.post())
    here.world.run(0.001)
    here.wire.failure = ConnectionLost("gone")
    here.loop.writers[0]()
    assert here.world.outcome(handle) is SendStatus.OK
    assert (here.wire.open, here.loop.writers, here.loop.readers) == (False, {}, {})


def test_a_connection_that_ends_before_the_loop_hears_of_the_rest(way: Any) -> None:
    here = way({"a": 1}).opened()
    here.wire.room = 1
    handle = posted(here.post())
    line = here.posting._lines["a1"]
    line.end("a test says so")
    line.end("and once more")
    assert here.world.outcome(handle) is SendStatus.OK
    assert here.loop.writers == {}


@pytest.mark.parametrize(
    ("master", "waits_s", "left"), [("a3", 1.1, True), ("a3", 0.9, False), ("a1", 1.1, False)]
)
def test_a_post_waits_for_a_silent_master_that_was_succeeded_for_a_second(
    way: Any, master: str, waits_s: float, left: bool
) -> None:
    here = way({"a": 1}).opened()
    handle = posted(here.post())
    here.wire.used_at = here.world.loop.time()  # so that the second counts from the change on
    here.world.change({"a": 2}, {"a": master})
    here.world.run(waits_s)
    assert here.wire.open == (not left)
    if left:
        assert here.world.outcome(handle) is SendStatus.OK
        assert here.world.sent[-1].address == "a3"


def test_a_master_that_was_succeeded_and_still_answers_is_not_left(way: Any) -> None:
    here = way({"a": 2}).opened()
    here.world.engine.accumulator.lane("T", Pin(A1))
    slow = posted(here.post())
    assert here.post(Pin(A1)) is not None
    here.world.change({"a": 3}, {"a": "a3"})
    here.world.run(0.5)
    here.answer()
    here.world.run(1.0)
    assert here.wire.open
    here.answer(number=0)
    assert slow.result().ok


def test_a_line_whose_answer_is_late_is_no_line_that_rested(way: Any) -> None:
    here = way({"a": 2}, send_timeout=200.0).opened()
    here.world.engine.accumulator.lane("T", Pin(A1))
    slow = posted(here.post())
    here.world.run(posting.REST_S + 1.0)
    assert here.post(Pin(A1)) is not None
    here.answer(number=0)
    assert slow.result().ok


def test_a_line_without_posts_outlives_its_masters_successor(way: Any) -> None:
    here = way({"a": 1}).opened()
    here.world.change({"a": 2}, {"a": "a3"})
    here.world.run(2.0)
    assert here.wire.open
    assert here.opened().post() is not None
    assert here.wire.address == "a3"


def test_a_line_that_rested_for_long_is_left(way: Any) -> None:
    here = way({"a": 1}).opened()
    here.world.run(posting.REST_S - 0.1)
    assert posted(here.post()) is not None
    here.answer()
    here.world.run(posting.REST_S + 0.1)
    assert here.post() is None
    here.world.run(0.01)
    assert not here.wire.open
    assert here.opened().post() is not None


def test_a_closed_producer_and_a_forked_one_post_nothing(way: Any) -> None:
    here = way({"a": 1}).opened()
    handle = posted(here.post())
    here.posting.refuse()
    assert here.post() is None
    assert here.wire.open, "an answer may come"
    here.posting.close()
    assert here.world.outcome(handle) is SendStatus.OK  # the engine goes on in this test
    assert not here.wire.open
    child = way({"a": 1}).opened()
    child.posting.forked()
    assert child.post() is None
    late = way({"a": 1})
    for _ in range(OPEN_AFTER):
        assert late.post() is None
    late.posting.close()
    late.world.run(0.01)
    assert [wire.open for wire in late.wires] == [False]

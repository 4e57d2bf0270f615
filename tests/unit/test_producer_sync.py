"""The synchronous producer's own part: its thread, which way a send takes, and how calls end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import client_fakes as fakes
import pytest
from saturnmq.client.blocking import Producer
from saturnmq.client.loop_thread import LoopThread
from saturnmq.client.producer.lanes import Pin
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.errors import (
    ClientClosed,
    ConnectFailed,
    InvalidParameter,
    MessageIllegal,
    RequestTimeout,
    TopicNotExist,
)

A0, A1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
WAIT_S = 5.0


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Topic T with two queues on broker a."""
    with fakes.threaded("a") as made:
        yield made


def x() -> Message:
    return Message("T", b"x")


# -- the thread ------------------------------------------------------------------------------------


def test_a_loop_in_a_thread_runs_what_other_threads_ask_for() -> None:
    thread = LoopThread("some name")
    (running,) = [each for each in threading.enumerate() if each.name == "some name"]
    assert running.daemon
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def late() -> None:
        raise TimeoutError("its own")

    async def inside() -> None:
        thread.run(asyncio.sleep(0))

    assert thread.call(lambda a, *, b: (a, b), 1, b=2) == (1, 2)
    with pytest.raises(TimeoutError, match="its own"):
        thread.run(late(), 10.0)
    with pytest.raises(RequestTimeout, match=r"not done in 0\.01 s"):
        thread.run(hang(), 0.01)
    assert cancelled.wait(WAIT_S)
    with pytest.raises(RuntimeError, match="would never return"):
        thread.run(inside())
    cancelled.clear()
    thread.call(lambda: thread.runtime.spawn(hang()))
    thread.close()
    assert cancelled.is_set()
    assert not running.is_alive()
    with pytest.raises(ClientClosed, match="the client is closed"):
        thread.run(asyncio.sleep(0))
    thread.close()


def test_who_waits_for_a_loop_that_is_closed_hears_that() -> None:
    thread = LoopThread("is closed")
    begun = threading.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CancelledError):
        thread.run(give_up())
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(thread.run, hang())
        assert begun.wait(WAIT_S)
        thread.close()
        with pytest.raises(ClientClosed, match="closed meanwhile"):
            waiting.result(WAIT_S)


def test_a_loop_may_be_closed_from_its_own_thread() -> None:
    thread = LoopThread("ends itself")
    (running,) = [each for each in threading.enumerate() if each.name == "ends itself"]
    thread.call(thread.close)
    running.join(WAIT_S)
    assert not running.is_alive()


# -- life ------------------------------------------------------------------------------------------


def test_a_producer_is_used_between_its_start_and_its_end(cluster: Any) -> None:
    made = Producer("senders", cluster.address)
    made.close()
    with pytest.raises(ClientClosed, match="not started"):
        made.send(x())
    with pytest.raises(ClientClosed, match="not started"):
        made.send_async(x())
    before = threading.active_count()
    with made as entered:
        assert entered is made
        engine = made.engine
        assert made.start().engine is engine
        for _ in range(3):
            assert made.send(x()).ok
        assert len(cluster.brokers["a"].endpoints) == 2, "one of the loop, one of this thread"
    made.close()
    assert threading.active_count() == before
    deadline = time.monotonic() + WAIT_S
    while not all(endpoint.closed for endpoint in cluster.brokers["a"].endpoints):
        assert time.monotonic() < deadline, "a connection was left open"
        time.sleep(0.001)
    with pytest.raises(ClientClosed):
        made.send(x())
    with pytest.raises(ClientClosed):
        made.send_async(x())


def test_a_producer_that_cannot_start_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(InvalidParameter, match="no-group"):
        Producer("no-group!", "127.0.0.1:1").start()
    assert threading.active_count() == before


# -- ways ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("timeout", "express"), [(None, 1), (3.0, 1), (2.9, 0), (4.0, 1)])
def test_a_send_that_may_take_its_time_stays_in_its_thread(
    cluster: Any, timeout: float | None, express: int
) -> None:
    with Producer("senders", cluster.address) as producer:
        producer.send(x())
        broker = cluster.brokers["a"]
        connections = len(broker.endpoints)
        assert producer.send(x(), timeout=timeout).ok
        assert len(broker.endpoints) - connections == express


def test_results_of_all_calls_are_those_of_their_messages(cluster: Any) -> None:
    with Producer("senders", cluster.address, retry_unless_stored=True) as producer:
        assert [producer.send(x(), queue=A1).queue_offset for _ in range(3)] == [0, 1, 2]
        results = producer.send_batch([x(), x()], queue=A1)
        assert [(each.queue, each.queue_offset) for each in results] == [(A1, 3), (A1, 4)]
        assert producer.send_async(x(), queue=A1).result(WAIT_S).queue_offset == 5
        assert producer.send(x(), selector=lambda queues, _: queues[1]).queue == A1
        # The first attempt in this thread is stored short of its ack mode, the next one is made
        # on the loop.
        refused = iter([(10, None)])
        cluster.brokers["a"].answer = lambda _: next(refused, None)
        assert producer.send(x(), queue=A1).queue_offset == 8
        assert producer.send_batch([x()])[0].queue.broker_name == "a"
        cluster.brokers["a"].answer = lambda _: (13, "too large")
        with pytest.raises(MessageIllegal):
            producer.send_batch([x()], queue=A1)


def test_a_send_with_a_queue_a_key_or_a_selector_goes_where_that_says(cluster: Any) -> None:
    """Also while a batch without any of them is open, which would take it at once."""
    goes_on = threading.Event()
    with Producer("senders", cluster.address, in_flight=1) as producer:
        places = {producer.send(x(), sharding_key=key).queue: key for key in "abcdefgh"}
        ways: list[dict[str, Any]] = [
            {"queue": A0},
            {"queue": A1},
            {"sharding_key": places[A0]},
            {"sharding_key": places[A1]},
            {"selector": lambda queues, _: queues[0]},
            {"selector": lambda queues, _: queues[1]},
        ]
        cluster.brokers["a"].answer = lambda _: goes_on.wait(WAIT_S) and None
        for _ in range(3):
            producer.send_async(x())
        handles = [producer.send_async(x(), **way) for way in ways]
        goes_on.set()
        assert [handle.result(WAIT_S).queue for handle in handles] == [A0, A1] * 3


def test_only_a_key_or_a_selector_asks_for_the_route_and_once(cluster: Any) -> None:
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"x", sharding_key="k"))
        asked = cluster.asked
        assert asked > 0
        assert producer.send(Message("T", b"x", sharding_key="k"), queue=A1).queue == A1
        producer.send(x(), sharding_key="k")
        producer.send(x(), selector=lambda queues, _: queues[0])
        assert cluster.asked == asked
        with pytest.raises(TopicNotExist):
            producer.send(Message("other", b"x"), sharding_key="k")


def test_what_was_encoded_says_whether_a_key_chose_its_queue(cluster: Any) -> None:
    body = bytes(encode_batch([(b"1", b"UNIQ_KEY\x01U\x02", 0)]))
    with Producer("senders", cluster.address) as producer:
        assert producer.queues("T") == [A0, A1]
        number = producer.engine.round("T").number
        assert number > 0
        plain = producer.send_encoded("T", body, 1)
        named = producer.send_encoded("T", body, 1, queue=A1)
        keyed = producer.send_encoded("T", body, 1, queue=A1, keyed=True)
        for batch in (plain, named, keyed):
            batch.wait(WAIT_S)
        pins = [batch.lane.pinned for batch in (plain, named, keyed)]
        assert pins == [None, Pin(A1), Pin(A1, number)]
        assert plain.sys_flag == 0
        with pytest.raises(TopicNotExist):
            producer.queues("other")


def test_a_oneway_send_finds_its_route_and_arrives(cluster: Any) -> None:
    with Producer("senders", cluster.address) as producer:
        for number in (1, 2):
            producer.send_oneway(x())
            producer.send_oneway(x(), queue=A1)
            deadline = time.monotonic() + WAIT_S
            while len(cluster.brokers["a"].bodies()) < 2 * number:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert cluster.asked == 1


# -- waiting ---------------------------------------------------------------------------------------


def test_calls_end_in_their_time_and_close_fails_what_is_left(cluster: Any) -> None:
    producer = Producer("senders", cluster.address).start()
    producer.send(x())
    cluster.brokers["a"].answer = lambda _: "silence"
    with pytest.raises(RequestTimeout, match=r"no acknowledgement in 0\.02 s; the send goes on"):
        producer.send(x(), timeout=0.02)
    with pytest.raises(RequestTimeout, match=r"no acknowledgement in 0\.02 s"):
        producer.send_batch([x()], timeout=0.02)
    with pytest.raises(RequestTimeout, match=r"not done in 0\.02 s"):
        producer.flush(0.02)
    handle = producer.send_async(x())
    producer.close(0.02)
    assert isinstance(handle.exception(), ClientClosed)


def test_who_sends_more_than_there_is_room_for_is_held_up_until_there_is(cluster: Any) -> None:
    goes_on = threading.Event()

    def answer(_: Any) -> None:
        goes_on.wait(WAIT_S)

    with Producer("senders", cluster.address, buffer_bytes=300, batch_bytes=100) as producer:
        producer.send(x())
        cluster.brokers["a"].answer = answer
        handles: list[Any] = []

        def work() -> None:
            handles.extend(producer.send_async(x()) for _ in range(20))

        sender = threading.Thread(target=work)
        sender.start()
        sender.join(0.2)
        assert sender.is_alive()
        goes_on.set()
        sender.join(WAIT_S)
        assert [handle.result(WAIT_S).ok for handle in handles] == [True] * 20


def test_what_a_program_leaves_behind_is_sent_or_told(cluster: Any) -> None:
    producer = Producer("senders", cluster.address).start()
    producer.send(x())
    handle = producer.send_async(x())
    assert producer._settle(WAIT_S) is None
    assert handle.result().ok
    producer = Producer("senders", cluster.address).start()
    producer.send(x())
    cluster.brokers["a"].answer = lambda _: "silence"
    producer.send_async(x())
    began = time.monotonic()
    assert producer._settle(0.1) == ("senders", 1, "no acknowledgement in 0.1 s")
    assert time.monotonic() - began < 2.0
    with pytest.raises((ClientClosed, ConnectFailed)):
        producer.send(x())

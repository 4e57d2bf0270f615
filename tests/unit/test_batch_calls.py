"""Whole batches and callbacks: the kernel beside the checked way, batches in flight and without the
loop, and calls that fail, race or come late."""

from __future__ import annotations

import logging
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import client_fakes as fakes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from producer_world import A0, clusters
from saturnmq import aio
from saturnmq.client.blocking import Producer
from saturnmq.client.kernels import Outbox
from saturnmq.client.loop_thread import LoopThread
from saturnmq.client.producer import accumulator
from saturnmq.client.producer import engine as engine_module
from saturnmq.client.producer.accumulator import Accumulator
from saturnmq.client.producer.batch import BATCH_COUNT_MAX, ProducerBatch, SendHandle
from saturnmq.client.producer.batch_reference import Outbox as ReferenceOutbox
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.message import Message
from saturnmq.runtime.errors import ConnectionLost, MessageIllegal, SaturnError
from saturnmq.runtime.native import NativeRuntime

BODIES: st.SearchStrategy[Any] = st.one_of(
    st.binary(max_size=40),
    st.just(b"x" * 300),
    st.just(bytearray(b"other")),
    st.integers(0, 20).map(lambda count: memoryview(array("d", [1.0] * count))),
)
NAMES = st.sampled_from(["a", "KEYS", "TAGS", "WAIT", "UNIQ_KEY", "DELAY", "\x01", "", "Ä"])
VALUES = st.sampled_from(["", "1", "two words", "\x02", "v" * 200])
MESSAGES = st.builds(
    lambda topic, body, properties, flag: Message(topic, body, properties=properties, flag=flag),
    st.sampled_from(["T", "T", "T", "T", "U"]),
    BODIES,
    st.dictionaries(NAMES, VALUES, max_size=2),
    st.integers(-3, 3),
)


@pytest.fixture
def cluster() -> Iterator[Callable[..., Any]]:
    with clusters() as made:
        yield made


@pytest.fixture
def brokers() -> Iterator[Any]:
    with fakes.threaded("a", "b") as made:
        yield made


def bodies(made: Any) -> list[bytes]:
    return sorted(body for broker in made.brokers.values() for body in broker.bodies())


# -- the kernel beside the checked way --------------------------


def made_of(engine: Any, messages: list[Message]) -> Any:
    """What becomes of `messages`: a batch without the ids that differ each time, or an error."""
    try:
        batch = engine.batch_of(messages, None)
    except SaturnError as error:
        return type(error), str(error)
    body = bytes(batch.body).replace(batch.id_head, b"-" * len(batch.id_head))
    return body, batch.count, batch.given_ids


@given(st.lists(MESSAGES, max_size=8))
@settings(max_examples=400, deadline=None)
def test_a_packed_batch_is_the_one_that_the_checked_way_makes(messages: list[Message]) -> None:
    with clusters() as cluster, pytest.MonkeyPatch.context() as patch:
        engine = cluster({"a": 1}, max_message_bytes=900).engine
        engine.batch_of([Message("T", b"the topic is known")], None)
        packed = made_of(engine, messages)
        patch.setattr(engine_module, "pack", lambda *_: False)
        assert made_of(engine, messages) == packed


def test_a_batch_of_more_messages_than_ids_is_refused(cluster: Any) -> None:
    engine = cluster({"a": 1}, max_message_bytes=64 << 20).engine
    message = Message("T", b"x")
    for _ in range(2):  # at first the topic is not known
        assert engine.batch_of([message] * BATCH_COUNT_MAX, None).count == BATCH_COUNT_MAX
        with pytest.raises(MessageIllegal, match=r"65537 messages exceeds the limit of 65536"):
            engine.batch_of([message] * (BATCH_COUNT_MAX + 1), None)


# -- batches in flight ------------------------------------------


def test_batches_are_in_flight_at_once_and_each_is_stored_together(brokers: Any) -> None:
    with Producer("senders", brokers.address, buffer_bytes=100_000) as producer:
        sent = [
            producer.send_batch_async([Message("T", b"%d %d" % (n, k)) for k in range(50)])
            for n in range(60)
        ]
        for handles in sent:
            results = [handle.result(10) for handle in handles]
            assert len({result.queue for result in results}) == 1
            first = results[0].queue_offset
            assert [result.queue_offset for result in results] == list(range(first, first + 50))
    assert bodies(brokers) == sorted(b"%d %d" % (n, k) for n in range(60) for k in range(50))


def test_on_a_loop_they_are_too(brokers: Any) -> None:
    thread = LoopThread()

    async def main() -> None:
        async with aio.Producer("senders", brokers.address, runtime=thread.runtime) as producer:
            sent = [
                await producer.send_batch_async(
                    [Message("T", b"%d" % (10 * n + k)) for k in range(10)]
                )
                for n in range(10)
            ]
            for handles in sent:
                assert len({(await handle).queue for handle in handles}) == 1
            with pytest.raises(MessageIllegal):
                await producer.send_batch_async([Message("T", b"")])

    thread.run(main())
    thread.close()
    assert bodies(brokers) == sorted(b"%d" % n for n in range(100))


@pytest.mark.skipif(Outbox is ReferenceOutbox, reason="needs the compiled outbox")
def test_batches_of_a_stream_share_requests_and_each_is_stored_together(
    brokers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "REST_MS", 60_000)  # however busy the machine is
    thread = LoopThread()

    async def main() -> None:
        async with aio.Producer("senders", brokers.address, runtime=thread.runtime) as producer:
            sent = [
                await producer.send_batch_async(
                    [Message("T", b"%d %d" % (n, k), tag="t") for k in range(50)]
                )
                for n in range(300)
            ]
            for n, handles in enumerate(sent):
                results = [await handle for handle in handles]
                [queue] = {result.queue for result in results}
                log = brokers.brokers[queue.broker_name].log[queue.queue_id]
                first = results[0].queue_offset
                for k, (handle, result) in enumerate(zip(handles, results, strict=True)):
                    assert result.queue_offset == first + k
                    body, properties = log[first + k]
                    assert (body, properties["TAGS"]) == (b"%d %d" % (n, k), "t")
                    assert properties["UNIQ_KEY"] == handle.message_id == result.message_id

    thread.run(main())
    thread.close()
    requests = sum(len(broker.sent(320)) for broker in brokers.brokers.values())
    assert 32 < requests < 100, "the first 32 batches at least go alone, later ones together"


def test_a_lone_batch_never_leaves_its_thread(brokers: Any) -> None:
    with Producer("senders", brokers.address) as producer:
        producer.send(Message("T", b"warm"))
        producer.engine.sender.pump = lambda: pytest.fail("the loop sends")  # type: ignore[method-assign]
        results = producer.send_batch([Message("T", b"%d" % n) for n in range(5)])
        assert [result.queue_offset - results[0].queue_offset for result in results] == [*range(5)]
        assert len({result.message_id for result in results}) == 5
    assert bodies(brokers) == [b"0", b"1", b"2", b"3", b"4", b"warm"]


def test_a_batch_that_is_refused_for_now_goes_to_the_other_broker(brokers: Any) -> None:
    with Producer("senders", brokers.address) as producer:
        producer.send(Message("T", b"warm"))
        brokers.brokers["a"].answer = lambda _: (14, "disk full")
        for _ in range(4):
            results = producer.send_batch([Message("T", b"1"), Message("T", b"2")])
            assert {result.queue.broker_name for result in results} == {"b"}
    assert bodies(brokers) == [b"1"] * 4 + [b"2"] * 4 + [b"warm"]


# -- callbacks --------------------------------------------------


def senders() -> tuple[Accumulator, Any]:
    runtime = NativeRuntime()
    made = Accumulator(
        threading.Lock(),
        lambda: 0,
        UniqueIds(runtime, "127.0.0.1", 1, salt=0),
        lambda: None,
        lambda *_: None,
        lambda _: None,  # type: ignore[arg-type, return-value]  # nobody waits in a task
        batch_bytes=1 << 20,
        buffer_bytes=1 << 30,
        alone_from=4096,
        first_queue=lambda: 0,
    )
    return made, made.lane("T", None)


def filled(made: Accumulator, lane: Any, count: int) -> tuple[ProducerBatch, list[SendHandle]]:
    handles = [made.append(lane, b"x", b"", 0, "") for _ in range(count)]
    batch = made.pop(lane)
    assert {handle.batch for handle in handles if handle is not None} == {batch}
    return batch, handles  # type: ignore[return-value]  # not after the assertion


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit("mine")])
def test_callbacks_come_in_order_and_one_that_raises_keeps_no_other_from_its_answer(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    made, lane = senders()
    batch, (first, second, third) = filled(made, lane, 3)
    told: list[Any] = []

    def fail(_: SendHandle) -> None:
        raise error

    first.add_done_callback(told.append)
    second.add_done_callback(fail)
    assert made.watch(batch, lambda: told.append("over"))
    third.add_done_callback(told.append)
    third.add_done_callback(lambda handle: told.append(handle.exception()))
    assert told == []
    lost = ConnectionLost("lost")
    with caplog.at_level(logging.ERROR):
        made.finish(batch, lost)
    assert told == [first, third, lost, "over"]
    assert "the callback of a send raised" in caplog.text
    assert f"{type(error).__name__}: mine" in caplog.text
    second.add_done_callback(told.append)  # late
    assert told[4:] == [second]


def test_each_callback_is_made_once_while_the_batch_ends() -> None:
    made, lane = senders()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            batch, handles = filled(made, lane, 60)
            told: list[SendHandle] = []
            handles[0].add_done_callback(told.append)
            begun = threading.Event()

            def end(batch: ProducerBatch = batch, begun: threading.Event = begun) -> None:
                begun.wait()
                made.finish(batch)

            thread = threading.Thread(target=end)
            thread.start()
            for handle in handles[1:]:
                begun.set()
                handle.add_done_callback(told.append)
            thread.join()
            assert sorted(handle.index for handle in told) == list(range(60))
    finally:
        sys.setswitchinterval(interval)


def test_a_stream_with_callbacks_is_a_stream() -> None:
    made, lane = senders()
    counts = []
    for _ in range(14_000):
        handle = made.append(lane, bytes(1000), b"", 0, "")
        assert handle is not None
        handle.add_done_callback(lambda _: None)
    while made.head(lane) is not None:
        counts.append(made.pop(lane).count)
    assert max(counts) > 900


def test_a_forked_child_is_refused_a_callback_too(cluster: Any) -> None:
    made, lane = senders()
    _, (first, second) = filled(made, lane, 2)
    first.add_done_callback(print)
    made.forked()
    with pytest.raises(SaturnError, match="make a new one in process"):
        second.add_done_callback(print)


def test_a_batch_for_one_queue_is_packed_for_that_queue(cluster: Any) -> None:
    world = cluster({"a": 2})
    pinned = world.engine.pin(A0)
    for _ in range(2):
        batch = world.engine.batch_of([Message("T", b"x")], pinned)
        assert (batch.queue, batch.lane.pinned) == (A0, pinned)

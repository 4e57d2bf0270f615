"""The producer against scripted brokers: batching, placement, retries, order, faces."""

import asyncio
import dataclasses
import gc
import inspect
import sys
import threading
import zlib

import client_fakes as fakes
import pytest
from client_fakes import run_producer as run
from saturnmq.client.blocking import Producer as BlockingProducer
from saturnmq.client.producer.batch import ProducerBatch
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.producer import Producer
from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime.errors import (
    AccessDenied,
    ConnectFailed,
    InSyncReplicasNotEnough,
    MessageIllegal,
    RequestTimeout,
    SaturnError,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
)


def test_a_send_says_where_the_message_lies():
    async def test(cluster, producer):
        result = await producer.send(Message("T", b"hello", tag="x", keys=["k1", "k2"]))
        assert result.status is SendStatus.OK
        broker = cluster.brokers["a"]
        ((body, properties),) = broker.log[result.queue.queue_id]
        assert body == b"hello"
        assert properties["UNIQ_KEY"] == result.message_id
        assert (properties["WAIT"], properties["TAGS"], properties["KEYS"]) == (
            "true",
            "x",
            "k1 k2",
        )
        assert result.queue_offset == 0

    run(test)


def test_many_sends_share_few_requests_and_each_knows_its_own_offset():
    async def test(cluster, producer):
        handles = [await producer.send_async(Message("T", b"%d" % n)) for n in range(1000)]
        results = [await handle for handle in handles]
        broker = cluster.brokers["a"]
        for n, result in enumerate(results):
            assert broker.log[result.queue.queue_id][result.queue_offset][0] == b"%d" % n
        sends = [ext for code, ext in broker.requests if code == 320]
        assert len(sends) < 20
        assert len({result.message_id for result in results}) == 1000

    run(test)


def test_a_sharding_key_keeps_order_on_one_queue_through_failures():
    async def test(cluster, producer):
        calls = iter(range(10**6))

        def flaky(cmd):
            return (2, "busy") if next(calls) % 3 == 0 else None

        for broker in cluster.brokers.values():
            broker.answer = flaky
        handles = []
        for n in range(200):
            handles.append(
                await producer.send_async(Message("T", b"%03d" % n), sharding_key="plane")
            )
            if n % 20 == 0:
                await asyncio.sleep(0)
        queues = {(await handle).queue for handle in handles}
        assert len(queues) == 1
        (queue,) = queues
        log = [body for body, _ in cluster.brokers[queue.broker_name].log[queue.queue_id]]
        assert log == [b"%03d" % n for n in range(200)]

    run(test, "a", "b")


def test_sharding_does_not_move_when_a_master_leaves_the_route():
    async def test(cluster, producer):
        await producer.send(Message("T", b"x"))
        engine = producer.engine
        message = Message("T", b"x")
        before = [engine.pin_for(message, None, f"k{n}", None) for n in range(50)]
        cluster.masters.discard("b")
        await producer.core.route("T", refresh=True)
        assert {queue.broker_name for queue in producer.core.publish_queues("T")} == {"a"}
        assert [engine.pin_for(message, None, f"k{n}", None) for n in range(50)] == before

    run(test, "a", "b")


def test_an_unpinned_send_moves_to_another_broker():
    async def test(cluster, producer):
        cluster.brokers["a"].answer = lambda cmd: (14, "disk full")
        for n in range(20):
            assert (await producer.send(Message("T", b"%d" % n))).queue.broker_name == "b"
        assert sum(code == 320 for code, _ in cluster.brokers["a"].requests) <= 1  # back-off

    run(test, "a", "b")


def test_a_silent_broker_costs_one_timeout():
    async def test(cluster, producer):
        cluster.brokers["a"].answer = lambda cmd: "silence"
        for n in range(10):
            assert (await producer.send(Message("T", b"%d" % n))).queue.broker_name == "b"

    run(test, "a", "b", send_timeout=0.3)


def test_a_pinned_send_waits_for_its_broker_to_come_back():
    async def test(cluster, producer):
        broker = cluster.brokers["a"]
        await producer.send(Message("T", b"0"), queue=MessageQueue("T", "a", 0))
        port = int(broker.address.rpartition(":")[2])
        broker.stop()
        sending = asyncio.create_task(
            producer.send(Message("T", b"1"), queue=MessageQueue("T", "a", 0))
        )
        await asyncio.sleep(0.2)
        assert not sending.done()
        await broker.start(port)
        assert (await sending).queue == MessageQueue("T", "a", 0)

    run(test)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_weaker_ack_is_a_status_not_an_error(code, status):
    async def test(cluster, producer):
        cluster.brokers["a"].answer = lambda cmd: (code, "late")
        assert (await producer.send(Message("T", b"x"))).status is status

    run(test)


def test_a_send_whose_write_failed_goes_to_another_broker_or_has_no_result():
    async def test(cluster, producer):
        failing = cluster.brokers["a"]
        failing.answer = lambda cmd: "failed write"
        for n in range(20):
            result = await producer.send(Message("T", b"%d" % n))
            assert (result.ok, result.queue.broker_name) == (True, "b")
        sends = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        assert any(code in sends for code, _ in failing.requests), "it was asked first"
        with pytest.raises(RequestTimeout, match="it may be stored") as caught:
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0))
        assert caught.value.outcome == "unknown"

    run(test, "a", "b", delivery_timeout=1.0)


def test_an_unpinned_send_waits_for_the_only_master_as_long_as_one_attempt_may_take():
    async def test(cluster, producer):
        broker = cluster.brokers["a"]
        await producer.send(Message("T", b"0"))
        port = int(broker.address.rpartition(":")[2])
        broker.stop()
        sending = asyncio.create_task(producer.send(Message("T", b"1")))
        await asyncio.sleep(0.7)  # three quick attempts would be over
        assert not sending.done()
        await broker.start(port)
        assert (await sending).ok
        broker.stop()
        async with asyncio.timeout(5):
            while producer.core.connected(broker.address):
                await asyncio.sleep(0.005)
        began = producer.core.runtime.monotonic()
        with pytest.raises(ConnectFailed) as caught:
            await producer.send(Message("T", b"2"))
        assert 1.0 <= producer.core.runtime.monotonic() - began < 2.0
        assert caught.value.outcome == "rejected"

    run(test, send_timeout=1.0)


def test_until_delivered_means_as_long_as_delivery_may_take_whatever_the_failures():
    async def test(cluster, producer):
        broker = cluster.brokers["a"]
        refusals = iter(range(5))
        broker.answer = lambda cmd: (1, "boom") if next(refusals, None) is not None else None
        assert (await producer.send(Message("T", b"0"))).ok  # two retries would be over
        broker.answer = lambda cmd: (1, "boom")
        with pytest.raises(RequestTimeout, match="not acknowledged in 2 s"):
            await producer.send(Message("T", b"1"))

    run(test, until_delivered=True, delivery_timeout=2.0, send_timeout=0.1)


def test_a_pinned_batch_short_of_its_ack_mode_is_repeated_in_its_place():
    async def test(cluster, producer):
        answers = iter([(12, "late"), (12, "late")])
        cluster.brokers["a"].answer = lambda cmd: next(answers, None)
        queue = MessageQueue("T", "a", 1)
        await producer.engine.route("T")
        handles = [await producer.send_async(Message("T", b"%d" % n), queue=queue) for n in (0, 1)]
        assert [(await handle).status for handle in handles] == [SendStatus.OK] * 2
        assert cluster.brokers["a"].bodies()[-1] == b"1"
        assert set(cluster.brokers["a"].bodies()[:-1]) <= {b"0", b"1"}

    run(test, retry_unless_stored=True)


def test_without_retries_a_send_is_one_attempt():
    async def test(cluster, producer):
        cluster.brokers["a"].answer = lambda cmd: (2, "busy")
        with pytest.raises(SystemBusy):
            await producer.send(Message("T", b"x"))
        assert sum(code == 320 for code, _ in cluster.brokers["a"].requests) == 1

    run(test, retries=0)


def test_two_brokers_that_refuse_are_not_asked_without_end():
    async def test(cluster, producer):
        for broker in cluster.brokers.values():
            broker.answer = lambda cmd: (14, "no")
        with pytest.raises(ServiceNotAvailable):
            await producer.send(Message("T", b"x"))
        sends = sum(code == 320 for b in cluster.brokers.values() for code, _ in b.requests)
        assert 3 < sends < 15

    run(test, "a", "b", send_timeout=1.0)


def test_a_refusal_after_a_lost_attempt_does_not_say_that_nothing_is_stored():
    async def test(cluster, producer):
        answers = iter(["silence", (14, "no"), (14, "no")])
        cluster.brokers["a"].answer = lambda cmd: next(answers, (14, "no"))
        with pytest.raises(ServiceNotAvailable) as caught:
            await producer.send(Message("T", b"x"))
        assert caught.value.outcome == "unknown"

    run(test, send_timeout=0.2)


@pytest.mark.parametrize(
    "remark", ["[IN_SYNC_REPLICAS_NOT_ENOUGH] 1 of 2", "in-sync replicas not enough"]
)
def test_too_few_replicas_is_a_refusal_and_another_broker_is_asked(remark):
    async def test(cluster, producer):
        cluster.brokers["a"].answer = lambda cmd: (1, remark)
        for n in range(4):
            assert (await producer.send(Message("T", b"%d" % n))).queue.broker_name == "b"
        cluster.brokers["b"].answer = lambda cmd: (1, remark)
        with pytest.raises(InSyncReplicasNotEnough) as caught:
            await producer.send(Message("T", b"x"))
        assert (caught.value.outcome, caught.value.code) == ("rejected", 1)

    run(test, "a", "b", send_timeout=0.3)


@pytest.mark.parametrize("pinned", [None, MessageQueue("T", "a", 0)])
def test_a_send_refused_by_a_deposed_master_follows_the_route_to_its_successor(pinned):
    async def test(cluster, producer):
        await producer.send(Message("T", b"0"))
        successor = await fakes.FakeBroker("a", cluster.runtime).start()
        cluster.brokers["a"].answer = lambda cmd: (2, "fenced: another master in epoch 2")
        cluster.replaced["a"] = successor
        await producer.core.runtime.sleep(1.0)  # routes are asked for once a second at most
        assert (await producer.send(Message("T", b"1"), queue=pinned)).ok
        assert successor.bodies() == [b"1"]
        successor.stop()

    run(test)


def test_a_send_does_not_wait_for_a_master_that_hangs_and_was_succeeded():
    async def test(cluster, producer):
        await producer.send(Message("T", b"0"))
        successor = await fakes.FakeBroker("a", cluster.runtime).start()
        cluster.brokers["a"].answer = lambda cmd: "silence"
        began = producer.core.runtime.monotonic()
        sending = asyncio.create_task(producer.send(Message("T", b"1")))
        await asyncio.sleep(0.1)
        cluster.replaced["a"] = successor
        cluster.announce()
        assert (await sending).ok
        assert producer.core.runtime.monotonic() - began < 3
        assert successor.bodies() == [b"1"]
        successor.stop()

    run(test, send_timeout=20.0)


def test_each_way_to_wait_ends_with_its_timeout_and_the_sends_go_on():
    async def test(cluster, producer):
        broker = cluster.brokers["a"]
        broker.answer = lambda cmd: "silence"
        for waiting in (
            producer.send(Message("T", b"1"), timeout=0.05),
            producer.send_batch([Message("T", b"2")], timeout=0.05),
            producer.flush(timeout=0.05),
        ):
            with pytest.raises(RequestTimeout, match=r"0\.05 s"):
                await waiting
        broker.answer = None
        await producer.flush(timeout=20.0)
        assert set(broker.bodies()) == {b"1", b"2"}
        assert await producer.queues("T") == [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]

    run(test, send_timeout=0.3, until_delivered=True)


def test_a_route_that_changed_is_known_at_once_also_by_a_nameserver_that_came_back():
    async def test(cluster, producer):
        core = producer.core
        await producer.send(Message("T", b"0"))
        for _ in range(2):
            for masters in ({"a"}, {"a", "b"}):
                cluster.masters = masters
                cluster.announce()
                async with asyncio.timeout(1):
                    while {q.broker_name for q in core.publish_queues("T")} != masters:
                        await asyncio.sleep(0.005)
            asked = cluster.asked
            port = int(cluster.address.rpartition(":")[2])
            cluster.stop_nameserver()
            await asyncio.sleep(0.2)
            await cluster.start_nameserver(port)
            async with asyncio.timeout(3):
                while cluster.asked == asked:
                    await asyncio.sleep(0.005)

    run(test, "a", "b")


def test_a_broker_that_a_fresh_nameserver_does_not_know_yet_stays_while_it_is_connected(
    monkeypatch,
):
    monkeypatch.setattr("saturnmq.client.route_updater.MISSING_S", 0.5)

    async def test(cluster, producer):
        core = producer.core

        async def listed(*names):
            async with asyncio.timeout(3):
                while {q.broker_name for q in core.publish_queues("T")} != set(names):
                    await asyncio.sleep(0.005)

        for n in range(4):
            await producer.send(Message("T", b"%d" % n))
        cluster.listed = ["a"]
        began = core.runtime.monotonic()
        asked = cluster.asked
        cluster.announce()
        async with asyncio.timeout(3):
            while cluster.asked == asked:
                await asyncio.sleep(0.005)
        await listed("a", "b")
        await listed("a")
        assert core.runtime.monotonic() - began >= 0.5
        cluster.listed = ["a", "b"]
        cluster.announce()
        await listed("a", "b")
        await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b", 0))
        cluster.listed = ["a"]
        cluster.brokers["b"].stop()
        began = core.runtime.monotonic()
        cluster.announce()
        await listed("a")
        assert core.runtime.monotonic() - began < 0.4

    run(test, "a", "b")


def test_a_refusal_is_raised_at_once():
    async def test(cluster, producer):
        cluster.brokers["a"].answer = lambda cmd: (13, "too large: 5 > 4")
        with pytest.raises(MessageIllegal, match="too large"):
            await producer.send(Message("T", b"x"))
        assert sum(code == 320 for code, _ in cluster.brokers["a"].requests) == 1

    run(test)


@pytest.mark.parametrize("remark", ["access denied: no rule", "User:a has no permission to access"])
def test_an_access_that_is_denied_is_not_tried_again(remark):
    async def test(cluster, producer):
        for broker in cluster.brokers.values():
            broker.answer = lambda cmd: (16, remark)
        with pytest.raises(AccessDenied, match=remark):
            await producer.send(Message("T", b"x"))
        assert sum(code == 320 for b in cluster.brokers.values() for code, _ in b.requests) == 1

    run(test, "a", "b")


def test_a_failed_send_leaves_nothing_in_memory():
    async def test(cluster, producer):
        cluster.brokers["a"].answer = lambda cmd: (13, "too large: 5 > 4")
        before = batches()
        for _ in range(3):
            await fail(producer)
        assert batches() <= before  # an earlier test's last one may go

    async def fail(producer):  # the frame is in the tracebacks, and so is the handle
        handle = await producer.send_async(Message("T", b"x"))
        with pytest.raises(MessageIllegal):
            await handle

    def batches():
        gc.collect()
        return sum(isinstance(thing, ProducerBatch) for thing in gc.get_objects())

    run(test)


def test_an_unknown_topic_and_illegal_messages_are_errors():
    async def test(cluster, producer):
        with pytest.raises(TopicNotExist):
            await producer.send(Message("other", b"x"))
        with pytest.raises(MessageIllegal, match="empty"):
            await producer.send(Message("T", b""))
        with pytest.raises(MessageIllegal, match="limit of 100 B"):
            await producer.send(Message("T", b"x" * 101))
        with pytest.raises(SaturnError):
            await producer.send(Message("no such/topic", b"x"))

    run(test, max_message_bytes=100)


def test_delayed_and_large_messages_travel_alone():
    async def test(cluster, producer):
        broker = cluster.brokers["a"]
        await producer.send(Message("T", b"later", delay_level=3))
        await producer.send(Message("T", b"z" * 5000))
        sends = [(code, ext["f"]) for code, ext in broker.requests if code in (310, 320)]
        assert sends == [(310, "0"), (310, str(0x301))]
        assert {len(body) for body in broker.bodies()} == {
            5,
            len(zlib.compress(b"z" * 5000, 5)),
        }

    run(test)


def test_send_batch_is_one_request_on_one_queue():
    async def test(cluster, producer):
        results = await producer.send_batch([Message("T", b"%d" % n) for n in range(10)])
        assert len({result.queue for result in results}) == 1
        assert [result.queue_offset for result in results] == list(range(10))
        assert sum(code == 320 for code, _ in cluster.brokers["a"].requests) == 1

    run(test)


def test_oneway_arrives_without_an_answer():
    async def test(cluster, producer):
        await producer.send_oneway(Message("T", b"fire"))
        async with asyncio.timeout(5):
            while not cluster.brokers["a"].bodies():
                await asyncio.sleep(0.001)

    run(test)


def test_a_full_buffer_blocks_until_there_is_room():
    async def test(cluster, producer):
        for _ in range(200):
            await producer.send_async(Message("T", b"x" * 500))
            assert producer.engine.accumulator.buffered <= 20_000
        await producer.flush()
        assert producer.engine.accumulator.buffered == 0
        assert len(cluster.brokers["a"].bodies()) == 200

    run(test, buffer_bytes=20_000)


@pytest.mark.parametrize("producer", [Producer, BlockingProducer])
def test_an_unknown_option_is_refused_by_its_name(producer):
    with pytest.raises(TypeError, match="send_timout"):
        producer("g", "127.0.0.1:1", send_timout=1)


@pytest.mark.parametrize("producer", [Producer, BlockingProducer])
def test_every_option_is_a_keyword_that_is_explained_and_kept(producer):
    parameters = inspect.signature(producer).parameters
    explained = inspect.getdoc(producer.__init__)
    given = {"latency_table": ((1.0, 2.0),), "compression": "zstd"}
    for field in dataclasses.fields(ProducerOptions):
        parameter = parameters[field.name]
        told = (parameter.kind, parameter.annotation, parameter.default)
        assert told == (parameter.KEYWORD_ONLY, field.type, field.default)
        assert f"\n{field.name}: " in explained
        if isinstance(field.default, bool):
            given[field.name] = not field.default
        elif isinstance(field.default, int | float):
            given[field.name] = field.default + 1

    async def kept():
        return producer("g", "127.0.0.1:1", **given).options

    assert dataclasses.asdict(asyncio.run(kept())) == given


def test_both_producers_say_the_same_of_their_options():
    synchronous, asynchronous = (
        inspect.getdoc(producer.__init__) for producer in (BlockingProducer, Producer)
    )
    assert synchronous == asynchronous


@pytest.fixture
def thread_cluster():
    with fakes.threaded("a", "b") as cluster:
        yield cluster


def test_the_synchronous_face(thread_cluster):
    seen = []
    with BlockingProducer("senders", thread_cluster.address, buffer_bytes=100_000) as producer:
        assert producer.send(Message("T", b"one")).ok
        handles = [producer.send_async(Message("T", b"%d" % n)) for n in range(5000)]
        handles[-1].add_done_callback(seen.append)
        assert all(handle.result(10).ok for handle in handles)
        producer.flush(10)
        assert handles[0].done()
        assert producer.send(Message("T", b"k"), sharding_key="k").ok
        assert len(producer.send_batch([Message("T", b"a"), Message("T", b"b")])) == 2
        with pytest.raises(TopicNotExist):
            producer.send(Message("other", b"x"))
    assert seen == [handles[-1]]
    stored = [body for broker in thread_cluster.brokers.values() for body in broker.bodies()]
    assert len(stored) == 5004


def test_what_was_encoded_elsewhere_is_sent_as_it_is(thread_cluster):
    body = bytes(encode_batch([(b"%d" % n, b"UNIQ_KEY\x01U%d\x02" % n, n) for n in range(3)]))
    queue = MessageQueue("T", "b", 1)
    options = {"buffer_bytes": 2 * len(body)}
    with BlockingProducer("senders", thread_cluster.address, **options) as producer:
        assert [q for q in producer.queues("T") if q.broker_name == "b"][1] == queue
        with pytest.raises(TopicNotExist):
            producer.queues("other")
        batches = [
            producer.send_encoded("T", body, 3, queue=queue, born_ms=77, sys_flag=0x301)
            for _ in range(50)
        ]
        for batch in batches:
            batch.wait(10.0)
        assert {batch.status for batch in batches} == {SendStatus.OK}
        assert [batch.first_offset for batch in batches] == list(range(0, 150, 3))
    log = thread_cluster.brokers["b"].log[1]
    assert log == [(b"%d" % n, {"UNIQ_KEY": f"U{n}"}) for n in range(3)] * 50
    sent = [ext for code, ext in thread_cluster.brokers["b"].requests if code == 320]
    assert {(ext["f"], ext["g"]) for ext in sent} == {("769", "77")}


def test_threads_that_share_a_lane_each_get_the_offsets_of_their_own_messages(thread_cluster):
    """Half of the messages enter their batch by the quick way, half by the slow one."""
    per_thread = 3000
    found = []

    def work(number, producer):
        own = []
        for n in range(per_thread):
            body = b"%d-%d" % (number, n)
            message = Message("T", bytearray(body) if (n + number) % 2 else body)
            own.append((body, producer.send_async(message)))
        found.extend((body, handle.result(30)) for body, handle in own)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with BlockingProducer("senders", thread_cluster.address) as producer:
            threads = [threading.Thread(target=work, args=(n, producer)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert len(found) == 4 * per_thread
    for body, result in found:
        log = thread_cluster.brokers[result.queue.broker_name].log[result.queue.queue_id]
        stored, properties = log[result.queue_offset]
        assert stored == body
        assert properties["UNIQ_KEY"] == result.message_id

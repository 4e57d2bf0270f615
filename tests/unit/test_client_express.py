"""The lone synchronous send, which never leaves its thread, against scripted brokers."""

import re
import threading
import time

import client_fakes as fakes
import pytest
from saturnmq.client import express
from saturnmq.client.blocking import LoopThread, Producer
from saturnmq.client.results import SendStatus
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.errors import (
    ClientClosed,
    ConnectFailed,
    MessageIllegal,
    RequestTimeout,
)
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.native import NativeRuntime
from saturnmq.protocol.remoting import Command


@pytest.fixture
def cluster():
    thread = LoopThread()
    cluster = fakes.FakeCluster(thread.runtime, ("a", "b"))
    thread.run(cluster.start())
    cluster.on_loop = thread.call
    yield cluster
    thread.call(cluster.stop)
    thread.close()


def bodies(cluster):
    return sorted(body for broker in cluster.brokers.values() for body in broker.bodies())


def sends(cluster):
    return sum(code == 320 for broker in cluster.brokers.values() for code, _ in broker.requests)


def test_results_are_those_of_any_send(cluster):
    with Producer("senders", cluster.address) as producer:
        results = [producer.send(Message("T", b"%d" % n, tag="x")) for n in range(20)]
        assert len(producer._express._channels) == 2  # so this way was taken, to both brokers
    for n, result in enumerate(results):
        log = cluster.brokers[result.queue.broker_name].log[result.queue.queue_id]
        body, properties = log[result.queue_offset]
        assert body == b"%d" % n
        assert properties["UNIQ_KEY"] == result.message_id
        assert properties["TAGS"] == "x"
        assert int(result.offset_message_id, 16) == result.queue_offset  # the fake counts them so
    assert len({result.message_id for result in results}) == 20


def test_a_refusal_that_may_pass_is_repeated_on_the_other_broker(cluster):
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"warm"))
        cluster.brokers["a"].answer = lambda cmd: (14, "disk full")
        for n in range(6):
            result = producer.send(Message("T", b"%d" % n))
            assert result.ok
            assert result.queue.broker_name == "b"
    assert bodies(cluster) == sorted([b"warm", *(b"%d" % n for n in range(6))])


def test_a_refusal_that_cannot_pass_is_raised_at_once(cluster):
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"warm"))
        for broker in cluster.brokers.values():
            broker.answer = lambda cmd: (13, "too large")
        before = sends(cluster)
        with pytest.raises(MessageIllegal, match="too large"):
            producer.send(Message("T", b"x"))
        with pytest.raises(MessageIllegal):
            producer.send(Message("T", b""))
        assert sends(cluster) == before + 1


def test_a_silent_broker_costs_one_timeout_and_the_send_goes_elsewhere(cluster):
    with Producer("senders", cluster.address, send_timeout=0.3) as producer:
        producer.send(Message("T", b"warm"))
        cluster.brokers["a"].answer = lambda cmd: "silence"
        for n in range(4):
            assert producer.send(Message("T", b"%d" % n)).queue.broker_name == "b"


def test_a_slow_answer_takes_its_broker_out(cluster):
    def to() -> str:
        return producer.send(Message("T", b"x")).queue.broker_name

    with Producer("senders", cluster.address) as producer:
        to()  # the first finds the route, on the loop
        cluster.brokers["a"].answer = lambda cmd: time.sleep(1.05)
        while to() != "a":
            pass
        cluster.brokers["a"].answer = None
        assert {to() for _ in range(8)} == {"b"}, "for a minute"


def test_a_send_does_not_wait_for_a_master_that_hangs_and_was_succeeded(cluster):
    with Producer("senders", cluster.address, send_timeout=20.0) as producer:
        queue = MessageQueue("T", "a", 0)
        producer.send(Message("T", b"warm"), queue=queue)
        asked = threading.Event()

        def silent(cmd):
            asked.set()
            return "silence"

        def succeed():
            asked.wait(5)
            cluster.replaced["a"] = cluster.brokers["b"]
            cluster.on_loop(cluster.announce)

        cluster.brokers["a"].answer = silent
        operator = threading.Thread(target=succeed)
        operator.start()
        began = time.monotonic()
        assert producer.send(Message("T", b"x"), queue=queue).ok
        assert time.monotonic() - began < 3
        operator.join()
    assert cluster.brokers["b"].bodies() == [b"x"]


def test_a_connection_closed_while_idle_is_noticed_before_it_is_used(cluster, monkeypatch):
    monkeypatch.setattr(express, "IDLE_S", 0.0)
    with Producer("senders", cluster.address) as producer:
        queue = MessageQueue("T", "a", 0)
        for n in range(3):
            producer.send(Message("T", b"%d" % n), queue=queue)
        broker = cluster.brokers["a"]
        for endpoint in list(broker.endpoints):
            cluster.on_loop(endpoint.close)
        assert producer.send(Message("T", b"3"), queue=queue).queue_offset == 3
    assert [body for body, _ in broker.log[0]] == [b"0", b"1", b"2", b"3"]


def test_a_status_short_of_the_ack_mode_is_handed_over(cluster):
    with Producer("senders", cluster.address) as producer:
        producer.send(Message("T", b"warm"))
        for broker in cluster.brokers.values():
            broker.answer = lambda cmd: (11, None)
        result = producer.send(Message("T", b"x"))
        assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
        assert not result.ok


def test_a_sharded_send_waits_behind_what_is_on_the_way(cluster):
    with Producer("senders", cluster.address) as producer:
        for n in range(50):
            if n % 3:
                producer.send_async(Message("T", b"%02d" % n), sharding_key="plane")
            else:
                producer.send(Message("T", b"%02d" % n), sharding_key="plane")
        producer.flush(10)
    (log,) = [log for broker in cluster.brokers.values() for log in broker.log.values() if log]
    assert [body for body, _ in log] == [b"%02d" % n for n in range(50)]


def test_many_threads_and_one_that_closes(cluster):
    sent, refused = [], []

    def work(number, producer):
        for n in range(200):
            try:
                producer.send(Message("T", b"%d-%d" % (number, n)))
            except ClientClosed as error:
                refused.append(error)
                return
            sent.append(b"%d-%d" % (number, n))

    with Producer("senders", cluster.address) as producer:
        threads = [threading.Thread(target=work, args=(n, producer)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert set(sent) <= set(bodies(cluster))
    assert len(sent) == 1600 or refused


class TestChannel:
    def test_nobody_there(self):
        runtime = NativeRuntime()
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
            Channel(runtime, "127.0.0.1:1", 1.0)

    def test_a_large_answer_and_a_time_out(self, cluster):
        runtime = NativeRuntime()
        broker = cluster.brokers["a"]
        channel = Channel(runtime, broker.address, 5.0)
        broker.serve = lambda endpoint, cmd: endpoint.send(cmd.reply(body=bytes(cmd.body) * 3), cmd)
        for endpoint in broker.endpoints:
            endpoint._handler = broker.serve
        body = bytes(range(256)) * 4096
        assert channel.request(Command.request(1, {}, body), 5.0).body == body * 3
        for endpoint in broker.endpoints:
            endpoint._handler = lambda endpoint, cmd: None
        with pytest.raises(RequestTimeout, match=re.escape(broker.address)):
            channel.request(Command.request(1, {}), 0.1)
        channel.close()

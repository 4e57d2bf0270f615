"""Asynchronous sends of an idle lane, whose thread sends the request, against scripted brokers on
real sockets."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import client_fakes as fakes
import pytest
from saturnmq.client.blocking import Producer
from saturnmq.client.producer.batch import SendHandle
from saturnmq.protocol.message import Message
from saturnmq.runtime.errors import ClientClosed


@pytest.fixture
def cluster() -> Iterator[Any]:
    with fakes.threaded("a", "b") as made:
        yield made


def is_open(producer: Producer, count: int = 2) -> bool:
    assert producer._posting is not None
    return len(producer._posting._lines) == count


def warm(producer: Producer) -> None:
    """Send one by one until both connections are open."""
    for number in itertools.count():
        producer.send_async(Message("T", b"warm")).result(10)
        if is_open(producer):
            return
        assert number < 10_000


def stored(cluster: Any) -> list[bytes]:
    return sorted(
        body for each in cluster.brokers.values() for body in each.bodies() if body != b"warm"
    )


def test_a_send_that_comes_alone_leaves_the_loop_asleep(cluster: Any) -> None:
    with Producer("senders", cluster.address) as producer:
        warm(producer)
        woken: list[object] = []
        producer.engine.accumulator.wake = lambda: woken.append(1)
        called: list[SendHandle] = []
        for number in range(20):
            handle = producer.send_async(Message("T", b"%d" % number, tag="x", keys=["k"]))
            handle.add_done_callback(called.append)
            assert handle.result(10).message_id == handle.message_id
        assert woken == []
        producer.flush(10)
        assert len(called) == 20
    assert stored(cluster) == sorted(b"%d" % number for number in range(20))
    log = [entry for each in cluster.brokers.values() for log in each.log.values() for entry in log]
    assert {p["TAGS"] for body, p in log if body != b"warm"} == {"x"}


def test_many_threads_post_and_nothing_is_lost_or_doubled(cluster: Any) -> None:
    def work(name: int) -> None:
        for number in range(150):
            handle = producer.send_async(Message("T", b"%d-%d" % (name, number)))
            if number % 3 == name % 3:
                assert handle.result(10).ok

    with Producer("senders", cluster.address) as producer:
        warm(producer)
        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        producer.flush(10)
    assert stored(cluster) == sorted(b"%d-%d" % (n, m) for n in range(6) for m in range(150))


def test_keyed_sends_of_both_kinds_keep_their_order(cluster: Any) -> None:
    with Producer("senders", cluster.address) as producer:
        warm(producer)
        for number in range(60):
            message = Message("T", b"%02d" % number)
            handle = producer.send_async(message, sharding_key="plane")
            if number % 4 == 0:
                handle.result(10)
            if number % 7 == 0:
                producer.send(Message("T", b"%02d" % (number + 100)), sharding_key="plane")
        producer.flush(10)
    wanted = [
        body
        for number in range(60)
        for body in ([b"%02d" % number, b"%02d" % (number + 100)][: 1 + (number % 7 == 0)])
    ]
    logs = [log for each in cluster.brokers.values() for log in each.log.values()]
    of_key = [[body for body, _ in log if body != b"warm"] for log in logs]
    assert [log for log in of_key if log] == [wanted]


def test_brokers_that_go_lose_nothing(cluster: Any) -> None:
    with Producer("senders", cluster.address) as producer:
        warm(producer)
        for number in range(40):
            if number == 20:
                cluster.on_loop(cluster.brokers["a"].stop)
            assert producer.send_async(Message("T", b"%02d" % number)).result(10).ok
    assert {b"%02d" % number for number in range(40)} <= set(stored(cluster))


def test_close_waits_for_posts_and_fails_those_without_an_answer(cluster: Any) -> None:
    with Producer("senders", cluster.address) as producer:
        warm(producer)
        answered = producer.send_async(Message("T", b"x"))
        producer.close()
        assert answered.result(0).ok
    with Producer("senders", cluster.address) as producer:
        warm(producer)
        for each in cluster.brokers.values():
            each.answer = lambda cmd: "silence"
        lost = producer.send_async(Message("T", b"y"))
        producer.close(timeout=0.1)
        assert isinstance(lost.exception(), ClientClosed)
        with pytest.raises(ClientClosed):
            producer.send_async(Message("T", b"z"))

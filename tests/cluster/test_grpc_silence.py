"""Silence between the official Python client and a broker: a network that drops all packets, and a
client that only waits."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from saturnmq import Message as OurMessage
from saturnmq import Producer as OurProducer
from saturnmq import SimpleConsumer as OurConsumer
from silence_rig import IDLE_S, Site, site_below, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SEEN_S = 5.0  # more, until nothing is held for it
POLL_S = 15
HIDDEN_S = 10
GOES_ON_S = 10.0
WAIT_S = 40.0


@pytest.fixture
def site(tmp_path) -> Iterator[Site]:
    with site_below(tmp_path / "cluster") as made:
        yield made


def configuration(site: Site) -> ClientConfiguration:
    return ClientConfiguration(site.network.address, Credentials())


class Cut:
    """A client of group G, a receive of which the broker holds when the network falls silent."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.producer = Producer(configuration(site), ("T",))
        wanted = {"T": FilterExpression()}
        self.consumer = SimpleConsumer(configuration(site), "G", wanted, POLL_S)
        self._waiting = threading.Thread(target=self.receive)

    def __enter__(self) -> Cut:
        self.producer.startup()
        self.consumer.startup()
        assert self.sends(b"before")
        until(lambda: b"before" in self.receive(), GOES_ON_S)
        self._waiting.start()
        until(lambda: self._site.held("G") == 1, GOES_ON_S)
        self._site.network.fall_silent()
        return self

    def __exit__(self, *_: object) -> None:
        self._site.network.heal()
        self._waiting.join()
        self.producer.shutdown()
        self.consumer.shutdown()

    def sends(self, body: bytes) -> bool:
        message = Message()
        message.topic, message.body = "T", body
        try:
            self.producer.send(message)
        except Exception:
            return False
        return True

    def receive(self) -> list[bytes]:
        """What one call gets; it is acknowledged."""
        try:
            got = self.consumer.receive(32, HIDDEN_S)
        except Exception:
            return []
        for each in got:
            with contextlib.suppress(Exception):  # its time may be over
                self.consumer.ack(each)
        return [bytes(each.body) for each in got]


def test_the_broker_lets_go_of_the_receive_of_a_client_that_was_cut_off(site: Site) -> None:
    with (
        Cut(site) as client,
        OurProducer(nameservers=site.nameservers) as producer,
        ours(site) as other,
    ):
        until(lambda: site.held("G") == 0, IDLE_S + SEEN_S)
        begun = time.monotonic()
        assert not client.sends(b"nowhere")  # it is told, and does not hang
        assert time.monotonic() - begun < GOES_ON_S
        producer.send(OurMessage("T", b"kept"))
        assert took(other, b"kept", HIDDEN_S / 2) == 0
        site.network.heal()
        until(lambda: client.sends(b"after"), GOES_ON_S)
        until(lambda: b"after" in client.receive() or took(other, b"after", 1.0) == 0, GOES_ON_S)


def test_a_message_that_went_to_a_client_that_was_cut_off_comes_again(site: Site) -> None:
    with (
        Cut(site),
        OurProducer(nameservers=site.nameservers) as producer,
        ours(site) as other,
    ):
        producer.send(OurMessage("T", b"lost"))
        begun = time.monotonic()
        assert took(other, b"lost", WAIT_S) == 1
        assert time.monotonic() - begun > HIDDEN_S / 2


@contextmanager
def ours(site: Site) -> Iterator[OurConsumer]:
    """Another member of the group, over Remoting."""
    made = OurConsumer("G", site.nameservers)
    made.subscribe("T")
    with made:
        yield made


def took(consumer: OurConsumer, body: bytes, seconds: float) -> int | None:
    """How often a message came before this; None: it does not come in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for each in consumer.receive(32, invisible_s=HIDDEN_S, wait_s=1.0):
            consumer.ack(each)
            if each.body == body:
                return int(each.reconsume_times)
    return None


def test_a_push_consumer_that_only_waited_gets_a_message_within_a_second(site: Site) -> None:
    seen: queue.Queue[bytes] = queue.Queue()

    class Listener(MessageListener):
        def consume(self, message: Message) -> ConsumeResult:
            seen.put(bytes(message.body))
            return ConsumeResult.SUCCESS

    push = PushConsumer(configuration(site), "P", Listener(), {"T": FilterExpression()})
    push.startup()
    try:
        with OurProducer(nameservers=site.nameservers) as producer:
            producer.send(OurMessage("T", b"first"))
            assert seen.get(timeout=WAIT_S) == b"first"
            with pytest.raises(queue.Empty):
                seen.get(timeout=4 * IDLE_S)
            producer.send(OurMessage("T", b"second"))
            assert seen.get(timeout=1.0) == b"second"
    finally:
        push.shutdown()

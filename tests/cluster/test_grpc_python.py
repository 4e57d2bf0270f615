"""The official Python client (`rocketmq-python-client`), unmodified, against brokers of ours."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cluster_rig import running
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import IllegalArgumentException, IllegalStateException
from saturnmq import Admin, PullConsumer
from saturnmq import Message as OurMessage
from saturnmq import Producer as OurProducer
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = pytest.mark.cluster

WAIT_S = 30.0
TYPES = {"N": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[LocalCluster]:
    options = {"transactionCheckInterval": 1000, "transactionTimeOut": 500}
    settings = Settings(masters=2, broker_options=options)
    with running(tmp_path_factory.mktemp("grpc") / "data", settings) as cluster:
        with Admin(cluster.nameservers) as admin:
            for name, kind in TYPES.items():
                admin.create_topic(name, 4, message_type=kind)
        yield cluster


def configuration(cluster: LocalCluster, node: int = 0, namespace: str = "") -> ClientConfiguration:
    addresses = [each["grpc"] for each in cluster.describe()["nodes"] if each["grpc"]]
    return ClientConfiguration(addresses[node], Credentials(), namespace)


@contextmanager
def started(client: Any) -> Iterator[Any]:
    client.startup()
    try:
        yield client
    finally:
        client.shutdown()


def message(topic: str, body: bytes, **fields: Any) -> Message:
    found = Message()
    found.topic, found.body = topic, body
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def receive(consumer: Any, count: int, seconds: float = WAIT_S) -> list[Any]:
    """So many messages, or those that came in time; each is acknowledged."""
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        for each in consumer.receive(32, 15):
            consumer.ack(each)
            found.append(each)
    return found


def simple(cluster: LocalCluster, group: str, topic: str, expression: Any = None) -> Any:
    wanted = {topic: expression or FilterExpression()}
    return started(SimpleConsumer(configuration(cluster, 1), group, wanted, await_duration=2))


def test_messages_of_the_official_client_are_received_by_it_and_by_ours(cluster) -> None:
    with started(Producer(configuration(cluster), ("N",))) as producer:
        ids = set()
        for number in range(10):
            sent = message("N", b"%d" % number, tag="A", keys="k")
            sent.add_property("n", str(number))
            ids.add(producer.send(sent).message_id)
    with simple(cluster, "simple", "N") as consumer:
        got = receive(consumer, 10)
    assert sorted(each.body for each in got) == [b"%d" % number for number in range(10)]
    assert {each.message_id for each in got} == ids
    assert all(each.tag == "A" and each.keys == {"k"} for each in got)
    assert all(each.properties["n"].encode() == each.body for each in got)
    assert not any(each.corrupted for each in got)
    assert read_by_ours(cluster, "N", 10) == {each.message_id: each.body for each in got}


def test_a_body_of_the_very_limit_is_sent_and_received_and_a_larger_one_is_not(cluster) -> None:
    body = random.Random(1).randbytes(4 << 20)
    with started(Producer(configuration(cluster), ("N",))) as producer:
        producer.send(message("N", body))
        with pytest.raises(IllegalArgumentException, match="max size=4194304"):
            producer.send(message("N", body + b"x"))
    with simple(cluster, "large", "N") as consumer:
        found = []
        deadline = time.monotonic() + WAIT_S
        while body not in found and time.monotonic() < deadline:
            found += [each.body for each in receive(consumer, 1)]
    assert body in found


def test_a_lite_consumer_does_not_start_and_says_why(cluster, caplog) -> None:
    """It waits for settings for 10 s. With settings that have no quotas it would start, and receive
    nothing. (Its work after that, at 5.1.1, ends with an error of its own.)"""
    consumer = LitePushConsumer(configuration(cluster), "lite", "N", Nothing())
    with pytest.raises((IllegalStateException, AttributeError)):
        consumer.startup()
    assert "there are no lite topics here" in caplog.text


class Nothing(MessageListener):  # type: ignore[misc]  # the client has no types
    def consume(self, _: Any) -> Any:
        return ConsumeResult.SUCCESS


def test_tags_and_conditions_select(cluster) -> None:
    with (
        simple(cluster, "tags", "N", FilterExpression("B")) as tags,
        simple(cluster, "sql", "N", FilterExpression("price > 5", FilterType.SQL)) as sql,
        started(Producer(configuration(cluster), ("N",))) as producer,
    ):
        for tag, price in (("A", "1"), ("B", "10")):
            sent = message("N", f"select {tag}".encode(), tag=tag)
            sent.add_property("price", price)
            producer.send(sent)
        assert [each.body for each in receive(tags, 1)] == [b"select B"]
        assert [each.body for each in receive(sql, 1)] == [b"select B"]


def test_a_message_group_keeps_its_order(cluster) -> None:
    with started(Producer(configuration(cluster), ("F",))) as producer:
        for number in range(20):
            group = f"group-{number % 3}"
            producer.send(message("F", b"%d" % number, message_group=group))
    with Admin(cluster.nameservers) as admin:
        admin.create_group("fifo", orderly=True)
    seen: queue.Queue[tuple[str, int]] = queue.Queue()

    class Listener(MessageListener):
        def consume(self, found: Message) -> ConsumeResult:
            seen.put((found.message_group, int(found.body)))
            return ConsumeResult.SUCCESS

    push = PushConsumer(configuration(cluster), "fifo", Listener(), {"F": FilterExpression()})
    with started(push):
        got = [seen.get(timeout=WAIT_S) for _ in range(20)]
    for first in range(3):
        assert [n for name, n in got if name == f"group-{first}"] == list(range(first, 20, 3))


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(cluster) -> None:
    due = int(time.time()) + 3
    with (
        simple(cluster, "delay", "D") as consumer,
        started(Producer(configuration(cluster), ("D",))) as producer,
    ):
        producer.send(message("D", b"kept", delivery_timestamp=due))
        recalled = producer.send(message("D", b"recalled", delivery_timestamp=due))
        producer.recall_message("D", recalled.recall_handle)
        (got,) = receive(consumer, 1)
        assert time.time() >= due
        assert (got.body, receive(consumer, 1, 3.0)) == (b"kept", [])


def test_transactions_end_as_their_producer_says_also_when_it_is_asked(cluster) -> None:
    class Checker(TransactionChecker):
        def check(self, found: Message) -> TransactionResolution:
            is_good = found.body == b"asked: commit"
            return TransactionResolution.COMMIT if is_good else TransactionResolution.ROLLBACK

    with (
        simple(cluster, "transactions", "X") as consumer,
        started(Producer(configuration(cluster), ("X",), checker=Checker())) as producer,
    ):
        for text in (b"commit", b"rollback", b"asked: commit", b"asked: rollback"):
            transaction = producer.begin_transaction()
            producer.send(message("X", text), transaction)
            if text == b"commit":
                transaction.commit()
            elif text == b"rollback":
                transaction.rollback()
        got = receive(consumer, 2)
        assert sorted(each.body for each in got) == [b"asked: commit", b"commit"]
        assert receive(consumer, 1, 3.0) == []


def test_a_push_consumer_gets_a_failed_message_again_until_its_group_gives_it_up(cluster) -> None:
    with Admin(cluster.nameservers) as admin:
        admin.create_group("push", max_retries=1)
    attempts: queue.Queue[tuple[bytes, int]] = queue.Queue()

    class Listener(MessageListener):
        def consume(self, found: Message) -> ConsumeResult:
            if found.tag != "push":
                return ConsumeResult.SUCCESS
            attempts.put((found.body, found.delivery_attempt))
            return ConsumeResult.FAILURE if found.body == b"bad" else ConsumeResult.SUCCESS

    push = PushConsumer(configuration(cluster), "push", Listener(), {"N": FilterExpression()})
    with started(push), started(Producer(configuration(cluster), ("N",))) as producer:
        for text in (b"good", b"bad"):
            producer.send(message("N", text, tag="push"))
        got = [attempts.get(timeout=WAIT_S) for _ in range(3)]
        assert sorted(got) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
        until(lambda: "%DLQ%push" in topics(cluster))
    assert list(read_by_ours(cluster, "%DLQ%push", 1).values()) == [b"bad"]


def test_the_invisible_time_can_be_changed_and_the_old_handle_is_dead(cluster) -> None:
    with (
        started(Producer(configuration(cluster), ("N",))) as producer,
        simple(cluster, "invisible", "N", FilterExpression("invisible")) as consumer,
    ):
        producer.send(message("N", b"x", tag="invisible"))
        found: list[Any] = []

        def received() -> bool:
            found.extend(consumer.receive(32, 15))
            return bool(found)

        until(received)
        old = found[0].receipt_handle
        consumer.change_invisible_duration(found[0], 20)
        new = found[0].receipt_handle
        assert new != old
        found[0].receipt_handle = old
        with pytest.raises(Exception, match=r"40013"):
            consumer.ack(found[0])
        found[0].receipt_handle = new
        consumer.ack(found[0])


def test_clients_go_on_when_a_broker_restarts(cluster) -> None:
    with (
        simple(cluster, "restart", "N", FilterExpression("restart")) as consumer,
        started(Producer(configuration(cluster, 1), ("N",))) as producer,
    ):
        producer.send(message("N", b"before", tag="restart"))
        assert [each.body for each in receive(consumer, 1)] == [b"before"]
        cluster.kill("master-0")
        cluster.restart("master-0")
        sent = set()
        for number in range(20):
            body = b"after %d" % number
            if attempt(lambda body=body: producer.send(message("N", body, tag="restart"))):
                sent.add(body)
        assert sent
        got: set[bytes] = set()
        deadline = time.monotonic() + WAIT_S
        while not sent <= got and time.monotonic() < deadline:
            got |= {each.body for each in attempt(lambda: receive(consumer, 1, 1.0)) or []}
        assert sent <= got


def test_a_namespace_changes_nothing_as_at_rocketmqs_proxy(cluster) -> None:
    with Admin(cluster.nameservers) as admin:
        admin.create_topic("spaced", 4, message_type="NORMAL")
    wanted = {"spaced": FilterExpression()}
    there = configuration(cluster, namespace="space")
    with (
        started(SimpleConsumer(there, "spaced", wanted, await_duration=2)) as consumer,
        started(Producer(there, ("spaced",))) as producer,
    ):
        sent = producer.send(message("spaced", b"x")).message_id
        (got,) = receive(consumer, 1)
    assert (got.message_id, got.topic, got.namespace) == (sent, "spaced", "space")
    assert read_by_ours(cluster, "spaced", 1) == {sent: b"x"}
    assert not [name for name in topics(cluster) if name.startswith("space%")]


def test_a_name_with_a_namespace_of_remoting_is_written_out(cluster) -> None:
    with Admin(cluster.nameservers) as admin:
        admin.create_topic("space%written", 4, message_type="NORMAL")
    wanted = {"space%written": FilterExpression()}
    with (
        started(SimpleConsumer(configuration(cluster), "space%g", wanted, 2)) as consumer,
        OurProducer(nameservers=cluster.nameservers, namespace="space") as ours,
    ):
        ours.send(OurMessage("written", b"x"))
        assert [each.body for each in receive(consumer, 1)] == [b"x"]


def read_by_ours(cluster: LocalCluster, topic: str, count: int) -> dict[str, bytes]:
    """The bodies of a topic's messages by id, as our own consumer gets them over Remoting."""
    ours = PullConsumer("ours", nameservers=cluster.nameservers, from_beginning=True)
    ours.subscribe(topic)
    found: dict[str, bytes] = {}
    deadline = time.monotonic() + WAIT_S
    with ours:
        while len(found) < count and time.monotonic() < deadline:
            found |= {each.message_id: bytes(each.body) for each in ours.poll(timeout_s=1.0)}
    return found


def topics(cluster: LocalCluster) -> set[str]:
    with Admin(cluster.nameservers) as admin:
        return set(admin.list_topics())


def until(check: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "it did not come in time"


def attempt(work: Callable[[], Any]) -> Any:
    """The result of work that may fail while a broker is away; None then."""
    try:
        return work()
    except Exception:
        return None

"""One cluster of both makes: a broker of RocketMQ's beside one of ours, at a nameserver of either
make. Clients of both makes use both brokers."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from interop_clients import let_group_pop, scenarios
from interop_nodes import ROCKETMQ, SATURNMQ, Nodes
from saturnmq import Admin, Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from saturnmq.cli.free_ports import free_block

pytestmark = [pytest.mark.quick, pytest.mark.interop, pytest.mark.timeout(600)]
NAMES = {ROCKETMQ: "theirs", SATURNMQ: "ours"}
SETTINGS = {
    "mappedFileSizeCommitLog": 1 << 24,
    "mappedFileSizeConsumeQueue": 20_000,
    "transactionCheckInterval": 1_000,
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
}
SCENARIOS = (
    *("sync", "batch", "orderly", "retry", "transactions", "pull", "lite-subscribe"),
    *("timed", "pop", "trace"),
)
# RocketMQ rounds the moment of a timed message down if less than a fifth of its second is over.
EARLY_MS = 250
COUNT = 400
READ_S = 60.0


@pytest.mark.parametrize("nameserver_make", [ROCKETMQ, SATURNMQ])
def test_clients_of_both_makes_use_brokers_of_both_makes(
    nodes: Nodes, tmp_path: Path, nameserver_make: str, figures: Counter[str]
) -> None:
    nameserver = nodes.nameserver(nameserver_make)
    for make, name in NAMES.items():
        store = tmp_path / name
        store.mkdir()
        port = free_block("127.0.0.1", 4) + 2
        settings = {**SETTINGS, "brokerName": name}
        nodes.broker(make, store, port, settings, nameserver=nameserver)
    options = [f"-Dtimed.early={EARLY_MS}"]
    with (
        Admin(nameserver) as admin,
        scenarios(nodes.jars, nameserver, tmp_path, options) as java,
    ):
        topics = {scenario: f"java-{scenario}" for scenario in SCENARIOS}
        for topic in (*topics.values(), "from-us"):
            admin.create_topic(topic, 2)
        let_group_pop(nameserver, topics["pop"], topics["pop"])
        for scenario, topic in topics.items():
            java.begin(scenario, topic)
        _ours(nameserver)
        for scenario, topic in topics.items():
            outcome = java.outcome(topic)
            assert outcome.startswith("ok "), (scenario, outcome)
            if scenario != "trace":  # which sends one message
                both = [row for row in admin.describe_topic(topic) if row.max_offset > 0]
                assert {row.queue.broker_name for row in both} == set(NAMES.values()), scenario
            figures["scenarios of Java clients in a mixed cluster"] += 1
    figures["messages of our clients in a mixed cluster"] += COUNT


def _ours(nameserver: str) -> None:
    """Our clients on both brokers: sends, a listener that fails once, polls."""
    sent = {b"%d" % number for number in range(COUNT)}
    first: set[bytes] = set()
    done: set[bytes] = set()

    def work(message: ReceivedMessage) -> None:
        body = message.body
        if body.endswith(b"7") and body not in first:
            first.add(body)
            raise ValueError("once more")
        done.add(body)

    push = PushConsumer("pushed", nameserver, listener_one=work, from_beginning=True)
    pull = PullConsumer("pulled", nameserver, from_beginning=True)
    brokers: Counter[str] = Counter()
    with Producer("ours", nameserver) as producer:
        handles = [producer.send_async(Message("from-us", body)) for body in sent]
        for number in range(8):
            keyed = Message("from-us", b"k%d" % number, sharding_key=f"key-{number}")
            handles.append(producer.send_async(keyed))
            sent.add(keyed.body)
        brokers.update(handle.result(30).queue.broker_name for handle in handles)
    assert set(brokers) == set(NAMES.values()), brokers
    deadline = time.monotonic() + READ_S
    for consumer in (push, pull):
        consumer.subscribe("from-us")
    with push, pull:
        polled: set[bytes] = set()
        while polled != sent or done != sent:
            assert time.monotonic() < deadline, (len(polled), len(done), len(sent))
            polled |= {message.body for message in pull.poll(1.0)}

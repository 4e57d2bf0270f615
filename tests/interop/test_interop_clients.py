"""RocketMQ's own clients, unmodified, at a cluster of ours: an old and a new version, with both
encodings of headers. Scenarios.java checks what it gets itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import interop_nodes
import pytest
from cluster_rig import make_topic, running
from interop_clients import Scenarios, let_group_pop, scenarios
from saturnmq import Admin, Message, Producer, PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.protocol.trace import TraceKind
from saturnmq.runtime.errors import TopicNotExist

OLD, NEW = "4.9.8", "5.4.0"
ENCODINGS = ("JSON", "ROCKETMQ")
SCENARIOS = (
    *("sync", "async", "oneway", "batch", "large", "delay", "transactions"),
    *("orderly", "retry", "broadcast", "pull", "lite-subscribe", "lite-assign", "lite-members"),
    *("namespace", "namespace-v2", "timed", "pop"),
)
ALL_SCENARIOS = (*SCENARIOS, "trace")
READ_S = 30.0
TRACED_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Producers are asked about open transactions every second, not every 30.
    settings = Settings(broker_options={"transactionCheckInterval": 1_000})
    with running(tmp_path_factory.mktemp("clients") / "cluster", settings) as made:
        yield made


@dataclass
class JavaClient:
    """One version of RocketMQ's client with one encoding, which has begun all of its scenarios."""

    version: str
    encoding: str
    _scenarios: Scenarios

    def begin(self, cluster: LocalCluster) -> None:
        for scenario in ALL_SCENARIOS:
            if not self.lacks(scenario):
                self._prepare(cluster, scenario)
                self._scenarios.begin(scenario, self.topic(scenario))

    def lacks(self, scenario: str) -> str | None:
        """Why this client cannot do it; None if it can."""
        if scenario == "namespace-v2" and self.version == OLD:
            return "clients before 5.0 have no such namespaces"
        if scenario == "pop" and (self.version, self.encoding) != (NEW, "JSON"):
            return "clients before 5.0 do not pop; RocketMQ headers have no room for the codes"
        return None

    def topic(self, scenario: str) -> str:
        return f"{self.version.replace('.', '-')}-{self.encoding}-{scenario}"

    def outcome(self, scenario: str) -> str:
        """As soon as the scenario is over."""
        return self._scenarios.outcome(self.topic(scenario))

    def _prepare(self, cluster: LocalCluster, scenario: str) -> None:
        topic, nameserver = self.topic(scenario), cluster.nameservers[0]
        # A namespace is part of the names that the broker sees.
        make_topic(cluster, f"space%{topic}" if scenario == "namespace" else topic, 4)
        if scenario == "namespace":
            with Producer("ours", nameserver, namespace="space") as producer:
                for number in range(5):
                    producer.send(Message(topic, b"ours-%d" % number))
        if scenario == "pop":
            let_group_pop(nameserver, topic, topic)


@pytest.fixture(
    scope="module",
    params=[(version, encoding) for version in (OLD, NEW) for encoding in ENCODINGS],
    ids="-".join,
)
def client(
    request: pytest.FixtureRequest,
    cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[JavaClient]:
    version, encoding = request.param
    jars = interop_nodes.client_jars(version)
    home = tmp_path_factory.mktemp("java")
    options = [f"-Drocketmq.serialize.type={encoding}"]
    with scenarios(jars, cluster.nameservers[0], home, options) as running_ones:
        made = JavaClient(version, encoding, running_ones)
        made.begin(cluster)
        yield made


@pytest.mark.quick
@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_java_client_does_what_it_does_with_rocketmq(
    cluster: LocalCluster, client: JavaClient, scenario: str, figures: Counter[str]
) -> None:
    if why := client.lacks(scenario):
        pytest.skip(why)
    outcome = client.outcome(scenario)
    assert outcome.startswith("ok "), outcome
    if scenario == "namespace":
        _read_in_namespace(cluster, client.topic(scenario))
    figures["scenarios of Java clients"] += 1


def _read_in_namespace(cluster: LocalCluster, topic: str) -> None:
    nameserver = cluster.nameservers[0]
    consumer = PullConsumer("ours", nameserver, from_beginning=True, namespace="space")
    consumer.subscribe(topic)
    got: set[tuple[str, bytes]] = set()
    deadline = time.monotonic() + READ_S
    with consumer:
        while len(got) < 15:
            assert time.monotonic() < deadline, got
            got |= {(message.topic, message.body) for message in consumer.poll(1.0)}
    assert {name for name, _ in got} == {topic}


@pytest.mark.quick
@pytest.mark.timeout(180)
def test_the_traces_of_a_java_client_are_read(cluster: LocalCluster, client: JavaClient) -> None:
    topic, outcome = client.topic("trace"), client.outcome("trace")
    assert outcome.startswith("ok "), outcome
    message_id = outcome.split()[1]
    with Admin(cluster.nameservers[0]) as admin:
        deadline = time.monotonic() + TRACED_S
        while True:
            try:
                records = admin.message_trace(message_id)
            except TopicNotExist:
                records = []
            if len(records) >= 3 or time.monotonic() > deadline:
                break
    assert [record.kind for record in records] == [
        *(TraceKind.PUB, TraceKind.SUB_BEFORE, TraceKind.SUB_AFTER)
    ]
    pub, before, after = records
    assert {record.group for record in records} == {topic}
    assert (pub.topic, pub.tags, pub.keys) == (topic, "tag", "trace-key")
    assert (before.request_id, before.keys) == (after.request_id, "trace-key")
    assert all(record.success for record in records)

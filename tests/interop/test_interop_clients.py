"""RocketMQ's own clients, unmodified, at a cluster of ours: an old and a new version, with both
encodings of headers. Scenarios.java checks what it gets itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import interop_nodes
import pytest
from cluster_rig import make_topic, running
from interop_clients import ClientProgram, client_program, go_client, java_program
from saturnmq import Admin, Message, Producer, PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.protocol.trace import TraceKind
from saturnmq.runtime.errors import TopicNotExist

OLD, NEW = "4.9.8", "5.4.0"
SPRING = "2.3.4"
ENCODINGS = ("JSON", "ROCKETMQ")
SCENARIOS = (
    *("sync", "async", "oneway", "batch", "large", "delay", "transactions"),
    *("orderly", "retry", "broadcast", "pull", "lite-subscribe", "lite-assign", "lite-members"),
    *("namespace", "namespace-v2"),
)
GO_SCENARIOS = ("send", "orderly", "retry", "delay", "transactions")
READ_S = 30.0
TRACED_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Producers are asked about open transactions every second, not every 30.
    settings = Settings(broker_options={"transactionCheckInterval": 1_000})
    with running(tmp_path_factory.mktemp("clients") / "cluster", settings) as made:
        yield made


@pytest.fixture(
    scope="module",
    params=[(version, encoding) for version in (OLD, NEW) for encoding in ENCODINGS],
    ids="-".join,
)
def client(
    request: pytest.FixtureRequest,
    cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, ClientProgram]]:
    """A name for topics, and the program with one version of the client."""
    version, encoding = request.param
    try:
        jars = interop_nodes.client_jars(version)
    except interop_nodes.Unavailable as problem:
        pytest.skip(str(problem))
    home = tmp_path_factory.mktemp("java")
    options = [f"-Drocketmq.serialize.type={encoding}"]
    nameserver = cluster.nameservers[0]
    with java_program(
        jars, "Scenarios.java", nameserver, log=home / "java.log", options=options
    ) as program:
        yield f"{version.replace('.', '-')}-{encoding}", program


@pytest.mark.quick
@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_java_client_does_what_it_does_with_rocketmq(
    cluster: LocalCluster, client: tuple[str, ClientProgram], scenario: str, figures: Counter[str]
) -> None:
    name, program = client
    if scenario == "namespace-v2" and name.startswith("4"):
        pytest.skip("clients before 5.0 have no such namespaces")
    topic = f"{name}-{scenario}"
    # A namespace is part of the names that the broker sees.
    make_topic(cluster, f"space%{topic}" if scenario == "namespace" else topic, 4)
    if scenario == "namespace":
        with Producer("ours", cluster.nameservers[0], namespace="space") as producer:
            for number in range(5):
                producer.send(Message(topic, b"ours-%d" % number))
    answer = program.tell(scenario, topic)
    assert answer.startswith("ok "), answer
    if scenario == "namespace":
        _read_in_namespace(cluster, topic)
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
def test_the_traces_of_a_java_client_are_read(
    cluster: LocalCluster, client: tuple[str, ClientProgram]
) -> None:
    name, program = client
    topic = make_topic(cluster, f"{name}-trace", 4)
    answer = program.tell("trace", topic)
    assert answer.startswith("ok "), answer
    message_id = answer.split()[1]
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


@pytest.fixture(scope="module")
def go_program(
    cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClientProgram]:
    log = tmp_path_factory.mktemp("go") / "go.log"
    with client_program([go_client(), cluster.nameservers[0]], log) as program:
        yield program


@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", GO_SCENARIOS)
def test_the_go_client_does_what_it_does_with_rocketmq(
    cluster: LocalCluster, go_program: ClientProgram, scenario: str, figures: Counter[str]
) -> None:
    topic = make_topic(cluster, f"go-{scenario}", 4)
    answer = go_program.tell(scenario, topic)
    assert answer.startswith("ok "), answer
    figures["scenarios of the Go client"] += 1


@pytest.mark.timeout(300)
def test_a_spring_application_sends_and_listens(
    cluster: LocalCluster, tmp_path: Path, figures: Counter[str]
) -> None:
    try:
        jars = interop_nodes.spring_jars(SPRING)
    except interop_nodes.Unavailable as problem:
        pytest.skip(str(problem))
    topic = make_topic(cluster, "spring", 4)
    arguments = ("SpringClient.java", cluster.nameservers[0], topic)
    log = tmp_path / "java.log"
    with java_program(jars, *arguments, log=log, compiled=True) as spring:
        answer = spring.tell("run")
    assert answer.startswith("ok "), answer
    figures["applications with rocketmq-spring"] += 1

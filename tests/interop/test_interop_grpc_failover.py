"""RocketMQ's clients of version 5 for other languages than Python through the loss of a broker:
nothing that was acknowledged is lost, and they go on in time. Python's is in
tests/cluster/test_grpc_failover.py.

The clock of each limit begins when there is a master again: when the broker that was killed serves
again, or when the slave is promoted. How long a process takes to start says something of the
machine, and a promotion waits for an operator or an election. The figures that are recorded begin
at the kill.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from cluster_rig import running
from interop_grpc import CLIENTS as PUSHED
from interop_grpc import Failed, GrpcClient, rust_client
from saturnmq import Admin, Message, Producer
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = pytest.mark.timeout(400)

CLIENTS = {**PUSHED, "rust": rust_client}  # Rust's client has no push consumer
GOES_ON_S = 10.0
START_S = 60.0
MANY = 20
QUEUES = 4  # of each broker
ALL_S = 90.0  # what was on its way to a push consumer comes again after a minute


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LocalCluster]:
    """So many groups; -1: one, with a nameserver that is a proxy."""
    if request.param < 0:
        monkeypatch.setenv("SATURNMQ_GRPC_PROXY", "true")
    settings = Settings(masters=abs(request.param), slaves=2, replication="sync")
    with running(tmp_path_factory.mktemp("failover") / "cluster", settings) as made:
        with Admin(made.nameservers) as admin:
            admin.create_topic("T", QUEUES, message_type="NORMAL")
        yield made


KINDS = {1: "one group", 2: "two groups", -1: "through a proxy"}
BOTH = pytest.mark.parametrize(
    ("cluster", "language"),
    [
        pytest.param(groups, language, id=f"{language}-{kind}")
        for language in CLIENTS
        for groups, kind in KINDS.items()
        if groups > 0 or language == "java"
    ],
    indirect=["cluster"],
)


T = TypeVar("T")


class Application:
    """A producer, a simple and a push consumer, whose calls may fail, and what became of them."""

    def __init__(self, client: GrpcClient, *, is_pushed: bool) -> None:
        """`is_pushed`: the client has a push consumer; else the simple one is taken for it."""
        self._client = client
        self._is_pushed = is_pushed
        client.tell("producer", "T")
        client.tell("simple", "simple", "T", "tag", "*")
        if is_pushed:
            client.tell("push", "push", "T", "tag", "*")
        self.sent: list[str] = []
        self.received: set[str] = set()
        self._number = 0

    def send(self) -> None:
        self._number += 1
        body = f"body-{self._number}"
        if attempt(lambda: self._client.send("T", body)):
            self.sent.append(body)

    def send_many(self) -> None:
        for _ in range(MANY):
            self.send()

    def receive(self) -> None:
        for each in attempt(lambda: self._client.receive("simple", 10)) or []:
            attempt(lambda each=each: self._client.tell("ack", "simple", each.body))
            self.received.add(each.body)

    def pushed(self) -> set[str]:
        if not self._is_pushed:
            return self.received
        return {each.body for each in self._client.seen("push", 0)}

    def goes_on(self, begun: float, limit_s: float) -> list[float]:
        """How long it took, since then, until a new message was sent, a push consumer had one, and
        a simple consumer; none may take longer than the limit from now on."""
        before, took = len(self.sent), dict.fromkeys(("sent", "pushed", "received"), 0.0)
        end = time.monotonic() + limit_s
        while not all(took.values()):
            for _ in range(2 * QUEUES):  # a consumer may ask one broker after the other
                self.send()
            new = set(self.sent[before:])
            self._note(took, begun, sent=bool(new), pushed=bool(new & self.pushed()))
            self.receive()
            pushed, received = bool(new & self.pushed()), bool(new & self.received)
            self._note(took, begun, pushed=pushed, received=received)
            assert time.monotonic() < end, took
        return [round(each, 1) for each in took.values()]

    @staticmethod
    def _note(took: dict[str, float], begun: float, **is_done: bool) -> None:
        for what, done in is_done.items():
            if done and not took[what]:
                took[what] = time.monotonic() - begun

    def has_all(self, seconds: float) -> float:
        """How long it took until both consumers have all that was acknowledged."""
        begun, wanted = time.monotonic(), set(self.sent)
        while not wanted <= self.received & self.pushed():
            took = time.monotonic() - begun
            missing = wanted - self.received, wanted - self.pushed()
            assert took < seconds, missing
            self.receive()
        return round(time.monotonic() - begun, 1)


@BOTH
def test_a_client_loses_nothing_when_a_broker_is_killed(
    cluster: LocalCluster,
    language: str,
    tmp_path_factory: pytest.TempPathFactory,
    figures: Counter[str],
    record_property: Callable[[str, object], None],
) -> None:
    nodes = cluster.describe()["nodes"]
    endpoint = next(each["grpc"] for each in nodes if each["kind"] == "nameserver")
    with CLIENTS[language](endpoint, tmp_path_factory.mktemp(language)) as client:
        application = Application(client, is_pushed=language in PUSHED)
        application.goes_on(time.monotonic(), START_S)
        application.send_many()
        killed = time.monotonic()
        cluster.kill("master-0")
        cluster.restart("master-0")
        took: dict[str, object] = {"restart": application.goes_on(killed, GOES_ON_S)}
        took["all after the restart"] = application.has_all(ALL_S)
        application.send_many()
        killed = time.monotonic()
        cluster.kill("master-0")  # it stays away
        with Admin(cluster.nameservers) as admin:
            admin.promote("broker-0", cluster.node("slave-0-1").address, force=True)
        took["promotion"] = application.goes_on(killed, GOES_ON_S)
        took["all after the promotion"] = application.has_all(ALL_S)
    for what, seconds in took.items():
        record_property(what, seconds)
    figures["fail-overs under clients over gRPC"] += 1


@pytest.mark.parametrize("cluster", [1], indirect=True)
@pytest.mark.parametrize("language", ["java", pytest.param("go", marks=pytest.mark.quick), "node"])
def test_a_push_consumer_goes_over_to_the_new_master(
    cluster: LocalCluster, language: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    endpoint = cluster.describe()["nodes"][0]["grpc"]
    with (
        CLIENTS[language](endpoint, tmp_path_factory.mktemp(language)) as client,
        Producer(nameservers=cluster.nameservers) as producer,
        Admin(cluster.nameservers) as admin,
    ):
        client.tell("push", "push", "T", "tag", "*")
        producer.send(Message("T", b"before"))
        assert [each.body for each in client.seen("push", 1)] == ["before"]
        cluster.kill("master-0")  # it stays away
        admin.promote("broker-0", cluster.node("slave-0-1").address, force=True)
        producer.send(Message("T", b"after"))
        deadline = time.monotonic() + GOES_ON_S
        while "after" not in [each.body for each in client.seen("push", 2)]:
            assert time.monotonic() < deadline, "it stays with the lost broker"


def attempt(work: Callable[[], T]) -> T | None:
    """The result of a call that may fail while there is no master; None then."""
    try:
        return work()
    except Failed:
        return None

"""RocketMQ's clients of version 5 for Java, Go and Node through the loss of a broker: nothing that
was acknowledged is lost, and they go on in time. Python's is in
tests/cluster/test_grpc_failover.py."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from cluster_rig import running
from interop_grpc import CLIENTS, Failed, GrpcClient
from saturnmq import Admin, Message, Producer
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = pytest.mark.timeout(400)

GOES_ON_S = 10.0
GO_S = 40.0  # Go's client waits 5 s for each connection to a lost broker, call after call
NEW_ROUTE_S = 90.0  # clients ask for routes every 30 s
MANY = 20
ALL_S = 90.0  # what was on its way to a push consumer comes again after a minute


@pytest.fixture(params=[1, 2], ids=["one group", "two groups"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    settings = Settings(masters=request.param, slaves=2, replication="sync")
    with running(tmp_path_factory.mktemp("failover") / "cluster", settings) as made:
        with Admin(made.nameservers) as admin:
            admin.create_topic("T", 4, message_type="NORMAL")
        yield made


T = TypeVar("T")


class Application:
    """A producer, a simple and a push consumer, whose calls may fail, and what became of them."""

    def __init__(self, client: GrpcClient) -> None:
        self._client = client
        client.tell("producer", "T")
        client.tell("simple", "simple", "T", "tag", "*")
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
        return {each.body for each in self._client.seen("push", 0)}

    def goes_on(self, begun: float, limit_s: float) -> list[float]:
        """How long it took, since then, until a new message was sent, a push consumer had one, and
        a simple consumer; none may take longer than the limit."""
        before, took = len(self.sent), dict.fromkeys(("sent", "pushed", "received"), 0.0)
        while not all(took.values()):
            self.send()
            new = set(self.sent[before:])
            self._note(took, begun, sent=bool(new), pushed=bool(new & self.pushed()))
            self.receive()
            pushed, received = bool(new & self.pushed()), bool(new & self.received)
            self._note(took, begun, pushed=pushed, received=received)
            assert time.monotonic() - begun < limit_s, took
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


@pytest.mark.parametrize("language", CLIENTS)
def test_a_client_loses_nothing_when_a_broker_is_killed(
    cluster: LocalCluster,
    language: str,
    tmp_path_factory: pytest.TempPathFactory,
    figures: Counter[str],
    record_property: Callable[[str, object], None],
) -> None:
    describe = cluster.describe()["nodes"]
    endpoint = next(each["grpc"] for each in describe if each["kind"] == "nameserver")
    with CLIENTS[language](endpoint, tmp_path_factory.mktemp(language)) as client:
        application = Application(client)
        application.goes_on(time.monotonic(), NEW_ROUTE_S)
        application.send_many()
        killed = time.monotonic()
        cluster.kill("master-0")
        cluster.restart("master-0")
        limit_s = GO_S if language == "go" else GOES_ON_S
        took: dict[str, object] = {"restart": application.goes_on(killed, limit_s)}
        took["all after the restart"] = application.has_all(ALL_S)
        application.send_many()
        killed = time.monotonic()
        cluster.kill("master-0")  # it stays away
        with Admin(cluster.nameservers) as admin:
            admin.promote("broker-0", cluster.node("slave-0-1").address, force=True)
        if cluster.settings.masters == 1:  # no other broker takes sends meanwhile
            limit_s = NEW_ROUTE_S
            if language == "node":  # its producer keeps its first route for its life
                cluster.restart("master-0")  # a slave now, which sends on to the master
        took["promotion"] = application.goes_on(killed, limit_s)
        took["all after the promotion"] = application.has_all(ALL_S)
    for what, seconds in took.items():
        record_property(what, seconds)
    figures["fail-overs under clients over gRPC"] += 1


@pytest.mark.parametrize("cluster", [1], indirect=True)
@pytest.mark.parametrize("language", CLIENTS)
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
        deadline = time.monotonic() + NEW_ROUTE_S
        while "after" not in [each.body for each in client.seen("push", 2)]:
            assert time.monotonic() < deadline, "it stays with the lost broker"


def attempt(work: Callable[[], T]) -> T | None:
    """The result of a call that may fail while there is no master; None then."""
    try:
        return work()
    except Failed:
        return None

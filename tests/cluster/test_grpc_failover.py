"""The official Python client through changes of the master.

The clock of each limit begins when there is a master again, because a process may take long to
start on a busy machine, and an operator or an election to promote: when the broker that was killed
serves again, or when the slave is promoted. Where another group takes over, it begins at the kill.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from cluster_rig import running
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
)
from saturnmq import Admin
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

GOES_ON_S = 10.0
ALL_S = 45.0


class Application:
    """A producer and a consumer whose calls may fail, and what became of them."""

    def __init__(self, cluster: LocalCluster, access_point: str) -> None:
        addresses = {each["name"]: each["grpc"] for each in cluster.describe()["nodes"]}
        configuration = ClientConfiguration(addresses[access_point], Credentials())
        self.producer = Producer(configuration, ("T",))
        wanted = {"T": FilterExpression()}
        self.consumer = SimpleConsumer(configuration, "G", wanted, await_duration=1)
        self.sent: set[bytes] = set()
        self.got: set[bytes] = set()
        self.number = 0

    def __enter__(self) -> Application:
        self.producer.startup()
        self.consumer.startup()
        return self

    def __exit__(self, *_: object) -> None:
        self.producer.shutdown()
        self.consumer.shutdown()

    def send(self) -> bool:
        self.number += 1
        message = Message()
        message.topic, message.body = "T", b"%d" % self.number
        if not attempt(lambda: self.producer.send(message)):
            return False
        self.sent.add(message.body)
        return True

    def receive(self) -> bool:
        got = attempt(lambda: self.consumer.receive(32, 10)) or []
        for each in got:
            attempt(lambda each=each: self.consumer.ack(each))
            self.got.add(each.body)
        return bool(got)

    def goes_on(self, seconds: float, begun: float | None = None, count: int = 10) -> None:
        """So many messages are sent, and one of them is received, within this time since then, or
        since now."""
        begun = begun or time.monotonic()
        before = set(self.sent)
        while len(new := self.sent - before) < count or not new & self.got:
            assert time.monotonic() - begun < seconds, new
            self.send()
            self.receive()

    def has_all(self) -> None:
        """All that was acknowledged is received."""
        begun = time.monotonic()
        while not self.sent <= self.got:
            assert time.monotonic() - begun < ALL_S, self.sent - self.got
            self.receive()


def attempt(work: Any) -> Any:
    """The result of a call that may fail while there is no master; None then."""
    try:
        return work()
    except Exception:
        return None


def test_the_official_client_goes_on_after_a_hand_over_and_a_fail_over(tmp_path) -> None:
    settings = Settings(masters=1, slaves=1, replication="sync")
    with running(tmp_path / "cluster", settings) as cluster, Admin(cluster.nameservers) as admin:
        admin.create_topic("T", 4, message_type="NORMAL")
        with Application(cluster, "slave-0") as application:
            application.goes_on(GOES_ON_S)
            admin.promote("broker-0", cluster.node("slave-0").address)
            # The old master is a slave now, and sends on what comes by the old route.
            application.goes_on(GOES_ON_S)
            cluster.kill("slave-0")
            admin.promote("broker-0", cluster.node("master-0").address, force=True)
            cluster.restart("slave-0")
            application.goes_on(GOES_ON_S)
            application.has_all()


def test_the_official_client_goes_on_with_the_new_master_of_its_only_group(tmp_path) -> None:
    settings = Settings(masters=1, slaves=2, replication="sync")
    with running(tmp_path / "cluster", settings) as cluster, Admin(cluster.nameservers) as admin:
        admin.create_topic("T", 4, message_type="NORMAL")
        with Application(cluster, "nameserver-0") as application:
            application.goes_on(GOES_ON_S)
            cluster.kill("master-0")
            cluster.restart("master-0")
            application.goes_on(GOES_ON_S)
            application.has_all()
            cluster.kill("master-0")  # it stays away
            admin.promote("broker-0", cluster.node("slave-0-1").address, force=True)
            application.goes_on(GOES_ON_S)
            application.has_all()


def test_the_official_client_goes_on_with_another_group_when_a_master_is_killed(tmp_path) -> None:
    settings = Settings(masters=2, slaves=2, replication="sync")
    with running(tmp_path / "cluster", settings) as cluster, Admin(cluster.nameservers) as admin:
        admin.create_topic("T", 4, message_type="NORMAL")
        with Application(cluster, "nameserver-0") as application:
            application.goes_on(GOES_ON_S)
            killed = time.monotonic()
            cluster.kill("master-0")
            cluster.restart("master-0")
            application.goes_on(GOES_ON_S, killed, 1)
            application.has_all()
            killed = time.monotonic()
            cluster.kill("master-0")  # it stays away
            admin.promote("broker-0", cluster.node("slave-0-1").address, force=True)
            application.goes_on(GOES_ON_S, killed, 1)
            application.has_all()

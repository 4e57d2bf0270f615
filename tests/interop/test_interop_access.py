"""RocketMQ's own clients at brokers that check users and rules: over Remoting and over gRPC, as a
user who may, and as others. test_interop_mqadmin.py has the commands of operators."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import interop_nodes
import pytest
from cluster_rig import running
from interop_clients import java_program
from interop_grpc import CLIENTS, Failed, GrpcClient
from saturnmq import Admin, Credentials
from saturnmq.cli.launcher import LocalCluster, Settings

ROOT = Credentials("root", "root's-password")
ALICE = Credentials("alice", "alice's-password")
OPTIONS: dict[str, object] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": '{"username":"root","password":"root\'s-password"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"nodes","secretKey":"theirs"}',
    "transactionCheckInterval": 1_000,
}
SOON_S = 20


def is_user(patch: pytest.MonkeyPatch, user: Credentials) -> None:
    """Programs and clients of ours that start from now on are this user's."""
    patch.setenv("SATURNMQ_ACCESS_KEY", user.access_key)
    patch.setenv("SATURNMQ_SECRET_KEY", user.secret_key)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A master and its slave; alice may write to topics and read for groups that are called so."""
    with pytest.MonkeyPatch.context() as patch:
        is_user(patch, ROOT)
        settings = Settings(slaves=1, broker_options=OPTIONS)
        with running(tmp_path_factory.mktemp("access") / "cluster", settings) as made:
            with Admin(made.nameservers) as admin:
                for name in ("alice-orders", "alice-calls", "secret"):
                    admin.create_topic(name, 4)
                admin.create_topic("alice-transactions", 4, message_type="TRANSACTION")
                admin.create_user(ALICE.access_key, ALICE.secret_key)
                mine = ["Topic:alice*", "Group:alice*"]
                admin.create_acl("User:alice", mine, ["Pub", "Sub"], "Allow")
            yield made


@pytest.mark.quick
@pytest.mark.timeout(240)
def test_a_java_client_may_do_what_its_rules_allow(
    cluster: LocalCluster, tmp_path: Path, figures: Counter[str]
) -> None:
    jars, log = interop_nodes.rocketmq_jars(), tmp_path / "client.log"
    with java_program(jars, "Signed.java", cluster.nameservers[0], log=log) as client:
        client.tell("as", ALICE.access_key, ALICE.secret_key)
        for body in ("a", "b"):
            assert client.tell("send", "alice-orders", body) == "ok SEND_OK"
        assert client.tell("commit", "alice-transactions", "c") == "ok SEND_OK"
        assert "CODE: 16" in client.tell("send", "secret", "x")
        told = client.tell("consume", "alice-readers", "alice-orders", 2, SOON_S)
        assert told == "ok a,b", "also what came again by the retry topic"
        told = client.tell("consume", "alice-readers2", "alice-transactions", 1, SOON_S)
        assert told == "ok c"
        assert client.tell("consume", "others", "alice-orders", 1, 3) == "ok"
        for name, key in [("alice", "another"), ("nobody", "x")]:
            client.tell("as", name, key)
            assert "CODE: 16" in client.tell("send", "alice-orders", "x")
    figures["users of RocketMQ's clients"] += 2


def first_send(client: GrpcClient, body: str) -> None:
    """Failed: of the producer's start, or of the send, as the language has it."""
    client.tell("producer", "alice-calls")
    client.send("alice-calls", body)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(name, marks=pytest.mark.quick if name == "java" else ()) for name in CLIENTS],
)
@pytest.mark.timeout(180)
def test_a_client_over_grpc_may_do_what_its_rules_allow(
    cluster: LocalCluster,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    figures: Counter[str],
) -> None:
    made, group = CLIENTS[kind], f"alice-{kind}"
    endpoint = next(
        each["grpc"] for each in cluster.describe()["nodes"] if each["kind"] == "master"
    )
    is_user(monkeypatch, ALICE)
    with made(endpoint, tmp_path) as client:
        first_send(client, f"{kind}-1")
        with client.consumer("simple", group, "alice-calls"):
            bodies = {each.body for each in client.take(group, 1)}
            deadline = time.monotonic() + SOON_S
            while f"{kind}-1" not in bodies and time.monotonic() < deadline:
                bodies |= {each.body for each in client.take(group, 1, 1.0)}
            assert f"{kind}-1" in bodies
        with pytest.raises(Failed):
            client.send("secret", "x")
    is_user(monkeypatch, Credentials("alice", "another"))
    with made(endpoint, tmp_path) as client, pytest.raises(Failed):
        first_send(client, "x")
    figures["users of RocketMQ's clients"] += 1

"""RocketMQ's Rust client of version 5, 5.0.0, unmodified, at brokers of ours. It has no push
consumer, no change of the invisible time and no recall; its TLS is not finished. It sends several
messages in one call. Its cluster has a nameserver as the access point, at which it stays
(gateway/addresses.py)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from cluster_rig import running
from interop_grpc import WAIT_S, Failed, GrpcClient, rust_client, until
from saturnmq import Admin, PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = pytest.mark.timeout(180)

TYPES = {"N": "NORMAL", "B": "NORMAL", "F": "FIFO", "D": "DELAY", "X": "TRANSACTION"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"transactionCheckInterval": 1000, "transactionTimeOut": 500}
    settings = Settings(masters=2, broker_options=options)
    with running(tmp_path_factory.mktemp("rust") / "cluster", settings) as made:
        with Admin(made.nameservers) as admin:
            for name, kind in TYPES.items():
                admin.create_topic(name, 4, message_type=kind)
        yield made


@pytest.fixture(scope="module")
def client(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcClient]:
    nodes = cluster.describe()["nodes"]
    endpoint = next(each["grpc"] for each in nodes if each["kind"] == "nameserver")
    with rust_client(endpoint, tmp_path_factory.mktemp("rust")) as made:
        made.tell("producer", *TYPES)
        yield made


@pytest.fixture(autouse=True)
def counted(figures: Counter[str]) -> Iterator[None]:
    yield
    figures["scenarios of clients over gRPC"] += 1


def test_messages_come_as_they_were_sent(cluster: LocalCluster, client: GrpcClient) -> None:
    sent = {client.send("N", f"body-{n}", tag="A", key="k", n=n)[0]: f"body-{n}" for n in range(10)}
    with client.consumer("simple", "simple", "N"):
        got = client.take("simple", 10)
    assert {each.message_id: each.body for each in got} == sent
    assert len(got) == 10
    assert {(each.attempt, each.tag, each.keys, each.group) for each in got} == {(1, "A", "k", "-")}
    assert all(each.body == f"body-{each.n}" for each in got)
    ours = PullConsumer("ours", nameservers=cluster.nameservers, from_beginning=True)
    ours.subscribe("N")
    found: dict[str, str] = {}
    with ours:
        deadline = time.monotonic() + WAIT_S
        while len(found) < 10 and time.monotonic() < deadline:
            found |= {each.message_id: each.body.decode() for each in ours.poll(timeout_s=1.0)}
    assert found == sent


def test_messages_of_one_call_have_ids_in_their_order(client: GrpcClient) -> None:
    bodies = [f"batch-{n}" for n in range(10)]
    with client.consumer("simple", "batch", "B"):
        ids = client.tell("batch", "B", *bodies).split()
        assert len(set(ids)) == 10
        got = {each.message_id: each.body for each in client.take("batch", 10)}
    assert [got[each] for each in ids] == bodies


def test_tags_and_conditions_select(client: GrpcClient) -> None:
    with (
        client.consumer("simple", "tags", "N", "tag", "B||C"),
        client.consumer("simple", "sql", "N", "sql", "n_>_50_AND_TAGS_=_'B'"),
    ):
        for tag, n in (("B", 1), ("B", 100), ("D", 100)):
            client.send("N", f"select-{tag}-{n}", tag=tag, n=n)
        got = sorted(each.body for each in client.take("tags", 2))
        assert got == ["select-B-1", "select-B-100"]
        assert [each.body for each in client.take("sql", 1)] == ["select-B-100"]
        assert client.take("tags", 1, 3.0) == []


def test_a_message_group_keeps_its_order(cluster: LocalCluster, client: GrpcClient) -> None:
    for number in range(30):
        client.send("F", str(number), group=f"group-{number % 3}")
    with Admin(cluster.nameservers) as admin:
        admin.create_group("fifo", orderly=True)
    with client.consumer("simple", "fifo", "F"):
        got = client.take("fifo", 30)
    for first in range(3):
        order = [int(each.body) for each in got if each.group == f"group-{first}"]
        assert order == list(range(first, 30, 3))


def test_a_delayed_message_comes_at_its_time(client: GrpcClient) -> None:
    with client.consumer("simple", "delay", "D"):
        due = int(time.time() + 3) * 1000
        client.send("D", "kept", at=due)
        (got,) = client.take("delay", 1)
        assert time.time() * 1000 >= due
        assert got.body == "kept"


def test_transactions_end_as_their_producer_says_also_when_it_is_asked(client: GrpcClient) -> None:
    with client.consumer("simple", "transactions", "X"):
        for end in ("commit", "rollback", "open"):
            for answer in ("commit", "rollback"):
                client.tell("transaction", "X", f"{answer}-{end}", f"end={end}")
        got = sorted(each.body for each in client.take("transactions", 3))
        assert got == ["commit-commit", "commit-open", "rollback-commit"]
        assert client.take("transactions", 1, 3.0) == []


def test_a_message_that_is_not_acknowledged_comes_again_and_its_old_handle_is_dead(
    client: GrpcClient,
) -> None:
    with client.consumer("simple", "again", "N", "tag", "again"):
        client.send("N", "again", tag="again")
        assert received(client, 10) == [("again", 1)]
        hidden = time.monotonic()
        assert received(client, 30) == [("again", 2)]
        assert time.monotonic() - hidden >= 9
        with pytest.raises(Failed, match="INVALID_RECEIPT_HANDLE"):
            client.tell("ack", "again", "again@1")
        client.tell("ack", "again", "again@2")


def received(client: GrpcClient, invisible_s: int) -> list[tuple[str, int]]:
    """The bodies of the messages that come next, and their attempts."""
    found: list[tuple[str, int]] = []

    def has_come() -> bool:
        found.extend((each.body, each.attempt) for each in client.receive("again", invisible_s))
        return bool(found)

    until(has_come)
    return found


def test_a_topic_that_does_not_exist_is_an_error_that_says_so(client: GrpcClient) -> None:
    with pytest.raises(Failed, match="TOPIC_NOT_FOUND"):
        client.send("MISSING", "x")


def test_a_client_goes_on_when_a_broker_restarts(cluster: LocalCluster, client: GrpcClient) -> None:
    client.tell("simple", "restart", "N", "tag", "restart")
    client.send("N", "before", tag="restart")
    assert [each.body for each in client.take("restart", 1)] == ["before"]
    cluster.kill("master-0")
    cluster.restart("master-0")
    sent, got = set[str](), set[str]()
    deadline = time.monotonic() + WAIT_S
    for number in range(20):
        try:
            client.send("N", f"after-{number}", tag="restart")
        except Failed:
            continue
        sent.add(f"after-{number}")
    assert sent
    while not sent <= got and time.monotonic() < deadline:
        try:
            got |= {each.body for each in client.take("restart", 1, 1.0)}
        except Failed:
            continue
    assert sent <= got
    client.tell("leave", "restart")

"""The programs of examples/ for the kinds of messages, at a master and a slave in processes of
their own. What each prints in full is in the tests of its kind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_rig import running
from example_rig import printed_by
from saturnmq import Admin, Message, Producer, PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.protocol.trace import TraceKind

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
PATIENCE_S = 30.0
# A line of each, which none of them prints before the last of its messages has come.
LINES = {
    "broadcasting": "south: apple 3, pear 5, plum 2",
    "compressed_batches": "read again from 500 to 999",
    "dead_letters": "invoice-2: paid 40 thalers",
    "fifo": "carl: opened, paid in 100, withdrew 30, closed",
    "filters": "by a condition: order 3",
    "one_way": "4 readings",
    "ordered_pop": "given up: mill, melt",
    "own_offsets": "80 by the audit",
    "request_reply": "[20, 22] -> 42",
    "retries": "to a busy bank: paid, attempt 2",
    "timed": "order 3",
    "trace": "SubAfter readers ok",
    "transactions": "payment d: 900 cents",
    "typed_topics": "reminders: message.type=DELAY",
}
WITH_A_FILE = ("own_offsets", "transactions")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"transactionTimeOut": 1_000, "transactionCheckInterval": 1_000}
    settings = Settings(slaves=1, replication="sync", broker_options=options)
    with running(tmp_path_factory.mktemp("examples") / "cluster", settings) as made:
        yield made


@pytest.mark.parametrize("name", LINES)
def test_the_example_runs_at_a_replicated_cluster(
    cluster: LocalCluster, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # of the offsets of a broadcasting consumer
    more = [str(tmp_path / "example.db")] if name in WITH_A_FILE else []
    lines = printed_by(name, cluster.nameservers[0], *more)
    assert any(line.startswith(LINES[name]) for line in lines), lines


def test_the_program_over_rocketmqs_own_client_sends_and_receives(cluster: LocalCluster) -> None:
    with Admin(cluster.nameservers) as admin:
        admin.create_topic("greetings", message_type="NORMAL")
    endpoint = next(each["grpc"] for each in cluster.describe()["nodes"])
    lines = printed_by("clients/python/example", endpoint, "greetings")
    received = sorted(line for line in lines if line.startswith("received"))
    assert received == [f"received hello {number}" for number in range(3)]


def test_replies_and_traces_go_on_after_a_kill_of_the_master(cluster: LocalCluster) -> None:
    nameserver = cluster.nameservers[0]
    with Admin(nameserver) as admin:
        admin.create_topic("polled", queues=1)
        with Producer("senders", nameserver, trace=True) as producer:
            sent = producer.send(Message("polled", b"x"))
        cluster.kill("master-0")
        cluster.restart("master-0")
        consumer = PullConsumer("pollers", nameserver, from_beginning=True, trace=True)
        consumer.subscribe("polled")
        with consumer:
            assert [message.message_id for message in consumer.poll(PATIENCE_S)] == [
                sent.message_id
            ]
        deadline = time.monotonic() + PATIENCE_S
        while len(records := admin.message_trace(sent.message_id)) < 3:
            assert time.monotonic() < deadline, records
    kinds = [record.kind for record in records]
    assert kinds == [TraceKind.PUB, TraceKind.SUB_BEFORE, TraceKind.SUB_AFTER]
    assert printed_by("request_reply", nameserver)[-1] == LINES["request_reply"]

"""RocketMQ's clients of version 5 for other languages than Python, unmodified, at brokers of ours:
the same list for each. tests/cluster/test_grpc_python.py has Python's."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from socket import inet_aton

import pytest
from cluster_rig import running
from interop_grpc import WAIT_S, Failed, GrpcClient, until
from interop_grpc import WITH_CPP as CLIENTS
from saturnmq import Admin, PullConsumer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.gateway import v2
from saturnmq.protocol import fastjson
from saturnmq.protocol.asking import ask_once
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import SystemError_
from saturnmq.runtime.native import NativeRuntime

pytestmark = pytest.mark.timeout(180)

TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
VERIFYING = {"java", "cpp"}  # they have their listener take a message of an operator's
STACKS = {"node": "mock stack", "cpp": "PrintStackTrace is not supported"}  # as they say
SECURED = {f"{name}-tls": made for name, made in CLIENTS.items()}  # over TLS, on the same ports
IN_CI = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=pytest.mark.quick if name.startswith("java") else ())
        for name in (*CLIENTS, *SECURED)
    ],
    indirect=True,
)
ALSO_TLS = pytest.mark.parametrize("kind", [*CLIENTS, *SECURED], indirect=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    options = {"transactionCheckInterval": 1000, "transactionTimeOut": 500}
    settings = Settings(masters=2, broker_options=options)
    with running(tmp_path_factory.mktemp("grpc") / "cluster", settings) as made:
        with Admin(made.nameservers) as admin:
            for name in (*CLIENTS, *SECURED):
                for kind in TYPES:
                    admin.create_topic(f"{name}-{kind}", 4, message_type=kind)
        yield made


class Kind:
    """The client of a language, and the names of its own."""

    def __init__(self, name: str, client: GrpcClient) -> None:
        self.name = name
        self.client = client
        self.normal, self.fifo, self.delay, self.transaction = (f"{name}-{kind}" for kind in TYPES)

    def group(self, name: str) -> str:
        return f"{self.name}-{name}"


@pytest.fixture(scope="module", params=CLIENTS)
def kind(
    request: pytest.FixtureRequest,
    cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Kind]:
    name, home = request.param, tmp_path_factory.mktemp(request.param)
    ca = certificates(cluster, home) if name in SECURED else None
    # A nameserver's self-signed certificate is in no file, so no client can be told to trust it.
    kind = "master" if ca else "nameserver"
    endpoint = next(each["grpc"] for each in cluster.describe()["nodes"] if each["kind"] == kind)
    with (CLIENTS | SECURED)[name](endpoint, home, ca) as client:
        made = Kind(name, client)
        client.tell("producer", *(f"{name}-{each}" for each in TYPES))
        yield made


@pytest.fixture(autouse=True)
def counted(figures: Counter[str], request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    figures["scenarios of clients over gRPC"] += 1


@IN_CI
def test_messages_come_as_they_were_sent(cluster: LocalCluster, kind: Kind) -> None:
    client, group = kind.client, kind.group("simple")
    sent = {
        client.send(kind.normal, f"body-{n}", tag="A", key="k", n=n)[0]: f"body-{n}"
        for n in range(10)
    }
    with client.consumer("simple", group, kind.normal):
        got = client.take(group, 10)
    assert {each.message_id: each.body for each in got} == sent
    assert len(got) == 10
    assert {(each.attempt, each.tag, each.keys, each.group) for each in got} == {(1, "A", "k", "-")}
    assert all(each.body == f"body-{each.n}" for each in got)
    assert read_by_ours(cluster, kind.normal, 10) == sent


def test_tags_and_conditions_select(kind: Kind) -> None:
    client, tags, sql = kind.client, kind.group("tags"), kind.group("sql")
    with (
        client.consumer("simple", tags, kind.normal, "tag", "B||C"),
        client.consumer("simple", sql, kind.normal, "sql", "n_>_50_AND_TAGS_=_'B'"),
    ):
        for tag, n in (("B", 1), ("B", 100), ("D", 100)):
            client.send(kind.normal, f"select-{tag}-{n}", tag=tag, n=n)
        got = sorted(each.body for each in client.take(tags, 2))
        assert got == ["select-B-1", "select-B-100"]
        assert [each.body for each in client.take(sql, 1)] == ["select-B-100"]
        assert client.take(tags, 1, 3.0) == []


def test_a_message_group_keeps_its_order(cluster: LocalCluster, kind: Kind) -> None:
    client, group = kind.client, kind.group("fifo")
    for number in range(30):
        client.send(kind.fifo, str(number), group=f"group-{number % 3}")
    with Admin(cluster.nameservers) as admin:
        admin.create_group(group, orderly=True)
    with client.consumer("push", group, kind.fifo):
        got = client.seen(group, 30)
    for first in range(3):
        order = [int(each.body) for each in got if each.group == f"group-{first}"]
        assert order == list(range(first, 30, 3))


def test_a_delayed_message_comes_at_its_time_and_a_recalled_one_never(kind: Kind) -> None:
    client, group = kind.client, kind.group("delay")
    with client.consumer("simple", group, kind.delay):
        due = int(time.time() + 3) * 1000
        client.send(kind.delay, "kept", at=due)
        if kind.name != "go":  # Go's client has no recall
            _, handle = client.send(kind.delay, "recalled", at=due)
            client.tell("recall", kind.delay, handle)
        (got,) = client.take(group, 1)
        assert time.time() * 1000 >= due
        assert got.body == "kept"
        assert client.take(group, 1, 3.0) == []


@IN_CI
def test_transactions_end_as_their_producer_says_also_when_it_is_asked(kind: Kind) -> None:
    client, group = kind.client, kind.group("transactions")
    with client.consumer("simple", group, kind.transaction):
        for end in ("commit", "rollback", "open"):
            for answer in ("commit", "rollback"):
                client.tell("transaction", kind.transaction, f"{answer}-{end}", f"end={end}")
        got = sorted(each.body for each in client.take(group, 3))
        assert got == ["commit-commit", "commit-open", "rollback-commit"]
        assert client.take(group, 1, 3.0) == []


@ALSO_TLS
def test_a_push_consumer_gets_a_failed_message_again_until_its_group_gives_it_up(
    cluster: LocalCluster, kind: Kind
) -> None:
    client, group = kind.client, kind.group("push")
    with Admin(cluster.nameservers) as admin:
        admin.create_group(group, max_retries=1)
    with client.consumer("push", group, kind.normal, "tag", "push"):
        for body in ("good", "bad"):
            client.send(kind.normal, body, tag="push")
        got = [(each.body, each.attempt) for each in client.seen(group, 3)]
        until(lambda: f"%DLQ%{group}" in topics(cluster))
    assert sorted(got) == [("bad", 1), ("bad", 2), ("good", 1)]
    assert list(read_by_ours(cluster, f"%DLQ%{group}", 1).values()) == ["bad"]


def test_a_message_that_is_not_acknowledged_comes_again_when_its_time_is_over(kind: Kind) -> None:
    client, group = kind.client, kind.group("again")
    with client.consumer("simple", group, kind.normal, "tag", "again"):
        client.send(kind.normal, "again", tag="again")
        assert received(client, group, 10) == [("again", 1)]
        hidden = time.monotonic()
        assert received(client, group, 60) == [("again", 2)]
        assert time.monotonic() - hidden >= 9
        client.tell("hide", group, "again", 10)
        hidden = time.monotonic()
        assert received(client, group, 15) == [("again", 3)]
        assert 9 <= time.monotonic() - hidden < 25
        with pytest.raises(Failed, match=r"40013|INVALID_RECEIPT_HANDLE"):
            client.tell("hide", group, "again@1", 10)  # Go's client does not say how an ack ended
        client.tell("ack", group, "again")


def test_a_client_goes_on_when_a_broker_restarts(cluster: LocalCluster, kind: Kind) -> None:
    client, group, pushed = kind.client, kind.group("restart"), kind.group("restart-push")
    client.tell("simple", group, kind.normal, "tag", "restart")
    client.tell("push", pushed, kind.normal, "tag", "restart")
    client.send(kind.normal, "before", tag="restart")
    assert [each.body for each in client.take(group, 1)] == ["before"]
    cluster.kill("master-0")
    cluster.restart("master-0")
    restarted = time.monotonic()
    sent: set[str] = set()
    got: set[str] = set()
    for number in range(20):
        body = f"after-{number}"
        try:
            client.send(kind.normal, body, tag="restart")
        except Failed:
            continue
        sent.add(body)
    assert sent
    while not sent <= got and time.monotonic() < restarted + WAIT_S:
        try:
            got |= {each.body for each in client.take(group, 1, 1.0)}
        except Failed:
            continue
    assert sent <= got
    assert sent <= {each.body for each in client.seen(pushed, 1 + len(sent))}
    for left in (group, pushed):
        begun = time.monotonic()
        client.tell("leave", left)
        assert time.monotonic() - begun < WAIT_S  # Java's close() waits for the ends of its streams


def test_an_operator_has_a_push_consumer_verify_a_message_and_print_its_stacks(
    cluster: LocalCluster, kind: Kind
) -> None:
    client, group = kind.client, kind.group("asked")
    message_id, _ = client.send(kind.normal, "asked", tag="asked")
    with client.consumer("push", group, kind.normal, "tag", "asked"):
        assert [each.body for each in client.seen(group, 1)] == ["asked"]
        with Admin(cluster.nameservers) as admin:
            found = admin.find_by_id(message_id, kind.normal)
            assert found is not None
            members = [each for at in admin.describe_group(group) for each in at.members]
        (client_id,) = {member.client_id for member in members}
        address = found.store_host
        host, port = split_address(address)
        place = offset_message_id(inet_aton(host), port, found.physical_offset)
        ext = {"consumerGroup": group, "clientId": client_id}
        verify = {**ext, "msgId": place, "topic": kind.normal}
        if kind.name in VERIFYING:
            outcome = fastjson.loads(asked(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, verify))
            assert outcome["consumeResult"] == "CR_SUCCESS"
            assert [each.body for each in client.seen(group, 2)] == ["asked", "asked"]
        else:
            with pytest.raises(SystemError_, match=str(int(v2.Code.NOT_IMPLEMENTED))):
                asked(address, RequestCode.CONSUME_MESSAGE_DIRECTLY, verify)
        stacks = {**ext, "jstackEnable": "true"}
        info = fastjson.loads(asked(address, RequestCode.GET_CONSUMER_RUNNING_INFO, stacks))
        assert STACKS.get(kind.name, "main") in info["jstack"]
        assert [each["topic"] for each in info["subscriptionSet"]] == [kind.normal]


def asked(address: str, code: RequestCode, ext: dict[str, str]) -> bytes:
    """The answer of a broker to an operator."""

    async def ask() -> Command:
        runtime = NativeRuntime()
        try:
            return await ask_once(runtime, address, Command.request(code, ext), WAIT_S)
        finally:
            runtime.close()

    return bytes(asyncio.run(ask()).body)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_namespace_changes_nothing_as_at_rocketmqs_proxy(
    cluster: LocalCluster, name: str, tmp_path: Path
) -> None:
    topic = f"{name}-space"
    with Admin(cluster.nameservers) as admin:
        admin.create_topic(topic, 4, message_type="NORMAL")
    endpoint = cluster.describe()["nodes"][0]["grpc"]
    with CLIENTS[name](endpoint, tmp_path, namespace="space") as client:
        client.tell("producer", topic)
        sent = {client.send(topic, body)[0]: body for body in ("good", "bad")}
        with client.consumer("push", f"{name}-spaced", topic):
            assert len(client.seen(f"{name}-spaced", 2)) >= 2
        with client.consumer("simple", f"{name}-space", topic):
            assert {each.message_id: each.body for each in client.take(f"{name}-space", 2)} == sent
    assert read_by_ours(cluster, topic, 2) == sent
    assert not [each for each in topics(cluster) if each.startswith("space%")]


def certificates(cluster: LocalCluster, home: Path) -> Path:
    """A file with the self-signed certificates of all brokers, for the clients that check them."""
    file = home / "ca.pem"
    for made in sorted(cluster.data.glob("*/**/tls/self-signed.pem")):
        text = made.read_text()
        with file.open("a") as found:
            found.write(text[text.index("-----BEGIN CERTIFICATE") :])
    return file


def read_by_ours(cluster: LocalCluster, topic: str, count: int) -> dict[str, str]:
    """The bodies of a topic's messages by id, as our own consumer gets them over Remoting."""
    ours = PullConsumer("ours", nameservers=cluster.nameservers, from_beginning=True)
    ours.subscribe(topic)
    found: dict[str, str] = {}
    deadline = time.monotonic() + WAIT_S
    with ours:
        while len(found) < count and time.monotonic() < deadline:
            found |= {each.message_id: each.body.decode() for each in ours.poll(timeout_s=1.0)}
    return found


def topics(cluster: LocalCluster) -> set[str]:
    with Admin(cluster.nameservers) as admin:
        return set(admin.list_topics())


def received(client: GrpcClient, group: str, invisible_s: int) -> list[tuple[str, int]]:
    """The bodies of the messages that come next, and their attempts."""
    found: list[tuple[str, int]] = []

    def has_come() -> bool:
        found.extend((each.body, each.attempt) for each in client.receive(group, invisible_s))
        return bool(found)

    until(has_come)
    return found

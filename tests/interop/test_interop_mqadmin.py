"""RocketMQ's own mqadmin, every command, at a nameserver, a master and a slave of ours: each ends
in time and prints the truth, or the typed refusal that docs/interop.md has."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from interop_grpc import java_client
from interop_messages import until
from interop_mqadmin import Mqadmin, mqadmin_jvm
from interop_nodes import BROKER, CLUSTER, SATURNMQ, Node, Nodes
from mqadmin_commands import CASES, LOCAL, Case, filled, page_table, row, table, works
from saturnmq import Admin, Message, Producer, PushConsumer, ReceivedMessage
from saturnmq.aio import Admin as AsyncAdmin
from saturnmq.cli.free_ports import free_block
from saturnmq.protocol.codes import RequestCode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
SEGMENT = 1 << 16
SMALL: dict[str, object] = {"mappedFileSizeCommitLog": SEGMENT}
DEADLINE_S = 20  # of one command
ENDLESS_S = 3
SOON_S = 20
FOLLOW_S = 60
MESSAGES = 8
TOPICS = '[{"topicName":"listed","readQueueNums":2,"writeQueueNums":2,"perm":6}]'
GROUPS = '[{"groupName":"listed","retryMaxTimes":3}]'


@pytest.fixture
def aged(nodes: Nodes, tmp_path: Path) -> None:
    """The master's store has the topic `aged` with six messages, each in a segment of its own, and
    the first of them is older than messages are kept."""
    store, name = tmp_path / "m", "aged"
    broker = nodes.broker(SATURNMQ, store, free_block("127.0.0.1", 4) + 2, SMALL)
    nameserver = nodes.nameserver(SATURNMQ)
    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        admin.create_topic(name, queues=1)
        for _ in range(6):
            producer.send(Message(name, os.urandom(SEGMENT * 9 // 10)))
    broker.stop()
    oldest = min((store / "commitlog").iterdir())
    long_ago = oldest.stat().st_mtime - 100 * 3600  # fileReservedTime is 72 hours
    os.utime(oldest, (long_ago, long_ago))


@pytest.fixture
def places(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A master and its slave, in sync, with topics and groups; their addresses."""
    for key, value in (("ACCESS_KEY", "root"), ("SECRET_KEY", "root's password")):
        monkeypatch.setenv(f"SATURNMQ_{key}", value)
    ports = free_block("127.0.0.1", 8)
    settings = {**SMALL, "brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
    master = nodes.broker(SATURNMQ, tmp_path / "m", ports + 2, settings)
    settings = {**SMALL, "brokerRole": "SLAVE", "brokerId": 1}
    slave = nodes.broker(SATURNMQ, tmp_path / "s", ports + 6, settings)
    nameserver = nodes.nameserver(SATURNMQ)
    asyncio.run(until_in_sync(nameserver))
    with Admin(nameserver) as admin:
        for topic, queues in (("orders", 4), ("chat", 2), ("RMQ_SYS_TRACE_TOPIC", 1)):
            admin.create_topic(topic, queues=queues)
        admin.create_group("readers")
    guarded, guarded_slave = guarded_pair(nodes, tmp_path)
    (nodes.home / "conf").mkdir()
    (nodes.home / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: root's password\n")
    (nodes.home / "topics.json").write_text(TOPICS)
    (nodes.home / "groups.json").write_text(GROUPS)
    return {
        "nameserver": nameserver,
        "cluster": CLUSTER,
        "broker": BROKER,
        "master": master.address,
        "slave": slave.address,
        "guarded": guarded.address,
        "guarded-slave": guarded_slave.address,
        "home": str(nodes.home),
        "segment": str(SEGMENT),
    }


def guarded_pair(nodes: Nodes, root: Path) -> tuple[Node, Node]:
    """A master that checks its users, and its slave."""
    ports = free_block("127.0.0.1", 8)
    checking = {
        "brokerName": "guarded",
        "brokerClusterName": "GuardedCluster",
        "autoCreateTopicEnable": "false",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"root\'s password"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"nodes","secretKey":"theirs"}',
    }
    as_slave = {"brokerRole": "SLAVE", "brokerId": 1}
    master = nodes.broker(SATURNMQ, root / "gm", ports + 2, {**SMALL, **checking})
    slave = nodes.broker(SATURNMQ, root / "gs", ports + 6, {**SMALL, **checking, **as_slave})
    return master, slave


async def until_in_sync(nameserver: str) -> None:
    async with AsyncAdmin(nameserver) as admin:

        async def is_so() -> bool:
            return any(not each.is_master and each.in_sync for each in await admin.replicas(BROKER))

        await until(is_so, "the slave is in sync")


async def until_consumed(nameserver: str, group: str) -> None:
    async with AsyncAdmin(nameserver) as admin:

        async def is_so() -> bool:
            rows = await admin.group_lag(group, "orders")
            return len(rows) == 4 and all(row.committed == row.end == 2 for row in rows)

        await until(is_so, f"{group} has consumed all")


@dataclass
class Outcome:
    """What a command printed, and what is wrong with it."""

    text: str
    problem: str | None


def run(case: Case, mqadmin: Mqadmin, values: dict[str, str]) -> Outcome:
    """Run a command; `last` becomes the last message id that it prints."""
    deadline = time.monotonic() + SOON_S
    while True:
        outcome = run_once(case, mqadmin, values)
        if outcome.problem is None or not case.soon or time.monotonic() > deadline:
            return outcome


def run_once(case: Case, mqadmin: Mqadmin, values: dict[str, str]) -> Outcome:
    seconds = ENDLESS_S if case.endless else DEADLINE_S
    printed = mqadmin.run(*filled(case.words, values).split(" "), within_s=seconds)
    text = printed.text
    if not case.soon and (ids := re.findall(r"\b[0-9A-F]{32,}\b", text)):
        values["last"] = ids[-1]
    if printed.ended == case.endless:
        is_it = "over" if printed.ended else "not over"
        return Outcome(text, f"{is_it} after {seconds} s\n{text}")
    for pattern in case.patterns:
        if not re.search(filled(pattern, values, pattern=True), text, re.MULTILINE):
            return Outcome(text, f"no {pattern!r} in\n{text}")
    is_told = case.answer == LOCAL or any("CODE" in pattern for pattern in case.patterns)
    if not is_told and re.search(r"CODE: \d|\bat org\.apache\.", text):
        return Outcome(text, f"an error that no pattern names\n{text}")
    return Outcome(text, None)


@pytest.mark.quick
@pytest.mark.usefixtures("aged")  # before the places
def test_every_command_of_mqadmin_prints_the_truth_or_a_typed_refusal(
    nodes: Nodes, jars: Path, places: dict[str, str], figures: Counter[str]
) -> None:
    nameserver = places["nameserver"]
    with mqadmin_jvm(jars, nodes.home, nameserver) as mqadmin, reading(nameserver, Queue()):
        known = set(mqadmin.tell("commands").split(" "))
        assert known == {case.command for case in CASES}
        reader = mqadmin.tell("consume", "readers", "orders")
        maker, *ids = mqadmin.tell("produce", "makers", "orders", str(MESSAGES)).split(" ")
        for group in ("readers", "ours"):
            asyncio.run(until_consumed(nameserver, group))
        values = places | {
            "reader": reader,
            "maker": maker,
            "ours": "our-reader",
            "id": ids[0],
            "unique": ids[1],
            "unique-3": ids[7],
        }
        outcomes = {case: run(case, mqadmin, values) for case in CASES}
        codes = dict(word.split("=") for word in mqadmin.tell("codes").split(" "))
    problems = [(case.words, each.problem) for case, each in outcomes.items() if each.problem]
    shown = "\n\n".join(f"=== {words}\n{found}" for words, found in problems)
    assert not problems, f"{len(problems)} of {len(CASES)} calls of mqadmin are wrong\n{shown}"
    check_table({case: each.text for case, each in outcomes.items()})
    check_exported(nodes.home / "exported")
    figures["commands of mqadmin"] += len(known)
    # tests/unit/test_operators_requests.py asks each code of ours of either server
    ours = {each.name: int(each) for each in RequestCode}
    assert len(codes) > 150
    assert {name: number for name, number in codes.items() if ours.get(name) != int(number)} == {}


@contextmanager
def reading(nameserver: str, got: Queue[str]) -> Iterator[None]:
    """A push consumer of ours in the group `ours`, which reads `orders` from the beginning."""

    def take(message: ReceivedMessage) -> None:
        got.put(bytes(message.body).decode())

    consumer = PushConsumer(
        "ours", nameserver, listener_one=take, from_beginning=True, client_id="our-reader"
    )
    consumer.subscribe("orders")
    with consumer:
        yield


def test_mqadmin_reaches_a_consumer_that_speaks_grpc(
    nodes: Nodes, jars: Path, tmp_path: Path
) -> None:
    port = free_block("127.0.0.1", 3)
    nodes.broker(SATURNMQ, tmp_path / "g", port, {"grpcServerPort": port + 2})
    nameserver = nodes.nameserver(SATURNMQ)
    with Admin(nameserver) as admin:
        admin.create_topic("calls", 4)
    with (
        mqadmin_jvm(jars, nodes.home, nameserver) as mqadmin,
        java_client(f"127.0.0.1:{port + 2}", nodes.home) as client,
    ):
        client.tell("producer", "calls")
        message_id, _ = client.send("calls", "body")
        with client.consumer("push", "callers", "calls"):
            assert [each.body for each in client.seen("callers", 1)] == ["body"]
            with Admin(nameserver) as admin:
                (at,) = admin.describe_group("callers")
            (member,) = at.members
            values = {"unique": message_id, "client": member.client_id}
            cases = (
                works("consumerConnection -g callers", "<client> +127.0.0.1:\\d+ +JAVA"),
                works("consumerStatus -g callers", "<client>"),
                works("consumerStatus -g callers -i <client> -s", "#Consumer jstack#", "main"),
                works(
                    "queryMsgByUniqueKey -t calls -i <unique> -g callers -d <client>",
                    "consumeResult=CR_SUCCESS",
                ),
            )
            outcomes = [run(case, mqadmin, values) for case in cases]
            assert [each.problem for each in outcomes if each.problem] == []
            assert [each.body for each in client.seen("callers", 2)] == ["body", "body"]


@pytest.mark.quick
def test_connected_consumers_of_both_makes_follow_a_reset_a_skip_and_a_clone(
    nodes: Nodes, jars: Path, places: dict[str, str], figures: Counter[str]
) -> None:
    nameserver = places["nameserver"]
    got: Queue[str] = Queue()
    with mqadmin_jvm(jars, nodes.home, nameserver) as mqadmin, reading(nameserver, got):
        mqadmin.tell("consume", "readers", "orders")
        mqadmin.tell("produce", "makers", "orders", str(MESSAGES))
        every = sorted(f"m{number}" for number in range(MESSAGES))

        def by_java(count: int) -> list[str]:
            found: list[str] = []
            deadline = time.monotonic() + FOLLOW_S
            while len(found) < count:
                assert time.monotonic() < deadline, f"{found} of {count}"
                found += mqadmin.tell("seen").split()
            return sorted(found)

        def by_us(count: int) -> list[str]:
            return sorted(got.get(timeout=FOLLOW_S) for _ in range(count))

        assert by_java(MESSAGES) == by_us(MESSAGES) == every
        for group in ("readers", "ours"):
            asyncio.run(until_consumed(nameserver, group))
        with Admin(nameserver) as admin:
            queues = [row.queue for row in admin.describe_topic("orders")]
            for group, seen in (("readers", by_java), ("ours", by_us)):
                # all of it, by mqadmin and by our admin
                words = f"resetOffsetByTime -g {group} -t orders -s 0".split(" ")
                assert mqadmin.run(*words, within_s=DEADLINE_S).ended
                assert seen(MESSAGES) == every
                asyncio.run(until_consumed(nameserver, group))
                admin.reset_offsets(group, "orders", 0)
                assert seen(MESSAGES) == every
                asyncio.run(until_consumed(nameserver, group))
                # the second message of one queue, by number
                admin.reset_offsets(group, "orders", queue=queues[2], offset=1)
                assert len(seen(1)) == 1
                asyncio.run(until_consumed(nameserver, group))
            # a group that nobody has read for goes to the middle, and connected ones follow it
            admin.create_group("model")
            for queue in queues:
                admin.reset_offsets("model", "orders", queue=queue, offset=1)
            for group, seen in (("readers", by_java), ("ours", by_us)):
                admin.clone_offsets("model", group, "orders")
                assert len(seen(4)) == 4
                asyncio.run(until_consumed(nameserver, group))
            # what is skipped never comes: what is sent next is the next
            for group in ("readers", "ours"):
                words = f"skipAccumulatedMessage -g {group} -t orders".split(" ")
                assert mqadmin.run(*words, within_s=DEADLINE_S).ended
        mqadmin.tell("produce", "others", "orders", "1")
        assert by_java(1) == by_us(1) == ["m0"]
    figures["consumers that followed an operator"] += 2


def check_table(printed: dict[Case, str]) -> None:
    """docs/interop.md has the answers that the commands gave."""
    answers = {
        case.command: row(case, text) for case, text in reversed(printed.items()) if case.note
    }
    text = PAGE.read_text()
    if os.environ.get("REWRITE_PAGES"):
        PAGE.write_text(text.replace(page_table(text), table(answers)))
    else:
        assert page_table(text) == table(answers), "REWRITE_PAGES=1 writes it"


def check_exported(directory: Path) -> None:
    """The files that the export commands wrote have what the cluster had."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((directory / name).read_text())
        return found

    metadata = read("metadata.json")
    assert metadata["topicConfigTable"]["orders"]["readQueueNums"] == 4
    assert "SELF_TEST_TOPIC" not in metadata["topicConfigTable"]
    assert metadata["subscriptionGroupTable"]["readers"]["retryMaxTimes"] == 16
    [settings] = read("configs.json")["brokerConfigs"].values()
    assert settings["brokerRole"] == "SYNC_MASTER"
    assert BROKER in read("metrics.json")["evaluateReport"]

"""RocketMQ's own transaction producer at a broker of ours, killed and restarted, and a directory
with open transactions that goes from ours to RocketMQ's broker and back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop_clients import ClientProgram, java_program
from interop_nodes import ROCKETMQ, SATURNMQ, Node, Nodes
from saturnmq import PullConsumer
from saturnmq.cli.free_ports import free_block

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
GROUP, TOPIC = "java-payers", "payments"
COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
PATIENCE_S = 60.0
SETTINGS: dict[str, object] = {
    "transactionTimeOut": 500,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 100,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
}


class JavaProducer:
    """JavaTransactions.java."""

    def __init__(self, program: ClientProgram) -> None:
        self._tell = program.tell

    def send(self, key: str, state: str) -> None:
        assert self._tell("send", TOPIC, key, state) == state

    def decide(self, key: str, state: str) -> None:
        assert self._tell("decide", key, state) == "decided"

    def asked(self, key: str, least: int = 0) -> int:
        """How often a broker asked about it, as soon as that is `least` or more."""
        found = int(self._tell("asked", key, least))
        assert found >= least, f"{found} questions about {key}"
        return found


@contextmanager
def java_producer(jars: Path, nameserver: str, log: Path) -> Iterator[JavaProducer]:
    with java_program(jars, "JavaTransactions.java", nameserver, GROUP, log=log) as program:
        yield JavaProducer(program)


class Reader:
    """All that a new group gets, again and again."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._groups = 0

    def bodies(self, count: int) -> list[str]:
        """So many bodies at least, and those that come within a second after them."""
        self._groups += 1
        group = f"readers-{self._groups}"
        found: list[str] = []
        consumer = PullConsumer(group, self._nameserver, consume_from="first")
        consumer.subscribe(TOPIC)
        with consumer:
            deadline = time.monotonic() + PATIENCE_S
            while len(found) < count:
                assert time.monotonic() < deadline, found
                found += [message.body.decode() for message in consumer.poll(1.0)]
            found += [message.body.decode() for message in consumer.poll(1.0)]
        return sorted(found)


@pytest.mark.quick
def test_java_producers_commit_roll_back_and_are_asked_also_after_a_kill(
    nodes: Nodes, jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    nameserver = nodes.nameserver(SATURNMQ)
    port = free_block("127.0.0.1", 4) + 2

    def start() -> Node:
        return nodes.broker(SATURNMQ, tmp_path / "store", port, SETTINGS)

    broker, read = start(), Reader(nameserver)
    with java_producer(jars, nameserver, tmp_path / "java.log") as java:
        java.send("a", COMMIT)
        java.send("b", ROLLBACK)
        for key in "cdef":
            java.send(key, UNKNOWN)
        for key in "cdef":
            java.asked(key, 2)
        java.decide("c", COMMIT)
        java.decide("d", ROLLBACK)
        assert read.bodies(2) == ["a", "c"]
        broker.kill()
        broker = start()
        java.asked("e", java.asked("e") + 1)
        java.decide("e", COMMIT)
        java.decide("f", ROLLBACK)
        assert read.bodies(3) == ["a", "c", "e"]
        java.send("g", COMMIT)
        assert read.bodies(4) == ["a", "c", "e", "g"]
        assert java.asked("a") == java.asked("b") == java.asked("g") == 0
        figures["transactions of a Java producer"] += 7
    broker.stop()


def test_a_directory_with_open_transactions_goes_to_rocketmq_and_back(
    nodes: Nodes, jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    nameserver = nodes.nameserver(SATURNMQ)
    port = free_block("127.0.0.1", 4) + 2
    read = Reader(nameserver)
    # RocketMQ writes the endings later than the messages, and commits again what it asks about
    # before that.
    settings = SETTINGS | {"transactionCheckInterval": 4000, "transactionOpBatchInterval": 100}
    expected: list[str] = []
    with java_producer(jars, nameserver, tmp_path / "java.log") as java:
        for turn, make in enumerate((SATURNMQ, ROCKETMQ, SATURNMQ)):
            broker = nodes.broker(make, tmp_path / "store", port, settings, nameserver=nameserver)
            if turn:
                java.asked(f"open{turn - 1}", java.asked(f"open{turn - 1}") + 1)
                java.decide(f"open{turn - 1}", COMMIT)
                expected.append(f"open{turn - 1}")
            java.send(f"done{turn}", COMMIT)
            expected.append(f"done{turn}")
            java.send(f"gone{turn}", ROLLBACK)
            java.send(f"open{turn}", UNKNOWN)
            java.asked(f"open{turn}", 1)
            assert read.bodies(len(expected)) == sorted(expected), make
            broker.stop()
            figures["directories with open transactions taken over"] += 1

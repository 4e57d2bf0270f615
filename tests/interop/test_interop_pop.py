"""RocketMQ's push consumer in pop mode against a broker of ours: it is told to pop, asks the broker
for its queues, pops, fails some messages, gets them again, and acknowledges all. (With an ordered
listener it never pops, whatever the broker says: RebalancePushImpl.clientRebalance.)
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_rig import running
from interop_nodes import ROCKETMQ, Nodes, java
from saturnmq import (
    Admin,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from saturnmq.cli.free_ports import free_block

COUNT = 40
POPS = {"timerWheelEnable": "true"}  # of a RocketMQ broker whose groups pop


def consume(
    jars: Path, folder: Path, nameserver: str, broker: str, group: str
) -> list[tuple[str, int, int, str]]:
    """(body, reconsumeTimes, queue, POP_CK) of each message that the listener got, in order."""
    arguments = nameserver, broker, "jobs", group, str(COUNT)
    lines = java(jars, "PopConsumer.java", *arguments, home=folder)
    rows = [line.split(" ", 3) for line in lines if line.startswith("job")]
    return [(body, int(times), int(queue), handle) for body, times, queue, handle in rows]


@pytest.mark.timeout(300)
def test_a_java_push_consumer_pops_and_what_fails_comes_again(
    jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    with running(tmp_path / "cluster") as cluster:
        nameserver = cluster.nameservers[0]
        with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
            admin.create_topic("jobs", 2)
            admin.create_group("workers")
            for number in range(COUNT):
                message = Message("jobs", f"job{number:03}".encode())
                producer.send(message, sharding_key=str(number % 2))
            (broker,) = (each.addresses[0] for each in admin.route("jobs").brokers)
        begun = time.time()
        seen = consume(jars, tmp_path, nameserver, broker, "workers")
        figures["messages to a Java push consumer that pops"] += len(seen)
        attempts = defaultdict(list)
        for body, times, _, handle in seen:
            attempts[body].append(times)
            assert len(handle.split(" ")) == 8, handle
            assert handle.split(" ")[3:6] == ["0", "0", "broker-0"]
        assert len(attempts) == COUNT
        failing = {f"job{number:03}" for number in range(7, COUNT, 10)}
        for body, times in attempts.items():
            if body in failing:
                assert times == [0, 1], (body, times, time.time() - begun)
            else:
                assert times == [0], (body, times)
        consumer = SimpleConsumer("workers", nameserver)
        consumer.subscribe("jobs")
        with consumer:
            assert consumer.receive(wait_s=0.5) == [], "all were acknowledged"


@pytest.mark.timeout(300)
def test_our_push_consumer_pops_at_a_broker_of_rocketmqs(nodes: Nodes, tmp_path: Path) -> None:
    nodes.broker(ROCKETMQ, tmp_path / "store", free_block("127.0.0.1", 4) + 2, POPS)
    nameserver = nodes.nameserver(ROCKETMQ)
    got: list[tuple[bytes, int]] = []
    pops: list[str] = []

    def work(message: ReceivedMessage) -> ConsumeResult:
        got.append((message.body, message.reconsume_times))
        pops.append(message.properties.get("POP_CK", ""))
        failing = message.body.endswith(b"7") and message.reconsume_times == 0
        return ConsumeResult.RETRY if failing else ConsumeResult.SUCCESS

    def until(check: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            assert time.monotonic() < deadline, (len(got), sorted(got)[-6:], pops[-3:])
            threading.Event().wait(0.1)

    with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
        admin.create_topic("jobs", 2)
        admin.create_group("workers")
        admin.set_request_mode("workers", "jobs", "POP")
        consumer = PushConsumer("workers", nameserver, listener_one=work, from_beginning=True)
        consumer.subscribe("jobs")
        with consumer:
            for number in range(COUNT):
                producer.send(Message("jobs", f"job{number:03}".encode()))
            failing = [f"job{number:03}".encode() for number in range(7, COUNT, 10)]
            once = [(f"job{number:03}".encode(), 0) for number in range(COUNT)]
            until(lambda: len(got) >= COUNT + len(failing), 120)
            assert sorted(got) == sorted([*once, *((body, 1) for body in failing)])
            assert all(len(handle.split(" ")) == 8 for handle in pops)
            until(lambda: sum(row.lag for row in admin.group_lag("workers", "jobs")) == 0, 120)
            admin.set_request_mode("workers", "jobs", "PULL")
            # RocketMQ's broker tells no member: the next rebalance finds out.
            until(lambda: len(admin.member_queues("workers", consumer_id(admin))) == 3, 60)
            producer.send(Message("jobs", b"last"))
            until(lambda: got[-1] == (b"last", 0), 60)
            assert pops[-1] == ""


def consumer_id(admin: Admin) -> str:
    [here] = admin.describe_group("workers")
    return here.members[0].client_id

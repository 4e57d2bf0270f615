"""RocketMQ's push consumer in pop mode against a broker of ours: it is told to pop, asks the broker
for its queues, pops, fails some messages, gets them again, and acknowledges all. (With an ordered
listener it never pops, whatever the broker says: RebalancePushImpl.clientRebalance.)
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from cluster_rig import running
from interop_nodes import java
from saturnmq import Admin, Message, Producer, SimpleConsumer

COUNT = 40


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

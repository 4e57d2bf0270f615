"""Groups with the default start, one of RocketMQ's own consumer and one of ours side by side at a
broker of ours: of topics that appear and grow under load neither misses a message.

`SATURNMQ_INTEROP_RUNS` says how many random runs there are (5 if not set), `SATURNMQ_INTEROP_SEED`
of which seed the first one is.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_rig import running
from interop_clients import ClientProgram, java_program
from saturnmq import Admin, Message, Producer, PushConsumer

RUNS = int(os.environ.get("SATURNMQ_INTEROP_RUNS") or 5)
FIRST_SEED = int(os.environ.get("SATURNMQ_INTEROP_SEED") or 1)
PATIENCE_S = 15.0
MADE_BY_SENDING = 4  # queues


def one_run(seed: int, nameserver: str, admin: Admin, producer: Producer, java: ClientProgram):
    """(messages sent, missed by the Java consumer, missed by ours)."""
    rng = random.Random(seed)
    topic = f"run-{seed}"
    there_before = rng.random() < 0.3
    if there_before:
        admin.create_topic(topic, 1)
    assert java.tell("join", topic) == "joined"
    got: set[int] = set()
    consumer = PushConsumer(
        f"ours-{seed}", nameserver, listener_one=lambda message: got.add(int(message.body))
    )
    consumer.subscribe(topic)
    handles: list[Any] = []
    with consumer:
        time.sleep(rng.random() * 0.3)  # somewhere between two looks at the route
        first = 1 if there_before else MADE_BY_SENDING
        larger = [queues for queues in (2, 4, 8, 16) if queues > first]
        for queues in [first, *sorted(rng.sample(larger, rng.randint(0, 2)))]:
            if queues > first:
                admin.create_topic(topic, queues)
            for _ in range(rng.randint(2, 6)):
                for _ in range(rng.randint(1, 60)):
                    handles.append(producer.send_async(Message(topic, b"%d" % len(handles))))
                handles[-1].result()
                time.sleep(rng.choice((0.0, 0.0, 0.01, 0.1)))
        for handle in handles:
            handle.result()
        missed_by_java = int(java.tell("leave", topic, len(handles)))
        deadline = time.monotonic() + PATIENCE_S
        while len(got) < len(handles) and time.monotonic() < deadline:
            time.sleep(0.01)
    return len(handles), missed_by_java, len(handles) - len(got)


@pytest.mark.timeout(60 + 15 * RUNS)
def test_groups_with_the_default_start_miss_nothing_of_topics_that_appear_and_grow(
    jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    missed, log = {}, tmp_path / "java.log"
    with running(tmp_path / "cluster") as cluster:
        nameserver = cluster.nameservers[0]
        with (
            java_program(jars, "DefaultStartConsumer.java", nameserver, log=log) as java,
            Admin(nameserver) as admin,
            Producer(nameservers=nameserver) as producer,
        ):
            for seed in range(FIRST_SEED, FIRST_SEED + RUNS):
                sent, by_java, by_us = one_run(seed, nameserver, admin, producer, java)
                figures["runs of topics that appear and grow"] += 1
                figures["messages of them to a Java consumer and to ours"] += sent
                if by_java or by_us:
                    missed[seed] = sent, by_java, by_us
    assert missed == {}, "by seed: sent, missed by the Java consumer, missed by ours"

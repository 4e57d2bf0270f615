"""Pop on real processes: kills of the master, and the program of examples/simple_consumer.py."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from cluster_rig import running
from saturnmq import Admin, Message, Producer, ReceivedMessage, SaturnError, SimpleConsumer
from saturnmq.cli.launcher import Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "simple_consumer.py"
COUNT = 300
INVISIBLE_S = 8.0


def test_kill_9_of_the_master_loses_no_message_and_gives_none_out_twice(tmp_path: Path) -> None:
    """Half of the messages are acknowledged, the others are out when the master dies."""
    with running(tmp_path / "cluster") as cluster:
        nameserver = cluster.nameservers[0]
        with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
            admin.create_topic("jobs", 2)
            for number in range(COUNT):
                producer.send(Message("jobs", b"%d" % number))
        consumer = SimpleConsumer("workers", nameserver, from_beginning=True)
        consumer.subscribe("jobs")
        done: Counter[int] = Counter()
        with consumer:
            got: list[ReceivedMessage] = []
            while len(got) < COUNT:
                got += consumer.receive(32, invisible_s=INVISIBLE_S)
            popped_at = time.monotonic()
            for message in got[::2]:
                consumer.ack(message)
                done[int(message.body)] += 1
            cluster.kill("master-0")
            cluster.restart("master-0")
            late = 0.0
            while len(done) < COUNT and time.monotonic() < popped_at + 60:
                try:
                    messages = consumer.receive(32, invisible_s=INVISIBLE_S, wait_s=2)
                except SaturnError:
                    continue  # it is starting
                if messages:
                    late = late or time.monotonic() - popped_at
                consumer.ack(messages)
                done.update(int(message.body) for message in messages)
                assert all(message.reconsume_times == 1 for message in messages)
        assert sorted(done) == list(range(COUNT))
        assert set(done.values()) == {1}, "given out again after its acknowledgement"
        assert late >= INVISIBLE_S - 1.0, f"given out again after {late:.1f} s"


def test_the_example_does_all_jobs_and_fails_some_once(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", Settings(masters=2)) as cluster:
        nameserver = cluster.nameservers[0]
        with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
            admin.create_topic("jobs", 2)
            for number in range(30):
                kind = "hard" if number % 10 == 0 else "easy"
                producer.send(Message("jobs", f"{kind} {number}".encode()))
        command = [sys.executable, str(EXAMPLE), "--nameserver", nameserver, "--idle", "3"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert re.search(r"^30 done, 3 attempts failed$", said.stdout, re.MULTILINE), said

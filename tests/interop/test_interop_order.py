"""The order configuration of a topic, written by ours and by mqadmin, as RocketMQ's producer has
it."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from interop_nodes import SATURNMQ, Nodes
from saturnmq import Admin, Producer
from saturnmq.cli.free_ports import free_block

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def java_queues(jars: Path, nameserver: str, home: Path) -> list[str]:
    """The queues to which RocketMQ's producer writes the topic."""
    if shutil.which("javac") is None:
        pytest.skip("no `javac` on the path to run RocketMQ's producer with")
    program = str(Path(__file__).with_name("OrderedQueues.java"))
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", f"-Duser.home={home}"]
    command += ["-cp", f"{jars}/*", program, nameserver, "ordered"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(">")]
    return line.split()[1:]


def test_java_producers_write_an_ordered_topic_where_its_configuration_says(
    nodes: Nodes,
    jars: Path,
    tmp_path: Path,
    figures: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SATURNMQ_ORDER_MESSAGES", "1")
    nameserver = nodes.nameserver(SATURNMQ)
    nodes.broker(SATURNMQ, tmp_path / "store", free_block("127.0.0.1", 4) + 2, {})
    with Admin(nameserver) as admin:
        admin.create_topic("ordered", write_queues=2, read_queues=4, order=True)
        (broker,) = admin.topic_settings("ordered")
        assert java_queues(jars, nameserver, tmp_path) == [f"{broker}:0", f"{broker}:1"]
        conf = f"gone:1;{broker}:1"
        nodes.mqadmin(
            "updateOrderConf", "-n", nameserver, "-t", "ordered", "-m", "put", "-v", conf
        )  # fmt: skip
        expected = ["gone:0", f"{broker}:0"]
        assert java_queues(jars, nameserver, tmp_path) == expected
        with Producer(nameservers=nameserver) as producer:
            ours = [f"{q.broker_name}:{q.queue_id}" for q in producer.queues("ordered")]
        assert ours == expected
        assert admin.topic_settings("ordered")[broker].order
    route = nodes.mqadmin("topicRoute", "-n", nameserver, "-t", "ordered")
    assert f'"orderTopicConf":"{conf}"' in route.replace(" ", "")
    figures["order configurations"] += 2

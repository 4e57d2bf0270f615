"""Real processes: every node of a cluster is restarted under load, and nobody who sends notices."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_rig import make_topic, read_all, running
from saturnmq import Admin, Message, Producer, SaturnError
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.client.producer.results import SendStatus

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
SENDERS = 3
PAUSE_S = 0.005  # between two messages of a sender


class Load:
    """Senders, until told to stop."""

    def __init__(self, nameservers: list[str]) -> None:
        self.stored: list[bytes] = []
        self.statuses: Counter[SendStatus] = Counter()
        self.failed: list[str] = []
        self.longest_s = 0.0
        self._producer = Producer("P", nameservers=nameservers)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, args=(number,)) for number in range(SENDERS)
        ]

    def __enter__(self) -> Load:
        self._producer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._producer.close()

    def _send(self, sender: int) -> None:
        number = 0
        while not self._stop.is_set():
            body = b"%d-%06d" % (sender, number)
            number += 1
            began = time.monotonic()
            try:
                result = self._producer.send(Message("T", body))
            except SaturnError as error:
                self.failed.append(f"{body!r}: {error}")
            else:
                self.statuses[result.status] += 1
                self.stored.append(body)
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self._stop.wait(PAUSE_S)


def saturnmq(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "saturnmq", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def upgrade(cluster: LocalCluster, *options: str) -> Any:
    words = ("cluster", "upgrade", "--rolling", "--data", str(cluster.data), "--json", *options)
    done = saturnmq(*words)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("replication", ["async", "sync"])
def test_a_cluster_is_upgraded_under_load(tmp_path: Path, replication: str) -> None:
    with running(tmp_path / "cluster", Settings(slaves=1, replication=replication)) as cluster:
        make_topic(cluster, "T", 4)
        before = {node.name: node.pid for node in cluster.nodes}
        order = ["slave-0", "nameserver-0", "master-0"]
        with Load(cluster.nameservers) as load:
            told, _ = upgrade(cluster, "--dry-run")
            assert told == {"nodes": order, "masters": {"broker-0": "master-0"}, "done": False}
            assert {n.name: n.pid for n in LocalCluster.load(cluster.data).nodes} == before
            told, progress = upgrade(cluster)
        assert told == {"nodes": order, "masters": {"broker-0": "master-0"}, "done": True}
        assert "handed broker-0 over to slave-0" in progress
        assert "broker-0 is led by master-0 again" in progress
        cluster.nodes = LocalCluster.load(cluster.data).nodes
        assert all(node.alive() and node.pid != before[node.name] for node in cluster.nodes)
        with Admin(cluster.nameservers) as admin:
            roles = {each.address: each.role for each in admin.replicas()}
        assert roles == {
            cluster.node("master-0").address: "master",
            cluster.node("slave-0").address: "slave",
        }
        print(load.statuses, f"the longest send took {load.longest_s:.2f} s")
        assert not load.failed
        if replication == "async":
            assert set(load.statuses) == {SendStatus.OK}
        else:  # a start that takes longer than slaveTimeout is not waited for
            assert load.statuses[SendStatus.OK] > 0.5 * len(load.stored)
        assert ("sends wait for the node" in progress) == (replication == "sync")
        lost = set(load.stored) - read_all(cluster, set(load.stored))
        assert not lost, f"{len(lost)} of {len(load.stored)}: {sorted(lost)[:5]}"

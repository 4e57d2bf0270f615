"""Real processes that share a secret: they replicate, hand over and are given another one; a
stranger does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster_rig import make_topic, running
from saturnmq import Admin, Message, Producer
from saturnmq.cli.free_ports import free_block
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
VARIABLE = "SATURNMQ_REPLICATION_SECRET"
SECRET, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
DEADLINE_S = 30.0


def sends(cluster: LocalCluster, count: int) -> list[str]:
    with Producer("P", nameservers=cluster.nameservers) as producer:
        return [producer.send(Message("T", b"%d" % n)).status.name for n in range(count)]


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "saturnmq", *command],
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_cluster_with_a_secret_serves_and_a_stranger_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    with running(tmp_path / "c", Settings(slaves=1, replication="sync")) as cluster:
        make_topic(cluster, "T", queues=2)
        assert set(sends(cluster, 20)) == {"OK"}
        said = [(Path(node.data) / "log.txt").read_text() for node in cluster.nodes]
        files = [path.read_text() for path in (tmp_path / "c").glob("*/broker.toml")]
        files.append((tmp_path / "c" / "cluster.json").read_text())
        assert not any(SECRET in text for text in [*said, *files])

        # A stranger would be a slave, then an operator.
        master = cluster.node("master-0")
        port = free_block("127.0.0.1", 4) + 2
        stranger = tmp_path / "stranger"
        environ = {
            "SATURNMQ_BROKER_NAME": "broker-0",
            "SATURNMQ_BROKER_ID": "7",
            "SATURNMQ_NAMESERVERS": cluster.nameservers[0],
            "SATURNMQ_HA_MASTER_ADDRESS": f"127.0.0.1:{master.port + 1}",
            "SATURNMQ_PORT": str(port),
            "SATURNMQ_ROOT": str(stranger),
            "SATURNMQ_COMMITLOG_SEGMENT_BYTES": str(1 << 20),
            VARIABLE: OTHER,
        }
        log = tmp_path / "stranger.txt"
        with open(log, "w") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "saturnmq", "broker"],
                env={**os.environ, **environ},
                stdout=sink,
                stderr=sink,
            )
        try:
            wanted = ("another replicationSecret", "not signed with the replicationSecret")
            deadline = time.monotonic() + DEADLINE_S
            while not all(words in log.read_text() for words in wanted):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        finally:
            process.terminate()
            process.wait(30)
        names = ("--nameserver", cluster.nameservers[0])
        for secret in ("", OTHER):
            refused = run(
                "admin", "promote", "broker-0", "1", "--force", *names, **{VARIABLE: secret}
            )
            assert refused.returncode == 1
            assert "replicationSecret" in refused.stderr
        assert set(sends(cluster, 20)) == {"OK"}
        with Admin(cluster.nameservers, replication_secret=SECRET) as admin:
            members = admin.replicas("broker-0")
            assert [(each.broker_id, each.role) for each in members] == [
                (0, "master"),
                (1, "slave"),
            ]
        done = run("admin", "handover", "broker-0", *names, **{VARIABLE: SECRET})
        assert done.returncode == 0, done.stderr
        assert set(sends(cluster, 20)) == {"OK"}


def test_a_running_cluster_is_given_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "c", Settings(slaves=1, replication="sync")) as cluster:
        make_topic(cluster, "T", queues=2)
        upgrade = ("cluster", "upgrade", "--rolling", "--data", str(cluster.data))
        try:
            for more in ({f"{VARIABLE}_REQUIRED": "false"}, {}):
                done = run(*upgrade, **{VARIABLE: SECRET, **more})
                assert done.returncode == 0, done.stderr
                assert set(sends(cluster, 10)) == {"OK"}
            names = ("--nameserver", cluster.nameservers[0])
            refused = run("admin", "handover", "broker-0", *names, **{VARIABLE: ""})
            assert (refused.returncode, "replicationSecret" in refused.stderr) == (1, True)
        finally:  # its processes are not those any more that were started here
            LocalCluster.load(cluster.data).down()


def test_a_secret_is_not_taken_from_the_command_line(tmp_path: Path) -> None:
    option = f"replicationSecret={SECRET}"
    done = run("cluster", "up", "--data", str(tmp_path / "c"), "--set", option)
    assert done.returncode == 1
    assert VARIABLE in done.stderr
    assert not (tmp_path / "c").exists()

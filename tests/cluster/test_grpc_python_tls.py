"""The official Python client over TLS: it checks certificates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_rig import running
from saturnmq import Admin
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

# gRPC reads which certificates it trusts when a process makes its first channel with TLS.
PROGRAM = """
import sys, rocketmq

there = rocketmq.ClientConfiguration(sys.argv[1], rocketmq.Credentials())
producer = rocketmq.Producer(there, ("T",), tls_enable=True)
wanted = {"T": rocketmq.FilterExpression()}
consumer = rocketmq.SimpleConsumer(there, "G", wanted, 5, tls_enable=True)
producer.startup()
consumer.startup()
message = rocketmq.Message()
message.topic, message.body = "T", b"over TLS"
sent = producer.send(message).message_id
for _ in range(8):
    for got in consumer.receive(32, 15):
        consumer.ack(got)
        print(got.message_id == sent, got.body.decode())
        producer.shutdown()
        consumer.shutdown()
        sys.exit()
"""


@pytest.mark.parametrize("slaves", [0, 1])
def test_the_official_client_sends_and_receives_over_tls(tmp_path: Path, slaves: int) -> None:
    settings = Settings(masters=1, slaves=slaves)
    with running(tmp_path / "cluster", settings) as cluster:
        with Admin(cluster.nameservers) as admin:
            admin.create_topic("T", 4, message_type="NORMAL")
        nodes = cluster.describe()["nodes"]
        endpoint = next(each["grpc"] for each in nodes if each["kind"] == "master")
        trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificates(cluster, tmp_path))}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, endpoint],
            env=os.environ | trusted, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.stdout.split("\n")[-2:] == ["True over TLS", ""], done.stdout + done.stderr[-2000:]


def certificates(cluster: LocalCluster, home: Path) -> Path:
    """A file with the self-signed certificates of all brokers."""
    found = [made.read_text() for made in cluster.data.glob("*/**/tls/self-signed.pem")]
    file = home / "ca.pem"
    file.write_text("".join(text[text.index("-----BEGIN CERTIFICATE") :] for text in found))
    return file

"""The programs of examples/clients/ for RocketMQ's clients of version 5, run as their heads say.
Python's is in tests/cluster/test_examples.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import interop_cache
import interop_clients
import interop_grpc
import interop_nodes
import pytest
from cluster_rig import running
from saturnmq import Admin
from saturnmq.cli.launcher import LocalCluster

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("examples") / "cluster") as made:
        yield made


def java() -> list[str]:
    jars = interop_nodes.grpc_jars(interop_grpc.JAVA)
    return ["java", "-cp", f"{jars}/*", str(CLIENTS / "java" / "Example.java")]


def go() -> list[str]:
    return [interop_clients.go_client(str(CLIENTS / "go"))]


def node() -> list[str]:
    interop_cache.node_package("rocketmq-client-nodejs", interop_grpc.NODE)
    return ["node", str(CLIENTS / "node" / "example.js")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command", [java, go, pytest.param(node, marks=pytest.mark.quick)], ids=["java", "go", "node"]
)
def test_the_example_sends_and_receives(
    cluster: LocalCluster, command: Callable[[], list[str]], tmp_path: Path
) -> None:
    topic = f"greetings-{command.__name__}"
    with Admin(cluster.nameservers) as admin:
        admin.create_topic(topic, 4, message_type="NORMAL")
    endpoint = next(each["grpc"] for each in cluster.describe()["nodes"])
    packages = interop_cache.cached(f"rocketmq-client-nodejs-{interop_grpc.NODE}")
    done = subprocess.run(
        [*command(), endpoint, topic],
        env={**os.environ, "HOME": str(tmp_path), "NODE_PATH": str(packages / "node_modules")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sorted(line for line in lines if line.startswith("received")) == [
        f"received hello {number}" for number in range(3)
    ]

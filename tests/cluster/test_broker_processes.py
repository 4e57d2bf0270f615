"""`saturnmq broker --processes`: brokers that start, serve and end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cluster_rig import running, until
from saturnmq import Admin, Message, Producer, PullConsumer
from saturnmq.cli.launcher import Settings
from saturnmq.runtime.errors import SystemBusy

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
WAIT_S = 30.0


@contextmanager
def brokers(root: Path, nameserver: str) -> Iterator[subprocess.Popen[str]]:
    """The command with three processes, and small files."""
    settings = {
        "BROKER_NAME": "many",
        "PORT": "0",
        "HA_PORT": "0",
        "GRPC_PORT": "-1",
        "NAMESERVERS": nameserver,
        "ROOT": str(root),
        "COMMITLOG_SEGMENT_BYTES": str(1 << 20),
        "DISK_SPACE_ENOUGH_BYTES": str(1 << 30),
    }
    command = [sys.executable, "-m", "saturnmq", "broker", "--processes", "3"]
    process = subprocess.Popen(
        command,
        env={**os.environ, **{f"SATURNMQ_{name}": value for name, value in settings.items()}},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in _read(f"/proc/{process.pid}/task/{process.pid}/children").split()]


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def gone(pids: list[int]) -> bool:
    return not any(_read(f"/proc/{pid}/stat") for pid in pids)


def names(nameserver: str) -> set[str]:
    with Admin(nameserver) as admin:
        return {node.broker_name for node in admin.cluster()}


NAMES = {"broker-0", "many", "many-1", "many-2"}  # the cluster has a broker of its own


def test_they_serve_as_brokers_of_a_cluster_and_end_together(tmp_path: Path) -> None:
    with running(tmp_path / "cluster", Settings(masters=1)) as cluster:
        [nameserver] = cluster.nameservers
        with brokers(tmp_path / "store", nameserver) as process:
            until(lambda: names(nameserver) == NAMES, "all are registered")
            with Admin(nameserver) as admin:

                def is_created() -> bool:
                    with suppress(SystemBusy):  # one that has just started asks who is the master
                        admin.create_topic("T", 2)
                        return True
                    return False

                until(is_created, "all take a topic")
            bodies = {f"{number}".encode() for number in range(60)}
            with Producer(nameservers=nameserver) as producer:
                used = {producer.send(Message("T", body)).queue.broker_name for body in bodies}
            assert used == NAMES
            consumer = PullConsumer("readers", nameserver, from_beginning=True)
            consumer.subscribe("T")
            with consumer:
                got: set[bytes] = set()

                def all_came() -> bool:
                    got.update(bytes(message.body) for message in consumer.poll(1.0))
                    return got >= bodies

                until(all_came, "all come")
            pids = children(process)
            assert len(pids) == 3
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
            assert gone(pids)
        stores = {each.name for each in tmp_path.glob("store*")}
        assert stores == {"store", "store-1", "store-2"}
        assert not list(tmp_path.glob("store*/abort")), "each was closed in order"


@pytest.mark.parametrize("victim", ["a broker", "the command"])
def test_none_is_left_when_one_is_killed(tmp_path: Path, victim: str) -> None:
    with (
        running(tmp_path / "cluster", Settings(masters=1)) as cluster,
        brokers(tmp_path / "store", cluster.nameservers[0]) as process,
    ):
        until(lambda: names(cluster.nameservers[0]) == NAMES, "all are registered")
        pids = children(process)
        if victim == "a broker":
            os.kill(pids[1], signal.SIGKILL)
            assert process.wait(WAIT_S) == 128 + signal.SIGKILL
            assert process.stderr is not None
            assert "process 1 ended with status -9" in process.stderr.read()
        else:
            process.kill()
            process.wait()
        until(lambda: gone(pids), "all have ended")

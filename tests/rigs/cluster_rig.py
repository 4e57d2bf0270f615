"""What tests want of a running cluster."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from saturnmq import Admin, PullConsumer
from saturnmq.cli.launcher import LOG_FILE, LocalCluster, Settings, long_stops
from saturnmq.drills.failover.processes import SMALL_FILES

READ_S = WAIT_S = 30.0


@contextmanager
def running(directory: Path, settings: Settings | None = None) -> Iterator[LocalCluster]:
    """A cluster below `directory`, gone with all its files at the end. Those are small unless the
    settings say otherwise: they are allocated in full, and a whole suite of RocketMQ's own sizes
    takes tens of gigabytes. A test fails at the end if the loop of a node stood still."""
    settings = settings or Settings()
    settings.broker_options = SMALL_FILES | settings.broker_options
    cluster = LocalCluster.up(directory, settings)
    try:
        yield cluster
        cluster.down()
        check_loops(directory)
    finally:
        cluster.down()
        shutil.rmtree(directory)


def until(check: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Wait for something that other processes do; AssertionError if it does not come in time."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def check_loops(directory: Path) -> None:
    """No loop of a node below `directory` stood still for long: 100 ms of processor time, which
    says something of the node, however busy the machine is (runtime/loop_watch.py)."""
    if stops := long_stops(directory):
        logs = sorted(directory.rglob(f"{LOG_FILE}*"))
        told = "\n".join(f"{log.parent.name}:\n{log.read_text(errors='replace')}" for log in logs)
        raise AssertionError(f"{stops}\n{told}")


def make_topic(cluster: LocalCluster, name: str, queues: int) -> str:
    """The topic `name`, on every broker, which takes messages when this returns."""
    with Admin(cluster.nameservers[0]) as admin:
        admin.create_topic(name, queues)
    return name


def read_all(cluster: LocalCluster, wanted: set[bytes]) -> set[bytes]:
    """Bodies of the messages of topic T, read from the beginning until all that are wanted have
    come, or for 30 s. A message that was stored and not acknowledged may be among them."""
    found: set[bytes] = set()
    consumer = PullConsumer("reader", nameservers=cluster.nameservers, from_beginning=True)
    consumer.subscribe("T")
    with consumer:
        deadline = time.monotonic() + READ_S
        while not wanted <= found and time.monotonic() < deadline:
            found |= {bytes(message.body) for message in consumer.poll(timeout_s=1.0)}
    return found

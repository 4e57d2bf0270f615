"""What tests want of a running cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saturnmq import Admin
from saturnmq.cli.launcher import LocalCluster, Settings, long_stops
from saturnmq.drills.failover.processes import SMALL_FILES


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


def check_loops(directory: Path) -> None:
    """No loop of a node below `directory` stood still for long: 100 ms of processor time, which
    says something of the node, however busy the machine is (runtime/loop_watch.py)."""
    stops = long_stops(directory)
    assert stops == [], stops  # a rig's assertions are not taken apart by pytest


def make_topic(cluster: LocalCluster, name: str, queues: int) -> str:
    """The topic `name`, on every broker, which takes messages when this returns."""
    with Admin(cluster.nameservers[0]) as admin:
        admin.create_topic(name, queues)
    return name

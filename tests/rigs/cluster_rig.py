"""What tests want of a running cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saturnmq import Admin
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.drills.failover.processes import SMALL_FILES


@contextmanager
def running(directory: Path, settings: Settings | None = None) -> Iterator[LocalCluster]:
    """A cluster below `directory`, gone with all its files at the end. Those are small unless the
    settings say otherwise: they are allocated in full, and a whole suite of RocketMQ's own sizes
    takes tens of gigabytes."""
    settings = settings or Settings()
    settings.broker_options = SMALL_FILES | settings.broker_options
    cluster = LocalCluster.up(directory, settings)
    try:
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(directory)


def make_topic(cluster: LocalCluster, name: str, queues: int) -> str:
    """The topic `name`, on every broker, which takes messages when this returns."""
    with Admin(cluster.nameservers[0]) as admin:
        admin.create_topic(name, queues)
    return name

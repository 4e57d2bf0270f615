"""What tests want of a running cluster."""

from __future__ import annotations

from saturnmq.cli.launcher import LocalCluster
from saturnmq.client.blocking import Admin


def make_topic(cluster: LocalCluster, name: str, queues: int) -> str:
    """The topic `name`, on every broker, which takes messages when this returns."""
    with Admin(cluster.nameservers[0]) as admin:
        admin.create_topic(name, queues)
    return name

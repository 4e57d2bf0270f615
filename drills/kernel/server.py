"""The broker under test: real processes, the store on a mount of the rig."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from saturnmq import Admin
from saturnmq.cli.launcher import LOG_FILE, LocalCluster, Settings
from saturnmq.drills.kernel.mounts import undisturbed

STORE = "store"  # the store's directory on the mount
BROKER = "master-0"


class Server(Protocol):
    """A nameserver and a broker."""

    nameservers: list[str]

    def kill(self) -> None:
        """SIGKILL the broker: what it had not synced is in the page cache."""


class SaturnServer:
    """A local cluster of one broker."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.nameservers = cluster.nameservers

    def kill(self) -> None:
        if self.cluster.node(BROKER).alive():
            self.cluster.kill(BROKER)

    def stop(self) -> None:
        """Stop in good order."""
        self.cluster.down()

    def status(self) -> dict[str, str]:
        """The broker's report of itself."""
        with Admin(self.nameservers) as admin:
            found: dict[str, str] = admin.broker_status(self.cluster.node(BROKER).address)
        return found

    def printed(self) -> str:
        """The text of the broker's log."""
        return (Path(self.cluster.node(BROKER).data) / LOG_FILE).read_text(errors="replace")


def store_options(seed: int) -> dict[str, int]:
    """Sizes drawn from the seed: small files, so that the log rolls under load."""
    chance = random.Random(seed)
    segment = chance.choice((4, 8, 16, 64)) << 20
    return {
        "commitlog_segment_bytes": segment,
        "consumequeue_segment_bytes": chance.choice((40_000, 400_000)),
        "index_slots": 1_000,
        "index_items": chance.choice((5_000, 50_000)),
        "zero_ahead_bytes": min(segment, 8 << 20),
    }


@contextlib.contextmanager
def saturn(
    directory: Path, mount: Path, flush: str, options: dict[str, Any]
) -> Iterator[SaturnServer]:
    """SaturnMQ with its store on `mount` and its logs below `directory`."""
    broker_options = {**options, "storePathRootDir": str(mount / STORE)}
    with contextlib.ExitStack() as stack:
        with undisturbed():
            settings = Settings(flush=flush, broker_options=broker_options)
            cluster = LocalCluster.up(directory, settings)
            stack.callback(cluster.down)
        yield SaturnServer(cluster)

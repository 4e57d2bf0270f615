"""A cluster of one broker that is told to clients by an address at which a relay listens, so that
its clients of gRPC can be cut off: the network drops all packets and closes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster_rig import running
from relay_rig import Relay, relay
from saturnmq import Admin
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.protocol.asking import ask_once
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.native import NativeRuntime

TOLD = "127.0.0.2"  # the broker's host, as clients are told
IDLE_S = 4  # a connection that is silent for so long ends
ASK_S = 10.0


class Site:
    """The cluster, with topic T, and the network before its broker's gateway."""

    def __init__(self, cluster: LocalCluster, network: Relay) -> None:
        self.nameservers = cluster.nameservers
        self.network = network
        self._broker = cluster.node("master-0").address

    def held(self, group: str) -> int:
        """How many receives of this group the broker holds."""
        ext = {"consumerGroup": group, "topic": "T", "queueId": "-1"}
        request = Command.request(RequestCode.POLLING_INFO, ext)

        async def ask() -> Command:
            runtime = NativeRuntime()
            try:
                return await ask_once(runtime, self._broker, request, ASK_S)
            finally:
                runtime.close()

        return int(asyncio.run(ask()).ext["pollingNum"])


@contextmanager
def site_below(directory: Path) -> Iterator[Site]:
    options = {"brokerIP1": TOLD, "serverChannelMaxIdleTimeSeconds": IDLE_S}
    with ExitStack() as stack:
        cluster = stack.enter_context(running(directory, Settings(broker_options=options)))
        broker = next(each for each in cluster.describe()["nodes"] if each["kind"] == "master")

        def relayed(address: str) -> Relay:
            return stack.enter_context(relay(address, TOLD, int(address.rpartition(":")[2])))

        network = relayed("127.0.0.1:" + broker["grpc"].rpartition(":")[2])
        relayed(broker["address"])
        with Admin(cluster.nameservers) as admin:
            admin.create_topic("T", 1, message_type="NORMAL")
        yield Site(cluster, network)


def until(check: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"it did not come in {seconds:g} s"

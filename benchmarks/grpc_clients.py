"""RocketMQ's official Java client over gRPC: our broker beside RocketMQ 5.4 and its proxy.

    SATURNMQ_ROCKETMQ_LIB=JARS python benchmarks/grpc_clients.py      # five pairs, after a warm-up

JARS are RocketMQ's with its proxy (artifact rocketmq-proxy); the client's are fetched by Maven. One
client program (`GrpcLoad.java`) for each side stays alive, in plain text; the sides work in turns.

| work | one message of it |
|---|---|
| send | 1 KiB, answered; 64 at a time |
| receive | received, at most 32 in a call, 8 calls at a time; acknowledged by its own call |

Each row has the rate, and the processor time that the servers took for one message: ours is the
broker's process, RocketMQ's are the broker's and the proxy's.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kinds import TICKS
from peers.rocketmq_node import RocketMQNode
from saturnmq import Admin, SaturnError
from saturnmq.cli.launcher import LocalCluster, Settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "interop"))
import interop_nodes

BODY_BYTES = 1024
QUEUES = 8
READY_S = 60.0


class Side:
    """Servers, and a client that speaks to them."""

    def __init__(self, name: str, nameserver: str, grpc: str, pids: list[int]) -> None:
        self.name, self._nameserver, self._pids = name, nameserver, pids
        jars = interop_nodes.grpc_jars("5.2.0")
        source = Path(__file__).with_name("GrpcLoad.java")
        self._client = subprocess.Popen(
            ["java", "-Xmx1g", "-cp", f"{jars}/*", str(source), grpc],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._topics = 0

    def close(self) -> None:
        self._client.kill()
        self._client.wait()

    def topic(self) -> str:
        """A new topic."""
        self._topics += 1
        name = f"load-{self._topics}"
        deadline = time.monotonic() + READY_S
        while True:
            try:
                with Admin(self._nameserver) as admin:
                    admin.create_topic(name, QUEUES)
                    return name
            except SaturnError:  # a broker of RocketMQ's may take 10 s to register
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def cpu_s(self) -> float:
        """The processor time of the servers so far."""
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    def run(self, count: int, *words: object) -> tuple[float, float]:
        """(messages per second, microseconds of the servers for one)."""
        assert self._client.stdin is not None, "it is a pipe"
        assert self._client.stdout is not None, "it is a pipe"
        before = self.cpu_s()
        print(*words, file=self._client.stdin, flush=True)
        answer = self._client.stdout.readline()
        if not answer.startswith("ok "):
            raise SystemExit(f"{self.name}: {words}: {answer}")
        return count / float(answer.split()[1]), 1e6 * (self.cpu_s() - before) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=30_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ours", action="store_true", help="only our side")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = LocalCluster.up(folder / "cluster", Settings())
        try:
            own = next(node for node in cluster.nodes if node.broker_name)
            assert own.pid is not None, "it runs"
            ours = Side("ours", cluster.nameservers[0], own.describe()["grpc"], [own.pid])
            if options.ours:
                measure([ours], options.count, options.pairs)
                return
            with RocketMQNode(folder / "java", proxy=True) as java:
                pids = [java.broker_pid, java.proxy_pid]
                theirs = Side("RocketMQ", java.nameserver, java.grpc, pids)
                measure([ours, theirs], options.count, options.pairs)
        finally:
            cluster.down()


def measure(sides: list[Side], count: int, pairs: int) -> None:
    found: dict[str, list[list[tuple[float, float]]]] = {"send": [], "receive": []}
    try:
        for pair in range(pairs + 1):  # the first warms Java's compiler up
            runs: dict[str, dict[Side, tuple[float, float]]] = {work: {} for work in found}
            for side in sides if pair % 2 else sides[::-1]:
                topic = side.topic()
                runs["send"][side] = side.run(count, "send", topic, count, BODY_BYTES)
                runs["receive"][side] = side.run(count, "receive", topic, count)
            for work, by_side in runs.items():
                row = [by_side[side] for side in sides]
                told = "; ".join(
                    f"{side.name} {rate:,.0f}/s, {cost:.0f} us"
                    for side, (rate, cost) in zip(sides, row, strict=True)
                )
                print(f"{'pair' if pair else 'warm-up'} {pair}, {work}: {told}", flush=True)
                if pair:
                    found[work].append(row)
    finally:
        for side in sides:
            side.close()
    for work, rows in found.items():
        told = "; ".join(
            f"{side.name} {statistics.median(row[at][0] for row in rows):,.0f}/s, "
            f"{statistics.median(row[at][1] for row in rows):.0f} us"
            for at, side in enumerate(sides)
        )
        ratio = statistics.median(row[0][0] / row[-1][0] for row in rows)
        print(f"{work}: {told}; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()

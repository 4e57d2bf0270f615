"""What the gRPC API costs a broker that serves Remoting: memory for receivers that wait, and time
of the other protocol.

    python benchmarks/grpc_beside.py            # 2,000 receivers, five pairs; about five minutes
    python benchmarks/grpc_beside.py --pairs 0  # memory alone, which a busy machine changes little
    python benchmarks/grpc_beside.py --quick    # is the script in order? Its figures mean nothing

Three brokers work in turns, each turn in another order: one without a port of gRPC, one with it,
and one with receivers that wait. A receiver is a client of its own with an open ReceiveMessage of
20 s, again and again; they share connections. A figure of Remoting is the median of the ratios to
the broker without gRPC in the same turn. Say with it what else ran: the load is told at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc.aio
from pop import memory_of
from saturnmq import Admin, Message, Producer
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.gateway import v2
from saturnmq.gateway.calls import CLIENT_ID
from targets import BenchTarget

TOPIC = "waited-for"
POLL_S = 20
READY_S = 120.0
CALLS_AT_ONCE = 200  # that begin together
TARGETS = {
    "memory with receivers that wait, MB": BenchTarget(300, at_most=True),
    "threads more than without receivers": BenchTarget(8, at_most=True),  # not one each
    "receives that were late": BenchTarget(0, at_most=True),
    "one sender, ratio": BenchTarget(0.95),
    "64 senders, ratio": BenchTarget(0.95),
    "produce, ratio": BenchTarget(0.95),
}
SIDES = "without gRPC", "with gRPC", "with receivers"


# receivers, in a process of their own


async def receive(address: str, count: int, connections: int) -> None:
    """Wait for messages until the standard input ends; then tell how many came, and failures."""
    path = f"/{v2.SERVICE}/ReceiveMessage"
    rpc = v2.RPCS["ReceiveMessage"]
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(connections)]
    calls = [
        each.unary_stream(path, rpc.request.SerializeToString, rpc.response.FromString)
        for each in channels
    ]
    request = v2.ReceiveMessageRequest(
        group=v2.Resource(name="waiting"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=TOPIC)),
        batch_size=1,
        auto_renew=True,
    )
    request.long_polling_timeout.FromSeconds(POLL_S)
    got, failures = 0, 0
    beginning = asyncio.Semaphore(CALLS_AT_ONCE)
    begun = asyncio.Event()
    waiting = 0

    async def client(number: int) -> None:
        nonlocal got, failures, waiting
        metadata, first = ((CLIENT_ID, f"receiver-{number}"),), True
        while True:
            async with beginning:
                call = calls[number % connections](request, metadata=metadata, timeout=POLL_S + 3)
                await asyncio.sleep(0)
            if first:
                first = False
                waiting += 1
                if waiting == count:
                    begun.set()
            try:
                async for part in call:
                    got += part.HasField("message")
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                failures += 1

    tasks = [asyncio.ensure_future(client(number)) for number in range(count)]
    await begun.wait()
    print("waiting", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(outcome, asyncio.CancelledError):
            raise SystemExit(f"a receiver has ended: {outcome!r}")
    print(json.dumps({"got": got, "failures": failures}), flush=True)


@contextmanager
def receivers(
    address: str, count: int, connections: int, figures: dict[str, float]
) -> Iterator[None]:
    """So many wait meanwhile; one of them gets the message that is sent."""
    words = [sys.executable, __file__, "--receive", address]
    words += ["--receivers", str(count), "--connections", str(connections)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    try:
        if process.stdout.readline() != "waiting\n":
            raise SystemExit("the receivers do not run")
        yield
        process.stdin.close()
        told = json.loads(process.stdout.readline())
        if not told["got"]:
            raise SystemExit("no message came to the receivers")
        figures["receives that were late"] = told["failures"]
    finally:
        process.kill()
        process.wait()


# the measurements


class Beside:
    """A cluster of one broker."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.cluster = LocalCluster.up(folder, Settings(broker_options=dict(options)))
        self.node = next(node for node in self.cluster.nodes if node.broker_name)
        self.nameserver = self.cluster.nameservers[0]

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.node.pid}/task"))

    def bench(self, kind: str, count: int, *words: str) -> float:
        """Messages per second over Remoting."""
        command = [str(Path(sys.executable).with_name("saturnmq")), "bench", kind, "--json"]
        command += ["--nameserver", self.nameserver, "--count", str(count), *words]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return float(json.loads(done.stdout)["msgs_per_s"])

    def send(self) -> None:
        """One message, for one of the receivers."""
        with Producer("beside", self.nameserver) as producer:
            producer.send(Message(TOPIC, b"one"))


def works(scale: float) -> dict[str, Callable[[Beside], float]]:
    sends, produced = int(20_000 * scale), int(1_000_000 * scale)
    return {
        "one sender, ratio": lambda side: side.bench("latency", sends),
        "64 senders, ratio": lambda side: side.bench("latency", sends, "--senders", "64"),
        "produce, ratio": lambda side: side.bench("produce", produced),
    }


def measure(folder: Path, count: int, connections: int, pairs: int, scale: float) -> None:
    figures: dict[str, float] = {}
    with ExitStack() as closing:
        sides = {}
        for name in SIDES:
            port = {"grpcServerPort": -1} if name == SIDES[0] else {}
            sides[name] = Beside(folder / name.replace(" ", "-"), **port)
            closing.callback(sides[name].cluster.down)
        beside = sides["with receivers"]
        with Admin(beside.nameserver) as admin:
            admin.create_topic(TOPIC, 8)
        before, threads = memory_of(beside.node.pid), beside.threads
        address = beside.node.describe()["grpc"]
        with receivers(address, count, connections, figures):
            beside.send()
            time.sleep(1.5 * POLL_S * min(scale * 10, 1))  # each has asked again
            figures["memory with receivers that wait, MB"] = memory_of(beside.node.pid) / 1e6
            figures["memory without, MB"] = before / 1e6
            figures["threads more than without receivers"] = beside.threads - threads
            for work, run in works(scale).items() if pairs else ():
                compare(work, run, sides, pairs, figures)
            figures["memory at the end, MB"] = memory_of(beside.node.pid) / 1e6
    for name, figure in figures.items():
        target = next((each for key, each in TARGETS.items() if name.startswith(key)), None)
        aim = "" if target is None else "missed" if target.missed(figure) else "reached"
        print(f"| {name} | {figure:,.2f} | {aim} |")
    print("load:", " ".join(f"{each:.1f}" for each in os.getloadavg()))


def compare(
    work: str,
    run: Callable[[Beside], float],
    sides: dict[str, Beside],
    pairs: int,
    figures: dict[str, float],
) -> None:
    ratios: dict[str, list[float]] = {name: [] for name in SIDES[1:]}
    for pair in range(pairs):
        order = SIDES if pair % 2 else SIDES[::-1]
        rates = {name: run(sides[name]) for name in order}
        for name, found in ratios.items():
            found.append(rates[name] / rates[SIDES[0]])
        told = "; ".join(f"{name} {rates[name]:,.0f}/s" for name in SIDES)
        print(f"{work.removesuffix(', ratio')} {pair + 1}: {told}", flush=True)
    for name, found in ratios.items():
        figures[f"{work}, {name}"] = statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--receivers", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--receive", metavar="ADDRESS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.receive:
        asyncio.run(receive(given.receive, given.receivers, given.connections))
        return
    with tempfile.TemporaryDirectory() as name:
        if given.quick:
            measure(Path(name), 50, 2, 1, 0.01)
        else:
            measure(Path(name), given.receivers, given.connections, given.pairs, 1.0)


if __name__ == "__main__":
    main()

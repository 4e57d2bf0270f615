"""What thousands of topics cost one broker with the limits of a fresh system.

    python benchmarks/many_queues.py [--topics N] [--queues N] [--each-queue] [--quick] [--json]

One nameserver and one broker with default settings, each allowed 1,024 open files (soft). Every run
checks what it did: each message was acknowledged, and consumed once.

- make: the topics, 64 requests at a time; and of 200 more one after the other
- send: one message to each topic (`--each-queue`: to each queue), 256 at a time
- consume: by consumers of 500 topics each
- restart: of the broker, in order and after kill -9, until it serves
- throughput, when all queues have files: 1 KiB messages to one topic, and over 1,000, in turn, in
  batches as the producer makes them and of 64 senders that wait for each answer; and to one topic
  beside 5,000 idle connections; the median of three rounds

Beside the times of the clock stand those of the processors: on a busy machine they say more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from saturnmq import Admin as BlockingAdmin
from saturnmq import Producer as BlockingProducer
from saturnmq.aio import Admin, Message, Producer, PushConsumer
from saturnmq.cli.bench import machine
from saturnmq.cli.launcher import LocalCluster, Node
from saturnmq.drills.figures import memory_mb
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import RequestTimeout, SystemBusy
from targets import BenchTarget

SOFT_LIMIT = 1024
MAKING, SENDING = 64, 256  # requests at a time
SENDERS = 64
TICK_S = 1 / os.sysconf("SC_CLK_TCK")  # in which the kernel counts processor time
CHUNK = 100_000  # messages that are sent before those of the chunk before are waited for
TOPICS_OF_A_CONSUMER = 500
BROKER = "master-0"
DEADLINE_S = 600.0

TARGETS = {
    "made, sent and consumed, s": BenchTarget(120, at_most=True),
    "disk, MB": BenchTarget(3000, at_most=True),
    "memory of the broker at most, MB": BenchTarget(600, at_most=True),
    "start after a clean stop, s": BenchTarget(10, at_most=True),
    "start after kill -9, s": BenchTarget(10, at_most=True),
    "produce over 1,000 topics, % of one": BenchTarget(70),
    "produce beside 5,000 idle connections, % of none": BenchTarget(90),
}


class QueueScale(NamedTuple):
    """How much work."""

    topics: int
    queues: int
    more: int  # topics that are made one after the other
    spread: int  # topics of the throughput
    messages: int
    sends: int  # one by one
    idle: int  # connections
    rounds: int


FULL = QueueScale(10_000, 8, 200, 1_000, 500_000, 20_000, 5_000, 3)
QUICK = QueueScale(40, 2, 5, 20, 2_000, 200, 50, 1)


def used_s(node: Node) -> float:
    """Processor time since its start."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def disk_mb(directory: str) -> float:
    done = subprocess.run(["du", "-s", "-B1", directory], check=True, capture_output=True)
    return int(done.stdout.split()[0]) / 1e6


class ManyQueuesRun:
    """The figures of one run."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.figures: dict[str, float] = {}
        self.tried_again = 0

    @property
    def broker(self) -> Node:
        return self.cluster.node(BROKER)

    @contextmanager
    def measure(self, work: str) -> Iterator[None]:
        """Time of the clock, and of the processors at each process."""
        nodes = {"broker": self.broker, "nameserver": self.cluster.nodes[0]}
        before = {name: used_s(node) for name, node in nodes.items()}
        mine, begun = time.process_time(), time.monotonic()
        yield
        self.note(f"{work}, s", time.monotonic() - begun)
        for name, node in nodes.items():
            self.note(f"{work}, processor of the {name}, s", used_s(node) - before[name])
        self.note(f"{work}, processor of the client, s", time.process_time() - mine)
        self.note_stop(f"longest stop of the loop up to the end of: {work}, ms")

    def note_stop(self, name: str) -> None:
        """Since the broker's start."""
        with BlockingAdmin(nameservers=self.cluster.nameservers) as admin:
            self.note(name, int(admin.broker_status(self.broker.address)["longestStopMs"]))

    def note(self, name: str, figure: float) -> None:
        self.figures[name] = round(figure, 3)
        print(f"{name}: {figure:.2f}", file=sys.stderr, flush=True)


async def at_a_time(limit: int, items: list[Any], work: Callable[[Any], Awaitable[object]]) -> None:
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(limit)))


async def insist(run: ManyQueuesRun, call: Callable[[], Awaitable[Any]]) -> Any:
    """On a machine that does other work, too, a broker may be short of time for a while."""
    while True:
        try:
            return await call()
        except (SystemBusy, RequestTimeout):
            run.tried_again += 1
            await asyncio.sleep(0.1)


async def make(run: ManyQueuesRun, scale: QueueScale, topics: list[str]) -> None:
    async def one(topic: str) -> None:
        await insist(run, lambda: admin.create_topic(topic, queues=scale.queues))

    async with Admin(nameservers=run.cluster.nameservers) as admin:
        with run.measure("make"):
            await at_a_time(MAKING, topics, one)
        with run.measure(f"make {scale.more} one by one"):
            for number in range(scale.more):
                await one(f"more-{number}")


async def send(run: ManyQueuesRun, messages: list[Message]) -> None:
    async def one(message: Message) -> None:
        result = await insist(run, lambda: producer.send(message))
        assert result.ok, result

    async with Producer(nameservers=run.cluster.nameservers, group="many") as producer:
        with run.measure("send"):
            await at_a_time(SENDING, messages, one)


async def consume(run: ManyQueuesRun, topics: list[str], count: int) -> None:
    seen: Counter[bytes] = Counter()
    done = asyncio.Event()

    async def listener(messages: list[Any]) -> None:
        seen.update(bytes(message.body) for message in messages)
        if len(seen) == count:
            done.set()

    consumers = []
    with run.measure("consume"):
        for first in range(0, len(topics), TOPICS_OF_A_CONSUMER):
            consumer = PushConsumer(
                f"readers-{first}",
                run.cluster.nameservers,
                listener=listener,
                consume_from="first",
            )
            for topic in topics[first : first + TOPICS_OF_A_CONSUMER]:
                consumer.subscribe(topic)
            await consumer.start()
            consumers.append(consumer)
        await asyncio.wait_for(done.wait(), DEADLINE_S)
    with run.measure("stop consuming"):
        await asyncio.gather(*(consumer.close() for consumer in consumers))
    assert set(seen.values()) == {1}, "a message was consumed twice"


def restart(run: ManyQueuesRun) -> None:
    cluster = run.cluster
    for how, end in (("a clean stop", cluster.stop), ("kill -9", cluster.kill)):
        begun = time.monotonic()
        end(BROKER)
        run.note(f"end by {how}, s", time.monotonic() - begun)
        begun = time.monotonic()
        cluster.start(BROKER)
        run.note(f"start after {how}, s", time.monotonic() - begun)
        run.note(f"start after {how}, processor, s", used_s(run.broker))
        begun = time.monotonic()
        cluster.await_routes()
        run.note(f"registered after {how}, s", time.monotonic() - begun)
        run.note_stop(f"longest stop of the loop of a start after {how}, ms")


def produce(run: ManyQueuesRun, topics: list[str], count: int) -> tuple[float, float]:
    """Messages a second as `saturnmq bench produce` sends them, the next chunk while the one before
    is under way; and processor time of the broker for a million."""
    body = os.urandom(1024)
    with BlockingProducer(nameservers=run.cluster.nameservers, group="bench") as producer:
        for topic in topics:
            producer.send(Message(topic, body))  # routes
        used, begun = used_s(run.broker), time.monotonic()
        before: list[Any] = []
        for done in range(0, count, CHUNK):
            numbers = range(done, min(done + CHUNK, count))
            handles = [
                producer.send_async(Message(topics[number % len(topics)], body))
                for number in numbers
            ]
            assert all(handle.result().ok for handle in before)
            before = handles
        assert all(handle.result().ok for handle in before)
        took = time.monotonic() - begun
    return count / took, (used_s(run.broker) - used) / count * 1e6


async def send_one_by_one(run: ManyQueuesRun, topics: list[str], count: int) -> float:
    """Messages a second of so many senders, each of which waits for its answer."""
    body = os.urandom(1024)
    async with Producer(nameservers=run.cluster.nameservers, group="senders") as producer:

        async def one(number: int) -> None:
            topic = topics[number % len(topics)]
            result = await insist(run, lambda: producer.send(Message(topic, body)))
            assert result.ok, result

        await at_a_time(SENDERS, list(range(len(topics))), one)  # routes
        begun = time.monotonic()
        await at_a_time(SENDERS, list(range(count)), one)
        return count / (time.monotonic() - begun)


@contextmanager
def idle_connections(run: ManyQueuesRun, count: int) -> Iterator[None]:
    """So many are open to the broker all the time, and say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as closing:
        closing.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        sockets = [
            closing.enter_context(socket.create_connection(split_address(run.broker.address)))
            for _ in range(count)
        ]
        yield
        for each in sockets:
            each.setblocking(False)
            with suppress(BlockingIOError):
                raise AssertionError(f"the broker ended an idle connection: {each.recv(1)!r}")


def beside_idle(run: ManyQueuesRun, scale: QueueScale, topic: str) -> None:
    rates, shares = [], []
    for _ in range(scale.rounds):
        without, _ = produce(run, [topic], scale.messages)
        with idle_connections(run, scale.idle):
            beside, _ = produce(run, [topic], scale.messages)
        rates.append(beside)
        shares.append(100 * beside / without)
    what = f"produce beside {scale.idle:,} idle connections"
    run.note(f"{what}, messages/s", statistics.median(rates))
    run.note(f"{what}, % of none", statistics.median(shares))


def throughput(run: ManyQueuesRun, scale: QueueScale, topics: list[str]) -> None:
    one, many, ratios, costs, alone = [], [], [], [], []
    # All queues first: to make their files is not what is measured.
    asyncio.run(send_one_by_one(run, topics[: scale.spread], 2 * scale.queues * scale.spread))
    for _ in range(scale.rounds):
        single, cost = produce(run, topics[:1], scale.messages)
        spread, cost_of_many = produce(run, topics[: scale.spread], scale.messages)
        one.append(single)
        many.append(spread)
        ratios.append(100 * spread / single)
        costs.append(cost_of_many / max(cost, TICK_S))
        alone.append(cost)
    by_one, by_many = [], []
    for _ in range(scale.rounds):
        by_one.append(asyncio.run(send_one_by_one(run, topics[:1], scale.sends)))
        by_many.append(asyncio.run(send_one_by_one(run, topics[: scale.spread], scale.sends)))
    shares = [100 * many / one for one, many in zip(by_one, by_many, strict=True)]
    what = f"{SENDERS} senders"
    run.note(f"{what}, one topic, messages/s", statistics.median(by_one))
    run.note(f"{what}, {scale.spread:,} topics, messages/s", statistics.median(by_many))
    run.note(f"{what}, {scale.spread:,} topics, % of one", statistics.median(shares))
    run.note("produce to one topic, messages/s", statistics.median(one))
    run.note(f"produce over {scale.spread:,} topics, messages/s", statistics.median(many))
    run.note(f"produce over {scale.spread:,} topics, % of one", statistics.median(ratios))
    run.note("processor of the broker, times that of one topic", statistics.median(costs))
    run.note("processor of the broker for a million to one topic, s", statistics.median(alone))


def measure(run: ManyQueuesRun, scale: QueueScale, *, each_queue: bool) -> None:
    topics = [f"topic-{number:05d}" for number in range(scale.topics)]
    asyncio.run(make(run, scale, topics))
    places = [
        (topic, queue) for topic in topics for queue in range(scale.queues if each_queue else 1)
    ]
    messages = [Message(topic, f"{topic}/{queue}".encode()) for topic, queue in places]
    asyncio.run(send(run, messages))
    asyncio.run(consume(run, topics, len(messages)))
    parts = ("make, s", "send, s", "consume, s")
    run.note("made, sent and consumed, s", sum(run.figures[part] for part in parts))
    run.note("disk, MB", disk_mb(run.broker.data))
    run.note("memory of the broker at most, MB", memory_mb(run.broker.pid or 0))
    run.note("memory of the nameserver at most, MB", memory_mb(run.cluster.nodes[0].pid or 0))
    run.note("open files of the broker", len(os.listdir(f"/proc/{run.broker.pid}/fd")))
    restart(run)
    run.note("memory after the start, MB", memory_mb(run.broker.pid or 0))
    throughput(run, scale, topics)
    beside_idle(run, scale, topics[0])
    run.note("requests that were tried again", run.tried_again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int)
    parser.add_argument("--queues", type=int)
    parser.add_argument("--each-queue", action="store_true", help="a message to each queue")
    parser.add_argument("--quick", action="store_true", help="for tests: figures mean nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory")
    given = parser.parse_args()
    scale = QUICK if given.quick else FULL
    chosen = {name: value for name in ("topics", "queues") if (value := getattr(given, name))}
    scale = scale._replace(**chosen)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    directory = tempfile.mkdtemp(prefix="saturnmq-many-", dir=given.directory)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT, hard))
        cluster = LocalCluster.up(Path(directory))
        run = ManyQueuesRun(cluster)
        try:
            measure(run, scale, each_queue=given.each_queue)
        finally:
            cluster.down()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if given.json:
        print(json.dumps({"machine": machine(), "scale": scale._asdict(), "figures": run.figures}))
        return
    for name, figure in run.figures.items():
        target = TARGETS.get(name)
        aim = "" if target is None else "missed" if target.missed(figure) else "reached"
        print(f"| {name} | {figure:,.2f} | {aim} |")


if __name__ == "__main__":
    main()

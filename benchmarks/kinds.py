"""Transactions, timed messages and pop on one broker process, ours beside RocketMQ 5.4.

    python benchmarks/kinds.py                      # three pairs of each, after a warm-up
    python benchmarks/kinds.py --only pop --pairs 5 --count 50000

Both brokers get the same work from the same client, ours, on one event loop of this process, in
turns. RocketMQ's (`peers/rocketmq_node.py`) has asynchronous flush, as ours has. Each row has the
rate, and the processor time that the broker took for one message, which says more where other
programs run.

| work | one message of it |
|---|---|
| transactions | a half and its commit, each answered; 64 at a time |
| timed, in | a message for later, answered; 64 at a time |
| timed, out | all of those are due at one moment; until a consumer has the last one |
| pop | received, 32 in a request, and acknowledged, each request's messages in one; 4 at a time |
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from peers.rocketmq_node import RocketMQNode
from saturnmq import Message, SaturnError, aio, deliver_at
from saturnmq.cli.launcher import LocalCluster, Settings

BODY = bytes(100)
QUEUES = 8
SENDERS, RECEIVERS = 64, 4
LEAD_S = 3.0  # from the end of the sends to the moment
IDLE_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


class Side:
    """A broker that is measured."""

    def __init__(self, name: str, nameserver: str, pid: int) -> None:
        self.name, self.nameserver, self.pid = name, nameserver, pid
        self._topics = 0

    def cpu_s(self) -> float:
        """The processor time of the broker so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    async def topic(self) -> str:
        """A new topic."""
        self._topics += 1
        name = f"bench-{self._topics}"
        async with aio.Admin(self.nameserver) as admin:
            deadline = time.monotonic() + IDLE_S
            while True:
                try:
                    await admin.create_topic(name, queues=QUEUES)
                    return name
                except SaturnError:  # a broker of RocketMQ's may take 10 s to register
                    if time.monotonic() > deadline:
                        raise
                    await asyncio.sleep(0.5)


class Measured:
    """The rates and costs of one run, by work."""

    def __init__(self, side: Side, count: int) -> None:
        self.side, self.count = side, count
        self.rates: dict[str, tuple[float, float]] = {}
        self._began = self._cpu = 0.0

    def begin(self) -> None:
        self._began, self._cpu = time.perf_counter(), self.side.cpu_s()

    def end(self, work: str) -> None:
        took, cpu = time.perf_counter() - self._began, self.side.cpu_s() - self._cpu
        self.rates[work] = self.count / took, 1e6 * cpu / self.count


async def many(count: int, at_once: int, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work so many times."""
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            await work()

    await asyncio.gather(*(one() for _ in range(at_once)))


async def transactions(measured: Measured) -> None:
    topic = await measured.side.topic()

    async def check(_: object) -> aio.TransactionState:
        return aio.TransactionState.COMMIT

    async with aio.TransactionProducer("dealers", measured.side.nameserver, check=check) as dealer:

        async def deal() -> None:
            transaction = await dealer.transaction(Message(topic, BODY)).begin()
            await transaction.commit()
            if not transaction.confirmed:
                raise SystemExit(f"{measured.side.name} did not confirm a commit")

        await many(SENDERS, SENDERS, deal)
        measured.begin()
        await many(measured.count, SENDERS, deal)
        measured.end("transactions")


async def timed(measured: Measured) -> None:
    side, count = measured.side, measured.count
    topic = await side.topic()
    # The moment must lie behind the sends; twice as slow as the slowest of a first few hundred.
    async with aio.Producer("timers", side.nameserver) as producer:
        due = time.time() + 3600

        async def send() -> None:
            await producer.send(deliver_at(Message(topic, BODY), due))

        measured.begin()
        await many(1000, SENDERS, send)
        due = time.time() + LEAD_S + 2 * count * (time.perf_counter() - measured._began) / 1000
        measured.begin()
        await many(count, SENDERS, send)
        measured.end("timed, in")
    if time.time() > due:
        raise SystemExit("the sends took longer than was thought: the moment was over")
    consumer = aio.PullConsumer(f"readers-{topic}", side.nameserver, from_beginning=True)
    consumer.subscribe(topic)
    async with consumer:
        await asyncio.sleep(due - time.time())
        measured.begin()
        got = 0
        while got < count:
            got += len(await consumer.poll(1.0))
        measured.end("timed, out")


async def pop(measured: Measured) -> None:
    side, count = measured.side, measured.count
    topic = await side.topic()
    async with aio.Producer("fillers", side.nameserver) as producer:
        handles = [await producer.send_async(Message(topic, BODY)) for _ in range(count)]
        for handle in handles:
            await handle
    consumers: list[Any] = []
    for _ in range(RECEIVERS):
        consumer = aio.SimpleConsumer(f"poppers-{topic}", side.nameserver, from_beginning=True)
        consumer.subscribe(topic)
        await consumer.start()
        consumers.append(consumer)
    done = 0

    async def work(consumer: Any) -> None:
        nonlocal done
        while done < count:
            messages = await consumer.receive(32, invisible_s=60, wait_s=0.2)
            if messages:
                await consumer.ack(messages)
                done += len(messages)

    measured.begin()
    await asyncio.gather(*map(work, consumers))
    measured.end("pop")
    for consumer in consumers:
        await consumer.close()


WORKS = {"transactions": transactions, "timed": timed, "pop": pop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", choices=sorted(WORKS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(WORKS)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory() as folder, RocketMQNode(Path(folder) / "java") as java:
        cluster = LocalCluster.up(Path(folder) / "cluster", Settings())
        try:
            own = next(node for node in cluster.nodes if node.broker_name)
            assert own.pid is not None, "it runs"
            sides = [
                Side("ours", cluster.nameservers[0], own.pid),
                Side("RocketMQ", java.nameserver, java.broker_pid),
            ]
            for pair in range(options.pairs + 1):  # the first warms Java's compiler up
                for name in chosen:
                    for side in sides if pair % 2 else sides[::-1]:
                        measured = Measured(side, options.count)
                        asyncio.run(WORKS[name](measured))
                        for work, figures in measured.rates.items():
                            if pair:
                                sides_of = found.setdefault(work, {})
                                sides_of.setdefault(side.name, []).append(figures)
        finally:
            cluster.down()
    if options.json:
        print(json.dumps(found))
        return
    for work, by_side in found.items():
        told = []
        for name, runs in by_side.items():
            rate, cost = (statistics.median(each) for each in zip(*runs, strict=True))
            told.append(f"{name} {rate:,.0f}/s, {cost:.0f} us")
        pairs = zip(by_side["ours"], by_side["RocketMQ"], strict=True)
        ratio = statistics.median(one[0] / two[0] for one, two in pairs)
        print(f"{work}: {'; '.join(told)}; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()

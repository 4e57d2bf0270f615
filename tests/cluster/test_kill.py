"""Real processes and real kills: no acknowledged message is lost with sync replication.

For each kind of node a small cluster (two nameservers, one master, one slave) lives through seven
seeded rounds. In each a producer sends numbered messages, the node is killed with SIGKILL after a
seeded number of acknowledgements, comes back, sends succeed again, and a fresh group reads the
topic: everything acknowledged is there, once or more, and nothing that was never sent.
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from saturnmq import Message, SaturnError, aio
from saturnmq.cli.launcher import LocalCluster, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
ROUNDS = 7
SENDERS = 32
LIVENESS_S = 30.0


@pytest.mark.parametrize("victim", ["master-0", "slave-0", "nameserver-0"])
def test_kill_9_during_sends_loses_no_acknowledged_message(tmp_path, victim):
    settings = Settings(nameservers=2, masters=1, slaves=1, replication="sync")
    cluster = LocalCluster.up(tmp_path / "cluster", settings)
    try:
        for seed in range(ROUNDS):
            asyncio.run(one_round(cluster, victim, seed))
    finally:
        cluster.down()


async def one_round(cluster: LocalCluster, victim: str, seed: int) -> None:
    chance = random.Random(f"{victim}/{seed}")
    topic = f"kill-{seed}"
    say = f"repeat with victim {victim}, seed {seed}"
    async with aio.Admin(nameservers=cluster.nameservers) as admin:
        await admin.create_topic(topic, queues=chance.choice([1, 4]))
    run = Run(topic)
    async with aio.Producer(
        nameservers=cluster.nameservers, send_timeout=2.0, retries=1
    ) as producer:
        senders = [asyncio.create_task(run.send(producer)) for _ in range(SENDERS)]
        try:
            await run.until_acked(chance.randrange(100, 2000), say)
            await asyncio.to_thread(cluster.kill, victim)
            await run.until_tried(len(run.tried) + chance.randrange(1, 200), say)
            await asyncio.to_thread(cluster.restart, victim)
            await run.until_acked(len(run.acked) + 200, say)
        finally:
            run.stop = True
            await asyncio.gather(*senders)
    got = await consume(cluster, topic, run.acked, f"check-{seed}")
    assert not run.acked - got, f"{len(run.acked - got)} acknowledged lost; {say}"
    assert not got - run.tried, f"phantoms {sorted(got - run.tried)[:5]}; {say}"


class Run:
    """What the senders tried and what they were promised."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.tried: set[int] = set()
        self.acked: set[int] = set()
        self.failed = 0
        self.stop = False

    async def send(self, producer: aio.Producer) -> None:
        while not self.stop:
            number = len(self.tried)
            self.tried.add(number)
            try:
                result = await producer.send(Message(self.topic, str(number).encode()))
            except SaturnError:
                self.failed += 1
                await asyncio.sleep(0.02)
            else:
                if result.ok:
                    self.acked.add(number)

    async def until_acked(self, count: int, say: str) -> None:
        await self._until(lambda: len(self.acked) >= count, f"{count} acknowledged", say)

    async def until_tried(self, count: int, say: str) -> None:
        await self._until(lambda: len(self.tried) >= count, f"{count} tried", say)

    async def _until(self, reached, what: str, say: str) -> None:
        deadline = time.monotonic() + LIVENESS_S
        while not reached():
            if time.monotonic() > deadline:
                pytest.fail(
                    f"not {what} within {LIVENESS_S:.0f} s: {len(self.tried)} tried, "
                    f"{len(self.acked)} acknowledged, {self.failed} failed; {say}"
                )
            await asyncio.sleep(0.005)


async def consume(cluster: LocalCluster, topic: str, wanted: set[int], group: str) -> set[int]:
    """Read the topic from its beginning until `wanted` is complete and a poll comes back empty."""
    got: set[int] = set()
    deadline = time.monotonic() + LIVENESS_S
    consumer = aio.PullConsumer(group, nameservers=cluster.nameservers, consume_from="first")
    consumer.subscribe(topic)
    async with consumer:
        while time.monotonic() < deadline:
            messages = await consumer.poll(timeout_s=0.5)
            got.update(int(bytes(message.body)) for message in messages)
            if not messages and wanted <= got:
                break
    return got

"""A sink in a simulated cluster: it stages and publishes partitions of epochs again and again until
it gets an answer, sometimes twice at once, sometimes after the answer.

Each broker group has its own sink. A partition is a set of rows: the same rows in every try, in any
order. Whatever happens to the nodes, two rules hold for their logs at the end, and for the messages
that consumers could see at any time: a partition has all of its rows or none (G1), and no row twice
(G2). An acknowledged partition is as safe as any acknowledged message (G3).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, NamedTuple

from saturnmq.drills.sim.history import make_body
from saturnmq.drills.sim.load import ClientMachine
from saturnmq.drills.sim.plan import TOPIC
from saturnmq.protocol.batch import encode_batch
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import ConnectionLost, SaturnError, StageLost

if TYPE_CHECKING:
    from saturnmq.drills.sim.cluster import SimCluster

PARTITIONS = 2
ROWS = 6
TIMEOUT_S = 2.0
PAUSE_S = 0.2
TWICE = 0.2  # the chance that a partition is written by two tasks at once
AGAIN = 0.3  # the chance that a finished epoch is written once more
LEFT = 0.2  # the chance that a task dies before it publishes
LANE = "sink"


class PartitionKey(NamedTuple):
    group: str
    epoch: int
    partition: int


class Acknowledged(NamedTuple):
    """When it was answered that this partition is published, and by whom."""

    at: float
    by: str


class Sinks(ClientMachine):
    """The driver and the tasks of one sink for each broker group."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster, "sinks", "10.0.5.1")
        self.lanes: list[asyncio.Task[None]] = []
        self.rows: dict[PartitionKey, list[str]] = {}  # values
        self.acknowledged: dict[PartitionKey, Acknowledged] = {}
        self._rng = random.Random(f"{cluster.seed}/sinks")
        self._attempts = 0

    async def start(self) -> None:
        self._core = self.core()
        await self.runtime.run(self._begin())
        for group in self.cluster.groups:
            self.lanes.append(self.runtime.spawn(self._drive(group), name=f"sink-{group}"))

    async def _begin(self) -> None:
        await self._core.start()
        await self._core.route(TOPIC)

    async def close(self) -> None:
        await self._core.close()

    async def _drive(self, group: str) -> None:
        plan, rng = self.cluster.plan, self._rng
        for epoch in range(plan.sink_epochs):
            await self._write(group, epoch)
            await self._ask(group, RequestCode.FINISH_EPOCH, _ext(group, epoch))
            if rng.random() < AGAIN:
                await self._write(group, rng.randint(0, epoch))
            pace = 0.0 if self.cluster.calm else plan.safety_s / plan.sink_epochs
            await self.runtime.sleep(rng.uniform(0.0, pace))

    async def _write(self, group: str, epoch: int) -> None:
        tasks = []
        for partition in range(PARTITIONS):
            key = PartitionKey(group, epoch, partition)
            if key not in self.rows:
                count = self._rng.randint(1, ROWS)
                values = [f"{LANE}.{group}/{epoch}.{partition}.{n}" for n in range(count)]
                self.rows[key] = values
                self.cluster.history.invoked.update(dict.fromkeys(values, LANE))
            tasks += [self._task(key) for _ in range(1 + (self._rng.random() < TWICE))]
        await asyncio.gather(*tasks)

    async def _task(self, key: PartitionKey) -> None:
        """Stage and publish a partition until it is published, by this try or another."""
        while True:
            try:
                if await self._try(key):
                    return
            except StageLost as lost:
                self.cluster.trace.note("stage.lost", f"{key} {lost}")
            await self.runtime.sleep(PAUSE_S)

    async def _try(self, key: PartitionKey) -> bool:
        rng, values = self._rng, self.rows[key][:]
        rng.shuffle(values)
        self._attempts += 1
        ext = _ext(key.group, key.epoch) | {
            "partition": str(key.partition),
            "attempt": str(self._attempts),
        }
        size = chunks = at = 0
        while at < len(values):
            rows = values[at : at + rng.randint(1, 3)]
            padding = self.cluster.plan.padding
            body = bytes(encode_batch((make_body(row, padding), b"", 0) for row in rows))
            place = {"seq": str(chunks), "topic": TOPIC}
            place["queueId"] = str(rng.randrange(self.cluster.plan.queues))
            await self._ask(key.group, RequestCode.STAGE, ext | place, body)
            at, chunks, size = at + len(rows), chunks + 1, size + len(body)
        if rng.random() < LEFT:
            return False
        told = {"chunks": str(chunks), "rows": str(len(values)), "bytes": str(size)}
        by, answer = await self._ask(key.group, RequestCode.PUBLISH, ext | told)
        self.cluster.trace.note("publish", f"{key} {by}")
        acknowledged = Acknowledged(self.runtime.loop.time(), by)
        if answer.ext.get("duplicate") == "true":  # it promises what was promised before
            self.acknowledged.setdefault(key, acknowledged)
        else:
            self.acknowledged[key] = acknowledged
        return True

    async def _ask(
        self, group: str, code: int, ext: dict[str, str], body: bytes = b""
    ) -> tuple[str, Command]:
        """The node that carried it out, at last, and its answer; StageLost if none can."""
        while True:
            address = self._core.broker_address(group) or ""
            try:
                if not address:
                    raise ConnectionLost(f"{group} has no master")
                command = Command.request(code, ext, body)
                answer = await self._core.invoke(address, command, TIMEOUT_S)
            except StageLost:
                raise
            except SaturnError as error:
                self.cluster.trace.note("sink.failed", f"{code} {error!r}")
                self._core.refresh_soon(TOPIC)
                await self.runtime.sleep(PAUSE_S)
                continue
            return self.cluster.name_at(address.partition(":")[0]), answer

    def broken(self, where: str, group: str, values: Iterable[str]) -> list[str]:
        """G1 and G2 for the values that can be seen somewhere."""
        seen = Counter(value for value in values if value.startswith(LANE + "."))
        problems = []
        for key, rows in self.rows.items():
            there = [row for row in rows if seen[row]]
            if key.group == group and there and len(there) < len(rows):
                problems.append(f"G1 {where} has {len(there)} of the {len(rows)} rows of {key}")
            if key.group == group and any(seen[row] > 1 for row in rows):
                problems.append(f"G2 {where} has rows of {key} twice")
        return problems

    def missing(self, values: Container[str]) -> list[tuple[PartitionKey, Acknowledged]]:
        """The acknowledged partitions of which rows are missing."""
        return [
            (key, acknowledged)
            for key, acknowledged in self.acknowledged.items()
            if not all(row in values for row in self.rows[key])
        ]


def _ext(group: str, epoch: int) -> dict[str, str]:
    return {"sink": f"sink-{group}", "epoch": str(epoch)}

"""`saturnmq drill run hostile-clients`: one attack after the other on a broker and on a nameserver
of a real cluster, and beside each a client that behaves.

The nodes have few descriptors (NOFILE) and a small memory budget (BUDGET). No control group bounds
their memory: it is looked at, without what is mapped from files. After each attack the node must be
alive, its loop must not have stood still, its memory must be within the budget, and the
well-behaved client must have been served all the time; in the end the store must be sound. How much
slower that client was is told, not judged: machines are noisy.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saturnmq import Message, aio
from saturnmq.cli.launcher import LocalCluster, Node, Settings
from saturnmq.drills.figures import ANONYMOUS, STOP_MS_MAX, memory_mb, runtime_information
from saturnmq.drills.hostile.attacks import ATTACKS, OF_BROKERS, TOPIC
from saturnmq.protocol import checked
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.runtime import native
from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import SaturnError
from saturnmq.store.disk import NativeDisk
from saturnmq.store.inspect.verify import check

NOFILE = (1_024, 2_048)  # soft and hard limit of open files
BUDGET = 128 << 20
SLACK_MB = 160  # beside the budget and what there was before: heaps do not shrink at once
EVERY_S = 0.02  # between two questions of the well-behaved client
ANSWER_S = 30.0


@dataclass
class Row:
    """The well-behaved client during one attack; latencies in ms."""

    target: str
    attack: str
    answered: int = 0
    failed: int = 0
    p50: float = 0.0
    p99: float = 0.0
    ratio: float = 1.0  # of p99 to that without an attack
    memory_mb: int = 0  # the most that is no file's, in all
    longest_stop_ms: int = 0  # of processor time, since the start
    done: dict[str, int] = field(default_factory=dict)


@dataclass
class HostileReport:
    rows: list[Row] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"attacks": [row.__dict__ for row in self.rows], "violations": self.violations}

    def table(self) -> list[dict[str, Any]]:
        return [
            {
                "target": row.target,
                "attack": row.attack,
                "connections": row.done.get("connections", 0),
                "requests": row.done.get("requests", 0),
                "answered": row.answered,
                "failed": row.failed,
                "p50 ms": round(row.p50, 2),
                "p99 ms": round(row.p99, 2),
                "p99 / alone": round(row.ratio, 1),
                "memory MB": row.memory_mb,
                "stop ms": row.longest_stop_ms,
            }
            for row in self.rows
        ]


class WellBehaved:
    """Asks one thing at a time, evenly: a broker to take a message, a nameserver for a route."""

    def __init__(self, runtime: Runtime, target: str, nameserver: str) -> None:
        self._runtime, self._target, self._nameserver = runtime, target, nameserver
        self.failures: list[str] = []

    async def __aenter__(self) -> WellBehaved:
        if self._target == "broker":
            self._producer = aio.Producer("besieged", self._nameserver)
            await self._producer.start()
        else:
            self._endpoint = await connect(self._runtime, *split_address(self._nameserver))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._target == "broker":
            await self._producer.close()
        else:
            self._endpoint.close()

    async def ask_for(self, seconds: float) -> list[float]:
        """The latencies, in s."""
        took = []
        end = time.monotonic() + seconds
        while (began := time.monotonic()) < end:
            try:
                await self._ask()
            except SaturnError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            else:
                took.append(time.monotonic() - began)
            await asyncio.sleep(EVERY_S)
        return took

    async def _ask(self) -> None:
        if self._target == "broker":
            await self._producer.send(Message(TOPIC, bytes(1_000)))
            return
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        reply = await self._endpoint.request(Command.request(code, {"topic": TOPIC}), ANSWER_S)
        checked.document(reply.body)


def run(root: Path, seconds: float, say: Callable[[str], None]) -> HostileReport:
    """All attacks on a cluster in `root`, for so long in all."""
    limits = ["prlimit", f"--nofile={NOFILE[0]}:{NOFILE[1]}"]
    budget = ["env", f"SATURNMQ_MEMORY_BUDGET_BYTES={BUDGET}"]
    names = ("nameserver-0", "master-0")
    settings = Settings(prefixes={name: [*limits, *budget] for name in names})
    report = HostileReport()
    each_s = seconds / (2 * (len(ATTACKS) + 1) - len(OF_BROKERS))
    cluster = LocalCluster.up(root, settings)
    try:
        for target, name in zip(("nameserver", "broker"), names, strict=True):
            siege = _Siege(cluster, cluster.node(name), target, each_s, report, say)
            native.run(siege.run)
    finally:
        cluster.down()
    damage = check(NativeDisk(), str(Path(cluster.node("master-0").data) / "store")).damage
    report.violations += [f"store check: {each}" for each in damage[:10]]
    return report


class _Siege:
    """All attacks on one node."""

    def __init__(
        self,
        cluster: LocalCluster,
        node: Node,
        target: str,
        seconds: float,
        report: HostileReport,
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._node, self._target = cluster, node, target
        self._seconds, self._report, self._say = seconds, report, say
        self._memory_mb = 0

    async def run(self, runtime: Runtime) -> None:
        (nameserver,) = self._cluster.nameservers
        async with aio.Admin(nameserver) as admin:
            await admin.create_topic(TOPIC, queues=4)
        async with WellBehaved(runtime, self._target, nameserver) as client:
            await client.ask_for(1.0)  # its first questions make connections
            alone = await self._measured(runtime, client, "none")
            before_mb = self._memory_mb
            for attack in ATTACKS:
                if self._target == "broker" or attack not in OF_BROKERS:
                    row = await self._measured(runtime, client, attack)
                    row.ratio = row.p99 / alone.p99
                    self._judge(row, client, before_mb)

    async def _measured(self, runtime: Runtime, client: WellBehaved, attack: str) -> Row:
        self._say(f"{self._target}: {attack}")
        attacker = None
        if attack != "none":
            module = "saturnmq.drills.hostile.attacks"
            seconds, address = str(self._seconds), self._node.address
            attacker = subprocess.Popen(
                [sys.executable, "-m", module, attack, address, seconds, self._target],
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            assert attacker.stdout is not None, "it is a pipe"
            await asyncio.to_thread(attacker.stdout.readline)  # it has begun
        watching = asyncio.create_task(self._watch())
        took = sorted(await client.ask_for(self._seconds))
        watching.cancel()
        row = Row(self._target, attack, len(took), len(client.failures))
        if attacker is not None:
            told, _ = await asyncio.to_thread(attacker.communicate)
            row.done = json.loads(told or b"{}")
        if took:
            row.p50, row.p99 = (1e3 * took[int(part * (len(took) - 1))] for part in (0.5, 0.99))
        row.memory_mb = self._memory_mb
        row.longest_stop_ms = await self._stop_ms(runtime)
        self._report.rows.append(row)
        return row

    async def _watch(self) -> None:
        """Note the most memory that the node has, what is mapped from files excepted."""
        while True:
            if self._node.alive():
                self._memory_mb = max(self._memory_mb, memory_mb(self._node.pid or 0, ANONYMOUS))
            await asyncio.sleep(0.2)

    async def _stop_ms(self, runtime: Runtime) -> int:
        """The longest stop of the node's loop; -1 if it does not say."""
        try:
            told = await runtime_information(runtime, self._node.address, ANSWER_S)
        except (SaturnError, OSError):
            return -1
        return checked.integer(told, "longestBusyStopMs")

    def _judge(self, row: Row, client: WellBehaved, before_mb: int) -> None:
        found, what = self._report.violations, f"{row.target}, {row.attack}"
        if not self._node.alive():
            found.append(f"{what}: its process has ended")
        if row.longest_stop_ms < 0:
            found.append(f"{what}: nobody could connect to it when the attack was over")
        if row.longest_stop_ms > STOP_MS_MAX:
            found.append(
                f"{what}: its loop stood still for {row.longest_stop_ms} ms of processor time, "
                f"{STOP_MS_MAX} are allowed"
            )
        most = before_mb + (BUDGET >> 20) + SLACK_MB
        if row.memory_mb > most:
            found.append(f"{what}: it has taken {row.memory_mb} MB of memory, not {most}")
        if not row.answered:
            found.append(f"{what}: a well-behaved client was not served")
        for failure in client.failures[:3]:
            found.append(f"{what}: a well-behaved client was told {failure}")
        client.failures.clear()
        if not row.done.get("connections"):
            found.append(f"{what}: the attacker did nothing")

"""Of a rolling upgrade under load: failed sends, and for how long nothing was acknowledged.

    python benchmarks/rolling_upgrade.py [--json] [--rate N] [--slaves N] [--replication async|sync]
                                         [--election] [--rounds N] [--directory DIR]

Two nameservers and two groups are restarted node by node, as `saturnmq cluster upgrade --rolling`
does, while one producer process sends messages of 1 KiB, evenly, pipelined and in batches, to the
queues of both. Every send is waited for.

| figure | what it is |
|---|---|
| failed | refused, not answered, or answered with less than was asked for |
| stall | the longest time between two acknowledgements of anybody |
| stall of a group | the same of one group |
| slowest | the longest time from a send to its acknowledgement |

By default sends wait for a copy, and a group has two slaves: so they do while one restarts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from saturnmq import Admin, Message, SaturnError, aio
from saturnmq.cli.bench import machine
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.rolling import Upgrade
from saturnmq.runtime import native

TOPIC = "upgraded"
SIZE = 1024
TICK_S = 0.002
QUIET_S = 3.0  # of load before and after the upgrade


class SendLoad:
    """Sends until its input ends."""

    def __init__(self, nameservers: str, rate: float) -> None:
        self._nameservers = nameservers
        self._rate = rate
        self._waiting: set[asyncio.Task[None]] = set()
        self._last: dict[str, float] = {}
        self.failed: Counter[str] = Counter()
        self.stalls: dict[str, float] = {}
        self.acknowledged = 0
        self.slowest = 0.0

    async def run(self, _runtime: Any) -> None:
        body = os.urandom(SIZE)
        over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        async with aio.Producer("upgraders", self._nameservers) as producer:
            await producer.send(Message(TOPIC, body))
            begin, sent = time.monotonic(), 0
            while not over.done():
                due = int((time.monotonic() - begin) * self._rate) - sent
                handles = [await producer.send_async(Message(TOPIC, body)) for _ in range(due)]
                sent += due
                began = time.monotonic()
                # A batch is answered as one.
                batches = {id(handle.batch): handle for handle in handles}
                counts = Counter(id(handle.batch) for handle in handles)
                for key, handle in batches.items():
                    task = asyncio.create_task(self._settle(handle, counts[key], began))
                    self._waiting.add(task)
                    task.add_done_callback(self._waiting.discard)
                await asyncio.sleep(TICK_S)
            rate = sent / (time.monotonic() - begin)
            await asyncio.gather(*self._waiting)
        facts = {
            "rate": round(rate),
            "acknowledged": self.acknowledged,
            "failed": dict(self.failed),
            "stall, ms": _ms(self.stalls.pop("")),
            **{f"stall of {group}, ms": _ms(s) for group, s in sorted(self.stalls.items())},
            "slowest, ms": _ms(self.slowest),
        }
        print(json.dumps(facts))

    async def _settle(self, handle: Any, count: int, began: float) -> None:
        try:
            result = await handle
        except SaturnError as error:
            self.failed[f"{type(error).__name__}: {error}"] += count
            return
        if not result.ok:
            self.failed[result.status.value] += count
            return
        now = time.monotonic()
        self.acknowledged += count
        self.slowest = max(self.slowest, now - began)
        for whose in ("", result.queue.broker_name):
            stall = now - self._last.get(whose, now)
            self.stalls[whose] = max(self.stalls.get(whose, 0.0), stall)
            self._last[whose] = now


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def upgrade(directory: Path, settings: Settings, rate: float) -> dict[str, Any]:
    cluster = LocalCluster.up(directory, settings)
    try:
        with Admin(cluster.nameservers) as admin:
            admin.create_topic(TOPIC, queues=4)
            command = [sys.executable, __file__, "--load", ",".join(cluster.nameservers)]
            load = subprocess.Popen(
                [*command, "--rate", f"{rate:g}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            time.sleep(QUIET_S)
            begin = time.monotonic()
            Upgrade(cluster, admin, lambda text: print(text, file=sys.stderr, flush=True)).run()
            took = time.monotonic() - begin
            time.sleep(QUIET_S)
            told, _ = load.communicate()
        return {"upgrade, s": round(took, 1), **json.loads(told)}
    finally:
        cluster.down()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--rate", type=float, default=20_000, help="messages a second")
    parser.add_argument("--slaves", type=int, default=2, help="of each group")
    parser.add_argument("--replication", choices=("async", "sync"), default="sync")
    parser.add_argument("--election", action="store_true", help="with an etcd of three")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", help="where to put files (default: the temporary directory)")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        native.run(SendLoad(options.load, options.rate).run)
        return
    rounds = []
    for _ in range(options.rounds):
        directory = Path(tempfile.mkdtemp(prefix="upgrade-", dir=options.directory))
        settings = Settings(
            nameservers=2,
            masters=2,
            slaves=options.slaves,
            replication=options.replication,
            election=options.election,
            etcds=3 if options.election else 1,
        )
        try:
            rounds.append(upgrade(directory, settings, options.rate))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        if not options.json:
            print(", ".join(f"{name} {value}" for name, value in rounds[-1].items()), flush=True)
    if options.json:
        print(json.dumps({"machine": machine(), "rounds": rounds}))


if __name__ == "__main__":
    main()

"""What copies cost, how far a slave lags, how fast an empty one catches up.

    python benchmarks/replication.py [--json] [--quick] [--rounds N] [--only PART] [--directory DIR]

Three clusters of one nameserver and one broker group run side by side, each on its own files:
`alone` (async flush, no slave), `async` (with a slave), `sync` (a send waits for the slave). They
are measured in turn, round after round, so that what the machine does meanwhile hits all alike;
the figure is the median, and a cost is the median over rounds of the ratio within one.

- produce: `saturnmq bench produce`, 1 KiB bodies in batches, one producer process, pipelined; and
  the processor time of each broker, which other work on the machine disturbs less
- send: `saturnmq bench latency`, one sender and 64
- lag: while messages come at half of what `async` takes at most, the master is asked every few ms
  for its end and what the slave has reported (code 907). Lag in ms of a sample: how long ago the
  master's end was where the slave's report is, so that the way of the report counts
- catch-up: the slave is stopped and wiped, and started again while the master has a log of
  4 GB and goes on taking one send after the other; from the slave's first byte to the last of what
  there was at its start

Every run of a part checks what it did. `--quick` is for tests: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from saturnmq import Admin, Message, Producer
from saturnmq.cli.bench import machine
from saturnmq.cli.launcher import LocalCluster, Node, Settings
from saturnmq.protocol import fastjson
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from targets import BenchTarget

MODES = {
    "alone": Settings(),
    "async": Settings(slaves=1),
    "sync": Settings(slaves=1, replication="sync"),
}
PARTS = ("produce", "send", "lag", "catch-up")
SIZE = 1024
SAMPLE_S = 0.004
DEADLINE_S = 300.0
ANSWER_S = 60.0


TARGETS = {
    "sync costs of async, %": BenchTarget(35, at_most=True),
    "lag at half the rate, p99 ms": BenchTarget(50, at_most=True),
    "catch-up, MB/s": BenchTarget(300),
}


class Scale(NamedTuple):
    """How much work."""

    rounds: int
    messages: int
    sends: int
    lag_s: float
    catch_up_bytes: int
    quiet_s: float  # of one sender before the catch-up


FULL = Scale(3, 1_000_000, 10_000, 15.0, 4_000_000_000, 3.0)
QUICK = Scale(1, 20_000, 200, 1.5, 20_000_000, 1.0)


class Clock:
    """The part of a runtime that a channel uses."""

    monotonic = staticmethod(time.monotonic)


class Asker:
    """Asks one broker how it is."""

    def __init__(self, address: str) -> None:
        clock: Any = Clock()
        self._channel = Channel(clock, address, ANSWER_S)

    def ask(self, code: int) -> dict[str, Any]:
        reply = self._channel.request(Command.request(code, {}), ANSWER_S)
        document: dict[str, Any] = fastjson.loads(bytes(reply.body))
        return document

    def info(self) -> dict[str, str]:
        table: dict[str, str] = self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
        return table

    def end(self) -> int:
        return int(self.info()["commitLogMaxOffset"])

    def close(self) -> None:
        self._channel.close()


@contextmanager
def clusters(directory: str, modes: list[str]) -> Iterator[dict[str, LocalCluster]]:
    running: dict[str, LocalCluster] = {}
    try:
        for mode in modes:
            running[mode] = LocalCluster.up(Path(directory, mode), MODES[mode])
        yield running
    finally:
        for cluster in running.values():
            cluster.down()


def node(cluster: LocalCluster, kind: str) -> Node:
    return next(node for node in cluster.nodes if node.kind == kind)


def processor_s(cluster: LocalCluster) -> dict[str, float]:
    """What each broker has used since its start: on a busy machine it says more than the time."""
    used = {}
    for each in cluster.nodes:
        if each.broker_name:
            fields = Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()
            used[each.kind] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def bench(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    """One run of `saturnmq bench` in a process of its own."""
    command = [sys.executable, "-m", "saturnmq.cli.main", "bench", *arguments]
    command += ["--size", str(SIZE), "--nameserver", cluster.nameservers[0], "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def settle(cluster: LocalCluster) -> None:
    """Until the slave has everything."""
    if not cluster.settings.slaves:
        return
    master, slave = Asker(node(cluster, "master").address), Asker(node(cluster, "slave").address)
    deadline = time.monotonic() + DEADLINE_S
    while slave.end() < master.end():
        if time.monotonic() > deadline:
            raise SystemExit(f"the slave has {slave.end()} of {master.end()} bytes after minutes")
        time.sleep(0.05)
    master.close()
    slave.close()


# the parts


def produce(directory: str, scale: Scale) -> dict[str, Any]:
    rates: dict[str, list[int]] = {mode: [] for mode in MODES}
    busy: dict[str, list[float]] = {}
    with clusters(directory, list(MODES)) as running:
        for _ in range(scale.rounds):
            for mode, cluster in running.items():
                before = processor_s(cluster)
                facts = bench(cluster, "produce", "--count", str(scale.messages))
                rates[mode].append(facts["msgs_per_s"])
                settle(cluster)
                for kind, seconds in processor_s(cluster).items():
                    name = f"{kind} of {mode}, processor s per million"
                    used = (seconds - before[kind]) / facts["count"] * 1e6
                    busy.setdefault(name, []).append(used)
    pairs = list(zip(*rates.values(), strict=True))
    return {
        **{f"produce {mode}, msg/s": statistics.median(found) for mode, found in rates.items()},
        "async costs of alone, %": statistics.median(100 - 100 * b / a for a, b, _ in pairs),
        "sync costs of async, %": statistics.median(100 - 100 * c / b for _, b, c in pairs),
        "sync costs of alone, %": statistics.median(100 - 100 * c / a for a, _, c in pairs),
        **{name: statistics.median(found) for name, found in busy.items()},
        "runs": rates,
    }


def send(directory: str, scale: Scale) -> dict[str, Any]:
    figures: dict[str, list[float]] = {}
    with clusters(directory, list(MODES)) as running:
        for _ in range(scale.rounds):
            for mode, cluster in running.items():
                for senders in (1, 64):
                    arguments = "--senders", str(senders), "--count", str(scale.sends)
                    facts = bench(cluster, "latency", *arguments)
                    name = f"send {mode}, {senders} senders"
                    figures.setdefault(f"{name}, p50 us", []).append(facts["p50_us"])
                    figures.setdefault(f"{name}, p99 us", []).append(facts["p99_us"])
                    if senders > 1:
                        figures.setdefault(f"{name}, msg/s", []).append(facts["msgs_per_s"])
    return {name: statistics.median(found) for name, found in figures.items()}


def lag(directory: str, scale: Scale) -> dict[str, Any]:
    with clusters(directory, ["async"]) as running:
        cluster = running["async"]
        most = bench(cluster, "produce", "--count", str(scale.messages))["msgs_per_s"]
        settle(cluster)
        command = [sys.executable, __file__, "--pace", cluster.nameservers[0]]
        command += [str(most // 2), str(scale.lag_s)]
        asker = Asker(node(cluster, "master").address)
        pace = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        samples = []
        while pace.poll() is None:
            status = asker.ask(RequestCode.GET_BROKER_HA_STATUS)
            slaves = status["haConnectionInfo"]
            if slaves:
                end, acked = status["masterCommitLogMaxOffset"], slaves[0]["slaveAckOffset"]
                samples.append((time.monotonic(), end, acked))
            time.sleep(SAMPLE_S)
        assert pace.stdout is not None
        reached = json.loads(pace.stdout.read())["msgs_per_s"]
        asker.close()
    begun = next(at for at, end, _ in samples if end > samples[0][1]) + 0.5
    times, ends = [at for at, _, _ in samples], [end for _, end, _ in samples]
    late_ms, behind = [], []
    for at, end, acked in samples:
        if begun < at < times[-1] - 0.5:
            then = bisect_right(ends, acked) - 1  # the last time that the master had no more
            late_ms.append(0.0 if acked >= end else (at - times[max(then, 0)]) * 1000)
            behind.append(end - acked)
    late_ms.sort()
    behind.sort()
    return {
        "half the rate, msg/s": most // 2,
        "reached, msg/s": reached,
        "lag at half the rate, p50 ms": quantile(late_ms, 0.5),
        "lag at half the rate, p99 ms": quantile(late_ms, 0.99),
        "lag at half the rate, most ms": late_ms[-1],
        "lag at half the rate, p50 bytes": quantile(behind, 0.5),
        "lag at half the rate, p99 bytes": quantile(behind, 0.99),
        "samples": len(late_ms),
    }


def pace(nameserver: str, rate: float, seconds: float) -> dict[str, Any]:
    """Send so many messages a second, evenly; in a process of its own."""
    topic, body = new_topic(nameserver), os.urandom(SIZE)
    with Producer(nameservers=[nameserver], group="pace") as producer:
        producer.send(Message(topic, body))
        handles: list[Any] = []
        before: list[Any] = []
        begin = time.perf_counter()
        sent = 0
        while (passed := time.perf_counter() - begin) < seconds:
            due = int(passed * rate) - sent
            handles += [producer.send_async(Message(topic, body)) for _ in range(due)]
            sent += due
            if len(handles) > rate:
                check(before)
                before, handles = handles, []
            time.sleep(0.002)
        check(before + handles)
        return {"msgs_per_s": round(sent / (time.perf_counter() - begin))}


def new_topic(nameserver: str) -> str:
    topic = f"replication-{uuid.uuid4().hex[:12]}"
    with Admin(nameservers=[nameserver]) as admin:
        admin.create_topic(topic, queues=4)
    return topic


def check(handles: list[Any]) -> None:
    for handle in handles:
        if not handle.result().ok:
            raise SystemExit(f"a send ended as {handle.result().status.value}")


def catch_up(directory: str, scale: Scale) -> dict[str, Any]:
    with clusters(directory, ["async"]) as running:
        cluster = running["async"]
        slave, master = node(cluster, "slave"), node(cluster, "master")
        at_master = Asker(master.address)
        cluster.stop(slave.name)
        while at_master.end() < scale.catch_up_bytes:
            bench(cluster, "produce", "--count", str(scale.messages))
        shutil.rmtree(Path(slave.data, "store"), ignore_errors=True)
        serving = BenchSender(cluster.nameservers[0])
        quiet = serving.phase(scale.quiet_s)
        wanted = at_master.end()
        serving.begin()
        begun = time.monotonic()
        cluster.start(slave.name)
        at_slave = Asker(slave.address)
        first = None
        deadline = begun + DEADLINE_S
        while (end := at_slave.end()) < wanted:
            if end and first is None:
                first = time.monotonic(), end
            if time.monotonic() > deadline:
                raise SystemExit(f"the slave has {end} of {wanted} bytes after {DEADLINE_S:.0f} s")
            time.sleep(0.02)
        done = time.monotonic()
        while int((info := at_slave.info())["commitLogDispatchedOffset"]) < wanted:
            if time.monotonic() > deadline:
                raise SystemExit(f"the slave has dispatched {info['commitLogDispatchedOffset']}")
            time.sleep(0.02)
        dispatched = time.monotonic()
        meanwhile = serving.end()
        at_master.close()
        at_slave.close()
    since, had = first or (begun, 0)
    return {
        "catch-up of, MB": wanted / 1e6,
        "catch-up, MB/s": (wanted - had) / (done - since) / 1e6,
        "catch-up with the start of the process, MB/s": wanted / (done - begun) / 1e6,
        "dispatched behind it, s": dispatched - done,
        "one sender before, p50 us": quantile(quiet, 0.5),
        "one sender meanwhile, p50 us": quantile(meanwhile, 0.5),
        "one sender meanwhile, p99 us": quantile(meanwhile, 0.99),
        "one sender meanwhile, most us": meanwhile[-1],
        "sends meanwhile": len(meanwhile),
    }


class BenchSender:
    """One thread that sends and waits, again and again, with a pause."""

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._topic = new_topic(nameserver)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._times: list[float] = []

    def phase(self, seconds: float) -> list[float]:
        self.begin()
        time.sleep(seconds)
        return self.end()

    def begin(self) -> None:
        self._stop.clear()
        self._times = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> list[float]:
        """Microseconds of each send, sorted."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        return sorted(self._times)

    def _run(self) -> None:
        body = os.urandom(SIZE)
        with Producer(nameservers=[self._nameserver], group="lone") as producer:
            for _ in range(20):
                producer.send(Message(self._topic, body))
            while not self._stop.is_set():
                begin = time.perf_counter()
                check_one(producer.send(Message(self._topic, body)))
                self._times.append((time.perf_counter() - begin) * 1e6)
                time.sleep(0.005)


def check_one(receipt: Any) -> None:
    if not receipt.ok:
        raise SystemExit(f"a send ended as {receipt.status.value}")


def quantile(ordered: list[Any], share: float) -> float:
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


# around it


WORK = {"produce": produce, "send": send, "lag": lag, "catch-up": catch_up}


def print_table(facts: dict[str, Any]) -> None:
    print(", ".join(f"{name} {value}" for name, value in facts["machine"].items()))
    for work, figure in facts["figures"].items():
        target = TARGETS.get(work)
        text = ""
        if target is not None:
            sign = "at most" if target.at_most else "at least"
            missed = ": missed" if target.missed(figure) else ": reached"
            text = f"  {sign} {target.value:,g}{missed}"
        shown = f"{figure:14,.1f}" if isinstance(figure, int | float) else f" {figure}"
        print(f"{work:48}{shown}{text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--quick", action="store_true", help="hardly any work: for tests")
    parser.add_argument("--rounds", type=int, help=f"(default: {FULL.rounds})")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; repeatable")
    parser.add_argument("--directory", help="where to put files (default: the temporary directory)")
    parser.add_argument("--pace", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pace:
        nameserver, rate, seconds = options.pace
        print(json.dumps(pace(nameserver, float(rate), float(seconds))))
        return
    scale = QUICK if options.quick else FULL
    if options.rounds:
        scale = scale._replace(rounds=options.rounds)
    figures: dict[str, Any] = {}
    for part in options.only or PARTS:
        directory = tempfile.mkdtemp(prefix="replication-", dir=options.directory)
        try:
            figures |= WORK[part](directory, scale)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    targets = {work: target.value for work, target in TARGETS.items()}
    facts = {"machine": machine(), "figures": figures, "targets": targets}
    if options.json:
        print(json.dumps(facts))
    else:
        print_table(facts)


if __name__ == "__main__":
    main()

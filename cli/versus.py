"""`saturnmq bench --against kafka|rocketmq`: the same work by ours and by a peer, in pairs.

A line of the table is one kind of work. For each line both sides start with empty stores, do a
small run to get warm, then work in turns: ours, the peer, ours, the peer. A figure is the median of
a side's runs, a ratio that of the medians. Each side checks that everything was stored, or
consumed, before it gives a figure.

The peer's side is a program of `benchmarks/peers/` that is told its work by lines of JSON
(`side.py` there), so the command works in a checkout of the project.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from saturnmq.cli import workloads
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.output import fail, write_file
from saturnmq.cli.page_cache import FullCache

PEERS = ("kafka", "rocketmq")
REST_S = 0.5  # the broker indexes what the run before left
WARM_PART = 5  # of the messages of a run, before the first pair
READY_S = 900.0  # the first time its packages are fetched
CLOSE_S = 30.0
Figures = dict[str, float]


class Metric(NamedTuple):
    """A figure of a line, and what is asked of it: so many times the peer's, a bound of its own."""

    key: str
    unit: str
    times: float | None = None
    bound: float | None = None
    at_most: bool = False

    def reached(self, ours: float, ratio: float | None) -> bool | None:
        """Whether it is what was asked for; None: nothing was, or there is no peer's figure."""
        asked = []
        if self.bound is not None:
            asked.append(ours <= self.bound if self.at_most else ours >= self.bound)
        if self.times is not None and ratio is not None:
            asked.append(ratio >= self.times)
        return all(asked) if asked else None


class Line(NamedTuple):
    """A line of the table: the work, as the sides are told it, and its figures."""

    name: str
    request: dict[str, Any]
    metrics: tuple[Metric, ...]
    peers: tuple[str, ...] = PEERS
    sync_flush: bool = False
    sync_slave: bool = False

    def part(self, parts: int) -> dict[str, Any]:
        """The request for a part of the work."""
        if "warm" in self.request:  # it gets warm by itself
            return {**self.request, "count": 2 * self.request["warm"]}
        return {**self.request, "count": max(1000, self.request["count"] // parts)}


def _rate(times: float | None = None, bound: float | None = None) -> Metric:
    return Metric("rate", "messages/s", times, bound)


def _cpu(bound: float | None = None) -> Metric:
    return Metric("cpu_s", "s of broker per million", bound=bound, at_most=True)


def _us(key: str, bound: float | None = None) -> Metric:
    return Metric(key, f"us, {key.removesuffix('_us')}", bound=bound, at_most=True)


COUNTS = {100: 1_000_000, 1024: 500_000}
PACED_S, PACED_WARM_S, PACED_QUEUES = 12, 2, 8
SIZES = {100: "100 B", 1024: "1 KiB"}


def _send(size: int, call: str, name: str, *metrics: Metric, **options: Any) -> Line:
    request = {"work": "send", "call": call, "size": size, "count": COUNTS[size]}
    return Line(f"{name} {SIZES[size]}", request, metrics, **options)


def _consume(size: int, call: str, name: str, times: float) -> Line:
    request = {"work": "consume", "call": call, "size": size, "count": 2 * COUNTS[size]}
    return Line(f"{name} {SIZES[size]}", request, (_rate(times),))


def _single(senders: int, name: str, *metrics: Metric, **options: Any) -> Line:
    count = 5_000 if senders == 1 else 32_000
    request = {"work": "single", "senders": senders, "size": 1024, "count": count}
    return Line(name, request, metrics, **options)


def _paced(rate: int, *bounds: float) -> Line:
    request = {"work": "paced", "rate": rate, "size": 1024, "queues": PACED_QUEUES}
    request |= {"count": rate * PACED_S, "warm": rate * PACED_WARM_S}
    metrics = map(_us, workloads.SHARES, bounds)
    return Line(f"end to end, {rate:,} messages/s", request, (*metrics, _cpu()))


def _table() -> Iterator[Line]:
    for size, cpu in ((1024, 0.5), (100, 0.12)):
        yield _send(size, "flush", "produce, flush,", _rate(2.0), _cpu(cpu))
        yield _send(size, "results", "produce, every result,", _rate(2.0))
        yield _send(size, "callbacks", "produce, callbacks,", _rate(2.0))
        yield _send(size, "keyed", "produce, key and tag,", _rate(2.0))
        times = 3.0 if size == 1024 else 4.0
        yield _send(size, "batch", "send_batch of 1,000, one by one,", _rate())
        yield _send(size, "batches", "send_batch of 1,000, 16 under way,", _rate(times))
        yield _consume(size, "many", "consume by 1,000,", 2.0)
        yield _consume(size, "one", "consume one by one,", 2.0)
        yield _consume(size, "touch", "consume, touching body, keys, properties,", 2.0)
        yield _consume(size, "poll1", "poll(1)", 1.0)
        yield _consume(size, "poll1000", "poll(1000)", 2.0)
    zipped = {"work": "send", "call": "records", "size": 1024, "count": COUNTS[1024], "zip": "zstd"}
    disk = Metric("disk", "B on disk a message", times=1 / 1.1, at_most=True)
    yield Line("produce, zstd, 1 KiB JSON", zipped, (_rate(2.0), _cpu(), disk), peers=("kafka",))
    yield _single(1, "one synchronous send", _us("p50_us", 50), _us("p99_us", 150))
    yield _single(64, "64 synchronous senders", _rate(3.0))
    sync_flush: dict[str, Any] = {"sync_flush": True}
    yield _single(1, "sync flush, one sender", _us("p50_us"), _us("p99_us"), **sync_flush)
    yield _single(64, "sync flush, 64 senders", _rate(bound=40_000), **sync_flush)
    yield _paced(1_000, 300, 1_000, 5_000)
    yield _paced(10_000, 500, 2_000, 5_000)
    copy: dict[str, Any] = {"sync_slave": True, "peers": ("rocketmq",)}
    yield _single(1, "sync replication, one sender", _us("p50_us", 120), _us("p99_us"), **copy)
    yield _single(64, "sync replication, 64 senders", _rate(bound=60_000), **copy)
    yield _send(1024, "flush", "sync replication, pipelined", _rate(bound=600_000), **copy)


TABLE = tuple(_table())


# -- the sides ----------------------------------------------------------------------------------


class OwnSide:
    """Our cluster, and our client in this process."""

    def __init__(self, home: Path, line: Line) -> None:
        settings = Settings(flush="sync" if line.sync_flush else "async")
        if line.sync_slave:
            settings.slaves, settings.replication = 1, "sync"
        self._cluster = LocalCluster.up(home / "ours", settings)
        master = next(node for node in self._cluster.nodes if node.kind == "master")
        assert master.pid is not None, "it runs"
        self._pids = [master.pid]
        self._address = master.address
        self._consumed: workloads.Work | None = None

    def close(self) -> None:
        self._cluster.down()

    def run(self, request: dict[str, Any]) -> Figures:
        """Do the work once."""
        works = {
            "send": self._send,
            "consume": self._consume,
            "single": self._single,
            "paced": self._paced,
        }
        return works[request["work"]](request)

    def _send(self, request: dict[str, Any]) -> Figures:
        work = self._work(request)
        before = self._log_end()
        figures = self._metered(work.count, lambda: SENDS[request["call"]](work))
        figures["disk"] = (self._log_end() - before) / work.count
        workloads.check_stored(work.nameservers, work.topic, work.count + workloads.WARM_SENDS)
        return figures

    def _consume(self, request: dict[str, Any]) -> Figures:
        # The runs of a line read the same messages.
        if self._consumed is None or self._consumed.count != request["count"]:
            self._consumed = self._work(request)
            self._consumed.backlog(keyed=request["call"] == "touch")
        work = self._consumed
        return self._metered(work.count, lambda: CONSUMES[request["call"]](work))

    def _single(self, request: dict[str, Any]) -> Figures:
        work, times = self._work(request), list[float]()

        def act() -> float:
            found, seconds = workloads.one_by_one(work, request["senders"])
            times.extend(found)
            return seconds

        figures = self._metered(work.count, act)
        quantile = functools.partial(workloads.quantile, times)
        return {**figures, "p50_us": quantile(0.5), "p99_us": quantile(0.99)}

    def _paced(self, request: dict[str, Any]) -> Figures:
        work, quantiles = self._work(request), Figures()

        def act() -> float:
            quantiles.update(workloads.end_to_end(work, request["rate"], request["warm"]))
            return float(request["count"] / request["rate"])

        return {**self._metered(work.count, act), **quantiles}

    def _work(self, request: dict[str, Any]) -> workloads.Work:
        queues = request.get("queues", workloads.QUEUES)
        servers = self._cluster.nameservers
        size, count = request["size"], request["count"]
        zipped = request.get("zip")
        return workloads.Work(servers, size, count, queues=queues, compression=zipped)

    def _log_end(self) -> int:
        """The bytes of the log so far."""
        from saturnmq import Admin

        with Admin(self._cluster.nameservers) as admin:
            return int(admin.broker_status(self._address)["commitLogMaxOffset"])

    def _metered(self, count: int, act: Callable[[], float]) -> Figures:
        before = workloads.processor_s(self._pids)
        seconds = act()
        used = workloads.processor_s(self._pids) - before
        return {"rate": count / seconds, "cpu_s": 1e6 * used / count}


SENDS = dict(
    zip(
        ("flush", "results", "callbacks", "keyed", "batch", "batches"),
        workloads.SENDS.values(),
        strict=True,
    )
)
SENDS["records"] = workloads.sending(workloads.send_records)
CONSUMES = {
    "many": workloads.CALLS["listen by 1,000"],
    "one": workloads.CALLS["listen one by one"],
    "touch": workloads.CALLS["listen one by one: body, keys, properties"],
    "poll1": workloads.CALLS["poll(1)"],
    "poll1000": workloads.CALLS["poll(1000)"],
}


class PeerFailed(Exception):
    """A peer has no figures for a line."""


class PeerProgram:
    """The peer's program."""

    def __init__(self, name: str, scripts: Path, home: Path, line: Line) -> None:
        paths = [str(scripts), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", f"peers.{name}", str(home)]
        command += ["--sync-flush"] * line.sync_flush + ["--sync-slave"] * line.sync_slave
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.version = ""

    def ready(self) -> Self:
        """Wait until it serves."""
        self.version = self._answer()["ready"]
        return self

    def run(self, request: dict[str, Any]) -> Figures:
        assert self._process.stdin is not None, "it is a pipe"
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise PeerFailed(f"the peer has ended with status {status}: start its program alone")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise PeerFailed(f"the peer failed: {answer['failed']}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()


# -- the run ------------------------------------------------------------------------------------


def compare(
    peer: str,
    only: str,
    pairs: int,
    scripts: Path,
    output: Path | None,
    facts: dict[str, Any],
    tell: Callable[[str], None],
    *,
    full_cache: bool = False,
) -> dict[str, Any]:
    """Measure the lines whose name has `only`; those that `output` has are not measured again. A
    line for which the peer fails is under "failed", with the reason, and may be measured later.
    With `full_cache` each run begins with a full page cache (`page_cache.py`)."""
    if peer not in PEERS:
        fail(f"--against takes {' or '.join(PEERS)}, not {peer!r}")
    if not (scripts / "peers" / f"{peer}.py").exists():
        fail(f"no peers/{peer}.py in {scripts}: run it in a checkout, or name its folder: --peers")
    lines = [line for line in TABLE if peer in line.peers and only in line.name]
    if not lines:
        fail(f"no line has {only!r} in its name: they are {'; '.join(line.name for line in TABLE)}")
    document = _begun(output, peer, pairs, {**facts, "full_cache": full_cache})
    with contextlib.ExitStack() as stack:
        prepare: Callable[[], object] = lambda: None  # noqa: E731
        if full_cache:
            tell("the page cache is filled first, and again before each run")
            prepare = stack.enter_context(FullCache()).fill
        measure = functools.partial(_measure, peer, pairs, scripts, prepare, tell)
        _measure_lines(lines, document, measure, output, tell)
    return document


def _measure_lines(
    lines: list[Line],
    document: dict[str, Any],
    measure: Callable[[Line], tuple[str, dict[str, Any]]],
    output: Path | None,
    tell: Callable[[str], None],
) -> None:
    for number, line in enumerate(lines, 1):
        if line.name in document["lines"]:
            tell(f"{number}/{len(lines)} {line.name}: measured already")
            continue
        tell(f"{number}/{len(lines)} {line.name}")
        try:
            version, row = measure(line)
        except PeerFailed as error:
            tell(f"    {error}; the other lines go on")
            document["failed"][line.name] = str(error)
            continue
        document["versions"] = version
        document["lines"][line.name] = row
        if output is not None:
            write_file(output, json.dumps(document, indent=1))


def _begun(output: Path | None, peer: str, pairs: int, facts: dict[str, Any]) -> dict[str, Any]:
    head = {"against": peer, "pairs": pairs, "machine": facts}
    if output is None or not output.exists():
        return {**head, "versions": "", "lines": {}, "failed": {}}
    document: dict[str, Any] = {**json.loads(output.read_text()), "failed": {}}
    for key, value in head.items():
        if document.get(key) != value:
            fail(f"{output} is of another run: its {key} is {document.get(key)}, not {value}")
    return document


def _measure(
    peer: str,
    pairs: int,
    scripts: Path,
    prepare: Callable[[], object],
    tell: Callable[[str], None],
    line: Line,
) -> tuple[str, dict[str, Any]]:
    home = Path(tempfile.mkdtemp(prefix="saturnmq-against-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.enter_context(_ended_in_order())
        theirs = PeerProgram(peer, scripts, home, line)
        stack.callback(theirs.close)
        ours = OwnSide(home, line)
        stack.callback(ours.close)
        theirs.ready()
        runs: list[tuple[Figures, Figures]] = []
        for pair in range(pairs + 1):
            request = line.request if pair else line.part(WARM_PART)
            found = []
            for side in (ours, theirs):
                prepare()
                time.sleep(REST_S)
                found.append(side.run(request))
            if pair:
                runs.append((found[0], found[1]))
                first = line.metrics[0]
                told = "; ".join(f"{each[first.key]:,.0f}" for each in found)
                tell(f"    pair {pair}: {told} {first.unit}")
        return theirs.version, {metric.key: _row(metric, runs) for metric in line.metrics}


def _row(metric: Metric, runs: list[tuple[Figures, Figures]]) -> dict[str, Any]:
    ours = [pair[0][metric.key] for pair in runs]
    theirs = [pair[1][metric.key] for pair in runs]
    middle, other = statistics.median(ours), statistics.median(theirs)
    # More is better, so that a ratio above 1 is always to our advantage.
    ratio = None
    if middle and other:
        ratio = other / middle if metric.at_most else middle / other
    return {
        "unit": metric.unit,
        "ours": middle,
        "theirs": other,
        "ratio": ratio,
        "at_most": metric.at_most,
        "times": metric.times,
        "bound": metric.bound,
        "reached": metric.reached(middle, ratio),
        "runs": {"ours": ours, "theirs": theirs},
    }


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have SIGTERM end the nodes, too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def rows(document: dict[str, Any]) -> list[tuple[str, str, str, str, str, str]]:
    """The table for people: line, unit, ours, the peer's, ratio, what was to reach."""
    found = []
    for name, metrics in document["lines"].items():
        for row in metrics.values():
            asked = []
            if row["times"] is not None:
                asked.append(f"{row['times']:g} x")
            if row["bound"] is not None:
                asked.append(f"{row['bound']:g}")
            verdict = {None: "", True: ": reached", False: ": missed"}[row["reached"]]
            found.append(
                (
                    name,
                    row["unit"],
                    short(row["ours"]),
                    short(row["theirs"]),
                    "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
                    ", ".join(asked) + verdict,
                )
            )
    return found


def short(value: float) -> str:
    """A figure with three digits that count, as 1.23 M."""
    for unit, name in ((1e6, " M"), (1e3, " k")):
        if value >= 10 * unit or (unit == 1e6 and value >= unit):
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"

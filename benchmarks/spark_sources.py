"""The pipeline beside Spark's own Kafka connector: the same rows, one session, paired runs.

    python benchmarks/spark_sources.py --kafka DIR [--rows 2000000,1000000] [--body 100,1024]
        [--pairs 5] [--only CASE] [--json] [--directory DIR]

Rows of random bytes lie in Parquet files; both sinks load them into a topic of eight queues, and
from there all is read. The session is local[2], on the cores that our broker and Kafka's have, too.
A case is run once by each side to warm it, then in pairs, each side first in turn; a figure is the
median, a ratio that of the medians. Kafka's clients are tuned: 20,000 records a poll, 8 MiB
fetches; batches of 128 KiB and 5 ms of linger. So is Spark for us: it talks to Python workers over
Unix sockets.

| case | ours | theirs |
|---|---|---|
| store | the files of the store to `noop`, every default column | the topic to `noop` |
| broker | the same through the broker | the same |
| properties | the files with the map of properties | ours without |
| plain | the files to Spark's Parquet writer | the topic to it |
| archive | the job `archive`, exactly-once, from the files | the topic to Spark's writer |
| sink | Parquet to a topic, at-least-once | the same with Kafka's sink |
| exactly-once | the same, exactly-once | ours at-least-once |
| trigger | a stream's triggers of 8 rows in 8 queues to `noop`, p50 in ms | the same |

Without `--kafka` (or SATURNMQ_KAFKA), where the jars are copied to once, Kafka's side is left out.
`--quick` is for tests: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peers import kafka_node
from saturnmq import Admin
from saturnmq.cli.bench import machine
from saturnmq.cli.launcher import LocalCluster
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.jobs.archive import archive
from saturnmq.pipeline.session import spark_session
from targets import BenchTarget

QUEUES = 8
FILES = 4
TAGS = np.array(["red", "green", "blue", "grey"])
TRIGGERS = 40
WARM_TRIGGERS = 10
FEW = "few-rows"

READING = {
    "startingOffsets": "earliest",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": str(8 << 20),
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
WRITING = {"kafka.batch.size": str(128 << 10), "kafka.linger.ms": "5"}

TARGETS = {
    "store, 100 B": BenchTarget(1.5),
    "store, 1024 B": BenchTarget(1.7),
    "broker, 100 B": BenchTarget(1.2),
    "broker, 1024 B": BenchTarget(1.2),
    "properties, 100 B": BenchTarget(0.6),
    "properties, 1024 B": BenchTarget(0.6),
    "plain, 100 B": BenchTarget(1.0),
    "plain, 1024 B": BenchTarget(1.0),
    "archive, 100 B": BenchTarget(1.7),
    "archive, 1024 B": BenchTarget(1.7),
    "sink, 100 B": BenchTarget(1.0),
    "sink, 1024 B": BenchTarget(1.0),
    "exactly-once, 100 B": BenchTarget(0.7),
    "exactly-once, 1024 B": BenchTarget(0.7),
    "trigger, 100 B": BenchTarget(1.0, at_most=True),
    # by ourselves: rows/s, and milliseconds
    "store, 100 B, ours": BenchTarget(1_000_000),
    "store, 1024 B, ours": BenchTarget(550e6 / 1024),
    "broker, 100 B, ours": BenchTarget(600_000),
    "broker, 1024 B, ours": BenchTarget(350e6 / 1024),
    "archive, 100 B, ours": BenchTarget(800_000),
    "archive, 1024 B, ours": BenchTarget(550e6 / 1024),
    "sink, 100 B, ours": BenchTarget(345_000),
    "sink, 1024 B, ours": BenchTarget(138e6 / 1024),
    "trigger, 100 B, ours": BenchTarget(250, at_most=True),
}


class Case(NamedTuple):
    """One row of the table: what each side does once; each returns its figure."""

    name: str
    ours: Callable[[], float]
    theirs: Callable[[], float] | None


class Bench:
    """Both sides, loaded with the same rows of one body size."""

    def __init__(
        self,
        spark: Any,
        cluster: LocalCluster,
        kafka: kafka_node.KafkaNode | None,
        work: Path,
        rows: int,
        size: int,
    ) -> None:
        self.spark = spark
        self.kafka = kafka
        self.work = work
        self.rows = rows
        self.size = size
        self.endpoints = ",".join(cluster.nameservers)
        master = next(node for node in cluster.nodes if node.kind == "master")
        self.store = str(Path(master.data, "store"))
        self.topic = f"rows-{size}"
        make_rows(work / "rows", rows, size)

    # -- loading ---------------------------------------------------------------------------------

    def load(self) -> None:
        """The rows into the topic that is read, on both sides."""
        self.new_topic(self.topic)
        self.write_ours(self.topic, "at-least-once")
        if self.kafka is not None:
            self.write_theirs(self.topic)
        for read in (self.ours(endpoints=self.endpoints), self.ours(store=self.store)):
            self.check(read.count())
        if self.kafka is not None:
            self.check(self.theirs().count())

    def new_topic(self, name: str) -> None:
        with Admin(nameservers=self.endpoints.split(",")) as admin:
            admin.create_topic(name, queues=QUEUES)
        if self.kafka is not None:
            self.kafka.create_topic(self.spark, name, QUEUES)

    def check(self, found: int) -> None:
        if found != self.rows:
            raise SystemExit(f"{found} rows of {self.rows}: figures of that would mean nothing")

    # -- the two sides ---------------------------------------------------------------------------

    def ours(self, **options: str) -> Any:
        return self.spark.read.format("saturnmq").options(topic=self.topic, **options).load()

    def theirs(self) -> Any:
        return self.spark.read.format("kafka").options(**self._kafka(), **READING).load()

    def write_ours(self, topic: str, delivery: str) -> float:
        rows = self.spark.read.parquet(str(self.work / "rows"))
        writer = rows.write.format("saturnmq").mode("append")
        writer = writer.options(endpoints=self.endpoints, topic=topic, delivery=delivery)
        return self.rate(writer.save)

    def write_theirs(self, topic: str) -> float:
        rows = self.spark.read.parquet(str(self.work / "rows"))
        rows = rows.selectExpr("CAST(keys AS BINARY) AS key", "body AS value")
        options = {**self._kafka(topic), **WRITING}
        return self.rate(rows.write.format("kafka").mode("append").options(**options).save)

    def _kafka(self, topic: str | None = None) -> dict[str, str]:
        assert self.kafka is not None
        word = "subscribe" if topic is None else "topic"
        return {"kafka.bootstrap.servers": self.kafka.address, word: topic or self.topic}

    def rate(self, act: Callable[[], Any]) -> float:
        """Rows a second of one go."""
        begin = time.perf_counter()
        act()
        return self.rows / (time.perf_counter() - begin)

    def noop(self, frame: Any) -> float:
        return self.rate(frame.write.format("noop").mode("overwrite").save)

    def parquet(self, frame: Any) -> float:
        target = self.work / "out"
        try:
            return self.rate(lambda: frame.write.mode("overwrite").parquet(str(target)))
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def archive(self) -> float:
        target = self.work / "archive"
        try:
            begin = time.perf_counter()
            done = archive(self.spark, Where.store(self.store), [self.topic], str(target))
            seconds = time.perf_counter() - begin
            self.check(done.messages)
            return self.rows / seconds
        finally:
            shutil.rmtree(target, ignore_errors=True)

    # -- the cases -------------------------------------------------------------------------------

    def cases(self) -> Iterator[Case]:
        def theirs(act: Callable[[], float]) -> Callable[[], float] | None:
            return act if self.kafka is not None else None

        def from_store(**options: str) -> float:
            return self.noop(self.ours(store=self.store, **options))

        def from_broker() -> float:
            return self.noop(self.ours(endpoints=self.endpoints))

        kafka = theirs(lambda: self.noop(self.theirs()))
        kafka_parquet = theirs(lambda: self.parquet(self.theirs()))
        yield Case("store", from_store, kafka)
        yield Case("broker", from_broker, kafka)
        yield Case("properties", lambda: from_store(includeProperties="true"), from_store)
        yield Case("plain", lambda: self.parquet(self.ours(store=self.store)), kafka_parquet)
        yield Case("archive", self.archive, kafka_parquet)
        into = f"into-{self.size}"
        self.new_topic(into)
        at_least_once = lambda: self.write_ours(into, "at-least-once")  # noqa: E731
        yield Case("sink", at_least_once, theirs(lambda: self.write_theirs(into)))
        exactly_once = lambda: self.write_ours(into, "exactly-once")  # noqa: E731
        yield Case("exactly-once", exactly_once, at_least_once)
        if self.size <= 100:
            self.few_rows()
            yield Case("trigger", self.trigger_ours, theirs(self.trigger_theirs))

    def few_rows(self) -> None:
        """What streams of small triggers read: as many rows in each queue as there are triggers."""
        self.new_topic(FEW)
        rows = self.spark.range((WARM_TRIGGERS + TRIGGERS) * QUEUES)
        place = f"CAST(id % {QUEUES} AS INT)"
        ours = rows.selectExpr(f"repeat('x', {self.size}) AS body", f"{place} AS queueId")
        writer = ours.write.format("saturnmq").mode("append")
        writer.options(endpoints=self.endpoints, topic=FEW).save()
        if self.kafka is not None:
            theirs = rows.selectExpr(f"repeat('x', {self.size}) AS value", f"{place} AS partition")
            theirs.write.format("kafka").mode("append").options(**self._kafka(FEW)).save()

    def trigger_ours(self) -> float:
        stream = self.spark.readStream.format("saturnmq").option("subscribe", FEW)
        return self.trigger(stream.option("endpoints", self.endpoints))

    def trigger_theirs(self) -> float:
        stream = self.spark.readStream.format("kafka").options(**self._kafka(), **READING)
        return self.trigger(stream.option("subscribe", FEW))

    def trigger(self, stream: Any) -> float:
        """The median of what triggers take that are a row from each queue; the first ones not."""
        stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger=str(QUEUES))
        checkpoint = self.work / f"checkpoint-{uuid.uuid4().hex[:8]}"
        # Not AvailableNow, which asks for offsets once: a stream that runs asks each time.
        writer = stream.load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.processAllAvailable()
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
        each = [p for p in query.recentProgress if p["numInputRows"] == QUEUES]
        if len(each) != WARM_TRIGGERS + TRIGGERS:
            raise SystemExit(f"{len(each)} triggers had {QUEUES} rows: figures would mean nothing")
        took = [progress["durationMs"]["triggerExecution"] for progress in each]
        return statistics.median(took[WARM_TRIGGERS:])


def make_rows(folder: Path, rows: int, size: int) -> None:
    """Parquet files with the columns keys, tags and body; the bodies do not compress."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(size)
    for number in range(FILES):
        count = rows // FILES + (number < rows % FILES)
        schema = pa.schema([("keys", pa.string()), ("tags", pa.string()), ("body", pa.binary())])
        with pq.ParquetWriter(folder / f"{number}.parquet", schema, compression="none") as writer:
            for begin in range(0, count, 100_000):
                some = min(100_000, count - begin)
                ends = np.arange(some + 1, dtype=np.int32) * size
                body = pa.Array.from_buffers(
                    pa.binary(),
                    some,
                    [None, pa.py_buffer(ends), pa.py_buffer(chance.bytes(some * size))],
                )
                keys = [f"k{number}{key:09}" for key in range(begin, begin + some)]
                tags = TAGS[chance.integers(0, len(TAGS), some)]
                writer.write_batch(
                    pa.record_batch([pa.array(keys), pa.array(tags, pa.string()), body], schema)
                )


@contextmanager
def session(jars: list[Path], memory: str) -> Iterator[Any]:
    settings = {
        "spark.driver.memory": memory,
        "spark.sql.streaming.numRecentProgressUpdates": 1000,
        "spark.python.unix.domain.socket.enabled": "true",  # docs/pipeline.md, Sizes
    }
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    spark = spark_session("spark_sources", "local[2]", settings)
    try:
        yield spark
    finally:
        spark.stop()


def run(case: Case, pairs: int) -> tuple[list[float], list[float]]:
    """The figures of both sides, warm."""
    case.ours()
    if case.theirs is not None:
        case.theirs()
    ours: list[float] = []
    theirs: list[float] = []
    for pair in range(pairs):
        for side in ("ours", "theirs") if pair % 2 == 0 else ("theirs", "ours"):
            if side == "ours":
                ours.append(case.ours())
            elif case.theirs is not None:
                theirs.append(case.theirs())
    return ours, theirs


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    cache = Path(options.kafka).absolute() if options.kafka else None
    with ExitStack() as stack:
        work = Path(tempfile.mkdtemp(prefix="spark-sources-", dir=options.directory))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        jars = kafka_node.connector(cache) if cache else []
        spark = stack.enter_context(session(jars, options.memory))  # finds a Java for Kafka, too
        kafka = None
        if cache is not None:
            kafka = stack.enter_context(kafka_node.KafkaNode(cache, work / "kafka"))
        cluster = LocalCluster.up(work / "cluster")
        stack.callback(cluster.down)
        for size, rows in zip(options.body, options.rows, strict=True):
            bench = Bench(spark, cluster, kafka, work / str(size), rows, size)
            bench.load()
            for case in bench.cases():
                if options.only and case.name not in options.only:
                    continue
                ours, theirs = run(case, options.pairs)
                name = f"{case.name}, {size} B"
                figures[name] = row = {"ours": ours, "theirs": theirs}
                show(name, row)
            shutil.rmtree(bench.work)
    return figures


def ratio(row: dict[str, list[float]]) -> float | None:
    if not row["theirs"]:
        return None
    return statistics.median(row["ours"]) / statistics.median(row["theirs"])


def show(name: str, row: dict[str, list[float]]) -> None:
    """One line of the table, as soon as it is there."""
    ours = statistics.median(row["ours"])
    theirs = statistics.median(row["theirs"]) if row["theirs"] else None
    times = ratio(row)
    told = f"{name:24}{ours:12,.0f}{verdict(f'{name}, ours', ours):24}"
    if theirs is not None:
        told += f"{theirs:12,.0f}{times:8.2f}x{verdict(name, times)}"
    print(told.rstrip(), flush=True)


def verdict(name: str, figure: float | None) -> str:
    target = TARGETS.get(name)
    if target is None or figure is None:
        return ""
    sign = "<=" if target.at_most else ">="
    missed = " missed" if target.missed(figure) else ""
    return (
        f" ({sign} {target.value:,.4g}{missed})"
        if target.value < 1e4
        else (f" ({sign} {target.value / 1000:,.0f} k{missed})")
    )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--quick", action="store_true", help="hardly any work: for tests")
    parser.add_argument("--body", type=numbers, default=[100, 1024], help="sizes of bodies")
    parser.add_argument("--rows", type=numbers, help="rows of each (2000000,1000000)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", action="append", help="this case; repeatable")
    parser.add_argument("--memory", default="4g", help="heap of the session")
    parser.add_argument(
        "--kafka",
        default=os.environ.get(kafka_node.VARIABLE),
        metavar="DIR",
        help="compare with Kafka, whose jars are kept there",
    )
    parser.add_argument("--directory", help="where to put files (default: the temporary directory)")
    options = parser.parse_args()
    if options.rows is None:
        options.rows = [2_000_000, 1_000_000]
    if options.quick:
        options.rows, options.body, options.pairs = [5_000], [100], 1
    if len(options.rows) != len(options.body):
        parser.error("--rows wants as many numbers as --body")
    print(", ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    print(f"{'rows/s; trigger: ms':24}{'ours':>12}{'':24}{'theirs':>12}{'':9}", flush=True)
    figures = measure(options)
    if options.json:
        print(json.dumps({"machine": machine(), "figures": figures}))


if __name__ == "__main__":
    main()

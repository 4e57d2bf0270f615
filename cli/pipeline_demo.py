"""`saturnmq pipeline demo`: a year of departures through the whole pipeline on Spark.

Sent to a local cluster, archived to Parquet exactly-once, mean delays per airport, carrier and hour
computed from the archive in Spark SQL, sent to a topic by the exactly-once sink, read from there by
the source and plotted. Then everything once more, which must add nothing.

The demo checks results against values that the pipeline did not compute: rows and checksum of the
archive against the file of departures itself, and the delays against those that plain Python makes
of it.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from saturnmq.cli import flights
from saturnmq.cli.launcher import LocalCluster, Settings
from saturnmq.cli.output import AsJson, emit, fail, table
from saturnmq.cli.tally import Delays
from saturnmq.runtime.errors import SaturnError

DEPARTURES = "flight-departures"
DELAYS = "departure-delays"
QUEUES = 8
WRITE_ID = "departure-delays-2013"  # the same write again is the same write
AHEAD = 20_000  # sends under way at most
SMALL_FILES = {
    "mappedFileSizeCommitLog": 64 << 20,
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
}
CARRIER, HOUR, DELAY = 9, 16, 5  # columns of the file, as Spark counts them
PARTS = 4
Say = Callable[[str], None]


def demo(
    file: Annotated[
        Path | None, typer.Option("--flights", help="The CSV, instead of fetching it.")
    ] = None,
    plot: Annotated[
        Path, typer.Option("--plot", metavar="FILE.png", help="Where the plot goes.")
    ] = Path("departure-delays.png"),
    data: Annotated[
        Path | None, typer.Option("--data", help="Keep the cluster's files and the archive there.")
    ] = None,
    master: Annotated[str, typer.Option("--master", help="Spark's master.")] = "local[*]",
    as_json: AsJson = False,
) -> None:
    """A year of real data through source, sink and archive, on Spark."""
    from saturnmq.pipeline.session import spark_session

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if find_spec("matplotlib") is None:  # asked for before the work, not after it
        fail("matplotlib is not installed: pip install 'saturnmq[demo]'")
    try:
        source = file or flights.fetch(say)
        departures = flights.read(source)
    except flights.FlightsUnavailable as problem:
        fail(str(problem))
    home = data or Path(tempfile.mkdtemp(prefix="saturnmq-pipeline-demo-"))
    say("starting Spark, a nameserver and 2 brokers")
    spark = spark_session("saturnmq pipeline demo", master)
    try:
        cluster = LocalCluster.up(home / "cluster", Settings(masters=2, broker_options=SMALL_FILES))
        try:
            report, means = Pipeline(spark, cluster.nameservers, home, say).run(source, departures)
        finally:
            cluster.down()
    finally:
        spark.stop()
        if data is None:
            shutil.rmtree(home, ignore_errors=True)
    draw(means, plot)
    report["plot"] = str(plot)
    if as_json:
        emit(report)
    else:
        show(report, means)
    if not report["ok"]:
        raise typer.Exit(1)


class Pipeline:
    """One run, step by step."""

    def __init__(self, spark: Any, nameservers: list[str], home: Path, say: Say) -> None:
        self.spark = spark
        self.nameservers = nameservers
        self.endpoints = ",".join(nameservers)
        self.parquet = str(home / "archive")
        self.say = say
        self.seconds: dict[str, float] = {}

    def run(
        self, source: Path, departures: list[flights.Departure]
    ) -> tuple[dict[str, Any], list[Any]]:
        """All steps; the report, and the rows (origin, carrier, hour, mean, flights) that came back
        from the topic."""
        with self._step(f"sending {len(departures):,} departures"):
            produce(self.nameservers, departures)
        with self._step("archiving them to Parquet"):
            archived = self._archive()
        with self._step("comparing the archive with the file"):
            given, kept = self._sum_of_file(source), self._sum_of_archive()
        with self._step("computing mean delays in Spark SQL"):
            means = self._means().cache()  # the comparison uses the values that are sent
            computed = sorted(tuple(row) for row in means.collect())
        with self._step(f"writing them to {DELAYS}, exactly-once"):
            self._write(means)
        with self._step("reading them from there"):
            came_back = self._read_back()
        with self._step("doing both once more"):
            again = self._archive()
            means.unpersist()
            self._write(self._means())
            after = self._read_back()
        report = {
            "departures": len(departures),
            "archived": archived,
            "rows of the file": given[0],
            "rows of the archive": kept[0],
            "checksum of the file": given[1],
            "checksum of the archive": kept[1],
            "delays computed": len(computed),
            "delays in the topic": len(came_back),
            "added by archiving again": again,
            "added by writing again": len(after) - len(came_back),
            "as plain Python computes them": agree(came_back, departures),
        }
        report["ok"] = (
            len(departures) == archived
            and given == kept
            and computed == came_back == after
            and not again
            and report["as plain Python computes them"]
        )
        report["seconds"] = self.seconds
        return report, came_back

    @contextmanager
    def _step(self, what: str) -> Iterator[None]:
        self.say(f"  {what}")
        begin = time.monotonic()
        yield
        self.seconds[what] = round(time.monotonic() - begin, 1)

    def _archive(self) -> int:
        from saturnmq.pipeline.access import Where
        from saturnmq.pipeline.jobs.archive import archive

        where = Where.brokers(self.nameservers)
        return archive(self.spark, where, [DEPARTURES], self.parquet).messages

    def _archived(self) -> Any:
        from saturnmq.pipeline.jobs.archive import read_archive

        return read_archive(self.spark, self.parquet)

    def _sum_of_file(self, source: Path) -> tuple[int, str]:
        lines = self.spark.read.option("header", "true").text(str(source))
        header = lines.first()[0]
        return self._sum(lines.where(lines["value"] != header).selectExpr("value AS body"))

    def _sum_of_archive(self) -> tuple[int, str]:
        return self._sum(self._archived().selectExpr("CAST(body AS STRING) AS body"))

    def _sum(self, frame: Any) -> tuple[int, str]:
        """Rows, and a checksum that does not depend on their order."""
        total = "SUM(CAST(xxhash64(body) AS DECIMAL(20, 0)))"
        rows, checksum = frame.selectExpr("COUNT(*)", total).first()
        return rows, str(checksum)

    def _means(self) -> Any:
        """(origin, carrier, hour, mean delay in minutes, flights), one row of each."""
        self._archived().createOrReplaceTempView("archive")
        return self.spark.sql(f"""
            SELECT tags AS origin, cells[{CARRIER}] AS carrier,
                   CAST(CAST(cells[{HOUR}] AS DOUBLE) AS INT) AS hour,
                   AVG(TRY_CAST(cells[{DELAY}] AS DOUBLE)) AS mean, COUNT(*) AS flights
            FROM (SELECT tags, SPLIT(CAST(body AS STRING), ',') AS cells FROM archive)
            WHERE TRY_CAST(cells[{DELAY}] AS DOUBLE) IS NOT NULL
            GROUP BY origin, carrier, hour""")

    def _write(self, means: Any) -> None:
        # A part is what the sink knows again: with a number of parts of our own they are the same
        # each time, which Spark's adaptive one does not promise.
        rows = means.repartition(PARTS, "origin", "carrier").selectExpr(
            "to_json(struct(*)) AS body",
            "origin AS tags",
            "concat_ws('-', origin, carrier, hour) AS keys",
            "concat_ws('-', origin, carrier) AS shardingKey",
        )
        writer = rows.write.format("saturnmq").mode("append")
        options = {"endpoints": self.endpoints, "topic": DELAYS, "writeId": WRITE_ID}
        writer.options(delivery="exactly-once", **options).save()

    def _read_back(self) -> list[Any]:
        reader = self.spark.read.format("saturnmq").option("endpoints", self.endpoints)
        frame = reader.option("subscribe", DELAYS).load()
        schema = "origin STRING, carrier STRING, hour INT, mean DOUBLE, flights LONG"
        parsed = frame.selectExpr(f"from_json(CAST(body AS STRING), '{schema}') AS r").select("r.*")
        return sorted(tuple(row) for row in parsed.collect())


def produce(nameservers: list[str], departures: list[flights.Departure]) -> None:
    """Send them all; SaturnError for the first that was not acknowledged."""
    from saturnmq import Admin, Message, Producer

    with Admin(nameservers=nameservers) as admin:
        for topic in (DEPARTURES, DELAYS):
            admin.create_topic(topic, queues=QUEUES)
    with Producer(nameservers=nameservers, group="departures") as producer:
        under_way: list[Any] = []

        def settle() -> None:
            for handle in under_way:
                receipt = handle.result()
                if not receipt.ok:
                    raise SaturnError(f"a departure was answered {receipt.status.value}")
            under_way.clear()

        for departure in departures:
            message = Message(
                DEPARTURES,
                departure.line,
                tag=departure.origin,
                keys=departure.key,
                sharding_key=departure.tail,
            )
            under_way.append(producer.send_async(message))
            if len(under_way) >= AHEAD:
                settle()
        settle()


def agree(rows: list[Any], departures: list[flights.Departure]) -> bool:
    """Whether the means per airport and hour are those that a loop over the departures gives."""
    expected = Delays()
    for departure in departures:
        expected.add(departure)
    found: dict[tuple[int, str], list[float]] = {}
    for origin, _, hour, mean, count in rows:
        cell = found.setdefault((hour, origin), [0.0, 0.0])
        cell[0] += mean * count
        cell[1] += count
    return all(
        math.isclose(found[hour, origin][0] / found[hour, origin][1], mean, abs_tol=1e-9)
        if mean is not None
        else (hour, origin) not in found
        for hour, means in expected.rows()
        for origin, mean in means.items()
    )


def draw(rows: list[Any], target: Path) -> None:
    """A heat map of mean delays for each airport: carriers by hours of the day."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    origins = sorted({row[0] for row in rows})
    carriers = sorted({row[1] for row in rows})
    hours = range(min(row[2] for row in rows), max(row[2] for row in rows) + 1)
    figure = Figure(
        figsize=(4.2 * len(origins) + 1, 0.28 * len(carriers) + 1.6), layout="constrained"
    )
    FigureCanvasAgg(figure)
    plots = figure.subplots(1, len(origins), sharey=True, squeeze=False)[0]
    for axes, origin in zip(plots, origins, strict=True):
        means = {(row[1], row[2]): row[3] for row in rows if row[0] == origin}
        cells = [[means.get((carrier, hour), math.nan) for hour in hours] for carrier in carriers]
        picture = axes.imshow(cells, aspect="auto", cmap="RdYlBu_r", vmin=-15, vmax=45)
        axes.set_title(origin)
        axes.set_xlabel("scheduled hour")
        axes.set_xticks(range(0, len(hours), 3), [str(hour) for hour in hours][::3])
        axes.set_yticks(range(len(carriers)), carriers)
    figure.colorbar(picture, ax=list(plots), label="mean delay, minutes", extend="both")
    figure.suptitle("Departures from New York: mean delay by carrier and hour")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)


def show(report: Mapping[str, Any], rows: list[Any]) -> None:
    told = {name: value for name, value in report.items() if name not in ("ok", "seconds")}
    table("the pipeline", ["", ""], told.items())
    table("", ["step", "seconds"], report["seconds"].items())
    worst = sorted((row for row in rows if row[4] >= 100), key=lambda row: -row[3])[:10]
    columns = ["airport", "carrier", "hour", "mean delay, minutes", "flights"]
    table("longest mean delays, of at least 100 flights", columns, worst)
    good = "nothing lost, nothing doubled, checksums equal"
    print(good if report["ok"] else "FAILED: see the table")

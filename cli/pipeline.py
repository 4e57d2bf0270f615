"""`saturnmq pipeline`: jobs on Spark that look at more messages than one consumer should.

Each is a function of `saturnmq.pipeline.jobs`, which is imported when it is called for: without
`pip install 'saturnmq[spark]'` everything else works.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from saturnmq.cli import pipeline_demo
from saturnmq.cli.output import (
    DEFAULT_NAMESERVER,
    MIB,
    AsJson,
    Nameserver,
    addresses,
    bytes_bar,
    emit,
    finding_line,
    late_bar,
    refuse,
    table,
)
from saturnmq.cli.store import (
    IndexItems,
    IndexSlots,
    QueueFileBytes,
    SegmentBytes,
    sizes_of,
)
from typer.core import TyperGroup

if TYPE_CHECKING:
    from saturnmq.pipeline.access import Where
    from saturnmq.pipeline.jobs.archive import Archived
    from saturnmq.pipeline.jobs.audit import Audited
    from saturnmq.store.inspect.verify import Sizes

FOLLOW_MAX_S = 31_536_000  # a year


class _Jobs(TyperGroup):
    """The commands; one that is called in a way that makes no sense ends with exit status 2."""

    def invoke(self, ctx: Any) -> Any:
        from saturnmq.runtime.errors import ConfigError

        try:
            return super().invoke(ctx)
        except ConfigError as problem:
            refuse(str(problem))


app = typer.Typer(
    cls=_Jobs,
    help="Jobs on Spark: archive, replay, audit, rebuild, report; and a demo.",
    no_args_is_help=True,
)

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Read this store directory (ours or RocketMQ's) instead of asking brokers.",
    ),
]
BrokerName = Annotated[
    str, typer.Option("--broker-name", help="The brokerName of the broker that --store is of.")
]
TrustTail = Annotated[
    bool,
    typer.Option(
        "--trust-tail",
        help="With --store: read to the last whole message, not only what is confirmed.",
    ),
]
ReadFrom = Annotated[
    str, typer.Option("--read-from", help="Of brokers: master, slave or any.", metavar="WHICH")
]
Master = Annotated[str, typer.Option("--master", help="Spark's master.", metavar="URL")]
LOCAL = "local[*]"
OnDataLoss = Annotated[
    bool,
    typer.Option(
        "--fail-on-data-loss/--ignore-data-loss",
        help="Whether messages that are gone before they were read are an error.",
    ),
]
MaxBytes = Annotated[
    int, typer.Option("--max-task-bytes", min=1 << 16, help="Of frames that one task reads.")
]


@app.command()
def archive(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics to archive.")],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="The archive; made if need be.")],
    store: Store = None,
    broker_name: BrokerName = "store",
    trust_tail: TrustTail = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    read_from: ReadFrom = "master",
    columns: Annotated[
        str, typer.Option(help="With commas; without: the default ones and the properties.")
    ] = "",
    compression: Annotated[str, typer.Option(help="snappy, zstd, lz4, gzip or none.")] = "snappy",
    mode: Annotated[str, typer.Option(help="Of damaged messages: FAILFAST, DROPMALFORMED.")] = (
        "FAILFAST"
    ),
    fail_on_data_loss: OnDataLoss = True,
    durable: Annotated[
        bool, typer.Option("--sync/--no-sync", help="Whether it outlives a power cut.")
    ] = True,
    max_bytes: MaxBytes = 128 << 20,
    follow: Annotated[
        float | None,
        typer.Option(
            "--follow",
            min=1,
            max=FOLLOW_MAX_S,
            metavar="SECONDS",
            help="Go on, a run every so often.",
        ),
    ] = None,
    spark_sink: Annotated[
        bool, typer.Option("--spark-sink", help="Through Spark's own file sink; hdfs:, s3a: do so.")
    ] = False,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Add to an archive in Parquet what the topics have and it does not, each message once.

    By topic and hour of store time. May be killed and started again; read it with
    saturnmq.pipeline.jobs.archive.read_archive, or as the files that its _manifest lists.
    """
    where = _where(store, broker_name, trust_tail, nameserver, read_from)
    _check_installed()
    from saturnmq.pipeline.columns import select
    from saturnmq.pipeline.jobs.archive import archive as job
    from saturnmq.pipeline.jobs.archive import archive_by_spark, check_options
    from saturnmq.pipeline.jobs.manifest import is_local

    # before Spark takes its time to start
    check_options(compression, mode)
    by_spark = spark_sink or not is_local(to)
    if is_local(to):
        _local(to)
    names = [name.strip() for name in columns.split(",") if name.strip()] or None
    select(names)
    with _session("archive", master) as spark:
        options: dict[str, Any] = {
            "columns": names,
            "compression": compression,
            "mode": mode,
            "fail_on_data_loss": fail_on_data_loss,
            "max_bytes": max_bytes,
        }
        while True:
            begin = time.monotonic()
            if by_spark:
                done = archive_by_spark(spark, where, topics, to, **options)
            else:
                with bytes_bar(f"archiving to {to}") as show:
                    done = job(spark, where, topics, to, durable=durable, progress=show, **options)
            _print_archived(done, time.monotonic() - begin, as_json)
            if follow is None:
                return
            time.sleep(max(0.0, begin + follow - time.monotonic()))


def _print_archived(done: Archived, seconds: float, as_json: bool) -> None:
    if as_json:
        ranges = [[*queue, first, end] for queue, (first, end) in sorted(done.ranges.items())]
        emit(asdict(done) | {"ranges": ranges, "seconds": round(seconds, 2)})
        return
    if not done.messages and not done.not_there:
        print(f"{done.path}: nothing new")
        return
    rate = f"{done.messages:,} messages in {seconds:,.1f} s ({done.messages / seconds:,.0f}/s)"
    files = f", {done.files:,} files, {done.bytes / MIB:,.1f} MiB" if done.files else ""
    print(f"{done.path}: {rate}{files}")
    if done.not_there:
        print(f"{done.not_there:,} messages are not in it: they were lost or damaged")


@app.command()
def replay(
    path: Annotated[str, typer.Argument(metavar="PATH", help="An archive, or other Parquet.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Where the messages go.")],
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    from_topic: Annotated[
        str | None, typer.Option("--from-topic", help="Of an archive of several topics: which.")
    ] = None,
    queues: Annotated[
        str,
        typer.Option(help="sharding (by sharding key), keep (the queues they were in) or any."),
    ] = "sharding",
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="The same as --queues keep.")
    ] = False,
    rate: Annotated[
        float, typer.Option(min=0, help="Messages a second at most; 0: no limit.")
    ] = 0.0,
    write_id: Annotated[
        str | None, typer.Option("--write-id", help="Replay under this name: as another write.")
    ] = None,
    compression: Annotated[
        str, typer.Option(help="Of bodies from 4 KiB on: none, lz4, zstd or zlib.")
    ] = "none",
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Send Parquet to a topic, each row once: what an earlier replay sent is not sent again.

    Keeps keys, tags, properties and the order of each queue.
    """
    _check_installed()
    from saturnmq.pipeline.jobs.replay import check_options
    from saturnmq.pipeline.jobs.replay import replay as job
    from saturnmq.pipeline.sink_options import OPTIONS

    OPTIONS["compression"].read("compression", compression)
    queues = "keep" if keep_queues else queues
    check_options(queues, rate)
    _local(path)
    endpoints = ",".join(addresses(nameserver, refuse))
    with _session("replay", master) as spark:
        begin = time.monotonic()
        with late_bar(f"replaying {path}, messages") as show:
            done = job(
                spark,
                path,
                topic,
                endpoints,
                source_topic=from_topic,
                queues=queues,
                rate=rate,
                write_id=write_id,
                options={"compression": compression},
                progress=show,
            )
        seconds = time.monotonic() - begin
    if as_json:
        emit(asdict(done) | {"seconds": round(seconds, 2)})
        return
    print(
        f"{done.new:,} of {done.messages:,} messages were new in {done.topic} "
        f"({seconds:,.1f} s, {done.steps:,} steps, {done.skipped:,} done before)"
    )


@app.command()
def audit(
    store: Store = None,
    archive: Annotated[
        str | None, typer.Option("--archive", metavar="PATH", help="Compare with this archive.")
    ] = None,
    broker_name: BrokerName = "store",
    trust_tail: TrustTail = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    read_from: ReadFrom = "master",
    allow_repeated: Annotated[
        bool, typer.Option("--allow-repeated", help="Ids that come twice are no damage.")
    ] = False,
    segment_bytes: SegmentBytes = 0,
    queue_file_bytes: QueueFileBytes = 0,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Check a store against itself, and a store or a cluster against an archive.

    Every frame's checksums and place, every queue entry, queue offsets without holes, ids that come
    twice; with --archive, all files of the archive, and counts and checksums of each queue and
    hour. Exit status 1 if anything is damaged.
    """
    if store is None and archive is None:
        refuse("pass --store DIR to check its files, --archive PATH to compare with it, or both")
    sizes = sizes_of(segment_bytes, queue_file_bytes, 0, 0)
    where = _where(store, broker_name, trust_tail, nameserver, read_from, sizes)
    if archive is not None:
        _local(archive)
    with _session("audit", master) as spark:
        from saturnmq.pipeline.jobs.audit import audit as job

        begin = time.monotonic()
        with bytes_bar(f"auditing {store or nameserver}") as show:
            found = job(
                spark, where, archive, sizes=sizes, allow_repeated=allow_repeated, progress=show
            )
        seconds = time.monotonic() - begin
    if as_json:
        document = asdict(found) | {"sound": found.sound, "seconds": round(seconds, 2)}
        document["digests"] = found.totals()
        emit(document)
    else:
        _print_audited(found, seconds)
    raise typer.Exit(0 if found.sound else 1)


def _print_audited(found: Audited, seconds: float) -> None:
    columns = ["topic", "broker", "queue", "hour", "messages", "checksum"]
    table("", columns, [list(row.values()) for row in found.totals()])
    rate = found.messages / max(seconds, 1e-6)
    print(
        f"{found.place}: {found.messages:,} messages in {found.queues:,} queues, "
        f"{seconds:,.1f} s ({rate:,.0f}/s)"
    )
    if found.archive:
        print(f"{found.archive}: {found.archived:,} messages that both should hold")
    for finding in found.notes:
        print(f"note    {finding_line(finding)}")
    for finding in found.damage:
        print(f"DAMAGE  {finding_line(finding)}")
    print("sound" if found.sound else f"damaged: {len(found.damage):,} findings")


@app.command()
def rebuild(
    store: Annotated[str, typer.Option("--store", metavar="DIR", help="The store; only read.")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="An empty directory.")],
    segment_bytes: SegmentBytes = 0,
    queue_file_bytes: QueueFileBytes = 0,
    index_slots: IndexSlots = 0,
    index_items: IndexItems = 0,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Build ConsumeQueues and IndexFiles from a CommitLog, in another directory.

    The same files, byte for byte, as `saturnmq store rebuild` makes in place. To use them, put them
    into the store of a stopped broker instead of its own consumequeue and index.
    """
    sizes = sizes_of(segment_bytes, queue_file_bytes, index_slots, index_items)
    _check_store(store, sizes)
    _local(to)
    with _session("rebuild", master) as spark:
        from saturnmq.pipeline.jobs.rebuild import rebuild as job

        begin = time.monotonic()
        with bytes_bar(f"rebuilding {store}") as show:
            built = job(spark, store, to, sizes, progress=show)
        seconds = max(time.monotonic() - begin, 1e-6)
    if as_json:
        emit(asdict(built) | {"seconds": round(seconds, 2)})
        return
    size = built.log_end - built.log_start
    print(
        f"{to}: {built.messages:,} messages in {seconds:,.1f} s "
        f"({built.messages / seconds:,.0f}/s, {size / seconds / MIB:,.0f} MiB/s), "
        f"{built.queues:,} queues, {built.index_items:,} index items"
    )
    for gap in built.gaps:
        print(f"skipped {gap.end - gap.start:,} bytes of the log at {gap.start:,}: {gap.why}")
    if built.stopped_by:
        print(f"the log ends at {built.log_end:,}: {built.stopped_by}")


@app.command()
def report(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC...]", help="Without: all.")
    ] = None,
    to: Annotated[
        str, typer.Option("--to", metavar="NAME", help="Writes NAME.html and NAME.json.")
    ] = "usage",
    store: Store = None,
    broker_name: BrokerName = "store",
    trust_tail: TrustTail = False,
    nameserver: Nameserver = DEFAULT_NAMESERVER,
    read_from: ReadFrom = "master",
    since: Annotated[
        datetime | None, typer.Option(help="Messages stored from this time (UTC) on.")
    ] = None,
    earlier: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="JSON of an earlier report: tells how lags change."),
    ] = None,
    master: Master = LOCAL,
    as_json: AsJson = False,
) -> None:
    """Show the use of topics, on a page of HTML and as JSON: rates, sizes, delays, keys, lags."""
    where = _where(store, broker_name, trust_tail, nameserver, read_from)
    since_ms = None if since is None else int(since.replace(tzinfo=UTC).timestamp() * 1000)
    _check_installed()
    from saturnmq.pipeline.jobs.report import report as job
    from saturnmq.pipeline.jobs.report import report_paths, write_report

    report_paths(to)
    with (
        _session("report", master) as spark,
        bytes_bar(f"reading {store or nameserver}") as show,
    ):
        found = job(spark, where, topics, since_ms=since_ms, earlier=earlier, progress=show)
    html, document = write_report(found, to)
    if as_json:
        emit(found.to_json())
        return
    rate = found.messages / max(found.seconds, 1e-6)
    print(
        f"{found.messages:,} messages in {len(found.topics):,} topics, {found.seconds:,.1f} s "
        f"({rate:,.0f}/s): {html}, {document}"
    )
    if found.missing:
        print(f"{found.missing:,} messages could not be read: `saturnmq pipeline audit` says why")


def _where(
    store: str | None,
    broker_name: str,
    trust_tail: bool,
    nameserver: str,
    read_from: str,
    sizes: Sizes | None = None,
) -> Where:
    from saturnmq.pipeline.access import ANY, MASTER, SLAVE, Where
    from saturnmq.runtime.errors import nearest

    if store is not None:
        _check_store(store, sizes)
        return Where.store(store, broker_name=broker_name, trust_tail=trust_tail)
    if read_from not in (MASTER, SLAVE, ANY):
        refuse(f"--read-from wants master, slave or any{nearest(read_from, (MASTER, SLAVE, ANY))}")
    return Where.brokers(addresses(nameserver, refuse), read_from=read_from)


def _check_store(store: str, sizes: Sizes | None) -> None:
    """See that it is a store before Spark takes its time to start."""
    from saturnmq.pipeline.access import named_path
    from saturnmq.runtime.errors import StoreDamaged
    from saturnmq.store.disk import NativeDisk
    from saturnmq.store.inspect.verify import UNKNOWN, open_log

    try:
        open_log(NativeDisk(), named_path(store), sizes or UNKNOWN).close()
    except StoreDamaged as problem:
        refuse(str(problem))


def _local(path: str) -> None:
    """See that it is a path on this machine, likewise."""
    _check_installed()
    from saturnmq.pipeline.jobs.manifest import local

    local(path)


def _check_installed() -> None:
    from saturnmq.pipeline.session import check_installed

    check_installed()


@contextlib.contextmanager
def _session(job: str, master: str) -> Iterator[Any]:
    """Spark, for as long as the job takes."""
    from saturnmq.pipeline.session import spark_session

    spark = spark_session(f"saturnmq pipeline {job}", master)
    from py4j.protocol import Py4JError

    try:
        yield spark
    finally:
        # A signal to all processes of a service has ended the JVM, too: nothing is left to stop.
        with contextlib.suppress(OSError, Py4JError):
            spark.stop()


app.command("demo")(pipeline_demo.demo)

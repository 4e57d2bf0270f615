"""Topics to Parquet files, exactly once: each message that has been archived lies in one file, a
run that is killed leaves nothing, and the next one goes on where the last one ended.

`archive` is the fast path: tasks read ranges of queues, decode them and write Parquet with Arrow;
rows do not enter the JVM. `manifest.py` makes it exactly-once. It needs a directory that
driver and workers all have: a local disk, NFS. `archive_by_spark` is for everything else that Spark
can write to (hdfs:, s3a:): a streaming query that ends when all is read, into Spark's own file
sink, whose log in `_spark_metadata` does what our manifests do.

Files are partitioned by topic and by the hour in which the broker stored the message, UTC.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from saturnmq.pipeline.access import FAILFAST, STORE_BROKER, Access, DataLoss, Decoding, Where
from saturnmq.pipeline.columns import DEFAULT, PROPERTIES, Columns, select
from saturnmq.pipeline.jobs.checksums import crc_of_last, footer_bytes
from saturnmq.pipeline.jobs.digest import store_hours
from saturnmq.pipeline.jobs.direct_file import DirectFile
from saturnmq.pipeline.jobs.manifest import (
    NEEDED,
    Archive,
    DataFile,
    Manifest,
    Ranges,
    hour_name,
    is_local,
    reached,
)
from saturnmq.pipeline.jobs.tasks import Progress, attempt_name, plain_errors, run
from saturnmq.pipeline.option_values import read_topic
from saturnmq.pipeline.options import place_options
from saturnmq.pipeline.places import open_access
from saturnmq.pipeline.plan import MAX_BYTES, Range, ReadPlan, pack
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConfigError, nearest

log = logging.getLogger(__name__)

COMPRESSIONS = ("snappy", "zstd", "lz4", "gzip", "none")
HOUR = "hour"
_ROW_GROUP_BYTES = 32 << 20  # of frames
_OPEN_FILES = 64  # of a task: small topics have many hours and queues in one
# Columns whose values repeat within a file. The others are written without looking for repeats.
_REPEATING = ["topic", "brokerName", "queueId", "tags", "bornHost", "storeHost"]
_REPEATING += ["flag", "sysFlag", "reconsumeTimes", f"{PROPERTIES}.key_value.key"]
_MEASURED = ["queueOffset", "storeTimestamp", "bornTimestamp"]  # have statistics to skip by
_VERIFY_PAGES = "parquet.page.verify-checksum.enabled"  # of Spark's reader
_CHECKPOINT = "_checkpoint"  # of the plain path, in the archive


@dataclass(frozen=True, slots=True)
class Archived:
    """The files that one run added; number 0 if there was nothing new."""

    path: str
    number: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0
    not_there: int = 0  # messages that were to be read, and were lost or damaged
    ranges: Ranges = field(default_factory=dict)


def archive(
    spark: Any,
    where: Where,
    topics: Sequence[str],
    to: str,
    *,
    columns: Sequence[str] | None = None,
    compression: str = "snappy",
    mode: str = FAILFAST,
    fail_on_data_loss: bool = True,
    durable: bool = True,
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Archived:
    """Add what the topics hold now and the archive at `to` does not. `progress` counts bytes.

    `columns`: by default those that the archive has, in a new one the default ones and the
    properties. `mode` FAILFAST or DROPMALFORMED. With `durable` a run that ended survives a power
    cut. `max_bytes`: of frames that one task reads at most.

    ConfigError for what makes no sense, as an archive of Spark's file sink at `to`, ArchiveChanged
    when another run was faster, DataLoss when messages are gone that the archive should have got
    (unless `fail_on_data_loss` is off).
    """
    kept = Archive(to)
    check_options(compression, mode)
    if kept.is_of_spark:
        raise ConfigError(
            f"give another directory, or --spark-sink: {to} holds an archive of Spark's file sink"
        )
    with kept.run() as attempt:
        manifests = kept.manifests()
        chosen = _columns(columns, manifests, to)
        _check_name(where, manifests, to)
        with open_access(where) as access:
            ends = {
                queue: end
                for queue, end in reached(manifests).items()
                if queue.topic in topics
                and (not where.path or queue.broker_name == where.broker_name)
            }
            # Of a cluster a topic that was archived is away, or gone: that is for failOnDataLoss.
            before = {queue.topic for queue in ends if not where.path}
            new = [name for name in topics if name not in before]
            if new or not topics:
                known_topics(access, new)
            retries = where.retries if fail_on_data_loss and not where.path else 0
            bounds = _bounds(access, where, set(topics), ends, retries)
            wanted = _new(access, where, bounds, ends, fail_on_data_loss)
            parts = _parts(spark, access, wanted, max_bytes)
        if not wanted:
            return Archived(kept.path)
        work = partial(
            _archive_part,
            where=where,
            # a file outlives the log: what is wrong in it could not be mended any more
            decoding=Decoding(chosen, mode=mode, verify=True, fail_on_data_loss=fail_on_data_loss),
            directory=attempt.directory,
            compression=compression,
            durable=durable,
        )
        weights = [sum(piece.bytes for piece in part) for part in parts]
        found = run(spark, work, parts, weights, progress)
        ranges = {each.queue: (each.start, each.end) for each in wanted}
        written = [file for files in found for file in files]
        number = len(manifests) + 1
        manifest = attempt.commit(number, chosen.names, ranges, written, durable=durable)
    planned = sum(each.rows for each in wanted)
    return Archived(
        kept.path,
        number,
        manifest.rows,
        len(manifest.files),
        sum(file.bytes for file in manifest.files),
        planned - manifest.rows,
        ranges,
    )


def read_archive(spark: Any, path: str) -> Any:
    """A DataFrame of what an archive holds: its columns and `hour`, the partition (STRING, such as
    2026-11-21-13). Of a fast archive only what its manifests list.

    StoreDamaged if one of those files is missing or has another size than its manifest says.
    ConfigError if there is no archive, or one of each kind.
    """
    from pyspark.sql.types import StringType, StructField

    if not is_local(path):
        return _read_spark_archive(spark, path)
    kept = Archive(path)
    if kept.is_of_spark and not kept.manifests():
        return _read_spark_archive(spark, path)
    manifests = kept.existing()
    schema = select(manifests[-1].columns).spark_schema()
    schema.fields.append(StructField(HOUR, StringType()))
    schema.names.append(HOUR)
    # Spark gives fewer rows of a file that is empty, or of a directory, and says nothing.
    files = [_literal(kept.check(file)) for each in manifests for file in each.files]
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", kept.path).option(_VERIFY_PAGES, "true")
    found = reader.parquet(*files)
    return found.select(schema.names)  # Spark puts the columns of partitions last


def _literal(path: str) -> str:
    """A path for Spark, which takes those that it reads for patterns."""
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", path)


def _read_spark_archive(spark: Any, path: str) -> Any:
    from pyspark.sql.types import StringType, StructField, StructType

    # Spark would guess the types of the directories: a topic 0123 would be the number 123.
    texts = {name: StructField(name, StringType()) for name in ("topic", HOUR)}
    guessed = spark.read.parquet(path).schema
    schema = StructType([texts.get(each.name, each) for each in guessed])
    return spark.read.schema(schema).parquet(path)


# -- the plan -------------------------------------------------------------------------------------


def check_options(compression: str, mode: str) -> None:
    """ConfigError names the one that is wrong."""
    if compression not in COMPRESSIONS:
        hint = nearest(compression, COMPRESSIONS)
        raise ConfigError(
            f"take compression {', '.join(COMPRESSIONS)}: {compression!r} is none of them{hint}"
        )
    if mode not in (FAILFAST, "DROPMALFORMED"):
        raise ConfigError(
            f"take mode FAILFAST or DROPMALFORMED: {mode!r} would make rows that belong to no hour"
        )


def _columns(names: Sequence[str] | None, manifests: Sequence[Manifest], to: str) -> Columns:
    before = manifests[-1].columns if manifests else None
    if names is None:
        return select(before or (*DEFAULT, PROPERTIES))
    chosen = select(names)
    if missing := [name for name in NEEDED if name not in chosen]:
        raise ConfigError(
            f"add columns {', '.join(missing)}: an archive is arranged by {', '.join(NEEDED)}"
        )
    if before is not None and chosen.names != before:
        raise ConfigError(
            f"archive these columns to another directory: that at {to} has {', '.join(before)}"
        )
    return chosen


def _check_name(where: Where, manifests: Sequence[Manifest], to: str) -> None:
    """A store does not know its broker's name, and must not pass for another broker's."""
    names = brokers_of(manifests)
    if where.path and where.broker_name == STORE_BROKER and names and STORE_BROKER not in names:
        raise ConfigError(
            f"say what the broker of {where.path} is called (brokerName, --broker-name): the "
            f"archive at {to} has messages of {', '.join(sorted(names))}"
        )


def brokers_of(manifests: Sequence[Manifest]) -> set[str]:
    """The names of the brokers whose messages an archive has."""
    return {queue.broker_name for each in manifests for queue in each.ranges}


def known_topics(access: Access, topics: Sequence[str]) -> list[str]:
    """`topics` without repetition; ConfigError for one that does not exist, or none."""
    known = access.topics()
    if not topics:
        raise ConfigError(f"name a topic; there are {', '.join(known) or 'none'}")
    for topic in topics:
        if topic not in known and not access.queues(read_topic("TOPIC", topic)):
            hint = nearest(topic, known) or f"; there are {', '.join(known) or 'none'}"
            raise ConfigError(f"there is no topic {topic!r}{hint}")
    return list(dict.fromkeys(topics))


def _bounds(
    access: Access,
    where: Where,
    topics: set[str],
    ends: dict[MessageQueue, int],
    retries: int,
) -> dict[MessageQueue, tuple[int, int]]:
    """The bounds of all queues. A cluster is asked again while a queue does not reach its end in
    the archive: its broker starts again, or a slave that is behind stands in."""
    for _ in range(retries):
        found = access.bounds(topics, ends)
        if all(queue in found and found[queue][1] >= end for queue, end in ends.items()):
            return found
        time.sleep(where.retry_interval_ms / 1000)
    return access.bounds(topics, ends)


def _new(
    access: Access,
    where: Where,
    bounds: dict[MessageQueue, tuple[int, int]],
    ends: dict[MessageQueue, int],
    fail: bool,
) -> list[Range]:
    """The messages that are not yet archived. An empty range is of a queue that has lost its end:
    there the next run goes on, for new messages get the offsets of those that were lost. A store
    that ends early may be that of a slave that was behind."""
    found = []
    for queue in sorted(set(ends) - set(bounds)):
        name = f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
        _tell(fail, f"{name} is gone, of which the archive has the messages up to {ends[queue]}")
    for queue, (low, high) in sorted(bounds.items()):
        start = ends.get(queue, low)
        name = f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
        if start < low:
            _tell(
                fail, f"messages {start} to {low} of {name} were deleted before they were archived"
            )
        elif start > high:
            _tell(
                fail, f"{name} ends at {high}, the archive has it up to {start}: was it truncated?"
            )
            in_log = None if where.path else access.end_in_log(queue)
            if in_log is not None and in_log < start:
                found.append(Range(*queue, high, high))
        if max(start, low) < high:
            found.append(Range(*queue, max(start, low), high))
    return found


def _tell(fail: bool, what: str) -> None:
    if fail:
        raise DataLoss(f"{what}; turn failOnDataLoss off to go on without them")
    log.warning("data loss: %s", what)


def _parts(
    spark: Any, access: Access, wanted: Sequence[Range], max_bytes: int
) -> list[list[Range]]:
    rows = sum(each.rows for each in wanted)
    plan = ReadPlan(parts=workers(spark), max_bytes=max_bytes)
    return pack(access.cuts(wanted, *plan.grain(rows)), plan)


def workers(spark: Any) -> int:
    """The number of tasks that run at once."""
    return 1 if spark is None else int(spark.sparkContext.defaultParallelism)


# -- tasks ----------------------------------------------------------------------------------------


def _archive_part(
    part: Sequence[Range],
    *,
    where: Where,
    decoding: Decoding,
    directory: str,
    compression: str,
    durable: bool,
) -> list[DataFile]:
    """Write the messages of some ranges; the files' paths are below `directory`."""
    group_rows = _group_rows(part)
    open_files: dict[tuple[MessageQueue, int], _File] = {}
    finished: list[DataFile] = []
    attempt = attempt_name()
    schema = decoding.columns.arrow_schema()
    with open_access(where) as access, ThreadPoolExecutor(1) as writer:
        try:
            for piece in part:
                for batch in access.batches([piece], decoding):
                    for hour, rows in _by_hour(batch):
                        file = open_files.get((piece.queue, hour))
                        if file is None:
                            if len(open_files) == _OPEN_FILES:  # queues and hours come in turn
                                oldest = next(iter(open_files))
                                finished.append(open_files[oldest].finish())
                                del open_files[oldest]
                            name = f"{attempt}-{len(finished) + len(open_files)}.parquet"
                            path = os.path.join(directory, name)
                            sink = DirectFile(path, writer, durable=durable)
                            file = _File(path, sink, piece.queue, hour, schema, compression)
                            open_files[piece.queue, hour] = file
                        file.write(rows, group_rows)
            return finished + [file.finish() for file in open_files.values()]
        finally:
            for file in open_files.values():
                file.abandon()


def _group_rows(part: Sequence[Range]) -> int:
    rows, size = sum(piece.rows for piece in part), sum(piece.bytes for piece in part)
    return max(1024, rows * _ROW_GROUP_BYTES // max(size, 1))


def _by_hour(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each hour, in their order."""
    hours = store_hours(batch)
    if not len(hours):
        return
    if hours.min() == hours.max():
        yield int(hours[0]), batch
        return
    for hour in np.unique(hours).tolist():
        yield hour, batch.filter(pa.array(hours == hour))


class _File:
    """A Parquet file that is being written."""

    def __init__(
        self,
        path: str,
        sink: DirectFile,
        queue: MessageQueue,
        hour: int,
        schema: pa.Schema,
        compression: str,
    ) -> None:
        self._path = path
        self._sink = sink
        self._queue = queue
        self._hour = hour
        self._rows = 0
        self._first = 1 << 62
        self._end = 0
        self._writer = pq.ParquetWriter(
            sink,
            schema,
            compression=compression,
            use_dictionary=_REPEATING,
            write_statistics=_MEASURED,
            write_page_checksum=True,
        )

    def write(self, batch: pa.RecordBatch, group_rows: int) -> None:
        offsets = batch.column("queueOffset")
        self._first = min(self._first, offsets[0].as_py())
        self._end = max(self._end, offsets[-1].as_py() + 1)
        self._rows += batch.num_rows
        self._writer.write_batch(batch, group_rows)

    def abandon(self) -> None:
        """Leave it as it is, unless it is finished."""
        self._sink.abandon()

    def finish(self) -> DataFile:
        self._writer.close()
        self._sink.close()
        footer = footer_bytes(self._path)
        return DataFile(
            os.path.basename(self._path),
            *self._queue,
            hour_name(self._hour),
            self._first,
            self._end,
            self._rows,
            self._sink.tell(),
            self._sink.crc,
            footer,
            crc_of_last(self._path, footer),
        )


# -- the plain path -------------------------------------------------------------------------------


def archive_by_spark(
    spark: Any,
    where: Where,
    topics: Sequence[str],
    to: str,
    *,
    columns: Sequence[str] | None = None,
    compression: str = "snappy",
    mode: str = FAILFAST,
    fail_on_data_loss: bool = True,
    max_bytes: int = MAX_BYTES,
) -> Archived:
    """Archive as `archive` does, to any file system that Spark can write to; the checkpoint lies in
    `to` as well."""
    from pyspark.sql import functions as f

    check_options(compression, mode)
    if is_local(to) and Archive(to).manifests():
        raise ConfigError(
            f"give another directory, or leave out --spark-sink: {to} holds an archive that was "
            "written without"
        )
    chosen = _columns(columns or (*DEFAULT, PROPERTIES), (), to)
    source = (
        spark.readStream.format("saturnmq")
        .options(**place_options(where))
        .options(
            subscribe=",".join(topics),
            startingOffsets="earliest",
            columns=",".join(chosen.names),
            mode=mode,
            verify="true",
            failOnDataLoss=str(fail_on_data_loss).lower(),
            maxBytesPerPartition=str(max_bytes),
        )
    )
    # In numbers: the wall clock of the session's time zone has not every hour of UTC.
    hours = f.floor(f.unix_seconds("storeTimestamp") / 3600)
    day = f.date_add(f.lit("1970-01-01").cast("date"), f.floor(hours / 24).cast("int"))
    of_day = f.lpad(f.pmod(hours, f.lit(24)).cast("string"), 2, "0")
    rows = source.load().withColumn(HOUR, f.concat_ws("-", day.cast("string"), of_day))
    with plain_errors():
        query = (
            rows.writeStream.format("parquet")
            .partitionBy("topic", HOUR)
            .option("compression", compression)
            .option("checkpointLocation", os.path.join(to, _CHECKPOINT))
            .trigger(availableNow=True)
            .start(to)
        )
        query.awaitTermination()
    count = sum(int(each["numInputRows"]) for each in query.recentProgress)
    return Archived(to, messages=count)

"""Parquet back into a topic, exactly once: a second run adds nothing, and one that was killed is
finished by the next.

The sink knows a group of messages by (write, epoch, partition), so all three must be the same every
time. The write is the source's own identity and how it is sent; the steps of its plan
(`replay_plan.py`) are the epochs, one after the other, so that the messages of a queue arrive in
their order. An archive that has grown since the last replay adds what is new.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.encode_reference import RowIllegal
from saturnmq.pipeline.jobs.archive import known_topics, workers
from saturnmq.pipeline.jobs.replay_plan import ReplayPlan, Task, Together, plan
from saturnmq.pipeline.jobs.tasks import Progress, first_line, run
from saturnmq.pipeline.places import open_access
from saturnmq.protocol.properties import SHARDING_KEY
from saturnmq.runtime.errors import ConfigError, MessageIllegal, StoreDamaged, nearest

if TYPE_CHECKING:
    from saturnmq.pipeline.sink import BatchWriter
    from saturnmq.pipeline.sink_task import Written

SHARDING, KEEP, ANY = "sharding", "keep", "any"
QUEUES = (SHARDING, KEEP, ANY)
RATE_MIN, RATE_MAX = 0.01, 1_000_000_000  # below, one message would be waited for for minutes
_SELECTORS = {SHARDING: "shardingKey", KEEP: "column", ANY: "roundRobin"}
_SHARDING_COLUMN = "shardingKey"
_PLACE = ("topic", "brokerName", "queueId", "queueOffset")  # of the message that a row was
_ROWS = 16_384
_THROTTLE_S = 0.1  # how finely a rate is kept

_MAP = pa.map_(pa.string(), pa.string())
_TYPES: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "keys": pa.string(),
    "tags": pa.string(),
    "properties": _MAP,
    "flag": pa.int32(),
    "queueId": pa.int32(),
    "brokerName": pa.string(),
    _SHARDING_COLUMN: pa.string(),
}
"""The columns that are sent, where the files have them."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    topic: str
    write_id: str
    messages: int  # of the source; now they are in the topic
    new: int  # and were not there before
    steps: int
    skipped: int  # steps that an earlier run had finished


def replay(
    spark: Any,
    path: str,
    topic: str,
    nameservers: str,
    *,
    source_topic: str | None = None,
    queues: str = SHARDING,
    rate: float = 0.0,
    write_id: str | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Replayed:
    """Send what the archive or the Parquet at `path` has to `topic`, which must exist.

    Of an archive of several topics `source_topic` says which. `queues`: `sharding` (a message with
    a sharding key goes to that key's queue, others to any), `keep` (the queue of its old number,
    where the brokers are called the same that of its old broker), `any`. `rate`: messages a second
    at most, 0: no limit. `write_id`: a name for a write of its own. `options`: more of the sink's.
    `progress` counts messages.
    """
    check_options(queues, rate)
    source = plan(path, source_topic)
    columns = _columns(source, queues, path)
    with open_access(Where.brokers(nameservers)) as access:
        known_topics(access, [topic])
        brokers = {queue.broker_name for queue in access.queues(topic)}
    if len(brokers) == 1:  # whatever the old one was called
        columns = tuple(name for name in columns if name != "brokerName")
    selector = ANY if queues == SHARDING and _SHARDING_COLUMN not in columns else queues
    name = write_id or _write_id(source, queues)
    given = {
        **(options or {}),
        "endpoints": nameservers,
        "topic": topic,
        "delivery": "exactly-once",
        "writeId": name,
        "queueSelector": _SELECTORS[selector],
    }
    return _Replay(spark, source, columns, given, rate).run(progress)


def check_options(queues: str, rate: float) -> None:
    """ConfigError names the one that is wrong."""
    if queues not in QUEUES:
        hint = nearest(queues, QUEUES)
        raise ConfigError(f"send to queues {', '.join(QUEUES)}: {queues!r} is none of them{hint}")
    if rate and not RATE_MIN <= rate <= RATE_MAX:
        raise ConfigError(
            f"send {RATE_MIN} to {RATE_MAX:,} messages a second, or 0 for no limit, not {rate}"
        )


def _columns(source: ReplayPlan, queues: str, path: str) -> tuple[str, ...]:
    has = source.columns
    if "body" not in has:
        raise ConfigError(f"name a column 'body' at {path}: it has {', '.join(has)}")
    if queues == KEEP and "queueId" not in has:
        raise ConfigError(f"keep no queues, or add a column 'queueId' at {path}: it has none")
    wanted: list[str] = [
        name for name in ("body", "keys", "tags", "properties", "flag") if name in has
    ]
    if queues == KEEP:
        wanted += [name for name in ("queueId", "brokerName") if name in has]
    elif queues == SHARDING and (_SHARDING_COLUMN in has or "properties" in has):
        wanted.append(_SHARDING_COLUMN)
    for name in wanted:
        if name in has and not _fits(has[name], _TYPES[name]):
            raise ConfigError(
                f"column {name!r} at {path} is {has[name]}: make it {_TYPES[name]}, or drop it"
            )
    return tuple(wanted)


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(found) and found.key_type == found.item_type == pa.string())
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(found))
    texts = [pa.string(), pa.large_string()]
    return found in (texts + [pa.binary(), pa.large_binary()] * (wanted == pa.binary()))


def _write_id(source: ReplayPlan, queues: str) -> str:
    text = f"{source.identity} {queues}"
    return f"replay-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"


class _Replay:
    """One replay: a writer of the sink for each step."""

    def __init__(
        self,
        spark: Any,
        source: ReplayPlan,
        columns: tuple[str, ...],
        given: Mapping[str, str],
        rate: float,
    ) -> None:
        self._spark = spark
        self._source = source
        self._columns = columns
        self._given = given
        self._rate = rate

    def run(self, progress: Progress | None) -> Replayed:
        steps, total = self._source.steps, self._source.rows
        finished = self._writer(0).finished
        new = done = 0
        for epoch, step in enumerate(steps):
            rows = sum(task.rows for task in step)
            if epoch > finished:
                told = partial(_tell, progress, done, total) if progress else None
                new += self._step(epoch, step, told)
            done += rows
        skipped = min(finished + 1, len(steps))
        topic, name = self._given["topic"], self._given["writeId"]
        return Replayed(topic, name, total, new, len(steps), skipped)

    def _step(self, epoch: int, step: Sequence[Task], progress: Progress | None) -> int:
        writer = self._writer(epoch)
        rate = self._rate / max(1, min(len(step), workers(self._spark)))
        work = partial(_send, writer=writer, columns=self._columns, rate=rate)
        try:
            written = run(self._spark, work, step, [task.rows for task in step], progress)
        except BaseException:
            writer.abort([])
            raise
        writer.commit(list(written))
        return sum(each.new for each in written)

    def _writer(self, epoch: int) -> BatchWriter:
        from pyspark.sql.types import StructType
        from saturnmq.pipeline.sink import batch_writer

        schema = StructType()
        for name in self._columns:
            schema.add(name, _spark_type(_TYPES[name]))
        return batch_writer(self._given, schema, False, epoch)


def _spark_type(kind: pa.DataType) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind)


def _tell(progress: Progress, before: int, total: int, done: int, _: int) -> None:
    progress(before + done, total)


# -- tasks ----------------------------------------------------------------------------------------


def _send(task: Task, *, writer: BatchWriter, columns: tuple[str, ...], rate: float) -> Written:
    names = tuple(dict.fromkeys((*columns, *_PLACE)))
    batches = (batch for part in task.parts for batch in _read(part, names))
    last: list[pa.RecordBatch] = []  # that was given to the writer

    def given() -> Iterator[pa.RecordBatch]:
        for batch in _throttled(batches, rate) if rate else batches:
            last[:] = [batch]
            yield _as_rows(batch, columns)

    try:
        return writer.write(given())
    except RowIllegal as error:
        place = _place(last[0], error.row)
        if not place:
            raise
        raise MessageIllegal(f"the message of {place} {error.why}") from None


def _place(batch: pa.RecordBatch, row: int) -> str:
    """Where the message of a row was, if its file says so."""
    names = [name for name in _PLACE if name in batch.schema.names]
    return ", ".join(f"{name} {batch.column(name)[row].as_py()}" for name in names)


def _read(part: Together, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of pieces in their order."""
    if len(part) == 1:
        yield from _of_piece(part[0], columns)
        return
    batches = [batch for piece in part for batch in _of_piece(piece, columns)]
    yield from pa.Table.from_batches(batches).sort_by("queueOffset").to_batches(_ROWS)


def _of_piece(piece: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(piece.path, page_checksum_verification=True) as file:
            names = [name for name in columns if name in file.schema_arrow.names]
            if _SHARDING_COLUMN in columns and _SHARDING_COLUMN not in names:
                names = list(dict.fromkeys([*names, "properties"]))
            groups = list(range(piece.first, piece.end))
            yield from file.iter_batches(_ROWS, row_groups=groups, columns=names)
    except (pa.ArrowException, OSError) as error:
        raise StoreDamaged(f"{piece.path} cannot be read: {first_line(error)}") from error


def _as_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The columns as the sink takes them."""
    arrays = []
    for name in columns:
        if name in batch.schema.names:
            array = batch.column(name)
        else:
            array = pc.map_lookup(batch.column("properties"), SHARDING_KEY, "last")
        if not pa.types.is_map(array.type):
            array = array.cast(_TYPES[name])
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _throttled(batches: Iterator[pa.RecordBatch], rate: float) -> Iterator[pa.RecordBatch]:
    """No more than `rate` rows a second, counted from the first."""
    most = max(1, int(rate * _THROTTLE_S))
    begin, sent = time.monotonic(), 0
    for batch in batches:
        for at in range(0, batch.num_rows, most):
            rows = batch.slice(at, most)
            time.sleep(max(0.0, begin + sent / rate - time.monotonic()))
            yield rows
            sent += rows.num_rows

"""`df.write.format("saturnmq")` and `df.writeStream.format("saturnmq")`: rows become messages.

On the driver the columns and options are checked; in each task a `Chunker` makes chunks of the
Arrow batches, and they are sent (sending.py, at least once) or staged and published (staged.py,
exactly once). What identifies a task's rows, whatever attempt it is:

| | sink | epoch | partition |
|---|---|---|---|
| batch | option `writeId`, else one of this write; the topic | 0, or a job's step | TaskContext |
| stream | the query's id, which its checkpoint keeps; the topic | batch id | TaskContext |

At least once the three are in the messages' UNIQ_KEY, followed by the row's number, so that a
repeated attempt of the same rows in the same order gives the same ids. Exactly once they are the
marker that the broker knows a published group by.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from saturnmq.client.staging import Pinned, StagingClient
from saturnmq.pipeline.chunking import Chunk, Chunker, id_prefix
from saturnmq.pipeline.selecting import Layout, Selector
from saturnmq.pipeline.sending import Kept, ProducerKey, Sending, producers
from saturnmq.pipeline.sink_options import SinkOptions, check_columns, parse, selector_for
from saturnmq.pipeline.staged import Staging
from saturnmq.protocol.errors import ConfigError

QUERY_ID = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"
BATCH_EPOCH = 0


class Identity(NamedTuple):
    """Of the rows of one task."""

    sink: str
    epoch: int
    partition: int


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task did."""

    rows: int = 0
    new: int = 0
    """Rows that were not there already. Exactly once it is less than `rows` after a repetition, be
    it only that of a request whose answer was lost."""
    bytes: int = 0
    chunks: int = 0
    pinned: Pinned | None = None


class StagingKey(NamedTuple):
    """What a StagingClient is made of; it is for one thread."""

    endpoints: str
    retry_timeout_ms: int
    thread: int


staging_clients: Kept[StagingKey, StagingClient] = Kept(
    lambda key: StagingClient(key.endpoints, retry_s=key.retry_timeout_ms / 1000),
    StagingClient.close,
)


def batch_writer(
    given: Mapping[str, str], schema: Any, overwrite: bool, epoch: int = BATCH_EPOCH
) -> BatchWriter:
    """What `DataSource.writer` returns; the jobs write several epochs under one `writeId`, one
    after the other. Raises ConfigError for wrong options and columns."""
    return BatchWriter(*_checked(given, schema, overwrite), epoch)


def stream_writer(
    given: Mapping[str, str], schema: Any, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """What `DataSource.streamWriter` returns. Raises ConfigError for wrong options and columns."""
    return StreamWriter(*_checked(given, schema, overwrite))


def _checked(
    given: Mapping[str, str], schema: Any, overwrite: bool
) -> tuple[SinkOptions, tuple[str, ...]]:
    if overwrite:
        raise ConfigError(
            "a topic cannot be overwritten: use .mode('append'), or outputMode('append') or "
            "('update') of a stream"
        )
    options = parse(given)
    return options, check_columns(schema, options)


class BatchWriter(DataSourceArrowWriter):
    """One write. Made on the driver, pickled into the tasks and into the commit."""

    def __init__(
        self, options: SinkOptions, columns: tuple[str, ...], epoch: int = BATCH_EPOCH
    ) -> None:
        self._options = options
        self._columns = columns
        self._epoch = epoch
        self._sink = _sink(options.write_id or uuid.uuid4().hex, options)
        self._pinned: Pinned | None = None
        if options.exactly_once:
            with _client(options) as client:
                self._pinned = _open(client, self._sink, options)

    @property
    def finished(self) -> int:
        """The newest epoch that an earlier run brought to its end; below 0: none."""
        return -1 if self._pinned is None else self._pinned.finished

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        identity = Identity(self._sink, self._epoch, _context().partitionId())
        return _write(iterator, self._columns, self._options, identity, self._pinned)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _finish(self._options, self._pinned, self._epoch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, self._pinned, self._epoch)


class StreamWriter(DataSourceStreamArrowWriter):
    """The epochs of one query. Spark makes a new one for each epoch, and another for its commit."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        if options.write_id:
            raise ConfigError(
                "option 'writeId' is for df.write: drop it, a stream is known by its checkpoint"
            )
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        identity = _streaming_identity(self._options)
        return _write(iterator, self._columns, self._options, identity, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _finish(self._options, _pinned_of(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, _pinned_of(messages), batchId)


# -- in a task -----------------------------------------------------------------------------------


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("the sink writes in Spark's tasks only: there is no TaskContext here")
    return context


def _streaming_identity(options: SinkOptions) -> Identity:
    context = _context()
    query, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(EPOCH)
    if query and epoch:
        return Identity(_sink(query, options), int(epoch), context.partitionId())
    if options.exactly_once:
        missing = EPOCH if query else QUERY_ID
        raise ConfigError(
            "give delivery=at-least-once, or run the query with a Spark that tells its tasks who "
            f"they are: property {missing!r} of the task is missing"
        )
    return Identity(uuid.uuid4().hex, 0, context.partitionId())


def _sink(name: str, options: SinkOptions) -> str:
    """Another topic is another sink: what is there already is not there."""
    return f"{name}/{options.topic or '*'}"


def _write(
    batches: Iterable[pa.RecordBatch],
    columns: tuple[str, ...],
    options: SinkOptions,
    identity: Identity,
    pinned: Pinned | None,
) -> Written:
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return Written(pinned=pinned)
    batches = itertools.chain([first], filled)
    if not options.exactly_once:
        key = ProducerKey(
            options.endpoints, options.producer_group, options.retry_timeout_ms, options.ack_mode
        )
        with producers.use(key) as producer:
            sending = Sending(producer, options)
            chunker = _chunk(batches, columns, options, identity, sending.layout, sending.put)
            sending.finish()
        return Written(chunker.rows, chunker.rows, chunker.bytes, chunker.chunks)
    with _client(options) as client:
        if pinned is None:
            pinned = _open(client, identity.sink, options)
        if identity.epoch <= pinned.finished:
            return Written(sum(batch.num_rows for batch in batches), pinned=pinned)
        staging = Staging(client, pinned, identity.epoch, identity.partition)
        with closing(staging):
            chunker = _chunk(batches, columns, options, identity, staging.layout, staging.put)
            new = staging.finish()
    return Written(chunker.rows, new, chunker.bytes, chunker.chunks, pinned)


def _chunk(
    batches: Iterable[pa.RecordBatch],
    columns: tuple[str, ...],
    options: SinkOptions,
    identity: Identity,
    layout: Layout,
    put: Callable[[Chunk], object],
) -> Chunker:
    selector = Selector(options.topic, selector_for(columns, options), layout)
    chunker = Chunker(columns, options, selector, id_prefix(*identity), put)
    for batch in batches:
        chunker.add(batch)
    chunker.flush()
    return chunker


# -- exactly once --------------------------------------------------------------------------------


def _client(options: SinkOptions) -> Any:
    return staging_clients.use(StagingKey(options.endpoints, options.retry_timeout_ms, get_ident()))


def _open(client: StagingClient, sink: str, options: SinkOptions) -> Pinned:
    topics = () if options.topic is None else (options.topic,)
    return client.open(sink, topics, brokers=options.brokers)


def _pinned_of(messages: list[WriterCommitMessage | None]) -> Pinned | None:
    """What the tasks found pinned; None if none of them had rows, or none is known of."""
    return next((m.pinned for m in messages if isinstance(m, Written) and m.pinned), None)


def _finish(options: SinkOptions, pinned: Pinned | None, epoch: int) -> None:
    if pinned is not None:
        with _client(options) as client:
            client.finish(pinned, epoch)


def _abort(options: SinkOptions, pinned: Pinned | None, epoch: int) -> None:
    if pinned is not None:
        with _client(options) as client:
            client.abort(pinned, epoch)

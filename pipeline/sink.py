"""`df.write.format("saturnmq")` and `df.writeStream.format("saturnmq")`: rows become messages.

This is the driver's side: it checks options and columns, and finishes epochs. The work of tasks is
in writing.py, which only tasks load, because Spark plans every write in a new process. Three values
identify a task's rows in every attempt:

| | sink | epoch | partition |
|---|---|---|---|
| batch | option `writeId`, else one of this write; the topic | 0, or a job's step | TaskContext |
| stream | the query's id, which its checkpoint keeps; the topic | batch id | TaskContext |

At least once the three are in the messages' UNIQ_KEY, followed by the row's number, so that a
repeated attempt of the same rows in the same order gives the same ids. Exactly once they are the
marker by which the broker recognizes a published batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from saturnmq.pipeline.sink_options import SinkOptions, check_columns, parse
from saturnmq.pipeline.sink_task import TaskIdentity, Written, client_for, open_sink
from saturnmq.runtime.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from saturnmq.client.producer.staging import Pinned

QUERY_ID = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"
BATCH_EPOCH = 0


def batch_writer(
    given: Mapping[str, str], schema: Any, overwrite: bool, epoch: int = BATCH_EPOCH
) -> BatchWriter:
    """The writer of `DataSource.writer`; the jobs write several epochs under one `writeId`, one
    after the other. Raises ConfigError for wrong options and columns."""
    return BatchWriter(*_checked(given, schema, overwrite), epoch)


def stream_writer(
    given: Mapping[str, str], schema: Any, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of `DataSource.streamWriter`. Raises ConfigError for wrong options and columns."""
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
            with client_for(options) as client:
                self._pinned = open_sink(client, self._sink, options)

    @property
    def finished(self) -> int:
        """The newest epoch that an earlier run brought to its end; below 0: none."""
        return -1 if self._pinned is None else self._pinned.finished

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        identity = TaskIdentity(self._sink, self._epoch, _context().partitionId())
        from saturnmq.pipeline.writing import write_rows

        return write_rows(iterator, self._columns, self._options, identity, self._pinned)

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

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        identity = _streaming_identity(self._options)
        from saturnmq.pipeline.writing import write_rows

        return write_rows(iterator, self._columns, self._options, identity, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _finish(self._options, _pinned_of(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, _pinned_of(messages), batchId)


# -- who writes ----------------------------------------------------------------------------------


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigError("the sink writes in Spark's tasks only: there is no TaskContext here")
    return context


def _streaming_identity(options: SinkOptions) -> TaskIdentity:
    context = _context()
    query, epoch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(EPOCH)
    if query and epoch:
        return TaskIdentity(_sink(query, options), int(epoch), context.partitionId())
    if options.exactly_once:
        missing = EPOCH if query else QUERY_ID
        raise ConfigError(
            "give delivery=at-least-once, or run the query with a Spark that tells its tasks who "
            f"they are: property {missing!r} of the task is missing"
        )
    return TaskIdentity(uuid.uuid4().hex, 0, context.partitionId())


def _sink(name: str, options: SinkOptions) -> str:
    """Another topic is another sink: what is there already is not there."""
    return f"{name}/{options.topic or '*'}"


# -- exactly once --------------------------------------------------------------------------------


def _pinned_of(messages: list[WriterCommitMessage | None]) -> Pinned | None:
    """The pins that the tasks found; None if none of them had rows, or none is known of."""
    return next((m.pinned for m in messages if isinstance(m, Written) and m.pinned), None)


def _finish(options: SinkOptions, pinned: Pinned | None, epoch: int) -> None:
    if pinned is not None:
        with client_for(options) as client:
            client.finish(pinned, epoch)


def _abort(options: SinkOptions, pinned: Pinned | None, epoch: int) -> None:
    if pinned is not None:
        with client_for(options) as client:
            client.abort(pinned, epoch)

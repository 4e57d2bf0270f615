"""The parts that driver and tasks of the sink share: whose rows a task writes, what became of them,
and the clients that publish exactly once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage
from saturnmq.client.pool import Pool
from saturnmq.pipeline.sink_options import SinkOptions

if TYPE_CHECKING:
    from saturnmq.client.producer.staging import Pinned, StagingClient


class TaskIdentity(NamedTuple):
    """The identity of the rows of one task."""

    sink: str
    epoch: int
    partition: int


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task."""

    rows: int = 0
    new: int = 0
    """Rows that were not there already; at least once it is unknown, and all count."""
    bytes: int = 0
    chunks: int = 0
    pinned: Pinned | None = None


class StagingKey(NamedTuple):
    """The settings of a StagingClient."""

    endpoints: str
    retry_timeout_ms: int


def _start(key: StagingKey) -> StagingClient:
    from saturnmq.client.producer.staging import StagingClient
    from saturnmq.pipeline.connections import channels

    return StagingClient(key.endpoints, retry_s=key.retry_timeout_ms / 1000, channels=channels)


staging_clients: Pool[StagingKey, StagingClient] = Pool(_start, lambda client: client.close())


def client_for(options: SinkOptions) -> AbstractContextManager[StagingClient]:
    """A client, kept for the next time: it knows where the brokers are."""
    return staging_clients.use(StagingKey(options.endpoints, options.retry_timeout_ms))


def open_sink(client: StagingClient, sink: str, options: SinkOptions) -> Pinned:
    """The brokers that the sink writes to; from the first time on the same ones."""
    topics = () if options.topic is None else (options.topic,)
    return client.open(sink, topics, brokers=options.brokers)

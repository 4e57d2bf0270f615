"""The work of the sink in a task: Arrow batches to chunks (chunking.py), and these to the brokers,
either sent (sending.py, at least once) or staged and published (staged.py, exactly once).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import closing

import pyarrow as pa
from saturnmq.client.producer.staging import Pinned
from saturnmq.pipeline.chunking import Chunk, Chunker, id_prefix
from saturnmq.pipeline.selecting import Layout, Selector
from saturnmq.pipeline.sending import ChunkSender, ProducerKey, SinkFailed, producers
from saturnmq.pipeline.sink_options import SHARDING_KEY, SinkOptions, selector_for
from saturnmq.pipeline.sink_task import TaskIdentity, Written, client_for, open_sink
from saturnmq.pipeline.staged import Staging


def write_rows(
    batches: Iterable[pa.RecordBatch],
    columns: tuple[str, ...],
    options: SinkOptions,
    identity: TaskIdentity,
    pinned: Pinned | None,
) -> Written:
    """Write the rows of one task; `pinned` None: to be found out. SinkFailed, or what the client
    says of topics and brokers, when it could not be done."""
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
            keyed = selector_for(columns, options) == SHARDING_KEY
            sending = ChunkSender(producer, options, keyed=keyed)
            chunker = _chunk(batches, columns, options, identity, sending.layout, sending.put)
            sending.finish()
        return Written(chunker.rows, chunker.rows, chunker.bytes, chunker.chunks)
    with client_for(options) as client:
        if pinned is None:  # the task of a stream
            pinned = open_sink(client, identity.sink, options)
            _check_epoch(identity, pinned)
        if identity.epoch <= pinned.finished:
            return Written(sum(batch.num_rows for batch in batches), pinned=pinned)
        staging = Staging(client, pinned, identity.epoch, identity.partition)
        with closing(staging):
            chunker = _chunk(batches, columns, options, identity, staging.layout, staging.put)
            new = staging.finish()
    return Written(chunker.rows, new, chunker.bytes, chunker.chunks, pinned)


def _check_epoch(identity: TaskIdentity, pinned: Pinned) -> None:
    """Spark repeats no epoch but the newest. SinkFailed: the checkpoint counts from the start
    again, and the new rows of an old epoch would pass for those that were written."""
    if identity.epoch < pinned.finished:
        raise SinkFailed(
            f"give the stream a new checkpointLocation, or restore the checkpoint: it is at epoch "
            f"{identity.epoch}, and this stream has finished epoch {pinned.finished} already. Its "
            "offsets and commits were deleted while its metadata, the id of the stream, was kept; "
            "rows of an epoch that is finished would be lost"
        )


def _chunk(
    batches: Iterable[pa.RecordBatch],
    columns: tuple[str, ...],
    options: SinkOptions,
    identity: TaskIdentity,
    layout: Layout,
    put: Callable[[Chunk], object],
) -> Chunker:
    selector = Selector(options.topic, selector_for(columns, options), layout)
    chunker = Chunker(columns, options, selector, id_prefix(*identity), put)
    for batch in batches:
        chunker.add(batch)
    chunker.flush()
    return chunker

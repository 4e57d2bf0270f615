"""The chunks of one task, exactly once: staged at brokers, then published under a marker.

A task's rows go to one broker, which the sink's pinned list and the number of the partition say;
or, where columns of the row say the queue, to every broker that has one of those queues. Each of
them publishes what it was given as one group, once for (sink, epoch, partition), whatever attempt
it came from. Which rows a broker gets must therefore not depend on their order: it depends on the
partition, or on the row itself.

A broker that fails over or restarts forgets what was staged. So the chunks are kept, in memory and
what is too much for it in a temporary file, until they are published, and staged again.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import SEEK_END
from typing import IO

from saturnmq.client.producer.staging import Pinned, Stage, StagingClient
from saturnmq.pipeline.chunking import NOW, Chunk
from saturnmq.pipeline.sending import SinkFailed
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import StageLost, TopicNotExist

log = logging.getLogger(__name__)

MEMORY_BYTES_MAX = 64 << 20
"""The most rows that a task keeps in memory; the rest goes to a file."""

AGAIN_PAUSE_S = 0.2
RESTAGE_S = 120.0
UNKNOWN = -1  # rows of a group that is not remembered


@dataclass(frozen=True, slots=True)
class _Staged:
    """A chunk as it was staged. `body` is its own, or where it lies in the spool: (from, bytes)."""

    topic: str
    queue_id: int
    rows: int
    sys_flag: int
    born_ms: int
    body: bytes | tuple[int, int]


@dataclass(slots=True)
class _Share:
    """The rows for one broker."""

    broker: str
    stage: Stage
    chunks: list[_Staged] = field(default_factory=list)


class Staging:
    """Stages what one task writes, and publishes it."""

    def __init__(
        self,
        client: StagingClient,
        pinned: Pinned,
        epoch: int,
        partition: int,
    ) -> None:
        self._client = client
        self._pinned = pinned
        self._epoch = epoch
        self._partition = partition
        self._shares: dict[str, _Share] = {}
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._in_memory = 0
        self._spool: IO[bytes] | None = None
        self._turn = partition  # neighbours begin on different queues

    def layout(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of `topic` on the pinned brokers, sorted."""
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = [
                MessageQueue(topic, broker, number)
                for broker in self._pinned.brokers
                for number in range(self._client.queues(broker, topic))
            ]
        return queues

    def put(self, chunk: Chunk) -> None:
        """Stage it."""
        queue = chunk.queue or self._next_queue(chunk.topic)
        body = chunk.body()
        born_ms = int(time.time() * 1000) if chunk.born_ms == NOW else chunk.born_ms
        share = self._shares.get(queue.broker_name)
        if share is None:
            share = _Share(queue.broker_name, self._stage(queue.broker_name))
            self._shares[queue.broker_name] = share
        staged = _Staged(
            chunk.topic, queue.queue_id, chunk.rows, chunk.sys_flag, born_ms, self._keep(body)
        )
        share.chunks.append(staged)
        try:
            _add(share.stage, staged, body)
        except StageLost:
            self._stage_again(share)

    def finish(self) -> int:
        """Publish; how many of the rows were not there already. SinkFailed: the partition was
        published otherwise. Where it was, is looked at before it is published anywhere else."""
        new, places = 0, self._pinned.published.get((self._epoch, self._partition), ())
        if away := set(places) - self._shares.keys():
            raise self._changed(f"at broker {min(away)!r}, which gets none of its rows now")
        for broker in sorted(self._shares, key=lambda name: (name not in places, name)):
            share = self._shares[broker]
            deadline = time.monotonic() + RESTAGE_S
            while True:
                try:
                    published = share.stage.publish()
                    break
                except StageLost:
                    if time.monotonic() >= deadline:
                        raise
                    self._stage_again(share)
            del self._shares[broker]
            if not published.duplicate:
                new += published.rows
            elif published.rows not in (UNKNOWN, share.stage.rows):
                raise self._changed(f"with {published.rows} rows, now it has {share.stage.rows}")
        return new

    def _changed(self, what: str) -> SinkFailed:
        return SinkFailed(
            f"partition {self._partition} of epoch {self._epoch} was published {what}. So the "
            "query, its number of partitions, its input, the queues of the topic or option "
            "'brokers' changed since then: undo that until the epoch is finished. With another "
            "writeId, or another checkpoint of the stream, rows of the epoch would be there twice"
        )

    def close(self) -> None:
        """Drop what is not published, best effort."""
        for share in self._shares.values():
            share.stage.abort()
        if self._spool is not None:
            self._spool.close()

    def _keep(self, body: bytes) -> bytes | tuple[int, int]:
        if self._in_memory + len(body) <= MEMORY_BYTES_MAX:
            self._in_memory += len(body)
            return body
        if self._spool is None:
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        at = self._spool.seek(0, SEEK_END)
        self._spool.write(body)
        return at, len(body)

    def _body(self, staged: _Staged) -> bytes:
        if isinstance(staged.body, bytes):
            return staged.body
        assert self._spool is not None
        at, size = staged.body
        self._spool.seek(at)
        return self._spool.read(size)

    def _next_queue(self, topic: str) -> MessageQueue:
        """Any queue of the partition's broker."""
        broker = self._pinned.broker_of(self._epoch, self._partition)
        if broker not in self._pinned.brokers:  # of a former list: all is published there
            return MessageQueue(topic, broker, 0)
        queues = [queue for queue in self.layout(topic) if queue.broker_name == broker]
        if not queues:
            raise TopicNotExist(
                f"topic {topic!r} takes no messages on broker {broker!r}: create it there, or give "
                "option 'brokers' with those that have it"
            )
        self._turn += 1
        return queues[self._turn % len(queues)]

    def _stage(self, broker: str) -> Stage:
        return self._client.stage(self._pinned, self._epoch, self._partition, broker=broker)

    def _stage_again(self, share: _Share) -> None:
        """Everything that the broker was given, in a new stage."""
        deadline = time.monotonic() + RESTAGE_S
        while True:
            log.warning(
                "broker %s lost its stage: %d chunks again", share.broker, len(share.chunks)
            )
            try:
                share.stage = self._stage(share.broker)
                for staged in share.chunks:
                    _add(share.stage, staged, self._body(staged))
                return
            except StageLost:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(AGAIN_PAUSE_S)


def _add(stage: Stage, staged: _Staged, body: bytes) -> None:
    stage.add(
        staged.topic,
        staged.queue_id,
        body,
        staged.rows,
        sys_flag=staged.sys_flag,
        born_timestamp=staged.born_ms,
    )

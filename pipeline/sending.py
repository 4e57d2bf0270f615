"""Chunks on their way to the brokers, at least once each.

The client's own producer (saturnmq.client) sends them, in whole batches. As for any producer, it
decides where a chunk goes, which errors are tried again and for how long, and which broker serves
after a fail-over. The thread of the task encodes while the producer's loop sends.

Producers outlive a task: the next one of this process, and the next epoch, find them connected.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from saturnmq.client.blocking import Producer
from saturnmq.client.pool import Pool
from saturnmq.client.producer.batch import ProducerBatch
from saturnmq.client.producer.results import SendStatus
from saturnmq.pipeline.chunking import NOW, Chunk
from saturnmq.pipeline.sink_options import ALL, SinkOptions
from saturnmq.protocol.message_queue import MessageQueue
from saturnmq.runtime.errors import ConnectionLost, RequestTimeout, SaturnError

BUFFER_BYTES = 16 << 20
IN_FLIGHT = 4
SEND_TIMEOUT_S = 10.0
# A megabyte may take longer than a message before its broker counts as slow.
LATENCY_TABLE = ((3_000.0, 1.0), (10_000.0, 5.0))
# A user who mistyped the address of a nameserver does not want to wait as long as for a fail-over.
DISCOVERY_S = 10.0
DISCOVERY_PAUSE_S = 0.1


class SinkFailed(SaturnError):
    """Rows could not be stored"""


class ProducerKey(NamedTuple):
    """The settings of a producer."""

    endpoints: str
    group: str
    retry_timeout_ms: int
    ack_mode: str


def _start(key: ProducerKey) -> Producer:
    patience_s = key.retry_timeout_ms / 1000
    return Producer(
        key.group,
        key.endpoints,
        send_timeout=min(SEND_TIMEOUT_S, patience_s),
        delivery_timeout=patience_s,
        until_delivered=True,
        retry_unless_stored=key.ack_mode == ALL,
        buffer_bytes=BUFFER_BYTES,
        in_flight=IN_FLIGHT,
        latency_table=LATENCY_TABLE,
    ).start()


producers: Pool[ProducerKey, Producer] = Pool(_start, lambda producer: producer.close(timeout=0.0))


class ChunkSender:
    """The chunks of one task, at least once each."""

    def __init__(self, producer: Producer, options: SinkOptions, *, keyed: bool = False) -> None:
        """`keyed`: the queues of chunks were chosen by keys, and need not be those for ever."""
        self._producer = producer
        self._keyed = keyed
        self._options = options
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._under_way: deque[ProducerBatch] = deque()

    def layout(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of `topic`. TopicNotExist; ConnectionLost if no nameserver answers."""
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = self._discover(topic)
        return queues

    def _discover(self, topic: str) -> Sequence[MessageQueue]:
        deadline = time.monotonic() + min(DISCOVERY_S, self._options.retry_timeout_ms / 1000)
        while True:
            try:
                return self._producer.queues(topic)
            except (ConnectionLost, RequestTimeout) as error:
                if time.monotonic() >= deadline:
                    raise ConnectionLost(
                        "no nameserver answers: correct option 'endpoints' (now "
                        f"{self._options.endpoints!r}), or start one; {error}"
                    ) from error
            time.sleep(DISCOVERY_PAUSE_S)

    def put(self, chunk: Chunk) -> None:
        """Send it; waits only while too much is under way. Raises what became of earlier ones."""
        self.layout(chunk.topic)  # there is such a topic
        while self._under_way and self._under_way[0].done:
            self._check(self._under_way.popleft())
        self._under_way.append(
            self._producer.send_encoded(
                chunk.topic,
                chunk.body(),
                chunk.rows,
                queue=chunk.queue,
                keyed=self._keyed,
                born_ms=None if chunk.born_ms == NOW else chunk.born_ms,
                sys_flag=chunk.sys_flag,
            )
        )

    def finish(self) -> None:
        """Wait until all are acknowledged. SinkFailed names the first that was not, and its
        broker."""
        while self._under_way:
            batch = self._under_way.popleft()
            batch.wait(None)  # its own deadline ends it
            self._check(batch)

    def _check(self, batch: ProducerBatch) -> None:
        error: object = batch.error
        if error is None and (self._options.ack_mode != ALL or batch.status is SendStatus.OK):
            return
        if error is None:
            why = "mend its replicas or its disk, or give ackMode=stored"
            error = f"the broker stored them, but answered {batch.status.name}"
        elif isinstance(error, (RequestTimeout, ConnectionLost)):
            why = f"see that it serves, or raise retryTimeoutMs={self._options.retry_timeout_ms}"
        else:
            why = "the broker says why"
        queue = batch.queue
        where = f"broker {queue.broker_name} queue {queue.queue_id}" if queue else "any broker"
        raise SinkFailed(
            f"{batch.count} rows for topic {batch.lane.topic!r} are not acknowledged by {where}: "
            f"{why}. {error}"
        ) from batch.error

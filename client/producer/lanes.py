"""Where messages wait, and in which order they leave: a lane for each topic, and one for each queue
that messages are pinned to (keys, selectors, `queue=`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from saturnmq.protocol.message import MessageQueue

if TYPE_CHECKING:
    from saturnmq.client.producer.accumulator import Accumulator
    from saturnmq.client.producer.batch import ProducerBatch


class Pin(NamedTuple):
    """A queue that a message is bound to: the caller's choice, or the choice of a key or a selector
    among the queues of a round (placing.py). If a chosen queue is gone, another one is used."""

    queue: MessageQueue
    round: int = 0  # 0: the caller's

    @property
    def chosen(self) -> bool:
        return self.round > 0


class Lane:
    """Batches of one topic, or of one pinned queue, in the order they were filled."""

    __slots__ = (
        "awaited",
        "begun",
        "begun_ms",
        "dirty",
        "filled",
        "hurries_until",
        "in_flight",
        "lingers",
        "next_queue",
        "open",
        "owner",
        "pinned",
        "ready",
        "ready_bytes",
        "resolving",
        "topic",
    )

    def __init__(self, owner: Accumulator, topic: str, pinned: Pin | None, next_queue: int) -> None:
        self.owner = owner
        self.topic = topic
        self.pinned = pinned
        self.open: ProducerBatch | None = None
        self.ready: deque[ProducerBatch] = deque()
        self.ready_bytes = 0  # of their buffers
        self.begun = 0  # batches of the present stream
        self.begun_ms = 0  # time of the last of them
        self.in_flight: dict[str, int] = {}  # batches per broker name
        self.next_queue = next_queue
        self.dirty = False  # the loop looks at it by itself
        self.lingers = False  # and only when its moment is over
        self.filled: ProducerBatch | None = None  # had its moment
        self.awaited = False  # somebody waits for a batch of it
        self.hurries_until = 0.0
        self.resolving = False

    def put(self, batch: ProducerBatch) -> None:
        """Close `batch` and put it behind those that are ready."""
        self.ready.append(batch)
        self.ready_bytes += batch.reserved

    def take(self) -> ProducerBatch:
        batch = self.ready.popleft()
        self.ready_bytes -= batch.reserved
        return batch

    def next_of(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """The queue whose turn it is among these."""
        self.next_queue += 1
        return queues[self.next_queue % len(queues)]

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits in it and nothing is on its way. Any thread may look."""
        return self.open is None and not self.ready and not self.in_flight

    def depart(self, broker: str) -> None:
        """A batch is on its way to `broker`. Under the accumulator's lock, or for a lane that has
        another batch on its way: threads look whether it is idle."""
        self.in_flight[broker] = self.in_flight.get(broker, 0) + 1

    def land(self, broker: str) -> None:
        """A batch that was on its way to `broker` is so no more. Loop thread only."""
        left = self.in_flight.get(broker, 1) - 1
        if left > 0:
            self.in_flight[broker] = left
        else:
            self.in_flight.pop(broker, None)

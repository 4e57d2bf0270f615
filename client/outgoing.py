"""A batch on its way out, the handle of a message in it, and the result that handle gives.

A message costs no future and no task: its handle and its result are a reference to the batch and a
position in it, and its ids are worked out when somebody asks. Bodies are encoded when a message is
accepted, in the form of SEND_BATCH_MESSAGE (protocol/batch.py), so the message may be changed or
sent again at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from saturnmq.client.kernels import BatchFields, HandleFields, ResultFields, set_types
from saturnmq.client.results import SendStatus
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.properties import PROPERTIES_BYTES_MAX

ITEM_OVERHEAD = 96  # bytes of a batch entry besides body and given properties, at most
EXTRA_BYTES_MAX = PROPERTIES_BYTES_MAX - 64  # UNIQ_KEY and WAIT take 52


class OutBatch(BatchFields):
    """Messages that travel together."""

    __slots__ = ()

    @property
    def body(self) -> Any:
        """What travels; a view that must not outlive the batch."""
        return self.buffer if self.single else memoryview(self.buffer)[: self.bytes]

    def wait(self, timeout: float | None) -> None:
        """Wait in this thread until the batch is over."""
        self.lane.owner.wait(self, timeout)

    def message_id(self, index: int) -> str:
        """The UNIQ_KEY of message `index`."""
        return self.given_ids.get(index) or f"{self.id_head.decode()}{index:04X}"

    def offset_id(self, index: int) -> str:
        """The offset id of message `index`: from the broker's list, or from where the first lies
        and how long those before are. Empty if the broker told neither."""
        if len(self.sizes) != 4 * self.count:
            ids = self.offset_ids.split(",")
            return ids[index] if index < len(ids) else ""
        skipped = sum(struct.unpack_from(f">{index}i", self.sizes))
        return f"{self.offset_ids[:-16]}{int(self.offset_ids[-16:], 16) + skipped:016X}"


class SendResult(ResultFields):
    """Where an acknowledged message lies."""

    __slots__ = ()

    @property
    def status(self) -> SendStatus:
        return self.batch.status

    @property
    def message_id(self) -> str:
        """The UNIQ_KEY, given by the producer."""
        return self.batch.message_id(self.index)

    @property
    def offset_message_id(self) -> str:
        """Given by the broker: its address and the physical offset."""
        return self.batch.offset_id(self.index)

    @property
    def queue(self) -> MessageQueue:
        assert self.batch.queue is not None, "an acknowledged batch has one"
        return self.batch.queue

    @property
    def queue_offset(self) -> int:
        return self.batch.first_offset + self.index

    def __repr__(self) -> str:
        return (
            f"SendResult({self.status.name}, {self.message_id}, {self.queue}, "
            f"offset {self.queue_offset})"
        )


class SendHandle(HandleFields):
    """A message under way. `result(timeout)` waits for its acknowledgement; a handle of
    `saturnmq.aio` is awaited instead."""

    __slots__ = ()

    @property
    def message_id(self) -> str:
        """The UNIQ_KEY this message was given."""
        return self.batch.message_id(self.index)

    def done(self) -> bool:
        return bool(self.batch.done)

    def exception(self) -> BaseException | None:
        """The error of a finished send; None if it succeeded or is still under way."""
        return self.batch.error

    def __await__(self) -> Generator[Any, None, SendResult]:
        if not self.batch.done:
            yield from self.batch.lane.owner.wait_async(self.batch).__await__()
        return self.result()

    def add_done_callback(self, callback: Callable[[SendHandle], object]) -> None:
        """Call `callback(self)` on the client's loop when the send is over, or now if it is."""
        if not self.batch.lane.owner.watch(self.batch, partial(callback, self)):
            callback(self)


set_types(SendHandle, SendResult)

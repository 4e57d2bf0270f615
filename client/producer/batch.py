"""A batch of a producer, the handle of a message in it, and the result that the handle gives.

A message costs no future and no task: its handle and its result are a reference to the batch and a
position in it, and its ids are computed on demand. Bodies are encoded when a message is accepted,
in the form of SEND_BATCH_MESSAGE (protocol/batch.py), so the message may be changed or sent again
at once.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any

from saturnmq.client.kernels import BatchFields, SendHandle, SendResult
from saturnmq.client.producer.batch_reference import BATCH_COUNT_MAX, EXTRA_BYTES_MAX, ITEM_OVERHEAD
from saturnmq.protocol.message import MessageQueue

RETRY_PAUSE_S = 0.05
RETRY_PAUSE_MAX_S = 0.25

_OFFSET_ID = re.compile("[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")  # of an IPv4 or IPv6 store


class ProducerBatch(BatchFields):
    """Messages that travel in one request."""

    __slots__ = ("callbacks", "packed", "recall_handle", "trouble")
    callbacks: list[Any] | None
    """Each call with its handle behind it; there is a list from the first one on."""
    packed: bytes
    """The body as it travels, if it is compressed as a whole; empty before that."""
    recall_handle: str
    """Of a timed message, which is alone in its batch."""
    trouble: BaseException
    """The end of the last attempt that failed, if there was one."""

    @property
    def body(self) -> Any:
        """The bytes of the request's body; a view that must not outlive the batch."""
        return self.buffer if self.single else memoryview(self.buffer)[: self.bytes]

    def attempt(self, queue: MessageQueue, at: float) -> None:
        """Another attempt begins, to `queue`, at this moment (monotonic)."""
        self.attempts += 1
        self.queue = queue
        self.sent_at = at

    @property
    def pause_s(self) -> float:
        """Seconds before the next attempt; the pause grows with each attempt."""
        return float(min(RETRY_PAUSE_S * 2 ** min(self.attempts - 1, 8), RETRY_PAUSE_MAX_S))

    def wait(self, timeout: float | None) -> None:
        """Wait in this thread until the batch is over."""
        self.lane.owner.wait(self, timeout)

    def message_id(self, index: int) -> str:
        """The UNIQ_KEY of message `index`."""
        return self.given_ids.get(index) or f"{self.id_head.decode()}{index:04X}"

    def offset_id(self, index: int) -> str:
        """The offset id of message `index`: from the broker's list, or from the offset of the first
        message and the lengths of those before. Empty if the broker sent neither."""
        if index == 0 and "," not in self.offset_ids:
            return self.offset_ids  # nearly every batch of which one message is asked for
        ids = _offset_ids(self.offset_ids, self.sizes, self.count)
        return ids[index] if index < len(ids) else ""


@lru_cache(maxsize=4)
def _offset_ids(told: str, sizes: bytes, count: int) -> list[str]:
    """The offset ids of a batch, all in one go: who asks for one mostly asks for the others."""
    if len(sizes) != 4 * count or not _OFFSET_ID.fullmatch(told):
        return told.split(",")
    places = accumulate(struct.unpack(f">{count}i", sizes), initial=int(told[-16:], 16))
    return [f"{told[:-16]}{place:016X}" for place in islice(places, count)]


__all__ = [
    "BATCH_COUNT_MAX",
    "EXTRA_BYTES_MAX",
    "ITEM_OVERHEAD",
    "ProducerBatch",
    "SendHandle",
    "SendResult",
]

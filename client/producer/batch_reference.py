"""The hot half of batch.py in plain Python: the code that every sent message passes through.

`client_kernel.pyx` is its compiled twin; `client/kernels.py` chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from saturnmq.client.producer.results import SendStatus
from saturnmq.protocol.batch import put_batch_item
from saturnmq.protocol.frame import CRC_PROPERTY_BYTES
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.properties import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from saturnmq.client.producer.batch import ProducerBatch

BATCH_COUNT_MAX = 0x10000  # the last four hex digits of a generated id
ITEM_OVERHEAD = 96  # bytes of a batch entry besides body and given properties, at most
# UNIQ_KEY and WAIT take 52; the broker adds a checksum. What it refuses, it refuses with the batch.
EXTRA_BYTES_MAX = PROPERTIES_BYTES_MAX - 52 - CRC_PROPERTY_BYTES


class SendResult:
    """The place of an acknowledged message."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self.batch = batch
        self.index = index

    @property
    def ok(self) -> bool:
        """Whether the message is acknowledged in the mode asked for: status is SendStatus.OK."""
        return self.batch.status is SendStatus.OK

    @property
    def status(self) -> SendStatus:
        """The safety of the message when the broker answered."""
        return self.batch.status

    @property
    def message_id(self) -> str:
        """The UNIQ_KEY, which the producer gave."""
        return self.batch.message_id(self.index)

    @property
    def offset_message_id(self) -> str:
        """The id that the broker gave: its address and the physical offset."""
        return self.batch.offset_id(self.index)

    @property
    def queue(self) -> MessageQueue:
        """The queue that the message was stored in."""
        assert self.batch.queue is not None, "an acknowledged batch has one"
        return self.batch.queue

    @property
    def queue_offset(self) -> int:
        """The place of the message in its queue."""
        return self.batch.first_offset + self.index

    def __repr__(self) -> str:
        return (
            f"SendResult({self.status.name}, {self.message_id}, {self.queue}, "
            f"offset {self.queue_offset})"
        )


class SendHandle:
    """A message under way. `result(timeout)` waits for its acknowledgement; a handle of
    `saturnmq.aio` is awaited instead."""

    __slots__ = ("batch", "index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self.batch = batch
        self.index = index

    @property
    def message_id(self) -> str:
        """The UNIQ_KEY of this message."""
        return self.batch.message_id(self.index)

    def done(self) -> bool:
        """Whether the broker has answered, or the send has failed."""
        return self.batch.done

    def exception(self) -> BaseException | None:
        """The error of a finished send; None if it succeeded or is still under way."""
        return self.batch.error

    def result(self, timeout: float | None = None) -> SendResult:
        """The SendResult; raises the error of the send, or RequestTimeout if it takes longer."""
        if not self.batch.done:
            self.batch.wait(timeout)
        if self.batch.error is not None:
            # A copy: every raise would add its traceback to the shared error, and with the frames
            # in it the handles, which hold the batch.
            raise copy(self.batch.error)
        return SendResult(self.batch, self.index)

    def __await__(self) -> Generator[Any, None, SendResult]:
        if not self.batch.done:
            yield from self.batch.lane.owner.wait_async(self.batch).__await__()
        return self.result()

    def add_done_callback(self, callback: Callable[[SendHandle], object]) -> None:
        """Call `callback(self)` on the client's loop when the send is over, or now if it already
        is."""
        if not self.batch.lane.owner.call_when_done(self.batch, callback, self):
            callback(self)


class BatchFields:
    """The entries so far, and the state that all handles of a batch share."""

    __slots__ = (
        "attempts",
        "avoid",
        "born_ms",
        "buffer",
        "bytes",
        "count",
        "deadline",
        "done",
        "error",
        "first_offset",
        "flag",
        "given_ids",
        "id_head",
        "lane",
        "offset_ids",
        "properties",
        "queue",
        "reserved",
        "sent_at",
        "single",
        "sizes",
        "status",
        "sys_flag",
        "unsure",
        "watchers",
    )

    def __init__(self, lane: Any, born_ms: int, id_head: bytes, buffer: Any, single: bool) -> None:
        self.lane = lane
        self.buffer = buffer  # entries up to `bytes`; the whole body of a single message
        self.bytes = 0
        self.count = 0
        self.reserved = len(buffer)  # of the producer's bound
        self.id_head = id_head
        self.given_ids: dict[int, str] = {}  # of messages that came with a UNIQ_KEY
        self.born_ms = born_ms
        self.single = single
        self.properties = ""
        self.flag = 0
        self.sys_flag = 0
        self.attempts = 0
        self.avoid: str | None = None  # the broker that failed last
        self.sent_at = 0.0
        self.deadline = 0.0
        self.done = False
        self.unsure = False  # an attempt may have been stored, but none was acknowledged
        self.error: BaseException | None = None
        self.status = SendStatus.OK
        self.queue: MessageQueue | None = None
        self.first_offset = 0
        self.offset_ids = ""
        self.sizes = b""  # i32 each: bytes of the frames as stored, if the broker sent them
        self.watchers: list[Any] = []  # calls without an argument

    def put(self, body: Any, extra: bytes, flag: int, generate: bool) -> int:
        """Add an entry; returns its index, or -1 if there is no room. Without `generate`, `extra`
        has a UNIQ_KEY."""
        if self.count == BATCH_COUNT_MAX:
            return -1
        number = self.count if generate else -1
        end = put_batch_item(self.buffer, self.bytes, body, self.id_head, number, extra, flag)
        if end < 0:
            return -1
        self.bytes = end
        self.count += 1
        return self.count - 1

    def handle(self, index: int) -> SendHandle:
        """The handle of message `index`."""
        # The subclass ProducerBatch, which alone is instantiated, is what a handle takes.
        return SendHandle(self, index)  # type: ignore[arg-type]

    def result(self, index: int) -> SendResult:
        """The result of message `index`; only for a batch that is done without an error."""
        # As in `handle`.
        return SendResult(self, index)  # type: ignore[arg-type]


class Outbox:
    """The open batches that take messages without further checks: the loop knows them and will come
    for them."""

    __slots__ = ("alone_from", "open")

    def __init__(self, alone_from: int) -> None:
        self.alone_from = alone_from
        self.open: dict[str, Any] = {}  # by topic

    def offer(self, message: Message) -> SendHandle | None:
        """Put an ordinary message (no property that means something to the client, a body of bytes
        that is not compressed) into the open batch of its topic. Returns None, and does nothing,
        for any other message, without an open batch, or if that is full."""
        return None  # only the kernel is atomic without a lock: refuse all here

    def offer_all(self, messages: Sequence[Message]) -> list[SendHandle] | None:
        """As `offer`, all messages or none of them; they have one topic. Returns their handles."""
        return None  # as in `offer`


def pack(batch: BatchFields, messages: Sequence[Message], topic: str, most: int) -> bool:
    """Put ordinary messages of `topic` (see `Outbox.offer`) into `batch`, which is empty. False if
    one is not ordinary, or the batch would have more than `most` bytes: then it is of no use."""
    return False  # the caller's loop, which checks each message, is the reference


def handles_of(batch: BatchFields) -> list[SendHandle]:
    """The handles of all messages."""
    return [batch.handle(index) for index in range(batch.count)]


def results_of(batch: BatchFields) -> list[SendResult]:
    """The results of all messages; only for a batch that is done without an error."""
    return [batch.result(index) for index in range(batch.count)]

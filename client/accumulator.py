"""Messages on their way out: batches, the lanes they queue in, and the handles their senders hold.

Senders on any thread append under one lock and wake the loop once; the loop thread alone takes
batches out. With linger 0 there is no timer: what queued while the last batch was in flight goes in
the next one. A message costs no future and no task: its handle is a reference to the batch and a
position in it.

A lane is one topic's queue of batches, or one pinned queue's (sharding keys, selectors). Batch
bodies are encoded while appending, in the form of SEND_BATCH_MESSAGE (protocol/batch.py); a message
that cannot be batched (delayed, %RETRY%, compressed) is a batch of its own, sent by
SEND_MESSAGE_V2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from saturnmq.client.results import SendResult, SendStatus
from saturnmq.protocol.errors import RequestTimeout, SaturnError
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.kernels import encode_batch_item
from saturnmq.protocol.message import MessageQueue

ITEM_OVERHEAD = 22  # bytes of a batch entry besides body and properties


class OutBatch:
    """Messages that travel together; also the shared state of their handles."""

    __slots__ = (
        "attempts",
        "avoid",
        "body",
        "born_ms",
        "bytes",
        "deadline",
        "done",
        "error",
        "first_offset",
        "flag",
        "ids",
        "lane",
        "offset_ids",
        "properties",
        "queue",
        "sent_at",
        "single",
        "status",
        "sys_flag",
        "watchers",
    )

    def __init__(self, lane: Lane, born_ms: int, *, single: bool = False) -> None:
        self.lane = lane
        self.body: Any = bytearray()
        self.ids: list[str] = []
        self.bytes = 0
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
        self.error: BaseException | None = None
        self.status = SendStatus.OK
        self.queue: MessageQueue | None = lane.pinned
        self.first_offset = 0
        self.offset_ids = ""
        self.watchers: list[Callable[[], object]] | None = None

    def result(self, index: int) -> SendResult:
        """The result of message `index`, or its error raised; only when done."""
        if self.error is not None:
            raise self.error
        offset_ids = self.offset_ids.split(",")
        assert self.queue is not None
        return SendResult(
            self.status,
            self.ids[index],
            offset_ids[index] if index < len(offset_ids) else "",
            self.queue,
            self.first_offset + index,
        )


class Lane:
    """Batches of one topic, or of one pinned queue, in the order they were filled."""

    __slots__ = (
        "dirty",
        "in_flight",
        "next_queue",
        "open",
        "pinned",
        "ready",
        "resolving",
        "topic",
    )

    def __init__(self, topic: str, pinned: MessageQueue | None, next_queue: int) -> None:
        self.topic = topic
        self.pinned = pinned
        self.open: OutBatch | None = None
        self.ready: deque[OutBatch] = deque()
        self.in_flight: dict[str, int] = {}  # batches per broker name
        self.next_queue = next_queue
        self.dirty = False
        self.resolving = False


class SendHandle:
    """A message under way. Each face, synchronous and asynchronous, adds its way to wait."""

    __slots__ = ("batch", "index", "owner")

    def __init__(self, owner: Accumulator, batch: OutBatch, index: int) -> None:
        self.owner = owner
        self.batch = batch
        self.index = index

    @property
    def message_id(self) -> str:
        """The UNIQ_KEY this message was given."""
        return self.batch.ids[self.index]

    def done(self) -> bool:
        return self.batch.done

    def exception(self) -> BaseException | None:
        """The error of a finished send; None if it succeeded or is still under way."""
        return self.batch.error

    def add_done_callback(self, callback: Callable[[SendHandle], object]) -> None:
        """Call `callback(self)` on the client's loop when the send is over, or now if it is."""
        if not self.owner.watch(self.batch, lambda: callback(self)):
            callback(self)


class Accumulator:
    """All lanes of one producer and the bound on what they hold."""

    def __init__(
        self,
        lock: AbstractContextManager[Any],
        now_ms: Callable[[], int],
        ids: UniqueIds,
        wake: Callable[[], object],
        *,
        batch_bytes: int,
        buffer_bytes: int,
        first_queue: Callable[[], int],
    ) -> None:
        self.lock = lock
        self.now_ms = now_ms
        self.ids = ids
        self.wake = wake
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self.first_queue = first_queue
        self.buffered = 0
        self.lanes: dict[str | MessageQueue, Lane] = {}
        self.dirty: list[Lane] = []
        self.active: set[OutBatch] = set()
        self.on_space: Callable[[], object] | None = None
        self.starving = False

    # -- any thread ---------------------------------------------------------------------------

    def append(
        self,
        topic: str,
        pinned: MessageQueue | None,
        body: Any,
        *,
        extra: bytes,
        flag: int,
        uid: str,
    ) -> tuple[OutBatch, int] | None:
        """Put one message into its lane's open batch; None when the buffer is full.

        `extra` is the encoded properties besides UNIQ_KEY and WAIT; `uid` is empty for a new id.
        """
        size = ITEM_OVERHEAD + len(body) + len(extra) + 64
        with self.lock:
            if self.buffered + size > self.buffer_bytes and self.buffered:
                self.starving = True
                return None
            lane = self.lanes.get(pinned or topic)
            if lane is None:
                lane = self._lane(topic, pinned)
            batch = lane.open
            if batch is None:
                batch = lane.open = OutBatch(lane, self.now_ms())
                self.active.add(batch)
            elif batch.bytes + size > self.batch_bytes:
                lane.ready.append(batch)
                batch = lane.open = OutBatch(lane, self.now_ms())
                self.active.add(batch)
            if not uid:
                uid = self.ids.next()
            encode_batch_item(
                batch.body,
                body,
                b"UNIQ_KEY\x01%b\x02WAIT\x01true\x02%b" % (uid.encode(), extra),
                flag,
            )
            ids = batch.ids
            index = len(ids)
            ids.append(uid)
            batch.bytes += size
            self.buffered += size
            if not lane.dirty:
                self._mark(lane)
        return batch, index

    def append_batch(
        self, topic: str, pinned: MessageQueue | None, batch_of: Callable[[Lane], OutBatch]
    ) -> OutBatch | None:
        """Put a batch made whole by `batch_of` into its lane, behind what is there."""
        with self.lock:
            lane = self.lanes.get(pinned or topic)
            if lane is None:
                lane = self._lane(topic, pinned)
            batch = batch_of(lane)
            if self.buffered + batch.bytes > self.buffer_bytes and self.buffered:
                self.starving = True
                return None
            if lane.open is not None:
                lane.ready.append(lane.open)
                lane.open = None
            lane.ready.append(batch)
            self.active.add(batch)
            self.buffered += batch.bytes
            if not lane.dirty:
                self._mark(lane)
        return batch

    def watch(self, batch: OutBatch, call: Callable[[], object]) -> bool:
        """Have `call` called on the loop when `batch` is done; False if it already is."""
        with self.lock:
            if batch.done:
                return False
            if batch.watchers is None:
                batch.watchers = [call]
            else:
                batch.watchers.append(call)
            return True

    def _lane(self, topic: str, pinned: MessageQueue | None) -> Lane:
        lane = self.lanes[pinned or topic] = Lane(topic, pinned, self.first_queue())
        return lane

    def _mark(self, lane: Lane) -> None:
        lane.dirty = True
        self.dirty.append(lane)
        if len(self.dirty) == 1:
            self.wake()

    # -- the loop thread ----------------------------------------------------------------------

    def take_dirty(self) -> list[Lane]:
        """The lanes that got something since the last call."""
        with self.lock:
            lanes, self.dirty = self.dirty, []
            for lane in lanes:
                lane.dirty = False
        return lanes

    @staticmethod
    def head(lane: Lane) -> OutBatch | None:
        """The batch that would go next; a closed one, or the open one as it is now."""
        if lane.ready:
            return lane.ready[0]
        return lane.open

    def pop(self, lane: Lane) -> OutBatch:
        """Take the head out; nothing is added to it from now on."""
        with self.lock:
            if lane.ready:
                return lane.ready.popleft()
            batch, lane.open = lane.open, None
            assert batch is not None
            return batch

    def finish(self, batch: OutBatch, error: BaseException | None = None) -> None:
        """The batch is over: free its bytes, wake whoever waits for it or for space."""
        with self.lock:
            if batch.done:
                return
            batch.error = error
            batch.done = True
            watchers, batch.watchers = batch.watchers, None
            self.active.discard(batch)
            self.buffered -= batch.bytes
            batch.body = b""
            batch.properties = ""
            room = self.starving and self.buffered <= self.buffer_bytes // 2
            if room:
                self.starving = False
        if watchers:
            for call in watchers:
                call()
        if room and self.on_space is not None:
            self.on_space()

    def fail_lane(self, lane: Lane, error: SaturnError) -> None:
        """Finish everything that waits in `lane` with `error`."""
        while self.head(lane) is not None:
            self.finish(self.pop(lane), error)


def not_in_time(batch: OutBatch, seconds: float, last: BaseException | None) -> SaturnError:
    """The error of a batch that ran out of time, naming the last reason."""
    where = f" to {batch.queue.broker_name} queue {batch.queue.queue_id}" if batch.queue else ""
    return RequestTimeout(
        f"send{where} of topic {batch.lane.topic!r} not acknowledged in {seconds:g} s after "
        f"{batch.attempts} attempts; last reason: {last!r}. It may or may not be stored; raise "
        "send_timeout or delivery_timeout to wait longer"
    )

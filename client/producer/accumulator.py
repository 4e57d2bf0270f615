"""Messages that wait to be sent, in their lanes.

Senders on any thread append under one lock and wake the loop once; the loop thread alone takes
batches out. The messages that queued while the last batch was in flight go in the next one; a batch
may also fill for a moment first (lingering.py), in which its lane wakes nobody.

A message that cannot be batched (delayed, %RETRY%, compressed) is a batch of its own, sent by
SEND_MESSAGE_V2.

Most messages never come here: once the loop knows a lane's open batch, the outbox puts messages
into it, in one step of C that no other thread sees half done.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from saturnmq.client.kernels import Outbox
from saturnmq.client.producer.batch import ITEM_OVERHEAD, ProducerBatch, SendHandle
from saturnmq.client.producer.lanes import Lane, Pin
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.message import MessageQueue
from saturnmq.runtime import forks
from saturnmq.runtime.errors import MessageIllegal, RequestTimeout, SaturnError

log = logging.getLogger(__name__)

FIRST_BUFFER = 16 * 1024  # bytes; grows to the whole batch on the way
SPARE_BUFFERS = 32
# Batches go round the queues, so few messages are spread evenly by small ones only. A lane begins
# with batches of about this many messages; after this many such batches it is a stream, whose
# batches may be four times as large, and so on. The lane begins anew after a rest, and when
# somebody waits for the newest answers.
SPREAD_MESSAGES = 64
SPREAD_BATCHES = 16
REST_MS = 50
# A sender that is this many largest batches ahead of the loop pauses until one is taken, or for
# PACE_S. The sender holds the GIL, which the loop needs to take them, and otherwise gives it up
# only every 5 ms.
READY_AHEAD = 2
PACE_S = 0.002


class ThreadLock(Protocol):
    """A threading.Lock, or its stand-in where there is one thread."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: Any) -> object: ...


class Gate(Protocol):
    """A threading.Lock that is held from the start; `release` opens it."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class Accumulator:
    """All lanes of one producer and the bound on what they hold."""

    def __init__(
        self,
        lock: ThreadLock,
        now_ms: Callable[[], int],
        ids: UniqueIds,
        wake: Callable[[], object],
        wait: Callable[[ProducerBatch, float | None], object],
        wait_async: Callable[[ProducerBatch], Awaitable[None]],
        *,
        batch_bytes: int,
        buffer_bytes: int,
        alone_from: int,
        first_queue: Callable[[], int],
        gate: Callable[[], Gate] | None = None,
    ) -> None:
        """`wait` is how a thread waits for a batch, `wait_async` how a task does; bodies of
        `alone_from` bytes and more travel alone. `gate` is given where senders are threads of
        their own."""
        self.lock = lock
        self.now_ms = now_ms
        self.ids = ids
        self.wake = wake
        self.wait = wait
        self.wait_async = wait_async
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self.first_queue = first_queue
        self.gate = gate
        self.gates: list[Gate] = []
        self.buffered = 0  # bytes of all batches' buffers
        self.lanes: dict[str | Pin, Lane] = {}
        self.dirty: list[Lane] = []
        self.active: set[ProducerBatch] = set()
        self.spare: list[bytearray] = []
        self.on_space: Callable[[], object] | None = None
        self.starving = False
        self._outbox = Outbox(alone_from)
        self.offer = self._outbox.offer
        self.offer_all = self._outbox.offer_all
        self.routeless: dict[str, SaturnError] = {}
        """The topics that wait for a route, and why there was none when it was last asked for."""
        self.renamed: Callable[[MessageQueue], MessageQueue] | None = None  # of a finished batch
        self._refusing = False

    # -- any thread ---------------------------------------------------------------------------

    def append(
        self, lane: Lane, body: Any, extra: bytes, flag: int, given_id: str
    ) -> SendHandle | None:
        """Put one message into the lane's open batch; None when the buffer is full.

        `extra` is the encoded properties besides UNIQ_KEY and WAIT; if `given_id`, with those.
        """
        with self.lock:
            batch = lane.open
            index = -1 if batch is None else batch.put(body, extra, flag, not given_id)
            if batch is None or index < 0:
                batch = self._with_room(lane, len(body) + len(extra) + ITEM_OVERHEAD)
                if batch is None:
                    return None
                index = batch.put(body, extra, flag, not given_id)
                if index < 0:
                    raise no_room(body)
            if given_id:
                batch.given_ids[index] = given_id
            self._mark(lane)
            if lane.pinned is None and not self._refusing:
                self._outbox.open[lane.topic] = batch
            gate = self._gate(lane)
        if gate is not None:
            gate.acquire(timeout=PACE_S)
        return batch.handle(index)

    def _with_room(self, lane: Lane, need: int) -> ProducerBatch | None:
        """An open batch with room for `need` bytes: the one there is, made larger, or a new one.
        The outbox adds nothing to it meanwhile."""
        self._hide(lane)
        batch = lane.open
        most = self._size_now(lane, need)
        if batch is not None and batch.bytes + need <= most:
            size = min(most, max(4 * len(batch.buffer), batch.bytes + need))
            if size > len(batch.buffer):
                return batch if self._grow(batch, size) else None
        spare = self.spare and need <= most == self.batch_bytes
        size = most if spare else max(min(most, FIRST_BUFFER), need)
        if self._lacks(size):
            return None
        if batch is not None:
            lane.put(batch)
            self._hurry(lane)
        lane.open = self.batch(lane, self.spare.pop() if spare else bytearray(size))
        lane.begun += 1
        lane.begun_ms = lane.open.born_ms
        self._count(lane.open)
        return lane.open

    def _size_now(self, lane: Lane, need: int) -> int:
        """The bytes that a batch of `lane` may have now if it holds messages of `need` bytes."""
        if lane.pinned is not None:
            return self.batch_bytes
        if self.now_ms() - lane.begun_ms > REST_MS:
            lane.begun = 0
        few = SPREAD_MESSAGES * need << min(2 * (lane.begun // SPREAD_BATCHES), 32)
        return min(few, self.batch_bytes)

    def batch(self, lane: Lane, buffer: Any, *, single: bool = False) -> ProducerBatch:
        """A new batch for `lane`, not yet in it."""
        head = self.ids.batch_head().encode()
        batch = ProducerBatch(lane, self.now_ms(), head, buffer, single)
        batch.queue = None if lane.pinned is None else lane.pinned.queue
        batch.callbacks = None
        batch.packed = b""
        return batch

    def _grow(self, batch: ProducerBatch, size: int) -> bool:
        """Give `batch` a buffer of `size` bytes; False if that is more than all may have."""
        if self._lacks(size - batch.reserved):
            return False
        spare = self.spare and size == self.batch_bytes
        larger = self.spare.pop() if spare else bytearray(size)
        larger[: batch.bytes] = memoryview(batch.buffer)[: batch.bytes]
        batch.buffer = larger
        self.buffered += size - batch.reserved
        batch.reserved = size
        return True

    def append_batch(
        self, lane: Lane, batch: ProducerBatch, *, pace: bool = False, shared: bool = False
    ) -> bool:
        """Put a whole batch into its lane, behind what is there; False when the buffer is full.
        With `pace` the sender pauses if it is far ahead of the loop. A batch that is `shared` takes
        others while it waits, if the lane is a stream whose batches are larger."""
        with self.lock:
            if self._lacks(batch.reserved):
                return False
            if lane.open is not None:
                self._hide(lane)
                lane.put(lane.open)
                lane.open = None
            self._count(batch)
            if not shared or not self._share(lane, batch):
                lane.put(batch)
            self._hurry(lane)
            gate = self._gate(lane) if pace else None
        if gate is not None:
            gate.acquire(timeout=PACE_S)
        return True

    def _share(self, lane: Lane, batch: ProducerBatch) -> bool:
        """Make a whole batch the lane's open one, if there may be room for another in it."""
        most = self._size_now(lane, batch.bytes // batch.count)
        lane.begun += 1
        lane.begun_ms = batch.born_ms
        if lane.pinned is not None or 2 * batch.bytes > most or not self._grow(batch, most):
            return False
        lane.open = batch
        if not self._refusing:
            self._outbox.open[lane.topic] = batch
        return True

    def is_ahead(self, lane: Lane) -> bool:
        """Whether the senders of `lane` are far ahead of the loop."""
        return lane.ready_bytes >= READY_AHEAD * self.batch_bytes

    def _gate(self, lane: Lane) -> Gate | None:
        """A gate to wait at, for a sender that is far ahead of the loop."""
        if self.gate is None or not self.is_ahead(lane):
            return None
        gate = self.gate()
        self.gates.append(gate)
        return gate

    def _hide(self, lane: Lane) -> None:
        """Withdraw the lane's open batch from the outbox; offers made so far are complete."""
        if lane.pinned is None:
            self._outbox.open.pop(lane.topic, None)

    def _lacks(self, size: int) -> bool:
        if self.buffered and self.buffered + size > self.buffer_bytes:
            self.starving = True
            return True
        return False

    def _count(self, batch: ProducerBatch) -> None:
        self.active.add(batch)
        self.buffered += batch.reserved

    def _mark(self, lane: Lane) -> None:
        if not lane.dirty:
            lane.dirty = True
            self.dirty.append(lane)
            if len(self.dirty) == 1:
                self.wake()

    def _hurry(self, lane: Lane) -> None:
        """Have the loop look at `lane` now, even if it lingers."""
        if lane.lingers:
            lane.lingers = lane.dirty = False
        self._mark(lane)

    def watch(
        self, batch: ProducerBatch, call: Callable[[], object], *, waits: bool = False
    ) -> bool:
        """Have `call` called on the loop when `batch` is done; False if it already is. `waits`:
        somebody does nothing else meanwhile, so the batch goes at once."""
        with self.lock:
            if batch.done:
                return False
            batch.watchers.append(call)
            lane = batch.lane
            if batch is (lane.open or (lane.ready[-1] if lane.ready else batch)):
                lane.begun = 0  # whoever waits for the newest messages sends no stream of them
            if waits:
                lane.awaited = True
                if lane.lingers:
                    self._hurry(lane)
            return True

    def call_when_done(
        self, batch: ProducerBatch, callback: Callable[[SendHandle], object], handle: SendHandle
    ) -> bool:
        """Have `callback(handle)` called on the loop when `batch` is done; False if it already
        is."""
        with self.lock:
            if batch.done:
                return False
            if batch.callbacks is None:
                batch.callbacks = []
            batch.callbacks += (callback, handle)
            return True

    def last_try(self, topic: str, batch: ProducerBatch | None = None) -> str:
        """Text for whoever waited in vain: how the last try ended, if that is known."""
        trouble = self.routeless.get(topic) or getattr(batch, "trouble", None)
        return f" (the last try: {trouble})" if trouble is not None else ""

    def claim(self, batch: ProducerBatch, broker: str) -> bool:
        """As `adopt`, before a thread sends the batch; False if its lane is not idle any more, or
        the buffer is full."""
        with self.lock:
            if not batch.lane.is_idle or self._lacks(batch.reserved):
                return False
            self._count(batch)
            batch.lane.depart(broker)
            return True

    def lane(self, topic: str, pinned: Pin | None) -> Lane:
        """The lane of a topic or of a pinned queue; made when it is first asked for."""
        key = topic if pinned is None else pinned
        lane = self.lanes.get(key)
        if lane is None:
            with self.lock:
                lane = self.lanes.setdefault(key, Lane(self, topic, pinned, self.first_queue()))
        return lane

    # -- the loop thread ----------------------------------------------------------------------

    def lanes_of(self, topic: str) -> list[Lane]:
        """All lanes of a topic."""
        with self.lock:
            return [lane for lane in self.lanes.values() if lane.topic == topic]

    def take_dirty(self) -> list[Lane]:
        """The lanes that got something since the last call."""
        with self.lock:
            lanes, self.dirty = self.dirty, []
            for lane in lanes:
                lane.dirty = False
        return lanes

    def let_fill(self, lane: Lane) -> None:
        """Appends to `lane` wake nobody, until a batch is full or somebody waits for one."""
        with self.lock:
            if not lane.dirty:
                lane.dirty = lane.lingers = True

    def moment_over(self, lanes: Iterable[Lane]) -> None:
        """Their batches do not linger again."""
        with self.lock:
            for lane in lanes:
                lane.filled = lane.open
                if lane.lingers:
                    lane.lingers = lane.dirty = False

    @staticmethod
    def head(lane: Lane) -> ProducerBatch | None:
        """The batch that goes next: a closed one, or the open one as it is now."""
        if lane.ready:
            return lane.ready[0]
        batch = lane.open
        return batch if batch is not None and batch.count else None

    def pop(self, lane: Lane, broker: str = "") -> ProducerBatch:
        """Take the head out, on its way to `broker` if one is named; nothing is added to it from
        now on."""
        with self.lock:
            if broker:  # before the lane looks empty to a thread that does not ask for the lock
                lane.depart(broker)
            for gate in self.gates:
                gate.release()
            self.gates.clear()
            if lane.ready:
                return lane.take()
            self._hide(lane)
            batch, lane.open = lane.open, None
            assert batch is not None
            return batch

    def adopt(self, batch: ProducerBatch, broker: str) -> None:
        """Take responsibility for a batch that is on its way to `broker`, sent without passing
        through its lane."""
        with self.lock:
            self._count(batch)
            batch.lane.depart(broker)

    def finish(self, batch: ProducerBatch, error: BaseException | None = None) -> None:
        """The batch is over: free its bytes and wake the tasks and threads that wait for it or for
        space."""
        with self.lock:
            if batch.done:
                return
            batch.error = error
            if self.renamed is not None and batch.queue is not None:
                batch.queue = self.renamed(batch.queue)
            batch.done = True
            watchers, batch.watchers = batch.watchers, []
            callbacks, batch.callbacks = batch.callbacks, None
            self.active.discard(batch)
            self.buffered -= batch.reserved
            if (
                error is None
                and batch.attempts == 1  # the transport of a failed attempt may hold the buffer
                and not batch.single
                and batch.reserved == self.batch_bytes
                and isinstance(batch.buffer, bytearray)  # not one that came encoded
                and len(self.spare) < SPARE_BUFFERS
            ):
                self.spare.append(batch.buffer)
            batch.buffer = b""
            batch.properties = ""
            room = self.starving and self.buffered <= self.buffer_bytes // 2
            if room:
                self.starving = False
        if callbacks:
            _call_back(callbacks)
        for call in watchers:
            call()
        if room and self.on_space is not None:
            self.on_space()

    def fail_lane(self, lane: Lane, error: SaturnError) -> None:
        """Finish everything that waits in `lane` with `error`."""
        while self.head(lane) is not None:
            self.finish(self.pop(lane), error)

    def refuse_offers(self) -> None:
        """Let every message go through `append` and its checks from now on."""
        with self.lock:
            self._refusing = True
            self._outbox.open.clear()

    def forked(self) -> None:
        """Accept nothing in a forked child, where no send waits."""
        self.lock = forks.ForkedLock()
        for batch in list(self.active):
            batch.callbacks = None  # the next one asks for the lock
        self._outbox.open.clear()

    def close(self, error: SaturnError) -> None:
        """Finish everything with `error`."""
        for lane in list(self.lanes.values()):
            self.fail_lane(lane, error)
        for batch in list(self.active):
            self.finish(batch, error)


def _call_back(callbacks: list[Any]) -> None:
    """Make the application's calls; one that raises keeps no other from its answer."""
    each = iter(callbacks)
    for callback, handle in zip(each, each, strict=True):
        try:
            callback(handle)
        except BaseException:  # SystemExit too: it would leave the others without their answers
            log.exception("the callback of a send raised")


def no_room(body: Any) -> MessageIllegal:
    """The error of a body that its batch was made for, and that does not fit into it."""
    return MessageIllegal(
        f"the body, {type(body).__name__} of {len(body)} B, grew while it was sent: leave it alone "
        "until the send has returned"
    )


def not_in_time(batch: ProducerBatch, seconds: float, last: BaseException | None) -> SaturnError:
    """The error of a batch that ran out of time, naming the last reason."""
    where = f" to {batch.queue.broker_name} queue {batch.queue.queue_id}" if batch.queue else ""
    return RequestTimeout(
        f"send{where} of topic {batch.lane.topic!r} not acknowledged in {seconds:g} s after "
        f"{batch.attempts} attempts; last reason: {last!r}. It may or may not be stored; raise "
        "send_timeout or delivery_timeout to wait longer"
    )

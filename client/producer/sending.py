"""The loop side of a producer: it decides which batch goes to which queue when, and how a failure
is handled.

The rules, in RocketMQ's terms (docs/internals/protocol.md 2.1, 6):

- unpinned batches go round robin over the writable queues, by batch, leaving out brokers in
  back-off; a retry avoids the broker that failed; at most `retries` extra attempts, but one that
  was refused without being stored (no master now) is repeated for `send_timeout` in all
- a part-filled batch leaves only when none of its lane is in flight to that broker, full ones up to
  `in_flight` of them: messages that queue while the last batch is under way go together
- small batches of several lanes go to a broker in one request (carriers.py)
- while messages come fast, a part-filled batch for which nobody waits fills first (lingering.py)
- pinned batches (sharding key, selector, queue) go one at a time, and a failed one is repeated on
  its own queue until `delivery_timeout`, so that their order holds; later ones wait behind it
- a queue that is gone, because its topic was made smaller, is answered with 29: the batch goes to
  another queue of the topic. All batches that wait for a gone queue by a key or a selector go to
  one other queue, in order, and before those sent after the change; messages for which the caller
  gave the queue go there or fail
- with `until_delivered` unpinned batches too are repeated until `delivery_timeout`, elsewhere if
  there is one
- response codes 17 14 1 2 16 204 205 1500, time-outs and lost connections are retried, others fail
  at once, and 16 if it denies the user access; 10 11 12 are stored messages with a warning and are
  handed to the caller as they are, unless `retry_unless_stored`
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from saturnmq.client.core import ClientCore
from saturnmq.client.producer.accumulator import Accumulator, not_in_time
from saturnmq.client.producer.batch import ProducerBatch
from saturnmq.client.producer.carriers import SMALL_BYTES, Carrier, Carriers, read_answers
from saturnmq.client.producer.faults import FaultStrategy
from saturnmq.client.producer.lanes import Lane, Pin
from saturnmq.client.producer.leftovers import Leftovers
from saturnmq.client.producer.lingering import Lingering
from saturnmq.client.producer.options import ProducerOptions
from saturnmq.client.producer.placing import KeyQueues
from saturnmq.client.producer.results import STATUS_OF_CODE, SendStatus
from saturnmq.client.producer.waiting_for_routes import until_routed
from saturnmq.client.producer.zipping import Zipper, zipped
from saturnmq.protocol import checked
from saturnmq.protocol.batch import SIZES
from saturnmq.protocol.batches import encode_parts
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC
from saturnmq.runtime.errors import (
    AccessDenied,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    FlushDiskTimeout,
    InvalidParameter,
    MalformedFrame,
    RequestTimeout,
    SaturnError,
    SystemError_,
    TopicNotExist,
    error_for,
)

log = logging.getLogger(__name__)

RETRY_CODES = frozenset({17, 14, 1, 2, 16, 204, 205, 1500})


class Sender:
    """Takes batches out of the accumulator and gets them acknowledged. Loop thread only."""

    def __init__(
        self, core: ClientCore, accumulator: Accumulator, group: str, options: ProducerOptions
    ) -> None:
        self.core = core
        self.runtime = core.runtime
        self.accumulator = accumulator
        self.group = group
        self.options = options
        self.faults = FaultStrategy(options.latency_table)
        self.key_queues = KeyQueues(core, options.absence_timeout, self._keys_moved)
        self.leftovers = Leftovers()
        self.closed = False
        self._carriers = Carriers()
        self._zipper = Zipper(core.runtime, core.tasks)
        self._connecting: dict[str, deque[tuple[ProducerBatch, MessageQueue]]] = {}  # by address
        self._lingering = Lingering(self.runtime, accumulator, options.linger, self._go)
        self._loading = False
        self._failed_at: dict[str, str | None] = {}  # broker name -> its master's address then
        core.on_route_change(self._route_changed)

    def pump(self) -> None:
        """Send what may be sent of the lanes that got something."""
        self._go(self.accumulator.take_dirty())

    def _go(self, lanes: Iterable[Lane]) -> None:
        self._together(self._pump_lanes, lanes)

    @property
    def gathers(self) -> bool:
        """Whether messages come so fast that each had better wait for others."""
        return self._lingering.is_fast

    def close(self) -> None:
        """Send nothing more."""
        self.closed = True
        self._lingering.close()

    def _pump_lanes(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self.pump_lane(lane)

    def _together(self, work: Callable[..., None], *args: Any) -> None:
        """Have the small batches that `work` sends leave together at its end."""
        if self._loading:
            work(*args)
            return
        self._loading = True
        try:
            work(*args)
        finally:
            self._loading = False
            self._leave_now()

    def pump_lane(self, lane: Lane) -> None:
        head = self.accumulator.head
        try:
            batch = head(lane)
            if self._is_left_over(lane):  # filled by a thread that chose its queue before
                self.leftovers.add(lane)
            while batch is not None:
                if self.closed:
                    self.accumulator.fail_lane(lane, ClientClosed("the producer is closed"))
                    return
                if self._lingering.keeps(lane, batch):
                    return
                queue = self._place(lane, whole=batch is not lane.open)
                if queue is None:
                    return
                batch = self.accumulator.pop(lane, queue.broker_name)
                self._lingering.took(batch.count)
                batch.deadline = self.runtime.monotonic() + self.options.patience_s(lane.pinned)
                self._attempt(batch, queue)
                batch = head(lane)
        except Exception as error:  # a bug; nothing may wait in a lane that nobody empties
            failed = self.core.tasks.failed(f"sending to {lane.topic!r} failed", error)
            self.accumulator.fail_lane(lane, failed)

    # -- where to ------------------------------------------------------------------------------

    def _place(self, lane: Lane, *, whole: bool) -> MessageQueue | None:
        """The queue for a batch now, or None if it has to wait (something will pump again)."""
        if not self._has_route(lane):
            self._resolve(lane)
            return None
        if lane.pinned is not None:
            if lane.in_flight or (lane.pinned.chosen and self.leftovers.hold_back(lane)):
                return None
            bound_to = self._bound_to(lane.pinned)
            if not whole and not self._carriers.has_room(bound_to.broker_name):
                self._carriers.stand_in_line(lane, [bound_to.broker_name])
                return None
            return bound_to
        queues = self.core.publish_queues(lane.topic)
        limit = self.options.in_flight if whole else 1
        now = self.runtime.monotonic()
        count = len(queues)
        start = lane.next_queue
        crowded: set[str] = set()
        for step in range(count):
            queue = queues[(start + step) % count]
            name = queue.broker_name
            if (
                name not in crowded
                and self.faults.available(name, now)
                and lane.in_flight.get(name, 0) < limit
            ):
                if whole or self._carriers.has_room(name):
                    lane.next_queue = (start + step + 1) % count
                    return queue
                crowded.add(name)
        if crowded:
            self._carriers.stand_in_line(lane, crowded)
            return None
        return self._least_bad(lane, queues, limit)

    def _has_route(self, lane: Lane) -> bool:
        """Whether the lane has a queue; the one that batches are pinned to may be away for now."""
        if lane.pinned is not None:
            return self.core.routes.route(lane.topic) is not None
        return bool(self.core.publish_queues(lane.topic))

    def _bound_to(self, pin: Pin) -> MessageQueue:
        """The pin's queue, or its replacement if the queue is gone."""
        if not self._is_gone(pin):
            return pin.queue
        queues = self.key_queues.round(pin.queue.topic).queues
        led = [each for each in queues if self.core.broker_address(each.broker_name) is not None]
        queues = led or queues
        return queues[pin.queue.queue_id % len(queues)]

    def _is_gone(self, pin: Pin) -> bool:
        queues = self.key_queues.round(pin.queue.topic).queues
        return pin.chosen and bool(queues) and pin.queue not in queues

    def _is_left_over(self, lane: Lane) -> bool:
        """Whether `lane` has work of an earlier round."""
        pin = lane.pinned
        if pin is None or not pin.chosen or not self._has_work(lane):
            return False
        return pin.round < self.key_queues.round(lane.topic).number

    def _keys_moved(self, topic: str) -> None:
        """Begin another round."""
        for lane in self.accumulator.lanes_of(topic):
            if self._is_left_over(lane):
                self.leftovers.add(lane)

    def _has_work(self, lane: Lane) -> bool:
        return bool(lane.in_flight) or self.accumulator.head(lane) is not None

    def _least_bad(self, lane: Lane, queues: list[MessageQueue], limit: int) -> MessageQueue | None:
        """A queue of the broker whose back-off ends first; a broker that is well comes before all,
        but is busy here."""
        broker = self.faults.least_bad({queue.broker_name for queue in queues})
        if broker is None or lane.in_flight.get(broker, 0) >= limit:
            return None
        return lane.next_of([queue for queue in queues if queue.broker_name == broker])

    def _elsewhere(self, batch: ProducerBatch) -> MessageQueue | None:
        """The queue for a repeated unpinned batch: on another broker than the one that failed, if
        possible."""
        lane: Lane = batch.lane
        queues = self.core.publish_queues(lane.topic)
        if not queues:
            return None
        now = self.runtime.monotonic()
        others = [queue for queue in queues if queue.broker_name != batch.avoid] or queues
        sound = [queue for queue in others if self.faults.available(queue.broker_name, now)]
        return lane.next_of(sound or others)

    def _resolve(self, lane: Lane) -> None:
        if not lane.resolving:
            lane.resolving = True
            self.core.tasks.once(
                partial(self._resolve_lane, lane),
                name=f"route for {lane.topic}",
                failed=partial(self._unresolved, lane),
            )

    def _unresolved(self, lane: Lane, error: SaturnError) -> None:
        lane.resolving = False
        self.accumulator.fail_lane(lane, error)

    async def _resolve_lane(self, lane: Lane) -> None:
        """Find a route for the lane, or fail the batches in it."""
        is_found = partial(self._has_route, lane)
        try:
            await until_routed(self, lane.topic, self.options.patience_s(lane.pinned), is_found)
        except SaturnError as error:
            self._unresolved(lane, error)
        else:
            lane.resolving = False
            self.pump_lane(lane)

    # -- one attempt ---------------------------------------------------------------------------

    def _attempt(self, batch: ProducerBatch, queue: MessageQueue) -> None:
        batch.attempt(queue, self.runtime.monotonic())
        try:
            address = self.core.broker_address(queue.broker_name)
            if address is None:
                reason = f"broker {queue.broker_name} has no master in the route"
                self.runtime.call_soon(self._failed, batch, queue, ConnectFailed(reason))
                return
            waiting = self._connecting.get(address)
            if waiting is not None:  # also if it is connected now: the others go first
                waiting.append((batch, queue))
                return
            endpoint = self.core.connected(address)
            if endpoint is not None:
                self._transmit(batch, queue, endpoint)
                return
            self._connecting[address] = deque([(batch, queue)])
            self.core.tasks.once(
                partial(self._connect, address),
                name=f"send to {address}",
                failed=partial(self._connected, address),
            )
        except Exception as error:
            self.runtime.call_soon(self._broke, [batch], error)

    def _broke(self, batches: Iterable[ProducerBatch], error: Exception) -> None:
        """End batches that met a bug, which may have sent them."""
        failed = self.core.tasks.failed("a send failed", error)
        for batch in [each for each in batches if not each.done]:
            assert batch.queue is not None, "it was attempted"
            batch.unsure = True
            self._over(batch, batch.queue, failed)

    def _ending(self, batches: Sequence[ProducerBatch], work: Callable[..., None], *a: Any) -> None:
        """Have `work` take in the answer for these batches."""
        try:
            self._together(work, *a)
        except Exception as error:
            self._broke(batches, error)

    async def _connect(self, address: str) -> None:
        result: Endpoint | SaturnError
        try:
            result = await self.core.connect(address)
        except SaturnError as error:
            result = error
        self._connected(address, result)

    def _connected(self, address: str, result: Endpoint | SaturnError) -> None:
        """Go on with the batches that wait for a connection, in their order."""
        if isinstance(result, SaturnError):
            for batch, queue in self._connecting.pop(address):
                self._failed(batch, queue, result)
            return
        waiting = self._connecting[address]  # those that come meanwhile go last
        while waiting:
            self._transmit(*waiting[0], result)
            waiting.popleft()
        del self._connecting[address]

    def _transmit(self, batch: ProducerBatch, queue: MessageQueue, endpoint: Endpoint) -> None:
        if self.options.compression and not batch.packed:
            self._zipper.take(batch, partial(self._send, batch, queue, endpoint))
            return
        alone = batch.single or batch.attempts > 1
        if not alone and batch.bytes <= SMALL_BYTES:
            self._together(self._carriers.load, batch, queue, endpoint)
            return
        if self._carriers.holds(batch.lane, queue.broker_name):
            self._leave_now()
        self._send(batch, queue, endpoint)

    def _leave_now(self) -> None:
        for carrier in self._carriers.leaving():
            self._leave(carrier)

    def _leave(self, carrier: Carrier) -> None:
        if len(carrier.batches) == 1:
            [(batch, queue)] = carrier.batches
            self._send(batch, queue, carrier.endpoint, carrier)
            return
        ext = {
            "a": self.group,
            "c": AUTO_CREATE_TOPIC,
            "d": str(self.core.default_topic_queues),
            "n": carrier.broker,
        }
        command = Command(int(RequestCode.SEND_BATCHES), ext, encode_parts(carrier.parts()))
        batches = [batch for batch, _ in carrier.batches]
        answered = partial(self._ending, batches, self._carried, carrier)
        self._ask(carrier.endpoint, command, batches, answered)

    def _send(
        self,
        batch: ProducerBatch,
        queue: MessageQueue,
        endpoint: Endpoint,
        carrier: Carrier | None = None,
    ) -> None:
        def answered(result: Command | SaturnError) -> None:
            if carrier is not None:
                self._arrived(carrier)
            self._settle(batch, queue, result)

        ending = partial(self._ending, [batch], answered)
        self._ask(endpoint, self.command(batch, queue), [batch], ending)

    def _ask(
        self,
        endpoint: Endpoint,
        command: Command,
        batches: Sequence[ProducerBatch],
        answered: Callable[[Command | SaturnError], None],
    ) -> None:
        sent_at = batches[0].sent_at
        left = min(batch.deadline for batch in batches) - sent_at
        timeout = min(self.options.send_timeout, max(left, 0.05))

        def check(result: Command | SaturnError) -> None:
            if isinstance(result, RequestTimeout) and endpoint.last_received < sent_at:
                # No answer came at all: a new connection is faster than the back-off of this one.
                endpoint.abort("no answer in time")
            answered(result)

        try:
            endpoint.request_callback(command, timeout, check)
        except SaturnError as error:  # too large for a frame
            answered(error)

    def _arrived(self, carrier: Carrier) -> None:
        """Let the lanes in line for this broker leave."""
        self._carriers.arrived(carrier)
        while (lane := self._carriers.next_in_line(carrier.broker)) is not None:
            self.pump_lane(lane)

    def _carried(self, carrier: Carrier, result: Command | SaturnError) -> None:
        """Take in the answer for several batches."""
        self._arrived(carrier)
        if isinstance(result, SaturnError):
            for batch, queue in carrier.batches:
                self._failed(batch, queue, result)
        elif result.code not in STATUS_OF_CODE and result.code not in RETRY_CODES:
            # The broker does not know the request, or refuses it: that says nothing about a single
            # batch.
            self._carriers.take_none(carrier.endpoint)
            for batch, queue in carrier.batches:
                self._send(batch, queue, carrier.endpoint)
        else:
            errors = read_answers(carrier, result)
            for (batch, queue), error in zip(carrier.batches, errors, strict=True):
                self._answered(batch, queue, error)

    def command(self, batch: ProducerBatch, queue: MessageQueue) -> Command:
        """The request that carries `batch` to `queue`."""
        single = batch.single
        properties = (
            batch.properties if single else f"UNIQ_KEY\x01{batch.message_id(0)}\x02WAIT\x01true\x02"
        )
        ext = {
            "a": self.group,
            "b": queue.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(self.core.default_topic_queues),
            "e": str(queue.queue_id),
            "f": str(batch.sys_flag),
            "g": str(batch.born_ms),
            "h": str(batch.flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false" if single else "true",
            "n": queue.broker_name,
            SIZES: "true",
        }
        if self.options.compression and not single:
            return zipped(batch, ext)
        code = RequestCode.SEND_MESSAGE_V2 if single else RequestCode.SEND_BATCH_MESSAGE
        return Command(int(code), ext, batch.body)

    def _settle(
        self, batch: ProducerBatch, queue: MessageQueue, result: Command | SaturnError
    ) -> None:
        if isinstance(result, SaturnError):
            self._failed(batch, queue, result)
        else:
            self._answered(batch, queue, self.read_answer(batch, queue, result))

    def _answered(
        self, batch: ProducerBatch, queue: MessageQueue, error: SaturnError | None
    ) -> None:
        if error is not None:
            self._refused(batch, queue, error)
            return
        now = self.runtime.monotonic()
        self.faults.succeeded(queue.broker_name, (now - batch.sent_at) * 1000.0, now)
        if self.wants_another(batch):
            batch.unsure = True
            self._again(batch, queue)
        else:
            self._over(batch, queue, None)

    def read_answer(
        self, batch: ProducerBatch, queue: MessageQueue, response: Command
    ) -> SaturnError | None:
        """Copy the broker's answer about a stored batch into it, or return why it is not stored."""
        status = STATUS_OF_CODE.get(response.code)
        ext = response.ext
        # A broker whose disk fails a write answers FLUSH_DISK_TIMEOUT, too: the message may be
        # stored, and has no place.
        if status is None or (status is not SendStatus.OK and "queueOffset" not in ext):
            return error_for(response.code, response.remark)
        try:
            first = checked.integer(ext, "queueOffset", 0)
            queue_id = checked.integer(ext, "queueId", queue.queue_id, most=QUEUES_MAX)
        except MalformedFrame as error:
            return SystemError_(f"{queue.broker_name} answers a send with nonsense: {error}")
        batch.status = status
        batch.first_offset = first
        batch.offset_ids = ext.get("msgId") or ""
        batch.sizes = bytes(response.body)
        if self.options.compression and not batch.single:
            batch.sizes = bytes(4 * batch.count)  # all its messages have the place of one frame
        if handle := ext.get("recallHandle"):
            batch.recall_handle = handle
        if queue_id != queue.queue_id:
            batch.queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return None

    def wants_another(self, batch: ProducerBatch) -> bool:
        """Whether to try a batch again that was stored short of its ack mode."""
        return (
            batch.status is not SendStatus.OK
            and self.options.retry_unless_stored
            and batch.attempts <= self.options.retries
        )

    def queue_now(self, lane: Lane) -> MessageQueue | None:
        """A queue for an idle lane, for a caller on any thread; None: it has to wait."""
        return self._place(lane, whole=True) if self._has_route(lane) else None

    def take_over(
        self, batch: ProducerBatch, queue: MessageQueue, error: SaturnError | None
    ) -> None:
        """Go on with a batch whose first attempt was made on another thread; `error` is None if it
        was stored short of its ack mode."""
        batch.deadline = batch.sent_at + self.options.patience_s(batch.lane.pinned)
        self.accumulator.adopt(batch, queue.broker_name)
        if error is None:
            batch.unsure = True
            self._again(batch, queue)
        else:
            self._refused(batch, queue, error)

    def begin(self, batch: ProducerBatch, queue: MessageQueue) -> bool:
        """The first attempt at a batch of an idle lane, by a thread that sends it itself; `settled`
        has to follow. False if the thread must not send it."""
        batch.attempt(queue, self.runtime.monotonic())
        batch.deadline = batch.sent_at + self.options.patience_s(batch.lane.pinned)
        return self.accumulator.claim(batch, queue.broker_name)

    def settled(
        self, batch: ProducerBatch, queue: MessageQueue, result: Command | SaturnError
    ) -> None:
        """Act on the answer to an attempt that began with `begin`, or on the lack of one."""
        self._lingering.took(batch.count)
        self._ending([batch], self._settle, batch, queue, result)

    # -- after an attempt ----------------------------------------------------------------------

    def _over(self, batch: ProducerBatch, queue: MessageQueue, error: SaturnError | None) -> None:
        lane = batch.lane
        lane.land(queue.broker_name)
        if error is not None and batch.unsure and error.outcome == "rejected":
            error = copy.copy(error)  # the error may belong to other batches too
            error.outcome = "unknown"
        self.accumulator.finish(batch, error)
        self.pump_lane(lane)
        if not self._has_work(lane) and self.leftovers.remove(lane):
            for waiting in self.accumulator.lanes_of(lane.topic):
                self.pump_lane(waiting)

    def _refused(self, batch: ProducerBatch, queue: MessageQueue, error: SaturnError) -> None:
        """Handle an attempt that ended with `error`: repeat it, or give up at once if repeating
        cannot help."""
        may_move = (pin := batch.lane.pinned) is None or pin.chosen
        if isinstance(error, TopicNotExist) and may_move:
            self.key_queues.withdraw(queue.topic, queue.broker_name)
        if (
            (error.code in RETRY_CODES and not isinstance(error, AccessDenied))
            or isinstance(error, (ConnectionLost, FlushDiskTimeout, RequestTimeout))
            or (isinstance(error, InvalidParameter) and may_move)
        ):
            self._failed(batch, queue, error)
        else:
            self._over(batch, queue, error)

    def _failed(self, batch: ProducerBatch, queue: MessageQueue, error: SaturnError) -> None:
        if batch.done:
            return
        now = self.runtime.monotonic()
        queue_is_gone = isinstance(error, InvalidParameter)  # and its broker is well
        if not queue_is_gone:
            self.faults.failed(queue.broker_name, now)
            self._failed_at[queue.broker_name] = self.core.broker_address(queue.broker_name)
        if error.refresh_route or queue_is_gone or isinstance(error, RequestTimeout):
            self.core.refresh_soon(queue.topic)
        batch.unsure = batch.unsure or error.outcome == "unknown"
        batch.trouble = error
        if self.closed or self.core.closed or self._spent(batch, error, now):
            self._over(batch, queue, error)
            return
        pause = batch.pause_s
        if now + (pause if batch.lane.pinned else 0.0) >= batch.deadline:
            self._over(
                batch, queue, not_in_time(batch, self.options.patience_s(batch.lane.pinned), error)
            )
            return
        log.debug("attempt %d of a send to %s failed: %s", batch.attempts, queue, error)
        self._again(batch, queue)

    def _route_changed(self, topic: str) -> None:
        """Use a failed broker again once its master has a successor, or is back."""
        for name, failed in list(self._failed_at.items()):
            address = self.core.broker_address(name)
            if address is None:
                self._failed_at[name] = None
            elif address != failed:
                del self._failed_at[name]
                self.faults.back_online(name)

    def _spent(self, batch: ProducerBatch, error: SaturnError, now: float) -> bool:
        """Whether `batch` has had all the attempts that an error of this kind allows."""
        retries = self.options.retries
        if batch.attempts <= retries or self.options.until_delivered:
            return False
        if isinstance(error, InvalidParameter):
            return False  # a queue that is gone says nothing about the next one
        if isinstance(error, (SystemError_, TopicNotExist)):
            return True  # answers of a living broker do not improve with waiting
        if batch.lane.pinned is not None:
            return False
        # Another attempt at a batch that may be stored may store it twice. After a refusal it
        # cannot, and a missing master may have a successor in a moment.
        return (
            not retries
            or error.outcome == "unknown"
            or now >= batch.deadline - (self.options.send_timeout * retries)
        )

    def _again(self, batch: ProducerBatch, queue: MessageQueue) -> None:
        """Repeat a batch: at once on another healthy broker; otherwise, and for a pinned batch on
        its own queue, after a pause."""
        batch.avoid = queue.broker_name
        if batch.lane.pinned is not None:
            self.runtime.call_later(batch.pause_s, self._attempt_bound, batch, queue)
            return
        other = self._elsewhere(batch) or queue
        self._move(batch.lane, queue, other)
        well = self.faults.available(other.broker_name, self.runtime.monotonic())
        if well and other.broker_name != queue.broker_name:
            self._attempt(batch, other)
        else:
            self.runtime.call_later(batch.pause_s, self._attempt, batch, other)

    def _attempt_bound(self, batch: ProducerBatch, queue: MessageQueue) -> None:
        """Repeat a pinned batch, which went to `queue`; the queue may be gone by now."""
        pin = batch.lane.pinned
        assert pin is not None
        bound_to = self._bound_to(pin)
        self._move(batch.lane, queue, bound_to)
        self._attempt(batch, bound_to)

    def _move(self, lane: Lane, old: MessageQueue, new: MessageQueue) -> None:
        lane.depart(new.broker_name)
        lane.land(old.broker_name)

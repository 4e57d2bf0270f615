"""The path of synchronous sends of a few threads: request and answer in the calling thread.

A thread that sends one message and waits takes this path if fewer than AT_ONCE others are on it and
nothing of the same lane waits or is in flight. So the sends of a single thread keep their order,
and the sends of many threads travel together in batches. The path covers the first attempt only:
the Sender on the loop decides about a failed attempt, as it does for all sends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

from saturnmq.client.connections import SUCCEEDED_S
from saturnmq.client.producer.batch import ProducerBatch, SendResult
from saturnmq.client.producer.engine import ProducerEngine
from saturnmq.client.producer.lanes import Lane, Pin
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.runtime import forks
from saturnmq.runtime.errors import SaturnError

IDLE_S = 1.0  # an older connection is checked before use: the peer may have closed it
LOOK_S = 1e-3  # a broker answers within it, if its disk or its slaves are fast
# Each thread on the way to the loop and back costs more than a request of its own: on two
# processors, batches of fewer threads than these bring fewer messages a second.
AT_ONCE = 4


class DirectSend:
    """Sends of AT_ONCE threads at most, each on a line of its own."""

    def __init__(self, engine: ProducerEngine) -> None:
        self._engine = engine
        self._lines = [SendLine(engine) for _ in range(AT_ONCE)]
        self._closed = False
        engine.core.on_route_change(self._route_changed)
        forks.register(self)

    def send(self, message: Message, pinned: Pin | None) -> SendResult | ProducerBatch | None:
        """The result; or the batch, if the first attempt failed and others follow on the loop; or
        None, with nothing done, when this path is not free."""
        batch = self._try(message.topic, pinned, partial(self._engine.only, message))
        if batch is not None and batch.done and batch.error is None:
            return batch.result(0)
        return batch

    def send_batch(self, messages: Sequence[Message], pinned: Pin | None) -> ProducerBatch | None:
        """As `send`, for messages that are stored together; the batch in either case."""
        if not messages:
            return None  # the ordinary path raises the error
        make = partial(self._engine.batch_of, messages)
        return self._try(messages[0].topic, pinned, lambda lane: make(lane.pinned))

    def _try(
        self, topic: str, pinned: Pin | None, make: Callable[[Lane], ProducerBatch]
    ) -> ProducerBatch | None:
        lane = self._engine.accumulator.lanes.get(topic if pinned is None else pinned)
        if lane is None or not lane.is_idle:
            return None  # the lane's first message makes it, and finds its route
        for line in self._lines:
            if line.turn.acquire(blocking=False):
                try:
                    return None if self._closed else line.send(lane, make)
                finally:
                    line.turn.release()
        return None

    def _route_changed(self, topic: str) -> None:
        """Act on a changed route, on the loop: a send that waits for a master with a successor may
        wait in vain."""
        for line in self._lines:
            line.masters_changed()

    def forked(self) -> None:
        """A child takes the ordinary path, which raises the error."""
        self._closed = True

    def close(self) -> None:
        """Close the connections once the sends under way are over."""
        self._closed = True
        for line in self._lines:
            with line.turn:
                line.close()


class SendLine:
    """One connection per broker, for one send at a time: of the thread that has its turn."""

    def __init__(self, engine: ProducerEngine) -> None:
        self.turn = threading.Lock()
        self._engine = engine
        self._channels: dict[str, Channel] = {}
        self._busy: Channel | None = None

    def send(self, lane: Lane, make: Callable[[Lane], ProducerBatch]) -> ProducerBatch | None:
        """Make the first attempt at the batch of `make`; None, and none is made, if its broker
        cannot be reached now."""
        engine = self._engine
        queue = engine.sender.queue_now(lane)
        channel = None if queue is None else self._channel(queue)
        if queue is None or channel is None:
            return None
        batch = make(lane)
        now = engine.core.runtime.monotonic
        batch.attempt(queue, now())
        error: SaturnError | None
        self._busy = channel
        try:
            response = channel.request(
                engine.sender.command(batch, queue), engine.options.send_timeout
            )
            error = engine.sender.read_answer(batch, queue, response)
        except SaturnError as failure:
            self._drop(channel)
            error = failure
        except BaseException:  # interrupted: half a request may be sent, half an answer read
            self._drop(channel)
            raise
        finally:
            self._busy = None
        if error is None and not engine.sender.wants_another(batch):
            engine.sender.faults.succeeded(queue.broker_name, (now() - batch.sent_at) * 1e3, now())
            batch.done = True
            return batch
        engine.call_on_loop(lambda: engine.sender.take_over(batch, queue, error))
        return batch

    def _channel(self, queue: MessageQueue) -> Channel | None:
        core = self._engine.core
        address = core.broker_address(queue.broker_name)
        if address is None:
            return None
        channel = self._channels.get(address)
        if channel is not None and channel.idle_s() > IDLE_S and not channel.is_alive():
            self._drop(channel)
            channel = None
        if channel is None:
            try:
                channel = Channel(
                    core.runtime,
                    address,
                    core.connect_timeout,
                    look_s=LOOK_S,
                    tls=core.tls,
                    credentials=core.credentials,
                )
            except SaturnError:
                return None  # the ordinary path meets the same error and handles it
            self._channels[address] = channel
        return channel

    def masters_changed(self) -> None:
        """Leave a master that has a successor, if it does not answer soon; on the loop."""
        channel, core = self._busy, self._engine.core
        if channel is not None and not core.routes.leads(channel.address):
            now = core.runtime.monotonic()
            core.runtime.call_later(SUCCEEDED_S, self._leave, channel, now)

    def _leave(self, channel: Channel, since: float) -> None:
        if self._busy is channel and channel.is_silent_since(since):
            channel.abort()

    def _drop(self, channel: Channel) -> None:
        channel.close()
        self._channels.pop(channel.address, None)

    def close(self) -> None:
        """Close the connections."""
        for channel in list(self._channels.values()):
            self._drop(channel)

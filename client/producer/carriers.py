"""Requests that carry small batches of several lanes to one broker.

A request costs both sides more than the few messages of a small batch do, so a producer that writes
to a thousand topics must not send one for each. At most UNDER_WAY requests of small batches are on
their way to a broker; a lane that gets messages meanwhile stands in line and fills its batch. When
an answer comes, the lanes in line leave together (protocol/batches.py). A broker that does not take
such requests, as RocketMQ's do not, gets each batch in a request of its own. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from saturnmq.client.producer.batch import ProducerBatch
from saturnmq.client.producer.lanes import Lane
from saturnmq.client.producer.results import STATUS_OF_CODE
from saturnmq.protocol import checked
from saturnmq.protocol.batches import HOST, BatchPart, decode_answers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.runtime.errors import MalformedFrame, SaturnError, SystemError_, error_for

UNDER_WAY = 4  # the broker has the next one while the client takes in an answer
SMALL_BYTES = 64 << 10  # a small batch is copied into the request; a larger one goes alone
PARTS = 32  # of a carrier; one is answered while the next is filled
CARRIER_BYTES = 1 << 20


class Carrier:
    """One request and the batches in it, each with the queue that it goes to."""

    __slots__ = ("batches", "broker", "bytes", "endpoint")

    def __init__(self, broker: str, endpoint: Endpoint) -> None:
        self.broker = broker
        self.endpoint = endpoint
        self.batches: list[tuple[ProducerBatch, MessageQueue]] = []
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.batches) >= PARTS or self.bytes > CARRIER_BYTES - SMALL_BYTES

    def takes(self, batch: ProducerBatch, endpoint: Endpoint) -> bool:
        """Whether `batch` may join. Full batches of one lane, which come one after the other, go in
        requests of their own: the queues get them at once."""
        return (
            not self.is_full
            and endpoint is self.endpoint
            and self.batches[-1][0].lane is not batch.lane
        )

    def parts(self) -> Iterator[BatchPart]:
        for batch, queue in self.batches:
            yield BatchPart(queue.topic, queue.queue_id, batch.sys_flag, batch.born_ms, batch.body)


class Carriers:
    """The carriers of one producer, by broker name."""

    def __init__(self) -> None:
        self._under_way: dict[str, int] = {}
        self._loading: dict[str, list[Carrier]] = {}  # the last one may take more
        self._in_line: dict[str, dict[Lane, None]] = {}
        self._each_alone: set[Endpoint] = set()

    def has_room(self, broker: str) -> bool:
        """Whether one more small batch may leave for `broker` now."""
        if self._under_way.get(broker, 0) < UNDER_WAY:
            return True
        loading = self._loading.get(broker)
        return loading is not None and not loading[-1].is_full

    def stand_in_line(self, lane: Lane, brokers: Iterable[str]) -> None:
        """Let `lane` wait until one of these brokers has room."""
        for broker in brokers:
            self._in_line.setdefault(broker, {})[lane] = None

    def next_in_line(self, broker: str) -> Lane | None:
        """The lane that may leave for `broker` now; it may be one that has left otherwise."""
        line = self._in_line.get(broker)
        if not line or not self.has_room(broker):
            return None
        lane = next(iter(line))
        del line[lane]
        return lane

    def load(self, batch: ProducerBatch, queue: MessageQueue, endpoint: Endpoint) -> None:
        """Put a batch into the carrier that leaves next for its broker."""
        broker = queue.broker_name
        loading = self._loading.setdefault(broker, [])
        if not loading or endpoint in self._each_alone or not loading[-1].takes(batch, endpoint):
            loading.append(Carrier(broker, endpoint))
            self._under_way[broker] = self._under_way.get(broker, 0) + 1
        loading[-1].batches.append((batch, queue))
        loading[-1].bytes += batch.bytes

    def holds(self, lane: Lane, broker: str) -> bool:
        """Whether a batch of `lane` is in a carrier for `broker` that has not left."""
        return any(
            batch.lane is lane
            for carrier in self._loading.get(broker, ())
            for batch, _ in carrier.batches
        )

    def leaving(self) -> list[Carrier]:
        """All loaded carriers."""
        loading, self._loading = self._loading, {}
        return [carrier for carriers in loading.values() for carrier in carriers]

    def arrived(self, carrier: Carrier) -> None:
        """The answer for `carrier` is here, or will never come."""
        self._under_way[carrier.broker] -= 1

    def take_none(self, endpoint: Endpoint) -> None:
        """Remember that the peer takes no carriers of several batches."""
        self._each_alone = {each for each in self._each_alone if not each.closed} | {endpoint}


def read_answers(carrier: Carrier, response: Command) -> list[SaturnError | None]:
    """Copy the broker's answers into the stored batches; returns for each batch why it is not
    stored."""
    status = STATUS_OF_CODE.get(response.code)
    if status is None:
        return [error_for(response.code, response.remark)] * len(carrier.batches)
    try:
        answers = decode_answers(response.body, len(carrier.batches))
        for answer in answers:
            checked.as_integer(answer.queue_id, "a queue id", -1, QUEUES_MAX)
            checked.as_integer(answer.queue_offset, "a queue offset")
            checked.as_integer(answer.physical_offset, "a physical offset")
    except MalformedFrame as error:
        nonsense = f"{carrier.broker} answers a send with nonsense: {error}"
        return [SystemError_(nonsense)] * len(carrier.batches)
    host = response.ext.get(HOST) or ""
    errors: list[SaturnError | None] = []
    for (batch, queue), answer in zip(carrier.batches, answers, strict=True):
        if answer.code:
            errors.append(error_for(answer.code, answer.rest.decode(errors="replace")))
            continue
        batch.status = status
        batch.first_offset = answer.queue_offset
        batch.offset_ids = f"{host}{answer.physical_offset:016X}"
        batch.sizes = answer.rest
        if answer.queue_id != queue.queue_id:
            batch.queue = MessageQueue(queue.topic, queue.broker_name, answer.queue_id)
        errors.append(None)
    return errors

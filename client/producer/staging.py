"""Exactly-once for sinks, on the writing side: stage the rows of a task, then publish all or none.

A sink writes in epochs (the micro-batches of a stream; a batch job is epoch 0), each of some
partitions. The rows of a partition are published once for (sink, epoch, partition), even if a
repeated task, a restarted driver or a client without an answer publishes them again. The broker
decides (`broker/exactly_once/staging.py`), so each partition must reach the same broker every time:
its number chooses one of the brokers that the sink is pinned to. The list is pinned at all of these
brokers when the sink is first opened. A partition that another broker has published already (the
list was replaced in the middle of an epoch) stays there.

A stage lives on one broker process and is gone with it: StageLost says so, and the caller stages
again. Every other error that may pass is retried for `retry_s` at most, and then raised.

The client blocks and serves one thread; without an event loop a worker process pays for nothing but
its requests.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from saturnmq.client.channels import Channels, Nameservers, document
from saturnmq.protocol import checked
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.codes import PERM_WRITE, RequestCode, ResponseCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import brokers_of
from saturnmq.runtime.door import server_addresses
from saturnmq.runtime.errors import (
    ConnectFailed,
    NoPermission,
    SaturnError,
    SystemError_,
    TopicNotExist,
    UnsupportedRequest,
    error_for,
)

log = logging.getLogger(__name__)

PAUSE_S = 0.05
PAUSE_MAX_S = 1.0
ABORT_S = 1.0
ROUTE_S = 30.0  # a route is asked for again after this time

T = TypeVar("T")


@dataclass(frozen=True)
class Pinned:
    """The brokers that the partitions of a sink go to. Picklable: tasks get it from their
    driver."""

    sink: str
    brokers: tuple[str, ...]
    finished: int = -1
    """The last finished epoch that any of the brokers knows."""
    published: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    """For epochs that are not finished: the brokers that have published this (epoch, partition)
    already."""

    def broker_of(self, epoch: int, partition: int) -> str:
        """Partitions go round the list, so that neighbours share the work."""
        first = zlib.crc32(self.sink.encode())
        name = self.brokers[(first + partition) % len(self.brokers)]
        known = self.published.get((epoch, partition), ())
        return name if name in known or not known else known[0]


@dataclass(frozen=True)
class Published:
    """`duplicate`: another attempt had published it, and this one changed nothing. `rows` and
    `offset` (physical) are those of the first time, or -1 where they are not known any more."""

    rows: int
    duplicate: bool
    offset: int


class StagingClient:
    """The brokers, as one writing process sees them."""

    def __init__(
        self,
        nameservers: str | Sequence[str],
        *,
        timeout_s: float = 30.0,
        retry_s: float = 120.0,
        channels: Channels | None = None,
    ) -> None:
        """`timeout_s`: how long one request may take; `retry_s`: how long to go on after failures
        that may pass; `channels`: the connections to use; by default its own."""
        addresses = server_addresses(nameservers)
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self.channels = Channels() if channels is None else channels
        self._own = channels is None
        self._nameservers = Nameservers(addresses, self.channels, timeout_s)
        self._addresses: dict[str, str] = {}  # of the masters, by broker

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless they belong to another."""
        if self._own:
            self.channels.close_idle()

    # for the driver

    def open(
        self, sink: str, topics: str | Sequence[str], *, brokers: Sequence[str] = ()
    ) -> Pinned:
        """Call it before the first task of a run: the brokers that this sink is pinned to. The
        first call pins the brokers that have all of `topics`, or `brokers`, which replaces
        another list. If several open the sink at once, the first list counts.

        TopicNotExist: no broker has the topics. ConfigError: a broker of the list is gone.
        UnsupportedRequest: a broker is not one of ours.
        """
        topics = [topics] if isinstance(topics, str) else list(topics)
        serving = [] if brokers and not topics else self._serving(topics)
        asked = sorted({*serving, *brokers})
        states = {name: self._state(sink, name) for name in asked}
        known = [state.brokers for state in states.values() if state.brokers]
        wanted = sorted(set(brokers)) or (known[0] if known else serving)
        for name in wanted:
            if name not in states:
                states[name] = self._state(sink, name)
        for name in sorted({name for told in known for name in told} - states.keys()):
            if (former := self._former(sink, name)) is not None:
                states[name] = former
        for name, state in sorted(states.items()):
            told = state.brokers
            if told != wanted and (told or name in wanted):
                states[name] = self._state(sink, name, pin=wanted, replace=bool(told))
                if states[name].brokers != wanted:
                    return self.open(sink, topics, brokers=brokers)
        published: dict[tuple[int, int], tuple[str, ...]] = {}
        for name, state in states.items():
            for key in state.published:
                published[key] = (*published.get(key, ()), name)
        finished = max(state.finished for state in states.values())
        return Pinned(sink, tuple(wanted), finished, published)

    def finish(self, pinned: Pinned, epoch: int) -> None:
        """All partitions of `epoch` are published: their markers need not be kept any longer, and a
        repeated publish is answered 'duplicate'."""
        for name in pinned.brokers:
            self.ask(name, RequestCode.FINISH_EPOCH, {"sink": pinned.sink, "epoch": str(epoch)})

    def abort(self, pinned: Pinned, epoch: int) -> None:
        """Drop the staged and unpublished rows of `epoch`; stages that cannot be reached end with
        their lease."""
        for name in pinned.brokers:
            self.abort_at(name, {"sink": pinned.sink, "epoch": str(epoch)})

    # for tasks

    def stage(
        self, pinned: Pinned, epoch: int, partition: int, *, broker: str | None = None
    ) -> Stage:
        """Begin a new attempt at a partition; it goes to `broker` if the rows themselves name one.
        (Then each broker publishes its share once.)"""
        name = broker or pinned.broker_of(epoch, partition)
        return Stage(self, pinned.sink, epoch, partition, name)

    def queues(self, broker: str, topic: str) -> int:
        """The number of queues of `topic` that take messages at `broker`; 0 if it does not have the
        topic. A broker that is away is waited for, because the placement of rows must not depend
        on that."""
        return self._patiently(broker, lambda: self._queues(broker, topic))

    def _queues(self, broker: str, topic: str) -> int:
        counts = self._counts(broker, topic, ROUTE_S)
        if not counts:
            self._addresses.pop(broker, None)
            self.address_of(broker)  # it is registered, and so are its topics
            counts = self._counts(broker, topic, 0.0)
        return sum(counts)

    def _counts(self, broker: str, topic: str, max_age_s: float) -> list[int]:
        route = self._nameservers.route(topic, max_age_s)
        return [
            queue.write_queues if queue.perm & PERM_WRITE else 0
            for queue in (route.queues if route else ())
            if queue.broker_name == broker
        ]

    # finding

    def _serving(self, topics: Sequence[str]) -> list[str]:
        """The brokers that have all of these topics."""
        names: set[str] | None = None
        for topic in topics:
            route = self._nameservers.route(topic, ROUTE_S)
            queues = route.queues if route else ()
            here = {queue.broker_name for queue in queues if queue.perm & PERM_WRITE}
            names = here if names is None else names & here
        if not names:
            raise TopicNotExist(
                f"no broker takes messages of {', '.join(topics) or 'no topic'}: create the "
                "missing ones on every broker that the sink is to use (saturnmq topic create)"
            )
        return sorted(names)

    def address_of(self, broker: str) -> str:
        """The address of the master of `broker`; ConnectFailed if it has none now."""
        if broker not in self._addresses:
            told = self._nameservers.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
            for data in brokers_of(told):
                if data.master:
                    self._addresses[data.broker_name] = data.master
        if broker not in self._addresses:
            raise ConnectFailed(
                f"no nameserver knows a master of broker {broker!r}: start it; or, if it is gone "
                "for good, give option 'brokers' with those that are left"
            )
        return self._addresses[broker]

    # asking

    def patiently(self, broker: str, attempt: Callable[[], Command]) -> Command:
        """The answer to `attempt`, which is repeated while its failures may pass."""

        return self._patiently(broker, lambda: _accepted(broker, attempt()))

    def _patiently(self, broker: str, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + self.retry_s
        pause = PAUSE_S
        while True:
            try:
                return attempt()
            except SaturnError as error:
                if not _may_pass(error) or time.monotonic() + pause > deadline:
                    raise
            self._addresses.pop(broker, None)  # there may be another master by now
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)

    def ask_at(self, broker: str, code: int, ext: dict[str, str], timeout_s: float) -> Command:
        """Send one request to the master of `broker`; returns the response, whatever its code."""
        return self.channels.request(self.address_of(broker), Command.request(code, ext), timeout_s)

    def ask(self, broker: str, code: int, ext: dict[str, str]) -> Command:
        """Send a request until it is carried out."""
        return self.patiently(broker, lambda: self.ask_at(broker, code, ext, self.timeout_s))

    def _state(
        self, sink: str, broker: str, *, pin: Sequence[str] = (), replace: bool = False
    ) -> SinkState:
        """The state of the sink at this broker, after the broker has got the list `pin`."""
        ext = {"sink": sink}
        if pin:
            ext |= {"brokers": ";".join(pin), "replace": "true" if replace else "false"}
        return SinkState.read(document(broker, self.ask(broker, RequestCode.SINK_STATE, ext)))

    def _former(self, sink: str, broker: str) -> SinkState | None:
        """The state at a broker of a list that is replaced, which may have published partitions of
        an unfinished epoch; None if it does not answer now: it may be gone for good."""
        try:
            response = self.ask_at(broker, RequestCode.SINK_STATE, {"sink": sink}, self.timeout_s)
            return SinkState.read(document(broker, _accepted(broker, response)))
        except SaturnError as error:
            log.warning(
                "broker %s, which sink %s wrote to before, does not answer: rows that it published "
                "of an unfinished epoch are written again: %s",
                broker,
                sink,
                error,
            )
            return None

    def abort_at(self, broker: str, ext: dict[str, str]) -> None:
        """Drop stages at `broker`, if that is possible now."""
        with contextlib.suppress(SaturnError):
            self.ask_at(broker, RequestCode.ABORT_STAGE, ext, ABORT_S)


@dataclass(frozen=True, slots=True)
class SinkState:
    """The state of a sink at one broker."""

    brokers: list[str]
    published: list[tuple[int, int]]  # epoch and partition
    finished: int  # the last finished epoch; -1: none

    @classmethod
    def read(cls, told: Mapping[Any, Any]) -> SinkState:
        """Parse the answer to SINK_STATE."""
        epochs = checked.table(told, "epochs")
        return cls(
            checked.texts(told, "brokers"),
            [
                (checked.as_integer(epoch, "an epoch"), checked.as_integer(part, "a partition"))
                for epoch in epochs
                for part in checked.table(epochs, epoch)
            ],
            checked.integer(told, "finished", -1, least=-1),
        )


class Stage:
    """One attempt at one partition. No other attempt can add to it; a lost stage stays lost."""

    def __init__(
        self, client: StagingClient, sink: str, epoch: int, partition: int, broker: str
    ) -> None:
        self.broker = broker
        self.rows = 0
        self.bytes = 0
        self._client = client
        self._key = {
            "sink": sink,
            "epoch": str(epoch),
            "partition": str(partition),
            "attempt": uuid.uuid4().hex,
        }
        self._chunks = 0
        self._duplicate = False  # all of it is published: no more need be sent
        self._channel: Channel | None = None
        self._sent: Command | None = None  # not answered yet

    def add(
        self,
        topic: str,
        queue_id: int,
        body: bytes | bytearray | memoryview,
        rows: int,
        *,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
    ) -> None:
        """Stage `rows` messages of one queue, given as MessageBatch entries (`protocol/batch.py`).
        The request is on its way when this returns, and the caller can prepare the next one
        meanwhile.

        StageLost: the broker does not have the rows added before; begin a new stage.
        MessageIllegal: the rows are too much for one partition, or one row is too large for a
        message.
        """
        self._settle()
        self.rows += rows
        entries = bytes(body)
        self.bytes += len(entries)
        if not self._duplicate:
            ext = self._key | {
                "seq": str(self._chunks),
                "topic": topic,
                "queueId": str(queue_id),
                "sysFlag": str(sys_flag),
            }
            if born_timestamp is not None:  # else the broker's time
                ext["bornTimestamp"] = str(born_timestamp)
            self._sent = Command.request(RequestCode.STAGE, ext, entries)
            with contextlib.suppress(SaturnError):
                self._send(self._sent)  # `_settle` sends it again
        self._chunks += 1

    def publish(self) -> Published:
        """Make all added rows visible; `duplicate` is set if they were published before. Errors as
        of `add`."""
        self._settle()
        self._give_back()
        told = {"chunks": str(self._chunks), "rows": str(self.rows), "bytes": str(self.bytes)}
        ext = self._client.ask(self.broker, RequestCode.PUBLISH, self._key | told).ext
        return Published(
            checked.integer(ext, "rows", least=-1),
            checked.text(ext, "duplicate") == "true",
            checked.integer(ext, "offset", least=-1),
        )

    def abort(self) -> None:
        """Give the stage up, best effort."""
        self._drop_channel()
        self._sent = None
        self._client.abort_at(self.broker, self._key)

    def _send(self, command: Command) -> None:
        try:
            if self._channel is None:
                self._channel = self._client.channels.take(self._client.address_of(self.broker))
            self._channel.ask(command, self._client.timeout_s)
        except SaturnError:
            self._drop_channel()
            raise

    def _settle(self) -> None:
        """Wait until the last request is staged."""
        command = self._sent
        if command is not None:
            self._sent = None
            answer = self._client.patiently(self.broker, lambda: self._answer_to(command))
            self._duplicate = answer.ext.get("duplicate") == "true"

    def _answer_to(self, command: Command) -> Command:
        if self._channel is None:
            self._send(command)
        assert self._channel is not None
        channel, self._channel = self._channel, None
        try:
            response = channel.answer()
        except SaturnError:
            channel.close()
            raise
        if response.code == ResponseCode.SUCCESS:
            self._channel = channel
        else:
            channel.close()
        return response

    def _give_back(self) -> None:
        if self._channel is not None:
            self._client.channels.give_back(self._channel.address, self._channel)
            self._channel = None

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _accepted(broker: str, response: Command) -> Command:
    """The response, if the request was carried out; else its error is raised."""
    if response.code != ResponseCode.SUCCESS:
        raise _refusal(broker, response)
    return response


def _refusal(broker: str, response: Command) -> SaturnError:
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return UnsupportedRequest(
            f"exactly-once needs a SaturnMQ broker, {broker!r} is none, or an older one: write "
            "with delivery=at-least-once, or name other brokers in option 'brokers'"
        )
    return error_for(response.code, response.remark)


def _may_pass(error: SaturnError) -> bool:
    """Whether the same request may be carried out later, by this broker or its next master."""
    return error.retriable and not isinstance(error, SystemError_ | TopicNotExist | NoPermission)

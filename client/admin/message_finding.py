"""Stored messages, found by id, key, place or time: what Admin asks of the brokers of a topic.

Ids and keys are in the IndexFiles (code 12), which store hashes and times cut to seconds; this
module drops the messages that do not match exactly. For a range of time it asks each queue for the
offsets of its beginning and its end (29) and pulls the messages between them (11), as RocketMQ's
tools do, in their group.

An open end is no bound at all, rather than "now": a broker whose clock is ahead hides nothing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from saturnmq.client.cluster_view import without_master
from saturnmq.client.consumer.pulling import Pulled, Puller
from saturnmq.client.consumer.starting import ask_offset
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked, kernels
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.ids import decode_message_id
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.protocol.trace import TraceKind, TraceRecord, decode_records
from saturnmq.runtime.door import join_address
from saturnmq.runtime.errors import (
    ConnectionLost,
    InvalidParameter,
    MalformedFrame,
    QueryNotFound,
    RequestTimeout,
    RouteNotFound,
    SaturnError,
)

log = logging.getLogger(__name__)

RESULTS = 64
TOOLS_GROUP = "TOOLS_CONSUMER"
UNIQUE_RESULTS = 32
INDEX_STEP_MS = 1000
NO_END_MS = checked.INT64_MAX
PAUSE_S = 0.05


class QueueEntry(NamedTuple):
    """One entry of a queue, as its broker has it in its ConsumeQueue."""

    offset: int
    """Of the message in its queue."""
    physical_offset: int
    """Of its frame in the log."""
    size: int
    """Of its frame, in bytes."""
    tags_code: int
    """The hash of its tag; of a delayed message the time of its delivery."""


async def serving(core: ClientCore, topic: str) -> list[str]:
    """The address of each broker of the topic: its master, or a slave if it has no master."""
    route = await core.route(topic, refresh=True)
    names = sorted({data.broker_name for data in route.queues})
    addresses = [core.broker_address(name, master=False) for name in names]
    return [address for address in addresses if address is not None]


async def masters_of(core: ClientCore, topic: str) -> list[str]:
    """The address of the master of each broker of the topic. RouteNotFound: one has none now."""
    route = await core.route(topic, refresh=True)
    found = []
    for name in sorted({data.broker_name for data in route.queues}):
        address = core.broker_address(name)
        if address is None:
            raise without_master(name)
        found.append(address)
    return found


def is_offset_id(message_id: str) -> bool:
    """Whether it is an offset id, and no unique id."""
    try:
        _place_in(message_id)
    except InvalidParameter:
        return False
    return True


def _place_in(offset_message_id: str) -> tuple[str, int]:
    """The address of the broker and the physical offset in an offset id."""
    host, port, offset = decode_message_id(offset_message_id)
    if not 0 < port <= 65535:  # a unique id has as many digits, and names a port by chance
        raise InvalidParameter(
            f"{offset_message_id!r} is no offset message id: it names no address of a broker"
        )
    return join_address(host, port), offset


class MessageFinder:
    """Looks for messages on one core; a server has `timeout` seconds for an answer."""

    def __init__(self, core: ClientCore, timeout: float) -> None:
        self._core = core
        self._timeout = timeout

    # -- by id ---------------------------------------------------------------------------------

    async def by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """The message that an offset id names, asked of the broker in it."""
        address, offset = _place_in(offset_message_id)
        command = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        answer = await self._core.invoke(address, command, self._timeout)
        found = self._named(kernels.decode_frames(answer.body), address)
        if not found:
            raise QueryNotFound(f"{address} answers with no message for {offset_message_id!r}")
        return found[0]

    async def by_id(self, message_id: str, topic: str | None) -> ReceivedMessage:
        """The message with an offset id, or, if the topic is given, with a unique id.
        QueryNotFound: no broker that could have it does; one that does not answer may."""
        if topic is not None:
            addresses = await serving(self._core, topic)
            found = await self.by_unique_id(addresses, topic, message_id)
            if found:
                return found[0]
        try:
            return await self.by_offset_id(message_id)
        except (ConnectionLost, RequestTimeout):
            raise
        except SaturnError as error:
            where = f" in topic {topic}" if topic else "; for a unique id give its topic too"
            raise QueryNotFound(f"no message with id {message_id!r}{where}: {error}") from None

    async def by_unique_id(
        self, addresses: Iterable[str], topic: str, unique_id: str
    ) -> list[ReceivedMessage]:
        """All messages of the topic at these brokers with this unique id, oldest first. A message
        can be stored more than once: sent again, or sent back by a consumer."""
        return await self._indexed(
            addresses,
            topic,
            unique_id,
            UNIQUE_RESULTS,
            lambda message: message.message_id == unique_id,
            unique=True,
        )

    # -- by place ------------------------------------------------------------------------------

    async def entries(self, queue: MessageQueue, offset: int, count: int) -> list[QueueEntry]:
        """At most `count` entries of a queue, from `offset` on."""
        await self._core.route(queue.topic)
        address = self._core.broker_address(queue.broker_name, master=False)
        if address is None:
            raise RouteNotFound(f"no broker {queue.broker_name} in the route of {queue.topic}")
        ext = {
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "index": str(offset),
            "count": str(count),
        }
        command = Command.request(RequestCode.QUERY_CONSUME_QUEUE, ext)
        answer = await self._core.invoke(address, command, self._timeout)
        listed = checked.items(checked.document(answer.body), "queueData")
        return [
            QueueEntry(
                offset + number,
                checked.integer(entry, "physicOffset"),
                checked.integer(entry, "physicSize"),
                checked.integer(entry, "tagsCode", least=-(1 << 63)),
            )
            for number, entry in enumerate(
                checked.as_table(item, "an entry of a queue") for item in listed
            )
        ]

    # -- by key --------------------------------------------------------------------------------

    async def by_key(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int | None
    ) -> list[ReceivedMessage]:
        """The newest `limit` messages with `key` that were stored in that time, oldest first."""
        until = _checked(limit, begin_ms, end_ms)
        found = await self._indexed(
            await serving(self._core, topic),
            topic,
            key,
            min(max(limit, RESULTS), checked.INT32_MAX),
            lambda message: key in message.keys and begin_ms <= message.store_timestamp <= until,
            begin_ms=begin_ms - INDEX_STEP_MS,
            end_ms=until,
        )
        return found[-limit:]

    async def traces(self, message_id: str, topic: str) -> list[TraceRecord]:
        """The records of traces in `topic` that are about the message, oldest first."""
        found: list[TraceRecord] = []
        for message in await self.by_key(topic, message_id, RESULTS, 0, None):
            host = message.born_host.rpartition(":")[0]
            try:
                records = list(decode_records(message.body))
            except MalformedFrame as error:
                log.warning("%s holds no traces and is passed over: %s", message, error)
                continue
            found += (
                replace(record, client_host=record.client_host or host)
                for record in records
                if record.message_id == message_id
            )
        order = list(TraceKind)
        return sorted(found, key=lambda record: (record.timestamp_ms, order.index(record.kind)))

    async def _indexed(
        self,
        addresses: Iterable[str],
        topic: str,
        key: str,
        most: int,
        fits: Callable[[ReceivedMessage], bool],
        *,
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
        unique: bool = False,
    ) -> list[ReceivedMessage]:
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(most),
            "beginTimestamp": str(max(0, begin_ms)),
            "endTimestamp": str(end_ms),
        }
        if unique:
            ext["_UNIQUE_KEY_QUERY"] = "true"
        found: list[ReceivedMessage] = []
        ok = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        for address in addresses:
            command = Command.request(RequestCode.QUERY_MESSAGE, dict(ext))
            answer = await self._core.invoke(address, command, self._timeout, ok)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                found += self._named(kernels.decode_frames(answer.body), address)
        return sorted(filter(fits, found), key=_by_time)

    def _named(self, messages: list[ReceivedMessage], address: str) -> list[ReceivedMessage]:
        name = self._core.routes.broker_name_of(address) or ""
        for message in messages:
            message.broker_name = name
        return messages

    # -- by place and time ---------------------------------------------------------------------

    async def offset_by_time(self, queue: MessageQueue, timestamp_ms: int, boundary: str) -> int:
        """The answer to 29, with RocketMQ's boundaries LOWER and UPPER."""
        await self._core.route(queue.topic)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        extra = {"timestamp": str(timestamp_ms), "boundaryType": boundary}
        return await ask_offset(self._core, code, queue, extra)

    async def by_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """The message at `offset` of `queue`; None if there is none."""
        await self._core.route(queue.topic, refresh=True)
        pulled = await self._pull(self._puller(queue.topic), queue, offset, 1)
        found = [message for message in pulled.messages if message.queue_offset == offset]
        return found[0] if found else None

    async def by_time(
        self, topic: str, begin_ms: int, end_ms: int | None, limit: int
    ) -> list[ReceivedMessage]:
        """The oldest `limit` messages that were stored in that time, oldest first."""
        until = _checked(limit, begin_ms, end_ms)
        await self._core.route(topic, refresh=True)
        puller = self._puller(topic)
        found: list[ReceivedMessage] = []
        for queue in self._core.subscribe_queues(topic):
            offset = await self.offset_by_time(queue, begin_ms, "LOWER")
            end = await ask_offset(self._core, RequestCode.GET_MAX_OFFSET, queue)
            if until != NO_END_MS:  # RocketMQ 4 tells the nearest message, maybe the last one
                end = min(end, 1 + await self.offset_by_time(queue, until + 1, "LOWER"))
            here: list[ReceivedMessage] = []
            async for messages in self._between(puller, queue, offset, end, limit):
                here += (
                    message for message in messages if begin_ms <= message.store_timestamp <= until
                )
                if len(here) >= limit:
                    break
            found += here[:limit]
        return sorted(found, key=_by_time)[:limit]

    async def all_of(self, topic: str) -> AsyncIterator[list[ReceivedMessage]]:
        """All messages that a topic has now, queue by queue, some at a time."""
        await self._core.route(topic, refresh=True)
        puller = self._puller(topic)
        for queue in self._core.subscribe_queues(topic):
            begin = await ask_offset(self._core, RequestCode.GET_MIN_OFFSET, queue)
            end = await ask_offset(self._core, RequestCode.GET_MAX_OFFSET, queue)
            async for messages in self._between(puller, queue, begin, end, RESULTS):
                yield messages

    async def _between(
        self, puller: Puller, queue: MessageQueue, offset: int, end: int, count: int
    ) -> AsyncIterator[list[ReceivedMessage]]:
        """The messages of a queue from `offset` to, not including, `end`; at most `count` each
        time."""
        while offset < end:
            pulled = await self._pull(puller, queue, offset, min(count, end - offset))
            yield [message for message in pulled.messages if message.queue_offset < end]
            offset = max(offset + 1, pulled.next_offset)

    def _puller(self, topic: str) -> Puller:
        return Puller(self._core, TOOLS_GROUP, {topic: Subscription.parse(topic, "*")})

    async def _pull(self, puller: Puller, queue: MessageQueue, offset: int, count: int) -> Pulled:
        """One pull; it waits only for a broker that can answer."""
        runtime = self._core.runtime
        deadline = runtime.monotonic() + self._timeout
        while True:
            pulled = await puller.pull(queue, offset, suspend_s=0.0, max_count=count)
            if not pulled.stalled:
                return pulled
            if runtime.monotonic() >= deadline:
                raise RequestTimeout(
                    f"offset {offset} of {queue} was not readable in {self._timeout:g} s: try again"
                )
            await runtime.sleep(PAUSE_S)


def _checked(limit: int, begin_ms: int, end_ms: int | None) -> int:
    """Check the arguments; returns the last millisecond of the range."""
    if limit < 1:
        raise InvalidParameter(f"limit {limit}: ask for at least 1 message")
    until = NO_END_MS if end_ms is None else min(end_ms, NO_END_MS)
    if until < begin_ms:
        raise InvalidParameter(f"the time from {begin_ms} to {until} ms ends before it begins")
    return until


def _by_time(message: ReceivedMessage) -> tuple[int, MessageQueue, int]:
    return message.store_timestamp, message.queue, message.queue_offset

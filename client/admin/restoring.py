"""Sending messages again that a truncation cut off (`saturnmq store restore-truncated`).

`purpose` decides from one frame alone as what it would be sent again. `Restorer` asks the cluster
which messages are still wanted and sends those:

- A message has its unique id. Its sender may have sent it again to the new master, or an earlier
  run may have: a message whose id is in the index of a broker of its topic is not wanted. A message
  without an id gets one made of its place and time of storage, the same in every run;
- A message that waited for its delay or its moment waits for the rest of it, or not at all. A copy
  that waits in the cluster or was delivered there is the same message. One that was recalled is not
  wanted;
- A message that a consumer sent back goes to the group's retry topic with its number of deliveries.
  A copy there with as many or more deliveries, or a dead letter, makes it unwanted;
- A message older than everything that a broker of the topic keeps is not sent: that broker may have
  had it.

A send whose outcome is unknown is not repeated; the message is looked for. Messages of one queue
stay in one queue and in their order, behind those sent there since.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from saturnmq.client.admin.message_finding import MessageFinder
from saturnmq.client.core import ClientCore
from saturnmq.client.producer.placing import queue_of
from saturnmq.client.single_send import send_again
from saturnmq.protocol import checked, topics
from saturnmq.protocol import properties as names
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frame import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_NONE,
)
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import brokers_in
from saturnmq.runtime.errors import RouteNotFound, SaturnError, TopicNotExist

GROUP = "saturnmq-restore"
TIMEOUT_S = 5.0
PATIENCE_S = 30.0
PAUSE_S = 0.1
ASKED_AT_ONCE = 64
DIGITS_MAX = 18  # of a number that may be a time

# Properties that belong to the broker that stored the message, or to its past deliveries.
_NOT_AGAIN = names.TRAVELS_ALONE | {
    names.SATURN_TIMER,
    names.TIMER_OUT_MS,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS,
    names.TIMER_ROLL_TIMES,
    names.CRC32,
    names.CLUSTER,
    names.MSG_REGION,
    names.REAL_QID,
    names.REAL_TOPIC,
    names.TRACE_ON,
    names.WAIT,
}


class RestoreVerdict(enum.Enum):
    """Whether a message is sent again; the value is the text for people."""

    WANTED = "to be sent"
    PRESENT = "in the cluster"
    REPEATED = "another copy of it is in these files"
    EXPIRED = "older than what a broker of its topic still keeps: it may have been there"
    NO_TOPIC = "its topic is gone"
    CLOSED = "its topic takes no messages now"
    RECALLED = "recalled before it was due"
    SYSTEM = "the brokers' own"
    TRANSACTION = "half a transaction"
    SINK = "row of an exactly-once sink: only a run of that publishes it once"
    UNREADABLE = "its properties are not UTF-8"


@dataclass(frozen=True, slots=True)
class Purpose:
    """The destination of a stored message when it is sent again. `queue_id` is a queue of its real
    topic. The message `waits`, or has waited, at level `delay_level` (0: never) or until `due_ms`
    (0: never), unless this is the record that it was `recalled`."""

    topic: str
    queue_id: int
    unique_id: str
    deliveries: int
    delay_level: int
    waits: bool
    due_ms: int = 0
    recalled: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The key that all copies of a message share."""
        return self.topic, self.unique_id

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """The rank of a copy: the copy with the highest rank has come furthest."""
        return self.recalled, self.deliveries, not self.waits


class Item(NamedTuple):
    """A message, its purpose, and the place where it was found."""

    message: ReceivedMessage
    purpose: Purpose
    origin: str


def purpose(message: ReceivedMessage) -> Purpose | RestoreVerdict:
    """The purpose of a frame of a log, or the reason why it is not sent again."""
    topic, queue_id, properties = message.topic, message.queue_id, message.properties
    if topic in (topics.HALF_TOPIC, topics.ROCKSDB_HALF_TOPIC):
        return RestoreVerdict.TRANSACTION
    if message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
        return RestoreVerdict.TRANSACTION
    waits = topic in (topics.SCHEDULE_TOPIC, topics.TIMER_TOPIC)
    if waits:
        topic = properties.get(names.REAL_TOPIC, topic)
        queue_id = _number(properties.get(names.REAL_QID, ""))
    if topics.is_system_topic(topic) or topic in topics.NOT_SENDABLE:
        return RestoreVerdict.SYSTEM
    if topic.endswith(topics.REPLY_SUFFIX):  # its requester no longer waits for the reply
        return RestoreVerdict.SYSTEM
    try:
        message.raw_properties.decode()
    except UnicodeDecodeError:
        return RestoreVerdict.UNREADABLE
    return Purpose(
        topic,
        queue_id,
        properties.get(names.UNIQ_KEY) or f"{message.message_id}{message.store_timestamp:016X}",
        message.reconsume_times,
        _number(properties.get(names.DELAY, "")),
        waits,
        _due_ms(properties),
        names.TIMER_DEL_UNIQKEY in properties,
    )


def _due_ms(properties: Mapping[str, str]) -> int:
    """The moment of a timed message; of a delay the end of the second in which it was over."""
    out = _number(properties.get(names.TIMER_OUT_MS, ""))
    return out and (_number(properties.get(names.TIMER_DELIVER_MS, "")) or out + 1000)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else 0


def delay_left(level: int, stored_ms: int, now_ms: int, delays_ms: Sequence[int]) -> int:
    """The shortest level that waits at least for the rest of a delay; 0 if no time is left.
    `delays_ms` has the delays of the levels from 1 on. A clock that is behind counts as one that
    stands still."""
    if level <= 0:
        return 0
    left = delays_ms[min(level, len(delays_ms)) - 1] - max(0, now_ms - stored_ms)
    if left <= 0:
        return 0
    return min((delay, n) for n, delay in enumerate(delays_ms, 1) if delay >= left)[1]


def properties_again(item: Item, level: int) -> dict[str, str]:
    """The properties of a message that is sent again and waits at `level`."""
    kept = {k: v for k, v in item.message.properties.items() if k not in _NOT_AGAIN}
    kept |= {
        names.UNIQ_KEY: item.purpose.unique_id,
        names.WAIT: "true",
        names.RESTORED_FROM: item.origin,
    }
    return kept | {names.DELAY: str(level)} if level else kept


def place(item: Item, queues: Sequence[MessageQueue], home: str | None) -> MessageQueue:
    """The queue among `queues` (sorted, not empty) that a message goes to: by its sharding key,
    else the one it was in, on the broker `home` if that has it; always the same."""
    key = item.message.sharding_key
    if key:
        return queue_of(key, queues)
    queue_id = item.purpose.queue_id
    same = [queue for queue in queues if queue.queue_id == queue_id]
    here = [queue for queue in same if queue.broker_name == home]
    chosen = here or same or queues
    return chosen[queue_id % len(chosen)]


Settled = Callable[[Item, SaturnError | None], None]
"""Called with each message that was stored, or that a broker refused for good."""


class Restorer:
    """Restores to the cluster of one core; loop thread only."""

    def __init__(
        self,
        core: ClientCore,
        delays_ms: Sequence[int],
        *,
        expired_too: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`delays_ms`: the delays of the levels; `expired_too`: send also what is older than what
        the brokers keep; `patience_s`: how long to go on with one message after failures that
        may pass."""
        self._core = core
        self._delays_ms = delays_ms
        self._expired_too = expired_too
        self._patience_s = patience_s
        self._finder = MessageFinder(core, TIMEOUT_S)
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE)
        self._gone: set[str] = set()
        self._kept_since: dict[str, int] = {}  # by address
        self._homes: Mapping[str, str] | None = None  # broker names by address

    # -- what is wanted ------------------------------------------------------------------------

    async def judge(self, items: Iterable[Item]) -> list[RestoreVerdict]:
        """The verdict on each of these messages. RouteNotFound: a broker that must be asked is
        away."""
        return await asyncio.gather(*(self._judge(item) for item in items))

    async def _judge(self, item: Item) -> RestoreVerdict:
        if item.purpose.recalled:
            return RestoreVerdict.RECALLED
        async with self._asking:
            addresses = await self._addresses(item.purpose.topic)
            if not addresses:
                return RestoreVerdict.NO_TOPIC
            if await self._is_there(item.purpose, addresses):
                return RestoreVerdict.PRESENT
            if not self._core.publish_queues(item.purpose.topic):
                return RestoreVerdict.CLOSED
            if not self._expired_too:
                since = [await self._keeps_since(address) for address in addresses]
                if item.message.store_timestamp < max(since):
                    return RestoreVerdict.EXPIRED
            return RestoreVerdict.WANTED

    async def _addresses(self, topic: str) -> list[str]:
        """The addresses of all brokers of the topic; none if there is no such topic."""
        if topic in self._gone:
            return []
        try:
            route = await self._core.route(topic)
        except TopicNotExist:
            self._gone.add(topic)
            return []
        found = []
        for name in sorted({data.broker_name for data in route.queues}):
            address = self._core.broker_address(name, master=False)
            if address is None:
                raise RouteNotFound(
                    f"broker {name}, which has topic {topic}, is away: whether it has a message "
                    "already is unknown; start it, or promote a slave"
                )
            found.append(address)
        return found

    async def _is_there(self, wanted: Purpose, addresses: Sequence[str]) -> bool:
        find, unique_id = self._finder.by_unique_id, wanted.unique_id
        for copy in await find(addresses, wanted.topic, unique_id):
            if copy.reconsume_times >= wanted.deliveries:
                return True
        waiting = {topics.SCHEDULE_TOPIC: wanted.delay_level, topics.TIMER_TOPIC: wanted.due_ms}
        for topic in (topic for topic, wait in waiting.items() if wait):
            for copy in await find(addresses, topic, unique_id):
                same = copy.properties.get(names.REAL_TOPIC) == wanted.topic
                if same and copy.reconsume_times >= wanted.deliveries:
                    return True
        if wanted.topic.startswith(topics.RETRY_PREFIX):
            dead = topics.dlq_topic(wanted.topic.removeprefix(topics.RETRY_PREFIX))
            return bool(await find(await self._addresses(dead), dead, unique_id))
        return False

    async def _keeps_since(self, address: str) -> int:
        """The time in ms before which a broker has deleted what it stored; 0: it has deleted
        nothing."""
        if address not in self._kept_since:
            command = Command.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            answer = await self._core.invoke(address, command, TIMEOUT_S)
            told = checked.table(checked.document(answer.body), "table")
            earliest = checked.integer(told, "earliestMessageTimeStamp", 0, least=-1)
            if not checked.integer(told, "commitLogMinOffset", 0):
                earliest = 0
            self._kept_since[address] = checked.INT64_MAX if earliest < 0 else earliest
        return self._kept_since[address]

    # -- sending -------------------------------------------------------------------------------

    async def send(self, items: Iterable[Item], settled: Settled) -> None:
        """Send these messages, those of one queue in their order. The first failure that concerns
        more than one message ends it, once the sends under way are over."""
        by_queue: dict[MessageQueue, list[Item]] = {}
        for item in items:
            queues = self._core.publish_queues(item.purpose.topic)
            if not queues:
                raise RouteNotFound(f"topic {item.purpose.topic} takes no messages any more")
            queue = place(item, queues, await self._home(item.message.store_host))
            by_queue.setdefault(queue, []).append(item)
        failures: list[SaturnError] = []

        async def send_in_order(queue: MessageQueue, waiting: list[Item]) -> None:
            for item in waiting:
                if failures:
                    return
                try:
                    settled(item, await self._send(item, queue))
                except SaturnError as failure:
                    failures.append(failure)

        await asyncio.gather(*(send_in_order(*pair) for pair in by_queue.items()))
        if failures:
            raise failures[0]

    async def _home(self, address: str) -> str | None:
        """The name of the broker at this address: that of the group that lost the message."""
        if self._homes is None:
            command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            brokers = await self._core.ask_nameserver(command, brokers_in, TIMEOUT_S)
            self._homes = {
                node: data.broker_name for data in brokers for node in data.addresses.values()
            }
        return self._homes.get(address)

    async def _send(self, item: Item, queue: MessageQueue) -> SaturnError | None:
        """None when the message is stored as safely as its broker promises, or the error with which
        the broker refused it for good. Every other error is raised when patience ends."""
        runtime = self._core.runtime
        deadline = runtime.monotonic() + self._patience_s
        unsure = False
        while True:
            try:
                if unsure:
                    there = await self._addresses(item.purpose.topic)
                    if await self._is_there(item.purpose, there):
                        return None
                else:
                    await self._attempt(item, queue)
                    return None
            except SaturnError as error:
                failure = error
                if not unsure and error.outcome == "rejected" and not error.retriable:
                    return error
                unsure = unsure or error.outcome == "unknown"
                if error.refresh_route:
                    self._core.refresh_soon(queue.topic)
            if runtime.monotonic() >= deadline:
                raise failure
            await runtime.sleep(PAUSE_S)

    async def _attempt(self, item: Item, queue: MessageQueue) -> None:
        address = self._core.master_address(queue.broker_name)
        message, wanted = item.message, item.purpose
        level, now = 0, self._core.runtime.now_ms()
        if wanted.waits:
            level = delay_left(wanted.delay_level, message.store_timestamp, now, self._delays_ms)
        properties = properties_again(item, level)
        if wanted.waits and wanted.due_ms > now:
            properties[names.TIMER_DELIVER_MS] = str(wanted.due_ms)
        request = send_again(queue, GROUP, message, properties, deliveries=wanted.deliveries)
        await self._core.invoke(address, request, TIMEOUT_S)


async def delay_levels_at(core: ClientCore, address: str) -> str | None:
    """The `messageDelayLevel` of one of our brokers; RocketMQ's do not report it."""
    command = Command.request(RequestCode.GET_ALL_DELAY_OFFSET)
    answer = await core.invoke(address, command, TIMEOUT_S)
    return checked.text(answer.ext, "saturnDelayLevels", "") or None

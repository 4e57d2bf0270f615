"""The place where a consumer begins in a queue that it takes.

| the broker says of the group's offset | the consumer begins |
|---|---|
| there is one | there |
| none; but the queue's first message is still there and in memory | with that message: the broker answers 0, as RocketMQ's (broker/tables/lost_offsets.py) |
| none, and the queue appeared after this consumer had joined | with its first message, also against `consume_from`: all of it is newer than the consumer |
| none | where `consume_from` says: "first", "last", or the first message stored at a time |

So a group with the default start, "last", reads a topic from its beginning while that is in memory
(RocketMQ's rule). In a topic that is larger, or has lost its oldest messages, it begins at the
end. A time counts for topics in memory as well; RocketMQ's client ignores it there.
"""  # noqa: E501

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from saturnmq.client.consumer.offset_store import OffsetStore
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.runtime.errors import ConfigError, InvalidParameter, SaturnError, TopicNotExist

ENDS = {"first": RequestCode.GET_MIN_OFFSET, "last": RequestCode.GET_MAX_OFFSET}


def start_place(consume_from: str | int, *, from_beginning: bool) -> str | int:
    """The start that a consumer's parameters name. ConfigError: there is no such place."""
    if isinstance(consume_from, str) and consume_from not in ENDS:
        raise ConfigError(
            f"consume_from {consume_from!r}: give 'first', 'last' or a time in milliseconds"
        )
    if isinstance(consume_from, int) and abs(consume_from) > checked.INT64_MAX:
        raise ConfigError(f"consume_from {consume_from}: a time has at most {checked.INT64_MAX} ms")
    return "first" if from_beginning else consume_from


class Baseline:
    """The queues that existed when a consumer joined, topic by topic. Pure.

    They are the queues that the first definite answer of a nameserver names: a route, or that there
    is no such topic. Errors and time-outs are no answers. A queue that a broker of the topic has no
    longer is removed, and is a new one when it comes back; queues of a broker that is away stay.
    """

    def __init__(self) -> None:
        self._queues: dict[str, set[MessageQueue]] = {}

    def answered(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """A nameserver says that `topic` has these queues to read from now."""
        now = set(queues)
        known = self._queues.setdefault(topic, now)
        there = {queue.broker_name for queue in now}
        self._queues[topic] = {q for q in known if q in now or q.broker_name not in there}

    def forget(self, topic: str) -> None:
        """The consumer has left `topic`; it may join again."""
        self._queues.pop(topic, None)

    def is_older(self, queue: MessageQueue) -> bool:
        """Whether the queue existed when the consumer joined, as far as is known."""
        known = self._queues.get(queue.topic)
        return known is None or queue in known


async def find_queues(core: ClientCore, topic: str, baseline: Baseline) -> list[MessageQueue]:
    """The queues of `topic` to read from, asked of a nameserver if they are not known yet. Raises a
    SaturnError if they cannot be found now, or if there is no such topic."""
    try:
        await core.route(topic)
    except TopicNotExist:
        baseline.answered(topic, ())
        raise
    queues = core.subscribe_queues(topic)
    baseline.answered(topic, queues)
    return queues


async def start_offset(
    core: ClientCore,
    offsets: OffsetStore,
    queue: MessageQueue,
    consume_from: str | int,
    baseline: Baseline,
) -> int:
    """The offset to begin at; the rule is at the top of this module.

    A broker back from a crash may know an older offset than we do, or none.
    """
    known = await offsets.load(queue, stored_only=isinstance(consume_from, int), begins=True)
    own = offsets.known(queue)
    if known is not None or own is not None:
        return max(known or 0, own or 0)
    if (
        consume_from == "first"
        or queue.topic.startswith(RETRY_PREFIX)
        or not baseline.is_older(queue)
    ):
        return 0  # the first pull corrects it to the minimum
    return await offset_of(core, queue, consume_from)


async def offset_of(core: ClientCore, queue: MessageQueue, place: str | int) -> int:
    """The offset of a place in a queue: "first", "last" (its end), or a time in ms.
    InvalidParameter: another word."""
    if isinstance(place, int):
        return await ask_offset(
            core, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, {"timestamp": str(place)}
        )
    code = ENDS.get(place)
    if code is None:
        raise InvalidParameter(f"place {place!r}: give 'first', 'last' or a time in ms")
    return await ask_offset(core, code, queue)


async def check_inside(core: ClientCore, offsets: Mapping[MessageQueue, int]) -> None:
    """InvalidParameter: an offset lies before its queue's first place, or behind its end."""
    for queue, offset in offsets.items():
        end = await ask_offset(core, RequestCode.GET_MAX_OFFSET, queue)
        if not 0 <= offset <= end:
            raise InvalidParameter(f"offset {offset} is outside {queue}, which ends at {end}")


async def lag_of(
    core: ClientCore,
    offsets: OffsetStore,
    queues: Iterable[MessageQueue],
    reached: Mapping[MessageQueue, int],
) -> int:
    """The number of messages from the place that each queue was read up to, to its end: from its
    offset in `reached`, or else from its stored one."""
    queues = list(queues)
    for topic in {each.topic for each in queues}:
        await core.route(topic)
    ends = await asyncio.gather(
        *(ask_offset(core, RequestCode.GET_MAX_OFFSET, each) for each in queues)
    )
    total = 0
    for each, end in zip(queues, ends, strict=True):
        at = reached.get(each)
        if at is None:
            at = await offsets.load(each) or 0
        total += max(0, end - at)
    return total


async def ask_offset(
    core: ClientCore, code: int, queue: MessageQueue, extra: Mapping[str, str] | None = None
) -> int:
    """One of the offset queries 29, 30, 31."""
    address = core.broker_address(queue.broker_name, master=False)
    if address is None:
        core.refresh_soon(queue.topic)
        raise SaturnError(f"no broker {queue.broker_name} in the route of {queue.topic}")
    ext = {
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "bname": queue.broker_name,
        **(extra or {}),
    }
    answer = await core.invoke(address, Command.request(code, ext))
    return checked.integer(answer.ext, "offset")

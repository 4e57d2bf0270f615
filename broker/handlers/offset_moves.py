"""Offsets that an operator moves, also back: codes 222 (reset) and 314 (clone).

The members of the group follow: answers to pulls of each queue tell them to go on at the new offset
(OFFSET_RESET, docs/internals/protocol.md 2.2), and their commits are ignored until one reads from
there. The request is answered when the offsets are on disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence

from saturnmq.broker.context import Context, answer, answer_failure, check_master
from saturnmq.broker.handlers import slices
from saturnmq.broker.handlers.queue_facts import QueueFacts
from saturnmq.broker.tables.lost_offsets import check_queue
from saturnmq.broker.tables.table_persistence import Saveable, save_all
from saturnmq.protocol import admin_headers, fastjson
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.runtime.errors import (
    GroupNotExist,
    InvalidParameter,
    QueryNotFound,
)

RESET = 32  # queues in one step: each of them may be searched for a time

Goal = tuple[str, int, int]  # topic, queue, offset
Goals = Generator[None, None, list[Goal]]
"""It yields between two steps, and returns the offsets to set."""


class OffsetMoves:
    def __init__(
        self,
        context: Context,
        *,
        wake_pulls: Callable[[], None],
        save: Callable[[Saveable], Awaitable[None]],
    ) -> None:
        self._c = context
        self._facts = QueueFacts(context)
        self._offsets = context.offsets
        self._wake_pulls = wake_pulls
        self._save = save

    def on_reset(
        self, endpoint: Endpoint, request: Command, header: admin_headers.ResetOffsetHeader
    ) -> None:
        """222: set a group's offsets in a topic to a time (-1 is the end), or in one queue to a
        number. InvalidParameter: that number lies outside the queue."""
        check_master(self._c)
        topic, group = self._facts.topic(header.topic), header.group
        self._check_group(group)
        if header.queue_id >= 0:
            check_queue(self._c, topic.name, header.queue_id)
        self._check_inside(topic.name, header)
        queues = range(topic.read_queues) if header.queue_id < 0 else (header.queue_id,)
        self._move(endpoint, request, group, self._goals(header, queues))

    def _check_inside(self, topic: str, header: admin_headers.ResetOffsetHeader) -> None:
        if header.offset < 0:
            return
        if header.queue_id < 0:
            raise InvalidParameter(f"offset {header.offset} needs a queue: give queueId, too")
        low, high = self._facts.bounds(topic, header.queue_id)
        if not low <= header.offset <= high:
            raise InvalidParameter(
                f"offset {header.offset} is outside queue {header.queue_id} of {topic}, whose "
                f"messages have {low} to {high - 1}: choose one from {low} to {high}"
            )

    def _goals(self, header: admin_headers.ResetOffsetHeader, queues: Sequence[int]) -> Goals:
        found = []
        for number, queue_id in enumerate(queues):
            if number and not number % RESET:
                yield
            found.append((header.topic, queue_id, self._goal(header, queue_id)))
        return found

    def _goal(self, header: admin_headers.ResetOffsetHeader, queue_id: int) -> int:
        if header.offset >= 0:
            return header.offset
        topic, timestamp = header.topic, header.timestamp
        if timestamp < 0:
            return self._facts.bounds(topic, queue_id)[1]
        return self._c.store.offset_by_time(topic, queue_id, timestamp, "LOWER")

    def on_clone(
        self, endpoint: Endpoint, request: Command, header: admin_headers.CloneOffsetsHeader
    ) -> None:
        """314: give a group the offsets of another one, in one topic or in all but those of
        retries, which are each group's own. QueryNotFound: the other group has none there."""
        check_master(self._c)
        source, target = header.source, header.target
        if source == target:
            raise InvalidParameter(f"group {source} cannot be cloned to itself")
        self._move(endpoint, request, target, self._cloned(header))

    def _cloned(self, header: admin_headers.CloneOffsetsHeader) -> Goals:
        source = header.source
        if header.topic:
            topics = [header.topic]
        else:
            found_in = yield from self._offsets.topics_of(source)
            topics = [topic for topic in found_in if not topic.startswith(RETRY_PREFIX)]
        online = self._c.clients.consumer_group(source)
        if online is not None and online.documents and not header.offline:
            topics = [topic for topic in topics if topic in online.documents]
        found = []
        for topic, queue_id in self._facts.queues_of(topics):
            offset = self._offsets.query(source, topic.name, queue_id)
            if offset is not None:
                found.append((topic.name, queue_id, offset))
        if not found:
            where = f"topic {header.topic}" if header.topic else "any topic"
            raise QueryNotFound(f"group {source} has no offset in {where} on this broker")
        self._check_group(header.target)
        return found

    def _check_group(self, group: str) -> None:
        if self._c.groups.get(group) is None:
            raise GroupNotExist(f"group {group} does not exist")

    def _move(self, endpoint: Endpoint, request: Command, group: str, goals: Goals) -> None:
        """Set the offsets of a group; the answer names them."""

        def made(some: list[Goal]) -> bytes:
            table = {}
            for topic, queue_id, offset in some:
                self._offsets.reset(group, topic, queue_id, offset)
                table[self._facts.key(topic, queue_id)] = offset
            return fastjson.dumps_mq_map(table)[1:-1]

        def work() -> slices.Work:
            found = slices.of((yield from goals), made)
            return (yield from slices.joined(request, found, b'{"offsetTable":{%b}}'.__mod__))

        async def move() -> None:
            reply = await self._c.steps.run(work())
            self._wake_pulls()
            await save_all(self._save, self._offsets)
            answer(endpoint, request, reply)

        request.body = b""
        answered = answer_failure(self._c, endpoint, request, move())
        self._c.runtime.spawn(answered, name="move-offsets")

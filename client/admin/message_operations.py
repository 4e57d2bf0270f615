"""The part of Admin about single messages: stored ones, their traces, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from saturnmq.client.admin import member_questions
from saturnmq.client.admin.dead_letters import letters_of, resend_all
from saturnmq.client.admin.member_questions import DirectConsumption
from saturnmq.client.admin.message_finding import RESULTS, QueueEntry, is_offset_id
from saturnmq.client.admin.operations import Operations
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.topics import TRACE_TOPIC, dlq_topic
from saturnmq.protocol.trace import TraceRecord
from saturnmq.runtime.errors import QueryNotFound, TopicNotExist


class MessageOperations(Operations):
    """The operations of an Admin on single messages."""

    async def message_by_offset_id(self, offset_message_id: str) -> ReceivedMessage:
        """The message that an offset message id (of a SendResult) names; asks the broker in it."""
        return self._plain(await self._finder.by_offset_id(offset_message_id))

    async def find_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by its id: an offset message id, or with its topic its unique id."""
        found = await self._finder.by_id(message_id, None if topic is None else self._wire(topic))
        return self._plain(found)

    async def find_by_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage | None:
        """As `find_message`, but None when there is no such message. A broker that does not answer
        may have it, and a unique id without its topic names no broker: these are errors."""
        try:
            return await self.find_message(message_id, topic)
        except QueryNotFound:
            if topic is None and not is_offset_id(message_id):
                raise
            return None

    async def find_by_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """The message at `offset` of `queue`; None when there is none."""
        queue = self._namespace.wrap_queue(queue)
        return self._plain(await self._finder.by_offset(queue, offset))

    async def queue_entries(
        self, queue: MessageQueue, offset: int = 0, count: int = RESULTS
    ) -> list[QueueEntry]:
        """At most `count` entries of `queue` from `offset` on, as its broker has them in its
        ConsumeQueue. InvalidParameter: the offset is outside the queue."""
        return await self._finder.entries(self._namespace.wrap_queue(queue), offset, count)

    async def find_by_key(
        self,
        topic: str,
        key: str,
        limit: int = RESULTS,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
    ) -> list[ReceivedMessage]:
        """The newest `limit` messages of a topic that carry `key`, oldest first, of those stored
        from `begin_ms` to `end_ms` (both inclusive; None is no bound).

        A broker gives at most its `maxMsgsNumBatch` (64): for older ones end before the first.
        """
        found = await self._finder.by_key(self._wire(topic), key, limit, begin_ms, end_ms)
        return self._plain(found)

    async def find_by_time(
        self, topic: str, begin_ms: int, end_ms: int | None = None, limit: int = RESULTS
    ) -> list[ReceivedMessage]:
        """The oldest `limit` messages of a topic that were stored from `begin_ms` to `end_ms` (both
        inclusive; None is no bound), oldest first."""
        found = await self._finder.by_time(self._wire(topic), begin_ms, end_ms, limit)
        return self._plain(found)

    async def consume_message_directly(
        self, message: ReceivedMessage, group: str, client_id: str
    ) -> DirectConsumption:
        """Have a connected push consumer of the group consume a stored message now, whatever the
        group has consumed; its offsets do not change. SystemError_: it is not connected to the
        message's broker, or has no listener."""
        topic, group = self._wire(message.topic), self._wire(group)
        await self.core.route(topic)
        ask = member_questions.consume_directly
        return await ask(self.core, message, topic, group, client_id)

    async def message_trace(self, message_id: str, topic: str = TRACE_TOPIC) -> list[TraceRecord]:
        """The records of a message, by its unique id, that clients with traces turned on have
        written, ours or Java's; oldest first. `topic`: the topic of the traces."""
        return await self._finder.traces(message_id, topic)

    # -- dead letters --------------------------------------------------------------------------

    async def dead_letters(
        self, group: str, begin_ms: int = 0, end_ms: int | None = None, limit: int = RESULTS
    ) -> list[ReceivedMessage]:
        """The oldest `limit` messages that a group has given up, of those given up from `begin_ms`
        to `end_ms` (both inclusive; None is no bound), oldest first."""
        topic = dlq_topic(self._wire(group))
        try:
            return self._plain(await self._finder.by_time(topic, begin_ms, end_ms, limit))
        except TopicNotExist:
            return []

    async def resend_dead_letters(
        self, group: str, ids: Sequence[str] | None = None, *, to_topic: bool = False
    ) -> int:
        """Let a group consume again what it has given up, or of that the messages with these ids.
        Returns the number of copies; the letters stay until they expire, and a message that was
        given up more than once is sent once. With `to_topic` every group of the original topic gets
        the copies; an ordered group, and one that only pops, needs that. A letter that is refused
        keeps no other from the group: the error at the end says how many were sent."""
        group = self._wire(group)
        letters = letters_of(self._finder, group, ids)
        return await resend_all(self.core, group, letters, to_topic=to_topic, timeout=self.timeout)

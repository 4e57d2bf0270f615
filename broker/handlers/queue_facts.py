"""The bounds and times of a queue, as operators' tools are told them."""

from __future__ import annotations

from collections.abc import Iterator

from saturnmq.broker.context import Context
from saturnmq.broker.tables.topics import Topic
from saturnmq.protocol.fastjson import MqKey
from saturnmq.runtime.errors import TopicNotExist


class QueueFacts:
    def __init__(self, context: Context) -> None:
        self._broker_name = context.config.broker_name
        self._store = context.store
        self._topics = context.topics

    def key(self, topic: str, queue_id: int) -> MqKey:
        """The key of this queue in a table of queues."""
        return topic, self._broker_name, queue_id

    def topic(self, name: str) -> Topic:
        """TopicNotExist: this broker has no such topic."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicNotExist(f"No topic in this broker. topic: {name}")
        return topic

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The offset of the first message, and that behind the last."""
        return self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)

    def time_of(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of a message in ms; 0 if it is not there."""
        if offset < 0:
            return 0
        found = self._store.store_time_of(topic, queue_id, offset)
        return found if found is not None and found > 0 else 0

    def queues_of(self, topics: list[str]) -> Iterator[tuple[Topic, int]]:
        """The queues of these topics, also those that were taken away: they may still have messages
        that a group has not consumed."""
        for name in topics:
            topic = self._topics.get(name)
            if topic is not None:
                taken_away = [n for n in self._store.queue_ids(name) if n >= topic.queues]
                for queue_id in (*range(topic.queues), *taken_away):
                    yield topic, queue_id

"""The name of one queue."""

from __future__ import annotations

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of a topic. Sorts as RocketMQ's rebalance does: topic, broker, number."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        # The text that a consistent-hash rebalance hashes: all clients of a group must agree on it.
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )

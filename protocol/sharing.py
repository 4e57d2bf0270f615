"""RocketMQ's ways to share the queues of a topic out among the members of a group, to the digit.

Members use them to rebalance (`client/consumer/rebalance.py`), and brokers to answer
QUERY_ASSIGNMENT (`broker/pop/assignment.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .message import MessageQueue


def average(me: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Contiguous shares that differ by at most one queue."""
    if me not in clients:
        return []
    index = clients.index(me)
    size, larger = divmod(len(queues), len(clients))
    start = index * size + min(index, larger)
    return list(queues[start : start + size + (1 if index < larger else 0)])


def average_by_circle(
    me: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """Deals the queues like cards: one each, round after round."""
    return list(queues[clients.index(me) :: len(clients)]) if me in clients else []

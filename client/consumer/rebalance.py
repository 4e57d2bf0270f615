"""Rebalance: it decides which of a topic's queues are mine. Pure: sorted lists in, a list out.

Every member of a group runs the same function over the same two sorted lists and takes its own
share, so no coordinator is needed. RocketMQ's rules (AllocateMessageQueueAveragely, ...ByCircle,
...ConsistentHash) are followed to the digit: members written in Java and in Python may share a
group.

    AVG              contiguous runs, the first `queues % clients` members get one more
    AVG_BY_CIRCLE    every c-th queue, starting at my index
    CONSISTENT_HASH  MD5 ring, ten virtual nodes per client
    STICKY           balanced to within one queue, and few queues move when a member comes or goes;
                     ours alone: a group with Java members needs one of the others

The names are what `PushConsumer(rebalance=...)` takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from hashlib import md5

from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.sharing import average, average_by_circle
from saturnmq.runtime.errors import ConfigError

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

VIRTUAL_NODES = 10


def consistent_hash(
    me: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """A hash ring: a member that comes or goes moves only the queues near its places on the
    ring."""
    if me not in clients:
        return []
    ring = {_ring_hash(f"{client}-{k}"): client for client in clients for k in range(VIRTUAL_NODES)}
    points = sorted(ring)
    mine = []
    for queue in queues:
        at = bisect_left(points, _ring_hash(_java_queue_name(queue)))
        if ring[points[at % len(points)]] == me:
            mine.append(queue)
    return mine


def sticky(me: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Balanced shares; few queues move when a member comes or goes.

    Every (queue, client) pair has a fixed weight; pairs are granted from the heaviest down while
    the client has room. No history is used: members with different histories would disagree, and a
    queue on which members disagree has two owners or none.
    """
    if me not in clients:
        return []
    share, larger = divmod(len(queues), len(clients))
    pairs = sorted(
        ((_ring_hash(f"{client} {_java_queue_name(queue)}"), queue, client))
        for queue in queues
        for client in clients
    )
    room = dict.fromkeys(clients, share)
    granted: dict[MessageQueue, str] = {}
    for _, queue, client in reversed(pairs):
        if queue in granted:
            continue
        if room[client] == 0 and larger > 0:  # this client takes one of the larger shares
            room[client], larger = -1, larger - 1
            granted[queue] = client
        elif room[client] > 0:
            room[client] -= 1
            granted[queue] = client
    return [queue for queue in queues if granted.get(queue) == me]


STRATEGIES: dict[str, Strategy] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
    "STICKY": sticky,
}


def strategy_of(name: str) -> Strategy:
    """The strategy called `name`; ConfigError lists the names."""
    found = STRATEGIES.get(name.upper()) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"rebalance is {name!r:.60}: give one of {', '.join(STRATEGIES)}")
    return found


def assign(
    how: Strategy, me: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """My share of `queues`; sorts both lists as every member must."""
    return how(me, sorted(set(queues)), sorted(set(clients)))


def _ring_hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_queue_name(queue: MessageQueue) -> str:
    topic, broker, number = queue
    return f"MessageQueue [topic={topic}, brokerName={broker}, queueId={number}]"

"""Rebalance: which of a topic's queues are mine. Pure: sorted lists in, a list out.

Every member of a group runs the same function over the same two sorted lists and takes its own share, so
no coordinator is needed. RocketMQ's rules (AllocateMessageQueueAveragely, ...ByCircle, ...ConsistentHash)
are followed to the digit: members written in Java and in Python may share a group.

    AVG              contiguous runs, the first `queues % clients` members get one more
    AVG_BY_CIRCLE    every c-th queue, starting at my index
    CONSISTENT_HASH  MD5 ring, ten virtual nodes per client
    STICKY           keeps what a member holds, moves only what balance demands; ours alone: all members
                     of the group must use it, because it needs what each member held last

The names are what `PushConsumer(rebalance=...)` takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from hashlib import md5

from saturnmq.protocol.message import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

VIRTUAL_NODES = 10


def average(me: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Contiguous shares that differ by at most one queue."""
    if me not in clients:
        return []
    index, rest = clients.index(me), len(queues) % len(clients)
    if len(queues) <= len(clients):
        size = 1
    else:
        size = len(queues) // len(clients) + (1 if index < rest else 0)
    start = index * size if index < rest else index * size + rest
    return list(queues[start : start + size])


def average_by_circle(
    me: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """Dealt like cards: one queue each, round after round."""
    return list(queues[clients.index(me) :: len(clients)]) if me in clients else []


def consistent_hash(
    me: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """A member that comes or goes moves only the queues near its places on the ring."""
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


def sticky(
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    held: Mapping[str, Sequence[MessageQueue]],
) -> dict[str, list[MessageQueue]]:
    """Shares for every client: each keeps what it held up to its fair share, the rest is dealt out.

    `held` is what every client held before; queues that no longer exist and claims of a queue by two
    clients are settled in client order.
    """
    if not clients:
        return {}
    free = dict.fromkeys(queues)
    share, rest = divmod(len(queues), len(clients))
    # The larger shares go to those who already hold more, so that nothing moves for the remainder's sake.
    by_load = sorted(clients, key=lambda client: (-len(held.get(client, ())), client))
    quota = {client: share + (1 if rank < rest else 0) for rank, client in enumerate(by_load)}
    result: dict[str, list[MessageQueue]] = {client: [] for client in clients}
    for client in clients:
        for queue in held.get(client, ()):
            if queue in free and len(result[client]) < quota[client]:
                del free[queue]
                result[client].append(queue)
    for client in clients:
        while free and len(result[client]) < quota[client]:
            queue = next(iter(free))
            del free[queue]
            result[client].append(queue)
    return {client: sorted(mine) for client, mine in result.items()}


class Sticky:
    """STICKY as a strategy: each member replays the group's history of memberships it has seen.

    Members that joined at different times may have seen different histories, and two views of one group
    must not differ: the history therefore starts anew (from the plain average) whenever a client id appears,
    and only departures are sticky. A restart of one consumer out of many moves nothing else when it leaves.
    """

    def __init__(self) -> None:
        self._held: dict[str, dict[str, list[MessageQueue]]] = {}

    def __call__(
        self, me: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        topic = queues[0].topic if queues else ""
        held = self._held.get(topic, {})
        if not set(clients) <= set(held):
            held = {client: average(client, queues, clients) for client in clients}
        self._held[topic] = shares = sticky(queues, clients, held)
        return shares.get(me, [])


def strategy(name: str) -> Strategy:
    """The strategy called `name`; raises ValueError that lists the names."""
    makers: dict[str, Callable[[], Strategy]] = {
        "AVG": lambda: average,
        "AVG_BY_CIRCLE": lambda: average_by_circle,
        "CONSISTENT_HASH": lambda: consistent_hash,
        "STICKY": Sticky,
    }
    try:
        return makers[name.upper()]()
    except KeyError:
        raise ValueError(f"no rebalance strategy {name!r}: one of {', '.join(makers)}") from None


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

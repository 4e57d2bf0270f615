"""The queues that a member of a group reads, if the broker decides: QUERY_ASSIGNMENT.

A group that pops a topic needs no shares: each member pops from each broker, and the queue id -1
means any queue. With `share` members are spread: each pops the queues of its own share and of the
`share` members behind it. A group that pulls gets the shares of its strategy. Rules and names are
RocketMQ's. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from saturnmq.broker.tables.request_modes import POP, RequestMode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.sharing import average, average_by_circle

STRATEGIES = {"AVG": average, "AVG_BY_CIRCLE": average_by_circle}
ANY = -1


def assigned(
    mode: RequestMode,
    strategy: str,
    me: str,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
) -> list[MessageQueue]:
    """The queues of one member; `queues` and `members` are sorted."""
    share_of = STRATEGIES[strategy]
    if mode.mode != POP:
        return share_of(me, queues, members)
    if mode.share <= 0 or mode.share >= len(members) - 1:
        names = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic, broker, ANY) for topic, broker in names]
    if me not in members:
        return []
    index = members.index(me)
    if len(members) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    found: dict[MessageQueue, None] = {}
    for step in range(mode.share + 1):
        member = members[(index + step) % len(members)]
        found |= dict.fromkeys(share_of(member, queues, members))
    return list(found)

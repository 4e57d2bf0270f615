"""The connections that want to hear of changes of a topic's route: they asked for it (105) with
`saturnWatch=true`.

The server writes it, from 105 and from closed connections. A watch lasts as long as its connection,
and covers a topic that does not exist yet. Beyond the bounds a route is given without a watch, and
the client finds changes by polling, as RocketMQ's clients do.
"""

from collections.abc import Iterable

from saturnmq.protocol.budget import Budget
from saturnmq.protocol.endpoint import Endpoint

PER_CONNECTION_MAX = 4096
TOTAL_MAX = 1 << 18
WATCH_BYTES = 400  # of one: 370 were measured


class Watches:
    """Topics by connection, and back. The order of iteration is that of the requests, never of
    hashes."""

    def __init__(self, memory: Budget) -> None:
        self._memory = memory
        self._watchers: dict[str, dict[Endpoint, None]] = {}
        self._topics: dict[Endpoint, dict[str, None]] = {}
        self._count = 0

    def add(self, endpoint: Endpoint, topic: str) -> None:
        """Notify `endpoint` of changes of `topic`, if there is room for that."""
        mine = self._topics.get(endpoint, {})
        if topic in mine or len(mine) >= PER_CONNECTION_MAX or self._count >= TOTAL_MAX:
            return
        if not self._memory.try_take(WATCH_BYTES):
            return
        self._topics.setdefault(endpoint, mine)[topic] = None
        self._watchers.setdefault(topic, {})[endpoint] = None
        self._count += 1

    def forget(self, endpoint: Endpoint) -> None:
        """The connection is gone."""
        for topic in self._topics.pop(endpoint, {}):
            watchers = self._watchers[topic]
            del watchers[endpoint]
            if not watchers:
                del self._watchers[topic]
            self._count -= 1
            self._memory.give_back(WATCH_BYTES)

    def of(self, topics: Iterable[str]) -> dict[Endpoint, list[str]]:
        """The connections to notify, each with those of `topics` that it watches."""
        told: dict[Endpoint, list[str]] = {}
        for topic in topics:
            for endpoint in self._watchers.get(topic, ()):
                told.setdefault(endpoint, []).append(topic)
        return told

"""Pure knowledge of routes: which queues a topic has and where its brokers are.

ClientCore feeds it with the answers of nameservers (code 105); the producer and the consumers read
it. RocketMQ's rules (docs/internals/protocol.md 6): the writable list is every queueData with the
write bit whose broker has address id 0, sorted by broker name; the readable list needs the read bit
only. If the nameserver names queues for an ordered topic (`orderTopicConf`), those are the writable
ones, in its order, whatever brokers are there.
"""

from __future__ import annotations

from collections.abc import Mapping

from saturnmq.protocol.codes import PERM_INHERIT, PERM_READ, PERM_WRITE
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.route import MASTER_ID, QueueData, TopicRoute


def queues_of(topic: str, counts: Mapping[str, int]) -> list[MessageQueue]:
    """The queues of a topic, of which each broker has so many, in the order of `counts`."""
    return [MessageQueue(topic, name, n) for name, count in counts.items() for n in range(count)]


class RouteCache:
    """The last good route of each topic, and the brokers that those routes name."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._publish: dict[str, list[MessageQueue]] = {}
        self._subscribe: dict[str, list[MessageQueue]] = {}
        self._brokers: dict[str, dict[int, str]] = {}
        self._topics_of: dict[str, set[str]] = {}

    def update(self, topic: str, route: TopicRoute) -> bool:
        """Take a fresh route; True if it differs from the one known before."""
        old = self._routes.get(topic)
        if old == route:
            return False
        self._routes[topic] = route
        now = {data.broker_name for data in route.brokers}
        for data in route.brokers:
            self._brokers[data.broker_name] = {
                int(broker_id): address for broker_id, address in data.addresses.items()
            }
            self._topics_of.setdefault(data.broker_name, set()).add(topic)
        if old is not None:
            for data in old.brokers:
                if data.broker_name not in now:
                    self._forget(data.broker_name, topic)
        self._publish[topic] = self._writable(topic, route)
        self._subscribe[topic] = self._readable(topic, route)
        return True

    def _forget(self, broker_name: str, topic: str) -> None:
        topics = self._topics_of.get(broker_name)
        if topics is None:
            return
        topics.discard(topic)
        if not topics:
            del self._topics_of[broker_name]
            self._brokers.pop(broker_name, None)

    @staticmethod
    def _writable(topic: str, route: TopicRoute) -> list[MessageQueue]:
        if ordered := route.ordered:
            return queues_of(topic, ordered)
        masters = {
            data.broker_name
            for data in route.brokers
            if MASTER_ID in {int(broker_id) for broker_id in data.addresses}
        }
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queues
            if data.perm & PERM_WRITE and data.broker_name in masters
            for queue_id in range(data.write_queues)
        )

    @staticmethod
    def _readable(topic: str, route: TopicRoute) -> list[MessageQueue]:
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queues
            if data.perm & PERM_READ
            for queue_id in range(data.read_queues)
        )

    def route(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        return self._publish.get(topic, [])

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        return self._subscribe.get(topic, [])

    def brokers(self) -> dict[str, dict[int, str]]:
        return self._brokers

    def leads(self, address: str) -> bool:
        """Whether a master has this address."""
        return any(brokers.get(MASTER_ID) == address for brokers in self._brokers.values())

    def broker_name_of(self, address: str) -> str | None:
        for name, addresses in self._brokers.items():
            if address in addresses.values():
                return name
        return None

    def address(
        self, name: str, *, master: bool = True, broker_id: int | None = None
    ) -> str | None:
        """The address of `name`: `broker_id` if it lives, else the master, else any replica."""
        addresses = self._brokers.get(name)
        if not addresses:
            return None
        if broker_id is not None and broker_id in addresses and not master:
            return addresses[broker_id]
        if MASTER_ID in addresses:
            return addresses[MASTER_ID]
        if master:
            return None
        return addresses[min(addresses)]


def from_template(topic: str, template: TopicRoute, default_queues: int) -> TopicRoute:
    """The route that an unknown topic will get when brokers create it from TBW102's route. Until
    then it has nothing to read."""
    queues = [
        QueueData(
            data.broker_name,
            read_queues=0,
            write_queues=min(default_queues, data.write_queues),
            perm=data.perm,
        )
        for data in template.queues
        if data.perm & PERM_INHERIT
    ]
    return TopicRoute(queues=queues, brokers=list(template.brokers))

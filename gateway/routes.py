"""Routes of Remoting as queues of the API. Pure.

One address for each broker, IPv4 if it is one, because clients fail on other shapes; some are told
several (addresses.py). Only masters are named, under id 0: Go's and Rust's producers send to
whatever is named. While no broker of a topic has a master, its slaves stand for them: a client that
starts meanwhile gets a route, and one of them is the next master or sends on to it. The order is
the same at every node and every time, because clients place messages of a group by the position of
a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address
from typing import Any
from zlib import crc32

from saturnmq.gateway import v2
from saturnmq.gateway.messages import TYPES, Type
from saturnmq.protocol.message_types import MESSAGE_TYPE, MIXED, NORMAL
from saturnmq.protocol.route import BrokerData, QueueData, TopicConfig, TopicRoute
from saturnmq.runtime.door import split_address

Scheme: Any = v2.AddressScheme
Permission: Any = v2.Permission
EndpointsOf = Callable[[str], Any]
"""The Endpoints of a broker, by its name."""
QUEUE_IDS = 1 << 30  # ids that stand for all queues of a broker


def endpoints(*addresses: str) -> Any:
    """The Endpoints of addresses of one kind, `host:port`."""
    places = [split_address(address) for address in addresses]
    try:
        scheme = Scheme.IPv4 if ip_address(places[0][0]).version == 4 else Scheme.IPv6
    except ValueError:
        scheme = Scheme.DOMAIN_NAME
    found = [v2.Address(host=host, port=port) for host, port in places]
    return v2.Endpoints(scheme=scheme, addresses=found)


def types_of(config: TopicConfig | None) -> list[int]:
    """The types of messages that a topic takes; a topic that does not say is for NORMAL ones."""
    found = config.attributes.get(MESSAGE_TYPE, NORMAL) if config is not None else NORMAL
    if found == MIXED:
        return [int(each) for each in TYPES]
    return [int(each) for each, name in TYPES.items() if name == found] or [int(Type.NORMAL)]


def with_master(route: TopicRoute) -> list[QueueData]:
    """The parts of a route whose brokers have a master, in the order of their names."""
    return _of_brokers(route, {data.broker_name for data in route.brokers if data.master})


def told(route: TopicRoute) -> list[QueueData]:
    """The parts of a route that clients are told: those whose brokers have a master or, if none
    has, those whose brokers have a node at all."""
    return with_master(route) or _of_brokers(
        route, {data.broker_name for data in route.brokers if data.addresses}
    )


def _of_brokers(route: TopicRoute, names: set[str]) -> list[QueueData]:
    found = (data for data in route.queues if data.broker_name in names)
    return sorted(found, key=lambda data: data.broker_name)


def speaker(broker: BrokerData) -> str | None:
    """The address of the node that stands for a broker: its master, or else its first slave."""
    return broker.addresses[min(broker.addresses)] if broker.addresses else None


def _queues(data: QueueData) -> Iterator[tuple[int, int]]:
    """The queues of one broker with their permissions: those for both, for reading, for writing."""
    read = data.read_queues if data.readable else 0
    write = data.write_queues if data.writable else 0
    for queue_id in range(max(read, write)):
        if queue_id < min(read, write):
            yield queue_id, Permission.READ_WRITE
        else:
            yield queue_id, Permission.READ if queue_id < read else Permission.WRITE


def message_queues(
    topic: Any, route: TopicRoute, types: list[int], endpoints_of: EndpointsOf
) -> list[Any]:
    """All queues of a topic."""
    return [
        _queue(topic, data.broker_name, queue_id, permission, types, endpoints_of)
        for data in told(route)
        for queue_id, permission in _queues(data)
    ]


def is_read_only(queue: Any) -> bool:
    """Whether producers cannot use this queue."""
    return bool(queue.permission == Permission.READ)


def assignments(
    topic: Any, route: TopicRoute, types: list[int], endpoints_of: EndpointsOf, *, fifo: bool
) -> list[Any]:
    """The queues that a member of a group receives from: each member all, since pop shares them
    out. A member of a group that keeps the order gets each queue by itself."""
    found = []
    for data in with_master(route):
        if not data.readable or not data.read_queues:
            continue
        permission = Permission.READ_WRITE if data.writable else Permission.READ
        any_queue = _any_queue(endpoints_of(data.broker_name))
        for queue_id in range(data.read_queues) if fifo else (any_queue,):
            queue = _queue(topic, data.broker_name, queue_id, permission, types, endpoints_of)
            found.append(v2.Assignment(message_queue=queue))
    return found


def _any_queue(place: Any) -> int:
    """The id that stands for all queues of a broker in an assignment: less than 0, and another one
    at another address. Node's client goes on at the old address while name and id stay."""
    return -1 - crc32(place.SerializeToString(deterministic=True)) % QUEUE_IDS


def _queue(
    topic: Any,
    broker: str,
    queue_id: int,
    permission: int,
    types: list[int],
    endpoints_of: EndpointsOf,
) -> Any:
    return v2.MessageQueue(
        topic=topic,
        id=queue_id,
        permission=permission,
        broker=v2.Broker(name=broker, id=0, endpoints=endpoints_of(broker)),
        accept_message_types=types,
    )

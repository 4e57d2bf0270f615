"""The queues over which a producer hashes its sharding keys.

They are the write queues of a topic as its brokers report now: fewer queues, or none, count at
once. A broker without a master (it is away, or fails over) reports nothing: its queues stay for a
time, so that keys keep their queues, and their order, through a fail-over or a restart. In RocketMQ
keys move as soon as a broker leaves the route. With an `orderTopicConf` keys stay where it says, as
in RocketMQ: a send to a broker that is away fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from saturnmq.client.core import ClientCore
from saturnmq.client.routes import queues_of
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.jhash import jhash
from saturnmq.protocol.message import Message, MessageQueue
from saturnmq.protocol.properties import SHARDING_KEY
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicRoute, brokers_in
from saturnmq.runtime.errors import InvalidParameter, SaturnError

log = logging.getLogger(__name__)


Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


class Round(NamedTuple):
    """The queues that keys are hashed over, from one change to the next."""

    number: int  # 0: nothing is known yet
    queues: Sequence[MessageQueue]  # sorted, or in the order of an orderTopicConf


UNKNOWN = Round(0, ())


def queue_of(key: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """The queue among the `queues` of a round that a sharding key goes to. InvalidParameter: the
    key is no text."""
    if not isinstance(key, str):
        raise InvalidParameter(f"sharding_key is {key!r:.60}: give text")
    return queues[abs(jhash(key)) % len(queues)]


def is_placed(
    message: Message,
    queue: MessageQueue | None,
    sharding_key: str | None,
    selector: Selector | None,
) -> bool:
    """Whether a message goes to one queue of a round: by its key, or as the selector says."""
    chosen = selector or sharding_key or SHARDING_KEY in message.properties
    return queue is None and bool(chosen)


@dataclass(slots=True)
class _Topic:
    counts: dict[str, int] = field(default_factory=dict)  # write queues by broker name
    away_until: dict[str, float] = field(default_factory=dict)  # then it has no queues any more
    round: Round = UNKNOWN
    is_ordered: bool = False  # its queues are those of an orderTopicConf


class Placement:
    """The queues for keys, topic by topic. Pure."""

    def __init__(self, absence_s: float) -> None:
        """`absence_s`: seconds after which a broker that is away has no queues any more."""
        self._absence_s = absence_s
        self._topics: dict[str, _Topic] = {}

    def round(self, topic: str) -> Round:
        """The present round of `topic`."""
        known = self._topics.get(topic)
        return UNKNOWN if known is None else known.round

    def away(self, topic: str) -> Set[str]:
        """The brokers whose queues are kept though they have no master now."""
        known = self._topics.get(topic)
        return frozenset() if known is None else known.counts.keys() & known.away_until.keys()

    def next_loss(self, topic: str, now: float) -> float | None:
        """The moment after `now` at which taking the route again may drop a broker, if any."""
        known = self._topics.get(topic)
        ends = () if known is None else known.away_until.values()
        return min((end for end in ends if end > now), default=None)

    def take(self, topic: str, route: TopicRoute, now: float) -> None:
        """Take a route of `topic` as it is at `now`; taking it again later drops brokers that are
        away for too long. Absent brokers keep their queues while nobody else has one."""
        known = self._topics.setdefault(topic, _Topic())
        if ordered := route.ordered:
            known.counts, known.away_until, known.is_ordered = dict(ordered), {}, True
            self._change_to(topic, queues_of(topic, ordered))
            return
        known.is_ordered = False
        reported = {data.broker_name: data.write_queues for data in route.queues if data.writable}
        led = {
            data.broker_name
            for data in route.brokers
            # A slave that acts as master takes no messages, and this will not last long.
            if data.master is not None
            and (data.broker_name in reported or not data.enable_acting_master)
        }
        for name in led:
            known.counts[name] = reported.get(name, 0)
            known.away_until.pop(name, None)
        for name in reported.keys() - led:
            known.counts.setdefault(name, reported[name])
        for name in known.counts.keys() - led:
            known.away_until.setdefault(name, now + self._absence_s)
        self._settle(topic, {name for name, end in known.away_until.items() if end <= now})
        for name in known.away_until.keys() - known.counts.keys() - reported.keys():
            del known.away_until[name]  # who is still reported stays given up until it is led

    def withdraw(self, topic: str, broker_name: str) -> None:
        """Remove the queues of a broker that is there but no longer has `topic`."""
        known = self._topics.get(topic)
        if known is not None and not known.is_ordered:
            self._settle(topic, {broker_name})
            if broker_name not in known.counts:
                known.away_until.pop(broker_name, None)

    def _settle(self, topic: str, gone: set[str]) -> None:
        known = self._topics[topic]
        if any(count for name, count in known.counts.items() if name not in gone):
            for name in gone:
                known.counts.pop(name, None)
        self._change_to(topic, sorted(queues_of(topic, known.counts)))

    def _change_to(self, topic: str, queues: list[MessageQueue]) -> None:
        known = self._topics[topic]
        if queues != known.round.queues:
            known.round = Round(known.round.number + 1, queues)


class KeyQueues:
    """Keeps the placement of one producer's keys as routes change. Any thread may call `round`,
    the rest is for the loop thread."""

    def __init__(
        self, core: ClientCore, absence_s: float, on_change: Callable[[str], None]
    ) -> None:
        """`on_change` is called with a topic whose queues for keys have changed."""
        self._core = core
        self._on_change = on_change
        self._placement = Placement(absence_s)
        self.round = self._placement.round
        self._timed: set[str] = set()  # topics that are looked at again after a time
        core.on_route_change(self._route_changed)

    def learn(self, topic: str) -> None:
        """Take the known route of `topic`, if none was taken yet."""
        if not self.round(topic).queues:
            self._take(topic)

    def _take(self, topic: str) -> TopicRoute | None:
        route = self._core.routes.route(topic)
        if route is None:
            return None
        now = self._core.runtime.monotonic()
        self._change(topic, lambda: self._placement.take(topic, route, now))
        loss = self._placement.next_loss(topic, now)
        if loss is not None and topic not in self._timed:
            self._timed.add(topic)
            self._core.runtime.call_later(loss - now, self._take_again, topic)
        return route

    def withdraw(self, topic: str, broker_name: str) -> None:
        """Remove the queues of a broker that is there but no longer has `topic`."""
        self._change(topic, lambda: self._placement.withdraw(topic, broker_name))

    def _change(self, topic: str, change: Callable[[], None]) -> None:
        before = self.round(topic)
        change()
        after = self.round(topic)
        if before.queues and before != after:
            counts = len(after.queues), len(before.queues)
            log.info("keys of topic %s go over %d queues, not %d", topic, *counts)
            self._on_change(topic)

    def _take_again(self, topic: str) -> None:
        self._timed.discard(topic)
        if not self._core.closed:
            self._take(topic)

    def _route_changed(self, topic: str) -> None:
        route = self._take(topic)
        if route is not None and self._unnamed(topic, route):
            look = partial(self._look_for_unnamed, topic)
            self._core.tasks.once(look, name=f"brokers of {topic}")

    def _unnamed(self, topic: str, route: TopicRoute) -> set[str]:
        return set(self._placement.away(topic)) - {data.broker_name for data in route.brokers}

    async def _look_for_unnamed(self, topic: str) -> None:
        """Find out whether a broker that the route does not name is away, or is there without the
        topic."""
        command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            brokers = await self._core.ask_nameserver(command, brokers_in)
            route = await self._core.route(topic, refresh=True)
        except SaturnError as error:
            log.debug("the brokers of %s are not known now: %s", topic, error)
            return  # brokers that are away for long are dropped nevertheless
        led = {data.broker_name for data in brokers if data.master is not None}
        for name in self._unnamed(topic, route) & led:
            self.withdraw(topic, name)

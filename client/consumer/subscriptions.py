"""The subscriptions of one consumer: topics by their names, and patterns of names. Loop thread
only.

A pattern is a compiled regular expression that the whole name of a topic must match. A nameserver
is asked for the topics at the start and every so often after it (206); those of the system, of
retries and of dead letters never match. A topic that appears later is read from its beginning: all
of it is newer than the consumer. One that is gone is left when two lists in a row lack it, because
a nameserver that has just started knows no topics before the brokers have registered.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from saturnmq.client.cluster_view import nodes_of, user_topics_of
from saturnmq.client.consumer.filter_check import find_brokers
from saturnmq.client.consumer.starting import Baseline
from saturnmq.client.core import ClientCore
from saturnmq.protocol.namespaces import Namespace
from saturnmq.protocol.subscription import Expression, Subscription
from saturnmq.protocol.topics import check_topic
from saturnmq.runtime.errors import (
    InvalidParameter,
    RouteNotFound,
    SaturnError,
    SubscriptionParseFailed,
)

log = logging.getLogger(__name__)

TopicOrPattern = str | re.Pattern[str]
"""A topic, or a regular expression that the whole names of topics must match."""


class Subscriptions:
    """The subscriptions of one consumer."""

    def __init__(
        self, core: ClientCore, group: str, namespace: Namespace, interval_s: float
    ) -> None:
        """`interval_s`: seconds between two looks for the topics of patterns."""
        self.by_topic: dict[str, Subscription] = {}
        """The topics that are read, as brokers name them; those that patterns found included."""
        self.baseline = Baseline()
        self._core = core
        self._group = group
        self._namespace = namespace
        self._interval_s = interval_s
        self._patterns: dict[re.Pattern[str], Expression] = {}
        self._has_patterns = asyncio.Event()
        self._looked_for: set[re.Pattern[str]] = set()  # topics found from now on are new ones
        self._found: dict[str, Expression] = {}  # topics of patterns
        self._missing: set[str] = set()  # those of them that the last list lacked

    @property
    def empty(self) -> bool:
        """Whether nothing is subscribed to, not even a pattern."""
        return not self.by_topic and not self._patterns

    def is_by_pattern(self, topic: str) -> bool:
        """Whether a pattern found the topic, and nobody named it."""
        return topic in self._found

    def add(self, topic: TopicOrPattern, expression: Expression) -> None:
        """Subscribe, or change the expression. The topics of a pattern are known after `find`."""
        if isinstance(topic, re.Pattern):
            if not isinstance(topic.pattern, str):
                raise InvalidParameter(
                    f"pattern {topic.pattern!r}: topics are matched by one of text"
                )
            Subscription.parse(topic.pattern, expression)  # its faults are raised here
            self._patterns[topic] = expression
            self._has_patterns.set()
            return
        topic = check_topic(self._namespace.wrap(topic))
        self._found.pop(topic, None)
        self._set(topic, expression)

    def remove(self, topic: TopicOrPattern) -> None:
        """Leave a topic, or a pattern with its topics. A topic that a pattern matches is kept."""
        if isinstance(topic, re.Pattern):
            self._patterns.pop(topic, None)
            self._looked_for.discard(topic)
            for each in [each for each in self._found if self._pattern_of(each) is None]:
                self._leave(each)
            if not self._patterns:
                self._has_patterns.clear()
            return
        topic = self._namespace.wrap(topic)
        pattern = self._pattern_of(topic)
        if pattern is None:
            self._leave(topic)
        elif topic in self.by_topic:
            self._found[topic] = self._patterns[pattern]
            self._set(topic, self._patterns[pattern])

    async def find(self) -> None:
        """Find the topics of patterns and the brokers of all topics; see `find_brokers` for what it
        raises."""
        await self._look()
        await find_brokers(self._core, self._group, self.by_topic, self.baseline)

    async def announce(self) -> None:
        """Tell the brokers of a change while the consumer runs. No caller waits for this: an error
        becomes a line in the log, and other brokers may still check a condition."""
        try:
            await self.find()
        except SubscriptionParseFailed as error:
            log.error("group %s: %s", self._group, error)
        await self._core.heartbeat_now()

    async def follow(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Look for the topics of patterns again and again, until cancelled."""
        while True:
            await self._has_patterns.wait()
            await self._core.runtime.sleep(self._interval_s)
            if await self._look():
                await changed()

    async def _look(self) -> bool:
        """Take the topics that patterns match now; True if they are others than before."""
        if not self._patterns:
            return False
        try:
            nodes = await nodes_of(self._core)
            if not nodes:
                raise RouteNotFound("no nameserver knows a broker yet")
            names = set(await user_topics_of(self._core, nodes))
        except SaturnError as error:
            log.info("group %s: the topics are not known now: %s", self._group, error)
            self._core.report_nameservers()
            return False
        changed = False
        for topic in sorted(names):
            pattern = self._pattern_of(topic)
            if pattern is None or (topic in self.by_topic and topic not in self._found):
                continue
            expression = self._patterns[pattern]
            if self._found.get(topic) is expression:
                continue
            if topic not in self._found and pattern in self._looked_for:
                self.baseline.forget(topic)  # it may have gone a moment ago, amid a rebalance
                self.baseline.answered(topic, ())
            self._found[topic] = expression
            self._set(topic, expression)
            changed = True
        missing = self._found.keys() - names
        for topic in missing & self._missing:
            self._leave(topic)
            changed = True
        self._missing = missing
        self._looked_for |= self._patterns.keys()
        return changed

    def _pattern_of(self, topic: str) -> re.Pattern[str] | None:
        """The first pattern that matches a topic of the namespace."""
        if not self._namespace.holds(topic):
            return None
        name = self._namespace.plain(topic)
        return next((each for each in self._patterns if each.fullmatch(name)), None)

    def _set(self, topic: str, expression: Expression) -> None:
        version = self._core.subscription_version()
        self.by_topic[topic] = Subscription.parse(topic, expression, version)

    def _leave(self, topic: str) -> None:
        self.by_topic.pop(topic, None)
        self._found.pop(topic, None)
        self.baseline.forget(topic)

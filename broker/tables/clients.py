"""The connected clients: producers and consumers by group, from their heartbeats.

A heartbeat (34) names a client id, its producer groups and its consumer groups with their
subscriptions. A member lives until its connection closes, it unregisters (35) or no heartbeat came
for 120 s. Whenever the members or the topics of a clustering group change, every member is told
by a one-way NOTIFY_CONSUMER_IDS_CHANGED (40) and rebalances.

This table is state only: `heartbeat` and `remove` return the groups that changed, and the caller
sends the notices.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saturnmq.broker.bodies import Consumer, Heartbeat
from saturnmq.broker.tables.member_reads import MemberReads
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.subscription import SQL_EXPRESSION, Subscription

log = logging.getLogger(__name__)

CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"


@dataclass(slots=True)
class ConsumerMember:
    client_id: str
    language: str
    version: int
    seen: float  # monotonic seconds of the last heartbeat


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = CLUSTERING
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Endpoint, ConsumerMember] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # from heartbeats
    reads: MemberReads = field(default_factory=MemberReads)

    @property
    def is_differing(self) -> bool:
        """Whether members that share queues subscribe differently."""
        return self.reads.differ and self.message_model == CLUSTERING

    def client_ids(self) -> list[str]:
        return sorted({m.client_id for m in self.members.values()})


def _note_reads(group: ConsumerGroup, endpoint: Endpoint, data: Consumer) -> None:
    """Note the subscriptions of a member. Tell once when it differs from others, and when that is
    over."""
    before = group.is_differing
    group.reads.take(endpoint, data.reads)
    if group.is_differing and not before:
        log.warning(
            "the members of group %s subscribe differently, so messages that some of them want are "
            "dropped or left by others (saturnmq group describe): %s",
            group.name,
            group.reads,
        )
    elif before and not group.is_differing:
        log.info("all members of group %s subscribe alike again", group.name)


@dataclass(slots=True)
class JoinedGroups:
    """The groups of one connection, in the order in which it joined them."""

    producing: dict[str, None] = field(default_factory=dict)
    consuming: dict[str, None] = field(default_factory=dict)


class ClientTable:
    def __init__(self, expiry_s: float) -> None:
        self._expiry = expiry_s
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[Endpoint, ConsumerMember]] = {}
        # The connections of a client by its id, in the order in which they were last heard: bytes
        # of an older one may come after the first ones of a newer one.
        self._producing: dict[str, dict[Endpoint, None]] = {}
        self._client_ids: dict[Endpoint, str] = {}  # of the connections of producers
        # So that the end of a connection costs as much as it has groups, not as there are groups.
        self._joined: dict[Endpoint, JoinedGroups] = {}

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """The consumers of this group that are connected; None if there are none."""
        return self.consumers.get(name)

    def producer(self, client_id: str) -> Endpoint | None:
        """The connection over which the client of this id was heard last, if it is in a producer
        group."""
        return next(reversed(self._producing.get(client_id, {})), None)

    def __len__(self) -> int:
        """The number of members of groups and of their subscriptions."""
        consumers = self.consumers.values()
        return sum(map(len, self.producers.values())) + sum(
            len(group.members) + len(group.documents) for group in consumers
        )

    def validate(self) -> None:
        """AssertionError: a group has no member, its subscriptions do not fit together, or a
        producer is not found by its id."""
        for name, members in self.producers.items():
            assert members, f"the producer group {name} has no member"
        for client_id, endpoints in self._producing.items():
            assert endpoints, f"{client_id} has no connection"
            for endpoint in endpoints:
                assert self._client_ids.get(endpoint) == client_id, f"{client_id} has another name"
        for name, members in self.producers.items():
            assert members.keys() <= self._client_ids.keys(), "a producer has no id"
            assert all(name in self._joined[each].producing for each in members), f"of {name}"
        for endpoint, client_id in self._client_ids.items():
            assert self._joined[endpoint].producing, f"{client_id} is in no producer group"
            assert endpoint in self._producing.get(client_id, ()), f"{client_id} is not found"
        for name, group in self.consumers.items():
            assert group.name == name, f"{group.name} is kept as {name}"
            assert group.members, f"the consumer group {name} has no member"
            unsaid = group.subscriptions.keys() - group.documents.keys()
            assert not unsaid, f"group {name} subscribes {unsaid}, and no heartbeat says so"
            group.reads.validate(group.members)
            assert all(name in self._joined[each].consuming for each in group.members), f"of {name}"
        for endpoint, joined in self._joined.items():
            assert joined.producing or joined.consuming, f"{endpoint} is in no group"
            for name in joined.producing:
                assert endpoint in self.producers[name], f"{endpoint} is not in {name}"
            for name in joined.consuming:
                assert endpoint in self.consumers[name].members, f"{endpoint} is not in {name}"

    def unknown(self, endpoint: Endpoint, beat: Heartbeat) -> int:
        """The number of groups in the heartbeat of which the connection is no member yet."""
        producing = (self.producers.get(name, ()) for name in beat.producer_groups)
        consuming = (self.consumers.get(each.group) for each in beat.consumers)
        return sum(endpoint not in members for members in producing) + sum(
            group is None or endpoint not in group.members for group in consuming
        )

    def heartbeat(
        self,
        endpoint: Endpoint,
        language: str,
        version: int,
        beat: Heartbeat,
        now: float,
    ) -> list[str]:
        """Take one heartbeat; return the consumer groups that changed by it."""
        member = ConsumerMember(beat.client_id, language, version, now)
        changed = []
        if beat.producer_groups or beat.consumers:
            ours = self._joined.setdefault(endpoint, JoinedGroups())
            ours.producing |= dict.fromkeys(beat.producer_groups)
            ours.consuming |= dict.fromkeys(each.group for each in beat.consumers)
        for group in beat.producer_groups:
            self.producers.setdefault(group, {})[endpoint] = member
        if beat.producer_groups:
            self._forget_producer(endpoint)
            self._client_ids[endpoint] = beat.client_id
            self._producing.setdefault(beat.client_id, {})[endpoint] = None
        for data in beat.consumers:
            name = data.group
            group_ = self.consumers.get(name)
            if group_ is None:
                group_ = self.consumers[name] = ConsumerGroup(name)
            joined = endpoint not in group_.members
            group_.members[endpoint] = member
            topics_changed = False
            if not beat.liveness_only:
                group_.consume_type = data.consume_type or group_.consume_type
                group_.message_model = data.message_model or group_.message_model
                group_.consume_from = data.consume_from or group_.consume_from
                topics_changed = self._subscribe(group_, data)
                _note_reads(group_, endpoint, data)
            if joined or topics_changed:
                changed.append(name)
        return changed

    @staticmethod
    def _subscribe(group: ConsumerGroup, data: Consumer) -> bool:
        """Take a group's subscriptions: newer versions replace older ones, and topics no longer
        named go. Return whether the set of topics changed."""
        before = set(group.documents)
        named = set()
        for document, parsed in zip(data.subscriptions, data.parsed, strict=True):
            topic = document["topic"]
            named.add(topic)
            known = group.documents.get(topic)
            if known is None or document["subVersion"] >= known["subVersion"]:
                if isinstance(parsed, Subscription):
                    group.subscriptions[topic] = parsed
                else:
                    # Its pulls are refused (broker/handlers/subscriptions.py); the client itself
                    # lives on. A condition stays until there is one that can be parsed, as in
                    # RocketMQ.
                    log.warning("group %s: %s", group.name, parsed)
                    older = group.subscriptions.get(topic)
                    is_sql = document["expressionType"] == SQL_EXPRESSION
                    if not is_sql or older is None or older.sql is None:
                        group.subscriptions.pop(topic, None)
                group.documents[topic] = document
        for topic in before - named:
            group.subscriptions.pop(topic, None)
            group.documents.pop(topic, None)
        assert group.documents.keys() == named, f"{named} were named by {group.name}"
        assert group.subscriptions.keys() <= named, f"{named} were named by {group.name}"
        return before != named

    @property
    def differing(self) -> list[str]:
        """The clustering groups whose members subscribe differently."""
        return sorted(n for n, g in self.consumers.items() if g.is_differing)

    def remove(
        self,
        endpoint: Endpoint,
        *,
        producer_group: str | None = None,
        consumer_group: str | None = None,
        everything: bool = False,
    ) -> list[str]:
        """Take a connection out of groups; return the consumer groups that changed."""
        joined = self._joined.get(endpoint)
        if joined is None:
            return []
        for name in [n for n in joined.producing if everything or n == producer_group]:
            del joined.producing[name]
            members = self.producers[name]
            del members[endpoint]
            if not members:
                del self.producers[name]
        if not joined.producing:
            self._forget_producer(endpoint)
        changed = [n for n in joined.consuming if everything or n == consumer_group]
        for name in changed:
            del joined.consuming[name]
            group = self.consumers[name]
            del group.members[endpoint]
            group.reads.forget(endpoint)
            if not group.members:
                del self.consumers[name]
        if not (joined.producing or joined.consuming):
            del self._joined[endpoint]
        return changed

    def _forget_producer(self, endpoint: Endpoint) -> None:
        client_id = self._client_ids.pop(endpoint, None)
        if client_id is not None:
            endpoints = self._producing[client_id]
            del endpoints[endpoint]
            if not endpoints:
                del self._producing[client_id]

    def expired(self, now: float) -> list[Endpoint]:
        """The connections whose client went silent."""
        oldest = now - self._expiry
        silent: dict[Endpoint, None] = {}
        for members in [*self.producers.values(), *(g.members for g in self.consumers.values())]:
            for endpoint, member in members.items():
                if member.seen < oldest:
                    silent[endpoint] = None
        return list(silent)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        found = self.consumers.get(group)
        return found.subscriptions.get(topic) if found else None

    def subscription_document(self, group: str, topic: str) -> Mapping[str, Any] | None:
        """The newest subscription that a heartbeat sent, even if it cannot be parsed."""
        found = self.consumers.get(group)
        return found.documents.get(topic) if found else None

    def groups_of(self, topic: str) -> list[str]:
        return sorted(n for n, g in self.consumers.items() if topic in g.subscriptions)

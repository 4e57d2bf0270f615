"""Clients that come and go: codes 34 35 38 41 42 46 203 204, and the notices (40) that follow.

A heartbeat registers its client before it is answered, so that a member that asks 38 right after it
finds itself in the list. A group's retry topic appears with its first heartbeat.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from copy import copy
from typing import Any

from saturnmq.broker import bodies
from saturnmq.broker.context import Context, answer
from saturnmq.broker.handlers import slices
from saturnmq.broker.handlers.subscriptions import check_enabled
from saturnmq.broker.tables.clients import CLUSTERING, ConsumerGroup, ConsumerMember
from saturnmq.broker.tables.table_memory import LOCK, MEMBER
from saturnmq.protocol import fastjson, headers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import TAG_EXPRESSION, Subscription
from saturnmq.protocol.topics import retry_topic
from saturnmq.runtime.errors import (
    ConsumerNotOnline,
    SubscriptionParseFailed,
    SystemError_,
)

TOLD_AT_ONCE = 50  # members of a group: about a millisecond


class MembershipService:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._clients = context.clients
        self._locks = context.locks
        self._runtime = context.runtime
        self._telling: dict[str, bool] = {}  # large groups; whether they have changed since

    def on_heartbeat(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        def take(beat: bodies.Heartbeat) -> None:
            self._heard(endpoint, request, beat)

        slices.read_body(self._c, endpoint, request, bodies.heartbeat, take)

    def _heard(self, endpoint: Endpoint, request: Command, beat: bodies.Heartbeat) -> None:
        c = self._c
        new = c.clients.unknown(endpoint, beat)
        if new:
            c.tables.take(MEMBER * new, f"a heartbeat with {new} groups that are new")
        for consumer in beat.consumers:
            group = c.groups.get_or_create(consumer.group)
            if group is not None and not c.role.is_slave and group.retry_queues > 0:
                c.topics.ensure_retry(retry_topic(consumer.group), group.retry_queues)
        changed = c.clients.heartbeat(
            endpoint, request.language or "OTHER", request.version, beat, c.runtime.monotonic()
        )
        answer(
            endpoint,
            request,
            request.reply(0, ext={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}),
        )
        self.notify(changed)

    def on_unregister(
        self, endpoint: Endpoint, request: Command, header: headers.UnregisterClientHeader
    ) -> None:
        changed = self._clients.remove(
            endpoint,
            producer_group=header.producer_group,
            consumer_group=header.consumer_group,
        )
        answer(endpoint, request, request.reply(0))
        self.notify(changed)

    def closed(self, endpoint: Endpoint) -> None:
        self.notify(self._clients.remove(endpoint, everything=True))

    def expire(self, now: float) -> None:
        for endpoint in self._clients.expired(now):
            endpoint.close()
            self.closed(endpoint)
        self._locks.expire(now)

    def notify(self, groups: list[str]) -> None:
        """Have the members of these groups share their queues out anew."""
        for name in groups:
            group = self._clients.consumer_group(name)
            settings = self._c.groups.get(name)
            if group is None or group.message_model != CLUSTERING:
                continue
            if settings is not None and not settings.notify_changes:
                continue
            if len(group.members) <= TOLD_AT_ONCE:
                _tell(name, group.members)
            elif name in self._telling:
                self._telling[name] = True
            else:
                self._telling[name] = False
                self._runtime.spawn(self._c.steps.run(self._tell_all(name)), name="tell-group")

    def _tell_all(self, name: str) -> Generator[None, None, None]:
        """Notify the members of a large group. If the group changes meanwhile, however often,
        notify them once more."""
        again = True
        while again:
            self._telling[name] = False
            group = self._clients.consumer_group(name)
            members = [] if group is None else list(group.members)
            for start in range(0, len(members), TOLD_AT_ONCE):
                _tell(name, members[start : start + TOLD_AT_ONCE])
                yield
            again = self._telling[name]
        del self._telling[name]

    def on_consumer_list(
        self, endpoint: Endpoint, request: Command, header: headers.ConsumerListHeader
    ) -> None:
        name = header.group
        group = self._clients.consumer_group(name)
        if group is None:
            raise SystemError_(f"no consumer for this group, {name}")
        found = {"consumerIdList": group.client_ids()}
        if header.wants_pops:
            settings = self._c.groups.get(name)
            found["saturnPops"] = [] if settings is None else settings.popped_topics
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(found)))

    def on_check_client(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        def take(asked: tuple[dict[str, Any], Subscription | SubscriptionParseFailed]) -> None:
            wanted, parsed = asked
            if wanted["expressionType"] != TAG_EXPRESSION:
                check_enabled(self._c, wanted["expressionType"])
                if isinstance(parsed, SubscriptionParseFailed):
                    raise copy(parsed)  # whose traceback has no frame that names it
            answer(endpoint, request, request.reply(0))

        slices.read_body(self._c, endpoint, request, bodies.subscription_to_check, take)

    def on_lock(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        def take(asked: bodies.Locks) -> None:
            now = self._runtime.monotonic()
            new = self._locks.unknown(asked.group, asked.queues)
            if new:
                self._c.tables.take(LOCK * new, f"a lock of {new} queues")
            granted = self._locks.lock(asked.group, asked.client_id, asked.queues, now)
            body = fastjson.dumps({"lockOKMQSet": [fastjson.mq_json(q) for q in granted]})
            answer(endpoint, request, request.reply(0, body=body))

        slices.read_body(self._c, endpoint, request, bodies.locks, take)

    def on_unlock(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        def take(asked: bodies.Locks) -> None:
            self._locks.unlock(asked.group, asked.client_id, asked.queues)
            answer(endpoint, request, request.reply(0))

        slices.read_body(self._c, endpoint, request, bodies.locks, take)

    def on_consumer_connections(
        self, endpoint: Endpoint, request: Command, header: headers.ConsumerGroupHeader
    ) -> None:
        name = header.group
        group = self._clients.consumer_group(name)
        if group is None:
            raise ConsumerNotOnline(f"the consumer group[{name}] not online")
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(_consumer_json(group))))

    def on_producer_connections(
        self, endpoint: Endpoint, request: Command, header: headers.ProducerGroupHeader
    ) -> None:
        name = header.group
        members = self._clients.producers.get(name)
        if not members:
            raise SystemError_(f"the producer group[{name}] not exist")
        body = fastjson.dumps({"connectionSet": _connections(members)})
        answer(endpoint, request, request.reply(0, body=body))


def _tell(group: str, members: Iterable[Endpoint]) -> None:
    for endpoint in members:
        endpoint.oneway(
            Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
        )


def _connections(members: dict[Endpoint, ConsumerMember]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": endpoint.peer_address,
            "clientId": member.client_id,
            "language": member.language,
            "version": member.version,
        }
        for endpoint, member in members.items()
    ]


def _consumer_json(group: ConsumerGroup) -> dict[str, Any]:
    connections = _connections(group.members)
    if group.is_differing:
        for endpoint, connection in zip(group.members, connections, strict=True):
            connection["saturnReads"] = group.reads[endpoint]
    return {
        "connectionSet": connections,
        "consumeFromWhere": group.consume_from,
        "consumeType": group.consume_type,
        "messageModel": group.message_model,
        "subscriptionTable": {t: dict(d) for t, d in sorted(group.documents.items())},
    }

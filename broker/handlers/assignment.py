"""QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE and GET_ALL_MESSAGE_REQUEST_MODE: how a group reads a
topic, and which queues a member of it reads if the broker decides.

Clients ask any broker of the topic, so the answer is about all of them: the route comes from a
nameserver, or, without one, from this broker's own table. A broker that does not know the route or
the members answers an error, and the client keeps what it has.

The mode of a group for a topic is a part of the group's settings (`subscription_groups.py`), so it
is saved, copied and deleted with them. RocketMQ has a file of its own for the modes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.broker import bodies
from saturnmq.broker.context import REJECTED, Context, answer, answer_failure, check_master
from saturnmq.broker.pop.assignment import STRATEGIES, assigned
from saturnmq.broker.tables.clients import BROADCASTING
from saturnmq.broker.tables.request_modes import PULL, RequestMode
from saturnmq.broker.tables.table_persistence import save_all
from saturnmq.protocol import fastjson
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.headers import NoFieldsHeader
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicRoute
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.runtime.errors import (
    GroupNotExist,
    InvalidParameter,
    NoPermission,
    SystemBusy,
    SystemError_,
    TopicNotExist,
)

ROUTE_S = 2.0  # how long nameservers are asked
KEPT_S = 1.0  # a route is asked for once in this time
KEPT_MOST = 1000

RouteOf = Callable[[str, float], Awaitable[TopicRoute | None]]


class AssignmentRequests:
    def __init__(
        self,
        context: Context,
        route_of: RouteOf,
        save: Callable[[Any], Awaitable[None]],
        notify: Callable[[list[str]], None],
    ) -> None:
        """`notify` has the members of groups share their queues out anew."""
        self._c = context
        self._route_of = route_of
        self._save = save
        self._notify = notify
        self._routes: dict[str, tuple[float, TopicRoute | None]] = {}

    def on_query(self, endpoint: Endpoint, request: Command, _: NoFieldsHeader) -> None:
        asked = bodies.assignment_question(request)
        if asked.strategy not in STRATEGIES:
            raise InvalidParameter(
                f"strategy {asked.strategy!r:.60} is not known; use one of {', '.join(STRATEGIES)}"
            )
        request.body = b""

        async def find() -> None:
            found = await self._assigned(asked)
            body = fastjson.dumps({"messageQueueAssignments": found})
            answer(endpoint, request, request.reply(0, body=body))

        self._c.runtime.spawn(answer_failure(self._c, endpoint, request, find()), name="assignment")

    async def _assigned(self, asked: bodies.AssignmentQuestion) -> list[dict[str, Any]]:
        c = self._c
        queues = sorted(await self._queues(asked.topic))
        if not queues:
            raise TopicNotExist(f"no queue of topic {asked.topic} can be read: no assignment")
        settings, mode = c.groups.get(asked.group), RequestMode()
        if settings is not None and not asked.topic.startswith(RETRY_PREFIX):
            mode = settings.request_modes.get(asked.topic, mode)
        if asked.message_model != BROADCASTING:
            online = c.clients.consumer_group(asked.group)
            if online is None:
                raise SystemError_(f"no consumer for this group, {asked.group}")
            queues = assigned(mode, asked.strategy, asked.client_id, queues, online.client_ids())
        return [
            {
                "messageQueue": fastjson.mq_json(queue),
                "mode": mode.mode if asked.message_model != BROADCASTING else PULL,
            }
            for queue in queues
        ]

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues of a topic on all brokers."""
        c = self._c
        if not c.config.nameservers:
            known = c.topics.get(topic)
            count = known.read_queues if known is not None else 0
            return [MessageQueue(topic, c.config.broker_name, each) for each in range(count)]
        route = await self._route(topic)
        if route is None:
            raise SystemBusy(f"no nameserver tells the route of {topic}: no assignment")
        names = {broker.broker_name for broker in route.brokers}
        return [
            MessageQueue(topic, data.broker_name, each)
            for data in route.queues
            if data.readable and data.broker_name in names
            for each in range(data.read_queues)
        ]

    async def _route(self, topic: str) -> TopicRoute | None:
        now = self._c.runtime.monotonic()
        at, route = self._routes.get(topic, (-KEPT_S, None))
        if route is None or now - at >= KEPT_S:
            route = await self._route_of(topic, ROUTE_S)
            if len(self._routes) >= KEPT_MOST:
                self._routes.clear()
            self._routes[topic] = now, route
        return route

    def on_set_mode(self, endpoint: Endpoint, request: Command, _: NoFieldsHeader) -> None:
        c = self._c
        check_master(c, REJECTED)
        group_name, topic, mode = bodies.request_mode(request)
        if topic.startswith(RETRY_PREFIX):
            raise NoPermission("retry topic is not allowed to set mode")
        if c.topics.get(topic) is None:
            raise TopicNotExist(f"topic[{topic}] not exist")
        group = c.groups.get_or_create(group_name)
        if group is None:
            raise GroupNotExist("subscription group does not exist")
        changed = group.with_request_mode(topic, mode)
        c.groups.make_room(changed)
        c.groups.put(changed)

        self._notify([group_name])

        async def save() -> None:
            await save_all(self._save, c.groups)
            answer(endpoint, request, request.reply(0))

        c.runtime.spawn(answer_failure(c, endpoint, request, save()), name="request-mode")

    def on_modes(self, endpoint: Endpoint, request: Command, _: NoFieldsHeader) -> None:
        table: dict[str, dict[str, Any]] = {}
        for group in self._c.groups:
            for topic, mode in group.request_modes.items():
                table.setdefault(topic, {})[group.name] = {
                    "consumerGroup": group.name,
                    "topic": topic,
                    **mode.to_json(),
                }
        body = fastjson.dumps({"messageRequestModeMap": table})
        answer(endpoint, request, request.reply(0, body=body))

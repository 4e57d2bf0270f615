"""Which groups an operator forbids to read which topics: code 353. Pulls and pops of such a group
are answered with NO_PERMISSION (`subscriptions.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from saturnmq.broker.context import Context, answer, answer_failure, check_master
from saturnmq.broker.tables.table_persistence import Saveable, save_all
from saturnmq.protocol import admin_headers, fastjson
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import GroupNotExist, TopicNotExist


class ForbiddingService:
    def __init__(self, context: Context, save: Callable[[Saveable], Awaitable[None]]) -> None:
        self._c = context
        self._save = save

    def on_forbid(
        self, endpoint: Endpoint, request: Command, header: admin_headers.ForbiddingHeader
    ) -> None:
        """Forbid or allow it, if `readable` says so; tell how it is. Answered when the table is on
        disk."""
        c, group, topic = self._c, header.group, header.topic
        if not header.readable:
            answer(endpoint, request, self._told(request, group, topic))
            return
        check_master(c)
        if c.groups.get(group) is None:
            raise GroupNotExist(f"No group in this broker. group: {group}")
        if c.topics.get(topic) is None:
            raise TopicNotExist(f"No topic in this broker. topic: {topic}")
        c.groups.forbid(group, topic, forbidden=header.readable == "FALSE")

        async def saved() -> None:
            await save_all(self._save, c.groups)
            answer(endpoint, request, self._told(request, group, topic))

        request.body = b""
        c.runtime.spawn(answer_failure(c, endpoint, request, saved()), name="forbidding")

    def _told(self, request: Command, group: str, topic: str) -> Command:
        readable = not self._c.groups.forbids(group, topic)
        body = {"group": group, "readable": readable, "topic": topic}
        return request.reply(0, body=fastjson.dumps(body))

"""A broker's topics, counts, queues and producers, for operators' tools: codes 305 315 321 328."""

from __future__ import annotations

from typing import Any

from saturnmq.broker.context import Context, answer
from saturnmq.broker.handlers import slices
from saturnmq.protocol import admin_headers, fastjson
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter, SystemError_
from saturnmq.store.derived.consumequeue import ENTRY

PRODUCERS = 500  # of 328 in one step


class InspectionService:
    def __init__(self, context: Context) -> None:
        self._c = context

    def on_system_topics(
        self, endpoint: Endpoint, request: Command, _: admin_headers.ToolHeader
    ) -> None:
        topics = self._c.topics
        names = sorted(topic.name for topic in topics if topics.is_system(topic.name))
        answer(endpoint, request, request.reply(0, body=fastjson.dumps({"topicList": names})))

    def on_statistic(
        self, endpoint: Endpoint, request: Command, header: admin_headers.StatisticHeader
    ) -> None:
        """315: a figure of the last minute, hour and day. SystemError_: nothing of this name was
        counted, as RocketMQ answers it."""
        spans = self._c.statistics.spans(header.figure, header.key, self._c.runtime.monotonic())
        if spans is None:
            raise SystemError_(f"The stats <{header.figure}> <{header.key}> not exist")
        body = {
            name: {"avgpt": 1.0 if span.total else 0.0, "sum": span.total, "tps": span.rate}
            for name, span in zip(("statsMinute", "statsHour", "statsDay"), spans, strict=True)
        }
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(body)))

    def on_queue_entries(
        self, endpoint: Endpoint, request: Command, header: admin_headers.QueueEntriesHeader
    ) -> None:
        """321: entries of a queue, as they are in its file."""
        c, topic, queue_id = self._c, header.topic, header.queue_id
        store = c.store
        if queue_id not in store.queue_ids(topic):
            raise SystemError_(f"{queue_id}@{topic} is not exist!")
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        if not low <= header.index <= high:
            raise InvalidParameter(
                f"index {header.index} is outside queue {queue_id} of {topic}, whose entries are "
                f"{low} to {high - 1}"
            )
        entries: list[dict[str, Any]] = []
        while len(entries) < header.count:
            index = header.index + len(entries)
            found = bytes(store.entries(topic, queue_id, index, header.count - len(entries)))
            if not found:
                break
            entries += (
                {"physicOffset": physical, "physicSize": size, "tagsCode": tags, "eval": False}
                for physical, size, tags in ENTRY.iter_unpack(found)
            )
        body: dict[str, Any] = {"queueData": entries, "minQueueIndex": low, "maxQueueIndex": high}
        if header.group is not None:
            document = c.clients.subscription_document(header.group, topic)
            body["subscriptionData"] = None if document is None else dict(document)
            missing = f"{header.group}@{topic} is not online!"
            body["filterData"] = missing if document is None else "null"
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(body)))

    def on_all_producers(
        self, endpoint: Endpoint, request: Command, _: admin_headers.ToolHeader
    ) -> None:
        """328: the connected producers by group."""
        slices.answer_with(self._c, endpoint, request, self._producers(request))

    def _producers(self, request: Command) -> slices.Work:
        c = self._c
        rows = [
            (group, endpoint, member)
            for group, members in c.clients.producers.items()
            for endpoint, member in members.items()
        ]
        now_ms, now = c.runtime.now_ms(), c.runtime.monotonic()
        table: dict[str, list[dict[str, Any]]] = {}
        for start in range(0, len(rows), PRODUCERS):
            if start:
                yield
            for group, endpoint, member in rows[start : start + PRODUCERS]:
                seen = {
                    "clientId": member.client_id,
                    "language": member.language,
                    "lastUpdateTimestamp": now_ms - int((now - member.seen) * 1000),
                    "remoteIP": endpoint.peer_host,
                    "version": member.version,
                }
                table.setdefault(group, []).append(seen)
        return request.reply(0, body=fastjson.dumps({"data": table}))

"""A broker's topics, counts, queues, producers, epochs and replication address, for tools and for
RocketMQ's slaves: codes 305 315 321 328 906 1007."""

from __future__ import annotations

from typing import Any

from saturnmq.broker.context import Context, answer
from saturnmq.broker.handlers import slices
from saturnmq.broker.handlers.queue_facts import QueueFacts
from saturnmq.broker.replication.role import State
from saturnmq.protocol import admin_headers, checked, fastjson, headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter, SystemError_, UnsupportedRequest
from saturnmq.store.derived.consumequeue import ENTRY

PRODUCERS = 500  # of 328 in one step
TOPICS = 2000  # of 305 in one step


class InspectionService:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._facts = QueueFacts(context)

    def on_system_topics(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        topics = self._c.topics

        def made(names: list[str]) -> bytes:
            return fastjson.dumps([name for name in names if topics.is_system(name)])[1:-1]

        found = slices.of([topic.name for topic in topics], made, TOPICS)
        work = slices.joined(request, found, b'{"topicList":[%b]}'.__mod__)
        slices.answer_with(self._c, endpoint, request, work)

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
        low, high = self._facts.bounds(topic, queue_id)
        if not low <= header.index <= high:
            raise InvalidParameter(
                f"index {header.index} is outside queue {queue_id} of {topic}, whose entries are "
                f"{low} to {high - 1}"
            )
        entries: list[dict[str, Any]] = []
        index, queue = header.index, store.queues()[topic, queue_id]
        while len(entries) < header.count:
            found = bytes(store.entries(topic, queue_id, index, header.count - len(entries)))
            if not found:
                break
            entries += (
                {"physicOffset": physical, "physicSize": size, "tagsCode": tags, "eval": False}
                for physical, size, tags in ENTRY.iter_unpack(found)
            )
            index = queue.offset_behind(index, len(found) // ENTRY.size)
        body: dict[str, Any] = {"queueData": entries, "minQueueIndex": low, "maxQueueIndex": high}
        if header.group is not None:
            document = c.clients.subscription_document(header.group, topic)
            body["subscriptionData"] = None if document is None else dict(document)
            missing = f"{header.group}@{topic} is not online!"
            body["filterData"] = missing if document is None else "null"
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(body)))

    def on_all_producers(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
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

    def on_epochs(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        """GET_BROKER_EPOCH_CACHE: which master wrote which part of the log. The last part goes on,
        so its end is Long.MAX_VALUE, as in RocketMQ's answer."""
        c = self._c
        ends = [start for _, start in c.epochs.entries[1:]] + [checked.INT64_MAX]
        body = {
            "brokerId": c.role.broker_id,
            "brokerName": c.config.broker_name,
            "clusterName": c.config.cluster_name,
            "epochList": [
                {"epoch": number, "startOffset": start, "endOffset": end}
                for (number, start), end in zip(c.epochs.entries, ends, strict=False)
            ],
            "maxOffset": c.store.watermarks.appended,
        }
        answer(endpoint, request, request.reply(body=fastjson.dumps(body)))

    def on_ha_address(
        self, endpoint: Endpoint, request: Command, header: admin_headers.ExchangeHaHeader
    ) -> None:
        """906: where a master's slaves connect, and how much of its log is on disk."""
        c = self._c
        if header.master_ha_address is not None:
            raise UnsupportedRequest(
                f"to follow {header.master_ha_address} is not for a peer to say: nameservers name "
                "the master of a group, and `saturnmq admin promote` makes another one"
            )
        ext = {}
        if c.role.state is State.MASTER:
            ext = {
                "masterAddress": c.address,
                "masterFlushOffset": str(c.store.watermarks.flushed),
                "masterHaAddress": c.ha_address,
            }
        answer(endpoint, request, request.reply(0, ext=ext))

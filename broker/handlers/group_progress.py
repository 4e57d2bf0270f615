"""How far groups are, and what they read: codes 208 300 303 308 317 343 345."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from saturnmq.broker.context import Context, answer, check_offsets
from saturnmq.broker.handlers import slices
from saturnmq.broker.handlers.queue_facts import QueueFacts
from saturnmq.broker.tables.offsets import Search
from saturnmq.broker.tables.topics import Topic
from saturnmq.protocol import admin_headers, checked, fastjson, headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import retry_topic

Progress = dict[fastjson.MqKey, dict[str, int]]


class GroupProgress:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._clients = context.clients
        self._facts = QueueFacts(context)
        self._offsets = context.offsets

    def topics_of(self, group: str) -> Search:
        """Find the topics that a group has offsets in or subscribes to."""
        topics = dict.fromkeys((yield from self._offsets.topics_of(group)))
        online = self._clients.consumer_group(group)
        if online is not None:
            topics |= dict.fromkeys(online.documents)
        return sorted(topics)

    def on_consume_stats(
        self, endpoint: Endpoint, request: Command, header: admin_headers.ConsumeStatsHeader
    ) -> None:
        check_offsets(self._c)
        slices.answer_with(self._c, endpoint, request, self._consume_stats(request, header))

    def _consume_stats(
        self, request: Command, header: admin_headers.ConsumeStatsHeader
    ) -> slices.Work:
        group = header.group
        topics = sorted({topic for topic in header.topics.split(";") if topic})
        if not topics:
            named = header.topic
            known = (yield from self.topics_of(group)) if named is None else [named]
            topics = list(self._still_read(group, known, ordered_only=False))
        tps = self._tps(group, topics)

        def made(queues: list[tuple[Topic, int]]) -> bytes:
            return fastjson.dumps_mq_map(self._progress(group, queues))[1:-1]

        def whole(table: bytes) -> bytes:
            return b'{"consumeTps":%b,"offsetTable":{%b}}' % (fastjson.dumps(tps), table)

        found = slices.of(self._facts.queues_of(topics), made)
        return (yield from slices.joined(request, found, whole))

    def _tps(self, group: str, topics: list[str]) -> float:
        return self._c.statistics.group_rate(group, topics, self._c.runtime.monotonic())

    def _progress(self, group: str, queues: list[tuple[Topic, int]]) -> Progress:
        facts, reading, table = self._facts, self._c.pull_offsets.query, {}
        for topic, queue_id in queues:
            low, high = facts.bounds(topic.name, queue_id)
            consumed = self._offsets.query(group, topic.name, queue_id)
            position = low if consumed is None else consumed
            if queue_id >= topic.queues and position >= high:
                continue
            table[facts.key(topic.name, queue_id)] = {
                "brokerOffset": high,
                "consumerOffset": position,
                "lastTimestamp": facts.time_of(topic.name, queue_id, position - 1),
                "pullOffset": reading(group, topic.name, queue_id, position, high),
            }
        return table

    def on_all_consume_stats(
        self, endpoint: Endpoint, request: Command, header: admin_headers.BrokerConsumeStatsHeader
    ) -> None:
        """317: the progress of every group of this broker in each of its topics."""
        work = self._all_consume_stats(request, ordered_only=header.ordered_only)
        slices.answer_with(self._c, endpoint, request, work)

    def _all_consume_stats(self, request: Command, *, ordered_only: bool) -> slices.Work:
        groups = sorted((yield from self._offsets.topics_by_group()).items())
        made: list[bytes] = []
        behind = ahead = looked_at = 0

        def progress_of(queues: list[tuple[Topic, int]]) -> bytes:
            nonlocal behind, ahead, looked_at
            looked_at += len(queues)
            table = self._progress(group, queues)
            behind += sum(row["brokerOffset"] - row["consumerOffset"] for row in table.values())
            ahead += sum(row["pullOffset"] - row["consumerOffset"] for row in table.values())
            return fastjson.dumps_mq_map(table)[1:-1]

        for group, topics in groups:
            rows = []
            for topic in self._still_read(group, topics, ordered_only=ordered_only):
                parts = []
                for part in slices.of(self._facts.queues_of([topic]), progress_of):
                    parts.append(part)
                    if looked_at >= slices.QUEUES:
                        looked_at = 0
                        yield
                tps = fastjson.dumps(self._tps(group, [topic]))
                rows.append(b'{"consumeTps":%b,"offsetTable":{%b}}' % (tps, b",".join(parts)))
            made.append(b"{%b:[%b]}" % (fastjson.dumps(group), b",".join(rows)))
        body = b'{"brokerAddr":%b,"consumeStatsList":[%b],"totalDiff":%d,"totalInflightDiff":%d}'
        address = fastjson.dumps(self._c.address)
        return request.reply(0, body=body % (address, b",".join(made), behind, ahead))

    def _still_read(
        self, group: str, topics: Iterable[str], *, ordered_only: bool
    ) -> Iterator[str]:
        """Those of the topics that exist, and that the group reads if it is connected: it
        subscribes to them. Some members read its retry topic without a subscription."""
        online = self._clients.consumer_group(group)
        read = frozenset[str]() if online is None else online.documents.keys()
        for name in sorted(topics):
            topic = self._c.topics.get(name)
            if topic is None or (ordered_only and not topic.order):
                continue
            if not read or name in read or name == retry_topic(group):
                yield name

    def on_time_span(
        self, endpoint: Endpoint, request: Command, header: admin_headers.GroupTopicHeader
    ) -> None:
        """303: the store times of each queue's first and last message, and of the message up to
        which a group has consumed."""
        topic, group = self._facts.topic(header.topic), header.group

        def made(queue_ids: list[int]) -> bytes:
            rows = [self._time_span(group, topic.name, queue_id) for queue_id in queue_ids]
            return fastjson.dumps(rows)[1:-1]

        found = slices.of(range(topic.queues), made)
        work = slices.joined(request, found, lambda rows: b'{"consumeTimeSpanSet":[%b]}' % rows)
        slices.answer_with(self._c, endpoint, request, work)

    def _time_span(self, group: str, topic: str, queue_id: int) -> dict[str, Any]:
        facts = self._facts
        low, high = facts.bounds(topic, queue_id)
        consumed = self._offsets.query(group, topic, queue_id) or 0
        first = facts.time_of(topic, queue_id, low)
        waiting = facts.time_of(topic, queue_id, max(consumed, low)) if consumed < high else 0
        return {
            "messageQueue": fastjson.mq_json(facts.key(topic, queue_id)),
            "minTimeStamp": first,
            "maxTimeStamp": facts.time_of(topic, queue_id, high - 1),
            "consumeTimeStamp": facts.time_of(topic, queue_id, consumed - 1) or first,
            "delayTime": max(0, self._c.runtime.now_ms() - waiting) if waiting else 0,
        }

    def on_correction(
        self, endpoint: Endpoint, request: Command, header: admin_headers.CorrectionHeader
    ) -> None:
        """308: for each queue the least offset of all groups but those left out; Long.MAX_VALUE
        where the compared group is behind it. RocketMQ also forgets the offsets of groups that are
        left out: a question does not do that here."""
        slices.answer_with(self._c, endpoint, request, self._correction(request, header))

    def _correction(self, request: Command, header: admin_headers.CorrectionHeader) -> slices.Work:
        topic, query = self._facts.topic(header.topic), self._offsets.query
        having = yield from self._offsets.groups_of(topic.name)
        left_out = frozenset(header.left_out.split(","))
        groups = [name for name in having if name not in left_out]
        least: dict[int, int] = {}

        def look(places: list[tuple[str, int]]) -> bytes:
            for group, queue_id in places:
                offset = query(group, topic.name, queue_id)
                if offset is not None and offset >= self._facts.bounds(topic.name, queue_id)[0]:
                    least[queue_id] = min(offset, least.get(queue_id, offset))
            return b"-"

        for _ in slices.of(product(groups, range(topic.queues)), look):
            yield
        if header.compared is not None:
            for queue_id, offset in least.items():
                compared = query(header.compared, topic.name, queue_id)
                if compared is not None and compared < offset:
                    least[queue_id] = checked.INT64_MAX
        offsets = {str(queue_id): offset for queue_id, offset in sorted(least.items())}
        return request.reply(0, body=fastjson.dumps({"correctionOffsets": offsets}))

    def on_who_consumes(
        self, endpoint: Endpoint, request: Command, header: headers.TopicHeader
    ) -> None:
        def work() -> slices.Work:
            having = yield from self._offsets.groups_of(header.topic)
            groups = {*self._clients.groups_of(header.topic), *having}
            return request.reply(0, body=fastjson.dumps({"groupList": sorted(groups)}))

        slices.answer_with(self._c, endpoint, request, work())

    def on_topics_of_consumer(
        self, endpoint: Endpoint, request: Command, header: headers.GroupHeader
    ) -> None:
        def work() -> slices.Work:
            topics = yield from self.topics_of(header.group)
            body = fastjson.dumps({"brokerAddr": self._c.address, "topicList": topics})
            return request.reply(0, body=body)

        slices.answer_with(self._c, endpoint, request, work())

    def on_subscription(
        self, endpoint: Endpoint, request: Command, header: admin_headers.GroupTopicHeader
    ) -> None:
        """345: the subscription of a group to a topic; null if no member is connected that has
        one."""
        document = self._clients.subscription_document(header.group, header.topic)
        body = {
            "group": header.group,
            "topic": header.topic,
            "subscriptionData": None if document is None else dict(document),
        }
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(body)))

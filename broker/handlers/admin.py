"""Requests of operators: topics, groups, statistics, and the tables slaves copy.

Codes 17 18 21 43 45 60 61 200 201 202 207 215 225 306 316 329 351 352 513 907 390007. Bodies are
RocketMQ's, so that mqadmin and the Dashboard read them. A request that changes a table is answered
when the table is on disk. If it could not be saved, the error says which state holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from saturnmq.broker import bodies
from saturnmq.broker.access.guard import denied
from saturnmq.broker.context import Context, answer, answer_failure, check_master
from saturnmq.broker.delay.delivery import DelayService
from saturnmq.broker.handlers import slices
from saturnmq.broker.handlers.queue_facts import QueueFacts
from saturnmq.broker.replication.role import State
from saturnmq.broker.tables.attributes import changed
from saturnmq.broker.tables.deletion import Deletion
from saturnmq.broker.tables.lost_offsets import log_of
from saturnmq.broker.tables.subscription_groups import SubscriptionGroup
from saturnmq.broker.tables.table_persistence import (
    Document,
    EncodedTable,
    Saveable,
    encode,
    save_all,
)
from saturnmq.broker.tables.topics import Topic
from saturnmq.broker.timer.service import TimerService
from saturnmq.protocol import fastjson, headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import check_topic, dlq_topic, retry_topic
from saturnmq.runtime.errors import (
    GroupNotExist,
    InvalidParameter,
    NoPermission,
    SystemError_,
    UnsupportedRequest,
)

T = TypeVar("T")
R = TypeVar("R")
Putting = Generator[None, None, None]
"""It yields between two steps."""
LISTED = 20  # topics or groups that are made in one step


class AdminService:
    def __init__(
        self,
        context: Context,
        delays: DelayService,
        timers: TimerService,
        *,
        ha_status: Callable[[], dict[str, Any]],
        request_cleaning: Callable[[], None],
        forget_pops: Callable[[str], None],
        save: Callable[[Saveable], Awaitable[None]],
        deletion: Deletion,
        copy_tables: Callable[[], Awaitable[None]],
        started_ms: int,
    ) -> None:
        self._c = context
        self._facts = QueueFacts(context)
        self._groups = context.groups
        self._offsets = context.offsets
        self._role = context.role
        self._runtime = context.runtime
        self._statistics = context.statistics
        self._store = context.store
        self._topics = context.topics
        self._delays = delays
        self._timers = timers
        self._ha_status = ha_status
        self._request_cleaning = request_cleaning
        self._forget_pops = forget_pops
        self._save = save
        self._deletion = deletion
        self._copy_tables = copy_tables
        self._encoded_topics = EncodedTable(context.topics, _mapping)
        self._encoded_groups = EncodedTable(context.groups, lambda _: {})
        # Names this process in the versions of its tables: no other process gives the same.
        self._stamp = f"{started_ms:x}.{context.runtime.random.getrandbits(32):08x}"

    def _answer_behind(
        self, endpoint: Endpoint, request: Command, work: Awaitable[None], body: bytes = b""
    ) -> None:
        """Answer when the work is done; if it fails, with its error."""

        async def work_and_answer() -> None:
            await work
            answer(endpoint, request, request.reply(0, body=body))

        request.body = b""
        answered = answer_failure(self._c, endpoint, request, work_and_answer())
        self._runtime.spawn(answered, name="work-and-answer")

    async def _saved(self, *tables: Saveable) -> None:
        await save_all(self._save, *tables)

    async def _deleted(self, deletion: Awaitable[None], *changed: Saveable) -> None:
        """Wait for a deletion of topics, and save the other tables that it changed."""
        try:
            await deletion
        except OSError as error:
            raise SystemError_(
                f"topics are not deleted, their table cannot be saved: {error}; free space on the "
                "broker's disk and repeat it"
            ) from error
        await self._saved(self._offsets, *changed)

    # topics

    def on_create_topic(
        self, endpoint: Endpoint, request: Command, header: headers.CreateTopicHeader
    ) -> None:
        check_master(self._c)
        self._set_topic(self._new_topic(header))
        self._answer_behind(endpoint, request, self._saved(self._topics))

    def on_create_topics(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        """18: several at once. If there is no room for one, those before it are made."""

        def take(asked: list[headers.CreateTopicHeader]) -> None:
            work = self._make_all(asked, self._new_topic, self._set_topic)
            self._answer_behind(endpoint, request, self._put_all(work, self._topics))

        slices.read_body(self._c, endpoint, request, bodies.topics, take)

    def _make_all(
        self, asked: list[T], make: Callable[[T], R], put: Callable[[R], None]
    ) -> Putting:
        """Make what is asked for, and put it all into its table if all could be made, in steps."""
        made: list[R] = []
        for start in range(0, len(asked), LISTED):
            made += map(make, asked[start : start + LISTED])
            yield
        for start in range(0, len(made), LISTED):
            check_master(self._c)
            for each in made[start : start + LISTED]:
                put(each)
            yield

    async def _put_all(self, work: Putting, table: Saveable) -> None:
        check_master(self._c)
        await self._c.steps.run(work)
        await self._saved(table)

    def _new_topic(self, header: headers.CreateTopicHeader) -> Topic:
        name = check_topic(header.topic)
        if self._topics.is_system(name):
            raise InvalidParameter(f"topic {name} is a system topic; choose another name")
        known = self._topics.get(name)
        attributes = changed(
            name,
            known.attributes if known else None,
            header.attributes,
            allow_mixed=self._c.config.allow_mixed_types,
        )
        return Topic(
            name,
            header.read_queues,
            header.write_queues,
            header.perm,
            header.sys_flag,
            header.order,
            attributes,
        )

    def _set_topic(self, topic: Topic) -> None:
        self._topics.make_room(topic)
        self._topics.put(topic)

    def on_create_static_topic(self, _: Endpoint, __: Command, header: headers.TopicHeader) -> None:
        """513: queues with numbers of their own, spread over brokers, are RocketMQ's alone."""
        raise UnsupportedRequest(
            f"topic {header.topic}: static topics are not supported; create an ordinary topic "
            "(updateTopic, saturnmq topic create): its queues belong to the broker that has them"
        )

    def on_delete_topic(
        self, endpoint: Endpoint, request: Command, header: headers.TopicHeader
    ) -> None:
        name = header.topic
        if self._topics.is_system(name):
            raise InvalidParameter(f"topic {name} is a system topic; it stays")
        if self._role.state is State.SLAVE:
            # mqadmin asks slaves, too: after its master's deletion the slave copies the tables.
            self._answer_behind(endpoint, request, self._copy_tables())
            return
        check_master(self._c)
        self._answer_behind(endpoint, request, self._deleted(self._deletion.delete([name])))

    def on_clean_unused(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        """316: delete the queues of topics that are in no table."""
        if self._role.state is State.SLAVE:  # as with a topic: mqadmin asks every node
            self._answer_behind(endpoint, request, self._copy_tables())
            return
        check_master(self._c)
        topics = {topic for topic, _, _ in self._store.last_entries()}
        unused = sorted(topic for topic in topics if self._topics.get(topic) is None)
        self._answer_behind(endpoint, request, self._deleted(self._deletion.delete(unused)))

    def on_topic_config(
        self, endpoint: Endpoint, request: Command, header: headers.TopicHeader
    ) -> None:
        topic = self._facts.topic(header.topic)
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(topic.to_json())))

    def on_topic_stats(
        self, endpoint: Endpoint, request: Command, header: headers.TopicHeader
    ) -> None:
        topic = self._facts.topic(header.topic)
        tps = self._statistics.topic_rate(topic.name, self._runtime.monotonic())

        def made(queue_ids: list[int]) -> bytes:
            table = {}
            for queue_id in queue_ids:
                low, high = self._facts.bounds(topic.name, queue_id)
                table[self._facts.key(topic.name, queue_id)] = {
                    "lastUpdateTimestamp": self._facts.time_of(topic.name, queue_id, high - 1),
                    "maxOffset": high,
                    "minOffset": low,
                }
            return fastjson.dumps_mq_map(table)[1:-1]

        def whole(table: bytes) -> bytes:
            return b'{"offsetTable":{%b},"topicPutTps":%b}' % (table, fastjson.dumps(tps))

        work = slices.joined(request, slices.of(range(topic.queues), made), whole)
        slices.answer_with(self._c, endpoint, request, work)

    # groups

    def on_create_group(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        check_master(self._c)
        self._set_group(self._groups.changed(*bodies.group(request)))
        self._answer_behind(endpoint, request, self._saved(self._groups))

    def on_create_groups(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        """225: several at once. If there is no room for one, those before it are made."""

        def take(asked: list[tuple[str, dict[str, Any]]]) -> None:
            work = self._make_all(asked, lambda each: self._groups.changed(*each), self._set_group)
            self._answer_behind(endpoint, request, self._put_all(work, self._groups))

        slices.read_body(self._c, endpoint, request, bodies.groups, take)

    def _set_group(self, group: SubscriptionGroup) -> None:
        self._groups.make_room(group)
        self._groups.put(group)

    def on_delete_group(
        self, endpoint: Endpoint, request: Command, header: headers.DeleteGroupHeader
    ) -> None:
        check_master(self._c)
        name = header.group
        self._groups.delete(name)
        self._forget_pops(name)
        deletion = self._deletion.delete([retry_topic(name), dlq_topic(name)])

        async def delete() -> None:
            if header.clean_offset:
                await self._c.steps.run(self._offsets.delete(name))
            await self._deleted(deletion, self._groups)

        self._answer_behind(endpoint, request, delete())

    def on_group_config(
        self, endpoint: Endpoint, request: Command, header: headers.GroupHeader
    ) -> None:
        name = header.group
        group = self._groups.get(name)
        if group is None:
            raise GroupNotExist(f"No group in this broker. group: {name}")
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(group.document)))

    # the tables slaves copy

    def _unchanged(
        self, endpoint: Endpoint, request: Command, header: headers.CopyTableHeader, table: Saveable
    ) -> bool:
        """Answer a slave that has this state of the table (`broker/replication/table_sync.py`)."""
        version = self._version_of(table)
        if header.known != version["saturnVersion"]:
            return False
        answer(endpoint, request, request.reply(0, ext={**version, "saturnUnchanged": "true"}))
        return True

    def _version_of(self, table: Saveable) -> dict[str, str]:
        leads = "true" if self._role.state is State.MASTER else "false"
        version = {"saturnVersion": f"{self._stamp}.{table.changes}", "saturnLeads": leads}
        if table is self._delays:
            version["saturnDelayClock"] = str(self._timers.clock.now_ms())
        return version

    def on_all_topics(
        self, endpoint: Endpoint, request: Command, header: headers.CopyTableHeader
    ) -> None:
        topics = self._topics
        if not self._unchanged(endpoint, request, header, topics):
            count = {"totalTopicNum": str(len(topics))}
            self._answer_table(endpoint, request, topics, self._encoded_topics, count)

    def on_all_groups(
        self, endpoint: Endpoint, request: Command, header: headers.CopyTableHeader
    ) -> None:
        groups = self._groups
        if not self._unchanged(endpoint, request, header, groups):
            count = {"totalGroupNum": str(len(groups))}
            self._answer_table(endpoint, request, groups, self._encoded_groups, count)

    def _answer_table(
        self,
        endpoint: Endpoint,
        request: Command,
        table: Saveable,
        encoded: EncodedTable,
        ext: dict[str, str],
    ) -> None:
        text = encoded.text()
        if text is not None:
            reply = request.reply(0, ext=ext | self._version_of(table), body=text)
            answer(endpoint, request, reply)
            return

        def work() -> slices.Work:
            version = self._version_of(table)
            body = yield from encoded.encoded()
            return request.reply(0, ext=ext | version, body=body)

        slices.answer_with(self._c, endpoint, request, work())

    def on_all_offsets(
        self, endpoint: Endpoint, request: Command, header: headers.CopyTableHeader
    ) -> None:
        offsets = self._offsets
        if self._unchanged(endpoint, request, header, offsets):
            return

        def work() -> slices.Work:
            ext = self._version_of(offsets) | log_of(self._c)
            body = yield from encode(offsets.document())
            return request.reply(0, ext=ext, body=body)

        slices.answer_with(self._c, endpoint, request, work())

    def on_all_access(
        self, endpoint: Endpoint, request: Command, header: headers.CopyTableHeader
    ) -> None:
        if self._c.guard is None:
            raise NoPermission("this broker checks no users (authenticationEnabled)")
        if not self._c.guard.user_of(endpoint, request).is_super:
            raise denied("only super users get all passwords")
        access = self._c.access
        if not self._unchanged(endpoint, request, header, access):
            body = fastjson.dumps(access.document())
            answer(endpoint, request, request.reply(0, ext=self._version_of(access), body=body))

    def on_all_delays(
        self, endpoint: Endpoint, request: Command, header: headers.CopyTableHeader
    ) -> None:
        self._delays.settle()
        if self._unchanged(endpoint, request, header, self._delays):
            return
        ext = self._version_of(self._delays)
        ext["saturnDelayLevels"] = self._store.config.delay_levels
        ext["saturnLogEnd"] = str(self._store.watermarks.appended)
        body = fastjson.dumps(self._delays.snapshot())
        answer(endpoint, request, request.reply(0, ext=ext, body=body))

    def on_timer_check_point(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        answer(endpoint, request, request.reply(0, body=self._timers.check_point()))

    def on_timer_metrics(
        self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader
    ) -> None:
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(self._timers.metrics())))

    # the broker itself

    def on_ha_status(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        answer(endpoint, request, request.reply(0, body=fastjson.dumps(self._ha_status())))

    def on_clean(self, endpoint: Endpoint, request: Command, _: headers.NoFieldsHeader) -> None:
        """Delete expired segments now, and their entries in queues and index."""
        self._request_cleaning()
        answer(endpoint, request, request.reply(0))


def _mapping(document: Document) -> Document:
    """RocketMQ's table of queues that lie at several brokers: empty."""
    return {"mappingDataVersion": document["dataVersion"], "topicQueueMappingDetailMap": {}}

"""Questions about offsets and single messages: codes 12 14 15 29 30 31 32 33.

The end of a queue in an answer is that of its visible part: if the messages behind it are lost,
later messages get their offsets. With `committed`=false it is the end in the log, for readers that
must know whether messages are lost. A node that has lost a part of its log reports no bounds of a
queue before it has that part again: a new group would begin behind it. A lookup that finds nothing
answers as a Java broker does, because clients branch on it: 22 for 14 and 12, -1 for 32, code 1 for
33.
"""

from __future__ import annotations

from saturnmq.broker.access import needs
from saturnmq.broker.context import Context, answer, check_offsets, require
from saturnmq.broker.handlers import slices
from saturnmq.broker.replication.role import State
from saturnmq.broker.tables.lost_offsets import beginning_of, check_queue, commit, log_of
from saturnmq.protocol import headers
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import GroupNotExist, QueryNotFound, SystemBusy, SystemError_


class QueryService:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._offsets = context.offsets
        self._role = context.role
        self._store = context.store

    def on_query_offset(
        self, endpoint: Endpoint, request: Command, header: headers.QueryOffsetHeader
    ) -> None:
        check_offsets(self._c)
        group, topic, queue_id = header.group, header.topic, header.queue_id
        offset = self._offsets.query(group, topic, queue_id)
        if offset is None and header.zero_if_not_found:
            self._check_whole()
            offset = beginning_of(self._store, topic, queue_id)
        if offset is None:
            raise QueryNotFound(
                f"Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first: group {group} "
                f"has no offset for queue {queue_id} of {topic}"
            )
        ext = {"offset": str(offset), **(self._offsets.of_log or log_of(self._c))}
        if not self._role.is_slave:
            self._offsets.tell(group, topic, queue_id)
            ext["saturnMoves"] = str(self._offsets.moves(group, topic, queue_id))
        answer(endpoint, request, request.reply(0, ext=ext))

    def _check_whole(self) -> None:
        if lacks := self._role.lacks:
            raise SystemBusy(f"{lacks}: this node gives the bounds of its queues when it has that")

    def on_update_offset(
        self, endpoint: Endpoint, request: Command, header: headers.UpdateOffsetHeader
    ) -> None:
        group, topic = header.group, header.topic
        if self._c.groups.get_or_create(group) is None:
            raise GroupNotExist(f"group {group} does not exist")
        check_queue(self._c, topic, header.queue_id)
        commit(self._c, header, (group, topic, header.queue_id), header.offset)
        answer(endpoint, request, request.reply(0))

    def on_max_offset(
        self, endpoint: Endpoint, request: Command, header: headers.MaxOffsetHeader
    ) -> None:
        topic, queue_id = header.topic, header.queue_id
        self._check_whole()
        if header.committed:
            offset = self._store.visible_end(topic, queue_id, self._c.visible)
        elif self._role.state is State.MASTER:
            offset = self._store.max_offset(topic, queue_id)
        else:
            raise SystemBusy("another node may have more of the queue: ask a master that leads")
        answer(endpoint, request, request.reply(0, ext={"offset": str(offset)}))

    def on_min_offset(
        self, endpoint: Endpoint, request: Command, header: headers.QueueHeader
    ) -> None:
        topic, queue_id = header.topic, header.queue_id
        self._check_whole()
        offset = self._store.min_offset(topic, queue_id)
        answer(endpoint, request, request.reply(0, ext={"offset": str(offset)}))

    def on_search_offset(
        self, endpoint: Endpoint, request: Command, header: headers.SearchOffsetHeader
    ) -> None:
        self._check_whole()
        offset = self._store.offset_by_time(
            header.topic, header.queue_id, header.timestamp, header.boundary
        )
        answer(endpoint, request, request.reply(0, ext={"offset": str(offset)}))

    def on_earliest_time(
        self, endpoint: Endpoint, request: Command, header: headers.QueueHeader
    ) -> None:
        topic, queue_id = header.topic, header.queue_id
        store = self._store
        low = store.min_offset(topic, queue_id)
        found = store.store_time_of(topic, queue_id, low)
        time_ = -1 if found is None else found
        answer(endpoint, request, request.reply(0, ext={"timestamp": str(time_)}))

    def on_view_message(
        self, endpoint: Endpoint, request: Command, header: headers.ViewMessageHeader
    ) -> None:
        offset = header.offset
        frame = self._store.message_at(offset)
        if frame is None or offset + len(frame) > self._c.visible:
            raise SystemError_(f"can not find message by the offset, {offset}")
        stored_in = needs.topic_of(frame)
        require(self._c, endpoint, request, needs.topic(stored_in, needs.READ))
        answer(endpoint, request, request.reply(0, body=frame))

    def on_query_message(
        self, endpoint: Endpoint, request: Command, header: headers.QueryMessageHeader
    ) -> None:
        slices.answer_with(self._c, endpoint, request, self._search(request, header))

    def _search(self, request: Command, header: headers.QueryMessageHeader) -> slices.Work:
        store = self._store
        most = store.config.unique_key_count
        if not header.unique_key and header.max_messages is not None:
            most = header.max_messages
        frames = yield from store.search_key(
            header.topic,
            header.key,
            most,
            header.begin_timestamp,
            header.end_timestamp,
            self._c.visible,
        )
        time_, offset = store.indexed_until()
        found = {
            "indexLastUpdateTimestamp": str(time_),
            "indexLastUpdatePhyoffset": str(offset),
        }
        code = 0 if frames else QueryNotFound.code
        remark = None if frames else "can not find message, maybe time range not correct"
        return request.reply(code, remark, found, b"".join(frames))

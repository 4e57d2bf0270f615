"""Recall of timed messages: RECALL_MESSAGE 370.

A recall is a settlement in the log (`settlements.py`), so what was recalled stays recalled whatever
crashes, and the answer waits as the ack mode demands. The message that RocketMQ writes for a recall
(TIMER_DEL_UNIQKEY) follows in the same atomic batch: a RocketMQ broker that opens the directory
before the moment of delivery does not deliver either.

The handle names the message by its id; the index finds it, and the copy of a delivered one. While a
recall looks, its message is held: it is not delivered meanwhile. RocketMQ answers 0 to every
recall in time, and looks for the message later.

| code | why |
|---|---|
| 13 | with enableTopicMessageTypeCheck: the topic is not for timed messages |
| 16 | recallMessageEnable is false, or there is no index |
| 17 | the topic does not exist |
| 604 | the handle is none of ours; the message is unknown, was delivered, or was recalled |
| 2 | the message is not confirmed yet, or the broker is behind: try again |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.commit.message_types import check_recall
from saturnmq.broker.context import Context, answer_failure, check_permission
from saturnmq.broker.tables.topics import WRITE
from saturnmq.broker.timer.due import Due, found_in
from saturnmq.broker.timer.service import GATHER_S, TimerService
from saturnmq.broker.timer.settlements import Settlement, append_settlement
from saturnmq.protocol import headers
from saturnmq.protocol import properties as names
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.recall_handle import RecallHandle, decode_handle
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import TIMER_TOPIC
from saturnmq.runtime.errors import IllegalOperation, NoPermission, SystemBusy, TopicNotExist
from saturnmq.store.message_store import AppendResult, AtomicBatchPart

FOUND_MAX = 32
WAITS = 10  # of GATHER_S each, for the reader of waiting messages
EVER = 1 << 60
TAG = "_RECALL_TAG_"
BODY = b"0"


@dataclass(frozen=True, slots=True)
class _Target:
    """The newest message of an id that waits."""

    message: ReceivedMessage
    due: Due


class RecallService:
    def __init__(
        self,
        context: Context,
        admission: Admission,
        acknowledgement: Acknowledgement,
        timers: TimerService,
        guard: Callable[[Awaitable[None]], Awaitable[None]],
        catch_up: Callable[[], None],
        on_append: Callable[[], None],
    ) -> None:
        """`guard` lets no truncation come between; `catch_up` is a bounded step of reput."""
        self._c = context
        self._store = context.store
        self._admission = admission
        self._acknowledgement = acknowledgement
        self._timers = timers
        self._guard = guard
        self._catch_up = catch_up
        self._on_append = on_append

    def on_recall(self, endpoint: Endpoint, request: Command, header: headers.RecallHeader) -> None:
        c = self._c
        self._admission.check_ready()
        check_permission(c, WRITE, "recalling")
        if not c.config.recall_messages:
            raise NoPermission("recall failed, operation is forbidden (recallMessageEnable)")
        if not c.store.config.index_enable:
            raise NoPermission("recall failed, there is no index to search (messageIndexEnable)")
        topic = c.topics.get(header.topic)
        if topic is None:
            raise TopicNotExist(f"recall failed, the topic[{header.topic}] not exist")
        if c.config.check_message_types:
            check_recall(topic)
        handle = decode_handle(header.handle)
        if handle.topic != header.topic:
            raise IllegalOperation(
                f"recall failed, topic not match: the handle is of {handle.topic:.127}"
            )
        if handle.broker_name != c.config.broker_name:
            raise IllegalOperation(
                f"recall failed, broker service not available: the message is at broker "
                f"{handle.broker_name:.127}"
            )
        work = self._recall(endpoint, request, handle)
        self._guard(answer_failure(c, endpoint, request, work))

    async def _recall(self, endpoint: Endpoint, request: Command, handle: RecallHandle) -> None:
        target = await self._target(handle)
        offset = target.message.queue_offset
        with self._timers.held(offset):
            await self._see_all()
            for _ in range(WAITS):
                if self._timers.has_read(offset):
                    break
                await self._c.runtime.sleep(GATHER_S)
            if (await self._target(handle)).message.queue_offset != offset:
                raise SystemBusy("the message was just written anew; try again")
            if await self._was_delivered(handle, target):
                raise IllegalOperation(
                    f"recall failed, message {handle.message_id} was delivered already"
                )
            self._admission.check_ready()
            if self._store.in_group or not self._timers.has_read(offset):
                raise SystemBusy("the broker is behind with timed messages; try again")
            put = self._append(handle, target)
        reply = request.reply(0, ext={"msgId": handle.message_id})
        self._acknowledgement.answer_at(endpoint, reply, put.end_offset)

    async def _target(self, handle: RecallHandle) -> _Target:
        """The waiting message; IllegalOperation: there is none, or it was recalled."""
        newest, recalled = None, -1
        for message in await self._search(TIMER_TOPIC, handle.message_id):
            properties = message.properties
            if properties.get(names.REAL_TOPIC) != handle.topic:
                continue
            if properties.get(names.TIMER_OUT_MS) != str(handle.moment - 1):
                continue
            if names.TIMER_DEL_UNIQKEY in properties:
                recalled = max(recalled, message.queue_offset)
            elif newest is None or message.queue_offset > newest.queue_offset:
                newest = message
        if newest is None:
            raise IllegalOperation(
                f"recall failed, no message {handle.message_id} waits for {handle.moment - 1}"
            )
        if recalled > newest.queue_offset:
            raise IllegalOperation(
                f"recall failed, message {handle.message_id} was recalled already"
            )
        due = found_in(newest.properties, newest.store_timestamp, self._timers.window_ms)
        return _Target(newest, due)

    async def _was_delivered(self, handle: RecallHandle, target: _Target) -> bool:
        return any(
            message.physical_offset > target.message.physical_offset
            and message.properties.get(names.TIMER_OUT_MS) == str(handle.moment - 1)
            for message in await self._search(handle.topic, handle.message_id)
        )

    async def _search(self, topic: str, key: str) -> list[ReceivedMessage]:
        frames = await self._c.steps.run(self._store.search_key(topic, key, FOUND_MAX, 0, EVER))
        found = [decode_frames(frame, False)[0] for frame in frames]
        return [message for message in found if message.properties.get(names.UNIQ_KEY) == key]

    async def _see_all(self) -> None:
        """Wait until the index has all that is in the log now."""
        marks, before = self._store.watermarks, -1
        end = marks.appended
        while before < marks.dispatched < end:
            before = marks.dispatched
            self._catch_up()
            await self._c.runtime.sleep(0)
        if marks.dispatched < end:
            raise SystemBusy("the broker cannot read the end of its log now; try again")

    def _append(self, handle: RecallHandle, target: _Target) -> AppendResult:
        c, due = self._c, target.due
        key = handle.message_id
        if c.config.append_topic_to_recalls:
            key = f"{handle.topic}+{key}"
        properties = {
            names.TAGS: TAG,
            names.UNIQ_KEY: handle.message_id,
            names.REAL_TOPIC: handle.topic,
            names.REAL_QID: "0",
            names.TIMER_DEL_UNIQKEY: key,
            names.TIMER_OUT_MS: str(handle.moment - 1),
            names.SATURN_TIMER: due.encode(),
        }
        item = bytearray()
        encode_batch_item(item, BODY, encode_properties(properties))
        hosts_v6 = len(c.store_host) == 20
        count, size = self._store.measure_part(
            TIMER_TOPIC, bytes(item), sys_flag=0, hosts_v6=int(hosts_v6)
        )
        now_ms = c.runtime.now_ms()
        part = AtomicBatchPart(TIMER_TOPIC, 0, count, size, lambda: bytes(item), 0, now_ms)
        place = due.moment, target.message.queue_offset
        settlement = Settlement({due.shelf: [place]}, {handle.topic: 1})
        put = append_settlement(self._store, settlement, [part], c.store_host)
        self._timers.settle_at_once(settlement, put.queue_offset)
        self._on_append()
        return put

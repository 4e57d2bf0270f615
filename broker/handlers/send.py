"""Sends: SEND_MESSAGE 10, SEND_MESSAGE_V2 310, SEND_BATCH_MESSAGE 320, and SEND_BATCHES 390040.

A single send gets the properties that a Java broker adds: MSG_REGION, TRACE_ON, CLUSTER, and
UNIQ_KEY if missing; it loses POP_CK. A batch is stored unchanged. DELAY above 0 moves a message to
SCHEDULE_TOPIC_XXXX, TRAN_MSG=true to the half topic (`broker/transactions/halves.py`), properties
of timed messages to rmq_sys_wheel_timer (`broker/timer/scheduling.py`).

`broker/commit/admission.py` takes a message or refuses it, `broker/commit/acknowledgement.py` lets
the reply go.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence

from saturnmq.broker.access import needs
from saturnmq.broker.commit.acknowledgement import Acknowledgement
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.commit.inner_batches import (
    Body,
    check_not_wrapped,
    frame_sizes,
    is_batched,
    messages_in,
    messages_of,
)
from saturnmq.broker.commit.message_types import check_type, check_types
from saturnmq.broker.context import Context, judge
from saturnmq.broker.delay.levels import level_in, schedule
from saturnmq.broker.handlers.send_answers import SendAnswers
from saturnmq.broker.tables.topics import Topic
from saturnmq.broker.timer.scheduling import TimerSchedule
from saturnmq.broker.transactions.halves import prepare
from saturnmq.protocol import headers
from saturnmq.protocol.batches import HOST, PartAnswer, decode_parts, encode_answers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.frame import NEED_UNWRAP, TRANSACTION_MASK
from saturnmq.protocol.ids import UniqueIds
from saturnmq.protocol.inner_batch import BATCHED, QUEUE_TYPE
from saturnmq.protocol.kernels import batch_ids
from saturnmq.protocol.properties import find_in_text, without_in_text
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import (
    RETRY_PREFIX,
    dlq_topic,
)
from saturnmq.runtime.errors import (
    GroupNotExist,
    MessageIllegal,
    NoPermission,
    SaturnError,
)
from saturnmq.store.message_store import AppendResult, PendingMessage


class SendService:
    def __init__(
        self,
        context: Context,
        unique_ids: UniqueIds,
        admission: Admission,
        acknowledgement: Acknowledgement,
        timers: TimerSchedule,
        *,
        on_append: Callable[[], None],
    ) -> None:
        self._c = context
        self._unique_ids = unique_ids
        self._check_ready = admission.check_ready
        self._checked_queue = admission.checked_queue
        self._born_host = admission.born_host
        self._answer_at = acknowledgement.answer_at
        self._on_append = on_append
        self._timers = timers
        self._levels = len(context.store.config.delays_ms)
        config = context.config
        self._checks_types = config.check_message_types
        self._added = (
            f"MSG_REGION\x01{config.region}\x02TRACE_ON\x01true\x02"
            f"CLUSTER\x01{config.cluster_name}\x02"
        )
        self._reply_ext = {"MSG_REGION": config.region, "TRACE_ON": "true"}
        self._id_prefix = context.store_host.hex().upper()
        self._answers = SendAnswers(self._reply_ext, self._id_prefix)

    def on_send(self, endpoint: Endpoint, request: Command, header: headers.SendHeader) -> None:
        self._check_ready()
        topic, queue_id = self._checked_queue(
            header.topic, header.queue_id, header.default_topic, header.default_queues
        )
        if not request.body:
            raise MessageIllegal("the message body is empty; send at least one byte")
        is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE or header.batch
        inner = 0
        if topic.attributes and is_batched(topic):
            if is_batch:
                inner = messages_of(request.body, header.sys_flag)
            else:
                inner = messages_in(header.properties, request.body, header.sys_flag)
        else:
            check_not_wrapped(topic.name, header.sys_flag)
        if self._checks_types:
            if is_batch:
                check_types(topic, request.body)
            else:
                check_type(topic, header.properties)
        if is_batch and not inner:
            self._send_batch(endpoint, request, header, topic, queue_id)
            return
        flags = NEED_UNWRAP if is_batch else 0
        self._send_single(endpoint, request, header, topic, queue_id, inner=inner, flags=flags)

    def _send_single(
        self,
        endpoint: Endpoint,
        request: Command,
        header: headers.SendHeader,
        topic: Topic,
        queue_id: int,
        *,
        inner: int,
        flags: int,
    ) -> None:
        text_ = header.properties
        if text_ and text_[-1] != "\x02":
            text_ += "\x02"
        # A popped message that is sent on: Java's consumers would acknowledge by the old handle.
        text_ = without_in_text(text_, "POP_CK\x01")
        if inner:
            text_ = without_in_text(without_in_text(text_, "INNER_NUM\x01"), "INNER_BASE\x01")
        elif "INNER_NUM\x01" in text_:
            messages_in(text_, request.body, 0)
        delayed, prepared, timed, wait = _asked(text_)
        unique = find_in_text(text_, "UNIQ_KEY\x01")
        if not unique:
            unique = self._unique_ids.next()
            text_ += f"UNIQ_KEY\x01{unique}\x02"
        name = topic.name
        reconsume = header.reconsume_times
        prepared = prepared and not (reconsume and delayed)
        if prepared and timed:
            raise MessageIllegal(
                "a message of a transaction has no time of its own: leave its TIMER properties out"
            )
        if inner and (prepared or timed or (delayed and (flags or inner > 1))):
            raise MessageIllegal(
                f"topic {name} has batches in its queues ({QUEUE_TYPE}={BATCHED}): send it neither "
                "messages of transactions nor timed ones, and delayed ones singly"
            )
        text_ += self._added
        if name.startswith(RETRY_PREFIX):
            name, queue_id = self._retry_or_dlq(queue_id, header)
            is_dead = name.startswith("%DLQ%")
            delayed, timed = delayed and not is_dead, timed and not is_dead
        properties = text_.encode()
        meant = queue_id  # the queue in the answer to the sender
        if prepared:
            if self._c.config.reject_transactions:
                raise NoPermission(
                    f"the broker[{self._c.address}] sending transaction message is forbidden "
                    "(rejectTransactionMessage)"
                )
            name, queue_id, properties = prepare(name, queue_id, properties)
        elif delayed:
            name, queue_id, properties = schedule(name, queue_id, properties, self._levels)
        handle = ""
        if timed:
            scheduled = self._timers.schedule(name, queue_id, properties)
            name, queue_id, properties, handle = scheduled
        born = header.born_timestamp
        message = PendingMessage(
            topic=name,
            queue_id=queue_id,
            body=request.body,
            properties=properties,
            flag=header.user_flag,
            sys_flag=header.sys_flag & ~TRANSACTION_MASK | flags,
            born_timestamp=self._c.runtime.now_ms() if born is None else born,
            born_host=self._born_host(endpoint.peer_address),
            store_host=self._c.store_host,
            reconsume_times=reconsume,
        )
        # A delayed message becomes a batch when it is delivered (`broker/commit/copies.py`).
        put = self._c.store.put(message, inner=inner if name == topic.name else 0)
        if request.is_oneway:
            self._on_append()
            return
        physical, queue_offset = put.physical_offset, put.queue_offset
        if not (handle or flags) and _is_plain(unique):
            written = self._answers.answer(request.opaque, physical, meant, queue_offset, unique)
            self._answer_at(endpoint, written, put.end_offset, wait=wait)
            return
        reply = request.reply(
            0,
            ext={
                **self._reply_ext,
                "msgId": self._message_id(physical),
                "queueId": str(meant),
                "queueOffset": str(queue_offset),
                "transactionId": unique,
            },
        )
        if handle:
            reply.ext["recallHandle"] = handle
        if flags:
            reply.ext["batchUniqId"] = unique
            if header.sizes:
                reply.body = _big_endian(frame_sizes(put))
        self._answer_at(endpoint, reply, put.end_offset, wait=wait)

    def _retry_or_dlq(self, queue_id: int, header: headers.SendHeader) -> tuple[str, int]:
        """The topic and queue of a send to %RETRY%: after too many attempts the dead-letter
        topic."""
        c, name = self._c, header.topic
        group_name = name.removeprefix(RETRY_PREFIX)
        group = c.groups.get_or_create(group_name)
        if group is None:
            raise GroupNotExist(f"group {group_name} does not exist")
        limit = group.retry_limit(header.max_reconsume_times)
        few = header.reconsume_times <= limit
        if few and not c.locks.holds_any(group_name, c.runtime.monotonic()):
            return name, queue_id
        return c.topics.ensure(dlq_topic(group_name), 1).name, 0

    def _send_batch(
        self,
        endpoint: Endpoint,
        request: Command,
        header: headers.SendHeader,
        topic: Topic,
        queue_id: int,
    ) -> None:
        c, born = self._c, header.born_timestamp
        _check_batch(topic)
        put = c.store.put_batch(
            topic.name,
            queue_id,
            request.body,
            sys_flag=header.sys_flag & ~TRANSACTION_MASK,
            born_timestamp=c.runtime.now_ms() if born is None else born,
            born_host=self._born_host(endpoint.peer_address),
            store_host=c.store_host,
            reconsume_times=header.reconsume_times,
        )
        if request.is_oneway:
            self._on_append()
            return
        unique, wait = "", True
        if properties := header.properties:  # of the batch
            unique, wait = find_in_text(properties, "UNIQ_KEY\x01"), _waits(properties)
        sizes = _big_endian(put.sizes) if header.sizes else b""
        if header.sizes and (not unique or _is_plain(unique)):
            physical, queue_offset = put.physical_offset, put.queue_offset
            reply: Command = self._answers.answer(
                request.opaque, physical, queue_id, queue_offset, unique, sizes
            )
        else:
            reply_ext = {
                **self._reply_ext,
                "queueId": str(queue_id),
                "queueOffset": str(put.queue_offset),
                "msgId": self._batch_message_ids(put, in_full=not header.sizes),
            }
            if unique:
                reply_ext["transactionId"] = unique
            reply = request.reply(0, ext=reply_ext, body=sizes)
        self._answer_at(endpoint, reply, put.end_offset, wait=wait)

    def on_send_batches(
        self, endpoint: Endpoint, request: Command, header: headers.SendBatchesHeader
    ) -> None:
        """Store or refuse each batch by itself. The answer to all waits until the last stored batch
        is as safe as the ack mode demands."""
        self._check_ready()
        c = self._c
        limit = c.store.config.max_batch_bytes
        if len(request.body) > limit:
            raise MessageIllegal(
                f"the batches of a request are {len(request.body)} bytes long, the limit is "
                f"{limit}: send fewer in one"
            )
        born_host, store_host = self._born_host(endpoint.peer_address), c.store_host
        default_topic, default_queues = header.default_topic, header.default_queues
        allow = judge(c, endpoint, request)
        answers, end = [], 0
        for name, wanted, sys_flag, born, body in decode_parts(request.body):
            try:
                allow(needs.topic(name, needs.PUB))
                topic, queue_id = self._checked_queue(name, wanted, default_topic, default_queues)
                _check_batch(topic)
                if self._checks_types:
                    check_types(topic, body)
                flags = sys_flag & ~TRANSACTION_MASK
                if topic.attributes and is_batched(topic):
                    put = self._put_inner(name, queue_id, body, flags, born, born_host)
                else:
                    check_not_wrapped(name, sys_flag)
                    put = c.store.put_batch(
                        name,
                        queue_id,
                        body,
                        sys_flag=flags,
                        born_timestamp=born,
                        born_host=born_host,
                        store_host=store_host,
                    )
            except SaturnError as error:
                answers.append(PartAnswer(error.code, wanted, rest=str(error).encode()))
                continue
            end = put.end_offset
            sizes = _big_endian(frame_sizes(put))
            answers.append(PartAnswer(0, queue_id, put.queue_offset, put.physical_offset, sizes))
        ext = {**self._reply_ext, HOST: self._id_prefix}
        self._answer_at(endpoint, request.reply(0, ext=ext, body=encode_answers(answers)), end)

    def _put_inner(
        self, name: str, queue_id: int, body: Body, sys_flag: int, born_ms: int, born_host: bytes
    ) -> AppendResult:
        """Store a part of SEND_BATCHES as one inner batch."""
        count = messages_of(body, sys_flag)
        own = f"UNIQ_KEY\x01{self._unique_ids.next()}\x02{self._added}".encode()
        message = PendingMessage(
            topic=name,
            queue_id=queue_id,
            body=body,
            properties=own,
            sys_flag=sys_flag | NEED_UNWRAP,
            born_timestamp=born_ms,
            born_host=born_host,
            store_host=self._c.store_host,
        )
        return self._c.store.put(message, inner=count)

    def _batch_message_ids(self, put: AppendResult, *, in_full: bool) -> str:
        """All ids, comma-joined, as in Java. Our own client asks for the first id and the sizes
        (i32 each, the reply's body): the ids of a thousand small messages would outweigh the
        messages."""
        if not in_full or put.count == 1:
            return self._message_id(put.physical_offset)
        return batch_ids(self._c.store_host[:-4], self._port, put.physical_offset, put.sizes)

    @property
    def _port(self) -> int:
        return int.from_bytes(self._c.store_host[-4:], "big")

    def _message_id(self, offset: int) -> str:
        return f"{self._id_prefix}{offset:016X}"


def _check_batch(topic: Topic) -> None:
    if topic.name.startswith(RETRY_PREFIX):
        raise MessageIllegal(f"a batch cannot go to {topic.name}; send its messages singly")


_NOTHING = False, False, False, True


def _asked(properties: str) -> tuple[bool, bool, bool, bool]:
    """Whether it has a delay level, whether it is part of a transaction, whether it has a time of
    its own, and whether its sender waits for the ack mode. Most messages ask for nothing, which is
    seen first."""
    if not (
        "DELAY\x01" in properties or "TRAN_MSG\x01" in properties or "TIMER_DE" in properties
    ) and properties.count("WAIT\x01") == properties.count("WAIT\x01true\x02"):
        return _NOTHING
    delayed = level_in(find_in_text(properties, "DELAY\x01")) > 0
    prepared = find_in_text(properties, "TRAN_MSG\x01").lower() == "true"
    timed = "TIMER_DE" in properties and not delayed  # as in RocketMQ
    return delayed, prepared, timed, _waits(properties)


def _is_plain(unique: str) -> bool:
    """Whether it stands in JSON as it is."""
    return unique.isalnum() and unique.isascii()


def _waits(properties: str) -> bool:
    """Whether the sender wants to wait for the ack mode."""
    return find_in_text(properties, "WAIT\x01").lower() in ("", "true")


def _big_endian(numbers: Sequence[int]) -> bytes:
    found = array("i", numbers)
    if sys.byteorder == "little":
        found.byteswap()
    return found.tobytes()

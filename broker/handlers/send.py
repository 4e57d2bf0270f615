"""Sends: SEND_MESSAGE 10, SEND_MESSAGE_V2 310, SEND_BATCH_MESSAGE 320, and SEND_BATCHES 390040.

Checks come in RocketMQ's order (docs/internals/protocol.md 2.1): order topic on an unwriteable
broker 16, bad name 29, a topic only the broker writes 16, unknown and not creatable 17, queue id
out of range 29. The topic's own write bit is not looked at: clients do that, through the route.

A single send gets the properties that a Java broker adds: MSG_REGION, TRACE_ON, CLUSTER, and
UNIQ_KEY if missing. A batch is stored unchanged. DELAY above 0 moves a message to
SCHEDULE_TOPIC_XXXX.

The reply leaves at once if its ack mode is met already, else it waits in the ledger.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from saturnmq.broker.context import Context, check_permission
from saturnmq.broker.delay.levels import schedule
from saturnmq.broker.tables.topics import WRITE, Topic
from saturnmq.protocol import headers
from saturnmq.protocol import properties as names
from saturnmq.protocol.batches import HOST, PartAnswer, decode_parts, encode_answers
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.ids import UniqueIds, encode_address
from saturnmq.protocol.kernels import batch_ids
from saturnmq.protocol.properties import encode_properties
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import (
    NOT_SENDABLE,
    RETRY_PREFIX,
    check_topic,
    dlq_topic,
)
from saturnmq.runtime.errors import (
    GroupNotExist,
    InSyncReplicasNotEnough,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    SaturnError,
    SystemBusy,
    TopicNotExist,
)
from saturnmq.store.message_store import AppendResult, PendingMessage

TRANSACTION_MASK = 0xC


class SendService:
    def __init__(self, context: Context, unique_ids: UniqueIds) -> None:
        self._c = context
        self._unique_ids = unique_ids
        self._levels = len(context.store.config.delays_ms)
        config = context.config
        self._added = (
            f"MSG_REGION\x01{config.region}\x02TRACE_ON\x01true\x02"
            f"CLUSTER\x01{config.cluster_name}\x02"
        )
        self._reply_ext = {"MSG_REGION": config.region, "TRACE_ON": "true"}
        self._hosts: dict[str, bytes] = {}
        self._id_prefix = context.store_host.hex().upper()

    # requests

    def check_ready(self) -> None:
        """Check that this node takes messages now; a SaturnError says why it does not."""
        c = self._c
        refusal = c.role.refuses(c.runtime.monotonic())
        if refusal:
            raise SystemBusy(f"[REJECTREQUEST]{refusal}; send to the master")
        if refusal := c.unelected():
            raise SystemBusy(f"[REJECTREQUEST]{refusal}; send to the master")
        if c.role.required > 1 and c.copies_in_sync() < c.config.min_in_sync_replicas:
            raise InSyncReplicasNotEnough(
                f"[IN_SYNC_REPLICAS_NOT_ENOUGH]{c.copies_in_sync()} copies are in sync, "
                f"minInSyncReplicas is {c.config.min_in_sync_replicas}: nothing was stored"
            )
        if c.ledger.full:
            raise SystemBusy(
                f"[OVERLOAD]system busy, start flow control for a while: {len(c.ledger)} sends "
                f"wait for their ack, the limit (maxPendingAcks) is {c.ledger.limit}"
            )

    def on_send(self, endpoint: Endpoint, request: Command, header: headers.SendHeader) -> None:
        self.check_ready()
        topic, queue_id = self.checked_queue(
            header.topic, header.queue_id, header.default_topic, header.default_queues
        )
        if not request.body:
            raise MessageIllegal("the message body is empty; send at least one byte")
        if request.code == RequestCode.SEND_BATCH_MESSAGE or header.batch:
            self._send_batch(endpoint, request, header, topic, queue_id)
        else:
            self._send_single(endpoint, request, header, topic, queue_id)

    def checked_queue(
        self, name: str, queue_id: int, default_topic: str = "", default_queues: int = 4
    ) -> tuple[Topic, int]:
        """The addressed queue (a negative id: any), with its topic, which is created if allowed; a
        SaturnError says why there is none."""
        c = self._c
        topic = c.topics.get(name)
        if topic is None:
            check_topic(name)
        if topic is not None and topic.order:
            check_permission(c, WRITE, "sending")
        if name in NOT_SENDABLE:
            raise NoPermission(f"topic {name} is written by the broker only")
        if topic is None:
            topic = self._create(name, default_topic, default_queues)
        if queue_id < 0:
            queue_id = c.runtime.random.randrange(max(topic.write_queues, 1))
        if queue_id >= topic.queues:
            raise InvalidParameter(
                f"queue id {queue_id} of topic {name} is out of range; it has {topic.queues} "
                "queues, ask the nameserver for its route"
            )
        return topic, queue_id

    def _create(self, name: str, default_topic: str, default_queues: int) -> Topic:
        c = self._c
        if name.startswith(RETRY_PREFIX):
            group = c.groups.get_or_create(name.removeprefix(RETRY_PREFIX))
            if group is None:
                raise GroupNotExist(f"group {name.removeprefix(RETRY_PREFIX)} does not exist")
            return c.topics.ensure(name, max(group.retry_queues, 1))
        created = None
        if c.config.auto_create_topics:
            created = c.topics.auto_create(name, default_topic, default_queues)
        if created is None:
            raise TopicNotExist(
                f"topic[{name}] not exist, apply first please! (create it with `saturnmq topic "
                f"create {name}`)"
            )
        return created

    def _send_single(
        self,
        endpoint: Endpoint,
        request: Command,
        header: headers.SendHeader,
        topic: Topic,
        queue_id: int,
    ) -> None:
        text_ = header.properties
        if text_ and text_[-1] != "\x02":
            text_ += "\x02"
        wait = _waits(text_)
        unique = _find(text_, "UNIQ_KEY\x01")
        if not unique:
            unique = self._unique_ids.next()
            text_ += f"UNIQ_KEY\x01{unique}\x02"
        name = topic.name
        reconsume = header.reconsume_times
        delayed = bool(_find(text_, "DELAY\x01"))
        if _find(text_, "TRAN_MSG\x01") == "true":
            raise NoPermission("transaction messages are not supported by this broker")
        if "TIMER_DE" in text_ and not delayed:
            _refuse_timers(text_)
        text_ += self._added
        if name.startswith(RETRY_PREFIX):
            name, queue_id = self._retry_or_dlq(queue_id, header)
            delayed = delayed and not name.startswith("%DLQ%")
        properties = text_.encode()
        meant = queue_id  # the queue in the answer to the sender
        if delayed:
            name, queue_id, properties = schedule(name, queue_id, properties, self._levels)
        message = PendingMessage(
            topic=name,
            queue_id=queue_id,
            body=request.body,
            properties=properties,
            flag=header.user_flag,
            sys_flag=header.sys_flag & ~TRANSACTION_MASK,
            born_timestamp=header.born_timestamp or self._c.runtime.now_ms(),
            born_host=self.host(endpoint.peer_address),
            store_host=self._c.store_host,
            reconsume_times=reconsume,
        )
        put = self._c.store.put(message)
        if request.is_oneway:
            self._c.appended()
            return
        reply = request.reply(
            0,
            ext={
                **self._reply_ext,
                "msgId": self._message_id(put.physical_offset),
                "queueId": str(meant),
                "queueOffset": str(put.queue_offset),
                "transactionId": unique,
            },
        )
        self.finish(endpoint, reply, put, wait=wait)

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
        c = self._c
        _check_batch(topic)
        batch_properties = header.properties
        put = c.store.put_batch(
            topic.name,
            queue_id,
            request.body,
            sys_flag=header.sys_flag & ~TRANSACTION_MASK,
            born_timestamp=header.born_timestamp or c.runtime.now_ms(),
            born_host=self.host(endpoint.peer_address),
            store_host=c.store_host,
            reconsume_times=header.reconsume_times,
        )
        if request.is_oneway:
            c.appended()
            return
        unique = _find(batch_properties, "UNIQ_KEY\x01")
        reply_ext = {
            **self._reply_ext,
            "queueId": str(queue_id),
            "queueOffset": str(put.queue_offset),
            "msgId": self._batch_message_ids(put, in_full=not header.sizes),
        }
        if unique:
            reply_ext["transactionId"] = unique
        sizes = b""
        if header.sizes:
            sizes = _big_endian(put.sizes)
        self.finish(
            endpoint,
            request.reply(0, ext=reply_ext, body=sizes),
            put,
            wait=_waits(batch_properties),
        )

    def on_send_batches(
        self, endpoint: Endpoint, request: Command, header: headers.SendBatchesHeader
    ) -> None:
        """Store or refuse each batch by itself. The answer to all waits until the last stored batch
        is as safe as the ack mode demands."""
        self.check_ready()
        c = self._c
        limit = c.config.max_message_bytes
        if len(request.body) > limit:
            raise MessageIllegal(
                f"the batches of a request are {len(request.body)} bytes long, the limit is "
                f"{limit}: send fewer in one"
            )
        born_host, store_host = self.host(endpoint.peer_address), c.store_host
        default_topic, default_queues = header.default_topic, header.default_queues
        answers, end = [], 0
        for name, wanted, sys_flag, born_ms, body in decode_parts(request.body):
            try:
                topic, queue_id = self.checked_queue(name, wanted, default_topic, default_queues)
                _check_batch(topic)
                put = c.store.put_batch(
                    name,
                    queue_id,
                    body,
                    sys_flag=sys_flag & ~TRANSACTION_MASK,
                    born_timestamp=born_ms or c.runtime.now_ms(),
                    born_host=born_host,
                    store_host=store_host,
                )
            except SaturnError as error:
                answers.append(PartAnswer(error.code, wanted, rest=str(error).encode()))
                continue
            end = put.end_offset
            sizes = _big_endian(put.sizes)
            answers.append(PartAnswer(0, queue_id, put.queue_offset, put.physical_offset, sizes))
        ext = {**self._reply_ext, HOST: self._id_prefix}
        self.answer_at(endpoint, request.reply(0, ext=ext, body=encode_answers(answers)), end)

    def _batch_message_ids(self, put: AppendResult, *, in_full: bool) -> str:
        """All ids, comma-joined, as in Java. Our own client asks for the first id and the sizes
        (i32 each, the reply's body): the ids of a thousand small messages would outweigh the
        messages."""
        if not in_full or put.count == 1:
            return self._message_id(put.physical_offset)
        return batch_ids(self._c.store_host[:-4], self._port, put.physical_offset, put.sizes)

    # messages that the broker itself stores

    def store_message(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: dict[str, str],
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        rescheduled: bool = False,
    ) -> AppendResult:
        """Store a retry copy, a dead letter or a delayed message whose time has come."""
        encoded = encode_properties(properties)
        if names.DELAY in properties and not rescheduled:
            topic, queue_id, encoded = schedule(topic, queue_id, encoded, self._levels)
        put = self._c.store.put(
            PendingMessage(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=encoded,
                flag=flag,
                sys_flag=sys_flag & ~TRANSACTION_MASK,
                born_timestamp=born_timestamp,
                born_host=born_host,
                store_host=self._c.store_host,
                reconsume_times=reconsume_times,
            ),
            is_copy=True,
        )
        self._c.appended()
        return put

    def finish(
        self, endpoint: Endpoint, reply: Command, put: AppendResult, *, wait: bool = True
    ) -> None:
        """Answer now, or when the ack mode is met."""
        self.answer_at(endpoint, reply, put.end_offset, wait=wait)

    def answer_at(self, endpoint: Endpoint, reply: Command, end: int, *, wait: bool = True) -> None:
        """Answer when the log up to `end` is as safe as the ack mode demands."""
        c = self._c
        c.appended()
        waits = wait and (c.config.sync_flush or c.waits_for_copies)
        if c.store.watermarks.confirmed >= end or (not waits and c.flush_keeps_up()):
            if not endpoint.closed:
                endpoint.send(reply)
            return
        if waits and not c.enough_replicas():
            reply.code = ResponseCode.SLAVE_NOT_AVAILABLE
            reply.remark = (
                f"stored, but fewer than {c.role.required} copies are in sync (inSyncReplicas)"
            )
            if not endpoint.closed:
                endpoint.send(reply)
            return
        c.ledger.add(end, c.runtime.monotonic() + self._timeout_s(), endpoint, reply)

    def _timeout_s(self) -> float:
        """The time that a send may wait for its ack mode."""
        config = self._c.config
        timeout_ms = config.slave_timeout_ms
        if not self._c.waits_for_copies:
            timeout_ms = config.sync_flush_timeout_ms
        elif config.sync_flush:
            timeout_ms = max(timeout_ms, config.sync_flush_timeout_ms)
        return timeout_ms / 1000

    @property
    def _port(self) -> int:
        return int.from_bytes(self._c.store_host[-4:], "big")

    def _message_id(self, offset: int) -> str:
        return f"{self._id_prefix}{offset:016X}"

    def host(self, address: str) -> bytes:
        """A peer's address as a frame stores it; peers are few and send often."""
        found = self._hosts.get(address)
        if found is None:
            if len(self._hosts) > 10_000:
                self._hosts.clear()
            try:
                found = encode_address(address)
            except ValueError:  # a peer without an IP address (a simulated one, a proxy)
                found = bytes(8)
            self._hosts[address] = found
        return found


def _check_batch(topic: Topic) -> None:
    if topic.name.startswith(RETRY_PREFIX):
        raise MessageIllegal(f"a batch cannot go to {topic.name}; send its messages singly")


def _waits(properties: str) -> bool:
    """Whether the sender wants to wait for the ack mode."""
    return _find(properties, "WAIT\x01").lower() in ("", "true")


def _refuse_timers(properties: str) -> None:
    """Refuse a message for a given time: to deliver it at once would break a promise silently."""
    for name in (names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS):
        if _find(properties, name + "\x01"):
            raise MessageIllegal(
                f"messages for a given time ({name}) are not supported by this broker; use one of "
                "the 18 delay levels"
            )


def _big_endian(numbers: Sequence[int]) -> bytes:
    found = array("i", numbers)
    if sys.byteorder == "little":
        found.byteswap()
    return found.tobytes()


def _find(properties: str, name: str) -> str:
    """The value of a property of the encoded text, empty if absent; `name` ends with 0x01."""
    at = properties.find(name)
    while at > 0 and properties[at - 1] != "\x02":  # the end of a longer name
        at = properties.find(name, at + 1)
    if at < 0:
        return ""
    start = at + len(name)
    end = properties.find("\x02", start)
    return properties[start:end] if end >= 0 else properties[start:]

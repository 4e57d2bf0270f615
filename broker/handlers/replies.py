"""Replies of applications to requests of applications: SEND_REPLY_MESSAGE 324,
SEND_REPLY_MESSAGE_V2 325.

The message of a requester names its client (REPLY_TO_CLIENT) and a number of the request
(CORRELATION_ID). The consumer sends a reply with both to `<cluster>_REPLY_TOPIC` at one broker. The
broker passes it on by PUSH_REPLY_MESSAGE_TO_CLIENT (326), on the connection whose heartbeat named
that client as a producer, and answers the consumer when the requester has taken it. With
`storeReplyMessageEnable` it stores the reply before that, so that it can be looked up.
"""

from __future__ import annotations

from collections.abc import Callable

from saturnmq.broker.access import needs
from saturnmq.broker.commit.admission import Admission
from saturnmq.broker.context import Context, answer, require
from saturnmq.protocol import headers
from saturnmq.protocol import properties as names
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.frame import TRANSACTION_MASK
from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import reply_topic
from saturnmq.runtime.errors import MessageIllegal, SaturnError, SystemBusy, SystemError_
from saturnmq.store.message_store import PendingMessage

REQUESTER_ANSWER_S = 10.0  # as in RocketMQ
WAITING_MOST = 10_000  # replies that their requesters have not yet taken


class ReplyService:
    def __init__(
        self, context: Context, admission: Admission, *, on_append: Callable[[], None]
    ) -> None:
        self._c = context
        self._clients = context.clients
        self._store = context.store
        self._runtime = context.runtime
        self._admission = admission
        self._on_append = on_append
        self._waiting = 0

    def on_reply(self, endpoint: Endpoint, request: Command, header: headers.ReplyHeader) -> None:
        self._admission.check_ready()
        if header.topic != reply_topic(self._c.config.cluster_name):  # which is everybody's
            require(self._c, endpoint, request, needs.topic(header.topic, needs.PUB))
        _, queue_id = self._admission.checked_queue(
            header.topic, header.queue_id, header.default_topic, header.default_queues
        )
        if not request.body:
            raise MessageIllegal("the body of the reply is empty; send at least one byte")
        requester = self._requester(header.properties)
        ext = {"queueId": str(queue_id), "msgId": "0", "queueOffset": "0"}
        if self._c.config.store_replies:
            put = self._store.put(self._message(endpoint, request, header, queue_id))
            self._on_append()
            host = self._c.store_host
            port = int.from_bytes(host[-4:], "big")
            ext["msgId"] = offset_message_id(host[:-4], port, put.physical_offset)
            ext["queueOffset"] = str(put.queue_offset)

        def taken(told: Command | SaturnError) -> None:
            self._waiting -= 1
            assert self._waiting >= 0, f"{self._waiting} replies wait"
            code, remark = 0, ""
            if isinstance(told, SaturnError):
                code, remark = SystemError_.code, f"push reply message fail: {told}"
            elif told.code:
                code, remark = SystemError_.code, f"push reply message fail: {told.remark}"
            answer(endpoint, request, request.reply(code, remark, ext=ext))

        self._waiting += 1
        push = self._push(endpoint, request, header, queue_id)
        requester.request_callback(push, REQUESTER_ANSWER_S, taken)

    def _requester(self, properties: str) -> Endpoint:
        client_id = names.find_in_text(properties, names.REPLY_TO_CLIENT + names.NAME_END)
        if not client_id:
            raise SystemError_("REPLY_TO_CLIENT property is null, can not reply message")
        found = self._clients.producer(client_id)
        if found is None or found.closed:
            raise SystemError_(f"push reply message fail, channel of <{client_id}> not found.")
        if self._waiting >= WAITING_MOST:
            raise SystemBusy(
                f"[OVERLOAD]{self._waiting} replies wait for their requesters, the limit is "
                f"{WAITING_MOST}: try again"
            )
        return found

    def _message(
        self, endpoint: Endpoint, request: Command, header: headers.ReplyHeader, queue_id: int
    ) -> PendingMessage:
        born = header.born_timestamp
        return PendingMessage(
            topic=header.topic,
            queue_id=queue_id,
            body=request.body,
            properties=header.properties.encode(),
            flag=header.user_flag,
            sys_flag=header.sys_flag & ~TRANSACTION_MASK,
            born_timestamp=self._runtime.now_ms() if born is None else born,
            born_host=self._admission.born_host(endpoint.peer_address),
            store_host=self._c.store_host,
            reconsume_times=header.reconsume_times,
        )

    def _push(
        self, endpoint: Endpoint, request: Command, header: headers.ReplyHeader, queue_id: int
    ) -> Command:
        """The reply as the requester gets it, with all fields that RocketMQ's client insists on."""
        now_ms = self._runtime.now_ms()
        properties = header.properties
        if properties and properties[-1] != names.PAIR_END:
            properties += names.PAIR_END
        ext = {
            "producerGroup": header.producer_group,
            "topic": header.topic,
            "defaultTopic": header.default_topic,
            "defaultTopicQueueNums": str(header.default_queues),
            "queueId": str(queue_id),
            "sysFlag": str(header.sys_flag),
            "bornTimestamp": str(header.born_timestamp or 0),
            "flag": str(header.user_flag),
            "properties": f"{properties}{names.PUSH_REPLY_TIME}\x01{now_ms}\x02",
            "reconsumeTimes": str(header.reconsume_times),
            "unitMode": "false",
            "bornHost": endpoint.peer_address,
            "storeHost": self._c.address,
            "storeTimestamp": str(now_ms),
        }
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        return Command.request(code, ext, bytes(request.body))

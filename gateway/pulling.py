"""PullMessage, UpdateOffset, GetOffset and QueryOffset, for consumers that choose queues and keep
offsets themselves. No official client calls them.

A pull is answered with the status, the messages, and the offset at which to go on. A message whose
body cannot be decompressed is left out, and the log names it. Without a master a slave answers
pulls; offsets of groups are the master's.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from saturnmq.gateway import v2
from saturnmq.gateway.asking import Asking
from saturnmq.gateway.calls import GrpcCall, Write
from saturnmq.gateway.checks import group_of, milliseconds, topic_of
from saturnmq.gateway.clients import Client, Clients
from saturnmq.gateway.codes import OK, CallRefused, Code, status
from saturnmq.gateway.messages import delivered
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.receiving import ANSWER_S
from saturnmq.gateway.selecting import poll_ms_of, selected_by
from saturnmq.gateway.settings import BATCH
from saturnmq.gateway.topics import Directory
from saturnmq.protocol import checked
from saturnmq.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from saturnmq.protocol.inner_batch import unwrapped
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import MessageIllegal, error_for

log = logging.getLogger(__name__)

_NOTHING: dict[int, Any] = {
    ResponseCode.PULL_NOT_FOUND: status(Code.MESSAGE_NOT_FOUND, "no new message"),
    ResponseCode.PULL_RETRY_IMMEDIATELY: status(Code.MESSAGE_NOT_FOUND, "no match message"),
    ResponseCode.PULL_OFFSET_MOVED: status(
        Code.ILLEGAL_OFFSET, "the queue has no such offset; go on at next_offset"
    ),
}
"""The statuses of pulls without messages, which say where to go on."""


class AskedQueue(NamedTuple):
    """The queue of a request."""

    topic: str
    broker: str
    queue_id: int

    @property
    def ext(self) -> dict[str, str]:
        return {"topic": self.topic, "queueId": str(self.queue_id)}


class Pulling:
    def __init__(
        self,
        runtime: Runtime,
        node: GatewayNode,
        clients: Clients,
        asking: Asking,
        directory: Directory,
    ) -> None:
        self._runtime = runtime
        self._node = node
        self._clients = clients
        self._asking = asking
        self._directory = directory

    async def _place(self, queue: Any) -> AskedQueue:
        """CallRefused: there is no such queue."""
        topic = topic_of(queue.topic)
        facts = await self._directory.topic(topic)
        broker = queue.broker.name or self._node.broker_name or facts.any_broker()
        queues = {data.broker_name: data.read_queues for data in facts.route.queues}
        if not 0 <= queue.id < queues.get(broker, 0):
            raise CallRefused(
                Code.BAD_REQUEST,
                f"broker {broker[:200]} has {queues.get(broker, 0)} queues of topic {topic}; there "
                f"is no queue {queue.id}",
            )
        return AskedQueue(topic, broker, queue.id)

    async def pull(self, call: GrpcCall, request: Any, write: Write) -> None:
        client, group = self._clients.of(call), group_of(request.group)
        place = await self._place(request.message_queue)
        selected = selected_by(place.topic, request.filter_expression)
        poll_ms = poll_ms_of(call, client, request, self._runtime.monotonic())
        if request.offset < 0:
            raise CallRefused(Code.ILLEGAL_OFFSET, f"the offset is {request.offset}")
        ext = {
            **place.ext,
            "consumerGroup": group,
            "queueOffset": str(request.offset),
            "maxMsgNums": str(min(max(request.batch_size, 1), BATCH)),
            "sysFlag": str(PULL_SUBSCRIPTION | (PULL_SUSPEND if poll_ms else 0)),
            "suspendTimeoutMillis": str(poll_ms),
            "expressionType": selected.expression_type,
            "subscription": selected.expression,
        }
        command = Command.request(RequestCode.PULL_MESSAGE, ext)
        reply = await self._asking.to_read(
            client, place.topic, place.broker, command, poll_ms / 1000 + ANSWER_S
        )
        if reply.code and reply.code not in _NOTHING:
            raise error_for(reply.code, reply.remark)
        await self._asking.turn()
        body = unwrapped(bytes(reply.body), request.offset) if not reply.code else b""
        with client.holding(len(body), "messages that are delivered"):
            found = [
                message
                for message in decode_frames(body, False, place.broker)
                if selected.matches_tag(message.tag)
            ]
            told = _NOTHING.get(reply.code, OK)
            if not reply.code and not found:  # the tags have only the same hash
                told = _NOTHING[ResponseCode.PULL_RETRY_IMMEDIATELY]
            await write(v2.PullMessageResponse(status=told))
            for message in found:
                try:
                    given = delivered(message, request.message_queue.topic, None)
                except MessageIllegal as error:  # the consumer would never come past it
                    log.warning(
                        "group %s does not get message %s of topic %s, which is unreadable: %s",
                        group,
                        message.message_id,
                        place.topic,
                        error,
                    )
                    continue
                await write(v2.PullMessageResponse(message=given))
            next_offset = checked.integer(reply.ext, "nextBeginOffset")
            await write(v2.PullMessageResponse(next_offset=next_offset))

    # offsets

    async def update(self, call: GrpcCall, request: Any) -> Any:
        client, group = self._clients.of(call), group_of(request.group)
        place = await self._place(request.message_queue)
        if request.offset < 0:
            raise CallRefused(Code.ILLEGAL_OFFSET, f"the offset is {request.offset}")
        ext = {"consumerGroup": group, "commitOffset": str(request.offset)}
        await self._ask(call, client, place, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        return v2.UpdateOffsetResponse(status=OK)

    async def get(self, call: GrpcCall, request: Any) -> Any:
        client, group = self._clients.of(call), group_of(request.group)
        place = await self._place(request.message_queue)
        ext = {"consumerGroup": group, "setZeroIfNotFound": "false"}
        reply = await self._ask(call, client, place, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        return v2.GetOffsetResponse(status=OK, offset=checked.integer(reply.ext, "offset"))

    async def query(self, call: GrpcCall, request: Any) -> Any:
        client = self._clients.of(call)
        place = await self._place(request.message_queue)
        ext = {}
        match request.query_offset_policy:
            case v2.QueryOffsetPolicy.BEGINNING:
                code = RequestCode.GET_MIN_OFFSET
            case v2.QueryOffsetPolicy.END:
                code = RequestCode.GET_MAX_OFFSET
            case v2.QueryOffsetPolicy.TIMESTAMP if request.HasField("timestamp"):
                code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
                moment_ms = milliseconds(request.timestamp)
                ext["timestamp"] = str(min(max(moment_ms, 0), checked.INT64_MAX))
            case _:
                raise CallRefused(
                    Code.BAD_REQUEST, "the policy is unknown, or TIMESTAMP without a timestamp"
                )
        reply = await self._ask(call, client, place, code, ext)
        return v2.QueryOffsetResponse(status=OK, offset=checked.integer(reply.ext, "offset"))

    async def _ask(
        self,
        call: GrpcCall,
        client: Client,
        place: AskedQueue,
        code: RequestCode,
        ext: dict[str, str],
    ) -> Command:
        """The answer of the queue's master. SaturnError: it refuses."""
        command = Command.request(code, {**place.ext, **ext})
        left_s = call.remaining_s(self._runtime.monotonic())
        reply = await self._asking.at(client, place.topic, place.broker, command, left_s)
        if reply.code:
            raise error_for(reply.code, reply.remark)
        return reply

"""Questions of operators that the broker passes on to consumers: codes 223 307 309.

A client is asked over the connection that it opened to this broker; its answer, whatever it says,
is the answer.
"""

from __future__ import annotations

import asyncio

from saturnmq.broker.access import needs
from saturnmq.broker.context import Context, answer, answer_failure, require
from saturnmq.protocol import admin_headers, checked, fastjson, headers
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.ids import decode_message_id
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    ConsumerNotOnline,
    ConsumeTimeout,
    InvalidParameter,
    RequestTimeout,
    SaturnError,
    SystemError_,
)

CLIENT_ANSWER_S = 10.0
ASKED_AT_ONCE = 100  # members of a group


class ClientQuestions:
    def __init__(self, context: Context) -> None:
        self._c = context
        self._clients = context.clients

    def _members(self, group: str) -> dict[str, Endpoint]:
        """The connected members of a group by their client id."""
        found = self._clients.consumer_group(group)
        if found is None:
            return {}
        return {member.client_id: endpoint for endpoint, member in found.members.items()}

    def _member(self, group: str, client_id: str) -> Endpoint:
        found = self._members(group).get(client_id)
        if found is None:
            raise SystemError_(f"The Consumer <{group}> <{client_id}> not online")
        return found

    def on_running_info(
        self, endpoint: Endpoint, request: Command, header: headers.RunningInfoHeader
    ) -> None:
        """307: ask a consumer for its state."""
        consumer = self._member(header.group, header.client_id)
        question = Command.request(request.code, header.encode())
        self._pass_on(endpoint, request, consumer, header.client_id, question)

    def on_consume_directly(
        self, endpoint: Endpoint, request: Command, header: admin_headers.ConsumeDirectlyHeader
    ) -> None:
        """309: hand one message to a consumer now, whatever its group has consumed."""
        c = self._c
        consumer = self._member(header.group, header.client_id)
        _, _, offset = decode_message_id(header.message_id)
        frame = c.store.message_at(offset)
        if frame is None or offset + len(frame) > c.visible:
            raise SystemError_(f"can not find message by the offset, {offset}")
        stored_in = needs.topic_of(frame)
        require(c, endpoint, request, *needs.both(stored_in, header.group, needs.SUB))
        topic = None if header.topic is None else c.topics.get(header.topic)
        group = c.groups.get(header.group)
        ext = header.encode() | {"brokerName": c.config.broker_name}
        if topic is not None:
            ext["topicSysFlag"] = str(topic.sys_flag)
        if group is not None:
            ext["groupSysFlag"] = str(group.sys_flag)
        question = Command.request(request.code, ext, frame)
        self._pass_on(endpoint, request, consumer, header.client_id, question)

    def _pass_on(
        self,
        endpoint: Endpoint,
        request: Command,
        consumer: Endpoint,
        client_id: str,
        question: Command,
    ) -> None:
        async def pass_on() -> None:
            told = await _ask(consumer, client_id, question)
            body = bytes(told.body)
            answer(endpoint, request, request.reply(told.code, told.remark, body=body))

        answered = answer_failure(self._c, endpoint, request, pass_on())
        self._c.runtime.spawn(answered, name="pass-on")

    def on_consumer_status(
        self, endpoint: Endpoint, request: Command, header: admin_headers.ConsumerStatusHeader
    ) -> None:
        """223: the offsets of a topic as the members of a group have them, by client id. A member
        that does not answer is left out, unless it alone is asked."""
        group, chosen = header.group, header.client_id
        members = self._members(group)
        if chosen is not None:
            members = {chosen: self._member(group, chosen)}
        if not members:
            raise ConsumerNotOnline(f"the consumer group[{group}] not online")
        if len(members) > ASKED_AT_ONCE:
            raise InvalidParameter(
                f"group {group} has {len(members)} members, {ASKED_AT_ONCE} are asked at most: "
                "name one (clientAddr)"
            )

        async def ask() -> None:
            told = await asyncio.gather(
                *(self._offsets_at(each, client_id, header) for client_id, each in members.items()),
                return_exceptions=True,
            )
            failures = [each for each in told if isinstance(each, BaseException)]
            unknown = [each for each in failures if not isinstance(each, SaturnError)]
            if first := (failures if chosen is not None else unknown)[:1]:
                del told, failures, unknown  # else only the collector would free what they have
                raise first.pop()
            found = dict(zip(members, told, strict=True))
            table = {
                client_id: fastjson.mq_map(queues)
                for client_id, queues in found.items()
                if isinstance(queues, dict)
            }
            body = fastjson.dumps({"consumerTable": table, "messageQueueTable": {}})
            answer(endpoint, request, request.reply(0, body=body))

        answered = answer_failure(self._c, endpoint, request, ask())
        self._c.runtime.spawn(answered, name="consumer-status")

    async def _offsets_at(
        self, consumer: Endpoint, client_id: str, header: admin_headers.ConsumerStatusHeader
    ) -> dict[MessageQueue, int]:
        ext = {"topic": header.topic, "group": header.group}
        question = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
        told = await _ask(consumer, client_id, question)
        if told.code:
            raise SystemError_(f"{client_id} answers {told.code}: {told.remark}")
        table = checked.table(checked.document(told.body), "messageQueueTable")
        return {
            checked.as_queue(key): checked.as_integer(offset, "an offset", least=-1)
            for key, offset in table.items()
        }


async def _ask(consumer: Endpoint, client_id: str, question: Command) -> Command:
    try:
        return await consumer.request(question, CLIENT_ANSWER_S)
    except RequestTimeout:
        raise ConsumeTimeout(f"{client_id} did not answer in {CLIENT_ANSWER_S:g} s") from None

"""SendMessage, EndTransaction and RecallMessage.

The gateway chooses the broker only for a message with a message group: the group's owner. Other
messages stay at the broker that the client chose, or go to any if that is no broker of the topic;
the broker chooses the queue.
"""

from __future__ import annotations

from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.asking import Asking
from saturnmq.gateway.calls import MARGIN_S, GrpcCall
from saturnmq.gateway.checks import (
    check_delivery,
    check_id,
    check_message,
    milliseconds,
    topic_of,
)
from saturnmq.gateway.clients import Client, Clients
from saturnmq.gateway.codes import OK, CallRefused, Code, code_of, common, failure, status
from saturnmq.gateway.handles import TransactionId, parse_transaction
from saturnmq.gateway.messages import Type, check_digest, send_request, type_of
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.topics import Directory, TopicFacts
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.frame import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from saturnmq.protocol.ids import decode_message_id
from saturnmq.protocol.recall_handle import decode_handle
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import SaturnError, error_for

MESSAGES_MAX = 1000  # of one call
ANY_QUEUE = -1
STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""The message is stored, be it less safely than it should be."""
ILLEGAL = {
    "[MESSAGE_SIZE_EXCEEDED]": Code.MESSAGE_BODY_TOO_LARGE,
    "[PROPERTIES_SIZE_EXCEEDED]": Code.MESSAGE_PROPERTIES_TOO_LARGE,
    "the message is illegal, maybe msg body": Code.MESSAGE_BODY_TOO_LARGE,
    "timer message illegal": Code.ILLEGAL_DELIVERY_TIME,
}
"""How texts of MESSAGE_ILLEGAL begin, which has no code for each fault: those of our brokers, and
of RocketMQ's, whose third one is about the properties, too, but these are checked here."""


def _check_type(found: int, topic: str, facts: TopicFacts) -> None:
    """CallRefused: the topic is not for messages of this type."""
    if found not in facts.types:
        names = {each.value: each.name for each in Type}
        wanted = ", ".join(names[each] for each in facts.types)
        raise CallRefused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message is of type {names.get(found, found)}, topic {topic} takes {wanted}",
        )


def _refusal(reply: Command) -> SaturnError:
    """The error that tells why a broker did not store a message."""
    remark = reply.remark or ""
    if reply.code == ResponseCode.MESSAGE_ILLEGAL:
        for words, code in ILLEGAL.items():
            if remark.startswith(words):
                return CallRefused(code, remark)
    return error_for(reply.code, remark)


class Sending:
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
        self._turn = 0  # which broker is next, for messages that this one cannot take

    # sends

    async def send(self, call: GrpcCall, request: Any) -> Any:
        client, messages = self._clients.of(call), request.messages
        if not 1 <= len(messages) <= MESSAGES_MAX:
            raise CallRefused(
                Code.MESSAGE_CORRUPTED,
                f"the call has {len(messages)} messages; 1 to {MESSAGES_MAX} are allowed",
            )
        topic = topic_of(messages[0].topic)
        if any(message.topic.name != topic for message in messages):
            raise CallRefused(Code.MESSAGE_CORRUPTED, "the messages of a call must be of one topic")
        facts = await self._directory.topic(topic)
        for number, message in enumerate(messages):
            if number:  # one alone keeps its place among the calls of its connection
                await self._asking.turn()
            self._check(message, topic, facts)
        if any(type_of(message) == Type.TRANSACTION for message in messages):
            await self._produces(client, topic)
        left_s = call.remaining_s(self._runtime.monotonic()) - MARGIN_S / 2
        with client.holding(sum(len(message.body) for message in messages), "a send"):
            if len(messages) == 1:
                entries = [await self._store(client, topic, facts, messages[0], left_s)]
            else:  # in their order: queues keep it
                entries = await self._asking.for_each(
                    messages, lambda each: self._store(client, topic, facts, each, left_s)
                )
        return v2.SendMessageResponse(
            status=common([entry.status for entry in entries]), entries=entries
        )

    def _check(self, message: Any, topic: str, facts: TopicFacts) -> None:
        check_message(message, self._node.body_max)
        check_digest(message)
        system, now_ms = message.system_properties, self._runtime.now_ms()
        if system.HasField("delivery_timestamp"):
            check_delivery(milliseconds(system.delivery_timestamp), now_ms)
        found = type_of(message)
        _check_type(found, topic, facts)
        if found == Type.TRANSACTION and system.HasField("delivery_timestamp"):
            raise CallRefused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a message of a transaction has no time of delivery: leave one of them out",
            )

    async def _produces(self, client: Client, topic: str) -> None:
        """Have the broker know the client as a producer of the topic, before it has to ask one."""
        if topic not in client.topics:
            client.produce([topic])
            await self._clients.beat(client)

    async def _store(
        self, client: Client, topic: str, facts: TopicFacts, message: Any, left_s: float
    ) -> Any:
        """The entry of one message in the answer."""
        system = message.system_properties
        try:
            broker, queue_id = self._place(message, facts)
            request = send_request(message, topic, queue_id, self._runtime.now_ms())
            request.language = client.language
            reply = await self._asking.at(client, topic, broker, request, left_s)
            if reply.code not in STORED:
                raise _refusal(reply)
        except SaturnError as error:
            return v2.SendResultEntry(status=failure(error), message_id=system.message_id)
        found = OK
        if reply.code:
            warning = error_for(reply.code, reply.remark)
            found = status(code_of(warning), str(warning))
        ext = reply.ext
        offset = checked.integer(ext, "queueOffset")
        transaction = system.message_id
        if type_of(message) == Type.TRANSACTION:
            _, _, physical = decode_message_id(checked.text(ext, "msgId"))
            transaction = str(TransactionId(system.message_id, offset, physical, broker))
        return v2.SendResultEntry(
            status=found,
            message_id=system.message_id,
            transaction_id=transaction,
            offset=offset,
            recall_handle=ext.get("recallHandle", ""),
        )

    def _place(self, message: Any, facts: TopicFacts) -> tuple[str, int]:
        """The broker and the queue of a message."""
        if type_of(message) == Type.FIFO:
            return facts.place_of(message.system_properties.message_group)
        brokers = sorted({broker for broker, _ in facts.writable()})
        if self._node.broker_name in brokers:
            return self._node.broker_name, ANY_QUEUE
        self._turn += 1
        return brokers[self._turn % len(brokers)], ANY_QUEUE

    # transactions

    async def end_transaction(self, call: GrpcCall, request: Any) -> Any:
        client, topic = self._clients.of(call), topic_of(request.topic)
        if not request.transaction_id.strip():
            raise CallRefused(Code.INVALID_TRANSACTION_ID, "the transaction_id is empty")
        message_id = check_id(request.message_id, "message_id")
        found = parse_transaction(request.transaction_id, message_id)
        decisions = {
            v2.TransactionResolution.COMMIT: TRANSACTION_COMMIT,
            v2.TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
        }
        decision = decisions.get(request.resolution)
        if decision is None:
            raise CallRefused(Code.BAD_REQUEST, "the resolution is neither COMMIT nor ROLLBACK")
        is_check = request.source == v2.TransactionSource.SOURCE_SERVER_CHECK
        ext = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": str(found.queue_offset),
            "commitLogOffset": str(found.physical_offset),
            "commitOrRollback": str(decision),
            "fromTransactionCheck": str(is_check).lower(),
            "msgId": found.message_id,
            "transactionId": found.message_id,
        }
        command = Command.request(RequestCode.END_TRANSACTION, ext)
        left_s = call.remaining_s(self._runtime.monotonic())
        reply = await self._asking.at(client, topic, found.broker, command, left_s)
        if reply.code:
            raise error_for(reply.code, reply.remark)
        return v2.EndTransactionResponse(status=OK)

    # recalls

    async def recall(self, call: GrpcCall, request: Any) -> Any:
        client, topic = self._clients.of(call), topic_of(request.topic)
        handle = decode_handle(request.recall_handle)
        _check_type(Type.DELAY, topic, await self._directory.topic(topic))
        ext = {"topic": topic, "recallHandle": request.recall_handle}
        command = Command.request(RequestCode.RECALL_MESSAGE, ext)
        left_s = call.remaining_s(self._runtime.monotonic())
        reply = await self._asking.at(client, topic, handle.broker_name, command, left_s)
        if reply.code:
            raise error_for(reply.code, reply.remark)
        return v2.RecallMessageResponse(status=OK, message_id=reply.ext.get("msgId", ""))

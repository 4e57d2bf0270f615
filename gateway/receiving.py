"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

A receive is a pop of all queues of one broker. The order of its answer is fixed: the status, the
messages one by one, the time of the answer. Messages that were popped and cannot be written,
because the client has gone, are given back at once. A message whose body cannot be decompressed is
in no answer: it goes to the dead letters as it is stored, and the others of its pop are delivered.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from saturnmq.gateway import v2
from saturnmq.gateway.asking import Asking
from saturnmq.gateway.callers import as_itself
from saturnmq.gateway.calls import GrpcCall, Write
from saturnmq.gateway.checks import (
    INVISIBLE_MAX_MS,
    check_id,
    check_invisible,
    group_of,
    topic_of,
)
from saturnmq.gateway.checks import milliseconds as ms_of
from saturnmq.gateway.clients import Client, Clients
from saturnmq.gateway.codes import OK, CallRefused, Code, code_of, common, failure
from saturnmq.gateway.handles import ReceiptHandle, parse_handle
from saturnmq.gateway.messages import delivered
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.renewing import FIRST_MS, INVALID, Renewals, Renewed
from saturnmq.gateway.selecting import poll_ms_of, selected_by
from saturnmq.gateway.settings import BATCH
from saturnmq.gateway.topics import Directory
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.pop_handle import PopHandle
from saturnmq.protocol.popped import handle_of, messages_in
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    ConnectionLost,
    MessageIllegal,
    NoMessage,
    SaturnError,
    SystemBusy,
    TopicNotExist,
    error_for,
)

log = logging.getLogger(__name__)

ENTRIES_MAX = 1000  # of one AckMessage
NOT_THERE = "look message by offset failed"  # of RocketMQ: the place has not the message
ANSWER_S = 5.0  # more than the poll, for the answer of another node
DEAD = (*INVALID, TopicNotExist)
"""INVALID, and that there is no such topic (any more)."""
AWAY = frozenset({Code.HA_NOT_AVAILABLE, Code.PROXY_TIMEOUT})
"""The codes of calls that did not reach a master."""


class Receiving:
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
        self.renewals = Renewals(runtime, self._renewed, self._last_wait)

    # receiving

    async def receive(self, call: GrpcCall, request: Any, write: Write) -> None:
        try:
            await self._receive(call, request, write)
        except SaturnError as error:
            if code_of(error) != Code.MESSAGE_NOT_FOUND:
                raise
            await write(v2.ReceiveMessageResponse(status=failure(error)))
            await self._end(write)

    async def _end(self, write: Write) -> None:
        end = v2.ReceiveMessageResponse()
        end.delivery_timestamp.FromMilliseconds(self._runtime.now_ms())
        await write(end)

    async def _receive(self, call: GrpcCall, request: Any, write: Write) -> None:
        client = self._clients.of(call)
        group = group_of(request.group)
        resource = request.message_queue.topic
        topic = topic_of(resource)
        selected = selected_by(topic, request.filter_expression)
        broker = check_id(request.message_queue.broker.name, "name of the broker")
        broker = broker or self._node.broker_name
        if not broker:
            broker = (await self._directory.topic(topic)).any_broker()
        poll_ms = poll_ms_of(call, client, request, self._runtime.monotonic())
        facts = await self._directory.group(group)
        invisible_ms = FIRST_MS
        if not request.auto_renew:
            invisible_ms = check_invisible(request.invisible_duration)
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "-1",
            "maxMsgNums": str(min(max(request.batch_size, 1), BATCH)),
            "invisibleTime": str(invisible_ms),
            "pollTime": str(poll_ms),
            "bornTime": str(self._runtime.now_ms()),
            "initMode": "1",
            "expType": selected.expression_type,
            "exp": selected.expression,
            "order": str(facts.fifo).lower(),
            "attemptId": check_id(request.attempt_id, "attempt_id"),
            "bname": broker,
        }
        command = Command.request(RequestCode.POP_MESSAGE, ext)
        most_s = poll_ms / 1000 + ANSWER_S
        late = partial(self._give_back_all, topic, group, broker)
        reply = await self._asking.at(client, topic, broker, command, most_s, late)
        if reply.code == ResponseCode.POLLING_TIMEOUT:
            raise CallRefused(Code.MESSAGE_NOT_FOUND, "no new message")
        if reply.code:
            raise error_for(reply.code, reply.remark)
        found = _popped(reply, topic, group, broker)
        wanted = [message for message in found if selected.matches_tag(message.tag)]
        if len(wanted) < len(found):
            await self._pass_over(client, group, topic, found, wanted)
        if not wanted:
            raise CallRefused(Code.MESSAGE_NOT_FOUND, "no match message")
        if facts.fifo:  # of other groups the broker makes them dead letters
            wanted = self._without_spent(group, topic, wanted, facts.attempts)
        renews = bool(request.auto_renew)
        try:
            with client.holding(len(reply.body), "messages that are delivered"):
                await self._write_all(client, group, resource, wanted, write, renews=renews)
        except (SystemBusy, ConnectionLost):  # nothing was written, and nothing is kept
            self._give_back_later(group, topic, [handle_of(message) for message in wanted])
            raise

    async def _write_all(
        self,
        client: Client,
        group: str,
        resource: Any,
        found: Sequence[ReceivedMessage],
        write: Write,
        *,
        renews: bool,
    ) -> None:
        """CallRefused: there is none, or no body can be decompressed; nothing was written."""
        done = 0
        written: list[str] = []
        try:
            for message in found:
                handle = ReceiptHandle(handle_of(message), message.physical_offset)
                parts = [] if written else [v2.ReceiveMessageResponse(status=OK)]
                try:
                    given = delivered(message, resource, handle)
                    parts.append(v2.ReceiveMessageResponse(message=given))
                    del given
                except MessageIllegal as error:
                    done += 1
                    self._bury_later(group, topic_of(resource), message, f"unreadable ({error})")
                    continue
                while parts:
                    await write(parts.pop(0))  # kept by nobody while its client takes nothing
                done += 1
                written.append(str(handle))
                if renews:
                    failures = message.reconsume_times
                    self.renewals.begin(client, group, str(resource.name), handle, failures)
            if not written:
                raise CallRefused(Code.MESSAGE_NOT_FOUND, "no message that can be delivered")
            await self._end(write)
        except BaseException:
            for text in written:  # clients drop what came before an error
                self.renewals.end(text)
            rest = [handle_of(message) for message in found[done:]]
            self._give_back_later(group, str(resource.name), rest)
            raise

    def _without_spent(
        self, group: str, topic: str, found: Sequence[ReceivedMessage], attempts: int
    ) -> list[ReceivedMessage]:
        """The messages that have attempts left; the others go to the dead letters, as at RocketMQ's
        proxy. Its brokers give them out for ever, and a simple consumer cannot forward them."""
        left = []
        for message in found:
            if message.reconsume_times < attempts:
                left.append(message)
            else:
                why = f"delivered {message.reconsume_times} times and not acknowledged"
                self._bury_later(group, topic, message, why)
        return left

    def _bury_later(self, group: str, topic: str, message: ReceivedMessage, why: str) -> None:
        """Forward a message that no client is to get. Given back it would come again, in a group
        that keeps the order for ever, and hold up its queue."""
        self._runtime.spawn(self._bury(group, topic, message, why), name="bury")

    async def _bury(self, group: str, topic: str, message: ReceivedMessage, why: str) -> None:
        handle = ReceiptHandle(handle_of(message), message.physical_offset)
        what = f"message {message.message_id} of topic {topic} for group {group} is {why}"
        try:
            await self._forward(None, group, topic, handle, message.message_id, ANSWER_S)
        except SaturnError as error:
            log.warning("%s, and not forwarded: %s", what, error)
        else:
            log.warning("%s: it is in the dead letters", what)

    def _give_back_all(self, topic: str, group: str, broker: str, reply: Command) -> None:
        """A broker answered the receive of a client that has gone meanwhile."""
        if reply.code == ResponseCode.SUCCESS:
            receipts = [handle_of(each) for each in _popped(reply, topic, group, broker)]
            self._give_back_later(group, topic, receipts)

    def _give_back_later(self, group: str, topic: str, receipts: Sequence[PopHandle]) -> None:
        """Let other consumers have messages that nobody got, whoever asked for them."""
        work = as_itself(self._give_back(group, topic, receipts))
        self._runtime.spawn(work, name="give-back")

    async def _give_back(self, group: str, topic: str, receipts: Sequence[PopHandle]) -> None:
        for receipt in receipts:
            about = receipt.about(topic, group)
            ext = {**about, "invisibleTime": "0", "saturnUnseen": "true"}
            command = Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
            try:
                reply = await self._asking.at(None, topic, receipt.broker, command, ANSWER_S)
                if reply.code:
                    raise error_for(reply.code, reply.remark)
            except SaturnError as error:
                log.info("a message of group %s comes again late: %s", group, error)
                return

    async def _pass_over(
        self,
        client: Client,
        group: str,
        topic: str,
        found: Sequence[ReceivedMessage],
        wanted: Sequence[ReceivedMessage],
    ) -> None:
        """Acknowledge messages whose tag only has the same hash as one that was asked for."""
        for message in found:
            if message not in wanted:
                await self._ack(client, group, topic, handle_of(message), ANSWER_S)

    # handles

    async def _present(self, text: str) -> ReceiptHandle:
        """The valid handle of a message, for that which its client has."""
        return await self.renewals.present(text, parse_handle(text))

    async def _renewed(self, known: Renewed, invisible_ms: int) -> ReceiptHandle:
        """Give a message that the server keeps from others another invisible time."""
        group, topic = known.group, known.topic
        return await self._change(None, group, topic, known.handle, invisible_ms, ANSWER_S)

    async def _last_wait(self, known: Renewed) -> int:
        """The wait that the group's retry policy has for a message that nobody finished."""
        policy = (await self._directory.group(known.group)).retry_policy
        return min(policy.wait_ms(known.failures), INVISIBLE_MAX_MS)

    # acknowledging

    async def ack(self, call: GrpcCall, request: Any) -> Any:
        client = self._clients.of(call)
        group, topic = group_of(request.group), topic_of(request.topic)
        if not 1 <= len(request.entries) <= ENTRIES_MAX:
            raise CallRefused(
                Code.BAD_REQUEST,
                f"the call has {len(request.entries)} entries; 1 to {ENTRIES_MAX} are allowed",
            )
        left_s = call.remaining_s(self._runtime.monotonic())
        entries = await self._asking.for_each(
            request.entries, lambda each: self._ack_entry(client, group, topic, each, left_s)
        )
        return v2.AckMessageResponse(
            status=common([entry.status for entry in entries]), entries=entries
        )

    async def _ack_entry(
        self, client: Client, group: str, topic: str, entry: Any, left_s: float
    ) -> Any:
        found = OK
        try:
            handle = await self._present(entry.receipt_handle)
            with self._dead_if_over(handle):
                await self._ack(client, group, topic, handle.receipt, left_s)
            self.renewals.end(entry.receipt_handle)
        except SaturnError as error:
            found = failure(error)
        return v2.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=found
        )

    async def _ack(
        self, client: Client | None, group: str, topic: str, receipt: PopHandle, left_s: float
    ) -> None:
        command = Command.request(RequestCode.ACK_MESSAGE, receipt.about(topic, group))
        reply = await self._asking.at(client, topic, receipt.broker, command, left_s)
        if reply.code:
            raise error_for(reply.code, reply.remark)

    # changing

    async def change(self, call: GrpcCall, request: Any) -> Any:
        client = self._clients.of(call)
        old = request.receipt_handle
        try:
            group, topic = group_of(request.group), topic_of(request.topic)
            handle, invisible_ms = await self._present(old), ms_of(request.invisible_duration)
            if not 0 <= invisible_ms <= INVISIBLE_MAX_MS:
                raise CallRefused(
                    Code.ILLEGAL_INVISIBLE_TIME,
                    f"the invisible time is {invisible_ms} ms; from 0 to {INVISIBLE_MAX_MS} are "
                    "allowed",
                )
            left_s = call.remaining_s(self._runtime.monotonic())
            with self._dead_if_over(handle):
                new = await self._change(client, group, topic, handle, invisible_ms, left_s)
            self.renewals.end(old)
        except SaturnError as error:
            # Java's simple consumer keeps the handle of the answer, also of a failure.
            return v2.ChangeInvisibleDurationResponse(status=failure(error), receipt_handle=old)
        return v2.ChangeInvisibleDurationResponse(status=OK, receipt_handle=str(new))

    async def _change(
        self,
        client: Client | None,
        group: str,
        topic: str,
        handle: ReceiptHandle,
        invisible_ms: int,
        left_s: float,
    ) -> ReceiptHandle:
        """The handle that is valid from now on."""
        receipt = handle.receipt
        ext = {**receipt.about(topic, group), "invisibleTime": str(invisible_ms)}
        command = Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        reply = await self._asking.at(client, topic, receipt.broker, command, left_s)
        if reply.code:
            raise error_for(reply.code, reply.remark)
        return handle._replace(receipt=receipt.changed(reply.ext))

    # dead letters

    async def to_dead_letters(self, call: GrpcCall, request: Any) -> Any:
        """A dead handle is answered OK: the message was forwarded before, or comes again. After
        another answer Java's client asks for ever."""
        client = self._clients.of(call)
        group, topic = group_of(request.group), topic_of(request.topic)
        check_id(request.message_id, "message_id")
        handle = await self._present(request.receipt_handle)
        left_s = call.remaining_s(self._runtime.monotonic())
        try:
            with self._dead_if_over(handle):
                await self._forward(client, group, topic, handle, request.message_id, left_s)
        except DeadHandle as error:
            log.info("a message of group %s is not forwarded: %s", group, error)
        self.renewals.end(request.receipt_handle)
        return v2.ForwardMessageToDeadLetterQueueResponse(status=OK)

    async def _forward(
        self,
        client: Client | None,
        group: str,
        topic: str,
        handle: ReceiptHandle,
        message_id: str,
        left_s: float,
    ) -> None:
        receipt = handle.receipt
        ext = {
            "group": group,
            "offset": str(handle.physical_offset),
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": topic,
            "extraInfo": str(receipt),
        }
        command = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        reply = await self._asking.at(client, topic, receipt.broker, command, left_s)
        if (reply.remark or "").startswith(NOT_THERE):
            raise NoMessage(str(reply.remark))
        if reply.code:
            raise error_for(reply.code, reply.remark)
        with contextlib.suppress(*DEAD):  # RocketMQ's brokers do not look at the handle
            await self._ack(client, group, topic, receipt, left_s)

    @contextmanager
    def _dead_if_over(self, handle: ReceiptHandle) -> Iterator[None]:
        """Tell what the answer to a request about a message means for its handle. A handle whose
        time is over is dead, although its broker cannot say so, for nobody may ever hear of that
        broker again: clients would ask for ever."""
        receipt = handle.receipt
        try:
            yield
        except DEAD as error:
            raise DeadHandle(str(error)) from error
        except SaturnError as error:
            over_ms = self._runtime.now_ms() - receipt.pop_ms - receipt.invisible_ms
            if over_ms <= 0 or code_of(error) not in AWAY:
                raise
            raise DeadHandle(
                f"the invisible time is over for {over_ms} ms, and the message is not known: "
                f"{error}"
            ) from error


def _popped(reply: Command, topic: str, group: str, broker: str) -> list[ReceivedMessage]:
    """The messages of the answer to a pop. MalformedFrame: it is none."""
    reply.body = bytes(reply.body)
    return messages_in(reply, topic, group, broker, verify_crc=False)


class DeadHandle(CallRefused):
    """The handle is not valid any more"""

    def __init__(self, why: str) -> None:
        super().__init__(Code.INVALID_RECEIPT_HANDLE, why)

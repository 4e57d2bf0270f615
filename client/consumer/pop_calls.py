"""The requests of a consumer that pops (docs/internals/protocol.md 2.10): pops, acknowledgements,
changes of the invisible time. Shared by the simple consumer and the push consumer.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Sequence

from saturnmq.client.core import ClientCore
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.message import MessageQueue, ReceivedMessage
from saturnmq.protocol.namespaces import Namespace
from saturnmq.protocol.pop_handle import PopHandle
from saturnmq.protocol.popped import bits_of, handle_of, messages_in
from saturnmq.protocol.properties import POP_CK
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.errors import NoMessage

ANY = -1  # the id of any queue of a topic at a broker
ANSWER_MARGIN_S = 3.0
POP_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
)


class PopCalls:
    """The requests of one member of a group."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        namespace: Namespace,
        *,
        ordered: bool,
        verify_crc: bool,
    ) -> None:
        self.core = core
        self._group = group
        self._namespace = namespace
        self._ordered = ordered
        self._verify_crc = verify_crc
        self._attempts = itertools.count()
        # Of ordered pops that were not answered: a broker gives the next attempt with the same id
        # their messages again.
        self._unanswered: dict[MessageQueue, list[str]] = {}

    async def pop(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        most: int,
        invisible_ms: int,
        hold_s: float,
        *,
        from_end: bool,
    ) -> list[ReceivedMessage]:
        """Up to `most` messages of a queue, or of any queue of its topic at its broker; the broker
        may wait `hold_s` for the first. A group that never read there begins with its first
        message, or at the end."""
        ext = self._question(queue, hold_s) | {
            "maxMsgNums": str(most),
            "invisibleTime": str(invisible_ms),
            "initMode": "1" if from_end else "0",
            "expType": subscription.expression_type,
            "exp": subscription.expression,
        }
        broker = queue.broker_name
        address = self.core.master_address(broker)
        unanswered = self._unanswered.setdefault(queue, [])
        if self._ordered:
            new = f"{self.core.client_id}#{next(self._attempts)}"
            ext["attemptId"] = unanswered.pop() if unanswered else new
        request = Command.request(RequestCode.POP_MESSAGE, ext)
        until = hold_s + ANSWER_MARGIN_S
        try:
            answer = await self.core.invoke(address, request, until, ok=POP_CODES)
        except BaseException as error:
            if self._ordered:
                unanswered.append(ext["attemptId"])
            if isinstance(error, asyncio.CancelledError):
                self._end_poll(address, request)
            raise
        if answer.code != ResponseCode.SUCCESS:
            return []
        found = messages_in(answer, queue.topic, self._group, broker, verify_crc=self._verify_crc)
        # The broker filters by a hash of the tag: others may slip through. They are done with.
        wanted = [each for each in found if subscription.matches_tag(each.tag)]
        if len(wanted) < len(found):
            kept = {id(each) for each in wanted}
            others = [handle_of(each) for each in found if id(each) not in kept]
            await self.ack(broker, [(queue.topic, handle) for handle in others])
        for message in wanted:
            message.topic = self._namespace.plain(message.topic)
        return wanted

    def _end_poll(self, address: str, request: Command) -> None:
        """Have a pop answered that nobody waits for any more: it would take messages. At RocketMQ's
        brokers, which do not know the request, it does so until its time is over."""
        if request.opaque and self.core.connected(address) is not None:
            ext = {"opaque": str(request.opaque)}
            self.core.oneway(address, Command.request(RequestCode.END_POLL, ext))

    async def has_messages(self, queue: MessageQueue, hold_s: float) -> bool:
        """Whether a pop would find something; the broker may wait `hold_s` for it."""
        request = Command.request(RequestCode.NOTIFICATION, self._question(queue, hold_s))
        address = self.core.master_address(queue.broker_name)
        answer = await self.core.invoke(address, request, hold_s + ANSWER_MARGIN_S)
        return answer.ext.get("hasMsg") == "true"

    def _question(self, queue: MessageQueue, hold_s: float) -> dict[str, str]:
        """The fields of every question about messages: where, and how long a broker may hold it."""
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "pollTime": str(int(hold_s * 1000)),
            "bornTime": str(self.core.runtime.now_ms()),
            "order": str(self._ordered).lower(),
            "bname": queue.broker_name,
        }

    async def ack(self, broker: str, handles: Sequence[tuple[str, PopHandle]]) -> None:
        """Say that messages of a broker are done with: topics as the broker knows them, and
        handles. NoMessage: one of them is not, because its time is over, or it was acknowledged
        before; the others are."""
        address = await self.master_of(handles[0][0], broker)
        if len(handles) == 1:
            [(topic, handle)] = handles
            request = Command.request(RequestCode.ACK_MESSAGE, handle.about(topic, self._group))
            await self.core.invoke(address, request)
            return
        pops: dict[tuple[str, PopHandle], list[int]] = {}
        for topic, handle in handles:
            pops.setdefault((topic, handle._replace(offset=0)), []).append(handle.offset)
        entries = [
            {
                "c": self._group,
                "t": topic,
                "r": str(pop.kind),
                "so": pop.start,
                "q": pop.queue_id,
                "rq": pop.revive_queue,
                "pt": pop.pop_ms,
                "it": pop.invisible_ms,
                "b": base64.b64encode(bits_of(offsets, pop.start)).decode(),
            }
            for (topic, pop), offsets in pops.items()
        ]
        body = fastjson.dumps({"brokerName": broker, "acks": entries})
        request = Command.request(RequestCode.BATCH_ACK_MESSAGE, {}, body)
        answer = await self.core.invoke(address, request)
        if answer.remark:
            raise NoMessage(answer.remark)

    async def change(self, message: ReceivedMessage, invisible_ms: int) -> None:
        """Let the invisible time of a message begin anew, with this length. NoMessage: its time is
        over, or it was acknowledged."""
        handle, topic = handle_of(message), self._namespace.wrap(message.topic)
        ext = {**handle.about(topic, self._group), "invisibleTime": str(invisible_ms)}
        request = Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        answer = await self.core.invoke(await self.master_of(topic, handle.broker), request)
        message.properties[POP_CK] = str(handle.changed(answer.ext))

    async def master_of(self, topic: str, broker: str) -> str:
        """The address of a broker, though another consumer received the messages of this topic."""
        if self.core.broker_address(broker) is None:
            await self.core.route(topic)
        return self.core.master_address(broker)

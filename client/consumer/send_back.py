"""Sending a failed message back to its broker, which delivers it again later or moves it to %DLQ%.

CONSUMER_SEND_MSG_BACK (36) goes to the master that holds the message; when that fails, the message
itself is sent to `%RETRY%<group>` on any broker with the delay that the broker would have chosen. A
copy that is stored, but short of the broker's ack mode, is not taken: the next master may not have
it. (RocketMQ's client takes it.)
The group, which the broker knows, sets the number of retries; a consumer
with a number of its own sends it along, and that number counts. (The Java client always sends a
number, 16 by default, so the group's never counts for it.)
"""

from __future__ import annotations

import logging

from saturnmq.client.consumer.results import DEAD_LETTER
from saturnmq.client.core import ClientCore
from saturnmq.client.single_send import single_send
from saturnmq.protocol import properties as names
from saturnmq.protocol import topics
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frame import TRANSACTION_MASK, WRAPPED
from saturnmq.protocol.message import ReceivedMessage
from saturnmq.protocol.namespaces import NO_NAMESPACE, Namespace
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import RouteNotFound, SaturnError

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
NOT_SENT_BACK = (
    names.TRAN_MSG,
    names.CRC32,
    names.MAX_RECONSUME_TIMES,
    names.INNER_NUM,
    names.INNER_BASE,
)
FIRST_LEVEL = 3  # as a broker chooses it: ten seconds


class SendBack:
    """Sends messages of one group back."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        max_reconsume: int,
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        self._core = core
        self._group = group
        self._namespace = namespace
        self._max = str(max_reconsume) if max_reconsume >= 0 else ""  # empty: as the group has it

    async def __call__(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """Send `message` back. True once a broker has taken it; False leaves it to the caller."""
        try:
            await self._by_offset(message, delay_level)
            return True
        except SaturnError as error:
            log.warning("sending %s back failed: %s", message.message_id, error)
        if delay_level < 0:  # its retry topic would deliver it again, out of its order
            return False
        try:
            await self._by_value(message, delay_level)
            return True
        except SaturnError as error:
            log.warning("sending %s to its retry topic failed: %s", message.message_id, error)
        return False

    async def dead_letter(self, message: ReceivedMessage) -> None:
        """Have the broker of `message` store it as a dead letter of the group."""
        await self._by_offset(message, DEAD_LETTER)

    async def _by_offset(self, message: ReceivedMessage, delay_level: int) -> None:
        broker_name = message.broker_name or ""
        address = self._core.master_address(broker_name)
        ext = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(delay_level),
            "originMsgId": message.message_id,
            "originTopic": self._namespace.wrap(message.topic),
            "unitMode": "false",
            "bname": broker_name,
        }
        if self._max:
            ext["maxReconsumeTimes"] = self._max
        request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        await self._core.invoke(address, request, TIMEOUT_S)

    async def _by_value(self, message: ReceivedMessage, delay_level: int) -> None:
        retry_topic = topics.retry_topic(self._group)
        await self._core.route(retry_topic, create=True)
        queues = self._core.publish_queues(retry_topic)
        others = [queue for queue in queues if queue.broker_name != message.broker_name] or queues
        if not others:
            raise RouteNotFound(f"no broker takes {retry_topic} now")
        queue = others[self._core.runtime.random.randrange(len(others))]
        address = self._core.master_address(queue.broker_name)
        properties = dict(message.properties)
        properties.setdefault(names.RETRY_TOPIC, self._namespace.wrap(message.topic))
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[names.RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[names.DELAY] = str(delay_level or FIRST_LEVEL + message.reconsume_times)
        for name in NOT_SENT_BACK:
            properties.pop(name, None)
        if self._max:
            properties[names.MAX_RECONSUME_TIMES] = self._max
        request = single_send(
            queue,
            "CLIENT_INNER_PRODUCER",
            message.raw_body,
            properties,
            born_ms=self._core.runtime.now_ms(),
            flag=message.flag,
            sys_flag=message.sys_flag & ~(TRANSACTION_MASK | WRAPPED),
            deliveries=message.reconsume_times + 1,
            template=topics.AUTO_CREATE_TOPIC,
            template_queues=4,
        )
        if self._max:
            request.ext["l"] = self._max
        await self._core.invoke(address, request, TIMEOUT_S)

"""The request that sends one message to one queue: SEND_MESSAGE_V2, or the reply to a request.

For messages that go out one at a time, beside a producer's batches (`producer/sending.py`): copies
of received messages, replies and traces.
"""

from __future__ import annotations

from collections.abc import Mapping

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frame import HOST_MASK, TRANSACTION_MASK, WRAPPED
from saturnmq.protocol.message import MessageQueue, ReceivedMessage, encode_properties
from saturnmq.protocol.properties import INNER_BASE, INNER_NUM
from saturnmq.protocol.remoting import Command


def single_send(
    queue: MessageQueue,
    group: str,
    body: bytes | bytearray | memoryview,
    properties: Mapping[str, str],
    *,
    born_ms: int,
    flag: int = 0,
    sys_flag: int = 0,
    deliveries: int = 0,
    template: str = "",
    template_queues: int = 0,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
) -> Command:
    """The request. Without a `template` the broker makes no topic that does not exist."""
    ext = {
        "a": group,
        "b": queue.topic,
        "c": template,
        "d": str(template_queues),
        "e": str(queue.queue_id),
        "f": str(sys_flag),
        "g": str(born_ms),
        "h": str(flag),
        "i": encode_properties(properties).decode(),
        "j": str(deliveries),
        "k": "false",
        "m": "false",
        "n": queue.broker_name,
    }
    return Command.request(code, ext, bytes(body))


def send_again(
    queue: MessageQueue,
    group: str,
    message: ReceivedMessage,
    properties: Mapping[str, str],
    *,
    deliveries: int = 0,
) -> Command:
    """The request that sends a received message once more, with these properties. A topic that was
    deleted meanwhile is not made again. A batch stays one (`protocol/inner_batch.py`)."""
    sys_flag = message.sys_flag & ~(TRANSACTION_MASK | HOST_MASK)
    left_out = {INNER_BASE}
    if sys_flag & WRAPPED != WRAPPED:
        sys_flag &= ~WRAPPED
        left_out.add(INNER_NUM)
    return single_send(
        queue,
        group,
        message.raw_body,
        {name: value for name, value in properties.items() if name not in left_out},
        born_ms=message.born_timestamp,
        flag=message.flag,
        sys_flag=sys_flag,
        deliveries=deliveries,
    )

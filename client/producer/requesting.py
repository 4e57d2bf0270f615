"""Requests of applications to applications: the requester's side, and the reply of a consumer.

    requester --send, CORRELATION_ID, REPLY_TO_CLIENT, TTL--> topic --pull--> consumer
    requester <--326-- broker <--325, the same properties, <cluster>_REPLY_TOPIC-- consumer

As in RocketMQ's client, the broker that gets the reply knows the requester by its heartbeats, so
they go out before the first request to a topic. A reply is not repeated by our side: the broker
says at once whether the requester has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from concurrent import futures
from copy import copy
from typing import Any, Protocol

from saturnmq.client.core import ClientCore
from saturnmq.client.producer.batch import SendHandle
from saturnmq.client.single_send import single_send
from saturnmq.protocol import checked
from saturnmq.protocol import properties as names
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.frame import encode_frame
from saturnmq.protocol.header_fields import INT32_MIN
from saturnmq.protocol.ids import encode_address
from saturnmq.protocol.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    decode_properties,
    encode_properties,
)
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.topics import AUTO_CREATE_TOPIC, reply_topic
from saturnmq.runtime.errors import ClientClosed, MalformedFrame, MessageIllegal, RouteNotFound

IS_REPLY = "reply"  # the value of MSG_TYPE
ANSWER_S = 12.0  # the broker waits up to 10 s for the requester


class Reply(Protocol):
    """A future of either kind."""

    def set_result(self, result: ReceivedMessage, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Requests:
    """The requests of one producer that wait for their replies."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._waiting: dict[str, Reply] = {}
        self._greeted: set[str] = set()  # topics whose brokers have had a heartbeat

    def is_known_at(self, topic: str) -> bool:
        """Whether the brokers of `topic` know this client."""
        return topic in self._greeted

    async def greet(self, topic: str) -> None:
        """Let the brokers of a topic, whose route is known, know this client. Loop thread."""
        await self._core.heartbeat_now()
        self._greeted.add(topic)

    @contextlib.contextmanager
    def asking(self, message: Message, timeout: float, reply: Reply) -> Iterator[Message]:
        """Within the block the first reply to the message that it gives is the result of `reply`,
        set on the loop's thread; later ones are dropped. Any thread."""
        number = f"{self._core.runtime.random.getrandbits(128):032x}"
        properties = {
            **message.properties,
            names.CORRELATION_ID: number,
            names.REPLY_TO_CLIENT: self._core.client_id,
            names.TTL: str(int(timeout * 1000)),
        }
        self._waiting[number] = reply
        try:
            yield Message(message.topic, message.body, properties=properties, flag=message.flag)
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End all waits: no reply comes to a producer that is closed. Loop thread."""
        for reply in list(self._waiting.values()):
            with _unless_over():
                reply.set_exception(
                    ClientClosed("the producer was closed; a consumer may still get the request")
                )

    def on_reply(self, ext: Mapping[str, str], body: bytes) -> None:
        """Take a reply (326). MalformedFrame: its header makes no sense."""
        received = _received(ext, body, self._core.runtime.now_ms())
        reply = self._waiting.pop(received.properties.get(names.CORRELATION_ID, ""), None)
        if reply is not None:  # else its requester does not wait any more
            with _unless_over():
                reply.set_result(received)


def fail_with(reply: Reply, sent: SendHandle) -> None:
    """End the wait for a reply when its request could not be sent. A reply may come first: a
    consumer got the message, although no attempt to send it was answered."""

    def over(sent: SendHandle) -> None:
        error = sent.exception()
        if error is not None:
            with _unless_over():
                reply.set_exception(copy(error))  # each has its own traceback

    sent.add_done_callback(over)


def _unless_over() -> contextlib.AbstractContextManager[None]:
    """Passes over what comes after the end of a reply, which either thread may set."""
    return contextlib.suppress(asyncio.InvalidStateError, futures.InvalidStateError)


async def send_reply(
    core: ClientCore,
    group: str,
    request: ReceivedMessage,
    body: bytes | bytearray | memoryview,
    properties: Mapping[str, str] | None,
) -> None:
    """Reply to a request; returns when the requester has taken the reply. MessageIllegal: that
    message waits for none. SystemError_: the requester is gone."""
    asked = request.properties
    cluster, client_id = asked.get(names.CLUSTER), asked.get(names.REPLY_TO_CLIENT)
    number = asked.get(names.CORRELATION_ID)
    if not (cluster and client_id and number):
        raise MessageIllegal(
            f"message {request.message_id} waits for no reply: it has no CORRELATION_ID, "
            "REPLY_TO_CLIENT or CLUSTER; send it by request()"
        )
    topic = reply_topic(cluster)
    await core.route(topic)
    # The requester is connected with the broker that it sent the request to.
    brokers = sorted(
        {queue.broker_name for queue in core.publish_queues(topic)},
        key=lambda name: (name != request.broker_name, name),
    )
    found = [(name, core.broker_address(name)) for name in brokers]
    broker, address = next((each for each in found if each[1] is not None), ("", None))
    if address is None:
        raise RouteNotFound(f"topic {topic} has no master that could pass the reply on")
    told = {
        **(properties or {}),
        names.MSG_TYPE: IS_REPLY,
        names.CORRELATION_ID: number,
        names.REPLY_TO_CLIENT: client_id,
        names.TTL: asked.get(names.TTL, "0"),
    }
    command = single_send(
        MessageQueue(topic, broker, 0),
        group,
        body,
        told,
        born_ms=core.runtime.now_ms(),
        template=AUTO_CREATE_TOPIC,
        template_queues=core.default_topic_queues,
        code=RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    await core.invoke(address, command, ANSWER_S)


def _received(ext: Mapping[str, Any], body: bytes, now_ms: int) -> ReceivedMessage:
    """The reply as a message like every other: a window on a frame."""
    properties = decode_properties(checked.text(ext, "properties", "").encode())
    properties[names.ARRIVE_TIME] = str(now_ms)
    try:
        return ReceivedMessage(_frame(ext, body, encode_properties(properties)))
    except ValueError as error:
        raise MalformedFrame(f"a reply cannot be a message: {error}") from None


def _frame(ext: Mapping[str, Any], body: bytes, properties: bytes) -> bytes:
    return encode_frame(
        physical_offset=0,
        queue_offset=0,
        queue_id=checked.integer(ext, "queueId", 0, most=QUEUES_MAX),
        flag=checked.integer(ext, "flag", 0, least=INT32_MIN, most=checked.INT32_MAX),
        sys_flag=checked.integer(ext, "sysFlag", 0, most=checked.INT32_MAX),
        born_timestamp=checked.integer(ext, "bornTimestamp", 0),
        born_host=_host(checked.text(ext, "bornHost")),
        store_timestamp=checked.integer(ext, "storeTimestamp", 0),
        store_host=_host(checked.text(ext, "storeHost")),
        reconsume_times=checked.integer(ext, "reconsumeTimes", 0, most=checked.INT32_MAX),
        prepared_offset=0,
        body=body,
        topic=checked.text(ext, "topic").encode(),
        properties=properties,
    )


def _host(address: str) -> bytes:
    """The host bytes of an address as Java prints it, "/ip:port" or "name/ip:port", or as ours."""
    return encode_address(address.rpartition("/")[2])

"""Timed messages of a producer: the properties that say when, and the recall by handle.

`deliver_after` counts a delay by the clock of the brokers, which no step of a wall clock moves;
`deliver_at` names a moment of wall time. The answer to the send has a handle, with which a message
can be recalled until it is delivered.
"""

from __future__ import annotations

import datetime as dt
import math

from saturnmq.client.core import ClientCore
from saturnmq.client.producer.batch import SendResult
from saturnmq.protocol import properties as names
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import Message
from saturnmq.protocol.recall_handle import decode_handle
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import InvalidParameter

RECALL_S = 3.0


def deliver_after(message: Message, seconds: float) -> Message:
    """Have this message delivered so many seconds after the broker takes it; 0 is at once. Returns
    the same message. The broker refuses more than `timerMaxDelaySec`."""
    if not (math.isfinite(seconds) and seconds >= 0):
        raise InvalidParameter(f"a delay of {seconds} s: give a number of seconds from 0 on")
    return _waiting(message, names.TIMER_DELAY_MS, math.ceil(seconds * 1000))


def deliver_at(message: Message, moment: dt.datetime | float) -> Message:
    """Have this message delivered at a moment of wall time: a datetime with its time zone, or
    seconds since 1970 as `time.time()` gives them. A moment that is over is at once. Returns the
    same message."""
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is None:
            raise InvalidParameter(f"{moment} has no time zone: give one, such as dt.timezone.utc")
        moment = moment.timestamp()
    if not math.isfinite(moment):
        raise InvalidParameter(f"{moment} is no moment: give seconds since 1970")
    return _waiting(message, names.TIMER_DELIVER_MS, max(math.ceil(moment * 1000), 1))


def _waiting(message: Message, name: str, value: int) -> Message:
    # A message that is sent on may have what it has waited for already, which would count instead.
    for other in names.DELAYING:
        message.properties.pop(other, None)
    message.properties[name] = str(value)
    return message


def recall_handle(sent: SendResult) -> str:
    """The handle by which a timed message can be recalled, by any producer; empty for a message
    that was delivered at once."""
    return getattr(sent.batch, "recall_handle", "")


async def recall(core: ClientCore, sent: SendResult | str) -> str:
    """Recall a message; see `Producer.recall`."""
    text = sent if isinstance(sent, str) else recall_handle(sent)
    handle = decode_handle(text)
    await core.route(handle.topic)
    if core.broker_address(handle.broker_name) is None:
        await core.route(handle.topic, refresh=True)
    address = core.master_address(handle.broker_name)
    ext = {"topic": handle.topic, "recallHandle": text, "bname": handle.broker_name}
    reply = await core.invoke(address, Command.request(RequestCode.RECALL_MESSAGE, ext), RECALL_S)
    return reply.ext.get("msgId") or handle.message_id

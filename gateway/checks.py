"""Checks of calls, each with the code that the API has for its fault.

Lengths and characters are those of RocketMQ's proxy, so that a client finds the same limits here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from saturnmq.gateway.codes import CallRefused, Code
from saturnmq.protocol import properties as names
from saturnmq.protocol import topics
from saturnmq.protocol.pop_headers import ATTEMPT_ID_MAX, EXPRESSION_MAX
from saturnmq.runtime.errors import InvalidParameter

TOPICS_MAX = 1_000  # that one client subscribes, or produces for
GROUP_CHARACTERS_MAX = 64  # of a message group
ID_CHARACTERS_MAX = ATTEMPT_ID_MAX  # of messages and brokers, too
PROPERTIES_MAX = 128
PROPERTY_BYTES_MAX = 16 << 10
DELAY_MAX_MS = 86_400_000
RECOVERY_MAX_S = 3600
INVISIBLE_MIN_MS, INVISIBLE_MAX_MS = 10_000, 12 * 3_600_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURFACING = {
    names.SHARDING_KEY,
    names.TRANSACTION_ID,
    names.TRACE_CONTEXT,
    names.CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.TRANSACTION_CHECK_TIMES,
}
"""Names with a meaning for brokers that senders may use and consumers get to see: RocketMQ's proxy
allows and shows them, and Node.js's tests look for the first two."""
RESERVED = names.RESERVED - _SURFACING


def topic_of(resource: Any) -> str:
    """The name of a topic that a client may use."""
    name = str(resource.name)
    try:
        topics.check_topic(name)
    except InvalidParameter as error:
        raise CallRefused(Code.ILLEGAL_TOPIC, str(error)) from None
    if topics.is_system_topic(name):
        raise CallRefused(Code.ILLEGAL_TOPIC, f"{name} is a topic of the system: use another one")
    return name


def group_of(resource: Any) -> str:
    """The name of a consumer group."""
    name = str(resource.name)
    try:
        return topics.check_group(name)
    except InvalidParameter as error:
        raise CallRefused(Code.ILLEGAL_CONSUMER_GROUP, str(error)) from None


def check_id(text: str, what: str) -> str:
    """A text that a client gives and a broker gets, in the fields of a request."""
    if len(text) > ID_CHARACTERS_MAX:
        raise CallRefused(
            Code.BAD_REQUEST,
            f"the {what} has {len(text)} characters, the limit is {ID_CHARACTERS_MAX}",
        )
    return text


def check_expression(filter_: Any) -> None:
    """Check the length of a filter. One that is too long is not read: that takes seconds."""
    if len(filter_.expression) > EXPRESSION_MAX:
        raise CallRefused(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"the filter has {len(filter_.expression)} characters, the limit is {EXPRESSION_MAX}",
        )


def check_published(entries: Sequence[Any]) -> list[str]:
    """Check the topics that one producer names; their names."""
    _check_count(entries, "published", "producers")
    return [topic_of(entry) for entry in entries]


def check_subscriptions(entries: Sequence[Any]) -> None:
    """Check the topics and filters of one client: each, and how much they are together, since all
    are read for each of its heartbeats."""
    _check_count(entries, "subscribed", "consumers")
    characters = 0
    for entry in entries:
        topic_of(entry.topic)
        check_expression(entry.expression)
        characters += len(entry.expression.expression)
    if characters > EXPRESSION_MAX:
        raise CallRefused(
            Code.ILLEGAL_FILTER_EXPRESSION,
            f"the filters have {characters} characters together, the limit is {EXPRESSION_MAX}: "
            "use more consumers",
        )


def _check_count(entries: Sequence[Any], done: str, clients: str) -> None:
    if len(entries) > TOPICS_MAX:
        raise CallRefused(
            Code.BAD_REQUEST,
            f"{len(entries)} topics are {done}, the limit is {TOPICS_MAX}: use more {clients}",
        )


def check_message(message: Any, body_max: int) -> None:
    """Check a message to be sent, but for its topic and type."""
    system = message.system_properties
    if len(message.body) > body_max:
        raise CallRefused(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the body has {len(message.body)} bytes, the limit is {body_max}",
        )
    if not message.body:
        raise CallRefused(Code.MESSAGE_BODY_EMPTY, "the body is empty: send at least one byte")
    if not system.message_id.strip() or _CONTROL.search(system.message_id):
        raise CallRefused(Code.ILLEGAL_MESSAGE_ID, "a message needs an id: message_id is empty")
    if system.HasField("tag"):
        _check_text(system.tag, Code.ILLEGAL_MESSAGE_TAG, "the tag")
        if "|" in system.tag:
            raise CallRefused(Code.ILLEGAL_MESSAGE_TAG, f"the tag {system.tag!r:.80} has a |")
    for key in system.keys:
        _check_text(key, Code.ILLEGAL_MESSAGE_KEY, "a key")
    if system.HasField("message_group"):
        group = system.message_group
        _check_text(group, Code.ILLEGAL_MESSAGE_GROUP, "the message group")
        if len(group) >= GROUP_CHARACTERS_MAX:
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"the message group has {len(group)} characters; fewer than "
                f"{GROUP_CHARACTERS_MAX} are allowed",
            )
    for name in ("born_host", "trace_context"):  # a control character would end the property
        if _CONTROL.search(getattr(system, name)):
            raise CallRefused(Code.BAD_REQUEST, f"{name} has a control character")
    if system.orphaned_transaction_recovery_duration.seconds > RECOVERY_MAX_S:
        raise CallRefused(
            Code.BAD_REQUEST,
            "orphaned_transaction_recovery_duration is "
            f"{system.orphaned_transaction_recovery_duration.seconds} s, the limit is "
            f"{RECOVERY_MAX_S} s",
        )
    _check_properties(message)


def _check_properties(message: Any) -> None:
    user, system = message.user_properties, message.system_properties
    size = len(system.tag.encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in user.items():
        size += len(name.encode()) + len(value.encode())
        if name in RESERVED:
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name} has a meaning for the system: use another name",
            )
        if not name or _CONTROL.search(name) or _CONTROL.search(value):
            raise CallRefused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name!r:.80} has no name, or a control character",
            )
    if len(user) > PROPERTIES_MAX or size > PROPERTY_BYTES_MAX:
        raise CallRefused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user)} properties, tag and keys have {size} bytes; the limits are "
            f"{PROPERTIES_MAX} and {PROPERTY_BYTES_MAX}",
        )


def _check_text(text: str, code: int, what: str) -> None:
    if not text.strip() or _CONTROL.search(text):
        raise CallRefused(code, f"{what} {text!r:.80} is blank, or has a control character")


def check_delivery(moment_ms: int, now_ms: int) -> None:
    """Check a time of delivery. One that is over is at once."""
    if moment_ms - now_ms > DELAY_MAX_MS:
        raise CallRefused(
            Code.ILLEGAL_DELIVERY_TIME,
            f"the delivery is {(moment_ms - now_ms) / 1000:.0f} s away, the limit is "
            f"{DELAY_MAX_MS // 1000} s",
        )


def milliseconds(value: Any) -> int:
    """A Duration or Timestamp in milliseconds; the range of its fields is not trusted."""
    return int(value.seconds) * 1000 + int(value.nanos) // 1_000_000


def check_invisible(duration: Any) -> int:
    """The invisible time that a consumer asks for, in milliseconds."""
    found = milliseconds(duration)
    if not INVISIBLE_MIN_MS <= found <= INVISIBLE_MAX_MS:
        raise CallRefused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time is {found} ms; from {INVISIBLE_MIN_MS} to {INVISIBLE_MAX_MS} are "
            "allowed",
        )
    return found

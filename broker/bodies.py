"""The JSON bodies of requests, each value checked against its type and its bounds.

A malformed body raises InvalidParameter (29), which names the value and its bounds. The parts of a
body that a table keeps can be written as JSON again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from saturnmq.broker.tables.member_reads import NOTHING, Reads, reads_of, words_of
from saturnmq.broker.tables.request_modes import RequestMode, request_modes
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.header_fields import INT32_MIN
from saturnmq.protocol.headers import CreateTopicHeader
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.retry_policy import retry_policy_of
from saturnmq.protocol.route import QUEUES_MAX
from saturnmq.protocol.subscription import TAG_EXPRESSION, Subscription
from saturnmq.protocol.topics import check_group
from saturnmq.runtime.errors import InvalidParameter, MalformedFrame, SubscriptionParseFailed

GROUPS_MAX = 1_000  # that one client may belong to
SUBSCRIPTIONS_MAX = 10_000  # of one group
QUEUES_LOCKED_MAX = 100_000  # in one request
RETRY_QUEUES_MAX = 1_024  # of one group
TAGS_MAX = 10_000  # in one expression
LISTED_MAX = 10_000  # topics or groups of one request
LISTED = 50  # of them that are read in one step
BODY_MAX = 1 << 20  # bytes: ten times what a client of a hundred groups says

PRODUCERS, SUBSCRIPTIONS, QUEUES = 500, 25, 250  # that are read in one step: about half a ms

P = ParamSpec("P")
R = TypeVar("R")
Reading = Generator[None, None, R]
"""It yields between two steps, and returns what was read."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer group in a heartbeat."""

    group: str
    consume_type: str
    message_model: str
    consume_from: str
    subscriptions: tuple[dict[str, Any], ...]
    parsed: tuple[Subscription | SubscriptionParseFailed, ...] = ()  # of each subscription
    reads: Reads = NOTHING


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """HEART_BEAT 34. With `liveness_only` it carries no subscriptions."""

    client_id: str
    producer_groups: tuple[str, ...]
    consumers: tuple[Consumer, ...]
    liveness_only: bool


@dataclass(frozen=True, slots=True)
class Locks:
    """LOCK_BATCH_MQ 41, UNLOCK_BATCH_MQ 42."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]


def refusing(read: Callable[P, R]) -> Callable[P, R]:
    """A reader of a body, for which one that is none of its kind is an InvalidParameter."""

    @wraps(read)
    def refuse(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return read(*args, **kwargs)
        except MalformedFrame as error:
            raise InvalidParameter(f"the body: {error}") from None

    return refuse


def _refusing_in_steps(read: Callable[P, Reading[R]]) -> Callable[P, Reading[R]]:
    @wraps(read)
    def refuse(*args: P.args, **kwargs: P.kwargs) -> Reading[R]:
        try:
            return (yield from read(*args, **kwargs))
        except MalformedFrame as error:
            raise InvalidParameter(f"the body: {error}") from None

    return refuse


def document(request: Command) -> dict[str, Any]:
    """The JSON object in a request's body."""
    if len(request.body) > BODY_MAX:
        raise InvalidParameter(
            f"the body of request {request.code} has {len(request.body)} bytes, the limit is "
            f"{BODY_MAX}: say less in one request"
        )
    try:
        found = checked.as_json(fastjson.loads_request(bytes(request.body)), "it")
    except MalformedFrame as error:
        raise InvalidParameter(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidParameter("the body is not a JSON object")
    return found


@_refusing_in_steps
def heartbeat(request: Command) -> Reading[Heartbeat]:
    """Read the heartbeat of a client."""
    body = document(request)
    producers = checked.items(body, "producerDataSet", GROUPS_MAX)
    consumers = checked.items(body, "consumerDataSet", GROUPS_MAX)
    yield
    producing = yield from _each(_producer, producers, PRODUCERS)
    consuming: list[Consumer] = []
    step = 0
    for each in consumers:
        consuming.append((yield from _consumer(checked.as_table(each, "a consumer"))))
        step += 1 + len(consuming[-1].subscriptions)
        if step >= SUBSCRIPTIONS:
            step = 0
            yield
    return Heartbeat(
        checked.text(body, "clientID", ""),
        tuple(producing),
        tuple(consuming),
        bool(body.get("withoutSub")),
    )


def _each(read: Callable[[Any], R], items: Sequence[Any], size: int) -> Reading[list[R]]:
    """Read each item, `size` of them in a step."""
    found: list[R] = []
    for start in range(0, len(items), size):
        if start:
            yield
        found += map(read, items[start : start + size])
    return found


def _producer(data: object) -> str:
    return checked.text(checked.as_table(data, "a producer"), "groupName", "")


def _subscription(data: object) -> tuple[dict[str, Any], Subscription | SubscriptionParseFailed]:
    found = subscription(checked.as_table(data, "a subscription"))
    return found, _parsed(found)


def _consumer(data: Mapping[str, Any]) -> Reading[Consumer]:
    subscribed = checked.items(data, "subscriptionDataSet", SUBSCRIPTIONS_MAX)
    found = yield from _each(_subscription, subscribed, SUBSCRIPTIONS)
    words = yield from _each(words_of, [document for document, _ in found], SUBSCRIPTIONS)
    return Consumer(
        check_group(checked.text(data, "groupName", "")),
        checked.text(data, "consumeType", ""),
        checked.text(data, "messageModel", ""),
        checked.text(data, "consumeFromWhere", ""),
        tuple(document for document, _ in found),
        tuple(parsed for _, parsed in found),
        reads_of(words),
    )


def _parsed(document: Mapping[str, Any]) -> Subscription | SubscriptionParseFailed:
    try:
        return Subscription.from_json(document)
    except SubscriptionParseFailed as error:
        return error


@refusing
def subscription(data: Mapping[str, Any]) -> dict[str, Any]:
    """RocketMQ's SubscriptionData, all of its fields."""
    codes = checked.items(data, "codeSet", TAGS_MAX)
    return {
        "classFilterMode": bool(data.get("classFilterMode")),
        "codeSet": [checked.as_integer(code, "a tag's code", INT32_MIN) for code in codes],
        "expressionType": checked.text(data, "expressionType", "") or TAG_EXPRESSION,
        "subString": checked.text(data, "subString", ""),
        "subVersion": checked.integer(data, "subVersion", 0),
        "tagsSet": checked.texts(data, "tagsSet")[:TAGS_MAX],
        "topic": checked.text(data, "topic", ""),
    }


@_refusing_in_steps
def subscription_to_check(
    request: Command,
) -> Reading[tuple[dict[str, Any], Subscription | SubscriptionParseFailed]]:
    """CHECK_CLIENT_CONFIG 46: the subscription that a client would have."""
    body = document(request)
    yield
    return _subscription(checked.table(body, "subscriptionData"))


@_refusing_in_steps
def locks(request: Command) -> Reading[Locks]:
    """The queues that a client asks to lock or to unlock."""
    body = document(request)
    named = checked.items(body, "mqSet", QUEUES_LOCKED_MAX)
    yield
    queues = yield from _each(_queue, named, QUEUES)
    return Locks(
        checked.text(body, "consumerGroup", ""),
        checked.text(body, "clientId", ""),
        tuple(queues),
    )


def _queue(value: object) -> MessageQueue:
    data = checked.as_table(value, "a queue")
    return MessageQueue(
        checked.text(data, "topic"),
        checked.text(data, "brokerName"),
        checked.integer(data, "queueId", most=QUEUES_MAX),
    )


_FLAGS = (
    "consumeBroadcastEnable",
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeMessageOrderly",
    "notifyConsumerIdsChangedEnable",
)
_NUMBERS = {
    "brokerId": (0, checked.INT64_MAX),
    "consumeTimeoutMinute": (0, checked.INT32_MAX),
    "groupSysFlag": (INT32_MIN, checked.INT32_MAX),
    "retryMaxTimes": (INT32_MIN, checked.INT32_MAX),
    "retryQueueNums": (INT32_MIN, RETRY_QUEUES_MAX),
    "whichBrokerWhenConsumeSlowly": (0, checked.INT64_MAX),
}


def group_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """RocketMQ's SubscriptionGroupConfig. The fields that broker and consumers use are checked
    against their bounds; all other fields stay as they are. MalformedFrame: a field is out of its
    bounds."""
    checked.as_json(data, "the settings")
    settings = {key: value for key, value in data.items() if value is not None}
    for name in _FLAGS:
        if name in settings:
            settings[name] = _flag(settings[name], name)
    for name, (least, most) in _NUMBERS.items():
        if name in settings:
            settings[name] = checked.as_integer(settings[name], name, least, most)
    request_modes(settings)
    retry_policy_of(settings)
    return settings


@dataclass(frozen=True, slots=True)
class AssignmentQuestion:
    """QUERY_ASSIGNMENT 400."""

    group: str
    topic: str
    client_id: str
    strategy: str
    message_model: str


@refusing
def assignment_question(request: Command) -> AssignmentQuestion:
    body = document(request)
    return AssignmentQuestion(
        checked.text(body, "consumerGroup"),
        checked.text(body, "topic"),
        checked.text(body, "clientId"),
        checked.text(body, "strategyName", "AVG"),
        checked.text(body, "messageModel", "CLUSTERING"),
    )


@refusing
def request_mode(request: Command) -> tuple[str, str, RequestMode]:
    """SET_MESSAGE_REQUEST_MODE 401: group, topic and mode."""
    body = document(request)
    group, topic = checked.text(body, "consumerGroup"), checked.text(body, "topic")
    return group, topic, RequestMode.from_json(body)


@refusing
def group(request: Command) -> tuple[str, dict[str, Any]]:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP 200: the name of a group and its settings."""
    return _wanted_group(document(request))


def _wanted_group(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    for name, value in checked.table(body, "attributes").items():
        checked.as_text(value, f"attribute {name}")
    return check_group(checked.text(body, "groupName", "")), group_settings(body)


@_refusing_in_steps
def groups(request: Command) -> Reading[list[tuple[str, dict[str, Any]]]]:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST 225: the names of groups and their settings."""
    listed = checked.items(document(request), "groupConfigList", LISTED_MAX)
    yield
    return (yield from _each(_listed_group, listed, LISTED))


def _listed_group(value: object) -> tuple[str, dict[str, Any]]:
    return _wanted_group(checked.as_table(value, "a group"))


@_refusing_in_steps
def topics(request: Command) -> Reading[list[CreateTopicHeader]]:
    """UPDATE_AND_CREATE_TOPIC_LIST 18: several topics, each with the fields that 17 has of one."""
    listed = checked.items(document(request), "topicConfigList", LISTED_MAX)
    yield
    return (yield from _each(_topic, listed, LISTED))


def _topic(value: object) -> CreateTopicHeader:
    row = checked.as_table(value, "a topic")
    changes = checked.table(row, "attributes")
    fields = {
        "topic": checked.text(row, "topicName", ""),
        "attributes": ",".join(f"{name}={change}" for name, change in changes.items()),
        "order": str(row.get("order", False)).lower(),
    }
    for name in ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag"):
        if row.get(name) is not None:
            fields[name] = str(row[name])
    return CreateTopicHeader.decode(fields)


def _flag(value: object, what: str) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool):
        return value
    raise MalformedFrame(f"{what} is {checked.shown(value, 60)}, not true or false")

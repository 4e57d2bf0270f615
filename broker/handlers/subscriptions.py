"""The subscription of a reader: by the expression in its request, or by its group's heartbeat.

| error | code |
|---|---|
| SQL92 with enablePropertyFilter=false | 1, in RocketMQ's words |
| the request's expression cannot be parsed, or its type is unknown | 23 |
| no heartbeat of the group has named the topic | 24 |
| the heartbeats' subscription is older than the request's | 25 |
| the group's condition cannot be parsed and there was none before it | 27 |
| the same, and the one before it is older than the request's | 28 |
"""

from __future__ import annotations

from functools import lru_cache

from saturnmq.broker.context import Context
from saturnmq.broker.tables.subscription_groups import SubscriptionGroup
from saturnmq.protocol import checked
from saturnmq.protocol.headers import SubscriberHeader
from saturnmq.protocol.subscription import TAG_EXPRESSION, Subscription
from saturnmq.runtime.errors import (
    NO_SUCH_FILTER,
    FilterDataNotExist,
    FilterDataNotLatest,
    FilterNotSupported,
    GroupNotExist,
    NoPermission,
    SubscriptionNotExist,
    SubscriptionNotLatest,
)

QUICK_MAX = 512  # characters of an expression that is parsed at once: about a millisecond
_parsed = lru_cache(maxsize=1024)(Subscription.parse)
"""For expressions that are not long: each pull of a queue has that of the pull before."""


def is_long(header: SubscriberHeader) -> bool:
    """Whether the request's expression takes so long to parse that others should not wait."""
    expression = header.subscription
    return expression is not None and len(expression) > QUICK_MAX


async def read_ahead(context: Context, header: SubscriberHeader) -> None:
    """Parse the request's expression; the cache has it for the next request.
    SubscriptionParseFailed: it cannot be parsed."""
    check_enabled(context, header.expression_type)
    await context.aside.run(Subscription.parse, "", header.subscription, 0, header.expression_type)


def of_request(context: Context, topic: str, header: SubscriberHeader) -> Subscription:
    """The subscription in the fields `subscription` and `expressionType`."""
    check_enabled(context, header.expression_type)
    parse = Subscription.parse if is_long(header) else _parsed
    return parse(topic, header.subscription, 0, header.expression_type)


def of_group(context: Context, group: str, topic: str, wanted: int) -> Subscription:
    """The subscription in the members' heartbeats, if it is not older than the version `wanted`."""
    found = context.clients.subscription(group, topic)
    newest = context.clients.subscription_document(group, topic)
    if newest is None:
        raise SubscriptionNotExist(
            f"group {group} has not subscribed topic {topic} in a heartbeat to this broker"
        )
    expression_type = newest["expressionType"]
    check_enabled(context, expression_type)
    if found is None and expression_type == TAG_EXPRESSION:
        raise SubscriptionNotExist(
            f"the subscription of topic {topic} by group {group} cannot be parsed: "
            f"{checked.shown(newest.get('subString'), 200)}"
        )
    if newest["subVersion"] < wanted:
        raise SubscriptionNotLatest(f"the subscription of group {group} is not the latest")
    if found is None:
        raise FilterDataNotExist(
            f"the condition of group {group} for topic {topic} cannot be parsed: "
            f"{checked.shown(newest.get('subString'), 200)}"
        )
    if found.sub_version < wanted:
        raise FilterDataNotLatest(
            f"the latest condition of group {group} for topic {topic} cannot be parsed: "
            f"{checked.shown(newest.get('subString'), 200)}"
        )
    return found


def reading_group(context: Context, group_name: str, topic_name: str) -> SubscriptionGroup:
    """The group in whose name a topic is read. GroupNotExist: it has to be created first.
    NoPermission: it may not read the topic."""
    group = context.groups.get_or_create(group_name)
    if group is None:
        raise GroupNotExist(f"subscription group [{group_name}] does not exist")
    if not group.consume_enable:
        raise NoPermission(f"subscription group [{group_name}] may not consume")
    if context.groups.forbids(group_name, topic_name):
        raise NoPermission(f"group {group_name} is forbidden to read topic {topic_name}")
    return group


def check_enabled(context: Context, expression_type: str) -> None:
    """FilterNotSupported if the request has a condition and the broker's settings exclude them."""
    if expression_type != TAG_EXPRESSION and not context.config.enable_property_filter:
        raise FilterNotSupported(f"{NO_SUCH_FILTER} {expression_type}")

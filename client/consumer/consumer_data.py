"""A consumer in RocketMQ's JSON shapes: its entry in a heartbeat, and its ConsumerRunningInfo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from saturnmq.client.core import ClientCore
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.running_info import running_info
from saturnmq.protocol.subscription import Subscription

CONSUME_FROM = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


def heartbeat_entry(
    group: str,
    subscriptions: Iterable[Subscription],
    consume_from: str | int,
    *,
    push: bool,
    broadcasting: bool = False,
) -> dict[str, Any]:
    """A group's entry of `consumerDataSet` in a heartbeat (docs/internals/protocol.md 2.4)."""
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY" if push else "CONSUME_ACTIVELY",
        "messageModel": "BROADCASTING" if broadcasting else "CLUSTERING",
        "consumeFromWhere": CONSUME_FROM.get(str(consume_from), "CONSUME_FROM_TIMESTAMP"),
        "subscriptionDataSet": [subscription.to_json() for subscription in subscriptions],
        "unitMode": False,
    }


def member_info(
    core: ClientCore,
    consume_type: str,
    subscriptions: Iterable[Subscription],
    queues: Mapping[MessageQueue, Mapping[str, Any]] | None = None,
    *,
    popped: Mapping[MessageQueue, Mapping[str, Any]] | None = None,
    ordered: bool = False,
) -> dict[str, Any]:
    """ConsumerRunningInfo, the answer to 307."""
    return running_info(
        consume_type,
        [subscription.to_json() for subscription in subscriptions],
        queues,
        popped,
        ordered=ordered,
        version="V5_4_0",
        started_ms=core.started_ms,
        PROP_NAMESERVER_ADDR=";".join(core.nameservers),
    )

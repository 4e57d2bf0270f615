"""A consumer in RocketMQ's JSON shapes: its entry in a heartbeat, and its ConsumerRunningInfo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.offset_store import OffsetStore
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.door import Runtime

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


def running_info(
    subscriptions: Iterable[Subscription],
    held: Mapping[MessageQueue, AssignedQueue],
    offsets: OffsetStore,
    runtime: Runtime,
    *,
    push: bool,
    orderly: bool = False,
    popped: Mapping[MessageQueue, AssignedQueue] | None = None,
) -> dict[str, Any]:
    """ConsumerRunningInfo, the answer to 307."""
    return {
        "properties": {
            "PROP_CONSUMEORDERLY": str(orderly).lower(),
            "PROP_CLIENT_VERSION": "V5_4_0",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY" if push else "CONSUME_ACTIVELY",
        },
        "subscriptionSet": [subscription.to_json() for subscription in subscriptions],
        "mqTable": {queue: each.info(offsets, runtime) for queue, each in held.items()},
        "mqPopTable": {queue: each.pop_info(runtime) for queue, each in (popped or {}).items()},
        "statusTable": {},
    }

"""ConsumerRunningInfo: what a member of a group tells an operator of itself, the answer to 307
(docs/internals/protocol.md 2.4). RocketMQ's `mqadmin consumerStatus` computes with the properties,
and fails on a member that lacks the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .message_queue import MessageQueue


def running_info(
    consume_type: str,
    subscriptions: Iterable[Mapping[str, Any]],
    queues: Mapping[MessageQueue, Mapping[str, Any]] | None = None,
    popped: Mapping[MessageQueue, Mapping[str, Any]] | None = None,
    *,
    ordered: bool,
    version: str,
    started_ms: int,
    **more: str,
) -> dict[str, Any]:
    """`queues`: RocketMQ's ProcessQueueInfo of each queue that it pulls; `popped`: its
    PopProcessQueueInfo of each that it pops; `started_ms`: when it began; `more`: other
    properties."""
    return {
        "properties": {
            "PROP_CLIENT_VERSION": version,
            "PROP_CONSUME_TYPE": consume_type,
            "PROP_CONSUMEORDERLY": str(ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
            **more,
        },
        "subscriptionSet": list(subscriptions),
        "mqTable": dict(queues or {}),
        "mqPopTable": dict(popped or {}),
        "statusTable": {},
    }

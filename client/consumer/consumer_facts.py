"""What a consumer tells brokers and operators about itself, in RocketMQ's JSON shapes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.offset_store import OffsetStore
from saturnmq.client.consumer.starting import Baseline, find_queues
from saturnmq.client.core import ClientCore
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    FilterNotSupported,
    SaturnError,
    SubscriptionParseFailed,
    UnsupportedRequest,
)

log = logging.getLogger(__name__)

DEFAULT_NAMESERVER = "127.0.0.1:9876"
CONSUME_FROM = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


def heartbeat_entry(
    group: str,
    subscriptions: Iterable[Subscription],
    consume_from: str | int,
    *,
    push: bool,
    broadcasting: bool = False,
) -> dict[str, Any]:
    """A group's entry of `consumerDataSet` in a heartbeat (remoting.md 2.4)."""
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY" if push else "CONSUME_ACTIVELY",
        "messageModel": "BROADCASTING" if broadcasting else "CLUSTERING",
        "consumeFromWhere": CONSUME_FROM.get(str(consume_from), "CONSUME_FROM_TIMESTAMP"),
        "subscriptionDataSet": [subscription.to_json() for subscription in subscriptions],
        "unitMode": False,
    }


async def find_brokers(
    core: ClientCore, group: str, subscriptions: Mapping[str, Subscription], baseline: Baseline
) -> None:
    """Find who has the topics, note which queues they have now, and ask the brokers whether they
    filter by their SQL92 conditions, as RocketMQ's clients do before their first heartbeat.

    FilterNotSupported: one does not. SubscriptionParseFailed: one cannot parse it. A broker that
    does not answer is passed over: its pulls will tell.
    """
    for topic in list(subscriptions):
        try:
            await find_queues(core, topic, baseline)
        except SaturnError as error:
            log.debug("no route of %s yet: %s", topic, error)
    for subscription in list(subscriptions.values()):
        if subscription.sql is None:
            continue
        document = {"clientId": core.client_id, "group": group}
        body = fastjson.dumps(document | {"subscriptionData": subscription.to_json()})
        for name in sorted({q.broker_name for q in core.subscribe_queues(subscription.topic)}):
            address = core.broker_address(name, master=False)
            if address is None:
                continue
            request = Command.request(RequestCode.CHECK_CLIENT_CONFIG, {}, body)
            try:
                await core.invoke(address, request)
            except SubscriptionParseFailed as error:
                raise type(error)(f"broker {name} ({address}): {error}") from None
            except UnsupportedRequest:
                raise FilterNotSupported(f"broker {name} ({address}) knows no conditions") from None
            except SaturnError as error:
                log.info("broker %s was not asked for its filters: %s", name, error)


def running_info(
    subscriptions: Iterable[Subscription],
    held: Mapping[MessageQueue, AssignedQueue],
    offsets: OffsetStore,
    runtime: Runtime,
    *,
    push: bool,
    orderly: bool = False,
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
        "mqPopTable": {},
        "statusTable": {},
    }


def core_for(
    core: ClientCore | None,
    runtime: Runtime | None,
    nameservers: str | Sequence[str],
    client_id: str | None,
) -> tuple[ClientCore, bool]:
    """(the core to use, whether the consumer has to start and close it)."""
    if core is not None:
        return core, False
    if runtime is None:
        from saturnmq.runtime.native import NativeRuntime

        runtime = NativeRuntime()
    return ClientCore(runtime, nameservers or DEFAULT_NAMESERVER, client_id), True

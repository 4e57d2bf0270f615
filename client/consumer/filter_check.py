"""The requests of a consumer before its first heartbeat: the routes of its topics, and whether the
brokers filter by its SQL92 conditions (CHECK_CLIENT_CONFIG 46).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from saturnmq.client.consumer.starting import Baseline, find_queues
from saturnmq.client.core import ClientCore
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.errors import (
    FilterNotSupported,
    SaturnError,
    SubscriptionParseFailed,
    UnsupportedRequest,
)

log = logging.getLogger(__name__)


async def find_brokers(
    core: ClientCore, group: str, subscriptions: Mapping[str, Subscription], baseline: Baseline
) -> None:
    """Find the brokers of the topics, note the queues they have now, and ask the brokers whether
    they filter by the SQL92 conditions, as RocketMQ's clients do before their first heartbeat.

    FilterNotSupported: a broker does not filter. SubscriptionParseFailed: a broker cannot parse the
    condition. A broker that does not answer is passed over: its pulls will show it.
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

"""The brokers and the topics that a nameserver knows (codes 106 and 206)."""

from __future__ import annotations

from typing import NamedTuple

from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked, topics
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import brokers_in


class BrokerNode(NamedTuple):
    """One broker process as a nameserver knows it; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


async def nodes_of(core: ClientCore, timeout_s: float | None = None) -> list[BrokerNode]:
    """Every broker that the nameserver knows."""
    command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    brokers = await core.ask_nameserver(command, brokers_in, timeout_s)
    return sorted(
        BrokerNode(data.cluster, data.broker_name, broker_id, address)
        for data in brokers
        for broker_id, address in data.addresses.items()
    )


async def topics_of(core: ClientCore, timeout_s: float | None = None) -> list[str]:
    """The names of all topics that the nameserver knows."""
    command = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return await core.ask_nameserver(command, _topic_names, timeout_s)


async def user_topics_of(core: ClientCore, timeout_s: float | None = None) -> list[str]:
    """The topics that users made: without retry and dead-letter topics, and without those of the
    system, of clusters and of brokers."""
    own: set[str] = set()
    for node in await nodes_of(core, timeout_s):
        own |= {node.cluster, node.broker_name, topics.reply_topic(node.cluster)}
    derived = (topics.RETRY_PREFIX, topics.DLQ_PREFIX)
    return [
        name
        for name in await topics_of(core, timeout_s)
        if name not in own and not name.startswith(derived) and not topics.is_system_topic(name)
    ]


def _topic_names(answer: Command) -> list[str]:
    listed = checked.items(checked.document(answer.body), "topicList")
    return sorted(checked.as_text(topic, "a topic") for topic in listed)

"""The brokers and the topics that nameservers know (codes 106 and 206)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked, topics
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import BrokerData, brokers_in
from saturnmq.runtime.errors import RouteNotFound, SaturnError

log = logging.getLogger(__name__)

OTHERS_S = 1.0  # for the answers of nameservers that are not in use


class BrokerNode(NamedTuple):
    """One broker process as a nameserver knows it; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class BrokerGroups(NamedTuple):
    """The addresses of nodes, by the name of their broker group."""

    masters: dict[str, str]
    serving: dict[str, str]
    """Of each group its master, or a slave while it has none: whom to ask."""
    slaves: list[str]
    """Those that have a master."""

    @property
    def led_by_none(self) -> dict[str, str]:
        """A slave of each group that has no master now."""
        return {name: at for name, at in self.serving.items() if name not in self.masters}

    def to_change(self, names: Iterable[str]) -> dict[str, str]:
        """The masters of these groups. RouteNotFound, before anything is changed: one has none."""
        if not self.masters:
            raise RouteNotFound("no master is registered: start a broker, or promote a slave")
        found = {}
        for name in names:
            if name not in self.masters:
                raise without_master(name)
            found[name] = self.masters[name]
        return found


def without_master(name: str) -> RouteNotFound:
    """The refusal of a change that this broker group would miss."""
    return RouteNotFound(
        f"broker {name!r} has no master now: nothing was changed; bring it back, or promote a slave"
    )


def groups_in(nodes: Iterable[BrokerNode]) -> BrokerGroups:
    """The broker groups of these nodes."""
    found = BrokerGroups({}, {}, [])
    for node in sorted(nodes):
        if node.broker_id == 0:
            found.masters[node.broker_name] = node.address
        elif node.broker_name in found.masters:
            found.slaves.append(node.address)
        found.serving.setdefault(node.broker_name, node.address)
    return found


async def nodes_of(core: ClientCore, timeout_s: float | None = None) -> list[BrokerNode]:
    """Every broker that any nameserver knows: one may have been away when a broker registered. If
    two disagree, the one in use is right."""
    command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    answers = [await core.ask_nameserver(command, brokers_in, timeout_s)]
    others = [each for each in core.nameservers if each != core.nameserver_in_use]
    answers += await asyncio.gather(*(_brokers_at(core, each) for each in others))
    found: dict[tuple[str, int], BrokerNode] = {}
    known: set[str] = set()
    for brokers in answers:
        for data in brokers:
            for broker_id, address in data.addresses.items():
                if (data.broker_name, broker_id) not in found and address not in known:
                    node = BrokerNode(data.cluster, data.broker_name, broker_id, address)
                    found[data.broker_name, broker_id] = node
                    known.add(address)
    return sorted(found.values())


async def _brokers_at(core: ClientCore, nameserver: str) -> list[BrokerData]:
    """The brokers that this nameserver knows; none if it does not answer soon."""
    command = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    try:
        async with asyncio.timeout(OTHERS_S):
            return brokers_in(await core.invoke(nameserver, command, OTHERS_S))
    except (SaturnError, TimeoutError) as error:
        log.debug("nameserver %s does not tell its brokers: %s", nameserver, error)
        return []


async def topics_of(core: ClientCore, timeout_s: float | None = None) -> list[str]:
    """The names of all topics that the nameserver knows."""
    command = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    return await core.ask_nameserver(command, _topic_names, timeout_s)


async def user_topics_of(
    core: ClientCore, nodes: Iterable[BrokerNode], timeout_s: float | None = None
) -> list[str]:
    """The topics that users made on these nodes, which are all: without retry and dead-letter
    topics, and without those of the system, of clusters and of brokers."""
    own: set[str] = set()
    for node in nodes:
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

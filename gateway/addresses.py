"""The addresses that a client is told for the brokers of a topic.

Most clients are told one address for each broker, its master's, and learn of a new master from
their next route: they ask for one every 30 s.

- Go's, Java's and Python's clients take several addresses for a broker, and stay connected to one
  of them: Go's and Java's to one by chance, Python's to the first in its own order. They pass over
  those that refuse. So they are told all nodes of the broker, of which a slave sends on what is for
  its master, and a fail-over needs no new route. A node that leaves the route stays named for
  `KEPT_S`, for its address refuses: the queues of a push consumer are the same ones before a
  fail-over, after it, and when the lost node is back. The order is that in which Go's client sorts
  them. Over TLS Python's looks for the whole list in each certificate, so it is told the master
  alone.
- Java's push consumer is told the master alone: it asks for its assignments every 5 s. Java's
  clients after 5.2.0 send each call to another address; then the node that renews a message
  (renewing.py) would not be the one that hears of its end.
- Node's producer and Rust's client keep the first route of a topic for their life. If a nameserver
  is their access point, it names itself: it is never promoted, and sends on what is for a broker,
  as RocketMQ's proxy does for all clients. Node's producer uses queue 0 of each broker alone. The
  others lead to the broker, so that it has heartbeats of its own, and can ask the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Address, ip_address
from typing import Any

from saturnmq.gateway.clients import NODE
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.peers import Peers
from saturnmq.gateway.routes import EndpointsOf, endpoints, speaker
from saturnmq.gateway.topics import ASK_S, FreshFacts, TopicFacts
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import QUEUES_MAX, BrokerData
from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import SaturnError

FRESH_S = 10.0
KEPT_S = 300.0  # more than a restart takes
TAKE_SEVERAL = {"GO", "JAVA"}  # languages, as `Client.language` has them
TAKE_SEVERAL_PLAIN = TAKE_SEVERAL | {"PYTHON"}
ONE_IF_PUSHED = {"JAVA"}
KEEPS_FIRST_ROUTE = {NODE: 1, "RUST": QUEUES_MAX}
"""The queues of a broker, from 0 on, that stay at the access point."""


class Addresses:
    """The gateways of nodes. Loop thread only."""

    def __init__(self, runtime: Runtime, node: GatewayNode, peers: Peers, own_address: str) -> None:
        """`own_address`: that of the gateway itself, as clients are told."""
        self._runtime = runtime
        self._node = node
        self._peers = peers
        self._own = own_address
        self._gateways = FreshFacts(runtime, self._find_gateway, FRESH_S)
        self._seen: dict[str, dict[str, float]] = {}  # gateways of a broker, and when last

    async def of(
        self,
        language: str,
        access_point: Any,
        facts: TopicFacts,
        *,
        is_secure: bool,
        is_pushed: bool = False,
    ) -> EndpointsOf:
        """The endpoints of the brokers of a topic, for a client of this language, with or without
        TLS, that is a push consumer or not. For a broker without a gateway, one of RocketMQ, they
        are those of this gateway, which sends on what is for others. At a proxy all of them are the
        client's `access_point`."""
        if self._node.is_proxy and access_point.scheme and access_point.addresses:
            return lambda _: access_point
        takes_several = language in (TAKE_SEVERAL if is_secure else TAKE_SEVERAL_PLAIN)
        takes_one = is_pushed and language in ONE_IF_PUSHED
        find = self._all_of if takes_several and not takes_one else self._master_of
        brokers = facts.route.brokers
        found = await asyncio.gather(*map(find, brokers))
        known = {
            data.broker_name: endpoints(*addresses)
            for data, addresses in zip(brokers, found, strict=True)
        }
        own = endpoints(self._own)
        return lambda broker: known.get(broker, own)

    def hold(self, language: str, access_point: Any, queues: Sequence[Any]) -> None:
        """Put the access point of a client that keeps its first route in the place of brokers in
        this route, if it is a nameserver, under one address: Node's client takes no several."""
        held = KEEPS_FIRST_ROUTE.get(language, 0)
        if self._node.broker_name or len(access_point.addresses) != 1:
            return
        for queue in queues:
            if queue.id < held:
                queue.broker.endpoints.CopyFrom(access_point)

    async def _master_of(self, data: BrokerData) -> list[str]:
        address = speaker(data)
        return [await self._gateway(address) or self._own] if address else [self._own]

    async def _all_of(self, data: BrokerData) -> list[str]:
        """The gateways of all nodes of a broker, and of those that were its nodes lately."""
        present = await asyncio.gather(*map(self._gateway, data.addresses.values()))
        now, name = self._runtime.monotonic(), data.broker_name
        seen = self._seen.get(name, {}) | dict.fromkeys(filter(None, present), now)
        self._seen[name] = {each: at for each, at in seen.items() if now - at < KEPT_S}
        several = sorted(self._seen[name], key=split_address)
        if several and all(map(_is_ipv4, several)):
            return several
        return await self._master_of(data)  # for each call Go's client takes one of several names

    async def _gateway(self, address: str) -> str:
        """The address of the gateway of the node at this Remoting address; empty: it has none, or
        nobody knows."""
        if address == self._node.address:
            return self._own
        try:
            return await self._gateways.get(address)
        except SaturnError:
            return ""

    async def _find_gateway(self, address: str) -> str:
        reply = await self._peers.ask(address, Command.request(RequestCode.REPLICA_STATE), ASK_S)
        if reply.code:
            return ""
        found = checked.text(checked.document(bytes(reply.body)), "grpcAddress", "")
        return checked.as_address(found) if found else ""


def _is_ipv4(address: str) -> bool:
    try:
        return isinstance(ip_address(split_address(address)[0]), IPv4Address)
    except ValueError:
        return False

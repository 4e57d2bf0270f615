"""The part of Admin about brokers and nameservers: their roles, their state, their settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saturnmq.client.admin import promotion
from saturnmq.client.admin.broker_admin import ConnectedProducer, SendProbe
from saturnmq.client.admin.handover import Drained, Succession
from saturnmq.client.admin.operations import Operations
from saturnmq.client.admin.promotion import Promoter, Promotion
from saturnmq.client.admin.replicas import Replica, find_replicas
from saturnmq.client.cluster_view import BrokerNode, nodes_of
from saturnmq.runtime.errors import RouteNotFound


class ClusterOperations(Operations):
    """The operations of an Admin on the servers of a cluster."""

    async def cluster(self) -> list[BrokerNode]:
        """Every broker that any nameserver knows."""
        return await nodes_of(self.core, self.timeout)

    async def replicas(self, group: str | None = None) -> list[Replica]:
        """Every member of a broker group, or of all groups: role, epoch and end of its log."""
        return await find_replicas(self.core, group)

    async def promote(
        self,
        group: str,
        node: str | int,
        *,
        force: bool = False,
        timeout: float = promotion.TIMEOUT_S,
    ) -> Promotion:
        """Make `node` (an address or a broker id) the master of its group.

        A master that answers hands over, and nothing is lost. Without one, `force` is needed where
        acknowledged messages could be lost.
        """
        return await Promoter(self.core, group, force=force, timeout_s=timeout).run(node)

    async def hand_over(
        self,
        group: str,
        node: str | int | None = None,
        *,
        timeout: float = promotion.TIMEOUT_S,
    ) -> Promotion:
        """Change the master of a healthy group: to `node` (an address or a broker id), or to the
        slave that `brokerElectionPriority` prefers, or to the one that is furthest ahead.

        Nothing is forced, and no acknowledged message is lost: NoPermission says why no node hands
        over or takes over; then nothing has changed. The slave has `timeout` seconds to come near;
        the group takes no sends for two seconds at most. A cancelled call, or `close`, ends as soon
        as one of the two leads.
        """
        return await Succession(self.core, timeout_s=timeout).hand_over(group, node)

    async def preview_hand_over(self, group: str, node: str | int | None = None) -> Replica:
        """The node that would take over."""
        return await Succession(self.core).preview(group, node)

    async def drain(self, node: str, *, timeout: float = promotion.TIMEOUT_S) -> list[Drained]:
        """Hand over each group that a node leads, so that it can be stopped: `node` is an address,
        a host (all brokers on it), or an id that only one broker has.

        NoPermission says why one of the groups cannot be handed over; then nothing has changed. A
        group that fails nevertheless, because a node ends or falls behind meanwhile, ends the
        drain: the groups before it stay handed over, and the error names them. `risk` says what
        the stop of the node costs nevertheless.
        """
        return await Succession(self.core, timeout_s=timeout).drain(node)

    async def preview_drain(self, node: str) -> list[Drained]:
        """The changes that `drain` would make."""
        return await Succession(self.core).drain(node, preview=True)

    async def broker_status(self, address: str) -> dict[str, str]:
        """The state that the broker at `address` reports, as mqadmin's brokerStatus shows it.

        `refusesWrites` says why it takes no sends, and is empty if it does or is a sound slave;
        `flushBehindMs` is the time for which the oldest message that is not on the disk has waited;
        `longestStopMs` is the longest time that its event loop stood still since the start,
        `longestBusyStopMs` the part of it that the loop computed.
        """
        return await self._brokers.status(address)

    async def broker_settings(self, address: str) -> dict[str, str]:
        """All settings of the broker at `address`, by RocketMQ's key; secrets are hidden."""
        return await self._brokers.settings(address)

    async def change_settings(self, address: str, settings: Mapping[str, str]) -> None:
        """Change settings of the broker at `address` until it stops, all or none. NoPermission: one
        of them is fixed while it runs. InvalidParameter: a value is out of its range."""
        await self._brokers.change(address, settings)

    async def producers(self) -> list[ConnectedProducer]:
        """The producers that are connected to any broker, each client of a group once. A client
        tells of itself with its heartbeats."""
        addresses = [node.address for node in await self.cluster()]
        found = await self._brokers.producers(addresses)
        return self._plain([each for each in found if self._namespace.holds(each.group)])

    async def delete_expired(self, address: str) -> None:
        """Have the broker at `address` delete what its retention no longer keeps, whatever the
        hour."""
        await self._brokers.delete_expired(address)

    async def delete_unused(self, address: str) -> None:
        """Have the broker at `address` delete the queues of topics that it has no more. Topics and
        their messages are deleted by `delete_topic`; this is for what is left of others."""
        await self._brokers.delete_unused(address)

    async def probe(self, broker_name: str) -> SendProbe:
        """Send a message to the topic that the master with this name has for itself, and see how
        long the acknowledgement takes. The error that refuses it is raised."""
        masters = await self._masters()
        if broker_name not in masters:
            raise RouteNotFound(f"no master is called {broker_name!r}: there are {sorted(masters)}")
        return await self._brokers.probe(broker_name, masters[broker_name])

    async def export(self) -> dict[str, Any]:
        """The cluster as it is configured, to be kept as JSON: `topics` and `groups` by broker name
        and name, as RocketMQ writes them, and `settings` by the address of each broker and
        nameserver. Secrets are hidden."""
        topics, groups = {}, {}
        for name, address in (await self._serving()).items():
            topics[name], groups[name] = await self._brokers.tables(address)
        settings = dict(await self._nameservers.settings())
        for node in await self.cluster():
            settings[node.address] = await self._brokers.settings(node.address)
        return {"topics": topics, "groups": groups, "settings": settings}

    async def nameserver_settings(self) -> dict[str, dict[str, str]]:
        """All settings of each nameserver, by its address and RocketMQ's key. A nameserver answers
        for RocketMQ's controller as well, with the same settings. If one does not answer, its error
        is raised when all were asked."""
        return await self._nameservers.settings()

    async def change_nameserver_settings(self, settings: Mapping[str, str]) -> None:
        """Change settings of every nameserver until it stops. NoPermission: one of them is fixed
        while it runs. InvalidParameter: a value is out of its range. An error is raised when all
        were asked, and names those that failed."""
        await self._nameservers.change(settings)

    async def kv_config(self, namespace: str) -> dict[str, str]:
        """The entries in a namespace of the nameservers' key-value configuration; empty if there
        are none. Such a namespace has nothing to do with that of clients; the order of topics is
        in ORDER_TOPIC_CONFIG."""
        return await self._nameservers.kv(namespace)

    async def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Write an entry at every nameserver. An error names those that missed it."""
        await self._nameservers.put_kv(namespace, key, value)

    async def delete_kv_config(self, namespace: str, key: str) -> None:
        """Delete an entry at every nameserver. An error names those that missed it."""
        await self._nameservers.delete_kv(namespace, key)

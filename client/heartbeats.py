"""Heartbeats: they tell the brokers which groups of producers and consumers this client has.

Every broker of the known routes gets one every 30 s, as in the Java client: masters, and for
consumers slaves as well. The Java client is slow to notice two things, of which brokers here learn
at once: a broker that is new in a route gets a heartbeat, and so does a broker whose connection
comes back after a break. The client tries every second to get it back: a broker that restarted has
to know whom it may ask about transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from saturnmq.client.connections import ServerConnections
from saturnmq.client.routes import RouteCache
from saturnmq.client.server_requests import ConsumerHandler
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import AccessDenied, RequestTimeout, SaturnError
from saturnmq.runtime.supervision import Supervisor

log = logging.getLogger(__name__)

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
RECONNECT_S = 1.0
UNREGISTER_TIMEOUT_S = 1.0


class Heartbeats:
    """Keeps the brokers informed of the groups of one client. Loop thread only."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Supervisor,
        connections: ServerConnections,
        routes: RouteCache,
        consumers: dict[str, ConsumerHandler],
        producers: dict[str, Any],
        *,
        client_id: Callable[[], str],
        interval: float,
        report: Callable[[SaturnError], None],
    ) -> None:
        """`consumers` and `producers` are the groups, which change. `report` is told when a broker
        denies the user of this client, or what its consumers want."""
        self._runtime = runtime
        self._tasks = tasks
        self._connections = connections
        self._routes = routes
        self._consumers = consumers
        self._producers = producers
        self._client_id = client_id
        self._interval = interval
        self._report = report
        self._denied: dict[str, str] = {}  # by address, why the last heartbeat was denied
        self._greeted: set[str] = set()
        self._greeting: set[str] = set()  # a heartbeat to these is on its way
        self._greeting_soon = False

    async def beat(self) -> None:
        """Heartbeats again and again, until the client is closed."""
        await self._runtime.sleep(min(1.0, self._interval))
        while not self._connections.closed:
            await self.beat_now()
            await self._runtime.sleep(self._interval)

    async def beat_now(self) -> None:
        """Heartbeat to every broker address of the known routes; no failure is raised."""
        self._greeting_soon = False
        if self._consumers or self._producers:
            self._greeted = self._to_greet()
            await self._greet(sorted(self._greeted))

    def on_open(self, address: str) -> None:
        """Greet a broker whose connection is back."""
        if address in self._greeted and address not in self._greeting:
            self._tasks.once(partial(self._greet, [address]), name=f"greet {address}")

    def on_lost(self, address: str) -> None:
        """Connect to the broker again: if it restarted, it must hear of this client soon, or it
        serves it as a stranger. The next heartbeat ends the tries."""
        until = self._runtime.monotonic() + self._interval
        self._runtime.call_later(RECONNECT_S, self._reconnect, address, until)

    def _reconnect(self, address: str, until: float) -> None:
        connections = self._connections
        if connections.closed or address not in self._greeted or connections.connected(address):
            return
        connections.reconnect(address)
        if self._runtime.monotonic() + RECONNECT_S < until:
            self._runtime.call_later(RECONNECT_S, self._reconnect, address, until)

    def on_route_change(self) -> None:
        """Greet the brokers that are new in the routes."""
        if not self._greeting_soon and not self._to_greet() <= self._greeted:
            self._greeting_soon = True
            self._tasks.once(self.beat_now, name="greet new brokers")

    def _to_greet(self) -> set[str]:
        """The addresses that heartbeats go to: masters, and for consumers slaves as well."""
        if not self._consumers and not self._producers:
            return set()
        return {
            address
            for addresses in self._routes.brokers().values()
            for broker_id, address in addresses.items()
            if broker_id == MASTER_ID or self._consumers
        }

    async def _greet(self, addresses: Sequence[str]) -> None:
        if not self._consumers and not self._producers:
            return
        body = self._body()
        await asyncio.gather(*(self._greet_one(address, body) for address in addresses))

    async def _greet_one(self, address: str, body: bytes) -> None:
        self._greeting.add(address)
        try:
            request = Command.request(RequestCode.HEART_BEAT, {}, body)
            await self._connections.invoke(address, request)
            self._denied.pop(address, None)
        except AccessDenied as error:
            # A consumer gets nothing then, and none of its calls would say why. It is told once.
            if self._denied.get(address) != str(error):
                self._denied[address] = str(error)
                self._report(error)
        except RequestTimeout:
            # After a partition a fresh connection is faster than TCP's back-off.
            self._connections.drop(address)
        except SaturnError as error:
            log.debug("heartbeat to %s failed: %s", address, error)
        finally:
            self._greeting.discard(address)

    def _body(self) -> bytes:
        """The JSON body of HEART_BEAT for all groups of this client."""
        return fastjson.dumps(
            {
                "clientID": self._client_id(),
                "producerDataSet": [{"groupName": g} for g in (*self._producers, INNER_PRODUCER)],
                "consumerDataSet": [h.heartbeat_data() for h in self._consumers.values()],
                "heartbeatFingerprint": 0,
                "withoutSub": False,
            }
        )

    # -- groups that leave --------------------------------------------------------------------

    async def unregister_consumer(self, group: str) -> None:
        """Forget the consumer, and tell the brokers."""
        if self._consumers.pop(group, None) is not None:
            await self._unregister("consumerGroup", group)

    async def unregister_producer(self, group: str) -> None:
        """Forget the producer, and tell the brokers."""
        if group in self._producers:
            del self._producers[group]
            await self._unregister("producerGroup", group)

    async def unregister_all(self) -> None:
        """Forget all groups of the client, and tell the brokers."""
        for group in list(self._consumers):
            await self.unregister_consumer(group)
        for group in list(self._producers):
            await self.unregister_producer(group)

    async def _unregister(self, kind: str, group: str) -> None:
        ext = {"clientID": self._client_id(), kind: group}
        connected = [
            address
            for address in sorted(self._greeted)
            if self._connections.connected(address) is not None
        ]
        await asyncio.gather(*(self._unregister_at(address, ext) for address in connected))

    async def _unregister_at(self, address: str, ext: dict[str, str]) -> None:
        request = Command.request(RequestCode.UNREGISTER_CLIENT, dict(ext))
        try:
            await self._connections.invoke(address, request, UNREGISTER_TIMEOUT_S)
        except SaturnError as error:
            log.debug("unregister at %s failed: %s", address, error)

"""The core of every client: routes, connections, heartbeats and the brokers' requests to it.

One ClientCore lives on one event loop and is used there only; a producer, an admin or a group of
consumers sit on it. It copies the Java client's behaviour towards servers
(docs/internals/protocol.md 6): route poll (route_updater.py) and heartbeat every 30 s, one
nameserver that it sticks to and the next one on failure, the last good route when none answers. It
differs where the Java client is slow to notice: a connection that comes back after a break, and a
broker that is new in a route, are greeted with a heartbeat at once.

`server_requests.py` answers the servers' requests on these connections; every task begins in
`runtime/supervision.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from saturnmq.client.route_updater import RouteUpdater
from saturnmq.client.routes import RouteCache
from saturnmq.client.server_requests import ConsumerHandler, ServerRequests
from saturnmq.client.terms import Terms
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID, TopicRoute
from saturnmq.protocol.signing import UNSIGNED, Signing
from saturnmq.runtime import forks
from saturnmq.runtime.door import Runtime, split_address, split_addresses
from saturnmq.runtime.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    MalformedFrame,
    RequestTimeout,
    RouteNotFound,
    SaturnError,
    error_for,
)
from saturnmq.runtime.supervision import Supervisor

log = logging.getLogger(__name__)
T = TypeVar("T")

DEFAULT_NAMESERVER = "127.0.0.1:9876"
OK: frozenset[int] = frozenset({0})
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
# A master that handed over has answered everything by then.
SUCCEEDED_S = 1.0
UNREGISTER_TIMEOUT_S = 1.0

ErrorListener = Callable[[SaturnError], None]


class ClientCore:
    """Connections and knowledge shared by the parts of one client; loop thread only."""

    def __init__(
        self,
        runtime: Runtime,
        nameservers: str | Sequence[str],
        client_id: str | None = None,
        *,
        request_timeout: float = 3.0,
        connect_timeout: float = 3.0,
        route_interval: float = 30.0,
        heartbeat_interval: float = 30.0,
        default_topic_queues: int = 4,
        signing: Signing = UNSIGNED,
    ) -> None:
        """`signing`: under the secret of the brokers, for what only they and operators may ask."""
        self.nameservers = split_addresses(nameservers)
        if not self.nameservers:
            raise RouteNotFound("no nameserver given: pass nameservers=['HOST:9876', ...]")
        self.runtime = runtime
        self.signing = signing
        self.routes = RouteCache()
        self.request_timeout = request_timeout
        self.connect_timeout = connect_timeout
        self.route_interval = route_interval
        self.heartbeat_interval = heartbeat_interval
        self.default_topic_queues = default_topic_queues
        self.local_ip = "127.0.0.1"
        self.pid = runtime.random.getrandbits(16)
        self._instance = f"{self.pid}#{runtime.random.getrandbits(48)}"
        self._client_id = client_id
        self._newest_subscription = 0
        self.closed = False
        self._why_closed = ClientClosed("the client is closed")
        self._started = False
        self._nameserver_at = runtime.random.randrange(len(self.nameservers))
        self._connections: dict[str, Endpoint] = {}
        self._address_of: dict[Endpoint, str] = {}
        self._connecting: dict[str, asyncio.Future[Endpoint]] = {}
        # Of the log that a group has last read a queue of, what `epochs.term_in` says: to be told
        # to the next broker.
        self.terms: Terms = {}
        self._greeted: set[str] = set()
        self._greeting: set[str] = set()  # a heartbeat to these is on its way
        self._greeting_soon = False
        self._masters: dict[str, str] = {}  # by broker name, the last one that a route named
        self._route_listeners: list[Callable[[str], None]] = []
        self._error_listeners: list[ErrorListener] = []
        self.tasks = Supervisor(runtime, self.tell)
        self._own_tasks: list[asyncio.Task[None]] = []  # for good
        self._asked = ServerRequests(self.tasks, self._where, self._hear_of_routes)
        self._consumers, self._producers = self._asked.consumers, self._asked.producers
        self._finder = RouteUpdater(
            runtime,
            self.tasks,
            self.routes,
            self.ask_nameserver,
            is_connected=lambda address: self.connected(address) is not None,
            on_change=self._route_changed,
            template_queues=default_topic_queues,
        )
        forks.tell(self)

    # -- life ---------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """Unique per client; settled by start(), which learns this host's address."""
        return self._client_id or f"{self.local_ip}@{self._instance}"

    async def start(self) -> None:
        """Reach a nameserver if one answers, and begin to poll routes and to send heartbeats."""
        if self._started:
            return
        self._started = True
        for _ in self.nameservers:
            try:
                endpoint = await self.connect(self.nameservers[self._nameserver_at])
            except SaturnError:
                self._nameserver_at = (self._nameserver_at + 1) % len(self.nameservers)
                continue
            local = endpoint.local_address
            if local:
                self.local_ip = local.rpartition(":")[0].strip("[]") or self.local_ip
            break
        if self._client_id is None:
            self._client_id = f"{self.local_ip}@{self._instance}"
        poll = partial(self._finder.poll, self.route_interval)
        self._own_tasks.append(self.tasks.keep(poll, name="client-routes"))
        self._own_tasks.append(self.tasks.keep(self._beat, name="client-heartbeat"))

    async def close(self) -> None:
        """Unregister from the brokers and close every connection."""
        if self.closed:
            return
        await self.tasks.finished()
        for group in list(self._consumers):
            await self.unregister_consumer(group)
        for group in list(self._producers):
            await self.unregister_producer(group)
        self.closed = self._finder.closed = True
        for task in self._own_tasks:
            task.cancel()
        for endpoint in list(self._connections.values()):
            endpoint.close()
        self._connections.clear()
        self._address_of.clear()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what must not stop half-way: who is cancelled meanwhile, or closes this client, waits
        for its end."""
        return await self.tasks.finish(work)

    def forked(self) -> None:
        """A child has no connections, and leaves no group."""
        self.closed = True
        self._why_closed = forks.refusal()
        self._connections.clear()
        self._address_of.clear()

    # -- errors that no caller waits for --------------------------------------------------------

    def on_error(self, listener: ErrorListener) -> None:
        """Call `listener(error)`, on the loop, with each error that `tell` is given."""
        self._error_listeners.append(listener)

    def tell(self, error: SaturnError) -> None:
        """Report an error that no caller waits for: log it, with the trace of its cause, and tell
        the application. An exception of a listener is logged and goes no further.
        """
        log.error("client %s: %s", self.client_id, error, exc_info=error.__cause__)
        for listener in self._error_listeners:
            try:
                listener(error)
            except BaseException:  # SystemExit too: it would end the loop and say nothing
                log.exception("on_error failed on %r", error)

    # -- connections --------------------------------------------------------------------------

    def connected(self, address: str) -> Endpoint | None:
        """The open connection to `address`, if there is one now."""
        endpoint = self._connections.get(address)
        if endpoint is None or endpoint.closed:
            return None
        return endpoint

    async def connect(self, address: str) -> Endpoint:
        """The connection to `address`, opened if need be; concurrent callers share one attempt."""
        endpoint = self.connected(address)
        if endpoint is not None:
            return endpoint
        if self.closed:
            raise self._why_closed
        pending = self._connecting.get(address)
        if pending is None:
            pending = self._begin_connecting(address)
        return await asyncio.shield(pending)

    def _begin_connecting(self, address: str) -> asyncio.Future[Endpoint]:
        pending: asyncio.Future[Endpoint] = self.runtime.create_future()
        self._connecting[address] = pending
        self.tasks.once(
            partial(self._open, address),
            name=f"connect {address}",
            failed=partial(self._not_connected, address),
        )
        return pending

    def _not_connected(self, address: str, error: SaturnError) -> None:
        done = self._connecting.pop(address)
        done.set_exception(error)
        done.exception()  # nobody may be waiting any more

    async def _open(self, address: str) -> None:
        endpoint = Endpoint(self.runtime, self._asked.handle, on_close=self._on_close)
        try:
            host, port = split_address(address)
            async with asyncio.timeout(self.connect_timeout):
                await self.runtime.connect(host, port, endpoint)
        except ConnectionLost as error:
            self._not_connected(address, error)
            return
        except (OSError, TimeoutError, ValueError, SaturnError) as error:
            self._not_connected(address, ConnectFailed(f"no connection to {address}: {error!r}"))
            return
        if self.closed:
            endpoint.close()
            self._not_connected(address, self._why_closed)
            return
        self._connections[address] = endpoint
        self._address_of[endpoint] = address
        self._connecting.pop(address).set_result(endpoint)
        if address in self._greeted and address not in self._greeting:
            self.tasks.once(partial(self._greet, [address]), name=f"greet {address}")

    def _on_close(self, endpoint: Endpoint, *_: object) -> None:
        address = self._address_of.pop(endpoint, None)
        if address is None:  # it was closed before it counted
            return
        del self._connections[address]
        if address == self.nameservers[self._nameserver_at]:
            self._finder.nameserver_lost()
        else:
            self._finder.broker_lost()
        # A broker that restarts must hear of this client soon, or it serves it as a stranger.
        self.runtime.call_later(1.0, self._reconnect, address)

    def _reconnect(self, address: str) -> None:
        wanted = address in self._greeted and not self.closed
        if wanted and address not in self._connecting and address not in self._connections:
            self._begin_connecting(address)

    def _where(self, endpoint: Endpoint) -> str:
        return self._address_of.get(endpoint, endpoint.peer_address)

    def drop(self, address: str) -> None:
        """Close the connection to `address`; the next request opens a new one."""
        endpoint = self._connections.get(address)
        if endpoint is not None:
            endpoint.close()

    # -- requests -----------------------------------------------------------------------------

    async def invoke(
        self,
        address: str,
        cmd: Command,
        timeout_s: float | None = None,
        ok: Collection[int] = OK,
    ) -> Command:
        """Send `cmd` and return its response; a code outside `ok` is raised as its typed error."""
        timeout = self.request_timeout if timeout_s is None else timeout_s
        endpoint = await self.connect(address)
        response = await endpoint.request(cmd, timeout)
        if response.code not in ok:
            raise error_for(response.code, response.remark)
        return response

    def oneway(self, address: str, cmd: Command) -> None:
        """Send `cmd` without an answer; opens the connection in the background if need be."""
        endpoint = self.connected(address)
        if endpoint is not None:
            endpoint.oneway(cmd)
        else:
            self.tasks.once(partial(self._oneway, address, cmd), name=f"oneway {address}")

    async def _oneway(self, address: str, cmd: Command) -> None:
        try:
            endpoint = await self.connect(address)
        except SaturnError as error:
            log.debug("one-way request %d to %s dropped: %s", cmd.code, address, error)
            return
        endpoint.oneway(cmd)

    async def ask_nameserver(
        self,
        cmd: Command,
        read: Callable[[Command], T],
        timeout_s: float | None = None,
        ok: Collection[int] = OK,
    ) -> T:
        """The result of `read` for the answer of the nameserver in use. When the network fails or
        `read` finds the answer malformed, the next ones are asked in turn."""
        last: SaturnError | None = None
        for _ in range(len(self.nameservers)):
            address = self.nameservers[self._nameserver_at]
            request = Command.request(cmd.code, dict(cmd.ext or {}), cmd.body)
            try:
                return read(await self.invoke(address, request, timeout_s, ok))
            except (ConnectionLost, RequestTimeout, MalformedFrame) as error:
                last = error
                if isinstance(error, MalformedFrame):
                    log.warning("nameserver %s answers nonsense: %s", address, error)
                if isinstance(error, RequestTimeout):
                    self.drop(address)
                self._nameserver_at = (self._nameserver_at + 1) % len(self.nameservers)
        raise last or RouteNotFound("no nameserver configured")

    # -- routes -------------------------------------------------------------------------------

    async def route(self, topic: str, *, refresh: bool = False, create: bool = False) -> TopicRoute:
        """The route of `topic`: the cached one, else (or with `refresh`) asked of a nameserver.

        From now on the topic's route is kept fresh. With `create` an unknown topic gets the route
        that brokers will give it when they create it (template TBW102).
        """
        return await self._finder.route(topic, refresh=refresh, create=create)

    def refresh_soon(self, topic: str) -> None:
        """Ask for the route again because something failed; at most once a second per topic."""
        self._finder.refresh_soon(topic)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """Queues to write to, of the last route; empty before `await route(topic)`."""
        return self.routes.publish_queues(topic)

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """Queues to read from, of the last route; empty before `await route(topic)`."""
        return self.routes.subscribe_queues(topic)

    def broker_address(
        self, name: str, *, master: bool = True, broker_id: int | None = None
    ) -> str | None:
        """The master's address, or with master=False that of `broker_id` or any living replica."""
        return self.routes.address(name, master=master, broker_id=broker_id)

    def on_route_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener(topic)` whenever a topic's route changes."""
        self._route_listeners.append(listener)

    def _hear_of_routes(self, address: str, topics: list[str]) -> None:
        if address in self.nameservers:
            self._finder.on_routes_changed(topics)

    def _route_changed(self, topic: str) -> None:
        self._leave_old_masters()
        for listener in self._route_listeners:
            listener(topic)
        for handler in list(self._consumers.values()):
            changed = getattr(handler, "on_route_changed", None)
            if changed is not None:
                changed(topic)
        if not self._greeting_soon and not self._to_greet() <= self._greeted:
            self._greeting_soon = True
            self.tasks.once(self.heartbeat_now, name="greet new brokers")

    def _leave_old_masters(self) -> None:
        for name, addresses in self.routes.brokers().items():
            master = addresses.get(MASTER_ID)
            old = self._masters.get(name)
            if master is None or master == old:
                continue
            self._masters[name] = master
            endpoint = None if old is None else self.connected(old)
            if endpoint is not None:
                now = self.runtime.monotonic()
                self.runtime.call_later(SUCCEEDED_S, self._leave, endpoint, now)

    @staticmethod
    def _leave(endpoint: Endpoint, since: float) -> None:
        """Leave a broker that was succeeded and has been silent since: it hangs."""
        if endpoint.waiting and endpoint.last_received <= since and not endpoint.closed:
            endpoint.abort("it hangs, and another broker is master now")

    # -- groups and heartbeats ----------------------------------------------------------------

    def register_consumer(self, group: str, handler: ConsumerHandler) -> None:
        self._consumers[group] = handler

    def subscription_version(self) -> int:
        """Of a subscription made now. Brokers take the newest, so it is newer than every one
        before, whatever the clock does; a time, as RocketMQ's are, because it must also be newer
        than those of the process before this one."""
        self._newest_subscription = max(self._newest_subscription + 1, self.runtime.now_ms())
        return self._newest_subscription

    def register_producer(self, group: str, handler: Any = None) -> None:
        self._producers[group] = handler

    async def unregister_consumer(self, group: str) -> None:
        if self._consumers.pop(group, None) is not None:
            await self._unregister({"clientID": self.client_id, "consumerGroup": group})

    async def unregister_producer(self, group: str) -> None:
        if group in self._producers:
            del self._producers[group]
            await self._unregister({"clientID": self.client_id, "producerGroup": group})

    async def _unregister(self, ext: dict[str, str]) -> None:
        connected = [
            address for address in sorted(self._greeted) if self.connected(address) is not None
        ]
        await asyncio.gather(*(self._unregister_at(address, ext) for address in connected))

    async def _unregister_at(self, address: str, ext: dict[str, str]) -> None:
        request = Command.request(RequestCode.UNREGISTER_CLIENT, dict(ext))
        try:
            await self.invoke(address, request, UNREGISTER_TIMEOUT_S)
        except SaturnError as error:
            log.debug("unregister at %s failed: %s", address, error)

    async def heartbeat_now(self) -> None:
        """Heartbeat to every broker address of the known routes; failures are logged only."""
        self._greeting_soon = False
        if self._consumers or self._producers:
            self._greeted = self._to_greet()
            await self._greet(sorted(self._greeted))

    def _to_greet(self) -> set[str]:
        """The addresses that heartbeats go to: masters, and for consumers slaves as well."""
        if not self._consumers and not self._producers:
            return set()
        return {
            address
            for addresses in self.routes.brokers().values()
            for broker_id, address in addresses.items()
            if broker_id == 0 or self._consumers
        }

    async def _greet(self, addresses: Sequence[str]) -> None:
        if not self._consumers and not self._producers:
            return
        body = self.heartbeat_body()
        await asyncio.gather(*(self._greet_one(address, body) for address in addresses))

    async def _greet_one(self, address: str, body: bytes) -> None:
        self._greeting.add(address)
        try:
            await self.invoke(address, Command.request(RequestCode.HEART_BEAT, {}, body))
        except RequestTimeout:
            self.drop(address)  # after a partition a fresh connection is faster than TCP's back-off
        except SaturnError as error:
            log.debug("heartbeat to %s failed: %s", address, error)
        finally:
            self._greeting.discard(address)

    def heartbeat_body(self) -> bytes:
        """The JSON body of HEART_BEAT for all groups of this client."""
        return fastjson.dumps(
            {
                "clientID": self.client_id,
                "producerDataSet": [{"groupName": g} for g in (*self._producers, INNER_PRODUCER)],
                "consumerDataSet": [h.heartbeat_data() for h in self._consumers.values()],
                "heartbeatFingerprint": 0,
                "withoutSub": False,
            }
        )

    async def _beat(self) -> None:
        await self.runtime.sleep(min(1.0, self.heartbeat_interval))
        while not self.closed:
            await self.heartbeat_now()
            await self.runtime.sleep(self.heartbeat_interval)


def new_core(
    nameservers: str | Sequence[str],
    runtime: Runtime | None,
    client_id: str | None = None,
    *,
    signing: Signing = UNSIGNED,
) -> ClientCore:
    """A ClientCore of its own for one client; on the running loop unless a runtime is given."""
    if runtime is None:
        from saturnmq.runtime.native import NativeRuntime

        runtime = NativeRuntime()
    return ClientCore(runtime, nameservers or DEFAULT_NAMESERVER, client_id, signing=signing)


def shared_or_new(
    core: ClientCore | None,
    runtime: Runtime | None,
    nameservers: str | Sequence[str],
    client_id: str | None,
) -> tuple[ClientCore, bool]:
    """(the core to use, whether the consumer has to start and close it)."""
    if core is not None:
        return core, False
    return new_core(nameservers, runtime, client_id), True

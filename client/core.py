"""The shared part of every client: it wires connections, nameservers, routes and heartbeats.

One ClientCore lives on one event loop and is used there only; a producer, an admin or a group of
consumers sit on it. It copies the Java client's behaviour towards servers
(docs/internals/protocol.md 6): one nameserver that it sticks to and the next one on failure
(`nameservers.py`), every 30 s a poll of the routes (`route_updater.py`) and a heartbeat
(`heartbeats.py`), and the last good route when no nameserver answers.

The connections are in `connections.py`. `server_requests.py` answers the requests that servers send
on them; every task begins in `runtime/supervision.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from saturnmq.client.connections import OK, ServerConnections
from saturnmq.client.heartbeats import Heartbeats
from saturnmq.client.nameservers import NameserverRotation
from saturnmq.client.route_updater import RouteUpdater
from saturnmq.client.routes import RouteCache
from saturnmq.client.server_requests import ConsumerHandler, ServerRequests
from saturnmq.client.terms import Terms
from saturnmq.client.tls import Tls, context_of
from saturnmq.protocol.credentials import Credentials, credentials_of
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import MASTER_ID, TopicRoute
from saturnmq.protocol.signing import UNSIGNED, Signing
from saturnmq.runtime import forks
from saturnmq.runtime.door import Runtime, server_addresses
from saturnmq.runtime.errors import ClientClosed, RouteNotFound, SaturnError
from saturnmq.runtime.supervision import Supervisor

log = logging.getLogger(__name__)
T = TypeVar("T")

DEFAULT_NAMESERVER = "127.0.0.1:9876"

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
        tls: Tls = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`signing`: under the secret of the brokers, for what only they and operators may ask."""
        self.nameservers = server_addresses(nameservers)
        self.runtime = runtime
        self.signing = signing
        self.tls = context_of(tls)
        self.credentials = credentials_of(credentials)
        self.routes = RouteCache()
        self.connect_timeout = connect_timeout
        self.default_topic_queues = default_topic_queues
        self.local_ip = "127.0.0.1"
        self.pid = runtime.random.getrandbits(16)
        self.started_ms = runtime.now_ms()
        self._instance = f"{self.pid}#{runtime.random.getrandbits(48)}"
        self._client_id = client_id
        self._newest_subscription = 0
        self._started = False
        # Of the log that a group has last read a queue of, what `epochs.term_in` says: to be told
        # to the next broker.
        self.terms: Terms = {}
        self._masters: dict[str, str] = {}  # by broker name, the last one that a route named
        self._route_listeners: list[Callable[[str], object]] = []
        self._error_listeners: list[ErrorListener] = []
        self.tasks = Supervisor(runtime, self.report_error)
        self._own_tasks: list[asyncio.Task[None]] = []  # for good
        requests = ServerRequests(runtime, self.tasks, self._address_of, self._hear_of_routes)
        self._consumers, self._producers = requests.consumers, requests.producers
        self._connections = ServerConnections(
            runtime,
            self.tasks,
            requests.handle,
            connect_timeout=connect_timeout,
            request_timeout=request_timeout,
            tls=self.tls,
            credentials=self.credentials,
            on_open=self._connection_opened,
            on_lost=self._connection_lost,
        )
        self._rotation = NameserverRotation(runtime, self._connections, self.nameservers)
        self._heartbeats = Heartbeats(
            runtime,
            self.tasks,
            self._connections,
            self.routes,
            self._consumers,
            self._producers,
            client_id=lambda: self.client_id,
            interval=heartbeat_interval,
            report=self.report_error,
        )
        self._route_interval = route_interval
        self._updater = RouteUpdater(
            runtime,
            self.tasks,
            self.routes,
            self._rotation.ask,
            is_connected=lambda address: self.connected(address) is not None,
            on_change=self._route_changed,
            template_queues=default_topic_queues,
        )
        forks.register(self)

    # -- life ---------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """Unique per client; settled by start(), which learns this host's address."""
        return self._client_id or f"{self.local_ip}@{self._instance}"

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to the parent of this process."""
        return self._connections.closed

    async def start(self) -> None:
        """Reach a nameserver if one answers, and begin to poll routes and to send heartbeats."""
        if self._started:
            return
        self._started = True
        try:
            endpoint = await self._rotation.reach()
        except BaseException:  # cancelled: the next call begins anew
            self._started = False
            raise
        local = None if endpoint is None else endpoint.local_address
        if local:
            self.local_ip = local.rpartition(":")[0].strip("[]") or self.local_ip
        if self._client_id is None:
            self._client_id = f"{self.local_ip}@{self._instance}"
        poll = partial(self._updater.poll, self._route_interval)
        self._own_tasks.append(self.tasks.keep(poll, name="client-routes"))
        self._own_tasks.append(self.tasks.keep(self._heartbeats.beat, name="client-heartbeat"))

    async def close(self) -> None:
        """Unregister from the brokers and close every connection."""
        if self.closed:
            return
        await self.tasks.finished()
        await self._heartbeats.unregister_all()
        self._updater.closed = True
        for task in self._own_tasks:
            task.cancel()
        self._connections.close(ClientClosed("the client is closed"))

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do what must not stop half-way: who is cancelled meanwhile, or closes this client, waits
        for its end."""
        return await self.tasks.finish(work)

    def forked(self) -> None:
        """A child has no connections, and leaves no group."""
        self._connections.abandon(forks.refusal())

    # -- errors that no caller waits for --------------------------------------------------------

    def on_error(self, listener: ErrorListener) -> None:
        """Call `listener(error)`, on the loop, with each error that is reported."""
        self._error_listeners.append(listener)

    def report_error(self, error: SaturnError) -> None:
        """Report an error that no caller waits for: log it, with the trace of its cause, and tell
        the application. An exception of a listener is logged and goes no further.
        """
        log.error("client %s: %s", self.client_id, error, exc_info=error.__cause__)
        for listener in self._error_listeners:
            try:
                listener(error)
            except BaseException:  # SystemExit too: it would end the loop and say nothing
                log.exception("on_error failed on %r", error)

    def report_nameservers(self) -> None:
        """Report, once for each outage, that no nameserver tells a route: for work that goes on
        asking, without a caller who would get the error."""
        trouble = self._rotation.trouble
        if trouble is not None and not self._rotation.told:
            self._rotation.told = True
            self.report_error(
                type(trouble)(
                    f"no route from the nameservers {', '.join(self.nameservers)}, asking again "
                    f"until one tells it; the last answer: {trouble}"
                )
            )

    # -- connections and requests: see ServerConnections ----------------------------------------

    def connected(self, address: str) -> Endpoint | None:
        """The open connection to `address`, if there is one now."""
        return self._connections.connected(address)

    def connect(self, address: str) -> Coroutine[Any, Any, Endpoint]:
        """The connection to `address`, opened if need be; concurrent callers share one attempt."""
        return self._connections.connect(address)

    def drop(self, address: str) -> None:
        """Close the connection to `address`; the next request opens a new one."""
        self._connections.drop(address)

    def invoke(
        self,
        address: str,
        cmd: Command,
        timeout_s: float | None = None,
        ok: Collection[int] = OK,
    ) -> Coroutine[Any, Any, Command]:
        """Send `cmd` and return its response; a code outside `ok` is raised as its typed error."""
        return self._connections.invoke(address, cmd, timeout_s, ok)

    def oneway(self, address: str, cmd: Command) -> None:
        """Send `cmd` without an answer; opens the connection in the background if need be."""
        self._connections.oneway(address, cmd)

    async def ask_nameserver(
        self,
        cmd: Command,
        read: Callable[[Command], T],
        timeout_s: float | None = None,
        ok: Collection[int] = OK,
    ) -> T:
        """The result of `read` for the answer of the nameserver in use. When the network fails or
        `read` finds the answer malformed, the next ones are asked in turn."""
        return await self._rotation.ask(cmd, read, timeout_s, ok)

    async def invoke_each(
        self,
        addresses: Iterable[str],
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        timeout_s: float,
    ) -> dict[str, Command | BaseException]:
        """The answers of several servers to the same request, or their errors, by address; all are
        asked at once."""
        asked = {
            address: self.invoke(address, Command.request(code, dict(ext), body), timeout_s)
            for address in dict.fromkeys(addresses)
        }
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        return dict(zip(asked, answers, strict=True))

    @property
    def nameserver_in_use(self) -> str:
        """The address of the nameserver that is asked first."""
        return self._rotation.current

    def _connection_opened(self, address: str) -> None:
        self._heartbeats.on_open(address)

    def _connection_lost(self, address: str) -> None:
        if address == self._rotation.current:
            self._updater.nameserver_lost()
        else:
            self._updater.broker_lost()
        self._heartbeats.on_lost(address)

    def _address_of(self, endpoint: Endpoint) -> str:
        return self._connections.address_of(endpoint)

    # -- routes -------------------------------------------------------------------------------

    async def route(self, topic: str, *, refresh: bool = False, create: bool = False) -> TopicRoute:
        """The route of `topic`: the cached one, else (or with `refresh`) asked of a nameserver.

        From now on the topic's route is kept fresh. With `create` an unknown topic gets the route
        that brokers will give it when they create it (template TBW102).
        """
        return await self._updater.route(topic, refresh=refresh, create=create)

    def refresh_soon(self, topic: str) -> None:
        """Ask for the route again because something failed; at most once a second per topic."""
        self._updater.refresh_soon(topic)

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

    def master_address(self, name: str) -> str:
        """The address of the master with this broker name. RouteNotFound: there is none now."""
        address = self.broker_address(name)
        if address is None:
            raise RouteNotFound(f"broker {name} has no master in the route")
        return address

    def on_route_change(self, listener: Callable[[str], object]) -> None:
        """Call `listener(topic)` whenever a topic's route changes."""
        self._route_listeners.append(listener)

    def _hear_of_routes(self, address: str, topics: list[str]) -> None:
        if address in self.nameservers:
            self._updater.on_routes_changed(topics)

    def _route_changed(self, topic: str) -> None:
        self._leave_old_masters()
        for listener in self._route_listeners:
            listener(topic)
        for handler in list(self._consumers.values()):
            changed = getattr(handler, "on_route_changed", None)
            if changed is not None:
                changed(topic)
        self._heartbeats.on_route_change()

    def _leave_old_masters(self) -> None:
        for name, addresses in self.routes.brokers().items():
            master = addresses.get(MASTER_ID)
            old = self._masters.get(name)
            if master is None or master == old:
                continue
            self._masters[name] = master
            if old is not None:
                self._connections.abort_if_silent(old)

    # -- groups and heartbeats ----------------------------------------------------------------

    def register_consumer(self, group: str, handler: ConsumerHandler) -> None:
        self._consumers[group] = handler

    def subscription_version(self) -> int:
        """The version of a subscription made now. Brokers take the newest, so it is newer than
        every one before, whatever the clock does; it is a time, as in RocketMQ, because it must
        also be newer than those of the process before this one."""
        self._newest_subscription = max(self._newest_subscription + 1, self.runtime.now_ms())
        return self._newest_subscription

    def register_producer(self, group: str, handler: Any = None) -> None:
        self._producers[group] = handler

    async def unregister_consumer(self, group: str) -> None:
        """Forget the consumer, and tell the brokers."""
        await self._heartbeats.unregister_consumer(group)

    async def unregister_producer(self, group: str) -> None:
        """Forget the producer, and tell the brokers."""
        await self._heartbeats.unregister_producer(group)

    async def heartbeat_now(self) -> None:
        """Heartbeat to every broker address of the known routes; no failure is raised."""
        await self._heartbeats.beat_now()


def nameservers_of(given: str | Sequence[str] | None) -> list[str]:
    """The nameservers that the application names; None is the one of this machine. ConfigError:
    there is none, or one is no address."""
    return server_addresses(DEFAULT_NAMESERVER if given is None else given)


def new_core(
    nameservers: str | Sequence[str] | None,
    runtime: Runtime | None,
    client_id: str | None = None,
    *,
    signing: Signing = UNSIGNED,
    tls: Tls = None,
    credentials: Credentials | None = None,
) -> ClientCore:
    """A ClientCore of its own for one client; on the running loop unless a runtime is given."""
    if runtime is None:
        from saturnmq.runtime.native import NativeRuntime

        runtime = NativeRuntime()
    addresses = nameservers_of(nameservers)
    return ClientCore(
        runtime, addresses, client_id, signing=signing, tls=tls, credentials=credentials
    )


def shared_or_new(
    core: ClientCore | None,
    runtime: Runtime | None,
    nameservers: str | Sequence[str],
    client_id: str | None,
    tls: Tls,
    credentials: Credentials | None,
    on_error: ErrorListener | None,
) -> tuple[ClientCore, bool]:
    """(the core to use, whether the consumer has to start and close it)."""
    own = core or new_core(nameservers, runtime, client_id, tls=tls, credentials=credentials)
    if on_error is not None:
        own.on_error(on_error)
    return own, core is None

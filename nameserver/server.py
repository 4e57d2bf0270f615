"""The nameserver process: a Remoting listener over the route table. It decodes, calls the table and
encodes.

It serves the codes in `_handlers`; all others are answered 3. Every request is answered at once, on
the loop, without a task. The exceptions are 1002 and 1006, for which brokers are asked
(`controller.py`), 100 and 102, whose change is saved first (`kv.py`), and a registration with a
large table, which is read in a thread. A broker's
entry lives as long as the connection of its last registration, so a killed broker leaves the routes
within the time the kernel needs to close its sockets; a silent one is found by the scan. Route JSON
always has quoted broker ids, for clients of every version (docs/internals/protocol.md 3.4).

Our additions to RocketMQ: clients that asked for a route with `saturnWatch=true` are told when it
changes (ROUTE_CHANGED), at most once per turn of the loop; 103 is answered with the highest epoch
of the group, `saturnEpoch`, and the identity of that group, `saturnIdentity`, or with
FOREIGN_GROUP; a replaced master is told to register again (ROLE_CHANGED). A broker unregisters
(104) or gives a sign of life (904, 322) over the connection that it registered with, or, if it is
RocketMQ's, from the same host.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from saturnmq.protocol import fastjson
from saturnmq.protocol import nameserver_headers as ns
from saturnmq.protocol.budget import Budget
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.connections import Connections
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.headers import HEADERS, NoFieldsHeader
from saturnmq.protocol.limits import Limits
from saturnmq.protocol.refusals import refusal
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import ORDER_TOPIC_CONFIG, DataVersion
from saturnmq.protocol.signing import UNSIGNED, Challenges, Signing
from saturnmq.runtime.door import EXPOSED, Listener, Runtime, is_loopback
from saturnmq.runtime.errors import (
    ForeignGroup,
    NoPermission,
    QueryNotFound,
    SaturnError,
    SystemBusy,
    SystemError_,
    UnsupportedRequest,
)
from saturnmq.runtime.loop_watch import LoopWatch
from saturnmq.runtime.steps import Aside
from saturnmq.runtime.supervision import Supervisor
from saturnmq.runtime.turns import OncePerTurn

from .answers import EncodedAnswers
from .controller import Controller, HandOver
from .kv import KvConfig, KvFile
from .living import LiveBroker
from .registration import Registration, parse_registration
from .routes import RouteTable
from .settings import NameserverSettings
from .topic_requests import TopicRequests
from .watches import Watches

log = logging.getLogger(__name__)

DEFAULT_PORT = 9876
# A client that does not read its notifications is closed; it asks anew when it comes back.
UNREAD_MAX = 1 << 20
SHARE = 4  # routes may have this part of the process's memory, and watches
ROUTE_BYTES = 400  # of a topic at one broker name: 340 were measured
VERSION_BYTES = 1024  # of a table's version as a broker sends it: a hundred
QUICK_BYTES = 64 << 10  # of a registration that is read at once: about two milliseconds
# Requests that only members may make, where nodes share a secret. RocketMQ's mqadmin (1002) has no
# secret.
OF_MEMBERS = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.CONTROLLER_ELECT_MASTER,
    }
)


class NameServer:
    """One nameserver. `port` 0 takes any free port; `address` is known after `start`."""

    def __init__(
        self,
        runtime: Runtime,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        hand_over: HandOver | None = None,
        signing: Signing = UNSIGNED,
        limits: Limits | None = None,
        order_messages: bool = False,
        kv_file: KvFile | None = None,
    ) -> None:
        """`signing`: with the secret of the brokers; `limits`: the bounds for peers;
        `order_messages`: routes have the order configuration of their topic; `kv_file` keeps it."""
        self._runtime = runtime
        self._signing = signing
        self._challenges = Challenges(signing)
        self._host = host
        self._port = port
        self._listener: Listener | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.loop_watch = LoopWatch(runtime)
        self._figures = OncePerTurn(runtime, self._encoded_figures)
        self.connections = Connections(runtime, limits or Limits(), self._handle, self._closed)
        self._refused: dict[Endpoint, str] = {}  # the last refusal that was logged
        self._aside = Aside(runtime)
        self._reading: Counter[Endpoint] = Counter()  # registrations of each connection
        self.routes = RouteTable()
        # Views by request code, each with the number of the change that it shows.
        self._answers = EncodedAnswers(self.routes)
        self.kv, self._order_messages = KvConfig(kv_file), order_messages
        self.settings = NameserverSettings()
        whole, share = self.connections.budget, f"memoryBudgetBytes / {SHARE}"
        self._memory_of_routes = Budget(whole.limit // SHARE, f"of routes: {share}", whole)
        self._watches = Watches(Budget(whole.limit // SHARE, f"of watches: {share}", whole))
        self._telling = False
        self._scanned_at = runtime.monotonic()
        self._stood_s = 0.0  # total time for which this process stood still
        code = RequestCode
        topics = TopicRequests(self.routes, self._answers, _speaks_for, self._make_room)
        self._handlers: dict[int, Callable[[Endpoint, Command, Any], Command]] = {
            **topics.handlers(),
            code.REGISTER_BROKER: self._register,
            code.UNREGISTER_BROKER: self._unregister,
            code.GET_ROUTEINFO_BY_TOPIC: self._route,
            code.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            code.GET_BROKER_MEMBER_GROUP: self._member_group,
            code.BROKER_HEARTBEAT: self._heartbeat,
            code.QUERY_DATA_VERSION: self._query_version,
            code.GET_KV_CONFIG: self._get_kv,
            code.GET_KVLIST_BY_NAMESPACE: self._list_kv,
            code.UPDATE_NAMESRV_CONFIG: self._update_config,
            code.GET_NAMESRV_CONFIG: self._get_config,
            code.UPDATE_CONTROLLER_CONFIG: self._update_config,
            code.GET_CONTROLLER_CONFIG: self._get_config,
            code.CONTROLLER_GET_METADATA_INFO: self._metadata,
            code.GET_BROKER_RUNTIME_INFO: self._runtime_info,
        }
        self._controller = Controller(runtime, self.routes.addresses, hand_over)
        self._slow_handlers: dict[int, Callable[[Command, Any], Awaitable[Command]]] = {
            code.PUT_KV_CONFIG: self._put_kv,
            code.DELETE_KV_CONFIG: self._delete_kv,
            code.CONTROLLER_ELECT_MASTER: self._controller.elect,
            code.CONTROLLER_GET_SYNC_STATE_DATA: self._controller.sync_state,
        }

    @property
    def address(self) -> str:
        """The `ip:port` that it listens on."""
        if self._listener is None:
            raise RuntimeError("the nameserver is not started: await start() first")
        return self._listener.address

    async def start(self) -> None:
        """Listen; ConfigError when the port is taken, StoreDamaged when `kv_file` is damaged."""
        await self.kv.load(self._runtime)
        accept = self.connections.accept
        self._listener = await self._runtime.listen(self._host, self._port, accept)
        supervisor = Supervisor(self._runtime, _log_failure)
        self._tasks = [
            supervisor.keep(self._scan_forever, name="nameserver-scan"),
            supervisor.keep(self.connections.run, name="connections"),
        ]
        log.info("nameserver listens on %s", self._listener.address)
        if not is_loopback(self._listener.address):
            log.warning(EXPOSED, self._listener.address)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        if self._listener is not None:
            self._listener.close()
        self.connections.close("nameserver shuts down")

    def _now_ms(self) -> int:
        """The clock of the route table: steady, because a step of the wall clock would expire every
        broker. It stands while this process stands (stopped, or its machine suspended): brokers
        that could not be heard were not silent, and lose neither their routes nor their names."""
        now = min(self._runtime.monotonic(), self._scanned_at + 2 * self.settings.scan_interval_s)
        return int((now - self._stood_s) * 1000)

    async def _scan_forever(self) -> None:
        while True:
            await self._runtime.sleep(self.settings.scan_interval_s)
            now = self._runtime.monotonic()
            self._stood_s += max(0.0, now - self._scanned_at - 2 * self.settings.scan_interval_s)
            self._scanned_at = now
            size = ROUTE_BYTES * len(self.routes)  # many code paths change them
            self._memory_of_routes.hold(size - self._memory_of_routes.used)
            for live in self.routes.expire(self._now_ms()):
                self._log_gone(live, f"silent for more than {live.timeout_ms} ms")
                if isinstance(live.connection, Endpoint):
                    live.connection.close("broker expired")
            self._tell_soon()

    def _closed(self, endpoint: Endpoint) -> None:
        self._refused.pop(endpoint, None)
        self._watches.forget(endpoint)
        for live in self.routes.connection_closed(endpoint):
            self._log_gone(live, f"connection closed ({endpoint.close_reason})")
        self._tell_soon()

    def _log_gone(self, live: LiveBroker, why: str) -> None:
        log.warning("broker %s at %s left the routes: %s", live.name, live.address, why)

    def _handle(self, endpoint: Endpoint, command: Command) -> None:
        if command.code in OF_MEMBERS and not self._challenges.admits(endpoint, command):
            return
        slow = self._slow_handlers.get(command.code)
        if slow is not None:
            self._answer_later(endpoint, command, slow(command, _header(command)))
            return
        handler = self._handlers.get(command.code)
        if handler is None:
            raise UnsupportedRequest(refusal(command.code))
        header = _header(command)
        self.loop_watch.last_request = command.code
        is_large = len(command.body) > QUICK_BYTES or endpoint in self._reading
        if command.code == RequestCode.REGISTER_BROKER and is_large:
            self._reading[endpoint] += 1
            self._answer_later(endpoint, command, self._register_large(endpoint, command, header))
            return
        try:
            reply = handler(endpoint, command, header)
            endpoint.send(self._signing.sign_answer(command, reply), command)
        finally:
            self._tell_soon()

    def _answer_later(
        self, endpoint: Endpoint, command: Command, asked: Awaitable[Command]
    ) -> None:
        command.body = bytes(command.body)  # the request outlives the read buffer

        async def answer() -> None:
            try:
                reply = await asked
            except SaturnError as error:
                reply = command.reply(error.code, remark=str(error))
            except Exception as error:
                log.exception("request %d from %s failed", command.code, endpoint.peer_address)
                reply = command.reply(SystemError_.code, remark=f"{type(error).__name__}: {error}")
            finally:
                endpoint.end_work()
            endpoint.send(reply, command)

        endpoint.begin_work()
        self._runtime.spawn(answer(), name=f"request-{command.code}")

    # -- notifying -------------------------------------------------------------------------------

    def _tell_soon(self) -> None:
        if self.routes.changed and not self._telling:
            self._telling = True
            self._runtime.call_soon(self._notify)

    def _notify(self) -> None:
        """Notify the watchers of the changed routes."""
        self._telling = False
        for endpoint, topics in self._watches.of(self.routes.take_changed()).items():
            if endpoint.unsent > UNREAD_MAX:
                endpoint.abort(f"does not read: {endpoint.unsent} bytes wait for it")
                continue
            endpoint.oneway(Command.request(RequestCode.ROUTE_CHANGED, body=fastjson.dumps(topics)))

    # -- brokers ---------------------------------------------------------------------------------

    def _register(
        self, endpoint: Endpoint, command: Command, header: ns.RegisterBrokerHeader
    ) -> Command:
        return self._take(endpoint, command, parse_registration(header, command.body))

    async def _register_large(
        self, endpoint: Endpoint, command: Command, header: ns.RegisterBrokerHeader
    ) -> Command:
        """Read the table in a thread, the tables of one connection one after the other. A
        registration over a connection that is closed by then is not taken: the close has removed
        its broker."""
        try:
            registration = await self._aside.run(parse_registration, header, command.body)
            if endpoint.closed:
                return command.reply()
            return self._signing.sign_answer(command, self._take(endpoint, command, registration))
        finally:
            self._reading -= Counter([endpoint])
            self._tell_soon()

    def _take(self, endpoint: Endpoint, command: Command, registration: Registration) -> Command:
        known = self.routes.live(registration.name, registration.address)
        new = self.routes.unknown(registration.name, registration.topics) + (known is None)
        try:
            self._make_room(new, f"the registration of broker {registration.name}")
        except SystemBusy as error:
            self._log_refused(endpoint, str(error))
            raise
        try:
            result = self.routes.register(registration, self._now_ms(), endpoint)
        except SaturnError as error:
            self._memory_of_routes.give_back(ROUTE_BYTES * new)
            if isinstance(error, ForeignGroup):
                self._log_refused(endpoint, str(error))
            raise
        if result.taken:
            self._refused.pop(endpoint, None)
        else:
            self._log_refused(
                endpoint,
                f"broker {registration.name} at {registration.address} registers as master in "
                f"epoch {registration.version.state_version} and is not taken: epoch "
                f"{result.epoch} at {result.master.address if result.master else 'another broker'}",
            )
        if result.taken and known is None:
            log.info(
                "broker %s id %d at %s registered with %d topics",
                registration.name,
                registration.broker_id,
                registration.address,
                len(registration.topics),
            )
        if result.deposed is not None and isinstance(result.deposed.connection, Endpoint):
            log.warning(
                "broker %s is master of %s in epoch %d, no longer %s",
                registration.address,
                registration.name,
                result.epoch,
                result.deposed.address,
            )
            if result.deposed.version.state_version:  # one of ours
                result.deposed.connection.oneway(Command.request(RequestCode.ROLE_CHANGED))
        ext = {}
        if result.epoch:
            ext["saturnEpoch"] = str(result.epoch)
        if result.identity:
            ext["saturnIdentity"] = result.identity
        if result.master is not None:
            ext["haServerAddr"] = result.master.ha_address
            ext["masterAddr"] = result.master.address
        table = self.kv.table(ORDER_TOPIC_CONFIG)
        return command.reply(
            ext=ext, body=b"" if table is None else fastjson.dumps({"table": table})
        )

    def _make_room(self, entries: int, what: str) -> None:
        self._memory_of_routes.take(ROUTE_BYTES * entries, what)

    def _log_refused(self, endpoint: Endpoint, text: str) -> None:
        if self._refused.get(endpoint) != text:  # it may ask every second
            self._refused[endpoint] = text
            log.warning("%s", text)

    def _unregister(
        self,
        endpoint: Endpoint,
        command: Command,
        header: ns.UnregisterBrokerHeader,
    ) -> Command:
        live, broker_id = self._named(header), header.broker_id
        if live is not None:
            if broker_id != live.broker_id or not _speaks_for(endpoint, live):
                raise NoPermission(
                    f"{endpoint.peer_address} says that {live.name} id {broker_id} at "
                    f"{live.address} goes: only that broker itself (id {live.broker_id}) may say "
                    "so, over the connection that it registered with"
                )
            self.routes.unregister(live.name, live.address)
        return command.reply()

    def _heartbeat(self, endpoint: Endpoint, command: Command, header: ns.BrokerHeader) -> Command:
        live = self._named(header)
        if live is not None and _speaks_for(endpoint, live):
            self.routes.heartbeat(live, self._now_ms())
        return command.reply()

    def _query_version(
        self, endpoint: Endpoint, command: Command, header: ns.QueryVersionHeader
    ) -> Command:
        live = self._named(header)
        theirs = fastjson.loads_strict(command.body, VERSION_BYTES) if len(command.body) else None
        version = DataVersion.from_json(theirs if isinstance(theirs, dict) else None)
        if live is None or not _speaks_for(endpoint, live):  # it has to register
            return command.reply(ext={"changed": "true"})
        self.routes.heartbeat(live, self._now_ms())
        return command.reply(
            ext={"changed": "true" if live.version != version else "false"},
            body=fastjson.dumps(live.version.to_json()),
        )

    def _named(self, header: ns.BrokerHeader) -> LiveBroker | None:
        """The broker in the routes that a request names."""
        live = self.routes.live(header.broker_name, header.address)
        return live if live is not None and live.cluster == header.cluster else None

    # -- routes ----------------------------------------------------------------------------------

    def _route(self, endpoint: Endpoint, command: Command, header: ns.RouteHeader) -> Command:
        if header.watch:
            self._watches.add(endpoint, header.topic)
        order = self.order_of(header.topic)
        return command.reply(body=self._answers.route(header.topic, order))

    def order_of(self, topic: str) -> str | None:
        """The order configuration that the route of a topic has."""
        return self.kv.order_of(topic) if self._order_messages else None

    def _cluster_info(self, endpoint: Endpoint, command: Command, _: NoFieldsHeader) -> Command:
        return self._view(command, self.routes.cluster_info)

    def _member_group(
        self, endpoint: Endpoint, command: Command, header: ns.MemberGroupHeader
    ) -> Command:
        return _json(command, self.routes.member_group(header.cluster, header.broker_name))

    def _view(self, command: Command, view: Callable[[], Any]) -> Command:
        """A view of the whole table, encoded once for all requests until it changes."""
        return command.reply(body=self._answers.view(command.code, view))

    # -- what RocketMQ's controller answers -------------------------------------------------------

    def _metadata(self, endpoint: Endpoint, command: Command, _: NoFieldsHeader) -> Command:
        return self._controller.metadata(command, self.address)

    # -- key-value and own configuration ---------------------------------------------------------

    def _put_kv(self, command: Command, header: ns.PutKeyHeader) -> Awaitable[Command]:
        self.kv.put(header.namespace, header.key, header.value)
        return self._kv_saved(command, header)

    def _get_kv(self, endpoint: Endpoint, command: Command, header: ns.KeyHeader) -> Command:
        value = self.kv.get(header.namespace, header.key)
        return command.reply(ext={"value": value})

    def _delete_kv(self, command: Command, header: ns.KeyHeader) -> Awaitable[Command]:
        self.kv.delete(header.namespace, header.key)
        return self._kv_saved(command, header)

    async def _kv_saved(self, command: Command, header: ns.PutKeyHeader | ns.KeyHeader) -> Command:
        if header.namespace == ORDER_TOPIC_CONFIG:
            self.routes.changed[header.key] = None
            self._tell_soon()
        await self.kv.save(self._runtime)
        return self._signing.sign_answer(command, command.reply())

    def _list_kv(self, endpoint: Endpoint, command: Command, header: ns.NamespaceHeader) -> Command:
        namespace = header.namespace
        table = self.kv.table(namespace)
        if table is None:
            raise QueryNotFound(f"No config item, Namespace: {namespace}")
        return _json(command, {"table": table})

    def _update_config(self, endpoint: Endpoint, command: Command, _: NoFieldsHeader) -> Command:
        self.settings.change(endpoint.peer_address, bytes(command.body))
        return command.reply()

    def _runtime_info(self, endpoint: Endpoint, command: Command, _: NoFieldsHeader) -> Command:
        return command.reply(body=self._figures())

    def _encoded_figures(self) -> bytes:
        table = {**self.connections.status(), **self.loop_watch.status()}
        return fastjson.dumps({"table": table})

    def _get_config(self, endpoint: Endpoint, command: Command, _: NoFieldsHeader) -> Command:
        fixed = {"bindAddress": self._host, "listenPort": self.address.rpartition(":")[2]}
        fixed["orderMessageEnable"] = str(self._order_messages).lower()
        return command.reply(body=self.settings.shown(fixed))


def _speaks_for(endpoint: Endpoint, live: LiveBroker) -> bool:
    """Whether messages over this connection come from that broker. Ours use the connection of their
    last registration; RocketMQ's may have opened another one since."""
    if live.connection is endpoint:
        return True
    if live.identity or not isinstance(live.connection, Endpoint):
        return False
    return endpoint.peer_host == live.connection.peer_host


def _log_failure(error: SaturnError) -> None:
    log.critical("%s", error, exc_info=error.__cause__)


def _header(command: Command) -> Any:
    return HEADERS[RequestCode(command.code)].decode(command.ext)


def _json(command: Command, value: Any) -> Command:
    return command.reply(body=fastjson.dumps(value))


async def serve(
    runtime: Runtime,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Run a nameserver until the task is cancelled; `on_ready` gets its address."""
    server = NameServer(runtime, host, port)
    await server.start()
    if on_ready is not None:
        on_ready(server.address)
    try:
        await runtime.create_future()
    finally:
        await server.close()

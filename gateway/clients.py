"""The clients of a gateway. Each has a connection of its own to the broker, so the broker's tables
know it as they know clients of Remoting: it joins groups by heartbeats, is asked about its
transactions, and is gone when it says so or is silent for too long.

A client is made by its first call, whichever that is: several languages open their Telemetry stream
late, or never again after they lost it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

from saturnmq.gateway import v2
from saturnmq.gateway.callers import PRESENT, Caller, tell
from saturnmq.gateway.calls import LANGUAGE, GrpcCall, Write
from saturnmq.gateway.checks import TOPICS_MAX, check_published, check_subscriptions, group_of
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.settings import check_settings
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import CALLER
from saturnmq.protocol.inner_endpoint import InnerEndpoint
from saturnmq.protocol.remoting import LANGUAGES, Command
from saturnmq.protocol.running_info import running_info
from saturnmq.protocol.subscription import SQL_EXPRESSION, Subscription
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import ConnectionLost, SaturnError, error_for

log = logging.getLogger(__name__)

ENDED_S = 10.0  # for so long a stream that Java's client opens after its end is ended, too
ENDED_MAX = 10_000
SILENT_S = 30.0  # Java's clients send a heartbeat every 10 s
_LANGUAGES = {"GOLANG": "GO", "DOT_NET": "DOTNET"} | {each: each for each in LANGUAGES}
NODE = "HTTP"
"""The language that Node.js's client names."""
JAVA = "JAVA"

Key = tuple[str, str]


class Asked(Protocol):
    """It has what the broker says to clients sent to them."""

    def told(self, client: Client, command: Command) -> None:
        """A request without an answer."""
        ...

    async def asked(self, client: Client, command: Command) -> Command:
        """The answer to a request. SaturnError: there is none."""
        ...


class Client:
    """One client, by its id."""

    def __init__(
        self,
        client_id: str,
        caller: Caller,
        language: str,
        gone: asyncio.Future[None],
        left: asyncio.Future[None],
        commands: Asked,
        since_ms: int,
    ) -> None:
        """`gone` is done when the client has ended, or was forgotten, and `left` when nobody is
        behind the streams that are open now; `since_ms`: its first call."""
        self.client_id = client_id
        self.caller = caller
        self.allowed: frozenset[str] = frozenset()  # topics that its user may publish to
        self._since_ms = since_ms
        self.gone = gone
        self.left = left
        self._commands = commands
        self.language = _LANGUAGES.get(language.upper(), "OTHER")
        self.link: InnerEndpoint  # set when it is made
        self.settings: Any = None  # as the client sent them
        self.group = ""  # of a consumer
        self.is_consumer = False
        self.topics: dict[str, None] = {}  # of a producer
        self._streams: dict[Write, None] = {}  # of Telemetry; the last one was used last

    @property
    def key(self) -> Key:
        """The name of its user, and its id."""
        return self.caller.get(CALLER, ""), self.client_id

    def told(self, command: Command) -> None:
        """The broker sends it a request without an answer."""
        self._commands.told(self, command)

    async def asked(self, command: Command) -> Command:
        """The broker asks it. SaturnError: it does not answer."""
        return await self._commands.asked(self, command)

    def attach(self, stream: Write) -> None:
        """Commands to the client go over this stream now."""
        self._streams.pop(stream, None)
        self._streams[stream] = None

    def detach(self, stream: Write) -> None:
        """The stream has ended."""
        self._streams.pop(stream, None)

    @property
    def is_pushed(self) -> bool:
        """It has said that it is a push consumer."""
        settings = self.settings
        return settings is not None and settings.client_type == v2.ClientType.PUSH_CONSUMER

    @property
    def has_stream(self) -> bool:
        """It can be asked here."""
        return bool(self._streams)

    async def tell(self, command: Any, stream: Write | None = None) -> bool:
        """Send a command over the stream that the client used last, or this one; False if there is
        none."""
        stream = stream or next(reversed(self._streams), None)
        if stream is None:
            return False
        await stream(command)
        return True

    @contextmanager
    def holding(self, size: int, what: str) -> Iterator[None]:
        """Count so much memory as the client's meanwhile. SystemBusy: there is no room for it.
        ConnectionLost: the client has ended."""
        link = self.link
        if link.closed:  # nobody would give the memory back
            raise ConnectionLost(f"client {self.client_id} has ended")
        link.budget.take(size, what)
        try:
            yield
        finally:
            if not link.closed:  # else it was released as a whole
                link.budget.give_back(size)

    def take(self, settings: Any) -> None:
        """Take the settings that it sent. CallRefused: they are wrong, or a name in them is."""
        check_settings(settings)
        if settings.WhichOneof("pub_sub") == "subscription":
            subscription = settings.subscription
            check_subscriptions(subscription.subscriptions)
            self.join(group_of(subscription.group))
        else:
            self.produce(check_published(settings.publishing.topics))
        self.settings = settings

    def produce(self, topics: Iterable[str]) -> None:
        """It is a producer of these topics, too. Of too many, the first are forgotten: all are told
        in each heartbeat."""
        self.topics |= dict.fromkeys(topics)
        for topic in [*islice(self.topics, max(0, len(self.topics) - TOPICS_MAX))]:
            del self.topics[topic]

    def join(self, group: str) -> None:
        """It is a consumer of this group."""
        self.group, self.is_consumer = group, True

    def heartbeat(self) -> Command:
        """The heartbeat to the broker."""
        producing = [{"groupName": topic} for topic in self.topics]
        consuming = []
        if self.is_consumer:
            consuming.append(
                {
                    "groupName": self.group,
                    "consumeType": "CONSUME_POP",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": self._subscriptions(),
                    "unitMode": False,
                }
            )
        document = {
            "clientID": self.client_id,
            "producerDataSet": producing,
            "consumerDataSet": consuming,
        }
        command = Command.request(RequestCode.HEART_BEAT, None, fastjson.dumps(document))
        command.language = self.language
        return command

    def running_info(self) -> dict[str, Any]:
        """RocketMQ's ConsumerRunningInfo. Which queues and messages it works on only the client
        knows. mqadmin has a message verified by consumers only that are pushed to."""
        settings = v2.Settings() if self.settings is None else self.settings
        return running_info(
            "CONSUME_PASSIVELY" if self.is_pushed else "CONSUME_POP",
            self._subscriptions(),
            ordered=False,
            version=settings.user_agent.version,
            started_ms=self._since_ms,
            language=self.language,
        )

    def _subscriptions(self) -> list[dict[str, Any]]:
        found = []
        entries = self.settings.subscription.subscriptions if self.settings is not None else ()
        for entry in entries:
            is_sql = entry.expression.type == v2.FilterType.SQL
            try:
                parsed = Subscription.parse(
                    entry.topic.name,
                    entry.expression.expression,
                    1,
                    SQL_EXPRESSION if is_sql else "TAG",
                )
            except SaturnError as error:
                log.info("client %s: %s", self.client_id, error)  # its receives are refused
                continue
            found.append(parsed.to_json())
        return found


class Clients:
    """The clients by id. Loop thread only."""

    def __init__(
        self,
        runtime: Runtime,
        node: GatewayNode,
        commands: Asked,
        on_gone: Callable[[Client], None],
    ) -> None:
        """`on_gone` gets a client that has gone."""
        self._runtime = runtime
        self._node = node
        self._commands = commands
        self._on_gone = on_gone
        # By the names of their users and their ids: nobody calls as the client of another user.
        self._clients: dict[Key, Client] = {}
        self._ended: dict[Key, float] = {}  # when; of clients that made no call since

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def of(self, call: GrpcCall) -> Client:
        """The client of a call. CallRefused: the call does not say."""
        key, caller = _key(call), PRESENT.get() or {}
        client = self._clients.get(key)
        self._ended.pop(key, None)
        if client is None:
            language = call.metadata.get(LANGUAGE, "")
            gone: asyncio.Future[None] = self._runtime.create_future()
            left: asyncio.Future[None] = self._runtime.create_future()
            now_ms = self._runtime.now_ms()
            client = Client(key[1], caller, language, gone, left, self._commands, now_ms)
        else:
            client.caller = caller
            if not client.link.closed:
                client.link.heard()
                return client
        # It is new, or comes back before it was forgotten.
        client.link = self._node.connect_inside(call.peer, client)
        client.link.sign = tell
        self._clients[key] = client
        return client

    async def beat(self, client: Client) -> None:
        """Tell the broker that the client lives, and which groups it is in."""
        if not self._node.broker_name:
            return  # brokers hear it from the client itself
        reply = await client.link.ask(client.heartbeat())
        if reply.code:
            raise error_for(reply.code, reply.remark)

    def end(self, call: GrpcCall) -> None:
        """The client says that it ends. CallRefused: the call does not say who it is."""
        key = _key(call)
        self._ended.pop(key, None)
        if len(self._ended) >= ENDED_MAX:
            del self._ended[next(iter(self._ended))]  # the oldest
        self._ended[key] = self._runtime.monotonic()
        client = self._clients.get(key)
        if client is not None:
            client.link.close("the client has ended")
            self._forget(client)

    def has_ended(self, call: GrpcCall) -> bool:
        """Whether the caller is a client of Java's, has just said that it ends, and made no call
        since: it renews a lost stream in the middle of its close(), and waits for the end of it. No
        later client has its id; with Rust's, a container that starts again has the id of the last
        one. CallRefused: the call does not say who it is."""
        ended = self._ended.get(_key(call))
        is_java = call.metadata.get(LANGUAGE, "").upper() == JAVA
        return is_java and ended is not None and self._runtime.monotonic() - ended < ENDED_S

    def sweep(self) -> None:
        """Forget clients whose connection has ended: they were silent for too long. End the streams
        of Java's that are silent: one that ends while this node cannot be reached tells it nothing,
        opens its stream here a moment later, and waits for the end of it. One that lives opens it
        again."""
        now = self._runtime.monotonic()
        self._ended = {name: at for name, at in self._ended.items() if at > now - ENDED_S}
        for client in list(self._clients.values()):
            if client.link.closed:
                self._forget(client)
            elif client.language == JAVA and client.link.last_received < now - SILENT_S:
                client.left.set_result(None)
                client.left = self._runtime.create_future()

    def _forget(self, client: Client) -> None:
        del self._clients[client.key]
        client.gone.set_result(None)
        client.left.set_result(None)
        self._on_gone(client)


def _key(call: GrpcCall) -> Key:
    """The name of the user that makes the present call, and the id of its client."""
    return (PRESENT.get() or {}).get(CALLER, ""), call.client_id

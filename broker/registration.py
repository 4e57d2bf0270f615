"""Registration at the nameservers: REGISTER_BROKER 103 to each of them, independently.

Each nameserver has its own task and its own connection, which stays open: a nameserver drops a
broker the moment the connection of its last 103 closes. A registration carries the full topic
table (with one topic only, a first registration would be refused) and goes out at start, every
30 s and at once after topics changed; `saturnWhole` tells our nameservers that topics missing in
it are gone (RocketMQ's keep them until they are told). Topics that were made or changed since the
nameserver took the table, over the same connection and in the same role, go out one by one, each
with its version of the table: a nameserver that has forgotten the broker meanwhile refuses one that
comes alone. A slave learns its master's addresses from the answers; a master that was deposed, in
which epoch and by whom (`saturnEpoch`). The version of the table carries the epoch as
`stateVersion`: nameservers take no master of a lower one.

Broker and answer say of which group they are (`saturnIdentity`; empty: unknown). News of another
group counts for nothing here. A nameserver where another group has this broker's name refuses the
registration: the broker says so, goes on with what it does, and asks again at its usual pace, until
the name is free.

With a `replicationSecret` registrations are signed, and so are the answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from saturnmq.broker.context import Context
from saturnmq.broker.replication.identity import known
from saturnmq.broker.replication.kinship import is_foreign
from saturnmq.broker.replication.role import State
from saturnmq.broker.tables.table_persistence import EncodedRows, LazyRows
from saturnmq.broker.tables.topics import READ, WRITE, Topic
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import crc32
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicRoute
from saturnmq.protocol.signing import KEY, UNSIGNED_WORDS, VARIABLE, NodeAnswer, ask_signed
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import (
    ForeignGroup,
    MalformedFrame,
    SaturnError,
    SystemBusy,
    error_for,
)
from saturnmq.runtime.supervision import Supervisor

log = logging.getLogger(__name__)

PAUSE_MAX_S = 60.0  # as in RocketMQ: nameservers drop a broker that is silent for 120 s
RETRY_S = 1.0
# The only field that counts in an unsigned answer of a nameserver that should sign: the address to
# dial. The node that answers there has to prove itself.
UNPROVEN = ("haServerAddr",)
NOT_SIGNED = (
    f"it does not sign with the {KEY} of this broker, so this broker takes only the address to "
    f"dial from its answers: set the same secret there ({VARIABLE})"
)
AGAIN_S = 0.1  # a nameserver that does not answer is not asked more often, whatever happens
TIMEOUT_S = 3.0


_Role = tuple[int, int, str]  # epoch, broker id, group


class _Taken(NamedTuple):
    """The part of the topic table that a nameserver has."""

    version: int  # up to this change
    role: _Role  # in which the broker registered
    since: float  # when the whole table went out


_NOTHING = _Taken(0, (0, 0, ""), 0.0)
_NO_ORDER: tuple[bytes, frozenset[str]] = (b"", frozenset())


def _ordered(body: bytes) -> frozenset[str]:
    """The topics in the answer to a registration, which names those with an order configuration."""
    return frozenset(map(str, checked.table(checked.document(body), "table")))


class Registrar:
    def __init__(self, context: Context, ha_address: str) -> None:
        self._c = context
        self._config = context.config
        self.ha_address = ha_address
        # Called with the epoch, the address and the HA address of a master that a nameserver
        # knows: on a slave for every epoch, on other nodes for those above the epoch of their log.
        self.on_master: Callable[[int, str, str], None] = lambda *_: None
        self._changed = {name: asyncio.Event() for name in context.config.nameservers}
        self._asked: dict[str, list[asyncio.Future[None]]] = {name: [] for name in self._changed}
        self._endpoints: dict[str, Endpoint] = {}
        self._taken: dict[str, _Taken] = {}
        # By nameserver: what its last answer said of ordered topics, and the same as it was read.
        self._orders: dict[str, tuple[bytes, frozenset[str]]] = {}
        self.registered: set[str] = set()
        # The nameservers that refuse this broker because another group has its name, and their
        # reasons.
        self.foreign: dict[str, str] = {}
        self._said: dict[str, str] = {}  # of nameservers that fail: the last line in the log
        self._knows_master = False
        self._pause_s = min(context.config.register_ms / 1000, PAUSE_MAX_S)
        self._is_empty = not context.store.watermarks.appended
        self._newest = 0  # the epoch of a master that any nameserver has told of
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, supervisor: Supervisor) -> list[asyncio.Task[None]]:
        self._tasks = [
            supervisor.keep(partial(self._keep, nameserver), name=f"register-{nameserver}")
            for nameserver in self._config.nameservers
        ]
        return self._tasks

    def log_grew(self) -> None:
        """Claim the group's name: the first bytes of the log make this node a member of its group.
        The first group at a nameserver holds the name."""
        if self._is_empty and known(self._c):
            self._is_empty = False
            self.topics_changed()

    def look_for_master(self) -> None:
        """Ask for the master at once, then every second: the one that was named leads no more."""
        self._knows_master = False
        self.topics_changed()

    def topics_changed(self) -> None:
        for event in self._changed.values():
            event.set()

    async def ask_all(self, timeout_s: float) -> None:
        """Register everywhere again; return when each nameserver has answered or failed, or after
        `timeout_s`."""
        asked = []
        for nameserver, event in self._changed.items():
            done = self._c.runtime.create_future()
            self._asked[nameserver].append(done)
            asked.append(done)
            event.set()
        if asked:
            await asyncio.wait(asked, timeout=timeout_s)

    async def route(self, topic: str, timeout_s: float) -> TopicRoute | None:
        """The route of a topic at the first nameserver that tells it. None: no nameserver does, or
        none is configured."""
        try:
            return await self.find_route(topic, timeout_s)
        except SaturnError as error:
            log.info("no nameserver tells the route of %s: %s", topic, error)
            return None

    async def find_route(self, topic: str, timeout_s: float) -> TopicRoute:
        """The route of a topic. TopicNotExist: the nameservers that answer have none. SystemBusy:
        none answers."""
        unknown: SaturnError | None = None
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        for endpoint in list(self._endpoints.values()):
            if endpoint.closed:
                continue
            request = Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
            try:
                reply = await endpoint.request(request, timeout_s)
                if not reply.code:
                    return TopicRoute.from_json(checked.document(bytes(reply.body)))
                if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                    unknown = error_for(reply.code, reply.remark)
            except SaturnError as error:
                log.info("a nameserver does not tell the route of %s: %s", topic, error)
        raise unknown or SystemBusy(f"no nameserver answers: the route of {topic} is not known")

    async def members(self, timeout_s: float) -> frozenset[str]:
        """The other addresses under this broker's name, as the nameservers that answer have them
        (901). MalformedFrame of one counts as no answer."""
        found = [self._members_at(name, timeout_s) for name in sorted(self.registered)]
        return frozenset().union(*await asyncio.gather(*found)) - {self._c.address}

    async def _members_at(self, nameserver: str, timeout_s: float) -> frozenset[str]:
        config = self._config
        fields = {"clusterName": config.cluster_name, "brokerName": config.broker_name}
        request = Command.request(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
        try:
            reply = await self._endpoints[nameserver].request(request, timeout_s)
            if reply.code:
                raise error_for(reply.code, reply.remark)
            document = checked.document(reply.body)
            group = checked.table(document, "brokerMemberGroup")
            listed = checked.table(group, "brokerAddrs").values()
            addresses = [checked.as_text(address, "brokerAddrs") for address in listed]
            return frozenset(addresses + checked.texts(document, "saturnDeposed"))
        except (SaturnError, OSError) as error:
            log.info("nameserver %s does not tell the group: %s", nameserver, error)
            return frozenset()

    def _who_asked(self, nameserver: str) -> list[asyncio.Future[None]]:
        """Those who wait for an answer of this nameserver, once."""
        asked, self._asked[nameserver] = self._asked[nameserver], []
        return asked

    def _on_request(self, nameserver: str, request: Command) -> None:
        if request.code == RequestCode.ROLE_CHANGED:
            self._changed[nameserver].set()

    async def unregister(self) -> None:
        """Tell every nameserver that this broker leaves, best effort; register nowhere again."""
        for task in self._tasks:
            task.cancel()
        config = self._config
        for nameserver, endpoint in list(self._endpoints.items()):
            if endpoint.closed:
                continue
            request = Command.request(
                RequestCode.UNREGISTER_BROKER,
                {
                    "clusterName": config.cluster_name,
                    "brokerAddr": self._c.address,
                    "brokerName": config.broker_name,
                    "brokerId": str(self._c.role.broker_id),
                },
            )
            try:
                await self._ask(nameserver, endpoint, request, 1.0)
            except SaturnError as error:
                log.info("not unregistered: %s", error)
            endpoint.close()

    async def _keep(self, nameserver: str) -> None:
        c = self._c
        changed = self._changed[nameserver]
        endpoint: Endpoint | None = None
        while True:
            changed.clear()
            asked = self._who_asked(nameserver)  # a later question wants a later answer
            pause = self._pause_s
            if c.role.is_slave and not self._knows_master:
                pause = min(pause, RETRY_S)  # it started before its master
            try:
                if endpoint is None or endpoint.closed:
                    endpoint = await connect(
                        c.runtime,
                        *split_address(nameserver),
                        lambda _, request: self._on_request(nameserver, request),
                        lambda _: changed.set(),
                    )
                    self._endpoints[nameserver] = endpoint
                    self._taken.pop(nameserver, None)
                answer = await self._register(nameserver, endpoint)
                if nameserver not in self.registered:
                    log.info("registered at nameserver %s", nameserver)
                self.registered.add(nameserver)
                self.foreign.pop(nameserver, None)
                news = answer.command.ext
                if c.config.signing and not c.config.signing.refuses:
                    why = "" if answer.is_proven else UNSIGNED_WORDS
                    c.let_in.note(f"nameserver {nameserver}", "", why)
                if answer.is_proven or not c.config.signing.refuses:
                    self._hear(news)
                    await self._take_order(nameserver, bytes(answer.command.body))
                    self._said.pop(nameserver, None)
                else:
                    self._say(nameserver, logging.WARNING, NOT_SIGNED)
                    self._hear({name: news[name] for name in UNPROVEN if name in news})
            except ForeignGroup as error:
                self.registered.discard(nameserver)
                self.foreign[nameserver] = str(error)
                level = logging.ERROR if c.role.is_slave else logging.CRITICAL
                self._say(nameserver, level, f"does not take this broker: {error}")
            except MalformedFrame as error:  # the broker must not lose its routes for that
                self._say(nameserver, logging.WARNING, f"its answer counts for nothing: {error}")
            except (SaturnError, OSError) as error:
                self._say(nameserver, logging.WARNING, str(error))
                self.registered.discard(nameserver)
                if endpoint is not None:
                    endpoint.close()
                endpoint = None
                pause = RETRY_S
                asked += self._who_asked(nameserver)
            for done in asked:
                if not done.done():
                    done.set_result(None)
            if endpoint is None or endpoint.closed:
                await c.runtime.sleep(AGAIN_S)
            timer = c.runtime.call_later(pause, changed.set)
            await changed.wait()
            timer.cancel()
            if endpoint is not None and endpoint.closed:
                self.registered.discard(nameserver)

    def _say(self, nameserver: str, level: int, text: str) -> None:
        """Log a text once: the same may hold every second, for a long time."""
        if self._said.get(nameserver) != text:
            self._said[nameserver] = text
            log.log(level, "nameserver %s: %s", nameserver, text)

    async def _register(self, nameserver: str, endpoint: Endpoint) -> NodeAnswer:
        """Register at this nameserver; return its answer, which describes the group."""
        c = self._c
        config = c.config
        role, now = self._role(), c.runtime.monotonic()
        before, topic = self._news_for(nameserver, role, now)
        told = c.topics.version if topic is None else before.version + 1
        assert told <= c.topics.version, f"version {told} is told of {c.topics.version}"
        version = c.topics.data_version | {"stateVersion": c.role.leads_in}
        version["counter"] -= c.topics.version - told
        topics = await c.steps.run(self._rows(topic).encoded())
        if self._role() != role:  # it changed meanwhile: register in the new role
            return await self._register(nameserver, endpoint)
        body = fastjson.dumps(
            {
                "filterServerList": [],
                "topicConfigSerializeWrapper": {
                    "dataVersion": version,
                    "mappingDataVersion": version,
                    "topicConfigTable": fastjson.encoded(topics),
                    "topicQueueMappingDetailMap": {},
                    "topicQueueMappingInfoMap": {},
                },
            }
        )
        request = Command.request(
            RequestCode.REGISTER_BROKER,
            {
                "clusterName": config.cluster_name,
                "brokerAddr": c.address,
                "brokerName": config.broker_name,
                "brokerId": str(c.role.broker_id),
                "haServerAddr": self.ha_address,
                "bodyCrc32": str(crc32(body)),
                "compressed": "false",
                "enableActingMaster": "false",
                "saturnIdentity": known(c),
                "saturnWhole": "true" if topic is None else "false",
            },
            body,
        )
        self._taken.pop(nameserver, None)
        answer = await self._ask(nameserver, endpoint, request, TIMEOUT_S)
        if answer.command.code:
            raise error_for(answer.command.code, answer.command.remark)
        self._taken[nameserver] = _Taken(told, role, now if topic is None else before.since)
        if topic is not None and told != c.topics.version:
            self._changed[nameserver].set()
        return answer

    def _role(self) -> _Role:
        role = self._c.role
        return role.leads_in, role.broker_id, known(self._c)

    def _news_for(self, nameserver: str, role: _Role, now: float) -> tuple[_Taken, Topic | None]:
        """The part of the table that this nameserver has, and the one topic that it lacks; None: it
        gets the whole table."""
        taken = self._taken.get(nameserver)
        if taken is None:
            return _NOTHING, None
        if role != taken.role or now - taken.since >= self._pause_s:
            return taken, None
        return taken, self._c.topics.next_change(taken.version)

    async def _ask(
        self, nameserver: str, endpoint: Endpoint, request: Command, timeout_s: float
    ) -> NodeAnswer:
        """The nameserver's answer, whatever its code."""
        return await ask_signed(
            self._config.signing,
            nameserver,
            request,
            lambda command: endpoint.request(command, timeout_s),
        )

    def _rows(self, only: Topic | None) -> LazyRows:
        """The topics with their permissions, limited to those of the broker itself."""
        topics = [*self._c.topics] if only is None else [only]
        permission = self._c.config.permission
        if permission == READ | WRITE:
            return EncodedRows(topic.row for topic in topics)
        return LazyRows(
            (topic.name, {**topic.to_json(), "perm": topic.perm & permission}) for topic in topics
        )

    async def _take_order(self, nameserver: str, body: bytes) -> None:
        """Mark the topics as ordered that have an order configuration at this nameserver. As in
        RocketMQ the mark stays when the configuration goes. MalformedFrame: it is none."""
        c = self._c
        if self._orders.get(nameserver, _NO_ORDER)[0] != body:
            topics = await c.aside.run(_ordered, body) if body else frozenset()
            self._orders[nameserver] = body, topics
        if c.role.is_slave:  # it copies the table
            return
        for name in sorted(self._orders.get(nameserver, _NO_ORDER)[1]):
            topic = c.topics.get(name)
            if topic is not None and not topic.order:
                log.info("topic %s is ordered, says nameserver %s", name, nameserver)
                c.topics.put(replace(topic, order=True))

    def _hear(self, ext: dict[str, str]) -> None:
        """Learn from a nameserver's answer who the master is. MalformedFrame: a field is out of its
        bounds."""
        role = self._c.role
        identity = checked.identity(ext, "saturnIdentity")
        epoch = checked.integer(ext, "saturnEpoch", 0, most=role.ceiling)
        master, ha_address = _address(ext, "masterAddr"), _address(ext, "haServerAddr")
        if is_foreign(known(self._c), identity):
            return  # after it asked, this node has learned that it belongs to another group
        if master == self._c.address or ha_address == self.ha_address:
            master = ha_address = ""  # if this node does not know that, its disk was replaced
        if not role.is_slave or role.state is State.FENCED:
            if epoch > role.log_epoch:
                self.on_master(epoch, master, ha_address)
        elif ha_address and (not epoch or epoch >= min(role.promised_epoch, self._newest)):
            # A master of a lower epoch than this node has promised is reported too, if it is the
            # newest: the slave tells it of the higher epoch.
            self._newest = max(self._newest, epoch)
            self._knows_master = not epoch or epoch >= role.promised_epoch
            self.on_master(epoch, master, ha_address)


def _address(ext: dict[str, str], name: str) -> str:
    """The address under `name`, checked for its form; empty if there is none."""
    address = checked.text(ext, name, "")
    try:
        if address:
            split_address(address)
    except ValueError as error:
        raise MalformedFrame(f"{name}: {error}") from None
    return address

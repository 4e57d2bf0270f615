"""Facts about topics and groups that calls need again and again, kept for a moment.

A fact that cannot be renewed stays as it was: clients that are told of other queues, or of none,
drop their messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from saturnmq.gateway.callers import PRESENT, Caller, as_itself, tell
from saturnmq.gateway.codes import NOT_MASTER
from saturnmq.gateway.node import GatewayNode
from saturnmq.gateway.peers import Peers
from saturnmq.gateway.routes import types_of, with_master
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.inner_endpoint import InnerEndpoint, Silent
from saturnmq.protocol.jhash import jhash
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.retry_policy import (
    DEFAULT_POLICY,
    GroupRetryPolicy,
    retry_policy_of,
)
from saturnmq.protocol.route import TopicConfig, TopicRoute
from saturnmq.runtime.door import Runtime
from saturnmq.runtime.errors import (
    AccessDenied,
    GroupNotExist,
    MalformedFrame,
    NoPermission,
    SaturnError,
    SystemBusy,
    SystemError_,
    TopicNotExist,
    error_for,
)

log = logging.getLogger(__name__)

FRESH_S = 1.0
KNOWN_S = 10.0  # a caller is not asked about again
KEPT_MOST = 10_000  # facts of one kind
ASK_S = 2.0
BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)  # it may tell later
DEFINITE = (TopicNotExist, GroupNotExist)  # such an answer is a fact, too

F = TypeVar("F")


@dataclass(slots=True)
class _Kept(Generic[F]):
    at: float
    fact: F


class FreshFacts(Generic[F]):
    """Facts of one kind by name; concurrent callers share one question."""

    def __init__(
        self, runtime: Runtime, find: Callable[[str], Awaitable[F]], fresh_s: float = FRESH_S
    ) -> None:
        self._runtime = runtime
        self._find = find
        self._fresh_s = fresh_s
        self._kept: dict[str, _Kept[F]] = {}
        self._asking: dict[str, asyncio.Task[F]] = {}

    def known(self, name: str) -> F | None:
        """The fact, however old."""
        kept = self._kept.get(name)
        return None if kept is None else kept.fact

    async def get(self, name: str, *, renewed: bool = False) -> F:
        """The fact; `renewed`: one that is asked for now. SaturnError: nobody knows it."""
        kept = self._kept.get(name)
        now = self._runtime.monotonic()
        if kept is not None and not renewed and now - kept.at < self._fresh_s:
            return kept.fact
        asking = self._asking.get(name)
        if asking is None:
            # All callers share it.
            work = as_itself(_outcome(self._find(name)))
            asking = self._runtime.spawn(work, name="gateway-fact")
            self._asking[name] = asking
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        found = await asyncio.shield(asking)
        if isinstance(found, SaturnError):
            if isinstance(found, DEFINITE):
                self._kept.pop(name, None)
            if kept is None or isinstance(found, DEFINITE):
                # A copy for each caller: the task has the original, so its traceback would keep
                # all of them, with their requests.
                raise copy(found)
            kept.at = now
            return kept.fact
        if len(self._kept) >= KEPT_MOST:
            self._kept.clear()
        self._kept[name] = _Kept(self._runtime.monotonic(), found)
        return found


async def _outcome(work: Awaitable[F]) -> Any:
    """The result of work, or its error: a task that fails would end the process."""
    try:
        return await work
    except SaturnError as error:
        return error
    except Exception as error:
        log.exception("a fact that calls need cannot be found")
        return SystemError_(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic: where it is, and for which messages."""

    route: TopicRoute
    known_types: list[int] | None

    @property
    def types(self) -> list[int]:
        """The types of its messages. SystemBusy: no node could say."""
        if self.known_types is None:
            raise SystemBusy(f"{NOT_MASTER}no node of the topic can be asked now; try again")
        return self.known_types

    def master(self, broker: str) -> str | None:
        """The address of this broker's master."""
        found = self.route.broker(broker)
        return None if found is None else found.master

    def any_broker(self) -> str:
        """A broker with queues of the topic. SaturnError: there is none now."""
        for data in with_master(self.route):
            if data.readable:
                return data.broker_name
        raise self.lacks("read")

    def writable(self) -> list[tuple[str, int]]:
        """The queues that take messages, in their order. SaturnError: there is none now."""
        found = [
            (data.broker_name, queue_id)
            for data in with_master(self.route)
            if data.writable
            for queue_id in range(data.write_queues)
        ]
        if not found:
            raise self.lacks("written")
        return found

    def lacks(self, use: str) -> SaturnError:
        """The reason why no queue can be used so."""
        if any(data.master for data in self.route.brokers):
            return NoPermission(f"no queue of the topic can be {use} now")
        return SystemBusy(f"{NOT_MASTER}no broker of the topic has a master now; try again")

    def place_of(self, message_group: str) -> tuple[str, int]:
        """The queue of a message group, that of a sharding key (client/producer/placing.py). So a
        group has one owner in the cluster, whichever broker a client chose for its messages. With
        an order configuration that owner is among its queues, also while their broker is away."""
        named = self.route.ordered.items()
        ordered = [(broker, queue_id) for broker, count in named for queue_id in range(count)]
        queues = ordered or self.writable()
        return queues[abs(jhash(message_group)) % len(queues)]


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group: whether it keeps the order, how often it gets a message, and how long a
    message waits before it comes again."""

    fifo: bool = False
    attempts: int = 17
    retry_policy: GroupRetryPolicy = DEFAULT_POLICY


class Directory:
    """The facts that a gateway knows."""

    def __init__(self, runtime: Runtime, node: GatewayNode, peers: Peers) -> None:
        self._runtime = runtime
        self._node = node
        self._callers: dict[tuple[str, ...], float] = {}  # known ones, and until when
        self._is_guarded = False  # a broker has said that it checks users
        self._denied_by: set[str] = set()  # addresses of nodes that do not know this one
        self._peers = peers
        self._asker: InnerEndpoint | None = None
        self._topics = FreshFacts(runtime, self._find_topic)
        self._groups = FreshFacts(runtime, self._find_group)

    async def topic(self, name: str, *, renewed: bool = False) -> TopicFacts:
        """TopicNotExist; SystemBusy: nobody knows now."""
        return await self._topics.get(name, renewed=renewed)

    async def group(self, name: str) -> GroupFacts:
        return await self._groups.get(name)

    async def _find_topic(self, name: str) -> TopicFacts:
        route = await self._node.find_route(name, ASK_S)
        return TopicFacts(route, await self._types(name, route))

    async def _types(self, name: str, route: TopicRoute) -> list[int] | None:
        """The types of messages that a topic takes, from the first of its nodes that tells its
        settings. While none can be asked they stay as they were: a client that is told of others
        takes its messages for wrong ones. None: nobody knows them."""
        is_answered = False
        for address in self._nodes(route):
            request = Command.request(RequestCode.GET_TOPIC_CONFIG, {"topic": name})
            try:
                if address == self._node.address:
                    reply = await self.inside().ask(request)
                else:
                    reply = await self._peers.ask(address, request, ASK_S)
                if not reply.code:
                    config = TopicConfig.from_json(checked.document(bytes(reply.body)))
                    return types_of(config)
                error = error_for(reply.code, reply.remark)
                if isinstance(error, AccessDenied):
                    self._warn(address, error)
                else:
                    is_answered |= reply.code not in BUSY
            except SaturnError as error:
                is_answered |= isinstance(error, MalformedFrame)
        if is_answered:
            return types_of(None)  # an old broker of RocketMQ
        known = self._topics.known(name)
        return None if known is None else known.known_types

    def _nodes(self, route: TopicRoute) -> list[str]:
        """The nodes that may know a topic: this one, if it is of one of its brokers, masters, and
        slaves, which have copies of all settings."""
        named = sorted(route.brokers, key=lambda data: data.broker_name)
        own = [self._node.address for data in named if data.broker_name == self._node.broker_name]
        masters = [data.master for data in named if data.master]
        others = [address for data in named for address in data.addresses.values()]
        return list(dict.fromkeys([*own, *masters, *others]))

    def _warn(self, address: str, why: object) -> None:
        if address not in self._denied_by:
            self._denied_by.add(address)
            log.warning(
                "%s does not answer this node (innerClientAuthenticationCredentials at a broker, "
                "SATURNMQ_ACCESS_KEY and SATURNMQ_SECRET_KEY at a nameserver): %s",
                address,
                why,
            )

    def inside(self) -> InnerEndpoint:
        """The gateway's own connection to its broker."""
        if self._asker is None or self._asker.closed:
            self._asker = self._node.connect_inside("127.0.0.1:0", Silent())
            self._asker.sign = tell
        return self._asker

    async def check_caller(self) -> None:
        """AccessDenied: the brokers do not know the caller of the present call. SystemBusy: none
        that checks users can be asked."""
        if not self._node.checks_users:
            return
        caller, now = tuple((PRESENT.get() or {}).values()), self._runtime.monotonic()
        if self._callers.get(caller, 0.0) > now:
            return
        await self._ask_access({})
        if not self._node.broker_name:  # its brokers are asked over the network
            if len(self._callers) >= KEPT_MOST:
                self._callers.clear()
            self._callers[caller] = now + KNOWN_S

    async def check_access(self, topic: str) -> None:
        """AccessDenied: the caller may do nothing with this topic. A client asks for a route first,
        and hears at its start that its rules are wrong; at a nameserver it hears it later."""
        if self._node.broker_name and self._node.checks_users:
            await self._ask_access({"topic": topic})

    async def may_publish(self, caller: Caller, topic: str, master: str) -> bool:
        """Whether a caller may publish to a topic, as this master says. SaturnError: it does not
        know, or cannot be asked now."""
        ext = {"topic": topic, "saturnPublishes": "true"}
        PRESENT.set(caller)
        try:
            reply = await self._peers.ask(
                master, Command.request(RequestCode.CHECK_ACCESS, ext), ASK_S
            )
        finally:
            PRESENT.set(None)
        if reply.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            return True
        if isinstance(error_for(reply.code, reply.remark), AccessDenied):
            return False
        raise error_for(reply.code, reply.remark)

    async def _ask_access(self, ext: dict[str, str]) -> None:
        try:
            reply = await self._anywhere(RequestCode.CHECK_ACCESS, ext)
        except SystemBusy:
            if self._is_guarded or self._node.credentials is not None:
                raise
            return  # no broker is known that checks anybody
        if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # RocketMQ's, or an older one
            return
        if reply.code:
            is_nobody = not self._node.broker_name and self._node.credentials is None
            if is_nobody and isinstance(error_for(reply.code, reply.remark), AccessDenied):
                self._warn("a broker", reply.remark)  # whose word does not count
            raise error_for(reply.code, reply.remark)
        self._is_guarded = reply.ext.get("saturnGuarded") == "true"

    async def _find_group(self, name: str) -> GroupFacts:
        ext = {"group": name}
        reply = await self._anywhere(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext)
        if reply.code == GroupNotExist.code:
            return GroupFacts()  # it is made by its first receive
        if reply.code:
            raise error_for(reply.code, reply.remark)
        found = checked.document(bytes(reply.body))
        most = checked.INT32_MAX
        retries = checked.integer(found, "retryMaxTimes", 16, least=-most - 1, most=most)
        is_fifo = found.get("consumeMessageOrderly") is True
        attempts = min(max(retries, 0) + 1, most)
        return GroupFacts(is_fifo, attempts, retry_policy_of(found))

    async def _anywhere(self, code: RequestCode, ext: dict[str, str]) -> Command:
        """The answer of this broker; at a nameserver, of the first broker that answers."""
        if self._node.broker_name:
            return await self.inside().ask(Command.request(code, ext))
        for address in self._node.masters():
            with contextlib.suppress(SaturnError):
                return await self._peers.ask(address, Command.request(code, dict(ext)), ASK_S)
        raise SystemBusy("no broker answers now")

"""Membership of a group: ask for the members and take my share of the queues, again and again.

This happens every 20 s, at once when the broker says that the members changed (40), and every
second while something is missing. A broker that does not answer, or does not list us yet, leaves
the present share as it is.

A group may be told to pop a topic (`saturnmq group mode`). A push consumer that is neither ordered
nor broadcasting then takes what the broker assigns (QUERY_ASSIGNMENT), and pops that. Our brokers
name the popped topics with the members; of RocketMQ's each topic is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from saturnmq.client.consumer.pop_calls import ANY
from saturnmq.client.consumer.rebalance import assign, strategy_of
from saturnmq.client.consumer.starting import Baseline, find_queues
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.protocol.topics import RETRY_PREFIX
from saturnmq.runtime.errors import RouteNotFound, SaturnError, TopicNotExist

log = logging.getLogger(__name__)

UNSETTLED_S = 1.0


class Members(NamedTuple):
    """The members of a group, as a broker lists them."""

    clients: list[str]
    pops: Collection[str] | None
    """The topics that the group pops; None: this broker does not say."""
    address: str
    """That of the broker."""


class Share(NamedTuple):
    """My queues of a topic."""

    queues: list[MessageQueue]
    pops: bool = False
    """Whether they are popped; an id of -1 is any queue of the broker then."""


MembersByBrokers = dict[tuple[str, ...], Members | None]
"""Answers of one round: by brokers, the group's members as the first answering broker lists them;
None: no broker answered."""


class RebalanceMember(Protocol):
    """The consumer, as rebalance sees it."""

    broadcasting: bool
    subscriptions: dict[str, Subscription]
    baseline: Baseline

    def held_queues(self) -> list[MessageQueue]: ...
    async def take_queues(self, queues: Sequence[MessageQueue]) -> bool: ...
    async def give_up_queues(self, queues: Sequence[MessageQueue]) -> None: ...


class QueuePopper(Protocol):
    """The part of a consumer that pops queues."""

    def topics(self) -> Iterable[str]:
        """The topics that it pops now."""

    def pop(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """Pop exactly these of a topic from now on."""


class Membership:
    """Runs rebalance for one consumer."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        strategy: str,
        interval_s: float,
        member: RebalanceMember,
        popper: QueuePopper | None = None,
    ) -> None:
        """Without `popper` the consumer pulls whatever its group was told."""
        self._core = core
        self._group = group
        self._how = strategy_of(strategy)
        self._interval = interval_s
        self._member = member
        self._popper = popper
        self._wake = asyncio.Event()

    def trigger(self) -> None:
        """Rebalance soon."""
        self._wake.set()

    async def run(self) -> None:
        """Rebalance again and again, until cancelled."""
        while True:
            self._wake.clear()
            settled = await self.rebalance()
            pause = self._interval if settled else UNSETTLED_S
            timer = self._core.runtime.call_later(pause, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def rebalance(self) -> bool:
        """One round over all topics; False if something must be retried soon."""
        member = self._member
        settled = True
        topics = dict.fromkeys(member.subscriptions)
        held: dict[str, list[MessageQueue]] = {}
        for queue in member.held_queues():
            held.setdefault(queue.topic, []).append(queue)
        stray = [queue for topic, queues in held.items() if topic not in topics for queue in queues]
        if stray:
            await member.give_up_queues(stray)
        if self._popper is not None:
            for topic in set(self._popper.topics()) - topics.keys():
                self._popper.pop(topic, ())
        listed: MembersByBrokers = {}
        for topic in topics:
            mine = await self._share(topic, listed)
            if mine is None:
                settled = False
                continue
            pulled, popped = ([], mine.queues) if mine.pops else (mine.queues, [])
            lost = [queue for queue in held.get(topic, ()) if queue not in pulled]
            if lost:
                await member.give_up_queues(lost)
            if self._popper is not None:
                self._popper.pop(topic, popped)
            if not await member.take_queues(pulled):
                settled = False
        return settled

    async def _share(self, topic: str, listed: MembersByBrokers) -> Share | None:
        """My queues of `topic`; None if they are unknown now."""
        try:
            queues = await find_queues(self._core, topic, self._member.baseline)
        except SaturnError as error:
            # %RETRY% appears when a broker has got the first heartbeat: no need to hurry.
            log.debug("no route of %s: %s", topic, error)
            if not isinstance(error, TopicNotExist | RouteNotFound):
                self._core.report_nameservers()
            return None
        if self._member.broadcasting:
            return Share(list(queues))
        names = tuple(sorted({q.broker_name for q in self._core.subscribe_queues(topic)}))
        if names not in listed:  # a consumer of hundreds of topics asks once only
            listed[names] = await self._members(names)
        members = listed[names]
        if members is None:
            return None
        if self._popper is not None and not topic.startswith(RETRY_PREFIX):
            try:
                popped = await self._popped(topic, members)
            except SaturnError as error:
                log.info("%s does not tell how to read %s: %s", members.address, topic, error)
                if members.pops is not None or topic in self._popper.topics():
                    return None
                popped = None  # RocketMQ's clients do not even ask, by default
            if popped is not None:
                return Share(popped, pops=True)
        return Share(assign(self._how, self._core.client_id, queues, members.clients))

    async def _popped(self, topic: str, members: Members) -> list[MessageQueue] | None:
        """The queues to pop of a topic; None if the group pulls it."""
        if members.pops is not None and topic not in members.pops:
            return None
        question = {
            "topic": topic,
            "consumerGroup": self._group,
            "clientId": self._core.client_id,
            "strategyName": "AVG",
            "messageModel": "CLUSTERING",
        }
        request = Command.request(RequestCode.QUERY_ASSIGNMENT, {}, fastjson.dumps(question))
        answer = await self._core.invoke(members.address, request)
        rows = checked.items(checked.document(answer.body), "messageQueueAssignments")
        found = [checked.as_table(row, "an assignment") for row in rows]
        if not any(checked.text(row, "mode", "PULL") == "POP" for row in found):
            return None
        named = [checked.table(row, "messageQueue") for row in found]
        return [
            MessageQueue(
                checked.text(queue, "topic"),
                checked.text(queue, "brokerName"),
                checked.integer(queue, "queueId", least=ANY, most=checked.INT32_MAX),
            )
            for queue in named
        ]

    async def _members(self, names: Iterable[str]) -> Members | None:
        """The group's members from the first of these brokers that answers; None if none
        answers."""
        ext = {"consumerGroup": self._group}
        if self._popper is not None:
            ext["saturnPops"] = "true"
        for name in names:
            for _, address in sorted(self._core.routes.brokers().get(name, {}).items()):
                request = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, dict(ext))
                try:
                    answer = await self._core.invoke(address, request)
                    listed = checked.document(answer.body)
                    clients = checked.texts(listed, "consumerIdList")
                    pops = checked.texts(listed, "saturnPops") if "saturnPops" in listed else None
                except SaturnError as error:
                    log.debug("%s does not list the members of %s: %s", address, self._group, error)
                    continue
                if self._core.client_id in clients:
                    return Members(clients, pops, address)
        await self._core.heartbeat_now()
        return None

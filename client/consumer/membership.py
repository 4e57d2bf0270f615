"""Membership of a group: ask for the members and take my share of the queues, again and again.

This happens every 20 s, at once when the broker says that the members changed (40), and every
second while something is missing. A broker that does not answer, or does not list us yet, leaves
the present share as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from saturnmq.client.consumer.rebalance import Strategy, assign
from saturnmq.client.consumer.starting import Baseline, find_queues
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.subscription import Subscription
from saturnmq.runtime.errors import SaturnError

log = logging.getLogger(__name__)

UNSETTLED_S = 1.0

MembersByBrokers = dict[tuple[str, ...], list[str] | None]
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


class Membership:
    """Runs rebalance for one consumer."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        how: Strategy,
        interval_s: float,
        member: RebalanceMember,
    ) -> None:
        self._core = core
        self._group = group
        self._how = how
        self._interval = interval_s
        self._member = member
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
        listed: MembersByBrokers = {}
        for topic in topics:
            mine = await self._share(topic, listed)
            if mine is None:
                settled = False
                continue
            lost = [queue for queue in held.get(topic, ()) if queue not in mine]
            if lost:
                await member.give_up_queues(lost)
            if not await member.take_queues(mine):
                settled = False
        return settled

    async def _share(self, topic: str, listed: MembersByBrokers) -> list[MessageQueue] | None:
        """My queues of `topic`; None if they are unknown now."""
        try:
            queues = await find_queues(self._core, topic, self._member.baseline)
        except SaturnError as error:
            # %RETRY% appears when a broker has got the first heartbeat: no need to hurry.
            log.debug("no route of %s: %s", topic, error)
            return None
        if self._member.broadcasting:
            return list(queues)
        names = tuple(sorted({q.broker_name for q in self._core.subscribe_queues(topic)}))
        if names not in listed:  # a consumer of hundreds of topics asks once only
            listed[names] = await self._members(names)
        clients = listed[names]
        if clients is None:
            return None
        return assign(self._how, self._core.client_id, queues, clients)

    async def _members(self, names: Iterable[str]) -> list[str] | None:
        """The group's client ids from the first of these brokers that answers; None if none
        answers."""
        for name in names:
            for _, address in sorted(self._core.routes.brokers().get(name, {}).items()):
                request = Command.request(
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": self._group}
                )
                try:
                    answer = await self._core.invoke(address, request)
                    ids = checked.items(checked.document(answer.body), "consumerIdList")
                    clients = [checked.as_text(client, "a client id") for client in ids]
                except SaturnError as error:
                    log.debug("%s does not list the members of %s: %s", address, self._group, error)
                    continue
                if self._core.client_id in clients:
                    return clients
        await self._core.heartbeat_now()
        return None

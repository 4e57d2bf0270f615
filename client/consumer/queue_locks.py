"""Locks on queues for ordered consumption: LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42) at the
masters.

A broker keeps (group, queue) -> client id for 60 s after the last lock call. We ask every 20 s and
trust a grant for 30 s from before the request left, so our trust ends first even if the answer was
slow. A refusal ends it at once: a broker that restarted, or a slave that was promoted, does not
know our grant and gave the lock to another owner. While no master answers, the grant runs out.
Without the lock nothing of a queue is handed to the listener, committed or unlocked; a lock that is
granted anew while the listener is still in a call changes nothing before it returns.

A lock that is not needed here keeps the next owner waiting for those 60 s. So a queue is not asked
for once it is handed over. A lock that a broker may have granted without an answer, or may not have
released, is given back at the next rebalance and at the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.offset_store import OffsetStore
from saturnmq.client.core import ClientCore
from saturnmq.protocol import checked, fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import SaturnError

log = logging.getLogger(__name__)

LOCK_INTERVAL_S = 20.0
UNSETTLED_S = 1.0
TIMEOUT_S = 1.0
EXPIRES_S = 60.0  # a broker forgets a lock this long after its owner last asked for it


class QueueLocks:
    """Lock calls of one group."""

    def __init__(self, core: ClientCore, group: str, offsets: OffsetStore) -> None:
        self._core = core
        self._group = group
        self._offsets = offsets
        self._due = asyncio.Event()
        # Queues that a broker may have locked for us, and the time of the request (monotonic).
        self._asked: dict[MessageQueue, float] = {}

    def renew_soon(self) -> None:
        """Renew the locks at once: new masters must learn of them."""
        self._due.set()

    async def run(self, held: Mapping[MessageQueue, AssignedQueue]) -> None:
        """Keeps the locks of `held` until cancelled; a queue whose lock was granted anew is read
        anew."""
        while True:
            self._due.clear()
            pause = LOCK_INTERVAL_S if await self.renew(held) else UNSETTLED_S
            timer = self._core.runtime.call_later(pause, self._due.set)
            await self._due.wait()
            timer.cancel()

    async def renew(self, held: Mapping[MessageQueue, AssignedQueue]) -> bool:
        """One round; False if a lock is missing."""
        asked_at = self._core.runtime.monotonic()

        def is_ours(queue: MessageQueue) -> bool:
            mine = held.get(queue)
            return mine is not None and not mine.handed_over

        wanted = [queue for queue in held if is_ours(queue)]
        granted, refused = await self._ask(wanted, is_ours)
        for queue in wanted:
            mine = held.get(queue)
            if mine is None:
                continue
            if queue in granted:
                if mine.state.lock(asked_at):
                    mine.state.end_runs()
                    mine.once_quiet(partial(self._begin_anew, mine))
            elif queue in refused:
                mine.state.unlock()
            mine.wake()
        return all(queue in granted for queue in wanted if is_ours(queue))

    def _begin_anew(self, held: AssignedQueue) -> None:
        """The lock was away, and another consumer may have read meanwhile: the broker is asked for
        the offset again. A broker back from a crash may know an older offset than we do, so ours
        is noted first.
        """
        if not held.state.dropped:
            self._offsets.update(held.queue, held.state.commit_offset())
        held.state.reset(-1)
        held.wake()

    async def acquire(self, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """The members of `queues` whose lock the masters granted."""
        granted, _ = await self._ask(queues)
        return granted

    async def _ask(
        self,
        queues: Sequence[MessageQueue],
        is_wanted: Callable[[MessageQueue], bool] = lambda _: True,
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """The members of `queues` whose lock the masters granted, and those that they refused."""
        granted: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()
        for name, listed in _by_broker(queues):
            # A lock that was given back while others were requested must not be taken again after
            # that.
            asked = [queue for queue in listed if is_wanted(queue)]
            if not asked:
                continue
            address = self._core.broker_address(name)
            if address is None:
                # Nothing else asks for the route while nothing may be pulled.
                self._core.refresh_soon(asked[0].topic)
                continue
            self._asked |= dict.fromkeys(asked, self._core.runtime.monotonic())
            request = self._request(RequestCode.LOCK_BATCH_MQ, asked)
            try:
                answer = await self._core.invoke(address, request, TIMEOUT_S)
                names = _granted(answer)
            except SaturnError as error:
                log.info("locks of group %s at %s: %s", self._group, address, error)
                self._core.refresh_soon(asked[0].topic)
                continue
            for queue in asked:
                (granted if queue in names else refused).add(queue)
        self._forget(refused)
        return granted, refused

    def left_over(self, needed: Collection[MessageQueue]) -> list[MessageQueue]:
        """The queues besides `needed` that a broker may have locked for us."""
        now = self._core.runtime.monotonic()
        self._forget([queue for queue, at in self._asked.items() if now - at >= EXPIRES_S])
        return [queue for queue in self._asked if queue not in needed]

    async def release(self, queues: Sequence[MessageQueue]) -> None:
        """Gives locks back. A queue whose master does not answer stays in the list of those left
        over."""
        for name, listed in _by_broker(queues):
            address = self._core.broker_address(name)
            if address is None:
                continue
            request = self._request(RequestCode.UNLOCK_BATCH_MQ, listed)
            try:
                await self._core.invoke(address, request, TIMEOUT_S)
            except SaturnError as error:
                log.info("unlocks of group %s at %s: %s", self._group, address, error)
                continue
            self._forget(listed)

    def _forget(self, queues: Collection[MessageQueue]) -> None:
        for queue in queues:
            self._asked.pop(queue, None)

    def _request(self, code: int, queues: Sequence[MessageQueue]) -> Command:
        body = fastjson.dumps(
            {
                "clientId": self._core.client_id,
                "consumerGroup": self._group,
                "mqSet": [fastjson.mq_json(queue) for queue in queues],
                "onlyThisBroker": False,
            }
        )
        return Command.request(code, {}, body)


def _by_broker(queues: Sequence[MessageQueue]) -> Iterator[tuple[str, list[MessageQueue]]]:
    ordered = sorted(queues, key=lambda queue: queue.broker_name)
    for name, group in groupby(ordered, key=lambda queue: queue.broker_name):
        yield name, list(group)


def _granted(answer: Command) -> set[MessageQueue]:
    listed = checked.items(checked.document(answer.body), "lockOKMQSet")
    queues = (checked.as_table(queue, "lockOKMQSet") for queue in listed)
    return {
        MessageQueue(
            checked.text(queue, "topic"),
            checked.text(queue, "brokerName"),
            checked.integer(queue, "queueId"),
        )
        for queue in queues
    }

"""The start of a group at a time, for consumers that pop.

A pop knows two starts, the ends of a queue. So before the first pop of a topic at a broker the
group gets an offset in each queue where it has none: that of the first message stored at the time
or later (29, 15). Offsets that it has stay as they are, and so do those that another member sets
meanwhile, because they only rise. Queues that appear later get none: their pops begin at the first
message, because all of them are newer than the consumer.
"""

from __future__ import annotations

from saturnmq.client.consumer.offset_store import RemoteOffsets
from saturnmq.client.consumer.starting import Baseline, offset_of
from saturnmq.client.core import ClientCore
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command


class TimedStart:
    """The start of one group; loop thread only."""

    def __init__(self, core: ClientCore, group: str, moment_ms: int, baseline: Baseline) -> None:
        self._core = core
        self._group = group
        self._moment_ms = moment_ms
        self._baseline = baseline
        self._offsets = RemoteOffsets(core, group)
        self._placed: set[MessageQueue] = set()

    async def place(self, topic: str, broker: str) -> None:
        """Give the group its offsets in the topic at the broker. A SaturnError says that the broker
        did not answer: the group must not pop there yet."""
        for queue in self._core.subscribe_queues(topic):
            if queue.broker_name != broker or queue in self._placed:
                continue
            if self._baseline.is_older(queue):
                await self._place(queue)
            self._placed.add(queue)

    async def _place(self, queue: MessageQueue) -> None:
        if await self._offsets.load(queue, stored_only=True) is not None:
            return
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(await offset_of(self._core, queue, self._moment_ms)),
            "bname": queue.broker_name,
        }
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        await self._core.invoke(self._core.master_address(queue.broker_name), request)

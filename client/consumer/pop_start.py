"""The start of a group that pops.

A pop knows two starts, the ends of a queue. For a start at a time the group gets an offset before
its first pop of a topic at a broker, in each queue where it has none: that of the first message
stored at the time or later (29, 15). Offsets that it has stay as they are, and so do those that
another member sets meanwhile, because they only rise. Queues that appear later get none: their pops
begin at the first message, because all of them are newer than the consumer.
"""

from __future__ import annotations

from saturnmq.client.consumer.offset_store import RemoteOffsets
from saturnmq.client.consumer.pop_calls import ANY
from saturnmq.client.consumer.starting import Baseline, offset_of
from saturnmq.client.core import ClientCore
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.remoting import Command


class PopStart:
    """The start of one member of a group: "first", "last" or a time in ms. Loop thread only."""

    def __init__(
        self, core: ClientCore, group: str, consume_from: str | int, baseline: Baseline
    ) -> None:
        self._core = core
        self._group = group
        self._consume_from = consume_from
        self._baseline = baseline
        self._offsets = RemoteOffsets(core, group)
        self._placed: set[MessageQueue] = set()

    def at_end(self, queue: MessageQueue) -> bool:
        """Whether a group without an offset begins at the end of a queue, or of any queue of its
        broker: not where all of it appeared after this consumer had joined."""
        if self._consume_from != "last":
            return False
        return any(
            queue.queue_id in (ANY, each.queue_id) and self._baseline.is_older(each)
            for each in self._at_broker(queue)
        )

    async def place(self, queue: MessageQueue) -> None:
        """Give the group its offsets at the broker of a queue, in its topic, before it pops there.
        A SaturnError says that the broker did not answer: the group must not pop there yet."""
        if not isinstance(self._consume_from, int):
            return
        for each in self._at_broker(queue):
            if each in self._placed:
                continue
            if self._baseline.is_older(each):
                await self._place(each, self._consume_from)
            self._placed.add(each)

    def _at_broker(self, queue: MessageQueue) -> list[MessageQueue]:
        queues = self._core.subscribe_queues(queue.topic)
        return [each for each in queues if each.broker_name == queue.broker_name]

    async def _place(self, queue: MessageQueue, moment_ms: int) -> None:
        if await self._offsets.load(queue, stored_only=True) is not None:
            return
        ext = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "commitOffset": str(await offset_of(self._core, queue, moment_ms)),
            "bname": queue.broker_name,
        }
        request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        await self._core.invoke(self._core.master_address(queue.broker_name), request)

"""A queue that a push consumer works on: its state, its tasks, and what wakes them."""

from __future__ import annotations

import asyncio
from typing import Any

from saturnmq.client.offset_store import OffsetStore
from saturnmq.client.process_queue import ProcessQueue
from saturnmq.protocol.message import MessageQueue


class HeldQueue:
    """Between rebalance giving a queue and taking it away. Loop thread only."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.state = ProcessQueue()
        self.pulling: asyncio.Task[Any] | None = None
        self.queued = False  # stands in the round of queues that have messages
        self.space = asyncio.Event()  # for the pull task: room, a lock, a reset
        self.data = asyncio.Event()  # for the ordered consume task: messages, a lock
        self._still = asyncio.Event()
        self._still.set()

    async def wait_for_space(self) -> None:
        self.space.clear()
        await self.space.wait()

    async def wait_for_data(self) -> None:
        await self.data.wait()

    def wake(self) -> None:
        """Something changed from outside: a lock came or went, the queue was dropped."""
        self.space.set()
        self.data.set()

    def begin(self) -> None:
        """A listener run of the ordered consume task begins."""
        self._still.clear()

    def end(self) -> None:
        self._still.set()

    async def quiet(self, at_most_s: float) -> None:
        """Waits until no ordered run is under way."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._still.wait()
        except TimeoutError:
            pass  # the listener hangs: the lock expires for the next owner all the same

    def stop_pulling(self) -> None:
        """Ends the pull task; an ordered run goes on until it notices that the queue is dropped."""
        if self.pulling is not None:
            self.pulling.cancel()

    def drop(self) -> None:
        """The queue is no longer ours."""
        self.state.drop()
        self.wake()

    def info(self, offsets: OffsetStore) -> dict[str, Any]:
        """ProcessQueueInfo of RocketMQ's ConsumerRunningInfo (the spelling `droped` is theirs)."""
        state = self.state
        return {
            "commitOffset": offsets.known(self.queue) or 0,
            "cachedMsgMinOffset": max(0, state.commit_offset()),
            "cachedMsgMaxOffset": max(0, state.next_offset - 1),
            "cachedMsgCount": state.messages,
            "cachedMsgSizeInMiB": state.bytes >> 20,
            "droped": state.dropped,
            "locked": state.lock_until > 0,
            "lastPullTimestamp": 0,
            "lastConsumeTimestamp": 0,
            "lastLockTimestamp": 0,
            "tryUnlockTimes": 0,
            "transactionMsgCachedMinOffset": 0,
            "transactionMsgCachedMaxOffset": 0,
            "transactionMsgCachedCount": 0,
        }

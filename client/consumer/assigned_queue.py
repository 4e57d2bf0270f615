"""A queue that a push consumer works on: its state, its tasks, and what wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from saturnmq.client.consumer.offset_store import OffsetStore
from saturnmq.client.consumer.process_queue import MessageRun, ProcessQueue
from saturnmq.protocol.message import MessageQueue
from saturnmq.runtime.door import Runtime

GO_FIRST_S = 0.001


class AssignedQueue:
    """A queue from the time when rebalance gives it until its hand-over to the next owner. Loop
    thread only.

    A queue that rebalance takes away while its ordered listener runs is kept, marked as dropped:
    nothing more is pulled or handed to the listener, the lock is kept, and the queue is handed over
    when the listener has returned.
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.state = ProcessQueue()
        self.pulling: asyncio.Task[Any] | None = None
        self.queued = False  # is in the round of queues that have messages
        self.space = asyncio.Event()  # wakes the pull task: room, a lock, a reset
        self.data = asyncio.Event()  # wakes the ordered consume task: messages, a lock
        self.run: MessageRun | None = None  # the run that an ordered listener works on
        self.handed_over = False  # set at the last commit: the lock is not asked for any more
        self.unlock_tries = 0  # rounds of rebalance that found the listener still running
        self._once_quiet: list[Callable[[], object]] = []

    def validate(self) -> None:
        """AssertionError: what it holds, and the run under way, do not fit together."""
        self.state.validate()
        assert self.run is not None or not self._once_quiet, "who waits for a run waits for none"
        assert self.unlock_tries >= 0, f"{self.unlock_tries} rounds found the listener running"

    async def wait_for_space(self) -> None:
        self.space.clear()
        await self.space.wait()

    async def let_listener_go_first(self, runtime: Runtime) -> None:
        """Wait for the end of a run that has just begun, but not for long. Preparing the next pull
        holds Python's lock, which the listener needs to begin."""
        timer = runtime.call_later(GO_FIRST_S, self.space.set)
        await self.wait_for_space()
        timer.cancel()

    async def wait_for_data(self) -> None:
        await self.data.wait()

    def wake(self) -> None:
        """Wake the tasks after a change from outside: a lock came or went, the queue was
        dropped."""
        self.space.set()
        self.data.set()

    def begin(self, chunk: MessageRun) -> None:
        """A listener run of the ordered consume task begins."""
        self.run = chunk

    def end(self) -> None:
        """The listener run is over, and the process queue knows its outcome."""
        self.run = None
        waiting, self._once_quiet = self._once_quiet, []
        for act in waiting:
            act()

    def once_quiet(self, act: Callable[[], object]) -> None:
        """Calls `act` when no ordered run is under way: now, or at the end of the present one."""
        if self.run is None:
            act()
        else:
            self._once_quiet.append(act)

    def stop_pulling(self) -> None:
        """Ends the pull task; an ordered run goes on until it notices that the queue is dropped."""
        if self.pulling is not None:
            self.pulling.cancel()

    def drop(self) -> None:
        """Marks the queue as no longer ours."""
        self.state.drop()
        self.wake()

    def info(self, offsets: OffsetStore, runtime: Runtime) -> dict[str, Any]:
        """ProcessQueueInfo of RocketMQ's ConsumerRunningInfo (the spelling `droped` is theirs)."""
        state = self.state
        stamp = partial(_stamp, runtime)
        return {
            "commitOffset": offsets.known(self.queue) or 0,
            "cachedMsgMinOffset": max(0, state.commit_offset()),
            "cachedMsgMaxOffset": max(0, state.next_offset - 1),
            "cachedMsgCount": state.messages,
            "cachedMsgSizeInMiB": state.bytes >> 20,
            "droped": state.dropped,
            "locked": state.locked(runtime.monotonic()),
            "lastPullTimestamp": stamp(state.last_pull),
            "lastConsumeTimestamp": stamp(state.last_consume),
            "lastLockTimestamp": stamp(state.locked_at),
            "tryUnlockTimes": self.unlock_tries,
            "transactionMsgCachedMinOffset": 0,
            "transactionMsgCachedMaxOffset": 0,
            "transactionMsgCachedCount": 0,
        }

    def pop_info(self, runtime: Runtime) -> dict[str, Any]:
        """PopProcessQueueInfo of the same, for a queue that is popped."""
        state = self.state
        return {
            "waitAckCount": state.messages,
            "droped": state.dropped,
            "lastPopTimestamp": _stamp(runtime, state.last_pull),
        }


def _stamp(runtime: Runtime, at: float) -> int:
    """The wall-clock time in ms of a moment of the steady clock; 0 if it never came."""
    return runtime.now_ms() - int((runtime.monotonic() - at) * 1000) if at > 0.0 else 0

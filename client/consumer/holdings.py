"""The queues that a push consumer holds: taken, committed, and handed over to their next owner.

    rebalance gives a queue:   lock (ordered), pull, consume
    rebalance takes it away:   stop pulling; when no ordered listener is in it: commit, unlock

So an ordered queue has one owner at a time, however long its listener takes; RocketMQ's rule is the
same, but looks only at each rebalance whether the listener has returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.consuming import Consumption
from saturnmq.client.consumer.offset_store import OffsetStore
from saturnmq.client.consumer.queue_locks import QueueLocks
from saturnmq.client.core import ClientCore
from saturnmq.protocol import kernels
from saturnmq.protocol.message import MessageQueue
from saturnmq.runtime.errors import ListenerStuck

CLOSE_WAIT_S = 10.0


class Holdings:
    """The queues of one consumer; loop thread only. `pull` starts the task that pulls a queue's
    messages."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        offsets: OffsetStore,
        consumption: Consumption,
        pull: Callable[[AssignedQueue], asyncio.Task[Any]],
        *,
        ordered: bool,
    ) -> None:
        self.held: dict[MessageQueue, AssignedQueue] = {}
        self.locks = QueueLocks(core, group, offsets)
        self._core = core
        self._group = group
        self._offsets = offsets
        self._consumption = consumption
        self._pull = pull
        self._ordered = ordered
        self._renewing: asyncio.Task[None] | None = None
        self._closing = False

    def validate(self) -> None:
        """AssertionError: a queue is kept under another name, or what it holds cannot be."""
        for queue, assigned in self.held.items():
            assert assigned.queue == queue, f"{assigned.queue} is kept as {queue}"
            assigned.validate()

    def start(self) -> None:
        """Begins to keep the locks."""
        if self._ordered:
            renew = partial(self.locks.run, self.held)
            self._renewing = self._core.tasks.keep(renew, name=f"locks {self._group}")

    async def close(self) -> None:
        """Lets running listeners end, commits their finished messages and gives the locks back,
        except that of a queue whose listener has not returned: it expires at the broker.
        """
        self._closing = True
        for held in self.held.values():
            held.stop_pulling()
            held.drop()
        if not await self._consumption.end(CLOSE_WAIT_S):
            self._tell_running()
        if self._renewing is not None:
            self._renewing.cancel()
        await self.commit(confirm=True)
        if self._ordered:
            running = [queue for queue, held in self.held.items() if held.run is not None]
            await self.locks.release(self.locks.left_over(running))

    def _tell_running(self) -> None:
        text = (
            f"group {self._group}: the listener still runs {CLOSE_WAIT_S:g} s after close() was "
            "called; its messages come again. Give what it waits for a time-out"
        )
        running = [str(held.queue) for held in self.held.values() if held.run is not None]
        if running:
            text += f". No member gets {', '.join(running)} before the lock expires at the broker"
        self._core.report_error(ListenerStuck(text))

    async def take(self, queues: Sequence[MessageQueue]) -> bool:
        """Starts on `queues`; False if some cannot be had yet: another owner has the lock, or a
        listener here has yet to return. False, too, while a master cannot be told that we no
        longer need a lock: its next owner waits.
        """
        wanted = [queue for queue in queues if queue not in self.held]
        asked_at = self._core.runtime.monotonic()
        granted = await self.locks.acquire(wanted) if self._ordered and wanted else set(wanted)
        for queue in wanted:
            if queue not in granted:
                continue
            held = self.held[queue] = AssignedQueue(queue)
            held.state.draw = kernels.upcoming
            self._consumption.begin(held, asked_at)
            held.pulling = self._pull(held)
        if self._ordered and (left_over := self.locks.left_over({*self.held, *queues})):
            await self.locks.release(left_over)
            if self.locks.left_over({*self.held, *queues}):
                return False
        return all(queue in self.held and not self.held[queue].state.dropped for queue in queues)

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Stops on `queues`. A queue whose ordered listener runs is handed over when the listener
        has returned; until then it is kept, locked and dropped.
        """
        given = [self.held[queue] for queue in queues if queue in self.held]
        for held in given:
            if held.state.dropped:
                held.unlock_tries += 1
                continue
            held.stop_pulling()
            held.drop()
            if held.run is not None:
                held.once_quiet(partial(self._hand_over_soon, held))
        await self._hand_over([held for held in given if held.run is None])

    def _hand_over_soon(self, held: AssignedQueue) -> None:
        if not self._closing:
            self._core.tasks.once(partial(self._hand_over, [held]), name=f"leave {held.queue}")

    async def _hand_over(self, given: Sequence[AssignedQueue]) -> None:
        """Commit first, so that the next owner starts where this one ended."""
        given = [held for held in given if not held.handed_over]
        for held in given:
            held.handed_over = True
        gone = [held.queue for held in given]
        await self.commit(gone, confirm=self._ordered)
        if self._ordered:
            await self.locks.release(gone)
        for queue in gone:
            del self.held[queue]
            self._offsets.forget(queue)

    async def commit(
        self, queues: Iterable[MessageQueue] | None = None, *, confirm: bool = False
    ) -> None:
        """Commits the finished messages of `queues`, or of all queues that are held. With `confirm`
        a failure is reported: nobody here tries again."""
        failed = await self._offsets.commit(self.note_finished(queues), confirm=confirm)
        if failed is not None and confirm:
            self._core.report_error(failed)

    def note_finished(self, queues: Iterable[MessageQueue] | None = None) -> list[MessageQueue]:
        """Note the offsets of `queues` that may be committed, and return those queues. An ordered
        queue without its lock may belong to another consumer, which has come further."""
        noted, now = [], self._core.runtime.monotonic()
        for queue in list(self.held) if queues is None else queues:
            state = self.held[queue].state
            offset = state.commit_offset()
            if offset < 0 or (self._ordered and not state.locked(now)):
                continue
            self._offsets.update(queue, offset)
            noted.append(queue)
        return noted

"""How far a pull consumer was polled in each queue, and what of it the application is done with.

PullConsumer writes and reads it, on the loop's thread. Offsets that are done with go to its
OffsetStore, which commits them.
"""

from __future__ import annotations

from collections.abc import Mapping

from saturnmq.client.consumer.offset_store import OffsetStore
from saturnmq.client.core import ErrorListener
from saturnmq.protocol.message import MessageQueue


class PolledOffsets(dict[MessageQueue, int]):
    """The end of the polls so far, by queue."""

    def __init__(self, done: OffsetStore) -> None:
        super().__init__()
        self._done = done
        self._sought: set[MessageQueue] = set()

    def seek(self, queue: MessageQueue) -> None:
        """The queue was moved by the application: when its place is noted next, the committed
        offset follows, backwards too."""
        self._sought.add(queue)

    def note_all(self) -> None:
        """All that was polled is done with."""
        for queue, offset in self.items():
            self.note(queue, offset)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit these, and wait for the brokers. Raises the first failure."""
        for queue, offset in offsets.items():
            self.note(queue, offset)
        if (failed := await self._done.commit(confirm=True)) is not None:
            raise failed

    async def finish(self, report: ErrorListener, *, done: bool) -> None:
        """Commit what is done with, all that was polled if `done`, and report the first failure."""
        if done:
            self.note_all()
        if (failed := await self._done.commit(confirm=True)) is not None:
            report(failed)

    def note(self, queue: MessageQueue, offset: int) -> None:
        """The messages before `offset` are done with."""
        if queue in self._sought:
            self.move(queue, offset)
        else:
            self._done.update(queue, offset)

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Have `offset` committed, even if it is lower than the last one."""
        self._sought.discard(queue)
        self._done.reset(queue, offset)

    def forget(self, queue: MessageQueue) -> None:
        """The queue is not read here any more."""
        self.pop(queue, None)
        self._sought.discard(queue)

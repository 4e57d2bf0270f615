"""Memory of the tables that grow by requests: topics, groups, offsets, consumers, queue locks.

They count in the process's budget (`protocol/budget.py`) and have a part of it at most. Beyond that
nothing new is remembered, SYSTEM_BUSY; what is there stays, changes and is served. Sizes are
estimates by the number of entries: each new one is counted when it comes, and now and then all are
counted anew, since they go in many ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from saturnmq.protocol.budget import Budget

SHARE = 4  # the tables may have this part of the process's memory
# Bytes of one entry, with its part of the document that is written when the table is saved.
OFFSET, GROUP, TOPIC, MEMBER, LOCK = 600, 2000, 1500, 1500, 400


class TableMemory:
    """Of one broker."""

    def __init__(self, whole: Budget) -> None:
        name = f"of topics, groups and offsets: memoryBudgetBytes / {SHARE}"
        self._part = Budget(whole.limit // SHARE, name, whole)
        self.counts: Mapping[int, Callable[[], int]] = {}
        """By the bytes of one: how many there are."""

    def take(self, size: int, what: str) -> None:
        """`what` is about to be remembered: SystemBusy if there is no room."""
        self._part.take(size, what)

    def count(self) -> None:
        """Count all anew."""
        self._part.hold(sum(size * number() for size, number in self.counts.items()) - self.used)

    @property
    def used(self) -> int:
        return self._part.used
